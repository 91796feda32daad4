"""Stores that somebody has tampered with: what they say is never shown as what this session knows."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mirage_nb import Store, resume, superoptimize
from mirage_nb.errors import StoreError
from mirage_nb.ir import ConstAttrs, Op, OpKind
from mirage_nb.ir.graph import Graph
from mirage_nb.ir.text import parse_graph
from mirage_nb.lang import parse
from mirage_nb.report import describe
from mirage_nb.runtime.passes import Passes
from mirage_nb.runtime.store import Header, edition
from mirage_nb.search import EFFORTS
from mirage_nb.search.session.findings import Bounds, Explored
from mirage_nb.search.session.ledger import Facts
from mirage_nb.search.session.plain import read, write
from mirage_nb.search.session.progress import Candidate, Snapshot, State, Timed
from mirage_nb.search.session.restored import verified_again
from mirage_nb.verify.verdict import Verdict, VerdictKind
from mirage_nb.viz.html import candidates_html
from mirage_nb.viz.text import snapshot_text
from tests.clock import cpu_limit

SOFTMAX = "X: f16[4, 64]\nE = exp(X)\nreturn E / sum(E, axis=-1, keepdims=True)"
TWO = "X: f16[8, 16]\nY: f16[8, 16]\nA = X * Y\nB = X + Y\nreturn A, B"
CLAIM = Verdict(VerdictKind.PROVED, trials=4, log2_bound=-900.0, note="for all sizes, and beyond")
CARD = "NVIDIA H200"


@pytest.fixture(autouse=True)
def no_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing follows the search."""
    monkeypatch.setattr(Passes, "run", lambda self: None)


@cache
def original(text: str) -> tuple[Header, tuple[Explored, ...]]:
    """What a session has found of a program, as a store would have it."""
    session = superoptimize(text, effort="quick", name="s")
    session.result(180)
    found = session.search._ledger._ordered()
    bounds = Bounds("quick", EFFORTS["quick"].budget)
    header = Header(parse(text).graph, session.target.name, 0, bounds, text=text, title="s", edition=edition())
    return header, tuple(one.end for one in found if one.end is not None)


def kept(folder: Path, text: str, forge: Callable[[Candidate], Candidate], facts: Facts | None = None) -> Path:
    """A store of which every candidate went through this."""
    header, ended = original(text)
    forged = [
        replace(one, findings=replace(one.findings, candidates=tuple(map(forge, one.findings.candidates))))
        for one in ended
    ]
    Store(folder / "s").save("s", header, forged, facts or Facts())
    return folder / "s"


def rebuilt(graph: Graph, change: Callable[[Op], Op]) -> Any:
    """The graph with its operators changed, on every level."""
    ops = []
    for op in graph.ops:
        body = rebuilt(op.body, change) if op.body is not None else None
        ops.append(change(replace(op, body=body)))
    return replace(graph, ops=tuple(ops))


def wrong(candidate: Candidate) -> Candidate:
    """Divisions are products, the digest is right, and the rest is what one would like it to be."""

    def multiplied(op: Op) -> Op:
        return replace(op, kind=OpKind.MUL) if op.kind is OpKind.DIV else op

    graph = rebuilt(candidate.graph, multiplied)
    return replace(
        candidate, graph=graph, digest=graph.digest(), verdict=CLAIM, time_us=0.5, error=1e-9, executed_on=CARD
    )


def watched(path: Path) -> tuple[list[Snapshot], Any]:
    """A resumed session from its first moment to its end: every state that could be shown."""
    session = resume("s", store=path)
    seen = [session.snapshot()]
    until = time.monotonic() + 120
    while session.snapshot().state in (State.WAITING, State.RUNNING) and time.monotonic() < until:
        seen.append(session.snapshot())
        time.sleep(0.005)
    session.result(120)
    return [*seen, session.snapshot()], session


def digests(path: Path) -> set[str]:
    return {c.digest for found in Store(path).load("s").ended for c in found.findings.candidates}


