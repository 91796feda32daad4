"""Square roots: when a bound is claimed, and the claimed chance against what really happens modulo small primes."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from mirage_nb.interp import field
from mirage_nb.interp.field import FieldInstance, FieldTensor, random_inputs
from mirage_nb.interp.modular import LARGE, SMALL, Pool
from mirage_nb.ir import KernelGraph, OpKind, PowAttrs, ReshapeAttrs
from mirage_nb.search import EFFORTS, Budget, configurations, prepare, run_configuration, tiny
from mirage_nb.verify import groups, rooted
from mirage_nb.verify.bound import trial_bound
from mirage_nb.verify.groups import draw_inputs, root_groups
from mirage_nb.verify.lax import inspect
from mirage_nb.verify.reach import reached
from mirage_nb.verify.rooted import rooted_bound
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.mugraphs import Kernel, gated_mlp, gqa, lora, qknorm, rms, rmsnorm, rmsnorm_fig3
from tests.search.programs import PROGRAMS
from tests.strategies import mugraphs, programs

Build = Callable[[Kernel], int]
TINY = Pool("primes around 1000", 500, 2500)


def graph(build: Build, **shapes: tuple[int, ...]) -> KernelGraph:
    k = Kernel(**shapes)
    return k.returning(build(k))


def final(a: Build, b: Build, **shapes: tuple[int, ...]) -> Verdict:
    return verify(graph(a, **shapes), graph(b, **shapes), final=True)


@pytest.mark.parametrize("build", [rmsnorm, rmsnorm_fig3, lora, gated_mlp], ids=lambda build: build.__name__)
def test_final_trials_reach_the_bound(build: Callable[[], object]) -> None:
    case = build()
    verdict = verify(case.program, case.candidate, final=True)
    assert verdict.accepted and verdict.log2_bound is not None and verdict.log2_bound <= -64
    assert ("norm" in verdict.note) == inspect(case.program).roots


@pytest.mark.parametrize("name", ["rmsnorm", "rmsnorm_fig3"])
def test_found_structures_reach_the_bound(name: str) -> None:
    prepared = prepare(PROGRAMS[name]())
    seen = 0
    for configuration in configurations(prepared, EFFORTS["standard"]):
        found = run_configuration(
            prepared, configuration, EFFORTS["standard"], Budget(), lambda counts: None, lambda: False
        )
        for structure in found.structures[:2]:
            verdict = verify(*tiny(prepared, structure), final=True)
            assert verdict.kind is VerdictKind.FIELD and verdict.log2_bound is not None, verdict
            assert verdict.log2_bound <= -64
            seen += 1
        if seen >= 4:
            break
    assert seen


def root(k: Kernel, x: int) -> int:
    return k.op(OpKind.SQRT, x)


def plus(number: Fraction | int, x: int = 0) -> Build:
    return lambda k: root(k, k.op(OpKind.ADD, x, k.const(number)))


NONE = {
    "root of a square": lambda k: root(k, k.op(OpKind.SQR, 0)),
    "root of twice a square": lambda k: root(k, k.op(OpKind.MUL, k.op(OpKind.SQR, 0), k.const(2))),
    "root of a number": lambda k: k.op(OpKind.MUL, 0, root(k, k.const(3))),
    "nested": lambda k: root(k, k.op(OpKind.ADD, root(k, 0), 1)),
    "dependent": lambda k: k.op(OpKind.ADD, root(k, 0), root(k, k.op(OpKind.MUL, 0, k.const(4)))),
    "three dependent": lambda k: k.op(
        OpKind.ADD, root(k, k.op(OpKind.MUL, 0, 1)), k.op(OpKind.ADD, root(k, 0), root(k, 1))
    ),
    "beside exponentials": lambda k: k.op(OpKind.MUL, root(k, 0), k.op(OpKind.EXP, 1)),
}


@pytest.mark.parametrize("name", NONE)
def test_no_bound_is_claimed_where_the_argument_fails(name: str) -> None:
    verdict = final(NONE[name], NONE[name], X=(4,), Y=(4,))
    assert verdict.accepted and verdict.log2_bound is None and "no error bound" in verdict.note


def test_other_radicands_than_the_programs_have_no_bound() -> None:
    def apart(k: Kernel) -> int:
        return k.op(OpKind.MUL, root(k, 0), root(k, 1))

    def together(k: Kernel) -> int:
        return root(k, k.op(OpKind.MUL, 0, 1))

    for a, b in ((apart, together), (together, apart)):
        verdict = final(a, b, X=(2,), Y=(2,))
        assert verdict.accepted and verdict.log2_bound is None and "such square roots" in verdict.note
        assert final(a, a, X=(2,), Y=(2,)).log2_bound <= -64


def test_radicands_may_be_written_otherwise() -> None:
    def other(k: Kernel) -> int:
        halved = k.op(OpKind.DIV, k.op(OpKind.ADD, k.op(OpKind.MUL, 0, k.const(2)), k.const(2)), k.const(2))
        return k.op(OpKind.POW, halved, attrs=PowAttrs(Fraction(1, 2)))

    verdict = final(plus(1), other, X=(4,))
    assert verdict.accepted and verdict.log2_bound <= -64


def test_equal_roots_count_once() -> None:
    twice = lambda k: k.op(OpKind.ADD, rms(k, 0, 1, 4), rms(k, 0, 1, 4))  # noqa: E731 (two uses, one line)
    found = root_groups(graph(twice, X=(3, 4)))
    assert found is not None and found.roots == (1, 1, 1)
    assert final(twice, twice, X=(3, 4)).log2_bound <= -64


def test_roots_of_shared_inputs_form_one_group() -> None:
    def both(k: Kernel) -> int:
        return k.op(OpKind.ADD, plus(1)(k), plus(2)(k))

    found = root_groups(graph(both, X=(2,)))
    assert found is not None and sorted(found.roots) == [0, 0, 2, 2]
    assert final(both, both, X=(2,)).log2_bound <= -64
    gain = graph(lambda k: rms(k, k.op(OpKind.MUL, 0, 1), 1, 4), X=(5, 4), G=(4,))
    apart = root_groups(gain)
    assert apart is not None and apart.roots == (1,) * 5 and not apart.marks[1].any()
    shared = graph(lambda k: root(k, k.op(OpKind.MATMUL, 0, 1)), X=(2, 2), W=(2, 2))
    assert root_groups(shared) is None  # four roots of one group


@given(programs(steps=5) | mugraphs())
@settings(max_examples=120)
def test_what_is_reached_holds_for_values(found: KernelGraph) -> None:
    """Changing all elements of one input changes nothing that does not reach it."""
    instance = FieldInstance.draw(4)
    inputs = list(random_inputs(found, instance))
    before = field.evaluate(found, inputs, instance)
    for at, given_input in enumerate(found.inputs):
        marks = [np.zeros(i.type.shape, np.uint64) for i in found.inputs]
        element = tuple(0 for _ in given_input.type.shape)
        marks[at][element] = 1
        fresh = instance.random("fresh", given_input.type.shape)
        mask = marks[at] != 0
        changed = [*inputs]
        changed[at] = FieldTensor(np.where(mask, fresh.p, inputs[at].p), np.where(mask, fresh.q, inputs[at].q))
        after = field.evaluate(found, changed, instance)
        for a, b, words in zip(before, after, reached(found, marks).outputs, strict=True):
            away = (words == 0) & a.defined & b.defined
            assert (a.p[away] == b.p[away]).all()


def times_factors(count: int, base: Build) -> Build:
    """The root plus (root - 1) * (root - 2) * ..: equal in `count` of all points."""

    def build(k: Kernel) -> int:
        s = base(k)
        off = k.op(OpKind.SUB, s, k.const(1))
        for number in range(2, count + 1):
            off = k.op(OpKind.MUL, off, k.op(OpKind.SUB, s, k.const(number)))
        return k.op(OpKind.ADD, s, off)

    return build


def two_roots(k: Kernel) -> int:
    return k.op(OpKind.ADD, root(k, 0), plus(1)(k))


WRONG: dict[str, tuple[Build, Build]] = {
    "one root": (lambda k: root(k, 0), times_factors(4, lambda k: root(k, 0))),
    "root of a quotient": (
        lambda k: root(k, k.op(OpKind.DIV, 0, 1)),
        times_factors(3, lambda k: root(k, k.op(OpKind.DIV, 0, 1))),
    ),
    "two roots": (two_roots, times_factors(2, two_roots)),
    "another radicand": (lambda k: root(k, 0), lambda k: root(k, k.op(OpKind.MUL, 0, k.op(OpKind.MUL, 0, 0)))),
}


@pytest.mark.parametrize("versions", [1, 4])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_graphs_pass_no_more_often_than_claimed(
    name: str, versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every element of a trial is one sample; few draws per group, so that the claim is not far from the truth."""
    for module in (groups, rooted):
        monkeypatch.setattr(module, "VERSIONS", versions)
    rows, trials = 24, 400
    program, wrong = (graph(build, X=(rows,), Y=(rows,)) for build in WRONG[name])
    found = root_groups(program)
    assert found is not None
    one = root_groups(graph(WRONG[name][0], X=(1,), Y=(1,)))
    assert one is not None
    single = [graph(build, X=(1,), Y=(1,)) for build in WRONG[name]]
    bound = rooted_bound(*single, one, TINY)
    assert bound is not None
    parts = inspect(program).parts
    missed = 0
    for seed in range(trials):
        instance = FieldInstance.draw(seed, TINY)
        inputs = draw_inputs(program, instance, parts)
        noted: list[FieldTensor] = []
        (a,), (b,) = (field.evaluate(g, inputs, instance, noted) for g in (program, wrong))
        missed += int((a.defined & b.defined & (a.p == b.p) & own_radicand(noted)).sum())
    claimed = 2**bound
    rate = missed / (rows * trials)
    assert 0 < rate <= claimed + 4 * math.sqrt(claimed / (rows * trials)), (rate, claimed)


