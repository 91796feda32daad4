"""Winners of earlier sessions: for the same program, target and card, and nothing on the word of a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_nb.codegen import Options
from mirage_nb.lang import parse
from mirage_nb.runtime.contest.remembered import FOLDER, forget, remember, remembered
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.search.session.progress import Candidate
from mirage_nb.targets import find_target
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.codegen import mugraphs

CARD = Gpu("Some card", 90, 132, "13.0", 60 * 2**20)
H200 = find_target("h200")
PROGRAM = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W").graph
FOUND = mugraphs.rmsnorm(8, 64, 32, 16, 2)
WAY = Options(warps=4, stages=3, bulk=True)


@pytest.fixture
def kept(mirage_home: Path) -> Path:
    verdict = Verdict(VerdictKind.PROVED)
    ran: Any = {"time_us": 2.5, "error": 1e-4, "executed_on": CARD.name}
    found = Candidate(FOUND.digest(), FOUND, "1 kernel", 6, {"g": 2}, verdict, 3.0, **ran)
    winner: Any = SimpleNamespace(
        candidate=found, emitted=SimpleNamespace(options=WAY), origin=SimpleNamespace(program=PROGRAM)
    )
    remember(winner, H200, CARD)
    return mirage_home / FOLDER


def test_a_winner_is_there_for_the_next_session_and_nobody_has_verified_it(kept: Path) -> None:
    found = remembered(PROGRAM, H200, CARD)
    assert found is not None and found.options == WAY and found.candidate.graph == FOUND
    assert found.candidate.is_as_stored and found.candidate.time_us is None
    assert found.candidate.before is not None and found.candidate.before.us == 2.5


def test_a_winner_is_for_its_program_its_target_and_its_card(kept: Path) -> None:
    other = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn rms_norm(X + X) @ W").graph
    assert remembered(other, H200, CARD) is None
    assert remembered(PROGRAM, find_target("a100"), CARD) is None
    assert remembered(PROGRAM, H200, replace(CARD, name="Another card")) is None


def test_a_winner_can_be_forgotten(kept: Path) -> None:
    for _ in range(2):
        forget(PROGRAM, H200, CARD)
        assert remembered(PROGRAM, H200, CARD) is None


def test_what_others_wrote_there_is_not_taken(kept: Path) -> None:
    (file,) = kept.glob("*.txt")
    text = file.read_text()
    file.write_text(text.replace("1 kernel", "2 kernel"))
    assert remembered(PROGRAM, H200, CARD) is None
    file.write_text(text)
    assert remembered(PROGRAM, H200, CARD) is not None
