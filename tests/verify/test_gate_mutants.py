"""The gate's tolerance follows from the program: kernels that round elsewhere pass, wrong ones do not.

A kernel is a program that is evaluated in float32 and rounded at the end, as a fused one is, or at every operator.
Mutants are programs that differ by what people get wrong.
"""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import decode, draw_sample
from mirage_nb.verify.reals.float_gate import Array, as_written, compare, gate, samples
from mirage_nb.verify.reals.hard_inputs import DRAWS, finite_names
from mirage_nb.verify.reals.rounding import rounded
from tests.shares import crossed

NORM = """
X: {t}[16, 512]
G: {t}[512]
return X / sqrt(sum(X * X, axis=-1, keepdims=True) / 512 + 0.01) * G
"""
ATTENTION = """
Q: {t}[2, 32, 32]
K: {t}[2, 64, 32]
V: {t}[2, 64, 32]
M: {t}[32, 64]
return softmax(Q @ K.T * 0.125 + M) @ V
"""
MLP = """
X: {t}[8, 512]
A: {t}[512, 32]
B: {t}[512, 32]
return silu(X @ A) * (X @ B)
"""
LAYER = """
X: {t}[16, 256]
G: {t}[256]
B: {t}[256]
C = X - sum(X, axis=-1, keepdims=True) / 256
return C / sqrt(sum(C * C, axis=-1, keepdims=True) / 256 + 0.001) * G + B
"""
PROGRAMS = {"norm": NORM, "attention": ATTENTION, "mlp": MLP, "layer": LAYER}
OTHER_FORMS = {
    "norm": ("X / sqrt(sum(X * X, axis=-1, keepdims=True) / 512 + 0.01) * G",
             "(X * G) / sqrt(sum(X * X, axis=-1, keepdims=True) / 512 + 0.01)"),
    "attention": ("softmax(Q @ K.T * 0.125 + M) @ V",
                  "exp(Q @ (K * 0.125).T + M) @ V / sum(exp(Q @ K.T * 0.125 + M), axis=-1, keepdims=True)"),
    "mlp": ("silu(X @ A) * (X @ B)", "(X @ A) * (X @ B) / (1 + exp(-(X @ A)))"),
}  # fmt: skip
MUTANTS = [
    ("norm", " + 0.01) * G", ") * G + 0.01 * 0"),
    ("norm", "/ 512 + 0.01)", "/ 512) + 0.01"),
    ("norm", "+ 0.01)", "+ 0.02)"),
    ("norm", "* G", "* (G * 1.01)"),
    ("norm", "/ 512", "/ 512 * 1.02"),
    ("attention", "0.125", "0.129"),
    ("attention", "0.125", "0.1"),
    ("attention", "+ M", "+ M * 0"),
    ("attention", ") @ V", ") @ V * 1.01"),
    ("attention", ") @ V", ") @ (V + 0.02)"),
    ("mlp", "silu(X @ A)", "relu(X @ A)"),
    ("mlp", "silu(X @ A)", "silu(X @ A * 1.01)"),
    ("mlp", "(X @ B)", "(X @ B) * 1.01"),
    ("layer", "+ 0.001) * G", ") * G"),
    ("layer", "0.001)", "0.002)"),
    ("layer", "+ B", "+ B * 1.01"),
    ("layer", "return C", "return X"),
]
DTYPES = ("f16", "bf16", "f32")


def program(name: str, dtype: str, old: str = "", new: str = "") -> KernelGraph:
    text = PROGRAMS[name].format(t=dtype)
    assert old in text
    return parse(text.replace(old, new) if old else text).graph


def fused(graph: KernelGraph, inputs: dict[str, Array]) -> tuple[Array, ...]:
    """What a kernel makes of it that keeps everything in float32."""
    outputs = evaluate(graph, inputs, np.float32)
    return tuple(rounded(out, t.dtype) for out, t in zip(outputs, graph.output_types, strict=True))


def refused_on(name: str, dtype: str, kernel: object) -> list[str]:
    """The inputs on which a kernel is refused, the random ones among them."""
    graph = program(name, dtype)
    assert callable(kernel)
    sample = draw_sample(graph, 1)
    drawn = {i.name: decode(a, i.type.dtype) for a, i in zip(sample.inputs, graph.inputs, strict=True)}
    found = [] if compare(kernel(drawn), sample.reference).ok else ["random"]
    return found + list(gate(kernel, samples(graph, names=finite_names(graph))).broken)


