"""Two graphs on float64 inputs, all elements: quick, and never the last word.

In: two graphs and a seed. Out: what they look like over the reals. Values that agree up to rounding are taken for
equal. Where they do not agree, or the candidate has none, rounding may be all that makes them differ, as in
(x + 1e20) - 1e20: then `exact` decides at that very point, and how far rounding goes is no allowance for anything.

It stands beside field trials because these prove only so much. A root of x * x is x or -x in the field, by another rule
than |x|; a maximum and a function outside LAX are random functions there; and elements without a value are left out.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.instance import LARGE_TENSOR, UNDRAWN
from mirage_nb.interp.reference import FloatAlgebra, evaluate
from mirage_nb.interp.shared import Values
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.fields.drawn import Candidate, Program, is_small
from mirage_nb.verify.fields.matching import paired
from mirage_nb.verify.verdict import Looked, Outcome

if TYPE_CHECKING:
    from mirage_nb.interp.slices import Draw

Array = NDArray[Any]

TOLERANCE = 1e-9
"""Relative to the largest value of the output; rounding stays many orders below for inputs near 1."""
DECIDED = 2
"""Elements of an output that are computed exactly where float64 values differ."""
AGREE = Looked(Outcome.AGREE, "float64 values of all elements")


def in_floats(program: Program, candidate: Candidate, seed: int) -> Looked:
    """Compare on a normal draw, and on a positive and a negative one where the program has no value in the first."""
    if any(i.type.elements >= UNDRAWN for i in program.graph.inputs):
        return Looked(Outcome.OPEN, "inputs are too large for float64 values")
    without = set(range(len(program.graph.outputs)))
    for number in range(len(DRAWS)):
        drawn = _draw(program, seed, number)
        looked = _compared(drawn, candidate, seed)
        if looked.outcome is not Outcome.AGREE:
            return looked
        without = {place for place in without if np.isnan(drawn.expected[place]).all()}
        if number == 0 and all(np.isfinite(x).all() for x in drawn.expected):
            break
    return replace(AGREE, compared=not without)


@functools.lru_cache(maxsize=1024)
def once_in_floats(program: Program, candidate: Candidate) -> Looked:
    """What the first seed says: a difference holds whatever the seed of the field trials."""
    return in_floats(program, candidate, 0)


def pairing(program: Program, candidate: Candidate) -> tuple[int, ...] | None:
    """For every output of the program one of the candidate's that has its values, if there are such."""
    drawn = _draw(program, 0, 1)
    others = drawn.outputs(candidate)
    return paired([[a.shape == b.shape and not _wrong(a, b).any() for b in others] for a in drawn.expected])


def _compared(drawn: _Draw, candidate: Candidate, seed: int) -> Looked:
    left, right = drawn.expected, drawn.outputs(candidate)
    wrong = [np.flatnonzero(_wrong(a, b)) for a, b in zip(left, right, strict=True)]
    if not any(len(at) for at in wrong):
        return AGREE
    from mirage_nb.verify.reals.exact import look_at  # exact numbers take long to load, and most candidates need none

    some = [at[:: max(1, len(at) // DECIDED)][:DECIDED].astype(np.int64) for at in wrong]
    return look_at(drawn.program, candidate.graph, drawn.exact, some, seed)


def _wrong(left: Array, right: Array) -> NDArray[np.bool_]:
    """Which elements differ, or are missing on the right; infinite and undefined ones on the left are not compared."""
    finite = np.isfinite(left)
    scale = np.abs(left[finite]).max(initial=1e-300)
    with np.errstate(invalid="ignore"):
        found: NDArray[np.bool_] = finite & ~(np.abs(left - right) <= TOLERANCE * scale)
    return found


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    if math.prod(shape) < LARGE_TENSOR:
        return rng.standard_normal(shape)
    spread = rng.random(shape)  # of the same mean and variance, and drawn five times as fast
    spread -= 0.5
    spread *= math.sqrt(12)
    return spread


def _positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.uniform(0.5, 1.5, shape)


def _negative(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.uniform(-1.5, -0.5, shape)


DRAWS = (_normal, _positive, _negative)


class _Draw:
    """Inputs, zeros for large ones that the program does not use, and what graphs make of them; `expected`: the
    program."""

    def __init__(self, program: Program, seed: int, number: int) -> None:
        self.program = program.graph
        rng = np.random.default_rng([seed, number])
        used = _used(program.graph)
        self._inputs = {
            i.name: np.broadcast_to(0.0, i.type.shape)
            if i.type.elements >= LARGE_TENSOR and value not in used
            else DRAWS[number](rng, i.type.shape)
            for value, i in enumerate(program.graph.inputs)
        }
        self._values: Values[Array] | None = None
        if is_small(program.graph):
            self._values = Values(FloatAlgebra(np.dtype(np.float64)), self._inputs)
        self.expected = self.outputs(program.itself)

    def outputs(self, graph: Candidate) -> tuple[Array, ...]:
        """What the program or a candidate makes of them; for a small program, what others made alike is known."""
        if self._values is None:
            return evaluate(graph.graph, self._inputs)
        with np.errstate(all="ignore"):
            made = self._values.run(graph.plan)
        return tuple(np.broadcast_to(x, shape) for x, shape in zip(made, graph.plan.shapes, strict=True))

    @property
    def exact(self) -> Draw:
        """The inputs as numbers: floats are rationals."""
        from mirage_nb.interp.numbers import fmpq

        def draw(name: str, at: NDArray[np.int64]) -> Array:
            found = np.empty(len(at), object)
            found[:] = [fmpq(*x.as_integer_ratio()) for x in self._inputs[name].reshape(-1)[at].tolist()]
            return found

        return draw


def _used(graph: KernelGraph) -> set[int]:
    """The values that some output depends on."""
    live = set(graph.outputs)
    for op, values in reversed(list(graph.definitions())):
        if live & set(values):
            live |= set(op.inputs)
    return live


_kept = functools.lru_cache(maxsize=64)(_Draw)


def _draw(program: Program, seed: int, number: int) -> _Draw:
    return _kept(program, seed, number) if is_small(program.graph) else _Draw(program, seed, number)
