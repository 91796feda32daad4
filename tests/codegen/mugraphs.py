"""More muGraphs built by hand, at any size, in the forms in which kernels are planned and emitted."""

from __future__ import annotations

from fractions import Fraction

from mirage_nb.ir import AccumKind, CastAttrs, DimAttrs, DType, Input, KernelGraph, Op, OpKind, WhereAttrs
from tests import mugraphs
from tests.mugraphs import Block, one_kernel, tensor


def rmsnorm(
    m: int = 2, k: int = 512, n: int = 128, columns: int = 64, loop: int = 4, dtype: DType = DType.F16
) -> KernelGraph:
    """rms(X) @ W in one kernel, the division after the loop."""
    return mugraphs.rmsnorm(m, k, n, n // columns, loop, dtype).candidate


def rmsnorm_gain(m: int = 16, k: int = 256, n: int = 128, columns: int = 64, loop: int = 4) -> KernelGraph:
    """The paper's Figure 3: X * G inside the loop, Mul, Sqrt and Div after it."""
    b = Block((tensor((m, k)), tensor((k,)), tensor((k, n))), (n // columns,), loop)
    x, g, w = b.read(0, (None,), 1), b.read(1, (None,), 0), b.read(2, (1,), 0)
    squares = b.accum(b.sum(b.op(OpKind.SQR, x), 1))
    product = b.accum(b.op(OpKind.MATMUL, b.op(OpKind.MUL, x, g), w))
    mean = b.op(OpKind.MUL, squares, b.const(Fraction(1, k)))
    b.save(b.op(OpKind.DIV, product, b.op(OpKind.SQRT, mean)), (1,))
    return one_kernel("X G W", b)


def gated_mlp(
    m: int = 8, k: int = 256, n: int = 128, columns: int = 64, loop: int = 4, dtype: DType = DType.F16
) -> KernelGraph:
    """silu(X @ W1) * (X @ W2) in one kernel, two products in one loop."""
    return mugraphs.gated_mlp(m, k, n, n // columns, loop, dtype).candidate


def lora(m: int = 16, k: int = 128, r: int = 16, n: int = 64, columns: int = 32, loop: int = 2) -> KernelGraph:
    """X @ W + (X @ A) @ C in one kernel: three products."""
    args = (tensor((m, k)), tensor((k, n)), tensor((k, r)), tensor((r, n)))
    b = Block(args, (n // columns,), loop)
    x, w, a = b.read(0, (None,), 1), b.read(1, (1,), 0), b.read(2, (None,), 0)
    c = b.read(3, (1,))
    wide = b.op(OpKind.MATMUL, x, w)
    narrow = b.op(OpKind.MATMUL, b.op(OpKind.MATMUL, x, a), c)
    b.save(b.accum(b.op(OpKind.ADD, wide, narrow)), (1,))
    return one_kernel("X W A C", b)


def lora_concat(m: int = 16, k: int = 128, r: int = 16, n: int = 64, columns: int = 32, loop: int = 2) -> KernelGraph:
    """(X || X @ A) @ (W || C) as a concatenated product."""
    return mugraphs.lora(m, k, n, r, n // columns, loop).candidate


def attention(
    heads: int = 2,
    rows: int = 32,
    keys: int = 128,
    d: int = 64,
    row_blocks: int = 2,
    loop: int = 2,
    late: bool = False,
) -> KernelGraph:
    """exp(Q @ K) / sum, times V, in one kernel: the FlashAttention form. K is [heads, d, keys].

    late: rows are summed after the loop, from an accumulated tile.
    """
    args = (tensor((heads, rows, d)), tensor((heads, d, keys)), tensor((heads, keys, d)))
    b = Block(args, (heads, row_blocks), loop)
    q, k, v = b.read(0, (0, 1)), b.read(1, (0, None), 2), b.read(2, (0, None), 1)
    e = b.op(OpKind.EXP, b.op(OpKind.MATMUL, q, k))
    total = b.sum(b.accum(e), 2) if late else b.accum(b.sum(e, 2))
    out = b.accum(b.op(OpKind.MATMUL, e, v))
    b.save(b.op(OpKind.DIV, out, total), (0, 1))
    return one_kernel("Q K V", b)


def safe_attention(
    heads: int = 2, rows: int = 16, keys: int = 128, d: int = 64, row_blocks: int = 1, loop: int = 2
) -> KernelGraph:
    """softmax(Q @ K^T / 8) @ V with a running maximum and rescaled sums. K is [heads, keys, d]."""
    args = (tensor((heads, rows, d)), tensor((heads, keys, d)), tensor((heads, keys, d)))
    b = Block(args, (heads, row_blocks), loop)
    q, k, v = b.read(0, (0, 1)), b.read(1, (0, None), 1), b.read(2, (0, None), 1)
    total, out, _ = _safe_sums(b, q, k, v)
    b.save(b.op(OpKind.DIV, out, total), (0, 1))
    return one_kernel("Q K V", b)


def _safe_sums(b: Block, q: int, k: int, v: int) -> tuple[int, int, int]:
    """The rescaled sums of E and of E @ V for E = exp(S - m), S = Q @ K^T / 8; and m, the tile's own row maximum."""
    scores = b.op(OpKind.MATMUL, q, b.transpose(k, 0, 2, 1))
    scores = b.op(OpKind.MUL, scores, b.const(Fraction(1, 8)))
    top = b.max(scores, 2)
    e = b.op(OpKind.EXP, b.op(OpKind.SUB, scores, top))
    total = b.accum(b.sum(e, 2), top, kind=AccumKind.RESCALE)
    out = b.accum(b.op(OpKind.MATMUL, e, v), top, kind=AccumKind.RESCALE)
    return total, out, top


def normed_attention(
    form: str, rows: int = 32, keys: int = 256, d: int = 64, row_blocks: int = 1, loop: int = 2, heads: int = 2
) -> KernelGraph:
    """Attention whose normalised queries meet keys or values normalised in the loop; K is [heads, d, keys].

    form: "V", values over their norms; "E", exponentials over the norms of the values; "K", scores over the
    norms of the keys.
    """
    args = (tensor((heads, rows, d)), tensor((heads, d, keys)), tensor((heads, keys, d)))
    b = Block(args, (heads, row_blocks), loop)
    q, k, v = b.read(0, (0, 1)), b.read(1, (0, None), 2), b.read(2, (0, None), 1)

    def norm(value: int, dim: int) -> int:
        return b.op(OpKind.SQRT, b.op(OpKind.MUL, b.const(Fraction(1, d)), b.sum(b.op(OpKind.SQR, value), dim)))

    scores = b.op(OpKind.MATMUL, b.op(OpKind.DIV, q, norm(q, 2)), k)
    if form == "K":
        scores = b.op(OpKind.MUL, b.op(OpKind.DIV, scores, norm(k, 1)), b.const(Fraction(1, 8)))
    e = weights = b.op(OpKind.EXP, scores)
    if form == "E":
        weights = b.op(OpKind.DIV, e, b.reshape(norm(v, 2), 1, 1, keys // loop))
    if form == "V":
        v = b.op(OpKind.DIV, v, norm(v, 2))
    total = b.accum(b.sum(e, 2))
    out = b.accum(b.op(OpKind.MATMUL, weights, v))
    b.save(b.op(OpKind.DIV, out, total), (0, 1))
    return one_kernel("Q K V", b)


def split_attention(
    heads: int = 2, rows: int = 16, keys: int = 256, d: int = 64, splits: int = 2, loop: int = 2
) -> KernelGraph:
    """Two kernels: keys split over the grid with partial sums, then the combination. K is [heads, d, keys]."""
    args = (tensor((heads, rows, d)), tensor((heads, d, keys)), tensor((heads, keys, d)))
    b = Block(args, (heads, splits), loop)
    q, k, v = b.read(0, (0, None)), b.read(1, (0, 2), 2), b.read(2, (0, 1), 1)
    e = b.op(OpKind.EXP, b.op(OpKind.MATMUL, q, k))
    total = b.accum(b.sum(e, 2))
    out = b.accum(b.op(OpKind.MATMUL, e, v))
    b.save(b.reshape(out, 1, 1, rows, d), (0, 1))
    b.save(b.reshape(total, 1, 1, rows, 1), (0, 1))
    graph = one_kernel("Q K V", b)
    partial = graph.types[-2:]
    c = Block(tuple(partial), (heads,))
    o, t = c.read(0, (0,)), c.read(1, (0,))
    ratio = c.op(OpKind.DIV, c.sum(o, 1), c.sum(t, 1))
    c.save(c.reshape(ratio, 1, rows, d), (0,))
    graph = graph.append(Op(OpKind.GRAPH, (3, 4), body=c.graph))
    return graph.returning((5,))


def split_safe_attention(
    heads: int = 2,
    rows: int = 16,
    keys: int = 256,
    d: int = 64,
    row_blocks: int = 1,
    splits: int = 2,
    loop: int = 2,
    combine_blocks: int = 1,
) -> KernelGraph:
    """As split_attention with a running maximum: partial results carry their maximum. K is [heads, keys, d]."""
    args = (tensor((heads, rows, d)), tensor((heads, keys, d)), tensor((heads, keys, d)))
    b = Block(args, (heads, row_blocks, splits), loop)
    q, k, v = b.read(0, (0, 1, None)), b.read(1, (0, None, 1), 1), b.read(2, (0, None, 1), 1)
    total, out, top = _safe_sums(b, q, k, v)
    highest = b.accum(top, kind=AccumKind.MAX)
    block_rows = rows // row_blocks
    for value, last in ((out, d), (total, 1), (highest, 1)):
        b.save(b.reshape(value, 1, 1, block_rows, last), (0, 2, 1))
    graph = one_kernel("Q K V", b)
    c = Block(tuple(graph.types[-3:]), (heads, combine_blocks))
    o, t, m = (c.read(i, (0, 2)) for i in range(3))
    parts = [c.op(OpKind.RESCALED_SUM, part, m, attrs=DimAttrs(1)) for part in (o, t)]
    c.save(c.reshape(c.op(OpKind.DIV, *parts), 1, rows // combine_blocks, d), (0, 1))
    graph = graph.append(Op(OpKind.GRAPH, (3, 4, 5), body=c.graph))
    return graph.returning((6,))


def ntrans(rows: int = 4, width: int = 512, rows_per_block: int = 1) -> KernelGraph:
    """rms(X + alpha * (rms(H) + X)) in one kernel, no loop."""
    b = Block((tensor((rows, width)),) * 3, (rows // rows_per_block,))
    h, x, alpha = (b.read(i, (0,)) for i in range(3))

    def rms(value: int) -> int:
        mean = b.op(OpKind.MUL, b.sum(b.op(OpKind.SQR, value), 1), b.const(Fraction(1, width)))
        return b.op(OpKind.DIV, value, b.op(OpKind.SQRT, mean))

    inner = b.op(OpKind.MUL, alpha, b.op(OpKind.ADD, rms(h), x))
    b.save(rms(b.op(OpKind.ADD, x, inner)), (0,))
    return one_kernel("H X A", b)


def chain(m: int = 8, k: int = 64, n: int = 64) -> KernelGraph:
    """exp(X @ A) @ C in two kernels: the second streams its weights, its other operand is the first one's output."""
    b = Block((tensor((m, k)), tensor((k, n))), (2,), 2)
    product = b.accum(b.op(OpKind.MATMUL, b.read(0, (None,), 1), b.read(1, (1,), 0)))
    b.save(b.op(OpKind.EXP, product), (1,))
    graph = KernelGraph.start(*(Input(n, tensor(s)) for n, s in (("X", (m, k)), ("A", (k, n)), ("C", (n, k)))))
    graph = graph.append(Op(OpKind.GRAPH, (0, 1), body=b.graph))
    c = Block((graph.types[3], graph.types[2]), (1,), 2)
    c.save(c.accum(c.op(OpKind.MATMUL, c.read(0, (None,), 1), c.read(1, (None,), 0))), (None,))
    graph = graph.append(Op(OpKind.GRAPH, (3, 2), body=c.graph))
    return graph.returning((4,))


def linear(
    m: int = 256, k: int = 256, n: int = 256, rows: int = 128, columns: int = 128, *, dtype: DType = DType.F16,
    activation: OpKind = OpKind.RELU, turned: tuple[bool, bool] = (False, False), residual: bool = False,
    gated: bool = False, batch: int = 1, step: int = 64,
) -> KernelGraph:  # fmt: skip
    """act(X @ W + b) in one kernel of many rows, tiles of `rows` x `columns`, which may hang over the ends.

    turned: X, W are stored transposed. residual: + R. gated: act(X @ W) * (X @ V) + b. batch: of X and R.
    """
    lead = (batch,) if batch > 1 else ()
    x_shape, w_shape = ((k, m) if turned[0] else (m, k)), ((n, k) if turned[1] else (k, n))
    args = [tensor((*lead, *x_shape), dtype), tensor(w_shape, dtype), tensor((n,), dtype)]
    args += [tensor((*lead, m, n), dtype)] if residual else []
    args += [tensor(w_shape, dtype)] if gated else []
    grid = (*lead, -(-m // rows), -(-n // columns))
    b = Block(tuple(args), grid, -(-k // step))
    at = len(lead)
    free = (0,) * at

    def matrix(arg: int, cut: tuple[int | None, ...], shape: tuple[int, int], swap: bool, first: int) -> int:
        """An operand as a product has it: `shape` of its tile, the summed dimension last (left) or first (right)."""
        tile = shape[::-1] if swap else shape
        summed = (0 if first else 1) if not swap else (1 if first else 0)
        size = len(args[arg].shape)
        value = b.read(arg, cut, size - 2 + summed, (*(1,) * (size - 2), *tile))
        return b.transpose(value, *range(size - 2), size - 1, size - 2) if swap else value

    x_rows, w_columns = (1 if turned[0] else 0) + at, 0 if turned[1] else 1
    x = matrix(0, (*free, x_rows, None), (rows, step), turned[0], 0)
    w = matrix(1, (*(None,) * at, None, w_columns), (step, columns), turned[1], 1)
    bias = b.accum(b.read(2, (*(None,) * at, None, 0), None, (columns,)), kind=AccumKind.HOLD)
    product = b.accum(b.op(OpKind.MATMUL, x, w))
    out = b.op(OpKind.ADD, product, bias)
    if gated:
        v = matrix(len(args) - 1, (*(None,) * at, None, w_columns), (step, columns), turned[1], 1)
        other = b.accum(b.op(OpKind.MATMUL, x, v))
        out = b.op(OpKind.ADD, b.op(OpKind.MUL, b.op(activation, product), other), bias)
    else:
        out = b.op(activation, out)
    if residual:
        shape = (*(1,) * at, rows, columns)
        held = b.read(3, (*free, at, at + 1), None, shape)
        out = b.op(OpKind.ADD, out, b.accum(held, kind=AccumKind.HOLD))
    b.save(out, (*free, at, at + 1), (*lead, m, n))
    return one_kernel("X W B R V"[: 2 * len(args) - 1] if not gated or residual else "X W B V", b)


def scaled_linear(
    m: int = 256, k: int = 256, n: int = 256, rows: int = 128, columns: int = 128, *, left: DType = DType.E4M3,
    right: DType = DType.E4M3, out: DType = DType.BF16, gated: bool = False, batch: int = 1, step: int = 128,
) -> KernelGraph:  # fmt: skip
    """(X @ W.T) * s of floats of one byte, in tiles of `rows` x `columns`, which may hang over the ends. gated: times
    the sigmoid of X @ V.T. batch: of X."""
    lead, at = ((batch,), 1) if batch > 1 else ((), 0)
    args = [tensor((*lead, m, k), left), tensor((n, k), right), tensor((n,), DType.F32)]
    args += [tensor((n, k), right)] if gated else []
    b = Block(tuple(args), (*lead, -(-m // rows), -(-n // columns)), -(-k // step))
    x = b.read(0, (*(0,) * at, at, None), at + 1, (*(1,) * at, rows, step))
    s = b.accum(b.read(2, (*(None,) * at, None, 0), None, (columns,)), kind=AccumKind.HOLD)
    made = []
    for arg in (1, 3)[: 1 + gated]:
        w = b.transpose(b.read(arg, (*(None,) * at, None, 0), 1, (columns, step)), 1, 0)
        made.append(b.accum(b.op(OpKind.MATMUL, x, w)))
    found = b.op(OpKind.MUL, made[0], s)
    found = b.op(OpKind.MUL, found, b.op(OpKind.SIGMOID, made[1])) if gated else found
    found = b.op(OpKind.CAST, found, attrs=CastAttrs(out)) if out is not DType.F32 else found
    b.save(found, (*(0,) * at, at, at + 1), (*lead, m, n))
    return one_kernel("X W s V"[: 2 * len(args) - 1], b)


def split_linear(
    m: int = 128, k: int = 512, n: int = 128, rows: int = 64, columns: int = 64, splits: int = 2
) -> KernelGraph:
    """relu(X @ W + b) in two kernels: sums over parts of k, then their sum."""
    inputs = [Input(name, tensor(shape)) for name, shape in (("X", (m, k)), ("W", (k, n)), ("B", (n,)))]
    b = Block(tuple(i.type for i in inputs[:2]), (m // rows, n // columns, splits), k // splits // 64)
    product = b.accum(b.op(OpKind.MATMUL, b.read(0, (0, None, 1), 1), b.read(1, (None, 1, 0), 0)))
    b.save(b.reshape(product, 1, rows, columns), (1, 2, 0))
    graph = KernelGraph.start(*inputs).append(Op(OpKind.GRAPH, (0, 1), body=b.graph))
    c = Block((graph.types[3], inputs[2].type), (m // 16, 1))
    whole = c.reshape(c.sum(c.read(0, (1, None)), 0), 16, n)
    c.save(c.op(OpKind.RELU, c.op(OpKind.ADD, whole, c.read(1, (None, None)))), (0, None))
    return graph.append(Op(OpKind.GRAPH, (3, 2), body=c.graph)).returning((4,))


def sunk(
    rows: int, keys: int, tiles: int, sink: tuple[int, ...] = (2, 1, 1), *, t: int = 0, heads: int = 2, d: int = 64,
    dtype: DType = DType.BF16, other: DType = DType.BF16, constant: bool = False, masked: bool = True,
) -> KernelGraph:  # fmt: skip
    """exp(S - m) @ V / (sum(exp(S - m)) + exp(s - m)) of S = where(L > 0, Q @ K^T / 8, -inf) and m = max(S, s), of `t`
    rows a head. constant: s is 1; not masked: without L."""
    t = t or keys * tiles
    queries, matrix = tensor((heads, t, d), dtype), tensor((heads, keys * tiles, d), dtype)
    lengths, sinks = tensor((heads, t, 1), DType.F32), tensor(sink, other)
    b = Block((queries, matrix, matrix, lengths, sinks), (heads, t // rows), tiles)
    q, k, v = b.read(0, (0, 1)), b.read(1, (0, None), 1), b.read(2, (0, None), 1)
    own = b.const(Fraction(1)) if constant else b.read(4, (0, 1 if sink[1] > 1 else None))
    scores = b.op(OpKind.MUL, b.op(OpKind.MATMUL, q, b.transpose(k, 0, 2, 1)), b.const(Fraction(1, 8)))
    if masked:
        scores = b.op(OpKind.WHERE, b.read(3, (0, 1)), scores, attrs=WhereAttrs(infinite=-1))
    top = b.op(OpKind.MAXIMUM, b.max(scores, 2), own)
    weights = b.op(OpKind.EXP, b.op(OpKind.SUB, scores, top))
    sums = b.accum(b.sum(weights, 2), top, kind=AccumKind.RESCALE)
    result = b.accum(b.op(OpKind.MATMUL, weights, v), top, kind=AccumKind.RESCALE)
    held = own if constant else b.accum(own, kind=AccumKind.HOLD)
    left = b.op(OpKind.EXP, b.op(OpKind.SUB, held, b.accum(top, kind=AccumKind.MAX)))
    made = b.op(OpKind.DIV, result, b.op(OpKind.ADD, sums, left))
    b.save(b.op(OpKind.CAST, made, attrs=CastAttrs(dtype)), (0, 1))
    return one_kernel("Q K V L s", b)
