"""Loads into shared memory: tiles that are read once, and the ring of tiles that the for-loop streams.

In: a block plan. Out: statements that fill the ring, wait for a slot and release it, with cp.async issued by
all threads or with bulk tensor copies issued by a producer warp. Invariant: a slot is overwritten only after
every warp has finished reading it, and read only after its copies have completed and are visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from mirage_nb.codegen.dependence import Dependence
from mirage_nb.codegen.index import Index, linear, named
from mirage_nb.codegen.maps import VECTOR, Walk, each
from mirage_nb.codegen.reach import EXTENT
from mirage_nb.codegen.reader import Scope, behind_views, device_start, locate, operand_leaf
from mirage_nb.codegen.thread_values import Multi
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.ir import InIterAttrs, OpKind
from mirage_nb.optimize.layout import Boxes, boxes, read_once
from mirage_nb.tile.order import Phase
from mirage_nb.tile.placement import Step, StepKind

BATCH = 8
"""Elements that a thread asks for at once where no copy of several is possible."""
READY = 2
"""The named barrier behind which the mbarriers exist; the warps that compute share the first one."""


def loads(scope: Scope, phase: Phase) -> list[Step]:
    """The load steps of a phase."""
    return [s for s in scope.staged.steps if s.kind is StepKind.LOAD and s.phase is phase]


def attributes(scope: Scope, step: Step) -> InIterAttrs:
    """Which part of which operand a load brings."""
    attrs = scope.block.ops[step.op].attrs
    assert isinstance(attrs, InIterAttrs)
    return attrs


def describe(scope: Scope, step: Step) -> str:
    """A load in muGraph terms, for a comment."""
    attrs = attributes(scope, step)
    imap = ", ".join("-" if d is None else str(d) for d in attrs.imap)
    fmap = "-" if attrs.fmap is None else attrs.fmap
    return f"// %{step.value} = operand {attrs.arg}, imap ({imap}), fmap {fmap}: {scope.block.types[step.value or 0]}"


def emit_load(out: Writer, scope: Scope, step: Step, iteration: Index, stem: str) -> None:
    """Copy one tile from device memory, 16, 8 or 4 bytes at a time if alignment allows, else by element."""
    assert step.value is not None
    attrs = attributes(scope, step)
    width = _copy_width(scope, step, iteration)
    walked = Walk(scope.shape(step.value), max(1, width))
    nbytes = width * scope.plan.stored[step.value].size
    out.line(describe(scope, step))
    if not width:
        _load_elements(out, scope, step, walked, iteration, stem)
        return
    with each(out, scope, walked) as index:
        leaf = locate(scope, step.value, index, None)
        source = operand_leaf(scope, attrs, index, iteration, None, 1)
        valid = f", {source.inside} ? {nbytes} : 0" if source.inside else ""
        target = f"{stem}{step.value} + {leaf.offset}"
        out.line(f"cp_async<{nbytes}>({target}, {source.pointer} + {source.offset}{valid});")


def _load_elements(out: Writer, scope: Scope, step: Step, walked: Walk, iteration: Index, stem: str) -> None:
    """Through registers, single elements or vectors that begin anywhere: some are on their way before a thread
    stores the first."""
    assert step.value is not None
    layout, threads = scope.staged.buffer(step.value).layout, scope.threads
    element = c_type(layout.dtype)
    window = scope.windows.get(attributes(scope, step).arg)
    if (
        layout.dtype.size == 2
        and layout.strides[-1] == 1
        and (window is None or (window.strides[-1] == 1 and window.inside[-1] is None))
        and not any(s % VECTOR for s in (layout.shape[-1], *layout.strides[:-1]))
    ):
        walked = Walk(layout.shape, VECTOR)
    wide = walked.width > 1
    batch = min(BATCH // (4 if wide else 1), walked.slots(threads))
    partly = walked.count % (batch * threads) > 0
    with out.block(f"for (int first = thread; first < {walked.count}; first += {batch * threads})"):
        out.line(f"{f'Vec<{element}, {VECTOR}>' if wide else element} held[{batch}];")
        for storing in (False, True):
            with out.unrolled("u", batch) as u, out.block() if batch == 1 else nullcontext():
                out.line(f"const int e = first{f' + {u} * {threads}' if batch > 1 else ''};")
                lines, index = walked.index()
                with out.block(f"if (e < {walked.count})") if partly and batch > 1 else nullcontext():
                    out.lines(lines)
                    if storing:
                        target = f"{stem}{step.value}", locate(scope, step.value, index, None).offset
                        text = f"store({' + '.join(target)}, held[{u}]);"
                        out.line(text if wide else f"{target[0]}[{target[1]}] = held[{u}];")
                        continue
                    out.line(
                        f"held[{u}] = {_brought(scope, attributes(scope, step), index, iteration, element, wide)};"
                    )


def _brought(scope: Scope, attrs: InIterAttrs, index: Multi, iteration: Index, element: str, wide: bool) -> str:
    """An element of an operand, or a vector that may begin anywhere and ends where its rows do, or its memory."""
    source = operand_leaf(scope, attrs, index, iteration, None, 1)
    operand = scope.block.args[attrs.arg]
    brought, zero = f"{source.pointer}[{source.offset}]", f"from_float<{element}>(0.0f)"
    if wide:
        ends = ""
        if scope.block.overhanging(attrs)[-1]:
            column = device_start(scope.block, attrs, iteration)[-1] + index[-1]
            ends = f", {operand.shape[-1]} - {column}"
        reach = scope.reaches.operands.get(attrs.arg)
        window = scope.windows.get(attrs.arg)
        elements = operand.elements if window is None else window.elements
        last = str(elements)
        if reach is not None:
            last = f"{EXTENT} * {elements * reach.factor // operand.shape[reach.dim]}"
        brought = f"load_anywhere<{VECTOR}>({source.pointer}, {source.offset}, {last}{ends})"
        zero = f"Vec<{element}, {VECTOR}>{{}}"
    return f"{source.inside} ? {brought} : {zero}" if source.inside else brought


def _copy_width(scope: Scope, step: Step, iteration: Index) -> int:
    """Elements per asynchronous copy, 0 if none is possible."""
    assert step.value is not None
    layout = scope.staged.buffer(step.value).layout
    shape, size = layout.shape, layout.dtype.size
    if not shape or layout.strides[-1] != 1:
        return 0
    for nbytes in (16, 8, 4):
        width = nbytes // size
        if shape[-1] % width or any(s % width for s in layout.strides[:-1]):
            continue
        index = Walk(shape, width).index()[1]
        if operand_leaf(scope, attributes(scope, step), index, iteration, len(shape) - 1, width).whole:
            return width
    return 0


class AsyncRing:
    """All threads issue cp.async; one barrier per iteration both publishes a slot and frees the next."""

    tensor_maps: tuple[tuple[int, int, Boxes], ...] = ()

    def __init__(self, out: Writer, scope: Scope, dependence: Dependence) -> None:
        self.out, self.scope, self.dependence = out, scope, dependence
        self.steps = loads(scope, Phase.LOOP)
        self.slots = scope.plan.options.stages if self.steps else 0

    def begin(self) -> None:
        """Fill all slots but one."""
        self.dependence.before(self.steps)
        if self.slots:
            with self.out.block(f"for (int f = 0; f < {self.slots - 1}; ++f)"):
                self._fill(named("f", self.slots - 1), "f")
                self.out.line("cp_async_commit();")

    def ready(self) -> None:
        """Nothing to wait for yet."""

    def enter(self, barrier: bool) -> None:
        """Wait for the slot of this iteration, refill the one that the last iteration has left."""
        if self.slots:
            self.out.line(f"cp_async_wait<{self.slots - 2}>();")
        if self.slots or barrier:
            self.out.line("block_sync();")
        if self.slots:
            ahead, loop = self.slots - 1, self.scope.block.loop
            with self.out.block(f"if (iteration + {ahead} < {loop})"):
                self._fill(named("iteration", loop - ahead) + ahead, f"(iteration + {ahead}) % {self.slots}")
            self.out.line("cp_async_commit();")

    def leave(self) -> None:
        """The barrier of the next iteration frees the slot."""

    def _fill(self, iteration: Index, slot: str) -> None:
        for step in self.steps:
            assert step.value is not None
            layout = self.scope.staged.buffer(step.value).layout
            target = f"{c_type(layout.dtype)}* const fill{step.value}"
            self.out.line(f"{target} = ring{step.value} + {slot} * {layout.elements};")
            emit_load(self.out, self.scope, step, iteration, "fill")


class BulkRing:
    """A producer warp issues bulk tensor copies; mbarriers say when a slot is full and when it is empty."""

    def __init__(self, out: Writer, scope: Scope, dependence: Dependence) -> None:
        self.out, self.scope, self.dependence = out, scope, dependence
        # What takes longest is asked for first.
        self.steps = sorted(loads(scope, Phase.LOOP), key=lambda s: -scope.block.types[s.value or 0].nbytes)
        self.slots = scope.plan.options.stages

    @property
    def tensor_maps(self) -> tuple[tuple[int, int, Boxes], ...]:
        """(value, operand, boxes) of every streamed tile."""
        found = []
        for step in self.steps:
            attrs = attributes(self.scope, step)
            boxed = boxes(self.scope.block, attrs)
            assert boxed is not None and step.value is not None
            found.append((step.value, attrs.arg, boxed))
        return tuple(found)

    def begin(self) -> None:
        """Send the producer warp on its way: it sets up the mbarriers and goes on at once."""
        out, warps = self.out, self.scope.plan.options.warps
        out.line(f"MIRAGE_SHARED(uint64_t, full, {self.slots});")
        out.line(f"MIRAGE_SHARED(uint64_t, empty, {self.slots});")
        with out.block(f"if (warp == {warps})"):
            out.line("// the producer warp: one lane streams tiles as slots become empty")
            with out.block("if (lane == 0)"):
                for value, _, _ in self.tensor_maps:
                    out.line(f"tma_prefetch_map(map{value});")
                with out.block(f"for (int s = 0; s < {self.slots}; ++s)"):
                    out.line("mbarrier_init(full + s, 1);")
                    out.line(f"mbarrier_init(empty + s, {warps});")
                out.line("fence_mbarrier_init();")
            out.line("warp_sync();")
            out.line(f"barrier_arrive({READY}, {self.scope.plan.options.threads});")
            with out.block("if (lane == 0)"):
                self._produce()
            out.line("return;")

    def ready(self) -> None:
        """The warps that compute wait until the mbarriers are there."""
        self.out.line(f"barrier_sync({READY}, {self.scope.plan.options.threads});")

    def _produce(self) -> None:
        out, loop, depends = self.out, self.scope.block.loop, self.dependence
        total = sum(boxed.elements * self.scope.plan.stored[value].size for value, _, boxed in self.tensor_maps)
        first, wait = 0, "grid_dependency_wait();"  # this lane's own; the warps that compute have theirs
        if depends.between(self.steps):
            out.line("// what nothing in front writes comes first, as much as the ring holds")
            first = min(self.slots, loop)
            for late in (False, True):
                with out.block(f"for (int f = 0; f < {first}; ++f)"):
                    if not late:
                        out.line(f"mbarrier_arrive_expect_tx(full + f, {total});")
                    self._copies([s for s in self.steps if depends.late(s) is late], first, named("f", first))
                if not late:
                    out.line(wait)
        elif depends.pending and any(map(depends.late, self.steps)):
            out.line(wait)
        if first == loop:
            return
        with out.block(f"for (int f = {first}; f < {loop}; ++f)"):
            out.line(f"const int slot = f % {self.slots};")
            out.line(f"mbarrier_wait(empty + slot, (f / {self.slots} + 1) % 2);")
            out.line(f"mbarrier_arrive_expect_tx(full + slot, {total});")
            self._copies(self.steps, loop, named("slot", self.slots))

    def _copies(self, steps: Sequence[Step], iterations: int, slot: Index) -> None:
        """The tiles of iteration `f` into a slot."""
        boxed_of = {value: boxed for value, _, boxed in self.tensor_maps}
        for step in steps:
            assert step.value is not None
            self._copy(step, step.value, boxed_of[step.value], iterations, slot)

    def _copy(self, step: Step, value: int, boxed: Boxes, iterations: int, slot: Index) -> None:
        out = self.out
        attrs = attributes(self.scope, step)
        layout = self.scope.staged.buffer(value).layout
        operand = self.scope.block.args[attrs.arg].shape
        start = device_start(self.scope.block, attrs, named("f", iterations))
        row, column = linear(start[:-1], operand[:-1]) // boxed.fold, start[-1]
        height, width = boxed.box
        out.line(describe(self.scope, step))
        load = "tma_load_2d_once" if read_once(self.scope.block, attrs) else "tma_load_2d"
        with out.unrolled("p", boxed.across) as p, out.unrolled("d", boxed.down) as d:
            target = slot * layout.elements + named(p, boxed.across) * (layout.panel_rows * width)
            target = target + named(d, boxed.down) * (height * width)
            across = column + named(p, boxed.across) * width
            down = row + named(d, boxed.down) * height
            at = f"ring{value} + {target.bare}"
            out.line(f"{load}({at}, map{value}, full + {slot.bare}, {across.bare}, {down.bare});")

    def enter(self, barrier: bool) -> None:
        """Wait for the slot of this iteration."""
        self.out.line(f"mbarrier_wait(full + iteration % {self.slots}, iteration / {self.slots} % 2);")
        if barrier:
            self.out.line(f"barrier_sync(1, {self.scope.threads});")

    def leave(self) -> None:
        """This warp has finished with the slot.

        An arrival does not wait for loads in front of it: on a card the engine overwrote what was still being read.
        Products of warpgroups are waited for.
        """
        if self._loaded():
            self.out.line("fence_proxy_async();")
        self.out.line("warp_sync();")
        self.out.line(f"if (lane == 0) mbarrier_arrive(empty + iteration % {self.slots});")

    def _loaded(self) -> bool:
        """Whether ordinary loads read a tile of the ring, in the loop."""
        scope, ring = self.scope, {s.value for s in self.steps}
        for step in scope.staged.steps:
            read = set(step.reads)
            if scope.plan.options.wide and step.kind is StepKind.FRAGMENT:
                op = scope.block.ops[step.op]
                operands = op.inputs[:1] if op.kind is OpKind.MATMUL else op.inputs  # its columns stay where they are
                read = {behind_views(scope, v) for v in operands}
            if step.phase is Phase.LOOP and not read.isdisjoint(ring):
                return True
        return False
