"""Hand-built tensor programs and muGraphs of the named workloads, at any size, for the tests of all rooms.

Each builder returns a `Case`: the program as written and one muGraph of it that is known to be right.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    BlockGraph,
    ConstAttrs,
    DimAttrs,
    DType,
    InIterAttrs,
    Input,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    ReshapeAttrs,
    TensorType,
    ThreadGraph,
    TransposeAttrs,
)
from mirage_nb.ir.ops import Attrs, Shape

Dims = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A program and a muGraph of it."""

    name: str
    program: KernelGraph
    candidate: KernelGraph


G = TypeVar("G", KernelGraph, BlockGraph)


class _Building(Generic[G]):
    """A graph under construction; every method appends one operator and returns its value."""

    graph: G

    def op(self, kind: OpKind, *inputs: int, attrs: Attrs | None = None, body: ThreadGraph | None = None) -> int:
        self.graph = self.graph.append(Op(kind, inputs, attrs, body))
        return len(self.graph.types) - 1

    def const(self, value: Fraction | int, symbol: str = "") -> int:
        return self.op(OpKind.CONST, attrs=ConstAttrs(Fraction(value), symbol))

    def sum(self, x: int, dim: int) -> int:
        return self.op(OpKind.SUM, x, attrs=DimAttrs(dim))

    def max(self, x: int, dim: int) -> int:
        return self.op(OpKind.MAX, x, attrs=DimAttrs(dim))

    def transpose(self, x: int, *perm: int) -> int:
        return self.op(OpKind.TRANSPOSE, x, attrs=TransposeAttrs(perm))

    def reshape(self, x: int, *shape: int) -> int:
        return self.op(OpKind.RESHAPE, x, attrs=ReshapeAttrs(shape))


class Kernel(_Building[KernelGraph]):
    """A kernel graph over named inputs of one element type."""

    def __init__(self, dtype: DType = DType.F16, /, **shapes: tuple[int, ...]) -> None:
        self.graph = KernelGraph.start(*(Input(name, tensor(shape, dtype)) for name, shape in shapes.items()))
        self.names = {name: value for value, name in enumerate(shapes)}

    def __getitem__(self, name: str) -> int:
        return self.names[name]

    def block(self, args: tuple[int, ...], grid: tuple[int, ...], loop: int = 1) -> Block:
        return Block(tuple(self.graph.types[v] for v in args), grid, loop)

    def launch(self, args: tuple[int, ...], block: Block) -> int:
        """Append the graph-defined operator; returns its first value."""
        first = len(self.graph.types)
        self.graph = self.graph.append(Op(OpKind.GRAPH, args, body=block.graph))
        return first

    def returning(self, *outputs: int) -> KernelGraph:
        return self.graph.returning(outputs)


class Block(_Building[BlockGraph]):
    """A block graph over operands of these types."""

    def __init__(self, args: tuple[TensorType, ...], grid: tuple[int, ...], loop: int = 1) -> None:
        self.graph = BlockGraph.start(args, grid, loop)

    def read(self, arg: int, imap: Dims, fmap: int | None = None, tile: Shape | None = None) -> int:
        return self.op(OpKind.IN_ITER, attrs=InIterAttrs(arg, imap, fmap, tile))

    def save(self, x: int, omap: Dims, shape: Shape | None = None) -> None:
        self.graph = self.graph.append(Op(OpKind.OUT_SAVER, (x,), OutSaverAttrs(omap, shape)))

    def accum(self, *inputs: int, kind: AccumKind = AccumKind.SUM, dim: int | None = None) -> int:
        return self.op(OpKind.ACCUM, *inputs, attrs=AccumAttrs(kind, dim))

    def fused(self, inputs: tuple[int, ...], thread: ThreadGraph) -> int:
        return self.op(OpKind.FUSED, *inputs, body=thread)


def tensor(shape: Shape, dtype: DType = DType.F16) -> TensorType:
    return TensorType(shape, dtype)


def one_kernel(names: str, block: Block) -> KernelGraph:
    """A kernel graph with one graph-defined operator over all its inputs."""
    inputs = (Input(n, t) for n, t in zip(names.split(), block.graph.args, strict=True))
    graph = KernelGraph.start(*inputs)
    graph = graph.append(Op(OpKind.GRAPH, tuple(range(len(block.graph.args))), body=block.graph))
    count = len(block.graph.savers)
    return graph.returning(tuple(range(len(graph.types) - count, len(graph.types))))


def rms(build: Kernel | Block, x: int, dim: int, extent: int) -> int:
    """x / sqrt(mean of x * x along dim)."""
    mean = build.op(OpKind.MUL, build.sum(build.op(OpKind.SQR, x), dim), build.const(Fraction(1, extent)))
    return build.op(OpKind.DIV, x, build.op(OpKind.SQRT, mean))


