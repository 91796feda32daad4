"""Proofs over concatenated axes, in tiles too; where partitions do not nest, for these sizes only."""

from __future__ import annotations

import pytest

from mirage_nb.errors import ProofError
from mirage_nb.ir import DimAttrs, KernelGraph, OpKind, ReshapeAttrs
from mirage_nb.ir.text import parse_graph
from mirage_nb.lang import parse
from mirage_nb.verify import Proof, check, prove, verify_and_prove
from mirage_nb.verify.proof import Unproved, with_proof
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.mugraphs import Kernel
from tests.verify.test_proof_targets import proved, refused


def over_both(k: Kernel, shift: bool = False, part: int | None = None) -> int:
    """Softmax over the concatenation of X and Y, with its maximum taken off or not; summed over one only if asked."""
    scores = k.op(OpKind.CONCAT, 0, 1, attrs=DimAttrs(1))
    if shift:
        scores = k.op(OpKind.SUB, scores, k.max(scores, 1))
    e = k.op(OpKind.EXP, scores)
    return k.op(OpKind.DIV, e, k.sum(e if part is None else k.op(OpKind.EXP, part), 1))


def concatenated_pair(build_a, build_b, **shapes) -> tuple[KernelGraph, KernelGraph]:
    made = []
    for build in (build_a, build_b):
        k = Kernel(**(shapes or {"X": (3, 4), "Y": (3, 2)}))
        made.append(k.returning(build(k)))
    return made[0], made[1]


def test_maxima_over_concatenated_axes():
    """Softmax over two sides is invariant to their common maximum; shifts, scales and ReLU pass it."""
    both = DimAttrs(1)

    def largest(k: Kernel, inside=lambda k, x: x, outside=lambda k, x: x) -> int:
        return outside(k, k.max(k.op(OpKind.CONCAT, inside(k, 0), inside(k, 1), attrs=both), 1))

    def inside_and_outside(change) -> tuple[KernelGraph, KernelGraph]:
        return concatenated_pair(lambda k: largest(k, inside=change), lambda k: largest(k, outside=change))

    proved(*concatenated_pair(over_both, lambda k: over_both(k, shift=True)))
    for change in (
        lambda k, x: k.op(OpKind.ADD, x, k.const(3)),
        lambda k, x: k.op(OpKind.MUL, x, k.const(3)),
        lambda k, x: k.op(OpKind.RELU, x),
    ):
        proof = proved(*inside_and_outside(change))
        assert {"largest_shift", "largest_scale", "monotone_largest"} & set(proof.axioms)
    for change in (lambda k, x: k.op(OpKind.MUL, x, k.const(-3)), lambda k, x: k.op(OpKind.SQR, x)):
        refused(*inside_and_outside(change))
    refused(*concatenated_pair(over_both, lambda k: over_both(k, part=0)))
    refused(*concatenated_pair(largest, lambda k: k.max(0, 1)))


def test_a_rescaled_sum_over_a_concatenated_axis():
    def rescaled(k: Kernel) -> int:
        scores = k.op(OpKind.CONCAT, 0, 1, attrs=DimAttrs(1))
        return k.op(OpKind.RESCALED_SUM, scores, scores, attrs=DimAttrs(1))

    def written_out(k: Kernel) -> int:
        scores = k.op(OpKind.CONCAT, 0, 1, attrs=DimAttrs(1))
        e = k.op(OpKind.EXP, k.op(OpKind.SUB, scores, k.max(scores, 1)))
        return k.sum(k.op(OpKind.MUL, scores, e), 1)

    proved(*concatenated_pair(rescaled, written_out))


