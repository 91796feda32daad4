"""Results are put together last: what is computed of a concatenation, element by element, is computed of its parts.

In: a tensor program. Out: the same one, in which results that were computed of concatenations are concatenations of
what is computed of each part, and of the parts of whatever else goes into it: `X * c + rotate_half(X) * s` as the two
halves of it. A kernel then has no concatenation inside; it saves results side by side. Invariants: nothing is computed
twice, and parts are only taken of inputs and of what is computed of these for no one else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

from mirage_nb.ir import KernelGraph, Op, OpKind, SliceAttrs
from mirage_nb.ir.ops import OPS, DimAttrs, Shape, Trait
from mirage_nb.ir.rewrite import Rewrite


@dataclass(frozen=True, slots=True)
class _Split:
    """So many equal parts along a dimension, counted from the last one."""

    along: int
    parts: int
    extent: int


def joined_last(program: KernelGraph) -> KernelGraph:
    """The program with its concatenations of equal parts behind what is computed of them, where that is an output; the
    program itself if there are none."""
    if all(op.kind is not OpKind.CONCAT for op in program.ops):
        return program
    splits = _Splits(program)
    return _written(program, splits) if splits.split else program


def _written(program: KernelGraph, splits: _Splits) -> KernelGraph:
    """The program with the parts of values that are split, put together where they are outputs."""
    made = Rewrite(KernelGraph.start(*program.inputs))
    parts: dict[int, list[int]] = {}
    for op, (value, *more) in program.definitions():
        if (split := splits.split.get(value)) is None:
            made.copy(op, (value, *more))
        elif op.kind is OpKind.CONCAT:
            parts[value] = [*made.places(splits.leaves(op))]
        else:
            each = ([_part(made, parts, v, split, n) for v in op.inputs] for n in range(split.parts))
            parts[value] = [made.add(replace(op, inputs=tuple(operands))) for operands in each]
    for value in {*program.outputs} & parts.keys():
        dim = len(program.types[value].shape) + splits.split[value].along
        made.held[value] = reduce(lambda a, b: made.add(Op(OpKind.CONCAT, (a, b), DimAttrs(dim))), parts[value])
    return made.returning(program)


def _part(made: Rewrite[KernelGraph], parts: dict[int, list[int]], value: int, split: _Split, number: int) -> int:
    """A part of an operand."""
    if value in parts:
        return parts[value][number]
    here = made.held[value]
    shape = made.graph.types[here].shape
    if _extent(shape, split.along) == 1:
        return here
    return made.add(
        Op(OpKind.SLICE, (here,), SliceAttrs(len(shape) + split.along, number * split.extent, split.extent))
    )


class _Splits:
    """Which values of a program are concatenations, or computed of one element by element, and only so until they are
    outputs."""

    def __init__(self, program: KernelGraph) -> None:
        self._program = program
        self._defined = {values[0]: op for op, values in program.definitions()}
        made = tuple(self._defined)
        self._readers = tuple([made[index] for index in readers] for readers in program.uses())
        self.split: dict[int, _Split] = {}
        for value, op in self._defined.items():
            if (split := self._begun(op) or self._carried(op)) is not None:
                self.split[value] = split
        while dropped := [value for value in self.split if not self._stays(value)]:
            for value in dropped:
                del self.split[value]

    def leaves(self, op: Op) -> list[int]:
        """What a concatenation puts together, seen through those that only it reads."""
        found = []
        for value in op.inputs:
            found += self.leaves(self._defined[value]) if self._is_inner(value, op) else [value]
        return found

    def _is_inner(self, value: int, reader: Op) -> bool:
        """Whether a value is a concatenation along the same dimension, for one reader."""
        op = self._defined.get(value)
        same = op is not None and (op.kind, op.attrs) == (reader.kind, reader.attrs)
        return same and len(self._readers[value]) == 1 and value not in self._program.outputs

    def _begun(self, op: Op) -> _Split | None:
        """A concatenation of equal parts."""
        if op.kind is not OpKind.CONCAT or not isinstance(op.attrs, DimAttrs):
            return None
        leaves = self.leaves(op)
        shape, *others = {self._program.types[value].shape for value in leaves}
        return None if others else _Split(op.attrs.dim - len(shape), len(leaves), shape[op.attrs.dim])

    def _carried(self, op: Op) -> _Split | None:
        """What is computed of one, where its other operands have such parts, too."""
        split = next((self.split[value] for value in op.inputs if value in self.split), None)
        if split is None or not _is_elementwise(op):
            return None
        return split if all(self._has_parts(value, split) for value in op.inputs) else None

    def _stays(self, value: int) -> bool:
        op = self._defined[value]
        if op.kind is OpKind.CONCAT and value in self._program.outputs:
            return False
        carried = op.kind is OpKind.CONCAT or self._carried(op) == self.split[value]
        readers = [(reader in self.split, self._defined[reader]) for reader in self._readers[value]]
        return carried and all(split and (_is_elementwise(r) or self._is_inner(value, r)) for split, r in readers)

    def _has_parts(self, value: int, split: _Split) -> bool:
        if value in self.split:
            return self.split[value] == split
        return _extent(self._program.types[value].shape, split.along) == 1 or self._is_free(value, split)

    def _is_free(self, value: int, split: _Split) -> bool:
        """Whether parts of it are computed of parts of inputs, for one reader."""
        if (op := self._defined.get(value)) is None:
            return True
        if len(self._readers[value]) != 1 or value in self._program.outputs:
            return False
        if op.kind is OpKind.RESHAPE:
            return self._is_input(op.inputs[0], _longer(self._program.types[value].shape))
        return _is_elementwise(op) and all(self._has_parts(v, split) for v in op.inputs)

    def _is_input(self, value: int, longer: list[int]) -> bool:
        """Whether it is an input with these extents, but for those that are 1, or one that was given more of these."""
        op = self._defined.get(value)
        if _longer(self._program.types[value].shape) != longer:
            return False
        return op is None or (op.kind is OpKind.RESHAPE and self._is_input(op.inputs[0], longer))


def _longer(shape: Shape) -> list[int]:
    """The extents that are not 1."""
    return [extent for extent in shape if extent > 1]


def _is_elementwise(op: Op) -> bool:
    return Trait.ELEMENTWISE in OPS[op.kind].traits


def _extent(shape: Shape, along: int) -> int:
    return shape[along] if -along <= len(shape) else 1
