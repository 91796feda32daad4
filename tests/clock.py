"""Limits on what a call may take, that hold on a busy machine and in an interpreter that many tests have filled."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """What is done inside takes fewer CPU seconds of this thread; what other tests left behind is not collected
    meanwhile, which takes seconds."""
    collecting = gc.isenabled()
    gc.disable()
    started = time.thread_time()
    try:
        yield
        took = time.thread_time() - started
    finally:
        if collecting:
            gc.enable()
    assert took < seconds


def keeps_to(seconds: float, run: Callable[[], float]) -> None:
    """What a run says that it took, by the wall, is within so many seconds, now or on one of two further runs: a busy
    machine stalls once, a limit that is not kept is never kept."""
    taken: list[float] = []
    while len(taken) < 3 and min(taken, default=seconds + 1) > seconds:
        taken.append(run())
    assert min(taken) <= seconds, taken
