"""What PyTorch decomposes comes back as the program that a cell would have been."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F

import mirage_nb
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.ir.ops import OPS, Trait
from tests.frontend.traced import regions_of

X, G, W, B = (torch.ones(shape) for shape in ((16, 64), (64,), (64, 32), (64,)))
U = torch.ones(64, 32)
DECLARED = "X: {0}[16, 64]\nG: {0}[64]\nW: {0}[64, 32]\nB: {0}[64]\nU: {0}[64, 32]\n"


def rms(x: Any, gain: Any) -> Any:
    """As models spell it."""
    wide = x.float()
    return gain * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def fallen(x: torch.Tensor, factor: float) -> torch.Tensor:
    """The softmax of factor * x as Inductor of PyTorch 2.11 says it."""
    raised = torch.exp((x - x.amax(-1, keepdim=True)) * factor)
    return raised / raised.sum(-1, keepdim=True)


PAIRS: list[tuple[str, Callable[..., Any], str]] = [
    ("rms_norm", lambda x, g, w, b, u: F.rms_norm(x, (64,), g, 1e-5) @ w, "rms_norm(X, G, eps=1e-5) @ W"),
    ("spelled rms_norm", lambda x, g, w, b, u: rms(x, g) @ w, "rms_norm(X, G, eps=1e-5) @ W"),
    ("layer_norm", lambda x, g, w, b, u: F.layer_norm(x, (64,), g, b, 1e-5) @ w, "layer_norm(X, G, B, eps=1e-5) @ W"),
    ("softmax", lambda x, g, w, b, u: torch.softmax(x * 0.125, -1) @ w, "softmax(X * 0.125) @ W"),
    ("scaled fall", lambda x, g, w, b, u: fallen(x, 0.125) @ w, "softmax(X * 0.125) @ W"),
    ("silu", lambda x, g, w, b, u: F.silu(x @ w) * (x @ u), "silu(X @ W) * (X @ U)"),
    ("gelu", lambda x, g, w, b, u: F.gelu(x @ w) * (x @ u), "gelu(X @ W) * (X @ U)"),
    ("sigmoid", lambda x, g, w, b, u: torch.sigmoid(x @ w) * (x @ u), "sigmoid(X @ W) * (X @ U)"),
    ("relu", lambda x, g, w, b, u: torch.relu(x @ w) * (x @ u), "relu(X @ W) * (X @ U)"),
]


def formulas(graph: KernelGraph) -> list[Any]:
    """The outputs as nested operators, inputs by their types: what is computed, in whatever order. The search takes
    casts for nothing, too."""
    made: list[Any] = [str(i.type) for i in graph.inputs]
    for op, _ in graph.definitions():
        operands = [made[v] for v in op.inputs]
        ordered = sorted(operands, key=repr) if Trait.COMMUTATIVE in OPS[op.kind].traits else operands
        made.append(operands[0] if op.kind is OpKind.CAST else (op.kind.value, op.attrs, *ordered))
    return [made[v] for v in graph.outputs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["f32", "f16"])
def test_decompositions_are_taken_back(dtype: torch.dtype) -> None:
    """All in one model, side by side on tensors of their own: each is one region."""

    def model(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [function(*tensors[5 * n : 5 * n + 5]) for n, (_, function, _) in enumerate(PAIRS)]

    found = regions_of(model, *(t.to(dtype).clone() for _ in PAIRS for t in (X, G, W, B, U)))
    name = {torch.float32: "f32", torch.float16: "f16"}[dtype]
    cells = [mirage_nb.parse(DECLARED.format(name) + f"return {cell}") for _, _, cell in PAIRS]
    by_output = {region.writes[0].name: formulas(region.graph) for region in found.found}
    assert sorted(map(repr, by_output.values())) == sorted(repr(formulas(cell.graph)) for cell in cells)
    assert not found.left
