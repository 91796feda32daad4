"""THE operator table: what every operator takes, where it may stand, and the shape it returns.

One `OpSpec` row per operator, for all three levels of the GPU (paper Table 1). The interpreters, the
search, the verifier and the emitter have one table each, keyed by `OpKind`; a test compares their key
sets with this one. Attributes are frozen dataclasses; shapes follow NumPy's rules except that
reductions keep the reduced dimension with extent 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from mirage_nb.errors import ShapeError
from mirage_nb.ir.dtypes import DType, Word

Shape = tuple[int, ...]


class Level(Word):
    """The three levels of the compute hierarchy."""

    KERNEL = "kernel"
    BLOCK = "block"
    THREAD = "thread"


class OpKind(Word):
    """Every operator; the value is its name in muGraph text."""

    IN_ITER = "InIter"
    OUT_SAVER = "OutSaver"
    ACCUM = "Accum"
    GRAPH = "Graph"
    FUSED = "Fused"
    CONST = "Const"
    ARANGE = "Arange"
    MATMUL = "Matmul"
    CONCAT_MATMUL = "ConcatMatmul"
    SUM = "Sum"
    MAX = "Max"
    RESCALED_SUM = "RescaledSum"
    RUNNING_SUM = "RunningSum"
    ADD = "EwAdd"
    SUB = "EwSub"
    MUL = "EwMul"
    DIV = "EwDiv"
    EXP = "EwExp"
    SQR = "Sqr"
    SQRT = "Sqrt"
    SILU = "SiLU"
    GELU = "GELU"
    SIGMOID = "Sigmoid"
    RELU = "ReLU"
    CLAMP = "Clamp"
    MAXIMUM = "EwMax"
    GREATER = "EwGt"
    GREATER_EQUAL = "EwGe"
    EQUAL = "EwEq"
    WHERE = "Where"
    CAST = "Cast"
    POW = "Pow"
    APPLY = "Apply"
    REPEAT = "Repeat"
    RESHAPE = "Reshape"
    TRANSPOSE = "Transpose"
    CONCAT = "Concat"
    SLICE = "Slice"
    PAD = "Pad"


KINDS = {kind.value: kind for kind in OpKind}
"""The operators by their names in text and JSON."""


class Trait(Word):
    """What the passes may assume of an operator."""

    ELEMENTWISE = "elementwise"
    """One element of the result depends on the elements at that (broadcast) index only."""
    COMMUTATIVE = "commutative"
    """The two operands may be exchanged."""
    REDUCTION = "reduction"
    """Folds one dimension to extent 1."""
    RUNNING = "running"
    """Folds one dimension up to each of its elements."""
    VIEW = "view"
    """Moves or copies elements, computes nothing."""
    LAX = "lax"
    """Multi-linear, division, square root or exponential: field trials apply (paper Definition 5.1)."""
    STRUCTURAL = "structural"
    """Belongs to the structure of a graph, not to the algebra."""


class AccumKind(Word):
    """How a for-loop accumulator folds its iterations."""

    SUM = "sum"
    CONCAT = "concat"
    MAX = "max"
    RESCALE = "rescale"
    """Inputs x and m: the sum over i of x_i * exp(m_i - max_j m_j), kept up by a running maximum."""
    HOLD = "hold"
    """The same value in every iteration; the accumulator passes one of them on."""


@dataclass(frozen=True, slots=True)
class InIterAttrs:
    """Which part of kernel operand `arg` a block reads in an iteration.

    `imap[g]` is the data dimension split by grid dimension g, or None for replica; `fmap` is the data
    dimension split by the for-loop, or None. A dimension split by both is split by the grid first.

    Without `tile` the parts divide the operand evenly. With it, every part has that shape and the last ones may
    hang over the operand's end: what is read there is zero. Every part holds at least one element.
    """

    arg: int
    imap: tuple[int | None, ...]
    fmap: int | None = None
    tile: Shape | None = None


@dataclass(frozen=True, slots=True)
class OutSaverAttrs:
    """`omap[g]`: the data dimension along which blocks of grid dimension g are concatenated.

    None is legal only for a grid dimension of extent 1. Without `shape` all tiles together are what is saved;
    with it they may hang over the end of a tensor of that shape: what lies there is dropped.
    """

    omap: tuple[int | None, ...]
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class AccumAttrs:
    """Kind of accumulator; `dim` is the concatenated dimension and only set for CONCAT."""

    kind: AccumKind
    dim: int | None = None


@dataclass(frozen=True, slots=True)
class ConstAttrs:
    """A scalar. With a `symbol` the algebra treats it as an unknown (an irrational such as 1/sqrt(128))
    and `value` is its nearest rational approximation; without one `value` is exact.

    `dtype` is the element type of what is made of it by repetition; it counts in promotion as a scalar's does not."""

    value: Fraction
    symbol: str = ""
    dtype: DType = DType.F32


