"""Tuning: the order in which candidates are timed, early stopping, and whole tunings on a stand-in card."""

from __future__ import annotations

import concurrent.futures as futures
import itertools
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_nb import superoptimize
from mirage_nb.errors import LaunchError, MissingPartError, OptionError
from mirage_nb.lang import parse
from mirage_nb.pipeline import Session
from mirage_nb.runtime import passes
from mirage_nb.runtime.contest import on_card, other_cards, tuning, ways
from mirage_nb.runtime.contest.finalists import calibrated, next_ones, structure_of
from mirage_nb.runtime.contest.timing import (
    MOST_ROUNDS,
    Contestant,
    Lane,
    Lap,
    Timing,
    time_interleaved,
    time_launches,
    time_quickly,
)
from mirage_nb.runtime.contest.tuning import more_instances
from mirage_nb.runtime.contest.winner import Winner
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.search.session.progress import Candidate
from mirage_nb.search.session.session import SearchSession
from mirage_nb.targets import find_target
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.codegen import mugraphs
from tests.stand_in_card import attach

SMALL = "X: f16[4, 64]\nW: f16[64, 96]\nY = rms_norm(X) @ W\nreturn Y"
GRAPH = mugraphs.rmsnorm(8, 64, 32, 16, 2)
OTHER = mugraphs.rmsnorm(8, 64, 32, 8, 2)


def candidate(digest: str, estimate: float, configuration: str = "a", small: Any = None, **known: Any) -> Candidate:
    pair = None if small is None else (GRAPH, small)
    return Candidate(digest, GRAPH, configuration, 3, {}, Verdict(VerdictKind.FIELD), estimate, small=pair, **known)


def test_estimates_are_corrected_by_times_of_their_like() -> None:
    corrected = calibrated([
        candidate("a", 10.0, small=GRAPH, time_us=20.0),
        candidate("b", 10.0, small=GRAPH, time_us=40.0),
        candidate("c", 10.0, small=GRAPH, time_us=20.0),
        candidate("d", 10.0, "other", small=OTHER, time_us=5.0),
        candidate("untimed", 1.0, "third"),
    ])  # fmt: skip
    assert corrected(candidate("x", 7.0, "other", small=GRAPH)) == pytest.approx(14.0)  # by structure: of 2, 4, 2
    assert corrected(candidate("x", 7.0, "other")) == pytest.approx(3.5)  # by configuration
    assert corrected(candidate("x", 7.0, "new")) == pytest.approx(14.0)  # by all: 0.5, 2, 2, 4
    assert calibrated([])(candidate("x", 7.0)) == 7.0


def test_the_next_ones_promise_most_and_are_diverse() -> None:
    like = [candidate(f"a{n}", 1.0 + n / 100, small=GRAPH) for n in range(10)]
    others = [candidate("b", 5.0, small=OTHER), candidate("c", 9.0)]
    done = [candidate("t", 0.1, time_us=1.0), candidate("n", 0.1, note="a block needs too much")]
    chosen = next_ones([*like, *others, *done], 6)
    assert chosen[0].digest == "a0" and {"b", "c"} <= {c.digest for c in chosen}
    assert len({c.digest for c in chosen}) == 6 and not {"t", "n"} & {c.digest for c in chosen}
    assert {c.digest for c in next_ones([*like, *others], 99)} == {c.digest for c in [*like, *others]}
    assert [c.digest for c in next_ones([*like, *others], 99, 1.025)] == ["a0", "a1", "a2"]
    timed = [candidate("m", 1.0, small=GRAPH, time_us=100.0), candidate("n", 5.0, small=OTHER, time_us=5.0)]
    assert next_ones([*like, *others, *timed], 1)[0].digest == "b"  # those like a0 take a hundred times their estimate


