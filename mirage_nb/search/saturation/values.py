"""Values of the closure: their types, the operators that make them, and the nodes that remember how.

A value is what some tile holds in every block and every iteration at once. Axes that the program sums are
products of a grid, a loop and a tile part; a type says for each axis which parts are data of the tile and
which are the block or iteration index. Invariant: two values with equal keys have the same continuations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from mirage_nb.ir import AccumKind, Attrs, OpKind
from mirage_nb.search.saturation.fields import Array

GRID, LOOP, TILE = 1, 2, 4
DATA = GRID | LOOP | TILE
ITER = 8
"""The loop part is the iteration index, not data."""
BLOCK = 16
"""The grid part is the block index, not data."""

PARTS = ((GRID, "g"), (LOOP, "l"), (TILE, "t"))

Type = tuple[int, ...]
"""For each axis of the program, the parts present (GRID, LOOP, TILE) and their roles (ITER, BLOCK)."""

BODY, POST = 0, 1
"""Stage of a value: in the for-loop body, or after the accumulators."""


def is_legal(type_: Type) -> bool:
    """No part is data and index at once."""
    return not any((code & ITER and code & LOOP) or (code & BLOCK and code & GRID) for code in type_)


def present(type_: Type) -> Type:
    """The parts of a device tensor that the blocks write together: block indices have become data."""
    return tuple((code & DATA) | (GRID if code & BLOCK else 0) for code in type_)


def show_type(type_: Type, names: tuple[str, ...]) -> str:
    """`m k.t^` : axis m whole, the tile part of k in each iteration (^) or block (#)."""
    shown = []
    for name, code in zip(names, type_, strict=True):
        if code:
            parts = "".join(letter for bit, letter in PARTS if code & bit)
            suffix = "" if parts in ("glt", "") else f".{parts}"
            shown.append(name + suffix + ("^" if code & ITER else "") + ("#" if code & BLOCK else ""))
    return " ".join(shown)


class Operator(NamedTuple):
    """What made a value: a row of the operator table with the axis it folds or its attributes.

    A leaf is an IN_ITER or a CONST whose `leaf` numbers the tensor or constant that it reads.
    """

    kind: OpKind
    axis: int = -1
    accum: AccumKind | None = None
    attrs: Attrs | None = None
    leaf: int = -1

    @property
    def is_leaf(self) -> bool:
        """Whether it reads a tensor or a constant instead of computing."""
        return self.kind is OpKind.IN_ITER or self.kind is OpKind.CONST

    @property
    def label(self) -> str:
        """`Accum sum`, `Matmul`."""
        return f"{self.kind.value} {self.accum.value}" if self.accum is not None else self.kind.value


class Shift(NamedTuple):
    """Which running maximum was subtracted before the exponential, and along which array dims it varies."""

    peak: bytes
    dims: frozenset[int]


Peak = frozenset[tuple[bytes, frozenset[int]]]
"""What a maximum is the largest of: values, by their prints, each over the array dims that were folded of it."""

Node = tuple[Operator, tuple[int, ...]]
"""One derivation of a value: an operator and the values it reads."""


@dataclass(slots=True, eq=False)
class Value:
    """A value with every derivation found so far.

    `p`, `q` hold all blocks and iterations (one dim per part, extent 1 where absent); `q` is None after an
    exponential and in programs without one. `peak` is set for maxima: what they are the maximum of.
    """

    id: int
    type: Type
    stage: int
    expr: int
    p: Array
    q: Array | None
    has_exp: bool
    print: bytes
    level: int = 0
    scaled: bool = False
    constant: bool = False
    shift: Shift | None = None
    peak: Peak | None = None
    nodes: list[Node] = field(default_factory=list)
    inverse_p: Array | None = None
    inverse_q: Array | None = None

    @property
    def varies(self) -> frozenset[int]:
        """The array dims along which it is not constant by shape."""
        return frozenset(i for i, extent in enumerate(self.p.shape) if i and extent > 1)

    def as_shift(self) -> Shift:
        """The mark that subtracting this maximum leaves."""
        return Shift(self.print, self.varies)
