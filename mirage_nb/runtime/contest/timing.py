"""Timing on the attached GPU: graph replays, inputs rotated past L2, contestants interleaved.

In: functions that enqueue work for one set of buffers. Out: microseconds per call, median and spread.
Outputs are checked by the caller before anything is timed. Every contestant is captured into a CUDA
graph that calls it once for each set of buffers; replays of all contestants take turns, so a change of
clock or of a neighbour's load meets all of them alike. Two ways to line the calls up: back to back, and each behind
a foreign kernel whose own time is taken off. The second is how a kernel is met inside a model: nothing of its own is
in L2, and no kernel of its own kind in front of it lets it start early. Back to back L2 is emptied before the first.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_nb.errors import LaunchError

Call = Callable[[], object]
"""Enqueues work on the current stream."""

L2_FACTOR = 3.0
"""The rotated sets hold this many times the card's L2, so that a set is gone before its next turn."""
MAX_SETS = 64
CALLS_PER_GRAPH = 24
"""At least so many calls in one CUDA graph: what it costs to start the graph is spread over them."""
BEHIND_CALLS = 8
"""So many calls in one CUDA graph when each stands behind a foreign kernel."""
FOREIGN_L2 = 1.6
"""What that kernel rewrites holds so many times the card's L2. The shorter it takes, the less its own time varies: with
twice as much on an H200, calls of 1.9 us varied by 0.65 us instead of 0.43."""
FOREIGN_US, SHORT_GRAPH_US = 50.0, 200.0
"""What that takes, about; and a graph of short calls, with its start."""
ROUNDS, MOST_ROUNDS = 40, 240
"""Replays of each contestant of a race; and where there is time for more: behind a foreign kernel, what takes 2 us
varies by 0.4 us from one replay to the next, and medians of 40 by a fiftieth."""
FRESH_ROUNDS, FRESH_US = 20, 20.0
"""After so many replays behind a foreign kernel what is shorter than this is captured anew: the same kernel of 2 us
takes longer in one graph than in the next, by 0.04 us (standard deviation of 8 captures on an H100), in all replays."""
FEW, QUICK_US = 3, 1e5
"""Replays after which a contestant that is clearly slower is timed no more; and one whose replays took so long."""
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
class Lap:
    """One contestant: relative error against float64, and its timing, or None with the reason in `note`.

    `timing` is of calls that stand behind a foreign kernel each, `chain` of calls back to back.
    """

    name: str
    error: float | None
    timing: Timing | None
    note: str = ""
    chain: Timing | None = None

    @property
    def us(self) -> float | None:
        """What counts, the larger median of both: what starts early wins back to back what it loses behind others."""
        return max((t.median_us for t in (self.timing, self.chain) if t is not None), default=None)


@dataclass(frozen=True, slots=True)
class Contestant:
    """Something to time: `calls[i]()` enqueues one call on buffer set i, on the current stream."""

    name: str
    calls: Sequence[Call]


def set_count(bytes_per_set: int, l2_bytes: int) -> int:
    """How many buffer sets to rotate so that together they exceed the L2 cache by `L2_FACTOR`."""
    return max(2, min(MAX_SETS, math.ceil(L2_FACTOR * l2_bytes / max(1, bytes_per_set))))


def rounds_in(seconds: float, us: Iterable[float]) -> float:
    """How many turns of contestants that take so many microseconds fit into so many seconds, both ways."""
    each = sum(max(CALLS_PER_GRAPH * one, SHORT_GRAPH_US) + BEHIND_CALLS * (one + FOREIGN_US) for one in us)
    return seconds * 1e6 / max(each, 1.0)


