"""Many calls in worker processes, for as long as there is time.

In: calls as they are wanted. Out: what they return, in the order in which they end. Invariant: a few calls wait for
each process, no more are made, and no process is left.
"""

from __future__ import annotations

import concurrent.futures as futures
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from mirage_nb.search.session.pool import Workers

AHEAD = 3
"""Calls that wait for every process."""

T = TypeVar("T")


def one_thread() -> futures.Executor:
    """Runs calls one after the other in a thread of this process: nothing has to be started for them."""
    return futures.ThreadPoolExecutor(1)


def side_by_side(
    calls: Iterator[Callable[[], T]],
    taken: Callable[[T], bool],
    jobs: int,
    seconds: float,
    failed: Callable[[str], None],
) -> None:
    """Make calls in so many processes until they end, `taken` says that it is enough, or time is up; `failed` is told
    of what a call raised."""
    deadline = time.monotonic() + seconds
    workers = Workers(jobs)
    waiting: set[futures.Future[T]] = set()
    try:
        while time.monotonic() < deadline:
            waiting |= {workers.submit(call) for call in itertools.islice(calls, AHEAD * jobs - len(waiting))}
            if not waiting:
                return
            done, waiting = futures.wait(waiting, deadline - time.monotonic(), futures.FIRST_COMPLETED)
            for one in done:
                error = one.exception()
                if error is not None:
                    failed(f"{type(error).__name__}: {error}")
                elif taken(one.result()):
                    return
    finally:
        workers.terminate()
