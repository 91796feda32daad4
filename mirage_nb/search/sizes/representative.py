"""The block of a kernel structure before its sizes: what `concrete` makes of it, of any numbers.

In: a kernel structure of a program. Out: its `Outline`, whose block has numbers that tell its axes apart, and all of
whose extents are called by their axes; the masks that `concrete` puts in where tiles hang over an end. The rules that
find products of many rows, and chains of them, look at a block whose operands are matrices: one of their axes is long,
those of a batch are of one element.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from mirage_nb.ir import HALVES, Attrs, BlockGraph, DType, InIterAttrs, Op, OpKind, TensorType
from mirage_nb.ir.windows import WHOLE
from mirage_nb.search.axes import Layout, Prepared
from mirage_nb.search.saturation.values import BLOCK, DATA, GRID, ITER, LOOP, TILE, Type
from mirage_nb.search.sizes.anatomy import KNOWN, Along, Beside, Chain, Extent, Mask, Moved, Outline
from mirage_nb.search.sizes.concrete import BlockWriter, KernelSizes
from mirage_nb.search.sizes.layouts import stored
from mirage_nb.search.structure import KernelStructure, Source, Step
from mirage_nb.tile.rules.attention import KEYS, AttentionBlock, find_attention, weights_are_f32
from mirage_nb.tile.rules.products import COLUMNS, ROWS, SUMMED, Operand, ProductBlock, find_product
from mirage_nb.tile.rules.widen import is_multiplied, over

PARTS = 2
"""Blocks along a split axis, and iterations."""


@lru_cache(maxsize=KNOWN)
def outline(prepared: Prepared, kernel: KernelStructure) -> Outline:
    """The outline of a kernel."""
    numbers = prepared.joined(_primes(len(prepared.axes)))
    made = _Writer.of(prepared, kernel, numbers)
    block, (products, chain) = made.travelling(), _roles(made, numbers)
    operators = [(op.kind, op.inputs, values) for op, values in block.definitions()]
    tensors = [(value, step) for value, step in zip(made.value, kernel.steps, strict=True) if step.source is not None]
    return Outline(
        block, (operators, tuple(t.dtype.size for t in made.block.types)), frozenset(),
        frozenset(value for value, step in zip(made.value, kernel.steps, strict=True) if step.threads),
        tuple(map(made.names, range(len(made.layouts)))),
        {value: made.read(value, step, block.types[value].dtype) for value, step in tensors},
        tuple((v, made.saved(v, made.block.types[v].dtype)) for v in (op.inputs[0] for op in block.savers)),
        partial(masks_of, prepared, kernel),
        any(step.source is not None and step.source.kernel is not None for step in kernel.steps), kernel.loop,
        products, chain,
    )  # fmt: skip


@lru_cache(maxsize=KNOWN)
def masks_of(prepared: Prepared, kernel: KernelStructure, axis: int | None) -> tuple[Mask, ...]:
    """The masks of a kernel whose tiles hang over the end of an axis."""
    numbers = prepared.joined(_primes(len(prepared.axes)))
    masked = _Writer.of(prepared, kernel, numbers, axis).masked if axis is not None else {}
    return tuple(Mask(value, operations) for value, operations in masked.items())


@lru_cache(maxsize=64)
def _primes(count: int) -> tuple[int, ...]:
    """So many numbers of which no product is another one's."""
    found: list[int] = []
    number = PARTS + 1
    while len(found) < count:
        if all(number % prime for prime in (PARTS, *found)):
            found.append(number)
        number += 1
    return tuple(found)


