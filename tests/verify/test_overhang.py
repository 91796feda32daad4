"""Tiles that hang over the ends of tensors: right ones accepted and proved, wrong ones refuted."""

from __future__ import annotations

import pytest

from mirage_nb.errors import ProofError
from mirage_nb.ir.text import parse_graph
from mirage_nb.lang import parse
from mirage_nb.verify.proof import Proof, Unproved, check, prove
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import VerdictKind

PRODUCT = """mugraph 1
input %0 X f16[5, 7]
input %1 W f16[7, 6]
%2 = Graph(%0, %1) grid=[2] loop=2 {{
  %0 = InIter arg=0 imap=[0] fmap={along} tile=[3, {depth}]
  %1 = InIter arg=1 imap=[*] fmap={down} tile=[4, {columns}]
  {product}
  %3 = Accum(%2) kind=sum
  OutSaver(%3) omap=[0] shape=[5, {saved}]
}}
output %2 O
"""
MATMUL = {"product": "%2 = Matmul(%0, %1)", "along": 1, "down": 0, "depth": 4, "columns": 6, "saved": 6}
ACCEPTED = (VerdictKind.FIELD, VerdictKind.PROVED)
PRODUCT_TEXT = "X: f16[5, 7]\nW: f16[7, 6]\nreturn X @ W"

SUMS = """mugraph 1
input %0 X f16[5, 7]
%1 = Graph(%0) grid=[1] loop=2 {{
  %0 = InIter arg=0 imap=[*] fmap=1 tile=[5, 4]
  %1 = {inside}(%0)
  %2 = {fold}(%1) dim=1
  %3 = Accum(%2) kind={kind}
  OutSaver(%3) omap=[*]
}}
output %1 O
"""
MAXIMA = """mugraph 1
input %0 X f16[5, 7]
%1 = Graph(%0) grid=[1] loop=1 {
  %0 = InIter arg=0 imap=[*]
  %1 = Max(%0) dim=1
  OutSaver(%1) omap=[*]
}
%2 = Graph(%1) grid=[1] loop=2 {
  %0 = InIter arg=0 imap=[*] fmap=0 tile=[ROWS, 1]
  %1 = Max(%0) dim=0
  %2 = Accum(%1) kind=max
  OutSaver(%2) omap=[*]
}
output %2 O
"""


def verdict(program: str, mugraph: str) -> VerdictKind:
    return verify(parse(program).graph, parse_graph(mugraph)).kind


def test_a_product_over_a_cut_axis_is_accepted() -> None:
    assert verdict(PRODUCT_TEXT, PRODUCT.format(**MATMUL)) is VerdictKind.FIELD
    wider = {**MATMUL, "columns": 8}  # columns of zeros, cut off by the saver
    assert verdict(PRODUCT_TEXT, PRODUCT.format(**wider)) is VerdictKind.FIELD


def test_what_is_wrong_without_overhang_is_wrong_with_it() -> None:
    every = {**MATMUL, "along": "*", "depth": 7, "down": "*"}  # every iteration adds all of the product
    text = PRODUCT.format(**every).replace("tile=[4, 6]", "tile=[7, 6]")
    assert verdict(PRODUCT_TEXT, text) is VerdictKind.REFUTED
    square = "X: f16[5, 5]\nreturn X + transpose(X, 1, 0)"
    turned = """mugraph 1
input %0 X f16[5, 5]
%1 = Graph(%0) grid=[2] loop=1 {
  %0 = InIter arg=0 imap=[0] tile=[3, 6]
  %1 = InIter arg=0 imap=[DIM] tile=TILE
  %2 = Transpose(%1) perm=[1, 0]
  %3 = EwAdd(%0, %2)
  OutSaver(%3) omap=[0] shape=[5, 5]
}
output %1 O
"""
    assert verdict(square, turned.replace("DIM", "1").replace("TILE", "[6, 3]")) is VerdictKind.FIELD
    assert (
        verdict(
            square,
            turned.replace("DIM", "*")
            .replace("TILE", "[6, 6]")
            .replace("[3, 6]", "[6, 6]")
            .replace("grid=[2]", "grid=[1]"),
        )
        is VerdictKind.FIELD
    )
    wrong = turned.replace("DIM", "0").replace("TILE", "[3, 6]").replace("Transpose(%1) perm=[1, 0]", "Sqr(%1)")
    assert verdict(square, wrong) is VerdictKind.REFUTED


@pytest.mark.parametrize(
    ("function", "inside", "accepted"),
    [("X * X", "Sqr", True), ("silu(X)", "SiLU", True), ("exp(X)", "EwExp", False), ("sigmoid(X)", "Sigmoid", False)],
)
def test_zeros_beyond_the_end_count_unless_they_stay_zeros(function: str, inside: str, accepted: bool) -> None:
    found = verdict(
        f"X: f16[5, 7]\nreturn sum({function}, axis=1, keepdims=True)",
        SUMS.format(inside=inside, fold="Sum", kind="sum"),
    )
    assert (found is VerdictKind.FIELD) == accepted
    if not accepted:
        assert found is VerdictKind.REFUTED


def test_a_maximum_with_the_zeros_beyond_the_end_is_not_accepted() -> None:
    program = "X: f16[5, 7]\nreturn max(X * X, axis=1, keepdims=True)"
    assert verdict(program, SUMS.format(inside="Sqr", fold="Max", kind="max")) not in ACCEPTED


@pytest.mark.parametrize("rows", [3, 4])
def test_zeros_are_no_maxima_of_nothing(rows: int) -> None:
    """The maximum of maxima that another kernel has saved, and of a zero behind them, is no maximum of X."""
    program = "X: f16[5, 7]\nreturn max(max(X, axis=1, keepdims=True), axis=0, keepdims=True)"
    assert verdict(program, MAXIMA.replace("ROWS", str(rows))) not in ACCEPTED


@pytest.mark.parametrize("columns", [6, 8])
def test_a_proof_for_all_sizes_speaks_of_ends(columns: int) -> None:
    pair = parse(PRODUCT_TEXT).graph, parse_graph(PRODUCT.format(**{**MATMUL, "columns": columns}))
    found = prove(*pair)
    assert isinstance(found, Proof) and "for all sizes" in str(found)
    check(Proof.from_json(found.to_json()), *pair)
    wrong = parse_graph(PRODUCT.format(**{**MATMUL, "columns": columns, "product": "%2 = Matmul(%0, %1)"}).replace(
        "kind=sum", "kind=max"
    ))  # fmt: skip
    with pytest.raises(ProofError):
        check(found, pair[0], wrong)
    assert isinstance(prove(pair[0], wrong, these_sizes=True), Unproved)


@pytest.mark.parametrize(("function", "inside", "fold", "right"), [
    ("sum(X * X", "Sqr", "Sum", True), ("sum(silu(X)", "SiLU", "Sum", True), ("sum(exp(X)", "EwExp", "Sum", False),
    ("sum(sigmoid(X)", "Sigmoid", "Sum", False), ("max(X * X", "Sqr", "Max", True),
    ("max(silu(X)", "SiLU", "Max", False),
])  # fmt: skip
def test_zeros_beyond_the_end_are_zeros_in_proofs(function: str, inside: str, fold: str, right: bool) -> None:
    program = parse(f"X: f16[5, 7]\nreturn {function}, axis=1, keepdims=True)").graph
    mugraph = parse_graph(SUMS.format(inside=inside, fold=fold, kind=fold.lower()))
    assert isinstance(prove(program, mugraph, these_sizes=True), Proof) == right