def foreign_kernel(torch: Any) -> Call:
    """A function that enqueues a kernel of somebody else's, which rewrites more device memory than L2 holds."""
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    words = torch.zeros(int(FOREIGN_L2 * l2_bytes) // 4, dtype=torch.int32, device="cuda")
    return lambda: words.add_(1)


def time_interleaved(
    contestants: Sequence[Contestant], lane: Lane, *, repeats: int = ROUNDS, seconds: float = 0.0
) -> list[Timing]:
    """Time all contestants on the current device, taking turns.

    A contestant that cannot be captured into a CUDA graph is left out of the result, as is one whose time drowned in
    what else ran on the card.

    Args:
        lane: how calls are lined up.
        repeats: replays of each; more, up to `MOST_ROUNDS`, until so many `seconds` are over.

    Raises:
        LaunchError: no GPU is attached.
    """
    torch = lane.torch
    if not torch.cuda.is_available():
        raise LaunchError("there is no GPU to time on")
    until = time.monotonic() + seconds
    captured = lane.ready(contestants)
    samples: dict[str, list[float]] = {name: [] for name in captured}
    for number in range(max(repeats, MOST_ROUNDS)):
        if number >= repeats and time.monotonic() >= until:
            break
        if lane.varies and number and number % FRESH_ROUNDS == 0:
            short = {name for name, taken in samples.items() if statistics.median(taken) < FRESH_US}
            captured |= lane.ready([contestant for contestant in contestants if contestant.name in short])
        alone = lane.alone()
        for name, replay in captured.items():
            samples[name].append(replay.took(torch) - alone)
    return [timing for name in captured if (timing := _summary(name, samples[name])).median_us > 0]


def time_quickly(
    contestant: Contestant, torch: Any, limit_us: float, *, repeats: int = 16, lane: Lane | None = None
) -> Timing | None:
    """Time one contestant by itself, and stop after a few replays when all of them took longer than `limit_us`
    per call, or long enough altogether, or after one call when that is hopeless. None when it cannot be
    captured into a CUDA graph. `lane`: how calls are lined up, made once for all who are timed; default: back to back.

    Raises:
        LaunchError: no GPU is attached, or something else kept it busy, so that nothing is left of the call's time
            when the foreign kernel's is taken off.
    """
    if not torch.cuda.is_available():
        raise LaunchError("there is no GPU to time on")
    first, hopeless = contestant.calls[0], max(HOPELESS * limit_us, HOPELESS_US)
    once = min(took(first, torch) for _ in range(2))  # what a first call makes ready, memory for one, is no part of it
    if once > hopeless:  # of the card, or of a host that is late: a graph knows no host
        if (alone := Lane(torch, None).captured(Contestant(contestant.name, [first]), 1)) is None:
            return None
        if (once := alone.took(torch)) > hopeless:
            return _summary(contestant.name, [once])
    lane = lane if lane is not None else Lane(torch, None)
    replay = lane.captured(contestant)
    if replay is None:
        return None
    samples: list[float] = []
    most = max(FEW, min(repeats, int(QUICK_US / max(1.0, replay.took(torch) * replay.calls))))
    while len(samples) < most and (len(samples) < FEW or min(samples) <= limit_us):
        samples.append(replay.took(torch) - lane.alone())
    timing = _summary(contestant.name, samples)
    if timing.median_us <= 0:
        raise LaunchError(f"a time of {timing.median_us:.2f} us: another program is using the card")
    return timing


def time_launches(call: Call, wait: Call) -> float:
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


@dataclass(frozen=True, slots=True)
class _Replay:
    """A captured graph of so many calls, between two events that are part of it: what the host does meanwhile, which
    may be compiling or searching, is not in its time."""

    run: Call
    calls: int
    begin: Any
    end: Any

    def took(self, torch: Any) -> float:
        """Microseconds per call of one replay."""
        self.run()
        torch.cuda.synchronize()
        return float(self.begin.elapsed_time(self.end)) * 1e3 / self.calls


class Lane:
    """How calls are lined up in CUDA graphs: each `behind` a foreign kernel, or back to back after one that may `flush`
    L2, whose time is none of theirs. All inputs that are rotated may fit into L2: without that, kernels of 0.5 MB took
    1.5 us in one race and 1.9 in another, as what stood before them had left their inputs there or not."""

    def __init__(self, torch: Any, behind: Call | None, flush: Call | None = None) -> None:
        self.torch, self._behind, self._flush = torch, behind, flush
        self._foreign = self.captured(Contestant("", [_nothing])) if behind is not None else None

    @property
    def varies(self) -> bool:
        """Whether short calls take longer in one graph than in the next."""
        return self._behind is not None

    def ready(self, contestants: Sequence[Contestant]) -> dict[str, _Replay]:
        """Those that can be captured, by name, replayed a few times."""
        captured = {c.name: replay for c in contestants if (replay := self.captured(c)) is not None}
        for _ in range(3):
            for replay in captured.values():
                replay.run()
        self.torch.cuda.synchronize()
        return captured

    def captured(self, contestant: Contestant, wanted: int | None = None) -> _Replay | None:
        """The calls of a contestant, in order, again and again until there are enough for one graph; None if one of
        them cannot be captured."""
        wanted = wanted or (CALLS_PER_GRAPH if self._behind is None else BEHIND_CALLS)
        turns = [*contestant.calls] * math.ceil(wanted / len(contestant.calls))
        steps = turns
        if self._behind is not None:
            turns = turns[:wanted]
            steps = [step for call in turns for step in (self._behind, call)]
        begin, end = (self.torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
        before = [self._flush] if self._flush is not None else []
        graph = _capture([*before, begin.record, *steps, end.record], self.torch)
        return _Replay(graph.replay, len(turns), begin, end) if graph is not None else None

    def alone(self) -> float:
        """Microseconds that the foreign kernel takes just now."""
        return self._foreign.took(self.torch) if self._foreign is not None else 0.0


def _nothing() -> None:
    """No work."""


def took(enqueue: Call, torch: Any) -> float:
    """Microseconds that the card takes for what this enqueues on the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    enqueue()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _capture(turns: Sequence[Call], torch: Any) -> Any:
    """Calls as one CUDA graph, or None if one of them cannot be captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            for call in dict.fromkeys(turns):
                call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            # What other threads do, a search that compiles, is no part of it and does not spoil it.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                for call in turns:
                    call()
        except RuntimeError:
            torch.cuda.synchronize()
            return None
    torch.cuda.synchronize()
    return graph


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
