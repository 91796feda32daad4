"""The rules by which a block holds rows or columns in the registers of its threads: one set for all who ask.

In: the sketch of a block; extents, as numbers (the planner of one block) or as arrays of them (the ranking of thousands
of sizes at once). Out: the same kind: elements of a thread's vectors, 0 where the tiles do not fit. Such a block has no
loop and no product. Where rows alone are reduced, whole warps share one, unless it is short, and shorter ones beside
it, as of a product of low rank behind another; where columns are, threads of several warps share one if there are
fewer columns than threads; where some are along rows and others along columns, all threads share every row and have
whole columns; of other reductions, of several axes or of none, a thread has all columns. A row or column that is too
long for the warps of a block gets as many as hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from mirage_nb.ir import OpKind
from mirage_nb.ir.graph import reached
from mirage_nb.tile.roles.program import LANES
from mirage_nb.tile.rules.sharing import SUM_BYTES
from mirage_nb.tile.rules.sketch import FOLDS, Node, Sketch

REGISTER_BUDGET = 104
"""32-bit registers that the tiles of a thread may take that shares rows or columns: what is left of 128, as many as it
has where `MOST_WARPS` run on a multiprocessor. With so many, kernels spill next to nothing."""
REGISTER_BYTES = 4
LONE_BUDGET = 128
"""The same of a thread that has columns to itself."""
MOST_WARPS = 16
"""Of a block; with more of them all threads together hold less."""
LONGEST_COLUMN = 64
"""Elements of a column that one thread may hold."""
LONE_COLUMN = 32
"""Elements of a column that a thread takes rather than wait for others."""
SHARED_COLUMN = 4
"""The same of one that threads share, at least."""
PARTIAL_RESULTS = 64
"""Of a column that threads share, as many as one of them may combine from shared memory for its vector."""
LIGHT, LIGHT_BUDGET = 40, 48
"""Registers of a thread, for what it loads and folds, that leave room for twice as many warps: gradients that take up
to the second number compile to 64 without a spill, and count as the first."""
CROSSED_SLOTS = (1, 2, 3, 4)
"""Vectors of a row that a thread may have where rows are folded and columns."""
SHORT_ROW = 8
"""The same of a row: threads side by side read elements so far apart."""
AHEAD = 4
"""Vectors that a thread asks for at once: code of which more is written out is fetched for longer than it runs."""
WIDTHS = (1, 2, 4, 8)
"""Elements of a vector."""
VECTOR_BYTES = 16
"""The widest vector that a thread loads or stores."""
PLACING = frozenset({OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.CONCAT})
"""Operators that compute nothing."""
_SIMPLE = frozenset({OpKind.IN_ITER, OpKind.CONST, OpKind.RESHAPE, OpKind.OUT_SAVER})


@dataclass(frozen=True, slots=True)
class Loaded:
    """A tile that is loaded: its share of what lies along the reduced axis, 0 if it does not vary there; whether it
    varies along the last one; bytes of an element; whether no reduction needs it, so that it can be asked for behind
    them; its extent along the last axis but one."""

    long: Any
    varied: Any
    size: int
    late: bool = False
    high: Any = 1


@dataclass(frozen=True, slots=True)
class Holding:
    """tile: the shape that all values of a block broadcast to; axes: its reduced ones, counted from the last; rows:
    where warps share rows; width: elements of a vector along the last axis, 0 where threads cannot hold the tile;
    parts: threads that share a column; warps: of the block; registers: of a thread, for what it loads; tight: what no
    reduction needs finds room behind them only; crossed: all threads share every row, and have whole columns."""

    tile: tuple[Any, ...]
    axes: tuple[int, ...]
    rows: Any
    width: Any
    parts: Any = 1
    warps: Any = 0
    registers: Any = 0
    tight: Any = False
    crossed: Any = False

    @property
    def shared(self) -> Any:
        """Whether threads share a reduction."""
        return self.rows | np.greater(self.parts, 1) | self.crossed

    @property
    def results(self) -> Any:
        """Of all reductions."""
        return _product([extent for place, extent in enumerate(self.tile, -len(self.tile)) if place not in self.axes])

    def otherwise(self, other: Holding) -> Holding:
        """This, where threads can hold the tile, else another way."""
        names = ("rows", "width", "parts", "warps", "registers", "tight", "crossed")
        chosen = {n: np.where(self.width > 0, getattr(self, n), getattr(other, n)) for n in names}
        return replace(self, **chosen)


def hold(sketch: Sketch, extents: Callable[[int], Sequence[Any]], runs: Sequence[Any], warps: int) -> Holding | None:
    """How so many warps hold the tiles of a block, or more of them what they cannot; None if none can, whatever the
    extents. runs: the innermost extents of tensors over whose ends tiles hang, which no vector may cross."""
    reductions = [node for node in sketch.nodes if node.kind in FOLDS]
    running = [node.makes[0] for node in reductions if node.kind is OpKind.RUNNING_SUM]
    axes = tuple(sorted({node.along for node in reductions}))
    viewed, joined = views(sketch), joins(sketch)
    lies = turned(sketch, viewed, joined)
    if sketch.looped or lies is None or not all(index in joined or _simple(n) for index, n in enumerate(sketch.nodes)):
        return None
    back = lies.lying
    alone = bool(running) or any(n.kind is OpKind.RESCALED_SUM for n in reductions)
    if (back and axes != (-1,)) or (len(axes) > 1 and alone):
        return None
    saved = _saved(sketch)
    computed = (n for index, n in enumerate(sketch.nodes) if n.kind is not OpKind.RESHAPE and index not in joined)
    made = (value for node in computed for value in node.makes)
    shapes = {value: tuple(extents(viewed.get(value, back.get(value, value)))) for value in made}
    tile = _common(list(shapes.values()))
    if not tile or any(len(shapes[value]) != len(tile) for value in saved):
        return None
    able: Any = True
    uneven: Any = False
    for shape in shapes.values():
        for place, (own, most) in enumerate(zip(reversed(shape), reversed(tile), strict=False)):
            fits = np.equal(own, 1) | np.equal(own, most)
            able, uneven = (able, uneven | ~fits) if place == 0 else (able & fits, uneven)
    found = Holding(tile, axes, False, 0)
    for value in viewed:  # of vectors, whole ones, and nothing that is broadcast before
        inner, own = _extent(shapes[value], -1), extents(value)
        able = able & (np.equal(inner, 1) | np.equal(inner, _deepest(own)))
        able = able & np.equal(_product(own), _product(shapes[value]))
    for value, other in lies.alike:
        own, its = extents(value), extents(other)
        same = (np.equal(a, b) for a, b in zip(own, its, strict=True)) if len(own) == len(its) else [np.False_]
        able = reduce(np.logical_and, same, able)
    for value in back:  # one element for each result of the reductions
        own = _product(extents(value))
        able = able & np.equal(_extent(shapes[value], -1), 1) & np.equal(own, _product(shapes[value]))
        able = able & np.equal(own, found.results)
    for value in saved:  # every kept position of the tile once
        for place, (own, most) in enumerate(zip(shapes[value], tile, strict=True), -len(tile)):
            able = able & (np.equal(own, most) if place not in axes else True)
    for node in reductions:
        able = able & np.greater(extents(node.reads[0])[node.along], 1)
    loads = [node.makes[0] for node in sketch.nodes if node.kind is OpKind.IN_ITER and not node.literal]
    sizes = [sketch.values[value].dtype.size for value in loads]
    # Running sums of what nobody else reads take its registers.
    once = len(reductions) == 1 and all(len(sketch.uses[value]) == 1 for value in loads)
    held = [(value, SUM_BYTES if running and once else size) for value, size in zip(loads, sizes, strict=True)]
    held += [(value, SUM_BYTES) for value in running if not once]
    late = {*loads} - needed(sketch)
    loaded = [
        Loaded(
            reduce(np.maximum, (_share(_extent(shapes[value], axis), tile[axis]) for axis in axes), 0.0),
            np.greater(_extent(shapes[value], -1), 1),
            size,
            value in late,
            _extent(shapes[value], -2),
        )
        for value, size in held
    ]
    rows = [_extent(shape, -1) for shape in shapes.values()] if axes == (-1,) else []
    most = widest([tile[-1], *runs, *(np.where(np.greater(row, 1), row, 0) for row in rows)], sizes)
    shared = _shared_out(found, most, loaded, warps)
    while len(axes) == 1 and 2 * warps <= MOST_WARPS and not np.all(shared.width > 0):
        warps *= 2
        shared = shared.otherwise(_shared_out(found, most, loaded, warps))
    if axes == (-2, -1):
        shared = _crossed(found, most, loaded, [node.along for node in reductions]).otherwise(shared)
    able = able & (~uneven | (shared.rows & (not running)))  # warps that share rows have shorter ones beside them
    return replace(shared, width=np.where(able, shared.width, 0))


def _shared_out(block: Holding, most: Any, loaded: Sequence[Loaded], warps: int) -> Holding:
    """How so many warps share a tile, with vectors of `most` elements at most."""
    tile, axes, results = block.tile, block.axes, block.results
    along = _product([tile[axis] for axis in axes])
    width = by_columns(along, results, 1 if -1 in axes else most, loaded, warps)
    slots, rows, parts = along, np.False_, np.array(1)
    if -1 in axes:
        width = np.where(np.less_equal(tile[-1], SHORT_ROW), width, 0)
    elif len(axes) == 1:
        shared, parts = by_teams(along, results, most, loaded, warps)
        width = np.where(parts > 1, shared, width)
        slots = np.ceil(along / parts)
    if axes == (-1,):
        shared = by_rows(tile[-1], results, most, loaded, warps)
        rows, width = np.greater(shared, 0), np.where(np.greater(shared, 0), shared, width)
        slots = np.where(rows, row_slots(tile[-1], row_lanes(results, warps), shared), along)
    registers = _registers(loaded, slots, width)
    tight = (rows | (parts > 1)) & (registers > REGISTER_BUDGET)
    return Holding(tile, axes, rows, width, parts, warps, np.where(tight, REGISTER_BUDGET, registers), tight)


def _crossed(block: Holding, most: Any, loaded: Sequence[Loaded], along: Sequence[int]) -> Holding:
    """One tile of rows and columns, which are folded `along` these axes: the widest vectors of rows up to `most`, and
    the fewest for each thread, that leave no thread without one and fit, with what they are folded to."""
    width, warps, registers = (np.zeros_like(block.results) for _ in range(3))
    for wider in WIDTHS:
        for slots in reversed(CROSSED_SLOTS):
            each = LANES * wider * slots
            tiles = (t.high * np.ceil(np.where(t.varied, wider * slots, 1) * t.size / REGISTER_BYTES) for t in loaded)
            needs = sum(tiles, start=sum(block.tile[-2] if axis == -1 else wider * slots for axis in along))
            able = (wider <= most) & np.equal(np.mod(block.tile[-1], each), 0) & (needs <= REGISTER_BUDGET)
            able = able & (np.floor_divide(block.tile[-1], each) <= MOST_WARPS) & np.equal(block.results, 1)
            needs = np.where(needs <= LIGHT_BUDGET, np.minimum(needs, LIGHT), needs)
            width, registers = np.where(able, wider, width), np.where(able, needs, registers)
            warps = np.where(able, np.floor_divide(block.tile[-1], each), warps)
    return replace(block, width=width, warps=warps, registers=registers, crossed=np.greater(width, 0))


def held_elements(size: int) -> int:
    """Elements of so many bytes that the threads of a block hold together at most."""
    return REGISTER_BUDGET * REGISTER_BYTES * LANES * MOST_WARPS // size


def _simple(node: Node) -> bool:
    """Whether threads can do an operator in their registers."""
    return node.elementwise or node.kind in _SIMPLE or node.kind in FOLDS


def needed(sketch: Sketch, most: int | None = None) -> set[int]:
    """The values that reductions, the first `most` of them, are computed from."""
    folds = [place for place, node in enumerate(sketch.nodes) if node.kind in FOLDS][:most]
    found: set[int] = set()
    for node in reversed(sketch.nodes[: folds[-1] + 1] if folds else ()):
        if node.kind in FOLDS:
            found.update(node.reads)
        elif wanted := found.intersection(node.makes):
            found.update(node.reads_for(wanted))
    return found


def views(sketch: Sketch) -> dict[int, int]:
    """What is loaded to be reshaped, and what is computed of it, element by element, before, or for results that lie
    turned: by a value that is read of it. Threads load it as that lies."""
    loaded = _loaded(sketch)
    bent = _bent(sketch, loaded)
    found: dict[int, int] = {}
    for node in sketch.nodes:
        if node.kind is OpKind.RESHAPE and node.reads[0] in loaded - found.keys():
            together = _together(sketch, node.reads[0], loaded)
            readers = {index for value in together for index in sketch.uses[value]}
            if all(_is_view(sketch, sketch.nodes[index], together, bent) for index in readers):
                found |= dict.fromkeys(together, node.makes[0])
    return found


def _loaded(sketch: Sketch) -> frozenset[int]:
    """What is loaded, and what is computed of that alone, and of numbers in the source, element by element."""
    found, literal = set[int](), set[int]()
    for node in sketch.nodes:
        if node.literal:
            literal.update(node.makes)
        elif node.kind is OpKind.IN_ITER or (node.elementwise and found.union(literal).issuperset(node.reads)):
            found.update(node.makes)
    return frozenset(found)


def _bent(sketch: Sketch, loaded: frozenset[int]) -> frozenset[int]:
    """What is computed is reshaped, and what is made of that, element by element."""
    found = set[int]()
    for node in sketch.nodes:
        again = node.elementwise and not found.isdisjoint(node.reads)
        if again or (node.kind is OpKind.RESHAPE and node.reads[0] not in loaded):
            found.update(node.makes)
    return frozenset(found)


def _together(sketch: Sketch, value: int, loaded: frozenset[int]) -> set[int]:
    """The loaded values that meet this one, or each other, element by element."""

    def beside(one: int) -> Iterator[int]:
        for index in (sketch.defined[one], *sketch.uses[one]):
            node = sketch.nodes[index]
            if node.elementwise and loaded.issuperset(node.makes):
                yield from loaded.intersection((*node.reads, *node.makes))

    return reached([value], beside)


def _is_view(sketch: Sketch, node: Node, together: Collection[int], bent: Collection[int]) -> bool:
    """Whether an operator that reads such values is one of them, reshapes one, or computes what lies turned."""
    if node.kind is OpKind.RESHAPE:
        return {sketch.nodes[reader].kind for reader in sketch.uses[node.makes[0]]}.isdisjoint(
            (*PLACING, OpKind.OUT_SAVER)
        )
    return node.elementwise and (node.makes[0] in together or not set(bent).isdisjoint(node.reads))


@dataclass(frozen=True, slots=True)
class Turned:
    """Values that lie turned, a result of each row along a line, say: what is computed from a reshaped value, and what
    is loaded for that, each with a value whose extents it has (`lying`). alike: values that have to have the same
    extents, as they are read beside each other."""

    lying: dict[int, int]
    alike: tuple[tuple[int, int], ...]


def turned(sketch: Sketch, viewed: Mapping[int, int], joined: Collection[int]) -> Turned | None:
    """What lies turned in a block with these `views` and `joins`. None where a reshaped value is read otherwise."""
    renamed: dict[int, int] = {}
    found: dict[int, int] = {}
    alike: list[tuple[int, int]] = []

    def is_loaded(value: int) -> bool:
        return sketch.nodes[sketch.defined[value]].kind is OpKind.IN_ITER and len(sketch.uses[value]) == 1

    for index, node in enumerate(sketch.nodes):
        inside = [value for value in node.reads if value in renamed]
        if node.kind is OpKind.RESHAPE:
            if node.reads[0] in viewed:
                alike.append((node.makes[0], viewed[node.reads[0]]))
            else:
                renamed[node.makes[0]] = renamed.get(node.reads[0], node.reads[0])
        elif inside and node.kind is not OpKind.OUT_SAVER and index not in joined:
            origin = renamed[inside[0]]
            others = [v for v in node.reads if v not in inside and not sketch.nodes[sketch.defined[v]].literal]
            alike += [(viewed[v], origin) for v in others if v in viewed]
            others = [v for v in others if v not in viewed]
            if not node.elementwise or not all(map(is_loaded, others)):
                return None
            found |= dict.fromkeys((*others, *node.makes), origin)
            renamed |= dict.fromkeys(node.makes, origin)
    return Turned(found, tuple(dict.fromkeys((a, b) for a, b in alike if a != b)))


def joins(sketch: Sketch) -> frozenset[int]:
    """Operators that only say where parts of a result are saved: concatenations, and what lays them otherwise."""
    found: set[int] = set()
    placed: set[int] = set()
    for index, node in reversed(tuple(enumerate(sketch.nodes))):
        readers = sketch.uses[node.makes[0]] if node.kind in PLACING else ()
        if readers and all(sketch.nodes[r].kind is OpKind.OUT_SAVER or r in placed for r in readers):
            placed.add(index)
    behind: set[int] = set()
    for index in sorted(placed):
        node = sketch.nodes[index]
        if node.kind is OpKind.CONCAT or behind.intersection(node.reads):
            behind.update(node.makes)
            found.add(index)
    return frozenset(found)


def _saved(sketch: Sketch) -> set[int]:
    """What is saved, seen through what says where."""
    placed = {node.makes[0]: node.reads for node in sketch.nodes if node.kind in PLACING}
    savers = (value for node in sketch.nodes if node.kind is OpKind.OUT_SAVER for value in node.reads)
    return reached(savers, lambda value: placed.get(value, ())) - placed.keys()


def _common(shapes: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The largest extent along every dimension."""
    rank = max(map(len, shapes))
    return tuple(reduce(np.maximum, (_extent(shape, place) for shape in shapes)) for place in range(-rank, 0))


