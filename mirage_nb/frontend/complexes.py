"""Complex numbers taken apart: rotated positions that are written as products of complex numbers.

In: an ATen graph, and rows: how complex tensors are computed part by part. Out: the same graph in place, where what is
shown of complex tensors as real ones is computed from their real and imaginary parts. Programs have no complex numbers.
Invariant: every value of the graph is what it was, up to rounding; complex tensors that come from elsewhere are read as
the pairs of real numbers that they are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from mirage_nb.frontend.aten import VIEWS

Pair = tuple[Any, Any]
"""The real and the imaginary part, nodes or numbers; None for an imaginary part of zeros."""

ATEN: Any = torch.ops.aten


class Apart:
    """A graph whose complex tensors are taken apart. `known`: the parts of those that are."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.known: dict[Any, Pair] = {}

    def call(self, target: Any, *arguments: Any) -> Any:
        """A new node."""
        return call(self.graph, target, *arguments)

    def parts(self, argument: Any) -> Pair:
        """Both parts of an argument: a number, or its conjugate, which derivatives ask for; a tensor, read as pairs
        where it comes from elsewhere, for which it may not be the conjugate of what lies there."""
        if not is_tensor(argument):
            return argument.real, argument.imag or None
        if str(argument.target) in CONJUGATES and not is_tensor(argument.args[0]):
            return argument.args[0].real, -argument.args[0].imag or None
        if not _is_complex(argument):
            return argument, None
        if argument not in self.known:
            lying = self.call(ATEN.clone.default, argument) if argument.meta["val"].is_conj() else argument
            pairs = self.call(ATEN.view_as_real.default, lying)
            self.known[argument] = (self.call(ATEN.select.int, pairs, -1, 0), self.call(ATEN.select.int, pairs, -1, 1))
        return self.known[argument]

    def both(self, argument: Any) -> tuple[Any, Any]:
        """The same, with zeros for an imaginary part of zeros."""
        real, imaginary = self.parts(argument)
        return real, self.zeros(real) if imaginary is None else imaginary

    def zeros(self, like: Any) -> Any:
        """Zeros of the shape of another tensor, or the number."""
        return self.call(ATEN.zeros_like.default, like) if is_tensor(like) else 0

    def sum(self, target: Any, one: Any, other: Any) -> Any:
        """A sum or difference, where None is zero."""
        if other is None:
            return one
        if one is None:
            return other if target is ATEN.add.Tensor else self.call(ATEN.neg.default, other)
        return self.call(target, one, other)

    def product(self, times: Callable[[Any, Any], Any], one: Pair, other: Pair) -> Pair:
        """Both parts of what is linear in two things."""

        def of(x: Any, y: Any) -> Any:
            return None if x is None or y is None else times(x, y)

        (real, imaginary), (other_real, turned) = one, other
        return (
            self.sum(ATEN.sub.Tensor, of(real, other_real), of(imaginary, turned)),
            self.sum(ATEN.add.Tensor, of(real, turned), of(imaginary, other_real)),
        )


Row = Callable[[Apart, Any], Any]
"""Takes a node. Makes its parts in front of it, a `Pair`, or of a node of real numbers another one; None if that cannot
be done."""


def lift_complex(graph: Any, rows: Mapping[str, Row] | None = None) -> None:
    """Do it wherever rows say how; default: those of what is computed as fast so as PyTorch has it."""
    rows = ROWS if rows is None else rows
    apart = Apart(graph)
    for node in list(graph.nodes):
        row = rows.get(str(node.target))
        if row is None or node.kwargs.keys() - FREE or not any(map(_is_complex, (node, *node.all_input_nodes))):
            continue
        with graph.inserting_before(node):
            made = row(apart, node)
        if made is not None and _is_complex(node):
            apart.known[node] = made
        elif made is not None:
            node.replace_all_uses_with(made)
    graph.eliminate_dead_code()


def call(graph: Any, target: Any, *arguments: Any) -> Any:
    """A new node, and what its result will be like."""
    node = graph.call_function(target, arguments)
    node.meta["val"] = target(*torch.fx.node.map_arg(arguments, lambda argument: argument.meta["val"]))
    return node


def is_tensor(argument: Any) -> bool:
    """Whether an argument is a node."""
    return hasattr(argument, "op")


def _is_complex(node: Any) -> bool:
    """Whether it holds a complex tensor, or several."""
    held = node.meta.get("val")
    held = held[0] if isinstance(held, tuple | list) and held else held
    return isinstance(held, torch.Tensor) and held.is_complex()


