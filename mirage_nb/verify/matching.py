"""Which output of the candidate is which output of the program.

In: output types, then the output values of one trial after the other. Out: the permutation that agrees in
all trials, how often every element was compared, and a witness once no permutation is left. Outputs are
paired by their values, so a candidate may return them in any order; types have to be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.field import FieldTensor
from mirage_nb.ir import TensorType
from mirage_nb.verify.verdict import Witness


@dataclass(slots=True)
class _Pair:
    """One output of the program beside one of the candidate: equal so far, and how often compared."""

    alive: bool
    counts: NDArray[np.int32]
    witness: Witness | None = None


@dataclass(slots=True)
class Matching:
    """All pairs of outputs; `program` and `candidate` are the output types."""

    program: Sequence[TensorType]
    candidate: Sequence[TensorType]
    _pairs: list[list[_Pair]] = field(init=False)

    def __post_init__(self) -> None:
        self._pairs = [
            [_Pair((a.shape, a.dtype) == (b.shape, b.dtype), np.zeros(a.shape, np.int32)) for b in self.candidate]
            for a in self.program
        ]

    def possible(self) -> bool:
        """Whether some pairing of all outputs agrees with everything seen."""
        return len(self.program) == len(self.candidate) and self._match() is not None

    def compared(self, times: int) -> bool:
        """Whether there is a pairing in which every element was compared at least so often."""
        return self._match(times) is not None

    def permutation(self) -> tuple[int, ...]:
        """For every output of the program, the candidate's."""
        found = self._match()
        assert found is not None
        return tuple(found)

    def compare(self, expected: Sequence[FieldTensor], found: Sequence[FieldTensor], seed: int) -> None:
        """Take in the values of one trial; elements without a value on either side are left out."""
        for number, (want, row) in enumerate(zip(expected, self._pairs, strict=True)):
            for got, pair in zip(found, row, strict=True):
                if pair.alive:
                    self._compare(pair, number, want, got, seed)

    def compare_all(self, expected: Sequence[FieldTensor], found: Sequence[FieldTensor], seeds: Sequence[int]) -> int:
        """Take in trial after trial of some side by side, until no pairing is left; how many were taken in."""
        if len(expected) == len(found) == 1 and self._pairs[0][0].alive and _agree(expected[0], found[0]):
            if expected[0].undefined is None and found[0].undefined is None:
                self._pairs[0][0].counts += len(seeds)
            else:
                self._pairs[0][0].counts += (expected[0].defined & found[0].defined).sum(axis=0, dtype=np.int32)
            return len(seeds)
        for number, seed in enumerate(seeds):
            self.compare([_one(x, number) for x in expected], [_one(x, number) for x in found], seed)
            if not self.possible():
                return number + 1
        return len(seeds)

    def _compare(self, pair: _Pair, number: int, want: FieldTensor, got: FieldTensor, seed: int) -> None:
        if want.p is None or got.p is None:
            raise AssertionError("outputs are read in their p part")
        both = want.defined & got.defined
        wrong = both & (want.p != got.p)
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            pair.alive = False
            pair.witness = Witness(seed, number, index, str(want.p[index]), str(got.p[index]))
        else:
            pair.counts += both

    def witness(self) -> Witness | None:
        """A difference: in the first output that agrees with none of the candidate's, else in any pair."""
        rows = sorted(self._pairs, key=lambda row: any(pair.alive for pair in row))
        return next((pair.witness for row in rows for pair in row if pair.witness is not None), None)

    def _match(self, times: int = 0) -> list[int] | None:
        """A pairing of live pairs whose elements were compared `times` times."""
        fits = [
            [pair.alive and (not times or int(pair.counts.min(initial=times)) >= times) for pair in row]
            for row in self._pairs
        ]
        return paired(fits)


def paired(fits: Sequence[Sequence[bool]]) -> list[int] | None:
    """For every row a column of its own that fits, if there are such (augmenting paths)."""
    taken: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column, fitting in enumerate(fits[row]):
            if column in seen or not fitting:
                continue
            seen.add(column)
            if column not in taken or place(taken[column], seen):
                taken[column] = row
                return True
        return False

    if not all(place(row, set()) for row in range(len(fits))):
        return None
    return [column for column, _ in sorted(taken.items(), key=lambda item: item[1])]


def _agree(want: FieldTensor, got: FieldTensor) -> bool:
    """Whether tensors of the same shape agree wherever both have values."""
    differ = want.p != got.p
    if want.undefined is not None or got.undefined is not None:
        differ = differ & want.defined & got.defined
    return not bool(np.any(differ))


def _one(x: FieldTensor, number: int) -> FieldTensor:
    """One of several tensors side by side."""
    p, undefined = (None if part is None else part[number] for part in (x.p, x.undefined))
    return FieldTensor(p, None, undefined)
