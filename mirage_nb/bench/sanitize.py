"""`bench sanitize`: every kernel of a record under NVIDIA's compute-sanitizer, for wild accesses and for races.

In: a record of `bench kernels`. Every row's muGraph, emitted as the row says, becomes a file that stands alone
(`runtime.saved`); the sanitizer runs its self-check, many processes side by side. Out: a line for every row and tool,
and an exit code: 0 if all of them are clean and right. Needs a GPU and compute-sanitizer.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mirage_nb.bench.kernels import program_of, read_record
from mirage_nb.codegen import Emitted, emit, variants
from mirage_nb.errors import MissingPartError, OptionError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.text import parse_graph
from mirage_nb.runtime.compile import compile_cubin
from mirage_nb.runtime.gpu import attached_gpu
from mirage_nb.runtime.saved import lower, write_file
from mirage_nb.settings import read_settings
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target

TOOLS = ("memcheck", "racecheck")
SECONDS = 300.0
"""What one run may take."""
DIRTY = 9
"""The exit code that the sanitizer is told to use."""
SCALE = 0.25
"""Standard deviation of the inputs: no workload overflows in f16 then."""
LINES = 6
"""Lines of a complaint that are shown."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One kernel under one tool: clean and right if `complaint` is empty."""

    row: str
    tool: str
    seconds: float
    complaint: str


def run_sanitize(path: str, names: Sequence[str], tools: Sequence[str] = TOOLS) -> int:
    """Check the kernels of a record, those of these workloads; print a line for each. Returns an exit code.

    Raises:
        MissingPartError: no GPU, or no compute-sanitizer.
        OptionError: no record, or none of its rows is asked for.
    """
    gpu = attached_gpu()
    if gpu is None:
        raise MissingPartError("bench sanitize needs a GPU")
    rows = [row for row in read_record(Path(path))["rows"] if row.get("mugraph") and row["workload"] in names]
    if not rows:
        raise OptionError(f"{path} has no kernels of these workloads")
    started, wrong, count = time.monotonic(), 0, 0
    for checked in sanitized(rows, tools, gpu.target() or find_target(DEFAULT_TARGET), find_sanitizer()):
        count += 1
        wrong += bool(checked.complaint)
        found = checked.complaint or "clean"
        sys.stdout.write(f"{checked.row:<20}{checked.tool:<12}{checked.seconds:>7.1f} s  {found}\n")
    took = time.monotonic() - started
    sys.stdout.write(f"{count} runs in {took:.0f} s on the {gpu.name}: {count - wrong} clean, {wrong} not\n")
    return 1 if wrong else 0


def find_sanitizer() -> str:
    """Where compute-sanitizer is. Raises MissingPartError."""
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if found is None:
        raise MissingPartError("compute-sanitizer is not on the PATH", hint="it comes with the CUDA toolkit")
    return found


def sanitized(
    rows: Sequence[dict[str, Any]], tools: Sequence[str], target: Target, sanitizer: str
) -> Iterator[Checked]:
    """What the tools say of the kernels of rows, in order; the largest inputs are begun first."""
    with tempfile.TemporaryDirectory(prefix="mirage-nb-") as folder:
        with ThreadPoolExecutor(read_settings().workers, "mirage sanitizer") as lanes:
            begun = {}
            for number in sorted(range(len(rows)), key=lambda n: _elements(rows[n]), reverse=True):
                name = _name(rows[number])
                file = lanes.submit(standing_alone, rows[number], target, Path(folder) / f"row{number}.py")
                begun[number] = [lanes.submit(_run, sanitizer, tool, name, file.result) for tool in tools]
            for number in range(len(rows)):
                for future in begun[number]:
                    yield future.result()


def standing_alone(row: dict[str, Any], target: Target, path: Path) -> Path:
    """The kernels of a row as a file that runs by itself. Raises MirageError where they are emitted no more."""
    program = program_of(row["workload"], row["B"])
    if program is None:
        raise OptionError(f"{_name(row)}: this workload has no such batch size")
    emitted = emitted_as(parse_graph(row["mugraph"]), row.get("emitted"), target)
    cubin = compile_cubin(emitted.source, target.arch)
    about = {"name": _name(row), "emitted": str(emitted.options)}
    return write_file(
        lower(emitted, program.graph, arch=cubin.arch, cubin=cubin.data, about=about, scale=SCALE), path
    )


def emitted_as(graph: KernelGraph, options: str | None, target: Target) -> Emitted:
    """A muGraph emitted the way whose text a record has; the default one where that is no way of it any more."""
    ways = {str(way): way for way in variants(graph, target)} if options else {}
    return emit(graph, target, ways.get(options or ""))


def _run(sanitizer: str, tool: str, row: str, file: Callable[[], Path]) -> Checked:
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(DIRTY), "--target-processes", "all"]
    started = time.monotonic()
    told = partial(Checked, row, tool)
    try:
        done = subprocess.run(
            [*command, sys.executable, str(file()), "--check"], capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return told(time.monotonic() - started, f"did not end within {SECONDS:g} s")
    except Exception as error:  # noqa: BLE001  # one row must not keep the others from being checked
        return told(time.monotonic() - started, f"not checked: {error}")
    seconds = time.monotonic() - started
    if done.returncode == 0 and "right: relative error" in done.stdout:
        return told(seconds, "")
    return told(seconds, complaint(done.stdout + done.stderr) or f"ended with status {done.returncode}")


def complaint(output: str) -> str:
    """The first lines of what was wrong: of the sanitizer, else the last ones of the program."""
    marked = [line.lstrip("= ") for line in output.splitlines() if line.startswith("=========")]
    told = [line for line in marked if line and not re.match("COMPUTE-SANITIZER|(ERROR|RACECHECK) SUMMARY: 0", line)]
    return "\n    ".join((told or output.strip().splitlines()[-LINES:])[:LINES])


def _name(row: dict[str, Any]) -> str:
    return f"{row['workload']} B={row['B']}"


def _elements(row: dict[str, Any]) -> int:
    program = program_of(row["workload"], row["B"])
    return sum(t.elements for t in program.graph.types) if program is not None else 0
