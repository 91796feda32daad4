"""Numbers of places are no tensors: kernels take their own indices for them, whatever strategy emits them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from mirage_nb.codegen import Emitted, Launch, emit
from mirage_nb.ir import ApplyAttrs, ArangeAttrs, DType, Input, KernelGraph, Op, OpKind, WhereAttrs
from mirage_nb.ir.places import counted
from mirage_nb.ir.text import parse_graph
from mirage_nb.optimize import Options
from mirage_nb.targets import TARGETS, Target
from tests.codegen.running import TOLERANCE, WAYS, draw, errors, run
from tests.codegen.test_attention_programs import masked
from tests.mugraphs import Block, tensor

A100, H200 = TARGETS["a100"], TARGETS["h200"]


def _below(b: Block, rows: int, columns: int) -> int:
    return b.op(OpKind.APPLY, b.op(OpKind.SUB, rows, columns), attrs=ApplyAttrs("compared", "step(x)"))


def _graph(extents: tuple[int, ...], block: Block, *shapes: tuple[int, ...]) -> KernelGraph:
    """One kernel over numbers of these extents, then the inputs."""
    inputs = (Input(name, tensor(shape, DType.F32)) for name, shape in zip("XYZ", shapes, strict=False))
    graph = KernelGraph.start(*inputs)
    for extent in extents:
        graph = graph.append(Op(OpKind.ARANGE, (), ArangeAttrs(extent)))
    operands = (*range(len(shapes), len(graph.types)), *range(len(shapes)))
    graph = graph.append(Op(OpKind.GRAPH, operands, body=block.graph))
    return graph.returning((len(graph.types) - 1,))


def softmax(rows: int = 24, columns: int = 96, blocks: int = 4) -> KernelGraph:
    """Of a triangle; what is masked before a maximum stays in shared memory."""
    f32 = DType.F32
    b = Block((tensor((rows,), f32), tensor((columns,), f32), tensor((rows, columns), f32)), (blocks,))
    row, column, x = b.reshape(b.read(0, (0,)), rows // blocks, 1), b.read(1, (None,)), b.read(2, (0,))
    chosen = b.op(OpKind.WHERE, _below(b, row, column), x, attrs=WhereAttrs(infinite=-1))
    raised = b.op(OpKind.EXP, b.op(OpKind.SUB, chosen, b.max(chosen, 1)))
    b.save(b.op(OpKind.DIV, raised, b.sum(raised, 1)), (0,))
    return _graph((rows, columns), b, (rows, columns))


def weighted(rows: int = 12, columns: int = 100, *, dim: int = 1) -> KernelGraph:
    """sum(X * places, axis): held in registers, by rows or by columns."""
    f32 = DType.F32
    b = Block((tensor(((rows, columns)[dim],), f32), tensor((rows, columns), f32)), (2,))
    cut: tuple[int | None, ...] = (1 - dim,)
    x, places = b.read(1, cut), b.read(0, (None,))
    places = b.reshape(places, rows, 1) if dim == 0 else places
    b.save(b.sum(b.op(OpKind.MUL, x, places), dim), (1 - dim,))
    return _graph(((rows, columns)[dim],), b, (rows, columns))


def overhanging(rows: int = 10, columns: int = 37) -> KernelGraph:
    """X + places, in tiles that hang over the end."""
    f32 = DType.F32
    b = Block((tensor((columns,), f32), tensor((rows, columns), f32)), (5,))
    places, x = b.read(0, (0,), tile=(8,)), b.read(1, (1,), tile=(rows, 8))
    b.save(b.op(OpKind.ADD, x, b.op(OpKind.MUL, places, b.const(Fraction(1, 4)))), (1,), (rows, columns))
    return _graph((columns,), b, (rows, columns))


def streamed(rows: int = 16, columns: int = 64, loop: int = 4) -> KernelGraph:
    """The largest of X + places along a loop."""
    f32 = DType.F32
    b = Block((tensor((columns,), f32), tensor((rows, columns), f32)), (2,), loop)
    places, x = b.read(0, (None,), 0), b.read(1, (0,), 1)
    b.save(b.accum(b.sum(b.op(OpKind.MUL, x, places), 1)), (0,))
    return _graph((columns,), b, (rows, columns))


CASES: dict[str, tuple[KernelGraph, Target]] = {
    "softmax of a triangle": (softmax(), H200),
    "held by rows": (weighted(), H200),
    "held by columns": (weighted(16, 64, dim=0), H200),
    "tiles that hang over": (overhanging(), H200),
    "a loop": (streamed(), A100),
    "fragments": (masked(rows=32, keys=32, tiles=2), A100),
}


def run_all(graph: KernelGraph, emitted: Emitted) -> None:
    """Compare with float64, eagerly and deferred."""
    inputs = draw(graph)
    for how in WAYS:
        outputs = run(emitted, inputs, **how)
        for error, type_ in zip(errors(graph, emitted, inputs, outputs), graph.output_types, strict=True):
            assert error < TOLERANCE[type_.dtype], how


@pytest.mark.parametrize("name", CASES)
def test_kernels_count_for_themselves(name: str) -> None:
    graph, target = CASES[name]
    emitted = emit(graph, target, Options(warps=4))
    assert [type(launch) for launch in emitted.launches] == [Launch]
    assert counted(graph) == {v for v, t in enumerate(graph.types) if v >= graph.input_count and len(t.shape) == 1} - {
        graph.outputs[0]
    }
    run_all(graph, emitted)


def test_what_a_library_or_a_product_reads_is_stored() -> None:
    """Also where the same numbers are read by a kernel that counts."""
    graph = KernelGraph.start(Input("X", tensor((16,), DType.F32))).append(Op(OpKind.ARANGE, (), ArangeAttrs(16)))
    b = Block((tensor((16,), DType.F32), tensor((16,), DType.F32)), (1,))
    b.save(b.op(OpKind.ADD, b.read(0, (None,)), b.read(1, (None,))), (None,))
    graph = graph.append(Op(OpKind.GRAPH, (0, 1), body=b.graph)).append(Op(OpKind.MUL, (1, 2))).returning((3,))
    assert not counted(graph)
    emitted = emit(graph, H200)
    assert len(emitted.launches) == 3 and "float* __restrict__ x1" not in emitted.source
    run_all(graph, emitted)
    p = Block((tensor((16,), DType.F32), tensor((16, 16), DType.F32)), (1,))
    row = p.reshape(p.read(0, (None,)), 1, 16)
    p.save(p.op(OpKind.MATMUL, row, p.read(1, (None,))), (None,))
    product = _graph((16,), p, (16, 16))
    assert len(emit(product, H200).launches) == 2
    run_all(product, emit(product, H200))


def test_numbers_are_there_before_the_kernel_in_front_has_ended() -> None:
    """Only what that one writes is waited for."""
    graph = parse_graph("""mugraph 1
input %0 X f16[33, 16]
%1 = Arange extent=16
%2 = Graph(%0) grid=[33, 2] loop=1 {
  %0 = InIter arg=0 imap=[0, 1]
  %1 = EwExp(%0)
  OutSaver(%1) omap=[0, 1]
}
%3 = Graph(%2, %1) grid=[33, 2] loop=1 {
  %0 = InIter arg=0 imap=[0, *]
  %1 = InIter arg=1 imap=[*, 0]
  %2 = InIter arg=1 imap=[*, *]
  %3 = Reshape(%1) shape=[8, 1]
  %4 = Fused(%3, %2) {
    %2 = EwSub(%0, %1)
    %3 = Apply(%2) name=compared formula="step(x)"
    return %3
  }
  %5 = Transpose(%4) perm=[1, 0]
  %6 = Fused(%0, %5) {
    %2 = Matmul(%0, %1)
    %3 = Cast(%2) dtype=f16
    return %3
  }
  OutSaver(%6) omap=[0, 1]
}
output %3 O
""")
    emitted = emit(graph, H200)
    assert [step.overlaps for step in emitted.launches if isinstance(step, Launch)] == [False, True]
    run_all(graph, emitted)
