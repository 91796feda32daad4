"""Complex numbers taken apart: rotated positions that are written as products of complex numbers.

In: an ATen graph. Out: the same graph in place, where what is shown of complex tensors as real ones is computed from
their real and imaginary parts. Programs have no complex numbers. Invariant: every value of the graph is what it was, up
to rounding; complex tensors that come from elsewhere are read as the pairs of real numbers that they are.
"""

from __future__ import annotations

from typing import Any

import torch

from mirage_nb.frontend.aten import VIEWS

Pair = tuple[Any, Any]
"""The real and the imaginary part, nodes or numbers; None for an imaginary part of zeros."""

ATEN: Any = torch.ops.aten
ALIKE = frozenset({"aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.neg.default"}) | VIEWS
"""Operators of one tensor that do the same to both parts."""
SUMS = frozenset({"aten.add.Tensor", "aten.sub.Tensor"})
CONJUGATES = frozenset({"aten._conj.default", "aten._conj_physical.default"})
MADE = frozenset({"aten.view_as_complex.default", "aten.polar.default", "aten.complex.default", "aten.exp.default"})
APART = MADE | {"aten.mul.Tensor"} | SUMS | CONJUGATES | ALIKE
"""What is computed part by part."""


def lift_complex(graph: Any) -> None:
    """Do it wherever complex numbers are computed and shown as real ones."""
    known: dict[Any, Pair] = {}
    for node in list(graph.nodes):
        with graph.inserting_before(node):
            if str(node.target) == "aten.view_as_real.default" and node.args[0] in known:
                node.replace_all_uses_with(call(graph, ATEN.stack.default, [*known[node.args[0]]], -1))
            elif _is_apart(node):
                real, imaginary = _computed(graph, node, known)
                known[node] = real, imaginary if imaginary is not None else call(graph, ATEN.zeros_like.default, real)
    graph.eliminate_dead_code()


def _is_apart(node: Any) -> bool:
    """Whether a node is a complex tensor that is computed part by part, of one whose parts there are."""
    if str(node.target) not in APART or node.kwargs or not _is_tensor(node.args[0]) or not _is_complex(node):
        return False
    return str(node.target) not in SUMS or _is_tensor(node.args[1]) or _is_complex(node.args[0])


def _computed(graph: Any, node: Any, known: dict[Any, Pair]) -> Pair:
    """Both parts of a node from those of what it is computed of, in front of where nodes are inserted now."""
    name = str(node.target)
    if name == "aten.view_as_complex.default":
        return call(graph, ATEN.select.int, node.args[0], -1, 0), call(graph, ATEN.select.int, node.args[0], -1, 1)
    if name == "aten.polar.default":
        radius, angle = node.args
        cos, sin = call(graph, ATEN.cos.default, angle), call(graph, ATEN.sin.default, angle)
        return call(graph, ATEN.mul.Tensor, radius, cos), call(graph, ATEN.mul.Tensor, radius, sin)
    if name == "aten.complex.default":
        wide = [*node.meta["val"].shape]
        made, second = (call(graph, ATEN.expand.default, part, wide) for part in node.args)
        return made, second
    real, imaginary = _parts(graph, node.args[0], known)  # of a real number times a complex one the second is None
    if name in CONJUGATES:
        return real, call(graph, ATEN.neg.default, imaginary)
    if name == "aten.exp.default":
        radius = call(graph, ATEN.exp.default, real)
        turns = (call(graph, one, imaginary) for one in (ATEN.cos.default, ATEN.sin.default))
        cos, sin = (call(graph, ATEN.mul.Tensor, radius, turn) for turn in turns)
        return cos, sin
    if name in ALIKE:
        return call(graph, node.target, real, *node.args[1:]), call(graph, node.target, imaginary, *node.args[1:])
    other, turned = _parts(graph, node.args[1], known)
    if name in SUMS:
        second = _sum(graph, node.target, imaginary, turned)
        if second.meta["val"].shape != node.meta["val"].shape:  # the other one's is zero, and wider
            second = call(graph, ATEN.expand.default, second, list(node.meta["val"].shape))
        return call(graph, node.target, real, other), second
    return (
        _sum(graph, ATEN.sub.Tensor, _product(graph, real, other), _product(graph, imaginary, turned)),
        _sum(graph, ATEN.add.Tensor, _product(graph, real, turned), _product(graph, imaginary, other)),
    )


def _parts(graph: Any, argument: Any, known: dict[Any, Pair]) -> Pair:
    """Both parts of an argument: a number, or its conjugate, which derivatives ask for; a tensor, read as pairs where
    it comes from elsewhere, for which it may not be the conjugate of what lies there."""
    if not _is_tensor(argument):
        return argument.real, argument.imag or None
    if str(argument.target) in CONJUGATES and not _is_tensor(argument.args[0]):
        return argument.args[0].real, -argument.args[0].imag or None
    if not _is_complex(argument):
        return argument, None
    if argument not in known:
        lying = call(graph, ATEN.clone.default, argument) if argument.meta["val"].is_conj() else argument
        pairs = call(graph, ATEN.view_as_real.default, lying)
        known[argument] = call(graph, ATEN.select.int, pairs, -1, 0), call(graph, ATEN.select.int, pairs, -1, 1)
    return known[argument]


def _is_complex(node: Any) -> bool:
    return isinstance(value := node.meta.get("val"), torch.Tensor) and value.is_complex()


def _sum(graph: Any, target: Any, one: Any, other: Any) -> Any:
    """A sum or difference, where None is zero."""
    if other is None:
        return one
    if one is None:
        return other if target is ATEN.add.Tensor else call(graph, ATEN.neg.default, other)
    return call(graph, target, one, other)


def _product(graph: Any, one: Any, other: Any) -> Any:
    return None if one is None or other is None else call(graph, ATEN.mul.Tensor, one, other)


def _is_tensor(argument: Any) -> bool:
    return hasattr(argument, "op")


def call(graph: Any, target: Any, *arguments: Any) -> Any:
    """A new node, and what its result will be like."""
    node = graph.call_function(target, arguments)
    node.meta["val"] = target(*torch.fx.node.map_arg(arguments, lambda argument: argument.meta["val"]))
    return node
