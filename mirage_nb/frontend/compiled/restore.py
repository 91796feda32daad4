"""What PyTorch's compiler makes of a softmax, of views and of calls, undone.

In: an ATen graph after the compiler's first passes. Out: the same graph in place. For softmax(x * c) that pass computes
both x * c - max(x * c) and (x - max(x)) * c, and takes the second one where everything is finite: the first one stays,
which is what the model said. Norms of groups have views by strides: where these are those of a tensor that lies in
order, it is an ordinary view. What is looked up at places that the graph knows, as a roll is, is put together of parts.
Invariant: every value of the graph is what it was.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from mirage_nb.frontend.complexes import call
from mirage_nb.frontend.fixed import Fixed

MASK_OPERATORS = {"logical_not", "any", "mul", "eq", "ne", "abs", "logical_and", "isfinite"}
"""What the pass asks with whether a row is finite."""
PARTS = 4
"""So many slices, one behind the other, are read where they lie."""


def restore_softmax(graph: Any) -> None:
    """Undo it wherever it stands; the nodes are removed where nothing else reads them."""
    changed = False
    for node in list(graph.nodes):
        if str(node.target) != "aten.where.self" or len(node.args) != 3:
            continue
        finite, scaled, plain = node.args
        shifted = _shifted(plain)
        if shifted is not None and _scaled_shift(scaled) and _asks_of(finite, shifted):
            node.replace_all_uses_with(plain)
            changed = True
    if changed:
        graph.eliminate_dead_code()


def restore_calls(graph: Any) -> None:
    """What a model has compiled once and calls often (`torch.compiler.nested_compile_region`), in the place of each
    call."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph):
        called = getattr(graph.owning_module, node.args[0].target).graph
        (output,) = called.find_nodes(op="output")
        taken = [user.target is operator.getitem and hasattr(output.args[0][user.args[1]], "op") for user in node.users]
        if called.find_nodes(op="get_attr") or not all(taken):
            continue
        known = dict(zip(called.find_nodes(op="placeholder"), node.args[2:], strict=True))
        with graph.inserting_before(node):
            made = graph.graph_copy(called, known)
        for user in list(node.users):
            user.replace_all_uses_with(made[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)


def restore_views(graph: Any) -> None:
    """Ordinary views for views by strides, wherever these are such."""
    for node in graph.nodes:
        if str(node.target) == "aten.as_strided.default" and not node.kwargs:
            held, made = node.args[0].meta["val"], node.meta["val"]
            lies = all(t.is_contiguous() and t.storage_offset() == 0 for t in (held, made))
            if lies and held.numel() == made.numel():
                node.target, node.args = torch.ops.aten.view.default, (node.args[0], [*made.shape])


def restore_parts(graph: Any) -> None:
    """Slices, one behind the other, for lookups along one axis in no more than `PARTS` runs of places."""
    fixed = Fixed({})
    known = {node for node in graph.nodes if fixed.has(node)}
    for node in list(graph.nodes):
        given = [(axis, index) for axis, index in enumerate(node.args[1]) if index] if _name(node) == "index" else []
        if len(given) != 1 or given[0][1] not in known or node.args[0] in known:
            continue
        axis, index = given[0]
        with unset_fake_temporarily():
            places = fixed.value(index)
        if places.ndim != 1 or len(runs := _runs(places.tolist())) > PARTS:
            continue
        with graph.inserting_before(node):
            extent = node.args[0].meta["val"].shape[axis]
            at = ((first % extent, first % extent + count) for first, count in runs)
            parts = [call(graph, torch.ops.aten.slice.Tensor, node.args[0], axis, *ends) for ends in at]
            whole = call(graph, torch.ops.aten.cat.default, parts, axis) if len(parts) > 1 else parts[0]
        node.replace_all_uses_with(whole)
    graph.eliminate_dead_code()


def _runs(places: list[int]) -> list[tuple[int, int]]:
    """Places that follow each other: the first one, and how many."""
    found: list[tuple[int, int]] = []
    for place in places:
        if found and place == sum(found[-1]) and place != 0:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((place, 1))
    return found


def _name(node: Any) -> str:
    """`sub` for a node of `aten.sub.Tensor`; nothing for what is no node."""
    return str(node.target).split(".")[1] if hasattr(node, "op") and str(node.target).startswith("aten.") else ""


def _shifted(node: Any) -> Any | None:
    """v for v - max(v)."""
    if _name(node) != "sub":
        return None
    value, most = node.args[:2]
    return value if _name(most) == "amax" and most.args[0] is value else None


def _scaled_shift(node: Any) -> bool:
    """Whether it is (y - max(y)) * c or (y - max(y)) / c."""
    return _name(node) in ("mul", "div") and any(_shifted(one) is not None for one in node.all_input_nodes)


def _asks_of(node: Any, value: Any) -> bool:
    """Whether a condition is made of questions about one value alone."""
    if node is value:
        return True
    return _name(node) in MASK_OPERATORS and all(_asks_of(n, value) for n in node.all_input_nodes)
