"""The plan of a muGraph: thread graphs, placement, layouts, schedule and memory, beside the graph.

In: a frozen muGraph, a target, emission options. Out: a frozen `Plan`; the muGraph that it carries has
its elementwise chains fused, nothing else is changed. Invariant: emitting a plan needs no further choice, what follows
from what stands around a kernel (`staged_program`) aside (paper section 6).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType

from mirage_nb.errors import TargetError
from mirage_nb.ir import AccumAttrs, AccumKind, BlockGraph, DType, InIterAttrs, KernelGraph, Op, OpKind, TensorType
from mirage_nb.ir.lookups import Lookup
from mirage_nb.ir.places import numbered
from mirage_nb.ir.windows import Window, windows
from mirage_nb.optimize.attention_program import attention_program
from mirage_nb.optimize.layout import choose_layouts
from mirage_nb.optimize.options import Options, all_options, default_options
from mirage_nb.optimize.overlap import Overlap, overlaps
from mirage_nb.optimize.product_program import Given, product_program
from mirage_nb.optimize.register_resident import Resident, find_resident
from mirage_nb.optimize.schedule import Access, barriers, left_open, overlapping
from mirage_nb.optimize.wide import fits_panels, right_leaves, wide_possible
from mirage_nb.predefined import LOOKUP, Match, matches, needed
from mirage_nb.predefined.lookups import lookups
from mirage_nb.targets import EXACT, Target
from mirage_nb.tile.instructions.groups import rows_of
from mirage_nb.tile.roles.program import Copy, Program
from mirage_nb.tile.rules.attention import find_attention
from mirage_nb.tile.rules.bodies import Region, find_region
from mirage_nb.tile.rules.boxes import bulk_of, columns_brought, in_boxes
from mirage_nb.tile.rules.memory import Interval, MemoryPlan, allocate
from mirage_nb.tile.rules.order import Phase, lifetime, scheduled
from mirage_nb.tile.rules.placement import Place, Placement, Step, StepKind, is_tiled, place
from mirage_nb.tile.rules.products import find_product
from mirage_nb.tile.rules.scales import move_scales
from mirage_nb.tile.rules.shared import Buffer, worth_having_early
from mirage_nb.tile.rules.sharing import Tiling, tile_matmul
from mirage_nb.tile.rules.sketch import Sketch, sketch_of
from mirage_nb.tile.rules.teams import CAPABILITY, RESERVED_BYTES
from mirage_nb.tile.rules.thread_graph import fuse
from mirage_nb.tile.rules.widen import widen


@dataclass(frozen=True, slots=True)
class Staged:
    """A block whose tiles pass through shared memory, step by step, but for those of a loop body that stays with warps.

    region: that body, if there is one. tilings: operator index -> Tiling, for Matmuls on tensor cores and the
    accumulators of a region. barriers: positions in `steps` before which a block-wide barrier stands; entry_barrier,
    loop_barrier: one stands before the loop, at the top of every iteration, whatever the ring needs. outer: what is
    folded of smaller values alone (`Placement.outer`).
    """

    region: Region | None = None
    steps: tuple[Step, ...] = ()
    tilings: tuple[tuple[int, Tiling], ...] = ()
    buffers: tuple[Buffer, ...] = ()
    barriers: frozenset[int] = frozenset()
    entry_barrier: bool = False
    loop_barrier: bool = False
    outer: frozenset[int] = frozenset()

    def tiling(self, op: int) -> Tiling | None:
        """How warps share Matmul `op`; None: it runs on scalar units."""
        return dict(self.tilings).get(op)


Strategy = Program | Resident | Staged
"""Roles and pipelines, as a tile program; tiles in the registers of threads; tiles in shared memory."""


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Everything that was decided for one graph-defined operator; `strategy` says how it is emitted."""

    block: BlockGraph
    options: Options
    places: tuple[Place, ...]
    stored: tuple[DType, ...]
    strategy: Strategy
    shared_bytes: int = 0

    @property
    def program(self) -> Program | None:
        """The block as a tile program, if it is one."""
        return self.strategy if isinstance(self.strategy, Program) else None

    @property
    def resident(self) -> Resident | None:
        """How its threads hold its tiles, if they do."""
        return self.strategy if isinstance(self.strategy, Resident) else None

    @property
    def staged(self) -> Staged | None:
        """Its steps, if its tiles pass through shared memory."""
        return self.strategy if isinstance(self.strategy, Staged) else None

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.strategy.threads if isinstance(self.strategy, Program) else self.options.threads

    @property
    def bulk_operands(self) -> frozenset[int]:
        """The operands whose tiles the copy engine brings: those that are streamed, where the block is bulk."""
        match self.strategy:
            case Program() as program:
                return frozenset(program.operand(s.source) for s in program.every if isinstance(s, Copy))
            case Staged(steps=steps) if self.options.bulk:
                loops = (s for s in steps if s.kind is StepKind.LOAD and s.phase is Phase.LOOP)
                attrs = (self.block.ops[s.op].attrs for s in loops)
                return frozenset(a.arg for a in attrs if isinstance(a, InIterAttrs))
            case _:
                return frozenset()


