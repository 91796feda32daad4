"""Whether a program has a value anywhere, at its own sizes: where it has none, anything computes it.

In: a program. Out: nothing, or a ProofError that names an output without a value. Small programs are run in float64; of
large ones a few elements are computed, with all that they depend on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mirage_nb.errors import ProofError
from mirage_nb.interp.nodes import Index, TooMuch
from mirage_nb.interp.numbers import Array, Hole, as_ball, fmpq, precision
from mirage_nb.interp.reference import evaluate
from mirage_nb.interp.slices import Draw, Slice
from mirage_nb.interp.undrawn import splitmix
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.fields.work import work
from mirage_nb.verify.reals.exact import SAMPLED, SAMPLES, chosen

WHOLE = 2**24
"""Elements to compute, of a program that is run: some 10 ns each."""
TENTHS = ((0, 10), (15, 3), (-15, 3), (0, 1), (0, 300), (300, 50), (-300, 50))
"""Where inputs lie, and how far they spread."""
BITS = 256
SEED = 5


def defined_somewhere(program: KernelGraph, smaller: Callable[[], KernelGraph] | None = None) -> None:
    """Raise ProofError unless every output of the program has a value at some point. Where single elements depend on
    too much, the program at other sizes is asked, if it is given."""
    try:
        found = _run(program) if smaller is None or work(program).elements <= WHOLE else _sampled(program)
    except TooMuch:
        assert smaller is not None
        return defined_somewhere(smaller())
    without = set(range(len(program.outputs)))
    for outputs in found:
        without = {number for number in without if not outputs[number]}
        if not without:
            return
    raise ProofError(
        f"at these sizes output {min(without)} of the program has a value at none of the points that were tried"
    )


def _run(program: KernelGraph) -> Iterator[Sequence[bool]]:
    """At one point after the other, which outputs have a value."""
    rng = np.random.default_rng(SEED)
    for center, spread in TENTHS:
        drawn = {i.name: (center + spread * rng.normal(size=i.type.shape)) / 10 for i in program.inputs}
        yield [bool(np.isfinite(x).any()) for x in evaluate(program, drawn)]


def _sampled(program: KernelGraph) -> Iterator[Sequence[bool]]:
    """The same, as far as a few elements show it. Raises TooMuch."""
    elements = _elements(program, *SAMPLES)
    return ([any(map(_is_number, x)) for x in _computed(elements, *point)] for point in TENTHS)


def _elements(program: KernelGraph, count: int, *fewer: int) -> Slice:
    try:
        return Slice(program, chosen(program.output_types, count, SEED), SAMPLED)
    except TooMuch:
        if not fewer:
            raise
        return _elements(program, *fewer)


def _computed(elements: Slice, center: int, spread: int) -> list[Array]:
    with precision(BITS):
        return elements.compute(_drawn(center, spread))


def _drawn(center: int, spread: int) -> Draw:
    def draw(name: str, at: Index) -> Array:
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        steps = (splitmix(at.astype(np.uint64), key) >> np.uint64(52)).astype(np.int64) - 2**11
        found = np.empty(len(at), object)
        found[:] = [(center + fmpq(step, 2**10) * spread) / 10 for step in steps.tolist()]
        return found

    return draw


def _is_number(x: Any) -> bool:
    return type(x) is not Hole and bool(as_ball(x).is_finite())
