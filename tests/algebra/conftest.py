"""Fixtures of the algebra's tests: terms evaluated with real numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from random import Random

import numpy as np
import pytest

from mirage_nb.algebra.axioms import UNIT_AXIS, Apply, Sum, Symbol, Term
from tests.algebra.rewriting import SymbolAxes

Evaluate = Callable[[Term], np.ndarray]


@pytest.fixture
def evaluator() -> Callable[[SymbolAxes, int], Evaluate]:
    """(symbols, seed) -> a function that evaluates terms on positive random arrays, one dim per axis."""

    def make(symbols: SymbolAxes, seed: int) -> Evaluate:
        axes = sorted({axis for found in symbols.values() for axis in found}, key=str)
        sizes: dict[Hashable, int] = {axis: 2 + i % 2 for i, axis in enumerate(axes)}
        rng = np.random.default_rng(seed)
        arrays = {
            name: rng.uniform(0.2, 1.0, [sizes[axis] if axis in found else 1 for axis in axes])
            for name, found in sorted(symbols.items())
        }

        def evaluate(term: Term) -> np.ndarray:
            match term:
                case Symbol(name):
                    return arrays[name]
                case Sum(axis, body):
                    value = evaluate(body)
                    if axis == UNIT_AXIS:
                        return value
                    at = axes.index(axis)
                    repeated = sizes[axis] // value.shape[at]
                    return value.sum(axis=at, keepdims=True) * repeated
                case Apply(op, args):
                    return _OPERATORS[op](*(evaluate(a) for a in args))
            raise TypeError(f"not a term: {term}")

        return evaluate

    return make


_OPERATORS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Random:
    """Random choices that depend on the test's name only."""
    return Random(request.node.name)
