"""What several pre-defined operators compute together: softmax, running sums, norms, attention, linear layers.

In: a value of a kernel graph. Out: what it is (`Found`: the tensors that it is computed from, and numbers), or None.
Invariant: what is found equals the operators over the reals, and has their types at its ends; between them a kernel
rounds less than they do.

The language and the PyTorch frontend give each of these one form (`lang.norms`, `frontend.recognise`), however it
was written; only that form, and what people write by hand for it, is looked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from mirage_nb.ir import HALVES, OPS, DType, OpKind, RunningAttrs, Trait, TransposeAttrs, WhereAttrs
from mirage_nb.ir.fields import INDEX_LIMIT
from mirage_nb.ir.lookups import Seen
from mirage_nb.ir.windows import Window, row_major
from mirage_nb.predefined.masks import Band, Triangle, band, triangle
from mirage_nb.predefined.reading import Reading

FLOATS = HALVES | {DType.F32}
LOG = "log(x)"
MOST_COMPUTED, MOST_LEAVES = 12, 4
"""Operators by which a kernel computes the numbers of a lookup at most, and tensors of which."""
ZERO = "step(x) * step(-x)"
"""The formula of x == 0 (`lang.masks`)."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a value is: a function of `inputs` with these `attrs`, which are plain data."""

    inputs: tuple[int, ...]
    attrs: Mapping[str, Any]


def softmax(r: Reading, value: int) -> Found | None:
    """exp(x) over its sum along a dimension, x less its maximum or not."""
    op = r.op(value, OpKind.DIV)
    found = _normalised(r, *op.inputs) if op is not None else None
    return _along(r, found[0], value, found[1]) if found is not None else None


def _normalised(r: Reading, raised: int, total: int) -> tuple[int, int] | None:
    """x and a dimension, where one value is exp(x), x less its maximum or not, and the other the sum of it."""
    op, folded = r.op(raised, OpKind.EXP), r.folded(total, OpKind.SUM)
    if op is None or folded is None or folded[0] != raised:
        return None
    return _unshifted(r, op.inputs[0], folded[1]), folded[1]


def log_softmax(r: Reading, value: int) -> Found | None:
    """x less the logarithm of the sum of exp(x), x less its maximum or not."""
    op = r.op(value, OpKind.SUB)
    inner = r.formula(op.inputs[1], LOG) if op is not None else None
    total = r.folded(inner, OpKind.SUM) if inner is not None else None
    raised = r.op(total[0], OpKind.EXP) if total is not None else None
    if op is None or total is None or raised is None or raised.inputs[0] != op.inputs[0]:
        return None
    return _along(r, _unshifted(r, op.inputs[0], total[1]), value, total[1])


def running_sum(r: Reading, value: int) -> Found | None:
    """The sums of x up to each element, along a dimension: said so, or a product with a triangle."""
    said = r.op(value, OpKind.RUNNING_SUM)
    if said is not None and isinstance(said.attrs, RunningAttrs):
        plain = said.attrs == RunningAttrs(said.attrs.dim)
        return _along(r, said.inputs[0], value, said.attrs.dim) if plain else None
    back = r.transposed(value)
    product = r.op(value if back is None else back, OpKind.MATMUL)
    x = product.inputs[0] if product is not None and triangle(r, product.inputs[1]) == Triangle() else None
    if x is not None and back is not None:
        x = r.transposed(x)
    return _along(r, x, value, len(r.shape(value)) - (1 if back is None else 2)) if x is not None else None


def _unshifted(r: Reading, value: int, dim: int) -> int:
    """x where a value is x less its maximum along a dimension; else the value itself."""
    op = r.op(value, OpKind.SUB)
    return op.inputs[0] if op is not None and r.folded(op.inputs[1], OpKind.MAX) == (op.inputs[0], dim) else value


def _along(r: Reading, x: int, value: int, dim: int) -> Found | None:
    return Found((x,), {"dim": dim}) if _alike(r, x, value) else None


def _alike(r: Reading, x: int, value: int) -> bool:
    """Whether two values have one shape and one element type, which libraries take."""
    mine, other = r.graph.types[x], r.graph.types[value]
    return (mine.shape, mine.dtype) == (other.shape, other.dtype) and mine.dtype in FLOATS | {DType.F64}


