"""Operators whose results jump: what one element may be off by is what may lead it to another side.

In: an operator. Out: whether it compares, or makes a sign or a whole number.
"""

from __future__ import annotations

from typing import Protocol

from mirage_nb.ir.ops import COMPARISONS, ApplyAttrs, Attrs, OpKind

JUMPS = frozenset({"step", "sign", "floor"})
"""Functions of formulas that jump."""


class Operator(Protocol):
    """What is asked: an operator of a graph, or what is known of one."""

    @property
    def kind(self) -> OpKind: ...

    @property
    def attrs(self) -> Attrs | None: ...


def jumps(op: Operator) -> bool:
    """Whether what an operator makes jumps somewhere."""
    text = op.attrs.formula if isinstance(op.attrs, ApplyAttrs) else ""
    return op.kind in COMPARISONS or any(name in text for name in JUMPS)
