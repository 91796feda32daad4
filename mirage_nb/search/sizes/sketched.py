"""The sketch of a kernel structure: what `concrete` makes of it, but for the numbers.

In: a kernel structure of a program. Out: a `Sketched`, on which the rules of `tile` say what becomes of every value.
Steps keep their numbers as values; views, which put dimensions in the order that an operator needs, are further ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce

from mirage_nb.ir import AccumKind, DType, OpKind, promote
from mirage_nb.search.axes import Layout, Prepared
from mirage_nb.search.saturation.values import BLOCK, DATA, ITER, TILE, Type
from mirage_nb.search.sizes.layouts import (
    broadcast_layout,
    concatenated,
    fitted,
    folded,
    joined,
    layout_of,
    multiplied,
    of_product,
)
from mirage_nb.search.structure import KernelStructure, Step
from mirage_nb.tile.order import find_chains, groups
from mirage_nb.tile.sketch import MATMULS, REDUCTIONS, Node, Sketch, Value


@dataclass(frozen=True, slots=True, eq=False)
class Sketched:
    """sketch: chains of elementwise steps are one operator each. layouts: the axis of every dimension of a value;
    types: the parts of axes that it has. times: of every step, see `Sketch.times`. cores: the steps that tensor cores
    compute; wide: of f32, since earlier kernels left them and no product takes them as they are, or computed with such;
    partial: that have a part of an axis."""

    kernel: KernelStructure
    sketch: Sketch
    layouts: tuple[Layout, ...]
    types: tuple[Type, ...]
    times: tuple[tuple[int | None, bool, bool], ...]
    cores: frozenset[int]
    wide: tuple[bool, ...]
    partial: tuple[bool, ...]


def sketched(prepared: Prepared, kernel: KernelStructure) -> Sketched:
    """The sketch of a kernel."""
    wide = _wide(kernel)
    partial = tuple(any(code & DATA and not code & TILE for code in step.type) for step in kernel.steps)
    made = _Writer(prepared, kernel, wide, partial)
    values = tuple(map(_value, made.layouts, made.types, made.dtypes))
    flat = Sketch(tuple(made.nodes), values, kernel.loop is not None, kernel.loop is not None)
    return Sketched(
        kernel, _chained(flat, made.heads), tuple(made.layouts), tuple(made.types),
        tuple(flat.times[flat.defined[index]] for index in range(len(kernel.steps))),
        frozenset(node.makes[0] for node in flat.nodes if node.kind in MATMULS and flat.on_tensor_cores(node)),
        wide, partial,
    )  # fmt: skip


def _value(layout: Layout, type_: Type, dtype: DType | None) -> Value:
    parts = tuple([code & DATA for code in type_])
    return Value(dtype or DType.F32, (layout, parts), sum(map(bool, parts)), tuple([a is not None for a in layout]))


def _wide(kernel: KernelStructure) -> tuple[bool, ...]:
    steps = kernel.steps
    wide: list[bool] = []
    for index, step in enumerate(steps):
        if step.source is None:
            wide.append(any(wide[read] for read in step.reads))
            continue
        seen = {index}
        for later, other in enumerate(steps):
            if other.operator.kind is OpKind.ACCUM and not seen.isdisjoint(other.reads):
                seen.add(later)
        multiplied = any(s.operator.kind is OpKind.MATMUL and not seen.isdisjoint(s.reads) for s in steps)
        wide.append(step.source.kernel is not None and not multiplied)
    return tuple(wide)


class _Writer:
    """Writes the operators of a kernel, one by one."""

    def __init__(
        self, prepared: Prepared, kernel: KernelStructure, wide: Sequence[bool], partial: Sequence[bool]
    ) -> None:
        self.prepared, self.kernel, self.wide, self.partial = prepared, kernel, wide, partial
        self.nodes: list[Node] = []
        self.heads = set[int]()
        self.layouts: list[Layout] = [() for _ in kernel.steps]
        self.types = [step.type for step in kernel.steps]
        self.dtypes: list[DType | None] = [None for _ in kernel.steps]
        for index, step in enumerate(kernel.steps):
            self._write(index, step)
        for output in kernel.outputs:
            type_, layout = self.types[output], self.layouts[output]
            parts = [None for code in type_ if code & BLOCK and not code & DATA]
            self.nodes.append(Node(OpKind.OUT_SAVER, (self._viewed(output, (*parts, *layout)),), ()))

    def _write(self, index: int, step: Step) -> None:
        operator, reads = step.operator, list(step.reads)
        read = [self.layouts[value] for value in reads]
        along, streamed = 0, False
        match operator.kind:
            case OpKind.IN_ITER:
                assert step.source is not None
                layout = layout_of(self.prepared, self.kernel, index, step.source)
                streamed = any(code & ITER for code in step.type)
            case OpKind.CONST:
                layout = ()
            case kind if kind in REDUCTIONS:
                layout = folded(read[0], operator.axis)
                along = read[0].index(operator.axis) - len(read[0]) if operator.axis in read[0] else 0
                reads[1:] = [self._viewed(value, fitted(self.layouts[value], read[0])) for value in reads[1:]]
            case OpKind.ACCUM:
                layout = read[0]
                reads[1:] = [self._viewed(value, fitted(self.layouts[value], layout)) for value in reads[1:]]
                if operator.accum is AccumKind.CONCAT:
                    layout = concatenated(layout, operator.axis)
                    if len(layout) > len(read[0]):
                        reads[0] = self._viewed(reads[0], (None, *read[0]))
            case OpKind.CONCAT:
                kept = [axis for axis in read[0] if axis is not None and step.type[axis] & DATA]
                own = [next((axis for axis in one if axis is not None and axis not in kept), None) for one in read]
                reads = [self._viewed(value, (axis, *kept)) for value, axis in zip(reads, own, strict=True)]
                layout = (operator.axis, *kept)
            case OpKind.MATMUL:
                exchanged, left, right = multiplied(read[0], read[1], operator.axis)
                layout, first = of_product(left, right), reads[::-1] if exchanged else reads
                reads = [self._viewed(first[0], left), self._viewed(first[1], right)]
            case _ if len(reads) == 2:
                wide = joined(read[0], read[1])
                reads = [self._viewed(value, fitted(self.layouts[value], wide)) for value in reads]
                layout = broadcast_layout(*(self.layouts[value] for value in reads))
            case _:
                layout = read[0]
        self.layouts[index], self.dtypes[index] = layout, self._dtype(index, step)
        self.heads |= {len(self.nodes)} if step.threads else set()
        literal = operator.kind is OpKind.CONST
        made = Node(operator.kind, tuple(reads), (index,), operator.accum, literal, False, streamed, along)
        self.nodes.append(made)

    def _dtype(self, index: int, step: Step) -> DType | None:
        """The element type of a step, as `ir` gives them; None of a constant, which takes that of its partner. Results
        of earlier kernels are f32 unless products take them as they are."""
        source, prepared = step.source, self.prepared
        if source is not None and source.kernel is None:
            return prepared.graph.types[prepared.tensors[source.index].input].dtype
        if source is not None:
            widest = max((i.type.dtype for i in prepared.graph.inputs), key=lambda dtype: dtype.size)
            return DType.F32 if self.partial[index] or self.wide[index] else widest
        reads = step.reads[step.operator.kind is OpKind.WHERE :]  # a condition has no part in it
        typed = [dtype for read in reads if (dtype := self.dtypes[read]) is not None]
        return reduce(promote, typed) if typed else None

    def _viewed(self, value: int, wanted: Layout) -> int:
        """A view of a value with the dimensions of `wanted`."""
        layout = self.layouts[value]
        if layout == wanted:
            return value
        order, other = ([axis for axis in one if axis is not None] for one in (layout, wanted))
        self.layouts.append(wanted)
        self.types.append(self.types[value])
        self.dtypes.append(self.dtypes[value])
        kind = OpKind.RESHAPE if order == other else OpKind.TRANSPOSE
        self.nodes.append(Node(kind, (value,), (len(self.layouts) - 1,)))
        return len(self.layouts) - 1


def _chained(sketch: Sketch, heads: Collection[int]) -> Sketch:
    """A sketch whose chains of elementwise operators, and of these products, are one operator each, as thread graphs
    have them."""
    chains = find_chains([node.elementwise for node in sketch.nodes], sketch.reads, sketch.times, heads)
    nodes = []
    for members in groups(chains, sketch.reads):
        chain = [sketch.nodes[index] for index in members]
        if len(chain) == 1 and members[0] not in heads:
            nodes += chain
            continue
        made = [value for node in chain for value in node.makes]
        read = dict.fromkeys(value for node in chain for value in node.reads if value not in made)
        place = {value: number for number, value in enumerate((*read, *made))}
        leaving = tuple(value for value in made if not {*members}.issuperset(sketch.uses[value]))
        inner = tuple((node.kind, tuple(place[value] for value in node.reads)) for node in chain)
        nodes.append(
            Node(OpKind.FUSED, tuple(read), leaving, chain=inner, leaving=tuple(place[value] for value in leaving))
        )
    return Sketch(tuple(nodes), sketch.values, sketch.looped, sketch.repeated)
