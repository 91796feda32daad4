"""The order of a session's steps on a card, with a stand-in for its passes: what is looked at, and for how long."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_nb.lang import parse
from mirage_nb.runtime.contest import on_card
from mirage_nb.runtime.contest.on_card import LEAST_SECONDS, RACE_SECONDS, SESSION_SECONDS, OnCard, met
from mirage_nb.runtime.contest.timing import Lap, Timing
from mirage_nb.runtime.contest.winner import Origin, PoorResult, Winner
from mirage_nb.runtime.gpu import CardLost, Gpu
from mirage_nb.runtime.passes import Passes
from mirage_nb.search.composition import OWN_OPERATORS
from mirage_nb.search.session.progress import Candidate
from mirage_nb.targets import find_target
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.codegen import mugraphs

CARD = Gpu("Some card", 90, 132, "13.0", 60 * 2**20)
FOUND = mugraphs.rmsnorm(8, 64, 32, 16, 2)
PROGRAM = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W").graph


def candidate(digest: str, **known: Any) -> Candidate:
    return Candidate(digest, FOUND, "a", 3, {}, Verdict(VerdictKind.FIELD), 1.0, **known)


def passes(left: float = math.inf, since: float = 0.0, winners: Any = (), missing: Any = ()) -> Any:
    """Of a session that has so many seconds left, and began so long ago."""
    return SimpleNamespace(
        search=SimpleNamespace(left=left, tell=lambda message: None, call_all=lambda *given, seconds: None),
        made=time.monotonic() - since,
        ranked=list(winners),
        winners={w.candidate.digest: w for w in winners},
        early_times=lambda: None,
        trials=lambda: nullcontext(SimpleNamespace(terminate=lambda wait: did[0].did.append("end trials"))),
        can_meet=not missing,
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
    monkeypatch.setattr("mirage_nb.runtime.contest.on_card.time.monotonic", lambda: now)
    assert limited.left < 0 < free.left == on_card.STEP_SECONDS


class Heats:
    """Notes what it is asked for."""

    timed = 1

    def __init__(self, *given: Any) -> None:
        self.did: list[str] = []
        did.append(self)

    def run(self, jobs: Any, said: str, until: float) -> None:
        self.did.append(f"{said}: " + " ".join(c.digest for c, _ in jobs))

    def ways(self, known: Any, near: float, count: int, until: float) -> Any:
        return [(c, None) for c in known]

    def settle(self, known: Any) -> None:
        """Nothing failed."""


did: list[Heats] = []


@pytest.mark.parametrize("missing", [(), ("large logits",)])
def test_what_was_timed_early_is_emitted_in_other_ways_too_and_nobody_waits_for_inputs(
    monkeypatch: pytest.MonkeyPatch, missing: Any
) -> None:
    """Winners of the first seconds had their default way only; and sessions slept until hard inputs were drawn."""
    early = SimpleNamespace(candidate=candidate("early", time_us=2.0), label="early")
    did.clear()
    monkeypatch.setattr(on_card, "Heats", Heats)
    monkeypatch.setattr(on_card, "Confirmation", lambda *given: SimpleNamespace(begin=lambda winners: None))
    monkeypatch.setattr(on_card, "met", lambda *given: did[0].did.append("try"))
    monkeypatch.setattr(OnCard, "finish", lambda self, verdicts: None)
    noted = passes(winners=[early], missing=missing)
    assert OnCard(noted, CARD).run([candidate("early"), candidate("late")])
    meanwhile = [] if missing else ["try"]
    ways = "other ways to emit the best: early late"
    assert did[0].did == ["finalists: late", *meanwhile, ways, "try", "end trials"]


def test_finalists_that_no_process_could_try_in_time_have_another_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that was busy with others' processes took three seconds for ours, and the program's own operators won,
    with two seconds left."""
    did.clear()
    monkeypatch.setattr(on_card, "Heats", type("Slow", (Heats,), {"timed": 0}))
    monkeypatch.setattr(on_card, "Confirmation", lambda *given: SimpleNamespace(begin=lambda winners: None))
    monkeypatch.setattr(on_card, "met", lambda *given: None)
    monkeypatch.setattr(OnCard, "finish", lambda self, verdicts: None)
    assert OnCard(passes(winners=[]), CARD).run([candidate("late")])
    assert did[0].did[:2] == ["finalists: late"] * 2


class Way(str):
    """Stands for options, by a name; of those that start early it is "early ..."."""

    @property
    def chained(self) -> bool:
        return self.startswith("early")


