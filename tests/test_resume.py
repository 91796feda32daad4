"""A session outlives its interpreter: killed at any moment, another one goes on and ends with the same results."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mirage_nb import Store, resume, superoptimize
from mirage_nb.errors import OptionError, StoreError
from mirage_nb.ir.text import print_graph
from mirage_nb.lang import parse
from mirage_nb.runtime import store as store_module
from mirage_nb.runtime.passes import Passes
from mirage_nb.runtime.store import Header, edition
from mirage_nb.search import EFFORTS
from mirage_nb.search.session import session as session_module
from mirage_nb.search.session.findings import Bounds
from mirage_nb.search.session.progress import Snapshot, State, Timed
from mirage_nb.search.session.session import SearchSession
from mirage_nb.targets import find_target
from mirage_nb.verify.verdict import Verdict
from mirage_nb.viz.text import snapshot_text
from tests.sessions import LONG, alive, until

ROOT = Path(__file__).resolve().parents[1]
TEXT = "X: f16[4, 64]\nE = exp(X)\nreturn E / sum(E, axis=-1, keepdims=True)"
BUDGET = replace(EFFORTS["standard"].budget, max_block_ops=3)
CHILD = """
import sys, time
from mirage_nb import Store, superoptimize
superoptimize(sys.argv[1], name="victim", store=sys.argv[2], max_block_ops=3)
time.sleep(600)
"""


def facts(snapshot: Snapshot) -> tuple[object, ...]:
    """What an interruption may not change; the trials behind a verdict are drawn anew."""
    candidates = tuple(replace(c, verdict=Verdict(c.verdict.kind)) for c in snapshot.candidates)
    return (candidates, snapshot.counts, snapshot.prefixes, snapshot.cut, snapshot.structures,
            snapshot.verified, snapshot.refuted, snapshot.exhausted, snapshot.configurations_done)  # fmt: skip



def test_how_far_kernels_may_be_off_is_kept(tmp_path: Path) -> None:
    first = superoptimize(TEXT, name="loose", effort="quick", store=tmp_path / "s", tolerance=3)
    first.result(120)
    again = resume("loose", store=tmp_path / "s")
    said = [m for m in again.result(120).messages if "off by 3 times" in m]
    assert said and again._passes.tolerance == 3
    with pytest.raises(OptionError):
        superoptimize(TEXT, tolerance=-1)


def kept(path: Path) -> SearchSession:
    """A session like the child's, without what follows the search."""
    bounds = Bounds("standard", BUDGET)
    header = Header(parse(TEXT).graph, "h200", 0, bounds, text=TEXT, title="victim", edition=edition())
    checkpoint = Store(path).checkpoint("victim", header)
    return SearchSession(header.graph, find_target("h200"), budget=BUDGET, name="victim", checkpoint=checkpoint)


@cache
def undisturbed() -> Snapshot:
    return SearchSession(parse(TEXT).graph, find_target("h200"), budget=BUDGET).start().result(120)


def finished(path: Path) -> int:
    """Configurations that the store has, done ones."""
    try:
        return sum(not found.unfinished for found in Store(path).load("victim").ended)
    except StoreError:
        return 0


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for line in Path("/proc").glob(f"{pid}/task/*/children"):
        for child in map(int, line.read_text().split()):
            found |= {child, *descendants(child)}
    return found


def kill_child(path: Path, text: str, when: Callable[[], object]) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, text, str(path)], cwd=ROOT)
    try:
        assert until(when)
    finally:
        started = descendants(child.pid)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert until(lambda: not any(map(alive, started)), 10)


SLOW = pytest.mark.slow
MOMENTS = (pytest.param(0, marks=SLOW), pytest.param(1, marks=SLOW), 3, pytest.param(6, marks=SLOW))
"""Configurations that are in the store when the interpreter is killed."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_the_results_are_the_same(moment: int, tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    kill_child(path, TEXT, lambda: path.exists() and finished(path) >= moment)
    done = finished(path)
    session = kept(path).start()
    found = session.result(120)
    assert facts(found) == facts(undisturbed())
    assert done <= found.configurations_kept <= found.configurations_done == found.configurations_total
    assert finished(path) == found.configurations_total
    again = kept(path).start().result(60)
    assert facts(again) == facts(found) and again.configurations_kept == found.configurations_total
    assert again.seconds > found.seconds


def test_what_was_found_of_a_configuration_in_work_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    kill_child(path, LONG, lambda: path.exists() and Store(path).names() and Store(path).load("victim").ended)
    before = [c.digest for found in Store(path).load("victim").ended for c in found.findings.candidates]
    session = resume("victim", store=path)
    try:
        assert until(lambda: session.snapshot().candidates or not before, 20)
        assert session.snapshot().state is State.RUNNING
    finally:
        session.stop()
        assert session.wait(20)
    assert not before or {c.digest for c in session.snapshot().candidates} & set(before)


@pytest.fixture
def no_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing follows the search, or goes beside it where that takes long."""
    monkeypatch.setattr(Passes, "run", lambda self: None)
    monkeypatch.setattr("mirage_nb.pipeline.meanwhile", lambda passes: None)


