"""Expressions as readable text, such as `Σk X·W / √(Σk X²·1/k)`.

In: an algebra and one of its expressions. Out: one line. Σ reaches to the end of its product and stops
before a quotient; a quotient inside a sum stands in parentheses. An axis of which all known parts are
summed is written by its letter, else with the parts: Σk.lt. A second, independent sum over the same axis
inside one sum is primed, and so are the factors under it: Σj,k,k′ A·X·X[k′]. What would be longer than a
few pages is an ellipsis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mirage_nb.algebra.atoms import AtomKind, Block, Expr, SubAxis

if TYPE_CHECKING:
    from mirage_nb.algebra.normal_form import Algebra

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LOOSE, _PRODUCT, _TIGHT = 0, 1, 2  # how strongly a text holds together
_LONGEST = 4000
"""Characters of an expression inside another one, or of one that is shown."""
_Text = tuple[str, int]
_Marked = tuple[int, str]
"""An atom and the primed axes that it stands under."""


def show(algebra: Algebra, e: Expr) -> str:
    """The text of an expression."""
    return _sum(algebra, e)[0]


def show_terms(algebra: Algebra, e: Expr) -> tuple[tuple[int, str], ...]:
    """The summands of an expression: coefficient and text of each."""
    return tuple((c, _monomial(algebra, m)[0]) for m, c in algebra.monomials(e))


def show_monomial(algebra: Algebra, monomial: int) -> str:
    """The text of a monomial."""
    return _monomial(algebra, monomial)[0]


def axis_text(axis: SubAxis) -> str:
    """k.l for ("k", "l"), m for ("m",)."""
    return ".".join(map(str, axis)) if isinstance(axis, tuple) else str(axis)


def _sum(algebra: Algebra, e: Expr) -> _Text:
    key = e, len(algebra.table.axis_names)  # parts of axes that came later are written, too
    if key not in algebra.texts:
        text, strength = _written(algebra, e)
        algebra.texts[key] = (text, strength) if len(text) <= _LONGEST else ("…", _TIGHT)
    return algebra.texts[key]


def _written(algebra: Algebra, e: Expr) -> _Text:
    added: list[_Text] = []
    taken: list[_Text] = []
    for m, c in algebra.monomials(e):
        negative = not m % algebra.minus
        m = algebra.table.quotient(m, algebra.minus) if negative else m
        text = (str(c), _TIGHT) if m == 1 else _monomial(algebra, m)
        if m != 1 and c != 1:
            text = f"{c}·{_closed(text, _PRODUCT)}", _PRODUCT
        (taken if negative else added).append(text)
    if len(added) == 1 and not taken:
        return added[0]
    plus = " + ".join(text for text, _ in added)
    minus = "".join(f" - {text}" for text, _ in taken)
    return (plus + minus, _LOOSE) if added else (minus.strip().replace("- ", "-", 1), _LOOSE)


def _monomial(algebra: Algebra, monomial: int) -> _Text:
    return _product(algebra, [(p, "") for p in algebra.table.monomials[monomial].atoms])


def _product(algebra: Algebra, factors: Sequence[_Marked]) -> _Text:
    above: Counter[_Text] = Counter()
    below: Counter[_Text] = Counter()
    exponents: list[str] = []
    roots: list[_Text] = []
    for prime, mark in factors:
        kind = algebra.table.atoms[prime].kind
        if kind is AtomKind.INVERSE:
            below[_marked(_sum(algebra, algebra.argument(prime)), mark)] += 1
        elif kind is AtomKind.EXP and not mark:
            exponents.append(show(algebra, algebra.argument(prime)))
        elif kind is AtomKind.ROOT and not mark and algebra.splits(kind):
            roots.append(_sum(algebra, algebra.argument(prime)))
        else:
            above[_marked(_atom(algebra, prime), mark)] += 1
    if exponents:
        above[f"exp({' + '.join(exponents).replace(' + -', ' - ')})", _TIGHT] += 1
    if roots:
        above[f"√({_powers(Counter(roots))[0]})", _TIGHT] += 1
    return _quotient(_powers(above), _powers(below))


def _quotient(above: _Text, below: _Text) -> _Text:
    if not below[0]:
        return above
    return f"{above[0] or '1'} / {_closed(below, _TIGHT)}", _LOOSE


def _powers(counted: Counter[_Text]) -> _Text:
    """A product of texts, equal ones as powers; one text alone stays as it is."""
    if len(counted) == 1 and max(counted.values()) == 1:
        return next(iter(counted))
    parts = []
    for text, n in sorted(counted.items(), key=lambda item: (not item[0][0].isdigit(), item[0][1] == _LOOSE)):
        power = str(n).translate(_SUPERSCRIPTS) if n > 1 else ""
        parts.append(_closed(text, _TIGHT) + power)
    return "·".join(parts), _PRODUCT if len(parts) > 1 else _TIGHT


def _closed(text: _Text, strength: int) -> str:
    return text[0] if text[1] >= strength else f"({text[0]})"


def _marked(text: _Text, mark: str) -> _Text:
    return (f"{_closed(text, _TIGHT)}[{mark}]", _TIGHT) if mark else text


def _atom(algebra: Algebra, prime: int) -> _Text:
    atom = algebra.table.atoms[prime]
    match atom.payload:
        case Block() as block:
            return _block(algebra, block)
        case (name, int(argument)) if atom.kind is AtomKind.FUNCTION:
            return f"{name}({show(algebra, argument)})", _TIGHT
        case (operator, tuple()) if atom.kind is AtomKind.LARGE:
            return f"(large {operator})", _TIGHT
        case int(argument) if atom.kind in (AtomKind.EXP, AtomKind.ROOT, AtomKind.INVERSE):
            sign = {AtomKind.EXP: "exp", AtomKind.ROOT: "√", AtomKind.INVERSE: "1 / "}[atom.kind]
            return f"{sign}({show(algebra, argument)})", _TIGHT
        case int(argument) if atom.kind is AtomKind.ADDITION:
            return _sum(algebra, argument)
        case int(addition) if atom.kind is AtomKind.LATER:
            return _sum(algebra, algebra.argument(addition))
        case payload:
            return str(payload), _TIGHT


def _block(algebra: Algebra, block: Block) -> _Text:
    names = algebra.table.axis_names
    copies: Counter[int] = Counter()
    primes: list[str] = []
    for a in block.names:
        primes.append("′" * copies[a])
        copies[a] += 1
    axes: dict[str, list[SubAxis]] = {}
    for a, prime in zip(block.names, primes, strict=True):
        axes.setdefault(prime, []).append(names[a])
    label = ",".join(_axes_text(algebra, group) + prime for prime, group in axes.items())
    if not block.factors:
        return f"|{label}|", _TIGHT
    marked = []
    for p, vs in block.factors:
        under = [axis_text(names[block.names[v]]) + primes[v] for v in vs if v >= 0 and primes[v]]
        marked.append((p, ",".join(under)))
    text = _product(algebra, marked)
    return f"Σ{label} {_closed(text, _PRODUCT)}", _LOOSE


def _axes_text(algebra: Algebra, axes: Iterable[SubAxis]) -> str:
    """The axes of a sum: whole axes by their letter, else the letter and the parts."""
    parts: dict[str, list[str]] = {}
    for axis in sorted(axes, key=axis_text):
        letter, _, part = axis_text(axis).partition(".")
        parts.setdefault(letter, []).append(part)
    known = Counter(axis_text(axis).partition(".")[0] for axis in algebra.table.axis_names)
    whole = {letter: len(found) == known[letter] for letter, found in parts.items()}
    return ",".join(a if whole[a] else f"{a}.{''.join(found)}" for a, found in parts.items())
