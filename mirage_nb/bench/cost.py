"""`bench cost`: how well the cost model ranks, on the attached GPU.

Instances of every structure that a quick search finds, drawn over the whole range of estimates, are
emitted the default way, checked against float64 and timed in one race per workload. Prints Spearman's
rank correlation and the estimated rank of the fastest; the record holds every instance for a refit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mirage_nb.bench.workloads import workload
from mirage_nb.codegen import emit
from mirage_nb.errors import MirageError, MissingPartError
from mirage_nb.ir.text import print_graph
from mirage_nb.lang import TensorProgram, parse
from mirage_nb.runtime.buffers import draw_sample
from mirage_nb.runtime.compile import compile_cubin
from mirage_nb.runtime.gpu import Gpu, attached_gpu
from mirage_nb.search import EFFORTS, Instance, configurations, instances, prepare, run_configuration
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target

EFFORT = EFFORTS["quick"]


def run_cost(names: Sequence[str], batch: int, count: int, record: str | None) -> int:
    """Measure `count` instances of each workload; print the correlations; write the record."""
    gpu = attached_gpu()
    if gpu is None:
        raise MissingPartError("bench cost needs a GPU", hint="see `python -m mirage_nb doctor`")
    target = gpu.target() or find_target(DEFAULT_TARGET)
    rows = []
    for name in names:
        program = parse(workload(name), name=name)
        if "B" in program.sizes:
            program = parse(workload(name), name=name, sizes={"B": batch})
        measured = list(_measure(program, count, target, gpu))
        rows += [{"workload": name, "B": batch, **row} for row in measured]
        sys.stdout.write(summary(name, measured) + "\n")
        sys.stdout.flush()
    if record:
        Path(record).write_text(json.dumps({"card": gpu.name, "rows": rows}))
    return 0


def summary(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """One line: instances timed, rank correlation, the fastest and its estimated rank."""
    timed = [row for row in rows if row["time_us"] is not None]
    if len(timed) < 3:
        return f"{name:<16}{len(timed)} instances: too few to rank"
    order = sorted(timed, key=lambda row: float(row["estimate_us"]))
    best = min(timed, key=lambda row: float(row["time_us"]))
    rho = spearman([r["estimate_us"] for r in timed], [r["time_us"] for r in timed])
    return (
        f"{name:<16}{len(timed):>5} timed, {len(rows) - len(timed)} not; rank correlation {rho:.2f}; "
        f"fastest {best['time_us']:.2f} us has estimated rank {order.index(best) + 1}, "
        f"first by estimate takes {order[0]['time_us']:.2f} us"
    )


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Spearman's rank correlation; ties share their mean rank."""
    return float(np.corrcoef(_ranks(left), _ranks(right))[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def _measure(program: TensorProgram, count: int, target: Target, gpu: Gpu) -> Iterator[dict[str, Any]]:
    from mirage_nb.runtime.launch import GpuExecutable
    from mirage_nb.runtime.race import race

    sample = draw_sample(program.graph, 0)
    entries: dict[str, GpuExecutable] = {}
    rows: dict[str, dict[str, Any]] = {}
    for instance in spread(list(all_instances(program, target)), count):
        key = instance.graph.digest()
        rows[key] = {
            "sizes": dict(instance.sizes),
            "mugraph": print_graph(instance.graph),
            "estimate_us": instance.cost.us,
            "time_us": None,
            "note": "",
        }
        try:
            emitted = emit(instance.graph, target)
            executable = GpuExecutable(emitted, compile_cubin(emitted.source, target.arch), gpu)
            report = executable.check(sample)
        except MirageError as error:
            rows[key]["note"] = error.message
            continue
        if report.ok:
            entries[key] = executable
        else:
            rows[key]["note"] = f"wrong: {report.note}"
    for lap in race(program.graph, entries, {}, gpu, scale=sample.scale, repeats=10):
        rows[lap.name]["time_us"] = lap.timing.median_us if lap.timing else None
    yield from rows.values()


def all_instances(program: TensorProgram, target: Target) -> Iterator[Instance]:
    """Every legal instance of every structure of one kernel that a quick search extracts."""
    prepared = prepare(program.graph)
    for configuration in configurations(prepared, EFFORT):
        result = run_configuration(
            prepared, configuration, EFFORT, EFFORT.budget, lambda counts: None, lambda: False
        )
        for structure in result.structures:
            yield from instances(structure, prepared, target, limit=200)


def spread(found: Sequence[Instance], count: int) -> list[Instance]:
    """A third of the best estimates, the rest evenly over all of them."""
    ranked = sorted(found, key=lambda i: (i.cost.us, i.graph.digest()))
    first = ranked[: count // 3]
    rest = ranked[count // 3 :]
    step = max(1, len(rest) // max(1, count - len(first)))
    return first + rest[::step][: count - len(first)]
