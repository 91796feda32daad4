"""What is read from a tensor that the graph overwrites: as it was before.

In: a graph of PyTorch whose inputs are overwritten at its end; for derivatives the joint one, before it is cut into
forwards and backwards. Out: the same in place, where every operator that reads such a tensor is marked: its result is
kept, or, where derivatives read the tensor itself, a copy that all of them read then. Without it PyTorch would read the
new elements for the old ones in the backward graph; and what it copies into another input, where it takes the copy that
a model made before for none. Invariant: nothing is kept that derivatives do not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.utils.checkpoint import CheckpointPolicy

from mirage_nb.frontend.compiled.regions import base_of, users
from mirage_nb.frontend.complexes import call
from mirage_nb.ir.graph import reached

SOURCES = tuple(sorted(map(str, Path(__file__).parent.glob("*.py"))))
COPY, CONJUGATE = torch.ops.aten.copy_.default, torch.ops.aten.conj_physical.default


class KeepOverwritten(CustomGraphPass):
    """Do it wherever inputs are overwritten. first: a user's passes, in front: before 2.13 there is place for one."""

    def __init__(self, first: Sequence[Callable[[torch.fx.Graph], None]] = ()) -> None:
        self._first = first

    def __call__(self, graph: torch.fx.Graph) -> None:
        for one in self._first:
            one(graph)
        _read_first(graph)
        writes = graph.find_nodes(op="call_function", target=COPY)
        backward = _backward(graph) if writes else set()
        for node in dict.fromkeys(write.args[0] for write in writes):
            for reader in _copied_for(backward, node):
                if reader.target is not COPY:
                    reader.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def uuid(self) -> Any:
        """The whole backend: what PyTorch's compiler keeps on disk another version of it has made otherwise."""
        firsts = [one.uuid() if isinstance(one, CustomGraphPass) else repr(one) for one in self._first]
        return get_hash_for_files(SOURCES, repr(firsts))


def passes(patches: Mapping[str, Any]) -> dict[str, Any]:
    """These settings of PyTorch's compiler, with our pass behind those that a user has at the same place."""
    held = torch._inductor.config.joint_custom_post_pass
    if isinstance(held, KeepOverwritten):
        return dict(patches)
    own = held if isinstance(held, list | tuple) else [] if held is None else [held]
    return {"joint_custom_post_pass": KeepOverwritten(own), **patches}


def _backward(graph: torch.fx.Graph) -> set[Any]:
    """The nodes of a joint graph that depend on derivatives of what it returns."""
    given = (node for node in graph.find_nodes(op="placeholder") if node.name.startswith("tangents"))
    return reached(given, lambda node: node.users)


def _copied_for(backward: Set[Any], node: Any) -> Iterator[Any]:
    """Who reads a tensor, or views of it; a copy, which all of these read then, where one of them is of the backward
    graph: what only that one reads PyTorch would not keep."""
    if not any(reader in backward for reader in users(node)):
        yield from users(node)
        return
    readers = [user for user in node.users if user.target is not COPY and user.op != "output"]
    with node.graph.inserting_before(min(readers)):
        kept = _elsewhere(node.graph, node)
    for reader in readers:
        reader.replace_input_with(node, kept)
    yield kept


def _read_first(graph: torch.fx.Graph) -> None:
    """Inputs that are copied into others in front of what overwrites them; of those that are copied into each other,
    one is copied elsewhere before."""
    rest = graph.find_nodes(op="call_function", target=COPY)
    written = {write.args[0] for write in rest}
    if not any(base_of(write.args[1]) in written for write in rest) or any(write.users for write in rest):
        return
    first, (output,) = rest[0], graph.find_nodes(op="output")
    while rest:
        free = next((write for write in rest if not _readers(write, rest)), None)
        if free is None:
            for reader in _readers(rest[0], rest):
                with graph.inserting_before(first):
                    reader.args = (reader.args[0], _elsewhere(graph, reader.args[1]))
            continue
        rest.remove(free)
        output.prepend(free)


def _elsewhere(graph: torch.fx.Graph, node: Any) -> Any:
    """A copy that no compiler takes for none: the larger of a number and itself."""
    if node.meta["val"].is_complex():
        return call(graph, CONJUGATE, call(graph, CONJUGATE, node))
    return call(graph, torch.ops.aten.maximum.default, node, node)


def _readers(write: Any, copies: Sequence[Any]) -> list[Any]:
    """Copies of what another one overwrites."""
    return [copy for copy in copies if copy is not write and base_of(copy.args[1]) is write.args[0]]
