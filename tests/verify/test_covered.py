"""A candidate has a value wherever its program has one: attacks that field trials see nothing of, and what is right.

Divisors and radicands that are functions no field knows (ReLU, steps, choices, powers, a program's own) have a value in
every trial; what they are over the reals is 0 or negative far away, in a narrow place, or where another input has a
sign of its own.
"""

from __future__ import annotations

import pytest

from mirage_nb.lang import parse
from mirage_nb.verify import verify
from mirage_nb.verify.domain import Need
from mirage_nb.verify.exact import look
from mirage_nb.verify.forms import needs_of
from mirage_nb.verify.proof import with_proof
from mirage_nb.verify.proof.signs import ABOVE, ANY
from mirage_nb.verify.verdict import Outcome, VerdictKind

HEAD = """X: f32[2, 4]
Y: f32[2, 4]
Z: f32[2, 4]
def f(x): return 1 / (x - 3.7)
def g(x): return log(sqrt(x + 10000000) + 1)
"""

ADDED = (
    "0*log(X+1e30)", "0*sqrt(X+1e35)", "0*log(X*X*X+1e37)", "0*log(sum(X,axis=1,keepdims=True)+1e36)",
    "0/(X*X*X-1e37)", "0/(X*X+Y*Y-2)", "0/(exp(X)-1e30)", "0/(sin(X)-0.9999)", "0*sqrt(0.9999+sin(X*Y))",
    "0/(floor(X)-77777)", "0/(abs(X)+abs(Y)-0.00001)", "0*log(abs(X)+abs(Y))", "0/(X[:,:1]-X[:,1:2])",
    "0*log(where(X==3.25,0,1))", "0*log(1.5-where(X==3.25,2,1))", "0/where(X==0.37,0,1)",
    "0/(1-where((X>0.3)&(X<0.3001),1,0))", "0/(step(X-1e30)-1)", "0/where(X>Y*1e20,0,1)", "0/where(X*X+Y*Y==Z*Z,0,1)",
    "0/(relu(X-1e6)*relu(-Y-1e6)-0.5)", "0/((X-1)*(X-1)+(Y-2)*(Y-2)+(Z+0.37)*(Z+0.37))", "0*f(X)", "0*g(X)",
    "0*(X+1e30)**0.3", "0/max(X+1e25,axis=1,keepdims=True)", "0/cumsum(relu(X-2),axis=1)", "0*log(clamp(X,-1,1)+1)",
    "0*(exp(where((X>0.3)&(X<0.3001),-inf,X))/exp(where((X>0.3)&(X<0.3001),-inf,X)))",
)  # fmt: skip


@pytest.mark.parametrize("added", ADDED)
def test_nothing_may_be_undefined_far_away_or_in_a_narrow_place(added: str) -> None:
    program, candidate = (parse(f"{HEAD}return 2 * Y + X * Z{more}").graph for more in ("", f" + {added}"))
    assert not verify(program, candidate).accepted


