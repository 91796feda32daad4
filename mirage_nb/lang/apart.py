"""Concatenations of which only sums, maxima and slices are taken: these are taken of their parts.

In: a builder and the outputs of its program. Out: the same outputs, without such concatenations, also where elementwise
operators stand between: softmax over scores and a sink behind them, which is dropped then, is a maximum of both, and a
sum of both. Invariant: a concatenation whose elements something else reads, or that is an output, stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, pairwise

from mirage_nb.errors import ProgramSizeError
from mirage_nb.ir.ops import JOINED, DimAttrs, OpKind, PadAttrs, RepeatAttrs, Shape, SliceAttrs, Trait
from mirage_nb.lang.anew import Anew
from mirage_nb.lang.builder import Builder, Value
from mirage_nb.lang.constants import Number
from mirage_nb.lang.lowering import ZERO, cast
from mirage_nb.lang.reductions import folded
from mirage_nb.lang.views import expand, reshaped, sliced


@dataclass(frozen=True, slots=True)
class _Split:
    """Parts of these extents along a dimension, counted from the last one."""

    along: int
    extents: tuple[int, ...]


def taken_apart(b: Builder, outputs: Sequence[Value]) -> Mapping[Value, Value]:
    """What each value that these outputs need becomes; itself, where the program would become too large."""
    try:
        return Apart(b, outputs).made
    except ProgramSizeError:
        return {value: value for value in b.needed(outputs)}


class Apart(Anew):
    """`split`: the values that are not made as a whole."""

    def look(self) -> None:
        self.known: dict[tuple[Value, int], Value] = {}
        self.split: dict[Value, _Split] = {}
        for value in self.values:
            if value not in self.outputs and (split := self._begun(value) or self._carried(value)) is not None:
                self.split[value] = split
        while dropped := [value for value in self.split if not self._stays(value)]:
            for value in dropped:
                del self.split[value]

    def _leaves(self, value: Value) -> Iterator[Value]:
        """What a concatenation puts together, seen through those along the same dimension."""
        attrs = self.attrs(value)
        for operand in self.b.operands(value):
            inner = self.kind(operand) is OpKind.CONCAT and self.attrs(operand) == attrs
            yield from self._leaves(operand) if inner else (operand,)

    def _begun(self, value: Value) -> _Split | None:
        """What is put together, or has one zero more at an end."""
        attrs, rank = self.attrs(value), len(self.b.shape(value))
        if self.kind(value) is OpKind.CONCAT and isinstance(attrs, DimAttrs):
            return _Split(attrs.dim - rank, tuple(self.b.shape(leaf)[attrs.dim] for leaf in self._leaves(value)))
        if isinstance(attrs, PadAttrs) and attrs.before + attrs.after == 1:
            more, rest = (1,), (self.b.shape(value)[attrs.dim] - 1,)
            return _Split(attrs.dim - rank, more + rest if attrs.before else rest + more)
        return None

    def _carried(self, value: Value) -> _Split | None:
        """The parts of what is computed of such, element by element."""
        operands = self.b.operands(value)
        split = next((self.split[v] for v in operands if v in self.split), None)
        if split is None or not self.has(value, Trait.ELEMENTWISE):
            return None
        alike = all(self.split.get(v) == split or _extent(self.b.shape(v), split.along) == 1 for v in operands)
        return split if alike else None

    def _stays(self, value: Value) -> bool:
        split = self.split[value]
        begun = self.kind(value) in (OpKind.CONCAT, OpKind.PAD)
        return (begun or self._carried(value) == split) and all(self._takes(r, split) for r in self.readers[value])

    def _takes(self, reader: Value, split: _Split) -> bool:
        """Whether a reader is made of the parts."""
        attrs, kind = self.attrs(reader), self.kind(reader)
        if isinstance(attrs, SliceAttrs):
            return self._part_of(reader, attrs, split) is not None
        if kind in JOINED:
            (source,) = self.b.operands(reader)
            return isinstance(attrs, DimAttrs) and attrs.dim - len(self.b.shape(source)) == split.along
        return reader in self.split and (kind is not OpKind.CONCAT or self.split[reader].along == split.along)

    def _part_of(self, value: Value, attrs: SliceAttrs, split: _Split) -> tuple[int, int] | None:
        """The part that a slice is of, and where it begins there."""
        if attrs.dim - len(self.b.shape(value)) != split.along or attrs.step != 1:
            return None
        ends = pairwise(accumulate(split.extents, initial=0))
        found = (
            (number, attrs.start - first)
            for number, (first, end) in enumerate(ends)
            if first <= attrs.start and attrs.start + attrs.extent <= end
        )
        return next(found, None)

    def say(self, value: Value) -> Value:
        if value in self.split:
            return value
        source = next(iter(self.b.operands(value)), value)
        if source not in self.split:
            return super().say(value)
        b, split, attrs, kind = self.b, self.split[source], self.attrs(value), self.kind(value)
        if isinstance(attrs, SliceAttrs):
            number, start = self._part_of(value, attrs, split) or (0, 0)
            part = self._part(source, number)
            made = sliced(b, part, len(b.shape(part)) + split.along, start, attrs.extent)
        else:
            assert kind is not None
            parts = [self._part(source, number) for number in range(len(split.extents))]
            if kind is OpKind.MAX:
                parts = [self._number(x, split) or x for x in parts]
            pieces = (self._folded(kind, x, split) for x in parts)
            made = reduce(lambda x, y: b.emit(JOINED[kind], x, y), pieces)
        return b.tensor(cast(b.dtype(value))(b, expand(b, made, b.shape(value))), "a part")

    def _folded(self, kind: OpKind, x: Value, split: _Split) -> Value:
        rank = len(self.b.shape(x))
        return folded(self.b, kind, x, (rank + split.along,)) if -split.along <= rank else x

    def _part(self, value: Value, number: int) -> Value:
        """A part of what is split."""
        if (value, number) not in self.known:
            self.known[value, number] = self._make(value, number)
        return self.known[value, number]

    def _make(self, value: Value, number: int) -> Value:
        b, op = self.b, self.b.definition(value)
        assert op is not None
        if op.kind is OpKind.CONCAT:
            leaf = self._once(self.made[[*self._leaves(value)][number]])
            return b.tensor(cast(b.dtype(value))(b, leaf), "concat")
        if isinstance(op.attrs, PadAttrs):
            return self.made[b.operands(value)[0]] if number == op.attrs.before else self._zero(value)
        operands = [self._part(v, number) if v in self.split else self.made[v] for v in self.b.operands(value)]
        numbers = [self._number(v, self.split[value]) for v in operands]
        if None in numbers:
            operands = [v if n is None else n for v, n in zip(operands, numbers, strict=True)]
        return self.b.emit(op.kind, *operands, attrs=op.attrs)

    def _zero(self, value: Value) -> Value:
        """One, of as many dimensions and the type of a value."""
        made = reshaped(self.b, self.b.value(ZERO), (1,) * len(self.b.shape(value)))
        self.b.fills[made] = ZERO
        return self.b.tensor(cast(self.b.dtype(value))(self.b, made), "pad")

    def _once(self, value: Value) -> Value:
        """What is read where one element is repeated: operators repeat it themselves."""
        attrs = self.attrs(value)
        while isinstance(attrs, RepeatAttrs) and self.b.shape(source := self.b.operands(value)[0])[attrs.dim] == 1:
            value, attrs = source, self.attrs(source)
        return value

    def _number(self, value: Value, split: _Split) -> Value | None:
        """The constant that a part of one element is everywhere."""
        filled = self.b.filled(value) if _extent(self.b.shape(value), split.along) == 1 else None
        return self.b.value(filled) if isinstance(filled, Number) else None


def _extent(shape: Shape, along: int) -> int:
    return shape[along] if -along <= len(shape) else 1
