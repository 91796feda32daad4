"""Proofs over concatenated axes, and where partitions do not nest: none."""

from __future__ import annotations

from mirage_nb.ir import DimAttrs, KernelGraph, OpKind, ReshapeAttrs
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import VerdictKind
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


def test_partitions_that_do_not_nest_are_not_proved():
    """Twelve as four times three and as six times two: known for these sizes, and no claim for others."""

    def total(k: Kernel, grid: int) -> int:
        b = k.block((0,), (grid,))
        b.save(b.op(OpKind.RESHAPE, b.sum(b.read(0, (1,)), 1), attrs=ReshapeAttrs((1, 3, 1))), (0,))
        return k.sum(k.launch((0,), b), 0)

    four, six = concatenated_pair(lambda k: total(k, 4), lambda k: total(k, 6), X=(3, 12))
    assert "nest" in refused(four, six)
    assert verify(four, six).kind is VerdictKind.FIELD
