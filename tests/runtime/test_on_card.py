"""The order of a session's steps on a card, with a stand-in for its passes: what is looked at, and for how long."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_nb.runtime import on_card
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.runtime.on_card import LEAST_SECONDS, RACE_SECONDS, SESSION_SECONDS, OnCard
from mirage_nb.search.session.progress import Candidate
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.codegen import mugraphs

CARD = Gpu("Some card", 90, 132, "13.0", 60 * 2**20)
FOUND = mugraphs.rmsnorm(8, 64, 32, 16, 2)


def candidate(digest: str, **known: Any) -> Candidate:
    return Candidate(digest, FOUND, "a", 3, {}, Verdict(VerdictKind.FIELD), 1.0, **known)


def passes(left: float = math.inf, since: float = 0.0, winners: Any = (), missing: Any = ()) -> Any:
    """Of a session that has so many seconds left, and began so long ago."""
    return SimpleNamespace(
        search=SimpleNamespace(left=left, tell=lambda message: None, call_all=lambda *given, seconds: None),
        made=time.monotonic() - since,
        winners={w.candidate.digest: w for w in winners},
        early_times=lambda: None,
        trials=lambda: nullcontext(),
        verdicts=lambda candidates: None,
        inputs=SimpleNamespace(missing=missing),
    )


@pytest.mark.parametrize(
    "left, since, seconds",
    [
        (math.inf, 8.0, SESSION_SECONDS - 8.0 - RACE_SECONDS),  # a race is kept free
        (math.inf, 60.0, LEAST_SECONDS),  # however long the search took
        (10.0, 10.0, 10.0),  # a short limit is no time for a race
        (30.0, 30.0, 30.0 - RACE_SECONDS),
    ],
)
def test_how_long_the_steps_may_take(left: float, since: float, seconds: float) -> None:
    assert OnCard(passes(left, since), CARD).left == pytest.approx(seconds, abs=0.5)


def test_without_a_limit_a_slow_step_leaves_something_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limited, free = OnCard(passes(20.0, 20.0), CARD), OnCard(passes(math.inf, 20.0), CARD)
    now = time.monotonic() + 60.0
    monkeypatch.setattr("mirage_nb.runtime.on_card.time.monotonic", lambda: now)
    assert limited.left < 0 < free.left == on_card.STEP_SECONDS


class Heats:
    """Notes what it is asked for."""

    def __init__(self, *given: Any) -> None:
        self.did: list[str] = []
        self.winners: list[Any] = []
        did.append(self)

    def know(self, winners: Any) -> None:
        self.winners = list(winners)

    def run(self, jobs: Any, said: str, until: float) -> None:
        self.did.append("time " + " ".join(c.digest for c, _ in jobs))

    def ways(self, known: Any, near: float, count: int, until: float) -> str:
        return " ".join(c.digest for c in known)

    def begin(self, jobs: str, until: float) -> str:
        self.did.append(f"compile {jobs}")
        return jobs

    def go_on(self, begun: str, said: str, until: float) -> None:
        self.did.append(f"time ways of {begun}")

    def settle(self, known: Any) -> None:
        """Nothing failed."""


did: list[Heats] = []


@pytest.mark.parametrize("missing", [(), ("large logits",)])
def test_what_was_timed_early_is_emitted_in_other_ways_too_and_nobody_waits_for_inputs(
    monkeypatch: pytest.MonkeyPatch, missing: Any
) -> None:
    """Winners of the first seconds had their default way only; and sessions slept until hard inputs were drawn."""
    early = SimpleNamespace(candidate=candidate("early", time_us=2.0))
    did.clear()
    monkeypatch.setattr(on_card, "Heats", Heats)
    monkeypatch.setattr(on_card, "tried", lambda passes, heats, *rest: heats.did.append("try"))
    monkeypatch.setattr(OnCard, "finish", lambda self, winners, verdicts: None)
    noted = passes(winners=[early], missing=missing)
    assert OnCard(noted, CARD).run([candidate("early"), candidate("late")])
    meanwhile = [] if missing else ["try"]
    assert did[0].did == ["time late", "compile early late", *meanwhile, "time ways of early late", "try"]
