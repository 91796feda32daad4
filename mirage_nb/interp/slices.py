"""Single elements of the outputs of a graph, and of nothing that they do not depend on.

In: a graph, and flat indices of output elements. Out: a `Slice`: for every value the elements that are needed, and
these computed over `numbers` on inputs that are functions of an index. So a few elements of a large graph cost what
they depend on, whatever the shapes are. A `Moment` says more of one point: of every number that something is divided
by, or that a root or logarithm is taken of, which output elements need it there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp import numbers
from mirage_nb.interp.nodes import Combine, Index, Node, SliceAlgebra, System, TooMuch, broadcast
from mirage_nb.interp.numbers import REALS, Array, Number
from mirage_nb.interp.run import run_kernel
from mirage_nb.ir import KernelGraph

MAX_TAKEN = 400_000
"""Elements that may be taken altogether."""

Draw = Callable[[str, Index], Array]
"""Numbers for elements of an input."""
Made = dict[tuple[Node, bytes], Array]
"""What elements of nodes are."""
Words = NDArray[np.uint64]
"""For every number a row of bits, one for each output element."""


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Elements of a value that is taken: its number, and the places of these elements among those taken; None: all of
    them in order. `beyond`: places that are no elements."""

    source: int
    places: Index | None
    beyond: NDArray[np.bool_] | None

    @classmethod
    def of(cls, source: int, taken: Index, wanted: Index) -> Read:
        """Elements with these numbers, of a value of which these are taken."""
        if np.array_equal(taken, wanted):
            return cls(source, None, None)
        places, beyond = np.searchsorted(taken, wanted), wanted < 0
        return cls(source, places, beyond if beyond.any() else None)

    def __call__(self, made: Sequence[Array]) -> Array:
        values = made[self.source]
        if self.places is None:
            return values
        if self.beyond is None:
            return values[self.places]
        found = np.full(self.places.shape, numbers.ZERO, object)
        found[~self.beyond] = values[self.places[~self.beyond]]
        return found

    def mark(self, marks: Sequence[Words], rows: Words, here: NDArray[np.bool_] | None = None) -> None:
        """What needs the results, a row for each, needs these elements; or only for some results."""
        if self.places is None and here is None:
            np.bitwise_or(marks[self.source], rows, out=marks[self.source])
            return
        places = np.arange(len(rows)) if self.places is None else self.places
        there = np.ones(places.shape, np.bool_) if self.beyond is None else ~self.beyond
        if here is not None:
            there = there & here
        rows = rows if places.ndim == 1 else np.broadcast_to(rows[:, None], (*places.shape, rows.shape[-1]))
        np.bitwise_or.at(marks[self.source], places[there], rows[there])


@dataclass(frozen=True, slots=True)
class Taken:
    """The elements of a node that are needed, ascending, and how they are made; `key`: which these are."""

    node: Node
    at: Index
    reads: tuple[Read, ...]
    combine: Combine | None
    key: tuple[Node, bytes]


@dataclass(frozen=True, slots=True)
class Moment:
    """One point: the output elements; for every critical operator the numbers of which something is needed, and the
    bits of the output elements that need each here; what maxima are; and which choices that inputs make took an
    infinity."""

    outputs: list[Array]
    numbers: list[list[Number]]
    needed_by: list[list[int]]
    maxima: list[Array]
    infinite: list[bool]


@dataclass(frozen=True, slots=True)
class _Critical:
    """An operator that some numbers have no value in: the numbers of its result and of the operand among those taken,
    and the operand's elements; `of`: for the results `there`, which of these."""

    result: int
    source: int
    places: Index
    there: NDArray[np.bool_]
    of: Index

    @classmethod
    def of_operand(cls, taken: Sequence[Taken], result: int, operand: int) -> _Critical:
        """That of one operand of a result."""
        read = taken[result].reads[operand]
        places = np.arange(len(taken[result].at)) if read.places is None else read.places
        there = np.ones(len(places), np.bool_) if read.beyond is None else ~read.beyond
        unique, of = np.unique(places[there], return_inverse=True)
        return cls(result, read.source, unique, there, of)


