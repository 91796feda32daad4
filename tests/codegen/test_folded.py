"""Products of many rows whose columns are folded where they lie: right on the CPU edition, also beside whole tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_nb.codegen import emit
from mirage_nb.ir import AccumKind, DType, KernelGraph, Op, OpKind
from mirage_nb.ir.text import parse_graph
from mirage_nb.optimize import default_options, plan, variants
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import Loop, Read, Reduce, Store, Turn, Walk
from mirage_nb.tile.roles.validate import validate
from tests.codegen.mugraphs import linear
from tests.codegen.running import TOLERANCE, WAYS, draw, errors, run
from tests.codegen.test_specialised import check
from tests.mugraphs import Block, one_kernel, tensor
from tests.tile.lines import program_of, text_of

H200 = TARGETS["h200"]
FEW = replace(H200, multiprocessors=3)
"""Three blocks walk over all points."""
Behind = Callable[[Block, int], list[int]]
"""What is saved of an accumulator."""


def folded(
    behind: Behind, m: int = 256, k: int = 128, n: int = 256, rows: int = 128, columns: int = 64, *,
    dtype: DType = DType.F16, batch: int = 1, held: Sequence[tuple[int, ...]] = (),
) -> KernelGraph:  # fmt: skip
    """What `behind` makes of X @ W.T in tiles of rows x columns: one number a row and tile of columns, or all of it.
    held: shapes of operands 2, 3, ... in front of batches."""
    lead = (batch,) if batch > 1 else ()
    args = [tensor((*lead, m, k), dtype), tensor((*lead, n, k), dtype), *(tensor(shape, dtype) for shape in held)]
    b = Block(tuple(args), (*lead, m // rows, n // columns), k // 64)
    at = len(lead)
    free = (0,) * at
    x, w = b.read(0, (*free, at, None), at + 1), b.read(1, (*free, None, at), at + 1)
    c = b.accum(b.op(OpKind.MATMUL, x, b.transpose(w, *range(at), at + 1, at)))
    for value in behind(b, c):
        shape = b.graph.types[value].shape
        if shape[-1] > 1:
            b.save(value, (*free, at, at + 1))
        else:
            b.save(b.reshape(value, *(1,) * at, 1, *shape[at:]), (*free, at + 1, at))
    return one_kernel("X W U V R"[: 2 * len(args) - 1], b)


def vector(b: Block, arg: int) -> int:
    """A held operand with an element for every column."""
    return b.accum(b.read(arg, (None, 0)), kind=AccumKind.HOLD)


def shifted(b: Block, c: int) -> tuple[int, int]:
    """Exponentials below the largest element of a row, and that one."""
    top = b.max(c, 1)
    return b.op(OpKind.EXP, b.op(OpKind.SUB, c, top)), top


def exponentials(b: Block, c: int) -> list[int]:
    weights, top = shifted(b, c)
    return [top, b.sum(weights, 1)]


def batches(b: Block, c: int) -> list[int]:
    return [b.sum(b.op(OpKind.SQR, c), 2)]


def activated(b: Block, c: int) -> list[int]:
    hidden = b.op(OpKind.RELU, b.op(OpKind.ADD, c, vector(b, 2)))
    return [b.sum(b.op(OpKind.MUL, hidden, vector(b, 3)), 1)]


def softmax(b: Block, c: int) -> list[int]:
    weights, _ = shifted(b, c)
    return [b.op(OpKind.DIV, weights, b.sum(weights, 1))]


def normed(b: Block, c: int) -> list[int]:
    """A norm of rows with a gain, a residual, and the sums of squares by themselves."""
    total = b.sum(b.op(OpKind.SQR, c), 1)
    mean = b.op(OpKind.ADD, b.op(OpKind.MUL, total, b.const(Fraction(1, 96))), b.const(Fraction(1, 1000)))
    out = b.op(OpKind.MUL, b.op(OpKind.DIV, c, b.op(OpKind.SQRT, mean)), vector(b, 2))
    return [b.op(OpKind.ADD, out, b.accum(b.read(3, (0, 1)), kind=AccumKind.HOLD)), total]


def tempered(b: Block, c: int) -> list[int]:
    """Exponentials of what is divided by a number that is read, and their sums."""
    number = b.accum(b.read(2, (None, None)), kind=AccumKind.HOLD)
    weights, _ = shifted(b, b.op(OpKind.DIV, c, number))
    return [weights, b.sum(weights, 1)]


def largest(b: Block, c: int) -> list[int]:
    """What is the largest weight of its row, others zero."""
    (weights,) = softmax(b, c)
    return [b.op(OpKind.MUL, weights, b.op(OpKind.EQUAL, weights, b.max(weights, 1)))]


def distances(b: Block, c: int) -> list[int]:
    """The largest of what is less than a number of each row, and a matrix, at every place."""
    rows = b.accum(b.read(2, (0, None)), kind=AccumKind.HOLD)
    matrix = b.accum(b.read(3, (0, 1)), kind=AccumKind.HOLD)
    return [b.max(b.op(OpKind.SUB, b.op(OpKind.MUL, c, matrix), rows), 1)]


NAMED: dict[str, KernelGraph] = {
    "maxima and sums of exponentials": folded(exponentials),
    "maxima, all columns, bf16": folded(lambda b, c: [b.max(c, 1)], rows=64, columns=256, dtype=DType.BF16),
    "sums of 48 columns": folded(lambda b, c: [b.sum(c, 1)], 192, 128, 96, 192, 48),
    "sums of squares of batches": folded(batches, 128, 64, 64, 64, 32, batch=2),
    "activated, times a vector": folded(activated, 256, 128, 128, 256, 64, held=((128,), (128,))),
    "softmax of all columns": folded(softmax, 128, 128, 96, 128, 96),
    "norm of all columns, its sums": folded(normed, 128, 64, 96, 64, 96, held=((96,), (128, 96))),
    "weights of tiles, their maxima": folded(lambda b, c: [*shifted(b, c)], 128, 64, 128, 64, 64),
    "by a number that is read": folded(tempered, 128, 64, 128, 64, 64, held=((1,),)),
    "a matrix and numbers of rows": folded(distances, 128, 64, 128, 64, 64, held=((128, 1), (128, 128))),
}


@pytest.mark.parametrize("name", NAMED)
def test_named(name: str) -> None:
    (kernel,) = plan(NAMED[name], FEW).kernels
    assert kernel is not None and kernel.program is not None and validate(kernel.program, FEW) == ()
    assert any(isinstance(s, Reduce) for s in kernel.program.every)
    check(NAMED[name], FEW, checked=name.startswith(("maxima and", "norm")))


def test_one_lane_of_a_row_stores_what_it_has_folded() -> None:
    """Nothing as long as the tile leaves a block."""
    graph = NAMED["maxima and sums of exponentials"]
    (kernel,) = plan(graph, FEW).kernels
    assert kernel is not None and kernel.program is not None
    stored = [s.target for s in kernel.program.every if isinstance(s, Store)]
    assert [kernel.program.tile(name).shape for name in stored] == [(4, 256, 1)] * 2
    source = emit(graph, FEW).source
    assert source.count("if (lane % 4 == 0)") == len(stored) and "transpose_words" not in source


PLACES = """mugraph 1
input %0 X f16[256, 128]
input %1 W f16[{n}, 128]
%2 = Arange extent=256 : f32[256]
%3 = Arange extent={n} : f32[{n}]
%4 = Graph(%0, %1, %2, %3) grid=[2, {tiles}] loop=2 {{
  %0 = InIter arg=0 imap=[0, *] fmap=1 : f16[128, 64]
  %1 = InIter arg=1 imap=[*, 0] fmap=1{whole} : f16[64, 64]
  %2 = InIter arg=2 imap=[0, *] : f32[128]
  %3 = InIter arg=3 imap=[*, 0]{part} : f32[64]
  %4 = Transpose(%1) perm=[1, 0] : f16[64, 64]
  %5 = Matmul(%0, %4) : f16[128, 64]
  %6 = Accum(%5) kind=sum : f16[128, 64]
  %7 = Accum(%2) kind=hold : f32[128]
  %8 = Accum(%3) kind=hold : f32[64]
  %9 = Reshape(%7) shape=[128, 1] : f32[128, 1]
  %10 = EwSub(%9, %8) : f32[128, 64]
  %11 = Apply(%10) name=compared formula="step(x)" : f32[128, 64]
  %12 = Where(%11, %6) : f16[128, 64]
  {saved}
}}
output %4 O
"""
"""What lies below the diagonal of a product."""
SUMMED = """%13 = Sum(%12) dim=1 : f16[128, 1]
  %14 = Reshape(%13) shape=[1, 128, 1] : f16[1, 128, 1]
  OutSaver(%14) omap=[1, 0]"""


@pytest.mark.parametrize(("saved", "columns", "reads"), [
    ("OutSaver(%12) omap=[0, 1]", 256, 0), ("OutSaver(%12) omap=[0, 1] shape=[256, 200]", 200, 0), (SUMMED, 256, 0),
    (SUMMED, 200, 1),  # zeros beyond the end are no places
])  # fmt: skip
def test_places_are_counted(saved: str, columns: int, reads: int) -> None:
    """No tensor of them is read, nor made."""
    hangs = columns % 64 != 0
    whole, part = (" tile=[64, 64]", " tile=[64]") if hangs else ("", "")
    graph = parse_graph(PLACES.format(n=columns, tiles=4, whole=whole, part=part, saved=saved))
    check(graph, FEW, checked=True)
    kernel = next(kernel for kernel in plan(graph, FEW).kernels if kernel is not None)
    assert kernel.program is not None and validate(kernel.program, FEW) == ()
    assert sum(isinstance(s, Read) for s in kernel.program.every) == reads
    assert len(emit(graph, FEW).launches) == 1 + reads


DEEP = folded(exponentials, 384, 512, 256, 192, 64)
"""Three groups of warps."""


@pytest.mark.parametrize(("graph", "steps"), [
    (NAMED["activated, times a vector"], 1), (DEEP, 2), (DEEP, 4), (folded(exponentials, 256, 512, 512, 128, 256), 2),
])  # fmt: skip
def test_groups_of_warps_begin_one_behind_the_other(graph: KernelGraph, steps: int) -> None:
    """As asked for, but so that two stages are loaded while a group waits for its turn."""
    ways = {way.ahead: way for way in variants(graph, FEW)}
    assert max(ways) == (4 if graph is DEEP else 2)
    way = ways[max(steps, 2)]
    (kernel,) = plan(graph, FEW, way).kernels
    assert kernel is not None and kernel.program is not None and validate(kernel.program, FEW) == ()
    body = next(s.body for s in kernel.program.statements("math") if isinstance(s, Walk))
    turn = next(place for place, s in enumerate(body) if isinstance(s, Turn))
    loop = body[turn + 1]
    assert isinstance(loop, Loop) and loop.count == steps
    emitted, inputs = emit(graph, FEW, way), draw(graph)
    for how in WAYS:
        for error in errors(graph, emitted, inputs, run(emitted, inputs, checked=True, **how)):
            assert error < TOLERANCE[DType.F16], how


def test_turns_that_take_all_stages_never_end() -> None:
    """The next group hands none of them back, since it waits for its turn."""
    (kernel,) = plan(DEEP, FEW, replace(default_options(FEW), ahead=4)).kernels
    assert kernel is not None and kernel.program is not None
    stages = max(ring.stages for ring in kernel.program.pipelines)
    said = text_of(kernel.program).replace("k', count=8)", "k', count=12)").replace("512", "768")
    assert stages == 7 and said.count("k', count=4)") == 2
    for first, found in ((7, False), (8, True)):
        changed = said.replace("k', count=4)", f"k', count={first})", 1)
        changed = changed.replace("k', count=4)", f"k', count={12 - first})")
        findings = validate(program_of(changed), FEW)
        assert bool(findings) == found and all("the next group holds them" in text for text in findings), findings


def test_what_is_stored_whole_takes_no_turns() -> None:
    assert {way.ahead for way in variants(linear(256, 512, 256, 128, 128), H200)} == {0}


def test_what_is_stored_is_as_large_as_its_largest_to_the_last_bit() -> None:
    """The kernel behind compares the two."""

    def weights(b: Block, c: int) -> list[int]:
        top = b.op(OpKind.MUL, b.max(c, 1), b.const(Fraction(9, 10)))
        found = b.op(OpKind.EXP, b.op(OpKind.SUB, c, top))
        return [found, b.max(found, 1)]

    graph = folded(weights, 128, 128, 64, 64, 64)
    c = Block(graph.types[-2:], (128,))
    c.save(c.op(OpKind.EQUAL, c.read(0, (0,)), c.reshape(c.read(1, (1,)), 1, 1)), (0,))
    graph = graph.append(Op(OpKind.GRAPH, (2, 3), body=c.graph)).returning((4,))
    emitted, inputs = emit(graph, FEW), draw(graph)
    for how in WAYS:
        (alike,) = run(emitted, inputs, **how)
        assert (alike.max(axis=1) == 1).all()


@pytest.mark.parametrize("graph", [
    folded(lambda b, c: [b.sum(c, 1)], dtype=DType.F32),  # lanes of such products share rows otherwise
    folded(lambda b, c: [b.sum(c, 1)], 130, 64, 128, 65, 128),  # plain cores have a row of them
    folded(lambda b, c: [b.sum(c, 0)], 64, 64, 64, 64, 64),  # of rows, which warps share
    folded(lambda b, c: [b.sum(b.sum(c, 1), 0)], 64, 64, 64, 64, 64),
    folded(largest, 64, 64, 64, 64, 64),  # computed twice, a weight is not the largest any more
])  # fmt: skip
def test_other_folds_pass_through_shared_memory(graph: KernelGraph) -> None:
    (kernel,) = plan(graph, FEW).kernels
    assert kernel is not None and kernel.program is None


@pytest.mark.parametrize(("rows", "columns"), [(128, 256), (256, 128), (64, 256)])
@pytest.mark.parametrize("behind", [exponentials, activated, softmax])
def test_no_spills_and_no_warnings(rows: int, columns: int, behind: Behind) -> None:
    n = columns if behind is softmax else 4096
    graph = folded(behind, 4096, 1024, n, rows, columns, held=((n,), (n,)) if behind is activated else ())
    cubin = compile_cubin(emit(graph, H200).source, "sm_90a")
    (usage,) = cubin.usage.values()
    assert usage.spill_store_bytes == usage.spill_load_bytes == usage.stack_bytes == 0
    assert "warning" not in cubin.log and "serialized" not in cubin.log, cubin.log
