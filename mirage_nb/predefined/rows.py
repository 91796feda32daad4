"""THE table of library kernels that compute several operators at once: what they compute, when, and what they take.

In: a kernel graph, a target. Out: disjoint `Match`es, each a part of the graph whose operators one library kernel
computes, those that compute most first (attention before the softmax in it). The muGraph stays what it is: a match
says how pre-defined operators are run, so what was verified of the muGraph holds of it, and the kernel is compared with
float64 like any other before it is timed or handed out.

A row names its launches, the ways that libraries have to do the same, in the order in which they are tried;
`runtime.kernel.rows` has their calls, and a test compares the two tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirage_nb.ir import HALVES, DType, Input, KernelGraph
from mirage_nb.ir.graph import reached
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.predefined import patterns
from mirage_nb.predefined.patterns import Found
from mirage_nb.predefined.reading import Reading, shape_seen
from mirage_nb.targets import DEFAULT_TARGET, SECTOR_BYTES, TARGETS, Target

PLAIN_SHARE = {DType.F32: 0.8, DType.F64: 0.4}
"""Of the vector rate, what libraries reach for element types that no tensor core takes."""
PRODUCT_PASSES = 1.5
CHUNK = 8
"""Elements of 16 bits of which rows of operands of products are multiples, where libraries are fast."""
UNALIGNED = {CHUNK: 1.0, 2: 2.8, 1: 5.5}
"""How much longer cuBLAS takes where they are multiples of fewer: 2048 x 768 x 50,257 in bf16 1693 us on an H200, with
50,258 columns 655, with 50,264 231."""
"""Over the operands of a product and its result, at the card's bandwidth: one row times 4096 x 4096 took 11.7 us."""
LARGEST_HEAD, LARGEST_CUDNN_HEAD = 256, 128
MOST_HEADS = 65_535
"""Grid dims of a kernel are no larger."""
QUERIES = 64
"""Of one block, where keys are not shared out between blocks."""
MOST_SCORES = 2**28
"""Bytes of scores that are worth writing."""
LOOKUP = "lookup"
"""The row whose kernel is one of ours (`codegen.lookup`)."""
FASTEST = TARGETS[DEFAULT_TARGET]
"""Which way should be the fastest is asked for this target; all are tried."""


@dataclass(frozen=True, slots=True)
class Match:
    """A part of a graph that one library kernel computes: `output` from `inputs`, in the first or another of
    `launches`, the ways that should be fastest first; `inside` are the values on the way, which nobody else needs."""

    row: str
    launches: tuple[str, ...]
    inputs: tuple[int, ...]
    output: int
    attrs: Mapping[str, Any]
    inside: frozenset[int]

    def us(self, graph: KernelGraph, target: Target) -> float:
        """Microseconds that it should take, launched the first way."""
        return ROWS[self.row].launches[self.launches[0]].us(graph, self, target)


