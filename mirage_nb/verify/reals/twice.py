"""What comparisons decide, where a graph computes what they read in sums of its own: equal but for rounding.

In: a program, and a muGraph that equals it over the reals. Out: that some outputs hang on how its sums are rounded
where the program's do not, in words; or nothing. A value that is summed twice, by other threads, differs from itself in
its last bit now and then: the place of the largest element is none then, and an element ranks behind itself, which
hardly any inputs show. So every sum is moved by a share of itself that is its own, and the outputs are looked at.
Invariant: what is computed once is equal to itself however it is rounded.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    BlockGraph,
    ConstAttrs,
    KernelGraph,
    Op,
    OpKind,
    ThreadGraph,
)
from mirage_nb.ir.jumps import jumps
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.verify.reals.conditioning import LINEAR
from mirage_nb.verify.reals.hard_inputs import hard_inputs
from mirage_nb.verify.verdict import Verdict, VerdictKind

Array = NDArray[Any]
G = TypeVar("G", KernelGraph, BlockGraph, ThreadGraph)

DRAWS = 2
"""Times that inputs and shares are drawn; each share is added and taken away."""
SHARE, STEPS = Fraction(1, 10**7), 1000
"""Of itself, the most that a sum is moved by: above what float64 loses, and below what lies between two elements; in
so many steps."""
STABLE, MOVED = 1e-5, 1e-3
"""Relative to the largest of an output: what does not hang on rounding moves less than the first, in the program; what
does in the graph, by more than the other one."""


def decides(program: KernelGraph) -> bool:
    """Whether something that is summed is compared with something that is, or both are rounded to a whole number."""
    summed, met = set[int](), set[int]()
    for op, values in program.definitions():
        parts = summed.intersection(op.inputs)
        meet = len(parts) > 1 or not met.isdisjoint(op.inputs)
        if jumps(op) and meet:
            return True
        summed.update(values if parts or op.kind in LINEAR else ())
        met.update(values if meet else ())
    return False


def twice(program: KernelGraph, graph: KernelGraph) -> str:
    """That a comparison hangs on the order of sums, in words; or nothing. Raises as `evaluate`."""
    if decides(program):
        for seed in range(DRAWS):
            inputs, rows = _stable(program, seed)
            for made in _made(graph, seed, inputs):
                for (want, asked, least), found in zip(rows, made, strict=True):
                    if not (np.abs(found[asked] - want[asked]) <= least).all():
                        return "what a comparison reads is computed twice, and differs by a rounding"
    return ""


def computed_once(verdict: Verdict, program: KernelGraph, graph: KernelGraph) -> Verdict:
    """The verdict; undecided where what is equal over the reals hangs on the order of sums. Raises as `evaluate`."""
    why = twice(program, graph) if verdict.accepted else ""
    return replace(verdict, kind=VerdictKind.UNDECIDED, note=why) if why else verdict


@functools.lru_cache(maxsize=16)
def _stable(program: KernelGraph, seed: int) -> tuple[list[Array], list[tuple[Array, Array, float]]]:
    """Inputs of a program; of each output what is right for them, which elements do not hang on rounding, and how much
    others may be off."""
    by_name = hard_inputs(program, "normal", seed)
    inputs = [by_name[i.name] for i in program.inputs]
    wanted = evaluate(program, inputs)
    scales = [float(np.abs(want[np.isfinite(want)]).max(initial=0.0)) for want in wanted]
    asked = [np.isfinite(want) for want in wanted]
    for made in _made(program, seed, inputs):
        with np.errstate(invalid="ignore"):
            rows = zip(asked, made, wanted, scales, strict=True)
            asked = [at & (np.abs(found - want) <= STABLE * scale) for at, found, want, scale in rows]
    return inputs, [(want, at, MOVED * scale) for want, at, scale in zip(wanted, asked, scales, strict=True)]


def _made(graph: KernelGraph, seed: int, inputs: list[Array]) -> Iterator[tuple[Array, ...]]:
    """The outputs of a graph with its sums moved up and down."""
    for sign in (1, -1):
        yield evaluate(_moved(graph, np.random.default_rng(seed), sign * SHARE / STEPS), inputs)


def _moved(graph: G, rng: np.random.Generator, step: Fraction) -> G:
    """The graph with every sum times a number near 1."""
    made: Rewrite[G] = Rewrite(replace(graph, ops=(), types=graph.types[: graph.input_count]))
    for op, values in graph.definitions():
        if isinstance(op.body, BlockGraph):
            op = replace(op, body=_moved(op.body, rng, step))
        elif op.body is not None:
            op = replace(op, body=_moved(op.body, rng, step))
        here = made.copy(op, values)
        if _adds(op):
            factor = ConstAttrs(1 + int(rng.integers(-STEPS, STEPS + 1)) * step)
            made.held[values[0]] = made.add(Op(OpKind.MUL, (here, made.add(Op(OpKind.CONST, (), factor)))))
    if isinstance(graph, BlockGraph):
        return made.graph
    return replace(made.graph, outputs=made.places(graph.outputs))


def _adds(op: Op) -> bool:
    kind = op.attrs.kind if isinstance(op.attrs, AccumAttrs) else None
    return op.kind in LINEAR or op.kind is OpKind.RESCALED_SUM or kind in (AccumKind.SUM, AccumKind.RESCALE)