@dataclass(frozen=True, slots=True)
class Plan:
    """A muGraph with one BlockPlan per graph-defined operator (None for others) and its device memory.

    overlaps: per operator, what may run at the same time. temporaries: values in device memory that are
    neither inputs nor outputs, in order; `workspace` has their offsets. library: pre-defined operators that one
    library kernel computes together; windows: values that kernels read where they lie in other ones; lookups: those
    that kernels look up; left_out: the operators that no kernel has to compute any more.
    """

    graph: KernelGraph
    kernels: tuple[BlockPlan | None, ...]
    overlaps: tuple[Overlap, ...]
    temporaries: tuple[int, ...]
    workspace: MemoryPlan
    library: tuple[Match, ...] = ()
    windows: Mapping[int, Window] = field(default_factory=dict)
    lookups: Mapping[int, Lookup] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()


def plan(graph: KernelGraph, target: Target, options: Options | None = None) -> Plan:
    """Plan `graph` for `target`.

    Raises:
        TargetError: a block needs more shared memory than the target has.
    """
    return plan_chains(fuse(rewritten(graph)), target, options or default_options(target))


def rewritten(graph: KernelGraph) -> KernelGraph:
    """`graph` as it is planned, but for its chains: scales moved, temporaries widened."""
    return widen(move_scales(graph))


def plan_chains(graph: KernelGraph, target: Target, options: Options, private: bool = True) -> Plan:
    """Plan a rewritten graph whose chains of elementwise operators are as they shall be.

    private: tiles may stay in the registers of threads or warps from one operator to the next; otherwise they pass
    through shared memory. Raises TargetError.
    """
    seen = windows(graph)
    kernels = _kernels(graph, target, options, private, seen)
    programs = {i: k.program for i, k in enumerate(kernels) if k is not None and k.program is not None}
    if copied := {v for i, program in programs.items() for v in _not_boxed(graph, i, program, seen)}:
        seen = windows(graph, copied)
        kernels = _kernels(graph, target, options, private, seen)
    bulk = [kernel.bulk_operands if kernel is not None else frozenset[int]() for kernel in kernels]
    library = matches(graph) if options.library else ()
    resident = [op for op, kernel in zip(graph.ops, kernels, strict=True) if kernel is not None and kernel.resident]
    looked = lookups(graph, library, resident.__contains__)
    needs = needed(graph, library) if library else range(len(graph.types))
    nowhere = seen.keys() | looked.keys()
    left_out = frozenset(
        n for n, (_, values) in enumerate(graph.definitions()) if values[0] not in needs or values[0] in nowhere
    )
    device = plan_device(graph, library, seen, looked, left_out)
    lies = {v: (w.base,) for v, w in seen.items()} | {v: (x.table, *x.numbers) for v, x in looked.items()}
    overlap = overlaps(graph, target, bulk, options, lies, left_out, programs.keys())
    return Plan(graph, kernels, overlap, *device, library, seen, looked, left_out)


def _not_boxed(graph: KernelGraph, index: int, program: Program, seen: Mapping[int, Window]) -> Iterator[int]:
    """The windows that a kernel reads and that the copy engine cannot bring."""
    for operand, value in enumerate(graph.ops[index].inputs):
        if (window := seen.get(value)) is not None:
            columns = columns_brought(program, operand)
            if columns is None or not in_boxes(window, graph.types[value], columns):
                yield value


def _kernels(
    graph: KernelGraph, target: Target, options: Options, private: bool, seen: Mapping[int, Window]
) -> tuple[BlockPlan | None, ...]:
    """The plans of graph-defined operators."""
    literals, places = graph.uniform(), numbered(graph)
    of_block = replace(options, library=0)

    def among(op: Op, values: Container[int]) -> frozenset[int]:
        return frozenset(i for i, v in enumerate(op.inputs) if v in values)

    return tuple(
        plan_block(
            op.body, target, of_block, {i: literals[op.inputs[i]] for i in among(op, literals)}, private,
            tuple(graph.types[v] for v in values), among(op, places),
            {i: seen[v] for i, v in enumerate(op.inputs) if v in seen},
        )
        if isinstance(op.body, BlockGraph)
        else None
        for op, values in graph.definitions()
    )  # fmt: skip