def test_more_instances_share_structure_and_verdict() -> None:
    search = SearchSession(parse(SMALL).graph, find_target("h200"), effort="quick").start()
    snapshot = search.result(120)
    like = snapshot.candidates[0]
    beside = [c for c in snapshot.candidates if c.configuration == like.configuration]
    other = next((c for c in beside if structure_of(c) != structure_of(like)), like)
    known = search.program, search.bounds, search.target, search.seed
    found = more_instances(*known, (like, other), 48)
    for one in (like, other):
        own = [c for c in found if structure_of(c) == structure_of(one)]
        assert len(own) > sum(structure_of(c) == structure_of(one) for c in snapshot.candidates) or len(own) == 48
        assert one.digest in {c.digest for c in own} and all(c.verdict == one.verdict for c in own)
    assert len({c.digest for c in found}) == len(found)
    assert all(c.digest == c.graph.digest() and c.time_us is None and not c.executed_on for c in found)
    few = more_instances(*known, (like,), 2)
    assert len(few) == 2 and {c.digest for c in few} <= {c.digest for c in found}


def test_instances_whose_tiles_hang_over_share_the_verdict_on_such_tiles() -> None:
    text = "X: f16[8, 96]\nW: f16[96, 1100]\nreturn rms_norm(X) @ W"
    search = SearchSession(parse(text).graph, find_target("h200"), effort="quick").start()
    candidates = search.result(120).candidates
    by_structure = {structure_of(c): c for c in reversed(candidates)}
    assert len(by_structure) > 1
    configuration = candidates[0].configuration
    likes = tuple(c for c in by_structure.values() if c.configuration == configuration)
    found = more_instances(search.program, search.bounds, search.target, search.seed, likes, 24)
    known = {c.digest: structure_of(c) for c in candidates}
    assert {structure_of(c) for c in found} == {structure_of(c) for c in likes}
    assert all(known.get(c.digest, structure_of(c)) == structure_of(c) for c in found)


class FakeTorch:
    """Events that measure the microseconds that work says it takes."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cuda = SimpleNamespace(is_available=lambda: True, Event=self.event, synchronize=lambda: None)

    def event(self, enable_timing: bool, external: bool = False) -> Any:
        assert enable_timing
        event = SimpleNamespace(at=0.0, synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", self.now)
        event.elapsed_time = lambda end: (end.at - event.at) / 1e3
        return event

    @staticmethod
    def replaying(work: Any) -> Any:
        """Stands for the capture of steps: a graph that does this between its first and its last one, the events."""
        return lambda steps, torch: SimpleNamespace(replay=lambda: [steps[0](), work(), steps[-1]()])

    def work(self, *us: float) -> Any:
        """Work that takes so long the first time, the second time and from then on."""
        left = list(us)

        def run() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_the_slow_are_timed_for_a_few_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch()
    replays = torch.work(*(24 * us for us in (1.0, 30.0, 24.0, 26.0, 25.0)))
    monkeypatch.setattr("mirage_nb.runtime.contest.timing._capture", torch.replaying(replays))
    contestant = Contestant("x", [torch.work(25.0)])
    slow = time_quickly(contestant, torch, 10.0)
    assert slow is not None and slow.repeats == 3 and slow.median_us == 26.0
    quick = time_quickly(contestant, torch, 30.0)
    assert quick is not None and quick.repeats == 16
    monkeypatch.setattr("mirage_nb.runtime.contest.timing._capture", lambda c, t: None)
    assert time_quickly(contestant, torch, 30.0) is None


def test_the_hopeless_are_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of 20 ms took seconds of the card, and minutes in the last race."""
    torch, captured = FakeTorch(), []

    def capture(steps: Any, torch: Any) -> SimpleNamespace:
        captured.append(len(steps) - 2)  # the events
        return SimpleNamespace(replay=lambda: [step() for step in steps])

    monkeypatch.setattr("mirage_nb.runtime.contest.timing._capture", capture)
    for us, limit, graphs in ((20e3, 30.0, [1]), (700.0, 100.0, [24]), (80.0, 2.0, [24])):
        captured.clear()
        timing = time_quickly(Contestant("x", [torch.work(us)] * 3), torch, limit)
        assert timing is not None and captured == graphs
        assert (timing.median_us, timing.repeats) == (us, 1 if graphs == [1] else 3)
    first = time_quickly(Contestant("first", [torch.work(20e3)]), torch, float("inf"))
    assert first is not None and first.repeats == 3, "there is nothing better, and it is timed long enough"


