"""What a worker does with one configuration, and how it talks with its session."""

from __future__ import annotations

import pickle
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Budget, configurations, prepare
from mirage_nb.search.pieces.assemble import drafts
from mirage_nb.search.saturation.events import Outcome, merge_counts
from mirage_nb.search.session import worker
from mirage_nb.search.session.channel import Channel, Moment
from mirage_nb.search.session.findings import Bounds, Explored, Findings
from mirage_nb.search.session.plain import read, write
from mirage_nb.search.session.worker import (
    INSTANCES,
    KEPT_INSTANCES,
    KEPT_REJECTED,
    POLL_SECONDS,
    STREAMED_INSTANCES,
    Task,
    Watch,
    explore,
)
from mirage_nb.search.sizes.drafts import Draft
from mirage_nb.targets import find_target
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind, Witness

RMSNORM = "X: f16[4, 64]\nW: f16[64, 96]\nreturn rms_norm(X) @ W"


def tasks(folder: Path, effort: str = "quick", text: str = RMSNORM, deadline: Moment | None = None) -> list[Task]:
    graph = parse(text).graph
    found = configurations(prepare(graph), EFFORTS[effort])
    bounds, target = Bounds(effort, EFFORTS[effort].budget), find_target("h200")
    return [Task(n, graph, c, bounds, target, 0, deadline, Channel(folder)) for n, c in enumerate(found)]


def test_candidates_are_correct_ranked_and_told_apart(tmp_path: Path) -> None:
    for task in tasks(tmp_path):
        found = explore(task)
        candidates = found.findings.candidates
        assert 0 < len(candidates) == found.findings.verified <= KEPT_INSTANCES
        assert [c.rank for c in candidates] == sorted(c.rank for c in candidates)
        assert len({c.digest for c in candidates}) == len(candidates)
        assert all(c.configuration == str(task.configuration) for c in candidates)
        for candidate in candidates[:3]:
            assert candidate.digest == candidate.graph.digest()
            assert verify(task.program, candidate.graph).accepted


def test_of_one_structure_there_are_more_instances(tmp_path: Path) -> None:
    """Six sizes of a rope were timed, none of which had whole rows in a block."""
    (task,) = tasks(tmp_path, text="X: f16[64, 4096]\nB: f16[4096]\nreturn silu(X + B)")
    found = explore(task)
    assert found.findings.structures == 1 and len(found.findings.candidates) == INSTANCES


def test_only_what_may_be_handed_over_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates say which instances are among the best: the others' muGraphs are not made, and not missed."""
    made: list[float] = []

    def counted(*args: Any) -> list[Draft]:
        def watched(draft: Draft) -> Draft:
            return replace(draft, made=lambda: (made.append(draft.cost.us), draft.made())[1])

        return [watched(draft) for draft in drafts(*args)]

    begun = tasks(tmp_path, "standard")[:4]
    everything = [explore(task).findings for task in begun]
    monkeypatch.setattr(worker, "drafts", counted)
    monkeypatch.setattr(worker, "KEPT_INSTANCES", 2)
    for task, whole in zip(begun, everything, strict=True):
        few = explore(task).findings
        assert few.candidates == whole.candidates[:2] and few.verified == whole.verified
    assert 0 < len(made) < 0.8 * sum(whole.verified for whole in everything)


