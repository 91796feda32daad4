"""From a structure and sizes to a concrete muGraph.

In: a prepared program, a structure, and for every kernel the blocks along each grid axis and the for-loop
range. Out: a kernel graph of graph-defined operators with the inputs of the program. Tiles keep the
dimension order of the program's tensors; where an operator needs another one, views (Transpose, Reshape)
are put in. A partial sum over a grid axis leaves the block through a new leading dimension (paper section
2). Inputs and outputs whose dimensions have several axes pass through views in the kernel graph, which cost
nothing. Parts that do not divide an axis have tiles of `tile_of`: the last ones hang over its end. Everything in a
kernel that has the tile part of the axis is as long as these tiles make it, and what is saved whole is cut off. Sums
and products along such an axis do not tell zeros beyond its end; where something else is there, what folds the axis
is masked before, times one before the end and zero behind it; before a maximum it is minus infinity there, or only
lowered where exponents are less by that. The verifier says whether that was enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from mirage_nb.ir import (
    BYTES,
    FLOAT8,
    HALVES,
    OPS,
    AccumAttrs,
    AccumKind,
    BlockGraph,
    CastAttrs,
    ConstAttrs,
    DimAttrs,
    DType,
    InIterAttrs,
    Input,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    RunningAttrs,
    TensorType,
    Trait,
    TransposeAttrs,
    WhereAttrs,
)
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.search.axes import Layout, Prepared, shape_of
from mirage_nb.search.saturation.values import BLOCK, DATA, ITER, LOOP, POST, TILE, Operator, Type
from mirage_nb.search.sizes.layouts import (
    broadcast_layout,
    concatenated,
    fitted,
    folded,
    joined,
    leading,
    multiplied,
    of_product,
    past_one,
    permutation,
)
from mirage_nb.search.structure import KernelStructure, Source, Step, Structure
from mirage_nb.tile.rules.teams import few

Axes = frozenset[int]
_FIRST = frozenset(
    {
        OpKind.DIV, OpKind.SUM, OpKind.MAX, OpKind.RESCALED_SUM, OpKind.ACCUM, OpKind.RESHAPE, OpKind.TRANSPOSE,
        OpKind.SQR, OpKind.SQRT, OpKind.SILU, OpKind.GELU, OpKind.RELU,
    }
)  # fmt: skip
"""Zero where the first operand is zero."""


def zeros(kind: OpKind, operands: Sequence[Axes]) -> Axes:
    """The axes beyond whose end a value is zero, from those of its operands."""
    match kind:
        case OpKind.MUL | OpKind.MATMUL:
            return operands[0] | operands[1]
        case OpKind.ADD | OpKind.SUB:
            return operands[0] & operands[1]
        case _:
            return operands[0] if kind in _FIRST else frozenset()


def _lowest(dtype: DType) -> int:
    """What zeros beyond the end are lowered by before a maximum: no finite f16 is lower, no score of other types."""
    return 65504 if dtype is DType.F16 else 2**127


@dataclass(frozen=True, slots=True)
class KernelSizes:
    """Numbers for one kernel: blocks along the axes that the grid splits (x first), the for-loop range."""

    grid: tuple[tuple[int, int], ...]
    loop: int = 1

    def blocks(self, axis: int) -> int:
        """Blocks along an axis; 1 if the grid does not split it."""
        return dict(self.grid).get(axis, 1)


GRAIN = 16
"""Elements of which tiles that hang over the end are multiples, where they can be: fragments and panels are."""


def tile_of(extent: int, parts: int) -> int:
    """The tile of an axis in so many parts, each with an element of it; 0 if there is none.

    Parts that divide the axis fill their tiles; where they have a few elements beyond a multiple of an instruction's
    rows, they keep them. It is a function of the two numbers alone, so that kernels that cut an axis alike cut it at
    the same places.
    """
    if extent % parts == 0:
        return extent // parts
    least = -(-extent // parts)
    if few(least) and (parts - 1) * least < extent:
        return least
    for tile in (-(-least // GRAIN) * GRAIN, least):
        if (parts - 1) * tile < extent:
            return tile
    return 0


def concrete(
    prepared: Prepared, structure: Structure, sizes: Sequence[KernelSizes], extents: Sequence[int]
) -> KernelGraph:
    """The muGraph of a structure at these sizes.

    Args:
        sizes: one entry per kernel; `tile_of` has a tile for the parts of every axis.
        extents: of the axes; the program's own, or smaller ones for field trials.
    """
    made = Rewrite(KernelGraph.start(*small_inputs(prepared, extents)))
    held = _viewed_inputs(prepared, structure, made, extents)
    for place, (kernel, numbers) in enumerate(zip(structure.kernels, sizes, strict=True)):
        finals = {
            source.index: (prepared.output_axes[output], prepared.graph.output_types[output].dtype)
            for output, source in enumerate(structure.outputs)
            if source.kernel == place
        }
        results = BlockWriter(prepared, kernel, numbers, tuple(extents), held).build(made, finals)
        held |= {Source(index, place): result for index, result in enumerate(results)}
    outputs = []
    for source, dims in zip(structure.outputs, prepared.output_dims, strict=True):
        value, _ = held[Source(source.index, source.kernel or 0)]
        outputs.append(_reshaped(made, value, shape_of(dims, extents)))
    return made.graph.returning(tuple(outputs), prepared.graph.output_names)


def small_inputs(prepared: Prepared, extents: Sequence[int]) -> tuple[Input, ...]:
    """The program's inputs when its axes have these extents. Inputs that nothing reads keep their shape."""
    dims_of = {tensor.input: tensor.dims for tensor in prepared.tensors}
    made = []
    for index, input_ in enumerate(prepared.graph.inputs):
        shape = shape_of(dims_of[index], extents) if index in dims_of else input_.type.shape
        size = input_.size if shape == input_.type.shape else None  # elsewhere it is a number
        made.append(replace(input_, type=TensorType(shape, input_.type.dtype, input_.type.space), size=size))
    return tuple(made)


