"""Operators of PyTorch for regions: as little as may stand between compiled code and a kernel.

In: a region's program, what runs it. Out: an overload that compiled graphs call. Invariant: derivatives were taken
before, so there are none; calls come from code that was compiled for these shapes and types, so nothing is checked
again. (`runtime.execution.torch_operator` makes operators for users, which check, and cost a call four times as much.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.execution.torch_operator import NAMESPACE, fake_of, schema_of
from mirage_nb.runtime.execution.torch_program import as_torch

_LIBRARIES: dict[str, Any] = {}
"""Those that hold an operator, by its name: without them it would be gone."""


def by_pytorch(program: KernelGraph) -> Callable[..., Any]:
    """PyTorch's operators for a program, one by one, as what an operator runs: they return new tensors."""
    eager = as_torch(program, torch)

    def run(*tensors: torch.Tensor) -> Any:
        made = tuple(out.clone(memory_format=torch.contiguous_format) for out in eager(*tensors))
        return made[0] if len(made) == 1 else made

    return run


def register_operator(program: KernelGraph, name: str, run: Callable[..., Any]) -> Any:
    """An operator, on tensors of any device; the same name again replaces the one that had it.

    Args:
        program: names and types of inputs and outputs.
        name: letters, digits and underscores.
        run: takes the inputs in order, returns new tensors: one, or a tuple of them.
    """
    if (before := _LIBRARIES.pop(name, None)) is not None:
        before._destroy()
    new: Any = torch.library.Library
    library = _LIBRARIES[name] = new(NAMESPACE, "FRAGMENT")
    schema = schema_of([i.name for i in program.inputs], len(program.outputs))
    library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        library.impl(name, run, key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake_of(program, torch), lib=library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default
