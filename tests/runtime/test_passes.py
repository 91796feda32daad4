"""The later passes on a machine with a GPU, with a stand-in for the card and for the race."""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_nb import superoptimize
from mirage_nb.codegen import Emitted
from mirage_nb.errors import LaunchError, MissingPartError
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.pipeline import Session
from mirage_nb.report import to_json
from mirage_nb.runtime import passes
from mirage_nb.runtime.contest import early, heats, on_card
from mirage_nb.runtime.contest.timing import Lap, Timing
from mirage_nb.runtime.contest.trial import Outcome
from mirage_nb.runtime.contest.winner import Winner
from mirage_nb.runtime.gpu import TURN, CardLost, Gpu, Turn
from mirage_nb.search.composition import OWN_OPERATORS, UNSEARCHED
from mirage_nb.search.session.progress import Candidate
from mirage_nb.verify.reals.float_gate import FloatReport, GateReport, SampleReport
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.codegen import mugraphs
from tests.stand_in_card import CARD, attach

SMALL = "X: f16[4, 64]\nW: f16[64, 96]\nY = rms_norm(X) @ W\nreturn Y"
BEGIN = passes.Passes.begin


def finished(**options: Any) -> Session:
    session = superoptimize(SMALL, effort="quick", **options)
    session.result(120)
    return session


def no_nvrtc(source: str, arch: str) -> None:
    raise MissingPartError("NVRTC is not usable", hint="pip install it")


def not_emitted(graph: KernelGraph, target: object, options: object) -> None:
    no_nvrtc("", "")


def test_finalists_are_of_every_kind_that_is_near_and_of_every_configuration() -> None:
    own, library = mugraphs.rmsnorm(8, 64, 32, 16, 2), parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn X @ W").graph

    def candidate(place: int, graph: KernelGraph, estimate: float, configuration: str) -> Candidate:
        return Candidate(f"{place:08d}", graph, configuration, 3, {}, Verdict(VerdictKind.FIELD), estimate)

    like = [candidate(n, own, 1.0 + n / 100, "a") for n in range(40)]
    near, far = candidate(40, library, 1.45, "a"), candidate(41, library, 1.6, "a")
    alone = candidate(42, own, 9.0, "b")
    chosen = [c.digest for c in passes.varied([*like, near, far, alone], 8)]
    assert len(set(chosen)) == 8 and chosen[:3] == [c.digest for c in like[:3]]
    assert near.digest in chosen and alone.digest in chosen and far.digest not in chosen
    assert passes.varied([*like, near, far, alone], 99) == [*like, near, far, alone] and passes.varied([], 4) == []
    other, unlike = candidate(43, library, 1.3, "a"), candidate(44, library, 1.46, "c")
    mixed = [*like, other, *(candidate(50 + n, own, 1.45, "c") for n in range(9)), unlike]
    assert unlike in passes.varied(mixed, 8), "every configuration has its ways"
    halves = candidate(60, mugraphs.rmsnorm(8, 64, 32, 8, 2), 1.44, "a")
    assert halves in passes.varied([*like, halves], 8), "and every number of blocks"


