"""Every kernel that is shipped in a record is clean under NVIDIA's compute-sanitizer: memory, and races."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mirage_nb.bench.kernels import program_of
from mirage_nb.codegen import emit
from mirage_nb.ir.text import parse_graph
from mirage_nb.runtime.compile import compile_cubin
from mirage_nb.runtime.gpu import attached_gpu
from mirage_nb.runtime.saved import lower, write_file
from mirage_nb.targets import DEFAULT_TARGET, find_target

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

FOLDER = Path(__file__).parents[2] / "mirage_nb" / "bench" / "records"
SECONDS = 300


def shipped() -> list[Any]:
    """Workload, batch size and muGraph of every row that has one."""
    rows = [row for path in sorted(FOLDER.glob("kernels-*.json")) for row in json.loads(path.read_text())["rows"]]
    return [
        pytest.param(r["workload"], r["B"], r["mugraph"], id=f"{r['workload']}-{r['B']}") for r in rows if r["mugraph"]
    ]


@pytest.fixture(scope="module")
def sanitizer() -> str:
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if found is None:
        pytest.skip("compute-sanitizer is not on the PATH")
    return found


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize(("name", "batch", "mugraph"), shipped())
def test_no_wild_access_and_no_race(
    sanitizer: str, tool: str, name: str, batch: int, mugraph: str, tmp_path: Path
) -> None:
    gpu = attached_gpu()
    assert gpu is not None
    target = gpu.target() or find_target(DEFAULT_TARGET)
    program = program_of(name, batch)
    assert program is not None
    emitted = emit(parse_graph(mugraph), target)
    cubin = compile_cubin(emitted.source, target.arch)
    plan = lower(emitted, program.graph, arch=cubin.arch, cubin=cubin.data, about={"name": name}, scale=0.25)
    path = write_file(plan, tmp_path / "saved.py")
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--target-processes", "all"]
    done = subprocess.run(
        [*command, sys.executable, str(path), "--check"], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "right: relative error" in done.stdout
