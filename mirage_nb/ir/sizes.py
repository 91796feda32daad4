"""Sizes that are known at launch: the outermost dimension of inputs may have any extent of a range.

In: a graph whose inputs say what their outermost dimension stands for (`Input.size`), with the shapes of the largest
extent. Out: which dimension of every value has the size, how the grids of its kernels follow from it, the same graph
at another extent. A dimension of extent `most * k` that has the size holds `extent * k` elements at launch.

Invariant, and why one verdict holds for the whole range: what is accepted here computes every element along the size
from the elements at that place alone. So a program at a smaller extent is the first part of the same program at the
largest one, whatever stands behind it (repeat the first part: then everything is defined), and the same is true of a
muGraph; where the two are equal at the largest extent, they are equal at every smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_nb.errors import NamedSizeError, ShapeError, SourceSpan
from mirage_nb.ir.dtypes import TensorType
from mirage_nb.ir.graph import BlockGraph, Input, KernelGraph, Op, Size, ThreadGraph
from mirage_nb.ir.ops import (
    OPS,
    AccumAttrs,
    AccumKind,
    DimAttrs,
    InIterAttrs,
    OpKind,
    OutSaverAttrs,
    PadAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    Shape,
    SliceAttrs,
    Trait,
    TransposeAttrs,
    show_shape,
)

ROWS_ONLY = "a size may be the outermost dimension of inputs along which nothing is summed, such as a batch"


@dataclass(frozen=True, slots=True)
class Cut:
    """How a kernel's grid follows from the extent: blocks along grid dim `axis` for every `per` of it, one at least."""

    axis: int
    per: Fraction

    def blocks(self, extent: int) -> int:
        """Blocks along the grid dim, at this extent."""
        return max(1, -(-extent * self.per.denominator // self.per.numerator))

    @property
    def whole(self) -> bool:
        """Whether the last block has as much to do as the others, at every extent."""
        return self.per.numerator == 1


@dataclass(frozen=True, slots=True)
class Sized:
    """Where a graph has its size.

    dims: for every value the dimension, None where its extents are numbers. cuts: for every operator how its grid is
    cut, None where it is not.
    """

    size: Size
    dims: tuple[int | None, ...]
    cuts: tuple[Cut | None, ...]

    def shape(self, value: int, type_: TensorType, extent: int) -> Shape:
        """The extents of a value of this type, at an extent of the size."""
        dim, shape = self.dims[value], type_.shape
        if dim is None:
            return shape
        return (*shape[:dim], shape[dim] // self.size.most * extent, *shape[dim + 1 :])


def size_of(graph: KernelGraph) -> Size | None:
    """The size that a graph's inputs have, if any. Raises NamedSizeError for several."""
    found = dict.fromkeys(i.size for i in graph.inputs if i.size is not None)
    if len(found) > 1:
        raise NamedSizeError(
            f"sizes {' and '.join(s.name for s in found)} in one program", hint="one size may be known at launch only"
        )
    return next(iter(found), None)


def sized(graph: KernelGraph, spans: Sequence[SourceSpan] = ()) -> Sized | None:
    """Where a graph has its size; None if it has none. spans: the places of its operators in a text, if it has one.

    Raises:
        NamedSizeError: elements along the size are not computed apart from each other.
    """
    size = size_of(graph)
    if size is None:
        return None
    dims: list[int | None] = [0 if i.size is not None else None for i in graph.inputs]
    cuts: list[Cut | None] = []
    for number, (op, values) in enumerate(graph.definitions()):
        operands = [dims[v] for v in op.inputs]
        cut = None
        try:
            if isinstance(op.body, BlockGraph):
                found, cut = _through_block(op.body, operands, size)
                dims += found
            else:
                shapes = [graph.types[v].shape for v in op.inputs]
                dims.append(_moved(op, operands, shapes, graph.types[values[0]].shape, size.most))
        except NamedSizeError as error:
            place = spans[number] if spans else None
            raise NamedSizeError(f"{size.name}: {error.message}", hint=error.hint, span=place) from None
        cuts.append(cut)
    return Sized(size, tuple(dims), tuple(cuts))


def output_dims(graph: KernelGraph) -> list[int | None]:
    """Along which dimension outputs have the size; nothing where there is none. Raises NamedSizeError as `sized`."""
    places = sized(graph)
    return [] if places is None else [places.dims[v] for v in graph.outputs]


def resized(graph: KernelGraph, extent: int) -> KernelGraph:
    """The graph at an extent: of pre-defined operators a graph like any other; bodies of graph-defined ones stay as
    they are, made for the largest extent. Raises NamedSizeError as `sized`."""
    where = sized(graph)
    if where is None:
        return graph
    types = tuple(replace(t, shape=where.shape(v, t, extent)) for v, t in enumerate(graph.types))
    inputs = tuple(replace(i, type=t, size=None) for i, t in zip(graph.inputs, types, strict=False))
    ops = []
    for op, values in graph.definitions():
        shape = types[values[0]].shape
        ops.append(replace(op, attrs=ReshapeAttrs(shape)) if isinstance(op.attrs, ReshapeAttrs) else op)
    return replace(graph, inputs=inputs, types=types, ops=tuple(ops))


def named(graph: KernelGraph, size: Size, extent: int, inputs: Collection[int]) -> KernelGraph:
    """A graph that was written down at an extent, made for all of a size: the outermost dimension of these inputs is a
    multiple of it. What comes out is the same whatever extent it was written down at, so that graphs of several ones
    whose results are equal have one kernel.

    Raises:
        NamedSizeError: there is no telling multiples of 1; or as `sized`.
    """
    if extent < 2:
        raise NamedSizeError(f"{size.name} = {extent}", hint="a graph at an extent of 2 or more shows where it is")
    here = replace(size, least=1, most=extent)
    given = replace(
        graph, inputs=tuple(replace(i, size=here if n in inputs else None) for n, i in enumerate(graph.inputs))
    )
    whole = resized(given, size.most)
    return replace(
        whole, inputs=tuple(replace(i, size=size if n in inputs else None) for n, i in enumerate(whole.inputs))
    )


def open_reshapes(graph: KernelGraph) -> KernelGraph:
    """The graph with reshapes that find the extent of the size by themselves: -1, as NumPy and PyTorch have it. For
    interpreters that hand attributes on; no other use."""
    where = sized(graph)
    if where is None:
        return graph
    ops = []
    for op, (value, *_) in graph.definitions():
        dim = where.dims[value]
        if isinstance(op.attrs, ReshapeAttrs) and dim is not None:
            shape = op.attrs.shape
            op = replace(op, attrs=ReshapeAttrs((*shape[:dim], -1, *shape[dim + 1 :])))
        ops.append(op)
    return replace(graph, ops=tuple(ops))


def extent_of(inputs: Sequence[Input], shapes: Iterable[Sequence[int]]) -> int | None:
    """The extent that arrays of these shapes have; None where no input has a size.

    Raises:
        ShapeError: it is none of the range, or inputs disagree.
    """
    found: dict[str, int] = {}
    size = None  # shapes may be torch's symbols: nothing is done with them but arithmetic and comparisons
    for i, given in zip(inputs, shapes, strict=True):
        if i.size is None:
            continue
        size, shape = i.size, tuple(given)
        factor = i.type.shape[0] // size.most
        said = f"{i.name} has shape {show_shape(shape)}, the program says {_shown(i, factor)}"
        if len(shape) != len(i.type.shape) or shape[1:] != i.type.shape[1:] or shape[0] % factor:
            raise ShapeError(said)
        extent = shape[0] // factor
        if not size.least <= extent <= size.most:
            hint = f"the program says how far it goes: {size.name}: size({extent})" if extent > size.most else ""
            raise ShapeError(f"{said}, with {size}", hint=hint)
        found[i.name] = extent
    first = next(iter(found.values()), None)
    if size is not None and any(extent != first for extent in found.values()):
        raise ShapeError(f"{size.name} is {', '.join(f'{e} in {name}' for name, e in found.items())}")
    return first


def _shown(i: Input, factor: int) -> str:
    assert i.size is not None
    outer = i.size.name if factor == 1 else f"{factor}*{i.size.name}"
    return f"{i.type.dtype.value}[{', '.join([outer, *map(str, i.type.shape[1:])])}]"


# -- what operators do with it


def _moved(op: Op, dims: Sequence[int | None], shapes: Sequence[Shape], shape: Shape, unit: int | None) -> int | None:
    """The dimension of the result that has the size; `unit`: what its extents are multiples of (None: themselves)."""
    if all(d is None for d in dims):
        return None
    match op.kind:
        case OpKind.MATMUL:
            return _product(dims, shapes, len(shape))
        case OpKind.CONCAT_MATMUL:
            (w, x, y, z), (sw, sx, sy, sz) = dims, shapes
            first, second = _product((w, y), (sw, sy), len(shape)), _product((x, z), (sx, sz), len(shape))
            return first if first == second else _refuse("meets numbers in a product")
        case OpKind.TRANSPOSE:
            assert isinstance(op.attrs, TransposeAttrs) and dims[0] is not None
            return op.attrs.perm.index(dims[0])
        case OpKind.RESHAPE:
            assert dims[0] is not None
            return _reshaped(shapes[0], dims[0], shape, unit or shapes[0][dims[0]])
    along = op.attrs.dim if isinstance(op.attrs, DimAttrs | RepeatAttrs | SliceAttrs | PadAttrs) else None
    if along is None and Trait.ELEMENTWISE not in OPS[op.kind].traits:
        return _refuse(f"goes through {op.kind.value}")
    dim = _aligned(dims, shapes, len(shape))
    words = {
        Trait.REDUCTION: "is summed, or its largest is taken", Trait.RUNNING: "is summed up to each of its places",
        Trait.VIEW: "is cut, joined or repeated",
    }  # fmt: skip
    if dim == along:
        return _refuse(next(text for trait, text in words.items() if trait in OPS[op.kind].traits))
    if op.kind is OpKind.CONCAT and None in dims:
        return _refuse("is joined with numbers")
    return dim


def _refuse(what: str) -> int | None:
    raise NamedSizeError(f"the size {what}", hint=ROWS_ONLY)


def _aligned(dims: Sequence[int | None], shapes: Sequence[Shape], rank: int) -> int | None:
    """The dimension of the result of operands that are broadcast."""
    found = {d + rank - len(s) for d, s in zip(dims, shapes, strict=True) if d is not None}
    if not found:
        return None
    if len(found) > 1:
        return _refuse("meets itself in another dimension")
    (dim,) = found
    for d, s in zip(dims, shapes, strict=True):
        place = dim - rank + len(s)
        if d is None and place >= 0 and s[place] != 1:
            return _refuse(f"meets the number {s[place]}")
    return dim


def _product(dims: Sequence[int | None], shapes: Sequence[Shape], rank: int) -> int | None:
    """The dimension of the result of a product."""
    left, right = (None if d is None else d - len(s) for d, s in zip(dims, shapes, strict=True))
    if left == -1 or right == -2:
        return _refuse("is summed in a product")
    if left == -2 or right == -1:
        return rank - 2 if right is None else rank - 1 if left is None else _refuse("meets itself in a product")
    return _aligned(dims, shapes, rank)


def _reshaped(shape: Shape, dim: int, new: Shape, unit: int) -> int | None:
    """The dimension of a reshaped value: as many elements stand in front of it, and it is a multiple of `unit`."""
    ahead, before = 1, 1
    for extent in shape[:dim]:
        ahead *= extent
    for place, extent in enumerate(new):
        if before == ahead and extent % unit == 0 and extent > 1:
            return place
        before *= extent
    return _refuse(f"is spread over several dimensions by a reshape of {show_shape(shape)} to {show_shape(new)}")


def _through_block(
    block: BlockGraph, operands: Sequence[int | None], size: Size
) -> tuple[list[int | None], Cut | None]:
    """The dimension of every output, and how the grid follows. Inside, a tile of one element along it has no size."""
    grids: tuple[int, ...] = ()
    share: Fraction | None = None
    dims: list[int | None] = []
    for op, values in block.definitions():
        if isinstance(op.attrs, InIterAttrs):
            attrs = op.attrs
            dim, tile = operands[attrs.arg], block.tile_shape(attrs)
            if dim is None:
                dims.append(None)
                continue
            if attrs.fmap == dim and block.loop > 1:
                _refuse("is gone through by a for-loop")
            cut = tuple(g for g, d in enumerate(attrs.imap) if d == dim and block.grid[g] > 1)
            part = Fraction(tile[dim], block.args[attrs.arg].shape[dim] // size.most)
            if share is not None and (cut, part) != (grids, share):
                _refuse("is cut in several ways by one grid")
            grids, share = cut, part
            dims.append(dim if tile[dim] > 1 else None)
        elif not isinstance(op.attrs, OutSaverAttrs):
            shapes = [block.types[v].shape for v in op.inputs]
            given = [dims[v] for v in op.inputs]
            dims += _inside(op, given, shapes, [block.types[v].shape for v in values])
    if share is None:
        return [None] * len(block.savers), None
    for op in block.ops:
        if isinstance(op.attrs, InIterAttrs) and operands[op.attrs.arg] is None:
            if any(op.attrs.imap[g] is not None for g in grids):
                _refuse("shares a grid dimension with a number")
    found = [_saved(block, op, dims[op.inputs[0]], grids, share, size) for op in block.savers]
    if not grids:
        return found, None
    first, *rest = grids
    for g in rest:
        share *= block.grid[g]
    return found, Cut(first, share)


def _inside(op: Op, dims: Sequence[int | None], shapes: Sequence[Shape], made: Sequence[Shape]) -> list[int | None]:
    """The dimensions of what an operator of a block graph defines."""
    if isinstance(op.body, ThreadGraph):
        inner = list(dims)
        for step, values in op.body.definitions():
            read = [inner[v] for v in step.inputs]
            of = [op.body.types[v].shape for v in step.inputs]
            inner += _inside(step, read, of, [op.body.types[v].shape for v in values])
        return [inner[v] for v in op.body.outputs]
    if isinstance(op.attrs, AccumAttrs):
        dim = _aligned(dims, shapes, len(made[0]))
        if dim is not None and op.attrs.kind is AccumKind.CONCAT and op.attrs.dim == dim:
            _refuse("is joined over iterations")
        return [dim]
    return [_moved(op, dims, shapes, made[0], None)]


def _saved(
    block: BlockGraph, op: Op, dim: int | None, grids: tuple[int, ...], share: Fraction, size: Size
) -> int | None:
    """The dimension of an output; its tiles have the same share of the size as those of the operands."""
    assert isinstance(op.attrs, OutSaverAttrs)
    omap, tile = op.attrs.omap, block.types[op.inputs[0]].shape
    if not grids:
        if dim is not None and any(d == dim and block.grid[g] > 1 for g, d in enumerate(omap)):
            _refuse("shares a dimension of an output with a number")
        stored = op.attrs.shape if op.attrs.shape is not None else tile
        if dim is not None and (stored[dim] % size.most or Fraction(tile[dim], stored[dim] // size.most) != share):
            _refuse("is cut off where it is stored")
        return dim
    places = {omap[g] for g in grids}
    place = places.pop()
    if places or place is None or dim not in (None, place):
        return _refuse("is cut in several ways by one grid")
    cut = tuple(g for g, d in enumerate(omap) if d == place and block.grid[g] > 1)
    extent = op.attrs.shape[place] if op.attrs.shape is not None else tile[place] * _count(block, cut)
    if cut != grids or extent % size.most or Fraction(tile[place], extent // size.most) != share:
        return _refuse("shares a dimension of an output with a number")
    return place


def _count(block: BlockGraph, grids: Iterable[int]) -> int:
    return math.prod(block.grid[g] for g in grids)