@dataclass(slots=True)
class _Writer(BlockWriter):
    """Writes the block with the tiles of its operands in the place of their tensors. tiled: of every axis, its tile.
    hanging: the axis over whose end tiles hang. lying: the axes of the dimensions of tensors that are otherwise not
    known. types: of every value. masked: values that are masked, and by how many operations."""

    tiled: Sequence[int] = ()
    hanging: int | None = None
    lying: Mapping[Source, Layout] = field(default_factory=dict)
    types: list[Type] = field(default_factory=list)
    masked: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(
        cls, prepared: Prepared, kernel: KernelStructure, tiled: Sequence[int], hanging: int | None = None
    ) -> _Writer:
        """The block of a kernel at these tiles. What earlier kernels left has the dimensions in which it is read."""
        made = cls._written(prepared, kernel, tiled, hanging, {})
        lying: dict[Source, Layout] = {}
        for op, (value, *_) in _made(made.block):
            if op.kind is OpKind.RESHAPE and op.inputs[0] in made.value:
                source = kernel.steps[made.value.index(op.inputs[0])].source
                if source is not None and source.kernel is not None:
                    lying.setdefault(source, made.layouts[value])
        return cls._written(prepared, kernel, tiled, hanging, lying) if lying else made

    @classmethod
    def _written(
        cls, prepared: Prepared, kernel: KernelStructure, tiled: Sequence[int], hanging: int | None,
        lying: Mapping[Source, Layout],
    ) -> _Writer:  # fmt: skip
        sizes = KernelSizes((), 1 if kernel.loop is None else PARTS)
        made = cls(prepared, kernel, sizes, (1,) * len(prepared.axes), {}, tiled=tiled, hanging=hanging, lying=lying)
        tiles = tuple(made._tile(step) for step in kernel.steps if step.source is not None)
        made.block = BlockGraph.start(tiles, (1,), sizes.loop)
        for step in kernel.steps:
            made.value.append(made._step(step))
        for output in kernel.outputs:
            made._save(output, made._final(output), None)
        known = {value: step.type for value, step in zip(made.value, kernel.steps, strict=True)}
        for op, values in made.block.definitions():
            made.types += [known[value] if value in known else made.types[op.inputs[0]] for value in values]
        return made

    def _final(self, output: int) -> Layout | None:
        """The dimensions of what a step leaves, where an output of the program has its axes and no other in this
        order; None where it lies as it is."""
        own = self.layouts[self.value[output]]
        finals = [o for o in self.prepared.output_axes if sorted(_order(o)) == sorted(_order(own))]
        stays = not finals or self._partial(self.kernel.steps[output].type) or _order(own) in map(_order, finals)
        return None if stays else finals[0]

    def names(self, value: int) -> tuple[Extent, ...]:
        """What the extents of a value are called."""
        type_, loop = self.types[value], self.kernel.loop
        return tuple(None if a is None else Along(a, type_[a] & DATA, a == loop) for a in self.layouts[value])

    def read(self, value: int, step: Step, dtype: DType) -> Moved:
        """The tile that a step brings."""
        assert step.source is not None
        own = step.source.kernel is None
        tensor = self.prepared.tensors[step.source.index].input if own else step.source
        given = self.prepared.tensors[step.source.index] if own else None
        share, boxed = (given.share, given.boxed) if given is not None else (WHOLE, None)
        cuts = tuple(a for a, code in enumerate(step.type) if code & BLOCK or (code and not self._reduced(a)))
        streamed = any(code & ITER for code in step.type)
        return Moved(tensor, dtype.size, self.names(value), cuts, streamed, share, boxed)

    def counts(self, step: Step) -> bool:
        """Whether a step reads numbers of places."""
        if step.source is None or step.source.kernel is not None:
            return False
        return self.prepared.graph.inputs[self.prepared.tensors[step.source.index].input].places

    def saved(self, value: int, dtype: DType) -> Moved:
        """The tile of a value that is saved."""
        return Moved(None, dtype.size, self.names(value), ())

    def travelling(self) -> BlockGraph:
        """The block over operands of the types that they have in device memory: what earlier kernels left, and no
        product takes as it is, is f32 (`tile.rules.widen`)."""
        args, steps = list(self.block.args), zip(self.value, self.kernel.steps, strict=True)
        inputs = ((value, step.source.kernel) for value, step in steps if step.source is not None)
        for arg, (value, kernel) in enumerate(inputs):
            if kernel is not None and args[arg].dtype in HALVES and not is_multiplied(self.block, {value}):
                args[arg] = TensorType(args[arg].shape, DType.F32, args[arg].space)
        return over(self.block, tuple(args))

    def _layout(self, step: Step) -> Layout:
        """The axes of the dimensions of an operand."""
        assert step.source is not None
        if step.source.kernel is None:
            return self.prepared.tensors[step.source.index].axes
        return self.lying.get(step.source, stored(step.type))

    def _tile(self, step: Step) -> TensorType:
        """An operand, as long as its tile is in all iterations."""
        assert step.source is not None
        inputs = self.prepared.graph.inputs
        dtype = max((given.type.dtype for given in inputs), key=lambda dtype: dtype.size)
        if step.source.kernel is None:
            dtype = self.prepared.graph.types[self.prepared.tensors[step.source.index].input].dtype
        return TensorType(tuple(1 if a is None else self._extent(a, step.type[a]) for a in self._layout(step)), dtype)

    def _extent(self, axis: int, code: int) -> int:
        number = self.tiled[axis] if code & TILE else 1
        return number * math.prod(PARTS for part in (GRID, LOOP, ITER) if code & part)

    def _read(self, step: Step) -> int:
        loop, layout = self.kernel.loop, self._layout(step)
        fmap = layout.index(loop) if loop is not None and step.type[loop] & ITER else None
        arg = sum(op.kind is OpKind.IN_ITER for op in self.block.ops)
        return self._iterator(InIterAttrs(arg, (None,), fmap), layout, step.type)

    def _tiled(self, attrs: InIterAttrs, layout: Layout, type_: Type) -> InIterAttrs:
        return attrs

    def _hangs(self, axis: int) -> bool:
        return axis == self.hanging

    def _masked(self, value: int, axis: int, step: Step) -> int:
        if axis not in self.zeros[value]:
            self.masked[value] += 1
            self.zeros[value] |= {axis}
        return value

    def _without(self, value: int, axis: int, step: Step) -> int:
        self.masked[value] += 1
        return value

    def _lowered(self, value: int, axis: int, step: Step) -> int:
        self.masked[value] += 1
        self.zeros[value] -= {axis}
        return value

    def _partial(self, type_: Type) -> list[int]:
        return [a for a, code in enumerate(type_) if code & BLOCK and not code & DATA]


