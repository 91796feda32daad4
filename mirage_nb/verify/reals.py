"""Two graphs on float64 inputs: the judge where field values alone prove nothing.

In: two graphs and a seed. Out: DIFFERENT with a witness, or AGREE.

Field values that differ prove that functions of reals differ where every operator means in the field what it means
for reals, up to the theorems of `bound`: sums, products, quotients, exponentials (`LaxReport.exact`). Elsewhere they
do not, so float64 has to show the difference, far above rounding:
- a square root: that of x * x is x or -x in the field, by another rule than |x|;
- a maximum, also one that only shifts exponents: it is a random function of its set there. Of a wrong shift the
  difference of both sides is a polynomial A in exponentials E of exponents and F of maxima that is not zero; but F is
  one of the E in reals, A may vanish for all choices of that, as it does for max(2 x) beside 2 max(x), and to know
  for which it does not one has to know which elements can be the largest;
- an uninterpreted function; a symbol, whose value the field does not know.

Field values that agree say nothing of elements without a value. In the same graphs a quotient may be 0 / 0 in reals
and not in the field, as relu(x) / relu(x), and a root that the field has half the time, as of -x * x - 1, never exists.
So float64 values of the graphs that are not exact have to agree too, at inputs where the program has a value.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.reference import FloatAlgebra, evaluate
from mirage_nb.interp.shared import Values
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.drawn import Candidate, Program, is_small
from mirage_nb.verify.matching import paired
from mirage_nb.verify.verdict import Witness

Array = NDArray[Any]

WIDE = np.longdouble
"""80 bits where there are such numbers; else the same 64, and rounding is not told from a difference."""

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
    """Compare on a normal, a positive and a negative draw, outputs in any order; infinite and undefined results of
    the program are not compared, but the candidate has to have a value where the program has one."""
    reports = (_compared(_draw(program, seed, number), candidate, seed + number) for number in range(len(DRAWS)))
    return next((report for report in reports if report.outcome is Reals.DIFFERENT), AGREE)


@functools.lru_cache(maxsize=1024)
def once_in_reals(program: Program, candidate: Candidate) -> RealsReport:
    """What the first seed says, of the other draws where the program has no value in the first: a difference holds
    whatever the seed of the field trials."""
    drawn = _draw(program, 0, 0)
    report = _compared(drawn, candidate, 0)
    everywhere = all(np.isfinite(x).all() for x in drawn.expected)
    return report if everywhere or report.outcome is Reals.DIFFERENT else in_reals(program, candidate, 0)


AGREE = RealsReport(Reals.AGREE)


def _compared(drawn: _Draw, candidate: Candidate, seed: int) -> RealsReport:
    left, right = drawn.expected, drawn.outputs(candidate)
    if paired(_fits(_errors(left, right))) is not None:
        return AGREE
    doubts: list[Array] = [ZERO] * (len(left) + len(right))
    if drawn.wide:
        # Rounding may be all that makes them differ, as in (x + 1e10) - 1e10; more bits show how much there is.
        narrow = [*left, *right]
        left, right = drawn.wide, drawn.outputs(candidate, WIDE)
        doubts = [_rounding(a, b) for a, b in zip(narrow, [*left, *right], strict=True)]
    errors = _errors(left, right, doubts)
    if paired(_fits(errors)) is not None:
        return AGREE
    return RealsReport(Reals.DIFFERENT, _witness(left, right, seed, errors))


def _normal(graph: KernelGraph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng([seed, 2])
    return {i.name: rng.normal(size=i.type.shape) for i in graph.inputs}


def _positive(graph: KernelGraph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng([seed, 3])
    return {i.name: rng.uniform(0.5, 1.5, size=i.type.shape) for i in graph.inputs}


def _negative(graph: KernelGraph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng([seed, 4])
    return {i.name: rng.uniform(-1.5, -0.5, size=i.type.shape) for i in graph.inputs}


DRAWS = (_normal, _positive, _negative)
MAX_ELEMENTS = 2**24
"""Inputs up to which float64 values stand beside field values that agree."""


class _Draw:
    """Inputs and what graphs make of them; `expected`: the program, `wide`: with more bits, if it is small."""

    def __init__(self, program: Program, seed: int, number: int) -> None:
        self._inputs = DRAWS[number](program.graph, seed)
        self._small = is_small(program.graph)
        self._values: dict[Any, Values[Array]] = {}
        self.expected = self.outputs(program.itself)
        self.wide = self.outputs(program.itself, WIDE) if self._small else ()

    def outputs(self, graph: Candidate, dtype: Any = np.float64) -> tuple[Array, ...]:
        """What the program or a candidate makes of them; for a small program, what others made alike is known."""
        if not self._small:
            return evaluate(graph.graph, self._inputs, dtype)
        if dtype not in self._values:
            inputs = {name: array.astype(dtype) for name, array in self._inputs.items()}
            self._values[dtype] = Values(FloatAlgebra(np.dtype(dtype)), inputs)
        with np.errstate(all="ignore"):
            made = self._values[dtype].run(graph.plan)
        return tuple(np.broadcast_to(x, shape) for x, shape in zip(made, graph.plan.shapes, strict=True))


_kept = functools.lru_cache(maxsize=64)(_Draw)


def _draw(program: Program, seed: int, number: int) -> _Draw:
    return _kept(program, seed, number) if is_small(program.graph) else _Draw(program, seed, number)


def _rounding(x: Array, wide: Array) -> Array:
    """How far rounding took values from those with more bits; 0 where they have none."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(x - wide)
    return np.where(np.isfinite(apart), apart, 0)


Errors = list[list[tuple[int, ...] | None]]
"""For every left output, the first element in which each right one differs, or None."""
ZERO = np.zeros(())


def _errors(left: Sequence[Array], right: Sequence[Array], doubts: Sequence[Array] = ()) -> Errors:
    rows, columns = doubts[: len(left)] or [ZERO] * len(left), doubts[len(left) :] or [ZERO] * len(right)
    others = list(zip(right, columns, strict=True))
    return [[_error(a, b, c, d) for b, d in others] for a, c in zip(left, rows, strict=True)]


def _fits(errors: Errors) -> list[list[bool]]:
    return [[error is None for error in row] for row in errors]


def _error(left: Array, right: Array, left_doubt: Array, right_doubt: Array) -> tuple[int, ...] | None:
    """The first element that differs, or None."""
    if left.shape != right.shape:
        return ()
    finite = np.isfinite(left)
    scale = np.abs(left[finite]).max(initial=1e-30)
    with np.errstate(invalid="ignore"):
        wrong = finite & ~(np.abs(left - right) <= TOLERANCE * scale + left_doubt + right_doubt)
    return tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else None


def _witness(left: Sequence[Array], right: Sequence[Array], seed: int, errors: Errors) -> Witness | None:
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        index = errors[number][number]
        if index is not None and a.shape == b.shape:
            return Witness(seed, number, index, repr(float(a[index])), repr(float(b[index])))
    return None
