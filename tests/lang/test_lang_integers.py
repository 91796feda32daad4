"""Indices, classes and masks as integers: what programs make of them is what PyTorch does, also when they are run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from mirage_nb import superoptimize
from mirage_nb.errors import DTypeError, MirageError
from mirage_nb.interp.reference import evaluate
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import draw
from mirage_nb.verify.fields.indices import indices
from mirage_nb.verify.reals.hard_inputs import DRAWS, hard_inputs

torch = pytest.importorskip("torch")

DECLARED = (
    "X: f64[8, 12]\nW: f64[10, 6]\ny: i64[8]\nz: int64[8]\nI: i32[3, 5]\nJ: i64[8, 4]\nM: bool[8, 12]\nn: i32[1]\n"
)
EXAMPLES = (
    "F.embedding(I, W)", "W[I]", "torch.index_select(W, 0, I[0])", "torch.gather(X, 1, J)", "X.gather(1, J)",
    "F.cross_entropy(X, y)", "F.cross_entropy(X, y, label_smoothing=0.1, reduction='sum')",
    "F.nll_loss(F.log_softmax(X, dim=-1), y)", "-F.log_softmax(X, dim=-1)[torch.arange(8), y].mean()",
    "-torch.log_softmax(X, -1).gather(1, y[:, None]).squeeze(1).mean()", "X[z, y]", "torch.where(M, X, 0.0)",
    "torch.softmax(X.masked_fill(M, -1e9), -1)",
    "torch.softmax(torch.where(torch.arange(12) < n, X, float('-inf')), -1)",
    "torch.take_along_dim(X, J, dim=1)", "F.one_hot(y, num_classes=12) * X",
    "F.cross_entropy(X, y, ignore_index=5)", "F.cross_entropy(X, y, weight=X[0] * X[0], reduction='sum')",
    "F.cross_entropy(X, y, weight=X[0] ** 2, ignore_index=3)",
    "torch.zeros(10, 12).double().index_add(0, z, X, alpha=2)",
    "X.index_fill(0, z[:2], 0.5)", "torch.index_fill(X, 1, y, -2)",
    "X.index_add(1, y, X[:, :8])", "X.scatter_add(1, J, X[:, :4])", "W[:, :5].scatter_add(0, I, W[:3, :5])",
    "X.scatter_reduce(1, J, X[:, :4], 'mean')",
    "X.scatter_reduce(1, J, X[:, 4:8], reduce='amax', include_self=False)",
    "torch.scatter_reduce(W[:, :5], 0, I, W[:3, :5], 'prod')", "X.scatter(1, J, 2.0) + X",
    "torch.zeros(8, 12).scatter_(1, y.unsqueeze(1), 1.0) * X",
)  # fmt: skip
EXTENTS = {"y": 12, "z": 8, "I": 10, "J": 12, "M": 2, "n": 12}


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    made = {}
    for given in parse(DECLARED + "return X * 2").graph.inputs:
        name, shape = given.name, given.type.shape
        whole = rng.integers(1 if name == "n" else 0, EXTENTS.get(name, 2), shape)
        made[name] = whole.astype(bool) if name == "M" else whole if name in EXTENTS else rng.uniform(-1, 1, shape)
    return made


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_expression_is_what_pytorch_makes_of_it(example: str) -> None:
    given = arrays()
    (found,) = evaluate(parse(f"{DECLARED}return {example}").graph, list(given.values()))
    names = {"torch": torch, "F": torch.nn.functional, **{name: torch.tensor(a) for name, a in given.items()}}
    wanted = np.asarray(eval(example, names), np.float64)
    np.testing.assert_allclose(found, wanted.reshape(found.shape), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("returned", "places"), [
    ("F.cross_entropy(X, y)", 12),
    ("gather(X, y[:, None], 1) * (y != 0)[:, None]", 12),
    ("softmax(where(arange(12) < y[:, None], X, -inf))", 13),
    ("X * (arange(12) >= y[:, None])", 13),
    ("gather(X, y[:, None], 1) * y[:, None]", None),
    ("where(y[:, None] > X, X, 0)", None),
])  # fmt: skip
def test_labels_and_lengths_are_places_whatever_they_are_compared_with(returned: str, places: int | None) -> None:
    """Of normal numbers hardly one is a label, and a kernel that picks none would be right."""
    assert indices(parse(f"X: f32[8, 12]\ny: i64[8]\nreturn {returned}").graph).get("y") == places


def test_indices_are_known_and_drawn_as_such() -> None:
    text = "X: f32[8, 12]\ny: i64[8]\nZ: f32[8, 12]\nk: i32[1]\nreturn gather(X, y[:, None], 1) + k, where(Z > 0, X, 0)"
    graph = parse(text).graph
    assert indices(graph) == {"y": 12}  # k is added to something, Z is compared with a number
    for sample in (draw(graph, 0, 0.5), [*hard_inputs(graph, next(iter(DRAWS)), 0).values()]):
        assert set(np.unique(sample[1])) <= set(range(12)) and sample[1].max() == 11
        assert np.abs(sample[0] - np.round(sample[0])).max() > 0
    (found, _) = evaluate(graph, draw(graph, 0, 1.0))
    assert np.count_nonzero(found) == found.size


def test_integer_tensors_are_passed_as_they_are() -> None:
    with ThreadPoolExecutor(1) as executor:
        session = superoptimize(
            "X: f32[8, 16]\ny: i64[8]\nreturn F.cross_entropy(X, y)", effort="quick", budget=2, executor=executor
        )
        session.result(120)
        for kind in (np.int64, np.int32):
            rng = np.random.default_rng(1)
            x, y = rng.standard_normal((8, 16)).astype(np.float32), rng.integers(0, 16, 8).astype(kind)
            wanted = float(torch.nn.functional.cross_entropy(torch.tensor(x), torch.tensor(y).long()))
            assert float(session(torch.tensor(x), torch.tensor(y))) == pytest.approx(wanted, rel=1e-4)
            assert float(session(x, y)[0]) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64"])
def test_whole_numbers_that_would_be_rounded_are_refused(dtype: str) -> None:
    held = "f64" if dtype == "f64" else "f32"
    first = 2**53 if held == "f64" else 2**24
    with ThreadPoolExecutor(1) as executor:
        session = superoptimize(f"x: {dtype}[3]\nreturn x - 1", effort="quick", budget=1, executor=executor)
        session.result(120)
        for kind in (np.array, torch.tensor):
            small = session(kind([0, first, 2 * first]))
            assert next(float(n) for n in (small[0] if isinstance(small, tuple) else small)) == -1
            with pytest.raises(DTypeError, match=f"x has whole numbers that {held}.*would round"):
                session(kind([0, 1, first + 1]))
        session.best(np.array([first + 1, 0, 0]), cast=True)


def test_more_classes_than_numbers_are_refused() -> None:
    for line in ("one_hot(y, 2 ** 24 + 2)", "arange(2 ** 24 + 2) * 1"):
        with pytest.raises(MirageError, match="f32 does not hold these numbers"):
            parse(f"y: i64[1]\nreturn sum({line})")


@pytest.mark.parametrize("line", [
    "M * X", "sum(M, 1)", "M & N", "M | N", "M ^ N", "~M", "M == N", "all(M, 1)", "M.T @ X", "where(M, X, 0)",
    "X[M].sum()", "cat([M, N], 1)", "cat([M, X], 1)", "M[1:].reshape(21, 4).T", "M.to(f16)", "np.pad(M, 1)",
    "where(X > 0, M, N)", "X + np.where(M, 0, -np.inf)",
])  # fmt: skip
def test_any_number_but_zero_is_true(line: str) -> None:
    """As for `astype(bool)`: masks of images are 0 and 255."""
    rng = np.random.default_rng(0)
    masks, x = rng.integers(0, 2, (2, 8, 12)), rng.standard_normal((8, 12))
    graph = parse(f"M: bool[8, 12]\nN: bool[8, 12]\nX: f32[8, 12]\nreturn {line}").graph
    wanted, found = (evaluate(graph, [*given, x]) for given in (masks, masks * [[[255]], [[-2]]]))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("indices", ["y", "y % 3", "y // 2", "J[:, 0] - 1", "X[:, 0].long()", "round(X[0])",
    "np.tril_indices(5)", "X.argmax(1)", "M.sum(1)", "np.maximum(y, z)", "cat([y, z])", "where(y > 3, y, 0)",
    "(y / 2).floor()"])  # fmt: skip
def test_what_holds_whole_numbers_is_an_index(indices: str) -> None:
    parse(f"{DECLARED}return X[{indices}]")


@pytest.mark.parametrize("line", ["2 ** floor(W / 16)", "X[W]", "4 ** W[0] * X[0, :3]"])
def test_whole_numbers_of_a_byte_are_negative_too(line: str) -> None:
    names = {"X": np.linspace(0, 1, 24).reshape(8, 3), "W": np.array([[-3, 2, -8], [7, -1, 0]]), "floor": np.floor}
    graph = parse(f"X: f32[8, 3]\nW: i8[2, 3]\nreturn {line}").graph
    held = {"X": names["X"], "W": names["W"].astype(float)}
    (found,) = evaluate(graph, [held[i.name] for i in graph.inputs])
    np.testing.assert_allclose(found, eval(line.replace("2 **", "2.0 **").replace("4 **", "4.0 **"), names), rtol=1e-12)


def test_rounding_is_one_function_but_for_what_has_steps() -> None:
    """A reader of eight bits took thirty operators; multiples of known steps are rounded exactly."""
    graph = parse("X: f32[6]\nreturn torch.round(X)").graph
    values = np.array([-2.5, -0.5, 0.49999999999999994, 1.5, np.inf, np.nan])
    assert len(graph.ops) == 1
    np.testing.assert_array_equal(evaluate(graph, [values])[0], np.round(values))
    stepped = parse("I: i64[13]\nreturn torch.round(I / 6)").graph
    np.testing.assert_array_equal(evaluate(stepped, [np.arange(-6.0, 7.0)])[0], np.round(np.arange(-6, 7) / 6))
