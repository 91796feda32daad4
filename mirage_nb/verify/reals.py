"""Two graphs on float64 inputs: the judge where field values alone prove nothing.

In: two graphs and a seed. Out: DIFFERENT with a witness, or AGREE. A square root that cancels a square, a
maximum of scaled values or an operator outside LAX may make equal functions look different to the field;
only a difference that float64 shows far above rounding refutes them.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.reference import FloatAlgebra, evaluate
from mirage_nb.interp.shared import Values
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.drawn import Candidate, Program, is_small
from mirage_nb.verify.verdict import Witness

Array = NDArray[np.float64]

TOLERANCE = 1e-9
"""Relative to the largest value of the output; rounding stays many orders below for inputs near 1."""


class Reals(enum.Enum):
    """What float64 says."""

    AGREE = "agree"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class RealsReport:
    """Outcome, and where the graphs differ."""

    outcome: Reals
    witness: Witness | None = None


def in_reals(program: Program, candidate: Candidate, seed: int) -> RealsReport:
    """Compare on a normal and on a positive draw, outputs in any order; infinite and undefined results of
    the program are not compared."""
    for number in range(len(DRAWS)):
        drawn = _kept(program, seed, number) if is_small(program.graph) else _Draw(program, seed, number)
        left, right = drawn.expected, drawn.outputs(candidate)
        if not _pairable(left, right):
            return RealsReport(Reals.DIFFERENT, _witness(left, right, seed + number))
    return RealsReport(Reals.AGREE)


def _normal(graph: KernelGraph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng([seed, 2])
    return {i.name: rng.normal(size=i.type.shape) for i in graph.inputs}


def _positive(graph: KernelGraph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng([seed, 3])
    return {i.name: rng.uniform(0.5, 1.5, size=i.type.shape) for i in graph.inputs}


DRAWS = (_normal, _positive)


class _Draw:
    """Inputs and what the program makes of them; for a small one also what its candidates make of them."""

    def __init__(self, program: Program, seed: int, number: int) -> None:
        self._inputs = DRAWS[number](program.graph, seed)
        self._values = Values(FloatAlgebra(np.dtype(np.float64)), self._inputs) if is_small(program.graph) else None
        self.expected = self.outputs(program.itself)

    def outputs(self, candidate: Candidate) -> tuple[Array, ...]:
        """What a candidate makes of them."""
        if self._values is None:
            return evaluate(candidate.graph, self._inputs)
        with np.errstate(all="ignore"):
            made = self._values.run(candidate.plan)
        return tuple(np.broadcast_to(x, shape) for x, shape in zip(made, candidate.plan.shapes, strict=True))


_kept = functools.lru_cache(maxsize=64)(_Draw)


def _pairable(left: Sequence[Array], right: Sequence[Array]) -> bool:
    """Whether some order of the right outputs agrees with the left ones."""
    orders = itertools.permutations(right) if len(right) <= MAX_PERMUTED else [tuple(right)]
    return any(all(_error(a, b) is None for a, b in zip(left, order, strict=True)) for order in orders)


MAX_PERMUTED = 5
"""More outputs than this are compared in their own order."""


def _error(left: Array, right: Array) -> tuple[int, ...] | None:
    """The first element that differs, or None."""
    if left.shape != right.shape:
        return ()
    finite = np.isfinite(left)
    scale = float(np.abs(left[finite]).max(initial=1e-30))
    with np.errstate(invalid="ignore"):
        wrong = finite & ~(np.abs(left - right) <= TOLERANCE * scale)
    return tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else None


def _witness(left: Sequence[Array], right: Sequence[Array], seed: int) -> Witness | None:
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        index = _error(a, b)
        if index is not None and a.shape == b.shape:
            return Witness(seed, number, index, repr(float(a[index])), repr(float(b[index])))
    return None