class Timed:
    """A session whose kernels were timed: names that begin with "own" are ways of a library for the program's own
    operators, those with "poor" break on hard inputs, and those with "late" are never tried in time."""

    def __init__(self, **times: float) -> None:
        self.said: list[str] = []
        self.tried_in_turn: list[str] = []
        self.kept: dict[str, Candidate] = {}
        search: Any = SimpleNamespace(
            program=PROGRAM, seed=0, target=find_target("h200"), left=5.0, tell=self.said.append, name="",
            proceed=lambda: True, offer=lambda found: None, candidates=lambda: [*self.kept.values()],
            update=lambda c: self.kept.update({c.digest: c}), drop=lambda digest, why: self.said.append(why),
        )  # fmt: skip
        self.passes: Any = Passes(search, CARD)
        self.passes.make_gate = lambda trials, until: setattr(self.passes, "gate", trials if self.drawn else None)
        self.passes.gated, self.passes.turn, self.drawn = self.gated, lambda gpu: nullcontext(), True
        self.passes.track = lambda gpu: None
        for name, us in times.items():
            own = name.startswith("own")
            known = candidate(name if not own else "own", time_us=us)
            known = replace(known, configuration=OWN_OPERATORS, graph=PROGRAM) if own else known
            self.kept.setdefault(known.digest, replace(known, time_us=None))
            emitted: Any = SimpleNamespace(options=Way(name), launches=(), programs=())
            origin = Origin("", PROGRAM, find_target("h200"))
            self.passes.note([Winner(known, emitted, None, b"", None, origin)])  # type: ignore[arg-type]

    def gated(self, winner: Winner) -> Winner:
        self.tried_in_turn.append(name := str(winner.emitted.options))
        if "poor" in name:
            raise PoorResult("numerically poor")
        return winner

    def run(self, meanwhile: Winner | None = None) -> list[str]:
        """Try, and finish; returns what is left, fastest first."""
        met(self.passes, CARD, object(), time.monotonic())  # type: ignore[arg-type]
        if meanwhile is not None:
            self.passes.note([meanwhile])
        OnCard(self.passes, CARD).finish(SimpleNamespace(learn=lambda winners: True))  # type: ignore[arg-type]
        ranked = sorted(self.passes.winners.values(), key=lambda winner: winner.candidate.rank)
        return [str(winner.emitted.options) for winner in ranked]


def test_the_fastest_are_tried_first_and_no_more_than_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that was timed was tried, in no order: 31 kernels had no time for it, and the fastest were among them."""
    monkeypatch.setattr(on_card, "TRIED", 3)
    session = Timed(d=4.0, b=2.0, own=9.0, a=1.0, c=3.0, e=5.0)
    assert session.run() == ["a", "b", "c", "d", "e", "own"] and session.tried_in_turn == ["a", "b", "c"]
    assert [m for m in session.said if m == "2 kernels that are slower than the winner were not tried on hard inputs"]


def test_for_those_that_break_the_next_ones_step_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_card, "TRIED", 2)
    session = Timed(poor1=1.0, poor2=2.0, a=3.0, b=4.0)
    assert session.run() == ["a", "b"] and session.tried_in_turn == ["poor1", "poor2", "a", "b"]


def test_what_was_withdrawn_does_not_come_back() -> None:
    session = Timed(poor=1.0, own_poor=2.0, own_next=3.0)
    broken = [w for w in session.passes.winners.values() if w.candidate.digest in ("poor", "own")]
    assert session.run() == ["own_next"]
    session.passes.note(broken)
    assert {str(w.emitted.options) for w in session.passes.winners.values()} == {"own_next"}


def test_where_nothing_was_tried_all_are_kept_and_that_is_said() -> None:
    session = Timed(late=128.0, own=147.0)
    session.drawn = False
    assert session.run() == ["late", "own"]
    assert [m for m in session.said if m.startswith("kernels were compared with float64 on random inputs only")]


def test_a_card_that_a_trial_spoils_ends_the_trials() -> None:
    session = Timed(a=1.0, b=2.0)

    def lost(winner: Winner) -> Winner:
        raise CardLost("the Some card is lost to this process")

    session.passes.gated = lost
    with pytest.raises(CardLost):
        session.run()
    assert [w.candidate.digest for w in session.passes.winners.values()] == ["b"]


def test_for_a_librarys_way_that_breaks_the_next_one_stands_in() -> None:
    session = Timed(own_poor=1.0, own_next=2.0, a=3.0)
    assert session.run() == ["own_next", "a"]
    assert "own: a library's way is left out: numerically poor" in session.said


def test_what_is_timed_meanwhile_is_not_overwritten_and_is_tried() -> None:
    """A way of 161 us was timed as the budget ended, and that muGraph's first one of 45 ms, known before, was kept."""
    session = Timed(a=45829.0, own=217.0)
    emitted: Any = SimpleNamespace(options=Way("a, faster"), launches=(), programs=())
    slow = session.passes.winners["a"]
    assert session.run(replace(slow, emitted=emitted).timed(161.0)) == ["a, faster", "own"]
    assert session.tried_in_turn == ["own", "a", "a, faster"]