def rmsnorm(
    m: int = 2, k: int = 8, n: int = 8, grid: int = 2, loop: int = 4, dtype: DType = DType.F16
) -> Case:
    """rms(X) @ W in one kernel, the division after the loop."""
    program = Kernel(dtype, X=(m, k), W=(k, n))
    o = program.op(OpKind.MATMUL, rms(program, program["X"], 1, k), program["W"])
    outer = Kernel(dtype, X=(m, k), W=(k, n))
    b = outer.block((0, 1), (grid,), loop)
    x, w = b.read(0, (None,), 1), b.read(1, (1,), 0)
    squares = b.accum(b.sum(b.op(OpKind.SQR, x), 1))
    product = b.accum(b.op(OpKind.MATMUL, x, w))
    root = b.op(OpKind.SQRT, b.op(OpKind.MUL, squares, b.const(Fraction(1, k))))
    b.save(b.op(OpKind.DIV, product, root), (1,))
    return Case("rmsnorm", program.returning(o), outer.returning(outer.launch((0, 1), b)))


def rmsnorm_fig3(m: int = 4, k: int = 8, n: int = 8, grid: int = 2, loop: int = 2) -> Case:
    """Figure 3 of the paper: the gain is multiplied in, scale, root and division in one thread graph."""
    program = Kernel(X=(m, k), G=(k,), W=(k, n))
    y = program.op(OpKind.MUL, rms(program, program["X"], 1, k), program["G"])
    o = program.op(OpKind.MATMUL, y, program["W"])
    outer = Kernel(X=(m, k), G=(k,), W=(k, n))
    b = outer.block((0, 1, 2), (grid,), loop)
    x, g, w = b.read(0, (None,), 1), b.read(1, (None,), 0), b.read(2, (1,), 0)
    product = b.accum(b.op(OpKind.MATMUL, b.op(OpKind.MUL, x, g), w))
    squares = b.accum(b.sum(b.op(OpKind.SQR, x), 1))
    t = ThreadGraph.start((b.graph.types[product], b.graph.types[squares]))
    t = t.append(Op(OpKind.CONST, attrs=ConstAttrs(Fraction(1, k))))
    t = t.append(Op(OpKind.MUL, (1, 2))).append(Op(OpKind.SQRT, (3,))).append(Op(OpKind.DIV, (0, 4)))
    b.save(b.fused((product, squares), t.returning((5,))), (1,))
    return Case("rmsnorm_fig3", program.returning(o), outer.returning(outer.launch((0, 1, 2), b)))


def gated_mlp(
    m: int = 4, k: int = 8, n: int = 8, grid: int = 2, loop: int = 2, dtype: DType = DType.F16
) -> Case:
    """silu(X @ W1) * (X @ W2), two accumulators in one loop."""
    shapes = {"X": (m, k), "W1": (k, n), "W2": (k, n)}
    program = Kernel(dtype, **shapes)
    gate = program.op(OpKind.SILU, program.op(OpKind.MATMUL, 0, 1))
    o = program.op(OpKind.MUL, gate, program.op(OpKind.MATMUL, 0, 2))
    outer = Kernel(dtype, **shapes)
    b = outer.block((0, 1, 2), (grid,), loop)
    x, w1, w2 = b.read(0, (None,), 1), b.read(1, (1,), 0), b.read(2, (1,), 0)
    first, second = b.accum(b.op(OpKind.MATMUL, x, w1)), b.accum(b.op(OpKind.MATMUL, x, w2))
    b.save(b.op(OpKind.MUL, b.op(OpKind.SILU, first), second), (1,))
    return Case("gated_mlp", program.returning(o), outer.returning(outer.launch((0, 1, 2), b)))


def lora(m: int = 4, k: int = 8, n: int = 8, r: int = 2, grid: int = 2, loop: int = 2) -> Case:
    """X @ W + (X @ A) @ C with three matmuls, the low-rank one after the loop as a concatenated matmul."""
    shapes = {"X": (m, k), "W": (k, n), "A": (k, r), "C": (r, n)}
    program = Kernel(**shapes)
    low = program.op(OpKind.MATMUL, program.op(OpKind.MATMUL, 0, 2), 3)
    o = program.op(OpKind.ADD, program.op(OpKind.MATMUL, 0, 1), low)
    outer = Kernel(**shapes)
    b = outer.block((0, 1, 2, 3), (grid,), loop)
    x, w, a = b.read(0, (None,), 1), b.read(1, (1,), 0), b.read(2, (None,), 0)
    c = b.read(3, (1,))
    xa = b.op(OpKind.MATMUL, x, a)
    b.save(b.accum(b.op(OpKind.CONCAT_MATMUL, x, xa, w, c)), (1,))
    return Case("lora", program.returning(o), outer.returning(outer.launch((0, 1, 2, 3), b)))


