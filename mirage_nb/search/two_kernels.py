"""Two kernels: what the first one can produce is offered to the closure of the second.

In: the closure of the first kernel. Out: structures of two kernels, fewest operators first. A partial sum
over an axis that the grid splits becomes a dimension of the tensor between the kernels; only the second
kernel can sum it, which is how split reductions come about (paper section 4.1; the form known as
FlashDecoding).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import log2, prod

from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.search.saturation.closure import Closure
from mirage_nb.search.saturation.extract import Choice, Extraction
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.search.saturation.values import BLOCK, DATA, GRID, POST, Operator, Shift, Type, Value, present
from mirage_nb.search.space import UNCAPPED, Pairs
from mirage_nb.search.structure import KernelStructure, Source, Step, Structure

FIRST_STEPS = 1_000
"""Looks at the clock that looking for graphs of the first kernel may take where they are capped, see
`extract.POLL_EVERY`."""
ALIKE = 4
"""Pairs over the same tensors, with the same grid of the second kernel, that are ranked before others."""
PARTS_LEFT = 8
"""Blocks along a split axis, where sizes are not known yet."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A value of the first kernel as a device tensor."""

    value: int
    leaf: Value


def offers(first: Closure, semantics: Semantics, parts: bool) -> list[Offer]:
    """The device tensors that the first kernel can write, equal ones once.

    Every block of a split axis writes a part of its own. An axis is whole, summed up, or (partial sums)
    has its grid part left; with `parts` other parts may be left as well.
    """
    found: dict[tuple[Type, bytes, int, Shift | None], Offer] = {}
    known = {value.print for value in (*semantics.targets, *semantics.tensors)}
    reduced = semantics.prepared.reduced
    for value in first.values:
        if value.stage != POST or value.constant or value.scaled or value.print in known:
            continue
        if not all(value.type[axis] & BLOCK for axis in first.grid):
            continue
        type_ = present(value.type)
        if not parts and any(type_[axis] not in (0, GRID, DATA) for axis in reduced):
            continue
        key = (type_, value.print, value.expr, value.shift)
        if key not in found:
            found[key] = Offer(value.id, as_leaf(value, len(semantics.tensors) + len(found)))
    return list(found.values())


def as_leaf(value: Value, number: int) -> Value:
    """A value of one kernel as device tensor `number` for the next."""
    return replace(
        value,
        id=number,
        type=present(value.type),
        stage=POST,
        level=0,
        nodes=[(Operator(OpKind.IN_ITER, leaf=number), ())],
    )


@dataclass(frozen=True, slots=True)
class Second:
    """A graph of the second kernel, and the offers that it reads."""

    closure: Closure
    graphs: Extraction
    choice: Choice
    roots: tuple[int, ...]
    needed: frozenset[int]


Rank = tuple[int, int, int, int]
"""Concat accumulators, how many pairs of the kind are before it, operators, size of the tensors between."""


