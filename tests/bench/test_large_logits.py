"""Attention whose scores lie anywhere between -1000 and 1000 is as right as any other."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from mirage_nb import superoptimize
from mirage_nb.bench.workloads import workload
from mirage_nb.codegen import emit
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.execute import CpuExecutable, Executable
from mirage_nb.runtime.gpu import attached_gpu
from mirage_nb.search import EFFORTS, configurations, prepare
from mirage_nb.search.session.findings import Bounds
from mirage_nb.search.session.worker import Channel, Task, explore
from mirage_nb.targets import DEFAULT_TARGET, find_target
from mirage_nb.verify.reals.float_gate import Array, compare, reference

SAFE = ("attention_safe", "decode70b")
LARGEST = 1000.0


def shortened(text: str) -> str:
    """The same program for 8 queries and 128 keys."""
    return re.sub(r"\b(4096|8192)\b", "128", text.replace("256,", "8,"))


def scored(program: KernelGraph, seed: int) -> list[Array]:
    """Queries, keys, values; the largest score of all is a thousand, in both directions."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(i.type.shape) for i in program.inputs)
    q *= LARGEST * q.shape[-1] ** 0.5 / np.abs(q @ k.swapaxes(1, 2)).max()
    at = np.unravel_index(np.argmax(np.abs(q @ k.swapaxes(1, 2)).max(axis=2)), q.shape[:2])
    q[at[0], (at[1] + 1) % q.shape[1]] = -q[at]
    return [array.astype(np.float16) for array in (q, k, v)]


def is_right(program: KernelGraph, executable: Executable) -> None:
    inputs = scored(program, 3)
    q, k, _ = (array.astype(np.float64) for array in inputs)
    scores = q @ k.swapaxes(1, 2) * q.shape[-1] ** -0.5
    assert 990 < scores.max() < 1010 and -1010 < scores.min() < -990
    right = reference(program, dict(zip((i.name for i in program.inputs), inputs, strict=True)))
    report = compare(executable.run(inputs), right)
    assert report.ok, report.note


@pytest.mark.parametrize("name", SAFE)
def test_on_the_cpu_edition(name: str) -> None:
    program = parse(shortened(workload(name))).graph
    effort, target = EFFORTS["quick"], find_target(DEFAULT_TARGET)
    bounds, channel = Bounds("quick", effort.budget), Channel(Path("/nowhere"))
    agenda = configurations(prepare(program), effort)
    done = [explore(Task(0, program, c, bounds, target, 0, None, channel)) for c in agenda]
    fused = [c for one in done for c in one.findings.candidates if len(c.graph.ops) == 1]
    best = min(fused, key=lambda candidate: candidate.estimate_us)
    is_right(program, CpuExecutable(emit(best.graph, target)))


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", SAFE)
def test_on_the_card(name: str, batch: int) -> None:
    assert attached_gpu() is not None
    text = workload(name)
    session = superoptimize(text, effort="quick", sizes={"B": batch})
    session.result(300)
    assert session.best is not None and session.best.executable.device != CpuExecutable.device
    is_right(parse(text, sizes={"B": batch}).graph, session.best.executable)
