"""Derive further muGraphs from those found, by rewrites that keep what is computed.

In: a structure or a concrete muGraph. Out: others. A loop over a free axis is a change of roles: every
operator is pointwise along that axis, so what has it moves into the loop body and concat accumulators
gather it. A sum of two matmuls is one matmul of concatenated operands: (W || X) @ (Y || Z) = W @ Y + X @ Z
(paper section 8.1). Products of a few summed elements may stand in thread graphs (section 4.2); those of elementwise
operators alone are made when a muGraph is planned. Grid dims over free axes are sizes, see `instantiate`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from mirage_nb.ir import HALVES, AccumKind, BlockGraph, KernelGraph, Op, OpKind
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.search.axes import Prepared
from mirage_nb.search.saturation.values import BODY, ITER, LOOP, POST, TILE, Operator
from mirage_nb.search.structure import KernelStructure, Step, Structure
from mirage_nb.tile.thread_graph import MOST_DEPTH, TENSOR_DEPTH, Products, shallow, with_products


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
    joined = [_joined(op.body) if isinstance(op.body, BlockGraph) else {} for op in graph.ops]
    return replace(graph, ops=tuple(map(_with_joined, graph.ops, joined)))


_Joined = dict[int, tuple[tuple[int, ...], tuple[int, ...]]]
"""For a sum of two matmuls: their operands W, X, Y, Z, and the values of the two."""


def _joined(block: BlockGraph) -> _Joined:
    if not any(op.kind is OpKind.ADD for op in block.ops):
        return {}
    uses = block.uses()
    maker = {value: op for op, values in block.definitions() for value in values}
    joined: _Joined = {}
    for op, values in block.definitions():
        if op.kind is OpKind.ADD and _sum_of_products(block, maker, uses, op):
            (w, y), (x, z) = (maker[value].inputs for value in op.inputs)
            joined[values[0]] = (w, x, y, z), op.inputs
    return joined


def _with_joined(op: Op, joined: _Joined) -> Op:
    return replace(op, body=_concatenated_block(op.body, joined)) if isinstance(op.body, BlockGraph) else op


def _concatenated_block(block: BlockGraph, joined: _Joined) -> BlockGraph:
    absorbed = {value for _, values in joined.values() for value in values}
    made = Rewrite(BlockGraph.start(block.args, block.grid, block.loop))
    for op, values in block.definitions():
        if absorbed.isdisjoint(values):
            joins = values and values[0] in joined
            made.copy(Op(OpKind.CONCAT_MATMUL, joined[values[0]][0]) if joins else op, values)
    return made.graph


def _sum_of_products(block: BlockGraph, maker: dict[int, Op], uses: tuple[tuple[int, ...], ...], op: Op) -> bool:
    """Whether an addition adds two matmuls of equal shape that nothing else reads."""
    first, second = op.inputs
    return (
        first != second
        and all(maker[value].kind is OpKind.MATMUL and len(uses[value]) == 1 for value in op.inputs)
        and block.types[first].shape == block.types[second].shape
    )
