"""What a session knows: nothing twice, nothing lost, in whatever order and however often it is told."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.ir import DType, Input, KernelGraph, Op, OpKind, TensorType
from mirage_nb.search import Budget, Configuration
from mirage_nb.search.saturation.events import Outcome
from mirage_nb.search.session.findings import BOUND_NAMES, Bounds, Explored, Findings
from mirage_nb.search.session.ledger import KEPT_REJECTED, Ledger
from mirage_nb.search.session.progress import Candidate, Rejected, Snapshot, State, Timed
from mirage_nb.verify.verdict import Verdict, VerdictKind

AGENDA = tuple(Configuration((), n, 1, f"loop {n}") for n in range(4))
BOUNDS = Bounds("standard", Budget(60.0, 1000, 10))
LARGER = Bounds("standard", Budget(60.0, 1000, 12))


def candidate(number: int, us: float = 1.0) -> Candidate:
    graph = KernelGraph.start(Input("X", TensorType((number + 1, 2), DType.F16))).append(Op(OpKind.EXP, (0,)))
    graph = graph.returning((1,))
    return Candidate(graph.digest(), graph, "", 1, {}, Verdict(VerdictKind.FIELD), us)


def explored(
    place: int, *numbers: int, bounds: Bounds = BOUNDS, reached: tuple[str, ...] = (), unfinished: bool = False
) -> Explored:
    candidates = tuple(candidate(n, us=float(n)) for n in numbers)
    findings = Findings({(1, Outcome.KEPT): 10 + place}, len(numbers), len(numbers), candidates=candidates)
    return Explored(AGENDA[place], bounds, findings, (), (), frozenset(reached), unfinished)


def shown(ledger: Ledger) -> Snapshot:
    return ledger.snapshot("", State.RUNNING, 1.0, None)


ENDS = (explored(0, 1, 2), explored(1, 2, 3), explored(2), explored(3, 9, 4))


@given(st.integers(0, 10**6))
def test_the_order_in_which_things_are_told_does_not_matter(seed: int) -> None:
    plain = Ledger()
    plain.open(AGENDA, BOUNDS)
    for end in ENDS:
        plain.take(end)
    chance = random.Random(seed)
    told = [("end", end) for end in ENDS] * chance.randint(1, 2)
    told += [("note", replace(end, findings=replace(end.findings, counts={}, verified=0))) for end in ENDS] * 2
    told += [("late", end) for end in ENDS]
    chance.shuffle(told)
    ledger = Ledger()
    ledger.open(AGENDA, BOUNDS)
    for what, end in told:
        if what == "note":
            ledger.note(end.configuration, end.bounds, end.findings)
        elif what == "late":
            ledger.take(replace(end, unfinished=True, cut=("late",)))
        else:
            ledger.take(end)
    found = shown(ledger)
    assert replace(found, prefixes=()) == shown(plain)
    assert found.configurations_done == 4 and found.verified == 6 and found.total(Outcome.KEPT) == 46
    assert [c.estimate_us for c in found.candidates] == [1.0, 2.0, 3.0, 4.0, 9.0]


def test_what_was_timed_stays_when_better_estimates_come() -> None:
    """A kernel of 17 us was timed and forgotten as workers handed over others, and one of 20 us won."""
    ledger = Ledger()
    ledger.open(AGENDA, BOUNDS)
    ledger.take(explored(0, 5, 6, unfinished=True))
    timed, late = (
        replace(c, time_us=us) for c, us in zip(explored(0, 5, 6).findings.candidates, (17.0, 18.0), strict=True)
    )
    ledger.update(timed)
    ledger.take(explored(0, 1, 2))
    assert ledger.ranked()[0].digest == timed.digest and late.digest not in ledger.all
    ledger.offer(late)  # it was being compiled
    assert [c.time_us for c in ledger.ranked()] == [17.0, 18.0, None, None]
    ledger.drop(timed.digest, "wrong")
    ledger.offer(timed)
    assert timed.digest not in ledger.all


@pytest.mark.parametrize("bound", BOUND_NAMES)
def test_only_a_bound_that_was_reached_makes_a_configuration_open_again(bound: str) -> None:
    ledger = Ledger()
    ledger.open(AGENDA, BOUNDS)
    for place in range(4):
        ledger.take(explored(place, reached=(bound,) if place == 2 else tuple(set(BOUND_NAMES) - {bound})))
    assert ledger.open(AGENDA, BOUNDS) == ()
    more = getattr(BOUNDS.budget, bound) + 1
    assert ledger.open(AGENDA, Bounds("standard", replace(BOUNDS.budget, **{bound: more}))) == (AGENDA[2],)
    assert ledger.kept == 3
    assert ledger.open(AGENDA, Bounds("exhaustive", BOUNDS.budget)) == AGENDA
    assert ledger.open(AGENDA, Bounds("standard", replace(BOUNDS.budget, **{bound: 1}))) == AGENDA


def test_what_smaller_bounds_found_stays_and_is_counted_no_more() -> None:
    ledger = Ledger()
    ledger.open(AGENDA, BOUNDS)
    ledger.take(explored(0, 1, 2, reached=("max_block_ops",)))
    assert ledger.open(AGENDA[:1], LARGER) == AGENDA[:1]
    assert not ledger.note(AGENDA[0], LARGER, explored(0, 7).findings)  # fewer than are known
    assert shown(ledger).verified == 2 and shown(ledger).configurations_done == 0
    ledger.take(explored(0, 2, 7, 8, bounds=LARGER))
    found = shown(ledger)
    assert (found.verified, found.total(Outcome.KEPT), found.configurations_done) == (3, 10, 1)
    assert [c.estimate_us for c in found.candidates] == [1.0, 2.0, 7.0, 8.0]


def test_a_configuration_that_is_begun_again_shows_no_less_meanwhile() -> None:
    """Before anything is verified, too: a worker begins again what the notebook had begun."""
    ledger = Ledger()
    ledger.open(AGENDA, BOUNDS)
    for tried, shown_then in ((40, 40), (20, 40), (60, 60)):
        told = ledger.note(AGENDA[0], BOUNDS, Findings({(1, Outcome.KEPT): tried}))
        assert shown(ledger).total(Outcome.KEPT) == shown_then and told == (tried == shown_then)


def test_partial_findings_of_the_same_bounds_leave_no_trace() -> None:
    ledger = Ledger()
    ledger.open(AGENDA, BOUNDS)
    ledger.take(explored(0, 5, unfinished=True))
    assert shown(ledger).candidates and not shown(ledger).configurations_done
    ledger.take(explored(0, 1, 2))
    assert [c.estimate_us for c in shown(ledger).candidates] == [1.0, 2.0]


def test_pinned_excluded_dropped_offered() -> None:
    ledger = Ledger()
    ledger.open(AGENDA, BOUNDS)
    ledger.take(explored(0, *range(250)))
    last, first = candidate(249).digest, candidate(0).digest
    assert last not in {c.digest for c in shown(ledger).candidates}
    ledger.mark(last, True)
    assert shown(ledger).candidates[-1].digest == last and shown(ledger).pinned == {last}
    ledger.mark(first, False)
    assert shown(ledger).candidates[0] == candidate(1, 1.0)
    ledger.drop(candidate(1).digest, "wrong")
    ledger.offer(candidate(2, 0.0))  # known, stays as it is
    ledger.offer(candidate(400, 0.5))
    found = shown(ledger)
    assert [c.estimate_us for c in found.candidates[:2]] == [0.5, 2.0] and found.messages == ("wrong",)
    restored = Ledger()
    restored.restore(ledger.facts(1.0, None))
    restored.open(AGENDA, BOUNDS)
    restored.take(explored(0, *range(250)))
    assert shown(restored) == found
    ledger.mark(first, True)
    assert shown(ledger).candidates[0].digest == first


def test_times_of_an_earlier_life_are_shown_as_such_until_there_are_new_ones() -> None:
    ledger = Ledger()
    ledger.open(AGENDA, BOUNDS)
    ledger.take(explored(0, 1, 2, 3))
    slow = replace(candidate(3, 3.0), time_us=7.5, executed_on="a card", error=1e-4)
    ledger.update(slow)
    ledger.update(replace(candidate(2, 2.0), note="a block needs too much"))
    for _ in range(2):  # however often it is stored and taken up again
        facts, ledger = ledger.facts(1.0, None), Ledger()
        ledger.restore(facts)
        ledger.open(AGENDA, BOUNDS)
        ledger.take(explored(0, 1, 2, 3))
        found = shown(ledger)
        assert found.candidates[0] == replace(candidate(3, 3.0), before=Timed(7.5, "a card"))
        assert [c.before for c in found.candidates[1:]] == [None, None] and not any(c.note for c in found.candidates)
    ledger.update(replace(found.candidates[0], time_us=8.0, executed_on="another"))
    ledger.update(replace(candidate(1), time_us=7.0, executed_on="another"))
    assert [c.time_us for c in shown(ledger).candidates] == [7.0, 8.0, None]


def test_what_was_refuted_or_dropped_is_kept_with_its_reason_within_bounds() -> None:
    def rejected(number: int) -> Rejected:
        one = candidate(number)
        return Rejected(one.digest, one.graph, "", 1, Verdict(VerdictKind.REFUTED, trials=1), "the field values differ")

    ledger = Ledger()
    ledger.open(AGENDA, BOUNDS)
    for place in range(4):
        end = explored(place, place)
        many = (*(rejected(1000 * place + n) for n in range(10, 90)), rejected(5))
        ledger.take(replace(end, findings=replace(end.findings, refuted=81, rejected=many)))
    ledger.drop(candidate(2).digest, "it computes something else")
    ledger.drop("no candidate", "unknown")
    found = shown(ledger)
    assert found.refuted == 4 * 81 and len(found.rejected) == KEPT_REJECTED
    assert len({one.digest for one in found.rejected}) == KEPT_REJECTED
    assert found.rejected[0].why == "it computes something else" and found.rejected[0].verdict.accepted
    per_place = [sum(one.digest == rejected(1000 * p + 10).digest for one in found.rejected) for p in range(4)]
    assert per_place == [1, 1, 1, 1], "every configuration has its share"
