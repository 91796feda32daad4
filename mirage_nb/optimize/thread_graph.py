"""Thread graphs: fuse chains of elementwise operators so that what passes between them stays in registers.

In: a muGraph. Out: the same muGraph in which every chain of two or more elementwise operators of one
stage of a block graph is one FUSED operator with a thread graph. Thread graphs that were there are written out first:
what else they have, products and reductions, the planners of blocks keep in registers where they can. Invariant: every
value that is read outside its chain is an output of the chain, so the two graphs compute the same tensors (paper 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_nb.ir import BlockGraph, KernelGraph, Op, OpKind, ThreadGraph
from mirage_nb.tile.order import Reads, find_chains, groups
from mirage_nb.tile.sketch import sketch_of


def fuse(graph: KernelGraph) -> KernelGraph:
    """`graph` with every chain of elementwise operators in its block graphs turned into a FUSED operator."""
    ops = (replace(op, body=fuse_block(op.body)) if isinstance(op.body, BlockGraph) else op for op in graph.ops)
    return replace(graph, ops=tuple(ops))


def fuse_block(block: BlockGraph) -> BlockGraph:
    """One block graph with its chains fused; savers keep their order, so the outputs do too.

    A chain takes the constants that it reads inside; one that only chains read leaves the block graph.
    """
    block = _flat(block)
    sketch = sketch_of(block)
    building = _Rebuild(block, sketch.reads)
    able = [node.elementwise and not node.chain for node in sketch.nodes]
    for members in groups(find_chains(able, sketch.reads, sketch.times), sketch.reads):
        building.place(members)
    return building.result


def _flat(block: BlockGraph) -> BlockGraph:
    """With the operators of thread graphs in the block graph itself."""
    result, new = BlockGraph.start(block.args, block.grid, block.loop), dict[int, int]()

    def append(op: Op, read: Mapping[int, int]) -> int:
        nonlocal result
        result = result.append(replace(op, inputs=tuple(read[v] for v in op.inputs)))
        return len(result.types) - 1

    for op, values in block.definitions():
        if isinstance(op.body, ThreadGraph):
            inner = {v: new[outer] for v, outer in enumerate(op.inputs)}
            for part, (value,) in op.body.definitions():
                inner[value] = append(part, inner)
            new |= {value: inner[made] for value, made in zip(values, op.body.outputs, strict=True)}
        else:
            made = append(op, new)
            new |= dict.fromkeys(values, made)
    return result


@dataclass(slots=True)
class _Rebuild:
    """Copies a block graph in dependency order, chain by chain."""

    block: BlockGraph
    reads: Reads
    result: BlockGraph
    new: dict[int, int]
    _values: list[tuple[int, ...]]

    def __init__(self, block: BlockGraph, reads: Reads) -> None:
        self.block, self.reads, self.new = block, reads, {}
        self.result = BlockGraph.start(block.args, block.grid, block.loop)
        self._values = [values for _, values in block.definitions()]

    def place(self, members: tuple[int, ...]) -> None:
        """Append an operator or a chain, whose operands are there; constants, before the first operator that reads
        them by itself."""
        if len(members) > 1:
            self._place_chain(members)
        elif self.block.ops[members[0]].kind is not OpKind.CONST:
            for read in self.reads[members[0]]:
                if self._values[read][0] not in self.new:
                    self._append(read)
            self._append(members[0])

    def _append(self, index: int) -> None:
        op = self.block.ops[index]
        self.result = self.result.append(replace(op, inputs=tuple(self.new[v] for v in op.inputs)))
        for value in self._values[index]:
            self.new[value] = len(self.result.types) - 1

    def _place_chain(self, members: tuple[int, ...]) -> None:
        made = {self._values[m][0] for m in members}
        sources = {self._values[r][0]: self.block.ops[r] for m in members for r in self.reads[m]}
        read = dict.fromkeys(v for m in members for v in self.block.ops[m].inputs if v not in made)
        consts = [v for v in read if sources[v].kind is OpKind.CONST]
        operands = [v for v in read if v not in consts]
        thread = ThreadGraph.start(tuple(self.block.types[v] for v in operands))
        inner = {v: i for i, v in enumerate(operands)}
        for value in consts:
            thread = thread.append(sources[value])
            inner[value] = len(thread.types) - 1
        for member in members:
            op = self.block.ops[member]
            thread = thread.append(replace(op, inputs=tuple(inner[v] for v in op.inputs)))
            inner[self._values[member][0]] = len(thread.types) - 1
        uses = self.block.uses()
        leaving = [v for v in sorted(made) if any(reader not in members for reader in uses[v])]
        thread = thread.returning(tuple(inner[v] for v in leaving))
        first = len(self.result.types)
        fused = Op(OpKind.FUSED, tuple(self.new[v] for v in operands), body=thread)
        self.result = self.result.append(fused)
        for position, value in enumerate(leaving):
            self.new[value] = first + position
