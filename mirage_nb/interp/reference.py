"""The float64 reference: the meaning of programs and muGraphs, of record.

In: a graph and one array per input. Out: one array per output, computed by really running grid blocks and
loop iterations in double precision; element types of the graph play no part. Emitted kernels, the field
interpreter and every rewrite are held against this (paper section 2, Table 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mirage_nb.errors import GraphError, ShapeError
from mirage_nb.interp import arrays
from mirage_nb.interp.arrays import Array
from mirage_nb.interp.run import COMPOSED, composed, run_outputs
from mirage_nb.ir import (
    AccumKind,
    ApplyAttrs,
    ClampAttrs,
    KernelGraph,
    OpKind,
    PowAttrs,
    WhereAttrs,
    formula,
)
from mirage_nb.ir.ops import Attrs, show_shape

Inputs = Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]]
Rule = Callable[[Sequence[Array], Attrs | None, int], Array]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def evaluate(graph: KernelGraph, inputs: Inputs, dtype: DTypeLike = np.float64) -> tuple[Array, ...]:
    """The outputs of a program or muGraph on these inputs, by name or in the order of the graph's inputs.

    `dtype` is the precision of every operator; with float32 it shows what the graph as written survives.

    Raises:
        ShapeError: an input is missing, unknown or of another shape.
        GraphError: the graph breaks Definition 2.1 in a way that running it meets.
    """
    with np.errstate(all="ignore"):
        held = [np.asarray(a, dtype=dtype) for a in ordered(graph, inputs)]
        values = run_outputs(graph, held, FloatAlgebra(np.dtype(dtype)))
    shapes = [t.shape for t in graph.output_types]
    return tuple(np.array(np.broadcast_to(x, shape)) for x, shape in zip(values, shapes, strict=True))


def ordered(graph: KernelGraph, inputs: Inputs) -> list[Array]:
    """The inputs in graph order, their shapes checked. Raises ShapeError."""
    wanted = [(i.name, i.type.shape) for i in graph.inputs]
    if isinstance(inputs, Mapping):
        names = [name for name, _ in wanted]
        missing = [name for name in names if name not in inputs]
        unknown = [name for name in inputs if name not in names]
        if missing or unknown:
            what = f"no array for input {missing[0]}" if missing else f"the graph has no input {unknown[0]}"
            raise ShapeError(what, hint=f"the inputs are {', '.join(names)}")
        inputs = [inputs[name] for name in names]
    if len(inputs) != len(wanted):
        raise ShapeError(f"{len(inputs)} arrays for {len(wanted)} inputs")
    for (name, shape), array in zip(wanted, inputs, strict=True):
        if np.shape(array) != shape:
            raise ShapeError(f"{name} has shape {show_shape(np.shape(array))}, not {show_shape(shape)}")
    return list(inputs)


@dataclass(frozen=True, slots=True)
class FloatAlgebra:
    """Floating-point arrays of one element type; the methods are those of `run.Algebra`."""

    dtype: np.dtype[Any]

    def apply(self, kind: OpKind, operands: Sequence[Array], attrs: Attrs | None, batch: int) -> Array:
        if kind in COMPOSED:
            return composed(self, kind, operands, attrs, batch)
        return TABLE[kind](operands, attrs, batch).astype(self.dtype, copy=False)

    def view(self, value: Array, move: Callable[[Array], Array]) -> Array:
        return move(value)

    def join(self, parts: Sequence[Array], dim: int, batch: int) -> Array:
        return arrays.concat(parts, dim, batch)

    def fold(
        self, kind: AccumKind, state: tuple[Array, ...], operands: Sequence[Array], batch: int
    ) -> tuple[Array, ...]:
        if kind is AccumKind.RESCALE:
            operands = arrays.aligned(operands, batch)
        if not state:
            return tuple(operands)
        match kind:
            case AccumKind.SUM:
                return (state[0] + operands[0],)
            case AccumKind.MAX:
                return (np.maximum(state[0], operands[0]),)
            case AccumKind.HOLD:
                same = arrays.one_view(state[0], operands[0])
                if not same and not np.array_equal(state[0], operands[0], equal_nan=True):
                    raise GraphError("a hold accumulator takes in a value that changes with the iteration")
                return state
            case AccumKind.RESCALE:
                (total, top), (x, m) = state, operands
                new = np.maximum(top, m)
                return (_rescaled(total, top, new) + _rescaled(x, m, new), new)
            case AccumKind.CONCAT:
                raise GraphError("tiles are joined, not folded")


def _elementwise(function: Callable[..., Array]) -> Rule:
    return lambda operands, attrs, batch: function(*arrays.aligned(operands, batch))


def _const(operands: Sequence[Array], attrs: Attrs | None, batch: int) -> Array:
    return np.full((1,) * batch, _nearest(arrays.scalar(attrs).value))


def _nearest(value: Fraction) -> float:
    """The float64 next to a number, infinite beyond them all."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _matmul(operands: Sequence[Array], attrs: Attrs | None, batch: int) -> Array:
    left, right = arrays.aligned(operands, batch)
    product: Array = left @ right
    return product


