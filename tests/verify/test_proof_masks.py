"""Attention under masks of minus infinity is proved, with tiles that are wholly masked; what is wrong is not."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph, OpKind, WhereAttrs
from mirage_nb.ir.text import parse_graph
from mirage_nb.lang import parse
from mirage_nb.verify import Proof, check, prove, verify, verify_and_prove
from mirage_nb.verify.proof import Unproved
from mirage_nb.verify.proof.elements import element_goals
from mirage_nb.verify.proof.masked import Masked, of_masked, raised
from mirage_nb.verify.verdict import VerdictKind
from tests.mugraphs import attention_safe
from tests.verify.test_proof_choices import Total

HEAD = "Q: f32[8, 4]\nK: f32[4, 8]\nV: f32[8, 4]\nM: f32[8, 8]\nI = arange(8)[:, None]\nJ = arange(8)\nS = Q @ K\n"
MASKS = {
    "causal": "where(I >= J, S, -inf)",
    "sliding": "where((I >= J) * (I - J < 3), S, -inf)",
    "from an input": "where(M > 0, S, -inf)",
    "a real input": "where(M, S, -inf)",
    "added": "S + where(I >= J, 0, -inf)",
    "scaled and added": "S / 2 + where(I >= J, 0, -inf)",
}


def program(mask: str, weights: str = "softmax(P)") -> KernelGraph:
    return parse(f"{HEAD}P = {MASKS.get(mask, mask)}\nreturn {weights} @ V").graph


LOOPED = """mugraph 1
input %0 Q f32[8, 4]
input %1 K f32[4, 8]
input %2 V f32[8, 4]
input %3 M f32[8, 8]
%4 = Arange extent=8
%5 = Graph(%0, %1, %2, %4) grid=[4] loop=4 {{
  %0 = InIter arg=0 imap=[0]
  %1 = InIter arg=1 imap=[*] fmap=1
  %2 = InIter arg=2 imap=[*] fmap=0
  %3 = InIter arg=3 imap=[0]
  %4 = InIter arg=3 imap=[*] fmap=0
  %5 = Matmul(%0, %1)
  %6 = Reshape(%3) shape=[2, 1]
  %7 = EwSub({left}, {right})
  %8 = Apply(%7) name=compared formula="{formula}"
  %9 = Where(%8, %5) infinite=-1
  %10 = Max({under}) dim={over}
  %11 = EwSub({shifted}, %10)
  %12 = EwExp(%11)
  %13 = Sum(%12) dim=1
  %14 = Matmul(%12, %2)
  %15 = Accum(%13{by}) kind={kind}
  %16 = Accum(%14{by}) kind={kind}
  %17 = EwDiv(%16, %15)
  OutSaver(%17) omap=[0]
}}
output %5 O
"""
RIGHT = {
    "left": "%6", "right": "%4", "formula": "step(x)", "under": "%9", "over": "1", "shifted": "%9", "by": ", %10",
    "kind": "rescale",
}  # fmt: skip


def looped(**changed: str) -> KernelGraph:
    return parse_graph(LOOPED.format(**(RIGHT | changed)))


def proved(left: KernelGraph, right: KernelGraph) -> Proof:
    found = prove(left, right)
    assert isinstance(found, Proof), found
    check(Proof.from_json(found.to_json()), left, right)
    return found


def test_a_loop_over_tiles_that_may_be_masked_is_proved() -> None:
    """Two rows a block, two columns an iteration: most tiles are masked for some row, many for both."""
    left, right = program("causal"), looped()
    assert verify(left, right).accepted
    assert "inv_absorbed" in proved(left, right).axioms


WRONG = {
    "strictly below": {"formula": "1 - step(-x)"},
    "the other triangle": {"left": "%4", "right": "%6"},
    "no mask": {"formula": "step(x) + 1"},
    "numerators without the mask": {"shifted": "%5"},
    "tiles added up as they are": {"by": "", "kind": "sum"},
    "a boundary off by one": {"formula": "step(x - 1)"},
    "every second": {"formula": "step(x) * step(-x)"},
}


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_mask_boundary_or_rescaling_is_refuted(how: str) -> None:
    left, right = program("causal"), looped(**WRONG[how])
    assert isinstance(prove(left, right), Unproved)
    assert verify(left, right).kind is VerdictKind.REFUTED


def test_maxima_that_leave_a_shift_of_minus_infinity_are_no_proof_where_they_count() -> None:
    """Of an unmasked maximum everything is right; of one that is masked a tile has to be rescaled away."""
    left = program("causal")
    proved(left, looped(under="%5"))
    both = looped(kind="sum", by="")
    assert isinstance(prove(left, both), Unproved)


@pytest.mark.parametrize(
    "mask", [pytest.param(x, marks=[pytest.mark.slow] * (x not in ("causal", "a real input"))) for x in MASKS]
)
def test_each_mask_is_proved_of_what_is_the_same(mask: str) -> None:
    left = program(mask)
    for weights in ("exp(P - max(P, axis=1, keepdims=True)) / sum(exp(P - max(P, axis=1, keepdims=True)), axis=1,"
                    " keepdims=True)", "exp(P) / sum(exp(P), axis=1, keepdims=True)"):  # fmt: skip
        proved(left, program(mask, weights))
    other = program("where(I > J, S, -inf)")
    assert isinstance(prove(left, other), Unproved) and verify(left, other).kind is VerdictKind.REFUTED


ROWS = "X: f32[4, 6]\nY: f32[4, 6]\nM = where(X > Y, exp(X), 0)\n"
SUNK = "concat([where(X > Y, X, -inf), Y[:, :1]], axis=1)"
PAIRS = [
    ("softmax(where(X > Y, X, -inf))", "softmax(X + where(X > Y, 0, -inf))"),
    ("softmax(where(X > Y, X, -inf))", "softmax(where(Y >= X, -inf, X))"),
    ("softmax(where(X > Y, X, -inf))", "where(X > Y, exp(X), 0) / sum(where(X > Y, exp(X), 0), axis=1, keepdims=True)"),
    ("exp(where(Y, X, -inf))", "where(Y, exp(X), 0)"),
    ("softmax(where(Y, X, -inf) * 3)", "softmax(where(Y, 3 * X, -inf))"),
    ("exp(maximum(where(Y, X, -inf), X - 1))", "maximum(where(Y, exp(X), 0), exp(X - 1))"),
    ("exp(Y - maximum(where(Y, X, -inf), Y))", "exp(Y) / maximum(where(Y, exp(X), 0), exp(Y))"),
    (f"softmax({SUNK})[:, :-1]", "M / (sum(M, axis=1, keepdims=True) + exp(Y[:, :1]))"),
]
APART = [
    ("exp(where(Y, X, -inf))", "where(Y, exp(X), 1)", "refuted"),
    ("exp(where(Y, X, -inf))", "exp(where(Y, X, -inf) - max(where(Y, X, -inf), axis=1, keepdims=True))", "refuted"),
    ("exp(Y - maximum(where(Y, X, -inf), where(X, Y, -inf)))", "exp(Y) / maximum(where(Y, exp(X), 0), exp(Y))", ""),
    (f"softmax({SUNK})[:, :-1]", "M / sum(M, axis=1, keepdims=True)", "refuted"),
    (f"softmax({SUNK})[:, :-1]", "M / (sum(M, axis=1, keepdims=True) + exp(Y))", "refuted"),
    ("1 / (X - where(Y, X + 1, -inf))", "0 - where(Y, 1, 0)", ""),
    ("1 / (X - where(Y, X + 1, -inf))", "0 - where(Y, 1, 2)", "refuted"),
    ("exp(0 - where(Y, X, -inf))", "where(Y, exp(0 - X), 0)", "refuted"),
    ("exp(where(Y, X, -inf) * X)", "where(Y, exp(X * X), 0)", "refuted"),
    ("sum(exp(X) * X, axis=1) + 0 * sum(where(Y, X, -inf), axis=1)", "sum(exp(X) * X, axis=1)", ""),
]


@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_masks_said_otherwise(left: str, right: str) -> None:
    proved(*(parse(f"{ROWS}return {text}").graph for text in (left, right)))


@pytest.mark.parametrize(("left", "right", "kind"), APART)
def test_what_infinities_make_is_not_proved(left: str, right: str, kind: str) -> None:
    pair = [parse(f"{ROWS}return {text}").graph for text in (left, right)]
    assert isinstance(prove(*pair), Unproved)
    assert verify(*pair).kind is VerdictKind.REFUTED or not kind


class Floats:
    """Shifts and weights in float64."""

    number = staticmethod(np.float64)
    add, mul, neg, exp, larger = (staticmethod(f) for f in (np.add, np.multiply, np.negative, np.exp, np.maximum))
    inv = staticmethod(lambda a: np.where(a == 0, 0, 1 / np.where(a == 0, 1, a)))
    chosen = staticmethod(lambda condition, value, other: np.where(condition != 0, value, float(other)))


def test_shifts_and_weights_are_what_float64_makes_of_infinities() -> None:
    from mirage_nb.interp.reference import TABLE

    rng = np.random.default_rng(3)
    x, y, b = rng.normal(size=(3, 64))
    with np.errstate(all="ignore"):

        def pair(v, c):
            weight = np.where(c > 0, np.exp(v / 3), 0.0)
            return Masked(2 * v / 3, weight), 2 * v / 3 + np.log(weight)

        (left, as_left), (right, as_right) = pair(x, y), pair(b, x)
        condition = (y > 0.5).astype(float)
        scale = np.exp(b)
        cases = [
            (OpKind.ADD, None, (left, right), (as_left, as_right)), (OpKind.ADD, None, (left, b), (as_left, b)),
            (OpKind.SUB, None, (left, b), (as_left, b)), (OpKind.MAXIMUM, None, (left, right), (as_left, as_right)),
            (OpKind.MAXIMUM, None, (x, right), (x, as_right)), (OpKind.CAST, None, (left,), (as_left,)),
            (OpKind.WHERE, WhereAttrs(infinite=-1), (condition, left), (condition, as_left)),
            (OpKind.WHERE, WhereAttrs(infinite=-1), (condition, x), (condition, x)),
            (OpKind.WHERE, WhereAttrs(other=2), (condition, left), (condition, as_left)),
        ]  # fmt: skip
        for kind, attrs, parts, plain in cases:
            expected = TABLE[kind](list(plain), attrs, 0)
            found = of_masked(kind, attrs, parts, Floats())
            np.testing.assert_allclose(raised(found, Floats()), np.exp(expected), rtol=1e-12, err_msg=str(kind))
        np.testing.assert_allclose(of_masked(OpKind.EXP, None, (left,), Floats()), np.exp(as_left))
        bit = Masked(x, condition)
        for kind in (OpKind.MUL, OpKind.DIV):
            found = raised(of_masked(kind, None, (bit, scale), Floats()), Floats())
            expected = np.exp(TABLE[kind]([np.where(condition > 0, x, -np.inf), scale], None, 0))
            np.testing.assert_allclose(found, expected)


def test_goals_of_elements_are_what_float64_computes() -> None:
    """Of graphs with masks, loops and rescaled sums, with elements as unknown numbers."""
    rng = np.random.default_rng(4)
    functions = {
        "Where": lambda c, x: np.where(c != 0, x, 0),
        "@compared(formula=step(x))": lambda x: np.float64(x >= 0),
    }
    for left, right in ((program("causal"), looped()), (attention_safe().program, attention_safe().candidate)):
        inputs = {i.name: rng.normal(size=i.type.shape) for i in left.inputs}
        named = {f"{name}[{', '.join(map(str, at))}]": x for name, a in inputs.items() for at, x in np.ndenumerate(a)}
        world = Total({}, constants=named | {"c0": 0.5}, functions=functions)
        goals = element_goals(left, right, (0,))
        for graph, terms in ((left, [g.left for g in goals]), (right, [g.right for g in goals])):
            found = [world.value(term, ()) for term in terms]
            np.testing.assert_allclose(found, evaluate(graph, inputs)[0].reshape(-1), rtol=1e-9)


def test_what_is_proved_is_so_in_float64() -> None:
    rng = np.random.default_rng(1)
    left, right = program("causal"), looped()
    inputs = {i.name: rng.normal(size=i.type.shape) for i in left.inputs}
    np.testing.assert_allclose(evaluate(left, inputs)[0], evaluate(right, inputs)[0], rtol=1e-12)


GIVEN = "B: bool[6]\nC: bool[4, 6]\nX: f32[4, 6]\nY: f32[4, 6]\nreturn "


@pytest.mark.parametrize(
    ("left", "right", "proved"),
    [
        ("relu(where(B[None], X, Y))", "where(B, relu(X), relu(Y))", True),
        ("where(B & ~C, X, Y)", "where(B, where(C, Y, X), Y)", True),
        ("where(B | C, X, Y)", "where(B, X, where(C, X, Y))", True),
        ("where(B, X, Y)", "X + Y - where(C, Y, X)", False),
        ("where(B | C, X, Y)", "where(B, X, where(C, Y, X))", False),
    ],
)
def test_an_input_of_truth_values_is_a_mask(left: str, right: str, proved: bool) -> None:
    verdict, _ = verify_and_prove(parse(GIVEN + left).graph, parse(GIVEN + right).graph)
    assert verdict.kind is (VerdictKind.PROVED if proved else VerdictKind.REFUTED)