def gqa(h: int = 2, q: int = 4, d: int = 4, s: int = 8, grid: tuple[int, int] = (2, 2), loop: int = 2) -> Case:
    """FlashAttention without the shift: one kernel, a loop over keys."""
    shapes = {"Q": (h, q, d), "K": (h, d, s), "V": (h, s, d)}
    program = Kernel(**shapes)
    e = program.op(OpKind.EXP, program.op(OpKind.MATMUL, 0, 1))
    o = program.op(OpKind.MATMUL, program.op(OpKind.DIV, e, program.sum(e, 2)), 2)
    outer = Kernel(**shapes)
    b = outer.block((0, 1, 2), grid, loop)
    qt, kt, vt = b.read(0, (0, 1)), b.read(1, (0, None), 2), b.read(2, (0, None), 1)
    et = b.op(OpKind.EXP, b.op(OpKind.MATMUL, qt, kt))
    top, bottom = b.accum(b.op(OpKind.MATMUL, et, vt)), b.accum(b.sum(et, 2))
    b.save(b.op(OpKind.DIV, top, bottom), (0, 1))
    return Case("gqa", program.returning(o), outer.returning(outer.launch((0, 1, 2), b)))


def safe_program(h: int, q: int, d: int, s: int) -> Kernel:
    """softmax(Q @ K^T * d**-0.5) @ V with the maximum subtracted; the output is the last value."""
    program = Kernel(Q=(h, q, d), K=(h, s, d), V=(h, s, d))
    kt = program.transpose(1, 0, 2, 1)
    scores = program.op(OpKind.MUL, program.op(OpKind.MATMUL, 0, kt), scale(program, d))
    e = program.op(OpKind.EXP, program.op(OpKind.SUB, scores, program.max(scores, 2)))
    program.op(OpKind.MATMUL, program.op(OpKind.DIV, e, program.sum(e, 2)), 2)
    return program


def scale(build: Kernel | Block, d: int) -> int:
    return build.const(Fraction(d**-0.5), f"{d}**-0.5")


def attention_safe(
    h: int = 2, q: int = 4, d: int = 4, s: int = 8, grid: tuple[int, int] = (2, 2), loop: int = 2
) -> Case:
    """The FlashAttention form with running maximum and rescaled accumulators."""
    program = safe_program(h, q, d, s)
    outer = Kernel(Q=(h, q, d), K=(h, s, d), V=(h, s, d))
    b = outer.block((0, 1, 2), grid, loop)
    e, m, v = safe_tile(b, d, b.read(0, (0, 1)), b.read(1, (0, None), 1), b.read(2, (0, None), 1))
    top = b.accum(b.op(OpKind.MATMUL, e, v), m, kind=AccumKind.RESCALE)
    bottom = b.accum(b.sum(e, 2), m, kind=AccumKind.RESCALE)
    b.save(b.op(OpKind.DIV, top, bottom), (0, 1))
    return Case(
        "attention_safe",
        program.returning(len(program.graph.types) - 1),
        outer.returning(outer.launch((0, 1, 2), b)),
    )


def safe_tile(b: Block, d: int, q: int, k: int, v: int) -> tuple[int, int, int]:
    """exp(S - m), m and V of one tile of keys, m the tile's own row maximum."""
    kt = b.transpose(k, 0, 2, 1)
    scores = b.op(OpKind.MUL, b.op(OpKind.MATMUL, q, kt), scale(b, d))
    m = b.max(scores, 2)
    return b.op(OpKind.EXP, b.op(OpKind.SUB, scores, m)), m, v


def flash_decoding(h: int = 2, q: int = 4, d: int = 4, s: int = 16, parts: int = 2, loop: int = 2) -> Case:
    """Keys split over the grid: partial sums with their maxima, then a combining kernel."""
    program = safe_program(h, q, d, s)
    outer = Kernel(Q=(h, q, d), K=(h, s, d), V=(h, s, d))
    b = outer.block((0, 1, 2), (h, parts), loop)
    e, m, v = safe_tile(b, d, b.read(0, (0, None)), b.read(1, (0, 1), 1), b.read(2, (0, 1), 1))
    top = b.accum(b.op(OpKind.MATMUL, e, v), m, kind=AccumKind.RESCALE)
    bottom = b.accum(b.sum(e, 2), m, kind=AccumKind.RESCALE)
    highest = b.accum(m, kind=AccumKind.MAX)
    for value, width in ((top, d), (bottom, 1), (highest, 1)):
        b.save(b.reshape(value, 1, 1, q, width), (1, 0))
    first = outer.launch((0, 1, 2), b)
    partial = (first, first + 1, first + 2)
    c = outer.block(partial, (h,))
    o, total, tops = (c.read(i, (1,)) for i in range(3))
    sums = [c.op(OpKind.RESCALED_SUM, x, tops, attrs=DimAttrs(0)) for x in (o, total)]
    c.save(c.reshape(c.op(OpKind.DIV, *sums), 1, q, d), (0,))
    return Case(
        "flash_decoding",
        program.returning(len(program.graph.types) - 1),
        outer.returning(outer.launch(partial, c)),
    )