def done(text: str = TEXT, **options: Any) -> Any:
    session = superoptimize(text, **{"effort": "quick", "name": "s", **options})
    session.result(180)
    return session


def test_a_program_in_pieces_goes_on_with_what_was_found_of_them(no_passes: None, tmp_path: Path) -> None:
    masked = "where(arange(8)[:, None] >= arange(32), X @ W, 0.0)"
    text = f"X: f16[8, 64]\nR: f16[8, 32]\nW: f16[64, 32]\nreturn rms_norm({masked} + R)"
    session = superoptimize(text, name="cut", store=tmp_path / "s", effort="quick")
    assert until(lambda: any("pieces" in c.configuration for c in session.snapshot().candidates))
    session.stop()
    first = {c.digest for c in session.result(60).candidates}
    resumed = resume("cut", store=tmp_path / "s")
    assert until(lambda: first <= {c.digest for c in resumed.snapshot().candidates})
    resumed.stop()
    assert all(c.verdict.accepted or c.is_as_stored for c in resumed.result(60).candidates)


def test_a_session_by_its_name(no_passes: None, tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    text = f"B = 4\nN = 16 * B\n{TEXT.replace('4, 64', 'B, N')}"
    first = done(text, store=path, sizes={"B": 2}, seed=7, max_block_ops=20, budget=30.0, target="a100")
    assert first.stored == ("s", path)
    second = resume("s", store=path)
    found = second.result(60)
    assert second.program == first.program and second.target == first.target and second.name == "s"
    assert second.search.bounds == first.search.bounds and second.search.seed == 7 and second.search.seconds == 30.0
    assert facts(found) == facts(first.snapshot())
    assert found.configurations_kept == found.configurations_total and found.messages == ()


def test_times_of_an_earlier_life_come_first_and_say_so(no_passes: None, tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    session = done(store=path)
    last = session.snapshot().candidates[-1]
    session.search.update(replace(last, time_us=4.5, executed_on="a card"))
    session.pin(last.digest)
    for _ in range(2):
        found = resume("s", store=path).result(60)
        assert found.candidates[0].digest == last.digest and found.candidates[0].before == Timed(4.5, "a card")
        assert all(c.time_us is None for c in found.candidates)
        assert "4.50 µs as stored, of a card" in snapshot_text(found)


def test_another_target_begins_anew_under_the_same_name(no_passes: None, tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    session = done(store=path, axioms={"sum_div": False})
    before = session.snapshot()
    assert session.extend(target="h200").result(60).candidates == before.candidates, "it is the one"
    session.extend(target="a100", max_block_ops=30)
    found = session.result(60)
    assert session.target.name == "a100" and not session.switches["sum_div"] and session.name == "s"
    plain = done(target="a100", axioms={"sum_div": False}, max_block_ops=30).snapshot()
    assert facts(found) == facts(plain)
    assert {c.estimate_us for c in found.candidates} != {c.estimate_us for c in before.candidates}
    again = resume("s", store=path)
    assert again.target.name == "a100" and facts(again.result(60)) == facts(found)


def test_another_target_has_the_precision_that_was_allowed(no_passes: None) -> None:
    session = done(TEXT.replace("f16", "f32"), precision="tf32")
    search = session.search
    assert session.extend(target="h200").search is search, "it is the one"
    session.extend(target="a100").result(60)
    assert (session.target.name, session.target.precision) == ("a100", "tf32")


def test_the_same_cell_again_searches_nothing_again(
    no_passes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRAGE_NB_STORE", str(tmp_path / "sessions"))
    first = done().snapshot()
    again = done().snapshot()
    assert first.configurations_kept == 0 and again.configurations_kept == again.configurations_total
    assert facts(again) == facts(first)
    assert done(fresh=True).snapshot().configurations_kept == 0
    assert done(seed=1).snapshot().configurations_kept == 0
    assert done(TEXT.replace("64", "32")).snapshot().configurations_kept == 0
    monkeypatch.setenv("MIRAGE_NB_STORE", "off")
    assert done().stored is None


def test_without_being_asked_nothing_is_written(no_passes: None, mirage_home: Path) -> None:
    assert done().stored is None
    assert not list(mirage_home.glob("*.sqlite*"))
    assert done(store=True).stored == ("s", mirage_home / "sessions.sqlite")
    assert Store(mirage_home / "sessions.sqlite").names() == ("s",)


def test_what_the_user_said_is_kept(no_passes: None, tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    session = done(store=path)
    first, second, third, *_ = session.snapshot().candidates
    session.pin(second.digest[:10])
    session.exclude(first.digest)
    session.search.drop(third.digest, "it is wrong")
    own = session.submit(TEXT)
    assert own.configuration == "submitted" and own.verdict.accepted
    session.extend(max_block_ops=30)
    before = session.result(60)
    after = resume("s", store=path).result(60)
    assert facts(after) == facts(before)
    assert after.pinned == {second.digest, own.digest} and after.messages == ("it is wrong",)
    digests = {c.digest for c in after.candidates}
    assert own.digest in digests and not digests & {first.digest, third.digest}
    assert resume("s", store=path).search.budget.max_block_ops == 30


def test_a_session_is_stored_as_it_goes_and_stopped_ones_go_on(no_passes: None, tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    session = superoptimize(LONG, name="long", store=path)
    assert until(lambda: session.snapshot().configurations_done)
    session.stop()
    stopped = session.result(20)
    stored = Store(path).load("long")
    assert sum(not found.unfinished for found in stored.ended) == stopped.configurations_done
    again = resume("long", store=path)
    assert until(lambda: again.snapshot().configurations_done >= stopped.configurations_done)
    assert again.snapshot().configurations_kept == stopped.configurations_done
    again.stop()
    assert again.wait(20)


def spoil(path: Path) -> None:
    path.write_text("no database " * 1000)


def lock(path: Path) -> sqlite3.Connection:
    Store(path).save("other", Header(parse(TEXT).graph, "h200", 0, Bounds("quick", EFFORTS["quick"].budget)), (),
                     session_module.Facts())  # fmt: skip
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


@pytest.mark.parametrize("trouble", ["damaged", "locked", "folder", "another version"])
def test_a_session_goes_on_without_its_store_and_says_so(
    trouble: str, no_passes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LOCKED_SECONDS", 0.1)
    path = tmp_path / "sessions"
    expected = facts(done().snapshot())
    held = None
    match trouble:
        case "damaged":
            spoil(path)
        case "locked":
            held = lock(path)
        case "folder":
            path.mkdir()
        case "another version":
            with monkeypatch.context() as patch:
                patch.setattr("mirage_nb.pipeline.edition", lambda: "earlier")
                done(store=path)
    session = done(store=path)
    found = session.snapshot()
    assert facts(found) == expected and found.state is State.FINISHED
    told = [m for m in found.messages if "store" in m]
    assert told and len(told) <= 2 and all("hint" in message for message in told)
    if held is not None:
        held.close()
        session.extend()  # by now it can be written
        session.result(60)
        assert "s" in Store(path).names()


def test_mistakes_in_names_and_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="no session 'x'"):
        resume("x", store=tmp_path / "none")
    with pytest.raises(StoreError, match="no session 'x'"):
        resume("x")
    spoil(tmp_path / "bad")
    with pytest.raises(StoreError, match="damaged"):
        resume("x", store=tmp_path / "bad")
    monkeypatch.setenv("MIRAGE_NB_STORE", "off")
    with pytest.raises(StoreError, match="there is no store"):
        resume("x")


def test_a_resumed_session_ends_in_a_winner(tmp_path: Path) -> None:
    path = tmp_path / "sessions"
    first = done(store=path)
    second = resume("s", store=path)
    second.result(180)
    assert first.best is not None and second.best is not None
    one, other = first.best.candidate, second.best.candidate
    assert other == replace(one, verdict=other.verdict) and other.verdict.kind is one.verdict.kind
    assert second.best.source == first.best.source
    assert print_graph(second.best.graph) == print_graph(first.best.graph)


def test_a_session_whose_budget_was_spent_ends_with_what_it_had_found(tmp_path: Path) -> None:
    """Nor does it take more than its budget, however often it goes on."""
    store, budget = Store(tmp_path / "s"), 30.0
    first = done("X: f16[4, 64]\nW: f16[64, 96]\nreturn rms_norm(X) @ W", store=store, budget=budget)
    kept = store.load("s")
    store.save("s", kept.header, kept.ended, replace(kept.facts, seconds=1000.0))
    for _ in range(2):
        again = resume("s", store=store)
        found = again.result(60)
        assert again.best.candidate.digest == first.best.candidate.digest and not again.best.is_own
        assert found.exhausted and found.configurations_kept == found.configurations_total
        assert found.seconds <= 1.05 * budget


def test_it_is_said_that_what_was_stored_is_verified_again(
    no_passes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(store=tmp_path / "s")
    monkeypatch.setattr(session_module, "HEAD_START_SECONDS", -1.0)
    again = resume("s", store=tmp_path / "s")
    assert until(lambda: again.stage == "verifying again what was stored", 30)
    assert all(c.verdict.accepted for c in again.result(60).candidates) and not again.stage