class Race:
    """Stands for `mirage_nb.runtime.contest.race`: the later a contestant entered, the faster it is."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], list[str]]] = []
        self.scale = 1.0
        self.spread = 1.01

    def Track(self, program: object, gpu: Gpu) -> Race:
        self.calls.append(([], []))
        return self

    def lap(self, name: str, executable: object, limit_us: float, own: bool = False) -> Lap:
        ways = self.calls[-1][0]
        ways.append(name)
        us = 1000.0 - len(ways)
        assert limit_us == (float("inf") if len(ways) == 1 else pytest.approx(passes.SLOW * (us + 1)))
        return Lap(name, 0.0, Timing(name, us, us, us, 3))

    def doubt(self, laps: list[Any], gpu: Gpu) -> str | None:
        return f"noisy {gpu.name}" if any(lap.timing.high_us > 1.5 * lap.timing.low_us for lap in laps) else None

    def pytorch_peers(self, program: object) -> dict[str, object]:
        return {"eager": None}

    def race(self, ours: Any, peers: Any, repeats: int) -> list[Lap]:
        self.calls.append((list(ours), list(peers)))
        names = [*ours, *peers]
        return [
            Lap(n, 0.0, Timing(n, us, us, self.spread * us, 9))
            for n, us in zip(names, range(100, 0, -1), strict=False)
        ]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Race:
    """A card that runs everything."""
    race = Race()
    attach(monkeypatch, race, finalists=3, richer=2)
    return race


def test_finalists_are_raced_every_way_and_the_fastest_again_beside_torch(card: Race) -> None:
    session = finished()
    snapshot, winner = session.snapshot(), session.best
    unsearched = ("the library won", "the operators as they stand")
    said = [message for message in snapshot.messages if not message.startswith(unsearched)]
    assert not said and winner is not None
    assert session.target.name == "h200" and winner.candidate.executed_on == "Some card"
    (first, no_peers), (again, peers) = card.calls
    assert no_peers == [] and peers == ["eager"]
    assert len(first) > len({label[:8] for label in first}) > 1  # several ways for several muGraphs
    assert again == first[::-1][: on_card.RACED], "all ways that are close; the later, the faster"
    assert [lap.name for lap in session.baselines] == ["eager"]
    assert winner.label == again[-1] and winner.candidate.time_us == 100.0 - (len(again) - 1)
    timed = [c for c in snapshot.candidates if c.time_us is not None]
    assert [c.time_us for c in timed] == sorted(c.time_us for c in timed if c.time_us)
    assert len(timed) == len({label[:8] for label in first})
    assert "at the real shape" in winner.candidate.verdict.note
    assert winner.candidate.verdict.kind is VerdictKind.PROVED
    assert json.loads(to_json(session))["baselines"][0]["name"] == "eager"


def test_where_no_kernel_comes_through_in_time_the_programs_own_operators_run(
    card: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short budget was over before any first run on the card had ended, and nothing ran at all."""
    monkeypatch.setattr(heats.Heats, "run", lambda self, jobs, said, until: None)
    session = finished()
    assert session.best.candidate.digest == session.snapshot().baseline.digest
    assert session.best.candidate.executed_on == "Some card"