def test_a_host_that_is_late_makes_nothing_hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Library kernels of 0.2 ms took 50 ms to be called beside a search, and were timed no more."""
    torch = FakeTorch()
    monkeypatch.setattr("mirage_nb.runtime.contest.timing._capture", torch.replaying(torch.work(200.0, 24 * 200.0)))
    timing = time_quickly(Contestant("library", [torch.work(5e4)] * 3), torch, 250.0)
    assert timing is not None and timing.median_us == 200.0


def test_what_only_a_first_call_makes_ready_is_no_part_of_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's kernel takes memory for every set of buffers when it is called for the first time."""
    torch = FakeTorch()
    monkeypatch.setattr("mirage_nb.runtime.contest.timing._capture", torch.replaying(torch.work(24 * 36.0)))
    timing = time_quickly(Contestant("library", [torch.work(2e4, 36.0)]), torch, 80.0)
    assert timing is not None and (timing.median_us, timing.repeats) == (36.0, 16)


def test_what_a_foreign_kernel_takes_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call stands behind one, and so do the empty calls that show what it takes just now."""
    torch, lined_up = FakeTorch(), []

    def captured(steps: Any, torch: Any) -> SimpleNamespace:
        lined_up.append(len(steps) - 2)  # the events
        return SimpleNamespace(replay=lambda: [step() for step in steps])

    monkeypatch.setattr("mirage_nb.runtime.contest.timing._capture", captured)
    contestant = Contestant("x", [torch.work(5.0), torch.work(7.0)])
    (alone,) = time_interleaved([contestant], Lane(torch, None))
    (behind,) = time_interleaved([contestant], Lane(torch, torch.work(90.0)))
    quick = time_quickly(contestant, torch, 30.0, lane=Lane(torch, torch.work(90.0)))
    assert quick is not None and alone.median_us == behind.median_us == quick.median_us == pytest.approx(6.0)
    assert lined_up == [24, 16, 16, 16, 16, 16], "as many foreign kernels as calls; short ones are captured anew"
    assert time_interleaved([contestant], Lane(torch, None), repeats=3)[0].repeats == 3
    assert time_interleaved([contestant], Lane(torch, None), repeats=3, seconds=60.0)[0].repeats == MOST_ROUNDS
    drifting = torch.work(*(float(us) for us in range(50, 2000)))
    (steady,) = time_interleaved([contestant], Lane(torch, drifting))
    assert steady.median_us == pytest.approx(6.0 + 8.0), "what it took in the replay just before"


def test_what_one_graph_adds_to_all_its_replays_is_met_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of 2 us takes longer in one graph than in the next, whoever computes it; long ones hide that."""
    for us, met in ((2.0, 2.5), (200.0, 200.0)):
        torch, graphs = FakeTorch(), itertools.count()

        def captured(steps: Any, torch: FakeTorch = torch, graphs: Any = graphs) -> SimpleNamespace:
            late = [torch.work(8.0)] if next(graphs) == 2 else []  # behind the foreign kernel alone, and a first one
            return SimpleNamespace(replay=lambda: [step() for step in (steps[0], *late, *steps[1:])])

        monkeypatch.setattr("mirage_nb.runtime.contest.timing._capture", lambda steps, _, to=captured: to(steps))
        (timing,) = time_interleaved([Contestant("x", [torch.work(us)])], Lane(torch, torch.work(90.0)), repeats=40)
        assert timing.median_us == pytest.approx(met)


