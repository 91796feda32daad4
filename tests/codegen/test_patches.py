"""Sums and maxima of what is computed of two tensors: threads fold patches of results, and read rows of both once."""

from __future__ import annotations

import pytest

from mirage_nb.codegen import Options, emit
from mirage_nb.ir import AccumKind, DimAttrs, DType, KernelGraph, OpKind
from mirage_nb.optimize import plan
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import flat
from mirage_nb.tile.rules.shared import LINE_BYTES
from mirage_nb.tile.rules.sharing import Patches, Share, Vectors, patch
from mirage_nb.tile.staged.program import Dot, Partial, Reduce
from mirage_nb.tile.staged.validate import validate
from tests.codegen.running import check
from tests.mugraphs import Block, one_kernel, tensor
from tests.tile.staged_plans import programs

H200 = TARGETS["h200"]


def distances(
    tile: tuple[int, int], depth: int = 16, loop: int = 1, *, dtype: DType = DType.F32, fold: OpKind = OpKind.SUM,
    lies: bool = True, weighed: bool = False, behind: bool = False, hanging: int = 0,
) -> KernelGraph:  # fmt: skip
    """Of the rows of X, of two blocks, and of Y: sums of squares of their differences, or the largest one. lies: rows
    of Y lie in memory, or its columns; weighed: by a third tensor like Y; behind: of what is positive the largest of
    each row is saved; hanging: rows of X that the last tile is too long."""
    (rows, columns), deep = tile, depth * loop
    across = (columns, deep) if lies else (deep, columns)
    tensors = [tensor((2 * rows - hanging, deep), dtype), *[tensor(across, dtype)] * (1 + weighed)]
    b = Block(tuple(tensors), (2,), loop)
    x = b.read(0, (0,), 1 if loop > 1 else None, tile=(rows, depth) if hanging else None)
    read = [b.read(n, (None,), (1 if lies else 0) if loop > 1 else None) for n in range(1, len(tensors))]
    y, *weights = [b.transpose(v, 1, 0) if lies else v for v in read]
    z = b.op(OpKind.SQR, b.op(OpKind.SUB, b.reshape(x, rows, depth, 1), y))
    z = b.op(OpKind.MUL, z, *weights) if weighed else z
    z = b.sum(z, 1) if fold is OpKind.SUM else b.max(z, 1)
    z = b.accum(z, kind=AccumKind.SUM if fold is OpKind.SUM else AccumKind.MAX) if loop > 1 else z
    if behind:
        z, columns = b.max(b.op(OpKind.RELU, z), 2), 1
    b.save(b.reshape(z, rows, columns), (0,), (2 * rows - hanging, columns) if hanging else None)
    return one_kernel(" ".join("XYP"[: len(tensors)]), b)


def folds(graph: KernelGraph, options: Options) -> list[Share]:
    """How the threads of its kernel share what they fold."""
    (program,) = programs(plan(graph, H200, options)).values()
    assert validate(program, H200) == ()
    return [s.share for s in flat(program.code) if isinstance(s, Partial | Reduce)]


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("bulk", [False, True])
def test_patches_in_a_loop(stages: int, bulk: bool) -> None:
    graph, options = distances((32, 64), loop=4), Options(4, stages, bulk=bulk)
    (share,) = folds(graph, options)
    assert (share.patch, share.apart, share.slots, share.width) == ((4, 1, 4), (8, 1, 16), 16, 4)
    check(graph, options)


@pytest.mark.parametrize(("graph", "sides"), [
    (distances((32, 16)), (2, 1, 2)),
    (distances((16, 128), 4, behind=True), (4, 1, 4)),
    (distances((16, 16), 7), (1, 1, 2)),
    (distances((16, 48)), (2, 1, 3)),
    (distances((64, 16), 16, 2, lies=False), (2, 1, 4)),
    (distances((64, 16), 12, 2, lies=False, weighed=True), (2, 1, 4)),
    (distances((32, 64), 8, weighed=True, behind=True), (4, 1, 4)),
    (distances((32, 64), fold=OpKind.MAX), (4, 1, 4)),
    (distances((32, 64), 8, 3, fold=OpKind.MAX, behind=True), (4, 1, 4)),
    (distances((32, 64), hanging=5), (4, 1, 4)),
    (distances((32, 64), 8, 2, dtype=DType.F16, weighed=True), (4, 1, 4)),
    (distances((8, 16)), ()),
])  # fmt: skip
def test_patches_are_right(graph: KernelGraph, sides: tuple[int, ...]) -> None:
    options = Options(4, 2)
    assert folds(graph, options)[0].patch == sides
    check(graph, options)


