"""Operators of lists of tensors, as optimisers call them, one for each tensor.

In: an ATen graph. Out: the same in place. Invariant: every value of the graph is what it was; a node that was one of a
list says so in its `meta` (`LISTED`), for PyTorch computes those of a list in one launch.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

LISTED = "listed"
LISTS = "aten._foreach_"
NUMBERS = {
    "pow": "pow.Tensor_Scalar", "lerp": "lerp.Scalar", "clamp_min": "clamp_min.default",
    "clamp_max": "clamp_max.default", "maximum": "clamp_min.default", "minimum": "clamp_max.default",
}  # fmt: skip
"""What is called with numbers, where that is another operator than with tensors."""
TENSORS = {
    **{name: f"{name}.Tensor" for name in ("add", "sub", "mul", "div", "lerp", "clamp_min", "clamp_max")},
    "pow": "pow.Tensor_Tensor", "norm": "linalg_vector_norm.default",
}  # fmt: skip
"""What else is not called `default`."""


def spell_lists(graph: Any) -> None:
    """Do it wherever PyTorch has an operator of single tensors for it."""
    for node in list(graph.nodes):
        if not str(node.target).startswith(LISTS) or any(user.target is not operator.getitem for user in node.users):
            continue
        each = [_of_one(node, number) for number in range(len(node.meta["val"]))]
        if (overload := _overload(node, each[0][0])) is None:
            continue
        for user in list(node.users):
            arguments, keywords = each[user.args[1]]
            with graph.inserting_before(node):
                made = graph.call_function(overload, arguments, keywords)
            made.meta = {**user.meta, LISTED: True}
            user.replace_all_uses_with(made)
            graph.erase_node(user)
        graph.erase_node(node)


def _of_one(node: Any, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments for one of the tensors; a factor is a keyword there."""
    given = tuple(one[number] if isinstance(one, list | tuple) else one for one in node.args)
    if _name(node).startswith("addc") and len(given) == 4:
        return given[:3], {"value": given[3]}
    return given, dict(node.kwargs)


def _overload(node: Any, one: tuple[Any, ...]) -> Any:
    """The operator of single tensors; None where there is none."""
    (first, *rest) = one
    name, by_number = _name(node), bool(rest) and not hasattr(rest[0], "op")
    called = NUMBERS.get(name) if by_number else "pow.Scalar" if not hasattr(first, "op") else None
    packet, _, overload = (called or TENSORS.get(name, f"{name}.default")).partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload, None)


def _name(node: Any) -> str:
    """`add` for a node of `aten._foreach_add.List`."""
    return str(node.target).removeprefix(LISTS).partition(".")[0]
