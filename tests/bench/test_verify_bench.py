"""`bench verify`: its rows say what was measured, its wrong muGraphs are wrong, its records can be read again."""

from __future__ import annotations

import contextlib
import io
import json
import string
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mirage_nb.__main__ import main
from mirage_nb.bench import verify as verify_bench
from mirage_nb.bench.verification.campaign import HEAD, TEMPLATES, Expression, differs
from mirage_nb.bench.verification.campaigns import agree, found_in, run, searched
from mirage_nb.bench.verification.oracle import Arithmetic, Gap, points, steps_of
from mirage_nb.bench.verify import candidates, summary, wrong_shifts
from mirage_nb.bench.workloads import workload
from mirage_nb.interp import evaluate
from mirage_nb.ir.legality import check
from mirage_nb.lang import parse
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import VerdictKind


@pytest.mark.parametrize(("name", "count"), [("gqa", 2), ("decode70b", 2), ("moe", 0), ("rmsnorm", 0)])
def test_wrong_shifts_are_legal_and_refuted(name: str, count: int) -> None:
    (small, first), _ = next(candidates(parse(workload(name)).graph))
    wrong = dict(wrong_shifts(first))
    assert len(wrong) == count and verify(small, first).accepted
    for graph in wrong.values():
        check(graph)
        assert verify(small, graph, seed=3).kind is VerdictKind.REFUTED


def _expressions() -> Iterator[Expression]:
    """Every function of inputs, of totals and of greatest elements, each beside an input."""
    x, y = Expression("X"), Expression("Y")
    product = Expression("mul", (x, y))
    for operand in (x, Expression("total", (x,)), Expression("highest", (y,))):
        for name, template in TEMPLATES.items():
            holes = [hole for _, hole, _, _ in string.Formatter().parse(template) if hole is not None]
            count = 1 if "0" in holes else len(holes)
            yield Expression("add", (Expression(name, (operand, y, x, operand)[:count]), product))


