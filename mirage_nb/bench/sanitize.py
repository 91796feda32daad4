"""`bench sanitize`: every kernel of a record under NVIDIA's compute-sanitizer, for wild accesses and for races.

In: a record of `bench kernels`. Every row's muGraph, emitted as the row says, becomes a file that stands alone
(`kernel.saved`), and the sanitizer runs its self-check (`runtime.sanitize`). Out: a line for every row and tool, and
an exit code: 0 if all of them are clean and right. Needs a GPU and compute-sanitizer.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mirage_nb.bench.kernels import program_of, read_record, recorded_way
from mirage_nb.bench.machine import card
from mirage_nb.codegen import emit
from mirage_nb.errors import OptionError
from mirage_nb.ir.text import parse_graph
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.kernel.saved import lower, write_file
from mirage_nb.runtime.sanitize import find_sanitizer, sanitized
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target

TOOLS = ("memcheck", "racecheck")
SCALE = 0.25
"""Standard deviation of the inputs: no workload overflows in f16 then."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One kernel under one tool: clean and right if `complaint` is empty."""

    row: str
    tool: str
    seconds: float
    complaint: str


def run_sanitize(path: str, names: Sequence[str], tools: Sequence[str] = TOOLS) -> int:
    """Check the kernels of a record, those of rows whose names have one of these parts (default: all); print a line for
    each as it ends. Returns an exit code.

    Raises:
        MissingPartError: no GPU, or no compute-sanitizer.
        OptionError: no record, or none of its rows is asked for.
    """
    gpu = card("sanitize", hint="see `python -m mirage_nb doctor`")
    known = [row for row in read_record(Path(path))["rows"] if row.get("mugraph")]
    rows = [row for row in known if not names or any(name in row["workload"] for name in names)]
    if not rows:
        raise OptionError(f"{path} has no kernels of these rows")
    started, wrong, count = time.monotonic(), 0, 0
    for one in checked(rows, tools, gpu.target() or find_target(DEFAULT_TARGET), find_sanitizer()):
        count += 1
        wrong += bool(one.complaint)
        sys.stdout.write(f"{one.row:<34}{one.tool:<12}{one.seconds:>7.1f} s  {one.complaint or 'clean'}\n")
        sys.stdout.flush()
    took = time.monotonic() - started
    sys.stdout.write(f"{count} runs in {took:.0f} s on the {gpu.name}: {count - wrong} clean, {wrong} not\n")
    return 1 if wrong else 0


def checked(rows: Sequence[dict[str, Any]], tools: Sequence[str], target: Target, sanitizer: str) -> Iterator[Checked]:
    """What the tools say of the kernels of rows, as they end."""
    order = sorted(rows, key=_elements, reverse=True)  # what takes long is begun first
    with tempfile.TemporaryDirectory(prefix="mirage-nb-") as folder:
        files = [partial(standing_alone, row, target, Path(folder) / f"row{n}.py") for n, row in enumerate(order)]
        for number, tool, (seconds, complaint) in sanitized(files, tools, sanitizer):
            yield Checked(_name(order[number]), tool, seconds, complaint)


def standing_alone(row: dict[str, Any], target: Target, path: Path) -> Path:
    """The kernels of a row as a file that runs by itself. Raises MirageError where they are emitted no more."""
    program = program_of(row["workload"], row["B"])
    if program is None:
        raise OptionError(f"{_name(row)}: this workload has no such batch size")
    graph = parse_graph(row["mugraph"])
    emitted = emit(graph, target, recorded_way(graph, row.get("emitted"), target))
    cubin = compile_cubin(emitted.source, target.arch)
    about = {"name": _name(row), "emitted": str(emitted.options)}
    return write_file(lower(emitted, program.graph, arch=cubin.arch, cubin=cubin.data, about=about, scale=SCALE), path)


def _name(row: dict[str, Any]) -> str:
    return f"{row['workload']} B={row['B']}"


def _elements(row: dict[str, Any]) -> int:
    program = program_of(row["workload"], row["B"])
    return sum(t.elements for t in program.graph.types) if program is not None else 0
