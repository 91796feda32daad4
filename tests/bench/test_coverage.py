"""The programs of `bench programs`: each is legal, has a source and is unlike the others; rows say what they mean."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mirage_nb.__main__ import main
from mirage_nb.bench.coverage import HEADER, Row, examined, summary
from mirage_nb.bench.programs import PROGRAMS, text
from mirage_nb.interp.reference import evaluate
from mirage_nb.lang import parse


def test_there_are_many_and_no_two_are_alike() -> None:
    digests = {parse(text(name)).graph.digest() for name in PROGRAMS}
    assert len(digests) == len(PROGRAMS) >= 120


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_legal_and_computes_numbers(name: str) -> None:
    written = text(name)
    assert written.startswith("# ") and len(written.split("\n")[0]) > 12
    program = parse(written)
    assert not program.remarks
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(0.1, 0.9, i.type.shape) for i in program.graph.inputs]
    assert all(np.isfinite(output).all() for output in evaluate(program.graph, inputs))


def test_rows_and_their_summary() -> None:
    rows = [Row("a", 2, 1, "proved", "CPU edition", 5, 1.5), Row("b", 1, 1, "field", "CPU edition", 1, 2.0), Row("c")]
    assert [str(row).split()[1:3] for row in rows] == [["1", "+"], ["0", "+"], ["-", "-"]]
    assert HEADER.split()[0] == "program" and rows[0].generated and not rows[1].generated
    assert summary(rows).startswith("2 of 3 end with kernels that are verified and executed, 1 of them proved; 1 with")


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "programs", "--programs", "zebra"]) != 0
    assert main(["bench", "programs", "--share", "4/4"]) != 0
    assert "no program is called like" in "".join(capsys.readouterr())


@pytest.mark.slow
def test_a_program_is_searched_executed_and_recorded(tmp_path: Path) -> None:
    record = tmp_path / "rows.json"
    assert main(["bench", "programs", "--programs", "softplus", "--budget", "5", "--record", str(record)]) == 0
    (row,) = json.loads(record.read_text())
    assert row["executed"] and row["kernels"] == 1 and row["verdict"] == "proved"
    assert examined("softplus", -1).problem
