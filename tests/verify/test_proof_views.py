"""A translation that is wrong proves nothing: views in views, and translators with a mistake in them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, reject
from hypothesis import strategies as st

from mirage_nb.errors import ProofError
from mirage_nb.ir import DimAttrs, KernelGraph, OpKind, RepeatAttrs, ReshapeAttrs, TransposeAttrs
from mirage_nb.lang import parse
from mirage_nb.verify.proof import Proof, Unproved, check, prove
from mirage_nb.verify.proof import translate as translation
from mirage_nb.verify.proof.meaning import hold
from mirage_nb.verify.proof.translate import Goal, Reader, translate
from tests import mugraphs
from tests.mugraphs import Kernel
from tests.shares import examples
from tests.verify.test_proof_translation import held_against_reference

REPEATS = {
    "whole": (
        "return reshape(repeat(reshape(X, 4), 4, axis=0), 2, 2, 2, 2) + Z",
        "return reshape(X, 1, 2, 2, 1) + Z",
    ),
    "below a ReLU": (
        "return relu(reshape(repeat(reshape(X, 4), 4, axis=0), 2, 2, 2, 2) + Z - 8)",
        "return relu(reshape(X, 1, 2, 2, 1) + Z - 8)",
    ),
    "rows": (
        "return reshape(repeat(X, 4, axis=0), 2, 2, 2, 2) + Z",
        "return reshape(X, 1, 2, 1, 2) + Z",
    ),
    "below an exponential, and summed": (
        "return sum(exp(reshape(repeat(reshape(X, 4), 4, axis=0), 2, 2, 2, 2) + Z), axis=3)",
        "return sum(exp(reshape(X, 1, 2, 2, 1) + Z), axis=3)",
    ),
}


@pytest.mark.parametrize("name", REPEATS)
def test_copies_that_are_regrouped(name: str):
    """Four copies of a row as two times two: the elements are in the last two dimensions."""
    left, right = (parse(f"X: f32[2, 2]\nZ: f32[2, 2, 2, 2]\n{body}").graph for body in REPEATS[name])
    assert isinstance(prove(left, right), Unproved)
    with pytest.raises(ProofError):
        check(Proof(()), left, right)
    behind = REPEATS[name][1].replace("1, 2, 2, 1", "1, 1, 2, 2").replace("1, 2, 1, 2", "1, 1, 2, 2")
    assert isinstance(prove(left, parse(f"X: f32[2, 2]\nZ: f32[2, 2, 2, 2]\n{behind}").graph), Proof)


@st.composite
def views(draw: st.DrawFn) -> KernelGraph:
    """Views of views of views of X and Y, joined and added up on the way; extents are products of 2 and 3."""
    k = Kernel(X=draw(st.sampled_from([(4,), (2, 6), (12,), (2, 2, 3)])), Y=(2, 6))
    value = 0
    for _ in range(draw(st.integers(2, 6))):
        shape = k.graph.types[value].shape
        dim = draw(st.integers(0, len(shape) - 1))
        kind = draw(st.sampled_from(["repeat", "reshape", "reshape", "transpose", "concat", "add", "sum"]))
        if kind == "repeat" and math.prod(shape) <= 48:
            value = k.op(OpKind.REPEAT, value, attrs=RepeatAttrs(dim, draw(st.sampled_from([2, 3, 4, 6]))))
        elif kind == "reshape":
            value = k.op(OpKind.RESHAPE, value, attrs=ReshapeAttrs(draw(regroupings(shape))))
        elif kind == "transpose":
            value = k.op(OpKind.TRANSPOSE, value, attrs=TransposeAttrs(tuple(draw(st.permutations(range(len(shape)))))))
        elif kind == "concat" and math.prod(shape) <= 48:
            value = k.op(OpKind.CONCAT, value, k.op(OpKind.EXP, value), attrs=DimAttrs(dim))
        elif kind == "sum" and len(shape) > 1:
            value = k.sum(value, dim)
        elif kind == "add" and shape == (2, 6):
            value = k.op(OpKind.ADD, value, 1)
    return k.returning(value if value else k.op(OpKind.EXP, 0))


@st.composite
def regroupings(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape of as many elements: dimensions joined, and cut again."""
    rest, made = math.prod(shape), []
    while rest > 1 and len(made) < 5:
        made.append(draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0])))
        rest //= made[-1]
    return (*made, rest) if rest > 1 or not made else tuple(made)


