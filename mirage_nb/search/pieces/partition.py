"""Partition a program of any size into pieces that pay: what is searched, or computed by a library, as one.

In: a kernel graph of pre-defined operators, a target. Out: `Piece`s, convex parts of the program in launch order, each
a program of its own that reads inputs and values that earlier pieces store. Operators that lie next to each other, or
read the same tensor, are joined while that saves the most by a coarse estimate of both sides: bytes that no longer
cross device memory, and launches. Views and constants cost nothing and are made again wherever they are read.

Invariants: every computed value that an output needs is stored by exactly one piece, or made again by each that reads
it; pieces in order find what they read; equal programs are partitioned alike on any machine. Equal pieces are found by
`Piece.digest`, which leaves names out: a model of many like layers has few different ones, and each is searched once.

    for piece in partition(graph, target):
        known = searched.setdefault(piece.digest, search(piece.graph))
        values.update(zip(piece.writes, known(*(values[v] for v in piece.reads))))
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from mirage_nb.errors import SearchError
from mirage_nb.ir import OPS, DimAttrs, KernelGraph, OpKind, Trait
from mirage_nb.ir.graph import reached
from mirage_nb.ir.windows import MOVING
from mirage_nb.predefined import LOOKUP, Match
from mirage_nb.search.pieces.grain import FOLDING, SEARCHED, Grain
from mirage_nb.search.pieces.groups import Groups
from mirage_nb.search.pieces.piece import HEAVY, VIEWS, Cone, Piece, Whole, is_heavy
from mirage_nb.search.sizes.coarse import generated_us
from mirage_nb.search.sizes.library import library_us
from mirage_nb.targets import Target

FREE = VIEWS | {OpKind.CONST}
"""Operators that every piece makes for itself."""
CHEAP = frozenset({OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.SQR})
"""And those that it may, where that moves no more bytes."""
FUSED = FOLDING | {Trait.ELEMENTWISE}
"""What kernels are generated for, as operators between products."""
REPEATED_US = 0.15
"""About what it costs that every block of a product computes an operand itself; the coarse estimate is blind to it."""
JOINED, JOINED_ROW = 1024, 4096
"""A concatenation along an axis of more elements is a copy of its own, where kernels have no loops and these do not lie
in a row of so many."""
SMALL_STARTS = 1.5
"""Groups that take less, as many times as long as a kernel needs to start, are joined although they share nothing."""
SMALL_SHARE = 16
"""A tensor that is small beside another one has at most this part of its bytes."""


LOOKED_AT = 5_000
"""Operators of groups that are looked at, all groups together (some 1,000 for what people write); no groups are joined
after that."""

IsOver = Callable[[], bool]
"""Whether there is no more time."""


def never() -> bool:
    """There is always time."""
    return False


def partition(
    graph: KernelGraph,
    target: Target,
    grain: Grain = SEARCHED,
    inside: Collection[int] = (),
    library: Sequence[Match] = (),
    is_over: IsOver = never,
    told: Callable[[KernelGraph], KernelGraph] | None = None,
) -> tuple[Piece, ...]:
    """The pieces of a program, in an order in which each finds what it reads; outputs that are inputs or constants
    need none, what no output needs is left out.

    Args:
        graph: pre-defined operators, any number of them.
        target: whose bandwidths and rates say what pays.
        grain: how large pieces may become.
        inside: computed values that should not lie between pieces, since nobody else knows them: whoever makes one is
            joined with its readers, whatever it costs, unless a third piece has to come between them. Those that
            depend on no input are made again wherever they are read, and so are elementwise ones that would lie between
            pieces all the same, with those of them that they are made from.
        library: what kernels of a library compute whole, each a piece of its own.
        is_over: asked before groups are looked at; once it is so, no more are joined.
        told: the program of a piece as it will be searched, which its estimate is of; default: as it was cut.

    Raises:
        SearchError: an operator is no pre-defined one.
    """
    again = set[int]()
    while True:
        work = _Partition(graph, target, grain, inside, again, library, is_over, told or _as_cut)
        made = work.pieces()
        between = work.repeatable(value for piece in made for value in piece.reads)
        if between <= again:
            return made
        again |= between


def _as_cut(graph: KernelGraph) -> KernelGraph:
    return graph


def _numbered(things: Iterable[object]) -> list[int]:
    """Numbers for things, the same for equal ones."""
    known: dict[object, int] = {}
    return [known.setdefault(one, len(known)) for one in things]


class _Partition:
    """The work on one program. An operator is known by the value that it makes; a group of them by a number."""

    def __init__(
        self,
        graph: KernelGraph,
        target: Target,
        grain: Grain,
        inside: Collection[int],
        again: Collection[int],
        library: Sequence[Match],
        is_over: IsOver,
        told: Callable[[KernelGraph], KernelGraph],
    ) -> None:
        if any(op.body is not None for op in graph.ops):
            raise SearchError("only pre-defined operators are partitioned", hint="give the tensor program")
        self.graph, self.target, self.grain, self.is_over, self.told = graph, target, grain, is_over, told
        self.program = Whole.of(graph)
        self.maker = self.program.maker
        self.outputs = frozenset(graph.outputs)
        self.uses = graph.uses()
        self.read = _numbered(self._tensors())
        self.made = dict(zip(self.maker, _numbered([(op.kind, op.attrs) for op in self.maker.values()]), strict=True))
        self.constant = self._constant()
        self.looked = {match.output: match for match in library if match.row == LOOKUP}
        self.again = self._made_again(inside).union(again, self._shared(library) if not grain.looped else ())
        self.needed = sorted(self._needed())
        self.stored = {value for value in self.needed if value not in self.again}
        self.sources = {value: self._sources(value) for value in self.needed}
        self.readers: dict[int, list[int]] = {}
        for value, sources in self.sources.items():
            for source in sources:
                self.readers.setdefault(source, []).append(value)
        self.known: dict[object, float] = {}
        self.looked_at = 0
        self.whole = {self._computed_by(match): match for match in library if match.output in self.stored}
        self.fixed = frozenset[int]().union(*self.whole)
        self.seen = self._all_seen()
        members = {value: frozenset([value]) for value in self.needed if value not in self.fixed}
        members |= {match.output: members for members, match in self.whole.items()}
        self.groups = Groups(members, self.sources, self.readers)
        self.us: dict[int, float] = {}
        self.unknown = frozenset(inside).intersection(self.maker)
        self.inside = sorted(self.stored.intersection(inside))
        self._join_around()
        self._join_chains()

    # -- what the program is --------------------------------------------------------------------------

    def _tensors(self) -> list[object]:
        """What pieces see of values that they read."""
        settled, numbered = {v for v, given in enumerate(self.graph.inputs) if given.settled}, self.program.numbered
        values = enumerate(zip(self.graph.types, self.program.dims, strict=True))
        return [(type_, dim, v in settled, v in numbered) for v, (type_, dim) in values]

    def _made_again(self, inside: Collection[int]) -> set[int]:
        """Values that every piece makes for itself: views, parts of tensors where pieces are searched, and what depends
        on no input and is inside, or, where operators stay as they stand, read by none of a library."""
        views = VIEWS | {OpKind.SLICE} if self.grain.looped else VIEWS
        again = (v for v in self.constant if v in inside or self._is_numbers(v))
        return {*again, *(value for value, op in self.maker.items() if op.kind in views)}

    def repeatable(self, values: Iterable[int]) -> set[int]:
        """Those of some values, and of those that they are made from, that are inside and elementwise, and made from
        what is not inside, or such themselves."""
        able = set[int]()
        for value, op in self.maker.items():
            free = value in self.constant or op.kind in VIEWS or self._is_elementwise(value)
            if value in self.unknown and free and able.issuperset(self.unknown.intersection(op.inputs)):
                able.add(value)
        able -= self.outputs
        return reached(able.intersection(values), lambda value: able.intersection(self.maker[value].inputs))

    def _constant(self) -> set[int]:
        """Values that depend on no input: numbers of places, masks made of them."""
        found: set[int] = set()
        for value, op in self.maker.items():
            if found.issuperset(op.inputs):
                found.add(value)
        return found

    def _is_numbers(self, value: int) -> bool:
        """Whether kernels that stay as they stand make a value anew that is computed from numbers of places."""
        readers = [self.maker[r] for r in self._users(value)]
        narrow = (op.kind in HEAVY and not is_heavy(self.graph, op) for op in readers)
        fused = all(OPS[op.kind].traits & FUSED or n for op, n in zip(readers, narrow, strict=True))
        return not self.grain.looped and self.maker[value].kind is not OpKind.ARANGE and bool(readers) and fused

    def _users(self, value: int) -> list[int]:
        """What is made from a value, but for views of it."""
        front, views, found = [value], {value}, list[int]()
        while front:
            for index in self.uses[front.pop()]:
                made = self.graph.input_count + index
                if self.maker[made].kind not in VIEWS:
                    found.append(made)
                elif made not in views:
                    views.add(made)
                    front.append(made)
        return found

    def _shared(self, library: Sequence[Match]) -> set[int]:
        """Values of several readers that cost these no more bytes made again than read: sums, differences and products
        of one tensor of that size and small ones, which only operators read that kernels are generated for; and what
        only those are made from, if it is such, too."""
        whole = {v for match in library for v in (match.output, *match.inside)}
        found: set[int] = set()
        for value, op in reversed(self.maker.items()):
            first, *rest = sorted((self.graph.types[v].nbytes for v in op.inputs), reverse=True) or (0,)
            if op.kind not in CHEAP or value in self.outputs or first + SMALL_SHARE * sum(rest) > 2 * first:
                continue
            readers = self._users(value)
            fused = all(OPS[self.maker[r].kind].traits & FUSED for r in readers)
            several = len(readers) > 1 or not found.isdisjoint(readers)
            if fused and several and first <= self.graph.types[value].nbytes and whole.isdisjoint(readers):
                found.add(value)
        return found

    def _needed(self) -> set[int]:
        """The operators that some piece has to compute: outputs that are views among them."""
        outputs = filter(self._computed, self.graph.outputs)
        return reached(outputs, lambda value: self.maker.keys() & {*self._sources(value)})

    def _computed(self, value: int) -> bool:
        """Whether an output has to be made: it is no input, and more than a constant."""
        return value in self.maker and self.maker[value].kind is not OpKind.CONST

    def _sources(self, value: int) -> list[int]:
        """The inputs and computed values that an operator reads, through views that are made where they are read; of
        what is looked up, the table and the numbers."""
        found: dict[int, None] = {}
        looked, opened = self.looked.get(value), set[int]()
        front = [*reversed(self.maker[value].inputs if looked is None else looked.inputs)]
        while front:
            source = front.pop()
            op = self.maker.get(source)
            if op is not None and source in self.again:
                front.extend(() if source in opened else op.inputs)
                opened.add(source)
            elif op is None or op.kind is not OpKind.CONST:
                found[source] = None
        return list(found)

    def _computed_by(self, match: Match) -> frozenset[int]:
        """The operators of a match, without those that others read, too: numbers along an axis."""
        mine = {match.output, *(v for v in match.inside if v in self.stored)}
        while outside := [v for v in mine - {match.output} if not mine.issuperset(self.readers.get(v, ()))]:
            mine.difference_update(outside)
        return frozenset(mine)

    # -- what a group is -------------------------------------------------------------------------------

    def _cone(self, members: frozenset[int]) -> Cone:
        """What a group has to compute: what others read, and outputs."""
        writes = [v for v in sorted(members) if v in self.outputs or not members.issuperset(self.readers.get(v, ()))]
        looked = [self.looked[v].inside for v in writes if v in self.looked]  # what says a lookup is its own
        return self.program.cone(self.stored.difference(*looked), writes, members)

    def _spelled(self, cone: Cone) -> object:
        """Equal for equal pieces, as digests are."""
        place = {value: number for number, value in enumerate((*cone.reads, *cone.computed))}
        ops = ((self.made[v], *(place[i] for i in self.maker[v].inputs)) for v in cone.computed)
        return (*(self.read[v] for v in cone.reads),), (*ops,), (*(place[v] for v in cone.writes),)

    def _alone(self, number: int) -> float:
        """What a group takes, which is asked once."""
        if number not in self.us:
            self.us[number] = self._us(self.groups.members[number])
        return self.us[number]

    def _us(self, members: frozenset[int]) -> float:
        """What a group takes: as one kernel or two, or, alone, by a library; infinite if neither can be."""
        if len(members) == 1 and members <= self.seen:
            return 0.0
        if (match := self.whole.get(members)) is not None:
            return match.us(self.graph, self.target)
        cone = self._cone(members)
        alike = self._spelled(cone)
        known = self.known.get(alike)
        if known is None:
            self.looked_at += len(members)
            known = generated_us(self.told(self.program.piece(cone).unnamed), self.target, self.grain.looped)
            if len(members) == 1:
                known = min(known, library_us(self.graph, self.maker[min(members)], self.target))
            self.known[alike] = known
        return known

    def _all_seen(self) -> frozenset[int]:
        """The parts of tensors that generated kernels alone read, and read where they lie (`ir.windows`), and what such
        kernels alone look up."""
        moving = (value for value in self.needed if value in self.looked or self.maker[value].kind in MOVING)
        return frozenset(value for value in moving if value not in self.outputs and not self._by_library(value))

    def _by_library(self, value: int) -> bool:
        """Whether some reader of a value is a product by a library; of what is looked up, any product, and any kernel
        of a library."""
        readers = self.readers.get(value, ())
        if value in self.looked and not self.fixed.isdisjoint(readers):
            return True
        heavy = any(is_heavy(self.graph, self.maker[reader]) for reader in readers)
        return heavy and (value in self.looked or not self.grain.products)

    def _allowed(self, members: frozenset[int]) -> bool:
        if members & self.fixed:
            return False
        values = [v for v in members - self.seen if self.maker[v].kind not in FREE]
        ops = [self.maker[v] for v in values]
        if len(ops) > 1 and not self.grain.looped and (any(map(self._is_long_join, members)) or self._uneven(members)):
            return False
        if len(ops) > 1 and min(self.grain.row, self.grain.column) < math.inf and self._folds_more(members):
            return False
        heavy = {value for value in members if is_heavy(self.graph, self.maker[value])}
        composed = len(heavy) <= self.grain.products and not self.grain.looped
        if self._crosses(members) or (composed and (self._chains(members, heavy) or self._prepares(members, heavy))):
            return False
        if heavy and not self.grain.folds and any(OPS[op.kind].traits & FOLDING for op in ops):
            return False
        computed = sum(v not in self.constant for v in values)
        return computed <= self.grain.operators and len(heavy) <= self.grain.products

    def _uneven(self, members: frozenset[int]) -> bool:
        """Whether different tensors are folded to different numbers of results: threads hold rows of one tile."""
        counts = set()
        folded = set()
        for value in members:
            if self.maker[value].kind is OpKind.SUM and (count := self.graph.types[value].elements) > 1:
                counts.add(count)
                folded.add(max(self._read(value, members), key=lambda v: (self.graph.types[v].elements, v)))
        return len(counts) > 1 and len(folded) > 1

    def _chains(self, members: frozenset[int], heavy: set[int]) -> bool:
        """Whether a product of these folds more of what another one has made than stays together."""
        deep = (v for v in heavy if self.graph.types[self.maker[v].inputs[0]].shape[-1] > self.grain.rank)
        before = (reached([v], lambda value: members.intersection(self.sources[value])) - {v} for v in deep)
        return any(not heavy.isdisjoint(found) for found in before)

    def _prepares(self, members: frozenset[int], heavy: set[int]) -> bool:
        """Whether anything is computed for products in front of all of these: kernels with a loop read what they
        multiply."""
        behind = reached(heavy, lambda value: members.intersection(self.readers.get(value, ())))
        return not reached(heavy, lambda value: members.intersection(self.sources[value])) <= behind

    def _crosses(self, members: frozenset[int]) -> bool:
        """Whether sums run along one dimension, and what else is folded is along another one."""
        folds = [self.maker[v] for v in members if OPS[self.maker[v].kind].traits & FOLDING]
        ranks = ((op, len(self.graph.types[op.inputs[0]].shape)) for op in folds)
        places = {op.attrs.dim - rank for op, rank in ranks if isinstance(op.attrs, DimAttrs)}
        return len(places) > 1 and any(op.kind is OpKind.RUNNING_SUM for op in folds)

    def _folds_more(self, members: frozenset[int]) -> bool:
        """Whether a group has more elements for each result of a fold than stay together: a block that computes one of
        these reads all of them."""
        every = ((value, self.grain.limit(self.maker[value], self.graph.types[value])) for value in members)
        limits = {value: limit for value, limit in every if limit < math.inf}
        held = members.union(*(self._read(value, members) for value in members)) if limits else members
        most = max(self.graph.types[value].elements for value in held)
        return any(most > limit for limit in limits.values())

    def _read(self, value: int, members: frozenset[int]) -> set[int]:
        """What a group reads for a value; where it reads nothing, the value."""
        found = reached([value], lambda v: self.sources[v] if v == value or v in members else ())
        return found - members or {value}

    def _is_long_join(self, value: int) -> bool:
        """Whether it is a concatenation along a long axis, which blocks do not cut."""
        op = self.maker[value]
        if op.kind is not OpKind.CONCAT or not isinstance(op.attrs, DimAttrs):
            return False
        extent, *inner = self.graph.types[value].shape[op.attrs.dim :]
        return extent > JOINED and math.prod((extent, *inner)) > JOINED_ROW

    # -- joining ---------------------------------------------------------------------------------------

    def pieces(self) -> tuple[Piece, ...]:
        """Join what pays most, until nothing does."""
        heap: list[tuple[float, int, int, int]] = []
        self._offer(heap, {(a, b) for a in self.groups.members for b in self._near(a)})
        while heap or self._offer(heap, self._alike()):
            *_, first, second = heapq.heappop(heap)
            if not {first, second} <= self.groups.members.keys() or self.groups.apart(first, second):
                continue
            number = self.groups.join(first, second)
            self._offer(heap, {(number, other) for other in self._near(number)})
        self._join_around()
        return tuple(self.program.piece(self._cone(self.groups.members[n])) for n in self.groups.ordered())

    def _join_around(self) -> None:
        """Join makers of values inside with their readers, wherever nothing comes between them any more."""
        before = 0
        while before != len(self.groups.members):
            before = len(self.groups.members)
            for value in self.inside:
                for reader in self.readers.get(value, ()):
                    first, second = self.groups.of[value], self.groups.of[reader]
                    if first != second and not self.groups.apart(first, second):
                        self.groups.join(first, second)

    def _join_chains(self) -> None:
        """Join elementwise operators with those that read them, if all of these are in one group already and have as
        many elements, and what is read where it lies with its one reader, where kernels may have loops: that always
        pays, and is not looked at pair by pair."""
        for value in reversed(self.needed):
            first, readers = self.groups.of[value], self.readers.get(value, [value])
            second, *others = {self.groups.of[reader] for reader in readers}
            simple = not others and value not in self.outputs and all(map(self._is_elementwise, readers))
            seen = self.grain.looped and value in self.seen and len(readers) == 1
            if first == second or not simple or not (seen or all(self._fits(value, r) for r in readers)):
                continue
            both = self.groups.members[first] | self.groups.members[second]
            if self._allowed(both) and not self.groups.apart(first, second):
                self.groups.join(first, second)
        for number, members in [*self.groups.members.items()]:
            if len(members) > 1 and self.fixed.isdisjoint(members) and self._alone(number) == math.inf:
                self.groups.dissolve(number)
        self._join_around()

    def _fits(self, value: int, reader: int) -> bool:
        """Whether an elementwise operator has the elements of the one that reads it, in their order."""
        same = self.graph.types[value].elements == self.graph.types[reader].elements
        return same and self._is_elementwise(value) and value in map(self._as_lies, self.maker[reader].inputs)

    def _as_lies(self, value: int) -> int:
        """The value of which another one is a reshape, itself if of none."""
        while value in self.maker and self.maker[value].kind is OpKind.RESHAPE:
            value = self.maker[value].inputs[0]
        return value

    def _is_elementwise(self, value: int) -> bool:
        return Trait.ELEMENTWISE in OPS[self.maker[value].kind].traits

    def _offer(self, heap: list[tuple[float, int, int, int]], pairs: Iterable[tuple[int, int]]) -> bool:
        """These pairs of groups, if they are worth joining; those later where a product repeats another's work. What is
        worth the same is joined from the front of the program on: layers that repeat are cut alike. Whether there are
        any."""
        for a, b in sorted({(min(pair), max(pair)) for pair in pairs}):
            members = self.groups.members[a] | self.groups.members[b]
            if not self.grain.looped and (self.groups.members[a] <= self.seen or self.groups.members[b] <= self.seen):
                continue
            if self.looked_at < LOOKED_AT and not self.is_over() and self._allowed(members):
                gain = self._alone(a) + self._alone(b) - self._us(members)
                if gain > 0:
                    heapq.heappush(heap, (REPEATED_US * self._multiplied(a, b) - gain, min(members), a, b))
        return bool(heap)

    def _alike(self) -> Iterator[tuple[int, int]]:
        """Pairs of groups that take little more than their launch, or multiply where products have one loop, and write
        tensors of one shape; none where they are searched: what shares nothing is found alone."""
        if self.grain.looped:
            return
        known: dict[tuple[int, ...], list[int]] = {}
        for number, members in self.groups.members.items():
            multiplies = self.grain.products and any(is_heavy(self.graph, self.maker[v]) for v in members)
            most = math.inf if multiplies else SMALL_STARTS * self.target.start_us
            if self.fixed.isdisjoint(members) and 0 < self._alone(number) < most:
                known.setdefault(self.graph.types[max(members)].shape, []).append(number)
        for numbers in known.values():
            yield from (pair for pair in itertools.pairwise(numbers) if not self.groups.apart(*pair))

    def _multiplied(self, first: int, second: int) -> bool:
        """Whether a product of one of two groups reads what elementwise operators, all of the other, compute."""
        for one, other in ((first, second), (second, first)):
            products = (v for v in self.groups.members[other] if is_heavy(self.graph, self.maker[v]))
            if any(one == self.groups.of.get(s) for v in products for s in self.sources[v]):
                return all(Trait.ELEMENTWISE in OPS[self.maker[v].kind].traits for v in self.groups.members[one])
        return False

    def _like(self, value: int, source: int) -> list[int]:
        """The readers of a value that make as many elements as this one of them: others may stand between them."""
        elements = self.graph.types[value].elements
        return [reader for reader in self.readers[source] if self.graph.types[reader].elements == elements]

    def _near(self, number: int) -> Iterator[int]:
        """Groups that read what this one writes, or write what it reads, or read beside it what it reads."""
        for value in self.groups.members[number]:
            beside = [value]
            for source in self.sources[value]:
                for readers in (self.readers[source], self._like(value, source)):
                    place = readers.index(value)
                    beside += readers[max(0, place - 1) : place + 2]
            makers = [s for s in self.sources[value] if s in self.groups.of]
            for other in (*makers, *self.readers.get(value, ()), *beside):
                if self.groups.of[other] != number:
                    yield self.groups.of[other]
