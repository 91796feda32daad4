"""What each role does, followed statement by statement with its counters left open: the half of validation that asks
where tiles lie and when.

In: a tile program whose declarations fit. Out: findings in words. A slot, an accumulator and a value have coordinates:
for each axis where along it they begin, as an index over counters. Invariant: what is combined has the same
coordinates, what is stored goes where its coordinates say, and the starts of what is stored along an axis, with all
counters run through, cover it once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mirage_nb.ir import OPS, Trait
from mirage_nb.tile.instructions import Place
from mirage_nb.tile.program import (
    PART,
    Acquire,
    Await,
    Clear,
    Copy,
    Index,
    Loop,
    Map,
    Number,
    Product,
    Program,
    Read,
    Release,
    Role,
    Statement,
    Store,
    Tile,
    Walk,
    counted,
    flat,
)

Coordinates = dict[str, Index]
Counters = dict[str, int]


@dataclass(slots=True)
class Fill:
    """How a pipeline is filled: the loops around it, without their bodies, and where every slot begins."""

    around: tuple[Walk | Loop, ...]
    slots: dict[str, Coordinates] = field(default_factory=dict)


@dataclass(slots=True)
class Sum:
    """An accumulator: the counters that ran when it was cleared, where its tile begins, the slots that are multiplied
    into it, and whether products may still be under way."""

    cleared: Counters
    at: Coordinates = field(default_factory=dict)
    summed: list[tuple[str, str]] = field(default_factory=list)
    pending: bool = False


def follow(program: Program) -> tuple[str, ...]:
    """All findings."""
    found: list[str] = []
    fills: dict[str, Fill] = {}
    followed = [_Role(program, role, fills) for role in program.roles]
    for role in sorted(followed, key=lambda r: not r.fills):  # those that fill come first
        found += role.findings()
    stored = [s.target for _, statements in program.code for s in flat(statements) if isinstance(s, Store)]
    for name in program.outputs:
        if stored.count(name) != 1:
            found.append(f"output {name} is stored by {stored.count(name)} statements")
    return tuple(found)


class _Role:
    """Follows one role."""

    def __init__(self, program: Program, role: Role, fills: dict[str, Fill]) -> None:
        self.program, self.role, self.filled = program, role, fills
        self.fills = any(isinstance(s, Acquire) for s in flat(program.statements(role.name)))
        self.counters: Counters = {PART: role.parts} if role.parts > 1 else {}
        self.around: list[Walk | Loop] = []
        self.sums: dict[str, Sum] = {}
        self.values: dict[str, Coordinates] = {}
        self.held: dict[str, int] = {}
        """Stages of every pipeline that were awaited and are not handed back; those of loops that have ended."""
        self.open: dict[str, bool] = {}
        """Pipelines whose stage of this iteration is there."""

    def findings(self) -> Iterator[str]:
        """All of this role."""
        for text in self._body(self.program.statements(self.role.name)):
            yield f"{self.role.name}: {text}"
        for name, count in self.held.items():
            if count:
                yield f"{self.role.name}: {count} stages of {name} are never handed back"

    def _body(self, statements: tuple[Statement, ...]) -> Iterator[str]:
        for statement in statements:
            match statement:
                case Walk():
                    yield from self._walk(statement)
                case Loop():
                    yield from self._loop(statement)
                case Acquire() | Copy():
                    yield from self._fill(statement)
                case Await(name):
                    yield from self._await(name)
                case Release():
                    yield from self._release(statement)
                case Product():
                    yield from self._product(statement)
                case Clear(name):
                    self.sums[name] = Sum(dict(self.counters))
                case _:
                    yield from self._value(statement)

    # -- loops

    def _walk(self, walk: Walk) -> Iterator[str]:
        counts = dict(walk.counters)
        if len(self.around) or len(counts) < len(walk.counters) or min(counts.values(), default=1) < 1:
            yield f"walk over {walk.counters} inside {len(self.around)} loops"
        rows = walk.counters[-2][1] if len(walk.counters) > 1 else 1
        if not 1 <= walk.group <= max(rows, 1):
            yield f"groups of {walk.group} of {rows} rows"
        yield from self._inside(replace(walk, body=()), counts, walk.body)
        for name, count in self.held.items():
            if count:
                yield f"{count} stages of {name} are kept from one point to the next"

    def _loop(self, loop: Loop) -> Iterator[str]:
        if loop.count < 1:
            yield f"loop of {loop.count}"
        before = dict(self.held)
        yield from self._inside(replace(loop, body=()), {loop.counter: loop.count}, loop.body)
        for name, count in self.held.items():
            grown = count - before.get(name, 0)
            if loop.count > 1 and grown and not self._steady(loop, name, grown):
                yield f"every iteration keeps a stage of {name}"

    def _steady(self, loop: Loop, name: str, grown: int) -> bool:
        """Whether what an iteration has left behind is handed back by later ones."""
        released = [s for s in loop.body if isinstance(s, Release) and s.pipeline == name]
        return len(released) == 1 and grown == min(released[0].behind, loop.count)

    def _inside(self, loop: Walk | Loop, counts: Counters, body: tuple[Statement, ...]) -> Iterator[str]:
        if counts.keys() & self.counters.keys():
            yield f"counters {sorted(counts)} run already"
        self.around.append(loop)
        self.counters |= counts
        self.open = {}
        self.sums = dict(self.sums)
        known = set(self.sums), set(self.values)
        yield from self._body(body)
        self.around.pop()
        self.counters = {name: n for name, n in self.counters.items() if name not in counts}
        self.open = {}
        self.sums = {name: s for name, s in self.sums.items() if name in known[0]}
        self.values = {name: v for name, v in self.values.items() if name in known[1]}

    # -- pipelines

    def _fill(self, statement: Acquire | Copy) -> Iterator[str]:
        if isinstance(statement, Acquire):
            if statement.pipeline in self.filled:
                yield f"pipeline {statement.pipeline} is acquired twice"
            self.filled[statement.pipeline] = Fill(tuple(self.around))
            self.open[statement.pipeline] = True
            return
        source, target = self.program.tile(statement.source), self.program.tile(statement.target)
        ring = next((p.name for p in self.program.pipelines if target.name in p.tiles), "")
        if not self.open.get(ring):
            yield f"{target.name} is written to in a stage that was not acquired"
            return
        slots = self.filled[ring].slots
        if target.name in slots:
            yield f"{target.name} is filled twice"
        box = dict(zip(target.axes, target.shape, strict=True))
        yield from self._bounds(source, statement.at, box, engine=True)
        slots[target.name] = self._placed(source, statement.at)

    def _await(self, name: str) -> Iterator[str]:
        fill = self.filled.get(name)
        if fill is None or fill.around != tuple(self.around):
            yield f"stages of {name} are awaited in other loops than they are filled in"
        elif missing := set(self.program.pipeline(name).tiles) - fill.slots.keys():
            yield f"nobody fills {', '.join(sorted(missing))}"
        if self.open.get(name):
            yield f"a stage of {name} is awaited twice in an iteration"
        self.open[name] = True
        self.held[name] = self.held.get(name, 0) + 1

    def _release(self, release: Release) -> Iterator[str]:
        name, ring = release.pipeline, self.program.pipeline(release.pipeline)
        held = self.held.get(name, 0)
        if not 0 <= release.behind < ring.stages:
            yield f"{release.behind} of {ring.stages} stages of {name} are kept: the ring stands still"
        if not held:
            yield f"no stage of {name} is there to hand back"
        loop = self.around[-1] if self.around else None
        self.held[name] = min(release.behind, loop.count if isinstance(loop, Loop) else held)
        self.open[name] = False  # the products of this stage are counted among the newest
        if release.behind == 0:
            for total in self.sums.values():
                total.pending = False

    # -- products and values

    def _product(self, product: Product) -> Iterator[str]:
        left, right = self.program.tile(product.left), self.program.tile(product.right)
        total = self.sums.get(product.result)
        if total is None:
            yield f"{product.result} is added to before it is cleared"
            return
        slots: dict[str, Coordinates] = {}
        for tile in (left, right):
            ring = next((p.name for p in self.program.pipelines if tile.name in p.tiles), "")
            fill = self.filled.get(ring)
            if not self.open.get(ring) or fill is None or tile.name not in fill.slots:
                yield f"{tile.name} is read in a stage that is not there"
                return
            slots[tile.name] = fill.slots[tile.name]
        (axis,) = set(left.axes) & set(right.axes)
        row, column = self.program.tile(product.result).axes
        a, b = dict(slots[left.name]), dict(slots[right.name])
        summed = a.pop(axis)
        if b.pop(axis) != summed:
            yield f"{left.name} and {right.name} are of other places along {axis}"
        a[row], b[column] = a[row] + product.row, b[column] + product.column
        if any(a[shared] != b[shared] for shared in a.keys() & b.keys()):
            yield f"{left.name} and {right.name} are of other places"
        at = {**a, **b}
        if total.at and total.at != at:
            yield f"{product.result} adds products of other places"
        total.at, total.pending = at, True
        depth = left.shape[left.axes.index(axis)]
        new = {name: n for name, n in self.counters.items() if name not in total.cleared}
        yield from self._summed(product, axis, summed, depth, new, total)

    def _summed(
        self, product: Product, axis: str, index: Index, depth: int, new: Counters, total: Sum
    ) -> Iterator[str]:
        """Whether the steps of a loop are all of the axis, or the part of it that outer counters choose."""
        extent, terms = self.program.extents[axis], dict(index.terms)
        if (product.left, product.right) in total.summed:
            yield f"{product.left} @ {product.right} is added twice"
        total.summed.append((product.left, product.right))
        covered, last = depth, 0
        for counter in sorted(terms, key=lambda c: (c not in new, terms[c])):
            if counter not in self.counters or terms[counter] != covered:
                yield f"steps along {axis} leave elements out, or take some twice"
                return
            last += terms[counter] * (self.counters[counter] - 1)
            covered *= self.counters[counter]
            if counter not in new:
                total.at[counter] = counted(counter)
        if index.const or covered < extent or last >= extent or not new.keys() <= terms.keys():
            yield f"{covered} of {extent} elements along {axis} are summed, from {index.const} on"

    def _value(self, statement: Statement) -> Iterator[str]:
        match statement:
            case Number(name):
                self.values[name] = {}
            case Read(name, source, at):
                tile = self._global(source)
                if tile is None or source in self.program.outputs:
                    yield f"{source} is no tensor to read"
                    return
                box = self._box(tile)
                yield from self._bounds(tile, at, box, engine=False)
                self.values[name] = self._placed(tile, at)
            case Map(name, kind, _, operands):
                spec = OPS[kind]
                if Trait.ELEMENTWISE not in spec.traits or (spec.arity or len(operands)) != len(operands):
                    yield f"{kind.value} of {len(operands)} values is nothing elementwise"
                joined: Coordinates = {}
                for operand in operands:
                    yield from self._joined(joined, operand)
                self.values[name] = joined
            case Store():
                yield from self._store(statement)
            case _:
                yield f"{type(statement).__name__} may not stand here"

    def _joined(self, joined: Coordinates, operand: str) -> Iterator[str]:
        """The coordinates of one more operand."""
        at = self.values.get(operand)
        if operand in self.sums:
            total = self.sums[operand]
            at = total.at
            if total.pending or not total.at:
                yield f"{operand} is read while products still add to it"
        if at is None:
            yield f"there is no value {operand}"
            return
        if any(joined[axis] != place for axis, place in at.items() if axis in joined):
            yield f"{operand} is of another place than what it meets"
        joined |= at

    def _store(self, store: Store) -> Iterator[str]:
        tile = self._global(store.target)
        if tile is None or store.target not in self.program.outputs:
            yield f"{store.target} is no output"
            return
        at: Coordinates = {}
        yield from self._joined(at, store.value)
        wanted = self._placed(tile, store.at)
        if wanted != at:
            yield f"{store.value} is not stored where it belongs in {store.target}"
        yield from self._bounds(tile, store.at, self._box(tile), engine=False)
        used: list[str] = []
        for axis, extent, index in zip(tile.axes, tile.shape, store.at, strict=True):
            used += [name for name, _ in index.terms]
            yield from self._covers(axis, extent, index, self._box(tile).get(axis, 1))
        once = {name for name, count in self.counters.items() if count > 1}
        if sorted(used) != sorted(set(used)) or not once <= set(used):
            yield f"elements of {store.target} are stored more than once"

    def _covers(self, axis: str, extent: int, index: Index, size: int) -> Iterator[str]:
        """Whether the tiles of all counters lie behind each other, from the first element to the last."""
        last = 0
        for name, factor in sorted(index.terms, key=lambda term: term[1]):
            if factor != size:
                yield f"tiles along {axis} are {factor} apart, and {size} long"
                return
            last += factor * (self.counters.get(name, 1) - 1)
            size *= self.counters.get(name, 1)
        if index.const or size < extent or last >= extent:
            yield f"{size} of {extent} elements along {axis} are stored, from {index.const} on"

    # -- places

    def _global(self, name: str) -> Tile | None:
        return next((t for t in self.program.tiles if t.name == name and t.place is Place.GLOBAL), None)

    def _box(self, tile: Tile) -> dict[str, int]:
        """What one access to a global tensor behind the products reaches: as long as accumulators are."""
        sizes: dict[str, int] = {}
        for held in self.program.tiles:
            if held.place is Place.REGISTER:
                sizes |= dict(zip(held.axes, held.shape, strict=True))
        return {axis: sizes.get(axis, 1) for axis in tile.axes if axis}

    def _placed(self, tile: Tile, at: tuple[Index, ...]) -> Coordinates:
        return {axis: index for axis, index in zip(tile.axes, at, strict=False) if axis}

    def _bounds(self, tile: Tile, at: tuple[Index, ...], box: dict[str, int], *, engine: bool) -> Iterator[str]:
        """Whether every box begins inside the tensor; one that ends beyond it is cut off there."""
        if len(at) != len(tile.shape):
            yield f"{len(at)} indices into {tile.name}"
            return
        for dim, (axis, extent, index) in enumerate(zip(tile.axes, tile.shape, at, strict=True)):
            unknown = [name for name, _ in index.terms if name not in self.counters]
            if unknown:
                yield f"{tile.name}: {', '.join(unknown)} does not run here"
                continue
            if index.const < 0 or any(factor < 0 for _, factor in index.terms):
                yield f"{tile.name}: an index before its first element"
            last = index.const + sum(factor * (self.counters[name] - 1) for name, factor in index.terms)
            if last >= extent:
                yield f"{tile.name}: an index {last} of {extent} along {axis or 'a dimension of one element'}"
            hangs = last + box.get(axis, 1) > extent
            lead = 1
            for other in tile.shape[:-2]:
                lead *= other
            if engine and hangs and dim == len(tile.shape) - 2 and lead > 1:
                yield f"{tile.name}: boxes reach into the next matrix"