@examples(120, suppress_health_check=list(HealthCheck))
@given(views())
def test_views_in_views(graph: KernelGraph):
    try:
        held_against_reference(graph)
    except ProofError as error:
        assert "nest" in error.message or "concatenated" in error.message or "indices" in error.message, error
        reject()


def first_digit(reader: Reader, scope, op, value, index, env):
    """One digit of a repeated dimension is dropped, into however many the copies were cut."""
    if isinstance(op.attrs, RepeatAttrs):
        dim, times = op.attrs.dim, op.attrs.times
        own = tuple(d[times > 1 :] if number == dim else d for number, d in enumerate(index))
        return reader.at(scope, op.inputs[0], own, env)
    return CORRECT(reader, scope, op, value, index, env)


def not_inverted(reader: Reader, scope, op, value, index, env):
    """A permutation is applied where its inverse is."""
    if isinstance(op.attrs, TransposeAttrs):
        return reader.at(scope, op.inputs[0], tuple(index[i] for i in op.attrs.perm), env)
    return CORRECT(reader, scope, op, value, index, env)


def first_side(reader: Reader, scope, op, value, index, env):
    """Both sides of a concatenation are the first one's."""
    if op.kind is OpKind.CONCAT:
        ((_, digits),) = index[op.attrs.dim]
        own = tuple(digits if d == op.attrs.dim else rest for d, rest in enumerate(index))
        return reader.at(scope, op.inputs[0], own, env)
    return CORRECT(reader, scope, op, value, index, env)


def reversed_digits(reader: Reader, scope, op, value, index, env):
    """The digits of a regrouped dimension the other way round."""
    if isinstance(op.attrs, ReshapeAttrs):
        index = tuple(tuple(reversed(digits)) for digits in index)
    return CORRECT(reader, scope, op, value, index, env)


def no_quotient(reader: Reader, scope, op, value, index, env):
    """A quotient is a product."""
    if op.kind is OpKind.DIV:
        operands = [reader._operand(scope, op, place, index, env) for place in (0, 1)]
        return translation.mul(*operands)
    return CORRECT(reader, scope, op, value, index, env)


CORRECT = Reader._plain
COPIES = f"X: f32[2, 2]\nZ: f32[2, 2, 2, 2]\n{REPEATS['rows'][0]}"
MISTAKES: dict[str, tuple[Callable, Callable[[], KernelGraph]]] = {
    "one digit of copies": (first_digit, lambda: parse(COPIES).graph),
    "a permutation": (not_inverted, lambda: parse("X: f32[2, 3, 2]\nreturn exp(transpose(X, 1, 2, 0))").graph),
    "one side": (first_side, lambda: parse("X: f32[2, 2]\nY: f32[2, 2]\nreturn exp(concat(X, Y, axis=0))").graph),
    "digits": (reversed_digits, lambda: parse("X: f32[2, 2, 6]\nreturn reshape(X, 4, 6) + 1").graph),
    "a quotient": (no_quotient, lambda: mugraphs.rmsnorm().program),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_translation_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch):
    """Of a graph and itself: both sides are wrong alike, and no step is needed."""
    mistake, build = MISTAKES[name]
    graph = build()
    check(Proof(()), graph, graph)
    monkeypatch.setattr(Reader, "_plain", mistake)
    with pytest.raises(ProofError, match=r"not what the program computes|where the dimension has"):
        check(Proof(()), graph, graph)
    assert isinstance(prove(graph, graph), Unproved)


def test_a_goal_that_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch):
    graph = parse("X: f32[2, 2]\nY: f32[2, 2]\nreturn exp(concat(X, Y, axis=0))").graph
    made = translate(graph, graph, (0,))
    assert len(made.goals) == 2
    object.__setattr__(made, "goals", made.goals[:1])
    with pytest.raises(ProofError, match="not what the program computes"):
        hold(made)


@pytest.mark.parametrize("side", ["left", "right"])
def test_large_graphs_are_held_at_small_sizes(side: str):
    """The pair of a real workload, with one side of its goal exchanged."""
    case = mugraphs.rmsnorm(16, 4096, 6144, 96, 64)
    made = translate(case.program, case.candidate, (0,))
    hold(made)
    (goal,) = made.goals
    wrong = {"left": goal.left, "right": goal.right} | {side: translation.mul(translation.num(2), getattr(goal, side))}
    object.__setattr__(made, "goals", (Goal(**wrong, index=goal.index),))
    with pytest.raises(ProofError, match="program" if side == "left" else "muGraph"):
        hold(made)
