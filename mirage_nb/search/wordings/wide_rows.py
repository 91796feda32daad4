"""Rows that no block holds, and columns that no thread holds, folded in parts: what the pieces of a composition
compute of them.

In: a tensor program, and how many elements of a row one block may hold, or of a column, along an outer dimension, one
thread. Out: the same program in which sums and maxima of longer ones are those of equal parts first, and then of what
the parts gave. What is summed about a value of the whole row is summed about one of its part first, so that the parts
are read once for both: squares about a mean about the means of the parts, and how far these lie from it is added (Chan,
Golub and LeVeque 1979), so that nothing cancels; exponentials below a maximum below those of the parts, and these sums
are rescaled (Milakov and Gimelshein 2018). Invariant: over the real numbers the program stays what it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_nb.ir import ConstAttrs, DimAttrs, KernelGraph, Op, OpKind, ReshapeAttrs, RunningAttrs
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.predefined.reading import Reading
from mirage_nb.search.dims import folded_dim
from mirage_nb.search.wordings.squares import squared
from mirage_nb.tile.rules.register_resident import LONGEST_COLUMN, held_elements

PART = 16384
"""Elements of a part at most: threads of a block hold them in registers."""
GRAIN = 8
"""Elements that a part is a multiple of, where that can be: vectors."""
LEAST, BUSY = 1024, 256
"""Where there are fewer parts than `BUSY`, they are smaller, down to so many elements."""
LEAST_CROSSED = 4
"""Rows of a part, at least, of whose columns each block leaves a part of a sum."""
FOLDS = frozenset({OpKind.SUM, OpKind.MAX, OpKind.RESCALED_SUM, OpKind.RUNNING_SUM})


@dataclass(frozen=True, slots=True)
class Longest:
    """How many elements stay together: of a row, `row`, and of a part of a longer one, `part`; likewise of a column.
    crossed: as many of a column of what is folded along rows, too, as a block has rows for, whole ones."""

    row: float = math.inf
    part: int = PART
    column: float = math.inf
    column_part: int = LONGEST_COLUMN
    crossed: bool = False


def folds(program: KernelGraph, longest: Longest) -> dict[int, tuple[int, ...]]:
    """What folds longer rows or columns: for each the value whose rows these are, or, where it is the squares about
    their mean, the value that has this mean."""
    rewriting = _Rewriting(program, longest)
    return {value: rewriting.sources(op) for op, (value, *_) in program.definitions() if rewriting.parts(op)}


def in_parts(program: KernelGraph, longest: Longest) -> KernelGraph:
    """The program with longer rows and columns folded in parts, of which there may be too many again; itself where it
    has none."""
    rewriting = _Rewriting(program, longest)
    return rewriting.made() if any(map(rewriting.parts, program.ops)) else program


class _Rewriting(Rewrite[KernelGraph]):
    """The work on one program."""

    def __init__(self, program: KernelGraph, longest: Longest) -> None:
        super().__init__(KernelGraph.start(*program.inputs))
        self.program, self.longest = program, longest
        self.reading = Reading(program)
        self.folds: dict[tuple[OpKind, int, int], int] = {}

    def made(self) -> KernelGraph:
        """The program in parts."""
        for op, (value, *_) in self.program.definitions():
            if parts := self.parts(op):
                self.held[value] = self._folded(op, folded_dim(op), parts)
            else:
                self.copy(op, (value,))
        return self.returning(self.program)

    def parts(self, op: Op) -> int:
        """In how many parts an operator folds its rows or columns; 0: as they are."""
        if op.kind not in FOLDS or not isinstance(op.attrs, DimAttrs):
            return 0
        shape, dim = self.program.types[op.inputs[0]].shape, op.attrs.dim
        extent, is_row = shape[dim], dim == len(shape) - 1
        if self.longest.crossed:
            return 0 if is_row or op.kind is OpKind.RUNNING_SUM else self._crossed(op.inputs[0], dim)
        longest, part = (self.longest.row, self.longest.part) if is_row else (
            self.longest.column, self.longest.column_part)  # fmt: skip
        if extent <= longest or any(self.program.types[v].shape != shape for v in op.inputs):
            return 0
        able = [n for n in range(2, min(part, extent // 2) + 1) if extent % n == 0]
        enough = max(LEAST, math.prod(shape) // BUSY) if is_row else part
        if op.kind is OpKind.RUNNING_SUM:  # what the parts give runs on, a thread for each row
            enough = max(enough, extent // LONGEST_COLUMN)
        return extent // max(able, key=lambda n: (n % GRAIN == 0, n <= enough, n)) if able else 0

    def _crossed(self, value: int, dim: int) -> int:
        """In how many parts columns are folded where rows of a tensor of this shape are folded, too: two blocks of a
        multiprocessor hold the rows of a part."""
        types = self.program.types
        shape = types[value].shape
        rows = (op for op in self.program.ops if op.kind in FOLDS and folded_dim(op) == len(shape) - 1)
        if dim != len(shape) - 2 or all(types[op.inputs[0]].shape != shape for op in rows):
            return 0
        nbytes = sum(i.type.dtype.size for i in self.program.inputs if i.type.elements == types[value].elements)
        most = held_elements(2 * nbytes) // shape[-1] if nbytes else 0
        most = min(most, max(math.prod(shape[:-1]) // BUSY, LEAST_CROSSED), shape[dim] // 2)
        able = [n for n in range(LEAST_CROSSED, most + 1) if shape[dim] % n == 0]
        return shape[dim] // max(able) if able else 0

    def sources(self, op: Op) -> tuple[int, ...]:
        """What a fold in parts is made of."""
        if (found := self._centred(op)) is not None:
            return found[:1]
        return op.inputs if (row := self._below(op)) is None else (row,)

    def _folded(self, op: Op, dim: int, parts: int) -> int:
        if isinstance(op.attrs, RunningAttrs):
            return self._running(op.inputs[0], op.attrs, parts)
        if (found := self._centred(op)) is not None:
            return self._squares(*found, dim, parts)
        if (row := self._below(op)) is not None:
            source, shifts = row, self._part_folds(OpKind.MAX, row, dim, parts)
            away = self._append(OpKind.SUB, self._cut(row, dim, parts), shifts)
            made = self._fold(OpKind.SUM, 1, self._append(OpKind.EXP, away))
        elif op.kind is OpKind.RESCALED_SUM:
            source, shift = op.inputs
            shifts = self._part_folds(OpKind.MAX, shift, dim, parts)
            made = self._fold(op.kind, 1, self._cut(source, dim, parts), self._cut(shift, dim, parts))
        else:
            (source,) = op.inputs
            made = self._part_folds(op.kind, source, dim, parts)
            return self._fold(op.kind, dim, self._gathered(made, source, dim, parts))
        gathered = (self._gathered(value, source, dim, parts) for value in (made, shifts))
        return self._fold(OpKind.RESCALED_SUM, dim, *gathered)

    def _running(self, row: int, attrs: RunningAttrs, parts: int) -> int:
        """Sums up to the elements of parts, and those of the parts before."""
        dim = attrs.dim
        inside = self.add(Op(OpKind.RUNNING_SUM, (self._cut(row, dim, parts),), replace(attrs, dim=1)))
        totals = self._gathered(self._part_folds(OpKind.SUM, row, dim, parts), row, dim, parts)
        before = self.add(Op(OpKind.RUNNING_SUM, (totals,), replace(attrs, exclusive=True)))
        shape = self.program.types[row].shape
        lead = self._shaped(before, (math.prod(shape[:dim]) * parts, 1, *shape[dim + 1 :]))
        return self._shaped(self._append(OpKind.ADD, inside, lead), shape)

    def _squares(self, row: int, mean: int, dim: int, parts: int) -> int:
        """The squares about the mean of a row, summed."""
        extent = self.program.types[row].shape[dim] // parts
        means = self._multiplied(self._part_folds(OpKind.SUM, row, dim, parts), Fraction(1, extent))
        inside = self._fold(OpKind.SUM, 1, self._square(self._append(OpKind.SUB, self._cut(row, dim, parts), means)))
        away = self._append(OpKind.SUB, self._gathered(means, row, dim, parts), self.held[mean])
        between = self._fold(OpKind.SUM, dim, self._square(away))
        total = self._fold(OpKind.SUM, dim, self._gathered(inside, row, dim, parts))
        return self._append(OpKind.ADD, total, self._multiplied(between, Fraction(extent)))

    def _centred(self, fold: Op) -> tuple[int, int] | None:
        """The row and its mean, if a sum is of the squares of how far its elements lie from it."""
        reading = self.reading
        away = squared(reading, fold.inputs[0]) if fold.kind is OpKind.SUM else None
        if away is None or away.kind is not OpKind.SUB:
            return None
        row, mean = away.inputs
        total, factor = reading.scaled(self._lined(mean)) or (mean, None)
        dim = folded_dim(fold)
        is_mean = reading.folded(self._lined(total), OpKind.SUM) == (row, dim)
        return (row, mean) if is_mean and factor == Fraction(1, reading.shape(row)[dim]) else None

    def _below(self, fold: Op) -> int | None:
        """The row, if a sum is of the exponentials of how far its elements lie below the largest."""
        raised = self.reading.op(fold.inputs[0], OpKind.EXP) if fold.kind is OpKind.SUM else None
        away = self.reading.op(raised.inputs[0], OpKind.SUB) if raised is not None else None
        if away is None:
            return None
        row, shift = away.inputs
        return row if self.reading.folded(self._lined(shift), OpKind.MAX) == (row, folded_dim(fold)) else None

    def _lined(self, value: int) -> int:
        """What a value is without leading dimensions of one element, along which it is repeated beside rows anyway."""
        while (op := self.reading.op(value, OpKind.RESHAPE)) is not None:
            (source,) = op.inputs
            own, before = self.reading.shape(value), self.reading.shape(source)
            spare = len(before) - len(own)
            if spare < 0 or before != (*(1 for _ in range(spare)), *own):
                break
            value = source
        return value

    # -- operators -------------------------------------------------------------------------------------

    def _append(self, kind: OpKind, *inputs: int) -> int:
        return self.add(Op(kind, inputs))

    def _square(self, value: int) -> int:
        return self._append(OpKind.SQR, value)

    def _multiplied(self, value: int, factor: Fraction) -> int:
        return self._append(OpKind.MUL, value, self.add(Op(OpKind.CONST, (), ConstAttrs(factor))))

    def _fold(self, kind: OpKind, dim: int, *values: int) -> int:
        return self.add(Op(kind, values, DimAttrs(dim)))

    def _part_folds(self, kind: OpKind, row: int, dim: int, parts: int) -> int:
        """The sums or maxima of the parts of the rows of a value of the program, made once."""
        if (kind, row, dim) not in self.folds:
            self.folds[kind, row, dim] = self._fold(kind, 1, self._cut(row, dim, parts))
        return self.folds[kind, row, dim]

    def _cut(self, row: int, dim: int, parts: int) -> int:
        """A value of the program with rows of its own for the parts, of what it is a view of."""
        shape = self.program.types[row].shape
        cut = (math.prod(shape[:dim]) * parts, shape[dim] // parts, *shape[dim + 1 :])
        return self._shaped(self.held[self.reading.reshaped(row)], cut)

    def _gathered(self, value: int, row: int, dim: int, parts: int) -> int:
        """What the parts of the rows of a value of the program gave, side by side."""
        shape = self.program.types[row].shape
        return self._shaped(value, (*shape[:dim], parts, *shape[dim + 1 :]))

    def _shaped(self, value: int, shape: tuple[int, ...]) -> int:
        return self.add(Op(OpKind.RESHAPE, (value,), ReshapeAttrs(shape)))
