"""A candidate has a value wherever its program has one: attacks that field trials see nothing of, and what is right.

Divisors and radicands that are functions no field knows (ReLU, steps, choices, powers, a program's own) have a value in
every trial; what they are over the reals is 0 or negative far away, in a narrow place, or where another input has a
sign of its own.
"""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage_nb.bench.verification.attacks import ATTACKS, BOTH, HEAD, refused
from mirage_nb.interp.numbers import fmpq
from mirage_nb.ir import ApplyAttrs, DType, OpKind, RepeatAttrs, RunningAttrs
from mirage_nb.lang import parse
from mirage_nb.verify import verify, verify_and_prove
from mirage_nb.verify.defined.covered import _Drawn
from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.defined.forms import needs_of
from mirage_nb.verify.proof.signs import ABOVE, ANY
from mirage_nb.verify.reals.exact import chosen, look
from mirage_nb.verify.verdict import Outcome, VerdictKind
from tests.mugraphs import Kernel
from tests.shares import some


@pytest.mark.parametrize("name", some([x for x in ATTACKS if x not in BOTH]))
def test_refused(name: str) -> None:
    verdict = refused(name)
    assert verdict is not None and not verdict.accepted


def test_a_point_is_made_of_two_where_a_program_asks_for_much() -> None:
    program, candidate = (
        parse(f"{HEAD}return {text}").graph for text in ("log(Y - 10) + X", "log(Y - 10) + X + 0 * log(X)")
    )
    verdict = verify(program, candidate)
    assert verdict.kind is VerdictKind.REFUTED


def test_of_many_maxima_no_pairs_are_made() -> None:
    moment: Any = SimpleNamespace(outputs=[], numbers=[], needed_by=[], infinite=[], maxima=[[*map(fmpq, range(1000))]])
    field: Any = SimpleNamespace(p=7, exponentials=pytest.fail)
    assert _Drawn.of(field, moment, moment).scales() == [], "their products would be too many to try"


RIGHT = {
    "a sum of exponentials": ("softmax(X)", "exp(X) / sum(exp(X), axis=1, keepdims=True)"),
    "a constant factor": ("X / sqrt(mean(X * X, axis=1, keepdims=True))",
                          "X * 2 / sqrt(sum(X * X, axis=1, keepdims=True))"),
    "a product of two needs": ("X / sqrt(Y) / Z", "X / (sqrt(Y) * Z)"),
    "the same needs apart": ("X / (sqrt(Y) * Z)", "X / Z / sqrt(Y)"),
    "one and an exponential": ("X * sigmoid(Y)", "X / (1 + exp(-Y))"),
    "behind the same choice": ("where(X > 0, Y / sqrt(Z), 0)", "where(X > 0, Y / (2 * sqrt(Z)) * 2, 0)"),
    "needed at the same elements": ("concat(Y[:, 1:] / X[:, 1:], Y[:, :1], axis=1)",
                                    "concat(Y[:, 1:] / (2 * X[:, 1:]) * 2, Y[:, :1], axis=1)"),
    "a mask of places": ("softmax(where(arange(4) <= arange(2)[:, None], X, -inf)) * Z",
                         "softmax(where(arange(4) <= arange(2)[:, None], X, -inf) + 3) * Z"),
    "masked weights": ("softmax(where(Y > 0, X, -inf))",
                       "exp(where(Y > 0, X, -inf)) / sum(exp(where(Y > 0, X, -inf)), axis=1, keepdims=True)"),
}  # fmt: skip


PROVED = ("a constant factor",)
"""By what roots are over the reals, as fields have signs of their own: trials leave these to a proof."""


@pytest.mark.parametrize("how", RIGHT)
def test_right_ones_are_covered(how: str) -> None:
    program, candidate = (parse(f"{HEAD}return {text}").graph for text in RIGHT[how])
    verdict = verify_and_prove(program, candidate)[0] if how in PROVED else verify(program, candidate)
    assert verdict.accepted, verdict


def test_what_both_divide_by_is_no_suspect_however_it_was_computed() -> None:
    program = parse("X: f16[4, 8]\nY = rms_norm(X)\nreturn Y").graph
    candidate = parse("X: f16[4, 8]\nY = X / sqrt(mean(X * X, axis=-1, keepdims=True))\nreturn Y").graph
    notes = {look(program, candidate, seed, covered=False).note for seed in range(24)}
    assert notes == {"all elements over the reals at 22 points"}


def test_needs_have_the_signs_that_their_form_says() -> None:
    found = needs_of(parse(f"{HEAD}return X / (1 + exp(Y)) + log(X) + sqrt(Z * Z) + X ** -2").graph)
    needs = [need for need, _ in found]
    assert sorted(need.name for need in needs) == ["NONNEGATIVE", "NONZERO", "NONZERO", "POSITIVE"]
    assert found[needs.index(Need.NONZERO)][1] in (ABOVE, ANY) and (Need.POSITIVE, ANY) in found
    assert (Need.NONNEGATIVE, frozenset({0, 1})) in found