RARE = (
    # What stands behind a choice is needed where it is chosen.
    ("Y + where(X > 0, sqrt(Y + 1e30), 0)", " + 0 * sqrt(Y + 1e30)"),
    ("Y + where(X > 0, 1 / (Y + 1e30), 0)", " + 0 / (Y + 1e30)"),
    ("Y + where(X > 0, sqrt(Y + 1e30), 0)", " + where(X > -1e-20, 0 * sqrt(Y + 1e30), 0)"),
    ("where(X > 1e30, Y / sqrt(Z), Y)", " + where(X > 1e30, 0 * sqrt(-Z), 0)"),
    # Infinities that hardly any input chooses: nothing is 0 times them, or one less another.
    ("Y + X", " + 0 * where(X > -1e30, 1, -inf)"),
    ("Y + X", " + exp(where(X > -1e30, Y, -inf) - where(X > -1e30, Y, -inf)) - 1"),
    ("softmax(Y)", " + 0 * exp(where(X > -1e30, Y, -inf) - max(where(X > -1e30, Y, -inf), axis=1, keepdims=True))"),
    ("softmax(where(X > Y, Y, -inf))", " + 0 * softmax(where(X > -1e30, Y, -inf))"),
    ("X * Y", " + 0 * exp(relu(X + 1e30) * where(arange(4) > 1, 0, -inf))"),
    # Numbers that are the program's for whatever is drawn.
    ("Y / X", " + 0 / (X + 1e-20)"),
    ("Y / X", " + 0 / (X - 2 * relu(X - 1e30))"),
    ("Y / X", " + 0 / (X * tanh(X + 1e30))"),
    ("Y / X", " + 0 / (sqrt((X + 1e30) * (X + 1e30)) - 1e30)"),
    ("Y / X", " + 0 / (abs(X + 1e30) - 1e30)"),
    ("Y / X", " + 0 / (X * where(X > 1e30, 0, 1))"),
    ("Y / sqrt(X + 5)", " + 0 / (sqrt(X + 5) - 1e-20)"),
    ("Z / Y", " + 0 * (Z / (Y / (X * X * X - 1e37)) / (X * X * X - 1e37))"),
    # Other elements of the same numbers.
    ("Y / (X + 1e30)", " + 0 / (X[:, ::-1] + 1e30)"),
    ("Y * sqrt(X + 1e30)", " + 0 * sqrt(sum(X + 1e30, axis=1, keepdims=True))"),
    ("concat(Y[:, 1:] / (X[:, 1:] + 1e30), Y[:, :1], axis=1)", " + 0 / (X + 1e30)"),
)  # fmt: skip


@pytest.mark.parametrize("value, added", RARE)
def test_nothing_hides_behind_what_hardly_any_input_is(value: str, added: str) -> None:
    program, candidate = (parse(f"{HEAD}return {text}").graph for text in (value, f"{value}{added}"))
    verdict = verify(program, candidate)
    assert not (verdict if verdict.accepted else with_proof(verdict, program, candidate)[0]).accepted


PARTIAL = (
    "relu(X)", "relu(X-5)", "(X+abs(X))", "maximum(X,Y)", "relu(sum(X,axis=1,keepdims=True))", "relu(X*Z)",
    "relu(X[:, ::-1])", "where(X>0,1,0)", "step(X)", "floor(relu(X))", "relu(-X-Y)", "relu(relu(X)-relu(Y))",
)  # fmt: skip


@pytest.mark.parametrize("factor", PARTIAL)
def test_nor_where_inputs_have_signs_that_the_program_asks_for(factor: str) -> None:
    """The program has a value where all of two inputs are positive: seldom by chance."""
    value = "sqrt(Y) * sqrt(Z - 3) + X"
    program, candidate = (
        parse(f"{HEAD}return {text}").graph for text in (value, f"({value}) * {factor} / {factor}")
    )
    assert not verify(program, candidate).accepted


def test_a_point_is_made_of_two_where_a_program_asks_for_much() -> None:
    program, candidate = (
        parse(f"{HEAD}return {text}").graph
        for text in ("log(Y - 10) + X", "log(Y - 10) + X + 0 * log(X)")
    )
    verdict = verify(program, candidate)
    assert verdict.kind is VerdictKind.REFUTED


