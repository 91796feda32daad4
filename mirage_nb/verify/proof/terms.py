"""Terms: what one output element is, in index notation, identified up to what no proof should have to say.

In: constructor calls. Out: immutable `Term`s whose digests agree exactly when the terms do. Equality built into the
constructors, and so part of what the checker trusts: sums, products and the largest of several are unordered and flat,
rational numerals are added and multiplied, 0 and 1 vanish, and bound indices have no names. An axis that is
partitioned is a list of indices, outermost first: `X[i, k.0 k.1]` reads X at row i and at column k.0 * |k.1| + k.1. No
extent occurs in a term, so what is proved of terms holds for all sizes (paper section 5, Definition 5.1 and
Equation 2); but a part may say its own: `k=16` has 16 indices. The order in which a binder lists indices of one part
of an axis is part of the term.

Terms are total functions of real numbers: one over 0 is 0, the root of a negative number is 0, and so are the
logarithm of what is not positive and the power with a broken exponent of what is negative. So every equation between
terms has one meaning at every point; where graphs have a value is asked of the graphs (`domain`).

Work is counted: within `metered`, terms whose construction takes more than what is given are refused.

Names: a free index has a negative number, a bound one a number that follows from the depth of its binder, so that
neither can be mistaken for the other and no substitution captures.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from mirage_nb.errors import ProofError

Var = tuple[str, int]
"""An index: the part of an axis that it runs over, and a number."""
Digit = Any
"""One place of an index list: a Var, ("L" | "R", digits) on one side of a concatenated axis, or ("T", digits) in the
tiles that hang over the end of an axis."""

MAX_CHILDREN = 4096
MAX_NODES = 50_000
MAX_INDICES = 48
"""Free indices of a term, indices of one binder, and parts of axes that a term binds indices of."""
MAX_BITS = 4096
"""Bits of a numeral."""
OPENED = -1000
"""The index (s, n) of an opened binder is called (s, OPENED - n); those of outputs are -1, -2, and so on."""


class Kind(enum.StrEnum):
    """What a node is; the value is its name in patterns and files."""

    NUM = "num"
    SYM = "sym"
    IN = "in"
    ADD = "add"
    MUL = "mul"
    INV = "inv"
    EXP = "exp"
    SQRT = "sqrt"
    FN = "fn"
    TOP = "max"
    SUM = "Sum"
    MAX = "Max"
    RESCALED = "Rescaled"
    WITHIN = "Within"


BINDERS = frozenset({Kind.SUM, Kind.MAX, Kind.RESCALED, Kind.WITHIN})


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One node. `data` is the numeral, the symbol (name, positive), the input (name, digits per dimension), the
    function's name, or the indices bound here; `bound` the highest number of a bound index, per part of an axis;
    `nodes` counts the tree."""

    kind: Kind
    data: Any
    args: tuple[Term, ...]
    digest: bytes
    free: frozenset[Var]
    bound: Mapping[str, int]
    nodes: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Term) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        return show(self)


@dataclass(slots=True)
class _Meter:
    left: int


