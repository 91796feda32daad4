"""The cost model: what a kernel would take, from the bytes it moves and the work it does.

In: a kernel structure, the extents of its axes and a target; sizes come as arrays, one entry per choice,
and so do the results. Out: `Estimates`, of which one entry is a `Cost`. It ranks instances and never
discards one; only shared memory that does not fit makes an instance illegal.

A block is a pipeline of copies and work through a ring of tiles. One iteration takes the longest of its
copies, its work, and a round trip through the ring: (latency + copies + work) / stages. Without a loop there
is one stage and nothing overlaps. Blocks run in waves; a wave takes what its busiest multiprocessor takes,
and at least what device memory and L2 need for all of its blocks. The start of a card holds the way of the
first bytes, so that is not counted again. The constants are data (`search.sizes.constants`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.search.axes import Prepared
from mirage_nb.search.saturation.values import BLOCK, BODY, DATA, ITER, TILE
from mirage_nb.search.sizes.anatomy import (
    LINE_BYTES,
    REDUCTIONS,
    SECTOR_BYTES,
    WARPS,
    Anatomy,
    Numbers,
    Part,
    Rows,
    Sizes,
    Truths,
    anatomy,
    layout_of,
    register_held,
    rows,
    saved_directly,
    warp_private,
)
from mirage_nb.search.sizes.constants import FITTED, Constants
from mirage_nb.search.structure import KernelStructure, Step
from mirage_nb.targets import Target

STAGES = 4
"""Tiles of the for-loop in flight, fewer where they do not fit; at least 2."""
THREADS = 32 * (WARPS + 1)
"""Threads of a block: those that compute and a warp that copies."""
REGISTERS = 48
"""Of a thread, beside its accumulators."""
PRIVATE_REGISTERS = 64
"""The same where a loop body stays in fragments, beside its widest value, once in f32 and once as an operand."""
REGISTER_UNIT = 8
"""Registers are given to a thread in such lots."""
RESERVED_BYTES = 1024
"""Shared memory that a block needs beside its tiles: barriers and what the driver keeps."""
SWIZZLE_BYTES = 1024
ACCUMULATOR_BYTES, TILE_BYTES = 4, 2
PARTIAL_BYTES = 32768
"""Shared memory in which warps that share the depth of a product may leave their sums."""
VECTOR_BYTES = 16
"""The widest vector that a thread loads or stores."""
MATMUL_GRAIN = (16, 8, 16)
"""Rows, columns and depth of the smallest tensor instruction: smaller tiles are padded to it."""


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
            shared_memory=max(c.shared_memory for c in costs),
            blocks=max(c.blocks for c in costs),
            kernels=sum(c.kernels for c in costs),
        )


@dataclass(frozen=True, slots=True)
class Estimates:
    """One number per choice of sizes.

    `live` are the bytes of the shared tensors of the muGraph alive at once (`ir.legality.peak_shared_bytes`):
    emission needs less where values stay in registers, and more for the stages of the ring.
    """

    us: Numbers
    bytes_device: Numbers
    bytes_shared: Numbers
    shared_memory: Numbers
    live: Numbers
    blocks: Numbers


@dataclass(frozen=True, slots=True)
class _Copies:
    """Input tiles of a block: microseconds and bytes of one iteration, and of what is brought once.

    `ring` is what one stage takes in shared memory. `bulk`: the copy engine can bring every streamed tile.
    """

    bulk: Truths
    us: Numbers
    nbytes: Numbers
    us_once: Numbers
    nbytes_once: Numbers
    ring: Numbers


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Bytes of a kernel: `device` if every tensor crosses device memory once, `block` that one block moves."""

    device: Numbers
    block: Numbers

    def us(self, running: Numbers, blocks: Numbers, target: Target, constants: Constants) -> Numbers:
        """What device memory and L2 need for `running` of all `blocks`.

        What several blocks read goes from one half of L2 to the other, too. Tensors that exceed L2 are gone when the
        next wave reads them again.
        """
        once = self.device * running / blocks
        again = np.minimum(self.device, self.block * running)
        crossing: Numbers = np.where(self.device > target.l2_bytes, np.maximum(once, again), once)
        moved = self.block * running
        shared = np.clip(moved - crossing, 0.0, crossing)
        longest: Numbers = np.maximum(crossing + shared / constants.far_speedup, moved / constants.l2_speedup)
        return longest / (target.device_bandwidth * 1e3)


