"""`bench kernels` without a GPU: records, tables, the floor, the figure, and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_nb.__main__ import main
from mirage_nb.bench import kernels
from mirage_nb.bench.kernels import (
    Asked,
    Entry,
    floor_us,
    geometric_mean,
    program_of,
    ratio,
    read_record,
    recorded_way,
    run_kernels,
    table,
    workload_entries,
)
from mirage_nb.bench.kernels_figure import OURS, bars, kernels_figure
from mirage_nb.bench.machine import commit
from mirage_nb.bench.workloads import WORKLOADS
from mirage_nb.errors import MissingPartError, OptionError, StoreError
from mirage_nb.ir.text import parse_graph
from mirage_nb.runtime.gpu import Gpu, attached_gpu
from mirage_nb.targets import find_target

RECORDS = sorted((Path(__file__).parents[2] / "mirage_nb" / "bench" / "records").glob("kernels-*.json"))
H200 = find_target("h200")


def row(name: str, ours: float | None, peer: float | None, batch: int = 1, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "workload": name, "B": batch, "ours_us": ours, "spread_us": [ours, ours] if ours else None,
        "peer": "eager" if peer else None, "peer_us": peer, "peers": {"eager": peer} if peer else {},
    }  # fmt: skip
    return {**found, **more}


def test_the_mean_is_the_geometric_one() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0) and geometric_mean([1.0, 4.0, 2.0]) == pytest.approx(2.0)
    rows = [row("rmsnorm", 10.0, 20.0), row("lora", 4.0, 2.0), row("gqa", None, 9.0), row("ntrans", 1.0, None)]
    assert [ratio(r) for r in rows] == [2.0, 0.5, None, None]
    shown = table(rows, H200).splitlines()
    assert shown[5].startswith("geometric mean of 2 ratios") and "1.00; ahead in 1" in shown[5]
    assert " 50%" not in shown[1] and "2.00" in shown[1] and shown[3].split()[2] == "-"


def test_the_smaller_ratio_counts() -> None:
    """A kernel that overlaps with its own kind back to back has to show what it does behind somebody else's."""
    chain = row("ntrans", 1.0, 3.0)
    slower, faster = row("ntrans", 2.5, 3.0), row("ntrans", 1.0, 5.0)
    assert ratio({**chain, "after": slower}) == pytest.approx(1.2) and ratio({**chain, "after": faster}) == 3.0
    assert ratio({**chain, "after": row("ntrans", None, 3.0)}) is None
    shown = table([{**chain, "after": slower}], H200).splitlines()[1]
    assert shown.split()[-4:] == ["2.50", "3.00", "eager", "1.20"]


@pytest.mark.parametrize(("name", "batch", "floor"), [
    ("rmsnorm", 1, 13.1), ("rmsnorm", 8, 13.1), ("gated_mlp", 1, 16.9), ("gated_mlp", 8, 17.1), ("gqa", 1, 2.4),
    ("decode70b", 1, 3.6), ("decode70b", 8, 16.9), ("ntrans", 8, 2.2), ("lora", 1, 2.3),
])  # fmt: skip
def test_the_floor_is_start_up_and_bytes(name: str, batch: int, floor: float) -> None:
    program = program_of(name, batch)
    assert program is not None and floor_us(program, H200) == pytest.approx(floor, rel=0.08)


