"""Two workers are nearly twice as fast as one, on a machine that has two cores to give."""

from __future__ import annotations

import os
import time

import pytest

from mirage_nb.bench.workloads import workload
from mirage_nb.lang import parse
from mirage_nb.search.session.progress import Snapshot
from mirage_nb.search.session.session import SearchSession
from mirage_nb.settings import read_settings
from mirage_nb.targets import find_target

pytestmark = pytest.mark.slow

SPEED_UP = 1.6
LEAST_SECONDS = 5.0


def timed(workers: int, monkeypatch: pytest.MonkeyPatch) -> tuple[float, Snapshot]:
    monkeypatch.setenv("MIRAGE_NB_WORKERS", str(workers))
    started = time.monotonic()
    found = SearchSession(parse(workload("qknorm")).graph, find_target("h200")).start().result(1200)
    return time.monotonic() - started, found


def test_two_workers_against_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, busy = read_settings().workers, os.getloadavg()[0]
    if cores < 2 or busy > cores - 1.5:
        pytest.skip(f"{cores} cores with a load of {busy:.1f}: there are no two to measure on")
    two, found = timed(2, monkeypatch)
    one, expected = timed(1, monkeypatch)
    print(f"\none worker {one:.1f} s, two workers {two:.1f} s: {one / two:.2f} times as fast")
    assert found.candidates == expected.candidates and found.counts == expected.counts
    assert one > LEAST_SECONDS and one / two >= SPEED_UP
