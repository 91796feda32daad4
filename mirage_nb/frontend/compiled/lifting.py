"""Truth values that programs are given: as ones and zeros, which programs have, and compared with zero.

In: an ATen graph. Out: the same graph in place. Programs have no integers and are given no truth values, so a mask that
comes from integers, as from positions, or from outside, stays with PyTorch. Where operators of programs read it they
read `convert(mask) > 0` from now on. Invariant: every value of the graph is what it was.
"""

from __future__ import annotations

from typing import Any

import torch

from mirage_nb.frontend.aten import ROWS, VIEWS

_INTEGRAL = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def lift_masks(graph: Any) -> None:
    """Do it for every mask that an operator of programs reads, in front of the views of it."""
    foreign = _foreign(graph)
    for node in list(graph.nodes):
        if node in foreign and node.meta["val"].dtype is torch.bool and not _is_view(node):
            readers = [user for user in node.users if _read_by_programs(user, foreign)]
            if readers:
                _lift(graph, node, readers)


def _foreign(graph: Any) -> set[Any]:
    """Tensors of integers and truth values that depend on such tensors from outside, and on nothing else."""
    found: set[Any] = set()
    for node in graph.nodes:
        if getattr(node.meta.get("val"), "dtype", None) not in _INTEGRAL:
            continue
        sources = node.all_input_nodes
        held = all(getattr(s.meta.get("val"), "dtype", None) in _INTEGRAL for s in sources)
        if node.op == "placeholder" or str(node.target) not in ROWS or (held and not found.isdisjoint(sources)):
            found.add(node)
    return found


def _is_view(node: Any) -> bool:
    return str(node.target) in VIEWS


def _read_by_programs(user: Any, foreign: set[Any]) -> bool:
    if str(user.target) not in ROWS:
        return False
    return any(_read_by_programs(u, foreign) for u in user.users) if _is_view(user) else user not in foreign


def _lift(graph: Any, mask: Any, readers: list[Any]) -> None:
    last = [n for n in graph.nodes if n.op == "placeholder"][-1] if mask.op == "placeholder" else mask
    with graph.inserting_after(last):
        numbers = graph.call_function(torch.ops.prims.convert_element_type.default, (mask, torch.float16))
    with graph.inserting_after(numbers):
        lifted = graph.call_function(torch.ops.aten.gt.Scalar, (numbers, 0))
    for node in (numbers, lifted):
        node.meta["val"] = node.target(node.args[0].meta["val"], node.args[1])
    for reader in readers:
        reader.replace_input_with(mask, lifted)