def test_workloads_without_a_batch_are_measured_once() -> None:
    assert program_of("moe", 8) is None and program_of("moe", 1) is not None


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.name)
def test_records_that_come_along_can_be_shown(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = read_record(path)
    assert {r["workload"] for r in record["rows"]} <= set(WORKLOADS)
    figure = tmp_path / "figure.svg"
    assert main(["bench", "kernels", "--from", str(path), "--figure", str(figure)]) == 0
    shown = capsys.readouterr().out
    assert record["card"] in shown and record["date"] in shown and "geometric mean" in shown
    assert {(r["workload"], str(r["B"])) for r in record["rows"]} <= {tuple(x.split()[:2]) for x in shown.splitlines()}
    assert figure.read_text().startswith("<?xml") and "speed / ours" in figure.read_text()
    for r in record["rows"]:  # nobody is faster than memory; who starts before the launch in front ends saves a start
        program = program_of(r["workload"], r["B"])
        if r["ours_us"] and program is not None:
            spared = H200.start_us if "chained=True" in (r.get("emitted") or "") else 0.0
            assert r["ours_us"] > 0.9 * (floor_us(program, H200) - spared)


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.name)
def test_kernels_are_emitted_as_their_record_says(path: Path) -> None:
    for known in [row for row in read_record(path)["rows"] if row.get("mugraph")]:
        graph = parse_graph(known["mugraph"])
        way, said = recorded_way(graph, known.get("emitted"), H200), known.get("emitted") or "Options("
        assert str(way).startswith(said.rstrip(")")), "options of later days have their defaults"
    for nonsense in ("Options(warps=7)", "Options(colour=red)"):
        with pytest.raises(OptionError, match="emitted no more as"):
            recorded_way(graph, nonsense, H200)


def test_bars_take_the_best_attention_kernel() -> None:
    found = bars(row("gqa", 5.0, 9.0, peers={"eager": 9.0, "SDPA flash": 7.0, "flex_attention max-autotune": 6.0}))
    assert found == {"eager": 9.0, "best attention kernel": 6.0, OURS: 5.0}


