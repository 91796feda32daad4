"""What each role does, followed statement by statement: the half of validation that asks where tiles lie and when.

In: a tile program whose declarations fit. Out: findings in words. The roles of a block are followed side by side
through one point of the walk, whose counters stay open; loops are run through. Slots, register tiles and values have
coordinates: for each axis where along it they begin, as an index over counters; and what was summed of which axis.
Invariant: what is combined has the same coordinates, what is stored goes where its coordinates say, all of an axis that
is summed is summed once, and the starts of what is stored along an axis, with all counters run through, cover it once.
Where iterations depend on marks, roles are followed through all of them, and through every other one.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

from mirage_nb.ir import OpKind
from mirage_nb.tile.instructions.groups import ROWS
from mirage_nb.tile.instructions.table import Place
from mirage_nb.tile.places import Coordinates, Held, Places, joined, through
from mirage_nb.tile.roles.flight import Flight
from mirage_nb.tile.roles.marks import is_elementwise, places_marked
from mirage_nb.tile.roles.program import (
    PART,
    RANK,
    Acquire,
    Await,
    Clear,
    Combine,
    Copy,
    Count,
    Index,
    Loop,
    Map,
    Mark,
    Marked,
    Multicast,
    Number,
    Product,
    Program,
    Read,
    Reduce,
    Release,
    Role,
    Set,
    Skip,
    Statement,
    Store,
    Table,
    Turn,
    Until,
    Walk,
    Yield,
    counted,
    flat,
    summed_axis,
)
from mirage_nb.tile.roles.shape import misshapen
from mirage_nb.tile.rules.boxes import Matrix

MOST = 20
"""Findings after which nobody reads on."""


@dataclass(slots=True)
class _Ring:
    """A pipeline of a block: where the slots of every fill begin; fills that are whole; stages that each role that
    empties it has handed back; of every fill with marks, of which places."""

    stages: int
    tiles: frozenset[str]
    fills: list[dict[str, Coordinates]] = field(default_factory=list)
    given: dict[str, int] = field(default_factory=dict)
    marked: list[tuple[Mark, Coordinates]] = field(default_factory=list)

    @property
    def landed(self) -> int:
        """Fills with all of their tiles: all but the newest have."""
        return len(self.fills) - (bool(self.fills) and not self.fills[-1].keys() >= self.tiles)

    @property
    def free(self) -> bool:
        """Whether the next stage is empty."""
        return len(self.fills) - min(self.given.values(), default=0) < self.stages


def follow(program: Program) -> tuple[str, ...]:
    """All findings."""
    found: dict[str, None] = dict.fromkeys(misshapen(program))
    if found:
        return tuple(found)
    walks = [s for _, code in program.code for s in code if isinstance(s, Walk)]
    loops = [s for s in program.every if isinstance(s, Loop)]
    deciding = {name for loop in loops for name, _ in loop.more.terms}
    deciding |= {s.of for s in program.every if isinstance(s, Table)}
    ranges = [[(name, n) for n in range(count)] for name, count in dict(walks[0].counters if walks else ()).items()
              if name in deciding]  # fmt: skip
    for point in itertools.product(*ranges):  # what decides how often loops run is not left open
        for every in (1, 2) if program.marks else (1,):
            found |= dict.fromkeys(_point(program, dict(point), every))
        if len(found) >= MOST:
            break
    return tuple(found)


def _point(program: Program, bound: dict[str, int], every: int) -> tuple[str, ...]:
    """The findings at points of the walk whose counters have these values, where any are given. every: of so many
    tiles one is marked."""
    found: dict[str, None] = {}
    rings = {p.name: _Ring(p.stages, frozenset(p.tiles)) for p in program.pipelines}
    for name, statements in program.code:
        for statement in flat(statements):
            if isinstance(statement, Await):
                rings[statement.pipeline].given[name] = 0
    followed = [_Role(program, role, rings, bound, every) for role in program.roles]
    going = [(role, role.run()) for role in followed]
    while going and len(found) < MOST:
        before = [role.steps for role in followed]
        left = []
        for role, run in going:
            for text in run:
                if text is None:  # it waits
                    left.append((role, run))
                    break
                found[f"{role.role.name}: {text}"] = None
                if len(found) >= MOST:
                    break
        if len(left) == len(going) and before == [role.steps for role in followed]:
            found[f"roles {', '.join(role.role.name for role, _ in left)} wait for each other"] = None
            break
        going = left
    for name, ring in rings.items():
        if not going and len(ring.fills) != min(ring.given.values(), default=0):
            found[f"{name}: {len(ring.fills)} stages are filled, {ring.given} handed back"] = None
    return tuple(found)


class _Role:
    """Follows one role. steps: statements that it has done."""

    def __init__(
        self, program: Program, role: Role, rings: dict[str, _Ring], bound: dict[str, int], every: int
    ) -> None:
        self.program, self.role, self.rings = program, role, rings
        own = {PART: role.parts, RANK: program.cluster}
        self.places = Places(program, role.name, {name: count for name, count in own.items() if count > 1})
        self.places.bound |= bound
        self.flight = Flight(program)
        self.tiles: dict[str, Held] = {}
        self.values: dict[str, Held] = {}
        self.taken: dict[str, int] = {}
        self.stored: set[str] = set()
        self.passed: set[str] = set()  # tiles whose sums have been added to another's
        self.turn = False
        self.before: dict[str, int] = {}  # what was taken when the turn began
        self.steps = 0
        self.every, self.places.partly = every, every > 1
        self.only: Coordinates = {}  # of the tile that this iteration is done for

    def run(self) -> Iterator[str | None]:
        """All findings of this role; None where it has to wait."""
        yield from self._body(self.program.statements(self.role.name))
        yield from self._kept()
        for held in (held for name, held in self.tiles.items() if name not in self.passed):
            for (axis, what), parts in held.folded.items():
                yield from self.places.whole(axis, what, parts)
        if self.turn:
            yield "the turn is never handed over"

    def _kept(self) -> Iterator[str]:
        for name, count in self.taken.items():
            if self.rings[name].given[self.role.name] < count:
                yield f"stages of {name} are kept from one point to the next"

    def _body(self, statements: tuple[Statement, ...]) -> Iterator[str | None]:
        for statement in statements:
            self.steps += 1
            if not isinstance(statement, Product):
                self.flight.commit()
            match statement:
                case Walk(counters, _, body):
                    self.places.counters |= dict(counters)
                    yield from self._body(body)
                case Loop(counter, body=body):
                    known, more = set(self.values), self.places.index(statement.more)
                    times = statement.times(more.const)
                    if times < 0 or more.terms:
                        yield f"loop of {times}"
                    yield from self._entered(body)
                    for number in range(times):
                        self.places.bound[counter] = number
                        if (yield from self._seen(statement.only)):
                            yield from self._body(body)
                    self.only = {}
                    self.places.bound.pop(counter, None)
                    self.values = {name: value for name, value in self.values.items() if name in known}
                case Acquire(name):
                    if name in self.taken:
                        yield f"{name} is filled and emptied by one role"
                    while not self.rings[name].free:
                        yield None
                    if self.rings[name].landed < len(self.rings[name].fills):
                        yield f"nobody fills all of {name}"
                        return
                    self.rings[name].fills.append({})
                case Await(name):
                    while self.rings[name].landed <= self.taken.get(name, 0):
                        yield None
                    self.taken[name] = self.taken.get(name, 0) + 1
                case _:
                    yield from self._statement(statement)

    def _entered(self, body: tuple[Statement, ...]) -> Iterator[str]:
        """Whether stages are kept that iterations would hand back beside their own."""
        for release in (s for s in body if isinstance(s, Release)):
            if self._held(release.pipeline):
                yield f"stages of {release.pipeline} are kept in front of a loop that hands such back"

    def _held(self, ring: str) -> int:
        """Stages that were awaited and not handed back."""
        return self.taken.get(ring, 0) - self.rings[ring].given.get(self.role.name, 0)

    def _statement(self, statement: Statement) -> Iterator[str]:
        match statement:
            case Copy():
                yield from self._copy(statement)
            case Mark():
                yield from self._mark(statement)
            case Release():
                yield from self._release(statement)
            case Product():
                yield from self._product(statement)
            case Combine():
                yield from self._combine(statement)
            case Turn() | Yield():
                yield from self._turn(isinstance(statement, Turn))
            case Skip(axis):
                self.places.summed[axis] = statement.left(lambda index: self.places.index(index).const)
            case Table():
                yield from self._table(statement)
            case Clear(name):
                yield from self._changed(name, Held())
            case Set(name, value):
                yield from self._set(name, value)
            case Store():
                yield from self._store(statement)
            case Number() | Read() | Count() | Until() | Map() | Reduce():
                yield from self._value(statement)
            case _:
                yield f"{type(statement).__name__} may not stand here"

    def _turn(self, begins: bool) -> Iterator[str]:
        if self.role.parts < 2 or self.turn is begins:
            yield "turns that nobody waits for, or hands over"
        for name, count in self.taken.items():
            if self.turn and count - self.before.get(name, 0) > self.rings[name].stages:
                yield f"a turn takes more stages of {name} than there are, and the next group holds them"
        self.turn, self.before = begins, dict(self.taken)

    def _table(self, table: Table) -> Iterator[str]:
        if len(table.numbers) != self.places.counters.get(table.of, 0) or table.of not in self.places.bound:
            yield f"{len(table.numbers)} numbers for {table.of}"
            return
        self.places.bound[table.counter] = table.numbers[self.places.bound[table.of]]

    # -- pipelines

    def _copy(self, copy: Copy) -> Iterator[str]:
        source, target = self.program.tile(copy.source), self.program.tile(copy.target)
        ring = next((ring for ring in self.rings.values() if target.name in ring.tiles), None)
        if ring is None or len(ring.fills) <= ring.landed:
            yield f"{target.name} is written to in a stage that was not acquired"
            return
        if target.name in ring.fills[-1]:
            yield f"{target.name} is filled twice"
        box, at = dict(zip(target.axes, target.shape, strict=True)), copy.at
        if isinstance(copy, Multicast):
            if any(name == RANK for index in at for name, _ in index.terms):
                yield f"{target.name} is another tile for every block, and brought to all"
            rows = target.axes[0]
            box[rows] //= self.program.cluster
            part = counted(RANK, box[rows])
            at = tuple(i + part if axis == rows else i for axis, i in zip(source.axes, at, strict=False))
        apart = not isinstance(copy, Multicast) and Matrix.of(source, target).apart
        yield from self.places.bounds(source, at, box, engine=True, apart=apart)
        ring.fills[-1][target.name] = placed = self.places.placed(source, copy.at)
        if any(placed[axis] != place for axis, place in self.only.items() if axis in target.axes):
            yield f"{target.name} is brought, and another tile is marked"

    def _mark(self, mark: Mark) -> Iterator[str]:
        ring = next((ring for ring in self.rings.values() if mark.target in ring.tiles), None)
        count = self.places.index(mark.count)
        if ring is None or len(ring.fills) <= ring.landed or mark.target in ring.fills[-1]:
            yield f"{mark.target} is marked in a stage that was not acquired"
            return
        if count.terms or not 0 < count.const <= self.program.tile(mark.target).shape[0]:
            yield f"{mark.target} has no {count.const} tiles"
        at = yield from places_marked(self.places, mark, count.const)
        ring.fills[-1][mark.target] = {}
        ring.marked.append((mark, at))

    def _seen(self, only: Marked | None) -> Generator[str, None, bool]:
        """Whether an iteration is done; what is brought and multiplied in it is of the tile that is marked."""
        if only is None:
            return True
        name, ring = next((pair for pair in self.rings.items() if only.tile in pair[1].tiles), ("", None))
        fill = self.taken.get(name, 0) - 1
        if ring is None or not 0 <= fill < len(ring.marked) or not self._held(name):
            yield f"{only.tile} is asked, and is not there"
            return True
        (mark, at), here = ring.marked[fill], self.places.index(only.at)
        if here.terms or not 0 <= here.const < self.places.index(mark.count).const:
            yield f"{only.tile} has no mark {here.const}"
        outer = self.places.bound.get(mark.counter)
        self.places.bound[mark.counter] = here.const
        self.only = {axis: self.places.index(place) for axis, place in at.items()}
        self.places.bound.pop(mark.counter)
        if outer is not None:
            self.places.bound[mark.counter] = outer
        return here.const % self.every == 0

    def _release(self, release: Release) -> Iterator[str]:
        ring, name = self.rings[release.pipeline], release.pipeline
        held = self._held(name)
        if not held:
            yield f"no stage of {name} is there to hand back"
        if release.behind < 0 or release.behind >= ring.stages:
            yield f"{release.behind} of {ring.stages} stages of {name} are kept: the ring stands still"
        self.flight.wait(name, release.behind)
        ring.given[self.role.name] = ring.given.get(self.role.name, 0) + max(0, held - release.behind)

    def _slot(self, name: str) -> Coordinates | None:
        """Where a shared tile's newest awaited slot, or a register tile, begins."""
        tile = self.program.tile(name)
        if tile.place is Place.REGISTER:
            at = self.tiles[name].at if name in self.tiles else {}
            return at if at.keys() >= {*tile.axes} else None
        for ring_name, ring in self.rings.items():
            taken = self.taken.get(ring_name, 0)
            if name in ring.tiles and taken > ring.given.get(self.role.name, 0):
                return ring.fills[taken - 1][name]
        return None

    # -- products and values

    def _combine(self, combine: Combine) -> Iterator[str]:
        """From here on there is one point for all values of the counter, which knows what all of them summed."""
        name = combine.counter
        if name in (PART, RANK) or name in self.places.bound or name not in self.places.counters:
            yield f"{name} is no counter of the walk, or decides how long loops are"
            return
        count = self.places.counters.pop(name)
        self.values.clear()
        for result in combine.results:
            held = self.tiles.get(result)
            if held is None or held.axes or not held.at or self.flight.under_way(result):
                yield f"{result} is no sum of products that are done"
                continue
            folded = {key: through(parts, name, count) for key, parts in held.folded.items()}
            for (axis, what), parts in held.folded.items():
                if len(folded[axis, what]) < count * len(parts):
                    yield f"{what}: elements along {axis} are added several times"
            self.tiles[result] = replace(held, folded=folded, version=held.version + 1)

    def _product(self, product: Product) -> Iterator[str]:
        left, right = self.program.tile(product.left), self.program.tile(product.right)
        self.flight.add(product)
        total = self.tiles.get(product.result)
        if total is None:
            yield f"{product.result} is added to before it is cleared"
            return
        slots = self._slot(left.name), self._slot(right.name)
        if slots[0] is None or slots[1] is None:
            yield f"{left.name} or {right.name} is read, and is not there"
            return
        axis = summed_axis(left, right)
        row, column = self.program.tile(product.result).axes
        a, b = dict(slots[0]), dict(slots[1])
        if left.place is Place.SHARED and any({**a, **b}.get(name, at) != at for name, at in self.only.items()):
            yield f"{product.result} adds products of another tile than what is marked"
        summed = a.pop(axis, Index())
        if b.pop(axis) != summed:
            yield f"{left.name} and {right.name} are of other places along {axis}"
        a[row], b[column] = a[row] + product.row, b[column] + product.column
        if any(a[shared] != b[shared] for shared in a.keys() & b.keys()):
            yield f"{left.name} and {right.name} are of other places"
        at = {**a, **b}
        if total.at and total.at != at:
            yield f"{product.result} adds products of other places"
        key = (axis, f"{left.name} @ {right.name}")
        depth = right.shape[right.axes.index(axis)]
        folded, most = dict(total.folded), ROWS[product.instruction].chunk
        if most and sum(length for parts in folded.values() for _, length in parts) + depth > most:
            yield f"{product.result} sums more than {most} elements of {axis}: {product.instruction} drops digits"
        alike = (start.const for start, _ in folded.get(key, ()) if start.terms == summed.terms)
        if any(abs(const - summed.const) < depth for const in alike):
            yield f"{key[1]}: elements along {axis} are added twice"
        folded[key] = folded.get(key, frozenset()) | {(summed, depth)}
        self.passed.discard(product.result)
        self.tiles[product.result] = replace(total, at=at, folded=folded, version=total.version + 1)

    def _value(self, statement: Number | Read | Count | Until | Map | Reduce) -> Iterator[str]:
        match statement:
            case Number(name):
                self.values[name] = Held()
            case Count(name, axis, at) | Until(name, _, axis, at):
                self.values[name] = Held({axis: self.places.index(at)}, axes=(axis,))
            case Read(name, source, at):
                tile = self.places.tensor(source)
                if tile is None or source in self.program.outputs or len(at) != len(tile.axes):
                    yield f"{source} is no tensor to read at {len(at)} indices"
                    return
                yield from self.places.bounds(tile, at, self.places.box(tile), engine=False)
                self.values[name] = Held(self.places.placed(tile, at), axes=self.places.held(tile))
            case Map(name, kind, _, operands):
                if not is_elementwise(kind, len(operands)):
                    yield f"{kind.value} of {len(operands)} values is nothing elementwise"
                value = yield from self._joined(operands, zeros=kind is OpKind.ADD)
                self.values[name] = value
            case Reduce(name, kind, operand, axis):
                value = yield from self._joined((operand,))
                if axis not in value.axes[1:] or kind not in (OpKind.SUM, OpKind.MAX):  # lanes have rows together
                    yield f"{kind.value} of {operand} along {axis}"
                    return
                yield from self._whole(value)
                self.values[name] = self.places.reduced(value, axis)

    def _joined(self, operands: tuple[str, ...], *, zeros: bool = False) -> Generator[str, None, Held]:
        """What operands make together. zeros: they may be register tiles that were cleared."""
        found = Held()
        for operand in operands:
            part = self.values.get(operand)
            if operand in self.tiles:
                tile, held = self.program.tile(operand), self.tiles[operand]
                part = replace(held, axes=tile.axes, reads={operand: held.version} if len(tile.axes) > 1 else {})
                if len(tile.axes) > 1 and not held.at and not zeros:
                    yield f"{operand} is read before products have added to it"
                if any(operand in group.results for group in self.flight.unfinished):
                    yield f"{operand} is read while products still add to it"
            if part is None:
                yield f"there is no value {operand}"
                continue
            for name, version in part.reads.items():
                if self.tiles[name].version != version:
                    yield f"{operand} was computed from what {name} held before"
            if any(found.at[axis] != place for axis, place in part.at.items() if axis in found.at):
                yield f"{operand} is of another place than what it meets"
            found = joined(found, part)
        return found

    def _whole(self, value: Held) -> Iterator[str]:
        """Whether the products that a value is computed from are whole."""
        for name in value.reads:
            for (axis, what), parts in self.tiles[name].folded.items():
                if what:
                    yield from self.places.whole(axis, what, parts)

    def _changed(self, name: str, held: Held) -> Iterator[str]:
        if name not in {t.name for t in self.program.tiles if t.place is Place.REGISTER}:
            yield f"{name} is no register tile"
        elif self.flight.under_way(name):
            yield f"{name} changes while products are under way with it"
        self.passed.discard(name)
        before = self.tiles.get(name)
        self.tiles[name] = replace(held, version=before.version + 1 if before else 0)

    def _set(self, name: str, value: str) -> Iterator[str]:
        held = yield from self._joined((value,))
        tile = next((t for t in self.program.tiles if t.name == name), None)
        if tile is None or (held.axes and held.axes != tile.axes):
            yield f"{value} along {held.axes} does not fill {name}"
            return
        if name not in held.reads:
            yield from self._whole(held)
        yield from self._changed(name, held)
        self.passed |= held.reads.keys() - {name} if name in held.reads else set()

    def _store(self, store: Store) -> Iterator[str]:
        tile = self.places.tensor(store.target)
        if tile is None or store.target not in self.program.outputs:
            yield f"{store.target} is no output"
            return
        if store.target in self.stored:
            yield f"{store.target} is stored several times at a point"
        self.stored.add(store.target)
        held = yield from self._joined((store.value,))
        yield from self._whole(held)
        for (axis, what), parts in held.folded.items():
            yield from self.places.whole(axis, what, parts)
        wanted = self.places.placed(tile, store.at)
        if wanted != self.places.with_parts(held):
            yield f"{store.value} is not stored where it belongs in {store.target}"
        yield from self.places.bounds(tile, store.at, self.places.box(tile), engine=False)
        yield from self.places.stored(store)
