"""Limits on what a call may take, that hold on a busy machine and in an interpreter that many tests have filled."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator


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
