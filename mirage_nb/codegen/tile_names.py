"""How indices and panels of a tile program are said in C."""

from __future__ import annotations

from mirage_nb.tile.program import Index

PANEL = 64
"""Elements of 16 bits across a panel."""
LINE_BYTES = 128


def c_index(index: Index) -> str:
    """The C expression of an index; it needs brackets inside a product."""
    parts = [name if factor == 1 else f"{name} * {factor}" for name, factor in index.terms]
    return " + ".join([*parts, *([str(index.const)] if index.const or not parts else [])])
