"""Lookups: rows of a table, or one element of every row, by numbers that a tensor holds.

A muGraph says them as products with rows that are 1 in one place, or as sums of what is chosen in one place
(`predefined.lookups` finds them). Invariant: what is no number of a row reads nothing and finds zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from mirage_nb.ir.dtypes import DType
from mirage_nb.ir.graph import ThreadGraph
from mirage_nb.ir.ops import Shape


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the elements of lines stand that have a row each: a line has `inner` elements, row-major, and lies in
    `lines`. In the table, which begins at `first`, rows are `step` elements apart, and what is next along each of these
    dimensions so many."""

    rows: int
    step: int
    lines: Shape
    line_steps: Shape
    inner: Shape
    inner_steps: Shape
    first: int = 0

    @property
    def columns(self) -> int:
        """Elements of a line."""
        return prod(self.inner)

    @property
    def run(self) -> int:
        """Of these, so many stand side by side."""
        return self.inner[-1] if self.inner and self.inner_steps[-1] == 1 else 1

    @property
    def last(self) -> int:
        """The largest place."""
        pairs = zip(
            (self.rows, *self.lines, *self.inner), (self.step, *self.line_steps, *self.inner_steps), strict=True
        )
        return self.first + sum((extent - 1) * max(0, step) for extent, step in pairs)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is counted in these extents, row-major, as places in a tensor: those of `first` and of so many steps."""

    extents: Shape
    steps: Shape
    first: int = 0

    @property
    def last(self) -> int:
        """The largest place."""
        return self.first + sum((n - 1) * max(0, step) for n, step in zip(self.extents, self.steps, strict=True))


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where the elements of a value stand. Those of a line, row-major, stand in value `table` as `found` says, in the
    row whose number is what `formula` makes of the elements of that line of values `numbers`, or the only one of these;
    they are 0 where this is no whole number from 0 on and below the rows. stored: the types of `numbers`; seen: which
    element of each is that of a line, by what all of these make of its number, one after the other."""

    table: int
    numbers: tuple[int, ...]
    formula: ThreadGraph | None
    found: Rows
    stored: tuple[DType, ...]
    seen: tuple[tuple[Seen, ...], ...]
