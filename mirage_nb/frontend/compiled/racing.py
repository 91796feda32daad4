"""A kernel against PyTorch's compiled code for the same region, on the card that the region runs on.

In: what runs a region, and its nodes as a graph of PyTorch. Out: microseconds of both. Invariant: both compute the
region from the same tensors, which are rotated past L2, and take turns in CUDA graphs, each call behind a foreign
kernel: so a region is met inside a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from mirage_nb.errors import LaunchError
from mirage_nb.frontend.compiled.compiling import compiling
from mirage_nb.runtime.contest.timing import BEHIND_CALLS, Contestant, Lane, foreign_kernel, set_count, time_interleaved
from mirage_nb.runtime.gpu import TURN

Run = Callable[..., Any]

OURS, THEIRS = "ours", "PyTorch's"
REPEATS = 20


def beside_pytorch(
    run: Run, region: torch.fx.GraphModule, inputs: Callable[[], list[torch.Tensor]], code: Mapping[str, Any]
) -> tuple[float, float]:
    """Microseconds of a kernel, and of PyTorch's code for the region.

    Args:
        run: the kernel.
        region: the region's own nodes.
        inputs: makes another set of inputs.
        code: settings of PyTorch's compiler.

    Raises:
        LaunchError: one of them cannot be timed.
    """
    first = inputs()
    theirs = compiled(region, first, code)
    l2 = torch.cuda.get_device_properties(first[0].device).L2_cache_size
    count = min(BEHIND_CALLS, set_count(sum(t.nbytes for t in first), l2))
    with torch.no_grad(), torch.cuda.device(first[0].device), TURN:
        sets = [first, *(inputs() for _ in range(count - 1))]
        entries = [Contestant(name, [partial(f, *s) for s in sets]) for name, f in ((OURS, run), (THEIRS, theirs))]
        timings = time_interleaved(entries, Lane(torch, foreign_kernel(torch)), repeats=REPEATS)
    us = {timing.name: timing.median_us for timing in timings}
    for name in (OURS, THEIRS):
        if name not in us:
            raise LaunchError(f"not timed: {name} code cannot be captured into a CUDA graph")
    return us[OURS], us[THEIRS]


def compiled(region: torch.fx.GraphModule, examples: list[torch.Tensor], code: Mapping[str, Any]) -> Run:
    """PyTorch's code for a region."""
    with torch.no_grad(), compiling(code):
        made: Run = torch._inductor.compile(region, [*examples])
    return made