class Steady:
    """A track whose races have these times."""

    def __init__(self, **times: float) -> None:
        self.times, self.raced = times, list[str]()

    def race(self, ours: Any, peers: Any, repeats: int) -> list[Lap]:
        assert not peers and repeats >= on_card.FEWEST
        self.raced = [label.split()[-1] for label in ours]
        timed = ((label, self.times[label.split()[-1]]) for label in ours)
        return [Lap(label, 0.0, Timing(label, us, us, us, 9)) for label, us in timed]


def test_without_time_for_pytorch_what_is_close_is_raced_alone_in_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 28 ways to emit a kernel of 2 us the least of as many short timings was chosen: one that starts early, which
    lost a tenth behind other kernels. What is not raced does not win by its heat."""
    session, track = Timed(a=2.0, b=1.98, c=2.03, far=2.4), Steady(a=2.2, plain=2.1, b=2.3)
    monkeypatch.setattr(on_card, "SETTLED", 3)
    session.passes.track = lambda gpu: track
    for name, us in (("plain", 2.01), ("slow", 2.2)):
        other: Any = SimpleNamespace(options=Way(name), launches=(), programs=())
        session.passes.note([replace(session.passes.winners["a"], emitted=other).timed(us)])
    assert session.run() == ["plain", "c", "b", "far"] and track.raced == ["b", "a", "plain"]
    times = [w.candidate.time_us for w in session.passes.ranked]
    assert times == pytest.approx([2.1, 2.03 * 2.1 / 1.98, 2.3, 2.4 * 2.1 / 1.98])
    assert "plain" in session.tried_in_turn and "slow" not in session.tried_in_turn


def test_of_what_takes_as_long_behind_others_the_faster_back_to_back_wins() -> None:
    """Ten ways to compute a SELU take 1.9 us behind a foreign kernel, 1.56 to 1.94 back to back; one of 1.94 won."""
    session = Timed(a=2.0, b=2.0, far=2.4)

    def race(ours: Any, peers: Any, repeats: int) -> list[Lap]:
        times = {"a": (1.93, 1.91), "b": (1.95, 1.56), "far": (2.3, 0.9)}
        found = ((label, *times[label.split()[-1]]) for label in ours)
        return [
            Lap(label, 0.0, Timing(label, us, us, us, 9), chain=Timing(label, chain, chain, chain, 9))
            for label, us, chain in found
        ]

    session.passes.track = lambda gpu: SimpleNamespace(race=race)
    assert session.run() == ["b", "a", "far"]
    times = [(w.candidate.time_us, w.candidate.chain_us) for w in session.passes.ranked]
    assert times[:2] == [(1.95, 1.56), (1.93, 1.91)]


def test_what_starts_early_is_believed_when_it_was_raced() -> None:
    """Behind a foreign kernel its short timings said 1.55 us where a race says 2.2; others were no longer looked at."""
    session, track = Timed(early1=1.55, plain=1.9, slow=2.4), Steady(early1=2.2, plain=1.95, early_other=2.3)
    session.passes.track = lambda gpu: track
    other: Any = SimpleNamespace(options=Way("early_other"), launches=(), programs=())
    session.passes.note([replace(session.passes.winners["plain"], emitted=other).timed(1.7)])
    assert session.run() == ["plain", "early1", "slow"] and track.raced == ["plain", "early1", "early_other"]


def test_what_starts_early_and_was_not_raced_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    session, track = Timed(early=1.6, a=1.9, b=1.95), Steady(a=1.92, b=1.97)
    monkeypatch.setattr(on_card, "SETTLED", 2)
    session.passes.track = lambda gpu: track
    assert session.run() == ["a", "b", "early"] and track.raced == ["a", "b"]
    assert session.passes.winners["early"].candidate.time_us == pytest.approx(2.1)


def test_without_time_for_a_race_what_starts_early_is_not_believed() -> None:
    """A session of 5 s chose a softplus of 2.14 us, which its heat had at 1.7, before one of 2.0."""
    session = Timed(early=1.6, a=1.9)
    session.passes.search.left = 0.0
    session.passes.track = lambda gpu: pytest.fail("there is no time for a race")
    assert session.run() == ["a", "early"]