@dataclass(slots=True)
class Pairing:
    """Joins graphs of the second kernel with graphs of the first that compute what they read.

    `topped`: larger graphs of the first kernel than `top` allows might have been joined, too. `left_out`: what the
    caps kept out.
    """

    first: Closure
    offered: Sequence[Offer]
    tensors: int
    top: int
    accept: Callable[[Choice], bool]
    stopped: Callable[[], bool]
    caps: Pairs
    graphs: Extraction = field(init=False)
    topped: bool = False
    left_out: set[str] = field(default_factory=set)
    pairs: list[tuple[Rank, int, Second, Choice]] = field(default_factory=list)
    _firsts: dict[frozenset[int], list[tuple[int, int, Choice]]] = field(default_factory=dict)
    _count: dict[tuple[frozenset[int], frozenset[int]], int] = field(default_factory=dict)
    _sizes: dict[frozenset[int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graphs = Extraction(self.first.values)

    def needs(self, choice: Choice) -> frozenset[int]:
        """The offers that a graph of the second kernel reads."""
        leaves = (operator.leaf for operator, _ in choice.values() if operator.kind is OpKind.IN_ITER)
        return frozenset(leaf - self.tensors for leaf in leaves if leaf >= self.tensors)

    def add(self, second: Second) -> None:
        """Pair a graph of the second kernel with every kept graph of the first that computes what it reads."""
        needed = second.needed
        roots = frozenset(self.offered[number].value for number in needed)
        if roots not in self._firsts:
            self._firsts[roots] = self._smallest(sorted(roots))
        if needed not in self._sizes:
            self._sizes[needed] = round(log2(sum(self._elements(self.offered[n].leaf.type) for n in needed)))
        own, size = concats(second.choice), operators(second.choice)
        for gathered, steps, choice in self._firsts[roots]:
            kind = (needed, second.closure.grid)
            late = ALIKE if second.closure.grid else 0  # more blocks for the same work: not before fewer
            before = self._count[kind] = self._count.get(kind, late) + 1
            rank = (own + gathered, before // ALIKE, size + steps, self._sizes[needed])
            self.pairs.append((rank, len(self.pairs), second, choice))

    def fits(self, choice: Choice) -> bool:
        """Whether a graph of the second kernel reads tensors of the first, and not too many."""
        count = len(self.needs(choice))
        if count > self.caps.between:
            self.left_out.add(f"at most {self.caps.between} tensors between them")
        return 0 < count <= self.caps.between

    def best(self) -> Iterator[Structure]:
        """The structures of the first pairs in the order of their ranks."""
        kept = sorted(self.pairs, key=lambda pair: pair[:2])[: self.caps.kept]
        if len(kept) < len(self.pairs):
            self.left_out.add(f"only the first {len(kept)} graphs of a configuration were kept")
        for _, _, second, choice in kept:
            yield self._joined(second, choice)

    def _joined(self, second: Second, choice: Choice) -> Structure:
        order = sorted(second.needed)
        position = {number: index for index, number in enumerate(order)}
        open_ = kernel_of(second.closure, second.graphs, second.choice, second.roots)
        closed = replace(open_, steps=tuple(self._between(step, position) for step in open_.steps))
        roots = [self.offered[number].value for number in order]
        kernel = kernel_of(self.first, self.graphs, choice, roots)
        return Structure((kernel, closed), tuple(Source(index, 1) for index in range(len(closed.outputs))))

    def _between(self, step: Step, position: dict[int, int]) -> Step:
        if step.source is None or step.source.index < self.tensors:
            return step
        source = Source(position[step.source.index - self.tensors], 0)
        return Step(step.operator._replace(leaf=-1), step.reads, step.type, step.stage, source)

    def _elements(self, type_: Type) -> float:
        axes = self.first.semantics.prepared.axes
        return prod(PARTS_LEFT if code == GRID else axis.extent for axis, code in zip(axes, type_, strict=True) if code)

    def _bounded(self) -> Callable[[], bool]:
        steps = count()
        most = FIRST_STEPS if self.caps.firsts < UNCAPPED else UNCAPPED
        return lambda: next(steps) > most or self.stopped()

    def _smallest(self, unique: list[int]) -> list[tuple[int, int, Choice]]:
        caps, bounded = self.caps, self._bounded()
        size = self.graphs.minimum(unique, self.top, bounded)
        self.topped |= size is None or size + caps.extra > self.top
        if size is None:
            return []
        found: list[tuple[int, int, Choice]] = []
        for bound in range(size, min(self.top, size + caps.extra) + 1):
            for choice in self.graphs.graphs(unique, bound, bounded):
                if len(found) == caps.looked_at:
                    break
                if self.accept(choice):
                    found.append((concats(choice), bound, choice))
        if len(found) > caps.firsts or len(found) == caps.looked_at or bounded():
            self.left_out.add(f"at most {caps.firsts} first kernels for each set of tensors between")
        return sorted(found, key=lambda first: first[0])[: caps.firsts]


def operators(choice: Choice) -> int:
    """Operators of a graph, without iterators and constants."""
    return sum(not operator.is_leaf for operator, _ in choice.values())


def concats(choice: Choice) -> int:
    """Concat accumulators of a graph: they keep a whole axis in shared memory."""
    return sum(operator.accum is AccumKind.CONCAT for operator, _ in choice.values())


def kernel_of(closure: Closure, graphs: Extraction, choice: Choice, roots: Sequence[int]) -> KernelStructure:
    """The block graph of a choice, as a structure."""
    order = graphs.ordered(choice)
    index = {value: position for position, value in enumerate(order)}
    steps = []
    for number in order:
        value = closure.values[number]
        operator, args = choice[number]
        source = Source(operator.leaf) if operator.kind is OpKind.IN_ITER else None
        steps.append(Step(operator, tuple(index[a] for a in args), value.type, value.stage, source))
    return KernelStructure(tuple(steps), tuple(index[r] for r in roots), tuple(sorted(closure.grid)), closure.loop)