def _extent(shape: Sequence[Any], axis: int) -> Any:
    return shape[axis] if -axis <= len(shape) else 1


def _deepest(extents: Sequence[Any]) -> Any:
    """The innermost extent that is more than 1."""
    found: Any = 1
    for extent in extents:
        found = np.where(np.greater(extent, 1), extent, found)
    return found


def _share(own: Any, most: Any) -> Any:
    """Of what lies along an axis, 0 for what does not vary there."""
    return np.where(np.greater(own, 1), own / most, 0.0)


def _product(extents: Sequence[Any]) -> Any:
    return reduce(np.multiply, extents, 1)


def widest(runs: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Elements of the widest vector whose multiples are all of these runs, of elements of these sizes: one access of
    the smallest, and two at most of others."""
    most: Any = 1
    for width in WIDTHS:
        fits: Any = width * max(max(sizes, default=4) // 2, min(sizes, default=4)) <= VECTOR_BYTES
        for run in runs:
            fits = fits & np.equal(np.mod(run, width), 0)
        most = np.where(fits, width, most)
    return most


def row_lanes(rows: Any, warps: int) -> Any:
    """Threads that share a row."""
    return np.floor_divide(LANES * warps, rows)


def row_slots(last: Any, lanes: Any, width: Any) -> Any:
    """Vectors of a row that a thread has at most."""
    return np.ceil(last / np.maximum(width, 1) / np.maximum(lanes, 1))


def busy_lanes(last: Any, lanes: Any, width: Any) -> Any:
    """Threads that share a row and all have something of it: whole warps, no more vectors for each than before."""
    vectors = np.ceil(last / np.maximum(width, 1))
    return LANES * np.ceil(vectors / np.maximum(row_slots(last, lanes, width), 1) / LANES)


def by_rows(last: Any, rows: Any, most: Any, loaded: Sequence[Loaded], warps: int) -> Any:
    """So many rows of `last` elements, whole warps for each: the widest vectors up to `most` that leave no thread
    without one, else single elements."""
    lanes = row_lanes(rows, warps)
    width: Any = 1
    for wider in WIDTHS[1:]:
        width = np.where((wider <= most) & (np.floor_divide(last, wider) >= lanes), wider, width)
    able = _fits(loaded, row_slots(last, lanes, width), width) & np.equal(np.mod(warps, rows), 0)
    return np.where(able, width, 0)


def by_columns(along: Any, results: Any, most: Any, loaded: Sequence[Loaded], warps: int) -> Any:
    """So many columns of `along` elements: the widest vectors of columns up to `most` that give a warp something to do
    and fit; where nothing is reduced, those wider than pairs all warps. No thread comes back for more than it can ask
    for at once."""
    width: Any = 0
    for wider in WIDTHS:
        busy = LANES * np.where(np.equal(along, 1) & (wider > 2), warps, 1)
        enough = np.floor_divide(results, wider) >= busy if wider > 1 else np.greater(results, 0)
        fits = _registers(loaded, along, wider) <= LONE_BUDGET
        width = np.where((wider <= most) & enough & fits, wider, width)
    able = np.less_equal(along, LONGEST_COLUMN) & np.less_equal(results, AHEAD * LANES * warps * width)
    return np.where(able, width, 0)


def by_teams(along: Any, results: Any, most: Any, loaded: Sequence[Loaded], warps: int) -> tuple[Any, Any]:
    """So many columns of `along` elements, fewer than threads: the widest vectors of columns up to `most` that fit, and
    how many threads share each. Warps are full, and none of them is without a part of a column."""
    width: Any = 0
    parts: Any = 1
    for wider in WIDTHS:
        vectors = np.maximum(np.floor_divide(results, wider), 1)
        least = reduce(np.minimum, (np.where(np.mod(vectors, n), LANES, LANES // n) for n in (2, 4, 8, 16, 32)))
        share = np.minimum(np.floor_divide(LANES * warps, vectors), np.floor_divide(along, SHARED_COLUMN))
        share = np.maximum(np.floor_divide(share, least), 1) * least
        slots = np.ceil(along / share)
        share = np.ceil(along / slots / least) * least
        partial = wider * partial_sets(vectors, share)
        fits = (partial <= PARTIAL_RESULTS) & _fits(loaded, slots, wider)
        able = fits & (wider <= most) & np.equal(np.mod(results, wider), 0) & (along > LONE_COLUMN) & (share > 1)
        able = able & (share * SHARED_COLUMN <= along) & (vectors * share <= LANES * warps)
        width, parts = np.where(able, wider, width), np.where(able, share, parts)
    return width, parts


def partial_sets(vectors: Any, parts: Any) -> Any:
    """How many partial results of every column there are when the lanes of each warp have combined theirs."""
    return np.where(np.mod(LANES, np.maximum(vectors, 1)), parts, parts * vectors / LANES)


def _fits(loaded: Sequence[Loaded], slots: Any, width: Any) -> Any:
    """Whether threads have registers for what reductions need."""
    return _registers([tile for tile in loaded if not tile.late], slots, width) <= REGISTER_BUDGET


def _registers(loaded: Sequence[Loaded], slots: Any, width: Any) -> Any:
    """Of a thread, for the loaded tiles."""
    total: Any = 0
    for tile in loaded:
        vector = np.where(tile.varied, width, 1)
        span = np.where(tile.long > 0, np.ceil(slots * tile.long), 1)
        few = np.ceil(slots * width * tile.long)  # elements of a shorter row, one by one
        alone = tile.varied & (tile.long > 0) & (few < width)
        total = total + np.where(alone, few * np.ceil(tile.size / REGISTER_BYTES),
                                 span * np.ceil(vector * tile.size / REGISTER_BYTES))  # fmt: skip
    return total
