"""How long whole spaces take: every muGraph of one kernel, and of two, up to two operators above the smallest.

In: the name of a workload, repeats. Out: one `Space` for each number of kernels: the median CPU seconds in which all
configurations were saturated and extracted one after the other (the search of one configuration is single-threaded
and waits for nothing, so this is the time on an idle core), counts, what was left out, and the peak memory of the
process that did nothing else.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mirage_nb.bench.workloads import workload
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Budget, configurations, prepare, run_configuration
from mirage_nb.search.session.pool import Workers

EFFORT = replace(EFFORTS["standard"], extra=2, structures=100_000, prefixes=0)
"""Everything up to two operators above the smallest graph, and no sample of events."""
LONG_SECONDS = 3.0
"""Runs that take longer are not repeated."""


@dataclass(frozen=True, slots=True)
class Space:
    """One cell.

    `seconds`: of CPU time, median of `runs`; `saturated`: every closure was; `cut`: how many things were left out, each
    named in `ConfigurationResult.cut`; `peak_mib`: peak memory of the process, the interpreter included.
    """

    workload: str
    kernels: int
    seconds: float
    runs: int
    values: int
    structures: int
    saturated: bool
    cut: int
    peak_mib: float


def measure(name: str, limit: float, repeats: int = 3) -> Iterator[Space]:
    """The spaces of one and of two kernels of a workload, each in a fresh process. `limit`: CPU seconds of one run."""
    for kernels in (1, 2):
        pool = Workers(1)
        try:
            yield pool.submit(explore, name, kernels, limit, repeats).result()
        finally:
            pool.shutdown()


def explore(name: str, kernels: int, limit: float, repeats: int) -> Space:
    """One cell, measured in this process. Configurations that the limit leaves no time for count as cut."""
    program = parse(workload(name), name=name).graph
    seconds: list[float] = []
    values = structures = cut = 0
    saturated = True
    while not seconds or (len(seconds) < repeats and seconds[0] < LONG_SECONDS):
        values = structures = cut = 0
        saturated = True
        start = time.process_time()
        prepared = prepare(program)
        for configuration in configurations(prepared, replace(EFFORT, kernels=kernels)):
            if configuration.kernels != kernels:
                continue
            left = Budget(seconds=max(0.0, limit - (time.process_time() - start)))
            result = run_configuration(prepared, configuration, EFFORT, left)
            values += result.values
            structures += len(result.structures)
            saturated &= result.saturated
            cut += len(result.cut)
        seconds.append(time.process_time() - start)
    return Space(
        name, kernels, statistics.median(seconds), len(seconds), values, structures, saturated, cut, _peak_mib()
    )


def _peak_mib() -> float:
    """Peak memory of this process: on Linux of the program alone, not of the one that it was forked from."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    peaks = [float(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return (peaks[0] if peaks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024