@dataclass(frozen=True, slots=True)
class DimAttrs:
    """One dimension of the operand, counted from 0."""

    dim: int


@dataclass(frozen=True, slots=True)
class RunningAttrs(DimAttrs):
    """The dimension along which sums run: from its end with `backward`, without the element itself with `exclusive`."""

    backward: bool = False
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class RepeatAttrs:
    """The operand is tiled `times` times along `dim`, whole copies behind each other."""

    dim: int
    times: int


@dataclass(frozen=True, slots=True)
class ReshapeAttrs:
    """The new shape, row-major order kept."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class TransposeAttrs:
    """Dimension i of the result is dimension `perm[i]` of the operand."""

    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SliceAttrs:
    """Of dimension `dim` the elements at start, start + step, ..., `extent` of them; a step may be negative."""

    dim: int
    start: int
    extent: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class PadAttrs:
    """So many zeros before and after the elements of dimension `dim`."""

    dim: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class ArangeAttrs:
    """The numbers 0, 1, ..., extent - 1, in an element type that holds them."""

    extent: int
    dtype: DType = DType.F32


@dataclass(frozen=True, slots=True)
class WhereAttrs:
    """What stands where the condition is 0: a number, or with `infinite` 1 or -1 the infinity of that sign."""

    other: Fraction = Fraction(0)
    infinite: int = 0

    @property
    def value(self) -> float:
        """The number in float64."""
        return self.infinite * math.inf if self.infinite else float(self.other)


@dataclass(frozen=True, slots=True)
class CastAttrs:
    """The element type of the result."""

    dtype: DType


@dataclass(frozen=True, slots=True)
class ClampAttrs:
    """Lower and upper limit; None leaves that side open."""

    low: Fraction | None = None
    high: Fraction | None = None


@dataclass(frozen=True, slots=True)
class PowAttrs:
    """The constant exponent."""

    exponent: Fraction


@dataclass(frozen=True, slots=True)
class ApplyAttrs:
    """A function that the program defines: its name, and what it computes as the canonical text of `ir.formula`."""

    name: str
    formula: str


Attrs = (
    InIterAttrs | OutSaverAttrs | AccumAttrs | ConstAttrs | DimAttrs | RunningAttrs | RepeatAttrs | ReshapeAttrs
    | TransposeAttrs | SliceAttrs | PadAttrs | ArangeAttrs | WhereAttrs | CastAttrs | ClampAttrs | PowAttrs | ApplyAttrs
)  # fmt: skip

ShapeRule = Callable[[tuple[Shape, ...], Attrs | None], Shape]


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One row: number of operands (None: any), attribute class, levels, traits, shape rule.

    The shape rule raises ShapeError when the operands do not fit. It is None for operators whose types
    follow from the graph around them (input iterator, saver, accumulator, graph-defined and fused).
    """

    kind: OpKind
    arity: int | None
    attrs: type | None
    levels: frozenset[Level]
    traits: frozenset[Trait]
    shape: ShapeRule | None