def _order(layout: Layout) -> list[int]:
    """Its axes, in their order."""
    return [axis for axis in layout if axis is not None]


def _made(block: BlockGraph) -> Iterator[tuple[Op, tuple[int, ...]]]:
    """The operators that make something."""
    return ((op, values) for op, values in block.definitions() if values)


# -- products of many rows, and chains of them


def _roles(made: _Writer, numbers: Sequence[int]) -> tuple[ProductBlock | None, Chain | None]:
    """What blocks with roles can compute of a kernel, where operands are matrices: products and what is folded of them,
    or two products."""
    prepared, kernel = made.prepared, made.kernel
    kinds = Counter(op.kind for op in made.block.ops)
    if kernel.loop is None or not kinds[OpKind.MATMUL]:
        return None, None
    lead = {
        name.axis
        for op in made.block.ops
        if op.kind is OpKind.MATMUL
        for operand in op.inputs
        for name in made.names(operand)[:-2]
        if isinstance(name, Along)
    }
    if any(prepared.axes[axis].whole for axis in lead):  # what was put together is never one element
        return None, None
    matrices = _Writer.of(prepared, kernel, [1 if a in lead else n for a, n in enumerate(numbers)]) if lead else made
    block = matrices.travelling()
    product = find_product(block, frozenset())
    if product is not None and _turned(matrices, product):
        product = None
    chains = kinds[OpKind.MATMUL] == 2 and product is None
    attention = find_attention(block, frozenset()) if chains else None
    return product, None if attention is None else _chain(matrices, attention)


def _axes(made: _Writer, operand: Operand) -> Layout:
    """The axes of an operand's dimensions."""
    value = next(values[0] for op, values in _made(made.block) if op.attrs == operand.attrs)
    return made.layouts[value]


def _turned(made: _Writer, product: ProductBlock) -> bool:
    """Whether some output of the program has its columns before its rows: it leaves a block turned round."""
    factors = next(iter(product.sums.values()))[0]
    row = _axes(made, factors.left)[factors.left.axes.index(ROWS)]
    column = _axes(made, factors.right)[factors.right.axes.index(COLUMNS)]
    layouts = made.prepared.output_axes
    return any({row, column} <= {*o} and o.index(column) < o.index(row) for o in layouts)


def _chain(made: _Writer, found: AttentionBlock) -> Chain | None:
    """A chain whose summed axis is whole and whose other operands number places of rows or keys, or lie along these."""
    operands = found.queries, found.keys, found.values
    queries, keys, values = (_axes(made, o) for o in operands)
    summed = queries[found.queries.axes.index(SUMMED)]
    if summed in made.kernel.grid:
        return None
    attrs_of = {value: op.attrs for op, (value, *_) in _made(made.block)}
    numbered: dict[Attrs | None, tuple[str, Extent]] = {}
    beside: list[Beside] = []
    scored = {*queries, *keys} - {summed}
    for value, step in zip(made.value, made.kernel.steps, strict=True):
        if step.source is None or attrs_of[value] in [o.attrs for o in operands]:
            continue
        names, attrs = made.names(value), attrs_of[value]
        along = [name for name in names if isinstance(name, Along)]
        if not made.counts(step):
            if not names or not isinstance(attrs, InIterAttrs) or any(name.axis not in scored for name in along):
                return None
            known = [(dim, name.axis) for dim, name in enumerate(names) if isinstance(name, Along)]
            parts = (tuple(dim for dim, axis in known if axis not in part) for part in (queries, keys))
            beside.append(Beside(attrs, *parts))
            continue
        if len(along) != 1 or along[0].axis not in {*queries} ^ {*keys}:
            return None
        numbered[attrs] = KEYS if along[0].axis in keys else ROWS, along[0]

    shared = made.kernel.loop in made.kernel.grid
    if shared and (any(one.keys for one in beside) or KEYS in [axis for axis, _ in numbered.values()]):
        return None

    def own(layout: Layout, others: set[int | None]) -> tuple[int, ...]:
        return tuple(dim for dim, axis in enumerate(layout) if axis is not None and axis not in others)

    stored = [type_.dtype for type_ in made.prepared.graph.output_types]
    if weights_are_f32((made.block.args[one.attrs.arg].dtype for one in beside), stored):
        return None
    dims = own(queries, {*keys}), own(keys, {*queries}), own(values, scored)
    return Chain(found, dims, numbered, tuple(beside), shared)