def test_the_figure_says_by_how_much() -> None:
    rows = [row("gqa", 5.0, 9.0), row("lora", None, 2.0), row("gqa", 5.0, 2.5, batch=8)]
    figure = kernels_figure(rows)
    top, bottom = figure.axes
    assert [t.get_text() for t in top.texts] == ["1.80×", "not timed"]
    assert [t.get_text() for t in bottom.texts] == ["0.50×"]
    heights = sorted(round(p.get_height(), 3) for p in top.patches)
    assert heights == [round(5 / 9, 3), 1.0, 1.0]
    assert len(kernels_figure([]).axes) == 1


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text('{"rows": [{"workload": "gqa"}]}')
    with pytest.raises(OptionError, match="no record of `bench kernels`"):
        read_record(tmp_path / "x.json")
    cases = {
        ("--from", str(tmp_path / "missing.json")): "no record of `bench kernels`",
        ("--set", "B=0"): "not a list of batch sizes",
        ("--tune", "-3"): "not a positive number of seconds",
        ("--workloads", "gqqa"): "unknown workload 'gqqa'",
    }
    for arguments, message in cases.items():
        assert main(["bench", "kernels", *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.skipif(attached_gpu() is not None, reason="there is a GPU here")
def test_without_a_gpu_it_says_what_works(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MissingPartError, match="needs a GPU"):
        run_kernels(Asked(workload_entries(("gqa",), (1,))))
    assert main(["bench", "ablation"]) == 2 and "--from FILE" in capsys.readouterr().err


def test_files_are_opened_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_nb.bench.kernels.card", lambda command: object())
    with pytest.raises(StoreError, match="cannot be written"):
        run_kernels(Asked(workload_entries(("gqa",), (1,)), record="/no/such/folder/record.json"))


class Stub:
    """A session that notes what is done with it."""

    def __init__(self, did: list[str], name: str) -> None:
        self.did, self.name, self.winners, self.target = did, name, (object(),), H200

    def snapshot(self) -> Any:
        return SimpleNamespace(messages=("one message",))

    def wait(self) -> None:
        self.did.append(f"wait {self.name}")

    def tune(self, seconds: float) -> None:
        self.did.append(f"tune {self.name} {seconds:g}")

    def stop(self) -> None:
        self.did.append(f"stop {self.name}")


def test_a_session_has_the_machine_for_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sessions that began while the peers of the row before were compiled and raced waited for the card for most of
    their seconds, and ended with the first thing that ran."""
    did: list[str] = []

    def begun(program: Any, name: str, budget: float | None, store: str | None) -> Stub:
        did.append(f"begin {name} {store}")
        return Stub(did, name)

    def measured(entry: Entry, session: Stub, gpu: Gpu) -> dict[str, Any]:
        did.append(f"race {session.name}")
        name = entry.program.name
        if name == "lora":
            raise RuntimeError("lost")
        if name == "mha":
            raise KeyboardInterrupt
        return row(name, 2.0, 3.0, entry.batch)

    monkeypatch.setattr(kernels, "card", lambda command: Gpu("Some card", 90, 132, "13.0", 2**20))
    monkeypatch.setattr(kernels, "machine", lambda gpu, revision: {"card": gpu.name})
    monkeypatch.setattr(kernels, "superoptimize", begun)
    monkeypatch.setattr(kernels, "_measure", measured)
    record = tmp_path / "record.json"
    asked = Asked(workload_entries(("gqa", "moe", "lora", "mha"), (1, 8)), tune=5.0, record=str(record), store="s")
    with pytest.raises(KeyboardInterrupt):
        run_kernels(asked)
    assert did[:8] == [
        "begin gqa-1 s", "wait gqa-1", "tune gqa-1 5", "wait gqa-1", "race gqa-1", "begin gqa-8 s", "wait gqa-8",
        "tune gqa-8 5",
    ]  # fmt: skip
    assert did[-1] == "race mha-1"
    kept = read_record(record)["rows"]
    assert [(r["workload"], r["B"]) for r in kept] == [("gqa", 1), ("gqa", 8), ("moe", 1), ("lora", 1), ("lora", 8)]
    assert kept[3].keys() >= {"ours_us", "peers", "emitted"} and "not measured: lost" in kept[3]["messages"]
    assert "lora" in table(kept, H200)


def test_records_of_one_card_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin = {"card": "C", "commit": "1", "versions": {"torch": "2"}, "date": "today"}
    halves = [[row("mha", 2.0, 4.0), row("rmsnorm", 2.0, 4.0, 8)], [row("rmsnorm", 1.0, 2.0)]]
    paths = []
    for number, rows in enumerate(halves):
        paths += ["--from", str(tmp_path / f"{number}.json")]
        Path(paths[-1]).write_text(json.dumps({**origin, "rows": rows}))
    whole = tmp_path / "whole.json"
    assert main(["bench", "kernels", *paths, "--record", str(whole)]) == 0
    assert "geometric mean of 3 ratios" in capsys.readouterr().out
    kept = read_record(whole)
    assert kept["card"] == "C" and [(r["workload"], r["B"]) for r in kept["rows"]] == [
        ("rmsnorm", 1), ("rmsnorm", 8), ("mha", 1)
    ]  # fmt: skip
    Path(paths[-1]).write_text(json.dumps({**origin, "card": "D", "rows": halves[1]}))
    assert main(["bench", "kernels", *paths]) == 2 and "differ in their card" in capsys.readouterr().err
    assert main(["bench", "kernels", *paths[:2], *paths[:2]]) == 2 and "two records have" in capsys.readouterr().err


def test_the_commit_is_read_from_the_checkout(tmp_path: Path) -> None:
    place = tmp_path / "package" / "module.py"
    assert commit(place) is None
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text("# pack-refs\n1234 refs/heads/other\nabcd refs/heads/main\n")
    assert commit(place) == "abcd"
    (git / "refs" / "heads" / "main").write_text("ef01\n")
    assert commit(place) == "ef01"
    (git / "HEAD").write_text("2345\n")
    assert commit(place) == "2345"


def test_records_are_json_with_their_origin() -> None:
    for path in RECORDS:
        assert {"schema", "date", "card", "versions", "method", "rows"} <= json.loads(path.read_text()).keys()
