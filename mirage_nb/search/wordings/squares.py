"""Squares about a mean of more than their own column, summed about that of the column first: batch statistics.

In: a tensor program. Out: the same one in which squares about a mean that was taken along other dimensions, too, are
summed about the mean of what is summed, and how far that lies from the other one is added: so the tensor is read once
for the mean and for the variance, and nothing cancels (Chan, Golub and LeVeque 1979). Invariant: over the real numbers
the program stays what it was.
"""

from __future__ import annotations

from fractions import Fraction

from mirage_nb.ir import ConstAttrs, KernelGraph, Op, OpKind
from mirage_nb.ir.graph import reached
from mirage_nb.ir.rewrite import Rewrite, saying
from mirage_nb.predefined.reading import Reading
from mirage_nb.search.dims import folded_dim


def of_more(program: KernelGraph) -> dict[int, tuple[int, ...]]:
    """Such sums of a program: for each the value whose squares they are."""
    return {value: (found[0],) for value, found in _sums(program).items()}


def about_own(program: KernelGraph) -> KernelGraph:
    """The program with such sums about the means of what is summed; itself where it has none."""
    found = _sums(program)

    def apart(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        row, mean, total = made.places(found[value])
        extent = program.types[found[value][0]].shape[folded_dim(op)]

        def times(factor: Fraction, value: int) -> int:
            return made.add(Op(OpKind.MUL, (value, made.add(Op(OpKind.CONST, (), ConstAttrs(factor))))))

        def away(value: int, center: int) -> int:
            return made.add(Op(OpKind.SQR, (made.add(Op(OpKind.SUB, (value, center))),)))

        own = times(Fraction(1, extent), total)
        inside = made.add(Op(OpKind.SUM, (away(row, own),), op.attrs))
        return made.add(Op(OpKind.ADD, (inside, times(Fraction(extent), away(own, mean)))))

    return saying(program, found, apart)


def _sums(program: KernelGraph) -> dict[int, tuple[int, int, int]]:
    """For each such sum the value whose squares it sums, the mean, and the sum of that value which the mean is of."""
    reading, found = Reading(program), dict[int, tuple[int, int, int]]()
    for op, (value, *_) in program.definitions():
        if op.kind is not OpKind.SUM or (away := squared(reading, op.inputs[0])) is None or away.kind is not OpKind.SUB:
            continue
        row, mean = away.inputs
        dim, shape, rank = folded_dim(op), reading.shape(mean), len(reading.shape(row))
        shape = (*(1 for _ in range(rank - len(shape))), *shape)
        behind = _folds_behind(reading, mean, row)
        totals = [v for v in behind if reading.folded(v, OpKind.SUM) == (row, dim)]
        wide = reading.shape(row) == reading.shape(op.inputs[0])
        if totals and len(behind) > 1 and wide and len(shape) == rank and shape[dim] == 1:
            found[value] = row, mean, totals[0]
    return found


def squared(reading: Reading, value: int) -> Op | None:
    """What makes the value whose square this is, if it is one."""
    op = reading.op(value, OpKind.SQR, OpKind.MUL)
    return reading.op(op.inputs[0]) if op is not None and len({*op.inputs}) == 1 else None


def _folds_behind(reading: Reading, mean: int, row: int) -> list[int]:
    """The sums that a mean of a value is taken by; none of those that make this value."""

    def behind(value: int) -> tuple[int, ...]:
        op = reading.op(value, OpKind.SUM, OpKind.MUL, OpKind.RESHAPE) if value != row else None
        return op.inputs if op is not None else ()

    return [value for value in sorted(reached([mean], behind) - {row}) if reading.op(value, OpKind.SUM) is not None]