def test_what_empties_l2_is_no_part_of_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of 256 KB were rotated within L2, and who came after whom decided what was found there."""
    torch, order = FakeTorch(), list[str]()
    work, flush = torch.work(5.0), torch.work(90.0)

    def captured(steps: Any, torch: Any) -> SimpleNamespace:
        order[:] = ["flush" if step is flush else "call" if step is work else "event" for step in steps]
        return SimpleNamespace(replay=lambda: [step() for step in steps])

    monkeypatch.setattr("mirage_nb.runtime.contest.timing._capture", captured)
    (timing,) = time_interleaved([Contestant("x", [work])], Lane(torch, None, flush))
    assert order == ["flush", "event", *["call"] * 24, "event"] and timing.median_us == pytest.approx(5.0)


def test_what_the_host_does_is_no_part_of_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are timed while others are compiled: a host that is late launches late, and times were off by that."""
    torch = FakeTorch()

    def captured(steps: Any, torch: Any) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: [late(), *(step() for step in steps), late()])

    late = torch.work(5e3)
    monkeypatch.setattr("mirage_nb.runtime.contest.timing._capture", captured)
    quick = time_quickly(Contestant("x", [torch.work(5.0)]), torch, 30.0, lane=Lane(torch, torch.work(90.0)))
    assert quick is not None and quick.median_us == quick.high_us == pytest.approx(5.0)


def test_a_time_that_drowned_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels were listed with -2.4 us: something else kept the card busy while the foreign kernel ran alone."""
    torch = FakeTorch()
    monkeypatch.setattr(
        "mirage_nb.runtime.contest.timing._capture",
        lambda steps, t: SimpleNamespace(replay=lambda: [step() for step in steps]),
    )
    drowned = Contestant("x", [torch.work(-1.0)])
    with pytest.raises(LaunchError, match="another program is using the card"):
        time_quickly(drowned, torch, 30.0, lane=Lane(torch, torch.work(90.0)))
    assert time_interleaved([drowned], Lane(torch, torch.work(90.0))) == []


def test_a_launch_is_timed_without_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what calls take counts, not the wait between the rounds; a round that was disturbed changes nothing."""
    now, calls = [0.0], [0]

    def call() -> None:
        calls[0] += 1
        now[0] += 6e-6 if calls[0] < 1500 else 1e-3

    def wait() -> None:
        now[0] += 10.0

    monkeypatch.setattr("mirage_nb.runtime.contest.timing.time.perf_counter", lambda: now[0])
    assert time_launches(call, wait) == pytest.approx(6.0)
    assert calls[0] > 2000


class Card:
    """Stands for `mirage_nb.runtime.contest.race`: what a muGraph takes follows from its digest."""

    def __init__(self) -> None:
        self.laps: list[str] = []
        self.races: list[list[str]] = []
        self.scale = 1.0

    def Track(self, program: object, gpu: Gpu) -> Card:
        return self

    @staticmethod
    def took(label: str) -> float:
        return 2.0 + int(label[:4], 16) / 65536

    def lap(self, name: str, executable: object, limit_us: float, own: bool = False) -> Lap:
        self.laps.append(name)
        took = self.took(name)
        return Lap(name, 0.0, Timing(name, took, took, took, 9))

    def doubt(self, laps: list[Any], gpu: Gpu) -> str | None:
        return None

    def pytorch_peers(self, program: object) -> dict[str, object]:
        return {"eager": None}

    def race(self, ours: Any, peers: Any, repeats: int) -> list[Lap]:
        self.races.append([*ours, *peers])
        return [self.lap_of(name) for name in (*ours, *peers)]

    def lap_of(self, name: str) -> Lap:
        took = 9.0 if name == "eager" else self.took(name)
        return Lap(name, 0.0, Timing(name, took, took, took, 9))


