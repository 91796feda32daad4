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
"""The nodes of the real and the imaginary part; None for an imaginary part of zeros."""

ATEN: Any = torch.ops.aten
ALIKE = frozenset({"aten.clone.default", "aten.alias.default", "aten.detach.default", "aten.neg.default"}) | VIEWS
"""Operators of one tensor that do the same to both parts."""
SUMS = frozenset({"aten.add.Tensor", "aten.sub.Tensor"})
CONJUGATES = frozenset({"aten._conj.default", "aten._conj_physical.default"})
APART = frozenset({"aten.view_as_complex.default", "aten.mul.Tensor", *SUMS, *CONJUGATES, *ALIKE})
"""What is computed part by part."""


def lift_complex(graph: Any) -> None:
    """Do it wherever complex numbers are computed and shown as real ones."""
    for node in list(graph.nodes):
        if str(node.target) == "aten.view_as_real.default" and str(node.args[0].target) in APART:
            with graph.inserting_before(node):
                made = _call(graph, ATEN.stack.default, [*_parts(graph, node.args[0])], -1)
            node.replace_all_uses_with(made)
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _parts(graph: Any, node: Any) -> Pair:
    """Both parts of a node, computed in front of where nodes are inserted now."""
    if not node.meta["val"].is_complex():
        return node, None
    name = str(node.target)
    paired = name == "aten.view_as_complex.default"
    if paired or name not in APART or node.kwargs or not _is_tensor(node.args[0]):
        pairs = node.args[0] if paired else _call(graph, ATEN.view_as_real.default, node)
        return _call(graph, ATEN.select.int, pairs, -1, 0), _call(graph, ATEN.select.int, pairs, -1, 1)
    real, imaginary = _parts(graph, node.args[0])  # of a real number times a complex one the second is None
    if name in CONJUGATES:
        return real, _call(graph, ATEN.neg.default, imaginary)
    if name in ALIKE:
        return _call(graph, node.target, real, *node.args[1:]), _call(graph, node.target, imaginary, *node.args[1:])
    other, turned = _parts(graph, node.args[1]) if _is_tensor(node.args[1]) else (node.args[1], None)
    if name in SUMS:
        second = _sum(graph, node.target, imaginary, turned)
        return _call(graph, node.target, real, other), second
    return (
        _sum(graph, ATEN.sub.Tensor, _product(graph, real, other), _product(graph, imaginary, turned)),
        _sum(graph, ATEN.add.Tensor, _product(graph, real, turned), _product(graph, imaginary, other)),
    )


def _sum(graph: Any, target: Any, one: Any, other: Any) -> Any:
    """A sum or difference, where None is zero."""
    if other is None:
        return one
    if one is None:
        return other if target is ATEN.add.Tensor else _call(graph, ATEN.neg.default, other)
    return _call(graph, target, one, other)


def _product(graph: Any, one: Any, other: Any) -> Any:
    return None if one is None or other is None else _call(graph, ATEN.mul.Tensor, one, other)


def _is_tensor(argument: Any) -> bool:
    return hasattr(argument, "op")


def _call(graph: Any, target: Any, *arguments: Any) -> Any:
    """A new node, and what its result will be like."""
    node = graph.call_function(target, arguments)
    node.meta["val"] = target(*torch.fx.node.map_arg(arguments, lambda argument: argument.meta["val"]))
    return node