def never_believed(seen: list[Snapshot], forged: set[str]) -> None:
    for snapshot in seen:
        for candidate in snapshot.candidates:
            if candidate.digest in forged:
                assert candidate.is_as_stored and candidate.time_us is None and candidate.error is None
                assert not candidate.executed_on and candidate.verdict.log2_bound is None
        assert snapshot.best is None or snapshot.best.digest not in forged
        text = snapshot_text(snapshot)
        assert "0.50 µs as stored, of" in text or "0.50 µs" not in text


def test_a_forged_muGraph_is_never_shown_as_proved_or_best(tmp_path: Path) -> None:
    path = kept(tmp_path, SOFTMAX, wrong)
    forged = digests(path)
    assert forged and all(c.verdict == CLAIM for f in Store(path).load("s").ended for c in f.findings.candidates)
    seen, session = watched(path)
    never_believed(seen, forged)
    last = seen[-1]
    assert not {c.digest for c in last.candidates} & forged, "they are dropped"
    assert any("what the store says is wrong: refuted" in message for message in last.messages)
    assert {one.digest for one in last.rejected} >= set(list(forged)[:1])
    for line in describe(session).splitlines():
        assert not any(digest[:8] in line for digest in forged) or "what the store says is wrong" in line
    again, _ = watched(path)
    never_believed(again, forged)


def test_nor_with_a_true_pair_of_something_else_beside_it(tmp_path: Path) -> None:
    tiny = parse("X: f16[2, 2]\nreturn X * X").graph
    path = kept(tmp_path, SOFTMAX, lambda c: replace(wrong(c), small=(tiny, tiny)))
    seen, _ = watched(path)
    never_believed(seen, digests(path))


def test_nor_from_the_facts(tmp_path: Path) -> None:
    """Pinned, offered and known: whatever a session would say of its own candidates."""
    _, ended = original(SOFTMAX)
    lies = tuple({w.digest: w for one in ended for w in map(wrong, one.findings.candidates)}.values())
    facts = Facts(known=lies, offered=lies, pinned=tuple(lie.digest for lie in lies))
    path = kept(tmp_path, SOFTMAX, lambda c: c, facts)
    seen, _ = watched(path)
    never_believed(seen, {lie.digest for lie in lies})
    assert seen[-1].best is not None and seen[-1].best.verdict.accepted, "the right ones are there"


def test_nor_as_what_was_stored_twice(tmp_path: Path) -> None:
    """A verdict that says itself that it is as stored gains nothing by it."""
    path = kept(tmp_path, SOFTMAX, lambda c: replace(wrong(c), verdict=Verdict(VerdictKind.STORED)))
    seen, _ = watched(path)
    never_believed(seen, digests(path))


def test_outputs_in_another_order_are_wrong(tmp_path: Path) -> None:
    """Both have one type, and trials would match them whatever their order."""

    def swapped(candidate: Candidate) -> Candidate:
        outputs = candidate.graph.outputs[::-1]
        graph = candidate.graph.returning(outputs, candidate.graph.output_names)
        return replace(candidate, graph=graph, digest=graph.digest(), verdict=CLAIM, small=None)

    path = kept(tmp_path, TWO, swapped)
    forged = digests(path)
    assert forged
    seen, _ = watched(path)
    never_believed(seen, forged)
    assert not {c.digest for c in seen[-1].candidates} & forged


def test_names_of_outputs_are_the_programs(tmp_path: Path) -> None:
    def renamed(candidate: Candidate) -> Candidate:
        graph = candidate.graph.returning(candidate.graph.outputs, candidate.graph.output_names[::-1])
        return replace(candidate, graph=graph, digest=graph.digest())

    path = kept(tmp_path, TWO, renamed)
    with pytest.raises(StoreError, match="not one of this program"):
        Store(path).load("s")