def lookup(r: Reading, value: int) -> Found | None:
    """Rows of a table, by their numbers: a product of rows that are 1 in one place with the table; or `apart`, of a row
    for every number one element: a sum of what is chosen in one place. What is no number of a row finds zeros. In front
    stands that of which the table is a view, then what numbers are computed of, element by element."""
    attrs, hot, table, shape = {"apart": 0}, -1, -1, tuple[int, ...]()
    if (product := r.op(value, OpKind.MATMUL)) is not None:
        hot, table = product.inputs
        shape = (*r.shape(value)[:-1], r.shape(table)[0]) if len(r.shape(table)) == 2 else ()
    elif (summed := r.folded(value, OpKind.SUM)) is not None and (chosen := r.op(summed[0], OpKind.WHERE)) is not None:
        attrs, (hot, table) = {"apart": 1}, chosen.inputs
        shape = r.shape(summed[0])
        lead, rows = r.shape(table)[:-1], shape[-1:]  # one for several numbers
        lined = len(lead) == len(shape) - 1 and all(n in (1, most) for n, most in zip(lead, shape, strict=False))
        whole = lined and r.shape(table)[-1:] == rows and summed[1] == len(shape) - 1
        shape = shape if whole and chosen.attrs == WhereAttrs() else ()
    numbered = _numbered(r, hot, shape) if shape else None
    if numbered is None:
        return None
    index, _ = numbered
    table = seen_table(r, table, 0 if attrs["apart"] else shape[-1])[0].base
    types = [r.graph.types[v] for v in (table, index, value)]
    able = all(t.dtype in FLOATS and t.elements < INDEX_LIMIT for t in types)
    numbers = (r.reshaped(r.window(v).base) for v in numbers_of(r, index)[0])
    return Found((table, *dict.fromkeys(numbers)), attrs) if able else None


def parts_of_lookup(r: Reading, value: int) -> tuple[int, int, tuple[Seen, ...]]:
    """The numbers of a lookup, its table as it is read, and which number is that of a line."""
    product, summed = r.op(value, OpKind.MATMUL), r.folded(value, OpKind.SUM)
    op = product if product is not None else r.op(summed[0], OpKind.WHERE) if summed is not None else None
    assert op is not None
    found = _numbered(r, op.inputs[0], r.shape(op.inputs[0]))
    assert found is not None
    return found[0], op.inputs[1], found[1]


def seen_table(r: Reading, table: int, rows: int) -> tuple[Window, tuple[int, ...]]:
    """Where a table lies, and its shape: that of which it is another shape, where its rows are the same, and in what
    that is a window of."""
    origin = r.reshaped(table)
    value = origin if r.shape(origin)[:1] == (rows,) == r.shape(table)[:1] else table
    window = r.window(value)
    return replace(window, base=r.reshaped(window.base)), r.shape(value)