@dataclass(frozen=True, slots=True)
class Way:
    """How a library launches a row.

    takes: of a graph, what was found and its value, whether it can. share: of the tensor rate, what it reaches.
    passes: over operands and result. kernels: how many it launches. between: bytes that it writes and reads between
    them. begin_us: beyond a plain launch. longest: microseconds of its longest block. nbytes: that it reads and writes,
    where that is not all of its operands and its result.
    """

    takes: Callable[[Reading, Found, int], bool]
    share: float = 0.8
    passes: float = 1.0
    kernels: int = 1
    between: Callable[[KernelGraph, Match], float] = lambda graph, match: 0.0
    begin_us: float = 0.0
    longest: Callable[[KernelGraph, Match, Target], float] = lambda graph, match, target: 0.0
    nbytes: Callable[[KernelGraph, Match], float] | None = None

    def us(self, graph: KernelGraph, match: Match, target: Target) -> float:
        """Microseconds that it should take."""
        used = [graph.types[v] for v in (*match.inputs, match.output)]
        moved = sum(t.nbytes for t in used) if self.nbytes is None else self.nbytes(graph, match)
        nbytes = moved * self.passes + self.between(graph, match)
        share = PLAIN_SHARE.get(used[-1].dtype)
        rate = target.tensor_rate * self.share if share is None else target.vector_rate * share
        busy = max(nbytes / (target.device_bandwidth * 1e3), ROWS[match.row].flops(graph, match) / (rate * 1e6))
        launch = self.kernels * (target.start_us + target.launch_us) + self.begin_us
        return launch + max(busy, self.longest(graph, match, target))


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel of the table.

    find: what a value is, if it is computed by this kernel. launches: the ways that libraries have, by name. flops: of
    one call. at_any_size: its attributes hold for every extent of a size that is known at launch. alone: nobody else
    may need what it computes on the way; others pay even where that is computed for somebody else, too.
    """

    find: Callable[[Reading, int], Found | None]
    launches: Mapping[str, Way]
    flops: Callable[[KernelGraph, Match], float]
    at_any_size: bool = True
    alone: bool = True


def matches(graph: KernelGraph, rows: Collection[str] = ()) -> tuple[Match, ...]:
    """The parts of a graph that rows of the table compute (default: all rows), disjoint, in launch order."""
    reading = Reading(graph)
    taken: set[int] = set()
    chosen: list[Match] = []
    known_at_launch = any(i.size is not None for i in graph.inputs)
    for name in rows or ROWS:
        if known_at_launch and not ROWS[name].at_any_size:
            continue
        for op, (value, *_) in reversed([*graph.definitions()]):  # whatever ends with a bias has it
            if op.body is None and value not in taken and (found := _match(reading, name, value)) is not None:
                mine = {v for v in found.inside if ROWS[name].alone and not reading.is_free(v)}
                if not taken & (mine | {value}):
                    taken |= mine | {value}
                    chosen.append(found)
    return tuple(sorted(chosen, key=lambda match: match.output))


def part(graph: KernelGraph, match: Match) -> KernelGraph:
    """The operators of a match as a program of its inputs."""
    inputs = (Input(f"x{n}", graph.types[v]) for n, v in enumerate(match.inputs))
    made = Rewrite(KernelGraph.start(*inputs), {v: n for n, v in enumerate(match.inputs)})
    for op, values in graph.definitions():
        if values[0] in match.inside or values[0] == match.output:
            made.copy(op, values)
    return made.graph.returning(made.places([match.output]))


def needed(graph: KernelGraph, chosen: Sequence[Match]) -> frozenset[int]:
    """The values that are computed when these matches are: all but what only they read on their way."""
    by_output = {match.output: match.inputs for match in chosen}
    maker = {v: op.inputs for op, values in graph.definitions() for v in values}
    unread = [value for value, readers in enumerate(graph.uses()) if not readers]
    return frozenset(reached([*graph.outputs, *unread], lambda value: by_output.get(value, maker.get(value, ()))))


def _match(reading: Reading, name: str, value: int) -> Match | None:
    found = ROWS[name].find(reading, value)
    if found is None:
        return None
    inside = reading.between(value, found.inputs)
    if "views" in found.attrs and any(i.size is not None for i in reading.graph.inputs):  # parts have numbers
        return None
    ways = {launch: way for launch, way in ROWS[name].launches.items() if way.takes(reading, found, value)}
    if not ways or (ROWS[name].alone and not reading.hidden(inside, value)):
        return None
    match = Match(name, tuple(ways), found.inputs, value, found.attrs, inside)
    ranked = sorted(ways, key=lambda launch: ways[launch].us(reading.graph, match, FASTEST))
    return replace(match, launches=tuple(ranked))


def _always(r: Reading, found: Found, value: int) -> bool:
    return True


def _flash(r: Reading, found: Found, value: int) -> bool:
    head, last = found.attrs["head"], r.shape(value)[-1]
    fits = head == last <= LARGEST_HEAD and head % 8 == 0 and found.attrs["heads"] <= MOST_HEADS
    return fits and len(found.inputs) == 3 and r.graph.types[value].dtype in HALVES


def _cudnn(r: Reading, found: Found, value: int) -> bool:
    heads = [found.attrs["head"], r.shape(value)[-1]]
    fits = all(h <= LARGEST_CUDNN_HEAD and h % 8 == 0 for h in heads) and found.attrs["window"] < 0
    return fits and _aligned(r, found) and r.graph.types[value].dtype in HALVES


def _efficient(r: Reading, found: Found, value: int) -> bool:
    heads = [found.attrs["head"], r.shape(value)[-1]]
    return all(h % 8 == 0 for h in heads) and found.attrs["window"] < 0 and _aligned(r, found)


def _aligned(r: Reading, found: Found) -> bool:
    """A bias is read by vectors of eight."""
    return len(found.inputs) == 3 or r.shape(found.inputs[3])[-1] % 8 == 0


def _products(r: Reading, found: Found, value: int) -> bool:
    """Two products and a softmax between them, whose scores lie in memory."""
    plain = len(found.inputs) == 3 and not found.attrs["causal"] and found.attrs["window"] < 0
    return plain and _scores(found.attrs, r.graph.types[value].dtype) <= MOST_SCORES


def _by_cublas(r: Reading, found: Found, value: int) -> bool:
    """One call of cuBLAS, or of cuBLASLt with its epilogue, on whole tensors."""
    if "views" in found.attrs:
        return False
    lead, left, right = (math.prod(r.shape(v)[:-2]) for v in (value, *found.inputs[:2]))
    folded = right == 1 and left == lead and (lead == 1 or not found.attrs["left"])
    return (folded or {left, right} <= {1, lead}) and not (_ends(found) and r.graph.types[value].dtype is DType.F64)


def _ends(found: Found) -> bool:
    """Whether more is done than multiplied."""
    return bool(found.attrs["bias"] or found.attrs["added"] or found.attrs["relu"])


def _pairs(graph: KernelGraph, match: Match) -> float:
    """Products of attention; half of the pairs of queries and keys where later keys are masked."""
    attrs, last = match.attrs, graph.types[match.output].shape[-1]
    pairs = float(attrs["heads"] * attrs["queries"] * attrs["keys"])
    return 2.0 * pairs * (int(attrs["head"]) + last) * (0.5 if attrs["causal"] else 1.0)


def _multiplied(graph: KernelGraph, match: Match) -> float:
    result, depth = graph.types[match.output], _depth(graph, match)
    return 2.0 * result.elements * depth * unaligned(result.dtype, depth, result.shape[-1])


def unaligned(dtype: DType, depth: int, columns: int) -> float:
    """How much longer a library multiplies 16 bits where rows of what is summed, or of the result, begin anywhere."""
    if dtype not in HALVES:
        return 1.0
    return max(next(longer for grain, longer in UNALIGNED.items() if n % grain == 0) for n in (depth, columns))


def _depth(graph: KernelGraph, match: Match) -> int:
    """Terms of a sum of a product."""
    shape = shape_seen(graph.types[match.inputs[0]].shape, match.attrs.get("views", ((),))[0])
    return shape[-2 if match.attrs["left"] else -1]


def _scores(attrs: Mapping[str, Any], dtype: DType) -> int:
    """Bytes of the scores of all heads."""
    return int(attrs["heads"] * attrs["queries"] * attrs["keys"]) * dtype.size


def _between(graph: KernelGraph, match: Match) -> float:
    """Scores and shares are written and read once each."""
    return 4.0 * _scores(match.attrs, graph.types[match.output].dtype)


def _over_keys(step_us: float, **how: Any) -> Callable[[KernelGraph, Match, Target], float]:
    """Blocks that go over the keys of their queries, so long for each; `how` as in `attention_us`."""

    def longest(graph: KernelGraph, match: Match, target: Target) -> float:
        attrs = match.attrs
        heads, queries, keys = (int(attrs[name]) for name in ("heads", "queries", "keys"))
        last = attention_us(1, 1, keys, step_us, target, splits=False)  # causal or not, some row needs them all
        found = attention_us(heads, queries, keys * (0.5 if attrs["causal"] else 1.0), step_us, target, **how)
        return max(found, last) if attrs["causal"] and queries > 1 else found

    return longest


def _of_product(graph: KernelGraph, match: Match, target: Target) -> float:
    *lead, rows, columns = graph.types[match.output].shape
    share = PLAIN_SHARE.get(graph.types[match.output].dtype)
    rate = 1e6 * (target.tensor_rate if share is None else target.vector_rate * share / PLAIN_SHARE[DType.F32])
    return product_us((rows, columns), _depth(graph, match), math.prod(lead), rate, target)


def _looked_up(graph: KernelGraph, match: Match) -> float:
    """Of the table only the rows that are found, of lone elements what is read with them; numbers, and what is
    written."""
    table, *numbers, result = (graph.types[v] for v in (*match.inputs, match.output))
    each = SECTOR_BYTES if match.attrs["apart"] else table.dtype.size
    return result.elements * (each + result.dtype.size) + sum(t.nbytes for t in numbers)


def _none(graph: KernelGraph, match: Match) -> float:
    return 0.0


ROWS: Mapping[str, Row] = {
    LOOKUP: Row(patterns.lookup, {"mirage_nb": Way(_always, nbytes=_looked_up)}, _none, False, False),
    "attention": Row(
        patterns.attention,
        {
            "flash": Way(_flash, share=0.4, begin_us=2.5, longest=_over_keys(0.021)),
            "cudnn": Way(_cudnn, share=0.6, begin_us=4.5, longest=_over_keys(0.0135)),
            "efficient": Way(
                _efficient, share=0.2, begin_us=3.0, longest=_over_keys(0.033, rows=QUERIES, splits=False)
            ),
            "products": Way(_products, share=0.6, kernels=3, between=_between),
        },
        _pairs, at_any_size=False,
    ),
    "group_norm": Row(patterns.group_norm, {"torch": Way(_always, passes=10.0, kernels=3)}, _none, at_any_size=False),
    "softmax": Row(patterns.softmax, {"torch": Way(_always, passes=2.4)}, _none),
    "log_softmax": Row(patterns.log_softmax, {"torch": Way(_always, passes=2.4)}, _none),
    "running_sum": Row(patterns.running_sum, {"torch": Way(_always, passes=2.4)}, _none),
    "norm": Row(patterns.norm, {"torch": Way(_always, passes=2.5, kernels=2)}, _none),
    "linear": Row(
        patterns.linear,
        {
            name: Way(takes, passes=PRODUCT_PASSES, longest=_of_product)
            for name, takes in (("cublas", _by_cublas), ("torch", _always))
        },
        _multiplied,
    ),
}  # fmt: skip
"""By name; those that compute more stand in front."""


# -- what a kernel takes however idle the card is: the time of its longest block, which sums one tile up. The constants
# are fitted to `bench/records/library-h200-2026-11-22.json`; `bench library --from` shows how well.


TILE = 128, 64
"""Of a product, along the longer and the shorter side; a side that is shorter is taken in steps of `GRAIN`."""
GRAIN = 32
DEEPEST = 1024
"""A longer sum is shared out between blocks, whose results one more kernel adds up."""
STEP_US = 0.003
"""The least time of a tile's step along the depth: cuBLAS took 3.1 us for 1024 of them in f16."""
TILE_SHARE = 0.9
"""Of its part of the rate, what a multiprocessor reaches in one tile: 128 x 64 x 512 in f32 took 22 us."""
QUERIES = 128
"""Of one block of attention, where a library does not say otherwise."""


