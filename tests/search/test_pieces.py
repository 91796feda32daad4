"""Pieces: whatever is stored between them, together they compute the program."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.interp import reference
from mirage_nb.ir import DimAttrs, KernelGraph, OpKind, RepeatAttrs, ReshapeAttrs
from mirage_nb.search import EFFORTS
from mirage_nb.search.pieces.piece import Cut, cuts, pieces, smallest_cut
from mirage_nb.search.space import expressible
from tests.search.programs import Builder, attention_safe, gqa, lora, moe, ntrans, qknorm, rmsnorm_fig3


def layers(rows: int = 4, width: int = 6) -> KernelGraph:
    b = Builder.over(X=(rows, width), A=(width, width), B=(width, width), C=(width, width))
    h = b.op(OpKind.SILU, b.matmul(0, 1))
    b.op(OpKind.ADD, 0, b.matmul(b.op(OpKind.SILU, b.matmul(h, 2)), 3))
    return b.done()


def shared(rows: int = 4, width: int = 6) -> KernelGraph:
    """Two outputs with a matmul in common."""
    b = Builder.over(X=(rows, width), A=(width, width), B=(width, width))
    y = b.matmul(0, 1)
    return b.done(b.matmul(b.op(OpKind.SILU, y), 2), y)


def beside(rows: int = 4) -> KernelGraph:
    """A concat between two matmuls."""
    b = Builder.over(X=(rows, 6), Y=(rows, 3), A=(6, 5), W=(8, 4))
    b.matmul(b.op(OpKind.CONCAT, b.op(OpKind.SILU, b.matmul(0, 2)), 1, attrs=DimAttrs(1)), 3)
    return b.done()


def turned(rows: int = 4) -> KernelGraph:
    """A reshape that has no axes, between two matmuls."""
    b = Builder.over(X=(rows, 5), A=(5, 6), W=(8, 4))
    b.matmul(b.op(OpKind.RESHAPE, b.op(OpKind.SILU, b.matmul(0, 1)), attrs=ReshapeAttrs((3 * rows // 4, 8))), 2)
    return b.done()


SMALL = {
    "rmsnorm_fig3": rmsnorm_fig3(2, 4, 3), "lora": lora(2, 4, 3, 5), "gqa": gqa(2, 3, 4, 5), "moe": moe(2, 3, 4, 5, 6),
    "qknorm": qknorm(2, 3, 4, 5), "attention_safe": attention_safe(2, 3, 4, 5), "ntrans": ntrans(3, 4),
    "layers": layers(), "shared": shared(), "beside": beside(), "turned": turned(),
}  # fmt: skip


def composed(program: KernelGraph, cut: Cut, arrays: list[np.ndarray]) -> list[np.ndarray]:
    held = dict(enumerate(arrays))
    for piece in pieces(program, cut):
        found = reference.evaluate(piece.graph, [held[v] for v in piece.reads])
        held.update(zip(piece.writes, found, strict=True))
    return [held[v] for v in program.outputs]


@pytest.mark.parametrize("name", SMALL)
def test_the_pieces_of_every_cut_compute_the_program(name: str) -> None:
    program = SMALL[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(i.type.shape) for i in program.inputs]
    expected = reference.evaluate(program, arrays)
    everything = cuts(program, frozenset(), 9, 100)
    assert len(set(everything)) == len(everything)
    for cut in everything:
        for found, right in zip(composed(program, cut, arrays), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-10)


def test_a_chain_is_cut_between_its_layers() -> None:
    found = cuts(layers(), frozenset(), 5, 100)
    assert [len(pieces(layers(), cut)) for cut in found] == [2, 2, 3]
    assert len(cuts(layers(), frozenset(), 2, 100)) == 2 and len(cuts(layers(), frozenset(), 5, 1)) == 1


def test_a_second_exponential_on_a_path_may_begin_a_kernel() -> None:
    b = Builder.over(X=(4, 6))
    b.op(OpKind.EXP, b.op(OpKind.SQRT, b.op(OpKind.SIGMOID, b.op(OpKind.SQR, 0))))
    (cut,) = cuts(b.done(), frozenset(), 5, 100)
    assert [[op.kind for op in piece.graph.ops] for piece in pieces(b.done(), cut)][1] == [OpKind.EXP]


def test_no_matmul_is_computed_twice() -> None:
    for cut in (frozenset[int](), *cuts(shared(), frozenset(), 5, 100)):
        made = [op for piece in pieces(shared(), cut) for op in piece.graph.ops]
        assert sum(op.kind is OpKind.MATMUL for op in made) == 2


def test_equal_products_of_one_tensor_are_one_piece() -> None:
    b = Builder.over(X=(4, 6), A=(6, 5), B=(6, 5), C=(6, 5), D=(5, 5))
    q, k, v = (b.matmul(0, w) for w in (1, 2, 3))
    b.matmul(b.softmax(b.matmul(q, b.transpose(k))), b.matmul(v, 4))
    made = pieces(b.done(), frozenset((q, k, v)))
    assert [piece.writes for piece in made] == [(q, k, v), (len(b.graph.types) - 1,)]
    chained = Builder.over(X=(6, 6))
    once = chained.matmul(0, 0)
    chained.matmul(once, 0)
    assert len(pieces(chained.done(), frozenset((once,)))) == 2


def test_the_smallest_cut_isolates_what_has_no_axes() -> None:
    effort = EFFORTS["standard"]
    program = turned()
    least = smallest_cut(program, lambda graph: expressible(graph, effort))
    made = pieces(program, least)
    assert [len(piece.graph.ops) for piece in made] == [2, 1, 1]
    assert [expressible(piece.graph, effort) for piece in made] == [True, False, True]
    assert made[1].in_library and made[1].graph.ops[0].kind is OpKind.RESHAPE
    assert smallest_cut(beside(), lambda graph: expressible(graph, effort)) == frozenset()
    assert smallest_cut(layers(), lambda graph: expressible(graph, effort)) == frozenset()


def test_a_repeated_tensor_stays_inside_its_piece() -> None:
    b = Builder.over(X=(4, 6), Y=(4, 12), Z=(6, 8))
    product = b.op(OpKind.MUL, b.op(OpKind.REPEAT, 0, attrs=RepeatAttrs(1, 2)), 1)
    b.op(OpKind.ADD, product, b.op(OpKind.RESHAPE, 2, attrs=ReshapeAttrs((4, 12))))
    program = b.done()
    least = smallest_cut(program, lambda graph: expressible(graph, EFFORTS["standard"]))
    assert program.ops[0].kind is OpKind.REPEAT and program.input_count not in least
    made = pieces(program, least)
    assert OpKind.RESHAPE in [piece.graph.ops[0].kind for piece in made if piece.in_library]
    kinds = [[op.kind for op in piece.graph.ops] for piece in made if not piece.in_library]
    assert kinds == [[OpKind.REPEAT, OpKind.MUL]]
