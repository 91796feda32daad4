"""Calls of operators in the place of regions.

In: a traced graph, regions of it, an operator of PyTorch for each. Out: the same graph, changed. Invariant: what reads
a region's results finds tensors of the shapes and types that were there; what nothing reads any more is gone. Settled
inputs are read while the launch in front runs only behind one of these calls, whose kernels began when all launches in
front of the graph had ended.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch._inductor import inductor_prims
from torch._inductor.pattern_matcher import stable_topological_sort

from mirage_nb.frontend.compiled.bodies import bodies
from mirage_nb.frontend.compiled.kernels import Kernel
from mirage_nb.frontend.compiled.regions import Region, base_of, sees_strides
from mirage_nb.ir.graph import reached

VISIBLE = "user_visible_output_idxs"
"""Where PyTorch's compiler finds which results lie as they do; others it has lie as it likes, and tells derivatives."""


def keep_strides(gm: torch.fx.GraphModule, reported: Sequence[Any]) -> None:
    """Have results that do not lie row by row lie as they do, whatever computes them and what that reads: who reads
    them, derivatives among them, was told so. reported: how PyTorch's code for the graph has them, where that is
    known."""
    for _, body in bodies(gm):
        keep_strides(body, ())
    graph = gm.graph
    (output,) = graph.find_nodes(op="output")
    kept: dict[Any, Any] = {}
    seen: list[int] = []
    returned = output.args[0] if isinstance(output.args[0], list | tuple) else ()  # the condition of a loop has one
    for number, node in enumerate(returned):
        value = node.meta.get("val") if hasattr(node, "op") else None
        if not isinstance(value, torch.Tensor) or node.op != "call_function" or not _is_known(value):
            continue
        seen.append(number)
        told = reported[number] if number < len(reported) and reported[number] is not None else value.stride()
        told = [int(stride) for stride in told]
        with graph.inserting_before(output):
            shown = node if told != [*value.stride()] else base_of(node)  # of a view as told, what it shows
            _keep(graph, shown, told if shown is node else [*shown.meta["val"].stride()], kept)
            _show(graph, node, shown, kept)
    output.args = (torch.fx.node.map_arg(output.args[0], lambda node: kept.get(node, node)),)
    if VISIBLE in output.meta:
        output.meta[VISIBLE] = seen


def _keep(graph: torch.fx.Graph, node: Any, strides: list[int], kept: dict[Any, Any]) -> None:
    """A node that lies with these strides, where what has the elements of another one may lie otherwise."""
    value = node.meta["val"]
    wanted = value.new_empty_strided(value.shape, strides)
    plain = wanted.is_contiguous() and value.is_contiguous()
    if node.op == "call_function" and not plain and _is_dense(wanted) and node not in kept:
        kept[node] = _forced(graph, node, wanted)


def _forced(graph: torch.fx.Graph, node: Any, lying: torch.Tensor) -> Any:
    """A node, lying as this tensor does."""
    made = graph.call_function(inductor_prims.force_stride_order, (node, [*lying.stride()]))
    made.meta["val"] = lying
    return made


def _show(graph: torch.fx.Graph, node: Any, shown: Any, kept: dict[Any, Any]) -> Any:
    """A view of what is kept; the node itself where that is not."""
    if node is not shown and shown in kept and node not in kept:
        first = node.all_input_nodes[0]
        source = _show(graph, first, shown, kept)
        kept[node] = graph.node_copy(node, lambda n: source if n is first else n)
    return kept.get(node, node)