def plan_device(
    graph: KernelGraph,
    library: Sequence[Match] = (),
    seen: Mapping[int, Window] = MappingProxyType({}),
    looked: Mapping[int, Lookup] = MappingProxyType({}),
    left_out: frozenset[int] = frozenset(),
) -> tuple[tuple[int, ...], MemoryPlan]:
    """Temporaries in device memory: they live from the kernel that writes them to the last that reads them, an operator
    or a match of a library's, or looks at a part of them, or something up; operators that are left out write none."""
    found = []
    uniform = graph.uniform()
    place = {values[0]: index for index, (_, values) in enumerate(graph.definitions())}
    last = {value: max(readers, default=0) for value, readers in enumerate(graph.uses())}
    last |= dict.fromkeys(graph.outputs, len(graph.ops))
    for match in library:
        last |= {value: max(last[value], place[match.output]) for value in match.inputs}
    for value, window in seen.items():
        last[window.base] = max(last[window.base], last[value])
    for value, lookup in looked.items():
        last |= {source: max(last[source], last[value]) for source in (lookup.table, *lookup.numbers)}
    for index, (op, values) in enumerate(graph.definitions()):
        if op.kind is OpKind.RESHAPE or values[0] in uniform or index in left_out:
            continue
        for value in values:
            held = (value, *_aliases(graph, value))
            if not set(held).intersection(graph.outputs):
                found.append(Interval(value, graph.types[value].nbytes, index, max(index, *(last[v] for v in held))))
    return tuple(i.name for i in found), allocate(found, alignment=256)


def _aliases(graph: KernelGraph, value: int) -> list[int]:
    found = []
    for op, values in graph.definitions():
        if op.kind is OpKind.RESHAPE and op.inputs[0] == value:
            found += [values[0], *_aliases(graph, values[0])]
    return found


def variants(graph: KernelGraph, target: Target) -> tuple[Options, ...]:
    """The options under which `graph` fits `target` and that differ in what they make of it, default first."""
    found: dict[object, Options] = {}
    chained = fuse(rewritten(graph))
    for options in all_options(target):
        try:
            planned = plan_chains(chained, target, options)
        except TargetError:
            continue
        said = as_planned(options, planned)
        found.setdefault((_made(planned), said.library), said)
    return tuple(found.values())


def as_planned(options: Options, planned: Plan) -> Options:
    """The options that led to a plan: those that asked for roles where no warps have them asked for nothing."""
    programs = [kernel.program for kernel in planned.kernels if kernel is not None and kernel.program is not None]
    taken = bool(programs)
    composed = any(row.composition for program in programs for row in rows_of(program))
    precision = options.precision if composed else EXACT
    ways = max((len(match.launches) for match in planned.library if match.row != LOOKUP), default=0)
    specialised, library = options.specialised and taken, min(options.library, ways)
    ahead = options.ahead if taken else 0
    return replace(options, specialised=specialised, library=library, precision=precision, ahead=ahead)


def _made(planned: Plan) -> object:
    """What a plan comes to: two of them that are equal here are emitted alike."""

    def alike(options: Options) -> Options:
        return replace(options, chained=False, spread=False, precision=EXACT, early="some", ahead=0)

    kernels = [k and replace(k, options=alike(k.options)) for k in planned.kernels]
    return tuple(kernels), tuple(o for k, o in zip(kernels, planned.overlaps, strict=True) if k is not None)