def counts(columns: int, **how: bool) -> tuple[Kernel, int]:
    """How many ones there are up to each place of a row, and nothing that an input makes."""
    k = Kernel(DType.F32, Y=(2, columns))
    ones = k.op(OpKind.REPEAT, k.reshape(k.const(1), 1, 1), attrs=RepeatAttrs(1, columns))
    return k, k.op(OpKind.RUNNING_SUM, ones, attrs=RunningAttrs(1, **how))


def test_numbers_of_places_are_met_by_all_of_them_or_by_none() -> None:
    """At one place of many a logarithm is of -1/2, which float64 makes of 1/2; few elements show nothing of it."""
    k, count = counts(4096)
    plain = k.returning(k.op(OpKind.MUL, 0, k.const(2)))
    off = k.op(OpKind.SQR, k.op(OpKind.SUB, count, k.const(2048)))
    least = k.op(OpKind.MUL, k.op(OpKind.ADD, off, k.const(1)), k.const(10**20))
    for number in (-1, -(10**20), Fraction(1, 2)):
        least = k.op(OpKind.ADD, least, k.const(number))
    nothing = k.op(OpKind.MUL, k.op(OpKind.APPLY, least, attrs=ApplyAttrs("log", "log(x)")), k.const(0))
    wrong = k.returning(k.op(OpKind.ADD, k.op(OpKind.MUL, 0, k.const(2)), nothing))
    assert not any(verify(plain, wrong).accepted for _ in range(4))


@pytest.mark.parametrize("exclusive", [False, True])
def test_the_first_sum_of_what_stands_before_is_of_nothing(exclusive: bool) -> None:
    k, count = counts(8, exclusive=exclusive)
    ((need, signs),) = needs_of(k.returning(k.op(OpKind.DIV, 0, count)))
    assert (need, signs) == (Need.NONZERO, frozenset({0, 1}) if exclusive else ABOVE)


@pytest.mark.parametrize("rows", [4, 11])
def test_what_has_a_value_at_places_of_an_axis_only_is_compared_there(rows: int) -> None:
    """The logarithm of what a label picks: of labels that are none it is that of 0."""
    head = f"X: f32[{rows}, 7]\nT: i32[{rows}]\nE = exp(X)\nreturn -mean(log(sum(one_hot("
    program, plain, wrong = (
        parse(f"{head}{text}, axis=1)))").graph
        for text in ("T, 7) * softmax(X)", "T, 7) * (E / sum(E, axis=1, keepdims=True))", "T, 7) * softmax(-X)")
    )
    assert verify(program, program).accepted and verify(program, plain).accepted
    assert verify(program, wrong).kind is VerdictKind.REFUTED


@pytest.mark.parametrize("needs", ["log({})", "Y / {}", "sqrt({})"])
def test_an_infinity_is_no_end_of_a_line(needs: str) -> None:
    """Between it and a number nothing is looked for where the sign changes."""
    head = "X: f32[8]\nY: f32[8]\nreturn where(X > 0, "
    program, candidate = (
        parse(f"{head}{needs.format(text)}, 0)").graph for text in ("where(X > 0, X, 1)", "where(X > 0, X, -inf)")
    )
    assert {look(program, candidate, seed).outcome for seed in range(8)} == {Outcome.AGREE}


@pytest.mark.parametrize("seed", [6810341, 7982353, 9558234, 10548109, 11672607])
def test_values_may_be_missing_at_the_same_elements_only(seed: int) -> None:
    """Y / Y turned once and twice: 1 wherever they have values, without one at different elements. The points of these
    seeds had no row of Y with a single zero in it."""
    turned = "concat({0}[:, 1:], {0}[:, :1], axis=1)"
    head = "X: f32[2, 3]\nY: f32[2, 3]\nZ = Y / Y\n"
    once = parse(f"{head}return {turned.format('Z')} + X * Y").graph
    twice = parse(f"{head}R = {turned.format('Z')}\nreturn {turned.format('R')} + X * Y").graph
    assert look(once, twice, seed).outcome is Outcome.DIFFERENT
    assert look(once, once, seed).outcome is Outcome.AGREE


def test_a_zero_that_no_choice_takes_refutes_nothing() -> None:
    program, candidate = (parse(f"{HEAD}return where(X == Y, {root}, X)").graph for root in ("sqrt(X)", "sqrt(Y)"))
    assert verify(program, candidate).kind is VerdictKind.OUTSIDE_LAX


def test_what_is_so_for_every_choice_is_known_at_once() -> None:
    """Eight masks of inputs: no draw has every combination, and none is needed."""
    head = "X: f32[1, 8]\nM: f32[1, 8]\n"
    plain, halved = (
        parse(f"{head}return {text}").graph
        for text in (
            "X / sum(where(M > 0, X, 1), axis=1, keepdims=True)",
            "X / (2 * sum(where(M > 0, X, 1), axis=1, keepdims=True)) * 2",
        )
    )
    assert verify(plain, halved).accepted


