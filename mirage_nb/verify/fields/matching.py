"""How the outputs of two graphs compare, trial after trial, and which output of a candidate is which.

In: output types, then the output values of one trial after the other. Out: how often every element was compared, a
witness once one differs, and whether elements were left out in a way that selects. Outputs are compared in order.

An element that the program has no value for is left out of a trial. So is one that only the candidate has none for, but
that may hide a difference: a root that exists for half of all numbers shows the other half to nobody. So it counts for
nothing unless it is rare: of the trials in which the program has a value for an element, the candidate may miss one in
`RARE` at most, as a division by zero may have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.field import FieldTensor
from mirage_nb.ir import TensorType
from mirage_nb.verify.verdict import Witness

RARE = 8
"""Trials among which the candidate may have no value once, for every element."""


@dataclass(slots=True)
class _Output:
    """One output: for every element, how often it was compared, and how often only the candidate had no value."""

    compared: NDArray[np.int32]
    missed: NDArray[np.int32]


@dataclass(slots=True)
class Matching:
    """All outputs; `program` and `candidate` are the output types."""

    program: Sequence[TensorType]
    candidate: Sequence[TensorType]
    witness: Witness | None = None
    _outputs: list[_Output] = field(init=False)

    def __post_init__(self) -> None:
        self._outputs = [_Output(*(np.zeros(t.shape, np.int32) for _ in range(2))) for t in self.program]

    @property
    def fits(self) -> bool:
        """Whether outputs are as many, and of the same types."""
        return [(t.shape, t.dtype) for t in self.program] == [(t.shape, t.dtype) for t in self.candidate]

    def compared(self, times: int) -> bool:
        """Whether every element was compared at least so often, and nothing was selected."""
        return all(int(out.compared.min(initial=times)) >= times for out in self._outputs) and not self.selects

    @property
    def selects(self) -> bool:
        """Whether the candidate has no value more often than by chance where the program has one."""
        return any(bool((out.missed * RARE > out.missed + out.compared).any()) for out in self._outputs)

    def compare(
        self, expected: Sequence[FieldTensor], found: Sequence[FieldTensor], seed: int, counts: bool = True
    ) -> None:
        """Take in the values of one trial; one that does not count may be a witness all the same."""
        for number, (want, got, out) in enumerate(zip(expected, found, self._outputs, strict=True)):
            if want.p is None or got.p is None:
                raise AssertionError("outputs are read in their p part")
            if want.undefined is None and got.undefined is None:
                wrong = want.p != got.p
                out.compared += counts
            else:
                both = want.defined & got.defined
                wrong = both & (want.p != got.p)
                out.compared += both & counts
                out.missed += want.defined & ~got.defined & counts
            if self.witness is None and np.any(wrong):
                index = tuple(int(i) for i in np.argwhere(wrong)[0])
                self.witness = Witness(seed, number, index, str(want.p[index]), str(got.p[index]))

    def compare_all(self, expected: Sequence[FieldTensor], found: Sequence[FieldTensor], seeds: Sequence[int]) -> int:
        """Take in trial after trial of some side by side, until one differs; how many were taken in."""
        if all(a.undefined is None and b.undefined is None for a, b in zip(expected, found, strict=True)):
            if not any(np.any(a.p != b.p) for a, b in zip(expected, found, strict=True)):
                for out in self._outputs:
                    out.compared += len(seeds)
                return len(seeds)
        for number, seed in enumerate(seeds):
            self.compare([_one(x, number) for x in expected], [_one(x, number) for x in found], seed)
            if self.witness is not None:
                return number + 1
        return len(seeds)


def paired(fits: Sequence[Sequence[bool]]) -> tuple[int, ...] | None:
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
    return tuple(column for column, _ in sorted(taken.items(), key=lambda item: item[1]))


def _one(x: FieldTensor, number: int) -> FieldTensor:
    """One of several tensors side by side."""
    p, undefined = (None if part is None else part[number] for part in (x.p, x.undefined))
    return FieldTensor(p, None, undefined)
