"""`bench cost`: how well the cost model ranks, on the attached GPU or against a record.

Instances of every structure that a quick search finds, drawn over the whole range of estimates, are
emitted the default way, checked against float64 and timed in one race per workload. Prints Spearman's
rank correlation and the estimated rank of the fastest; the record holds every instance for a refit.
`--from RECORD` needs no GPU: it searches again, finds the recorded instances and ranks them with the model
as it is now; then every workload again with constants that the others alone would give (`bench.refit`).
`bench/records` keeps what the constants of the model were fitted to: `-workloads` is the whole, instances of
every workload that a standard search finds, each emitted the best of a few ways; `tried` names those that were timed
besides the default one, and only they are estimated. A record names a muGraph by its text form. Parts of a cut are
chosen by estimate, so that a new model assembles other muGraphs of them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mirage_nb.bench.machine import card, keep, reading
from mirage_nb.bench.refit import Estimator, Found
from mirage_nb.bench.workloads import workload
from mirage_nb.codegen import emit
from mirage_nb.errors import MirageError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.lang import TensorProgram, parse
from mirage_nb.runtime.execution.buffers import draw_sample
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.search import (
    EFFORTS,
    Assembly,
    Instance,
    Prepared,
    Structure,
    configurations,
    instances,
    prepare,
    run_configuration,
    sized,
)
from mirage_nb.search.sizes.constants import FITTED
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target

EFFORT = "quick"
"""How far `bench cost` searches; a record names its own effort where it is another one."""


def run_cost(names: Sequence[str], batch: int, count: int, record: str | None) -> int:
    """Measure `count` instances of each workload; print the correlations; write the record."""
    gpu = card("cost", hint="rank a record with --from FILE, or see `doctor`")
    target = gpu.target() or find_target(DEFAULT_TARGET)
    rows = []
    for name in names:
        measured = list(_measure(_program(name, batch), count, target, gpu))
        rows += [{"workload": name, "B": batch, **row} for row in measured]
        sys.stdout.write(summary(name, measured) + "\n")
        sys.stdout.flush()
    keep(record, {"card": gpu.name, "target": target.name, "rows": rows})
    return 0


def rank_record(path: str) -> int:
    """Estimate the instances of a record anew and print the correlations; no GPU needed."""
    target, rows = read_record(Path(path))
    every: list[Found] = []
    for name, batch in dict.fromkeys((row["workload"], row["B"]) for row in rows):
        wanted = [row for row in rows if (row["workload"], row["B"]) == (name, batch) and row["time_us"] is not None]
        found = as_timed(found_again(wanted, _program(name, batch), target), target)
        every += found
        lost = len(wanted) - len(found)
        told = f"; {lost} not found by the search of today" if lost else ""
        sys.stdout.write(summary(name, [one.row for one in found]) + told + "\n")
        sys.stdout.flush()
    for line in left_out(every, target):
        sys.stdout.write(line + "\n")
    return 0


def as_timed(found: Sequence[Found], target: Target) -> list[Found]:
    """The same instances, each with its estimate for the ways in which it was timed."""
    estimates = Estimator(found, target).us(FITTED)
    return [replace(one, row={**one.row, "estimate_us": float(us)}) for one, us in zip(found, estimates, strict=True)]


def left_out(found: Sequence[Found], target: Target) -> Iterator[str]:
    """One line per workload: how it is ranked with constants that were fitted to the other workloads alone."""
    names = [f"{one.row['workload']}" + (f" B={one.row['B']}" if one.row["B"] != 1 else "") for one in found]
    if len(set(names)) < 2:
        return
    times = np.array([float(one.row["time_us"]) for one in found])
    without = Estimator(found, target).without(times, names)
    yield "with constants fitted to the other workloads alone:"
    for name in dict.fromkeys(names):
        mine = [(one.row, float(us)) for one, us, other in zip(found, without, names, strict=True) if other == name]
        yield summary(name, [{**row, "estimate_us": us} for row, us in mine])


def read_record(path: Path) -> tuple[Target, list[dict[str, Any]]]:
    """The target and the rows of a record.

    Raises OptionError if it cannot be read.
    """
    with reading(path, "cost"):
        record = json.loads(path.read_text())
        rows: list[dict[str, Any]] = record["rows"]
        for row in rows:
            row.setdefault("effort", record.get("effort", EFFORT))
            row.setdefault("digest", text_digest(parse_graph(row["mugraph"])) if "mugraph" in row else "")
        return find_target(record.get("target", DEFAULT_TARGET)), rows


def found_again(rows: Sequence[dict[str, Any]], program: TensorProgram, target: Target) -> list[Found]:
    """The rows whose instances a search finds again, with the estimates of the model as it is now."""
    missing: dict[tuple[tuple[str, int], ...], list[dict[str, Any]]] = {}
    for row in rows:
        missing.setdefault(tuple(sorted(row["sizes"].items())), []).append(row)
    found = []
    prepared = prepare(program.graph)
    efforts = dict.fromkeys(str(row["effort"]) for row in rows)
    for structure in (s for effort in efforts for s in structures(prepared, effort)):
        for sizes, open_ in missing.items():
            fits = open_ and _named_alike(structure, prepared, {name for name, _ in sizes})
            instance = sized(structure, prepared, target, dict(sizes)) if fits else None
            if instance is None:
                continue
            mine = text_digest(instance.graph)
            same = [row for row in open_ if row["digest"] == mine]
            found += [Found({**row, "estimate_us": instance.cost.us}, prepared, structure, instance) for row in same]
            missing[sizes] = [row for row in open_ if row not in same]
    return found


def text_digest(graph: KernelGraph) -> str:
    """How a record names a muGraph: by its text form, which stays when operators get new attributes."""
    return hashlib.sha256(print_graph(graph).encode()).hexdigest()[:16]


def _named_alike(structure: Structure, prepared: Prepared, names: set[str]) -> bool:
    """Whether sizes of these names can be those of an instance: split and looped axes of every kernel are there."""
    if isinstance(structure, Assembly):
        return all(any(name.startswith(f"P{n + 1} ") for n in range(len(structure.parts))) for name in names)
    names = {*prepared.named(dict.fromkeys(names, 0))}
    for number, kernel in enumerate(structure.kernels):
        prefix = f"K{number + 1} " if len(structure.kernels) > 1 else ""
        wanted = {f"{prefix}grid {prepared.axes[axis].name}" for axis in kernel.grid}
        if kernel.loop is not None:
            wanted.add(f"{prefix}loop {prepared.axes[kernel.loop].name}")
        if not wanted <= names or any(n.startswith("K1 ") for n in names) != (len(structure.kernels) > 1):
            return False
        if kernel.loop is None and any(n.startswith(f"{prefix}loop") for n in names):
            return False
    return True


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
    from mirage_nb.runtime.contest.race import Track
    from mirage_nb.runtime.execution.launch import GpuExecutable

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
            "tried": [],
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
    for lap in Track(program.graph, gpu, sample.scale).race(entries, {}, 10):
        rows[lap.name]["time_us"] = lap.timing.median_us if lap.timing else None
    yield from rows.values()


def structures(prepared: Prepared, effort: str = EFFORT) -> Iterator[Structure]:
    """Every structure that a search of this effort extracts."""
    bounds = EFFORTS[effort]
    for configuration in configurations(prepared, bounds):
        result = run_configuration(prepared, configuration, bounds, bounds.budget)
        yield from result.structures


def all_instances(program: TensorProgram, target: Target) -> Iterator[Instance]:
    """Legal instances of every structure that a quick search extracts, up to 200 of each."""
    prepared = prepare(program.graph)
    for structure in structures(prepared):
        yield from instances(structure, prepared, target, limit=200)


def _program(name: str, batch: int) -> TensorProgram:
    program = parse(workload(name), name=name)
    return parse(workload(name), name=name, sizes={"B": batch}) if "B" in program.sizes else program


def spread(found: Sequence[Instance], count: int) -> list[Instance]:
    """A third of the best estimates, the rest evenly over all of them."""
    ranked = sorted(found, key=lambda i: (i.cost.us, i.graph.digest()))
    first = ranked[: count // 3]
    rest = ranked[count // 3 :]
    step = max(1, len(rest) // max(1, count - len(first)))
    return first + rest[::step][: count - len(first)]