def broadcast(shapes: tuple[Shape, ...], attrs: Attrs | None = None) -> Shape:
    """NumPy broadcasting of the operand shapes."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for position, extent in enumerate(shape, start=rank - len(shape)):
            if extent != 1 and result[position] not in (1, extent):
                raise ShapeError(f"shapes {' and '.join(map(show_shape, shapes))} do not broadcast")
            if extent != 1:
                result[position] = extent
    return tuple(result)


def show_shape(shape: Shape) -> str:
    """`[2, 4096]`."""
    return f"[{', '.join(map(str, shape))}]"


def check_dim(shape: Shape, dim: int, what: str) -> None:
    """Raise ShapeError unless `dim` is one of the dimensions of `shape`."""
    if not 0 <= dim < len(shape):
        raise ShapeError(f"{what}: {show_shape(shape)} has no dimension {dim}")


def check_cover(extents: Shape, parts: Shape, tile: Shape) -> None:
    """Raise ShapeError unless, in every dimension, so many tiles cover the extent and each holds part of it."""
    if not len(extents) == len(parts) == len(tile):
        raise ShapeError(f"tiles of {show_shape(tile)} do not cover {show_shape(extents)}")
    for dim, (extent, count, size) in enumerate(zip(extents, parts, tile, strict=True)):
        if size < 1 or not (count - 1) * size < extent <= count * size:
            raise ShapeError(
                f"dimension {dim} of {show_shape(extents)}: {count} tiles of {size} do not cover {extent}, "
                "each with at least one element"
            )


def _matmul(shapes: tuple[Shape, ...], attrs: Attrs | None) -> Shape:
    left, right = shapes
    if len(left) < 2 or len(right) < 2:
        raise ShapeError(f"Matmul needs two dimensions on both sides, not {show_shape(left)} @ {show_shape(right)}")
    if left[-1] != right[-2]:
        raise ShapeError(
            f"Matmul of {show_shape(left)} and {show_shape(right)}: inner extents {left[-1]} and {right[-2]} differ"
        )
    return (*broadcast((left[:-2], right[:-2])), left[-2], right[-1])


def _concat_matmul(shapes: tuple[Shape, ...], attrs: Attrs | None) -> Shape:
    """(W || X) @ (Y || Z) = W @ Y + X @ Z, paper section 8.1."""
    w, x, y, z = shapes
    first, second = _matmul((w, y), None), _matmul((x, z), None)
    if first != second:
        raise ShapeError(f"ConcatMatmul: {show_shape(first)} and {show_shape(second)} differ")
    return first


def _reduce(shapes: tuple[Shape, ...], attrs: Attrs | None) -> Shape:
    assert isinstance(attrs, DimAttrs)
    (shape,) = shapes
    check_dim(shape, attrs.dim, "reduction")
    return shape if isinstance(attrs, RunningAttrs) else (*shape[: attrs.dim], 1, *shape[attrs.dim + 1 :])


def _rescaled_sum(shapes: tuple[Shape, ...], attrs: Attrs | None) -> Shape:
    """sum over dim of x * exp(m - max m): combines partial results that carry their own maximum m."""
    assert isinstance(attrs, DimAttrs)
    x, m = shapes
    joined = broadcast((x, m))
    if joined != x:
        raise ShapeError(f"RescaledSum: the maximum {show_shape(m)} is wider than the operand {show_shape(x)}")
    return _reduce((x,), attrs)


def _repeat(shapes: tuple[Shape, ...], attrs: Attrs | None) -> Shape:
    assert isinstance(attrs, RepeatAttrs)
    (shape,) = shapes
    check_dim(shape, attrs.dim, "Repeat")
    if attrs.times < 1:
        raise ShapeError(f"Repeat: {attrs.times} copies")
    return (*shape[: attrs.dim], shape[attrs.dim] * attrs.times, *shape[attrs.dim + 1 :])


def _reshape(shapes: tuple[Shape, ...], attrs: Attrs | None) -> Shape:
    assert isinstance(attrs, ReshapeAttrs)
    (shape,) = shapes
    if any(extent < 1 for extent in attrs.shape) or math.prod(shape) != math.prod(attrs.shape):
        raise ShapeError(f"Reshape: {show_shape(shape)} does not hold as many elements as {show_shape(attrs.shape)}")
    return attrs.shape


def _transpose(shapes: tuple[Shape, ...], attrs: Attrs | None) -> Shape:
    assert isinstance(attrs, TransposeAttrs)
    (shape,) = shapes
    if sorted(attrs.perm) != list(range(len(shape))):
        raise ShapeError(f"Transpose: {attrs.perm} is not an order of the {len(shape)} dimensions")
    return tuple(shape[i] for i in attrs.perm)


def _concat(shapes: tuple[Shape, ...], attrs: Attrs | None) -> Shape:
    assert isinstance(attrs, DimAttrs)
    left, right = shapes
    check_dim(left, attrs.dim, "Concat")
    rest = (*left[: attrs.dim], *left[attrs.dim + 1 :])
    if len(left) != len(right) or rest != (*right[: attrs.dim], *right[attrs.dim + 1 :]):
        raise ShapeError(f"Concat: {show_shape(left)} and {show_shape(right)} differ outside dimension {attrs.dim}")
    return (*left[: attrs.dim], left[attrs.dim] + right[attrs.dim], *left[attrs.dim + 1 :])


def _slice(shapes: tuple[Shape, ...], attrs: Attrs | None) -> Shape:
    assert isinstance(attrs, SliceAttrs)
    (shape,) = shapes
    check_dim(shape, attrs.dim, "Slice")
    last = attrs.start + (attrs.extent - 1) * attrs.step
    if attrs.extent < 1 or attrs.step == 0 or not all(0 <= at < shape[attrs.dim] for at in (attrs.start, last)):
        raise ShapeError(
            f"Slice: {attrs.extent} elements from {attrs.start} in steps of {attrs.step} are not all in "
            f"dimension {attrs.dim} of {show_shape(shape)}"
        )
    return (*shape[: attrs.dim], attrs.extent, *shape[attrs.dim + 1 :])


def _pad(shapes: tuple[Shape, ...], attrs: Attrs | None) -> Shape:
    assert isinstance(attrs, PadAttrs)
    (shape,) = shapes
    check_dim(shape, attrs.dim, "Pad")
    if min(attrs.before, attrs.after) < 0:
        raise ShapeError(f"Pad: {attrs.before} zeros before and {attrs.after} after")
    return (*shape[: attrs.dim], attrs.before + shape[attrs.dim] + attrs.after, *shape[attrs.dim + 1 :])


def _arange(shapes: tuple[Shape, ...], attrs: Attrs | None) -> Shape:
    assert isinstance(attrs, ArangeAttrs)
    if not 1 <= attrs.extent <= EXACT[attrs.dtype]:
        raise ShapeError(f"Arange: {attrs.dtype.value} does not hold the numbers below {attrs.extent}")
    return (attrs.extent,)


def _scalar(shapes: tuple[Shape, ...], attrs: Attrs | None) -> Shape:
    return ()


EXACT = {DType.F16: 2**11, DType.BF16: 2**8, DType.F32: 2**24, DType.F64: 2**53}
"""Up to which magnitude an element type holds every integer."""

_KBT = frozenset(Level)
_KB = frozenset({Level.KERNEL, Level.BLOCK})
_B = frozenset({Level.BLOCK})
_K = frozenset({Level.KERNEL})
_T = Trait


def _row(
    kind: OpKind, arity: int | None, attrs: type | None, levels: frozenset[Level], shape: ShapeRule | None,
    *traits: Trait,
) -> OpSpec:  # fmt: skip
    return OpSpec(kind, arity, attrs, levels, frozenset(traits), shape)


OPS: dict[OpKind, OpSpec] = {
    spec.kind: spec
    for spec in (
        _row(OpKind.IN_ITER, 0, InIterAttrs, _B, None, _T.STRUCTURAL, _T.LAX),
        _row(OpKind.OUT_SAVER, 1, OutSaverAttrs, _B, None, _T.STRUCTURAL, _T.LAX),
        _row(OpKind.ACCUM, None, AccumAttrs, _B, None, _T.STRUCTURAL, _T.LAX),
        _row(OpKind.GRAPH, None, None, _K, None, _T.STRUCTURAL, _T.LAX),
        _row(OpKind.FUSED, None, None, _B, None, _T.STRUCTURAL, _T.LAX),
        _row(OpKind.CONST, 0, ConstAttrs, _KBT, _scalar, _T.LAX),
        _row(OpKind.ARANGE, 0, ArangeAttrs, _K, _arange, _T.LAX),
        _row(OpKind.MATMUL, 2, None, _KBT, _matmul, _T.LAX),
        _row(OpKind.CONCAT_MATMUL, 4, None, _KB, _concat_matmul, _T.LAX),
        _row(OpKind.SUM, 1, DimAttrs, _KBT, _reduce, _T.REDUCTION, _T.LAX),
        _row(OpKind.MAX, 1, DimAttrs, _KBT, _reduce, _T.REDUCTION),
        _row(OpKind.RESCALED_SUM, 2, DimAttrs, _KB, _rescaled_sum, _T.REDUCTION),
        _row(OpKind.RUNNING_SUM, 1, RunningAttrs, _KB, _reduce, _T.RUNNING, _T.LAX),
        _row(OpKind.ADD, 2, None, _KBT, broadcast, _T.ELEMENTWISE, _T.COMMUTATIVE, _T.LAX),
        _row(OpKind.SUB, 2, None, _KBT, broadcast, _T.ELEMENTWISE, _T.LAX),
        _row(OpKind.MUL, 2, None, _KBT, broadcast, _T.ELEMENTWISE, _T.COMMUTATIVE, _T.LAX),
        _row(OpKind.DIV, 2, None, _KBT, broadcast, _T.ELEMENTWISE, _T.LAX),
        _row(OpKind.EXP, 1, None, _KBT, broadcast, _T.ELEMENTWISE, _T.LAX),
        _row(OpKind.SQR, 1, None, _KBT, broadcast, _T.ELEMENTWISE, _T.LAX),
        _row(OpKind.SQRT, 1, None, _KBT, broadcast, _T.ELEMENTWISE, _T.LAX),
        _row(OpKind.SILU, 1, None, _KBT, broadcast, _T.ELEMENTWISE, _T.LAX),
        _row(OpKind.GELU, 1, None, _KBT, broadcast, _T.ELEMENTWISE),
        _row(OpKind.SIGMOID, 1, None, _KBT, broadcast, _T.ELEMENTWISE, _T.LAX),
        _row(OpKind.RELU, 1, None, _KBT, broadcast, _T.ELEMENTWISE),
        _row(OpKind.CLAMP, 1, ClampAttrs, _KBT, broadcast, _T.ELEMENTWISE),
        _row(OpKind.MAXIMUM, 2, None, _KBT, broadcast, _T.ELEMENTWISE, _T.COMMUTATIVE),
        _row(OpKind.GREATER, 2, None, _KBT, broadcast, _T.ELEMENTWISE),
        _row(OpKind.GREATER_EQUAL, 2, None, _KBT, broadcast, _T.ELEMENTWISE),
        _row(OpKind.EQUAL, 2, None, _KBT, broadcast, _T.ELEMENTWISE, _T.COMMUTATIVE),
        _row(OpKind.WHERE, 2, WhereAttrs, _KBT, broadcast, _T.ELEMENTWISE),
        _row(OpKind.CAST, 1, CastAttrs, _KBT, broadcast, _T.ELEMENTWISE, _T.VIEW, _T.LAX),
        _row(OpKind.POW, 1, PowAttrs, _KBT, broadcast, _T.ELEMENTWISE),
        _row(OpKind.APPLY, 1, ApplyAttrs, _KBT, broadcast, _T.ELEMENTWISE),
        _row(OpKind.REPEAT, 1, RepeatAttrs, _KB, _repeat, _T.VIEW, _T.LAX),
        _row(OpKind.RESHAPE, 1, ReshapeAttrs, _KB, _reshape, _T.VIEW, _T.LAX),
        _row(OpKind.TRANSPOSE, 1, TransposeAttrs, _KB, _transpose, _T.VIEW, _T.LAX),
        _row(OpKind.CONCAT, 2, DimAttrs, _KB, _concat, _T.VIEW, _T.LAX),
        _row(OpKind.SLICE, 1, SliceAttrs, _K, _slice, _T.VIEW, _T.LAX),
        _row(OpKind.PAD, 1, PadAttrs, _K, _pad, _T.VIEW, _T.LAX),
    )
}
COMPARISONS: dict[OpKind, ApplyAttrs] = {
    OpKind.GREATER: ApplyAttrs("compared", "1 - step(-x)"),
    OpKind.GREATER_EQUAL: ApplyAttrs("compared", "step(x)"),
    OpKind.EQUAL: ApplyAttrs("compared", "step(x) * step(-x)"),
}
"""Comparisons; of numbers that are finite these functions of the difference are the same."""
JOINED = {OpKind.SUM: OpKind.ADD, OpKind.MAX: OpKind.MAXIMUM}
"""What makes folds of two parts one of both."""