def alike(apart: Apart, node: Any) -> Pair | None:
    """What does the same to both parts."""
    if not is_tensor(node.args[0]):
        return None
    real, imaginary = apart.both(node.args[0])
    return apart.call(node.target, real, *node.args[1:]), apart.call(node.target, imaginary, *node.args[1:])


def _shown(apart: Apart, node: Any) -> Any:
    known = apart.known.get(node.args[0])
    return None if known is None else apart.call(ATEN.stack.default, [*known], -1)


def _one_of(apart: Apart, node: Any) -> Pair | None:
    """A result of several."""
    known = apart.known.get(node.args[0])
    if known is None:
        return None
    real, imaginary = (apart.call(node.target, part, node.args[1]) for part in known)
    return real, imaginary


def _pairs(apart: Apart, node: Any) -> Pair:
    return apart.call(ATEN.select.int, node.args[0], -1, 0), apart.call(ATEN.select.int, node.args[0], -1, 1)


def _polar(apart: Apart, node: Any) -> Pair:
    return _turned(apart, *node.args)


def _turned(apart: Apart, radius: Any, angle: Any) -> Pair:
    turns = (apart.call(one, angle) for one in (ATEN.cos.default, ATEN.sin.default))
    cos, sin = (apart.call(ATEN.mul.Tensor, radius, turn) for turn in turns)
    return cos, sin


def _complex(apart: Apart, node: Any) -> Pair:
    wide = [*node.meta["val"].shape]
    real, imaginary = (apart.call(ATEN.expand.default, part, wide) for part in node.args)
    return real, imaginary


def _conjugate(apart: Apart, node: Any) -> Pair | None:
    if not is_tensor(node.args[0]):
        return None
    real, imaginary = apart.both(node.args[0])
    return real, apart.call(ATEN.neg.default, imaginary)


def _exp(apart: Apart, node: Any) -> Pair:
    real, imaginary = apart.both(node.args[0])
    return _turned(apart, apart.call(ATEN.exp.default, real), imaginary)


def _sum(apart: Apart, node: Any) -> Pair | None:
    one, other = node.args
    if not is_tensor(one) or not (is_tensor(other) or _is_complex(one)):
        return None
    return _added(apart, node.target, apart.parts(one), apart.parts(other))


def _added(apart: Apart, target: Any, one: Pair, other: Pair) -> Pair:
    (real, imaginary), (more, turned) = one, other
    first, second = apart.call(target, real, more), apart.sum(target, imaginary, turned)
    if second is not None and second.meta["val"].shape != first.meta["val"].shape:  # the other one's is zero, and wider
        second = apart.call(ATEN.expand.default, second, list(first.meta["val"].shape))
    return first, second


def _sum_of_pairs(apart: Apart, node: Any) -> Pair | None:
    """What PyTorch's compiler makes of a sum of complex tensors: one of real numbers, side by side."""
    total = _shown_by(node.args[0])
    summands = [_shown_by(one) for one in total.args] if total.target is ATEN.add.Tensor and not total.kwargs else []
    pairs = [one.args[0] for one in summands if is_tensor(one) and one.target is ATEN.view.dtype]
    if len(pairs) != 2 or not all(_is_complex(one) for one in (node, *pairs)):
        return None
    one, other = map(apart.parts, pairs)
    return _added(apart, ATEN.add.Tensor, one, other)


def _shown_by(node: Any) -> Any:
    return node.args[0] if is_tensor(node) and node.target is ATEN.view.default else node


def product(apart: Apart, node: Any) -> Pair | None:
    """What is linear in two tensors."""
    if not is_tensor(node.args[0]):
        return None
    one, other = (apart.parts(argument) for argument in node.args)
    return apart.product(lambda x, y: apart.call(node.target, x, y), one, other)


def _few_rows(apart: Apart, node: Any) -> Pair | None:
    """A product that takes as long as it takes to read its operands: a library is faster at others."""
    rows, columns = node.meta["val"].shape[-2:]
    return product(apart, node) if min(rows, columns) <= FEW else None


def quotient(apart: Apart, node: Any) -> Pair | None:
    """By a real number; by a complex one it is a product with its conjugate, by the square of its length."""
    return _divided(apart, node, None)


def _quotient(apart: Apart, node: Any) -> Pair | None:
    """The same, where squares of large numbers would overflow."""
    real, turned = apart.parts(node.args[1])
    sizes = [apart.call(ATEN.abs.default, part) for part in (real, turned) if is_tensor(part)]
    return _divided(apart, node, apart.call(ATEN.maximum.default, *sizes) if len(sizes) == 2 else None)


