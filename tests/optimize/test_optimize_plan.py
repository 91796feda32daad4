"""Plans: warp splits cover every product once, rings shrink until they fit, temporaries are laid out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.errors import TargetError
from mirage_nb.ir import DimAttrs, DType, Op, OpKind, ReshapeAttrs
from mirage_nb.optimize import Options, plan, variants
from mirage_nb.targets import TARGETS
from mirage_nb.tile.rules.sharing import PARTIAL_BYTES, tile_matmul
from tests.codegen.mugraphs import gated_mlp, rmsnorm, safe_attention, split_attention
from tests.mugraphs import Block, one_kernel, tensor

H200, A100 = TARGETS["h200"], TARGETS["a100"]


@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.integers(1, 5),
    st.sampled_from([1, 2, 4, 8]), st.booleans(),
)  # fmt: skip
def test_a_tiling_covers_the_product(m: int, k: int, n: int, batch: int, warps: int, deferred: bool) -> None:
    tiling = tile_matmul(tensor((batch, m, k)), tensor((k, n)), warps, deferred=deferred, loop=4)
    assert tiling.rows * tiling.columns == m * n
    for tiles, each, split in zip(tiling.tiles, tiling.per_warp, tiling.split, strict=True):
        assert each * split >= tiles
    assert deferred or tiling.copies == 1
    assert tiling.copies == 1 or tiling.copies * 4 * batch * m * n <= PARTIAL_BYTES


def test_few_rows_go_on_the_eight_side() -> None:
    assert tile_matmul(tensor((8, 64)), tensor((64, 64)), 8, deferred=True, loop=8).swapped
    assert not tile_matmul(tensor((64, 64)), tensor((64, 8)), 8, deferred=True, loop=8).swapped


def test_a_ring_gets_shallower_until_it_fits() -> None:
    graph = gated_mlp(64, 1024, 128, 64, 8)
    kernel = plan(graph, A100, Options(stages=6)).kernels[0]
    assert kernel is not None
    assert 2 <= kernel.options.stages < 6
    assert kernel.shared_bytes <= A100.shared_per_block


def test_bulk_only_where_the_target_and_every_tile_allow_it() -> None:
    wanted = Options(bulk=True)
    for graph, target, expected in (
        (rmsnorm(), H200, True),
        (rmsnorm(), A100, False),
        (rmsnorm(k=100, n=130, columns=65), H200, False),
        (rmsnorm(loop=1), H200, False),
    ):
        kernel = plan(graph, target, wanted).kernels[0]
        assert kernel is not None
        assert kernel.options.bulk is expected


def test_variants_differ_and_begin_with_the_default() -> None:
    found = variants(rmsnorm(), H200)
    assert found[0] == Options(bulk=True)
    kernels = [plan(rmsnorm(), H200, options).kernels for options in found]
    assert len({repr(k) for k in kernels}) == len(found) > 4


def test_nothing_fits() -> None:
    assert variants(rmsnorm(m=2, k=8192, n=128, columns=128, loop=1), H200) == ()
    with pytest.raises(TargetError, match="larger for-loop range"):
        plan(rmsnorm(m=2, k=8192, n=128, columns=128, loop=1), H200)


def test_temporaries_have_their_place_in_the_workspace() -> None:
    made = plan(split_attention(), H200)
    assert len(made.temporaries) == 2
    spans = sorted(
        (o, o + made.graph.types[v].nbytes) for v, o in zip(made.temporaries, made.workspace.offsets, strict=True)
    )
    assert spans[0][1] <= spans[1][0]
    assert all(made.graph.types[v].dtype is DType.F32 for v in made.temporaries)


def test_attention_bodies_are_warp_private() -> None:
    kernel = plan(safe_attention(rows=64), H200, Options(warps=8)).kernels[0]
    assert kernel is not None and kernel.staged is not None and kernel.staged.region is not None
    assert (kernel.staged.region.row_warps, kernel.staged.region.key_warps) == (4, 2)
    assert not kernel.staged.loop_barrier


def test_a_result_that_leaves_through_a_view_is_no_temporary() -> None:
    graph = rmsnorm()
    rows, columns = graph.output_types[0].shape
    viewed = graph.append(Op(OpKind.RESHAPE, graph.outputs, ReshapeAttrs((rows * columns,))))
    assert plan(viewed.returning((len(viewed.types) - 1,)), H200).temporaries == ()


def test_reductions_that_meet_in_one_operator_are_placed() -> None:
    """Each asks whether the other operand is a number; neither may ask where the other one is placed."""
    b = Block((tensor((8, 64), DType.F16),), (1,))
    x = b.read(0, (None,))
    total, top = b.op(OpKind.SUM, x, attrs=DimAttrs(1)), b.op(OpKind.MAX, x, attrs=DimAttrs(1))
    b.save(b.op(OpKind.MUL, total, top), (None,))
    assert plan(one_kernel("X", b), H200).kernels[0] is not None


def test_a_block_of_one_number_is_planned() -> None:
    """There is no tile whose rows or columns threads could hold."""
    b = Block((tensor((), DType.F32),), (1,))
    b.save(b.reshape(b.read(0, (None,)), 1), (None,))
    assert plan(one_kernel("X", b), H200).kernels[0] is not None