def test_what_random_tests_cannot_tell_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where field trials do not apply, a structure counts if it is proved equal, and says so."""
    monkeypatch.setattr(worker, "screen", lambda *_, **__: Verdict(VerdictKind.OUTSIDE_LAX))
    found = explore(tasks(tmp_path)[0])
    assert found.findings.candidates and found.findings.outside_lax == 0
    assert {c.verdict.kind for c in found.findings.candidates} == {VerdictKind.PROVED}


@pytest.mark.parametrize("kind", [VerdictKind.REFUTED, VerdictKind.OUTSIDE_LAX])
def test_the_first_few_that_are_not_accepted_are_kept_with_their_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: VerdictKind
) -> None:
    said = Verdict(kind, trials=1, witness=Witness(7, 0, (1, 2), "3", "4"), note="because")
    monkeypatch.setattr(worker, "screen", lambda *_, **__: said)
    monkeypatch.setattr(worker, "decided", lambda verdict, *_: verdict)
    found = explore(tasks(tmp_path, "standard")[1]).findings
    counted = found.refuted if kind is VerdictKind.REFUTED else found.outside_lax
    assert not found.candidates and counted == found.structures > KEPT_REJECTED == len(found.rejected)
    for one in found.rejected:
        assert (one.verdict, one.why, one.digest) == (said, "because", one.graph.digest())
    assert read(Findings, write(found)) == found


def test_a_task_and_its_result_travel_and_say_the_same_everywhere(tmp_path: Path) -> None:
    task = tasks(tmp_path, "standard")[1]
    here = explore(task)
    there: Explored = pickle.loads(pickle.dumps(explore(pickle.loads(pickle.dumps(task)))))
    assert here == there
    elsewhere = replace(task, channel=Channel(tmp_path / "of" / "another" / "machine"))
    assert explore(elsewhere) == here


def test_findings_are_posted_on_the_way_and_only_grow(tmp_path: Path) -> None:
    posts: list[Findings] = []
    task = tasks(tmp_path, "standard")[1]
    found = explore(task, posts.append)
    assert posts
    assert any(p.candidates for p in posts)
    numbers = [p.verified for p in posts] + [found.findings.verified]
    assert numbers == sorted(numbers)
    assert all(len(p.candidates) == min(p.verified, STREAMED_INSTANCES) for p in posts)


def test_posts_are_taken_once_and_the_latest_counts(tmp_path: Path) -> None:
    box = Channel(tmp_path)
    assert box.collect(3) is None
    box.post(3, Findings(verified=1))
    box.post(3, Findings({(1, Outcome.KEPT): 7}, verified=2))
    box.post(4, Findings(verified=9))
    assert box.collect(3) == Findings({(1, Outcome.KEPT): 7}, verified=2)
    assert box.collect(3) is None
    Channel(tmp_path / "gone").post(0, Findings())  # nobody hears it, nothing breaks


@pytest.mark.parametrize("flag", ["stop", "deadline"])
def test_a_task_ends_early_and_says_so(tmp_path: Path, flag: str) -> None:
    task = tasks(tmp_path, "standard", deadline=Moment.after(-1) if flag == "deadline" else None)[1]
    if flag == "stop":
        task.channel.stop_flag.touch()
    found = explore(task)
    assert found.unfinished
    assert found.cut


def test_a_task_ends_when_its_session_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    watch = Watch(tasks(folder)[0])
    assert not watch.stopped()
    folder.rmdir()
    time.sleep(2 * POLL_SECONDS)
    assert watch.stopped()
    assert not Watch(tasks(folder)[0]).stopped()  # never in reach: on another machine


def test_verification_keeps_to_the_budget(tmp_path: Path) -> None:
    task = replace(tasks(tmp_path, "standard")[1], bounds=Bounds("standard", Budget(seconds=1e-6)))
    assert task.seconds < 1e-5
    found = explore(task)
    assert not found.unfinished
    assert found.cut


def test_a_paused_task_rests_and_goes_on(tmp_path: Path) -> None:
    task = tasks(tmp_path)[0]
    task.channel.pause_flag.touch()
    threading.Timer(0.4, task.channel.pause_flag.unlink).start()
    started = time.monotonic()
    found = explore(task)
    assert time.monotonic() - started >= 0.4
    assert not found.unfinished and found.findings.verified


def test_counts_add_up() -> None:
    kept, merged = (1, Outcome.KEPT), (2, Outcome.MERGED)
    assert merge_counts([]) == {}
    assert merge_counts([{kept: 2}, {kept: 3, merged: 1}]) == {kept: 5, merged: 1}


def test_a_deadline_can_be_moved(tmp_path: Path) -> None:
    task = tasks(tmp_path, deadline=Moment.after(-1))[0]
    assert Watch(task).stopped()
    task.channel.move_deadline(Moment.after(60))
    assert not Watch(task).stopped() and task.channel.deadline(None) is not None
    task.channel.move_deadline(Moment.after(60).later(-61))
    assert Watch(task).stopped()
    task.channel.move_deadline(None)
    assert not Watch(task).stopped()


def test_a_clock_that_is_set_moves_no_deadline_here(monkeypatch: pytest.MonkeyPatch) -> None:
    moment, past = Moment.after(60), Moment.after(-1)
    for jump in (3600.0, -3600.0):
        with monkeypatch.context() as patch:
            now = time.time() + jump
            patch.setattr(time, "time", lambda now=now: now)
            assert not moment.is_past and past.is_past
            there = replace(moment, machine="another one"), replace(past, machine="another one")
            assert [one.is_past for one in there] == [jump > 0, jump > 0]  # all that can be said