@pytest.mark.parametrize("term", list(_expressions()), ids=str)
def test_an_expression_is_to_the_oracle_what_its_text_says(term: Expression) -> None:
    graph = parse(f"{HEAD}{term}").graph
    steps, (place,) = steps_of(term)
    for inputs in points()[:3]:
        tables = Arithmetic(60).tables(steps, inputs)
        drawn = [np.array([[float(low) for low, _ in row] for row in inputs[name]]) for name in "XY"]
        with np.errstate(all="ignore"):
            (found,) = evaluate(graph, tuple(drawn))
        said = np.array([[np.nan if isinstance(e, Gap) else float(e[0]) for e in row] for row in tables[place]])
        assert found.shape == said.shape
        np.testing.assert_allclose(found[~np.isnan(said)], said[~np.isnan(said)], rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A record of one workload, and what was printed meanwhile; few measurements, as nobody reads them."""
    record, printed = tmp_path_factory.mktemp("verify") / "record.json", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(verify_bench, "CANDIDATES", 2)
        patch.setattr(verify_bench, "SEEDS", 2)
        patch.setattr(verify_bench, "ATTACKS", dict(list(verify_bench.ATTACKS.items())[-3:]))
        patch.setattr(verify_bench, "taken", lambda: (0.5, 70))
        few = "--workloads ntrans --campaign 40 --seed 5 --searched 1".split()
        assert main(["bench", "verify", *few, "--record", str(record)]) == 0
    return record, printed.getvalue()


def test_a_row_says_what_was_measured(measured: tuple[Path, str]) -> None:
    (row,) = json.loads(measured[0].read_text())["rows"]
    assert row["candidates"] >= 2 and not row["wrong_ms"]
    assert all(0 < row[name] < 1000 for name in ("drawn_ms", "first_ms", "again_ms"))
    assert row["looked"] == ["agree"] * 2 and row["look_ms"] > 0
    assert row["log2_bound"] <= -64 and row["proof_steps"] is not None
    assert row["full"] == "field" and row["full_s"] < 60


def test_one_table_says_what_is_asked(measured: tuple[Path, str]) -> None:
    made, printed = json.loads(measured[0].read_text()), measured[1]
    assert printed.endswith(summary(made) + "\n")
    said = {line[:32].strip(): line[32:76].strip() for line in summary(made).splitlines()}
    assert said["attacks refused"] == "3 of 3" and said["a proof file of 1 MB, any"] == "0.50 s, 70 MB"
    assert said["wrong pairs accepted"] == f"0 of {made['campaign']['different']} different ones in 40"
    assert said["right muGraphs refused"] == f"0 of {made['searched']['right']}" != "0 of 0"
    assert said["error bound of 2^-64"] == said["proofs for all sizes"] == "1 of 1"


def test_a_record_is_printed_again(measured: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    record, printed = measured
    assert main(["bench", "verify", "--from", str(record)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == printed.splitlines()
    made = json.loads(record.read_text())
    assert made["machine"]["cores"] >= 1
    record.write_text(json.dumps(made | {"schema": 99}))
    assert main(["bench", "verify", "--from", str(record)]) == 2
    assert "no record of `bench verify`" in capsys.readouterr().err
    assert main(["bench", "verify", "--workloads", "nope"]) == 2


def test_campaigns_go_on_where_others_ended_and_in_other_processes(capsys: pytest.CaptureFixture[str]) -> None:
    one = run(12, 0, 5, first=2).pairs
    assert one.pairs == 12 and one.different > 3 and not one.false_acceptances
    options = "--only campaign --campaign 8 --seed 5 --first 2 --jobs 2".split()
    assert main(["bench", "verify", *options]) == 0
    assert "different ones in " in capsys.readouterr().out
    assert main(["bench", "verify", "--jobs", "0"]) == main(["bench", "verify", "--only", "nothing"]) == 2


def test_mugraphs_of_searches_are_verified() -> None:
    found = searched(0, "workload ntrans", 0, 0)
    assert found.mugraphs == found.right > 0 and not found.contradictions
    (small, other), *_ = found_in("workload gqa", 1, 0)
    wrong = dict(wrong_shifts(other))["no maximum"]
    assert agree(small, other) and not agree(small, wrong)


def test_the_oracle_tells_values_apart() -> None:
    x, y = Expression("X"), Expression("Y")
    square = Expression("square", (x,))
    assert differs(x, Expression("sqrt", (square,))) and not differs(square, Expression("mul", (x, x)))
    assert differs(x, Expression("div", (square, x)))  # at zero
    assert not differs(Expression("div", (square, x)), x)
    assert differs(Expression("copied", (x,)), Expression("turned", (x,)))
    assert not differs(Expression("maximum", (x, y)), Expression("maximum", (y, x)))
    assert differs(Expression("total", (x,)), Expression("highest", (x,)))


def test_no_rounding_of_the_oracle_is_a_difference() -> None:
    """What 60 digits lose in a sum is not lost, and what they do not show takes more of them."""
    y, large = Expression("Y"), Expression("1e20")
    small = Expression("exp", (Expression("sub", (Expression("0"), Expression("mul", (y, Expression("30"))))),))
    for value in (Expression("sigmoid", (y,)), small, Expression("sqrt", (Expression("abs", (y,)),))):
        lost = value
        for _ in range(4):
            lost = Expression("sub", (Expression("add", (lost, large)), large))
        for function in ("square", "step", "floor", "sign", "exp"):
            assert not differs(Expression(function, (value,)), Expression(function, (lost,)))
        assert not differs(Expression("div", (y, value)), Expression("div", (y, lost)))
        assert differs(value, Expression("add", (lost, Expression("1e-90"))))


@pytest.mark.slow
def test_a_long_campaign() -> None:
    found = run(5000, 0, 11).pairs
    assert not found.false_acceptances and found.different > 2000 and found.said["alike, field"] > 1500
