"""Saved muGraphs under NVIDIA's compute-sanitizer, many processes side by side.

In: what makes files that stand alone (see `saved`), tools of the sanitizer. Out: for every file and tool what was
wrong, nothing if it is clean. Invariant: clean is only what ran under the tool and was right.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from mirage_nb.errors import MissingPartError
from mirage_nb.settings import read_settings

SECONDS = 300.0
"""What one run may take."""
DIRTY = 9
"""The exit code that the sanitizer is told to use."""
LINES = 6
"""Lines of a complaint that are shown."""

Found = tuple[float, str]
"""Seconds that a run took, and its complaint; empty if the kernel is clean and right."""


def find_sanitizer() -> str:
    """Where compute-sanitizer is. Raises MissingPartError."""
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if found is None:
        raise MissingPartError("compute-sanitizer is not on the PATH", hint="it comes with the CUDA toolkit")
    return found


def sanitized(
    files: Sequence[Callable[[], Path]], tools: Sequence[str], sanitizer: str
) -> Iterator[tuple[int, str, Found]]:
    """Run the self-check of every file under every tool; files are made, and runs begun, in this order. Yields the
    number of a file, a tool, and what it found, as they end.

    Args:
        files: each makes a saved muGraph and returns its path; what one raises is the complaint about it.
        tools: of the sanitizer, for example "memcheck".
        sanitizer: the program.
    """
    with ThreadPoolExecutor(read_settings().workers, "mirage sanitizer") as lanes:
        begun: dict[Future[Found], tuple[int, str]] = {}
        for number, make in enumerate(files):
            made = lanes.submit(make)
            begun |= {lanes.submit(_run, sanitizer, tool, made.result): (number, tool) for tool in tools}
        for run in as_completed(begun):
            yield *begun[run], run.result()


def _run(sanitizer: str, tool: str, file: Callable[[], Path]) -> Found:
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(DIRTY), "--target-processes", "all"]
    started = time.monotonic()
    try:
        done = subprocess.run(
            [*command, sys.executable, str(file()), "--check"], capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return time.monotonic() - started, f"did not end within {SECONDS:g} s"
    except Exception as error:  # noqa: BLE001  # one file must not keep the others from being checked
        return time.monotonic() - started, f"not checked: {error}"
    seconds = time.monotonic() - started
    if done.returncode == 0 and "right: relative error" in done.stdout:
        return seconds, ""
    return seconds, complaint(done.stdout + done.stderr) or f"ended with status {done.returncode}"


def complaint(output: str) -> str:
    """The first lines of what was wrong: of the sanitizer, else the last ones of the program."""
    marked = [line.lstrip("= ") for line in output.splitlines() if line.startswith("=========")]
    told = [line for line in marked if line and not re.match("COMPUTE-SANITIZER|(ERROR|RACECHECK) SUMMARY: 0", line)]
    return "\n    ".join((told or output.strip().splitlines()[-LINES:])[:LINES])
