"""ATen's writes of a slice: what PyTorch makes of assignments, and the derivatives of slices.

In: an `At` and the arguments of a node. Out: a term. Invariants: what PyTorch leaves open is any number. `ROWS` leave
writes into what PyTorch holds to it, which has them in place, as a cache's; whole programs (`WHOLE`) have no place.
"""

from __future__ import annotations

from typing import Any

from mirage_nb.frontend.aten.terms import At, Held, Left, Result, Row, padded
from mirage_nb.ir.dtypes import DType, TensorType
from mirage_nb.ir.ops import OPS, Trait
from mirage_nb.lang import lowering, masks, views
from mirage_nb.lang.builder import Builder, Infinity, Term, Value
from mirage_nb.lang.calls import call
from mirage_nb.lang.constants import Number


def _slice_scatter(
    at: At, x: Any, source: Any, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Result:
    """The parts of an axis around those that are written; between them, where it is written in steps."""
    b, whole, new = at.b, at.choice(x), at.choice(source)
    along = axis % len(at.shape)
    extent = at.shape[along]
    first, last, step = slice(start, end, step).indices(extent)
    if not isinstance(whole, int):
        return _placed(b, at.tensor(source), whole, along, first, step, extent)
    if step != 1 or not isinstance(new, int):
        shape = tuple(Number.of(len(range(first, last, step)) if d == along else 1) for d in range(len(at.shape)))
        ones = b.tensor_of(call(b, "full", shape, lowering.ONE), "places")
        there = _placed(b, ones, lowering.ZERO, along, first, step, extent)
        b.masks.add(there)
        chosen = _placed(b, new, lowering.ZERO, along, first, step, extent) if isinstance(new, int) else new
        return masks.where(b, there, chosen, whole)
    parts = [(0, first), (last, extent)]
    around = [views.sliced(b, whole, along, n, m - n) if m > n else None for n, m in parts]
    held = tuple(part for part in (around[0], new, around[1]) if part is not None)
    return new if len(held) == 1 else views.concatenated(b, held, None, along)


def _placed(b: Builder, x: Value, around: masks.Choice, along: int, first: int, step: int, extent: int) -> Value:
    """x at every so many places of an axis of this extent, and a number at all others."""
    assert isinstance(around, Number | Infinity)
    shape = b.shape(x)
    if step > 1:
        apart = padded(b, views.reshaped(b, x, (*shape[:along], 1, *shape[along:])), along, (0, step - 1), around)
        order = [*range(along), along + 1, along, *range(along + 2, len(shape) + 1)]
        turned = b.tensor(views.transpose(b, apart, tuple(order)), "a slice")
        x = views.reshaped(b, turned, (*shape[:along], shape[along] * step, *shape[along + 1 :]))
    return padded(b, x, along, (first, extent - first - shape[along] * step), around)


def _select_scatter(at: At, x: Any, source: Any, axis: int, index: int) -> Result:
    along = axis % len(at.shape)
    place = index % at.shape[along]
    shape = tuple(1 if d == along else n for d, n in enumerate(at.shape))
    new = at.choice(source)
    new = views.reshaped(at.b, new, shape) if isinstance(new, int) else new
    return _slice_scatter(at, x, Held(new, filled=TensorType(shape, at.dtype or DType.F32)), along, place, place + 1)


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