@pytest.mark.parametrize("seed", [10, 22])
def test_draws_go_on_while_some_element_was_not_seen(seed: int) -> None:
    """A row needs a pair of equal places and a root: sixteen draws often missed elements."""
    head = "C: f32[6, 6]\nn: i64[6]\nm: i64[6]\ns = sqrt(sum(where(n[:, None] == m, C, 0), 1))\nreturn C / "
    program, right = (parse(f"{head}{text}").graph for text in ("(s[:, None] * s)", "s[:, None] / s"))
    assert look(program, right, seed).outcome is Outcome.AGREE


def test_single_elements_of_many_stand_for_none_that_is_made_in_another_way() -> None:
    """Column 77 needs the next one of U, all others their own: eight elements of many show nothing of it."""
    head = "Y: f32[300, 300]\nU: f32[300, 300]\n"
    plain = parse(f"{head}return Y / (U + 100)").graph
    moved = "concat(concat(U[:, :77], U[:, 78:79], axis=1), U[:, 78:], axis=1)"
    assert not verify(plain, parse(f"{head}return Y / (U + 100) + 0 / ({moved} + 100)").graph).accepted
    assert verify(plain, parse(f"{head}return Y * 2 / (2 * U + 200)").graph).accepted


BEYOND = "X: f32[16, 16]\nY: f32[4]\nS = sum(X, axis=(0, 1), keepdims=True)[0]\nreturn "


@pytest.mark.parametrize("factor", ["relu(S + 1e7)", "(S - 12345)", "clamp(S, -1e9, 1e9)", "log(S + 1e9)"])
def test_what_depends_on_too_much_is_asked_what_it_needs(factor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("WHOLE", "SAMPLED"):
        monkeypatch.setattr(f"mirage_nb.verify.reals.exact.{limit}", 100)
    program = parse(f"{BEYOND}Y / S").graph
    for text, right in (
        (f"Y / S * {factor} / {factor}", False),
        ("2 * Y / (S + S)", True),
        ("Y * exp(S - S) / S", True),
    ):
        assert verify(program, parse(f"{BEYOND}{text}").graph).accepted is right
    monkeypatch.setattr("mirage_nb.verify.reals.exact.ASKED", 100)
    assert not verify(program, parse(f"{BEYOND}3 * Y / (S + S + S)").graph).accepted, "not known to have a value"


@pytest.mark.parametrize("sampled", [50, 5])
def test_a_few_elements_are_none_that_stay_in_place_where_axes_change_theirs(
    sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, value in (("WHOLE", 5), ("SAMPLED", sampled)):
        monkeypatch.setattr(f"mirage_nb.verify.reals.exact.{limit}", value)
    head = "X: f32[32, 32]\nD: f32[32, 32]\nT = transpose(D)\nreturn X"
    program, right, wrong = (parse(head + text).graph for text in (" / D", " * 2 / (D + D)", " / D * T / T"))
    assert verify(program, right, seed=1).accepted
    assert not verify(program, wrong, seed=1).accepted


@pytest.mark.parametrize("sampled", [200, 30])
def test_nor_are_they_where_two_digits_of_an_index_change_places(sampled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of all elements stay where they are; of two elements a quarter of all seeds saw nothing."""
    for limit, value in (("WHOLE", 5), ("SAMPLED", sampled)):
        monkeypatch.setattr(f"mirage_nb.verify.reals.exact.{limit}", value)
    head = "X: f32[32, 32]\nD: f32[32, 32]\nT = reshape(transpose(reshape(D, 2, 2, 256), (1, 0, 2)), 32, 32)\nreturn X"
    program, wrong = (parse(head + text).graph for text in (" / D", " / D * T / T"))
    for seed in range(40):
        assert look(program, wrong, seed).outcome is not Outcome.AGREE


@pytest.mark.parametrize("seed", [66, 108, 221, 368])
def test_nor_are_those_that_a_view_leaves_in_place_by_chance(seed: int) -> None:
    """The first and the last axis change places, of two elements each and with an odd number between them: half of all
    elements stay where they are, and all do that are looked at first with these seeds."""
    head = "U: f32[2, 3001, 2]\nY: f32[2, 3001, 2]\nreturn Y / (U + 1e30)"
    moved = "transpose(U, 2, 1, 0)"
    program, wrong, right = (
        parse(head + more).graph
        for more in ("", f" + 0 / ({moved} + 1e30)", f" + 0 / transpose(2 * {moved} + 2e30, 2, 1, 0)")
    )
    (at,) = chosen(program.output_types, 8, seed)
    first, _, last = np.unravel_index(at, (2, 3001, 2))
    assert (first == last).all()
    assert look(program, wrong, seed).outcome is Outcome.OPEN
    assert look(program, right, seed).outcome is Outcome.AGREE
