"""Programs that a kernel of a library computes whole, or that look as if one did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ATTENTION = ("cudnn", "efficient", "flash", "products")
MASKED = ("cudnn", "efficient", "flash")
WIDE = ("efficient", "products")
PRODUCT = ("cublas", "torch")


@dataclass(frozen=True)
class Sample:
    """A program, the row that computes all of it, the launches that take it, and what the row has to know of it."""

    text: str
    row: str
    launches: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


_QKV = "Q: f16[4,64,64]\nK: f16[4,64,64]\nV: f16[4,64,64]"


def _attention(scores: str, types: str = _QKV) -> str:
    return f"{types}\nS = {scores}\nreturn softmax(S) @ V"


_BAND = "where((arange(64)[:, None] >= arange(64)) & (arange(64)[:, None] - arange(64) <= 16), Q @ K.T / 8, -inf)"
_GROUPS = (
    "X: bf16[2,4,256]\ng: bf16[4,8,1]\nb: bf16[4,8,1]\nd = X - mean(X, axis=-1, keepdims=True)\n"
    "v = mean(d * d, axis=-1, keepdims=True)\n"
)
_DIVIDED = "E = exp(Q @ K.T / 8)\nreturn (E @ V) / sum(E, axis=-1, keepdims=True)"

WHOLE: Mapping[str, Sample] = {
    "attention": Sample(_attention("Q @ K.T / 8"), "attention", ATTENTION, {"scale": "1/8", "causal": 0, "heads": 4}),
    "causal": Sample(
        _attention("where(arange(64)[:, None] >= arange(64), Q @ K.T / 8, -inf)"), "attention", MASKED,
        {"causal": 1, "window": -1},
    ),
    "strictly later keys hidden": Sample(
        _attention("where(arange(64) > arange(64)[:, None], -inf, Q @ K.T / 8)"), "attention", MASKED,
        {"causal": 1, "window": -1},
    ),
    "window": Sample(_attention(_BAND), "attention", ("flash",), {"causal": 1, "window": 16}),
    "scaled queries": Sample(_attention("(Q / 8) @ K.T"), "attention", ATTENTION, {"scale": "1/8"}),
    "bias": Sample(
        _attention("Q @ K.T / 8 + M", _QKV + "\nM: f16[64,64]"),
        "attention", ("cudnn", "efficient"),
    ),
    "grouped": Sample(
        _attention("Q @ K.T / 8", "Q: bf16[2,3,64,64]\nK: bf16[2,1,128,64]\nV: bf16[2,1,128,64]"), "attention",
        ATTENTION, {"heads": 6, "groups": 2},
    ),
    "one head of keys": Sample(
        _attention("Q @ K.T", "Q: f16[4,16,64]\nK: f16[128,64]\nV: f16[128,64]"), "attention", ATTENTION,
        {"heads": 4, "groups": 1, "scale": "1"},
    ),
    "values of another width": Sample(
        _attention("Q @ K.T / 8", "Q: bf16[16,192]\nK: bf16[64,192]\nV: bf16[64,128]"), "attention", WIDE
    ),
    "attention in f32": Sample(
        _attention("Q @ K.T / 8", "Q: f32[4,64,64]\nK: f32[4,64,64]\nV: f32[4,64,64]"), "attention", WIDE
    ),
    "divided behind": Sample(
        f"{_QKV}\n{_DIVIDED}", "attention", ATTENTION, {"scale": "1/8"}
    ),
    "softmax": Sample("X: f16[8,1000]\nreturn softmax(X)", "softmax", ("torch",), {"dim": 1}),
    "softmax of columns": Sample("X: f32[8,100]\nreturn softmax(X, axis=0)", "softmax", ("torch",), {"dim": 0}),
    "softmax by hand": Sample(
        "X: f32[8,100]\nreturn exp(X) / sum(exp(X), axis=-1, keepdims=True)", "softmax", ("torch",)
    ),
    "cumsum": Sample("X: f32[8,1000]\nreturn cumsum(X, axis=1)", "running_sum", ("torch",), {"dim": 1}),
    "cumsum of columns": Sample("X: bf16[3,64,40]\nreturn cumsum(X, axis=1)", "running_sum", ("torch",), {"dim": 1}),
    "rows of a table": Sample("W: f16[40,64]\nI: int[7]\nreturn take(W, I, axis=0)", "lookup", ("mirage_nb",)),
    "elements of a column": Sample("V: f32[40,1]\nI: int[33]\nreturn V[I]", "lookup", ("mirage_nb",)),
    "one element of each row": Sample(
        "X: bf16[9,40]\nI: int[9]\nreturn sum(where(arange(40) == I[:, None], X, 0), axis=1, keepdims=True)", "lookup",
        ("mirage_nb",), {"apart": 1},
    ),
    "one element of each row, numbered in front": Sample(
        "X: f32[3,4,40]\nI: int[3,4]\nreturn sum(where(I[..., None] == arange(40), X, 0), axis=2, keepdims=True)",
        "lookup", ("mirage_nb",), {"apart": 1},
    ),
    "rows in a wider type": Sample("W: bf16[40,12]\nI: int[9]\nreturn one_hot(I, 40) @ W", "lookup", ("mirage_nb",)),
    "log_softmax": Sample("X: bf16[8,1000]\nreturn log_softmax(X)", "log_softmax", ("torch",), {"dim": 1}),
    "layer_norm": Sample(
        "X: f16[8,256]\nG: f16[256]\nB: f16[256]\nreturn layer_norm(X, G, B, eps=1e-5)", "norm", ("torch",),
        {"centred": 1, "eps": "1/100000", "gain": 1, "bias": 1},
    ),
    "layer_norm alone": Sample("X: f32[8,256]\nreturn layer_norm(X)", "norm", ("torch",), {"eps": "0", "gain": 0}),
    "rms_norm": Sample(
        "X: bf16[8,256]\nG: bf16[256]\nreturn rms_norm(X, G, eps=1e-5)", "norm", ("torch",), {"centred": 0, "gain": 1}
    ),
    "linear": Sample("X: bf16[16,64]\nW: bf16[32,64]\nreturn X @ W.T", "linear", PRODUCT, {"left": 0, "right": 1}),
    "turned left": Sample("X: f32[64,16]\nW: f32[64,32]\nreturn X.T @ W", "linear", PRODUCT, {"left": 1}),
    "both turned, batched": Sample(
        "X: f16[3,64,16]\nW: f16[3,32,64]\nreturn X.T @ W.T", "linear", PRODUCT, {"left": 1, "right": 1}
    ),
    "many rows, one matrix": Sample("X: f16[3,8,64]\nW: f16[32,64]\nreturn X @ W.T", "linear", PRODUCT),
    "biased": Sample(
        "X: f16[16,64]\nW: f16[64,32]\nb: f16[32]\nreturn X @ W + b", "linear", PRODUCT,
        {"relu": 0, "bias": 1, "added": 0},
    ),
    "biased relu": Sample(
        "X: f32[16,64]\nW: f32[32,64]\nb: f32[32]\nreturn relu(X @ W.T + b)", "linear", PRODUCT, {"relu": 1, "bias": 1}
    ),
    "parts and turned tensors": Sample(
        "Q: bf16[8,4,64]\nC: bf16[128,96]\nreturn softmax(transpose(Q, 1, 0, 2) @ C[:, :64].T / 8) @ C[::1, 32:]",
        "attention", ATTENTION,
        {"heads": 4, "groups": 1, "views": [[["turn", 1, 0, 2]], [["part", 1, 0, 64, 1]], [["part", 1, 32, 64, 1]]]},
    ),
    "relu alone": Sample("X: f16[16,64]\nW: f16[64,32]\nreturn relu(X @ W)", "linear", PRODUCT, {"relu": 1, "bias": 0}),
    "residual": Sample(
        "X: bf16[16,64]\nW: bf16[32,64]\nR: bf16[16,32]\nreturn R + X @ W.T", "linear", PRODUCT, {"bias": 0, "added": 1}
    ),
    "residual and relu, many rows": Sample(
        "X: f32[3,8,64]\nW: f32[32,64]\nR: f32[3,8,32]\nreturn relu(X @ W.T + R)", "linear", PRODUCT,
        {"added": 1, "relu": 1},
    ),
    "product of parts": Sample(
        "X: bf16[16,96]\nW: bf16[48,64]\nreturn X[:, 32:] @ W[8:40].T", "linear", ("torch",),
        {"right": 1, "views": [[["part", 1, 32, 64, 1]], [["part", 0, 8, 32, 1]]]},
    ),
    "product of a turned part": Sample(
        "X: f32[8,3,64]\nW: f32[64,96]\nreturn transpose(X, 1, 0, 2) @ W[:, :32]", "linear", ("torch",),
        {"left": 0, "views": [[["turn", 1, 0, 2]], [["part", 1, 0, 32, 1]]]},
    ),
    "group_norm": Sample(
        _GROUPS + "y = reshape(d / sqrt(v + 1e-5), 2, 4, 8, 32)\nreturn y * g + b", "group_norm", ("torch",),
        {"groups": 4, "eps": "1/100000"},
    ),
    "group_norm of vectors": Sample(
        "X: f32[6,4,8]\ng: f32[4,8]\nb: f32[4,8]\nd = X - mean(X, axis=-1, keepdims=True)\n"
        "return b + g * (d / sqrt(mean(d * d, axis=-1, keepdims=True)))", "group_norm", ("torch",),
        {"groups": 4, "eps": "0"},
    ),
}  # fmt: skip
"""By name."""

OTHERWISE: Mapping[str, str] = {
    "rows up to a number": "W: f16[40,64]\nI: int[7]\nreturn where(I[:, None] >= arange(40), 1, 0) @ W",
    "rows counted on": "W: f32[8,4]\nI: f32[2]\nreturn where(I[:, None] == reshape(arange(16), 2, 8), 1, 0) @ W",
    "rows of few numbers": "W: f16[40,64]\nI: int[7]\nreturn where(I[:, None] == 2 * arange(40), 1, 0) @ W",
    "sums of what follows": "X: f32[8,64]\nreturn X @ where(arange(64)[:, None] >= arange(64), 1, 0)",
    "sums of what is before": "X: f32[8,64]\nreturn X @ where(arange(64)[:, None] < arange(64), 1, 0)",
    "sums of every other": "X: f32[8,64]\nreturn X @ where(2 * arange(64)[:, None] <= arange(64), 1, 0)",
    "the probabilities are an output": f"{_QKV}\nP = softmax(Q @ K.T)\nreturn P, P @ V",
    "softmax over queries": f"{_QKV}\nreturn softmax(Q @ K.T, axis=1) @ V",
    "a mask of numbers": _attention("where(arange(64)[:, None] >= arange(64), Q @ K.T, -1)"),
    "earlier keys hidden": _attention("where(arange(64)[:, None] <= arange(64), Q @ K.T, -inf)"),
    "every other key": _attention("where(arange(64)[:, None] >= 2 * arange(64), Q @ K.T, -inf)"),
    "a negative scale": _attention("Q @ K.T / -8"),
    "shifted by another maximum": "X: f16[8,64]\nY: f16[8,64]\n"
    "return exp(X - max(Y, axis=-1, keepdims=True)) / sum(exp(X), axis=-1, keepdims=True)",
    "more keys than queries, causal": _attention(
        "where(arange(32)[:, None] >= arange(64), Q @ K.T, -inf)", "Q: f16[4,32,64]\nK: f16[4,64,64]\nV: f16[4,64,64]"
    ),
    "a gain for every element of a group": _GROUPS.replace("4,8,1", "4,8,32")
    + "y = reshape(d / sqrt(v + 1e-5), 2, 4, 8, 32)\nreturn y * g + b",
    "a gain along the elements of a channel": _GROUPS.replace("4,8,1", "4,1,32")
    + "y = reshape(d / sqrt(v + 1e-5), 2, 4, 8, 32)\nreturn y * g + b",
    "one gain for all groups": _GROUPS.replace("4,8,1", "1,8,1")
    + "y = reshape(d / sqrt(v + 1e-5), 2, 4, 8, 32)\nreturn y * g + b",
    "a residual of another shape": "X: bf16[16,64]\nW: bf16[32,64]\nR: bf16[16,1]\nreturn R + X @ W.T",
    "values of other heads": _attention("Q @ K.T", "Q: f16[4,64,64]\nK: f16[4,64,64]\nV: f16[64,64]"),
    "heads shared the other way": _attention("Q @ K.T", "Q: f16[2,3,64,64]\nK: f16[1,3,64,64]\nV: f16[1,3,64,64]"),
}
"""Programs that no row computes whole, by what is different."""
