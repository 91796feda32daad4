"""In which order a block does what it does: one set of rules for the planner and for the ranking.

In: operators as numbers, with the numbers of those that they read. Out: chains of elementwise operators that become one
thread graph each; steps in the order in which they run; from when to when a shared tensor lives. Invariant: what is
read is computed before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

from mirage_nb.ir.dtypes import Word

Reads = Sequence[Sequence[int]]
"""Per operator, the operators that it reads, each before it."""


class Phase(Word):
    """When a step runs: once before the loop, in every iteration, or after the loop."""

    BEFORE = 0
    LOOP = 1
    AFTER = 2


class Timed(Protocol):
    """A step: the shared value that it leaves, if it leaves one, those that it reads, and whether it is only issued,
    as copies from device memory are."""

    @property
    def value(self) -> int | None: ...
    @property
    def phase(self) -> Phase: ...
    @property
    def reads(self) -> frozenset[int]: ...
    @property
    def issued(self) -> bool: ...


AnyStep = TypeVar("AnyStep", bound=Timed)


def find_chains(
    elementwise: Sequence[bool], reads: Reads, times: Sequence[object], heads: Collection[int] = ()
) -> list[tuple[int, ...]]:
    """Partition of the elementwise operators into chains of those that run at the same time and can follow one another:
    no path leaves a chain and returns, through other chains neither. heads: products that threads compute; what they
    multiply is made outside of their chains, for a thread reads many elements of it."""
    chain_of: dict[int, list[int]] = {}
    multiplied = {head: {*reads[head]} for head in heads}
    for index, able in enumerate(elementwise):
        if not able and index not in multiplied:
            continue
        chain = [index]
        for producer in sorted({*reads[index]}):
            found = chain_of.get(producer)
            if found is None or found is chain or times[producer] != times[index]:
                continue
            merged = {*found, *chain}
            apart = all(merged.isdisjoint(multiplied[head]) for head in merged & multiplied.keys())
            if apart and not _returns(reads, chain_of, merged):
                chain = sorted(merged)
        for member in chain:
            chain_of[member] = chain
    return sorted({tuple(chain) for chain in chain_of.values()})


def _returns(reads: Reads, chain_of: dict[int, list[int]], merged: set[int]) -> bool:
    """Whether something that a chain would read waits for the chain; all other chains do without each other's end."""
    seen: set[int] = set()
    waiting = [read for member in merged for read in reads[member] if read not in merged]
    while waiting:
        index = waiting.pop()
        if index in merged:
            return True
        if index not in seen:
            together = chain_of.get(index, [index])
            seen.update(together)
            waiting += [read for member in together for read in reads[member]]
    return False


def groups(chains: Sequence[tuple[int, ...]], reads: Reads) -> list[tuple[int, ...]]:
    """All operators, those of a chain together, each group behind what it reads; else in their order."""
    chain_of = {member: chain for chain in chains for member in chain}
    found: list[tuple[int, ...]] = []
    done: set[int] = set()

    def place(index: int) -> None:
        members = chain_of.get(index, (index,))
        if not done.issuperset(members):
            done.update(members)
            for member in members:
                for read in reads[member]:
                    place(read)
            found.append(members)

    for index in range(len(reads)):
        place(index)
    return found


def depths(predecessors: Reads) -> tuple[int, ...]:
    """Longest path from any node without predecessors to each node.

    `predecessors[i]` are nodes before i (i > each of them), so one ascending pass fills the table.
    """
    found: list[int] = []
    for node, before in enumerate(predecessors):
        assert all(p < node for p in before)
        found.append(max((found[p] + 1 for p in before), default=0))
    return tuple(found)


def order(predecessors: Reads) -> tuple[int, ...]:
    """Nodes in ascending depth; nodes of one depth keep their order."""
    depth = depths(predecessors)
    return tuple(sorted(range(len(depth)), key=lambda node: (depth[node], node)))


def scheduled(steps: Sequence[AnyStep]) -> tuple[AnyStep, ...]:
    """Ascending depth inside each phase; what is only issued first."""
    result: list[AnyStep] = []
    for phase in Phase:
        part = [s for s in steps if s.phase is phase]
        written = {s.value: i for i, s in enumerate(part) if s.value is not None and not s.issued}
        before = [[written[v] for v in s.reads if v in written and written[v] < i] for i, s in enumerate(part)]
        ranked = [part[i] for i in order(before)]
        result += sorted(ranked, key=lambda s: not s.issued)
    return tuple(result)


def lifetime(steps: Sequence[Timed], value: int) -> tuple[int, int]:
    """First and last position at which the buffer of `value` must keep its bytes."""
    made = next(i for i, s in enumerate(steps) if s.value == value)
    last = max((i for i, s in enumerate(steps) if value in s.reads), default=made)
    loop = [i for i, s in enumerate(steps) if s.phase is Phase.LOOP]
    step = steps[made]
    if step.phase is Phase.LOOP and step.issued:
        # The ring is filled before the first step and runs until the last iteration.
        return 0, max(loop)
    if step.phase is Phase.LOOP and steps[last].phase is not Phase.LOOP:
        return min(loop), last
    if step.phase is Phase.BEFORE:
        crosses = steps[last].phase is Phase.LOOP
        return 0, max(last, max(loop)) if crosses else last
    return made, last
