"""Which input elements every element depends on, as sets of marked groups.

In: a graph and, for every input, one 64-bit word per element: the groups the element belongs to. Out: for
every element of the outputs, and of everything that a square root is taken of, the groups of the input
elements that it depends on, at least. A walk like the interpreters', so block graphs need nothing of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import VerificationError
from mirage_nb.interp import arrays
from mirage_nb.interp.arrays import Array
from mirage_nb.interp.run import run_kernel
from mirage_nb.ir import OPS, AccumKind, DimAttrs, KernelGraph, OpKind, PowAttrs, Trait
from mirage_nb.ir.ops import Attrs
from mirage_nb.verify.lax import half_power

Words = NDArray[np.uint64]

GROUPS = 63
BELOW_ROOT = np.uint64(1 << GROUPS)
"""The bit that marks what was computed from a square root."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Words of the outputs, and one of everything met under roots; whether a root is taken of a root."""

    outputs: tuple[Words, ...]
    radicands: tuple[int, ...]
    nested: bool


def reached(graph: KernelGraph, marks: Sequence[Words]) -> Reached:
    """What `graph` reaches; `marks` in the order of its inputs, below 2^63."""
    algebra = _Marks()
    values = run_kernel(graph, list(marks), algebra)
    radicands = {int(word) for words in algebra.radicands for word in np.unique(words)}
    return Reached(
        tuple(np.broadcast_to(values[v] & ~BELOW_ROOT, graph.types[v].shape) for v in graph.outputs),
        tuple(sorted(word & ~int(BELOW_ROOT) for word in radicands)),
        any(word & int(BELOW_ROOT) for word in radicands),
    )


@dataclass(frozen=True, slots=True)
class _Marks:
    """Words instead of numbers: whatever is combined has the marks of both."""

    radicands: list[Words] = field(default_factory=list)

    def apply(self, kind: OpKind, operands: Sequence[Words], attrs: Attrs | None, batch: int) -> Words:
        if kind is OpKind.SQRT or (isinstance(attrs, PowAttrs) and half_power(attrs)):
            self.radicands.append(operands[0])
            return operands[0] | BELOW_ROOT
        rule = RULES.get(kind)
        if rule is not None:
            return rule(operands, attrs, batch)
        if Trait.ELEMENTWISE not in OPS[kind].traits:
            raise VerificationError(f"it is not known which elements {kind.value} combines")
        return _union(operands, batch)

    def view(self, value: Words, move: Callable[[Array], Array]) -> Words:
        return move(value)

    def join(self, parts: Sequence[Words], dim: int, batch: int) -> Words:
        return arrays.concat(parts, dim, batch)

    def fold(
        self, kind: AccumKind, state: tuple[Words, ...], operands: Sequence[Words], batch: int
    ) -> tuple[Words, ...]:
        if kind is AccumKind.RESCALE:
            operands = [_union(operands, batch), operands[1]]
        if not state:
            return tuple(operands)
        merged = tuple(_union(pair, batch) for pair in zip(state, operands, strict=True))
        return (merged[0] | merged[1], merged[1]) if kind is AccumKind.RESCALE else merged


def _union(operands: Sequence[Words], batch: int) -> Words:
    rank = arrays.tile_rank(operands, batch)
    found: Words = np.zeros((), np.uint64)
    for operand in operands:
        found = found | arrays.align(operand, rank, batch)
    return found


def _reduced(words: Words, axis: int) -> Words:
    found: Words = np.bitwise_or.reduce(words, axis=axis, keepdims=True)
    return found


def _matmul(operands: Sequence[Words], attrs: Attrs | None, batch: int) -> Words:
    rank = arrays.tile_rank(operands, batch)
    x, y = (arrays.align(operand, rank, batch) for operand in operands)
    return _reduced(x, -1) | _reduced(y, -2)


def _concat_matmul(operands: Sequence[Words], attrs: Attrs | None, batch: int) -> Words:
    w, x, y, z = operands
    return _union([_matmul([w, y], None, batch), _matmul([x, z], None, batch)], batch)


def _reduction(operands: Sequence[Words], attrs: Attrs | None, batch: int) -> Words:
    axis = arrays.reduced_axis(attrs, batch)
    return _reduced(np.atleast_1d(_union(operands, batch)), axis)


def _concat(operands: Sequence[Words], attrs: Attrs | None, batch: int) -> Words:
    assert isinstance(attrs, DimAttrs)
    return arrays.concat(operands, attrs.dim, batch)


RULES: dict[OpKind, Callable[[Sequence[Words], Attrs | None, int], Words]] = {
    OpKind.CONST: lambda operands, attrs, batch: np.zeros((1,) * batch, np.uint64),
    OpKind.MATMUL: _matmul,
    OpKind.CONCAT_MATMUL: _concat_matmul,
    OpKind.SUM: _reduction,
    OpKind.MAX: _reduction,
    OpKind.RESCALED_SUM: _reduction,
    OpKind.REPEAT: lambda operands, attrs, batch: arrays.repeat(operands[0], attrs, batch),
    OpKind.RESHAPE: lambda operands, attrs, batch: arrays.reshape(operands[0], attrs, batch),
    OpKind.TRANSPOSE: lambda operands, attrs, batch: arrays.transpose(operands[0], attrs, batch),
    OpKind.CONCAT: _concat,
}
"""How marks go forward; elementwise operators have one rule."""
