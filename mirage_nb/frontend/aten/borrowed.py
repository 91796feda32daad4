"""ATen's operators that are functions of the language: what is written in it has no second text here.

In: an `At` and the arguments of a node. Out: a term. Invariant: a node becomes what a call of the function in the text
of a program becomes. `ROWS` neither overflow nor cancel where the function itself does not; `WHOLE` are for whole
programs alone: in a model that PyTorch runs, a library has convolutions, and its own code what takes many steps here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mirage_nb.frontend.aten.terms import At, Held, Left, Row
from mirage_nb.lang import views
from mirage_nb.lang.builder import Extremes, Infinity, Nothing, Result, Term, Text, Value, is_tensor
from mirage_nb.lang.calls import call
from mirage_nb.lang.constants import Number


def _given(at: At, argument: Any) -> Result:
    """An argument as programs have it."""
    match argument:
        case None | []:
            return Nothing()
        case bool():
            return Number.of(argument)
        case str():
            return Text(argument)
        case float() if math.isinf(argument):
            return Infinity(1 if argument > 0 else -1)
        case list() | tuple():
            return tuple(_given(at, one) for one in argument)
        case Held():
            return at.tensor(argument)
    return at.term(argument)


def borrowed(name: str) -> Callable[..., Term]:
    """The row of what programs call `torch.name`."""

    def row(at: At, *given: Any, **named: Any) -> Term:
        made = _called(at, name, *given, **named)
        found = made[0] if isinstance(made, Extremes) else made
        if isinstance(found, Number) or is_tensor(found):
            return found
        raise Left(f"{name} makes no tensor of these arguments")

    return row


def several(name: str) -> Row:
    """The same of what makes several tensors, each in the shape of the node's."""

    def row(at: At, *given: Any, **named: Any) -> tuple[Value, ...]:
        made = _called(at, name, *given, **named)
        assert isinstance(made, tuple)
        return tuple(views.reshaped(at.b, at.b.tensor_of(one, name), at.shape) for one in made)

    return row


def _called(at: At, name: str, *given: Any, **named: Any) -> Result:
    keywords = {key: _given(at, value) for key, value in named.items()}
    return call(at.b, name, *(_given(at, value) for value in given), **keywords)


def _flipped(at: At, x: Any, axes: Sequence[int]) -> Term:
    return borrowed("flip")(at, x, axes) if axes else at.term(x)


def _stacked(at: At, tensors: Sequence[Any], axis: int = 0) -> Term:
    return views.reshaped(at.b, at.b.tensor(borrowed("stack")(at, tensors, axis), "stack"), at.shape)


def first(row: Callable[..., Term]) -> Row:
    """Of results and their places, which have no term, the former."""
    return lambda at, *given, **named: (row(at, *given, **named), None)


def _running(name: str) -> Row:
    """Sums and products up to each element, in the type that PyTorch is told to compute them in."""

    def row(at: At, x: Any, axis: int, *, dtype: Any = None) -> Term:
        return borrowed(name)(at, x if dtype is None else Held(at.computed(at.tensor(x))), axis)

    return row


def _convolution(
    at: At, x: Any, weight: Any, bias: Any, step: Any, edge: Any, gap: Any, transposed: bool, more: Any, groups: int
) -> Term:
    rank = len(at.b.shape(at.tensor(weight))) - 2
    if transposed:
        return borrowed(f"conv_transpose{rank}d")(at, x, weight, bias, step, edge, more, groups, gap)
    return borrowed(f"conv{rank}d")(at, x, weight, bias, step, edge, gap, groups)


def _rows(names: str) -> dict[str, Row]:
    return {f"aten.{name}": borrowed(name.partition(".")[0]) for name in names.split()}


ROWS: dict[str, Row] = {
    **_rows("addcmul.default addcdiv.default lerp.Scalar lerp.Tensor ceil.default exp2.default log2.default"),
    **_rows("log10.default tan.default glu.default selu.default celu.default"),
    "aten.cumsum.default": _running("cumsum"),
    **_rows("relu6.default hardtanh.default dropout.default asin.default acos.default"),
    "aten.gelu.default": lambda at, x, approximate="none": borrowed("torch_gelu")(at, x, approximate),
    "aten.constant_pad_nd.default": lambda at, x, amounts, value=0: borrowed("pad")(at, x, amounts, "constant", value),
    "aten.repeat.default": borrowed("tile"),
    "aten.stack.default": _stacked,
    **{f"{name}.default": _flipped for name in ("aten.flip", "prims.rev")},
}
WHOLE: dict[str, Row] = {
    **_rows("fmod.Scalar fmod.Tensor remainder.Scalar remainder.Tensor argmax.default argmin.default"),
    "aten.cumprod.default": _running("cumprod"),
    **_rows("roll.default pixel_shuffle.default pixel_unshuffle.default channel_shuffle.default diagonal.default"),
    **_rows("conv1d.default conv2d.default conv2d.padding conv3d.default conv_transpose1d.default"),
    **_rows("conv_transpose2d.input"),
    **_rows("trunc.default frac.default floor_divide.default floor_divide.Scalar"),
    **_rows("sinh.default cosh.default asinh.default erfc.default hypot.default"),
    **_rows("logcumsumexp.default logaddexp.default acosh.default atanh.default copysign.Tensor"),
    **_rows("fmax.default fmin.default atan2.default"),
    **{f"aten.{name}.default": several(name) for name in ("cummax", "cummin")},
    "aten.convolution.default": _convolution,
    "aten.col2im.default": borrowed("_fold"),
    "aten._cdist_forward.default": lambda at, x, y, order, *_: borrowed("cdist")(at, x, y, order),
    "aten._pdist_forward.default": lambda at, x, order=2.0: borrowed("pdist")(at, x, order),
    **{f"aten.div.{kind}_mode": borrowed("divide") for kind in ("Tensor", "Scalar")},
    "aten.unfold.default": borrowed("_strips"),
    "aten.pad.default": lambda at, x, amounts, mode="constant", value=None: borrowed("pad")(
        at, x, amounts, mode, 0 if value is None else value
    ),
}
