"""Small muGraphs for the picture tests: Figure 3, split attention with a running maximum, odd ones."""

from __future__ import annotations

from fractions import Fraction

from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    ApplyAttrs,
    BlockGraph,
    ClampAttrs,
    ConstAttrs,
    DimAttrs,
    DType,
    InIterAttrs,
    Input,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    PowAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    TensorType,
    ThreadGraph,
    TransposeAttrs,
)


class Builder:
    """Appends operators and gives the defined value back."""

    def __init__(self, graph: KernelGraph | BlockGraph | ThreadGraph) -> None:
        self.graph = graph

    def __call__(self, op: Op) -> int:
        self.graph = self.graph.append(op)
        return len(self.graph.types) - 1

    def op(self, kind: OpKind, *inputs: int, **attrs: object) -> int:
        return self(Op(kind, inputs, **attrs))  # type: ignore[arg-type]

    def const(self, value: Fraction, symbol: str = "") -> int:
        return self(Op(OpKind.CONST, (), ConstAttrs(value, symbol)))

    def read(self, arg: int, imap: tuple[int | None, ...], fmap: int | None = None) -> int:
        return self(Op(OpKind.IN_ITER, (), InIterAttrs(arg, imap, fmap)))

    def accumulate(self, kind: AccumKind, *inputs: int) -> int:
        return self(Op(OpKind.ACCUM, inputs, AccumAttrs(kind)))

    def save(self, value: int, omap: tuple[int | None, ...]) -> None:
        self(Op(OpKind.OUT_SAVER, (value,), OutSaverAttrs(omap)))


def tensor(*shape: int) -> TensorType:
    return TensorType(shape, DType.F16)


def rmsnorm_program(rows: int = 16, inner: int = 1024, columns: int = 4096) -> KernelGraph:
    """Figure 3a: RMSNorm with a gain, then a matmul."""
    b = Builder(
        KernelGraph.start(
            Input("X", tensor(rows, inner)), Input("G", tensor(inner)), Input("W", tensor(inner, columns))
        )
    )
    mean = b.op(
        OpKind.MUL,
        b.op(OpKind.SUM, b.op(OpKind.SQR, 0), attrs=DimAttrs(1)),
        b.const(Fraction(1, inner)),
    )
    normed = b.op(OpKind.DIV, b.op(OpKind.MUL, 0, 1), b.op(OpKind.SQRT, mean))
    out = b.op(OpKind.MATMUL, normed, 2)
    assert isinstance(b.graph, KernelGraph)
    return b.graph.returning((out,), ("Z",))


def rmsnorm_fused(
    rows: int = 16, inner: int = 1024, columns: int = 4096, blocks: int = 128, loop: int = 16
) -> KernelGraph:
    """Figure 3b: one kernel, division after the loop, the last three operators in a thread graph."""
    source = rmsnorm_program(rows, inner, columns)
    args = tuple(given.type for given in source.inputs)
    b = Builder(BlockGraph.start(args, (blocks,), loop))
    x, g, w = b.read(0, (None,), 1), b.read(1, (None,), 0), b.read(2, (1,), 0)
    squares = b.accumulate(AccumKind.SUM, b.op(OpKind.SUM, b.op(OpKind.SQR, x), attrs=DimAttrs(1)))
    product = b.accumulate(AccumKind.SUM, b.op(OpKind.MATMUL, b.op(OpKind.MUL, x, g), w))
    t = Builder(ThreadGraph.start((b.graph.types[squares], b.graph.types[product])))
    mean = t.op(OpKind.MUL, 0, t.const(Fraction(1, inner)))
    out = t.op(OpKind.DIV, 1, t.op(OpKind.SQRT, mean))
    assert isinstance(t.graph, ThreadGraph)
    b.save(b.op(OpKind.FUSED, squares, product, body=t.graph.returning((out,))), (1,))
    assert isinstance(b.graph, BlockGraph)
    k = KernelGraph.start(*source.inputs).append(Op(OpKind.GRAPH, (0, 1, 2), None, b.graph))
    return k.returning((3,), ("Z",))


