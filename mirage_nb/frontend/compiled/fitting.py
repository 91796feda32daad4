"""Ways to run kernels, chosen by the time of the compiled graph that they stand in.

In: compiled code, the arguments of a call, the kernels in it with ways that are about as fast alone. Out: every kernel
runs in the way with which the graph is fastest: what stands in front may let it begin early, and what stands behind
wants room beside it. Invariants: nobody sees that the graph ran more often (what it writes are copies; one that draws
random numbers, or does something else that counts, is left alone); only ways that were checked run; whatever goes
wrong, kernels run as they did.
"""

from __future__ import annotations

import math
import operator
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch

from mirage_nb.frontend.compiled.kernels import Kernel, Way
from mirage_nb.runtime.contest.timing import Contestant, Lane
from mirage_nb.runtime.gpu import TURN

SECONDS = 10.0
"""What it may take."""
GRAPH_US, MOST_CALLS = 1000.0, 16
"""Calls are repeated until they take so long together, about, but not more often."""
REPLAYS = 9
GAIN = 0.997
"""A way has to bring as much: less is noise."""

Measure = Callable[[], float]


class Version(NamedTuple):
    """A graph compiled with kernels in it, each of these once; which of its arguments it writes: None where it is not
    to be run for nothing."""

    call: Callable[[list[Any]], Any]
    written: frozenset[int] | None
    kernels: tuple[Kernel, ...]


def copied(found: Sequence[Version], arguments: Sequence[Any]) -> list[Any]:
    """Arguments for runs that nobody sees: copies of what is written."""
    written = {number for version in found for number in version.written or ()}
    return [a.clone() if n in written else a for n, a in enumerate(arguments)]


def fit(found: Sequence[Version], arguments: Sequence[Any], seconds: float = SECONDS) -> int:
    """The number of the fastest of these versions of a graph, with its kernels in the ways that this takes.

    Args:
        arguments: as `copied`, on a GPU.
        seconds: what it may take.
    """
    every = [kernel for version in found for kernel in version.kernels]
    before = kept = _ways(every)
    device = next(a.device for a in arguments if isinstance(a, torch.Tensor) and a.is_cuda)
    until, best, least = time.monotonic() + seconds, 0, math.inf
    try:
        with torch.no_grad(), torch.cuda.device(device):
            for number, version in enumerate(found):
                open_ = version.written is not None
                us = choose(version.kernels, _timer(version.call, arguments), until) if open_ else math.inf
                if us < GAIN * least or number == 0:
                    best, least, kept = number, us, _ways(every)
                else:
                    _take(every, kept)
    except Exception:  # noqa: BLE001  # whatever it is, the model goes on as it was
        best = 0
        _take(every, before)
    return best


def written_by(graph: torch.fx.Graph) -> frozenset[int] | None:
    """The inputs of a functional graph that results are copied into at its end; None where running it once more would
    be seen otherwise, or nobody can tell: loops and branches are not looked into."""
    inputs = {node: number for number, node in enumerate(graph.find_nodes(op="placeholder"))}
    written: set[int] = set()
    for node in graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if node.target is torch.ops.aten.copy_.default and node.args[0] in inputs:
            written.add(inputs[node.args[0]])
        elif not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable or _counts(node):
            return None
    return frozenset(written)


def _counts(node: torch.fx.Node) -> bool:
    """Whether it matters how often an operator runs: it draws random numbers, or other processes take part in it."""
    target: Any = node.target
    if "c10d" in target.namespace:
        return True
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    given = dict(zip((a.name for a in target._schema.arguments), node.args, strict=False)) | dict(node.kwargs)
    drops = [a for a in target._schema.arguments if a.name == "dropout_p"]  # attention that drops nothing draws nothing
    return not drops or bool(given.get("dropout_p", drops[0].default_value))


def choose(kernels: Collection[Kernel], measure: Measure, until: float) -> float:
    """One kernel after the other takes the way with which `measure` is least, and all once more if one did, until the
    clock (`time.monotonic`) says so. All stay as they were unless that is faster in the end. Returns what that is."""
    before, least, better = _ways(kernels), measure(), True
    while better and least < math.inf and time.monotonic() < until:
        better = False
        for kernel in kernels:
            if (us := _chosen(kernel, least, measure, until)) < least:
                least, better = us, True
    if (after := _ways(kernels)) == before:
        return least
    times: dict[bool, float] = {}
    for new in (False, True) * 2:
        _take(kernels, after if new else before)
        times[new] = min(measure(), times.get(new, math.inf))
    if times[True] >= times[False]:
        _take(kernels, before)
    return min(times.values())


def _chosen(kernel: Kernel, least: float, measure: Measure, until: float) -> float:
    """The time with the best way of a kernel, which it takes: that of before, which took the `least`, or another one
    that gains."""
    assert kernel.found is not None
    taken = kernel.way
    for way in kernel.found.ways:
        if way != taken and time.monotonic() < until:
            kernel.way = way
            us = measure()
            if kernel.failed:  # this way did, and PyTorch's operators ran
                kernel.failed = ""
            elif us < GAIN * least:
                least, taken = us, way
    kernel.way = taken
    return least


def _ways(kernels: Collection[Kernel]) -> list[Way | None]:
    return [kernel.way for kernel in kernels]


def _take(kernels: Collection[Kernel], ways: Sequence[Way | None]) -> None:
    for kernel, way in zip(kernels, ways, strict=True):
        kernel.way = way


def _timer(call: Callable[[list[Any]], Any], arguments: Sequence[Any]) -> Measure:
    """Microseconds of a call, as the card sees it; infinite where it cannot be captured."""
    lane, contestant = Lane(torch, None), Contestant("", [lambda: call([*arguments])])
    with TURN:
        once = lane.captured(contestant, 1)
        count = max(1, min(MOST_CALLS, round(GRAPH_US / once.took(torch)))) if once is not None else 1

    def measure() -> float:
        with TURN:
            replay = lane.captured(contestant, count)
            return statistics.median(replay.took(torch) for _ in range(REPLAYS)) if replay is not None else math.inf

    return measure
