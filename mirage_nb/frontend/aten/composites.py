"""ATen's composite operators: softmax, norms, gates, attention.

In: an `At` and the arguments of a node. Out: a term, or several. Invariant: each becomes what the function of the
language of the same name becomes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mirage_nb.frontend.aten.borrowed import borrowed, first
from mirage_nb.frontend.aten.folds import variance
from mirage_nb.frontend.aten.products import slim
from mirage_nb.frontend.aten.terms import At, Held, Left, Result, Row, narrowest, number
from mirage_nb.interp import evaluate
from mirage_nb.lang import lowering, norms, reductions, views
from mirage_nb.lang.builder import Builder, Term, Value
from mirage_nb.lang.ranges import bounds, raised

FIXED = 2**22
"""Elements of a mask that is looked at."""


def _along(lower: Callable[[Builder, Value, int], Term]) -> Row:
    """softmax and its logarithm, in the type of the result."""

    def row(at: At, x: Any, axis: int, *_: Any, **__: Any) -> Term:
        value = at.computed(at.tensor(x))
        return lower(at.b, value, at.axis(value, axis))

    return row


def _layer_norm(
    at: At, x: Any, shape: Sequence[int], gain: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Term:
    return borrowed("layer_norm")(at, x, shape, gain, bias, eps)


def _native_layer_norm(at: At, x: Any, shape: Sequence[int], gain: Any, bias: Any, eps: float) -> Result:
    """Also the mean and the reciprocal deviation, for derivatives."""
    value = at.tensor(x)
    made = _layer_norm(at, x, shape, gain, bias, eps)
    last = tuple(range(len(at.b.shape(value)))[-len(shape) :])
    spread, middle = variance(at, value, last, 0), reductions.mean(at.b, value, last, True)
    return made, middle, lowering.rsqrt(at.b, lowering.add(at.b, spread, number(eps)))


def _batch_norm(
    at: At, x: Any, gain: Any, bias: Any, mean: Any, spread: Any, training: bool, momentum: float, eps: float, *_: Any
) -> Term:
    return borrowed("batch_norm")(at, x, mean, spread, gain, bias, training, momentum, eps)


def attention(
    at: At, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Term:  # fmt: skip
    """softmax(q @ k.T * scale + mask) @ v; fewer heads of keys than of queries are shared in turn."""
    if dropout_p:
        raise Left("random numbers")
    b, (q, k, v) = at.b, (at.tensor(x) for x in (query, key, value))
    shared = len(b.shape(q)) > 3 and b.shape(q)[-3] != b.shape(k)[-3]
    given = (query, key, value) if shared else (Held(slim(b, q)), key, Held(slim(b, v)))
    mask = None if attn_mask is None else replace(attn_mask, term=narrowest(b, at.tensor(attn_mask)))
    zeros = mask is not None and not _leaves_some(b, mask.term)
    made = borrowed("_attended")(at, *given, mask, is_causal, scale, shared, zeros)
    return views.reshaped(b, b.tensor(made, "attention"), at.shape)


def _leaves_some(b: Builder, mask: Value) -> bool:
    """Whether a mask that is the same in every call leaves something of each row."""
    if math.prod(b.shape(mask)) > FIXED or any(b.definition(value) is None for value in b.needed([mask])):
        return False
    graph, _ = b.finish((("mask", mask),))
    unread = [np.broadcast_to(np.float32(0), i.type.shape) for i in graph.inputs]
    (kept,) = evaluate(graph, unread, np.float32)
    return bool((kept > (0 if lowering.is_mask(b, mask) else -np.inf)).any(axis=-1).all())


def _flash(
    at: At, query: Any, key: Any, value: Any, dropout_p: float = 0, is_causal: bool = False,
    return_debug_mask: bool = False, *, attn_mask: Any = None, scale: float | None = None,
) -> Result:  # fmt: skip
    """Also what derivatives need, nothing of which has a term. Fused kernels differ in where the diagonal of an oblong
    mask begins."""
    if is_causal and at.b.shape(at.tensor(query))[-2] != at.b.shape(at.tensor(key))[-2]:
        raise Left("a causal mask that is not square")
    return (attention(at, query, key, value, attn_mask, dropout_p, is_causal, scale=scale), *(None,) * 8)


def _biased(
    at: At, query: Any, key: Any, value: Any, attn_bias: Any = None, compute_log_sumexp: bool = False,
    dropout_p: float = 0, is_causal: bool = False, return_debug_mask: bool = False, *, scale: float | None = None,
) -> Result:  # fmt: skip
    return _flash(at, query, key, value, dropout_p, is_causal, attn_mask=attn_bias, scale=scale)


def _power(at: At, x: Any, exponent: Any) -> Term:
    """Of what is known to be positive."""
    value = at.tensor(x)
    within = bounds(at.b, value, -math.inf)
    if within is None or within[0] <= 0:
        raise Left("a power by a tensor, which negative numbers have where that is whole alone")
    return raised(at.b, value, at.term(exponent))


WHOLE: dict[str, Row] = {
    "aten.pow.Tensor_Tensor": _power,
    "aten.fake_quantize_per_tensor_affine_cachemask.default": first(borrowed("_fake_quantize")),
    "aten.fake_quantize_per_channel_affine_cachemask.default": lambda at, x, scale, zero, axis, low, high: (
        borrowed("_fake_quantize")(at, x, scale, zero, low, high, axis), None,
    ),
}
ROWS: dict[str, Row] = {
    **{f"aten.{name}": _along(norms.softmax) for name in ("softmax.int", "_softmax.default")},
    **{f"aten.{name}": _along(norms.log_softmax) for name in ("log_softmax.int", "_log_softmax.default")},
    "aten.layer_norm.default": _layer_norm,
    "aten.native_layer_norm.default": _native_layer_norm,
    "aten.rms_norm.default": borrowed("rms_norm"),
    "aten._fused_rms_norm.default": lambda at, *given: (borrowed("rms_norm")(at, *given), None),
    "aten.group_norm.default": lambda at, x, groups, gain=None, bias=None, eps=1e-5, *_: (
        borrowed("group_norm")(at, x, groups, gain, bias, eps)
    ),
    "aten.native_group_norm.default": lambda at, x, gain, bias, batch, channels, elements, groups, eps: (
        borrowed("group_norm")(at, x, groups, gain, bias, eps), None, None,
    ),
    "aten.batch_norm.default": _batch_norm,
    "aten._native_batch_norm_legit_no_training.default": lambda at, x, gain, bias, mean, spread, momentum, eps: (
        _batch_norm(at, x, gain, bias, mean, spread, False, momentum, eps), None, None,
    ),
    "aten._native_batch_norm_legit.no_stats": lambda at, x, gain, bias, training, momentum, eps: (
        borrowed("_own_norm")(at, x, gain, bias, eps), None, None,
    ),
    "aten.scaled_dot_product_attention.default": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _flash,
    "aten._scaled_dot_product_flash_attention.default": _flash,
    "aten._scaled_dot_product_efficient_attention.default": _biased,
    "aten._scaled_dot_product_cudnn_attention.default": _biased,
}  # fmt: skip
