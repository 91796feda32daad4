"""`bench cost`: the summary of a ranking, and the model against what an H200 measured."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_nb.bench
from mirage_nb.__main__ import main
from mirage_nb.bench import cost
from mirage_nb.bench.cost import rank_record, read_record, spearman, summary
from mirage_nb.bench.refit import Estimator, Found
from mirage_nb.bench.workloads import WORKLOADS, workload
from mirage_nb.errors import OptionError
from mirage_nb.lang import TensorProgram, parse
from mirage_nb.search.sizes.constants import FITTED

RECORD = Path(mirage_nb.bench.__file__).parent / "records" / "cost-h200-2026-11-21.json"
WORKLOAD_RECORD = RECORD.with_name("cost-h200-2026-11-21-workloads.json")
GOLDEN = Path(__file__).parent / "golden" / "estimates.json"
RECORDED = ("rmsnorm", "rmsnorm_fig3", "gated_mlp")


def program(name: str) -> TensorProgram:
    return parse(workload(name), name=name)


def at_batch_1(name: str) -> TensorProgram:
    return parse(workload(name), name=name, sizes={"B": 1} if "B" in program(name).sizes else None)


@cache
def instances(name: str) -> tuple[Found, ...]:
    target, rows = read_record(RECORD)
    wanted = [row for row in rows if row["workload"] == name]
    found = tuple(cost.found_again(wanted, at_batch_1(name), target))
    assert len(found) == len(wanted) >= 80, "the search of today does not find the recorded instances"
    return found


def found_again(name: str) -> list[dict[str, Any]]:
    return [one.row for one in instances(name)]


@pytest.mark.parametrize("name", RECORDED)
def test_the_model_ranks_what_was_measured(name: str) -> None:
    rows = sorted(found_again(name), key=lambda row: float(row["estimate_us"]))
    times = [float(row["time_us"]) for row in rows]
    assert spearman([row["estimate_us"] for row in rows], times) > 0.94
    assert times.index(min(times)) < 5
    assert min(times[:3]) < 1.03 * min(times)


@pytest.mark.slow
def test_the_fastest_of_every_workload_is_among_the_first_ten(capsys: pytest.CaptureFixture[str]) -> None:
    """At least 100 instances of each, of one and more kernels, as a standard search finds them."""
    assert main(["bench", "cost", "--from", str(WORKLOAD_RECORD)]) == 0
    lines = capsys.readouterr().out.splitlines()
    split = next(i for i, line in enumerate(lines) if line.startswith("with constants"))
    assert sorted(line.split()[0] for line in lines[:split]) == sorted(WORKLOADS)
    for line in lines[:split]:
        assert int(line.split()[1]) >= 75
        assert int(line.split("estimated rank ")[1].split(",")[0]) <= 10, line
        assert float(line.split("correlation ")[1].split(";")[0]) > 0.8, line
    for line in lines[split + 1 :]:
        assert float(line.split("correlation ")[1].split(";")[0]) > 0.7, line


@pytest.mark.parametrize("name", RECORDED)
def test_estimates_of_fast_instances_are_near_their_times(name: str) -> None:
    rows = found_again(name)
    fastest = min(float(row["time_us"]) for row in rows)
    ratios = sorted(row["estimate_us"] / row["time_us"] for row in rows if row["time_us"] < 1.5 * fastest)
    assert 0.85 < ratios[len(ratios) // 2] < 1.2
    assert ratios[0] > 0.6
    assert ratios[-1] < 1.7


@pytest.mark.parametrize("name", RECORDED)
def test_no_estimate_changes_unnoticed(name: str, update_golden: bool) -> None:
    """A faster model says the same of every recorded instance; one that says something else is looked at."""
    now = {f"{row['digest']} {sorted(row['sizes'].items())}": row["estimate_us"] for row in found_again(name)}
    if update_golden:
        kept = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        GOLDEN.write_text(json.dumps({**kept, name: now}, indent=0, sort_keys=True) + "\n")
    before = json.loads(GOLDEN.read_text())[name]
    assert now == pytest.approx(before, rel=1e-12)


@pytest.mark.slow
def test_ways_that_were_not_timed_are_not_estimated() -> None:
    """An instance that was timed the default way alone is no faster because four warps would be."""
    target, rows = read_record(WORKLOAD_RECORD)
    wanted = [row for row in rows if row["workload"] == "gqa" and row["sizes"].get("K1 grid d") in (16, 32)]
    found = cost.found_again(wanted, at_batch_1("gqa"), target)
    assert len(found) >= 10

    def estimates(tried: list[list[int | bool]] | None) -> np.ndarray:
        told = [replace(one, row={**one.row, "tried": tried}) for one in found]
        return np.array([one.row["estimate_us"] for one in cost.as_timed(told, target)])

    alone, every = estimates([]), estimates(None)
    assert estimates([[4, 4, False], [16, 4, False]]) == pytest.approx(np.clip(estimates([[4, 4, False]]), 0, alone))
    assert every == pytest.approx([one.instance.cost.us for one in found])
    assert (every <= alone).all()
    assert (every < alone).any()


def test_a_record_is_ranked_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "found_again", lambda rows, program, target: [*instances(program.name)][: len(rows)])
    assert main(["bench", "cost", "--from", str(RECORD)]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = sorted(RECORDED)
    assert [line.split()[0] for line in lines] == [*names, "with", *names]
    assert all("not found" not in line for line in lines)


def test_instances_that_the_search_no_longer_finds_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads(RECORD.read_text())
    rows = [row for row in record["rows"] if row["workload"] == "gated_mlp"][:5]
    rows[0]["digest"] = "0" * 16
    rows[1]["sizes"] = {"grid c": 3, "loop b": 5}
    path = tmp_path / "record.json"
    path.write_text(json.dumps({**record, "rows": rows}))
    rank_record(str(path))
    assert "2 not found by the search of today" in capsys.readouterr().out


def test_a_workload_without_influence_is_ranked_as_before() -> None:
    """Left out or not, what one workload says changes little of another; and constants change what they should."""
    target, rows = read_record(RECORD)
    chosen = [row for name in RECORDED for row in [r for r in rows if r["workload"] == name][::16]]
    found = [
        one
        for name in RECORDED
        for one in cost.found_again([r for r in chosen if r["workload"] == name], at_batch_1(name), target)
    ]
    estimator = Estimator(found, target)
    today = np.array([one.instance.cost.us for one in found])
    assert estimator.us(FITTED) == pytest.approx(today)
    slower = estimator.us(replace(FITTED, pass_us=2 * FITTED.pass_us))
    assert (slower > today - 1e-9).all()
    assert slower.mean() > today.mean()
    times = np.array([one.row["time_us"] for one in found])
    names = [one.row["workload"] for one in found]
    assert estimator.without(today, names) == pytest.approx(today), "times as estimated pull at nothing"
    without = estimator.without(times, names)
    assert (without > 0.3 * today).all()
    assert (without < 3 * today).all()
    assert not np.allclose(without, today)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": [{"mugraph": 3}]}'])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(OptionError, match="no record"):
        rank_record(str(path))


def test_a_missing_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no record"):
        rank_record(str(tmp_path / "none.json"))


def test_spearman_knows_order_and_ties() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 400]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 2, 3], [5, 6, 7, 8]) == pytest.approx(0.9486833)


def test_the_summary_names_the_rank_of_the_fastest() -> None:
    pairs = ((3.0, 30.0), (1.0, 20.0), (2.0, 10.0))
    rows: list[dict[str, Any]] = [{"estimate_us": e, "time_us": t} for e, t in pairs]
    rows.append({"estimate_us": 0.5, "time_us": None})
    line = summary("x", rows)
    assert "3 timed, 1 not" in line
    assert "fastest 10.00 us has estimated rank 2" in line
    assert "first by estimate takes 20.00 us" in line
    assert "too few" in summary("x", rows[2:])
