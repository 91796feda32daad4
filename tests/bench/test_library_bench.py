"""`bench library`: what libraries were measured to take is about what the estimate says, at shapes small and large."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

import mirage_nb
from mirage_nb.__main__ import main
from mirage_nb.bench.library import estimated, programs
from mirage_nb.lang import parse
from mirage_nb.targets import find_target

RECORD = Path(mirage_nb.__file__).parent / "bench/records/library-h200-2026-11-22.json"


def test_estimates_of_libraries_are_near_what_was_measured() -> None:
    record = json.loads(RECORD.read_text())
    fastest: dict[str, float] = {}
    for row in record["rows"]:
        if row["after_us"]:
            fastest[row["program"]] = min(row["after_us"], fastest.get(row["program"], float("inf")))
    assert set(fastest) <= {*programs()} and len(fastest) > 40
    target = find_target(record["target"])
    shares = [estimated(parse(text).graph, target) / us for text, us in fastest.items()]
    assert 0.5 < min(shares) and max(shares) < 2.5 and 0.9 < statistics.median(shares) < 1.1


def test_a_record_is_printed_and_a_card_is_needed_for_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "library", "--from", str(RECORD)]) == 0
    assert "estimate over time, 43 programs" in capsys.readouterr().out
    assert main(["bench", "library", "--from", "nowhere"]) != 0
    assert "no record of `bench library`" in "".join(capsys.readouterr())
