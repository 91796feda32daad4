"""Parts and joints of what is computed, said so that nobody has to store them: the last step of reading a program.

In: a builder and the outputs of its program. Out: the same outputs, of other operators. What is folded and sliced of a
concatenation is folded and sliced of its parts (`lang.apart`). One of parts of what lies in memory is the sum of them,
each among zeros; slices of what elementwise operators make, and zeros around it, move in front of these, to what lies
in memory. Invariant: every output has the elements that it had; what is sliced is computed anew for each slice only
where that is little work, and nothing of it is stored in any case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from mirage_nb.errors import ProgramSizeError
from mirage_nb.ir.dtypes import DType
from mirage_nb.ir.ops import ArangeAttrs, DimAttrs, OpKind, PadAttrs, SliceAttrs, Trait
from mirage_nb.ir.windows import MOVING
from mirage_nb.lang.anew import Anew
from mirage_nb.lang.apart import Apart
from mirage_nb.lang.builder import Builder, Value
from mirage_nb.lang.constants import Number
from mirage_nb.lang.lowering import ZERO, add, scale
from mirage_nb.lang.masks import pad
from mirage_nb.lang.views import sliced

OFTEN = 16
"""Operators that are done anew for every slice are done at most so many times for an element, all together."""
DEEP = 50
"""Operators, one after the other, that are."""
JOINED = 16
"""Parts of a concatenation that become terms of a sum."""
MOVES = 8
"""Slices and zeros, one of the other, that move in front of the same operator."""

ZERO_AT_ZERO = frozenset({
    OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.SQR, OpKind.SQRT, OpKind.RELU, OpKind.SILU, OpKind.GELU, OpKind.CAST,
    OpKind.MAXIMUM,
})  # fmt: skip
"""Elementwise operators that make 0 of zeros."""

ROOM = 8
"""Times the operators of a program that are made on the way."""

Move = SliceAttrs | PadAttrs
Outputs = tuple[tuple[str, Value], ...]


def in_parts(b: Builder, outputs: Outputs) -> Outputs:
    """The outputs of a program, with fewer values that are stored; a program that would become too large stays as it
    is."""
    said, most = outputs, b.most
    b.most *= ROOM
    try:
        for step in (Apart, _Joints, *(_Moves for _ in range(MOVES))):
            made = step(b, [value for _, value in said]).made
            before, said = said, tuple((name, made[value]) for name, value in said)
            if said == before and step is _Moves:
                break
    except ProgramSizeError:
        return outputs
    finally:
        b.most = most
    return said if len(b.needed(value for _, value in said)) <= most else outputs


class _Joints(Anew):
    """Concatenations of parts of what lies in memory, where kernels are generated for all that reads them."""

    def say(self, value: Value) -> Value:
        op, readers = self.b.definition(value), self.readers[value]
        fused = all(self.has(r, Trait.ELEMENTWISE, Trait.REDUCTION) or self.kind(r) is OpKind.SLICE for r in readers)
        if op is None or op.kind is not OpKind.CONCAT or value in self.outputs or not (readers and fused):
            return super().say(value)
        leaves = [*islice(self._leaves(value), JOINED + 1)]
        if len(leaves) > JOINED or not all(map(self._lies, leaves)) or all(self.kind(v) is None for v in leaves):
            return super().say(value)
        first, *others = [*self._among_zeros(value)] or [super().say(value)]
        for part in others:
            first = self.b.emit(OpKind.ADD, first, part)
        return first

    def _leaves(self, value: Value) -> Iterator[Value]:
        """What concatenations of concatenations join."""
        if self.kind(value) is not OpKind.CONCAT:
            yield value
            return
        for operand in self.b.operands(value):
            yield from self._leaves(operand)

    def _lies(self, value: Value) -> bool:
        """Whether kernels read a value where something lies that is stored in any case; zeros are not read at all."""
        if self.b.filled(value) == ZERO:
            return True
        moved = False
        while (kind := self.kind(value)) is OpKind.RESHAPE or kind in MOVING:
            moved |= kind in MOVING
            (value,) = self.b.operands(value)
        whole = any(self.kind(reader) is not OpKind.SLICE for reader in self.readers[value])
        return kind is None or (moved and (whole or not self.has(value, Trait.ELEMENTWISE)))

    def _among_zeros(self, value: Value, *around: tuple[int, int, int]) -> Iterator[Value]:
        """The leaves of a concatenation, each with zeros before and after it in some dimensions, innermost last."""
        op = self.b.definition(value)
        if op is not None and op.kind is OpKind.CONCAT:
            assert isinstance(op.attrs, DimAttrs)
            dim, (first, second) = op.attrs.dim, self.b.operands(value)
            yield from self._among_zeros(first, (dim, 0, self.b.shape(second)[dim]), *around)
            yield from self._among_zeros(second, (dim, self.b.shape(first)[dim], 0), *around)
        elif self.b.filled(made := self.made[value]) != ZERO:
            for dim, before, after in around:
                made = self.b.tensor(pad(self.b, made, before, after, dim), "pad")
            yield made


class _Moves(Anew):
    """Slices of what elementwise operators make, and zeros around it. `often`: how many times the elements of a value
    are made if all such slices move in front of it; `deep`: how many operators then stand behind it."""

    def look(self) -> None:
        self.known: dict[tuple[Value, Move], Value] = {}
        self.often: dict[Value, float] = {}
        self.deep: dict[Value, int] = {}
        for value in reversed(self.values):
            attrs, readers = self.attrs(value), self.readers[value]
            counts = isinstance(attrs, ArangeAttrs) and attrs.dtype is DType.F32
            if value in self.outputs or not (counts or self.has(value, Trait.ELEMENTWISE)):
                continue
            whole = [r for r in readers if r not in self.often and self.has(r, Trait.ELEMENTWISE, Trait.REDUCTION)]
            often = sum(self._read(value, reader) for reader in readers if reader not in whole) + bool(whole)
            deep = 1 + max((self.deep.get(reader, 0) for reader in readers), default=0)
            if whole != readers and (often <= 1 or often * deep <= OFTEN) and deep <= DEEP:
                self.often[value], self.deep[value] = often, deep
        for value in self.values:  # in front of what is stored in any case, nothing is won
            if value in self.often and any(self._stored(v, value) for v in self.b.operands(value)):
                del self.often[value]

    def _stored(self, operand: Value, value: Value) -> bool:
        """Whether an operand of that many elements is computed, and by operators that no slice moves in front of."""
        if self.kind(operand) is OpKind.RESHAPE:
            return self.b.definition(self.b.operands(operand)[0]) is not None
        free = operand in self.often or self.kind(operand) in (None, OpKind.ARANGE, *MOVING)
        return not free and math.prod(self.b.shape(operand)) == math.prod(self.b.shape(value))

    def _read(self, value: Value, reader: Value) -> float:
        """How many times the elements of a value are read by one that moves them, or for whom others do."""
        attrs = self.attrs(reader)
        if isinstance(attrs, SliceAttrs):
            return attrs.extent / self.b.shape(value)[attrs.dim]
        if isinstance(attrs, PadAttrs):
            return 1.0 if self._keeps_zeros(value, attrs) else math.inf
        return self.often.get(reader, math.inf)

    def _keeps_zeros(self, value: Value, move: PadAttrs) -> bool:
        """Whether zeros around a value are what its operator makes of zeros around its operands."""
        op, rank = self.b.definition(value), len(self.b.shape(value))
        whole = self.b.shape(value)[move.dim]
        factor = op is not None and op.kind is OpKind.MUL
        shapes = [self.b.shape(v) for v in self.b.operands(value) if not (factor and self.b.number(v) is not None)]
        return (
            op is not None
            and op.kind in ZERO_AT_ZERO
            and all(len(shape) == rank and shape[move.dim] == whole for shape in shapes)
        )

    def say(self, value: Value) -> Value:
        attrs = self.attrs(value)
        if isinstance(attrs, SliceAttrs | PadAttrs):
            (source,) = self.b.operands(value)
            return self._moved(source, attrs)
        return super().say(value)

    def _moved(self, value: Value, move: Move) -> Value:
        """A slice of a value, or zeros around it, in front of the operators that make it."""
        if (value, move) not in self.known:
            self.known[value, move] = self._in_front(value, move)
        return self.known[value, move]

    def _in_front(self, value: Value, move: Move) -> Value:
        b, op = self.b, self.b.definition(value)
        if isinstance(move, PadAttrs):
            if op is None or value not in self.often or not self._keeps_zeros(value, move):
                return b.tensor(pad(b, self.made[value], move.before, move.after, move.dim), "pad")
        elif op is None or value not in self.often:
            return sliced(b, self.made[value], move.dim, move.start, move.extent, move.step)
        elif op.kind is OpKind.ARANGE:
            places = b.emit(OpKind.ARANGE, attrs=ArangeAttrs(move.extent))
            return b.tensor(add(b, scale(b, places, Number.of(move.step)), Number.of(move.start)), "arange")
        operands = []
        for operand in b.operands(value):
            shape = b.shape(operand)
            dim = move.dim - len(b.shape(value)) + len(shape)
            varies = dim >= 0 and shape[dim] == b.shape(value)[move.dim]
            operands.append(self._moved(operand, replace(move, dim=dim)) if varies else self.made[operand])
        return b.emit(op.kind, *operands, attrs=op.attrs)