def _is_known(tensor: torch.Tensor) -> bool:
    """Whether all its sizes are numbers, and depend on no values."""
    return all(type(extent) is int for extent in (*tensor.shape, *tensor.stride()))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in some order of its dimensions, without gaps."""
    count = 1
    for stride, extent in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride != count:
            return False
        count *= extent
    return True


def replace(gm: torch.fx.GraphModule, taken: Sequence[tuple[Region, Kernel]]) -> None:
    """Calls of operators in the place of regions.

    Args:
        gm: the graph that the regions were found in, or in what it calls, which is changed in copies.
        taken: regions in order, and what computes them.
    """
    for name, body in bodies(gm):
        graph, body.graph = body.graph, copy.deepcopy(body.graph)
        setattr(gm, name, changed := torch.fx.GraphModule(body, graph))
        replace(changed, taken)
    taken = [(region, kernel) for region, kernel in taken if region.writes[0].graph is gm.graph]
    put: dict[Any, Any] = {}
    overloads = {kernel.operator for _, kernel in taken} | {kernel.behind for _, kernel in taken}
    for region, kernel in taken:
        reads = [put.get(node, node) for node in region.reads]
        last = max(reads, key=list(gm.graph.nodes).index)
        overload = kernel.behind if _follow(reads, overloads) else kernel.operator
        for node, new in zip(region.writes, _call(gm.graph, overload, reads, region, last), strict=True):
            node.replace_all_uses_with(new)
            put[node] = new
    _keep_lying(gm.graph, [new for old, new in put.items() if old.meta["val"].stride() != new.meta["val"].stride()])
    _erase(gm.graph, {node for region, _ in taken for node in region.covers})
    stable_topological_sort(gm.graph)
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    gm.recompile()


def _keep_lying(graph: torch.fx.Graph, moved: Sequence[Any]) -> None:
    """Have what PyTorch computes from what lies otherwise than before lie as it did, where that is seen: its operators
    follow what they read. moved: what lies otherwise, row by row."""
    (output,) = graph.find_nodes(op="output")
    for node in sorted(reached(moved, lambda node: node.users)):
        seen = [user for user in node.users if user is output or sees_strides(user)]
        value = node.meta.get("val")
        known = isinstance(value, torch.Tensor) and _is_known(value) and _is_dense(value)
        if not seen or not known or node.target is inductor_prims.force_stride_order:
            continue
        with graph.inserting_after(node):
            kept = _forced(graph, node, value)
        for user in seen:
            user.replace_input_with(node, kept)


def _follow(nodes: Sequence[Any], targets: Collection[Any]) -> bool:
    """Whether one of the nodes is computed from what a call of one of the targets returns."""
    return any(node.target in targets for node in reached(nodes, lambda node: node.all_input_nodes))


def _call(graph: torch.fx.Graph, overload: Any, reads: Sequence[Any], region: Region, after: Any) -> Iterator[Any]:
    """A call of an operator behind a node, and a node for each of its results, shaped and typed as it is there."""
    shapes = [i.type.shape for i in region.graph.inputs]
    with graph.inserting_after(_behind_inputs(graph, after)):
        marker = graph.call_function(torch.ops.aten.alias.default, (reads[0],))
    with graph.inserting_before(marker):
        given = [_reshaped(graph, node, shape) for node, shape in zip(reads, shapes, strict=True)]
        call = graph.call_function(overload, tuple(given))
        fake = overload(*(node.meta["val"] for node in given))
        made = fake if isinstance(fake, tuple | list) else (fake,)
        call.meta["val"] = fake
        for number, (value, old) in enumerate(zip(made, region.writes, strict=True)):
            node = call
            if len(made) > 1:
                node = graph.call_function(operator.getitem, (call, number))
                node.meta["val"] = value
            wanted = old.meta["val"]
            if wanted.dtype != value.dtype:
                node = _derived(graph, torch.ops.prims.convert_element_type.default, node, wanted.dtype)
            yield _reshaped(graph, node, tuple(wanted.shape))
    graph.erase_node(marker)


def _erase(graph: torch.fx.Graph, covered: set[Any]) -> None:
    """Take out what regions cover, as far as nothing reads it: to PyTorch attention is no dead code even then, as it
    might draw random numbers."""
    for node in reversed(graph.nodes):
        if not node.users and (node in covered or node.target is operator.getitem):
            graph.erase_node(node)


def _behind_inputs(graph: torch.fx.Graph, node: Any) -> Any:
    """The node, or the last placeholder if it is one: these stay together."""
    return [n for n in graph.nodes if n.op == "placeholder"][-1] if node.op == "placeholder" else node


def _reshaped(graph: torch.fx.Graph, node: Any, shape: tuple[int, ...]) -> Any:
    if tuple(node.meta["val"].shape) == shape:
        return node
    return _derived(graph, torch.ops.aten.reshape.default, node, list(shape))


def _derived(graph: torch.fx.Graph, target: Any, node: Any, argument: Any) -> Any:
    made = graph.call_function(target, (node, argument))
    made.meta["val"] = target(node.meta["val"], argument)
    return made
