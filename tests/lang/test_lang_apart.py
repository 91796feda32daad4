"""What is folded and sliced of a concatenation is so of its parts, and every output keeps its elements."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.lang import statements as reading

HEAD = """
S: f16[2, 3, 5]
s: f16[2]
T: f16[2, 3, 4]
W: f16[6, 2]
C = concat([S, broadcast_to(s[:, None, None], (2, 3, 1))], axis=-1)
B = concat([S, T], axis=-1)
"""
APART = {
    "a sink": "softmax(C)[..., :-1]",
    "a sink, lowered twice": "softmax(C - max(C, axis=-1, keepdims=True))[..., :-1]",
    "one more": "softmax(concat([S, zeros((2, 3, 1))], axis=-1))[..., :-1]",
    "a zero more": "softmax(np.pad(S, ((0, 0), (0, 0), (0, 1))))[..., :-1]",
    "a zero in front": "softmax(np.pad(S, ((0, 0), (0, 0), (1, 0))) * 2)[..., 1:]",
    "in front": "softmax(concat([broadcast_to(s[:, None, None], (2, 3, 1)), S], axis=-1))[..., 1:]",
    "the weight of the sink": "softmax(C)[..., -1:]",
    "of two kinds of keys": "softmax(concat([S, T * 2], axis=-1))[..., :5]",
    "both kinds": "softmax(B * 0.5)[..., :5].sum(-1) + softmax(B * 0.5)[..., 5:].sum(-1)",
    "three": "softmax(concat([S, T, S], axis=-1))[..., 5:9]",
    "within a part": "softmax(B)[..., 6:8]",
    "the logarithm of a sum": "logsumexp(C, axis=-1)",
    "a mean": "(B**2).mean(-1)",
    "hidden": "softmax(where(C > 0, C, -inf))[..., :-1]",
    "of rows": "softmax(concat([S, T[..., :1] + 0 * S], axis=1), axis=1)[:, :3]",
}  # fmt: skip
TOGETHER = {
    "an output": "softmax(C)",
    "across parts": "softmax(B)[..., 4:6]",
    "multiplied": "softmax(C) @ W",
    "with a whole": "(C * arange(6)).sum(-1)",
    "along another dimension": "C.sum(1)",
}


JOINING = {OpKind.CONCAT, OpKind.PAD}


def graphs(text: str) -> tuple[KernelGraph, KernelGraph]:
    """A program as it is read, and as it stands there."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reading, "in_parts", lambda _, outputs: outputs)
        plain = parse(text).graph
    return parse(text).graph, plain


def kinds(graph: KernelGraph) -> Counter[OpKind]:
    return Counter(op.kind for op in graph.ops)


@pytest.mark.parametrize("name", APART | TOGETHER)
def test_elements_stay(name: str) -> None:
    text = f"{HEAD}return {(APART | TOGETHER)[name]}"
    said, plain = graphs(text)
    assert said.output_types == plain.output_types
    rng = np.random.default_rng(0)
    inputs = [3 * rng.standard_normal(i.type.shape) for i in said.inputs]
    for one, other in zip(evaluate(said, inputs), evaluate(plain, inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert JOINING & kinds(plain).keys() and bool(JOINING & kinds(said).keys()) is (name in TOGETHER)


def lowered(x: np.ndarray, *axes: int) -> np.ndarray:
    for axis in axes:
        x = x - x.max(axis, keepdims=True)
    return x


@pytest.mark.parametrize(("line", "axes", "maxima"), [
    ("d - max(d, -1, keepdims=True)", (2, 2), 1), ("d - max(d, 1, keepdims=True)", (2, 1), 2),
    ("f16(f32(d) - f32(max(f32(d), -1, keepdims=True)))", (2, 2), 1),
    ("d - max(S, -1, keepdims=True)", (), 1), ("d - max(d * 2, -1, keepdims=True)", (), 2),
])  # fmt: skip
def test_what_is_less_its_maximum_has_none_but_0(line: str, axes: tuple[int, ...], maxima: int) -> None:
    graph = parse(f"S: f16[2, 3, 5]\nd = S - max(S, -1, keepdims=True)\nreturn {line}").graph
    assert kinds(graph)[OpKind.MAX] == maxima
    x = np.random.default_rng(0).standard_normal((2, 3, 5))
    if axes:
        np.testing.assert_allclose(evaluate(graph, [x])[0], lowered(x, *axes), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("line", "kind"), [
    ("max(S, -1).clip(0)", OpKind.MAXIMUM), ("maximum(0.5, max(S, -1))", OpKind.MAXIMUM),
    ("torch.clamp(max(S, -1), min=-1)", OpKind.MAXIMUM), ("clip(max(S, -1), -1, 1)", OpKind.CLAMP),
    ("clip(S, 0)", OpKind.CLAMP), ("maximum(S, 0)", OpKind.RELU), ("exp(-max(S, -1))", OpKind.SUB),
    ("exp(-maximum(max(S, -1), 1))", OpKind.SUB), ("exp(-S)", OpKind.MUL),
])  # fmt: skip
def test_a_maximum_that_a_number_joins_is_one_of_more(line: str, kind: OpKind) -> None:
    graph = parse(f"S: f16[2, 3, 5]\nreturn {line}").graph
    assert kinds(graph)[kind] == 1