def _divided(apart: Apart, node: Any, size: Any) -> Pair | None:
    """size: what the parts of a complex number are divided by first; None: nothing."""

    def times(x: Any, y: Any) -> Any:
        return apart.call(ATEN.mul.Tensor, x, y)

    if not is_tensor(node.args[0]):
        return None
    one, (real, turned) = map(apart.parts, node.args)
    if turned is not None and not is_tensor(real):
        inverse = 1 / complex(real, turned)
        return apart.product(times, one, (inverse.real, inverse.imag))
    if turned is not None:
        small = [part if size is None else apart.call(ATEN.div.Tensor, part, size) for part in (real, turned)]
        one = apart.product(times, one, (small[0], apart.call(ATEN.neg.default, small[1])))
        real = apart.call(ATEN.add.Tensor, *(times(part, part) for part in small))
        real = real if size is None else times(real, size)
    first, second = (None if part is None else apart.call(ATEN.div.Tensor, part, real) for part in one)
    return first, second


def _joined(apart: Apart, node: Any) -> Pair:
    held = zip(*map(apart.both, node.args[0]), strict=True)
    real, imaginary = (apart.call(node.target, list(parts), *node.args[1:]) for parts in held)
    return real, imaginary


def _chosen(apart: Apart, node: Any) -> Pair:
    held = zip(*map(apart.both, node.args[1:]), strict=True)
    real, imaginary = (apart.call(node.target, node.args[0], *parts) for parts in held)
    return real, imaginary


def _cast(apart: Apart, node: Any) -> Pair:
    """Of a real tensor."""
    dtype = node.meta["val"].dtype.to_real()
    real, imaginary = (
        None if part is None else apart.call(torch.ops.prims.convert_element_type.default, part, dtype)
        for part in apart.parts(node.args[0])
    )
    return real, imaginary


def _filled(apart: Apart, node: Any) -> Pair:
    """The same number everywhere."""
    held, value = node.meta["val"], complex(node.args[1])
    alike = {"dtype": held.dtype.to_real(), "device": held.device}
    given = ((node.args[0], part) for part in (value.real, value.imag))
    real, imaginary = (apart.graph.call_function(ATEN.full.default, one, alike) for one in given)
    for part in (real, imaginary):
        part.meta["val"] = held.new_empty(held.shape, dtype=alike["dtype"])
    return real, imaginary if value.imag else None


def length(apart: Apart, node: Any) -> Any:
    """The absolute value."""
    return apart.call(ATEN.hypot.default, *apart.both(node.args[0]))


def _power(apart: Apart, node: Any) -> Pair | None:
    x, exponent = node.args
    if exponent not in (1, 2, 3, 4):
        return None
    pair = made = apart.both(x)
    for _ in range(int(exponent) - 1):
        made = apart.product(lambda x, y: apart.call(ATEN.mul.Tensor, x, y), made, pair)
    return made


FEW = 8
"""Rows or columns of a product of complex numbers that is taken apart in a model."""
FREE = frozenset({"dtype", "device", "pin_memory", "memory_format", "layout"})
"""Keywords that the type of a node's result says, too, or that say nothing of values."""
CONJUGATES = frozenset({"aten._conj.default", "aten._conj_physical.default"})
ALIKE = frozenset({"aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.neg.default"}) | VIEWS
"""Operators of one tensor that do the same to both parts."""
LINEAR = (
    "sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "flip.default", "constant_pad_nd.default",
    "tril.default", "triu.default", "repeat.default",
)  # fmt: skip
"""Those of these that compute or pad."""
ROWS: dict[str, Row] = {
    **dict.fromkeys(ALIKE, alike),
    **dict.fromkeys(CONJUGATES, _conjugate),
    **dict.fromkeys(("aten.add.Tensor", "aten.sub.Tensor"), _sum),
    "aten.view_as_complex.default": _pairs,
    "aten.polar.default": _polar,
    "aten.complex.default": _complex,
    "aten.exp.default": _exp,
    "aten.mul.Tensor": product,
    **{f"aten.{name}": alike for name in LINEAR},
    **{f"aten.{name}.default": _few_rows for name in ("mm", "bmm")},
    **{f"aten.{name}.default": _joined for name in ("cat", "stack", "concat")},
    **{f"aten.where.{kind}": _chosen for kind in ("self", "ScalarOther", "ScalarSelf")},
    "aten.div.Tensor": _quotient,
    **dict.fromkeys(("aten._to_copy.default", "prims.convert_element_type.default"), _cast),
    "aten.full.default": _filled,
    "aten.abs.default": length,
    "aten.pow.Tensor_Scalar": _power,
    "aten.view.dtype": _sum_of_pairs,
    "aten.view_as_real.default": _shown,
    str(operator.getitem): _one_of,
}
"""What is computed part by part, and as fast so as PyTorch has it."""
