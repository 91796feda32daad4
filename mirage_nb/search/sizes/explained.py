"""Where an estimate comes from: bytes, waves, shared memory, products, vector work, barriers, starts.

In: a muGraph of a search with its sizes, a target. Out: a `KernelEstimate` per kernel, or a text for people. The
numbers are those of the cost model. Invariant: an estimate is its start, the longest of what overlaps, and a rest, in
which a block waits for its first bytes and for turns of its ring, and works before and after the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.search.assemble import Assembly, Part, sized, sizes_of_parts
from mirage_nb.search.axes import Prepared, prepare
from mirage_nb.search.composition import LIBRARY_AND_FUSED, OWN_OPERATORS, PIECES
from mirage_nb.search.derive import concatenated
from mirage_nb.search.explore import run_configuration
from mirage_nb.search.sizes.anatomy import Sizes
from mirage_nb.search.sizes.constants import FITTED, Constants
from mirage_nb.search.sizes.cost import Block, Running, block_of, run, start_us
from mirage_nb.search.sizes.instantiate import numbered
from mirage_nb.search.sizes.library import library_us
from mirage_nb.search.sizes.occupancy import DEFAULT_WAY, OTHER_WAYS, Way, fits
from mirage_nb.search.sizes.specialised import Specialised, specialised
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.search.sizes.work import Work, work
from mirage_nb.search.space import EFFORTS, configurations
from mirage_nb.search.structure import KernelStructure, Structure
from mirage_nb.targets import Target
from mirage_nb.tile.program import GROUP

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


def kernel_estimates(
    structure: Structure, prepared: Prepared, target: Target, sizes: Mapping[str, int], constants: Constants = FITTED
) -> tuple[KernelEstimate, ...]:
    """The generated kernels of the instance of these sizes, in launch order."""
    return tuple(
        _kernel(mine, kernel, numbers, target, constants)
        for mine, kernel, numbers in _kernels(structure, prepared, sizes)
    )


def explain_estimate(
    program: KernelGraph,
    graph: KernelGraph,
    sizes: Mapping[str, int],
    target: Target,
    *,
    effort: str = "standard",
    configuration: str = "",
) -> str:
    """Where the estimate of a muGraph comes from, kernel by kernel.

    Args:
        program, graph, sizes, configuration: as a candidate of a session has them. A configuration that is named is
            the only one that is searched for the muGraph, which takes as long as it took then.
        effort: that of the session.

    Returns:
        A text; what the cost model does not know, pre-defined kernels and muGraphs that were submitted, is named.
    """
    if configuration in (OWN_OPERATORS, LIBRARY_AND_FUSED) or configuration.endswith(PIECES):
        return _row_by_row(graph, target)
    prepared = prepare(program)
    found = next(_structures(prepared, graph, sizes, target, effort, configuration), None)
    if found is None:
        return "This muGraph is none of the search's: its estimate is the time that its traffic takes."
    kernels = kernel_estimates(found, prepared, target, sizes)
    lines = [f"kernel {number}: {kernel}" for number, kernel in enumerate(kernels, 1)]
    if isinstance(found, Assembly):
        library = sum(part.structure is None for part in found.parts)
        lines += [f"and {_count(library, 'pre-defined kernel')}"] * bool(library)
    lines.append("Device memory, copies and the work of threads overlap; the longest of them counts.")
    return "\n".join(lines)


def _row_by_row(graph: KernelGraph, target: Target) -> str:
    """Of a muGraph that nobody searched for as a whole: what is known of each of its kernels."""
    lines = []
    for op in graph.ops:
        if op.kind is OpKind.GRAPH:
            lines.append("a generated kernel, as estimated for its piece of the program")
        elif us := library_us(graph, op, target):
            lines.append(f"{op.kind.value}: {us:.2f} us by a library, its launch, and its bytes or its operations")
    return "\n".join(f"kernel {number}: {line}" for number, line in enumerate(lines, 1))


def _structures(
    prepared: Prepared, graph: KernelGraph, sizes: Mapping[str, int], target: Target, effort: str, configuration: str
) -> Iterator[Structure]:
    """The structures of a search whose instance of these sizes is the muGraph."""
    bounds = EFFORTS[effort]
    for tried in configurations(prepared, bounds):
        if configuration not in ("", str(tried)):
            continue
        result = run_configuration(prepared, tried, bounds, bounds.budget, lambda counts: None, lambda: False)
        for structure in result.structures:
            instance = sized(structure, prepared, target, sizes)
            if instance is not None and graph in (instance.graph, concatenated(instance.graph)):
                yield structure


def _kernels(
    structure: Structure, prepared: Prepared, sizes: Mapping[str, int]
) -> Iterator[tuple[Prepared, KernelStructure, Sizes]]:
    """The generated kernels of an instance, each at its sizes."""
    parts: list[tuple[Prepared, Structure, Mapping[str, int]]] = [(prepared, structure, sizes)]
    if isinstance(structure, Assembly):
        chosen: list[tuple[Part, Mapping[str, int]]] = list(sizes_of_parts(structure, sizes))
        parts = [(part.prepared, part.structure, mine) for part, mine in chosen if part.structure is not None]
    for own, whole, mine in parts:
        for kernel, numbers in numbered(whole, own, mine):
            yield own, kernel, numbers


def _kernel(
    prepared: Prepared, kernel: KernelStructure, sizes: Sizes, target: Target, constants: Constants
) -> KernelEstimate:
    tiles = Tiles.of(prepared, kernel, sizes)
    block = block_of(tiles, target, constants)
    roles = specialised(tiles, target, constants, block.traffic.device)
    if roles is not None and roles.able[0]:
        return _with_roles(roles, block, kernel, target, constants)
    way, running = _best(block, target, constants)
    start = start_us(kernel, target, constants)
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
        warps=way.warps,
        stages=int(running.stages[0, 0]),
        iterations=int(loop),
        shared_memory=int(running.memory[0, 0]),
        bytes_device=round(float(block.traffic.device[0])),
        bytes_moved=round(float(block.traffic.block[0]) * blocks),
    )


def _with_roles(
    roles: Specialised, block: Block, kernel: KernelStructure, target: Target, constants: Constants
) -> KernelEstimate:
    """A kernel whose warps have roles: blocks take points in turns."""
    start = start_us(kernel, target, constants)
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


def _best(block: Block, target: Target, constants: Constants) -> tuple[Way, Running]:
    """How the kernel is estimated to be emitted best."""
    able = [way for way in OTHER_WAYS if fits(block.registers, block.copies.bulk, way, target).all()]
    tried = [(way, run(block, (way,), target, constants)) for way in (DEFAULT_WAY, *able)]
    return min(tried, key=lambda pair: float(pair[1].us[0, 0]))


def _worked(spent: Work, block: Block, waves: float, target: Target, constants: Constants) -> float:
    """Microseconds that the threads of the busiest multiprocessor work."""
    each = float(spent.early[0] + float(block.loop[0]) * spent.looped[0] + spent.late[0])
    side_by_side = float(np.ceil(block.blocks[0] / waves / target.multiprocessors))
    return each * waves * max(1.0, side_by_side / constants.concurrent)
