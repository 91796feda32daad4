"""Index arithmetic for emitted code: sums of named, bounded integers that simplify as they are built.

Invariant: every index is a non-negative integer below or equal to `limit`; division and remainder use
that bound, so that splitting and merging dimensions leaves no needless arithmetic in the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    BlockGraph,
    DimAttrs,
    Op,
    OpKind,
    RepeatAttrs,
    ReshapeAttrs,
    ThreadGraph,
    TransposeAttrs,
)
from mirage_nb.tile.rules.sketch import ELEMENTWISE


@dataclass(frozen=True, slots=True)
class Index:
    """`const` plus the sum of coefficient * name; `terms` holds (C expression, exclusive bound, coefficient)."""

    terms: tuple[tuple[str, int, int], ...] = ()
    const: int = 0

    @property
    def limit(self) -> int:
        """The largest value."""
        return self.const + sum((bound - 1) * factor for _, bound, factor in self.terms)

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other)
        merged = {(text, bound): factor for text, bound, factor in self.terms}
        for text, bound, factor in other.terms:
            merged[text, bound] = merged.get((text, bound), 0) + factor
        terms = tuple((text, bound, factor) for (text, bound), factor in merged.items() if factor)
        return Index(terms, self.const + other.const)

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return Index()
        return Index(tuple((t, b, f * factor) for t, b, f in self.terms), self.const * factor)

    def _split(self, divisor: int) -> tuple[Index, Index]:
        """The part that `divisor` divides, and the rest."""
        whole = tuple(t for t in self.terms if t[2] % divisor == 0)
        rest = tuple(t for t in self.terms if t[2] % divisor)
        const = self.const // divisor * divisor
        return Index(whole, const), Index(rest, self.const - const)

    def __floordiv__(self, divisor: int) -> Index:
        whole, rest = self._split(divisor)
        exact = Index(tuple((t, b, f // divisor) for t, b, f in whole.terms), whole.const // divisor)
        if rest.limit < divisor:
            return exact
        return exact + Index(((f"({rest} / {divisor})", rest.limit // divisor + 1, 1),))

    def __mod__(self, divisor: int) -> Index:
        _, rest = self._split(divisor)
        if rest.limit < divisor:
            return rest
        return Index(((f"({rest} % {divisor})", divisor, 1),))

    def multiple_of(self, unit: int) -> bool:
        """Whether every value is known to be a multiple of `unit`."""
        return self.const % unit == 0 and all(f % unit == 0 for _, _, f in self.terms)

    def __str__(self) -> str:
        parts = [text if factor == 1 else f"{text} * {factor}" for text, _, factor in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        body = " + ".join(parts)
        return f"({body})" if len(parts) > 1 else body

    @property
    def bare(self) -> str:
        """The expression without outer brackets; a choice keeps them, because all operators bind tighter."""
        text = str(self)
        single = len(self.terms) == 1 and not self.const and self.terms[0][2] == 1 and "?" not in text
        enclosed = len(self.terms) + bool(self.const) > 1 or (single and _enclosed(text))
        return text[1:-1] if enclosed else text


def _enclosed(text: str) -> bool:
    """Whether the first bracket closes at the very end."""
    if not text.startswith("("):
        return False
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position == len(text) - 1
    return False


Multi = tuple[Index, ...]


def named(text: str, bound: int) -> Index:
    """A C expression with values 0 .. bound-1; a bound of 1 is the number 0."""
    return Index(((text, bound, 1),)) if bound > 1 else Index()


def linear(index: Sequence[Index], shape: Sequence[int]) -> Index:
    """Row-major position of a multi-index."""
    found = Index()
    for part, extent in zip(index, shape, strict=True):
        found = found * extent + part
    return found


def unravel(position: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The multi-index of a row-major position."""
    found: list[Index] = []
    for extent in reversed(shape):
        found.append(position % extent if extent > 1 else Index())
        position = position // extent
    return tuple(reversed(found))


def broadcast_index(index: Multi, shape: tuple[int, ...]) -> Multi:
    """The index into an operand of `shape` for an index into the broadcast result."""
    tail = index[len(index) - len(shape) :]
    return tuple(Index() if extent == 1 else part for part, extent in zip(tail, shape, strict=True))


def broadcast_dim(dim: int | None, rank: int, shape: tuple[int, ...]) -> int | None:
    """The vector dimension of an operand, None where it is broadcast."""
    if dim is None:
        return None
    moved = dim - (rank - len(shape))
    return moved if moved >= 0 and shape[moved] != 1 else None


def reshaped_dim(shape: Sequence[int], source: Sequence[int], dim: int) -> int | None:
    """The dimension of what a reshape reads that its dimension `dim` is, None where it is none by itself."""
    behind = math.prod(shape[dim + 1 :])
    same = (d for d, extent in enumerate(source) if extent == shape[dim] and math.prod(source[d + 1 :]) == behind)
    return next(same, None)


def operand_dims(graph: BlockGraph | ThreadGraph, op: Op, dim: int | None, rank: int) -> list[int | None]:
    """The vector dimension of every operand of an operator that computes from registers, given that of its result,
    which has so many dimensions: rows of a product are those of its left operand, columns those of the right one."""
    wanted = [dim for _ in op.inputs]
    if op.kind is OpKind.MATMUL and dim is not None:
        wanted = [None if dim == rank - 1 else dim, None if dim == rank - 2 else dim]
    return [broadcast_dim(d, rank, graph.types[v].shape) for d, v in zip(wanted, op.inputs, strict=True)]


def vector_reads(graph: ThreadGraph, value: int, dim: int | None) -> set[tuple[int, int | None]]:
    """The operands of a thread graph that a value of it is computed from, and the vector dimension of each."""
    found = {(value, dim)}
    for op, (made,) in reversed(list(graph.definitions())):
        for along in [d for v, d in found if v == made]:
            found |= set(zip(op.inputs, operand_dims(graph, op, along, len(graph.types[made].shape)), strict=True))
    return {(v, d) for v, d in found if v < graph.input_count}


def dims_behind(block: BlockGraph, op: Op, result: int, dim: int) -> Iterator[tuple[int, int | None]]:
    """What an element of a value is computed of, and which dimension of that its dimension `dim` is."""
    match op.attrs:
        case TransposeAttrs(perm):
            yield op.inputs[0], perm[dim]
        case ReshapeAttrs(shape):
            yield op.inputs[0], reshaped_dim(shape, block.types[op.inputs[0]].shape, dim)
        case AccumAttrs(AccumKind.HOLD):
            yield op.inputs[0], dim
        case RepeatAttrs(along) | DimAttrs(along) if op.kind in (OpKind.REPEAT, OpKind.CONCAT) and along != dim:
            yield from ((operand, dim) for operand in op.inputs)
        case _ if isinstance(op.body, ThreadGraph):
            yield from ((op.inputs[v], d) for v, d in vector_reads(op.body, op.body.outputs[result], dim))
        case _ if op.kind in ELEMENTWISE:
            rank = max(len(block.types[operand].shape) for operand in op.inputs)
            yield from zip(op.inputs, operand_dims(block, op, dim, rank), strict=True)