LATER = """X: f32[2, 4]
Y: f32[2, 4]
I: i32[2]
M: bool[2, 4]
P = I[:, None]
"""
OF_PLACES = (
    # Masks and indices are whole numbers; what a choice does not take need not have a value, and must not be needed.
    ("where(M, X, Y)", "where(M, X, Y) + 0 / (1 - where(M, 1, 1) + where(X > 1e30, 0, 1))"),
    ("where(M, X, Y)", "where(M, X, Y + 0 * sqrt(Y + 1e30))"),
    ("where(M, X / Y, 0)", "where(M, X / Y, 0 / Y)"),
    ("where(M, X / Y, X)", "where(M, X, X * Y) / Y"),
    ("where(M, X / (Y + 1e30), X)", "where(M, X, X * (Y + 1e30)) / (Y + 1e30)"),
    ("where(M, sqrt(X), 0)", "sqrt(where(M, X, X)) * where(M, 1, 0)"),
    ("where(M, exp(X), 0)", "exp(where(M, X, -inf)) + 0 * where(M, 0, -inf)"),
    ("X * where(M, 1, 0)", "X * where(M, where(M, 1, 0), 0 * log(X + 1e30))"),
    ("X + where(P == arange(4), Y, 0)", "X + where(P == arange(4), Y, 0) + where(P == 77777, 0 / (X + 1e30), 0)"),
    ("X + where(P == arange(4), Y, 0)", "X + where(P == arange(4), Y, 0) + where(P == 77777, 1, 0)"),
    ("where(P == arange(4), X, 0)", "where(P == arange(4), X / (P + 1e20) * (arange(4) + 1e20), 0)"),
    ("X * P", "X * floor(P + 0.5)"),
    # Slices and masks of places.
    ("X[:, 1:] / Y[:, 1:]", "X[:, 1:] / Y[:, 1:] + 0 / Y[:, :3]"),
    ("X[:, ::2] / (Y[:, ::2] + 1e30)", "X[:, ::2] / (Y[:, ::2] + 1e30) + 0 / (Y[:, 1::2] + 1e30)"),
    ("where(arange(4) < 2, X / (Y + 1e30), X)", "where(arange(4) < 2, X, X * (Y + 1e30)) / (Y + 1e30)"),
    ("sum(where(arange(4) < 3, X / (Y + 1e30), 0), axis=1)", "sum(where(arange(4) < 3, X, 0) / (Y + 1e30), axis=1)"),
    ("cumsum(X / (Y + 1e30), axis=1)", "cumsum(X / (Y + 1e30), axis=1) + 0 / (Y[::-1] + 1e30)"),
    ("softmax(where(M, X, -inf))", "softmax(where(M, X, -1e30))"),
    ("exp(where(M, X, -inf))", "exp(where(M, X, -1e30))"),
    ("sum(exp(where(M, X, -inf)), axis=1)", "sum(exp(where(M, X, -inf) + where(M, 0, inf)), axis=1)"),
    # A need of one output is none of another one; nor is one at some rows one at all of them.
    ("X * 2, Y / (X + 1e30)", "X * 2 + 0 / (X + 1e30), Y / (X + 1e30)"),
    ("X / (Y * Y + 1)", "X / (Y * Y + 1) + 0 / (sqrt(Y * Y + 1) - 1e-30)"),
    ("maximum(X, Y) / maximum(X + 1e30, Y)", "maximum(X, Y) / maximum(X + 1e30, Y) + 0 / (X + 1e30)"),
)  # fmt: skip


@pytest.mark.parametrize("value, other", OF_PLACES)
def test_needs_are_those_of_the_same_elements_and_choices(value: str, other: str) -> None:
    program, candidate = (parse(f"{LATER}return {text}").graph for text in (value, other))
    verdict = verify(program, candidate)
    assert not (verdict if verdict.accepted else with_proof(verdict, program, candidate)[0]).accepted


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


@pytest.mark.parametrize("how", RIGHT)
def test_right_ones_are_covered(how: str) -> None:
    program, candidate = (parse(f"{HEAD}return {text}").graph for text in RIGHT[how])
    verdict = verify(program, candidate)
    assert verdict.accepted, verdict


def test_needs_have_the_signs_that_their_form_says() -> None:
    found = needs_of(parse(f"{HEAD}return X / (1 + exp(Y)) + log(X) + sqrt(Z * Z) + X ** -2").graph)
    needs = [need for need, _ in found]
    assert sorted(need.name for need in needs) == ["NONNEGATIVE", "NONZERO", "NONZERO", "POSITIVE"]
    assert found[needs.index(Need.NONZERO)][1] in (ABOVE, ANY) and (Need.POSITIVE, ANY) in found
    assert (Need.NONNEGATIVE, frozenset({0, 1})) in found


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


