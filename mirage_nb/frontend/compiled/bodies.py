"""Functions that a graph calls: branches, bodies of loops.

In: an ATen graph. Out: the graphs of what it calls. Invariant: a function that stands in several places is one graph,
and who changes it changes a copy of his own (`own_bodies`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from torch.fx import GraphModule

CALLS = frozenset({"cond", "while_loop", "scan", "map_impl", "invoke_subgraph"})
"""Operators that call functions of tensors as they are; others generate code of them, as attention does of scores."""


def bodies(gm: GraphModule) -> Iterator[tuple[str, GraphModule]]:
    """The names and the graphs of what a graph calls, each once."""
    called = (n for node in gm.graph.nodes if str(node.target) in CALLS for n in node.all_input_nodes)
    for name in dict.fromkeys(node.target for node in called if node.op == "get_attr"):
        if isinstance(body := getattr(gm, name, None), GraphModule):
            yield name, body


def own_bodies(gm: GraphModule) -> GraphModule:
    """A graph, with copies of what it calls, and of what that calls."""
    for name, body in bodies(gm):
        setattr(gm, name, own_bodies(GraphModule(body, copy.deepcopy(body.graph))))
    return gm


def drop_numbers(gm: GraphModule) -> None:
    """Leave out the numbers that functions are given: sizes, which they were traced with."""
    for node in gm.graph.nodes:
        given = node.args[-1] if str(node.target) in CALLS and isinstance(node.args[-1], list | tuple) else ()
        named = (getattr(gm, n.target, None) for n in node.all_input_nodes if n.op == "get_attr")
        called = [body for body in named if isinstance(body, GraphModule)]
        places = [body.graph.find_nodes(op="placeholder")[-len(given) :] for body in called]
        read = {k for own in places for k, place in enumerate(own) if place.users}
        gone = {k for k, one in enumerate(given) if isinstance(one, int | float)} - read
        for body, own in zip(called, places, strict=True):
            for k in gone:
                body.graph.erase_node(own[k])
            body.recompile()
        if gone:
            node.args = (*node.args[:-1], tuple(one for k, one in enumerate(given) if k not in gone))
    for _, body in bodies(gm):
        drop_numbers(body)
    gm.recompile()
