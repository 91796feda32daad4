"""Plans of pre-defined operators, run on the CPU by PyTorch: the calls that a card gets, in memory laid out alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mirage_nb.ir import DType
from mirage_nb.runtime.execution.torch_program import torch_dtype
from mirage_nb.runtime.kernel.operators import decode
from mirage_nb.runtime.kernel.plan import Apply, Plan, Tensor
from mirage_nb.runtime.kernel.pytorch import BY_TORCH, go_of
from mirage_nb.runtime.kernel.rows import LAUNCHES

DTYPES = {dtype.value: torch_dtype(torch, dtype) for dtype in DType}
ON_CPU = {("linear", "cublas"): "torch", **{("attention", by): "products" for by in ("flash", "cudnn", "efficient")}}
"""Launches that need a card, and what computes the same without one."""


def run_on_cpu(plan: Plan, stored: Sequence[Any]) -> list[Any]:
    """The outputs of a plan without generated kernels, in float64; everything but the inputs begins as not-a-number."""
    workspace = torch.full((plan.workspace_bytes,), 0xFF, dtype=torch.uint8)
    inputs = [
        torch.tensor(decode(a, t.dtype)).to(DTYPES[t.dtype])
        for a, t in zip(stored, plan.at("input"), strict=True)
    ]
    outputs = [torch.full(t.shape, torch.nan, dtype=DTYPES[t.dtype]) for t in plan.at("output")]

    def seen(tensor: Tensor) -> Any:
        if tensor.place == "workspace":
            return workspace[tensor.at : tensor.at + tensor.nbytes].view(DTYPES[tensor.dtype]).view(tensor.shape)
        return (inputs if tensor.place == "input" else outputs)[tensor.at].view(tensor.shape)

    for step in plan.steps:
        assert isinstance(step, Apply)
        *operands, result = (seen(plan.tensors[n]) for n in (*step.inputs, step.output))
        by = step.attrs.get("by")
        rule = BY_TORCH[step.operator] if by is None else LAUNCHES[step.operator, ON_CPU.get((step.operator, by), by)]
        go_of(torch, rule, step, operands, result)()
    return [output.double().numpy() for output in outputs]
