"""What a kernel moves: how its tiles come in, and what device memory and L2 need for all of its blocks.

In: the tiles of a kernel at many sizes. Out: `Copies` of one block, `Traffic` of all of them. A tile comes in bulk, by
copies of 4 to 16 bytes that run by themselves, or through registers, where every thread waits for what it asked for.
What hangs over the end of a tensor is brought as zeros: it takes the engine and the threads as long, but no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mirage_nb.ir.windows import Share
from mirage_nb.search.sizes.anatomy import Moved, Numbers, Part, Truths
from mirage_nb.search.sizes.constants import Constants
from mirage_nb.search.sizes.tiles import Tiles, touched
from mirage_nb.targets import SECTOR_BYTES, Target
from mirage_nb.tile.rules.shared import LINE_BYTES


@dataclass(frozen=True, slots=True)
class Copies:
    """Input tiles of a block: microseconds and bytes of one iteration, and of what is brought once.

    `bulk`: the copy engine can bring every streamed tile. `waiting`,
    `waiting_once`: microseconds in which all threads wait for what passes through their registers. `us_saved`: how much
    longer stores take in runs shorter than lines.
    """

    bulk: Truths
    us: Numbers
    nbytes: Numbers
    waiting: Numbers
    us_once: Numbers
    nbytes_once: Numbers
    waiting_once: Numbers
    us_saved: Numbers


def copies(tiles: Tiles, target: Target, constants: Constants) -> Copies:
    """The input tiles of one block."""
    made = tiles.outline
    boxed = {value: tiles.boxes(value) for value in made.reads if made.parts[value] is Part.STREAMED}
    bulk = np.full(tiles.shape, target.tma and bool(boxed))
    for value, boxes in boxed.items():
        bulk &= boxes.fits | ~tiles.staged(value)
    us, nbytes, waiting, us_once, nbytes_once, waiting_once = (np.zeros(tiles.shape) for _ in range(6))
    for value, moved in made.reads.items():
        tile = tiles.lying(moved)
        part, through = moved.share.part, tiles.nbytes(moved)
        loads = tile.touches * part * constants.touch_us
        if any(moved.share.beside):  # what other operands brought is in L1
            near = touched(tile.width, tile.count, LINE_BYTES) * LINE_BYTES / constants.near_bytes_us
            loads, through = np.maximum(loads, near), through * part
        if 0 < moved.share.table <= target.shared_per_multiprocessor // 2:  # which L1 keeps
            loads = np.minimum(loads, tile.touches * part * SECTOR_BYTES / constants.near_bytes_us)
        staged = made.parts[value] is not Part.DIRECT and tile.anywhere.any()
        wait = tile.waits * constants.direct_us + tile.vectors * constants.pass_us if staged else None
        if not made.varying[value]:
            us_once, nbytes_once = us_once + loads, nbytes_once + through
            waiting_once = waiting_once if wait is None else waiting_once + wait
            continue
        nbytes = nbytes + through
        if value in boxed:
            us = us + np.where(bulk & tiles.staged(value), boxed[value].lines * constants.panel_us, loads)
        else:
            us = us + loads
        if wait is not None:
            waiting = waiting + np.where(bulk, 0.0, wait)
    return Copies(bulk, us, nbytes, waiting, us_once, nbytes_once, waiting_once, _saved(tiles, constants))


def _saved(tiles: Tiles, constants: Constants) -> Numbers:
    """What stores touch beyond the lines and sectors that as many bytes fill."""
    found = np.zeros(tiles.shape)
    for _, moved in tiles.outline.saves:
        whole = tiles.nbytes(moved) * (1 / LINE_BYTES + 1 / SECTOR_BYTES)
        found = found + np.maximum(tiles.lying(moved).touches - whole, 0.0) * constants.touch_us
    return found


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of a kernel: `device` if every tensor crosses device memory once, `block` that one block moves; `own` that
    it moves of each tensor, which has `whole`, without those that blocks beside each other bring at the same time."""

    device: Numbers
    block: Numbers
    own: Numbers
    whole: Numbers

    def us(self, running: Numbers, blocks: Numbers, target: Target, constants: Constants) -> Numbers:
        """What device memory and L2 need for `running` of all `blocks`.

        What several blocks read goes from one half of L2 to the other once, too, and stays there, unless it is so
        small that every multiprocessor keeps it. Tensors that exceed L2 are gone when the next wave reads them again.
        """
        share, large = running / blocks, self.device > target.l2_bytes
        once, touched, shared = self.device * share, np.zeros(np.shape(running)), np.zeros(np.shape(running))
        for own, whole in zip(self.own, self.whole, strict=True):
            some = np.minimum(whole, own * running)
            touched, first = touched + some, np.where(large, some, whole * share)
            again = np.minimum(np.maximum(own * running - first, 0.0), first)
            shared = shared + np.where(whole <= target.shared_per_multiprocessor, 0.0, again)
        crossing, moved = np.where(large, np.maximum(once, touched), once), self.block * running
        longest: Numbers = np.maximum(crossing + shared / constants.far_speedup, moved / constants.l2_speedup)
        return longest / (target.device_bandwidth * 1e3)


