"""Bounds with roots, exponentials and maxima: when one is claimed, and what really happens modulo small primes."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

from mirage_nb.interp import field
from mirage_nb.interp.field import FieldInstance, FieldTensor, Noted, random_inputs
from mirage_nb.interp.primes import PRIMES, Pool
from mirage_nb.ir import KernelGraph, OpKind, PowAttrs, ReshapeAttrs
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, configurations, prepare, tiny
from mirage_nb.verify.fields import groups, towers
from mirage_nb.verify.fields.exponents import exponents_of
from mirage_nb.verify.fields.groups import draw_inputs, root_groups
from mirage_nb.verify.fields.lax import inspect, joined
from mirage_nb.verify.fields.reach import reached
from mirage_nb.verify.fields.towers import Observer, Tower, shown, tower
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.mugraphs import Case, Kernel, cases, gqa, lora, qknorm, rms, rmsnorm
from tests.search.explored import explored
from tests.search.programs import PROGRAMS
from tests.shares import examples, shared_out, some
from tests.strategies import mugraphs, programs

Build = Callable[[Kernel], int]
TINY = Pool("primes around 1000", 500, 2500)
SMALL = Pool("21-bit primes", 2**20, 2**21)
TINIER = Pool("primes around 200", 100, 400)


def graph(build: Build, **shapes: tuple[int, ...]) -> KernelGraph:
    k = Kernel(**shapes)
    return k.returning(build(k))


def final(a: Build, b: Build, **shapes: tuple[int, ...]) -> Verdict:
    return verify(graph(a, **shapes), graph(b, **shapes), final=True)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_final_trials_reach_the_bound(case: Case) -> None:
    verdict = verify(case.program, case.candidate, final=True)
    assert verdict.accepted and verdict.log2_bound is not None and verdict.log2_bound <= -64
    assert ("seen to be" in verdict.note) == (case.name != "lora"), verdict.note


@shared_out
@pytest.mark.parametrize("name", PROGRAMS)
def test_found_structures_reach_the_bound(name: str, share: int) -> None:
    prepared = prepare(PROGRAMS[name]())
    seen = 0
    for configuration in configurations(prepared, EFFORTS["quick"]):
        found = explored(prepared, configuration, EFFORTS["quick"])
        for structure in found.structures[:1]:
            verdict = verify(*tiny(prepared, structure), final=True)
            assert verdict.kind is VerdictKind.FIELD and verdict.log2_bound is not None, verdict
            assert verdict.log2_bound <= -64
            seen += 1
        if seen >= 3 // share:
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
    "nested and dependent": lambda k: root(k, k.op(OpKind.MUL, root(k, 0), root(k, 0))),
    "dependent": lambda k: k.op(OpKind.ADD, root(k, 0), root(k, k.op(OpKind.MUL, 0, k.const(4)))),
    "three dependent": lambda k: k.op(
        OpKind.ADD, root(k, k.op(OpKind.MUL, 0, 1)), k.op(OpKind.ADD, root(k, 0), root(k, 1))
    ),
    "root of an exponential": lambda k: root(k, k.op(OpKind.ADD, 0, k.op(OpKind.EXP, 1))),
    "dependent exponents": lambda k: k.op(
        OpKind.MUL, k.op(OpKind.EXP, 0), k.op(OpKind.EXP, k.op(OpKind.MUL, 0, k.const(2)))
    ),
    "scaled maximum": lambda k: k.op(
        OpKind.EXP, k.op(OpKind.SUB, 0, k.op(OpKind.MUL, k.max(0, 0), k.const(Fraction(1, 2))))
    ),
    "a maximum itself": lambda k: k.max(0, 0),
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

    verdict = final(apart, together, X=(2,), Y=(2,))
    assert verdict.kind is VerdictKind.UNDECIDED and verdict.log2_bound is None  # left to a proof
    # Of two negative factors the product has a root, and they have none.
    assert final(together, apart, X=(2,), Y=(2,)).kind is VerdictKind.REFUTED
    assert all(final(one, one, X=(2,), Y=(2,)).log2_bound <= -64 for one in (apart, together))


def test_radicands_may_be_written_otherwise() -> None:
    def other(k: Kernel) -> int:
        halved = k.op(OpKind.DIV, k.op(OpKind.ADD, k.op(OpKind.MUL, 0, k.const(2)), k.const(2)), k.const(2))
        return k.op(OpKind.POW, halved, attrs=PowAttrs(Fraction(1, 2)))

    verdict = final(plus(1), other, X=(4,))
    assert verdict.accepted and verdict.log2_bound <= -64


def test_equal_roots_count_once() -> None:
    twice = lambda k: k.op(OpKind.ADD, rms(k, 0, 1, 4), rms(k, 0, 1, 4))  # noqa: E731 (two uses, one line)
    found = root_groups(graph(twice, X=(3, 4)))
    assert found is not None and found.group == (0, 1, 2)
    assert final(twice, twice, X=(3, 4)).log2_bound <= -64


def test_roots_of_shared_inputs_form_one_group() -> None:
    def both(k: Kernel) -> int:
        return k.op(OpKind.ADD, plus(1)(k), plus(2)(k))

    found = root_groups(graph(both, X=(2,)))
    assert found is not None and found.group == (0, 1, 0, 1)
    assert final(both, both, X=(2,)).log2_bound <= -64
    gain = graph(lambda k: rms(k, k.op(OpKind.MUL, 0, 1), 1, 4), X=(5, 4), G=(4,))
    apart = root_groups(gain)
    assert apart is not None and apart.group == (0, 1, 2, 3, 4) and not apart.marks[1].any()
    shared = graph(lambda k: root(k, k.op(OpKind.MATMUL, 0, 1)), X=(2, 2), W=(2, 2))
    assert root_groups(shared) is None  # four roots of one group


@given(programs(steps=5) | mugraphs())
@examples(120)
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


def nested(k: Kernel) -> int:
    return root(k, k.op(OpKind.ADD, root(k, 0), 1))


def exp(k: Kernel, x: int) -> int:
    return k.op(OpKind.EXP, x)


def apart(k: Kernel, a: int, b: int) -> int:
    """(exp(a) - exp(b)) * (exp(a) - 2 * exp(b))."""
    e, f = exp(k, a), exp(k, b)
    return k.op(OpKind.MUL, k.op(OpKind.SUB, e, f), k.op(OpKind.SUB, e, k.op(OpKind.MUL, f, k.const(2))))


def off(k: Kernel, a: int, b: int) -> tuple[int, int]:
    """exp(a) + exp(b), and the same plus what vanishes where they are equal."""
    total = k.op(OpKind.ADD, exp(k, a), exp(k, b))
    return total, k.op(OpKind.ADD, total, apart(k, a, b))


def normed(k: Kernel, x: int) -> int:
    """x / sqrt(x^2 + y^2 + 1)."""
    squares = k.op(OpKind.ADD, k.op(OpKind.SQR, 0), k.op(OpKind.SQR, 1))
    return k.op(OpKind.DIV, x, root(k, k.op(OpKind.ADD, squares, k.const(1))))


def scored(k: Kernel, x: int) -> int:
    """x times the normalised first input: the root is of other inputs than x."""
    return k.op(OpKind.MUL, normed(k, 0), x)


def shifted(k: Kernel, x: int, by: int) -> int:
    return k.sum(exp(k, k.op(OpKind.SUB, x, k.max(by, 1))), 1)


Pair = tuple[Build, Build]
WRONG: dict[str, Pair] = {
    "one root": (lambda k: root(k, 0), times_factors(4, lambda k: root(k, 0))),
    "root of a quotient": (
        lambda k: root(k, k.op(OpKind.DIV, 0, 1)),
        times_factors(3, lambda k: root(k, k.op(OpKind.DIV, 0, 1))),
    ),
    "two roots": (two_roots, times_factors(2, two_roots)),
    "nested roots": (nested, times_factors(6, nested)),
    "exponentials": (lambda k: off(k, 0, 1)[0], lambda k: off(k, 0, 1)[1]),
    "roots in exponents": (
        lambda k: off(k, scored(k, 2), scored(k, 3))[0],
        lambda k: off(k, scored(k, 2), scored(k, 3))[1],
    ),
    "roots beside exponentials": (
        lambda k: k.op(OpKind.MUL, root(k, 0), off(k, 0, 1)[0]),
        lambda k: k.op(OpKind.MUL, root(k, 0), off(k, 0, 1)[1]),
    ),
    "another maximum": (
        lambda k: k.op(OpKind.MUL, shifted(k, 0, 0), shifted(k, 1, 1)),
        lambda k: k.op(OpKind.MUL, shifted(k, 0, 1), shifted(k, 1, 1)),
    ),
}
MISTAKEN: dict[str, Pair] = {
    "another radicand": (lambda k: root(k, 0), lambda k: root(k, k.op(OpKind.MUL, 0, k.op(OpKind.SQR, 0)))),
    "another exponent": (lambda k: exp(k, 0), lambda k: exp(k, k.op(OpKind.SQR, 0))),
    "another exponent with a root": (lambda k: exp(k, normed(k, 2)), lambda k: exp(k, normed(k, 1))),
    "the opposite exponent": (lambda k: exp(k, 0), lambda k: exp(k, k.op(OpKind.SUB, k.const(0), 0))),
}


def shapes(name: str, rows: int) -> dict[str, tuple[int, ...]]:
    shape = (rows, 2) if "maximum" in name else (rows,)
    return dict.fromkeys("XYZW", shape)


def missed(program: KernelGraph, wrong: KernelGraph, found: Tower, pool: Pool, seed: int) -> int:
    """Output elements that agree in a trial that shows what the bound asks for."""
    lax = joined(inspect(program), inspect(wrong))
    instance = FieldInstance.draw(seed, pool)
    inputs = draw_inputs(program, instance, lax.parts)
    ours, theirs = Noted(), Noted()
    (a,), (b,) = (field.evaluate(g, inputs, instance, noted) for g, noted in ((program, ours), (wrong, theirs)))
    agree = a.defined & b.defined & (a.p == b.p)
    if not agree.any():
        return 0
    facts = shown(found.groups, found.exponents, inputs, instance)
    observer = Observer(found)
    observer.look(facts, inputs, instance, theirs.radicands, [*ours.ranked, *theirs.ranked])
    return int(agree.sum()) if observer.holds else 0


def claim(name: str, pair: Pair, pool: Pool, rows: int) -> tuple[KernelGraph, KernelGraph, Tower, float]:
    program, wrong = (graph(build, **shapes(name, rows)) for build in pair)
    found = tower(program, wrong, joined(inspect(program), inspect(wrong)), pool)
    assert found is not None, name
    return program, wrong, found, 2**found.chance


@pytest.mark.parametrize(
    ("name", "versions"), [pair for at, name in enumerate(WRONG) for pair in some([(name, 2), (name, 6)], at, 2)]
)
def test_wrong_graphs_pass_no_more_often_than_claimed(
    name: str, versions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every element of a trial is one sample; few draws per group, so that the claim is not far from the truth."""
    for module in (groups, towers):
        monkeypatch.setattr(module, "VERSIONS", versions)
    rows, trials = (1, 900) if "nested" in name else (3, 400)
    program, wrong, found, claimed = claim(name, WRONG[name], TINY, rows)
    elements = program.output_types[0].elements
    rate = sum(missed(program, wrong, found, TINY, seed) for seed in range(trials)) / (elements * trials)
    assert 0 < rate <= claimed + 4 * math.sqrt(claimed / (elements * trials)), (rate, claimed)