def qknorm_program(h: int, q: int, d: int, s: int) -> KernelGraph:
    """gqa with rms on the last axis of Q and of V."""
    program = Kernel(Q=(h, q, d), K=(h, d, s), V=(h, s, d))
    e = program.op(OpKind.EXP, program.op(OpKind.MATMUL, rms(program, 0, 2, d), 1))
    weights = program.op(OpKind.DIV, e, program.sum(e, 2))
    return program.returning(program.op(OpKind.MATMUL, weights, rms(program, 2, 2, d)))


def qknorm(h: int = 2, q: int = 4, d: int = 4, s: int = 8, grid: tuple[int, int] = (2, 2), loop: int = 2) -> Case:
    """Both norms in front of the FlashAttention form."""
    outer = Kernel(Q=(h, q, d), K=(h, d, s), V=(h, s, d))
    b = outer.block((0, 1, 2), grid, loop)
    qn, k = rms(b, b.read(0, (0, 1)), 2, d), b.read(1, (0, None), 2)
    vn = rms(b, b.read(2, (0, None), 1), 2, d)
    e = b.op(OpKind.EXP, b.op(OpKind.MATMUL, qn, k))
    top, bottom = b.accum(b.op(OpKind.MATMUL, e, vn)), b.accum(b.sum(e, 2))
    b.save(b.op(OpKind.DIV, top, bottom), (0, 1))
    return Case("qknorm", qknorm_program(h, q, d, s), outer.returning(outer.launch((0, 1, 2), b)))


def qknorm_wrong(h: int = 2, q: int = 4, d: int = 4, s: int = 8, grid: tuple[int, int] = (2, 2), loop: int = 2) -> Case:
    """A graph that a ramp of inputs cannot tell from qknorm: row sums of rms(Q) times the mean row of K.

    With K[i, j] = a*i + b*j + c, rms(Q) @ K differs from that product by a term that is constant along the
    keys, and softmax does not see such terms.
    """
    outer = Kernel(Q=(h, q, d), K=(h, d, s), V=(h, s, d))
    b = outer.block((0, 1, 2), grid, loop)
    qn, k = rms(b, b.read(0, (0, 1)), 2, d), b.read(1, (0, None), 2)
    vn = rms(b, b.read(2, (0, None), 1), 2, d)
    mean = b.op(OpKind.MUL, b.sum(k, 1), b.const(Fraction(1, d)))
    e = b.op(OpKind.EXP, b.op(OpKind.MUL, b.sum(qn, 2), mean))
    top, bottom = b.accum(b.op(OpKind.MATMUL, e, vn)), b.accum(b.sum(e, 2))
    b.save(b.op(OpKind.DIV, top, bottom), (0, 1))
    return Case("qknorm_wrong", qknorm_program(h, q, d, s), outer.returning(outer.launch((0, 1, 2), b)))


def concat_free(m: int = 4, k: int = 4, n: int = 8, grid: int = 2, loop: int = 2) -> Case:
    """exp(X) @ W with a loop over the columns of W: tiles are concatenated, X's tile is held."""
    program = Kernel(X=(m, k), W=(k, n))
    o = program.op(OpKind.MATMUL, program.op(OpKind.EXP, 0), 1)
    outer = Kernel(X=(m, k), W=(k, n))
    b = outer.block((0, 1), (grid,), loop)
    x, w = b.read(0, (0,)), b.read(1, (None,), 1)
    held = b.accum(x, kind=AccumKind.HOLD)
    wide = b.accum(w, kind=AccumKind.CONCAT, dim=1)
    b.save(b.op(OpKind.MATMUL, b.op(OpKind.EXP, held), wide), (0,))
    return Case("concat_free", program.returning(o), outer.returning(outer.launch((0, 1), b)))


BUILDERS = (
    rmsnorm, rmsnorm_fig3, gated_mlp, lora, gqa, attention_safe, flash_decoding, qknorm, concat_free,
)  # fmt: skip


def cases() -> tuple[Case, ...]:
    """All right cases at their small default sizes."""
    return tuple(build() for build in BUILDERS)
