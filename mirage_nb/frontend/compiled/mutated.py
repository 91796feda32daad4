"""What derivatives may not compute again: it was read from a tensor that the forward graph overwrites.

In: a joint graph of PyTorch, before it is cut into forwards and backwards. Out: the same in place, where every operator
that reads such a tensor is marked: its result is kept. Without it PyTorch would read the new elements for the old ones
in the backward graph. Invariant: nothing is kept that derivatives do not need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.utils.checkpoint import CheckpointPolicy

from mirage_nb.frontend.compiled.regions import users


class KeepOverwritten(CustomGraphPass):
    """Do it wherever inputs are overwritten. first: a user's passes, in front: before 2.13 there is place for one."""

    def __init__(self, first: Sequence[Callable[[torch.fx.Graph], None]] = ()) -> None:
        self._first = first

    def __call__(self, graph: torch.fx.Graph) -> None:
        for one in self._first:
            one(graph)
        for write in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            for reader in users(write.args[0]):
                if reader.target is not torch.ops.aten.copy_.default:
                    reader.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def uuid(self) -> Any:
        firsts = [one.uuid() if isinstance(one, CustomGraphPass) else repr(one) for one in self._first]
        return get_hash_for_files((__file__,), repr(firsts))
