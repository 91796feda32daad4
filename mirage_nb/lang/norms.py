"""Normalisations and losses: softmax, norms, cross entropy.

In: a tensor and its parameters. Out: a term of simpler operators. Invariant: maxima are subtracted before
exponentials, so that no magnitude of the input overflows.
"""

from __future__ import annotations

import math

from mirage_nb.errors import ShapeError
from mirage_nb.ir.ops import OpKind, show_shape
from mirage_nb.lang.builder import Builder, Term, Value
from mirage_nb.lang.constants import Number
from mirage_nb.lang.elements import gather
from mirage_nb.lang.lowering import add, multiply, negate, subtract
from mirage_nb.lang.masks import of_places
from mirage_nb.lang.reductions import averaged, dropped, folded, log_of_sum
from mirage_nb.lang.views import reshaped


def softmax(b: Builder, x: Value, axis: int) -> Term:
    """exp(x - max) over its sum: safe for any magnitude."""
    shifted = b.tensor(subtract(b, x, folded(b, OpKind.MAX, x, (axis,))), "softmax")
    raised = b.emit(OpKind.EXP, shifted)
    return b.emit(OpKind.DIV, raised, folded(b, OpKind.SUM, raised, (axis,)))


def rms_norm(b: Builder, x: Value, gain: Value | None, eps: Number) -> Term:
    """x over the root of its mean square along the last axis, times gain."""
    last = len(b.shape(x)) - 1
    spread = add(b, averaged(b, b.emit(OpKind.SQR, x), (last,)), eps)
    normed = b.emit(OpKind.DIV, x, b.emit(OpKind.SQRT, b.tensor(spread, "rms_norm")))
    return normed if gain is None else b.emit(OpKind.MUL, normed, _along_last(b, x, gain, "gain"))


def layer_norm(b: Builder, x: Value, gain: Value | None, bias: Value | None, eps: Number) -> Term:
    """x minus its mean, over its standard deviation along the last axis, times gain, plus bias."""
    last = len(b.shape(x)) - 1
    centred = b.emit(OpKind.SUB, x, averaged(b, x, (last,)))
    normed = b.tensor(rms_norm(b, centred, gain, eps), "layer_norm")
    return normed if bias is None else b.emit(OpKind.ADD, normed, _along_last(b, x, bias, "bias"))


def _along_last(b: Builder, x: Value, vector: Value, what: str) -> Value:
    """Gains and biases have one entry per element of the last axis."""
    if b.shape(vector) != b.shape(x)[-1:]:
        raise ShapeError(
            f"{what} is {show_shape(b.shape(vector))}, but the last axis of {show_shape(b.shape(x))} "
            f"has extent {b.shape(x)[-1]}",
            hint=f"declare it as [{b.shape(x)[-1]}]",
        )
    return vector


def group_norm(b: Builder, x: Value, groups: int, gain: Value | None, bias: Value | None, eps: Number) -> Term:
    """x[n, c, ...] less its mean, over its standard deviation, both over a group of channels and all that follows."""
    shape = b.shape(x)
    if len(shape) < 2 or groups < 1 or shape[1] % groups:
        raise ShapeError(
            f"group_norm: {show_shape(shape)} has no {groups} equal groups of channels",
            hint="dimension 1 holds the channels; groups divides it",
        )
    rest = math.prod(shape[1:]) // groups
    normed = reshaped(b, b.tensor(layer_norm(b, reshaped(b, x, (shape[0], groups, rest)), None, None, eps), ""), shape)
    lined = (shape[1], *(1 for _ in shape[2:]))
    for vector, kind, what in ((gain, OpKind.MUL, "gain"), (bias, OpKind.ADD, "bias")):
        if vector is not None:
            if b.shape(vector) != shape[1:2]:
                raise ShapeError(
                    f"{what} is {show_shape(b.shape(vector))}, but {show_shape(shape)} has {shape[1]} channels",
                    hint=f"declare it as [{shape[1]}]",
                )
            normed = b.emit(kind, normed, reshaped(b, vector, lined))
    return normed


def log_softmax(b: Builder, x: Value, axis: int) -> Term:
    """x less its maximum and the logarithm of the sum of the exponentials of that."""
    shifted, _, logarithm = log_of_sum(b, x, (axis,))
    return subtract(b, shifted, logarithm)


def cross_entropy(b: Builder, x: Value, target: Value, axis: int) -> Term:
    """Minus the sum along an axis of the target's probabilities times log_softmax(x), or minus the one of these that
    the target's class names: one loss a row."""
    shape, logs = b.shape(x), b.tensor(log_softmax(b, x, axis), "cross_entropy")
    if b.shape(target) == (*shape[:axis], *shape[axis + 1 :]):
        picked = of_places(gather)(b, logs, reshaped(b, target, (*shape[:axis], 1, *shape[axis + 1 :])), axis)
        return negate(b, dropped(b, picked, (axis,), False))
    if b.shape(target) != shape:
        raise ShapeError(
            f"cross_entropy: the target is {show_shape(b.shape(target))}, the logits are {show_shape(shape)}",
            hint="the target holds a probability for every logit, or a class for every row",
        )
    weighted = b.tensor(multiply(b, target, logs), "cross_entropy")
    return negate(b, dropped(b, folded(b, OpKind.SUM, weighted, (axis,)), (axis,), False))