def own_radicand(noted: list[FieldTensor]) -> np.ndarray:
    """For every row, whether the candidate's radicands, the second half, are the program's."""
    half = len(noted) // 2
    ours, theirs = np.stack([x.p for x in noted[:half]]), np.stack([x.p for x in noted[half:]])
    return (theirs[:, None] == ours[None]).any(axis=1).all(axis=0)


def test_wrong_exponentials_pass_no_more_often_than_claimed() -> None:
    pool = Pool("primes around 2^14", 2**14, 2**15)
    rows, trials = 256, 60
    program = graph(lambda k: k.op(OpKind.EXP, 0), X=(rows,), Y=(rows,))

    def wrong(k: Kernel) -> int:
        e = k.op(OpKind.EXP, k.op(OpKind.MUL, 0, k.const(2)))
        return k.op(OpKind.MUL, e, 1)

    other = graph(wrong, X=(rows,), Y=(rows,))
    bound = trial_bound(program, other, pool)
    assert bound is not None
    missed = 0
    for seed in range(trials):
        instance = FieldInstance.draw(seed, pool)
        inputs = random_inputs(program, instance)
        a, b = (field.evaluate(g, inputs, instance)[0] for g in (program, other))
        missed += int((a.p == b.p).sum())
    assert 0 < missed / (rows * trials) <= 2**bound


def test_draws_of_a_group_are_all_kept_or_all_new() -> None:
    program = rmsnorm(8, 8, 8).program
    instance, parts = FieldInstance.draw(2), inspect(program).parts
    before, after = random_inputs(program, instance, parts), draw_inputs(program, instance, parts)
    same = before[0].p == after[0].p
    assert (same.all(axis=1) | ~same.any(axis=1)).all() and not same.all()
    assert field.evaluate(program, after, instance)[0].defined.all()


def test_large_pools_make_better_bounds_and_views_keep_them() -> None:
    case = rmsnorm()
    found = root_groups(case.program)
    assert found is not None
    small, large = (rooted_bound(case.program, case.candidate, found, pool) for pool in (SMALL, LARGE))
    assert large < small - 8
    flat = lambda k: k.op(OpKind.RESHAPE, rms(k, 0, 1, 4), attrs=ReshapeAttrs((8,)))  # noqa: E731 (two uses, one line)
    assert final(flat, flat, X=(2, 4)).log2_bound <= -64
    for case in (qknorm(), gqa()):
        assert verify(case.program, case.candidate, final=True).log2_bound is None