def _viewed_inputs(
    prepared: Prepared, structure: Structure, made: Rewrite[KernelGraph], extents: Sequence[int]
) -> dict[Source, tuple[int, Layout]]:
    """For every tensor that the structure reads, the view of its input with one axis in every dimension."""
    steps = [step for kernel in structure.kernels for step in kernel.steps]
    read = {step.source.index for step in steps if step.source is not None and step.source.kernel is None}
    views: dict[Source, tuple[int, Layout]] = {}
    of_input: dict[int, int] = {}
    for index in sorted(read):
        tensor = prepared.tensors[index]
        if tensor.input not in of_input:
            shape = tuple(1 if axis is None else extents[axis] for axis in tensor.axes)
            of_input[tensor.input] = _reshaped(made, tensor.input, shape)
        views[Source(index)] = of_input[tensor.input], tensor.axes
    return views


def _reshaped(made: Rewrite[KernelGraph], value: int, shape: tuple[int, ...]) -> int:
    same = made.graph.types[value].shape == shape
    return value if same else made.add(Op(OpKind.RESHAPE, (value,), ReshapeAttrs(shape)))


@dataclass(slots=True)
class BlockWriter:
    """Builds one block graph; `held` has the tensors that it may read, values of the kernel graph with the axes of
    their dimensions; `layouts` holds the axis of every dimension of every tile, `zeros` the axes beyond whose
    ends it is zero, `numbers` the iterators of constants that end with an axis, `views` the views that were made."""

    prepared: Prepared
    kernel: KernelStructure
    sizes: KernelSizes
    extents: tuple[int, ...]
    held: dict[Source, tuple[int, Layout]]
    made: Rewrite[KernelGraph] = field(init=False)
    block: BlockGraph = field(init=False)
    operands: list[int] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    value: list[int] = field(default_factory=list)
    zeros: list[Axes] = field(default_factory=list)
    numbers: dict[tuple[int, int, int, int, DType], int] = field(default_factory=dict)
    views: dict[tuple[int, Layout], int] = field(default_factory=dict)

    def build(self, made: Rewrite[KernelGraph], finals: dict[int, tuple[Layout, DType]]) -> list[tuple[int, Layout]]:
        """Append this kernel; also its results: the kernel-graph value and the axes of its dimensions."""
        for step in self.kernel.steps:
            if step.source is not None and (operand := self.held[step.source][0]) not in self.operands:
                self.operands.append(operand)
        self.made = made
        grid = tuple(blocks for _, blocks in self.sizes.grid) or (1,)
        self.block = BlockGraph.start(tuple(made.graph.types[v] for v in self.operands), grid, self.sizes.loop)
        for step in self.kernel.steps:
            self.value.append(self._step(step))
        results = [
            self._save(output, *finals.get(number, (None, None))) for number, output in enumerate(self.kernel.outputs)
        ]
        first = made.add(Op(OpKind.GRAPH, tuple(self.operands), body=self.block))
        return [(first + index, layout) for index, layout in enumerate(results)]

    def _append(self, op: Op, layout: Layout, zero: Axes = frozenset()) -> int:
        self.block = self.block.append(op)
        self.layouts.append(layout)
        found = zero or zeros(op.kind, [self.zeros[v] for v in op.inputs])
        self.zeros.append(found.intersection(layout))  # what an axis was folded to is repeated beyond its end, too
        return len(self.layouts) - 1

    def _step(self, step: Step) -> int:
        operator = step.operator
        reads = [self.value[r] for r in step.reads]
        match operator.kind:
            case OpKind.IN_ITER:
                return self._read(step)
            case OpKind.CONST:
                return self._append(Op(OpKind.CONST, attrs=self.prepared.constants[operator.leaf]), ())
            case OpKind.SUM | OpKind.MAX:
                reads = [self._ended(step.reads[0], operator.axis, lowered=operator.kind is OpKind.MAX)]
                return self._folded(operator, reads)
            case OpKind.RUNNING_SUM:
                return self._running(operator, self._ended(step.reads[0], operator.axis))
            case OpKind.RESCALED_SUM:
                reads[1] = self._fitted(reads[1], self.layouts[reads[0]])
                return self._folded(operator, reads)
            case OpKind.ACCUM:
                loop = self.kernel.loop
                if loop is not None and operator.accum in (AccumKind.SUM, AccumKind.RESCALE, AccumKind.MAX):
                    reads[0] = self._ended(step.reads[0], loop, lowered=operator.accum is AccumKind.MAX)
                return self._accumulated(operator, reads)
            case OpKind.CONCAT:
                return self._joined(operator.axis, reads)
            case OpKind.MATMUL:
                if operator.axis not in self.zeros[reads[1]]:
                    reads[0] = self._ended(step.reads[0], operator.axis)
                return self._matmul(operator.axis, reads[0], reads[1])
            case _ if len(reads) == 2:
                return self._elementwise(operator, reads[0], reads[1])
            case _:
                made = self._append(Op(operator.kind, (reads[0],), operator.attrs), self.layouts[reads[0]])
                for axis in sorted(self.zeros[reads[0]] - self.zeros[made]):
                    if self._reduced(axis) and step.type[axis] & TILE:  # to be folded some time
                        made = self._masked(made, axis, step)
                return made

    def _read(self, step: Step) -> int:
        assert step.source is not None
        operand, layout = self.held[step.source]
        imap: tuple[int | None, ...] = tuple(
            layout.index(axis) if axis in layout and (step.type[axis] & BLOCK or not self._reduced(axis)) else None
            for axis, _ in self.sizes.grid
        )
        loop = self.kernel.loop
        fmap = layout.index(loop) if loop is not None and step.type[loop] & ITER else None
        attrs = InIterAttrs(self.operands.index(operand), imap or (None,), fmap)
        return self._iterator(attrs, layout, step.type)

    def _iterator(self, attrs: InIterAttrs, layout: Layout, type_: Type) -> int:
        attrs = self._tiled(attrs, layout, type_)
        over = frozenset(a for a in layout if a is not None and type_[a] & TILE and self._hangs(a))
        return self._append(Op(OpKind.IN_ITER, attrs=attrs), layout, over)

    def _hangs(self, axis: int) -> bool:
        return self._covered(axis) > self.extents[axis]

    def _covered(self, axis: int) -> int:
        """How long the tiles make an axis: its extent, or more where they hang over its end."""
        parts = self.sizes.blocks(axis) * (self.sizes.loop if axis == self.kernel.loop else 1)
        return parts * tile_of(self.extents[axis], parts)

    def _tiled(self, attrs: InIterAttrs, layout: Layout, type_: Type) -> InIterAttrs:
        """The attributes with the shape of the tile, if it hangs over the end of the operand."""
        shape = list(self.block.args[attrs.arg].shape)
        for dim, axis in enumerate(layout):
            if axis is not None and type_[axis] & TILE:
                shape[dim] = self._covered(axis)
        if tuple(shape) == self.block.args[attrs.arg].shape:
            return attrs
        for split, parts in [*zip(attrs.imap, self.block.grid, strict=True), (attrs.fmap, self.block.loop)]:
            if split is not None:
                shape[split] //= parts
        return replace(attrs, tile=tuple(shape))

    # -- what lies beyond the end of an axis

    def _ended(self, read: int, axis: int, *, lowered: bool = False) -> int:
        """What step `read` has left, made fit to be folded along an axis. All that follows takes it as it is then."""
        step, value = self.kernel.steps[read], self.value[read]
        code = step.type[axis]
        placed = code & (LOOP | ITER) or axis != self.kernel.loop  # else sums over iterations: nothing lies behind
        if not code & TILE or not placed or not self._hangs(axis):
            return value
        if lowered and not self._shifts():
            return self._without(value, axis, step)
        if not (lowered and self._is_low(value, axis)):
            value = self._masked(value, axis, step)
        self.value[read] = self._lowered(value, axis, step) if lowered else value
        return self.value[read]

    def _shifts(self) -> bool:
        """Whether maxima may be what exponents are less by: those may be any numbers."""
        return any(operator.kind is OpKind.EXP for operator, _ in self.prepared.program)

    def _is_low(self, value: int, axis: int) -> bool:
        """Whether a value is zero beyond the end of an axis, or minus infinity, which times zero is no number."""
        op = next(op for op, values in self.block.definitions() if value in values)
        if isinstance(op.attrs, WhereAttrs) and op.attrs.infinite < 0:
            return self._is_low(op.inputs[1], axis)
        return axis in self.zeros[value]

    def _masked(self, value: int, axis: int, step: Step) -> int:
        """A value of the type and stage of `step`, zero beyond the end of an axis."""
        if axis in self.zeros[value]:
            return value
        return self._append(Op(OpKind.MUL, (value, self._ones(value, axis, step))), self.layouts[value])

    def _ones(self, value: int, axis: int, step: Step) -> int:
        """One before the end of an axis, zero behind it, beside a value."""
        return self._fitted(self._number(1, axis, step, self.block.types[value].dtype), self.layouts[value])

    def _without(self, value: int, axis: int, step: Step) -> int:
        """The same, minus infinity beyond the end, as maxima are of nothing."""
        op = Op(OpKind.WHERE, (self._ones(value, axis, step), value), WhereAttrs(infinite=-1))
        return self._append(op, self.layouts[value])

    def _lowered(self, value: int, axis: int, step: Step) -> int:
        """The same, very low beyond the end."""
        layout, dtype = self.layouts[value], self.block.types[value].dtype
        ends = self._number(_lowest(dtype), axis, step, dtype)
        least = self._append(Op(OpKind.CONST, attrs=ConstAttrs(Fraction(_lowest(dtype)))), ())
        low = self._append(Op(OpKind.SUB, (ends, least)), self.layouts[ends])
        return self._append(Op(OpKind.ADD, (value, self._fitted(low, layout))), layout)

    def _number(self, number: int, axis: int, step: Step, dtype: DType) -> int:
        """A number at all elements of an axis that a tile like that of `step` has; it ends with the axis."""
        code = step.type[axis]
        key = (number, axis, code, step.stage, dtype)
        if key not in self.numbers:
            single = self.made.add(Op(OpKind.CONST, attrs=ConstAttrs(Fraction(number), dtype=dtype)))
            single = self.made.add(Op(OpKind.RESHAPE, (single,), ReshapeAttrs((1,))))
            self.operands.append(self.made.add(Op(OpKind.REPEAT, (single,), RepeatAttrs(0, self.extents[axis]))))
            self.block = replace(self.block, args=(*self.block.args, self.made.graph.types[-1]))
            imap = tuple(0 if a == axis and code & BLOCK else None for a, _ in self.sizes.grid)
            attrs = InIterAttrs(len(self.operands) - 1, imap or (None,), 0 if code & ITER else None)
            made = self._iterator(attrs, (axis,), step.type)
            if step.stage == POST and self.kernel.loop is not None:
                made = self._append(Op(OpKind.ACCUM, (made,), AccumAttrs(AccumKind.HOLD)), (axis,))
            self.numbers[key] = made
        return self.numbers[key]

    def _reduced(self, axis: int) -> bool:
        return self.prepared.axes[axis].reduced

    def _folded(self, operator: Operator, reads: list[int]) -> int:
        layout = self.layouts[reads[0]]
        op = Op(operator.kind, tuple(reads), DimAttrs(layout.index(operator.axis)))
        return self._append(op, folded(layout, operator.axis))

    def _running(self, operator: Operator, value: int) -> int:
        assert isinstance(operator.attrs, RunningAttrs)
        layout = self.layouts[value]
        attrs = replace(operator.attrs, dim=layout.index(operator.axis))
        return self._append(Op(operator.kind, (value,), attrs), layout)

    def _accumulated(self, operator: Operator, reads: list[int]) -> int:
        assert operator.accum is not None
        x, layout, dim = reads[0], self.layouts[reads[0]], None
        if operator.accum is AccumKind.RESCALE:
            reads = [x, self._fitted(reads[1], layout)]
        if operator.accum is AccumKind.CONCAT:
            if operator.axis not in layout and None not in layout:
                x = self._viewed(x, (None, *layout))
            layout = concatenated(layout, operator.axis)
            dim, reads = layout.index(operator.axis), [x]
        return self._append(Op(OpKind.ACCUM, tuple(reads), AccumAttrs(operator.accum, dim)), layout)

    def _joined(self, whole: int, reads: list[int]) -> int:
        """One tile after the other along a leading dimension."""
        join = self.prepared.join(whole)
        own = (join.first, join.second)
        _, *rest = leading(self.layouts[reads[0]], join.first)
        parts = tuple(self._viewed(v, (axis, *rest)) for v, axis in zip(reads, own, strict=True))
        zero = self.zeros[parts[0]] & self.zeros[parts[1]]
        return self._append(Op(OpKind.CONCAT, parts, DimAttrs(0)), (whole, *rest), zero)

    # -- dimension order

    def _elementwise(self, operator: Operator, x: int, y: int) -> int:
        wide = joined(self.layouts[x], self.layouts[y])
        x, y = self._fitted(x, wide), self._fitted(y, wide)
        layout = broadcast_layout(self.layouts[x], self.layouts[y])
        return self._append(Op(operator.kind, (x, y), operator.attrs), layout)

    def _matmul(self, axis: int, x: int, y: int) -> int:
        few = FLOAT8.issuperset(self.block.types[v].dtype for v in (x, y))
        x, y = (self._widened(v, axis, few=few) for v in (x, y))
        exchanged, left, right = multiplied(self.layouts[x], self.layouts[y], axis)
        if exchanged:
            x, y = y, x
        x, y = self._viewed(x, left), self._viewed(y, right)
        return self._append(Op(OpKind.MATMUL, (x, y)), of_product(left, right))

    def _widened(self, value: int, axis: int, *, few: bool) -> int:
        """An operand that is computed here, or stored in bytes, in the type in which the program's products along the
        axis read theirs. Tensor cores are given bytes as they are, unless sums would have few digits."""
        op, held = self.block.ops[value], self.block.types[value].dtype
        while op.inputs and Trait.VIEW in OPS[op.kind].traits:
            op = self.block.ops[op.inputs[0]]
        wide = self.prepared.read_as(axis)
        if op.kind is OpKind.IN_ITER and (held not in BYTES or (wide in HALVES and not few)):
            return value
        if wide is None or held.size >= wide.size:
            return value
        return self._append(Op(OpKind.CAST, (value,), CastAttrs(wide)), self.layouts[value], self.zeros[value])

    def _fitted(self, value: int, wide: Layout) -> int:
        """A view of `value` that broadcasts to `wide`, whose axes contain its own."""
        return self._viewed(value, fitted(self.layouts[value], wide))

    def _viewed(self, value: int, wanted: Layout) -> int:
        """A view of `value` with the dimensions of `wanted`, which has the same axes; made once."""
        layout = self.layouts[value]
        if layout == wanted:
            return value
        if (value, wanted) not in self.views:
            self.views[value, wanted] = self._view(value, layout, wanted)
        return self.views[value, wanted]

    def _view(self, value: int, layout: Layout, wanted: Layout) -> int:
        extents = dict(zip(layout, self.block.types[value].shape, strict=True))
        order, moved = ([a for a in axes if a is not None] for axes in (layout, wanted))
        one = past_one(order, moved, {axis: extents[axis] == 1 for axis in order})
        if moved != order and not one:  # of several dimensions of one element a reshape would not say which is which
            perm = permutation(layout, wanted)
            value = self._append(Op(OpKind.TRANSPOSE, (value,), TransposeAttrs(perm)), tuple(layout[i] for i in perm))
            layout = self.layouts[value]
        if layout == wanted:
            return value
        shape = dict(zip(layout, self.block.types[value].shape, strict=True))
        target = tuple(1 if a is None else shape[a] for a in wanted)
        return self._append(Op(OpKind.RESHAPE, (value,), attrs=ReshapeAttrs(target)), wanted)

    # -- savers

    def _partial(self, type_: Type) -> list[int]:
        """The axes of whose sum every block leaves a part."""
        return [a for a, _ in self.sizes.grid if type_[a] & BLOCK and not type_[a] & DATA]

    def _save(self, output: int, final: Layout | None, dtype: DType | None) -> Layout:
        value = self.value[output]
        if final is None:
            partial = self._partial(self.kernel.steps[output].type)
            final = (*partial, *self.layouts[value])
            value = self._viewed(value, (*(None for _ in partial), *self.layouts[value]))
        else:
            value = self._viewed(value, final)
        if dtype is not None and self.block.types[value].dtype is not dtype:
            value = self._append(Op(OpKind.CAST, (value,), CastAttrs(dtype)), self.layouts[value])
        omap = tuple(final.index(axis) if axis in final else None for axis, _ in self.sizes.grid)
        attrs = OutSaverAttrs(omap or (None,))
        op = Op(OpKind.OUT_SAVER, (value,), attrs)
        whole = replace(self.block, ops=(op,)).output_types[0].shape
        cut = tuple(
            extent if axis is None or extent != self._covered(axis) else self.extents[axis]
            for axis, extent in zip(final, whole, strict=True)
        )
        if cut != whole:
            op = replace(op, attrs=replace(attrs, shape=cut))
        self.block = self.block.append(op)
        return final