def plan_block(
    block: BlockGraph,
    target: Target,
    options: Options,
    literals: Mapping[int, Fraction] | None = None,
    private: bool = True,
    outputs: tuple[TensorType, ...] = (),
    places: frozenset[int] = frozenset(),
    seen: Mapping[int, Window] = MappingProxyType({}),
) -> BlockPlan:
    """Plan one block graph whose chains are as they shall be; the ring gets shallower until it fits. `literals`:
    operands that are one number; `private`: see `plan_chains`; `outputs`: the types of its outputs, if they are not
    those of the block graph; `places`: operands whose elements are their places; `seen`: those that are windows.
    Raises TargetError."""
    literal_args = frozenset(literals or ())
    if options.specialised and private:
        given = Given(outputs or block.output_types, literals or {}, options.precision, places, options.ahead)
        program = _program(block, target, given)
        if program is not None:
            return _plan_program(block, program, options)
    options = replace(options, specialised=False)
    sketch = sketch_of(block, literal_args, places)
    resident = find_resident(block, sketch, options.warps, target.multiprocessors) if private else None
    if resident is not None:
        return _plan_resident(block, resident, options, literal_args, places)
    if any(op.kind is OpKind.RUNNING_SUM for op in block.ops):
        hint = "use smaller tiles, a grid over what is not summed, no loop and no product"
        raise TargetError("the threads of a block cannot hold what a running sum is of", hint=hint)
    region = find_region(block, sketch, options.warps) if private else None
    placement = place(
        sketch, region.ops if region else (), direct=region is not None and region.direct,
        worth_having=lambda value: _worth_having(block, value),
    )  # fmt: skip
    steps = scheduled(placement.steps)
    chosen = replace(options, bulk=options.bulk and target.tma and _bulk_possible(block, steps, seen))
    chosen = replace(chosen, wide=target.capability == CAPABILITY and wide_possible(block, region, chosen))
    available = target.shared_per_block - RESERVED_BYTES
    deepest = max(2, options.stages) if block.loop > 1 else 1
    planned = None
    for stages in range(min(deepest, block.loop), min(2, block.loop) - 1, -1):
        planned = _plan_block(block, sketch, placement, steps, region, replace(chosen, stages=stages))
        if chosen.wide and region is not None:
            tiles = right_leaves(block, region)
            buffers = (planned.staged or Staged()).buffers
            if not all(fits_panels(b.layout) for b in buffers if b.value in tiles):
                chosen = replace(chosen, wide=False)
                planned = replace(planned, options=replace(planned.options, wide=False))
        if planned.shared_bytes <= available:
            return planned
    assert planned is not None
    raise TargetError(
        f"a block needs {planned.shared_bytes} bytes of shared memory; {target.name} has {available}",
        hint="use a larger grid or a larger for-loop range",
    )


def _program(block: BlockGraph, target: Target, given: Given) -> Program | None:
    """The block as a tile program, if it is one of products."""
    numbers = frozenset(given.numbers)
    if (product := find_product(block, numbers)) is not None:
        return product_program(product, target, given)
    if (attention := find_attention(block, numbers)) is not None:
        return attention_program(attention, target, given)
    return None


def _plan_program(block: BlockGraph, program: Program, options: Options) -> BlockPlan:
    """The tile program says everything; of the values, only what is streamed lies in shared memory."""
    places = []
    for op, values in block.definitions():
        read = isinstance(op.attrs, InIterAttrs)
        streamed = isinstance(op.attrs, InIterAttrs) and op.attrs.fmap is not None
        places += [Place.SHARED if streamed else Place.DEVICE if read else Place.REGISTER] * len(values)
    stored = tuple(t.dtype for t in block.types)
    chosen = replace(options, warps=program.roles[0].warps, stages=program.pipelines[0].stages, bulk=True)
    return BlockPlan(block, chosen, tuple(places), stored, program, program.shared_bytes)


def _plan_resident(
    block: BlockGraph, resident: Resident, options: Options, literal_args: frozenset[int], numbered: frozenset[int]
) -> BlockPlan:
    """Tiles in registers: nothing is staged, nothing is laid out."""
    known = dict.fromkeys(numbered, Place.COUNTED) | dict.fromkeys(literal_args, Place.LITERAL)
    places = []
    for op, values in block.definitions():
        place = Place.VIEW if op.kind is OpKind.RESHAPE else Place.REGISTER
        place = known.get(op.attrs.arg, place) if isinstance(op.attrs, InIterAttrs) else place
        places += [Place.LITERAL if op.kind is OpKind.CONST else place] * len(values)
    chosen = replace(options, warps=resident.layout.warps, stages=1, bulk=False, wide=False)
    stored = tuple(t.dtype for t in block.types)
    return BlockPlan(block, chosen, tuple(places), stored, resident)


def _bulk_possible(block: BlockGraph, steps: tuple[Step, ...], seen: Mapping[int, Window]) -> bool:
    """Whether there is a ring and the copy engine can bring every tile of it."""
    streamed = [block.ops[s.op].attrs for s in steps if s.kind is StepKind.LOAD and s.phase is Phase.LOOP]
    return bool(streamed) and all(isinstance(a, InIterAttrs) and _bulk(block, a, seen.get(a.arg)) for a in streamed)


def _bulk(block: BlockGraph, attrs: InIterAttrs, window: Window | None) -> bool:
    """Whether the copy engine can bring the tiles of an operand."""
    found = bulk_of(block, attrs)
    return found is not None and (window is None or in_boxes(window, block.args[attrs.arg], found.columns))


