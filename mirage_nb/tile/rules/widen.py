"""Partial results between two generated kernels travel in f32.

In: a muGraph. Out: the same muGraph with the element types of such temporaries widened to f32, so that a
split accumulation loses nothing between its two kernels. Invariant: inputs and outputs of the muGraph keep
their types, and so does every tensor that a tensor-core Matmul or a pre-defined operator reads.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_nb.ir import HALVES, BlockGraph, DType, InIterAttrs, KernelGraph, Op, OpKind, TensorType, ThreadGraph

_SEE_THROUGH = frozenset({OpKind.TRANSPOSE, OpKind.RESHAPE, OpKind.ACCUM})


def widen(graph: KernelGraph) -> KernelGraph:
    """`graph` with 16-bit temporaries between graph-defined operators in f32."""
    types = list(graph.types)
    uses = graph.uses()
    views = _views(graph)
    for op, values in graph.definitions():
        for value in values:
            seen = views.get(value, {value})
            readers = [(graph.ops[i], v) for v in seen for i in uses[v] if graph.ops[i].kind is not OpKind.RESHAPE]
            if (
                op.kind is OpKind.GRAPH
                and seen.isdisjoint(graph.outputs)
                and types[value].dtype in HALVES
                and all(_only_computed_with(reader, v) for reader, v in readers)
            ):
                types = [replace(t, dtype=DType.F32) if v in seen else t for v, t in enumerate(types)]
    ops = tuple(_rebuilt(op, types) for op in graph.ops)
    return replace(graph, ops=ops, types=tuple(types))


def _views(graph: KernelGraph) -> dict[int, set[int]]:
    """For every value that reshapes rename, all of its names, its own first one among them."""
    first: dict[int, int] = {}
    found: dict[int, set[int]] = {}
    for op, values in graph.definitions():
        if op.kind is OpKind.RESHAPE:
            first[values[0]] = origin = first.get(op.inputs[0], op.inputs[0])
            found.setdefault(origin, {origin}).add(values[0])
    return found


def _only_computed_with(reader: Op, value: int) -> bool:
    """Whether a reader is a generated kernel that multiplies no matrices with this operand."""
    if not isinstance(reader.body, BlockGraph):
        return False
    block = reader.body
    followed = {
        values[0]
        for op, values in block.definitions()
        if isinstance(op.attrs, InIterAttrs) and reader.inputs[op.attrs.arg] == value
    }
    return not is_multiplied(block, followed)


def is_multiplied(graph: BlockGraph | ThreadGraph, followed: set[int]) -> bool:
    """Whether a product reads one of these values, or a view or a sum of one."""
    for op, values in graph.definitions():
        if followed.isdisjoint(op.inputs):
            continue
        inner = {place for place, v in enumerate(op.inputs) if v in followed}
        if op.kind in (OpKind.MATMUL, OpKind.CONCAT_MATMUL):
            return True
        if isinstance(op.body, ThreadGraph) and is_multiplied(op.body, inner):
            return True
        if op.kind in _SEE_THROUGH:
            followed.update(values)
    return False


def _rebuilt(op: Op, types: list[TensorType]) -> Op:
    """A graph-defined operator over its operands' new types."""
    if not isinstance(op.body, BlockGraph):
        return op
    return replace(op, body=over(op.body, tuple(types[v] for v in op.inputs)))


def over(block: BlockGraph, args: tuple[TensorType, ...]) -> BlockGraph:
    """A block graph over operands of these types."""
    if args == block.args:
        return block
    made = BlockGraph.start(args, block.grid, block.loop)
    for op in block.ops:
        made = made.append(_over(op, made))
    return made


def _over(op: Op, block: BlockGraph) -> Op:
    """An operator with a thread graph over the types that its operands have in a block graph."""
    if not isinstance(op.body, ThreadGraph):
        return op
    thread = ThreadGraph.start(tuple(block.types[v] for v in op.inputs))
    for inner in op.body.ops:
        thread = thread.append(inner)
    return replace(op, body=thread.returning(op.body.outputs))
