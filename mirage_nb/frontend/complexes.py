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
    (real, imaginary), (more, turned) = apart.parts(one), apart.parts(other)
    second = apart.sum(node.target, imaginary, turned)
    if second.meta["val"].shape != node.meta["val"].shape:  # the other one's is zero, and wider
        second = apart.call(ATEN.expand.default, second, list(node.meta["val"].shape))
    return apart.call(node.target, real, more), second


def product(apart: Apart, node: Any) -> Pair | None:
    """What is linear in two tensors."""
    if not is_tensor(node.args[0]):
        return None
    one, other = (apart.parts(argument) for argument in node.args)
    return apart.product(lambda x, y: apart.call(node.target, x, y), one, other)


FREE = frozenset({"dtype", "device", "pin_memory", "memory_format"})
"""Keywords that the type of a node's result says, too, or that say nothing of values."""
CONJUGATES = frozenset({"aten._conj.default", "aten._conj_physical.default"})
ALIKE = frozenset({"aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.neg.default"}) | VIEWS
"""Operators of one tensor that do the same to both parts."""
ROWS: dict[str, Row] = {
    **dict.fromkeys(ALIKE, alike),
    **dict.fromkeys(CONJUGATES, _conjugate),
    **dict.fromkeys(("aten.add.Tensor", "aten.sub.Tensor"), _sum),
    "aten.view_as_complex.default": _pairs,
    "aten.polar.default": _polar,
    "aten.complex.default": _complex,
    "aten.exp.default": _exp,
    "aten.mul.Tensor": product,
    "aten.view_as_real.default": _shown,
    str(operator.getitem): _one_of,
}
"""What is computed part by part, and as fast so as PyTorch has it."""