@pytest.mark.parametrize("name", MISTAKEN)
def test_other_roots_and_exponents_pass_no_more_often_than_claimed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element, so that a trial shows the same roots and exponents whenever this one's agree."""
    for module in (groups, towers):
        monkeypatch.setattr(module, "VERSIONS", 2)
    trials = 300
    program, wrong, found, claimed = claim(name, MISTAKEN[name], TINIER, 1)
    rate = sum(missed(program, wrong, found, TINIER, seed) for seed in range(trials)) / trials
    assert 0 < rate <= claimed * 2**found.once + 4 * math.sqrt(claimed / trials), (rate, claimed)


@pytest.mark.parametrize("name", {**WRONG, **MISTAKEN})
def test_all_of_them_are_refuted_or_without_a_bound(name: str) -> None:
    pair = {**WRONG, **MISTAKEN}[name]
    verdict = final(*pair, **shapes(name, 2))
    assert verdict.kind is VerdictKind.REFUTED, verdict


def test_negative_exponents_are_known() -> None:
    """silu written with exp(-x)."""

    def written(k: Kernel) -> int:
        e = exp(k, k.op(OpKind.MUL, 0, k.const(-1)))
        return k.op(OpKind.DIV, 0, k.op(OpKind.ADD, e, k.const(1)))

    assert final(lambda k: k.op(OpKind.SILU, 0), written, X=(4,)).log2_bound <= -64