def test_what_is_right_is_found_right_and_its_times_stay_the_stores(tmp_path: Path) -> None:
    def timed(candidate: Candidate) -> Candidate:
        return replace(candidate, verdict=CLAIM, time_us=0.01, executed_on=CARD)

    path = kept(tmp_path, SOFTMAX, timed)
    seen, _ = watched(path)
    plain = {c.digest: c for one in original(SOFTMAX)[1] for c in one.findings.candidates}
    assert all(c.verdict.accepted and c.verdict.log2_bound is None for c in seen[-1].candidates), "no claim of a store"
    last = [c for c in seen[-1].candidates if c.digest in plain]
    assert last and all(c.verdict.note != CLAIM.note for c in last)
    kinds = [(c.verdict.kind, plain[c.digest].verdict.kind) for c in last]
    assert all(VerdictKind.PROVED in pair or pair[0] is pair[1] for pair in kinds), "what a search of today says"
    assert all(c.time_us is None and c.before == Timed(0.01, CARD) for c in last)
    assert "0.01 µs as stored, of NVIDIA H200" in snapshot_text(seen[-1])
    table = candidates_html(seen[-1])
    assert "0.01 µs stored" in table and "as stored: measured before on NVIDIA H200" in table


LARGE = "X: f16[8192, 8192]\nreturn X * 3 + X"


def almost(candidate: Candidate) -> Candidate:
    """A factor that is off by a thousandth, in a program that is too large to be tried soon."""

    def off(op: Op) -> Op:
        if not isinstance(op.attrs, ConstAttrs):
            return op
        return replace(op, attrs=replace(op.attrs, value=op.attrs.value * 1001 / 1000))

    graph = rebuilt(candidate.graph, off)
    return replace(candidate, graph=graph, digest=graph.digest(), verdict=CLAIM, time_us=0.5)


def test_what_nobody_can_look_at_stays_as_stored_and_comes_last(tmp_path: Path) -> None:
    path = kept(tmp_path, LARGE, almost)
    forged = digests(path) - {c.digest for one in original(LARGE)[1] for c in one.findings.candidates}
    assert forged
    with cpu_limit(60.0):
        seen, _ = watched(path)
    never_believed(seen, forged)
    for candidate in seen[-1].candidates:
        if candidate.digest in forged:
            assert "too large to be tried" in candidate.verdict.note and candidate.small is None
            assert "as stored" in candidates_html(seen[-1]) and "as stored" in snapshot_text(seen[-1])
    ranks = [c.is_as_stored for c in seen[-1].candidates]
    assert ranks == sorted(ranks)


def test_a_stored_graph_that_takes_for_ever_holds_nobody_up(tmp_path: Path) -> None:
    """Legal, of the right types, and 2^20 iterations long."""
    program = parse("X: f16[2, 4]\nreturn X * 1048576").graph
    body = "%0 = InIter arg=0 imap=[*]\n%1 = Accum(%0) kind=sum\nOutSaver(%1) omap=[*]"
    name = program.output_names[0]
    text = f"mugraph 1\ninput %0 X f16[2, 4]\n%1 = Graph(%0) grid=[1] loop=1048576 {{\n{body}\n}}\noutput %1 {name}\n"
    graph = parse_graph(text)
    stored = Verdict(VerdictKind.STORED)
    candidate = Candidate(graph.digest(), graph, "", 1, {}, stored, 1.0, small=(program, graph))
    with cpu_limit(10.0):
        assert verified_again(program, candidate).kind is VerdictKind.STORED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: replace(h, seed=-1), "bounds are none"),
        (lambda h: replace(h, seed=2**63), "bounds are none"),
        (lambda h: replace(h, seconds=float("nan")), "bounds are none"),
        (lambda h: replace(h, bounds=replace(h.bounds, budget=replace(h.bounds.budget, seconds=float("inf")))), "none"),
        (lambda h: replace(h, bounds=replace(h.bounds, budget=replace(h.bounds.budget, max_values=0))), "none"),
        (lambda h: replace(h, bounds=replace(h.bounds, effort="endless")), "no such effort"),
        (lambda h: replace(h, target="abacus"), "no such target"),
    ],
)
def test_bounds_that_no_search_has(change: Callable[[Header], Header], message: str, tmp_path: Path) -> None:
    header, ended = original(SOFTMAX)
    Store(tmp_path / "s").save("s", change(header), ended, Facts())
    with pytest.raises(StoreError, match=message) as told:
        resume("s", store=tmp_path / "s")
    assert "delete('s') forgets it" in told.value.hint


