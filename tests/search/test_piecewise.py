"""Large programs: searched in pieces, and put together from the best of each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mirage_nb.interp import reference
from mirage_nb.ir import AccumKind, KernelGraph, OpKind
from mirage_nb.ir.legality import check
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Budget, prepare, run_configuration
from mirage_nb.search.composition import library_and_fused
from mirage_nb.search.limits import NO_LIMITS
from mirage_nb.search.session.findings import Bounds
from mirage_nb.search.session.piecewise import IN_PIECES_ONLY, Pieces, explorable, is_large, piecewise
from mirage_nb.search.session.progress import Snapshot, State
from mirage_nb.search.session.session import SearchSession
from mirage_nb.targets import TARGETS
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.search.programs import qknorm
from tests.search.test_partition import model

H200 = TARGETS["h200"]
QUICK = Bounds("quick", EFFORTS["quick"].budget)


@pytest.fixture(scope="module")
def program() -> KernelGraph:
    return model(2, rows=8, width=64, heads=2)


@pytest.fixture(scope="module")
def session(program: KernelGraph) -> SearchSession:
    """A session that has ended; its program has 94 operators."""
    made = SearchSession(program, H200, effort="quick", seconds=15.0)
    made.start().result(60)
    return made


@pytest.fixture(scope="module")
def ended(session: SearchSession) -> Snapshot:
    return session.snapshot()


def test_a_large_program_ends_with_a_mugraph_of_few_kernels(program: KernelGraph, ended: Snapshot) -> None:
    assert is_large(program) and ended.state is State.FINISHED
    assert IN_PIECES_ONLY in ended.cut and not ended.exhausted
    best = ended.best
    assert best is not None and best.configuration.endswith("pieces") and best.verdict.accepted
    assert ended.baseline is not None and best.estimate_us < ended.baseline.estimate_us / 2
    check(best.graph, H200)
    arrays = [0.1 * np.random.default_rng(0).standard_normal(i.type.shape) for i in program.inputs]
    (found,), (right,) = (reference.evaluate(g, arrays) for g in (best.graph, program))
    np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-9)


def test_it_says_what_it_is_made_of(session: SearchSession, ended: Snapshot) -> None:
    best = ended.best
    assert best is not None
    parts = session.made_of(best.digest)
    assert 4 <= len(parts) <= 10 and all(c.verdict.accepted for _, c in parts)
    assert not session.made_of("nothing") and all(c.graph.inputs == piece.inputs for piece, c in parts)
    assert "piece by piece" in best.verdict.note


def test_linear_cross_entropy_is_one_loop_over_the_classes_that_keeps_no_logits() -> None:
    text = "X: f16[16, 64]\nW: f16[256, 64]\ny: i64[16]\nreturn F.cross_entropy(f32(X @ W.T), y, reduction='none')"
    program = parse(text).graph
    pieces = Pieces(program, H200, NO_LIMITS, 0)
    found = [*pieces.configurations(EFFORTS["standard"])]
    assert found and all(c.alone for c, _ in found), "numbers of places are no piece that is searched"
    loop, piece = next((c, p) for c, p in found if c.kernels == 1 and c.loop is not None and c.label.endswith(" c"))
    result = run_configuration(prepare(piece), replace(loop, piece=""), EFFORTS["standard"], Budget())
    accumulators = [[step.operator.accum for k in s.kernels for step in k.steps] for s in result.structures]
    assert any(AccumKind.RESCALE in kinds and AccumKind.CONCAT not in kinds for kinds in accumulators)


def test_pieces_take_turns_and_come_before_the_whole() -> None:
    medium = qknorm()
    pieces = Pieces(medium, H200, NO_LIMITS, 0)
    assert not pieces.several
    told: list[str] = []
    whole = dict(explorable(medium, pieces, QUICK, 0, told.append, True))
    assert whole and not told and not any(c.piece for c in whole)
    assert not dict(explorable(medium, pieces, QUICK, 0, told.append, False))
    large = model(1, rows=8, width=64, heads=2)
    found = [c for c, _ in explorable(large, Pieces(large, H200, NO_LIMITS, 0), QUICK, 0, told.append, True)]
    first = list(dict.fromkeys(c.piece for c in found))
    assert all(c.piece for c in found) and len(first) >= 3
    turns = [c.piece for c in found[: 2 * len(first)]]
    assert {*turns} == {*first}, "every piece has its turn before any has its third"


def test_one_kernel_for_each_piece_comes_first() -> None:
    """Few muGraphs, of which the best are verified: of a piece that is searched by itself there are many."""
    heads = "".join(f"{name}: bf16[4, 256, 64]\n" for name in "QKV")
    mask = "d: f32[256]\nI = arange(256)\nM = (d[:, None] == d) & (I[:, None] >= I)"
    program = parse(f"{heads}{mask}\nreturn softmax(where(M, Q @ transpose(K) * 0.125, -inf)) @ V").graph
    bounds = Bounds("standard", Budget())
    found = [c for c, _ in explorable(program, Pieces(program, H200, NO_LIMITS, 0), bounds, 0, print, True)]
    assert [c.single for c in found] == [True, *(False for _ in found[1:])]
    assert found[1].piece and not found[-1].piece


def test_beside_numbers_of_places_a_piece_is_the_program() -> None:
    """What needs no search is looked for in the program alone; loops over keys come before those over what is short."""
    heads = "".join(f"{name}: bf16[4, 256, 64]\n" for name in "QKV")
    window = "D = arange(256)[:, None] - arange(256)\nS = where(D < 64, Q @ transpose(K) * 0.125, -inf)"
    made = Pieces(parse(f"{heads}{window}\nreturn softmax(where(D >= 0, S, -inf)) @ V").graph, H200, NO_LIMITS, 0)
    (plain,) = made.wholes(lambda digest: [])
    assert not any(op.kind is OpKind.GRAPH for op in plain.graph.ops)
    labels = [configuration.label for configuration, _ in made.configurations(EFFORTS["quick"])]
    assert [label.rpartition("; ")[2] for label in labels] == ["no loop", "loop over d", "loop over c"]


def test_a_whole_is_as_sure_as_its_least_sure_piece() -> None:
    proved = Verdict(VerdictKind.PROVED)
    tried = Verdict(VerdictKind.FIELD, trials=4, log2_bound=-70.0)
    assert piecewise([proved, proved]).kind is VerdictKind.PROVED
    both = piecewise([proved, tried, tried])
    assert (both.kind, both.trials, both.log2_bound) == (VerdictKind.FIELD, 4, -69.0)
    assert piecewise([tried, Verdict(VerdictKind.FIELD, trials=2)]).log2_bound is None
    assert piecewise([proved, Verdict(VerdictKind.STORED)]).kind is VerdictKind.STORED


def test_pieces_that_have_no_more_time_are_whole_at_once(program: KernelGraph) -> None:
    pieces = Pieces(program, H200, NO_LIMITS, 0, lambda: True)
    (whole,) = pieces.wholes(lambda _: ())
    arrays = [np.random.default_rng(0).uniform(0.5, 2.0, i.type.shape) for i in program.inputs]
    np.testing.assert_allclose(reference.evaluate(whole.graph, arrays), reference.evaluate(program, arrays), rtol=1e-9)
    assert library_and_fused(program, H200, is_over=lambda: True) is None