@crossed({
    "name": PROGRAMS,
    "dtype": DTYPES,
})
def test_right_kernels_pass(name: str, dtype: str) -> None:
    graph = program(name, dtype)
    assert refused_on(name, dtype, lambda inputs: fused(graph, inputs)) == []
    assert refused_on(name, dtype, lambda inputs: as_written(graph, inputs)) == []


@crossed({
    "name": OTHER_FORMS,
    "dtype": DTYPES,
})
def test_right_kernels_in_other_forms_pass(name: str, dtype: str) -> None:
    other = program(name, dtype, *OTHER_FORMS[name])
    assert "random" not in refused_on(name, dtype, lambda inputs: fused(other, inputs))
    assert "random" not in refused_on(name, dtype, lambda inputs: as_written(other, inputs))


@crossed({
    "name, old, new": MUTANTS,
    "dtype": DTYPES,
})
def test_wrong_kernels_do_not(name: str, old: str, new: str, dtype: str) -> None:
    wrong = program(name, dtype, old, new)
    assert refused_on(name, dtype, lambda inputs: fused(wrong, inputs)), "nothing tells it from a right one"


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_left_out_or_moved_by_one_is_told(dtype: str) -> None:
    """The last sixteen keys, the last sixteen of a product's depth, a mask one place off, the next row's results."""
    attention, mlp = program("attention", dtype), program("mlp", dtype)

    def dropped(name: str, dim: int) -> object:
        def kernel(inputs: dict[str, Array]) -> tuple[Array, ...]:
            given = inputs[name].copy()
            np.moveaxis(given, dim, 0)[-16:] = 0
            return fused(attention if name in "VM" else mlp, {**inputs, name: given})

        return kernel

    def shifted(inputs: dict[str, Array]) -> tuple[Array, ...]:
        return fused(attention, {**inputs, "M": np.roll(inputs["M"], 1, axis=1)})

    def swapped(inputs: dict[str, Array]) -> tuple[Array, ...]:
        (out,) = fused(mlp, inputs)
        return (np.concatenate([out[1:], out[:1]]),)

    for name, kernel in (
        ("attention", dropped("V", 1)), ("mlp", dropped("A", 0)), ("mlp", dropped("B", 0)), ("attention", shifted),
        ("mlp", swapped),
    ):  # fmt: skip
        assert "random" in refused_on(name, dtype, kernel)


ENDS = {
    "[8, 4096]": {
        "softmax(X)": "exp(X - max(X)) / sum(exp(X - max(X))[:, {}], axis=1, keepdims=True)",
        "max(X, axis=1)": "max(X[:, {}], axis=1)",
        "min(X, axis=1)": "min(X[:, {}], axis=1)",
        "logsumexp(X, axis=1)": "logsumexp(X[:, {}], axis=1)",
        "sum(abs(X), axis=1)": "sum(abs(X)[:, {}], axis=1)",
    },
    "[4096, 8]": {"max(X, axis=0)": "max(X[{}], axis=0)", "sum(exp(X), axis=0)": "sum(exp(X)[{}], axis=0)"},
    "[1024, 2, 4]": {"max(X, axis=0)": "max(X[{}], axis=0)"},
    "[1, 8192]": {"max(X)": "max(X[:, {}])", "min(X)": "min(X[:, {}])", "sum(X * X)": "sum((X * X)[:, {}])"},
    "[64, 1000]\nM: bool[64, 1000]": {
        "sum(where(M, X, 0), axis=1) / sum(M, axis=1)": "sum(where(M, X, 0), axis=1) / sum(M[:, {}], axis=1)"
    },
    "[8192]": {"max(X)": "max(X[{}])", "min(X)": "min(X[{}])"},
}
"""By shape, what leaves out one element of a long line, of all lines."""


@crossed({"shape": ENDS, "kept": ("1:", ":-1"), "dtype": ("f16", "bf16")})
def test_kernels_that_leave_out_an_end_of_a_long_line_are_wrong(shape: str, kept: str, dtype: str) -> None:
    """Of thousands of elements that are alike one more or less is lost in what a half is rounded by."""
    for right, wrong in ENDS[shape].items():
        graph, other = (parse(f"X: {dtype}{shape}\nreturn {text}").graph for text in (right, wrong.format(kept)))
        assert gate(lambda inputs, other=other: fused(other, inputs), samples(graph, names=DRAWS)).broken, right
