"""Every kernel that is shipped in a record, emitted as the record says, is right on the CPU edition at its shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mirage_nb.bench.kernels import program_of, recorded_way
from mirage_nb.codegen import emit
from mirage_nb.ir.text import parse_graph
from mirage_nb.runtime.execution.buffers import decode
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.targets import DEFAULT_TARGET, find_target
from mirage_nb.verify.reals.float_gate import compare, reference
from tests.bench.shipped import shipped
from tests.codegen.running import WAYS, draw

SCALE = 0.25
FEW = {f"{workload} B=1" for workload in ("lora", "gqa", "ntrans", "decode70b")}
"""Products, a split of keys, rows and shared heads: those that the CPU edition runs in a second."""


def name(row: dict[str, Any]) -> str:
    return f"{row['workload']} B={row['B']}"


def test_all_of_them_are_here() -> None:
    assert {(row["workload"], row["B"]) for row in shipped()} >= {
        *((name, batch) for name in ("rmsnorm", "gated_mlp", "lora", "gqa", "qknorm", "ntrans", "decode70b")
          for batch in (1, 8)), ("mha", 1), ("mqa", 1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "ways"),
    [
        *(pytest.param(row, [WAYS[at // 2 % 2]], id=name(row)) for at, row in enumerate(shipped()) if name(row) in FEW),
        *(pytest.param(row, WAYS, id=f"{name(row)}, all ways", marks=pytest.mark.slow) for row in shipped()),
    ],
)
def test_eager_and_deferred(row: dict[str, Any], ways: Sequence[dict[str, Any]]) -> None:
    """The default tests take one way of some kernels of one row, the slow ones all."""
    program, target = program_of(row["workload"], row["B"]), find_target(DEFAULT_TARGET)
    assert program is not None
    graph = parse_graph(row["mugraph"])
    emitted = emit(graph, target, recorded_way(graph, row["emitted"], target))
    inputs = draw(program.graph, scale=SCALE)
    right = reference(
        program.graph, {i.name: decode(a, i.type.dtype) for a, i in zip(inputs, program.graph.inputs, strict=True)}
    )
    executable = CpuExecutable(emitted)
    for how in ways:
        outputs = [decode(a, t.dtype) for a, t in zip(executable.run(inputs, **how), graph.output_types, strict=True)]
        report = compare(outputs, right)
        assert report.ok, (how, report.note)