_METER: ContextVar[_Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered(work: int) -> Iterator[None]:
    """Raise ProofError when the terms made inside take more than so much work: about one unit for each node, each
    argument of it and each index in it, whether the node was made before or not."""
    token = _METER.set(_Meter(work))
    try:
        yield
    finally:
        _METER.reset(token)


def spend(work: int) -> None:
    """Count work that is done."""
    meter = _METER.get()
    if meter is not None:
        meter.left -= work
        if meter.left < 0:
            raise ProofError("the terms take too much work", hint="a proof has short steps on small terms")


def _node(kind: Kind, data: Any, args: tuple[Term, ...]) -> Term:
    spend(1 + len(args))
    return _made(kind, data, args)


@functools.lru_cache(maxsize=8192)
def _made(kind: Kind, data: Any, args: tuple[Term, ...]) -> Term:
    nodes = 1 + sum(arg.nodes for arg in args)
    if nodes > MAX_NODES or len(args) > MAX_CHILDREN:
        raise ProofError(f"a term of more than {MAX_NODES:,} nodes", hint="products of long sums multiply out")
    free: frozenset[Var] = max((arg.free for arg in args), key=len, default=frozenset())
    bound: Mapping[str, int] = max((arg.bound for arg in args), key=len, default=_NONE)
    if kind is Kind.IN:
        free = frozenset(v for digits in data[1] for v in _vars(digits))
    elif not all(arg.free <= free for arg in args):
        free = free.union(*(arg.free for arg in args))
    if kind in BINDERS:
        free = free.difference(data)
    others = [pair for arg in args if arg.bound is not bound for pair in arg.bound.items()]
    others += data if kind in BINDERS else ()
    if any(number > bound.get(sort, -1) for sort, number in others):
        highest = dict(bound)
        for sort, number in others:
            highest[sort] = max(number, highest.get(sort, -1))
        bound = highest
    spend(len(free) + len(bound))
    if max(len(free), len(bound)) > MAX_INDICES:
        raise ProofError(f"a term with more than {MAX_INDICES} indices")
    text = hashlib.blake2b(f"{kind.value}|{data!r}|{len(args)}|".encode(), digest_size=20)
    for arg in args:
        text.update(arg.digest)
    return Term(kind, data, args, text.digest(), free, bound, nodes)


_NONE: Mapping[str, int] = MappingProxyType({})


def _vars(digits: Iterable[Digit]) -> Iterator[Var]:
    for digit in digits:
        if isinstance(digit[1], tuple):
            yield from _vars(digit[1])
        else:
            yield digit


@functools.lru_cache(maxsize=256)
def num(value: Fraction | int) -> Term:
    """A numeral."""
    return _node(Kind.NUM, Fraction(value), ())


def sym(name: str, positive: bool = False) -> Term:
    """An unknown real number without indices: a constant of the program or the extent of a part of an axis."""
    return _node(Kind.SYM, (name, positive), ())


NO_EXTENTS: Mapping[str, int] = MappingProxyType({})


def counted(sort: str, extent: int) -> str:
    """The name of a part of an axis that says its extent. No other name ends so: those end with a dimension."""
    return f"{sort}={extent}"


def size(sort: str) -> Term:
    """How many values an index of this part of an axis takes: an unknown number, unless its name says it."""
    extent = said_extent(sort)
    return num(extent) if extent else sym(f"|{sort}|", positive=True)


def said_extent(sort: str) -> int:
    """The extent that the name of a part of an axis says; 0 for one that says none."""
    said = _SAID.search(sort)
    return int(said[1]) if said else 0


_SAID = re.compile(r"=([1-9][0-9]{0,9})\Z", re.ASCII)


def counts(term: Term) -> bool:
    """Whether the term asks for the unknown extent of a part of an axis."""
    return (term.kind is Kind.SYM and term.data[0].startswith("|")) or any(map(counts, term.args))


def entry(name: str, index: tuple[tuple[Digit, ...], ...]) -> Term:
    """An element of an input."""
    spend(sum(1 + len(digits) for digits in index))
    return _node(Kind.IN, (name, index), ())


INSIDE = "inside "
"""What the name of an input begins with that tells elements of tiles inside an axis from those beyond its end."""


def inside(tiles: str, digits: tuple[Digit, ...]) -> Term:
    """1 where an element of tiles that hang over the end of an axis is one of it, else 0."""
    return entry(INSIDE + tiles, (digits,))


_ZERO, _ONE = Fraction(0), Fraction(1)
_BY_DIGEST = operator.attrgetter("digest")


def add(*terms: Term) -> Term:
    """The sum; numerals are added up, nested sums are joined."""
    return _joined(Kind.ADD, operator.add, _ZERO, terms)


def mul(*terms: Term) -> Term:
    """The product; numerals are multiplied out, nested products are joined."""
    return _joined(Kind.MUL, operator.mul, _ONE, terms)


def _joined(kind: Kind, step: Callable[[Fraction, Fraction], Fraction], unit: Fraction, terms: Iterable[Term]) -> Term:
    total, rest, numeral = unit, list[Term](), Kind.NUM
    for term in terms:
        for part in term.args if term.kind is kind else (term,):
            if part.kind is numeral:
                total = part.data if total is unit else step(total, part.data)
                bits = max(total.numerator.bit_length(), total.denominator.bit_length())
                spend(bits // 64)
                if bits > MAX_BITS:
                    raise ProofError("a numeral of more than a thousand digits")
            else:
                rest.append(part)
        if len(rest) > MAX_CHILDREN:
            raise ProofError(f"a term of more than {MAX_CHILDREN} parts")
    if kind is Kind.MUL and not total:
        return num(0)
    if (total is not unit and total != unit) or not rest:
        rest.append(num(total))
    if len(rest) == 1:
        return rest[0]
    return _node(kind, None, tuple(sorted(rest, key=_BY_DIGEST)))


def top(*terms: Term) -> Term:
    """The largest of several; nested ones are joined, and equal ones count once."""
    parts = set[Term]()
    for term in terms:
        parts.update(term.args if term.kind is Kind.TOP else (term,))
        if len(parts) > MAX_CHILDREN:
            raise ProofError(f"a term of more than {MAX_CHILDREN} parts")
    if len(parts) == 1:
        return parts.pop()
    return _node(Kind.TOP, None, tuple(sorted(parts, key=_BY_DIGEST)))


def neg(term: Term) -> Term:
    """Minus the term."""
    return mul(num(-1), term)


def inv(term: Term) -> Term:
    """One over the term; of a numeral other than 0, that numeral."""
    if term.kind is Kind.NUM and term.data:
        return num(1 / term.data)
    return _node(Kind.INV, None, (term,))


def exp(term: Term) -> Term:
    """e to the term; 1 for 0."""
    return num(1) if term.kind is Kind.NUM and not term.data else _node(Kind.EXP, None, (term,))


def sqrt(term: Term) -> Term:
    """The square root."""
    return _node(Kind.SQRT, None, (term,))


def fn(name: str, *args: Term) -> Term:
    """A function that is known by its name and its properties only."""
    return _node(Kind.FN, name, args)


def bind(kind: Kind, indices: tuple[Var, ...], *args: Term) -> Term:
    """Sum or Max of a term over indices, the rescaled sum of (x, m): Sum of x * exp(m - Max m), or the largest x of
    (x, b) where b is not 0; 0 if it is nowhere.

    Over no index: the term itself. The names of indices are lost; the order of those over one part of an axis is not.
    """
    if not indices:
        return args[0]
    if len(set(indices)) < len(indices) or len(indices) > MAX_INDICES or any(number >= 0 for _, number in indices):
        raise ProofError(f"the indices of a {kind.value} are not distinct and free, or more than {MAX_INDICES}")
    following: dict[str, int] = {}
    names: dict[Var, Var] = {}
    for var in sorted(indices, key=lambda var: var[0]):
        sort = var[0]
        number = following[sort] if sort in following else 1 + max(arg.bound.get(sort, -1) for arg in args)
        names[var], following[sort] = (sort, number), number + 1
    return _node(kind, tuple(names.values()), tuple(renamed(arg, names) for arg in args))


def opened(term: Term) -> tuple[tuple[Var, ...], tuple[Term, ...]]:
    """The indices of a binder under free names that the term does not use, and its arguments.

    Along a path of a closed term the numbers of binders decrease, so there the names follow from the numbers alone.
    """
    spend(term.nodes)
    return _opened(term)


@functools.lru_cache(maxsize=4096)
def _opened(term: Term) -> tuple[tuple[Var, ...], tuple[Term, ...]]:
    shift = 0
    while any((sort, OPENED - number + shift) in term.free for sort, number in term.data):
        shift += OPENED
    names = {(sort, number): (sort, OPENED - number + shift) for sort, number in term.data}
    return tuple(names.values()), tuple(renamed(arg, names) for arg in term.args)


def renamed(term: Term, names: Mapping[Var, Var], memo: dict[Term, Term] | None = None) -> Term:
    """The term with indices called otherwise. The new names of free indices are none that it binds."""
    if term.free.isdisjoint(names):
        return term
    memo = {} if memo is None else memo
    if term not in memo:
        if term.kind is Kind.IN:
            made = entry(term.data[0], tuple(_renamed_digits(digits, names) for digits in term.data[1]))
        else:
            made = rebuilt(term, tuple(renamed(arg, names, memo) for arg in term.args))
        memo[term] = made
    return memo[term]


def _renamed_digits(digits: tuple[Digit, ...], names: Mapping[Var, Var]) -> tuple[Digit, ...]:
    return tuple(
        (digit[0], _renamed_digits(digit[1], names)) if isinstance(digit[1], tuple) else names.get(digit, digit)
        for digit in digits
    )


NODES: Mapping[Kind, Callable[..., Term]] = MappingProxyType(
    {Kind.ADD: add, Kind.MUL: mul, Kind.TOP: top, Kind.INV: inv, Kind.EXP: exp, Kind.SQRT: sqrt}
)
"""The constructors of nodes that are nothing but a kind and arguments."""


def rebuilt(term: Term, args: tuple[Term, ...]) -> Term:
    """The node over other arguments; a binder keeps its indices."""
    return NODES[term.kind](*args) if term.kind in NODES else _node(term.kind, term.data, args)


def replaced(term: Term, old: Term, new: Term, memo: dict[Term, Term] | None = None) -> Term:
    """The term with `new` wherever it has `old`, under binders too: equals for equals."""
    if term == old:
        return new
    if not term.args or term.nodes <= old.nodes:
        return term
    memo = {} if memo is None else memo
    if term in memo:
        return memo[term]
    made = term
    if term.kind in BINDERS:
        indices, args = opened(term)
        changed = tuple(replaced(arg, old, new, memo) for arg in args)
        if changed != args:
            made = bind(term.kind, indices, *changed)
    else:
        changed = tuple(replaced(arg, old, new, memo) for arg in term.args)
        if changed != term.args:
            made = rebuilt(term, changed)
    memo[term] = made
    return made


AWAY = -20_000_000_000


def given(term: Term, old: Term, new: Term) -> Term:
    """The term with `new` for `old`, but not for what a binder inside makes look like it: the free indices of `old` are
    called otherwise meanwhile."""
    names = {(sort, number): (sort, AWAY + number) for sort, number in old.free}
    made = replaced(renamed(term, names), renamed(old, names), new)
    return renamed(made, {there: here for here, there in names.items()})


def show(term: Term) -> str:
    """The term on one line: `Sum[k.0](X[i, k.0] * W[k.0, j])`."""
    match term.kind:
        case Kind.NUM:
            return str(term.data)
        case Kind.SYM:
            return str(term.data[0])
        case Kind.IN:
            return f"{term.data[0]}[{', '.join(_show_digits(digits) for digits in term.data[1])}]"
        case Kind.ADD:
            return " + ".join(sorted(map(show, term.args)))
        case Kind.MUL:
            return " * ".join(sorted(f"({show(a)})" if a.kind is Kind.ADD else show(a) for a in term.args))
        case Kind.TOP:
            return f"max({', '.join(sorted(map(show, term.args)))})"
        case Kind.FN:
            return f"{term.data}({', '.join(map(show, term.args))})"
        case _ if term.kind in BINDERS:
            return f"{term.kind.value}[{' '.join(map(_show_var, term.data))}]({', '.join(map(show, term.args))})"
        case _:
            return f"{term.kind.value}({show(term.args[0])})"


def _show_digits(digits: tuple[Digit, ...]) -> str:
    if not digits:
        return "0"
    return " ".join(
        f"{digit[0]}({_show_digits(digit[1])})" if isinstance(digit[1], tuple) else _show_var(digit) for digit in digits
    )


def _show_var(var: Var) -> str:
    sort, number = var
    if OPENED < number < 0:
        return f"{sort}'{-number}"
    place = number if number >= 0 else OPENED - number
    return sort + ("'" * place if place < 4 else f"'{place}'")
