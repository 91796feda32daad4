"""Axes by their names, as einops writes them: rearrange(x, "b t (h d) -> b h t d", h=4), reduce, repeat.

In: a tensor, a pattern, the extents that it does not tell. Out: a term of reshapes, transpositions, reductions and
copies. Invariant: elements keep the order of the names in each group; what only one side has is folded or copied.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Mapping

from mirage_nb.errors import ProgramSyntaxError, ShapeError
from mirage_nb.ir.ops import OpKind, show_shape
from mirage_nb.lang.builder import Builder, Result, Term
from mirage_nb.lang.reductions import mean, minimum, product, reduction
from mirage_nb.lang.views import SCALAR, expand, reshaped, shaped, stacked, transpose

_HINT = 'for example rearrange(x, "b t (h d) -> b h t d", h=4)'
_TOKEN = re.compile(r"\s*(\(|\)|\.\.\.|\w+)")
FOLDS: dict[str, Callable[..., Term]] = {
    "sum": reduction(OpKind.SUM), "mean": mean, "max": reduction(OpKind.MAX), "min": minimum, "prod": product,
}  # fmt: skip
NAMES = ("rearrange", "reduce", "repeat")
"""What takes a pattern."""

Groups = list[tuple[str, ...]]
"""The names of each dimension: several where it is made of them, none where its extent is 1."""


def rearranged(b: Builder, x: Result, pattern: str, extents: Mapping[str, int], fold: str) -> Term:
    """x with the axes of the right side; those that are left only are folded, if there is a way to, those that are
    right only are repeated."""
    left_text, arrow, right_text = pattern.partition("->")
    if not arrow or (fold and fold not in FOLDS):
        what = f"{fold} is no reduction" if arrow else f"{pattern!r} has no arrow"
        raise ProgramSyntaxError(what, hint=f"they are {', '.join(FOLDS)}" if arrow else _HINT)
    value = b.tensor(stacked(b, x, 0), "a pattern") if isinstance(x, tuple) else b.tensor_of(x, "a pattern")
    shape = b.shape(value)
    left, right = _groups(left_text), _groups(right_text)
    left, right = (_dotted(side, len(shape) - sum(group != ("...",) for group in left)) for side in (left, right))
    known = _extents(left, right, shape, extents, pattern)
    names, wanted = [n for group in left for n in group], [n for group in right for n in group]
    made = reshaped(b, value, tuple(known[n] for n in names) or SCALAR)
    gone = tuple(dim for dim, n in enumerate(names) if n not in wanted)
    if gone and not fold:
        message = f"{' and '.join(names[dim] for dim in gone)} of {pattern!r} stands on the left only"
        raise ProgramSyntaxError(message, hint='reduce(x, pattern, "mean") folds axes')
    if gone:
        made = b.tensor(FOLDS[fold](b, made, gone, False), "a pattern")
    kept = [n for n in names if n in wanted]
    order = [n for n in wanted if n in kept]
    made = b.tensor(transpose(b, made, tuple(kept.index(n) for n in order)), "a pattern") if order else made
    spread = tuple(known[n] if n in kept else 1 for n in wanted) or SCALAR
    made = b.tensor(expand(b, reshaped(b, made, spread), tuple(known[n] for n in wanted) or SCALAR), "a pattern")
    return shaped(b, made, tuple(math.prod(known[n] for n in group) for group in right))


def lettered(pattern: str) -> str:
    """A pattern of words for einsum, as letters: "b i d, b j d -> b i j" is "abc,adc->abd"."""
    words = [*dict.fromkeys(re.findall(r"\w+", pattern))]
    if len(words) > len(string.ascii_letters):
        raise ProgramSyntaxError(f"{len(words)} axes", hint=f"at most {len(string.ascii_letters)}")
    letters = dict(zip(words, string.ascii_letters, strict=False))
    return re.sub(r"\w+", lambda word: letters[word.group()], pattern).replace(" ", "")


def _groups(text: str) -> Groups:
    """One side of a pattern."""
    made: Groups = []
    inside: list[str] | None = None
    at = 0
    text = text.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        token = found.group(1) if found else ""
        if found is None or (token == "(" and inside is not None) or (token == ")" and inside is None):
            raise ProgramSyntaxError(f"{text!r} is no pattern", hint=_HINT)
        at = found.end()
        if token == "(":
            inside = []
        elif token == ")":
            made.append(tuple(inside or ()))
            inside = None
        elif inside is not None:
            inside.append(token)
        else:
            made.append(() if token == "1" else (token,))
    if inside is not None:
        raise ProgramSyntaxError(f"{text!r} is no pattern", hint="a ( is never closed")
    return made


def _dotted(side: Groups, spare: int) -> Groups:
    """The side with so many names in the place of dots."""
    dots = [f"...{i}" for i in range(spare)]
    made: Groups = []
    for group in side:
        made += [(dot,) for dot in dots] if group == ("...",) else [
            tuple(name for own in group for name in (dots if own == "..." else [own]))
        ]  # fmt: skip
    return made


def _extents(
    left: Groups, right: Groups, shape: tuple[int, ...], given: Mapping[str, int], pattern: str
) -> dict[str, int]:
    """The extent of every name."""
    known = dict(given)
    for side in (left, right):
        names = [name for group in side for name in group]
        if len({*names}) < len(names):
            raise ProgramSyntaxError(f"a name stands twice on one side of {pattern!r}", hint=_HINT)
    if len(left) != len(shape):
        raise ShapeError(f"{pattern!r} has {len(left)} axes for {show_shape(shape)}", hint=_HINT)
    for group, extent in zip(left, shape, strict=True):
        open_names = [name for name in group if name not in known]
        held = math.prod(known[name] for name in group if name in known)
        if len(open_names) > 1 or held < 1 or extent % held or (not open_names and held != extent):
            told = f"{pattern!r}: {' '.join(group) or '1'} is no axis of extent {extent}"
            raise ShapeError(told, hint="all names of a group but one have extents: h=4")
        known |= dict.fromkeys(open_names, extent // held)
    for name in (name for group in right for name in group):
        if known.get(name, 0) < 1:
            raise ShapeError(f"{pattern!r}: {name} has no extent", hint=f"write {name}=4 behind the pattern")
    return known
