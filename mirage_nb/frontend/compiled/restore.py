"""What PyTorch's compiler makes of a softmax and of views, undone.

In: an ATen graph after the compiler's first passes. Out: the same graph in place. For softmax(x * c) that pass computes
both x * c - max(x * c) and (x - max(x)) * c, and takes the second one where everything is finite: the first one stays,
which is what the model said. Norms of groups have views by strides: where these are those of a tensor that lies in
order, it is an ordinary view. Invariant: every value of the graph is what it was.
"""

from __future__ import annotations

from typing import Any

import torch

MASK_OPERATORS = {"logical_not", "any", "mul", "eq", "ne", "abs", "logical_and", "isfinite"}
"""What the pass asks with whether a row is finite."""


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


def restore_views(graph: Any) -> None:
    """Ordinary views for views by strides, wherever these are such."""
    for node in graph.nodes:
        if str(node.target) == "aten.as_strided.default" and not node.kwargs:
            held, made = node.args[0].meta["val"], node.meta["val"]
            lies = all(t.is_contiguous() and t.storage_offset() == 0 for t in (held, made))
            if lies and held.numel() == made.numel():
                node.target, node.args = torch.ops.aten.view.default, (node.args[0], [*made.shape])


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
