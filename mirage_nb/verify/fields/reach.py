"""Which input elements every element depends on, as sets of marked classes.

In: a graph and, for every input, one 64-bit word per element: the classes that the element belongs to. Out: for
every element of the outputs, and of all exponents, the classes of the input elements that it depends on, at
least. A walk like the interpreters', so block graphs need nothing of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import VerificationError
from mirage_nb.interp import arrays
from mirage_nb.interp.arrays import Array
from mirage_nb.interp.run import COMPOSED, composed, run_kernel
from mirage_nb.ir import OPS, AccumKind, KernelGraph, OpKind, Trait
from mirage_nb.ir.ops import Attrs
from mirage_nb.verify.fields.lax import EXPONENTIALS

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Reached:
    """Words of the outputs, and of the exponents in the order in which the field interpreter meets them."""

    outputs: tuple[Words, ...]
    exponents: tuple[Words, ...]


def reached(graph: KernelGraph, marks: Sequence[Words], *, maxima: bool = True) -> Reached:
    """What `graph` reaches; `marks` in the order of its inputs. Without `maxima`, they count as constants."""
    algebra = _Marks(maxima)
    values = run_kernel(graph, list(marks), algebra)
    return Reached(
        tuple(np.broadcast_to(values[v], graph.types[v].shape) for v in graph.outputs), tuple(algebra.exponents)
    )


@dataclass(frozen=True, slots=True)
class _Marks:
    """Words instead of numbers: whatever is combined has the marks of both."""

    maxima: bool
    exponents: list[Words] = field(default_factory=list)

    def apply(self, kind: OpKind, operands: Sequence[Words], attrs: Attrs | None, batch: int) -> Words:
        if kind in EXPONENTIALS:
            self.exponents.append(operands[0])
        if kind is OpKind.MAX:
            axis = arrays.reduced_axis(attrs, batch)
            return self.maximum(_reduced(operands[0], axis)) if operands[0].shape[axis] > 1 else operands[0]
        if kind is OpKind.RESCALED_SUM:
            x, m = arrays.aligned(operands, batch)
            axis = arrays.reduced_axis(attrs, batch)
            self.exponents.append(m | self.maximum(_reduced(m, axis)) if m.shape[axis] > 1 else m)
            return _reduced(x | self.exponents[-1], axis)
        if kind in COMPOSED:
            return composed(self, kind, operands, attrs, batch)
        rule = RULES.get(kind)
        if rule is not None:
            return rule(operands, attrs, batch)
        if Trait.ELEMENTWISE not in OPS[kind].traits:
            raise VerificationError(f"it is not known which elements {kind.value} combines")
        joined = _union(operands, batch)
        return self.maximum(joined) if kind is OpKind.MAXIMUM else joined

    def maximum(self, words: Words) -> Words:
        return words if self.maxima else np.zeros_like(words)

    def view(self, value: Words, move: Callable[[Array], Array]) -> Words:
        return move(value)

    def join(self, parts: Sequence[Words], dim: int, batch: int) -> Words:
        return arrays.concat(parts, dim, batch)

    def fold(
        self, kind: AccumKind, state: tuple[Words, ...], operands: Sequence[Words], batch: int
    ) -> tuple[Words, ...]:
        if kind is AccumKind.RESCALE:
            operands = arrays.aligned(operands, batch)
        if not state:
            return tuple(operands)
        merged = tuple(_union(pair, batch) for pair in zip(state, operands, strict=True))
        match kind:
            case AccumKind.MAX:
                return tuple(self.maximum(words) for words in merged)
            case AccumKind.RESCALE:
                (total, top), (x, m) = state, operands
                new = self.maximum(merged[1])
                self.exponents.extend((top | new, m | new))
                return (total | x | top | m | new, new)
            case _:
                return merged


def _union(operands: Sequence[Words], batch: int) -> Words:
    found: Words = reduce(np.bitwise_or, arrays.aligned(operands, batch))
    return found


def _reduced(words: Words, axis: int) -> Words:
    found: Words = np.bitwise_or.reduce(words, axis=axis, keepdims=True)
    return found


def _matmul(operands: Sequence[Words], attrs: Attrs | None, batch: int) -> Words:
    x, y = arrays.aligned(operands, batch)
    return _reduced(x, -1) | _reduced(y, -2)


def _sum(operands: Sequence[Words], attrs: Attrs | None, batch: int) -> Words:
    return _reduced(operands[0], arrays.reduced_axis(attrs, batch))


RULES: dict[OpKind, Callable[[Sequence[Words], Attrs | None, int], Words]] = {
    OpKind.CONST: lambda operands, attrs, batch: np.zeros((1,) * batch, np.uint64),
    OpKind.MATMUL: _matmul,
    OpKind.SUM: _sum,
    OpKind.RUNNING_SUM: lambda operands, attrs, batch: arrays.running(
        operands[0], attrs, batch, np.bitwise_or.accumulate
    ),
    OpKind.ARANGE: lambda operands, attrs, batch: np.zeros_like(arrays.counted(attrs, batch), np.uint64),
}
"""How marks go forward; elementwise operators have one rule."""
