"""Random functions of tensors, as Hypothesis draws them, with everything that a region has to stop at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch._inductor.decomposition import select_decomp_table
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

Step = tuple[Callable[..., Any], tuple[int, ...]]
"""A function, and which of the values so far it takes."""

UNARY: list[Callable[[Any], Any]] = [
    torch.relu, torch.sigmoid, torch.tanh, F.silu, F.gelu, torch.neg, torch.abs, torch.square, F.softplus, F.mish,
    lambda x: torch.exp(-x.abs()), lambda x: torch.sqrt(x.abs() + 0.1), lambda x: torch.log(x.abs() + 0.1),
    lambda x: torch.softmax(x, -1), lambda x: F.gelu(x, approximate="tanh"), lambda x: F.leaky_relu(x, 0.1),
    lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-3), F.hardswish,
    lambda x: x.clamp(-1, 1), lambda x: x * 0.5 + 1, lambda x: 1 - x, lambda x: x / 3, lambda x: x**3,
    lambda x: x.sum(-1, keepdim=True), lambda x: x.mean(0, keepdim=True), lambda x: x.amax(-1, keepdim=True),
    lambda x: x.var(-1, keepdim=True, correction=0), lambda x: x.amin(0, keepdim=True), lambda x: x.double().float(),
    lambda x: x.mT, lambda x: x.flip(0), lambda x: x[1:], lambda x: x[:, ::2], lambda x: torch.cat([x, -x], -1),
    lambda x: x.reshape(-1, 2).reshape(x.shape), lambda x: x[:1].expand(4, -1), lambda x: x.bfloat16().float(),
    lambda x: x.half(), lambda x: x.float(), lambda x: x.contiguous() + 0, lambda x: x.chunk(2, -1)[0],
    # what has no row, or no term for all of its results
    lambda x: x.cumsum(-1), lambda x: x.sort(-1).values, lambda x: torch.where(x > 0, x, -x),
    lambda x: x.max(-1, keepdim=True).values, lambda x: x * (x > 0), lambda x: x.clone().add_(1),
    lambda x: x.t().tril(), lambda x: torch.logcumsumexp(x, 0),
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    torch.add, torch.sub, torch.mul, lambda x, y: x / (y.abs() + 1), lambda x, y: torch.maximum(x, y.to(x.dtype)),
    lambda x, y: x * torch.sigmoid(y) + x, lambda x, y: x.clone().mul_(y) if x.shape == y.shape else x - y,
]  # fmt: skip


@st.composite
def models(draw: st.DrawFn) -> tuple[Callable[..., list[Any]], list[torch.Tensor]]:
    """A function, and inputs for it: two or three matrices whose extents are 4 or 6, one perhaps a row."""
    torch.manual_seed(draw(st.integers(0, 999)))
    shapes = [(4, 4), draw(st.sampled_from([(4, 4), (1, 4), (4, 1)])), (4, 4)]
    inputs = [torch.randn(shape) for shape in shapes]
    steps: list[Step] = []
    held = [x.clone() for x in inputs]
    for _ in range(draw(st.integers(3, 12))):
        step = draw(_steps(held))
        try:
            made = step[0](*(held[n].clone() for n in step[1]))
        except (RuntimeError, IndexError, AttributeError):
            continue
        if made.is_floating_point() and 0 < made.numel() <= 256 and bool(made.isfinite().all()) and made.ndim == 2:
            steps.append(step)
            held.append(made)
    wanted = draw(st.lists(st.integers(len(inputs), len(held) - 1), min_size=1, max_size=2)) if steps else [0]

    def run(*tensors: Any) -> list[Any]:
        values = list(tensors)
        for function, places in steps:
            values.append(function(*[values[n] for n in places]))
        return [values[n] + 0 for n in sorted({*wanted, len(values) - 1})]

    return run, inputs


def _steps(held: list[Any]) -> st.SearchStrategy[Step]:
    place = st.integers(0, len(held) - 1)
    one, two = st.tuples(st.sampled_from(UNARY), st.tuples(place)), st.tuples(place, place)
    return st.one_of(one, one, st.tuples(st.sampled_from(BINARY), two), st.tuples(st.just(_product), two))


def _product(x: Any, y: Any) -> Any:
    return x @ y.to(x.dtype)


def traced(function: Callable[..., Any], inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
    """The functional ATen graph with the compiler's decompositions."""
    with torch.no_grad():
        made: torch.fx.GraphModule = make_fx(
            functionalize(function), decomposition_table=select_decomp_table(), tracing_mode="fake"
        )(*inputs)
    return made