def test_two_concatenated_axes_in_one_dimension():
    """(X || Y) over rows and columns, as one row: reductions over all of it, in one step or in two."""

    def whole(k: Kernel) -> int:
        wide = k.op(OpKind.CONCAT, 0, 1, attrs=DimAttrs(1))
        return k.op(OpKind.CONCAT, wide, k.op(OpKind.SQR, wide), attrs=DimAttrs(0))

    def at_once(k: Kernel, kind: OpKind) -> int:
        return k.op(kind, k.op(OpKind.RESHAPE, whole(k), attrs=ReshapeAttrs((36,))), attrs=DimAttrs(0))

    def in_two(k: Kernel, kind: OpKind, first: int) -> int:
        value = k.op(kind, k.op(kind, whole(k), attrs=DimAttrs(first)), attrs=DimAttrs(1 - first))
        return k.op(OpKind.RESHAPE, value, attrs=ReshapeAttrs((1,)))

    for kind in (OpKind.SUM, OpKind.MAX):
        for first in (0, 1):
            proved(
                *concatenated_pair(lambda k, of=kind: at_once(k, of), lambda k, of=kind, at=first: in_two(k, of, at))
            )
    refused(*concatenated_pair(lambda k: at_once(k, OpKind.SUM), lambda k: in_two(k, OpKind.MAX, 0)))


PRODUCT = """mugraph 1
input %0 X f32[4, 4]
input %1 Y f32[4, 6]
input %2 W f32[10, 8]
%3 = Concat(%0, %1) dim=1
%4 = Graph(%3, %2) grid=[4] loop=5 {
  %0 = InIter arg=0 imap=[*] fmap=1
  %1 = InIter arg=1 imap=[1] fmap=0
  %2 = Matmul(%0, %1)
  %3 = Accum(%2) kind=sum
  OutSaver(%3) omap=[1]
}
output %4 O
"""
SUMS = """mugraph 1
input %0 X f32[4, 4]
input %1 Y f32[4, 6]
input %2 Z f32[4, 2]
%3 = Concat(%0, %1) dim=1
%4 = Concat(%3, %2) dim=1
%5 = Graph(%4) grid=[2] loop=6 {
  %0 = InIter arg=0 imap=[0] fmap=1
  %1 = EwExp(%0)
  %2 = Sum(%1) dim=1
  %3 = Accum(%2) kind=sum
  OutSaver(%3) omap=[0]
}
%6 = EwExp(%4)
%7 = EwDiv(%6, %5)
output %7 O
"""
SPREAD = """mugraph 1
input %0 X f32[4, 4]
input %1 Y f32[4, 6]
%2 = Concat(%0, %1) dim=1
%3 = Graph(%2) grid=[5] loop=1 {
  %0 = InIter arg=0 imap=[1]
  %1 = EwExp(%0)
  %2 = EwAdd(%1, %1)
  OutSaver(%2) omap=[1]
}
output %3 O
"""
TILED = {
    "a product": ("W: f32[10, 8]\nreturn concat(X, Y, axis=1) @ W", PRODUCT),
    "one row an iteration": ("W: f32[10, 8]\nreturn concat(X, Y, axis=1) @ W", PRODUCT.replace("loop=5", "loop=10")),
    "three behind each other": ("Z: f32[4, 2]\nreturn softmax(concat(concat(X, Y, axis=1), Z, axis=1))", SUMS),
    "blocks of both": ("return 2 * exp(concat(X, Y, axis=1))", SPREAD),
}


@pytest.mark.parametrize("how", TILED)
def test_tiles_that_each_lie_on_one_side_are_proved(how: str):
    text, mugraph = TILED[how]
    program = parse("X: f32[4, 4]\nY: f32[4, 6]\n" + text).graph
    proved(program, parse_graph(mugraph))
    wrong = mugraph.replace("EwAdd(%1, %1)", "EwMul(%1, %1)").replace("Accum(%2) kind=sum", "Accum(%2) kind=max")
    assert verify(program, parse_graph(wrong)).kind is VerdictKind.REFUTED
    refused(program, parse_graph(wrong))
    if "grid=[5]" in mugraph:
        across = parse_graph(mugraph.replace("grid=[5]", "grid=[2]"))  # a tile of both sides
        assert verify(program, across).accepted and "nest" in refused(program, across)


