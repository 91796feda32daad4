"""Operands that kernels look up, where programs are run: tables and numbers, and what stands there.

In: the tables of a block's operands, how elements are drawn. Out: `Drawn`: what a program reads, and, said once more,
what its operands are. Numbers name rows, first and last ones among them, or none: they lie below, above or between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.field import FieldTensor
from mirage_nb.interp.reference import FloatAlgebra
from mirage_nb.ir import BlockGraph, ThreadGraph
from mirage_nb.ir.ops import Shape
from mirage_nb.tile.resident.program import Numbers, Table
from mirage_nb.tile.resident.run import Sources, seen_at

Array = NDArray[Any]
Box = tuple[slice, ...]
T = TypeVar("T", Array, FieldTensor)

LARGEST = 65_521
"""Elements of a table, of which the first stand for others: a prime, so that those in a row or a column differ."""
FLOATS = FloatAlgebra(np.dtype(float))
NO_ROWS = (-1.0, 0.5, np.nan, np.inf, -np.inf)


@dataclass(frozen=True, slots=True)
class Places:
    """Which elements of what is looked up an operand of this shape has."""

    table: Table
    shape: Shape

    def along(self, box: Box) -> tuple[Array, ...]:
        """Those of a part of it along each dimension, counted from 1 on."""
        parts = np.ix_(*(np.arange(1, n + 1)[cut] for n, cut in zip(self.shape, box, strict=True)))
        return tuple(np.broadcast_arrays(*parts))

    def elements(self, box: Box) -> Array:
        """Those of what is looked up."""
        steps = (np.arange(n)[cut] * step for n, cut, step in zip(self.shape, box, self.table.strides, strict=True))
        return np.asarray(reduce(np.add.outer, steps, np.array(self.table.offset)))

    @property
    def lines(self) -> int:
        """How many of its lines it may look at."""
        more = (max(0, (n - 1) * step) for n, step in zip(self.shape, self.table.strides, strict=True))
        return (self.table.offset + sum(more)) // self.table.found.columns + 1


def made(formula: ThreadGraph, operands: Sequence[Array]) -> Array:
    """What a formula makes of elements."""
    values = [*operands]
    for op in formula.ops:
        values.append(FLOATS.apply(op.kind, [values[v] for v in op.inputs], op.attrs, 0))
    return values[formula.outputs[0]]


class _Looked:
    """An operand: elements of a table, where they are asked for."""

    def __init__(self, places: Places, elements: Array, numbers: Callable[[Array], Array]) -> None:
        self._places, self._elements, self._numbers, self.shape = places, elements, numbers, places.shape

    def __getitem__(self, box: Box) -> Array:
        rows, element = self._places.table.found, self._places.elements(box)
        line, column = np.divmod(element, rows.columns)
        number = self._numbers(line)
        named = np.isin(number, np.arange(rows.rows))
        place = rows.first + rows.step * np.where(named, number, 0).astype(np.int64)
        for where, extents, steps in ((line, rows.lines, rows.line_steps), (column, rows.inner, rows.inner_steps)):
            for extent, step in zip(reversed(extents), reversed(steps), strict=True):
                where, along = np.divmod(where, extent)
                place = place + along * step
        found = self._elements[place % self._elements.size]
        made: Array = np.where(named, found, self._elements.dtype.type(0))
        return made


@dataclass(frozen=True, slots=True)
class Drawn(Generic[T]):
    """What a block's operands are looked up in. operands: what is found, by their values."""

    tables: dict[int, T]
    sizes: dict[int, int]
    tensors: Sequence[Array]
    places: dict[int, Places]
    operands: dict[int, T]

    @classmethod
    def of(
        cls, block: BlockGraph, tables: Sequence[Table], ways: Sequence[Numbers], draw: Callable[[str, Shape], T],
        seed: int,
    ) -> Drawn[T]:  # fmt: skip
        """Tables by `draw`, a function of a name and a shape; that of which numbers are made by a seed."""
        reads = {values[0]: op.attrs for op, values in block.definitions() if values}
        places = {t.value: Places(t, block.args[getattr(reads[t.value], "arg", 0)].shape) for t in tables}
        rng = np.random.default_rng(seed)
        tensors = []
        for tensor in range(1 + max((n for way in ways for n in way.tensors), default=-1)):
            mine = [t for t in tables if tensor in ways[t.numbers].tensors]
            rows = min((t.found.rows for t in mine), default=1)
            counts = (_size(ways[t.numbers], tensor, places[t.value].lines) for t in mine)
            named = rng.integers(0, rows, max(counts, default=1)).astype(float)
            named[rng.random(named.size) < 0.2] = rows - 1
            if any(way.formula is not None and tensor in way.tensors for way in ways):  # of what is between two of them
                named = named + np.where(rng.random(named.size) < 0.5, rng.random(named.size), 0.0)
            none = rng.choice([*NO_ROWS, float(rows)], named.size)
            tensors.append(np.where(rng.random(named.size) < 0.2, none, named))

        def number(way: Numbers, line: Array) -> Array:
            own = [tensors[n][seen_at(line, looks)] for n, looks in zip(way.tensors, way.seen, strict=True)]
            return own[0] if way.formula is None else made(way.formula, own)

        sizes = {t.value: t.found.last + 1 for t in tables}
        drawn = {v: draw(f"table{v}", (min(size, LARGEST),)) for v, size in sizes.items()}
        found = {t.value: _found(places[t.value], drawn[t.value], partial(number, ways[t.numbers])) for t in tables}
        return cls(drawn, sizes, tensors, places, found)

    def sources(self, boxes: Mapping[int, Box]) -> Sources:
        """The same for a program that has these parts of operands."""

        def along(value: int) -> tuple[Array, ...]:
            return self.places[value].along(boxes[value])

        return Sources(self.tables, self.sizes, self.tensors, made, along)


def _size(way: Numbers, tensor: int, lines: int) -> int:
    """Elements that a tensor has at least, of which numbers of so many lines are made."""
    mine = (looks for n, looks in zip(way.tensors, way.seen, strict=True) if n == tensor)
    return max(looks[-1].last + 1 if looks else lines for looks in mine)


def _found(places: Places, table: Any, numbers: Callable[[Array], Array]) -> Any:
    """What stands in a table."""
    if not isinstance(table, FieldTensor):
        return _Looked(places, table, numbers)
    parts: list[Any] = [None if part is None else _Looked(places, part, numbers) for part in (table.p, table.q)]
    return FieldTensor(*parts)
