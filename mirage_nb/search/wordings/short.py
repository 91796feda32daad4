"""Folds of a few elements of pairs, and products as short, written out: distances in two or three dimensions.

In: a tensor program. Out: the same program in which a sum, or maximum, along a short axis of what is computed element
by element of far fewer elements is that of each place of the axis, one added to the other, and a short product of far
more elements than it multiplies such a sum: what stands between the pairs and their fold has that axis no longer, so
that threads hold pairs in registers, and what folds these in turn is theirs, too. Invariant: over the real numbers the
program stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

from mirage_nb.ir import JOINED, OPS, DimAttrs, KernelGraph, Op, OpKind, SliceAttrs, Trait
from mirage_nb.ir.rewrite import Rewrite, saying

SHORT = 4
"""Elements that are folded, at most."""
OPERATORS = 8
"""Operators that are written out, at most, for each of them."""
FEWER = 32
"""Times as many elements as what they are computed of pairs have, at least."""
TOGETHER = {**JOINED, OpKind.MATMUL: OpKind.ADD}
"""What makes one of two parts of a fold, or of a product."""


def folds(program: KernelGraph, short: int = SHORT, fewer: int = FEWER) -> dict[int, tuple[int, ...]]:
    """Such folds of a program: for each what its pairs are made of."""
    pairs = _Pairs(program)
    return {v: sources for v in pairs.maker if (sources := pairs.of(v, short, fewer)) is not None}


def written_out(program: KernelGraph, short: int = SHORT, fewer: int = FEWER) -> KernelGraph:
    """The program with these written out; itself where it has none."""
    pairs = _Pairs(program)

    def say(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        parts = (pairs.at(made, op, place) for place in range(pairs.extent(op)))
        return reduce(lambda one, other: made.add(Op(TOGETHER[op.kind], (one, other))), parts)

    return saying(program, folds(program, short, fewer), say)


small = partial(written_out, short=2**30, fewer=0)
"""The same of a small program."""


class _Pairs:
    """What a program computes of pairs."""

    def __init__(self, program: KernelGraph) -> None:
        self.types = program.types
        self.maker = {value: op for op, (value, *_) in program.definitions()}

    def extent(self, op: Op) -> int:
        """How many elements a fold, or a product, sums."""
        shape = self.types[op.inputs[0]].shape
        return shape[op.attrs.dim if isinstance(op.attrs, DimAttrs) else -1]

    def of(self, value: int, short: int, fewer: int) -> tuple[int, ...] | None:
        """What a short fold's pairs, so many times as many elements, are made of; None where it is none."""
        op = self.maker[value]
        if op.kind not in TOGETHER or self.extent(op) > short:
            return None
        if op.kind is OpKind.MATMUL:
            between, sources, made = {value}, {*op.inputs}, value
        else:
            (made,) = op.inputs
            between, sources = self._cone(made, self._behind(op))
        largest = max((self.types[v].elements for v in sources), default=0)
        several = 0 < len(between) <= OPERATORS and fewer * largest <= self.types[made].elements
        return tuple(sorted(sources)) if several else None

    def at(self, made: Rewrite[KernelGraph], op: Op, place: int) -> int:
        """What a fold has of one place of its axis."""
        if op.kind is OpKind.MATMUL:
            left, right = op.inputs
            row, column = self._part(made, left, 1, place), self._part(made, right, 2, place)
            return made.add(Op(OpKind.MUL, (row, column)))
        (top,), behind = op.inputs, self._behind(op)
        between, _ = self._cone(top, behind)
        there: dict[int, int] = {}

        def found(value: int) -> int:
            if value not in there:
                there[value] = (
                    self._again(made, value, found) if value in between else self._part(made, value, behind, place)
                )
            return there[value]

        return found(top)

    def _again(self, made: Rewrite[KernelGraph], value: int, found: Callable[[int], int]) -> int:
        op = self.maker[value]
        return made.add(Op(op.kind, tuple(map(found, op.inputs)), op.attrs))

    def _part(self, made: Rewrite[KernelGraph], value: int, behind: int, place: int) -> int:
        """One place of a value along a dimension, counted from behind; all of it where it has no elements there."""
        if not self._varies(value, behind):
            return made.held[value]
        attrs = SliceAttrs(len(self.types[value].shape) - behind, place, 1, 1)
        return made.add(Op(OpKind.SLICE, made.places((value,)), attrs))

    def _behind(self, op: Op) -> int:
        assert isinstance(op.attrs, DimAttrs)
        return len(self.types[op.inputs[0]].shape) - op.attrs.dim

    def _varies(self, value: int, behind: int) -> bool:
        shape = self.types[value].shape
        return len(shape) >= behind and shape[-behind] > 1

    def _cone(self, top: int, behind: int) -> tuple[set[int], set[int]]:
        """The elementwise operators that make a value and have elements along the dimension, and what these are made
        of."""
        between, sources, waiting = set[int](), set[int](), [top]
        while waiting:
            value = waiting.pop()
            op = self.maker.get(value)
            if value in between | sources:
                continue
            if op is not None and Trait.ELEMENTWISE in OPS[op.kind].traits and self._varies(value, behind):
                between.add(value)
                waiting += op.inputs
            else:
                sources.add(value)
        return between, sources