OF_CHOICES = (
    # A combination of choices that chance may not draw, in what is needed and in where it is needed.
    ("Y / Z", "Y / Z + 0 / where(X > 1e30, where(Y > 1e31, where(V > 1e31, Z, W), Z), Z)"),
    ("Y / Z", "Y / Z + 0 / where(X > 1e30, where(Y > 1e31, where(V > 1e31, where(W > 1e31, W, Z), Z), Z), Z)"),
    ("where(X > 1e31, Y / W, Y)",
     "where(X > 1e31, Y / W, Y) + where(X > 1e30, where(Y > 1e31, where(V > 1e31, 0, 0 / W), 0), 0)"),
    ("Y / maximum(Z, X)", "Y / maximum(Z, X) + 0 / maximum(Z, maximum(X, V - 1e36))"),
    ("Y / (X + 1e37)", "Y / (X + 1e37) + 0 / (maximum(X, -1e37) + 1e37)"),
    ("Y / Z", "Y / Z + 0 / (Z * (1 - step(X - 1e30) * step(1e31 - X)))"),
    # A root that is not needed there leaves the element out of field trials.
    ("where(X == 3.25, Y, sqrt(Y))", "where(X == 3.25, sqrt(Y * Y), sqrt(Y))"),
    ("where(sqrt(X) == abs(X), Y * Y, sqrt(Y)) + X * Y",
     "where(sqrt(X) == abs(X), Y * Y, sqrt(Y)) + sqrt(X * Y * (X * Y))"),
    ("where(X > 1e30, Y, Y ** 1.5)", "where(X > 1e30, (Y * Y) ** 0.5, Y ** 1.5)"),
    # What no input makes, where inputs choose it.
    ("2 * X", "2 * X + where(X * Y * 1e-20 > 1e36, 0 * log(arange(1) * 1.0), 0)"),
    # A tensor by itself is no square but element by element.
    ("2 * Y", "2 * Y + 0 * log(M @ M * 1e-30 + 1e36)[0, :1]"),
    ("2 * Y", "2 * Y + 0 * log(einsum('ij,jk->ki', M, M) * 1e-30 + 1e36)[0, :1]"),
)  # fmt: skip


@pytest.mark.parametrize("value, other", OF_CHOICES)
def test_no_choice_hides_what_is_needed(value: str, other: str) -> None:
    head = "".join(f"{name}: f32[1]\n" for name in "XYZVW") + "M: f32[2, 2]\n"
    program, candidate = (parse(f"{head}return {text}").graph for text in (value, other))
    assert not verify(program, candidate).accepted


def test_a_zero_that_no_choice_takes_refutes_nothing() -> None:
    program, candidate = (
        parse(f"{HEAD}return where(X == Y, {root}, X)").graph for root in ("sqrt(X)", "sqrt(Y)")
    )
    assert verify(program, candidate).kind is VerdictKind.OUTSIDE_LAX


def test_what_is_so_for_every_choice_is_known_at_once() -> None:
    """Eight masks of inputs: no draw has every combination, and none is needed."""
    head = "X: f32[1, 8]\nM: f32[1, 8]\n"
    plain, halved = (
        parse(f"{head}return {text}").graph
        for text in ("X / sum(where(M > 0, X, 1), axis=1, keepdims=True)",
                     "X / (2 * sum(where(M > 0, X, 1), axis=1, keepdims=True)) * 2")
    )
    assert verify(plain, halved).accepted


def test_single_elements_of_many_stand_for_none_that_is_made_in_another_way() -> None:
    """Column 77 needs the next one of U, all others their own: eight elements of many show nothing of it."""
    head = "Y: f32[300, 300]\nU: f32[300, 300]\n"
    plain = parse(f"{head}return Y / (U + 100)").graph
    moved = "concat(concat(U[:, :77], U[:, 78:79], axis=1), U[:, 78:], axis=1)"
    assert not verify(plain, parse(f"{head}return Y / (U + 100) + 0 / ({moved} + 100)").graph).accepted
    assert verify(plain, parse(f"{head}return Y * 2 / (2 * U + 200)").graph).accepted
