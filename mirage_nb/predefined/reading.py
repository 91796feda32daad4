"""A kernel graph as recognisers read it: who makes a value, who reads it, and which values are numbers.

In: a kernel graph. Out: answers about its values. Invariant: nothing here changes a graph; a value that nothing
pre-defined makes (an input, a result of a graph-defined operator) has no maker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property, reduce
from itertools import pairwise

from mirage_nb.ir import (
    ApplyAttrs,
    ConstAttrs,
    DimAttrs,
    KernelGraph,
    Op,
    OpKind,
    ReshapeAttrs,
    SliceAttrs,
    TransposeAttrs,
)
from mirage_nb.ir.graph import reached
from mirage_nb.ir.windows import Window, moved, row_major, views

FREE = frozenset({OpKind.CONST, OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.REPEAT, OpKind.ARANGE})
"""What a kernel makes for itself of whatever it reads."""


class Reading:
    """One graph."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self._maker = {v: op for op, values in graph.definitions() for v in values if op.body is None}
        self._readers: dict[int, set[int]] = {}
        for op, values in graph.definitions():
            for source in op.inputs:
                self._readers.setdefault(source, set()).add(values[0])

    @cached_property
    def windows(self) -> dict[int, Window]:
        """The values that are windows of others."""
        return views(self.graph)

    def window(self, value: int) -> Window:
        """Where a value lies in another one, all of whose elements are there; in itself, where it is no such window."""
        found, shape = self.windows.get(value), self.shape(value)
        if found is None or any(places is not None for places in found.inside):
            return Window(value, self.graph.types[value].elements, 0, row_major(shape), (None,) * len(shape))
        return found

    def op(self, value: int, *kinds: OpKind) -> Op | None:
        """The pre-defined operator that makes a value, if it is of one of these kinds (none given: of any)."""
        found = self._maker.get(value)
        return found if found is not None and (not kinds or found.kind in kinds) else None

    def shape(self, value: int) -> tuple[int, ...]:
        """Its extents."""
        return self.graph.types[value].shape

    def number(self, value: int) -> Fraction | None:
        """The number that a value is in all its elements, as far as its operator says so."""
        op = self._maker.get(value)
        return op.attrs.value if op is not None and isinstance(op.attrs, ConstAttrs) else None

    def formula(self, value: int, text: str) -> int | None:
        """x where a value is this formula of x."""
        op = self.op(value, OpKind.APPLY)
        found = op is not None and isinstance(op.attrs, ApplyAttrs) and op.attrs.formula == text
        return op.inputs[0] if op is not None and found else None

    def folded(self, value: int, kind: OpKind) -> tuple[int, int] | None:
        """x and the dimension where a value is such a reduction of x."""
        op = self.op(value, kind)
        return (op.inputs[0], op.attrs.dim) if op is not None and isinstance(op.attrs, DimAttrs) else None

    def scaled(self, value: int) -> tuple[int, Fraction] | None:
        """x and the factor where a value is x times a number, or x over one."""
        op = self.op(value, OpKind.MUL, OpKind.DIV)
        if op is None:
            return None
        left, right = op.inputs
        if (factor := self.number(right)) is not None and (factor or op.kind is OpKind.MUL):
            return left, factor if op.kind is OpKind.MUL else 1 / factor
        if op.kind is OpKind.MUL and (factor := self.number(left)) is not None:
            return right, factor
        return None

    def transposed(self, value: int) -> int | None:
        """x where a value is x with its last two dimensions exchanged."""
        op = self.op(value, OpKind.TRANSPOSE)
        if op is None or not isinstance(op.attrs, TransposeAttrs):
            return None
        rank = len(op.attrs.perm)
        exchanged = (*range(rank - 2), rank - 1, rank - 2)
        return op.inputs[0] if rank >= 2 and op.attrs.perm == exchanged else None

    def reshaped(self, value: int) -> int:
        """What a value is another shape of; itself if it is none."""
        while (op := self.op(value, OpKind.RESHAPE)) is not None and isinstance(op.attrs, ReshapeAttrs):
            value = op.inputs[0]
        return value

    def seen(self, value: int) -> tuple[int, list[list[int | str]]]:
        """What a value is a view of, parts and turned ones, and the moves that make the view, in order; itself and none
        if it is none that libraries read where it lies. Parts that have other readers, too, are there anyway."""
        base, moves, ops = value, list[list[int | str]](), list[Op]()
        while (op := self.op(base, OpKind.SLICE, OpKind.TRANSPOSE)) is not None:
            if isinstance(op.attrs, TransposeAttrs):
                moves.insert(0, ["turn", *op.attrs.perm])
            elif isinstance(op.attrs, SliceAttrs) and op.attrs.step > 0 and self._is_read_once(base):
                moves.insert(0, ["part", op.attrs.dim, op.attrs.start, op.attrs.extent, op.attrs.step])
            else:
                break
            base = op.inputs[0]
            ops.insert(0, op)
        strides = reduce(lambda known, op: moved(op, known), ops, row_major(self.shape(base)))
        return (base, moves) if _in_rows(self.shape(value), strides) else (value, [])

    def _is_read_once(self, value: int) -> bool:
        return len(self._readers[value]) == 1 and value not in self.graph.outputs

    def is_free(self, value: int) -> bool:
        """Whether every kernel makes a value for itself."""
        return self._maker[value].kind in FREE

    def between(self, output: int, inputs: Iterable[int]) -> frozenset[int]:
        """The values that are computed on the way from `inputs` to `output`, this one apart."""
        made = self._maker.keys() - {*inputs}
        return frozenset(reached([output], lambda value: made.intersection(self._maker[value].inputs)) - {output})

    def hidden(self, inside: frozenset[int], output: int) -> bool:
        """Whether nobody but the kernel needs what it computes on the way to its output; what every kernel makes for
        itself may have other readers."""
        mine, seen = {*inside, output}, set(self.graph.outputs)
        return all(self.is_free(v) or (v not in seen and self._readers[v] <= mine) for v in inside)


def shape_seen(shape: Sequence[int], moves: Sequence[Sequence[int | str]]) -> tuple[int, ...]:
    """The shape of a view of a tensor of this shape, by its moves."""
    found = [*shape]
    for kind, *rest in moves:
        numbers = [int(n) for n in rest]
        if kind == "turn":
            found = [found[dim] for dim in numbers]
        else:
            found[numbers[0]] = numbers[2]
    return tuple(found)


def _in_rows(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether rows lie in order, and matrices behind each other at one distance."""
    lead = [(extent, stride) for extent, stride in zip(shape[:-2], strides[:-2], strict=True) if extent > 1]
    return strides[-1] == 1 and all(far == extent * near for (_, far), (extent, near) in pairwise(lead))