def _sum(operands: Sequence[Array], attrs: Attrs | None, batch: int) -> Array:
    total: Array = operands[0].sum(axis=arrays.reduced_axis(attrs, batch), keepdims=True)
    return total


def _max(operands: Sequence[Array], attrs: Attrs | None, batch: int) -> Array:
    highest: Array = operands[0].max(axis=arrays.reduced_axis(attrs, batch), keepdims=True)
    return highest


def _rescaled_sum(operands: Sequence[Array], attrs: Attrs | None, batch: int) -> Array:
    x, m = arrays.aligned(operands, batch)
    axis = x.ndim - operands[0].ndim + arrays.reduced_axis(attrs, batch)
    total: Array = _rescaled(x, m, m.max(axis=axis, keepdims=True)).sum(axis=axis, keepdims=True)
    return total


def _rescaled(x: Array, top: Array, new: Array) -> Array:
    """What was shifted by `top`, shifted by the larger `new` instead. Where the shift was minus infinity it left no
    number: beside anything larger it counts nothing, beside its like the result is no number either."""
    fall = top - new
    made: Array = np.where(fall == -np.inf, np.zeros((), x.dtype), x * np.exp(fall))
    return made


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _clamp(operands: Sequence[Array], attrs: Attrs | None, batch: int) -> Array:
    assert isinstance(attrs, ClampAttrs)
    low = -np.inf if attrs.low is None else _nearest(attrs.low)
    high = np.inf if attrs.high is None else _nearest(attrs.high)
    return np.minimum(np.maximum(operands[0], low), high)


def _pow(operands: Sequence[Array], attrs: Attrs | None, batch: int) -> Array:
    assert isinstance(attrs, PowAttrs)
    return np.power(operands[0], _nearest(attrs.exponent))


def _apply(operands: Sequence[Array], attrs: Attrs | None, batch: int) -> Array:
    assert isinstance(attrs, ApplyAttrs)
    made = formula.fold(formula.read(attrs.formula), operands[0], lambda number: np.asarray(float(number)), SCALARS)
    return made.astype(operands[0].dtype)


SCALARS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
    "pow": lambda x, exponent: np.power(x, float(exponent)),
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "square": np.square, "tanh": np.tanh, "sigmoid": _sigmoid,
    "erf": lambda x: np.asarray(_erf(x)), "abs": np.abs, "sin": np.sin, "cos": np.cos, "atan": np.arctan,
    "log1p": np.log1p, "expm1": np.expm1, "sign": np.sign, "floor": np.floor,
    "step": lambda x: np.where(x >= 0, 1.0, 0.0), "minimum": np.minimum, "maximum": np.maximum,
}  # fmt: skip
"""The primitives of formulas."""


def _where(operands: Sequence[Array], attrs: Attrs | None, batch: int) -> Array:
    assert isinstance(attrs, WhereAttrs)
    condition, x = arrays.aligned(operands, batch)
    return np.where(condition != 0, x, attrs.value)


def _comparison(compare: np.ufunc) -> Rule:
    def rule(operands: Sequence[Array], attrs: Attrs | None, batch: int) -> Array:
        x, y = arrays.aligned(operands, batch)
        held: Array = compare(x, y)
        return held.astype(np.result_type(x, y))

    return rule


COMPARED = {OpKind.GREATER: np.greater, OpKind.GREATER_EQUAL: np.greater_equal, OpKind.EQUAL: np.equal}
"""Comparisons, which are 1 where they hold and 0 elsewhere: no number is on no side of anything."""

TABLE: dict[OpKind, Rule] = {
    OpKind.CONST: _const,
    OpKind.MATMUL: _matmul,
    OpKind.SUM: _sum,
    OpKind.MAX: _max,
    OpKind.RESCALED_SUM: _rescaled_sum,
    OpKind.RUNNING_SUM: lambda operands, attrs, batch: arrays.running(operands[0], attrs, batch),
    **{kind: _elementwise(SCALARS[name]) for kind, name in formula.OPERATORS.items()},
    OpKind.SILU: _elementwise(lambda x: x * _sigmoid(x)),
    OpKind.GELU: _elementwise(lambda x: x * (1 + _erf(x / math.sqrt(2)).astype(x.dtype)) / 2),
    OpKind.RELU: _elementwise(lambda x: np.maximum(x, 0)),
    OpKind.CLAMP: _clamp,
    OpKind.ARANGE: lambda operands, attrs, batch: arrays.counted(attrs, batch),
    OpKind.WHERE: _where,
    **{kind: _comparison(compare) for kind, compare in COMPARED.items()},
    OpKind.CAST: lambda operands, attrs, batch: operands[0],
    OpKind.POW: _pow,
    OpKind.APPLY: _apply,
}
"""What every operator computes; those of `run.STRUCTURE` and `run.COMPOSED` are the walk's."""
