"""Thread graphs: fuse chains of elementwise operators so that what passes between them stays in registers.

In: a muGraph. Out: the same muGraph in which every chain of two or more elementwise operators of one
stage of a block graph is one FUSED operator with a thread graph. Invariant: every value that is read
outside its chain is an output of the chain, so the two graphs compute the same tensors (paper 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from mirage_nb.ir import OPS, BlockGraph, InIterAttrs, KernelGraph, Op, OpKind, ThreadGraph, Trait
from mirage_nb.optimize.placement import MATMULS


def fuse(graph: KernelGraph) -> KernelGraph:
    """`graph` with every chain of elementwise operators in its block graphs turned into a FUSED operator."""
    ops = (replace(op, body=fuse_block(op.body)) if isinstance(op.body, BlockGraph) else op for op in graph.ops)
    return replace(graph, ops=tuple(ops))


def fuse_block(block: BlockGraph) -> BlockGraph:
    """One block graph with its chains fused; savers keep their order, so the outputs do too.

    A chain takes the constants that it reads inside; one that only chains read leaves the block graph.
    """
    groups = _chains(block)
    leader = {member: group for group in groups if len(group) > 1 for member in group}
    building = _Rebuild(block, leader)
    for index, op in enumerate(block.ops):
        if op.kind is not OpKind.CONST:
            building.place(index)
    return building.result


def _chains(block: BlockGraph) -> list[tuple[int, ...]]:
    """Partition of the elementwise operators into chains that can follow one another: no path leaves a chain and
    returns, through other chains neither."""
    defined = _definition_index(block)
    times = _times(block)
    chain_of: dict[int, list[int]] = {}
    for index, op in enumerate(block.ops):
        if Trait.ELEMENTWISE not in OPS[op.kind].traits:
            continue
        chain = [index]
        for producer in sorted({defined[v] for v in op.inputs}):
            found = chain_of.get(producer)
            if found is None or found is chain or times[producer] != times[index]:
                continue
            merged = sorted({*found, *chain})
            if _in_order(block, defined, chain_of, merged, index):
                chain = merged
        for member in chain:
            chain_of[member] = chain
    unique = {tuple(chain) for chain in chain_of.values()}
    return sorted(unique)


def _times(block: BlockGraph) -> list[tuple[int | None, bool, bool]]:
    """When an operator runs: its stage, and in the loop whether it is anew in every iteration and whether a
    product goes into it. What is computed once, or once for all warps, keeps out of the chains of the others.
    """
    varies: list[bool] = []
    multiplied: list[bool] = []
    found = []
    for op, stage, values in zip(block.ops, block.stages(), (v for _, v in block.definitions()), strict=True):
        streamed = isinstance(op.attrs, InIterAttrs) and op.attrs.fmap is not None
        anew = stage == 0 and block.loop > 1 and (streamed or any(varies[v] for v in op.inputs))
        product = anew and (op.kind in MATMULS or any(multiplied[v] for v in op.inputs))
        varies += [anew] * len(values)
        multiplied += [product] * len(values)
        found.append((stage, anew, product))
    return found


def _in_order(
    block: BlockGraph, defined: dict[int, int], chain_of: dict[int, list[int]], merged: list[int], last: int
) -> bool:
    """Whether the operators up to `last` can be computed chain by chain when `merged` is one."""
    first = dict.fromkeys(merged, merged[0])
    chains = [first.get(i, chain_of.get(i, [i])[0]) for i in range(last + 1)]
    before: dict[int, set[int]] = {}
    for index, op in enumerate(block.ops[: last + 1]):
        sources = {chains[defined[v]] for v in op.inputs} - {chains[index]}
        before.setdefault(chains[index], set()).update(sources)
    try:
        TopologicalSorter(before).prepare()
    except CycleError:
        return False
    return True


def _definition_index(block: BlockGraph) -> dict[int, int]:
    """Value -> index of the operator that defines it."""
    return {v: i for i, (_, values) in enumerate(block.definitions()) for v in values}


@dataclass(slots=True)
class _Rebuild:
    """Copies a block graph in dependency order, chain by chain."""

    block: BlockGraph
    chain: dict[int, tuple[int, ...]]
    result: BlockGraph
    new: dict[int, int]

    def __init__(self, block: BlockGraph, chain: dict[int, tuple[int, ...]]) -> None:
        self.block, self.chain, self.new = block, chain, {}
        self.result = BlockGraph.start(block.args, block.grid, block.loop)
        self._values = [values for _, values in block.definitions()]
        self._defined = _definition_index(block)
        self._done: set[int] = set()

    _values: list[tuple[int, ...]]
    _defined: dict[int, int]
    _done: set[int]

    def place(self, index: int) -> None:
        """Append operator `index` (or its whole chain), after everything that it reads."""
        if index in self._done:
            return
        members = self.chain.get(index, (index,))
        self._done.update(members)
        for member in members:
            for value in self.block.ops[member].inputs:
                source = self._defined[value]
                if len(members) == 1 or self.block.ops[source].kind is not OpKind.CONST:
                    self.place(source)
        if len(members) > 1:
            self._place_chain(members)
            return
        op = self.block.ops[index]
        self.result = self.result.append(replace(op, inputs=tuple(self.new[v] for v in op.inputs)))
        for value in self._values[index]:
            self.new[value] = len(self.result.types) - 1

    def _place_chain(self, members: tuple[int, ...]) -> None:
        made = {self._values[m][0] for m in members}
        read = dict.fromkeys(v for m in members for v in self.block.ops[m].inputs if v not in made)
        consts = [v for v in read if self.block.ops[self._defined[v]].kind is OpKind.CONST]
        operands = [v for v in read if v not in consts]
        thread = ThreadGraph.start(tuple(self.block.types[v] for v in operands))
        inner = {v: i for i, v in enumerate(operands)}
        for value in consts:
            thread = thread.append(self.block.ops[self._defined[value]])
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
