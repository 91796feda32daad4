"""Derive further muGraphs from those found, by rewrites that keep what is computed.

In: a structure or a concrete muGraph. Out: others. A loop over a free axis is a change of roles: every
operator is pointwise along that axis, so what has it moves into the loop body and concat accumulators
gather it. A sum of two matmuls is one matmul of concatenated operands: (W || X) @ (Y || Z) = W @ Y + X @ Z
(paper section 8.1). Products of a few summed elements may stand in thread graphs (section 4.2); those of elementwise
operators alone are made when a muGraph is planned. Grid dims over free axes are sizes, see `instantiate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations, count

from mirage_nb.ir import HALVES, AccumKind, BlockGraph, KernelGraph, Op, OpKind
from mirage_nb.ir.rewrite import Rewrite, over_blocks
from mirage_nb.search.axes import Prepared
from mirage_nb.search.saturation.values import BODY, ITER, LOOP, POST, TILE, Operator
from mirage_nb.search.structure import KernelStructure, Step, Structure
from mirage_nb.tile.rules.thread_graph import MOST_DEPTH, TENSOR_DEPTH, Products, shallow, with_products


def free_loops(structure: Structure, prepared: Prepared) -> tuple[Structure, ...]:
    """The same structure with a for-loop over a free axis, for every axis that all outputs have.

    Only for structures of one kernel without a loop.
    """
    (kernel, *more) = structure.kernels
    if more or kernel.loop is not None:
        return ()
    outputs = [kernel.steps[output].type for output in kernel.outputs]
    axes = [axis for axis in prepared.free if all(type_[axis] & TILE for type_ in outputs)]
    return tuple(Structure((_looped(kernel, axis),), structure.outputs) for axis in axes)


def _looped(kernel: KernelStructure, axis: int) -> KernelStructure:
    steps = []
    for step in kernel.steps:
        code = step.type[axis] | ITER if step.type[axis] & TILE else step.type[axis]
        steps.append(replace(step, stage=BODY, type=(*step.type[:axis], code, *step.type[axis + 1 :])))
    gather = Operator(OpKind.ACCUM, axis=axis, accum=AccumKind.CONCAT)
    outputs = []
    for output in kernel.outputs:
        type_ = steps[output].type
        gathered = (*type_[:axis], TILE | LOOP, *type_[axis + 1 :])
        outputs.append(len(steps))
        steps.append(Step(gather, (output,), gathered, POST))
    return KernelStructure(tuple(steps), tuple(outputs), kernel.grid, axis)


MOST_CHOSEN = 3
"""Products of which every choice is estimated."""


@dataclass(frozen=True, slots=True)
class InThreads:
    """Puts products of a muGraph into thread graphs: those of a few summed elements, at all sizes the same ones."""

    products: Products

    @classmethod
    def choices(cls, graph: KernelGraph) -> list[InThreads]:
        """Every choice among the products that threads can compute at the sizes of `graph`; of many, all of them."""
        able = sorted(shallow(graph))
        fewest = 1 if len(able) <= MOST_CHOSEN else len(able)
        counts = range(fewest, len(able) + 1)
        return [cls(frozenset(chosen)) for count in counts for chosen in combinations(able, count)]

    def __call__(self, graph: KernelGraph) -> KernelGraph:
        return with_products(graph, self.products)


def may_be_shallow(structure: Structure, prepared: Prepared) -> bool:
    """Whether some kernel may have such a product."""
    halves = all(given.type.dtype in HALVES for given in prepared.graph.inputs)
    products = [s.operator for kernel in structure.kernels for s in kernel.steps if s.operator.kind is OpKind.MATMUL]
    most = TENSOR_DEPTH if halves else MOST_DEPTH
    return any(prepared.axes[operator.axis].extent <= most for operator in products)


def reads_again(kernel: KernelStructure, prepared: Prepared, is_whole: Callable[[int], bool]) -> bool:
    """Whether iterators of a kernel bring the same tiles of an input, see `read_once`. is_whole: whether neither the
    grid nor the loop cuts an axis."""
    tiles = []
    for step in kernel.steps:
        if step.source is not None and step.source.kernel is None:
            tensor = prepared.tensors[step.source.index]
            cut = (None if axis is None or is_whole(axis) else (axis, step.type[axis]) for axis in tensor.axes)
            tiles.append((tensor.input, *cut))
    return len({*tiles}) < len(tiles)


def read_once(graph: KernelGraph) -> KernelGraph:
    """The muGraph whose iterators that bring the same tile are one, and so is what is computed alike of them."""
    return over_blocks(graph, _read_once)


def _read_once(block: BlockGraph) -> BlockGraph:
    made, known = Rewrite(BlockGraph.start(block.args, block.grid, block.loop)), dict[Op, int]()
    for op, values in block.definitions():
        here = Op(op.kind, made.places(op.inputs), op.attrs, op.body)
        if here not in known or not values:
            known[here] = made.copy(op, values)
        made.held.update(zip(values, count(known[here])))
    return made.graph


def adds_products(structure: Structure) -> bool:
    """Whether some kernel may have a concat-matmul, see `concatenated`."""
    for kernel in structure.kernels:
        for step in kernel.steps:
            summed = [kernel.steps[read].operator.kind for read in step.reads]
            if step.operator.kind is OpKind.ADD and summed == [OpKind.MATMUL, OpKind.MATMUL]:
                return True
    return False


def concatenated(graph: KernelGraph) -> KernelGraph:
    """The muGraph with every sum of two matmuls in its block graphs as one concat-matmul."""
    return over_blocks(graph, _concatenated)


def _concatenated(block: BlockGraph) -> BlockGraph:
    """Of a block graph, sums of two matmuls of one shape that nothing else reads."""
    if not any(op.kind is OpKind.ADD for op in block.ops):
        return block
    uses, types = block.uses(), block.types
    products = {values[0]: op.inputs for op, values in block.definitions() if op.kind is OpKind.MATMUL}
    alone = {value for value in products if len(uses[value]) == 1}
    joined = {
        values[0]: op.inputs
        for op, values in block.definitions()
        if op.kind is OpKind.ADD and alone.issuperset(op.inputs) and len({types[v].shape for v in op.inputs}) == 1
    }
    absorbed = {value for summands in joined.values() for value in summands}
    made = Rewrite(BlockGraph.start(block.args, block.grid, block.loop))
    for op, values in block.definitions():
        if values and values[0] in joined:
            (w, y), (x, z) = (products[value] for value in op.inputs)
            made.copy(Op(OpKind.CONCAT_MATMUL, (w, x, y, z)), values)
        elif absorbed.isdisjoint(values):
            made.copy(op, values)
    return made.graph
