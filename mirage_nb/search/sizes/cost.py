"""The cost model: what a kernel would take, from the bytes it moves and the work it does.

In: the tiles of a kernel and a target; sizes come as arrays, one entry per choice, and so do the results. Out:
`Estimates`, of which one entry is a `Cost`. It ranks instances and never discards one; only shared memory that does not
fit makes an instance illegal.

A block is a pipeline of copies and work through a ring of tiles. One iteration takes the longest of its
copies, its work, and a round trip through the ring: (latency + copies + work) / stages; where tiles pass through
registers it takes all of them, one after the other. Without a loop there is one stage and nothing overlaps. Blocks run
in waves; a wave takes what its busiest multiprocessor takes, and at least what device memory and L2 need for all of its
blocks. Warp-private bodies may be emitted in several variants, of which the best counts. The start of a card holds the
way of the first bytes, so that is not counted again. The constants are data (`search.sizes.constants`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mirage_nb.ir import OpKind
from mirage_nb.search.sizes.anatomy import Numbers, Truths, largest
from mirage_nb.search.sizes.constants import FITTED, Constants
from mirage_nb.search.sizes.memory import DEPTHS, Memory, memory
from mirage_nb.search.sizes.occupancy import (
    DEFAULT_VARIANT,
    OTHER_VARIANTS,
    Registers,
    Variant,
    fits,
    registers_of,
    resident,
)
from mirage_nb.search.sizes.specialised import with_roles
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.search.sizes.traffic import Copies, Traffic, copies, traffic
from mirage_nb.search.sizes.work import Work, held_in_registers, held_work, work
from mirage_nb.targets import Target
from mirage_nb.tile.rules.teams import CAPABILITY, RESERVED_BYTES

Chosen = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Cost:
    """An estimate of one muGraph. Times in microseconds, sizes in bytes.

    `bytes_device` cross device memory if every tensor does so once, `bytes_shared` is what all blocks move;
    `shared_memory` is that of one block.
    """

    us: float
    bytes_device: float
    bytes_shared: float
    shared_memory: float
    blocks: int
    kernels: int

    @classmethod
    def in_a_row(cls, costs: Sequence[Cost]) -> Cost:
        """What kernels cost that run one after the other."""
        return cls(
            us=sum(c.us for c in costs),
            bytes_device=sum(c.bytes_device for c in costs),
            bytes_shared=sum(c.bytes_shared for c in costs),
            shared_memory=max((c.shared_memory for c in costs), default=0.0),
            blocks=max((c.blocks for c in costs), default=0),
            kernels=sum(c.kernels for c in costs),
        )


@dataclass(frozen=True, slots=True)
class Estimates:
    """One number per choice of sizes. `needed`: bytes of shared memory with as few stages as possible; `again`: what is
    emitted is that of other sizes."""

    us: Numbers
    bytes_device: Numbers
    bytes_shared: Numbers
    shared_memory: Numbers
    needed: Numbers
    blocks: Numbers
    again: Truths

    def cost(self, index: int) -> Cost:
        """That of one choice."""
        return Cost(
            us=float(self.us[index]),
            bytes_device=float(self.bytes_device[index]),
            bytes_shared=float(self.bytes_shared[index]),
            shared_memory=float(self.shared_memory[index]),
            blocks=int(self.blocks[index]),
            kernels=1,
        )


@dataclass(frozen=True, slots=True)
class Block:
    """What one block does, and what a multiprocessor has to hold for it, one number for each choice of sizes. found_us:
    until it knows where stands what it looks up.

    `memory`: shared memory, by the warps that compute. `staged`: tiles go through shared memory; else the block holds
    them in registers.
    """

    copies: Copies
    traffic: Traffic
    work: Work
    registers: Registers
    blocks: Numbers
    loop: Numbers
    memory: Mapping[int, Memory]
    staged: Truths
    found_us: float


def _at(part: Any, chosen: Chosen) -> Any:
    """Numbers for each choice, and what is made of such, at some of the choices."""
    if isinstance(part, np.ndarray):
        return part[..., chosen]
    if isinstance(part, Mapping):
        return {key: _at(inner, chosen) for key, inner in part.items()}
    if isinstance(part, float):
        return part
    return type(part)(*(_at(getattr(part, field.name), chosen) for field in fields(part)))


def block_of(tiles: Tiles, target: Target, constants: Constants) -> Block:
    """The block of a kernel."""
    spent = work(tiles, target, constants)
    registers = registers_of(tiles)
    held = held_in_registers(tiles)
    if held.fits.any():
        registers = registers.holding(held.fits, held.registers, held.warps)
        spent.late = np.where(held.fits, held_work(tiles, held, target, constants), spent.late)
    blocks = tiles.sizes.total_blocks()
    copied = copies(tiles, target, constants)
    # Vectors as wide as can be, all on their way together: what counts is their bytes.
    once = (np.where(held.shared, 0.0, us) for us in (copied.us_once, copied.waiting_once))
    copied = replace(copied, **dict(zip(("us_once", "waiting_once"), once, strict=True)))
    warps = {variant.warps for variant in (DEFAULT_VARIANT, *(OTHER_VARIANTS if tiles.chained else ()))}
    return Block(
        copied,
        traffic(tiles, blocks, held.fits, target, constants),
        spent,
        registers,
        blocks,
        tiles.sizes.loop,
        {count: memory(tiles, copied.bulk, count) for count in warps},
        ~held.fits,
        constants.found_us * any(read.share.table for read in tiles.outline.reads.values()),
    )


@dataclass(frozen=True, slots=True)
class Running:
    """How the blocks of a kernel run, a row for each emission variant: `stages` of the ring, bytes of shared memory,
    blocks that run at once on one multiprocessor, waves, microseconds from the first request of a tile on."""

    stages: Numbers
    memory: Numbers
    resident: Numbers
    waves: Numbers
    us: Numbers


def run(block: Block, variants: Sequence[Variant], target: Target, constants: Constants) -> Running:
    """The blocks of a kernel, emitted in these variants."""
    each = [_deepest(block, variant, target.shared_per_block - RESERVED_BYTES) for variant in variants]
    stages, memory = (np.stack(part) for part in zip(*each, strict=True))
    together = resident(block.registers, memory, block.copies.bulk, variants, target)
    full = together * target.multiprocessors
    waves = np.ceil(block.blocks / full)
    last = block.blocks - (waves - 1) * full
    if (waves > 1).any():
        (_, end), (each, _) = _wave(block, stages, np.stack((full, last)), target, constants)
        return Running(stages, memory, together, waves, (waves - 1) * each + end)
    return Running(stages, memory, together, waves, _wave(block, stages, last, target, constants)[0])


def _deepest(block: Block, variant: Variant, room: float) -> tuple[Numbers, Numbers]:
    """The stages of the ring, as many as fit, and the bytes of shared memory of one block."""
    peaks = block.memory[variant.warps].peak()
    stages, found = np.minimum(DEPTHS[0], block.loop), peaks[0]
    for depth, peak in zip(DEPTHS, peaks, strict=True):
        able = (depth <= np.minimum(variant.stages, block.loop)) & (peak <= room)
        stages, found = np.where(able, depth, stages), np.where(able, peak, found)
    return stages, np.where(block.staged, found, RESERVED_BYTES)


def _wave(
    block: Block, stages: Numbers, running: Numbers, target: Target, constants: Constants
) -> tuple[Numbers, Numbers]:
    """Microseconds from the first request of `running` blocks to the end of their work, and until those behind them
    are where they are; in rows like theirs."""
    copied, spent, loop = block.copies, block.work, block.loop
    # Loads by all threads leave one slot of the ring to those who still read it.
    depth = np.where(copied.bulk, stages, np.maximum(stages - 1, 1))
    sharing = np.ceil(running / target.multiprocessors)
    tile = sharing * np.maximum(copied.us, copied.nbytes / constants.port_bytes_us)
    before = sharing * np.maximum(copied.us_once, copied.nbytes_once / constants.port_bytes_us) + copied.waiting_once
    slowed = np.maximum(1, sharing / constants.concurrent)
    # Blocks side by side hide what each waits for, but the tensor cores do the products of all of them.
    looped = np.maximum(spent.looped * slowed, spent.products * sharing)
    early = spent.early * slowed
    period = largest((tile, looped, (constants.latency_us + tile + looped) / depth))
    # Who brings tiles through registers can do nothing else meanwhile.
    period = np.where(copied.waiting > 0, tile + copied.waiting + looped, period)
    copying = before + tile + copied.waiting + (loop - 1) * period
    moving = np.maximum(copying, block.traffic.us(running, block.blocks, target, constants))
    # The ring fills during the work before the loop; then copies wait for it.
    waiting = np.maximum(early - depth * moving / loop, 0.0)
    longest: Numbers = np.maximum(moving + waiting, before + early + (loop - 1) * looped)
    beside = sharing * np.where(block.staged, copied.us_saved, constants.begin_us)
    alone = constants.latency_us + block.found_us + looped + spent.late * slowed + beside
    # Blocks that hold their tiles come one by one, and ask for theirs while others compute. One that has a
    # multiprocessor for itself asks when the one before it has handed its results over.
    stored = block.traffic.own[-1]
    loading = longest * copied.nbytes_once / (copied.nbytes_once + stored) + stored / constants.port_bytes_us
    behind = np.maximum(longest, alone + np.where(sharing > 1, 0.0, loading))
    return alone + longest, np.where(block.staged, alone + longest, behind)


def start_us(tiles: Tiles, target: Target, constants: Constants) -> float:
    """Microseconds until a kernel asks for its first tile; those until the first one arrives are not among them."""
    streams = any(read.streamed for read in tiles.outline.reads.values())
    if tiles.outline.follows and not streams and target.capability >= CAPABILITY:
        return constants.early_us
    return target.start_us - constants.latency_us + (constants.follow_us if tiles.outline.follows else 0.0)


def estimate(
    tiles: Tiles, target: Target, constants: Constants = FITTED, variants: Sequence[Variant] = OTHER_VARIANTS
) -> Estimates:
    """Estimate one kernel for all choices of sizes: what it takes in the default variant, or the best of `variants`."""
    block = block_of(tiles, target, constants)
    running = run(block, (DEFAULT_VARIANT,), target, constants)
    us = running.us[0]
    if tiles.chained and variants:
        able = np.stack([fits(block.registers, block.copies.bulk, variant, target) for variant in variants])
        chosen = np.flatnonzero(able.any(axis=0))
        others = run(_at(block, chosen), variants, target, constants).us
        us[chosen] = np.minimum(us[chosen], np.where(able[:, chosen], others, np.inf).min(axis=0))
    least = np.where(block.staged, block.memory[DEFAULT_VARIANT.warps].peak()[0], 0.0)
    if any(node.kind is OpKind.RUNNING_SUM for node in tiles.outline.flat.nodes):  # which only registers hold
        least = np.where(block.staged, np.inf, least)
    moved, memory = block.traffic, running.memory[0]
    roles = with_roles(tiles, target, constants, moved.device)
    again = np.zeros(tiles.shape, bool)
    if roles is not None:
        us, again = np.where(roles.able, roles.us, us), roles.able & roles.again
        memory, least = (np.where(roles.able, roles.memory, nbytes) for nbytes in (memory, least))
    us = start_us(tiles, target, constants) + us + np.where(block.staged, _looked_up_us(tiles, target), 0.0)
    return Estimates(us, moved.device, moved.block * block.blocks, memory, least, block.blocks, again)


def _looked_up_us(tiles: Tiles, target: Target) -> float:
    """Microseconds of the kernels that look up what a block reads, where it does not itself: it would have to hold its
    tiles."""
    looked = [read for read in tiles.outline.reads.values() if read.share.table]
    nbytes = sum(read.width * math.prod(tiles.cut(read)[1]) for read in looked)
    return len(looked) * (target.start_us + target.launch_us) + 2 * nbytes / (target.device_bandwidth * 1e3)


def best_variant(tiles: Tiles, target: Target) -> tuple[float, Variant]:
    """The variant in which a kernel at one choice of sizes is estimated fastest, and the microseconds that it saves."""
    roles = with_roles(tiles, target, FITTED, np.zeros(tiles.shape)) if tiles.chained else None
    if not tiles.chained or (roles is not None and roles.able.any()):
        return 0.0, DEFAULT_VARIANT
    block = block_of(tiles, target, FITTED)
    able = [v for v in OTHER_VARIANTS if fits(block.registers, block.copies.bulk, v, target).all()]
    variants = (DEFAULT_VARIANT, *able)
    us = run(block, variants, target, FITTED).us[:, 0]
    us /= np.where([variant.wide for variant in variants], FITTED.wide_speedup, 1.0)
    best = int(us.argmin())
    return float(us[0] - us[best]), variants[best]
