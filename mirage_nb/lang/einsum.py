"""Sums of products in index notation: einsum.

In: `ij,jk->ik` and as many tensors. Out: a term of products, transpositions and reshapes. Invariant: tensors are
multiplied from left to right, each product folds the letters that nothing to its right and no output needs; letters
of both operands stay in front, where products of matrices broadcast.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass

from mirage_nb.errors import ProgramSyntaxError, ShapeError
from mirage_nb.ir.ops import OpKind, show_shape
from mirage_nb.lang.builder import Builder, Term, Value
from mirage_nb.lang.lowering import cast, multiply, product
from mirage_nb.lang.masks import diagonal
from mirage_nb.lang.reductions import folded
from mirage_nb.lang.views import reshaped, shaped, transpose

_HINT = 'for example einsum("bhqd,bhkd->bhqk", Q, K)'


@dataclass(frozen=True, slots=True)
class _Lettered:
    """A tensor and the letter of each of its dimensions."""

    value: Value
    letters: str


def einsum(b: Builder, text: str, tensors: tuple[Value, ...]) -> Term:
    """The sum over the letters that are not behind the arrow of the products of the tensors' elements."""
    operands, output = _read(b, text, tensors)
    made, *rest = operands
    while rest:
        second, *rest = rest
        needed = output + "".join(later.letters for later in rest)
        made = _product(b, _summed(b, made, second.letters + needed), _summed(b, second, made.letters + needed), needed)
    if not output:
        return shaped(b, folded(b, OpKind.SUM, made.value, tuple(range(len(made.letters)))), ())
    made = _summed(b, made, output)
    return _ordered(b, made, output).value


def _read(b: Builder, text: str, tensors: Sequence[Value]) -> tuple[list[_Lettered], str]:
    left, arrow, output = _lettered(text.replace(" ", ""), [len(b.shape(tensor)) for tensor in tensors]).partition("->")
    if not arrow:
        output = "".join(sorted(letter for letter in {*left} - {","} if left.count(letter) == 1))
    parts = left.split(",")
    if len(parts) != len(tensors):
        raise ProgramSyntaxError(f"einsum: {len(parts)} operands in {text!r}, {len(tensors)} tensors", hint=_HINT)
    extents: dict[str, int] = {}
    for part, tensor in zip(parts, tensors, strict=True):
        shape = b.shape(tensor)
        if len(part) != len(shape):
            raise ShapeError(f"einsum: {part!r} has {len(part)} letters for {show_shape(shape)}", hint=_HINT)
        for letter, extent in zip(part, shape, strict=True):
            if extents.setdefault(letter, extent) != extent:
                raise ShapeError(f"einsum: {letter} has extent {extents[letter]} and extent {extent}", hint=_HINT)
    unknown = next((letter for letter in output if letter not in extents), "")
    if unknown or len(set(output)) != len(output):
        why = f"{unknown} stands only" if unknown else "each letter stands once"
        raise ProgramSyntaxError(f"einsum: {why} behind the arrow of {text!r}", hint=_HINT)
    found = [one for part, tensor in zip(parts, tensors, strict=True) for one in _apart(b, tensor, part, text)]
    return found, output


def _apart(b: Builder, tensor: Value, letters: str, text: str) -> list[_Lettered]:
    """A tensor with a letter of its own for each dimension; for one that stood twice, ones where the two agree."""
    spare = iter(letter for letter in string.ascii_letters[::-1] if letter not in text)
    own, masks = "", []
    for letter, extent in zip(letters, b.shape(tensor), strict=True):
        if letter in own:
            again = next(spare)
            ones = b.tensor(cast(b.dtype(tensor))(b, diagonal(b, extent)), "einsum")
            masks.append(_Lettered(ones, letter + again))
            letter = again
        own += letter
    return [_Lettered(tensor, own), *masks]


def _lettered(text: str, ranks: Sequence[int]) -> str:
    """The text with letters of its own in the place of dots, the same at the right of all operands."""
    left, arrow, output = text.partition("->")
    parts = left.split(",")
    held = [rank - len(part.replace("...", "")) for part, rank in zip(parts, ranks, strict=False) if "..." in part]
    spare = "".join(letter for letter in string.ascii_letters if letter not in text)[: max([*held, 0])]
    for place, (part, rank) in enumerate(zip(parts, ranks, strict=False)):
        own = max(0, rank - len(part.replace("...", "")))
        parts[place] = part.replace("...", spare[len(spare) - own :])
    if not arrow and held:
        output = "..." + "".join(sorted(letter for letter in {*left} - {*",."} if left.count(letter) == 1))
    return ",".join(parts) + ("->" if arrow or held else "") + output.replace("...", spare)


def _summed(b: Builder, x: _Lettered, needed: str) -> _Lettered:
    """Without the letters that nothing else needs."""
    gone = tuple(dim for dim, letter in enumerate(x.letters) if letter not in needed)
    if not gone or len(gone) == len(x.letters):
        return x
    left = "".join(letter for letter in x.letters if letter in needed)
    total = folded(b, OpKind.SUM, x.value, gone)
    shape = tuple(extent for dim, extent in enumerate(b.shape(x.value)) if dim not in gone)
    return _Lettered(reshaped(b, total, shape), left)


def _ordered(b: Builder, x: _Lettered, order: str) -> _Lettered:
    """The same with its dimensions in this order of letters."""
    if x.letters == order:
        return x
    turned = transpose(b, x.value, tuple(x.letters.index(letter) for letter in order))
    return _Lettered(b.tensor(turned, "einsum"), order)


def _product(b: Builder, x: _Lettered, y: _Lettered, needed: str) -> _Lettered:
    """The product of two: a product of matrices where letters of both are summed, else elementwise."""
    both = [letter for letter in x.letters if letter in y.letters]
    inner = "".join(letter for letter in both if letter not in needed)
    lead = "".join(letter for letter in both if letter in needed)
    rows = "".join(letter for letter in x.letters if letter not in both)
    columns = "".join(letter for letter in y.letters if letter not in both)
    if not inner:
        letters = lead + rows + columns
        return _Lettered(b.tensor(multiply(b, _spread(b, x, letters), _spread(b, y, letters)), "einsum"), letters)
    extents = dict(zip(x.letters, b.shape(x.value), strict=True)) | dict(zip(y.letters, b.shape(y.value), strict=True))
    left = _matrix(b, x, lead, rows, inner)
    right = _matrix(b, y, lead, inner, columns)
    made = product(b, left, right)
    letters = lead + rows + columns
    return _Lettered(reshaped(b, made, tuple(extents[letter] for letter in letters)), letters)


def _spread(b: Builder, x: _Lettered, letters: str) -> Value:
    """The tensor with a dimension for each of these letters, extent 1 where it has none."""
    own = "".join(letter for letter in letters if letter in x.letters)
    ordered = _ordered(b, x, own)
    extents = dict(zip(own, b.shape(ordered.value), strict=True))
    return reshaped(b, ordered.value, tuple(extents.get(letter, 1) for letter in letters))


def _matrix(b: Builder, x: _Lettered, lead: str, rows: str, columns: str) -> Value:
    """The tensor as matrices: leading letters, then two groups that are one dimension each."""
    ordered = _ordered(b, x, lead + rows + columns)
    extents = dict(zip(ordered.letters, b.shape(ordered.value), strict=True))
    shape = (math.prod(extents[letter] for letter in group) for group in (*lead, rows, columns))
    return reshaped(b, ordered.value, tuple(shape))
