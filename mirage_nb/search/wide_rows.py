"""Rows that no block holds, folded in parts: what the pieces of a composition compute of them.

In: a tensor program, and how many elements of a row one block may hold. Out: the same program in which sums and maxima
of longer rows are those of equal parts first, and then of what the parts gave. Squares about the mean of their own row
are summed about the means of its parts, and how far these lie from it is added (Chan, Golub and LeVeque 1979): so the
parts are read once for the mean and for the variance, and nothing cancels. Invariant: over the real numbers the program
stays what it was.
"""

from __future__ import annotations

import math
from fractions import Fraction

from mirage_nb.ir import ConstAttrs, DimAttrs, KernelGraph, Op, OpKind, ReshapeAttrs
from mirage_nb.ir.rewrite import Rewrite

PART = 16384
"""Elements of a part at most: threads of a block hold them in registers."""
GRAIN = 8
"""Elements that a part is a multiple of, where that can be: vectors."""
LEAST, BUSY = 1024, 256
"""Where there are fewer parts than `BUSY`, they are smaller, down to so many elements."""
FOLDS = frozenset({OpKind.SUM, OpKind.MAX})


def folds(program: KernelGraph, widest: int) -> dict[int, tuple[int, ...]]:
    """What folds rows of more than `widest` elements: for each the value whose rows these are, or, where it is the
    squares about their mean, the value that has this mean."""
    rewriting = _Rewriting(program, widest, PART)
    return {value: rewriting.sources(op) for value, op in rewriting.maker.items() if rewriting.parts(op)}


def in_parts(program: KernelGraph, widest: int, part: int = PART) -> KernelGraph:
    """The program with rows of more than `widest` elements folded in parts of at most `part`; itself where it has no
    such row."""
    rewriting = _Rewriting(program, widest, part)
    return rewriting.made() if any(map(rewriting.parts, program.ops)) else program


class _Rewriting(Rewrite[KernelGraph]):
    """The work on one program."""

    def __init__(self, program: KernelGraph, widest: int, part: int) -> None:
        super().__init__(KernelGraph.start(*program.inputs))
        self.program, self.widest, self.part = program, widest, part
        self.maker = {values[0]: op for op, values in program.definitions()}
        self.sums: dict[int, int] = {}

    def made(self) -> KernelGraph:
        """The program in parts."""
        for op, (value, *_) in self.program.definitions():
            if parts := self.parts(op):
                self.held[value] = self._folded(op, parts)
            else:
                self.copy(op, (value,))
        return self.returning(self.program)

    def parts(self, op: Op) -> int:
        """In how many parts an operator folds its rows; 0: as they are."""
        if op.kind not in FOLDS or not isinstance(op.attrs, DimAttrs):
            return 0
        shape = self.program.types[op.inputs[0]].shape
        extent = shape[-1]
        if op.attrs.dim != len(shape) - 1 or extent <= self.widest:
            return 0
        able = [n for n in range(2, min(self.part, extent // 2) + 1) if extent % n == 0]
        enough = max(LEAST, math.prod(shape) // BUSY)
        return extent // max(able, key=lambda n: (n % GRAIN == 0, n <= enough, n)) if able else 0

    def sources(self, op: Op) -> tuple[int, ...]:
        """What a fold in parts is made of."""
        found = self._centred(op.inputs[0]) if op.kind is OpKind.SUM else None
        return (found[0] if found else op.inputs[0],)

    def _folded(self, op: Op, parts: int) -> int:
        source = op.inputs[0]
        if op.kind is OpKind.SUM and (found := self._centred(source)) is not None:
            return self._squares(*found, parts)
        if op.kind is OpKind.SUM:
            return self._fold(OpKind.SUM, self._gathered(self._sums(source, parts), source, parts))
        return self._fold(OpKind.MAX, self._gathered(self._fold(OpKind.MAX, self._cut(source, parts)), source, parts))

    def _squares(self, row: int, mean: int, parts: int) -> int:
        """The squares about the mean of a row, summed."""
        extent = self.program.types[row].shape[-1] // parts
        means = self._multiplied(self._sums(row, parts), Fraction(1, extent))
        inside = self._fold(OpKind.SUM, self._square(self._append(OpKind.SUB, self._cut(row, parts), means)))
        away = self._append(OpKind.SUB, self._gathered(means, row, parts), self.held[mean])
        between = self._fold(OpKind.SUM, self._square(away))
        total = self._fold(OpKind.SUM, self._gathered(inside, row, parts))
        return self._append(OpKind.ADD, total, self._multiplied(between, Fraction(extent)))

    def _centred(self, square: int) -> tuple[int, int] | None:
        """The row and its mean, if this is the square of how far its elements lie from it."""
        op = self.maker.get(square)
        if op is None or not (op.kind is OpKind.SQR or (op.kind is OpKind.MUL and len({*op.inputs}) == 1)):
            return None
        away = self.maker.get(op.inputs[0])
        if away is None or away.kind is not OpKind.SUB:
            return None
        row, mean = away.inputs
        shape = self.program.types[row].shape
        scaled = self.maker.get(mean)
        if scaled is None or scaled.kind is not OpKind.MUL:
            return None
        kinds = {self.maker[v].kind: self.maker[v] for v in scaled.inputs if v in self.maker}
        total, factor = kinds.get(OpKind.SUM), kinds.get(OpKind.CONST)
        if total is None or factor is None or total.attrs != DimAttrs(len(shape) - 1) or total.inputs != (row,):
            return None
        exact = isinstance(factor.attrs, ConstAttrs) and factor.attrs.value == Fraction(1, shape[-1])
        return (row, mean) if exact else None

    # -- operators -------------------------------------------------------------------------------------

    def _append(self, kind: OpKind, *inputs: int) -> int:
        return self.add(Op(kind, inputs))

    def _square(self, value: int) -> int:
        return self._append(OpKind.SQR, value)

    def _multiplied(self, value: int, factor: Fraction) -> int:
        return self._append(OpKind.MUL, value, self.add(Op(OpKind.CONST, (), ConstAttrs(factor))))

    def _fold(self, kind: OpKind, value: int) -> int:
        return self.add(Op(kind, (value,), DimAttrs(len(self.graph.types[value].shape) - 1)))

    def _sums(self, row: int, parts: int) -> int:
        """The sums of the parts of a row of the program, made once."""
        if row not in self.sums:
            self.sums[row] = self._fold(OpKind.SUM, self._cut(row, parts))
        return self.sums[row]

    def _cut(self, row: int, parts: int) -> int:
        """A row of the program as rows of its own for its parts, of what it is a view of."""
        shape = self.program.types[row].shape
        while row in self.maker and self.maker[row].kind is OpKind.RESHAPE:
            (row,) = self.maker[row].inputs
        return self._shaped(self.held[row], (math.prod(shape[:-1]) * parts, shape[-1] // parts))

    def _gathered(self, value: int, row: int, parts: int) -> int:
        """What the parts of a row of the program gave, side by side."""
        return self._shaped(value, (*self.program.types[row].shape[:-1], parts))

    def _shaped(self, value: int, shape: tuple[int, ...]) -> int:
        return self.add(Op(OpKind.RESHAPE, (value,), ReshapeAttrs(shape)))
