"""Ablations: every form of a plan computes the same, and each switch really switches something off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_nb.bench.ablation import SWITCHES, WHOLE, emitted_without, print_record, relative, same_code, table
from mirage_nb.codegen import Launch, Options
from mirage_nb.errors import MirageError, OptionError, TargetError
from mirage_nb.interp import evaluate
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.execution.buffers import draw_sample
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.targets import find_target
from tests.codegen import mugraphs
from tests.shares import crossed

H200 = find_target("h200")
GRAPHS: dict[str, KernelGraph] = {
    "rmsnorm": mugraphs.rmsnorm(8, 256, 128, 64, 2),
    "gated_mlp": mugraphs.gated_mlp(),
    "split attention": mugraphs.split_safe_attention(),
}


@crossed({
    "switch": SWITCHES,
    "name": GRAPHS,
})
def test_every_form_computes_the_same(name: str, switch: str) -> None:
    graph = GRAPHS[name]
    sample = draw_sample(graph, 5)
    try:
        emitted = emitted_without(switch, graph, H200)
    except MirageError as error:
        assert switch != WHOLE, error
        pytest.skip(str(error))
    executable = CpuExecutable(emitted)
    report = executable.check(sample)
    assert report.ok, (switch, report.note)
    late = executable.run(sample.inputs, deferred=True, order=3)
    exact = evaluate(graph, [a.astype(np.float64) for a in sample.inputs])
    for got, want in zip(late, exact, strict=True):
        assert np.abs(got.astype(np.float64) - want).max() <= 5e-3 * np.abs(want).max()


def text(switch: str, name: str, options: Options | None = None) -> str:
    return emitted_without(switch, GRAPHS[name], H200, options).source


def launches(switch: str, name: str) -> list[Launch]:
    return [s for s in emitted_without(switch, GRAPHS[name], H200).launches if isinstance(s, Launch)]


def test_each_switch_takes_something_away() -> None:
    assert text("no thread graphs", "gated_mlp") != text(WHOLE, "gated_mlp")
    for name in GRAPHS:  # nothing is computed before it lies in shared memory, nothing is stored from elsewhere
        apart = SWITCHES["no thread graphs"](GRAPHS[name], H200, Options())
        assert all(block is None or (block.staged and block.staged.region is None) for block in apart.kernels)
    whole_plan = SWITCHES[WHOLE](GRAPHS["split attention"], H200, Options())
    assert any(block and block.staged and block.staged.region for block in whole_plan.kernels)
    assert "swizzle<128>" in text(WHOLE, "rmsnorm") and "swizzle<128>" not in text("no layout search", "rmsnorm")
    whole, barred = (text(s, "rmsnorm").count("_sync(") for s in (WHOLE, "no schedule"))
    assert barred > whole
    assert any(s.overlaps for s in launches(WHOLE, "split attention"))
    assert not any(s.overlaps for s in launches("no schedule", "split attention"))
    for name in GRAPHS:
        planned, laid = (sum(s.shared_bytes for s in launches(w, name)) for w in (WHOLE, "no memory plan"))
        assert laid >= planned, name


ROWS: list[dict[str, Any]] = [
    {"workload": "rmsnorm", "B": 1, "switch": WHOLE, "us": 10.0, "note": ""},
    {"workload": "rmsnorm", "B": 1, "switch": "no schedule", "us": 20.0, "note": ""},
    {"workload": "rmsnorm", "B": 1, "switch": "no memory plan", "us": None, "note": "a block needs too much"},
]


def test_the_table_shows_relative_speed_and_says_what_is_missing() -> None:
    assert relative(ROWS) == {("rmsnorm", 1): {WHOLE: 1.0, "no schedule": 0.5, "no memory plan": None}}
    shown = table(ROWS)
    assert "0.50" in shown and "10.00" in shown and "rmsnorm B=1, no memory plan: a block needs too much" in shown


def test_a_switch_that_changes_nothing_is_told(tmp_path: Path) -> None:
    whole = emitted_without(WHOLE, GRAPHS["rmsnorm"], H200)
    assert same_code(emitted_without(WHOLE, GRAPHS["rmsnorm"], H200), whole) and not same_code(whole, None)
    assert not same_code(emitted_without("no schedule", GRAPHS["rmsnorm"], H200), whole)
    rows = [
        {**ROWS[0], "shared_bytes": [4096, 0]},
        {**ROWS[1], "same_code": True},
        {**ROWS[2], "us": 10.0, "note": "", "shared_bytes": [8192, 0]},
    ]
    shown = table(rows).splitlines()
    assert shown[1].split()[2:] == ["10.00", "-", "-", "=", "1.00"]
    assert shown[2] == "rmsnorm B=1: 4096 bytes of shared memory in a block, 8192 without a plan"


def test_without_a_memory_plan_the_ring_gets_shallower_until_it_fits() -> None:
    graph = GRAPHS["split attention"]
    bare = SWITCHES["no memory plan"](graph, replace(H200, shared_per_block=60 * 1024), Options(stages=6))
    assert max(block.shared_bytes for block in bare.kernels if block) <= 60 * 1024
    with pytest.raises(TargetError, match="a block needs"):
        SWITCHES["no memory plan"](graph, replace(H200, shared_per_block=16 * 1024), Options())


def test_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ablation.json"
    path.write_text(json.dumps({"rows": ROWS}))
    assert print_record(str(path)) == 0 and capsys.readouterr().out == table(ROWS) + "\n"
    path.write_text("{}")
    with pytest.raises(OptionError, match="no record of `bench ablation`"):
        print_record(str(path))
