"""`bench search`: its cells agree with each other, its tables say what they hold, the command ends."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mirage_nb.__main__ import main
from mirage_nb.bench import enumeration, prunings
from mirage_nb.bench.enumeration import Method
from mirage_nb.bench.search import latest_record, prunings_table, spaces_table, table5
from mirage_nb.bench.search_figure import draw
from mirage_nb.bench.space import Space, explore
from mirage_nb.bench.workloads import WORKLOADS, workload
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse

ALL_ON = prunings.PRUNINGS[0].name


def program(name: str) -> KernelGraph:
    return parse(workload(name)).graph


def cells(name: str, **how: Any) -> dict[str, prunings.Spread]:
    return {cell.pruning: cell for cell in prunings.measure(program(name), **{"cap": 3000, "limit": 5.0, **how})}


def test_both_algorithms_find_the_same_graphs_on_one_worker_and_on_two() -> None:
    pruned = [m for m in enumeration.METHODS if m.pruned and (m.workers == 2 or m.algorithm == "Algorithm 1")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enumeration, "METHODS", tuple(pruned))
        patch.setattr(enumeration, "REPEATS", 1)
        found = {cell.method: cell for cell in enumeration.measure(program("lora"), (4,), 60.0)}
    assert list(found) == pruned and all(cell.seconds is not None for cell in found.values())
    assert len({cell.graphs for cell in found.values()}) == 1 and found[pruned[0]].graphs > 0
    enumerated = {cell.looked_at for cell in found.values() if cell.method.algorithm == "Algorithm 1"}
    assert len(enumerated) == 1, "shares look at every prefix once"


def test_a_run_over_the_limit_is_said_and_ends_its_column() -> None:
    slow = Method("Algorithm 1", pruned=False, workers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(enumeration, "METHODS", (slow,))
        found = list(enumeration.measure(program("rmsnorm"), (5, 6, 7), 1.0))
    assert [(c.operators, c.seconds) for c in found] == [(5, None)] and found[0].looked_at > 0
    assert ">1 s" in table5([asdict(c) for c in found], 1.0)


@pytest.mark.parametrize("name", ["rmsnorm", "gqa", "lora"])
def test_without_the_oracle_the_space_is_a_hundred_times_larger_or_hits_the_cap(name: str) -> None:
    found = cells(name)
    assert not found[ALL_ON].capped
    off = found["oracle off"]
    assert off.capped or off.kept > 100 * found[ALL_ON].kept


@pytest.mark.parametrize("name", ["rmsnorm", "attention_safe"])
def test_every_pruning_off_keeps_what_was_kept_and_still_finds_the_output(name: str) -> None:
    found = cells(name)
    for pruning in ("types off", "canonical form off", "shift rules off", "merging off", "sqrt axiom on"):
        cell = found[pruning]
        assert cell.capped or (cell.kept >= found[ALL_ON].kept and cell.finals >= found[ALL_ON].finals > 0), pruning
    for narrower in ("no replicas", "no concat"):
        assert found[narrower].kept < found[ALL_ON].kept


def test_what_each_pruning_is_for() -> None:
    safe, plain = cells("attention_safe"), cells("rmsnorm")
    assert safe["shift rules off"].kept > safe[ALL_ON].kept
    assert safe["exp axiom off"].kept < safe[ALL_ON].kept
    assert plain["canonical form off"].kept > plain[ALL_ON].kept
    assert plain["types off"].kept > plain[ALL_ON].kept
    assert plain["merging off"].kept > plain[ALL_ON].kept


def test_a_space_is_measured_whole_or_says_that_it_was_cut() -> None:
    whole = explore("gated_mlp", 1, limit=30.0, repeats=1)
    assert whole.saturated and whole.structures > 5 and whole.cut == 0 and 10 < whole.peak_mib < 2048
    assert explore("qknorm", 1, limit=0.01, repeats=1).cut > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_one_kernel_spaces_are_saturated_in_seconds(name: str) -> None:
    space = explore(name, 1, limit=60.0, repeats=1)
    assert space.saturated and space.seconds < 10 and space.peak_mib < 2048


@pytest.mark.slow
def test_products_of_long_sums_saturate_when_they_are_written_out() -> None:
    """`ntrans` squares a sum of three: thousands of parts, and an end."""
    expanded = [p for p in prunings.PRUNINGS if p.name == "products expanded"]
    (cell,) = prunings.measure(program("ntrans"), cap=50_000, limit=600.0, prunings=expanded)
    assert not cell.capped and cell.finals > 0 and cell.kept > 10_000


def record() -> dict[str, Any]:
    methods = (Method("closure", True, 1), Method("Algorithm 1", False, 2))
    timed = [enumeration.Timed(n, m, None if m.workers == 2 else 0.01 * n, 1.0, 10, 2) for m in methods for n in (5, 6)]
    spread = [prunings.Spread(p, 100, 10 * (i + 1), 1, 0.1, i == 1) for i, p in enumerate((ALL_ON, "oracle off"))]
    return {
        "processor": "a processor", "cores": 2, "date": "2026-01-01", "program": "rmsnorm", "limit_s": 20.0,
        "table5": [asdict(t) for t in timed],
        "prunings": [{"workload": "rmsnorm", **asdict(s)} for s in spread],
    }  # fmt: skip


def test_tables_and_figure_show_what_was_measured() -> None:
    results = record()
    lines = table5(results["table5"], 20.0).splitlines()
    assert lines[-2].split() == ["5", "0.050", "s", "(2", "graphs)", ">20", "s"]
    assert prunings_table(results["prunings"]).splitlines()[-1].split() == ["oracle", "off", ">", "2.00x"]
    space = Space("lora", 2, 1.5, 3, 70, 12, saturated=False, cut=1, peak_mib=99.6)
    assert spaces_table([asdict(space)]).splitlines()[-1].split() == ["lora", "2", "1.50", "70", "12", "no", "100"]
    figure = draw(results, {"another": {5: 11.0}})
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == ["another (published)", "closure, 1 worker", "Algorithm 1 unpruned, 2 workers"]
    left, right = figure.axes
    assert left.get_yscale() == "log"
    assert [tick.get_text() for tick in right.get_yticklabels()] == ["oracle off"]


def test_the_command_writes_a_record_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, drawn = tmp_path / "search.json", tmp_path / "search.svg"
    files = ["--record", str(kept), "--figure", str(drawn)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mirage_nb.bench.search.PRUNING_LIMIT", 0.2)
        patch.setattr(enumeration, "METHODS", enumeration.METHODS[:1])
        assert main(["bench", "search", "--workloads", "gated_mlp", "--ops", "2", "--limit", "2", *files]) == 0
    results = json.loads(kept.read_text())
    assert results["cores"] >= 1 and results["processor"] and len(results["spaces"]) == 2
    assert drawn.read_text().lstrip().startswith("<?xml")
    assert "whole spaces" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--ops", "7-5"], ["--limit", "0"], ["--workloads", "nothing"]])
def test_mistakes_in_the_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "search", *arguments]) == 2
    assert "hint" in capsys.readouterr().err


def test_the_record_in_the_package_is_of_all_workloads() -> None:
    results = latest_record()
    assert {row["workload"] for row in results["spaces"]} == set(WORKLOADS)
    closure = [row for row in results["table5"] if Method(**row["method"]) == Method("closure", True, 1)]
    assert closure and all(row["seconds"] < 1.0 for row in closure)
    all_on = {row["workload"]: row["kept"] for row in results["prunings"] if row["pruning"] == ALL_ON}
    off = {row["workload"]: row for row in results["prunings"] if row["pruning"] == "oracle off"}
    assert off.keys() == all_on.keys() and all(off[name]["kept"] > 100 * all_on[name] for name in off)


def test_a_record_is_shown_and_drawn_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, drawn = tmp_path / "search.json", tmp_path / "search.svg"
    source.write_text(json.dumps(latest_record()))
    assert main(["bench", "search", "--from", str(source), "--figure", str(drawn)]) == 0
    assert "closure unpruned" in capsys.readouterr().out and drawn.stat().st_size > 1000
    source.write_text("{}")
    assert main(["bench", "search", "--from", str(source)]) == 2