def test_exponents_and_the_classes_they_meet() -> None:
    case = gqa(1, 2, 3, 4, (1, 1))
    found = exponents_of(case.program)
    assert found is not None
    assert found.meets.shape == (8, 2 + 4) and (found.meets.sum(axis=1) == 2).all()
    assert len(set(found.apart.tolist())) == 2  # queries, keys
    (reach,) = found.reach(case.program)
    assert reach.shape == (1, 2, 3, 6) and (reach.sum(axis=-1) == 1 + 4).all()
    assert exponents_of(lora().program) is None


def test_maxima_of_other_elements_have_no_bound() -> None:
    """Whether the elements of two sets are the same is known of exponents only."""

    def ratio(k: Kernel) -> int:
        top = k.max(k.op(OpKind.MUL, 0, 1), 1)
        return k.op(OpKind.DIV, k.sum(exp(k, k.op(OpKind.SUB, 0, top)), 1), exp(k, k.op(OpKind.SUB, 1, top)))

    verdict = final(ratio, ratio, X=(2, 2), Y=(2, 2))
    assert verdict.accepted and verdict.log2_bound is None


def test_a_row_of_exponents_needs_a_class_for_each() -> None:
    """Four sums of two by two elements are dependent: x1 + y1 - x1 - y2 - x2 - y1 + x2 + y2 = 0."""
    sums = lambda k: k.op(OpKind.ADD, 0, k.op(OpKind.RESHAPE, 1, attrs=ReshapeAttrs((1, 2))))  # noqa: E731 (two uses)
    one = final(lambda k: exp(k, sums(k)), lambda k: exp(k, sums(k)), X=(2, 1), Y=(2,))
    assert one.log2_bound <= -64

    def product(k: Kernel) -> int:
        e = k.op(OpKind.RESHAPE, exp(k, sums(k)), attrs=ReshapeAttrs((4, 1)))
        return k.op(OpKind.MATMUL, k.op(OpKind.RESHAPE, e, attrs=ReshapeAttrs((1, 4))), e)

    all_together = final(product, product, X=(2, 1), Y=(2,))
    assert all_together.accepted and all_together.log2_bound is None


