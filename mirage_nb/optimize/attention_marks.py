"""Which tiles of keys data hides altogether, as a block of chained products asks: it loads and computes the others.

In: how the masks of a block are computed, for the rows of a point and a tile of keys. Out: a `Mark`, and what it fills.
Invariant: what is left out is masked by minus infinity (`tile.rules.mask`): its weights are zero, and no maximum rises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from mirage_nb.ir import DType
from mirage_nb.optimize.attention_keys import Keys
from mirage_nb.tile.instructions.table import Place
from mirage_nb.tile.roles.program import (
    GROUP,
    Await,
    Computed,
    Index,
    Layout,
    Mark,
    Marked,
    Pipeline,
    Read,
    Release,
    Role,
    Statement,
    Tile,
    counted,
)
from mirage_nb.tile.rules.attention import KEYS, AttentionBlock
from mirage_nb.tile.rules.products import ROWS
from mirage_nb.tile.rules.teams import RESERVED_BYTES, chained_stages

ROLE, RING, SEEN, TILE = "mark", "rn", "seen", "tile"
"""The role that marks, its pipeline, its tile, and the counter of tiles of keys."""
MOST = 256
"""Tiles that are marked at most."""
STAGES = 1
"""Of the pipeline: a block has one point."""


def key(made: AttentionBlock) -> Index:
    """Where the keys of a tile begin that is looked at."""
    return counted(TILE, made.step)


def mark_of(
    made: AttentionBlock, memory: int, body: Sequence[Statement], values: Sequence[str], count: Index,
    tiles: Mapping[str, Tile],
) -> Mark | None:  # fmt: skip
    """Of so many tiles of keys those in which none of these values is zero everywhere; None where no line of data says
    it, since a number for every pair would be read once more, or where there is no room. memory: shared, of a block."""
    computed = tuple(s for s in body if isinstance(s, Computed))
    lined = any(isinstance(s, Read) and not {ROWS, KEYS} <= {*tiles[s.source].axes} for s in computed)
    if not values or not lined or len(computed) < len(body) or not _room(made, memory):
        return None
    return Mark(SEEN, TILE, count, ((ROWS, made.rows), (KEYS, made.step)), computed, tuple(values))


def _room(made: AttentionBlock, memory: int) -> bool:
    """Whether marks lie beside barriers, in so much shared memory of a block."""
    sizes = made.rows, made.step, made.depth, made.columns
    ring = int(chained_stages(*sizes, memory)) * made.step * (made.depth + made.columns)
    return made.block.loop <= MOST and 2 * (made.rows * made.depth + ring) <= memory - 2 * RESERVED_BYTES


def roles_of(load: Role) -> tuple[Role, Role]:
    """Who loads, of whom one thread works, and who marks, in one group of four warps."""
    return replace(load, warps=1), Role(ROLE, GROUP - 1, load.registers)


def tile_of(made: AttentionBlock) -> Tile:
    """The tile of marks."""
    return Tile(SEEN, Place.SHARED, ("",), (made.block.loop,), DType.BOOL, Layout.ROWS, STAGES)


def ring_of(tile: Tile, readers: Sequence[Role]) -> Pipeline:
    """The pipeline that it is filled through."""
    return Pipeline(RING, (SEEN,), STAGES, tile.nbytes, sum(role.warps for role in readers))


def loading(mark: Mark | None, keys: Keys, load: Callable[[Index], tuple[Statement, ...]]) -> tuple[Statement, ...]:
    """How tiles of keys are loaded: all of them; or the first one, which is on its way while the others are looked at,
    and of these the marked ones. load: what is done in an iteration."""
    loop, done = keys.load, counted(KEYS)
    if mark is None:
        return (replace(loop, body=load(done)),)
    done += Index((), 1)
    most = None if loop.most is None else loop.most - 1
    others = replace(loop, count=loop.count - 1, most=most, body=load(done), only=Marked(SEEN, keys.tile(done)))
    return *load(Index()), Await(RING), others, Release(RING)


def computing(
    mark: Mark | None, keys: Keys, iteration: Callable[[Index, bool], tuple[Statement, ...]]
) -> tuple[Statement, ...]:
    """The iterations behind the first one: all of them, or those of marked tiles."""
    loops = list[Statement]()
    for section in keys.sections:
        done = counted(section.loop.counter) + section.done
        only = None if mark is None else Marked(SEEN, keys.tile(done))
        loops.append(replace(section.loop, body=iteration(done, section.chosen), only=only))
    return tuple(loops) if mark is None else (Await(RING), *loops, Release(RING))