def split_attention() -> KernelGraph:
    """Numerically safe attention, keys split over the grid, then a second kernel that combines the parts."""
    q, k, v = tensor(2, 256, 64), tensor(2, 64, 4096), tensor(2, 4096, 64)
    b = Builder(BlockGraph.start((q, k, v), (2, 8, 16), 4))
    tq, tk, tv = b.read(0, (0, 1, None)), b.read(1, (0, None, 2), 2), b.read(2, (0, None, 1), 1)
    score = b.op(OpKind.MUL, b.op(OpKind.MATMUL, tq, tk), b.const(Fraction(1, 8), "scale"))
    top = b.op(OpKind.MAX, score, attrs=DimAttrs(2))
    weight = b.op(OpKind.EXP, b.op(OpKind.SUB, score, top))
    largest = b.accumulate(AccumKind.MAX, top)
    mass = b.accumulate(AccumKind.RESCALE, b.op(OpKind.SUM, weight, attrs=DimAttrs(2)), top)
    value = b.accumulate(AccumKind.RESCALE, b.op(OpKind.MATMUL, weight, tv), top)
    for part in (value, mass, largest):
        shape = b.graph.types[part].shape
        b.save(b.op(OpKind.RESHAPE, part, attrs=ReshapeAttrs((1, *shape))), (1, 2, 0))
    assert isinstance(b.graph, BlockGraph)
    graph = KernelGraph.start(Input("Q", q), Input("K", k), Input("V", v))
    graph = graph.append(Op(OpKind.GRAPH, (0, 1, 2), None, b.graph))
    c = Builder(BlockGraph.start(tuple(graph.types[i] for i in (3, 4, 5)), (2, 64), 1))
    po, pl, pm = c.read(0, (1, 2)), c.read(1, (1, 2)), c.read(2, (1, 2))
    total = c.op(OpKind.RESCALED_SUM, po, pm, attrs=DimAttrs(0))
    norm = c.op(OpKind.RESCALED_SUM, pl, pm, attrs=DimAttrs(0))
    out = c.op(OpKind.DIV, total, norm)
    c.save(c.op(OpKind.RESHAPE, out, attrs=ReshapeAttrs((1, 4, 64))), (0, 1))
    assert isinstance(c.graph, BlockGraph)
    return graph.append(Op(OpKind.GRAPH, (3, 4, 5), None, c.graph)).returning((6,))


def twice_read() -> KernelGraph:
    """One operand read in two ways, two outputs, no loop, an input that is also returned."""
    x = tensor(8, 4096)
    b = Builder(BlockGraph.start((x, x), (8, 4), 1))
    whole, part, other = b.read(0, (0, None)), b.read(0, (0, 1)), b.read(1, (0, 1))
    norm = b.op(OpKind.SUM, b.op(OpKind.SQR, whole), attrs=DimAttrs(1))
    b.save(b.op(OpKind.DIV, part, norm), (0, 1))
    b.save(b.op(OpKind.ADD, part, other), (0, 1))
    assert isinstance(b.graph, BlockGraph)
    graph = KernelGraph.start(Input("H", x), Input("alpha", x))
    graph = graph.append(Op(OpKind.GRAPH, (0, 1), None, b.graph))
    return graph.returning((2, 3, 0), ("norm", "sum", "copy"))


def every_attribute() -> KernelGraph:
    """Pre-defined operators with every kind of attribute, and a long chain beside a short one."""
    b = Builder(KernelGraph.start(Input("X", tensor(4, 8)), Input("a_rather_long_tensor_name", tensor(8, 4))))
    value = b.op(OpKind.TRANSPOSE, 0, attrs=TransposeAttrs((1, 0)))
    value = b.op(OpKind.CLAMP, value, attrs=ClampAttrs(Fraction(0), None))
    value = b.op(OpKind.POW, value, attrs=PowAttrs(Fraction(3, 2)))
    value = b.op(OpKind.ADD, value, 1)
    value = b.op(OpKind.APPLY, value, attrs=ApplyAttrs("mish", "x * tanh(log(1 + exp(x)))"))
    value = b.op(OpKind.CONCAT, value, 1, attrs=DimAttrs(1))
    value = b.op(OpKind.REPEAT, value, attrs=RepeatAttrs(0, 2))
    value = b.op(OpKind.MUL, value, b.const(Fraction(355, 1130973355292)))
    lone = b.const(Fraction(1, 3))
    assert isinstance(b.graph, KernelGraph)
    return b.graph.returning((value, lone))


SAMPLES = {
    "rmsnorm_program": rmsnorm_program,
    "rmsnorm_fused": rmsnorm_fused,
    "split_attention": split_attention,
    "twice_read": twice_read,
    "every_attribute": every_attribute,
}