def estimate(
    prepared: Prepared, kernel: KernelStructure, sizes: Sizes, target: Target, constants: Constants = FITTED
) -> Estimates:
    """Estimate one kernel for all choices of sizes."""
    width = max(i.type.dtype.size for i in prepared.graph.inputs)
    made = anatomy(kernel)
    elements = [sizes.elements(kernel, step) for step in kernel.steps]
    blocks = sizes.total_blocks()
    copies = _copies(prepared, kernel, made, sizes, elements, width, target, constants)
    traffic = _traffic(prepared, kernel, made, sizes, elements, width, blocks)
    private = warp_private(prepared, kernel, made, sizes, elements)
    direct = private & saved_directly(prepared, kernel, made, sizes)
    looped, early, late = _work(kernel, made, sizes, elements, private, direct, target, constants)
    lay = [layout_of(prepared, kernel, i, s.source) for i, s in enumerate(kernel.steps) if s.source is not None]
    held = register_held(kernel, sizes, elements, lay)
    late = np.where(held, _held_work(kernel, elements, target, constants), late)

    beside, after = _memory_beside(kernel, made, sizes, elements, private, width)
    room = np.floor((target.shared_per_block - RESERVED_BYTES - beside) / np.maximum(copies.ring, 1))
    stages = np.clip(room, np.minimum(2, sizes.loop), np.minimum(STAGES, sizes.loop))
    memory = np.where(held, RESERVED_BYTES, np.maximum(beside + stages * copies.ring, after))
    most = _resident(made, elements, private, memory, target) * target.multiprocessors
    # Loads by all threads leave one slot of the ring to those who still read it.
    depth = np.where(copies.bulk, stages, np.maximum(stages - 1, 1))

    def wave(running: Numbers) -> Numbers:
        sharing = np.ceil(running / target.multiprocessors)
        tile = sharing * np.maximum(copies.us, copies.nbytes / constants.port_bytes_us)
        before = sharing * np.maximum(copies.us_once, copies.nbytes_once / constants.port_bytes_us)
        slowed = np.maximum(1, sharing / constants.concurrent)
        work = looped * slowed
        period = np.maximum.reduce([tile, work, (constants.latency_us + tile + work) / depth])
        copying = before + tile + (sizes.loop - 1) * period
        moving = np.maximum(copying, traffic.us(running, blocks, target, constants))
        # The ring fills during the work before the loop; then copies wait for it.
        waiting = np.maximum(early * slowed - depth * moving / sizes.loop, 0.0)
        longest: Numbers = np.maximum(moving + waiting, before + early * slowed + (sizes.loop - 1) * work)
        return constants.latency_us + longest + work + late * slowed

    waves = np.ceil(blocks / most)
    follows = any(step.source is not None and step.source.kernel is not None for step in kernel.steps)
    start = target.start_us - constants.latency_us + (constants.follow_us if follows else 0.0)
    us = start + (waves - 1) * wave(most) + wave(blocks - (waves - 1) * most)
    return Estimates(us, traffic.device, traffic.block * blocks, memory, _live(kernel, elements, width), blocks)


def _copies(
    prepared: Prepared,
    kernel: KernelStructure,
    made: Anatomy,
    sizes: Sizes,
    elements: Sequence[Numbers],
    width: int,
    target: Target,
    constants: Constants,
) -> _Copies:
    one = np.ones_like(sizes.loop)
    lying: dict[int, Rows] = {}
    bulk = np.full(one.shape, target.tma and Part.STREAMED in made.parts)
    for index, step in enumerate(kernel.steps):
        if step.source is None:
            continue
        layout = layout_of(prepared, kernel, index, step.source)
        extents = [one if axis is None else sizes.extent(kernel, axis, step.type[axis]) for axis in layout]
        tensor = [1 if a is None else sizes.extents[a] for a in layout]
        lying[index] = rows(extents or [one], tensor or [1], _width(kernel, made, index, width))
        if made.parts[index] is Part.STREAMED:
            bulk &= lying[index].panels() > 0
    us, nbytes, us_once, nbytes_once, ring = (np.zeros_like(one) for _ in range(5))
    for index, tile in lying.items():
        loads = (tile.touched(LINE_BYTES) + tile.touched(SECTOR_BYTES)) * constants.touch_us
        if not made.varying[index]:
            us_once, nbytes_once = us_once + loads, nbytes_once + elements[index] * _width(kernel, made, index, width)
            continue
        nbytes = nbytes + elements[index] * _width(kernel, made, index, width)
        if made.parts[index] is Part.STREAMED:
            us = us + np.where(bulk, tile.panels() * constants.panel_us, loads)
            ring = ring + tile.stored(bulk)
        else:
            us = us + loads
    return _Copies(bulk, us, nbytes, us_once, nbytes_once, ring)