def test_where_the_card_takes_no_work_the_cpu_edition_does(card: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that another program held exclusively ended sessions with an internal error, and without a kernel."""

    def refused(self: passes.Passes) -> None:
        raise LaunchError("the card reports cudaErrorDevicesUnavailable")

    monkeypatch.setattr(passes.Passes, "trials", refused)
    session = finished()
    assert session.best.candidate.executed_on == "CPU edition"
    said = "not executed on the Some card: the card reports cudaErrorDevicesUnavailable"
    assert [message for message in session.snapshot().messages if message.startswith(said)]


def test_one_wrong_way_is_left_out_and_one_wrong_mugraph_is_dropped(
    card: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = passes.Passes.on_gpu
    digests: list[str] = []

    def on_gpu(self: passes.Passes, candidate: Any, emitted: Emitted, cubin: Any, gpu: Gpu, trials: Any) -> Winner:
        if candidate.digest not in digests and candidate.configuration not in UNSEARCHED:
            digests.append(candidate.digest)
            if len(digests) == 2:
                raise LaunchError("this way does not load")
        if candidate.digest in digests[:1]:
            raise passes.WrongResult("wrong on Some card")
        return right(self, candidate, emitted, cubin, gpu, trials)

    monkeypatch.setattr(passes.Passes, "on_gpu", on_gpu)
    session = finished()
    messages = session.snapshot().messages
    assert [m for m in messages if "one way to emit it is left out: this way does not load" in m]
    assert [m for m in messages if m.startswith(digests[0][:8]) and "wrong on Some card" in m]
    left = {c.digest for c in session.snapshot().candidates}
    assert digests[0] not in left and digests[1] in left
    assert digests[1] in {w.candidate.digest for w in session.winners}


def test_a_kernel_that_is_numerically_poor_is_no_winner(card: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    right = passes.Passes.on_gpu
    digests: list[str] = []

    def on_gpu(self: passes.Passes, candidate: Any, emitted: Emitted, cubin: Any, gpu: Gpu, trials: Any) -> Winner:
        digests.append(candidate.digest)
        if candidate.digest == digests[0]:
            lost = SampleReport("large logits", False, float("inf"), "output 0[1, 2] is nan, the reference is 3")
            outcome = Outcome(FloatReport(1e-4, True), True, GateReport((lost,)))
            return Winner.judged(candidate, emitted, SimpleNamespace(device="x"), None, outcome, self.origin)  # type: ignore[arg-type]
        return right(self, candidate, emitted, cubin, gpu, trials)

    monkeypatch.setattr(passes.Passes, "on_gpu", on_gpu)
    session = finished()
    (poor,) = [c for c in session.snapshot().candidates if c.digest == digests[0]]
    assert poor.note.startswith("numerically poor: large logits: output 0[1, 2] is nan") and poor.time_us is None
    assert poor.digest not in {w.candidate.digest for w in session.winners} and session.winners
    assert [m for m in session.snapshot().messages if m.startswith(f"{poor.digest[:8]}: numerically poor")]


def test_a_card_that_is_lost_ends_the_heats_and_keeps_what_was_timed(
    card: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = card.lap
    lost: list[str] = []

    def lap(name: str, executable: object, limit_us: float, own: bool = False) -> Lap:
        if len(card.calls[-1][0]) == 2:
            lost.append(name)
            raise CardLost("the Some card is lost to this process: illegal address", hint="restart")
        return timed(name, executable, limit_us)

    def race(*given: Any, **options: Any) -> Any:
        raise LaunchError("the card reports an illegal address")

    monkeypatch.setattr(card, "lap", lap)
    monkeypatch.setattr(card, "race", race)
    session = finished()
    assert len(lost) == 1 and len(card.calls[0][0]) == 2
    assert session.best is not None and session.best.label in card.calls[0][0]
    (culprit,) = [c for c in session.snapshot().candidates if lost[0].startswith(c.digest[:8])]
    assert "lost to this process: illegal address" in culprit.note
    messages = session.snapshot().messages
    assert [m for m in messages if m.startswith("the Some card is lost")] and [m for m in messages if "not timed" in m]


def test_times_that_vary_are_doubted(card: Race) -> None:
    card.spread = 2.0
    assert [m for m in finished().snapshot().messages if "noisy Some card" in m]


def test_sessions_take_turns_on_the_card(card: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    timed, alone = card.lap, []

    def lap(*given: Any) -> Lap:
        alone.append(not TURN.take(0))
        return timed(*given)

    monkeypatch.setattr(card, "lap", lap)
    with TURN:
        session = superoptimize(SMALL, effort="quick")
        while "waiting for the card" not in session.stage:
            assert not session.wait(0.05)
        assert not session.wait(0.3) and alone == []
    assert session.wait(120) and alone and all(alone) and session.best is not None
    assert TURN.quiet_seconds > 0
    with TURN:  # a stop does not wait for a turn
        session = superoptimize(SMALL, effort="quick")
        while "waiting for the card" not in session.stage:
            assert not session.wait(0.05)
        session.stop()
        assert session.wait(10)


def test_a_card_that_others_use_is_doubted(card: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "busy_percent", lambda: 99)
    monkeypatch.setattr(passes, "TURN", Turn())  # nobody has timed anything yet
    said = [m for m in finished().snapshot().messages if "another program may be using" in m]
    assert said == ["the Some card is 99 % busy before anything is timed: another program may be using it, and times "
                    "are doubtful"]  # fmt: skip


def test_a_card_without_nvrtc_or_torch(card: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mirage_nb.runtime.contest.race", None)
    session = finished()
    assert session.best is not None and session.best.candidate.time_us is None
    assert [m for m in session.snapshot().messages if "nothing was timed" in m]
    monkeypatch.setattr(passes, "compile_cubin", no_nvrtc)
    monkeypatch.setattr(heats, "emit_and_compile", not_emitted)
    session = finished()
    assert session.best is not None and session.best.candidate.executed_on == "CPU edition"
    assert [m for m in session.snapshot().messages if "not executed on the Some card" in m]


def test_another_target_than_the_card(card: Race) -> None:
    session = finished(target="a100")
    assert session.target.name == "a100" and card.calls == []
    assert session.best is not None and session.best.candidate.executed_on == "CPU edition"


def test_a_librarys_time_is_there_while_the_search_goes_on(card: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time of a session is of its own operators, and no trial is waited for."""
    lapped: list[str] = []

    def lap(self: early.Early, own: Candidate, emitted: Emitted, cubin: object) -> None:
        lapped.append(own.configuration)
        outcome = Outcome(FloatReport(1e-4, True), True)
        stand_in: Any = SimpleNamespace(device=CARD.name)
        winner = Winner.judged(own, emitted, stand_in, None, outcome, self._passes.origin)
        self._passes.note([replace(winner, candidate=replace(winner.candidate, time_us=2000.0))])

    monkeypatch.setattr(passes.Passes, "begin", BEGIN)
    monkeypatch.setattr(early.Early, "_lap", lap)
    monkeypatch.setattr(early.Early, "_draw", lambda self: self._drawn.set())
    monkeypatch.setattr(early.Early, "_warmed", lambda self: nullcontext())
    monkeypatch.setattr(early.Early, "_compile", lambda self, found: None)
    session = finished()
    assert set(lapped) == {OWN_OPERATORS}
    assert parse(SMALL).graph.digest() in {w.candidate.digest for w in session.winners}
    assert parse(SMALL).graph.digest() not in {t.candidate for t in session.timed}, "nothing is timed twice"


def test_what_breaks_on_hard_inputs_is_withdrawn_though_it_was_timed(
    card: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = SampleReport("wide range", False, float("inf"), "output 0[1, 2] is nan, the reference is 3")
    poor: list[str] = []

    def gated(self: passes.Passes, winner: Winner, gate: object = None) -> Winner:
        poor[:] = poor or [winner.candidate.digest]
        report = GateReport((lost,) if winner.candidate.digest == poor[0] else ())
        return winner.shown(Outcome(FloatReport(1e-4, True), True, report))

    monkeypatch.setattr(passes.Passes, "gated", gated)
    session = finished()
    (withdrawn,) = [c for c in session.snapshot().candidates if c.digest == poor[0]]
    assert withdrawn.time_us is None and withdrawn.note.startswith("numerically poor: wide range")
    assert [t for t in session.timed if t.candidate == poor[0]], "it was timed before"
    assert session.winners and poor[0] not in {w.candidate.digest for w in session.winners}


@pytest.mark.parametrize(("left", "given"), [(100.0, 30.0), (40.0, 20.0), (1.0, 6.0), (float("inf"), 30.0)])
def test_a_first_run_that_does_not_end_leaves_half_of_the_time_to_others(
    monkeypatch: pytest.MonkeyPatch, left: float, given: float
) -> None:
    """One endless kernel took all that finalists had, and was not told of."""
    launch: Any = SimpleNamespace(exclusive=lambda: False)
    monkeypatch.setitem(sys.modules, "mirage_nb.runtime.execution.launch", launch)
    asked: list[float] = []
    trials: Any = SimpleNamespace(call_all=lambda run, given, seconds, until: asked.append(seconds) or ())
    made: Any = SimpleNamespace(input_scale=1.0)
    assert [*passes.Passes.first_runs(made, [], trials, time.monotonic() + left)] == []
    assert asked == [pytest.approx(given, abs=0.5)]


def test_without_time_for_hard_inputs_what_was_compared_is_a_winner_and_that_is_said(
    card: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_gate(*given: Any) -> None:
        raise LaunchError("no inputs were drawn in time to try it on")

    monkeypatch.setattr(passes.Passes, "make_gate", make_gate)
    session = finished()
    assert session.winners
    assert [m for m in session.snapshot().messages if m.startswith("kernels were compared with float64 on random")]
