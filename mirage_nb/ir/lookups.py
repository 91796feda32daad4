"""Lookups: rows of a table, or one element of every row, by numbers that a tensor holds.

A muGraph says them as products with rows that are 1 in one place, or as sums of what is chosen in one place
(`predefined.lookups` finds them). Invariant: what is no number of a row reads nothing and finds zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.ir.dtypes import DType
from mirage_nb.ir.graph import ThreadGraph


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where the elements of a value stand. Element e, row-major, belongs to line e // columns, and is element `number *
    columns + e % columns + line * pitch` of value `table`, where the number is what `formula` makes of the elements
    `line` of values `numbers`, or the only one of these; 0 where this is no whole number from 0 on and below `rows`.
    stored: the types of these values."""

    table: int
    numbers: tuple[int, ...]
    formula: ThreadGraph | None
    rows: int
    columns: int
    pitch: int
    stored: tuple[DType, ...]
