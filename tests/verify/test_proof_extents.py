"""Proofs that count: a mean is the sum times a number, and what follows from that holds for this extent of the axis."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

import pytest

from mirage_nb.errors import FormatError, ProofError
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.ir.text import parse_graph
from mirage_nb.lang import parse
from mirage_nb.verify import Proof, check, prove, verify_and_prove
from mirage_nb.verify.proof import Step, Unproved
from mirage_nb.verify.proof.terms import entry
from mirage_nb.verify.verdict import VerdictKind
from tests.mugraphs import Kernel

TWO_WAYS = [
    ("var(X, axis=1)", "mean(X * X, axis=1) - mean(X, axis=1) ** 2"),
    ("layer_norm(X, eps=1)", "layer_norm(X + 5, eps=1)"),
    ("sum(square(X - Z), axis=1)", "sum(X * X, axis=1) - 2 * Z[:, 0] * sum(X, axis=1) + 16 * Z[:, 0] ** 2"),
    ("sum(Z + 0 * X, axis=1)", "16 * Z[:, 0]"),
    ("var(X @ W, axis=(0, 1))", "mean(square(X @ W)) - square(mean(X @ W))"),
]

ONE_PASS = """mugraph 1
input %0 X f32[8, 16]
%1 = Graph(%0) grid=[2] loop=4 {
  %0 = InIter arg=0 imap=[0] fmap=1
  %1 = Sum(%0) dim=1
  %2 = Accum(%1) kind=sum
  %3 = Sqr(%0)
  %4 = Sum(%3) dim=1
  %5 = Accum(%4) kind=sum
  %6 = Const value=1/16
  %7 = EwMul(%2, %6)
  %8 = Sqr(%7)
  %9 = EwMul(%5, %6)
  %10 = EwSub(%9, %8)
  OutSaver(%10) omap=[0]
}
output %1 Y
"""
"""The variance of each row, from one pass over the columns in four tiles."""


def graph(text: str, rows: int = 8, columns: int = 16) -> KernelGraph:
    heads = f"X: f32[{rows}, {columns}]\nZ: f32[{rows}, 1]\nW: f32[{columns}, 4]\n"
    return parse(f"{heads}return 2 * ({text})").graph


@pytest.mark.parametrize(("left", "right"), TWO_WAYS)
def test_what_counts_is_proved_for_its_extents(left: str, right: str):
    pair = graph(left), graph(right)
    assert isinstance(prove(*pair), Unproved), "not for all sizes"
    verdict, proof = verify_and_prove(*pair)
    assert verdict.kind is VerdictKind.PROVED and proof is not None
    assert proof.extents and not proof.these_sizes and set(proof.extents.values()) <= {16, 8, 4}
    assert all(f"{part} = {extent}" in str(verdict) for part, extent in proof.extents.items())
    check(Proof.from_json(proof.to_json()), *pair)


def test_other_sizes_than_those_that_are_counted():
    """A proof over 16 columns holds for any number of rows, and for no other number of columns."""
    left, right = TWO_WAYS[0]
    proof = prove(graph(left), graph(right), these_sizes=True)
    assert isinstance(proof, Proof) and proof.extents == {"X.1": 16}
    assert str(proof).startswith(
        "proof in 11 steps from 4 axioms, for these constants and X.1 = 16 and all other sizes"
    )
    check(proof, graph(left, rows=24), graph(right, rows=24))
    with pytest.raises(ProofError, match=r"no part X\.1 of an axis has the extent 16"):
        check(proof, graph(left, columns=32), graph(right, columns=32))
    wrong = graph(right.replace("mean(X, axis=1)", "sum(X, axis=1) / 15"))
    assert isinstance(prove(graph(left), wrong, these_sizes=True), Unproved)
    with pytest.raises(ProofError):
        check(proof, graph(left), wrong)


def test_parts_of_an_axis_are_counted_together():
    program = parse("X: f32[8, 16]\nreturn var(X, axis=1, keepdims=True)").graph
    verdict, proof = verify_and_prove(program, parse_graph(ONE_PASS))
    assert verdict.kind is VerdictKind.PROVED and proof is not None
    assert proof.extents == {"X.1.0": 4, "X.1.1": 4}
    other = parse_graph(ONE_PASS.replace("loop=4", "loop=2"))
    with pytest.raises(ProofError, match="extent"):
        check(proof, program, other)


def test_a_size_that_is_known_at_launch_is_not_counted():
    program, other = (
        parse(f"B: size(16)\nX: f32[B, 16]\nreturn {text}").graph
        for text in ("var(X, axis=1) * 2", "(mean(X * X, axis=1) - mean(X, axis=1) ** 2) * 2")
    )
    proof = prove(program, other, these_sizes=True)
    assert isinstance(proof, Proof) and proof.extents == {"X.1": 16}
    with pytest.raises(ProofError, match=r"no part X\.0"):
        check(dataclasses.replace(proof, extents=MappingProxyType({"X.0": 16, "X.1": 16})), program, other)


@pytest.mark.parametrize("extents", [{"X.1": 15}, {"X.2": 16}, {"X.1=16": 16}, {"r": 16}, {"X.1": 16, "W.0": 4}])
def test_extents_that_are_not_those_of_the_graphs(extents: dict[str, int]):
    left, right = TWO_WAYS[0]
    proof = prove(graph(left), graph(right), these_sizes=True)
    assert isinstance(proof, Proof)
    with pytest.raises(ProofError):
        check(dataclasses.replace(proof, extents=MappingProxyType(extents)), graph(left), graph(right))


@pytest.mark.parametrize("name", ["X.1=3", "X=3", "=3", "X.1=16"])
def test_no_name_of_an_input_says_an_extent(name: str):
    """An input may have any name; parts of its axes end with their dimension, so that none is read as an extent."""

    def summed(make) -> KernelGraph:
        k = Kernel(**{name: (4, 6), "Y": (4, 1)})
        return k.returning(make(k))

    program = summed(lambda k: k.sum(k.op(OpKind.ADD, 1, k.op(OpKind.MUL, 0, k.const(0))), 1))
    for times in (3, 16):
        other = summed(lambda k, n=times: k.op(OpKind.MUL, 1, k.const(n)))
        assert isinstance(prove(program, other, these_sizes=True), Unproved)
    assert isinstance(prove(program, summed(lambda k: k.op(OpKind.MUL, 1, k.const(6))), these_sizes=True), Proof)


def test_a_forged_step_counts_another_axis():
    """Steps may speak of axes that the graphs do not have; they change nothing there."""
    program, other = graph("sum(Z + 0 * X, axis=1)"), graph("17 * Z[:, 0]")
    z = entry("Z", ((("Z.0", -1),), ()))
    for sort in ("X.1=17", "X.1", "X.1=16"):
        step = Step("sum_replica", (("V", ((sort, -5),)), ("W", ()), ("f", z)))
        for extents in ({}, {"X.1": 16}):
            proof = Proof((step,), literal=True, extents=MappingProxyType(extents))
            with pytest.raises(ProofError):
                check(proof, program, other)


def test_a_program_without_a_value_at_the_extent_proves_nothing():
    """One over the number of columns minus 16 has a value at other extents only."""
    nowhere = "1 / (sum(1 + 0 * X, axis=1) - 16)"
    assert isinstance(prove(graph(nowhere), graph(f"3 * {nowhere}"), these_sizes=True), Unproved)
    assert isinstance(prove(graph(nowhere), graph(nowhere.replace("16", "15 - 1")), these_sizes=True), Unproved)


def test_extents_in_a_file():
    left, right = TWO_WAYS[0]
    proof = prove(graph(left), graph(right), these_sizes=True)
    assert isinstance(proof, Proof)
    for bad in ('{"X.1": "16"}', '{"X.1": -1}', '["X.1"]', '{"X.1": 1.5}'):
        text = proof.to_json().replace('"extents": {"X.1": 16}', f'"extents": {bad}')
        assert text != proof.to_json()
        with pytest.raises((FormatError, ProofError)):
            check(Proof.from_json(text), graph(left), graph(right))