def _live(kernel: KernelStructure, elements: Sequence[Numbers], width: int) -> Numbers:
    """Bytes of the tensors that are alive at once; accumulators live from the start."""
    end = len(kernel.steps)
    last = list(range(end))
    for index, step in enumerate(kernel.steps):
        for read in step.reads:
            last[read] = index
    for output in kernel.outputs:
        last[output] = end
    held = peak = np.zeros_like(elements[0])
    for index, step in enumerate(kernel.steps):
        if step.operator.kind is OpKind.ACCUM:
            held = held + elements[index] * width
    for index, step in enumerate(kernel.steps):
        if step.operator.kind not in (OpKind.ACCUM, OpKind.CONST):
            held = held + elements[index] * width
        peak = np.maximum(peak, held)
        for value, until in enumerate(last):
            if until == index and kernel.steps[value].operator.kind is not OpKind.CONST:
                held = held - elements[value] * width
    return peak


def _memory_beside(
    kernel: KernelStructure,
    made: Anatomy,
    sizes: Sizes,
    elements: Sequence[Numbers],
    private: Truths,
    width: int,
) -> tuple[Numbers, Numbers]:
    """Shared memory beside the ring while the loop runs; and after it, when accumulators take the ring's place."""
    held, looped, after = (np.zeros_like(elements[0]) for _ in range(3))
    for index, step in enumerate(kernel.steps):
        summed = elements[index] * ACCUMULATOR_BYTES
        match made.parts[index]:
            case Part.HELD:
                held = held + _aligned(elements[index] * _width(kernel, made, index, width))
            case Part.ACCUMULATOR:
                summing = step.operator.accum is not AccumKind.CONCAT
                apart = summing and made.parts[step.reads[0]] in (Part.FOLDED, Part.PRIVATE)
                source = kernel.steps[step.reads[0]]
                copies = np.full_like(summed, WARPS)
                if source.operator.kind is OpKind.MATMUL:
                    code = kernel.steps[source.reads[0]].type[source.operator.axis]
                    depth = sizes.extent(kernel, source.operator.axis, code)
                    copies = np.minimum(copies, np.ceil(depth / MATMUL_GRAIN[2]))
                after = after + _aligned(
                    np.maximum(summed, np.minimum(copies * summed, PARTIAL_BYTES)) if apart else summed
                )
            case Part.PRIVATE:
                looped = looped + np.where(private, 0.0, _aligned(summed))
            case Part.TILE:
                readers = (other.operator.kind for other in kernel.steps if index in other.reads)
                nbytes = _aligned(elements[index] * width if OpKind.MATMUL in readers else summed)
                if made.varying[index]:
                    looped = looped + nbytes
                else:
                    after = after + nbytes
    return held + looped, held + after


def _aligned(nbytes: Numbers) -> Numbers:
    """A shared tensor begins where the pattern of a swizzle begins."""
    return np.ceil(nbytes / SWIZZLE_BYTES) * SWIZZLE_BYTES


def _resident(
    made: Anatomy, elements: Sequence[Numbers], private: Truths, memory: Numbers, target: Target
) -> Numbers:
    """Blocks that one multiprocessor runs at once: what its shared memory, threads and registers hold."""
    summed = np.zeros_like(memory)
    widest = np.zeros_like(memory)
    for index, part in enumerate(made.parts):
        if part is Part.ACCUMULATOR:
            summed = summed + elements[index] / (32 * WARPS)
        elif part is Part.PRIVATE:
            widest = np.maximum(widest, elements[index] / (32 * WARPS))
    registers = summed + np.where(private, PRIVATE_REGISTERS + 2 * widest, REGISTERS)
    registers = np.ceil(registers / REGISTER_UNIT) * REGISTER_UNIT
    by_memory = target.shared_per_multiprocessor / (memory + RESERVED_BYTES)
    by_registers = target.registers_per_multiprocessor / (THREADS * registers)
    by_threads = target.threads_per_multiprocessor / THREADS
    return np.maximum(np.floor(np.minimum(np.minimum(by_memory, by_registers), by_threads)), 1)


