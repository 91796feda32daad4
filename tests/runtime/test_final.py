"""The last verification looks at what is printed, too."""

from __future__ import annotations

import math
import re
import time
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_nb import superoptimize
from mirage_nb.codegen import emit, kernel
from mirage_nb.errors import SearchError
from mirage_nb.lang import parse
from mirage_nb.optimize import default_options
from mirage_nb.optimize.staged_program import staged_program
from mirage_nb.runtime.contest.confirm import Confirmation
from mirage_nb.runtime.contest.final import verify_final, verify_real
from mirage_nb.search.composition import OWN_OPERATORS
from mirage_nb.search.session.progress import Candidate
from mirage_nb.tile.staged.program import Signal, StagedProgram
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.codegen.mugraphs import linear
from tests.codegen.test_specialised import H200
from tests.tile.lines import program_of, text_of

PROGRAM = parse("X: f16[128, 64]\nW: f16[64, 64]\nB: f16[64]\nreturn relu(X @ W + B)", name="linear").graph

NORM = "X: f16[4, 64]\nW: f16[64, 96]\nreturn rms_norm(X) @ W"


@pytest.mark.parametrize(("said", "changed"), [
    ("", ""), ("OpKind.ADD", "OpKind.MUL"), ("target='o0', at=(64*m,", "target='o0', at=(32*m,"),
])  # fmt: skip
def test_a_tile_program_that_is_another_one_is_refuted(said: str, changed: str) -> None:
    """Not that of its muGraph, which is right."""
    graph = linear(128, 64, 64, 64, 64)
    (planned,) = emit(graph, H200, replace(default_options(H200), specialised=True)).programs
    text = text_of(planned.program)
    assert said in text
    made = replace(planned, program=program_of(text.replace(said, changed) if said else text))
    candidate = Candidate(graph.digest(), graph, "", 1, {}, Verdict(VerdictKind.FIELD), 1.0)
    verdict = verify_final(PROGRAM, candidate, (), (made,), H200)
    assert verdict.accepted == (not said)
    assert ("tile level: run over residues" if not said else "its tile program is another one") in verdict.note


def test_a_kernel_whose_program_is_broken_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner forgot its barriers: every such muGraph stays, and says why it did not run; others win."""

    def forgetful(*asked: Any) -> StagedProgram:
        made = staged_program(*asked)
        return replace(made, code=tuple(s for s in made.code if s is not Signal.BARRIER))

    monkeypatch.setattr(kernel, "staged_program", forgetful)
    session = superoptimize(NORM, effort="quick")
    snapshot = session.result(120)
    refused = {c.digest: c.note for c in snapshot.candidates if "its program is not valid" in c.note}
    assert refused and all(re.search(r"is not valid: \w+\(.*\): .*barrier", note) for note in refused.values())
    assert {done.outcome for done in session.trace if done.candidate in refused} == {"failed"}
    assert session.best.candidate.digest not in refused and session.best.report.ok


class Asked:
    """A session whose workers answer at once; what they were asked for, in order."""

    def __init__(self, left: float = math.inf, real: VerdictKind = VerdictKind.FIELD) -> None:
        self.asked: list[tuple[str, int]] = []
        self.said: list[str] = []
        self.left, self.real = left, real
        self.search = self
        self.program, self.target = PROGRAM, H200
        self.winners: dict[str, Any] = {}
        self.stage = ""

    def add(self, name: str) -> Any:
        candidate = Candidate(name, PROGRAM, "", 1, {}, Verdict(VerdictKind.FIELD), 1.0, small=(PROGRAM, PROGRAM))
        self.winners[name] = SimpleNamespace(label=name, candidate=candidate, emitted=SimpleNamespace(programs=()))
        return self.winners[name]

    def made_of(self, digest: str) -> tuple[()]:
        return ()

    def allowed(self, seconds: float) -> float:
        return min(seconds, self.left)

    def tell(self, message: str) -> None:
        self.said.append(message)

    def call_all(self, function: Any, pairs: Any, *, seconds: float, until: float) -> Any:
        self.asked.append((function.__name__, len(pairs)))
        for number in range(len(pairs)):
            future: Future[Verdict] = Future()
            if until <= time.monotonic():
                future.set_exception(SearchError("there was no time left"))
            else:
                kind = self.real if function is verify_real else VerdictKind.PROVED
                future.set_result(Verdict(kind, 2, note=function.__name__))
            yield number, future

    def learn(self, digest: str, verdict: Verdict) -> None:
        self.winners[digest].candidate = replace(self.winners[digest].candidate, verdict=verdict)

    def set_aside(self, candidate: Candidate, error: Exception) -> None:
        self.said.append(str(error))
        del self.winners[candidate.digest]


def test_trials_at_the_real_shape_keep_nothing_else_waiting() -> None:
    """They took twenty seconds of a worker, and nothing at all was verified within a short budget."""
    passes: Any = Asked(left=9.0)
    first, second = passes.add("first"), passes.add("second")
    own = passes.add("own")
    own.candidate = replace(own.candidate, configuration=OWN_OPERATORS, small=None)
    confirmation = Confirmation(passes)
    confirmation.begin([first, own])
    assert confirmation.learn([first, second])
    assert passes.asked == [("verify_final", 1), ("verify_final", 1), ("verify_real", 2)]
    verdict = passes.winners["second"].candidate.verdict
    assert verdict.kind is VerdictKind.PROVED and verdict.note == "verify_final; and 2 trials at the real shape"


def test_where_there_is_no_time_for_the_real_shape_what_is_verified_stays() -> None:
    passes: Any = Asked(left=0.0)
    only = passes.add("only")
    assert Confirmation(passes).learn([only]) and only.candidate.verdict.kind is VerdictKind.FIELD
    assert passes.said == [
        "only: no final verification: there was no time left",
        "only: no trials at the real shape: there was no time left",
    ]


def test_what_is_refuted_at_the_real_shape_is_dropped() -> None:
    passes: Any = Asked(real=VerdictKind.REFUTED)
    assert not Confirmation(passes).learn([passes.add("wrong")]) and not passes.winners
    assert "refuted in the final verification" in passes.said[0]