def numbers_of(r: Reading, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What numbers are computed of, element by element, by few operators, and the values of these, operands first: of
    inputs alone, for what kernels compute is there. Of others themselves."""
    lines, inside = r.graph.types[index].elements, list[int]()
    leaves = dict[int, None]()

    def own(value: int) -> bool:
        type_ = r.graph.types[r.reshaped(value)]
        return type_.dtype is DType.F32 and type_.elements == lines

    def plain(value: int) -> bool:
        return own(value) or r.number(r.reshaped(value)) is not None

    def trace(value: int, depth: int = 0) -> None:
        value = r.reshaped(value)
        op = r.op(value)
        if value in inside or r.number(value) is not None:
            return
        simple = op is not None and Trait.ELEMENTWISE in OPS[op.kind].traits and own(value) and depth < MOST_COMPUTED
        if op is None or not simple or not all(map(plain, op.inputs)):
            leaves[value] = None
            return
        for operand in op.inputs:
            trace(operand, depth + 1)
        inside.append(value)

    trace(index)
    given = all(r.reshaped(r.window(value).base) < r.graph.input_count for value in leaves)
    if not given or len(inside) > MOST_COMPUTED or not 0 < len(leaves) <= MOST_LEAVES:
        return (index,), ()
    return (*leaves,), (*inside,)


def _numbered(r: Reading, hot: int, shape: tuple[int, ...]) -> tuple[int, tuple[Seen, ...]] | None:
    """The numbers where a value of this shape is 1 in the places along its last dimension that these number, one for
    each row, and 0 elsewhere; and which of them is that of a row, where it is turned."""
    turn = r.op(hot, OpKind.TRANSPOSE)
    if turn is not None and len(shape) > 1 and isinstance(turn.attrs, TransposeAttrs) and r.shape(hot) == shape:
        (source,), perm = turn.inputs, turn.attrs.perm
        found = _numbered(r, source, r.shape(source)) if perm[-1] == len(perm) - 1 else None
        if found is None:
            return None
        steps = row_major(r.shape(source)[:-1])
        return found[0], (Seen(shape[:-1], tuple(steps[dim] for dim in perm[:-1])), *found[1])
    if (view := r.op(hot, OpKind.RESHAPE)) is not None:
        (source,) = view.inputs
        same = r.shape(hot) == shape and r.shape(source)[-1:] == shape[-1:]
        return _numbered(r, source, r.shape(source)) if same else None
    cast = r.op(hot, OpKind.CAST)  # every type has 0 and 1
    away = r.formula(hot if cast is None else cast.inputs[0], ZERO)
    difference = r.op(away, OpKind.SUB) if away is not None else None
    for place, number in (difference.inputs, difference.inputs[::-1]) if difference is not None else ():
        counted, lined = r.op(r.reshaped(place), OpKind.ARANGE), r.shape(place)[-1:] == shape[-1:]
        is_place = counted is not None and lined and r.graph.types[place].elements == shape[-1]
        if is_place and r.shape(number) == (*shape[:-1], 1) and r.shape(hot) == shape:
            return r.reshaped(number), ()
    return None


def norm(r: Reading, value: int) -> Found | None:
    """x, less its mean or not, over the root of its mean square along the last dimension, times a gain, plus a bias.

    `inputs` are x, then the gain and the bias that are there; `attrs` say which.
    """
    bias = gain = None
    inner = value
    if (parts := _beside(r, inner, OpKind.ADD)) is not None:
        inner, bias = parts
    if (parts := _beside(r, inner, OpKind.MUL)) is not None:
        inner, gain = parts
    if bias is not None and gain is None:
        return None
    found = _normed(r, inner)
    if found is None or not _alike(r, found.inputs[0], value):
        return None
    given = [v for v in (gain, bias) if v is not None]
    dtype = r.graph.types[value].dtype
    if any(r.graph.types[v].dtype is not dtype for v in given):
        return None
    return Found((*found.inputs, *given), {**found.attrs, "gain": int(gain is not None), "bias": int(bias is not None)})


def _beside(r: Reading, value: int, kind: OpKind) -> tuple[int, int] | None:
    """x and a vector along the last dimension of x, where a value is one of `kind` of the two."""
    op = r.op(value, kind)
    for x, vector in (op.inputs, op.inputs[::-1]) if op is not None else ():
        shape, lined = r.shape(value), r.shape(vector)
        if shape and r.shape(x) == shape and lined[-1:] == shape[-1:] and math.prod(lined) == shape[-1]:
            return x, vector
    return None


def _normed(r: Reading, value: int) -> Found | None:
    op = r.op(value, OpKind.DIV)
    root = r.op(op.inputs[1], OpKind.SQRT) if op is not None else None
    if op is None or root is None:
        return None
    spread, eps = root.inputs[0], Fraction(0)
    if (sum_ := r.op(spread, OpKind.ADD)) is not None:
        known = [(a, n) for a, b in (sum_.inputs, sum_.inputs[::-1]) if (n := r.number(b)) is not None]
        if not known:
            return None
        spread, eps = known[0]
    centred = op.inputs[0]
    squares = _mean(r, spread)
    square = r.op(squares, OpKind.SQR) if squares is not None else None
    if square is None or square.inputs[0] != centred or eps < 0:
        return None
    less = r.op(centred, OpKind.SUB)
    is_layer = less is not None and _mean(r, less.inputs[1]) == less.inputs[0]
    x = less.inputs[0] if less is not None and is_layer else centred
    return Found((x,), {"centred": int(is_layer), "eps": str(eps)})


def _mean(r: Reading, value: int) -> int | None:
    """x where a value is the mean of x along its last dimension."""
    scaled = r.scaled(value)
    total = r.folded(scaled[0], OpKind.SUM) if scaled is not None else None
    if scaled is None or total is None:
        return None
    shape = r.shape(total[0])
    return total[0] if total[1] == len(shape) - 1 and scaled[1] == Fraction(1, shape[-1]) else None


def group_norm(r: Reading, value: int) -> Found | None:
    """x less its mean over the root of its mean square within groups of channels, times a gain and plus a bias, both
    one for each channel. `inputs` are x [..., groups, elements of a group], the gain and the bias."""
    outer = r.op(value, OpKind.ADD)
    for inner, bias in (outer.inputs, outer.inputs[::-1]) if outer is not None else ():
        scaled = r.op(inner, OpKind.MUL)
        for normed, gain in (scaled.inputs, scaled.inputs[::-1]) if scaled is not None else ():
            found = _normed(r, r.reshaped(normed))
            groups = _channels(r, found, normed, (gain, bias)) if found is not None else None
            used = [r.graph.types[v].dtype for v in (*found.inputs, gain, bias, value)] if found is not None else []
            if found is not None and groups is not None and len(set(used)) == 1 and used[0] in FLOATS:
                return Found((*found.inputs, gain, bias), {"eps": found.attrs["eps"], "groups": groups})
    return None


def _channels(r: Reading, found: Found, normed: int, vectors: tuple[int, ...]) -> int | None:
    """How many groups there are, where the vectors have one element for every channel of a value that was normalised in
    groups: its first dimension in a group, or the group and that, however these are shaped."""
    shape, before = r.shape(normed), r.shape(found.inputs[0])
    if not found.attrs["centred"] or len(before) < 2 or len(shape) < len(before):
        return None
    at = len(before) - 2
    if before[-2] == 1 and before[-1] == shape[at + 1]:  # one group of nothing but channels is a norm of rows
        return None
    lined = (*(1 for _ in shape[:at]), *shape[at : at + 2], *(1 for _ in shape[at + 2 :]))
    aligned = [(*(1 for _ in shape[len(r.shape(v)) :]), *r.shape(v)) for v in vectors]
    return before[-2] if shape[: at + 1] == before[:-1] and all(v == lined for v in aligned) else None


def linear(r: Reading, value: int) -> Found | None:
    """A product of matrices, each transposed or not, plus a bias along the last dimension or another matrix or neither,
    and its ReLU or not; of parts of tensors, what these are `views` of, if nothing is added. None for a product alone
    of operands as they lie, which is an operator of its own."""
    relu = r.op(value, OpKind.RELU)
    inner = relu.inputs[0] if relu is not None else value
    third, is_bias = None, False
    if r.op(inner, OpKind.ADD) is not None:
        found = _added(r, inner)
        if found is None:
            return None
        inner, third, is_bias = found
    product = r.op(inner, OpKind.MATMUL)
    if product is None:
        return None
    turned = [r.transposed(v) for v in product.inputs]
    left, right = (v if t is None else t for v, t in zip(product.inputs, turned, strict=True))
    seen = [r.seen(v) if third is None else (v, []) for v in (left, right)]
    views = [moves for _, moves in seen]
    if third is None and relu is None and turned == [None, None] and not any(views):
        return None
    inputs = (left, right) if third is None else (left, right, third)
    if len({r.graph.types[v].dtype for v in (*inputs, value)}) > 1 or min(len(r.shape(v)) for v in (left, right)) < 2:
        return None
    if third is not None and (len(r.shape(right)) > 2 or (len(r.shape(left)) > 2 and turned[0] is not None)):
        return None
    ends = {"bias": int(is_bias), "added": int(third is not None and not is_bias), "relu": int(relu is not None)}
    sides = {"left": int(turned[0] is not None), "right": int(turned[1] is not None)}
    bases = (*(base for base, _ in seen), *inputs[2:])
    return Found(bases, {**sides, **ends, **({"views": views} if any(views) else {})})


def _added(r: Reading, value: int) -> tuple[int, int, bool] | None:
    """A product, what is added to it, and whether that is a bias; None where neither kernel adds it."""
    if (parts := _beside(r, value, OpKind.ADD)) is not None and r.op(parts[0], OpKind.MATMUL) is not None:
        return *parts, True
    op = r.op(value, OpKind.ADD)
    for product, other in (op.inputs, op.inputs[::-1]) if op is not None else ():
        if r.op(product, OpKind.MATMUL) is not None and r.shape(other) == r.shape(product) == r.shape(value):
            return product, other, False
    return None


def attention(r: Reading, value: int) -> Found | None:
    """softmax(scale * Q @ K^T, masked or not) @ V.

    `inputs` are Q [..., queries, d], K [..., keys, d], V [..., keys, e] and a bias that is added to the scores, if
    there is one, or what Q, K and V are `views` of. `heads`, `groups`: of queries and of keys, so many after each other
    share one of these. `causal`, `window`: as of `masks.Band`, a window of -1 is none.
    """
    parts = _weighted(r, value)
    scores = _Scores.of(r, parts[0]) if parts is not None else None
    if parts is None or scores is None:
        return None
    q, k, v = scores.q, scores.k, parts[1]
    heads = _heads(r, q, k, v, value)
    used = [r.graph.types[x] for x in (q, k, v, value)]
    if heads is None or len({t.dtype for t in used}) > 1 or used[0].dtype not in FLOATS or scores.scale <= 0:
        return None
    queries, keys = r.shape(q)[-2], r.shape(k)[-2]
    if scores.band is not None and queries != keys:
        return None
    window = -1 if scores.band is None or scores.band.window is None else scores.band.window
    bias = () if scores.bias is None else (scores.bias,)
    if bias and r.graph.types[bias[0]].dtype is not used[0].dtype:
        return None
    seen = [r.seen(x) if r.graph.types[x].dtype in HALVES else (x, []) for x in (q, k, v)]
    return Found(
        (*(base for base, _ in seen), *bias),
        {
            "scale": str(scores.scale), "causal": int(scores.band is not None), "window": window, "heads": heads[0],
            "groups": heads[1], "views": [moves for _, moves in seen], "queries": queries, "keys": keys,
            "head": r.shape(q)[-1],
        },
    )  # fmt: skip


def _weighted(r: Reading, value: int) -> tuple[tuple[int, int], int] | None:
    """What the softmax is of and its dimension, and V, where a value is softmax @ V; divided before or behind."""
    product = r.op(value, OpKind.MATMUL)
    if product is not None:
        found = softmax(r, product.inputs[0])
        return ((found.inputs[0], found.attrs["dim"]), product.inputs[1]) if found is not None else None
    divided = r.op(value, OpKind.DIV)
    product = r.op(divided.inputs[0], OpKind.MATMUL) if divided is not None else None
    if divided is None or product is None:
        return None
    scores = _normalised(r, product.inputs[0], divided.inputs[1])
    return (scores, product.inputs[1]) if scores is not None else None


@dataclass(frozen=True, slots=True)
class _Scores:
    """scale * q @ k^T, and a bias that is added to it or a band that masks it."""

    q: int
    k: int
    scale: Fraction
    bias: int | None
    band: Band | None

    @classmethod
    def of(cls, r: Reading, softmaxed: tuple[int, int]) -> _Scores | None:
        value, dim = softmaxed
        if dim != len(r.shape(value)) - 1:
            return None
        scale, bias = Fraction(1), None
        mask: Band | None = None
        while (product := r.op(value, OpKind.MATMUL)) is None:  # from the outside in
            if (scaled := r.scaled(value)) is not None:
                value, scale = scaled[0], scale * scaled[1]
            elif (chosen := r.op(value, OpKind.WHERE)) is not None and mask is None:
                attrs = chosen.attrs
                mask = band(r, chosen.inputs[0])
                if mask is None or not isinstance(attrs, WhereAttrs) or attrs.infinite != -1 or scale < 0:
                    return None
                value = chosen.inputs[1]
            elif (added := r.op(value, OpKind.ADD)) is not None and bias is None and mask is None and scale == 1:
                sides = [(a, b) for a, b in (added.inputs, added.inputs[::-1]) if _is_product(r, a)]
                if len(sides) != 1 or r.shape(sides[0][0]) != r.shape(value):
                    return None
                value, bias = sides[0]
            else:
                return None
        q, turned = product.inputs
        k = r.transposed(turned)
        for side in ("q", "k"):
            inner = r.scaled(q if side == "q" else k) if k is not None else None
            if inner is not None:
                q, k, scale = (inner[0], k, scale * inner[1]) if side == "q" else (q, inner[0], scale * inner[1])
        return cls(q, k, scale, bias, mask) if k is not None else None


def _is_product(r: Reading, value: int) -> bool:
    """Whether a value is a product of matrices, scaled or not."""
    while (scaled := r.scaled(value)) is not None:
        value = scaled[0]
    return r.op(value, OpKind.MATMUL) is not None


def _heads(r: Reading, q: int, k: int, v: int, value: int) -> tuple[int, int] | None:
    """How many heads of queries and of keys there are, all leading dimensions counted: those of the keys are the first
    ones of the queries', the others 1."""
    lead = r.shape(q)[:-2]
    if r.shape(value)[:-2] != lead:
        return None
    known: list[tuple[int, ...]] = []
    for other in (k, v):
        shape = r.shape(other)
        if len(shape) < 2 or len(shape) > len(lead) + 2:
            return None
        known.append((*(1 for _ in range(len(lead) + 2 - len(shape))), *shape[:-2]))
    if known[0] != known[1]:
        return None
    shared = next((n for n in range(len(lead), -1, -1) if known[0] == (*lead[:n], *(1 for _ in lead[n:]))), None)
    return (math.prod(lead), math.prod(lead[:shared])) if shared is not None else None
