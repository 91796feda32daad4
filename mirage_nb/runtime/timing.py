"""Timing on the attached GPU: graph replays, inputs rotated past L2, contestants interleaved.

In: functions that enqueue work for one set of buffers. Out: microseconds per call, median and spread.
Outputs are checked by the caller before anything is timed. Every contestant is captured into one CUDA
graph that calls it once for each set of buffers; replays of all contestants take turns, so a change of
clock or of a neighbour's load meets all of them alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_nb.errors import LaunchError

L2_FACTOR = 3.0
"""The rotated sets hold this many times the card's L2, so that a set is gone before its next turn."""
MAX_SETS = 64
CALLS_PER_GRAPH = 24
"""At least so many calls in one CUDA graph: what it costs to start the graph is spread over them."""
FEW = 3
"""Replays after which a contestant that is clearly slower is timed no more."""
HOPELESS, HOPELESS_US = 10.0, 500.0
"""Who takes so many times the limit, and so long that starting a call counts for nothing, is not replayed at all."""

LAUNCHES = 100
LAUNCH_ROUNDS = 21
"""Calls in one round of `time_launches`, and rounds."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds per call: median, and the spread from the 10th to the 90th percentile."""

    name: str
    median_us: float
    low_us: float
    high_us: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Contestant:
    """Something to time: `calls[i]()` enqueues one call on buffer set i, on the current stream."""

    name: str
    calls: Sequence[Callable[[], object]]


def set_count(bytes_per_set: int, l2_bytes: int) -> int:
    """How many buffer sets to rotate so that together they exceed the L2 cache by `L2_FACTOR`."""
    return max(2, min(MAX_SETS, math.ceil(L2_FACTOR * l2_bytes / max(1, bytes_per_set))))


def time_interleaved(contestants: Sequence[Contestant], torch: Any, *, repeats: int = 40) -> list[Timing]:
    """Time all contestants on the current device, taking turns.

    A contestant that cannot be captured into a CUDA graph is left out of the result.

    Raises:
        LaunchError: no GPU is attached.
    """
    if not torch.cuda.is_available():
        raise LaunchError("there is no GPU to time on")
    captured = []
    for contestant in contestants:
        graph = _capture(contestant, torch)
        if graph is not None:
            captured.append((contestant, graph))
    samples: dict[str, list[float]] = {contestant.name: [] for contestant, _ in captured}
    for _ in range(3):
        for _, graph in captured:
            graph.replay()
    torch.cuda.synchronize()
    for _ in range(repeats):
        for contestant, graph in captured:
            samples[contestant.name].append(_took(graph.replay, torch) / len(_turns(contestant)))
    return [_summary(contestant.name, samples[contestant.name]) for contestant, _ in captured]


def time_quickly(contestant: Contestant, torch: Any, limit_us: float, *, repeats: int = 16) -> Timing | None:
    """Time one contestant by itself, and stop after a few replays when all of them took longer than `limit_us`
    per call, or after one round of calls when that is hopeless. None when it cannot be captured into a CUDA graph.

    Raises:
        LaunchError: no GPU is attached.
    """
    if not torch.cuda.is_available():
        raise LaunchError("there is no GPU to time on")
    once = _took(lambda: [call() for call in contestant.calls], torch) / len(contestant.calls)
    if once > max(HOPELESS * limit_us, HOPELESS_US):
        return _summary(contestant.name, [once])
    graph = _capture(contestant, torch)
    if graph is None:
        return None
    graph.replay()
    samples: list[float] = []
    while len(samples) < repeats and (len(samples) < FEW or min(samples) <= limit_us):
        samples.append(_took(graph.replay, torch) / len(_turns(contestant)))
    return _summary(contestant.name, samples)


def time_launches(call: Callable[[], object], wait: Callable[[], object]) -> float:
    """Microseconds that a call takes to return to Python, while the card has yet to do what it asked for: the
    median of rounds, each short enough that the card's queue takes it whole.

    Args:
        call: enqueues work and returns.
        wait: returns when all of it is done.
    """
    call()
    rounds = []
    for _ in range(LAUNCH_ROUNDS):
        wait()
        began = time.perf_counter()
        for _ in range(LAUNCHES):
            call()
        rounds.append((time.perf_counter() - began) / LAUNCHES * 1e6)
    wait()
    return statistics.median(rounds)


def _took(enqueue: Callable[[], object], torch: Any) -> float:
    """Microseconds that the card takes for what this enqueues on the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    enqueue()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _capture(contestant: Contestant, torch: Any) -> Any:
    """All calls of a contestant as one CUDA graph, or None if one of them cannot be captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            for call in contestant.calls:
                call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            # What other threads do, a search that compiles, is no part of it and does not spoil it.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                for call in _turns(contestant):
                    call()
        except RuntimeError:
            torch.cuda.synchronize()
            return None
    torch.cuda.synchronize()
    return graph


def _turns(contestant: Contestant) -> list[Callable[[], object]]:
    """All calls in order, again and again, until there are enough for one graph."""
    rounds = math.ceil(CALLS_PER_GRAPH / len(contestant.calls))
    return [*contestant.calls] * rounds


def _summary(name: str, samples: list[float]) -> Timing:
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Timing(
        name=name,
        median_us=statistics.median(ordered),
        low_us=ordered[round(0.1 * last)],
        high_us=ordered[round(0.9 * last)],
        repeats=len(ordered),
    )
