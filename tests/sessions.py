"""What tests of sessions share: a program that takes long, waiting, and who else is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from mirage_nb.search.session.progress import Snapshot

LONG = (  # tens of seconds at standard effort
    "Q: f16[2, 256, 64]\nK: f16[2, 64, 4096]\nV: f16[2, 4096, 64]\n"
    "E = exp(Q @ K)\nreturn (E / sum(E, axis=-1, keepdims=True)) @ V"
)

FOREVER = 600
"""Seconds that something takes which a test does not wait for."""
SOON = 300
"""What ends within so many does end: others may have nearly all of the machine meanwhile."""


def until(condition: Callable[[], object], seconds: float = SOON) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def alive(pid: int | str) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return "Z (zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def children() -> set[str]:
    """All processes that this one started and that are there, zombies included."""
    found = Path("/proc/self/task").glob("*/children")
    return {pid for thread in found for pid in thread.read_text().split()}


def threads() -> set[threading.Thread]:
    """All threads of this process: those of other tests may end at any moment."""
    return set(threading.enumerate())


def facts(snapshot: Snapshot) -> tuple[object, ...]:
    """What equal seeds make equal."""
    return (snapshot.candidates, snapshot.counts, snapshot.prefixes, snapshot.cut, snapshot.exhausted)
