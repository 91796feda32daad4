"""What a session on a card loads, begun before there is one: CuPy and PyTorch here, and what processes are forked of.

In: nothing. Out: a thread that loads, where there may be a card. Invariant: no card is touched, so that
CUDA_VISIBLE_DEVICES counts as it is when one is first used; what cannot be loaded is told by who needs it.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from pathlib import Path

from mirage_nb.runtime.contest.trial import warm
from mirage_nb.search.session.pool import NURSERY

DRIVERS = tuple(map(Path, ("/dev/nvidiactl", "/dev/dxg")))
"""One of them is there where a driver is."""


def load_ahead() -> threading.Thread | None:
    """Begin to load, which takes seconds where nothing is loaded; None where no driver is. An interpreter that ends
    meanwhile waits for it: libraries cannot be left half loaded."""
    if not any(driver.exists() for driver in DRIVERS):
        return None
    (thread := threading.Thread(target=_load, name="mirage loads")).start()
    return thread


def _load() -> None:
    NURSERY.needs(warm)
    with contextlib.suppress(Exception):
        NURSERY.begin()
    for name in ("cupy", "torch"):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