def test_other_inputs_of_one_group_are_no_class_of_their_own() -> None:
    """Of x / sqrt(x^2 + y^2 + 1) and y / sqrt(..), which share a group, neither has a class with whole groups."""
    both = lambda k: k.op(OpKind.MUL, exp(k, normed(k, 0)), exp(k, normed(k, 1)))  # noqa: E731 (two uses, one line)
    verdict = final(both, both, X=(2,), Y=(2,))
    assert verdict.accepted and verdict.log2_bound is None


def test_draws_of_a_group_are_all_kept_or_all_new() -> None:
    program = rmsnorm(8, 8, 8).program
    instance, parts = FieldInstance.draw(2), inspect(program).parts
    before, after = random_inputs(program, instance, parts), draw_inputs(program, instance, parts)
    same = before[0].p == after[0].p
    assert (same.all(axis=1) | ~same.any(axis=1)).all() and not same.all()
    assert field.evaluate(program, after, instance)[0].defined.all()


def test_large_pools_make_better_bounds_and_views_keep_them() -> None:
    case = rmsnorm()
    lax = inspect(case.program)
    small, large = (tower(case.program, case.candidate, lax, pool) for pool in (SMALL, PRIMES))
    assert small is not None and large is not None and large.chance < small.chance - 8
    flat = lambda k: k.op(OpKind.RESHAPE, rms(k, 0, 1, 4), attrs=ReshapeAttrs((8,)))  # noqa: E731 (two uses, one line)
    assert final(flat, flat, X=(2, 4)).log2_bound <= -64


def test_search_trials_leave_bounds_to_the_final_check() -> None:
    for case in (qknorm(), gqa(), rmsnorm()):
        verdict = verify(case.program, case.candidate)
        assert verdict.log2_bound is None and "final check" in verdict.note


def test_a_trial_in_which_a_group_has_no_value_is_drawn_again() -> None:
    """As one in 2,500 of this program is: with seed 679 a row's two roots are there in none of their versions."""
    declared = "".join(f"{name}: f16[4, 8]\n" for name in "HXA")
    program = parse(f"{declared}return rms_norm(X + A * (rms_norm(H) + X))").graph
    verdict = verify(program, program, final=True, seed=679)
    assert verdict.accepted and verdict.trials == 5
    assert verdict.log2_bound is not None and verdict.log2_bound <= -64