class Slice:
    """Some output elements of a graph, ready to be computed on any inputs. `nodes`: those of graphs that are computed
    beside it; `made`, in the methods: what was made of these at the same point, in the same system. `operators`: which
    of those operators of the walk that some numbers have no value in are behind them, by number; `varies`: whether
    inputs make what they read; `behind`: which of them that depends on; `decides`: whether inputs choose anything;
    `elements`: how many output elements there are; `makes_infinities`: whether a choice does; `exponents`: whether
    anything is one.

    Raises TooMuch; GraphError where an evaluation does.
    """

    def __init__(
        self,
        graph: KernelGraph,
        wanted: Sequence[Index],
        limit: int = MAX_TAKEN,
        nodes: dict[Hashable, Node] | None = None,
    ) -> None:
        self._limit = limit
        algebra = SliceAlgebra(limit, {} if nodes is None else nodes)
        values = run_kernel(graph, [algebra.input(i.name, i.type.shape) for i in graph.inputs], algebra)
        self.exponents, self.decides = algebra.exponents, algebra.decides
        found = [values[v] for v in graph.outputs]
        shapes = [graph.types[v].shape for v in graph.outputs]
        outputs = [
            (node, broadcast(at, shape, node.shape)) for node, at, shape in zip(found, wanted, shapes, strict=True)
        ]
        self.taken = tuple(_taken(outputs, limit))
        number = {taken.node: n for n, taken in enumerate(self.taken)}
        self._outputs = [Read.of(number[node], self.taken[number[node]].at, at) for node, at in outputs]
        self._lengths = [len(at) for _, at in outputs]
        self.elements = sum(self._lengths)
        self._maxima = [number[node] for node in algebra.maxima if node in number]
        used = [which for which, (node, _) in enumerate(algebra.critical) if node in number]
        self.operators = tuple(used)
        critical = ((number[node], operand) for node, operand in (algebra.critical[which] for which in used))
        self._critical = [_Critical.of_operand(self.taken, *one) for one in critical]
        infinite = [n for n, taken in enumerate(self.taken) if taken.node.chooses and taken.node.chooses.infinite]
        self.makes_infinities = bool(infinite)
        self._choices = [n for n, taken in enumerate(self.taken) if taken.node.chooses]
        self._needed_by: dict[tuple[bytes, ...], list[list[int]]] = {}
        self._infinite = [n for n in infinite if self.taken[n].node.operands[0].varies]
        self.varies = [self.taken[one.source].node.varies for one in self._critical]
        self.behind = self._behind()

    def critical(self, draw: Draw, made: Made | None = None) -> list[Array]:
        """What the elements divide by, and take roots, powers and logarithms of, operator by operator."""
        values = self._made(draw, REALS, made)
        return [values[one.source][one.places] for one in self._critical]

    def reads(self, operator: int, places: Sequence[int]) -> dict[str, Index]:
        """The input elements that some of the numbers depend on that `critical` gives for an operator."""
        one = self._critical[operator]
        taken = self.taken[one.source]
        wanted = taken.at[one.places[np.asarray(places)]]
        return {t.node.name: t.at for t in _taken([(taken.node, wanted)], self._limit) if t.combine is None}

    def compute(self, draw: Draw, made: Made | None = None) -> list[Array]:
        """The output elements."""
        values = self._made(draw, REALS, made)
        return [read(values) for read in self._outputs]

    def moment(self, draw: Draw, system: System, known: Made | None = None) -> Moment:
        """All that is known of a point in a system of numbers."""
        made = self._made(draw, system, known)
        needed = self._needed(made, system.holds)
        asked = [made[one.source][one.places].tolist() for one in self._critical]
        maxima = [made[number] for number in self._maxima]
        infinite = [not all(map(system.holds, self._conditions(made, number))) for number in self._infinite]
        return Moment([read(made) for read in self._outputs], asked, needed, maxima, infinite)

    def ever_needed(self, draw: Draw) -> list[list[int]]:
        """What `Moment.needed_by` may be for any inputs, from one point: inputs may choose whatever they do."""
        return self._needed(self._made(draw, REALS), None)

    def _behind(self) -> list[frozenset[int]]:
        """For every critical operator, those that its operand depends on."""
        own: dict[int, set[int]] = {}
        for place, one in enumerate(self._critical):
            own.setdefault(one.result, set()).add(place)
        every: list[frozenset[int]] = []
        for number, taken in enumerate(self.taken):
            every.append(frozenset(own.get(number, ())).union(*(every[read.source] for read in taken.reads)))
        return [every[one.source] for one in self._critical]

    def _needed(self, made: Sequence[Array], holds: Callable[[Number], bool] | None) -> list[list[int]]:
        """`Moment.needed_by`, found once for all points at which the same is chosen; None: whatever inputs choose."""
        held = {
            n: np.fromiter(map(holds or REALS.holds, self._conditions(made, n)), np.bool_, len(self.taken[n].at))
            for n in self._choices
            if holds or not self.taken[n].node.operands[0].varies
        }
        key = tuple(part.tobytes() for part in held.values())
        if key not in self._needed_by:
            self._needed_by[key] = self._needs(self._marks(held))
        return self._needed_by[key]

    def _needs(self, marks: Sequence[Words]) -> list[list[int]]:
        found = []
        for one in self._critical:
            rows = np.zeros((len(one.places), self._words), np.uint64)
            np.bitwise_or.at(rows, one.of, marks[one.result][one.there])
            found.append([int.from_bytes(row.tobytes(), "little") for row in rows])
        return found

    @property
    def is_total(self) -> bool:
        """Whether the elements have a value whatever the inputs are, as far as no infinity comes in its way."""
        return not self._critical

    @property
    def _words(self) -> int:
        return -(-self.elements // 64)

    def _marks(self, held: Mapping[int, NDArray[np.bool_]]) -> list[Words]:
        """For all that is taken, which output elements need it where such conditions hold."""
        marks = [np.zeros((len(taken.at), self._words), np.uint64) for taken in self.taken]
        bits = np.arange(self.elements)
        rows = np.zeros((self.elements, self._words), np.uint64)
        rows[bits, bits // 64] = np.uint64(1) << (bits % 64).astype(np.uint64)
        start = 0
        for read, length in zip(self._outputs, self._lengths, strict=True):
            read.mark(marks, rows[start : start + length])
            start += length
        for number in range(len(self.taken) - 1, -1, -1):
            taken = self.taken[number]
            for place, read in enumerate(taken.reads):
                read.mark(marks, marks[number], held.get(number) if place == 1 else None)
        return marks

    def _conditions(self, made: Sequence[Array], number: int) -> Array:
        """Of a choice."""
        return self.taken[number].reads[0](made)

    def _made(self, draw: Draw, system: System, known: Made | None = None) -> list[Array]:
        known = {} if known is None else known
        made: list[Array] = []
        for taken in self.taken:
            if taken.key not in known and taken.combine is None:
                known[taken.key] = draw(taken.node.name, taken.at)
            elif taken.key not in known and taken.combine is not None:
                known[taken.key] = taken.combine(system, [read(made) for read in taken.reads])
            made.append(known[taken.key])
        return made


def distinct(numbers: Index) -> Index:
    """Each once, ascending. NumPy's own goes by a hash table, which takes fifty times as long for a million."""
    found = np.sort(numbers)
    once: Index = found[np.concatenate([[True], found[1:] != found[:-1]])[: len(found)]]
    return once


def _taken(outputs: Sequence[tuple[Node, Index]], limit: int) -> list[Taken]:
    """What outputs need, operands first. Raises TooMuch."""
    needs: dict[Node, list[Index]] = {}
    waiting: list[tuple[int, Node]] = []

    def need(node: Node, at: Index) -> None:
        if node not in needs:
            needs[node] = []
            heapq.heappush(waiting, (-node.number, node))
        needs[node].append(at)

    for node, at in outputs:
        need(node, at)
    found: list[tuple[Node, Index, list[Index], Combine | None]] = []
    count = 0
    while waiting:
        node = heapq.heappop(waiting)[1]
        at = distinct(np.concatenate([part.reshape(-1) for part in needs.pop(node)]))
        at = at[at >= 0]
        if node.plan is None:
            found.append((node, at, [], None))
            continue
        wanted, combine = node.plan(at)
        count += 1 + sum(int((part >= 0).sum()) for part in wanted)
        if count > limit:
            raise TooMuch
        found.append((node, at, wanted, combine))
        for operand, part in zip(node.operands, wanted, strict=True):
            need(operand, part)
    found.reverse()
    number = {node: (n, at) for n, (node, at, _, _) in enumerate(found)}

    def reads(node: Node, wanted: Sequence[Index]) -> tuple[Read, ...]:
        return tuple(Read.of(*number[x], part) for x, part in zip(node.operands, wanted, strict=True))

    return [Taken(node, at, reads(node, wanted), combine, (node, at.tobytes())) for node, at, wanted, combine in found]
