"""What a session begins while it searches, without a card: what is compiled ahead, and in which order it is timed."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_nb.codegen import Options
from mirage_nb.errors import LaunchError
from mirage_nb.lang import parse
from mirage_nb.runtime import passes as passes_room
from mirage_nb.runtime.contest import early
from mirage_nb.runtime.contest.early import AHEAD, Ahead, Early
from mirage_nb.runtime.contest.later import Job
from mirage_nb.runtime.contest.remembered import Remembered
from mirage_nb.runtime.contest.timing import Lap
from mirage_nb.runtime.gpu import TURN, CardLost, Gpu, Turn
from mirage_nb.runtime.passes import AT_LEAST_SECONDS, Passes
from mirage_nb.search.composition import LIBRARY_AND_FUSED
from mirage_nb.search.session.crew import Stopped
from mirage_nb.search.session.progress import Candidate, State
from mirage_nb.targets import find_target
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.codegen import mugraphs

CARD = Gpu("Some card", 90, 132, "13.0", 60 * 2**20)
PROGRAM = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W").graph
FOUND = mugraphs.rmsnorm(8, 64, 32, 16, 2)


def candidate(
    digest: str, estimate: float, graph: Any = FOUND, kind: VerdictKind = VerdictKind.FIELD, **known: Any
) -> Candidate:
    return Candidate(digest, graph, "a", 3, {}, Verdict(kind), estimate, **known)


class Lanes:
    """Processes that compile what they are told to, when they are told to."""

    def __init__(self) -> None:
        self.begun: list[Future[Any]] = []
        self.given: list[tuple[Any, ...]] = []

    def later(self, function: Any, *given: object) -> Future[Any]:
        self.given.append(given)
        self.begun.append(Future())
        return self.begun[-1]


def test_the_most_promising_are_compiled_ahead_a_few_at_a_time_and_each_once() -> None:
    found = [candidate(f"c{n}", 1.0 + n) for n in range(8)]
    others = [candidate("own", 0.1, PROGRAM), candidate("stored", 0.1, kind=VerdictKind.STORED)]
    search: Any = SimpleNamespace(candidates=lambda: [*others, *found], target=None)
    lanes: Any = Lanes()
    ahead = Ahead(search, lanes, set())
    for _ in range(5):
        ahead.begin()
    assert len(lanes.begun) == AHEAD and ahead.next() is None
    lanes.begun[1].set_result("second")  # the best one takes long: nobody waits for it
    ready: Any = ahead.next()
    assert (ready[0].digest, ready[1].result()) == ("c1", "second")
    lanes.begun[2].set_result("")
    lanes.begun[0].set_result("")
    assert [ready[0].digest for _ in range(2) if (ready := ahead.next())] == ["c0", "c2"] and ahead.next() is None
    names: set[str] = set()
    while len(names) < 5:
        ahead.begin()
        for made in lanes.begun:
            if not made.done():
                made.set_result("")
        names |= {ready[0].digest for _ in range(AHEAD) if (ready := ahead.next())}
    ahead.begin()
    assert len(lanes.begun) == 8 and names == {f"c{n}" for n in range(3, 8)}, "each once, and no library's"


def test_a_librarys_kernels_with_the_rest_fused_are_compiled_before_all_else() -> None:
    """They stood last, by estimate, and were not there when a slow kernel won."""
    found = [candidate(f"c{n}", 1.0 + n) for n in range(80)]
    fused = replace(candidate("fused", 99.0), configuration=LIBRARY_AND_FUSED)
    search: Any = SimpleNamespace(candidates=lambda: [*found, fused], target=None)
    lanes: Any = Lanes()
    ahead = Ahead(search, lanes, set())
    ahead.begin()
    lanes.begun[0].set_result("")
    assert len(lanes.begun) == 1 and (ready := ahead.next()) and ready[0] is fused
    ahead.begin()
    assert len(lanes.begun) == 3


def test_while_nothing_new_is_found_the_fastest_are_emitted_in_other_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [Options(warps=n) for n in (1, 2, 4, 8)]
    monkeypatch.setattr(early, "variants", lambda graph, target: ways)
    timed = [candidate(f"t{n}", 1.0, time_us=1.0 + n) for n in range(9)]
    new: list[Candidate] = []
    search: Any = SimpleNamespace(candidates=lambda: [*timed, *new], target=None)
    lanes: Any = Lanes()
    ahead = Ahead(search, lanes, {("t0", str(ways[1]))})
    asked: list[tuple[str, int | None]] = []

    def step() -> None:
        ahead.begin()
        for made, given in zip(lanes.begun, lanes.given, strict=True):
            if not made.done():
                made.set_result(given[2])
        while (ready := ahead.next()) is not None:
            options: Any = ready[1].result()
            asked.append((ready[0].digest, options.warps if options else None))

    step()
    new.append(candidate("new", 5.0))
    for _ in range(30):
        step()
    assert asked[:4] == [("t0", 1), ("t0", 4), ("new", None), ("t0", 8)], "what is new comes first"
    assert asked[4:] == [(f"t{n}", way.warps) for n in range(1, early.FAST) for way in ways]


def test_what_is_estimated_slower_than_the_fastest_waits_until_nothing_else_is_compiled() -> None:
    """Candidates of 1600 us took every process when the one of 90 us was found, beside one that had taken 1482."""
    slow, hopeless = [candidate(f"s{n}", 11.0 + n) for n in range(6)], candidate("h", 81.0)
    found = [candidate("library", 20.0, PROGRAM, time_us=10.0), *slow, hopeless]
    search: Any = SimpleNamespace(candidates=lambda: found, target=None)
    lanes: Any = Lanes()
    ahead = Ahead(search, lanes, set())
    ahead.begin()
    ahead.begin()
    assert len(lanes.begun) == 1, "one at a time"
    found.append(candidate("fast", 5.0))
    ahead.begin()
    assert len(lanes.begun) == 2, "at once"
    digests: list[str] = []
    for _ in range(20):
        for made in lanes.begun:
            if not made.done():
                made.set_result("")
        digests += [ready[0].digest for _ in range(2) if (ready := ahead.next())]
        ahead.begin()
    assert digests == ["s0", "fast", "s1", "s2", "s3", "s4", "s5"]


def test_the_winner_of_an_earlier_session_comes_first_once_it_is_verified() -> None:
    offered: list[Candidate] = []
    found = [candidate(f"c{n}", 1.0 + n) for n in range(8)]
    search: Any = SimpleNamespace(
        candidates=lambda: [*offered, *found], target=None, program=PROGRAM, seed=0, offer=offered.extend
    )
    lanes: Any = Lanes()
    ahead = Ahead(search, lanes, set())
    ahead.recall(Remembered(candidate("kept", 9.0, kind=VerdictKind.STORED), Options(warps=4)))
    verified, made = lanes.begun
    made.set_result("kept")
    ahead.begin()
    assert not offered and ahead.next() is None, "on the word of a file"
    for later in lanes.begun[2:]:
        later.set_result("")
    verified.set_result(Verdict(VerdictKind.PROVED))
    ahead.begin()
    assert [(c.digest, c.verdict.kind) for c in offered] == [("kept", VerdictKind.PROVED)]
    digests = [ready[0].digest for _ in range(9) if (ready := ahead.next())]
    assert "kept" in digests and len(lanes.begun) == len({*digests}) + 1, "and is not compiled twice"


@pytest.mark.parametrize("wrong", [Verdict(VerdictKind.REFUTED), RuntimeError("its process died")])
def test_a_stored_winner_that_is_wrong_is_none(wrong: Any) -> None:
    search: Any = SimpleNamespace(candidates=lambda: [], target=None, program=PROGRAM, seed=0, offer=pytest.fail)
    lanes: Any = Lanes()
    ahead = Ahead(search, lanes, set())
    ahead.recall(Remembered(candidate("kept", 9.0, kind=VerdictKind.STORED), Options()))
    verified, made = lanes.begun
    (verified.set_exception if isinstance(wrong, Exception) else verified.set_result)(wrong)
    made.set_result("")
    ahead.begin()
    assert ahead.next() is None


def test_the_programs_own_operators_are_timed_however_far_they_are_from_real_numbers(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Normalisation in bf16 over a million elements was "wrong or inaccurate", and nothing was left."""
    monkeypatch.undo()
    asked: list[bool] = []

    def lap(name: str, executable: object, limit_us: float, own: bool) -> Lap:
        asked.append(own)
        return Lap("x", 0.0, None, "not captured")

    launch: Any = SimpleNamespace(GpuExecutable=lambda *given: SimpleNamespace(device="x"))
    monkeypatch.setitem(sys.modules, "mirage_nb.runtime.execution.launch", launch)
    search: Any = SimpleNamespace(program=PROGRAM, seed=0, name="", target=find_target("h200"))
    passes = Passes(search, None)
    monkeypatch.setattr(passes, "track", lambda gpu: SimpleNamespace(lap=lap))
    begun = Early(passes, CARD)
    for graph, library in ((PROGRAM, 0), (PROGRAM, 1), (FOUND, 0)):
        emitted: Any = SimpleNamespace(options=Options(library=library))
        with pytest.raises(LaunchError, match="not captured"):
            begun._lap(candidate("x", 1.0, graph), emitted, None)  # type: ignore[arg-type]
    assert asked == [True, False, False]