class Here:
    """Workers that are this process."""

    def __init__(self, count: int) -> None: ...

    def submit(self, function: Any, *args: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        future.set_result(function(*args))
        return future

    def terminate(self) -> None: ...


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    monkeypatch.setattr(tuning, "Workers", Here)
    monkeypatch.setattr(tuning, "REACH", (tuning.Reach(1.15, 4, 2, 8),))
    found = Card()
    attach(monkeypatch, found, finalists=2, richer=1)
    return found


def finished(**options: Any) -> Session:
    session = superoptimize(SMALL, effort="quick", **options)
    session.result(120)
    return session


def test_a_tuning_times_more_and_finds_the_fastest(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    session = finished()
    before = {c.digest: c.time_us for c in session.snapshot().candidates if c.time_us is not None}
    monkeypatch.setattr(tuning, "FINAL_SECONDS", 0.1)
    session.tune(seconds=30)
    snapshot = session.result(60)
    times = {c.digest: c.time_us for c in snapshot.candidates if c.time_us is not None}
    assert set(before) < set(times)
    fastest = min(times, key=lambda d: times[d] or 0.0)
    assert session.best is not None and session.best.candidate.digest == fastest
    assert times[fastest] == pytest.approx(Card.took(fastest))
    assert len(card.laps) == len(set(card.laps)), "nothing is timed twice the same way, by the passes or by tuning"
    assert "eager" in card.races[-1] and [m for m in snapshot.messages if m.startswith("tuned for")]
    assert session.stage == ""
    corrected = calibrated(session.search.candidates())
    left = [corrected(c) for c in session.search.candidates() if c.time_us is None and not c.note]
    assert all(us > tuning.FAR * times[fastest] for us in left), "all that may come near was timed, and there was time"
    assert "nothing is left within 3 times" in snapshot.messages[-1]


class Lent(futures.Executor):
    """Other machines' cards, on which a muGraph takes `slower` times as long as on ours."""

    def __init__(self, slower: float) -> None:
        self.slower, self.asked, self.best = slower, list[str](), set[str]()

    def submit(self, function: Any, /, *given: Any, **named: Any) -> futures.Future[Any]:
        _, entrants, _ = given
        assert function is other_cards.laps_apart
        self.asked += [one.name for one in entrants[1:]]
        self.best.add(entrants[0].name)
        future: futures.Future[Any] = futures.Future()
        times = ((one.name, self.slower * Card.took(one.name)) for one in entrants)
        future.set_result([Lap(name, 0.0, Timing(name, us, us, us, 9)) for name, us in times])
        return future


@pytest.mark.parametrize("slower", [1.0, 1.4])
def test_any_number_of_cards_finds_the_same_winner(card: Card, slower: float) -> None:
    """What others say counts if their card is as fast as ours; else all of it is timed here."""
    session, lent = finished(), Lent(slower)
    card.laps.clear()
    session.tune(seconds=30, executor=lent)
    snapshot, given = session.result(60), {*lent.asked} - lent.best
    times = {c.digest: c.time_us for c in snapshot.candidates if c.time_us is not None}
    assert times == pytest.approx({digest: Card.took(digest) for digest in times}, abs=ways.HASTY_US)
    assert session.best.candidate.digest == min(times, key=Card.took) and given
    assert given.issubset(card.laps) if slower > 1 else given.isdisjoint(card.laps)
    assert any("nothing more is timed on a lent card" in m for m in snapshot.messages) == (slower > 1)


def test_only_what_is_near_the_best_is_raced_at_last(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_card, "NEAR", 1.1)
    monkeypatch.setattr(ways, "CLOSE", 1.1)
    monkeypatch.setattr(passes, "FINALISTS_GPU", 12)
    session = finished()
    times = {w.label: card.took(w.label) for w in session.winners}
    near = [label for label, us in sorted(times.items(), key=lambda pair: pair[1]) if us <= 1.1 * min(times.values())]
    ((*raced, eager),) = card.races
    assert eager == "eager" and [*dict.fromkeys(label[:8] for label in raced)] == [label[:8] for label in near]
    assert len(raced) > len(near) and len(near) < len(times)
    monkeypatch.setattr(on_card, "RACED", 1)
    assert finished().best is not None and card.races[-1] == [raced[0], "eager"]


def test_a_tuning_compares_within_one_race(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was best before is told with the time that the last race gave it: clocks change between races."""

    def slower(name: str) -> SimpleNamespace:
        took = 9.0 if name == "eager" else card.took(name) * len(card.races)
        return Lap(name, 0.0, Timing(name, took, took, took, 9))

    monkeypatch.setattr(card, "lap_of", slower)
    session = finished()
    assert session.best is not None
    was = session.best.candidate
    monkeypatch.setattr(on_card, "NEAR", 9.0)
    monkeypatch.setattr(on_card, "RACED", 999)
    session.tune(seconds=30)
    snapshot = session.result(60)
    before, now = re.findall(r"([0-9.]+) us", snapshot.messages[-1])
    again = next(c.time_us for c in snapshot.candidates if c.digest == was.digest)
    assert again is not None and was.time_us is not None and again == pytest.approx(2 * was.time_us)
    assert float(before) == pytest.approx(again, abs=0.006) and float(now) <= float(before)


def test_a_tuning_looks_further_until_its_time_is_over(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the estimate ends it: with everything near the best timed, more structures get more instances."""
    session = finished()
    asked: list[tuple[int, int]] = []
    found = more_instances

    def counted(*known: Any) -> Any:
        asked.append((len(known[-2]), known[-1]))
        return found(*known)

    monkeypatch.setattr(tuning, "more_instances", counted)
    monkeypatch.setattr(tuning, "REACH", (tuning.Reach(1.01, 1, 1, 32), tuning.Reach(1.02, 1, 2, 64)))
    before = len(session.search.candidates())
    session.tune(seconds=60)
    assert "nothing is left" in session.result(60).messages[-1]
    assert {limit for _, limit in asked} == {reach.instances for reach in tuning.REACH}
    assert len(session.search.candidates()) > before


def test_a_tuning_can_be_stopped(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    session = finished()
    timed, before = card.lap, len(card.laps)

    def lap(name: str, executable: object, limit_us: float, own: bool = False) -> Lap:
        assert session.stage.startswith("tuning, ") and "s left: " in session.stage
        session.stop()
        return timed(name, executable, limit_us)

    monkeypatch.setattr(card, "lap", lap)
    session.tune(seconds=60)
    assert session.wait(30)
    assert len(card.laps) == before + 1 and session.best is not None
    assert [m for m in session.snapshot().messages if m.startswith("tuned for")]


def test_failures_while_tuning_are_reported_and_lose_nothing(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    session = finished()
    right = passes.Passes.on_gpu

    def on_gpu(self: passes.Passes, candidate: Any, *rest: Any) -> Winner:
        if int(candidate.digest[0], 16) % 2:
            raise LaunchError("the kernel ended the process that tried it: illegal address")
        return right(self, candidate, *rest)

    monkeypatch.setattr(passes.Passes, "on_gpu", on_gpu)
    session.tune(seconds=30)
    session.result(60)
    candidates = session.search.candidates()
    faulty = [c for c in candidates if "illegal address" in c.note]
    assert faulty and all(c.time_us is None for c in faulty)
    assert [c for c in candidates if c.time_us is not None]


def test_without_a_gpu_there_is_no_tuning() -> None:
    session = superoptimize(SMALL, effort="quick", target="a100")
    session.stop()
    assert session.wait(60)
    with pytest.raises(MissingPartError, match="no GPU here that runs those for the a100"):
        session.tune()
    with pytest.raises(OptionError, match="positive"):
        session.tune(seconds=-1)
    with pytest.raises(OptionError, match="positive"):
        session.tune(seconds=float("nan"))


def test_a_label_says_how_it_was_emitted() -> None:
    one = replace(candidate("0123456789", 1.0), time_us=3.0)
    assert structure_of(one) == one.digest
