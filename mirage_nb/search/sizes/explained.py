"""Where an estimate comes from: bytes, waves, shared memory, products, vector work, barriers, starts.

In: a muGraph, whoever wrote it, a target. Out: a `KernelEstimate` per kernel, or a text for people. The
numbers are those of the cost model. Invariant: an estimate is its start, the longest of what overlaps, and a rest, in
which a block waits for its first bytes and for turns of its ring, and works before and after the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.ir.text import Lines
from mirage_nb.search.sizes.constants import FITTED, Constants
from mirage_nb.search.sizes.cost import Block, Running, block_of, run, start_us
from mirage_nb.search.sizes.library import library_steps
from mirage_nb.search.sizes.occupancy import DEFAULT_VARIANT, OTHER_VARIANTS, Variant, fits
from mirage_nb.search.sizes.specialised import Specialised, with_roles
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.search.sizes.work import Work, held_in_registers, work
from mirage_nb.search.sizes.written import written_kernels
from mirage_nb.targets import Target
from mirage_nb.tile.roles.program import GROUP

FREE_BARRIERS = {"barrier_us": 0.0, "loop_barrier_us": 0.0}
FREE_PRODUCTS = {"product_us": 0.0, "scalar_us": 0.0, "tensor_share": np.inf}


@dataclass(frozen=True, slots=True)
class KernelEstimate:
    """One kernel. Times in microseconds, sizes in bytes.

    `us` is all of it, `start` until its first instruction. These overlap: `device`, what device memory and L2 need for
    all blocks; `copies`, what brings the tiles of the busiest multiprocessor; its threads' `products`, `vectors`
    (passes over tiles, reductions, elementwise operators), `barriers`, and `waits` for elements that pass through
    registers. `rest` is what no overlap hides. `bytes_device` cross device memory if every tensor does so once,
    `bytes_moved` with what several blocks read. `resident` blocks run side by side on one multiprocessor.
    """

    us: float
    start: float
    device: float
    copies: float
    products: float
    vectors: float
    barriers: float
    waits: float
    blocks: int
    waves: int
    resident: int
    warps: int
    stages: int
    iterations: int
    shared_memory: int
    bytes_device: int
    bytes_moved: int

    @property
    def longest(self) -> float:
        """The longest of what overlaps."""
        return max(self.device, self.copies, self.products + self.vectors + self.barriers + self.waits)

    @property
    def rest(self) -> float:
        """What no overlap hides."""
        return max(self.us - self.start - self.longest, 0.0)

    def __str__(self) -> str:
        ring = f", {self.iterations} iterations through a ring of {self.stages}" if self.iterations > 1 else ""
        return "\n".join(
            (
                f"{self.us:.2f} us: {self.blocks} blocks of {self.warps} warps in {_count(self.waves, 'wave')}, "
                f"{self.resident} at once on a multiprocessor, {self.shared_memory} bytes of shared memory{ring}",
                f"  {self.start:>8.2f} us  start",
                f"  {self.device:>8.2f} us  device memory and L2: {_megabytes(self.bytes_device)}, "
                f"{_megabytes(self.bytes_moved)} with what blocks read again",
                f"  {self.copies:>8.2f} us  copies into shared memory",
                f"  {self.products:>8.2f} us  products",
                f"  {self.vectors:>8.2f} us  vector work",
                f"  {self.barriers:>8.2f} us  barriers",
                f"  {self.waits:>8.2f} us  waits for elements that pass through registers",
                f"  {self.rest:>8.2f} us  what no overlap hides",
            )
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.3g} MB"


def kernel_estimates(graph: KernelGraph, target: Target, constants: Constants = FITTED) -> tuple[KernelEstimate, ...]:
    """The generated kernels of a muGraph, in launch order."""
    return tuple(_kernel(made, target, constants) for _, made in written_kernels(graph) if made is not None)


def explain_estimate(graph: KernelGraph, target: Target) -> str:
    """Where the estimate of a muGraph comes from, kernel by kernel."""
    library = {step.values[-1]: step for step in library_steps(graph, target)}
    lines = []
    for value, made in written_kernels(graph):
        if made is not None:
            lines.append(str(_kernel(made, target, FITTED)))
        elif (step := library.get(value)) is not None:
            what = "by a library, its launch, and its bytes or its operations"
            lines.append(f"{step.us:.2f} us: {step.name} {what}")
    lines = [f"kernel {number}: {line}" for number, line in enumerate(lines, 1)]
    if any(op.kind is OpKind.GRAPH for op in graph.ops):
        lines.append("Device memory, copies and the work of threads overlap; the longest of them counts.")
    return Lines("\n".join(lines))


def _kernel(tiles: Tiles, target: Target, constants: Constants) -> KernelEstimate:
    block = block_of(tiles, target, constants)
    start = start_us(tiles, target, constants)
    roles = with_roles(tiles, target, constants, block.traffic.device)
    if roles is not None and roles.able[0]:
        return _with_roles(roles, block, start, target, constants)
    variant, running = _best(block, target, constants)
    blocks, loop, copied = float(block.blocks[0]), float(block.loop[0]), block.copies
    waves = float(running.waves[0, 0])
    once = max(copied.us_once[0], copied.nbytes_once[0] / constants.port_bytes_us)
    tile = max(copied.us[0], copied.nbytes[0] / constants.port_bytes_us)
    every = _worked(block.work, block, waves, target, constants)
    without = vectors = every
    if block.staged[0]:
        free = replace(constants, **FREE_BARRIERS)
        without = _worked(work(tiles, target, free), block, waves, target, constants)
        vectors = _worked(work(tiles, target, replace(free, **FREE_PRODUCTS)), block, waves, target, constants)
    return KernelEstimate(
        us=start + float(running.us[0, 0]),
        start=start + constants.latency_us,
        device=float(block.traffic.us(block.blocks, block.blocks, target, constants)[0]),
        copies=float(np.ceil(blocks / target.multiprocessors) * (once + loop * tile)),
        products=without - vectors,
        vectors=vectors,
        barriers=every - without,
        waits=float(copied.waiting_once[0] + loop * copied.waiting[0]) * waves,
        blocks=int(blocks),
        waves=int(waves),
        resident=int(running.resident[0, 0]),
        warps=variant.warps if block.staged[0] else int(held_in_registers(tiles).warps[0]),
        stages=int(running.stages[0, 0]),
        iterations=int(loop),
        shared_memory=int(running.memory[0, 0]),
        bytes_device=round(float(block.traffic.device[0])),
        bytes_moved=round(float(block.traffic.block[0]) * blocks),
    )


def _with_roles(roles: Specialised, block: Block, start: float, target: Target, constants: Constants) -> KernelEstimate:
    """A kernel whose warps have roles: blocks take points in turns."""
    blocks = float(block.blocks[0])
    return KernelEstimate(
        us=start + float(roles.us[0]),
        start=start + constants.latency_us,
        device=float(roles.device[0]),
        copies=float(roles.copies[0]),
        products=float(roles.products[0]),
        vectors=0.0,
        barriers=0.0,
        waits=0.0,
        blocks=int(min(blocks, target.multiprocessors)),
        waves=int(roles.turns[0]),
        resident=1,
        warps=GROUP * int(roles.parts[0]),
        stages=int(roles.stages[0]),
        iterations=int(block.loop[0]),
        shared_memory=int(roles.memory[0]),
        bytes_device=round(float(block.traffic.device[0])),
        bytes_moved=round(float(block.traffic.block[0]) * blocks),
    )


def _best(block: Block, target: Target, constants: Constants) -> tuple[Variant, Running]:
    """How the kernel is estimated to be emitted best."""
    able = [variant for variant in OTHER_VARIANTS if fits(block.registers, block.copies.bulk, variant, target).all()]
    tried = [(variant, run(block, (variant,), target, constants)) for variant in (DEFAULT_VARIANT, *able)]
    return min(tried, key=lambda pair: float(pair[1].us[0, 0]))


def _worked(spent: Work, block: Block, waves: float, target: Target, constants: Constants) -> float:
    """Microseconds that the threads of the busiest multiprocessor work."""
    each = float(spent.early[0] + float(block.loop[0]) * spent.looped[0] + spent.late[0])
    side_by_side = float(np.ceil(block.blocks[0] / waves / target.multiprocessors))
    return each * waves * max(1.0, side_by_side / constants.concurrent)