def product_us(sides: tuple[int, int], depth: int, batch: int, rate: float, target: Target) -> float:
    """The longest blocks of a product of matrices. rate: operations in a microsecond, of the whole card."""
    short, long = sorted(sides)
    tile = [min(most, GRAIN * math.ceil(side / GRAIN)) for most, side in zip(TILE, (long, short), strict=True)]
    parts = math.ceil(depth / DEEPEST)
    blocks = batch * parts * math.prod(math.ceil(side / n) for side, n in zip((long, short), tile, strict=True))
    step = max(2.0 * math.prod(tile) * target.multiprocessors / (rate * TILE_SHARE), STEP_US)
    together = target.start_us if parts > 1 else 0.0
    return max(1.0, blocks / target.multiprocessors) * min(depth, DEEPEST) * step + together


def attention_us(
    heads: int, queries: int, keys: float, step_us: float, target: Target, *, rows: int = QUERIES, splits: bool = True
) -> float:
    """The longest blocks of attention: each goes over the keys of its queries, `step_us` for one of them.

    Args:
        keys: of a query, on average.
        rows: queries of a block.
        splits: whether keys are shared out between blocks where these are few, and put together by one more kernel.
    """
    blocks = heads * math.ceil(queries / rows)
    whole = max(1.0, blocks / target.multiprocessors) * keys * step_us
    parts = target.multiprocessors // blocks
    if not splits or parts < 2:
        return whole
    return min(whole, keys * step_us / parts + target.start_us + target.launch_us)