@pytest.mark.parametrize("us", [-1.0, float("nan"), float("-inf")])
@pytest.mark.parametrize("where", ["estimate_us", "time_us", "before"])
def test_times_that_are_none(us: float, where: str, tmp_path: Path) -> None:
    value: Any = Timed(us, CARD) if where == "before" else us
    path = kept(tmp_path, SOFTMAX, lambda c: replace(c, **{where: value}))
    with pytest.raises(StoreError, match="times that are none"):
        resume("s", store=path)


def test_the_text_that_is_shown_is_that_of_the_program_that_runs(tmp_path: Path) -> None:
    header, ended = original(SOFTMAX)
    Store(tmp_path / "s").save("s", replace(header, text="X: f16[4, 64]\nreturn X * 2"), ended, Facts())
    session = resume("s", store=tmp_path / "s")
    session.result(120)
    assert "X * 2" not in session.program.text and parse_graph(session.program.text) == header.graph


def test_a_clock_and_counts_that_are_none(tmp_path: Path) -> None:
    path = kept(tmp_path, SOFTMAX, lambda c: c, Facts(seconds=float("nan")))
    with pytest.raises(StoreError, match="clock"):
        resume("s", store=path)
    path = kept(tmp_path, SOFTMAX, lambda c: c)
    with sqlite3.connect(path) as db:
        ((payload,), *_) = db.execute("SELECT payload FROM findings").fetchall()
        found = read(Explored, payload.partition("\n")[2])
        many = replace(found, findings=replace(found.findings, verified=10**4000))
        db.execute("UPDATE findings SET payload = ?", (write(many),))
    with pytest.raises(StoreError, match="verified is a number of more than 19 digits, not from"):
        Store(path).load("s")


def tampered(path: Path, change: Callable[[Explored], Explored], *, sealed: bool = True) -> None:
    """Change every finding of a store as one who does not know the user's secret can, under the old seal or none."""
    with sqlite3.connect(path) as db:
        for row, payload in db.execute("SELECT rowid, payload FROM findings").fetchall():
            seal, _, text = payload.partition("\n")
            text = write(change(read(Explored, text)))
            db.execute("UPDATE findings SET payload = ? WHERE rowid = ?", (f"{seal}\n{text}" if sealed else text, row))


@pytest.mark.parametrize("sealed", [True, False])
def test_counts_and_ends_of_a_stranger_are_not_believed(sealed: bool, tmp_path: Path) -> None:
    """Nobody makes a session believe that it has searched what it has not, or that a muGraph was found wrong."""
    path = kept(tmp_path, SOFTMAX, lambda c: c)
    assert Store(path).load("s").foreign == 0

    def emptied(found: Explored) -> Explored:
        return replace(
            found, findings=replace(found.findings, candidates=(), structures=10**6, verified=0, refuted=10**6)
        )

    tampered(path, emptied, sealed=sealed)
    stored = Store(path).load("s")
    assert stored.foreign == len(stored.ended) and all(found.unfinished for found in stored.ended)
    session = resume("s", store=path)
    snapshot = session.result(180)
    assert snapshot.refuted < 10**6 and snapshot.candidates
    assert any("not sealed" in message for message in snapshot.messages)


def test_a_seal_holds_for_one_entry_of_one_session_and_one_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(tmp_path, SOFTMAX, lambda c: c, Facts(dropped={"d": "wrong"}, seconds=5.0))
    assert Store(path).load("s").facts.dropped
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO sessions SELECT 'other', saved, header, facts FROM sessions")
        db.execute("INSERT INTO findings SELECT 'other', search, slot, payload FROM findings")
    stored = Store(path).load("other")
    assert stored.foreign == 1 + len(stored.ended) and not stored.facts.dropped and not stored.facts.seconds
    monkeypatch.setenv("MIRAGE_NB_HOME", str(tmp_path / "of another user"))
    stored = Store(path).load("s")
    assert stored.foreign == 1 + len(stored.ended) and not stored.facts.dropped


def test_a_stranger_loosens_no_tolerance(tmp_path: Path) -> None:
    path = kept(tmp_path, SOFTMAX, lambda c: c)
    with sqlite3.connect(path) as db:
        ((text,),) = db.execute("SELECT header FROM sessions").fetchall()
        db.execute("UPDATE sessions SET header = ?", (write(replace(read(Header, text), tolerance=1e9)),))
    assert Store(path).load("s").header.tolerance == 1.0