def _traffic(
    prepared: Prepared,
    kernel: KernelStructure,
    made: Anatomy,
    sizes: Sizes,
    elements: Sequence[Numbers],
    width: int,
    blocks: Numbers,
) -> _Traffic:
    unique: dict[object, Numbers] = {}
    moved = np.zeros_like(blocks)
    for index, step in enumerate(kernel.steps):
        if step.source is None:
            continue
        whole = elements[index] * _width(kernel, made, index, width) * _filled(kernel, sizes, step)
        if any(code & ITER for code in step.type):
            whole = whole * sizes.loop
        moved = moved + whole
        for axis, along in sizes.blocks.items():
            if step.type[axis] & BLOCK or (step.type[axis] and not prepared.axes[axis].reduced):
                whole = whole * along
        key = step.source if step.source.kernel is not None else prepared.tensors[step.source.index].input
        unique[key] = np.maximum(unique.get(key, whole), whole)
    stored = np.zeros_like(blocks)
    for output in kernel.outputs:
        inside = _filled(kernel, sizes, kernel.steps[output])
        stored = stored + elements[output] * _width(kernel, made, output, width) * inside
    device = stored * blocks
    for whole in unique.values():
        device = device + whole
    return _Traffic(device, moved + stored)


def _width(kernel: KernelStructure, made: Anatomy, index: int, width: int) -> int:
    """Bytes of an element in device memory: partial results, which have a part of an axis, travel in f32."""
    partial = any(code & DATA and not code & TILE for code in kernel.steps[index].type)
    return ACCUMULATOR_BYTES if partial or made.wide[index] else width


def _filled(kernel: KernelStructure, sizes: Sizes, step: Step) -> Numbers:
    """The share of all tiles of a step that lies inside its tensor: what hangs over its end is not moved."""
    share = np.ones_like(sizes.loop)
    for axis, tile in sizes.tiles.items():
        if step.type[axis] & TILE:
            parts = sizes.blocks.get(axis, share) * (sizes.loop if kernel.loop == axis else 1.0)
            share = share * np.minimum(1.0, sizes.extents[axis] / (parts * tile))
    return share


def _work(
    kernel: KernelStructure,
    made: Anatomy,
    sizes: Sizes,
    elements: Sequence[Numbers],
    private: Truths,
    direct: Truths,
    target: Target,
    constants: Constants,
) -> tuple[Numbers, Numbers, Numbers]:
    """Microseconds that the steps of one iteration take, those before the loop, and those after it."""
    operation = target.multiprocessors / (target.vector_rate * 1e6)
    looped, before, after = (np.zeros_like(sizes.loop) for _ in range(3))

    def passes(index: int, share: float = 1.0) -> Numbers:
        """All threads walk over a tile, a vector each at a time."""
        vectors = np.ceil(elements[index] / (32 * WARPS * _vector(kernel, made, sizes, index)))
        return vectors * constants.pass_us + elements[index] * share * constants.vector_operations * operation

    waits: list[bool] = []
    for index, step in enumerate(kernel.steps):
        part = made.parts[index]
        waits.append(part is Part.DIRECT or (part is Part.INLINE and any(waits[read] for read in step.reads)))
        if step.operator.is_leaf or part is Part.INLINE:
            continue
        if part is Part.ACCUMULATOR:
            after = after + np.where(direct, 0.0, constants.barrier_us + passes(index))
            if made.varying[step.reads[0]] and made.parts[step.reads[0]] is Part.INLINE:
                looped = looped + passes(step.reads[0])
            continue
        if step.operator.kind is OpKind.MATMUL:
            apart = private if part is Part.PRIVATE else np.full(private.shape, part is Part.FOLDED)
            wide = any(made.wide[read] for read in step.reads)
            spent = _matmul_us(kernel, sizes, step, apart, wide, target, constants)
        else:
            share = constants.reduced if step.operator.kind in REDUCTIONS else 1.0
            spent = np.maximum.reduce([passes(i, share) for i in (index, *step.reads)])
            if not made.varying[index] and any(waits[read] for read in step.reads):
                rounds = [elements[i] / (32 * WARPS * _vector(kernel, made, sizes, i)) for i in step.reads]
                spent = spent + np.ceil(np.maximum.reduce(rounds)) * constants.direct_us
            if part is Part.PRIVATE:
                biggest = np.maximum.reduce([elements[i] for i in (index, *step.reads)])
                spent = np.where(private, biggest * constants.register_operations * operation, spent)
        barrier = constants.loop_barrier_us if made.varying[index] else constants.barrier_us
        if part is Part.TILE:
            spent = spent + barrier
        elif part is Part.PRIVATE:
            spent = spent + np.where(private, 0.0, barrier)
        if made.varying[index]:
            looped = looped + spent
        elif step.stage == BODY:
            before = before + spent
        else:
            after = after + spent
    for output in kernel.outputs:
        after = after + np.where(direct, 0.0, constants.barrier_us) + passes(output)
    return looped, before, after