def test_partitions_that_do_not_nest_are_proved_for_these_sizes_only():
    """Twelve as four times three and as six times two: known for these sizes, and no claim for others."""

    def total(k: Kernel, grid: int) -> int:
        b = k.block((0,), (grid,))
        b.save(b.op(OpKind.RESHAPE, b.sum(b.read(0, (1,)), 1), attrs=ReshapeAttrs((1, 3, 1))), (0,))
        return k.sum(k.launch((0,), b), 0)

    four, six = concatenated_pair(lambda k: total(k, 4), lambda k: total(k, 6), X=(3, 12))
    assert "nest" in refused(four, six)
    verdict, proof = verify_and_prove(four, six)
    assert verdict.kind is VerdictKind.PROVED and "for these sizes only" in verdict.note
    assert proof is not None and proof.these_sizes
    with pytest.raises(ProofError):
        check(proof, *concatenated_pair(lambda k: total(k, 4), lambda k: k.sum(k.max(0, 1), 0), X=(3, 12)))
    larger = concatenated_pair(lambda k: total(k, 4), lambda k: total(k, 6), X=(3, 1200))
    assert isinstance(prove(*larger, these_sizes=True), Unproved)
    assert with_proof(Verdict(VerdictKind.FIELD), four, six)[0].kind is VerdictKind.FIELD


HEAD = "X: f32[2, 6]\nY: f32[2, 6]\nreturn "
PICKED = [
    ("(X + Y)[:, ::-1] * 2", "X[:, ::-1] * 2 + 2 * Y[:, ::-1]", True),
    ("(X + Y)[:, ::-1] * 2", "X[:, ::-1] * 2 + 2 * Y", False),
    ("pad(X * 2, 1, 2, axis=1)", "pad(X, 1, 2, axis=1) * 2", True),
    ("pad(exp(X), 1, 2, axis=1)", "exp(pad(X, 1, 2, axis=1))", False),
    ("where(arange(6) > 2, X, Y)", "concat(Y[:, :3], X[:, 3:], axis=1) * 1", True),
    ("where(arange(6) > 2, X, Y)", "concat(Y[:, :2], X[:, 2:], axis=1) * 1", False),
    ("softmax(where(arange(6) <= arange(2)[:, None], X, -inf))[:, ::2]",
     "softmax(where(arange(2)[:, None] < arange(6), -inf, X + 0 * Y))[:, ::2]", True),
    ("exp(where(arange(6) <= arange(2)[:, None], X, -inf))[:, ::2]",
     "exp(where(arange(6) < arange(2)[:, None], X, -inf))[:, ::2]", False),
    ("reshape(X * 2, 3, 4) @ transpose(reshape(Y, 3, 4))", "2 * reshape(X, 3, 4) @ transpose(reshape(Y, 3, 4))", True),
    ("where((X * Y)[:, 1:] > 0, sqrt((X * Y)[:, 1:]), 0)",
     "where(X[:, 1:] * Y[:, 1:] > 0, sqrt(X[:, 1:] * Y[:, 1:]), 0)", True),
    ("where((X * Y)[:, 1:] > 0, sqrt((X * Y)[:, 1:]), 0)", "sqrt((X * Y)[:, 1:]) * 1", False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [pytest.param(*row, marks=[pytest.mark.slow] * row[0].startswith("softmax")) for row in PICKED],
)
def test_elements_are_told_by_their_numbers_in_proofs_for_these_sizes(left: str, right: str, equal: bool):
    pair = [parse(HEAD + text).graph for text in (left, right)]
    found = prove(*pair, these_sizes=True)
    assert isinstance(found, Proof) == equal, str(found)
    if isinstance(found, Proof):
        check(Proof.from_json(found.to_json()), *pair)