def _worth_having(block: BlockGraph, value: int) -> bool:
    """Whether a tile is worth having early."""
    tile = block.types[value]
    worth = tile.shape and worth_having_early(block.has_loop, tile.nbytes, tile.shape[-1], tile.dtype.size)
    return bool(worth)


def _plan_block(
    block: BlockGraph, sketch: Sketch, placement: Placement, steps: tuple[Step, ...], region: Region | None,
    options: Options,
) -> BlockPlan:  # fmt: skip
    tilings = _tilings(block, sketch, steps, region, options)
    ring = frozenset(s.value for s in steps if s.value is not None and s.issued and s.phase is Phase.LOOP)
    layouts = choose_layouts(block, sketch, placement, tilings, boxed=ring if options.bulk else frozenset())
    copies = {v: _copies(block, steps, tilings, region, v, options.stages) for v in layouts}
    intervals = [Interval(v, layouts[v].nbytes * copies[v], *lifetime(steps, v)) for v in layouts]
    # A swizzle pattern repeats every 1024 bytes; cp.async and vectors need 16, a line is 128.
    memory = allocate(intervals, alignment=1024 if any(x.swizzle for x in layouts.values()) else 128)
    buffers = tuple(Buffer(v, layouts[v], copies[v], offset) for v, offset in zip(layouts, memory.offsets, strict=True))
    agreed = region is not None and region.agrees(block)
    found = _barriers(steps, buffers, bool(ring) and not options.bulk, agreed)
    staged = Staged(region, steps, tuple(tilings.items()), buffers, *found, frozenset(placement.outer))
    return BlockPlan(block, options, placement.places, placement.stored, staged, memory.peak)


def _tilings(
    block: BlockGraph, sketch: Sketch, steps: tuple[Step, ...], region: Region | None, options: Options
) -> dict[int, Tiling]:
    """Per Matmul on tensor cores, and per matrix accumulator of a warp-private body."""
    found = {}
    for step in steps:
        if not is_tiled(sketch, step):
            continue
        node = sketch.nodes[step.op]
        if step.kind is StepKind.FRAGMENT and region is not None:
            columns, depth = (block.types[value].shape[-1] for value in (node.makes[0], node.reads[0]))
            found[step.op] = region.tiling(node.makes[0], columns, depth)
        else:
            left, right = (block.types[value] for value in node.pairs[0])
            found[step.op] = tile_matmul(left, right, options.warps, deferred=step.accum is not None, loop=block.loop)
    return found


def _copies(
    block: BlockGraph,
    steps: tuple[Step, ...],
    tilings: dict[int, Tiling],
    region: Region | None,
    value: int,
    stages: int,
) -> int:
    step = next(s for s in steps if s.value == value)
    if step.kind is StepKind.LOAD and step.phase is Phase.LOOP:
        return stages
    if step.kind is not StepKind.FINISH:
        return 1
    if region is not None:
        attrs = block.ops[step.op].attrs
        whole = isinstance(attrs, AccumAttrs) and attrs.kind is AccumKind.MAX
        return 1 if whole or value in region.keyed else region.key_warps
    feeding = [s.op for s in steps if s.accum == step.op]
    return max((tilings[i].copies for i in feeding if i in tilings), default=1)


def _barriers(
    steps: tuple[Step, ...], buffers: tuple[Buffer, ...], copied: bool, agreed: bool
) -> tuple[frozenset[int], bool, bool]:
    """Barrier positions; whether one stands before the loop, and at the top of every iteration.

    copied: all threads copy what is streamed, with a barrier in every iteration. agreed: warps agree on maxima behind
    the loop, with one there.
    """
    shares = overlapping({b.value: (b.offset, b.nbytes) for b in buffers})

    def accesses(places: list[int]) -> list[Access]:
        written = ((steps[i], steps[i].value) for i in places)
        return [Access(s.reads, frozenset() if v is None else frozenset({v})) for s, v in written]

    # A streamed load is complete and visible once the iteration has waited for its ring slot.
    before, loop, after = ([i for i, s in enumerate(steps) if s.phase is p] for p in Phase)
    loop = [i for i in loop if steps[i].kind is not StepKind.LOAD]
    early, body, late = accesses(before), accesses(loop), accesses(after)
    first, inside = barriers(early, shares), barriers(body, shares)
    pending, rest = left_open(early, first), left_open(body, inside)
    entry = any(step.conflicts(earlier, shares) for earlier in pending for step in body)
    top = not barriers(body, shares, rest) <= inside
    if entry or top or inside or copied:
        pending = []
    last = barriers(late, shares, () if agreed else pending + rest)
    return frozenset([*(before[i] for i in first), *(loop[i] for i in inside), *(after[i] for i in last)]), entry, top