def _vector(kernel: KernelStructure, made: Anatomy, sizes: Sizes, index: int) -> Numbers:
    """Elements that a thread takes at a time: the widest vector of which the rows of a tile are a multiple."""
    type_ = kernel.steps[index].type
    axes = [axis for axis, code in enumerate(type_) if code & DATA]
    if not axes:
        return np.ones_like(sizes.loop)
    full = made.parts[index] is Part.ACCUMULATOR or _width(kernel, made, index, 0) == ACCUMULATOR_BYTES
    widest = VECTOR_BYTES // (ACCUMULATOR_BYTES if full else TILE_BYTES)
    return np.gcd(sizes.extent(kernel, axes[-1], type_[axes[-1]]).astype(np.int64), widest).astype(np.float64)


def _held_work(
    kernel: KernelStructure, elements: Sequence[Numbers], target: Target, constants: Constants
) -> Numbers:
    """Microseconds of a block that holds its tiles in registers."""
    spent = np.zeros_like(elements[0])
    for index, step in enumerate(kernel.steps):
        if not step.operator.is_leaf:
            biggest = np.maximum.reduce([elements[index], *(elements[r] for r in step.reads)])
            spent = spent + biggest * constants.held_operations * target.multiprocessors / (target.vector_rate * 1e6)
            spent = spent + (constants.exchange_us if step.operator.kind in REDUCTIONS else 0.0)
    return spent


def _matmul_us(
    kernel: KernelStructure,
    sizes: Sizes,
    step: Step,
    apart: Truths,
    wide: bool,
    target: Target,
    constants: Constants,
) -> Numbers:
    """Tensor instructions of the busiest warp: warps share rows and columns, and depth too where sums can wait.

    Each waits for the one before it that adds to the same sums. Products of f32 are computed by scalar units.
    """
    left, right = (kernel.steps[r].type for r in step.reads)
    height, columns, rest = (np.ones_like(sizes.loop) for _ in range(3))
    for axis, (a, b) in enumerate(zip(left, right, strict=True)):
        if a & DATA and not b & DATA:
            height = height * sizes.extent(kernel, axis, a)
        elif b & DATA and not a & DATA:
            columns = columns * sizes.extent(kernel, axis, b)
        elif a & DATA and axis != step.operator.axis:
            rest = rest * sizes.extent(kernel, axis, a)
    depth = sizes.extent(kernel, step.operator.axis, left[step.operator.axis])
    if wide:
        return np.ceil(rest * height * columns / (32 * WARPS)) * depth * constants.scalar_us
    narrow, long = np.minimum(height, columns), np.maximum(height, columns)
    tall, thin, deep = MATMUL_GRAIN
    results = rest * np.ceil(long / tall) * np.ceil(narrow / thin)
    steps = np.ceil(depth / deep)
    sums = ACCUMULATOR_BYTES * rest * height * columns
    most = np.where(apart, np.minimum(2 ** np.floor(np.log2(np.clip(PARTIAL_BYTES / sums, 1, WARPS))), steps), 1.0)
    rate = constants.tensor_share * target.tensor_rate * 1e6 / target.multiprocessors
    gathered = np.where((long % thin > 0) | (depth % thin > 0), constants.gather, 1.0)
    alone = np.ceil(results * most / WARPS) * (2.0 * tall * thin * deep * WARPS / rate)
    return np.ceil(steps / most) * gathered * np.maximum(alone, constants.product_us)