def ended(what: Any) -> Any:
    """A first run that has ended well."""
    job = Job(lambda: None)
    job.run()
    return SimpleNamespace(candidate=what, job=job)


class Session:
    """A session that searches until it is told otherwise; what was timed, in order."""

    def __init__(self) -> None:
        self.state, self.said, self.order = State.RUNNING, list[str](), list[str]()
        self.target = SimpleNamespace(arch="sm_90a")
        self.search = self
        self.winners: dict[str, object] = {}
        self.entered: set[tuple[str, str]] = set()
        self.input_scale = 1.0

    def tell(self, message: str) -> None:
        self.said.append(message)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    made = Session()
    ways = [SimpleNamespace(library=n) for n in (0, 2, 1)]
    monkeypatch.setattr(early, "variants", lambda graph, target: ways)
    monkeypatch.setattr(early, "compile_cubin", lambda source, arch: None)
    monkeypatch.setattr(
        early, "emit", lambda graph, target, way: SimpleNamespace(source="", options=way.library, workspace_bytes=0)
    )
    monkeypatch.setattr(Early, "_warmed", lambda self: None)
    monkeypatch.setattr(Early, "_in_turn", lambda self, own, emitted, _: made.order.append(f"way {emitted.options}"))
    return made


def test_what_was_found_is_timed_before_a_librarys_other_ways(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found kernels stood behind every way that a library has, and were not timed within a short budget."""
    begun: Any = Early(session, CARD)  # type: ignore[arg-type]
    ready = [candidate("first", 1.0), candidate("second", 2.0)]
    monkeypatch.setattr(Ahead, "next", lambda self: (ready.pop(0), None) if ready and session.order else None)
    monkeypatch.setattr(Early, "_compile", lambda self, found: None)
    monkeypatch.setattr(Early, "_trying", lambda self, lanes, found, made: [ended(found.digest)])
    monkeypatch.setattr(Early, "_time_found", lambda self, ran: session.order.append(ran.candidate))
    threading.Timer(0.3, begun._over.set).start()
    begun._time_all(candidate("own", 0.1, PROGRAM))
    assert session.order == ["way 1", "first", "second", "way 2", "way 0"]


def test_the_end_of_the_search_leaves_no_way_of_a_library_out(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: Any = Early(session, CARD)  # type: ignore[arg-type]
    begun._over.set()
    monkeypatch.setattr(Ahead, "next", lambda self: pytest.fail("nothing more is timed here"))
    begun._time_all(candidate("own", 0.1, PROGRAM))
    assert session.order == ["way 1", "way 2", "way 0"] and not session.said


def test_what_was_tried_before_there_was_something_to_time_with_is_timed_whatever_the_budget(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch took seconds to load, nothing was tried meanwhile, and short sessions ended with their own operators."""
    begun: Any = Early(session, CARD)  # type: ignore[arg-type]
    ready = [candidate("first", 1.0), candidate("second", 2.0)]
    monkeypatch.setattr(Ahead, "next", lambda self: (ready.pop(0), None) if ready else None)
    monkeypatch.setattr(Early, "_compile", lambda self, found: None)
    monkeypatch.setattr(Early, "_trying", lambda self, lanes, found, made: [ended(found)])
    monkeypatch.setattr(Early, "_time_found", lambda self, ran: session.order.append(ran.candidate.digest))
    begun._can_time.clear()
    begun._over.set()
    threading.Timer(0.2, begun._can_time.set).start()
    begun._time_all(candidate("own", 0.1, PROGRAM))
    assert session.order == ["way 1", "first", "second", "way 2", "way 0"]


@pytest.mark.parametrize("won", [True, False])
def test_a_session_waits_for_what_libraries_take_whatever_its_budget(won: bool) -> None:
    """Also where something else has won: a found kernel of 5 ms did, and its library was never timed."""
    waited: list[float] = []
    own, search = candidate("own", 0.1, PROGRAM), SimpleNamespace(proceed=lambda: True)

    def timed(seconds: float) -> bool:
        waited.append(seconds)
        passes.winners["own"] = own
        return True

    passes: Any = SimpleNamespace(
        search=search, winners={"found": FOUND} if won else {}, _early=SimpleNamespace(timed=timed), built=pytest.fail
    )
    Passes._at_least(passes, own)
    assert waited == [AT_LEAST_SECONDS] and "own" in passes.winners


def test_a_trial_that_the_passes_end_leaves_no_way_of_a_library_out(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes for trials are theirs then, and what ran in them had stopped the early times."""
    begun: Any = Early(session, CARD)  # type: ignore[arg-type]
    ran = ended(candidate("first", 1.0))
    ran.job.error, ran.emitted = Stopped("the session was stopped"), SimpleNamespace(options="x")
    ready = [(ran.candidate, None)]
    monkeypatch.setattr(Ahead, "next", lambda self: ready.pop(0) if ready else None)
    monkeypatch.setattr(Early, "_compile", lambda self, found: None)
    monkeypatch.setattr(Early, "_trying", lambda self, lanes, found, made: [ran])
    threading.Timer(0.3, begun._over.set).start()
    begun._time_all(candidate("own", 0.1, PROGRAM))
    assert session.order == ["way 1", "way 2", "way 0"]


@pytest.mark.parametrize(("there", "waits"), [((), 0.2), (("random",), 0.1)])
def test_what_is_drawn_in_half_the_time_will_do(
    session: Session, monkeypatch: pytest.MonkeyPatch, there: Any, waits: float
) -> None:
    """All of it was spent waiting for the last of the hard inputs, and nothing was tried on the others."""
    session.inputs = SimpleNamespace(there=there)  # type: ignore[attr-defined]
    begun: Any = Early(session, CARD)  # type: ignore[arg-type]
    slept: list[float] = []
    monkeypatch.setattr(early.time, "monotonic", lambda: sum(slept))
    begun._drawn = SimpleNamespace(wait=lambda seconds: slept.append(seconds) or False)
    begun.drawn(0.2)
    assert waits <= sum(slept) <= waits + 2 * early.LOOK_SECONDS
    begun._drawn = SimpleNamespace(wait=lambda seconds: True)
    begun.drawn(float("inf"))


def test_kernels_can_meet_inputs_at_once_where_no_process_loads(session: Session) -> None:
    """A card that takes one process only: nothing was ever placed there, and nothing was met before its time."""
    begun: Any = Early(session, CARD)  # type: ignore[arg-type]
    assert not begun.placed
    begun._drawn.set()
    assert begun.placed
    begun._loading = Future()
    assert not begun.placed
    begun._loading.set_result(None)
    assert begun.placed


def test_no_inputs_are_drawn_for_what_a_session_is_too_short(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is right for a block of a model in float64 took more memory than there was, and minutes."""
    monkeypatch.setattr(early, "Trials", pytest.fail)
    monkeypatch.setattr(early, "DRAWN_ELEMENTS", 99)
    session.program, session.inputs = PROGRAM, SimpleNamespace(missing=[()])  # type: ignore[attr-defined]
    begun: Any = Early(session, CARD)  # type: ignore[arg-type]
    begun._draw()
    assert begun._drawn.is_set() and not session.said


def test_what_cannot_be_compiled_is_left_to_the_passes_that_follow(session: Session) -> None:
    begun: Any = Early(session, CARD)  # type: ignore[arg-type]
    failed: Future[Any] = Future()
    failed.set_exception(RuntimeError("its process died"))
    assert [*begun._trying(None, candidate("first", 1.0), failed)] == []
    assert session.order == [] and session.entered == set(), "it may be entered again"


def test_a_card_that_is_lost_ends_the_early_times(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel that came after the one that spoiled the card was set aside for it."""
    begun: Any = Early(session, CARD)  # type: ignore[arg-type]

    def lost(*given: object) -> None:
        session.order.append("lost")
        raise CardLost("the Some card is lost to this process")

    monkeypatch.setattr(Early, "_in_turn", lost)
    with pytest.raises(CardLost):
        begun._time_all(candidate("own", 0.1, PROGRAM))
    assert session.order == ["lost"]


def test_a_card_that_others_use_is_noticed_before_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only who came later asked, when the card had just been used for the first times, and so did not ask."""
    said: list[str] = []
    busy = iter((35, 99))
    monkeypatch.setattr(passes_room, "busy_percent", lambda: next(busy))
    monkeypatch.setattr(passes_room, "TURN", Turn())
    monkeypatch.setattr(passes_room, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(Early, "_lap", lambda self, own, emitted, cubin: None)
    search: Any = SimpleNamespace(tell=said.append, state=State.RUNNING, target=find_target("h200"))
    begun: Any = Early(Passes(search, CARD), CARD)
    for _ in range(2):
        begun._in_turn(candidate("own", 0.1, PROGRAM), None, None)
    assert len(said) == 1 and "35 % busy" in said[0] and "another program may be using it" in said[0]


@pytest.mark.parametrize("closed", [True, False])
def test_a_session_that_has_ended_takes_no_memory_of_the_card(
    session: Session, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    made: list[Gpu] = []
    session.turn, session.track = (lambda gpu, proceed: nullcontext()), made.append  # type: ignore[attr-defined]
    begun: Any = Early(session, CARD)  # type: ignore[arg-type]
    begun._can_time.clear()
    if closed:
        begun._closed.set()
    monkeypatch.setattr(early.importlib, "import_module", lambda name: None)
    begun._load()
    assert made == ([] if closed else [CARD]) and begun._can_time.is_set()


def test_a_stop_does_not_wait_for_the_card(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    session.turn = partial(Passes.turn, session)  # type: ignore[attr-defined, arg-type]
    session._doubted = True  # type: ignore[attr-defined]
    begun: Any = Early(session, CARD)  # type: ignore[arg-type]
    threading.Timer(0.2, begun._closed.set).start()
    with TURN, pytest.raises(Stopped):
        begun._in_turn(candidate("own", 0.1, PROGRAM), None, None)


def test_nobody_waits_for_a_first_run(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had to load PyTorch kept five seconds of kernels waiting."""
    begun: Any = Early(session, CARD)  # type: ignore[arg-type]
    ready = [(candidate(name, 1.0), None) for name in ("slow", "fast")]
    emitted = SimpleNamespace(options="x")
    slow: Any = SimpleNamespace(candidate=candidate("slow", 1.0), job=Job(lambda: None), emitted=emitted)
    session.entered.add(("slow", "x"))
    monkeypatch.setattr(Ahead, "next", lambda self: ready.pop(0) if ready else None)
    monkeypatch.setattr(Early, "_compile", lambda self, found: None)
    monkeypatch.setattr(
        Early, "_trying", lambda self, lanes, found, made: [slow if found.digest == "slow" else ended(found)]
    )
    monkeypatch.setattr(Early, "_time_found", lambda self, ran: session.order.append(ran.candidate.digest))
    threading.Timer(0.3, begun._over.set).start()
    begun._time_all(candidate("own", 0.1, PROGRAM))
    assert session.order == ["way 1", "fast", "way 2", "way 0"]
    assert not session.entered, "who has not ended may be entered again"