def test_rows_lie_on_banks_of_their_own() -> None:
    """Threads side by side read chunks of rows beside each other."""
    (program,) = programs(plan(distances((32, 64), 32), H200, Options(4))).values()
    for value in (0, 1):
        pitch, unit = program.buffer(value).layout.strides
        assert unit == 1 and len({4 * row * pitch % LINE_BYTES // 16 for row in range(8)}) == 8


def test_what_several_results_need_is_read_once() -> None:
    """Of a patch of four rows and columns there are eight loads, not thirty-two."""
    source = emit(distances((32, 64)), H200, Options(4)).source
    fold = source[source.index("for (int k") : source.index("for (int v")]
    assert fold.count("load<4>(t0") == fold.count("load<4>(t1") == 4


def product(rows: int, columns: int, depth: int, loop: int, *, turned: bool, summed: bool) -> KernelGraph:
    """Roots of rows with a matrix, which lies turned or not; summed: and of exponentials of them with another one."""
    deep = depth * loop
    across = (columns, deep) if turned else (deep, columns)
    tensors = [tensor((2 * rows, deep), DType.F32), *[tensor(across, DType.F32)] * (1 + summed)]
    b = Block(tuple(tensors), (2,), loop)
    x = b.read(0, (0,), 1 if loop > 1 else None)
    read = [b.read(n, (None,), (1 if turned else 0) if loop > 1 else None) for n in range(1, len(tensors))]
    w, *others = [b.transpose(v, 1, 0) if turned else v for v in read]
    z = b.op(OpKind.CONCAT_MATMUL, x, b.op(OpKind.EXP, x), w, *others) if summed else b.op(OpKind.MATMUL, x, w)
    b.save(b.op(OpKind.SIGMOID, b.accum(z) if loop > 1 else z), (0,))
    return one_kernel(" ".join("XWV"[: len(tensors)]), b)


@pytest.mark.parametrize(("extents", "sides"), [
    ((16, 64, 16, 1), (2, 4)), ((40, 64, 12, 2), (5, 4)), ((8, 32, 7, 3), (1, 2)), ((5, 27, 8, 2), ()),
])  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("summed", [False, True])
def test_products_in_patches(extents: tuple[int, ...], sides: tuple[int, ...], turned: bool, summed: bool) -> None:
    rows, columns, depth, loop = extents
    graph, options = product(rows, columns, depth, loop, turned=turned, summed=summed), Options(4, 2)
    (program,) = programs(plan(graph, H200, options)).values()
    (walked,) = {s.vectors for s in flat(program.code) if isinstance(s, Dot)}
    assert walked == (Patches((rows, columns), 1, sides) if sides else Vectors((rows, columns), 1))
    check(graph, options)


def test_patches_are_as_square_as_can_be() -> None:
    assert patch(64, 64, 4096, 256) == (4, 4)
    assert patch(2, 2048, 4096, 256) == (2, 8)
    assert patch(64, 64, 256, 256) == patch(16, 17, 272, 256) == patch(1, 4096, 4096, 256) == (0, 0)


def test_what_is_as_large_as_what_is_folded_is_read_once_anyway() -> None:
    """Of halves side by side each is smaller, but both together are not: nothing is read for many results."""
    b = Block((*[tensor((32, 32, 64), DType.F32)] * 2, tensor((64,), DType.F32)), (1,))
    x, y, w = (b.read(n, (None,)) for n in range(3))
    z = b.sum(b.op(OpKind.EXP, b.op(OpKind.MUL, b.op(OpKind.CONCAT, x, y, attrs=DimAttrs(0)), w)), 2)
    b.save(b.op(OpKind.DIV, z, b.max(z, 0)), (None,))
    graph = one_kernel("X Y W", b)
    assert all(not share.patch for share in folds(graph, Options(4, 2)))
    check(graph, Options(4, 2))
