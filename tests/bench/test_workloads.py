"""The benchmark programs: the published shapes, the published algebra, and nothing beyond B to turn."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np
import pytest

from mirage_nb.bench import WORKLOADS, workload
from mirage_nb.errors import OptionError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import DType, OpKind
from mirage_nb.lang import parse

Array = np.ndarray[Any, np.dtype[np.float64]]


def rms(x: Array, axis: int = -1) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=axis, keepdims=True))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def attend(q: Array, k: Array, v: Array) -> Array:
    weights = np.exp(q @ k)
    return weights / weights.sum(-1, keepdims=True) @ v


def attend_scaled(q: Array, k: Array, v: Array) -> Array:
    return attend(q * q.shape[-1] ** -0.5, np.swapaxes(k, 1, 2), v)


def shapes(b: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """The table of the benchmark, in numbers."""
    gqa = {"Q": (2 * b, 256, 64), "K": (2 * b, 64, 4096), "V": (2 * b, 4096, 64)}
    return {
        "rmsnorm": {"X": (2 * b, 4096), "W": (4096, 6144)},
        "gated_mlp": {"X": (8 * b, 4096), "W1": (4096, 4096), "W2": (4096, 4096)},
        "lora": {"X": (16 * b, 256), "W": (256, 4096), "A": (256, 16), "C": (16, 4096)},
        "gqa": gqa,
        "qknorm": gqa,
        "qknorm_k": gqa,
        "ntrans": {"H": (8 * b, 4096), "X": (8 * b, 4096), "alpha": (8 * b, 4096)},
        "mha": {"Q": (32 * b, 16, 64), "K": (32 * b, 64, 4096), "V": (32 * b, 4096, 64)},
        "mqa": {"Q": (b, 1024, 64), "K": (b, 64, 4096), "V": (b, 4096, 64)},
        "moe": {"X": (8, 8, 4096), "A": (8, 4096, 4096), "C": (8, 4096, 4096)},
        "rmsnorm_fig3": {"X": (16, 1024), "G": (1024,), "W": (1024, 4096)},
        "attention_safe": {"Q": (2 * b, 256, 64), "K": (2 * b, 4096, 64), "V": (2 * b, 4096, 64)},
        "decode70b": {"Q": (2 * b, 8, 128), "K": (2 * b, 8192, 128), "V": (2 * b, 8192, 128)},
    }


# In the order of the declarations.
ALGEBRA: dict[str, Callable[..., Array]] = {
    "rmsnorm": lambda x, w: rms(x) @ w,
    "gated_mlp": lambda x, w1, w2: silu(x @ w1) * (x @ w2),
    "lora": lambda x, w, a, c: x @ w + (x @ a) @ c,
    "gqa": attend,
    "qknorm": lambda q, k, v: attend(rms(q), k, rms(v)),
    "qknorm_k": lambda q, k, v: attend(rms(q), rms(k, axis=1), v),
    "ntrans": lambda h, x, alpha: rms(x + alpha * (rms(h) + x)),
    "mha": attend,
    "mqa": attend,
    "moe": lambda x, a, c: np.exp(x @ a) @ c,
    "rmsnorm_fig3": lambda x, g, w: (rms(x) * g) @ w,
    "attention_safe": attend_scaled,
    "decode70b": attend_scaled,
}
FIXED = {"moe", "rmsnorm_fig3"}  # published without a batch


@pytest.mark.parametrize("batch", [1, 8, 16])
@pytest.mark.parametrize("name", WORKLOADS)
def test_shapes_are_the_published_ones(name: str, batch: int) -> None:
    program = parse(workload(name), name=name, sizes={} if name in FIXED else {"B": batch})
    assert {i.name: i.type.shape for i in program.graph.inputs} == shapes(batch)[name]
    assert {i.type.dtype for i in program.graph.inputs} == {DType.F16}
    assert len(program.output_names) == 1
    assert not program.remarks


@pytest.mark.parametrize("name", WORKLOADS)
def test_batch_is_one_unless_given(name: str) -> None:
    assert parse(workload(name)).sizes.get("B") == (None if name in FIXED else 1)


def shrink(text: str) -> str:
    """The same algebra on extents that NumPy multiplies in no time."""
    for large, small in (("4096", "12"), ("6144", "10"), ("8192", "14"), ("1024", "6"), ("256", "5")):
        text = text.replace(f" {large}", f" {small}").replace(f"[{large}", f"[{small}")
    return text


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_algebra_is_the_published_one(name: str) -> None:
    program = parse(shrink(workload(name)))
    rng = np.random.default_rng(3)
    inputs = [rng.normal(size=i.type.shape) * 0.4 for i in program.graph.inputs]
    (found,) = evaluate(program.graph, inputs)
    np.testing.assert_allclose(found, ALGEBRA[name](*inputs), rtol=1e-9)


@pytest.mark.parametrize("name", WORKLOADS)
def test_only_safe_programs_subtract_a_maximum(name: str) -> None:
    graph = parse(workload(name)).graph
    assert any(op.kind is OpKind.MAX for op in graph.ops) == (name in ("attention_safe", "decode70b"))


def test_names_and_files_are_the_same() -> None:
    files = resources.files("mirage_nb.bench.workloads").iterdir()
    assert {f.name for f in files if f.name.endswith(".mirage")} == {f"{name}.mirage" for name in WORKLOADS}
    assert len(set(WORKLOADS)) == len(WORKLOADS)


def test_an_unknown_workload_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(OptionError, match="did you mean gated_mlp"):
        workload("gatedmlp")


def test_workloads_load_without_torch() -> None:
    code = "import sys, mirage_nb.bench as b; b.workload('gqa'); sys.exit(len({'torch', 'cupy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
