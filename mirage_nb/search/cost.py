"""The cost model: what a kernel would take, from the bytes it moves and the work it does.

In: a kernel structure, the extents of its axes and a target; sizes come as arrays, one entry per choice,
and so do the results. Out: `Estimates`, of which one entry is a `Cost`. It ranks instances and never
discards one; only shared memory that does not fit makes an instance illegal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.search.axes import Prepared
from mirage_nb.search.semantics import BINARY, UNARY
from mirage_nb.search.structure import KernelStructure, Step
from mirage_nb.search.values import BLOCK, BODY, DATA, GRID, ITER, LOOP, TILE
from mirage_nb.targets import Target

Numbers = npt.NDArray[np.float64]

STAGES = 2
"""Copies of an input tile in flight while the loop computes on another."""
THREADS = 256
ACCUMULATOR_BYTES = 4
L2_SPEEDUP = 2.5
"""Bandwidth of the L2 cache over that of device memory."""
BLOCK_SHARE = 3.0
"""How far one multiprocessor can exceed its share of the device bandwidth."""
STEP_US = 0.02
"""A barrier and the start of an operator on a tile."""
ITERATION_US = 0.12
"""The part of an iteration that does not overlap with the one before."""
WAVE_US = 0.8
"""From the end of one wave of blocks to the first bytes of the next."""
HARD_FUNCTION = 8.0
"""Vector instructions of an exponential, a root or a division."""
MATMUL_GRAIN = (16, 8, 16)
"""Rows, columns and depth of the smallest tensor instruction: smaller tiles are padded to it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """An estimate of one muGraph. Times in microseconds, sizes in bytes."""

    us: float
    bytes_device: float
    bytes_shared: float
    shared_memory: float
    blocks: int
    kernels: int


@dataclass(slots=True)
class Sizes:
    """Sizes of one kernel, many choices at once: blocks along the split axes and the for-loop range.

    `interface` holds the extents of parts that an earlier kernel left as dimensions.
    """

    extents: tuple[int, ...]
    blocks: dict[int, Numbers]
    loop: Numbers
    interface: Mapping[tuple[int, int], int] = field(default_factory=dict)
    _held: dict[tuple[int, int], Numbers] = field(default_factory=dict)

    def extent(self, kernel: KernelStructure, axis: int, code: int) -> Numbers:
        """How much of an axis a tile holds."""
        if (axis, code & DATA) not in self._held:
            self._held[axis, code & DATA] = self._extent(kernel, axis, code & DATA)
        return self._held[axis, code & DATA]

    def _extent(self, kernel: KernelStructure, axis: int, code: int) -> Numbers:
        one = np.ones_like(self.loop)
        split = self.blocks.get(axis, one)
        looped = self.loop if kernel.loop == axis else one
        held = one
        if code & GRID:
            held = held * self.interface.get((axis, GRID), split) if not code & TILE else held * split
        if code & LOOP:
            held = held * self.interface.get((axis, LOOP), looped) if not code & TILE else held * looped
        if code & TILE:
            held = held * self.extents[axis] / (split * looped)
        return held

    def elements(self, kernel: KernelStructure, step: Step) -> Numbers:
        """Elements of the tile of a step."""
        held = np.ones_like(self.loop)
        for axis, code in enumerate(step.type):
            if code & DATA:
                held = held * self.extent(kernel, axis, code)
        return held

    def total_blocks(self) -> Numbers:
        """Blocks of the grid."""
        total = np.ones_like(self.loop)
        for along in self.blocks.values():
            total = total * along
        return total


@dataclass(frozen=True, slots=True)
class Estimates:
    """One number per choice of sizes."""

    us: Numbers
    bytes_device: Numbers
    bytes_shared: Numbers
    shared_memory: Numbers
    blocks: Numbers


def estimate(prepared: Prepared, kernel: KernelStructure, sizes: Sizes, target: Target) -> Estimates:
    """Estimate one kernel for all choices of sizes."""
    elements = [sizes.elements(kernel, step) for step in kernel.steps]
    blocks = sizes.total_blocks()
    once = np.ones_like(blocks)
    times = [sizes.loop if kernel.loop is not None and step.stage == BODY else once for step in kernel.steps]
    width = max(i.type.dtype.size for i in prepared.graph.inputs)
    memory = _shared_memory(kernel, elements, width)
    device, loaded = _device_bytes(prepared, kernel, sizes, elements, width, blocks)
    tensor, vector, shared = _work(kernel, sizes, elements, times, width)

    resident = np.minimum(
        np.floor(target.shared_per_multiprocessor / np.maximum(memory, 1)),
        target.threads_per_multiprocessor // THREADS,
    )
    resident = np.maximum(resident, 1)
    per_processor = np.ceil(blocks / target.multiprocessors)
    waves = np.ceil(blocks / (target.multiprocessors * resident))
    share = target.device_bandwidth / target.multiprocessors
    streaming = np.maximum.reduce(
        [
            device / (target.device_bandwidth * 1e3),
            loaded * blocks / (target.device_bandwidth * L2_SPEEDUP * 1e3),
            loaded * per_processor / (share * BLOCK_SHARE * 1e3),
        ]
    )
    computing = per_processor * np.maximum.reduce(
        [
            tensor * target.multiprocessors / (target.tensor_rate * 1e6),
            vector * target.multiprocessors / (target.vector_rate * 1e6),
            shared * target.multiprocessors / (target.shared_bandwidth * 1e3),
        ]
    )
    serial = np.zeros_like(blocks)
    for step, repeats in zip(kernel.steps, times, strict=True):
        if not step.operator.is_leaf:
            serial = serial + repeats * STEP_US
    serial = waves * (serial + (sizes.loop * ITERATION_US if kernel.loop is not None else 0.0))
    fill = loaded / np.maximum(sizes.loop, 1) / (share * BLOCK_SHARE * 1e3) + (waves - 1) * WAVE_US
    together = np.maximum.reduce([streaming, computing, serial]) + 0.25 * (computing + serial)
    overlaps = (sizes.loop > 1) | (resident > 1)
    us = target.start_us + fill + np.where(overlaps, together, streaming + computing + serial)
    return Estimates(us + target.launch_us, device, shared * blocks, memory, blocks)


