"""What divides the columns of a product's rows divides the rows of its columns: (E / n) @ V is E @ (V / n).

In: a muGraph. Out: the same muGraph in which such a quotient of products has moved to a tile that comes from device
memory; for the ranking, the tiles that it moves to. Invariant: the two compute the same tensors. An exponential without
a maximum to hold it may need all the bits that a type has for small numbers; divided once more it loses some that the
sum of its row has kept, while V / n is rounded where V is. With a running maximum nothing small matters, and the
quotient stays.
"""

from __future__ import annotations

from dataclasses import replace

from mirage_nb.ir import AccumAttrs, AccumKind, BlockGraph, KernelGraph, Op, OpKind
from mirage_nb.ir.rewrite import Rewrite, over_blocks


def move_scales(graph: KernelGraph) -> KernelGraph:
    """`graph` with the quotients in its block graphs where they lose least."""
    return over_blocks(graph, _moved)


def _moved(block: BlockGraph) -> BlockGraph:
    made, moved = _quotients(block)
    if not moved:
        return block
    uses = block.uses()
    gone = {made[block.ops[index].inputs[0]] for index in moved}
    views = {made[block.ops[index].inputs[1]] for index in gone}
    gone |= {v for v in views if all(reader in gone for value in _values(block, v) for reader in uses[value])}
    result = Rewrite(BlockGraph.start(block.args, block.grid, block.loop))
    for index, (op, values) in enumerate(block.definitions()):
        if index in gone:
            continue
        if index in moved:
            rows, scaled = block.ops[made[op.inputs[0]]].inputs[0], op.inputs[1]
            divided = result.add(Op(OpKind.DIV, result.places((scaled, moved[index]))))
            result.held[values[0]] = result.add(replace(op, inputs=(result.held[rows], divided)))
        else:
            result.copy(op, values)
    return result.graph


def scaled_tiles(block: BlockGraph) -> frozenset[int]:
    """The tiles that quotients move to, each the right operand of a product."""
    return frozenset(block.ops[index].inputs[1] for index in _quotients(block)[1])


def _quotients(block: BlockGraph) -> tuple[dict[int, int], dict[int, int]]:
    """The operator that makes each value; the products whose rows are divided by a column -> that column."""
    made = {v: index for index, (_, values) in enumerate(block.definitions()) for v in values}
    if any(isinstance(op.attrs, AccumAttrs) and op.attrs.kind is AccumKind.RESCALE for op in block.ops):
        return made, {}
    found = {index: _by(block, index, made) for index, op in enumerate(block.ops) if op.kind is OpKind.MATMUL}
    return made, {index: scale for index, scale in found.items() if scale is not None}


def _values(block: BlockGraph, index: int) -> tuple[int, ...]:
    return tuple(block.definitions())[index][1]


def _by(block: BlockGraph, index: int, made: dict[int, int]) -> int | None:
    """What the rows of Matmul `index` are divided by, a column beside its right operand; None if they are not, if
    others read the quotient, or if products go into the column."""
    left, right = block.ops[index].inputs
    quotient = block.ops[made[left]]
    if quotient.kind is not OpKind.DIV or len(block.uses()[left]) != 1:
        return None
    if block.ops[made[right]].kind is not OpKind.IN_ITER or not _multiplied(block, quotient.inputs[0], made):
        return None
    row = block.ops[made[quotient.inputs[1]]]
    if row.kind not in (OpKind.RESHAPE, OpKind.TRANSPOSE) or _multiplied(block, row.inputs[0], made):
        return None
    column = row.inputs[0]
    tile, shape, turned = (block.types[value].shape for value in (right, column, quotient.inputs[1]))
    keys, lead = tile[-2], shape[:-2]
    fits = keys > 1 and shape == (*lead, keys, 1) and turned == (*lead, 1, keys) and len(shape) == len(tile)
    return column if fits else None


def _multiplied(block: BlockGraph, value: int, made: dict[int, int]) -> bool:
    """Whether a product goes into a value."""
    op = block.ops[made[value]]
    return op.kind in (OpKind.MATMUL, OpKind.CONCAT_MATMUL) or any(_multiplied(block, v, made) for v in op.inputs)
