"""What derivatives may not compute again: it was read from a tensor that the forward graph overwrites.

In: a joint graph of PyTorch, before it is cut into forwards and backwards. Out: the same in place, where every operator
that reads such a tensor is marked: its result is kept. Without it PyTorch would read the new elements for the old ones
in the backward graph. Invariant: nothing is kept that derivatives do not need.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.utils.checkpoint import CheckpointPolicy

from mirage_nb.frontend.compiled.regions import users


class KeepOverwritten(CustomGraphPass):
    """Do it wherever inputs are overwritten."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        for write in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            for reader in users(write.args[0]):
                if reader.target is not torch.ops.aten.copy_.default:
                    reader.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))