def _shared_memory(kernel: KernelStructure, elements: Sequence[Numbers], width: int) -> Numbers:
    """Shared memory of a block: staged input tiles, accumulators, and the largest set of live tiles."""
    last = list(range(len(kernel.steps)))
    for index, step in enumerate(kernel.steps):
        for read in step.reads:
            last[read] = index
    for output in kernel.outputs:
        last[output] = len(kernel.steps)
    fixed = np.zeros_like(elements[0])
    live = peak = np.zeros_like(elements[0])
    for index, step in enumerate(kernel.steps):
        if step.operator.kind is OpKind.ACCUM:
            fixed = fixed + elements[index] * ACCUMULATOR_BYTES
        elif step.operator.kind is OpKind.IN_ITER:
            copies = STAGES if any(code & ITER for code in step.type) else 1
            fixed = fixed + elements[index] * width * copies
        elif _is_held(kernel, index):
            live = live + elements[index] * width
            peak = np.maximum(peak, live)
        for read in {r for r in step.reads if last[r] == index and _is_held(kernel, r)}:
            live = live - elements[read] * width
    return fixed + peak


def _is_held(kernel: KernelStructure, index: int) -> bool:
    """Whether a tile lies in shared memory only while it is alive."""
    operator = kernel.steps[index].operator
    return not operator.is_leaf and operator.kind is not OpKind.ACCUM


def _fuses(kernel: KernelStructure, index: int) -> bool:
    """Whether a tile can stay in registers: an elementwise result that only elementwise operators read."""
    readers = [step for step in kernel.steps if index in step.reads]
    kinds = BINARY | UNARY
    return kernel.steps[index].operator.kind in kinds and all(step.operator.kind in kinds for step in readers)


def _device_bytes(
    prepared: Prepared,
    kernel: KernelStructure,
    sizes: Sizes,
    elements: Sequence[Numbers],
    width: int,
    blocks: Numbers,
) -> tuple[Numbers, Numbers]:
    """Bytes that cross device memory (every tensor once), and bytes that one block loads and stores."""
    unique: dict[object, Numbers] = {}
    loaded = np.zeros_like(blocks)
    for index, step in enumerate(kernel.steps):
        if step.source is None:
            continue
        repeats = sizes.loop if any(code & ITER for code in step.type) else np.ones_like(blocks)
        loaded = loaded + elements[index] * repeats * width
        whole = elements[index] * repeats * width
        for axis, along in sizes.blocks.items():
            if step.type[axis] & BLOCK or (step.type[axis] and not prepared.axes[axis].reduced):
                whole = whole * along
        key = step.source if step.source.kernel is not None else prepared.tensors[step.source.index].input
        unique[key] = np.maximum(unique.get(key, whole), whole)
    stored = np.zeros_like(blocks)
    for output in kernel.outputs:
        stored = stored + elements[output] * width
    device = stored * blocks
    for whole in unique.values():
        device = device + whole
    return device, loaded + stored


def _work(
    kernel: KernelStructure, sizes: Sizes, elements: Sequence[Numbers], times: Sequence[Numbers], width: int
) -> tuple[Numbers, Numbers, Numbers]:
    """Per block: operations of tensor cores, operations of vector units, bytes through shared memory."""
    tensor, vector, shared = (np.zeros_like(sizes.loop) for _ in range(3))
    for index, step in enumerate(kernel.steps):
        operator = step.operator
        if operator.is_leaf:
            continue
        biggest = np.maximum.reduce([elements[r] for r in step.reads] + [elements[index]])
        if operator.kind is OpKind.MATMUL:
            tensor = tensor + times[index] * _matmul_work(kernel, sizes, step)
        else:
            hard = operator.kind in UNARY - {OpKind.SQR} or operator.kind is OpKind.DIV
            hard = hard or operator.accum is AccumKind.RESCALE
            vector = vector + times[index] * biggest * (HARD_FUNCTION if hard else 1.0)
        if not _fuses(kernel, index):
            moved = sum((elements[r] for r in step.reads), elements[index]) * width
            shared = shared + times[index] * moved
    return tensor, vector, shared


def _matmul_work(kernel: KernelStructure, sizes: Sizes, step: Step) -> Numbers:
    """Multiply-adds times two, with rows, columns and depth padded to what the instruction takes."""
    left, right = (kernel.steps[r].type for r in step.reads)
    rows, columns, rest = (np.ones_like(sizes.loop) for _ in range(3))
    for axis, (a, b) in enumerate(zip(left, right, strict=True)):
        if a & DATA and not b & DATA:
            rows = rows * sizes.extent(kernel, axis, a)
        elif b & DATA and not a & DATA:
            columns = columns * sizes.extent(kernel, axis, b)
        elif a & DATA and axis != step.operator.axis:
            rest = rest * sizes.extent(kernel, axis, a)
    depth = sizes.extent(kernel, step.operator.axis, left[step.operator.axis])
    narrow, wide = np.minimum(rows, columns), np.maximum(rows, columns)
    tall, thin, deep = MATMUL_GRAIN
    return 2.0 * rest * _padded(wide, tall) * _padded(narrow, thin) * _padded(depth, deep)


def _padded(extent: Numbers, grain: int) -> Numbers:
    return np.ceil(extent / grain) * grain
