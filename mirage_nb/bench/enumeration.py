"""Table 5 of the paper: how long the search takes by the number of block operators, and what pruning is worth.

In: a program, bounds on operators, a limit in seconds. Out: one `Timed` for each bound and `Method`: the closure
or the literal Algorithm 1, with and without pruning by expression, on one worker or two. All methods look for
every graph of one kernel with at most that many operators (iterators, constants and savers not counted), in all
configurations; Algorithm 1 also counts graphs that compute one value twice. A run over the limit is reported as
such, and larger bounds are then not tried.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from mirage_nb.ir import KernelGraph
from mirage_nb.search import EFFORTS, Configuration, configurations, prepare
from mirage_nb.search.algorithm1 import Enumerator
from mirage_nb.search.explore import root_sets, splits
from mirage_nb.search.saturation.closure import Closure, Rules
from mirage_nb.search.saturation.extract import Extraction
from mirage_nb.search.saturation.sample import Sample
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.search.session.pool import Workers

EFFORT = replace(EFFORTS["standard"], kernels=1)
SHARES = 4
"""Pieces that one configuration of Algorithm 1 is cut into when there are several workers."""
REPEATS, QUICK_SECONDS = 3, 2.0
"""Runs that take less are repeated; their median counts."""


@dataclass(frozen=True, slots=True)
class Method:
    """One column of the table."""

    algorithm: str
    pruned: bool
    workers: int

    def __str__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"{self.algorithm}{'' if self.pruned else ' unpruned'}, {workers}"


METHODS = tuple(
    Method(algorithm, pruned, workers)
    for algorithm in ("closure", "Algorithm 1")
    for pruned in (True, False)
    for workers in (1, 2)
)


@dataclass(frozen=True, slots=True)
class Timed:
    """One cell.

    `seconds`: from start to end, None for a run over the limit; `cpu_seconds`: of all workers together;
    `looked_at`: values or prefixes; `graphs`: how many were found.
    """

    operators: int
    method: Method
    seconds: float | None
    cpu_seconds: float
    looked_at: int
    graphs: int


@dataclass(frozen=True, slots=True)
class _Task:
    """A piece of work for one worker. `deadline` is in seconds since the epoch."""

    program: KernelGraph
    configuration: Configuration
    method: Method
    bound: int
    share: tuple[int, int]
    deadline: float

    def late(self) -> bool:
        return time.time() > self.deadline


def measure(program: KernelGraph, bounds: Sequence[int], limit: float) -> Iterator[Timed]:
    """The cells, method by method; see the module."""
    for method in METHODS:
        pool = Workers(method.workers)
        try:
            _warm(pool, method.workers)
            for bound in sorted(bounds):
                timed = _median(program, bound, method, limit, pool)
                yield timed
                if timed.seconds is None:
                    break
        finally:
            pool.shutdown()


def count(program: KernelGraph, bound: int, method: Method) -> tuple[int, int]:
    """Values or prefixes looked at, and graphs found, in this process and without a limit."""
    parts = [
        _run(_Task(program, configuration, method, bound, (0, 1), float("inf")))
        for configuration in configurations(prepare(program), EFFORT)
    ]
    return sum(part[0] for part in parts), sum(part[1] for part in parts)


def _warm(pool: Executor, workers: int) -> None:
    """Let every worker import what it needs before the clock runs."""
    for future in [pool.submit(time.sleep, 0.2) for _ in range(workers)]:
        future.result()


def _median(program: KernelGraph, bound: int, method: Method, limit: float, pool: Executor) -> Timed:
    runs = [_timed(program, bound, method, limit, pool)]
    while len(runs) < REPEATS and runs[0].seconds is not None and runs[0].seconds < QUICK_SECONDS:
        runs.append(_timed(program, bound, method, limit, pool))
    seconds = [run.seconds for run in runs if run.seconds is not None]
    return replace(runs[0], seconds=statistics.median(seconds) if len(seconds) == len(runs) else None)


def _timed(program: KernelGraph, bound: int, method: Method, limit: float, pool: Executor) -> Timed:
    shares = SHARES if method.workers > 1 and method.algorithm != "closure" else 1
    start, deadline = time.perf_counter(), time.time() + limit
    futures = [
        pool.submit(_run, _Task(program, configuration, method, bound, (number, shares), deadline))
        for configuration in configurations(prepare(program), EFFORT)
        for number in range(shares)
    ]
    parts = [future.result() for future in futures]
    seconds = time.perf_counter() - start
    looked_at, graphs, ended, cpu = (list(column) for column in zip(*parts, strict=True))
    return Timed(bound, method, seconds if all(ended) else None, sum(cpu), sum(looked_at), sum(graphs))


def _run(task: _Task) -> tuple[int, int, bool, float]:
    """Values or prefixes looked at, graphs found, whether the work came to its end, and its CPU seconds."""
    start = time.process_time()
    semantics = Semantics(prepare(task.program), EFFORT.options)
    done = _enumerated(task, semantics) if task.method.algorithm == "Algorithm 1" else _closed(task, semantics)
    return (*done, time.process_time() - start)


def _enumerated(task: _Task, semantics: Semantics) -> tuple[int, int, bool]:
    leaves = closed(semantics, task.configuration, Rules(max_depth=0), task.late).values
    enumerator = Enumerator(
        semantics,
        leaves,
        task.configuration.loop,
        task.bound,
        prune=task.method.pruned,
        stopped=task.late,
        share=task.share,
    )
    graphs = sum(1 for _ in enumerator.run())
    return sum(enumerator.prefixes.values()), graphs, not enumerator.cut_short


def _closed(task: _Task, semantics: Semantics) -> tuple[int, int, bool]:
    rules = Rules(hold=False, oracle=task.method.pruned, max_depth=task.bound, max_values=10**9)
    closure = closed(semantics, task.configuration, rules, task.late)
    graphs = 0
    if closure.saturated:
        extraction = Extraction(closure.values)
        for roots in root_sets(closure, semantics, []):
            for size in range(1, task.bound + 1):
                found = extraction.graphs(sorted(set(roots)), size, task.late)
                graphs += sum(splits(closure, choice) for choice in found)
    return len(closure.values), graphs, closure.saturated and not task.late()


def closed(semantics: Semantics, configuration: Configuration, rules: Rules, late: Callable[[], bool]) -> Closure:
    """The closure of a configuration within these rules."""
    sample, grid = Sample(semantics, configuration.label, 0), frozenset(configuration.grid)
    closure = Closure(semantics, grid, configuration.loop, semantics.tensors, rules, sample, lambda counts: None, late)
    closure.run()
    return closure