def traffic(tiles: Tiles, blocks: Numbers, held: Truths, target: Target, constants: Constants) -> Traffic:
    """The bytes that a kernel moves; `held`: where threads hold its tiles, whose runs in device memory they read and
    write as they come: short ones as if they were longer."""
    plain = _counted(tiles, blocks, lambda moved: 1.0)
    if not held.any():
        return plain
    least = np.where(plain.device > target.l2_bytes, constants.run_bytes, constants.cached_run_bytes)

    def times(moved: Moved) -> Numbers:
        run, step = tiles.lying(moved).width, tiles.lying(moved).step
        beside = np.where(np.mod(step, SECTOR_BYTES), SECTOR_BYTES, 0.0)
        return np.where(held, (np.maximum(run, least) + beside) / run, 1.0)

    return _counted(tiles, blocks, times)


def _counted(tiles: Tiles, blocks: Numbers, times: Callable[[Moved], Numbers | float]) -> Traffic:
    """The same, where every tile counts so many times."""
    unique: dict[object, Numbers] = {}
    own: list[Numbers] = []
    every: list[Numbers] = []
    brought: list[Numbers] = []
    for read in tiles.outline.reads.values():
        reached, mine, whole = (times(read) * nbytes for nbytes in _moved(tiles, read))
        if read.share.table:
            reached, mine, whole = (_found(read.share, nbytes) for nbytes in (reached, mine, whole))
        brought.append(reached)
        own.append(mine)
        every.append(whole)
        unique[read.tensor] = np.maximum(unique.get(read.tensor, whole), whole)
    stored = np.zeros(tiles.shape)
    for _, saved in tiles.outline.saves:
        stored = stored + times(saved) * tiles.nbytes(saved) * tiles.filled(saved)
    moved = sum(brought, start=stored)
    device = sum(unique.values(), start=stored * blocks)
    return Traffic(device, moved, np.stack([*own, stored]), np.stack([*every, stored * blocks]))


def _found(share: Share, nbytes: Numbers) -> Numbers:
    """Of so many bytes that lines find, and numbers, those that differ: lines may find the same."""
    return np.minimum(nbytes * (1.0 - share.numbers), share.table) + nbytes * share.numbers


def _moved(tiles: Tiles, read: Moved) -> tuple[Numbers, Numbers, Numbers]:
    """Bytes that one block brings of an input; those that no other operand brings; and all blocks, of what they do not
    share."""
    sizes = tiles.sizes

    def found() -> tuple[Numbers, Numbers, Numbers]:
        times = tiles.filled(read) * (sizes.loop if read.streamed else 1.0)
        reached, mine = tiles.reached(read) * times, tiles.nbytes(read) * read.share.part * times
        whole = mine
        for cut, along in sizes.blocks.items():
            if cut in read.cuts:
                whole = whole * along
        return reached, mine, whole

    return sizes.once(("moved", read.extents, read.cuts, read.streamed, read.width, read.share), found)
