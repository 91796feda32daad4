"""Slices, zeros and joints move to where nobody stores them, and every output keeps its elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import DType, KernelGraph, OpKind
from mirage_nb.lang import parse, parts
from mirage_nb.lang import statements as reading

STEPS = (
    "np.roll({0}, 1, axis=0)", "np.pad({0}, 1)", "np.concatenate([{0}, {0}], 0)[1:6]", "{0}[:4:2] + {0}[1:4:2]",
    "np.concatenate([{0}[:, 1:], {0}[:, :1]], 1) * {0}", "np.exp({0})", "{0} * {0}", "where({0} > 0, {0}, 2)",
    "{0} + np.arange({0}.shape[-1])", "{0}[1:, ::-1]", "{0}[[0, 2, 1]]", "np.flip({0}, 1) - {0}",
    "np.pad({0}, ((0, 1), (2, 0)))[:, 1:]", "{0} - {0}.mean(axis=1, keepdims=True)",
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(st.sampled_from(STEPS), min_size=2, max_size=5))
def test_what_moves_changes_no_element(steps: list[str]) -> None:
    lines = ["X: f64[6, 5]", "v0 = X"]
    for number, step in enumerate(steps):
        last = f"v{number}"
        lines.append(f"v{number + 1} = {step.replace('{0}', last)} if {last}.shape[0] > 4 else {last} * 2")
    text = "\n".join([*lines, f"return v{len(steps)} + 1, v1 * 3"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reading, "in_parts", lambda _, outputs: outputs)
        plain = parse(text).graph
    said = parse(text).graph
    x = np.random.default_rng(0).standard_normal((6, 5))
    for one, other in zip(evaluate(said, [x]), evaluate(plain, [x]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert said.output_types == plain.output_types


def kinds(text: str) -> Counter[OpKind]:
    return Counter(op.kind for op in parse(text).graph.ops)


def computed(graph: KernelGraph, kind: OpKind) -> list[int]:
    """Operators of a kind that look at what is computed."""
    views = {OpKind.SLICE, OpKind.PAD, OpKind.RESHAPE, OpKind.TRANSPOSE}
    made = {values[0]: op for op, values in graph.definitions()}

    def base(value: int) -> int:
        return base(made[value].inputs[0]) if value in made and made[value].kind in views else value

    return [v for v, op in made.items() if op.kind is kind and base(op.inputs[0]) in made]


@pytest.mark.parametrize(
    "text",
    [
        "X: f32[8, 64]\ny = exp(X) * 2\nreturn y[:, :32] * sigmoid(y[:, 32:])",
        "X: f32[8, 64]\ny = tanh(X)\nreturn abs(y[:, 1:] - y[:, :-1])",
        "X: f32[8, 64]\nG: f32[64]\ny = rms_norm(X, G)\na, b = y[:, :32], y[:, 32:]\nreturn np.concatenate([-b, a], 1)",
        "X: f32[8, 8]\nz = np.pad(X * X, 1)\nreturn z[2:, 1:-1] + z[:-2, 1:-1]",
        "X: f32[8, 8]\nz = np.pad(X[1:] / 4 - 3 * X[:-1], 1)\nreturn z[2:] * 2",
        "X: f32[64]\nm = where(arange(64) > 3, X, 0)\nreturn m[::2] + m[1::2]",
    ],
)
def test_slices_and_zeros_are_of_what_lies_in_memory(text: str) -> None:
    graph = parse(text).graph
    assert not computed(graph, OpKind.SLICE) and not computed(graph, OpKind.PAD)


def test_what_stays() -> None:
    assert OpKind.CONCAT not in kinds("X: f32[8, 8]\nreturn np.roll(X, 1, 0) + X")
    assert OpKind.CONCAT in kinds("X: f32[8, 8]\nreturn np.roll(X, 1, 0)"), "an output"
    assert OpKind.CONCAT in kinds("X: f32[8, 8]\nreturn np.roll(X, 1, 0) @ X"), "a library reads it"
    assert OpKind.CONCAT in kinds("X: f32[8, 8]\nreturn np.concatenate([exp(X), X], 0) * 2"), "computed beside"
    product = "X: f32[8, 8]\ny = relu(X @ X)\nreturn y[:, :4] * y[:, 4:]"
    assert computed(parse(product).graph, OpKind.SLICE), "the product is stored in any case"
    deep = "X: f32[99]\nfor i in range(30):\n    X = exp(X)\nreturn X[1:] + X[:-1]"
    assert kinds(deep)[OpKind.EXP] == 30, "too much to do twice"


def test_doubled_joints_end() -> None:
    text = "X: f32[2]\nfor i in range(20):\n    X = np.concatenate([X, X])\nreturn X * 2"
    assert kinds(text)[OpKind.CONCAT] > 0
    text = "X: f32[64]\nfor i in range(40):\n    X = X * X\nreturn X[1:] + X[:-1]"
    assert len(parse(text).graph.ops) < 100


def test_a_program_that_would_grow_too_large_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "X: f32[64]\ny = exp(X)\nreturn y[1:] + y[:-1]"
    monkeypatch.setattr(parts, "ROOM", 0)
    assert kinds(text)[OpKind.EXP] == 1


def lasts(x: np.ndarray) -> list[int]:
    """Where the largest element so far stands, the last one of equal ones, as PyTorch has it."""
    return [max(place for place in range(end) if x[place] == x[:end].max()) for end in range(1, len(x) + 1)]


ORACLES: dict[str, Callable[[Any], Any]] = {
    "np.pad(X, ((2, 1), (0, 3)), mode='reflect') * 2": lambda x: np.pad(x, ((2, 1), (0, 3)), mode="reflect") * 2,
    "np.pad(X, 2, mode='symmetric') * 2": lambda x: np.pad(x, 2, mode="symmetric") * 2,
    "np.pad(X, (1, 2), mode='wrap') * 2": lambda x: np.pad(x, (1, 2), mode="wrap") * 2,
    "np.pad(X, ((0, 0), (0, 2)), mode='wrap') * 2": lambda x: np.pad(x, ((0, 0), (0, 2)), mode="wrap") * 2,
    "np.pad(X, ((3, 0), (0, 1)), mode='symmetric') * 2": lambda x: np.pad(x, ((3, 0), (0, 1)), mode="symmetric") * 2,
    "np.pad(X, ((1, 0), (0, 2)), mode='edge') * 2": lambda x: np.pad(x, ((1, 0), (0, 2)), mode="edge") * 2,
    "np.pad(X, ((1, 2),), constant_values=3)": lambda x: np.pad(x, ((1, 2),), constant_values=3),
    "F.pad(X, (1, -1, -2, 1)) * 2": lambda x: np.pad(x[2:, :-1], ((0, 1), (1, 0))) * 2,
    "torch.cummax(X, dim=0).values": lambda x: np.maximum.accumulate(x, 0),
    "torch.cummax(floor(X), dim=0).indices": lambda x: np.apply_along_axis(lasts, 0, np.floor(x)),
    "floor(X).cummin(1)[1]": lambda x: np.apply_along_axis(lasts, 1, -np.floor(x)),
    "X.cummin(1)[0]": lambda x: np.minimum.accumulate(x, 1),
    "np.polyval([1, -2, 0.5], X)": lambda x: np.polyval([1, -2, 0.5], x),
    "X[:, 0] * np.linspace(0, 1, 6, endpoint=False)": lambda x: x[:, 0] * np.linspace(0, 1, 6, endpoint=False),
    "X[[0, 2, 4]] * X[[-1, 3, 3]]": lambda x: x[[0, 2, 4]] * x[[-1, 3, 3]],
    "X[..., [1, 0, 4]] + 1": lambda x: x[..., [1, 0, 4]] + 1,
    "X.narrow(1, 1, 3) * 2": lambda x: x[:, 1:4] * 2,
}


@pytest.mark.parametrize("text", ORACLES)
def test_borrowed_functions_that_move(text: str) -> None:
    x = np.random.default_rng(0).standard_normal((6, 5))
    (made,) = evaluate(parse(f"X: f64[6, 5]\nreturn {text}").graph, [x])
    np.testing.assert_allclose(made, ORACLES[text](x), rtol=1e-12)


@pytest.mark.parametrize("line", [
    "np.stack([A, B, A * B]).sum(0)", "np.stack([A, B, A * B], 1).mean(1)", "np.stack([A, B], -1).max(-1)",
    "np.stack([A, B, A - B]).sum((0, 2))", "F.avg_pool2d(A[None], 2, 1)[0]", "F.max_pool2d(A[None], 3, 1)[0]",
])  # fmt: skip
def test_what_is_stacked_to_be_folded_is_never_a_stack(line: str) -> None:
    text = f"A: f16[4, 6]\nB: f16[4, 6]\nreturn {line.replace('A[None]', 'A[None, None]')}"
    graph = parse(text).graph
    assert OpKind.CONCAT not in kinds(text) and graph.output_types[0].dtype is DType.F16
    sums = [graph.types[v].dtype for op, (v, *_) in graph.definitions() if op.kind is OpKind.ADD]
    assert {*sums} <= {DType.F32}, "in no fewer digits than a sum"
    if "F." not in line:
        a, b = np.random.default_rng(0).uniform(-1, 1, (2, 4, 6))
        np.testing.assert_allclose(evaluate(graph, [a, b])[0], eval(line, {"np": np, "A": a, "B": b}), rtol=1e-12)
