"""ATen's writes of a slice: what PyTorch makes of assignments, and the derivatives of slices.

In: an `At` and the arguments of a node. Out: a term. Invariants: what PyTorch leaves open is any number. `ROWS` leave
writes into what PyTorch holds to it, which has them in place, as a cache's; whole programs (`WHOLE`) have no place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirage_nb.frontend.aten.terms import At, Held, Left, Result, Row
from mirage_nb.ir.dtypes import DType, TensorType
from mirage_nb.ir.ops import OPS, Trait
from mirage_nb.lang import lowering, masks
from mirage_nb.lang.builder import Infinity, Term, Value
from mirage_nb.lang.views import Item, Range
from mirage_nb.lang.writes import written

EVERY = Range(None, None, None)


def _slice_scatter(
    at: At, x: Any, source: Any, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Result:
    return _placed(at, x, [*[EVERY] * (axis % len(at.shape)), Range(start, end, step)], source)


def _select_scatter(at: At, x: Any, source: Any, axis: int, index: int) -> Result:
    return _placed(at, x, [*[EVERY] * (axis % len(at.shape)), index], source)


def _placed(at: At, x: Any, items: Sequence[Item], source: Any) -> Result:
    """A tensor with another one in a part of it, as programs write it; around it may be infinities."""
    b, whole, new = at.b, at.choice(x), at.choice(source)
    if not isinstance(whole, Infinity):
        return written(b, at.tensor(x), items, new)
    zeros = at.tensor(Held(lowering.ZERO, filled=TensorType(at.shape, at.dtype or DType.F32)))
    there, made = (b.tensor(written(b, zeros, items, one), "a slice") for one in (lowering.ONE, new))
    b.masks.add(there)
    return masks.where(b, there, made, whole)


def _empty(_: At, *__: Any, **___: Any) -> Term:
    """What PyTorch leaves open is any number."""
    return lowering.ZERO


def _apart(row: Row) -> Row:
    """Only where what is written into is computed, as nothing is written into its place then."""

    def lower(at: At, x: Any, *given: Any, **named: Any) -> Result:
        base = at.choice(x)
        while isinstance(base, int) and (op := at.b.definition(base)) is not None and Trait.VIEW in OPS[op.kind].traits:
            base = Value(op.inputs[0])
        if isinstance(base, int) and at.b.definition(base) is None:
            raise Left("PyTorch writes it where it lies")
        return row(at, x, *given, **named)

    return lower


EMPTY = ("empty.memory_format", "empty_permuted.default", "empty_like.default", "empty_strided.default")
WHOLE: dict[str, Row] = {
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
}
ROWS: dict[str, Row] = {
    **{name: _apart(row) for name, row in WHOLE.items()},
    **{f"aten.{name}": _empty for name in EMPTY},
}
