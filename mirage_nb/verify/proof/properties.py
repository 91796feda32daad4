"""Properties that a user states of functions, held against numbers before anything rests on them.

In: properties by function, and the graphs in which the functions stand. Out: nothing, or what a property says and
two numbers that it does not hold for. Numbers can refute a property and not prove it: what remains is on the
user's word, and a verdict that rests on it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.reference import TABLE
from mirage_nb.ir import OPS, KernelGraph, Op, Trait
from mirage_nb.verify.fields.lax import all_ops
from mirage_nb.verify.proof.axioms import Properties
from mirage_nb.verify.proof.translate import ELEMENTWISE, function_name

Numbers = NDArray[np.float64]
Function = Callable[[Numbers], Numbers]

POINTS = 512
"""Pairs of numbers on each scale."""
SCALES = (1e-3, 1.0, 30.0, 1e4)
TOLERANCE = 1e-7
"""Relative to the numbers that are compared."""


def refuted_property(properties: Properties, *graphs: KernelGraph) -> str:
    """The first property that numbers refute, in words with an example; empty if there is none.

    `properties` are keyed as in `prove`: by a function's whole name, or by the name in front of its attributes.
    """
    for key, names in sorted(properties.items()):
        for function, compute in _functions(graphs):
            head = function.split("(", 1)[0]
            if key in (function, head, head[1:]):
                for name in sorted(names & LAWS.keys()):
                    example = _counterexample(name, compute)
                    if example:
                        return f"{key} is not {name}: {example}"
    return ""


def _functions(graphs: tuple[KernelGraph, ...]) -> Iterator[tuple[str, Function]]:
    """The functions that proofs know by name, with what they compute."""
    for op in (op for graph in graphs for op in all_ops(graph)):
        if op.kind not in ELEMENTWISE and Trait.ELEMENTWISE in OPS[op.kind].traits and len(op.inputs) == 1:
            yield function_name(op), _computed(op)


def _computed(op: Op) -> Function:
    return lambda x: np.asarray(TABLE[op.kind]([x], op.attrs, 0), np.float64)


def _counterexample(name: str, f: Function) -> str:
    """Two numbers for which both sides of the law differ; empty if none were met."""
    (x, y), (text, law) = _points(), LAWS[name]
    with np.errstate(all="ignore"):
        left, right = law(f, x, y)
        size = np.maximum(np.abs(left), np.abs(right))
        wrong = np.isfinite(left) & np.isfinite(right) & (np.abs(left - right) > TOLERANCE * size + 1e-12)
    if not wrong.any():
        return ""
    first = int(np.flatnonzero(wrong)[0])
    return f"{text} fails at a = {x[first]:.6g}, b = {y[first]:.6g}: {left[first]:.6g} and {right[first]:.6g}"


def _points() -> tuple[Numbers, Numbers]:
    """Pairs of numbers of either sign on every scale, and some where functions have their corners."""
    rng = np.random.default_rng(20)
    corners = np.array([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0])
    a, b = np.meshgrid(corners, corners)
    x, y = (np.concatenate([scale * rng.normal(size=POINTS) for scale in SCALES]) for _ in range(2))
    y = np.where(rng.random(len(y)) < 0.5, y, rng.normal(size=len(y)))  # pairs of unlike scales, too
    return np.concatenate([a.reshape(-1), x]), np.concatenate([b.reshape(-1), y])


Law = Callable[[Function, Numbers, Numbers], tuple[Numbers, Numbers]]

LAWS: Mapping[str, tuple[str, Law]] = MappingProxyType(
    {
        "odd": ("g(-a) = -g(a)", lambda f, a, b: (f(-a), -f(a))),
        "even": ("g(-a) = g(a)", lambda f, a, b: (f(-a), f(a))),
        "idempotent": ("g(g(a)) = g(a)", lambda f, a, b: (f(f(a)), f(a))),
        "linear": ("g(b a) = b g(a)", lambda f, a, b: (f(b * a), b * f(a))),
        "homogeneous": (
            "g(|b| a) = |b| g(a)",
            lambda f, a, b: (f(np.abs(b) * a), np.where(b == 0, f(0 * a), np.abs(b) * f(a))),
        ),
        "monotone": ("g(max(a, b)) = max(g(a), g(b))", lambda f, a, b: (f(np.maximum(a, b)), np.maximum(f(a), f(b)))),
        "multiplicative": ("g(a b) = g(a) g(b)", lambda f, a, b: (f(a * b), f(a) * f(b))),
    }
)
"""What each property says, in words, and both sides of it, of numbers a and b."""
