"""What of a whole model depends on no input: empty tensors that joins begin with, tables that are made of places.

In: an ATen graph, and the tensors that it holds. Out: the same graph without the empty ones; and the value of whatever
is computed of nothing else, for those nodes that programs cannot say (whole numbers, roundings to them, searches).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.node import map_arg


def drop_empty(graph: Any) -> None:
    """Leave tensors without elements out of concatenations, as a cache begins with."""
    for node in list(graph.nodes):
        if str(node.target) == "aten.cat.default":
            parts = [part for part in node.args[0] if part.meta["val"].numel()]
            if len(parts) == 1 and parts[0].meta["val"].dtype is node.meta["val"].dtype:
                node.replace_all_uses_with(parts[0])
            elif 1 < len(parts) < len(node.args[0]):
                node.args = (parts, *node.args[1:])
    graph.eliminate_dead_code()


class Fixed:
    """The nodes that depend on no input. `held`: the tensors of those that are given."""

    def __init__(self, held: Mapping[Any, torch.Tensor]) -> None:
        self._values: dict[Any, Any] = dict(held)
        self._known = set(held)

    def has(self, node: Any) -> bool:
        """Whether a node is one of them, and the same in every call; asked in order."""
        drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if node.op == "call_function" and not drawn and self._known.issuperset(node.all_input_nodes):
            self._known.add(node)
        return node in self._known

    def value(self, node: Any) -> Any:
        """What it computes."""
        if node not in self._values:
            arguments = map_arg((node.args, node.kwargs), self.value)
            self._values[node] = node.target(*arguments[0], **arguments[1])
        return self._values[node]
