"""Kernels that hold their tiles in registers: load everything, reduce, compute, store.

In: a block plan with a `Resident`. Out: the statements of the kernel. An input v is `h<v>[slot][element]` as it is
stored, the result of a reduction `r<v>[slot and element]`, the largest shift of a rescaled sum `top<v>[element]`; what
is computed from them element by element is never stored. Invariant: every thread that shares a row reaches
every barrier; no two reductions share scratch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property

from mirage_nb.codegen.maps import each, output_leaf, store_vector
from mirage_nb.codegen.placing import Part, alternate, parts
from mirage_nb.codegen.reader import Reader, counted, loaded
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.ir import InIterAttrs, Op, OpKind, OutSaverAttrs, RunningAttrs, TensorType
from mirage_nb.optimize.access import Leaf, Scope, operand_leaf, spread_leaf
from mirage_nb.optimize.overlap import Overlap
from mirage_nb.optimize.register_resident import Resident
from mirage_nb.tile.boxes import read_once
from mirage_nb.tile.index import Index, Multi, broadcast_index, linear, named, unravel
from mirage_nb.tile.placement import Place
from mirage_nb.tile.program import LANES
from mirage_nb.tile.register_resident import needed, partial_sets
from mirage_nb.tile.sharing import Vectors
from mirage_nb.tile.sketch import FOLDS, sketch_of

ONCE_BYTES = 2**20
"""Of so little that is read only once, kernels of 2 us take 3 % less where it goes past L1. Of more it is a loss where
as much is written: a layer norm of 4096 x 4096 in f16 took 25.0 us with such loads and 24.6 without, on an H100."""


class ResidentText:
    """Writes the body of one kernel."""

    def __init__(self, out: Writer, scope: Scope, overlap: Overlap, outputs: tuple[TensorType, ...]) -> None:
        assert isinstance(scope.plan.strategy, Resident)
        self.out, self.scope, self.overlap, self.outputs = out, scope, overlap, outputs
        self.written, self.pending = overlap.late, overlap.behind
        self.resident = scope.plan.strategy
        self.viewed = {value: scope.shape(view) for value, view in self.resident.viewed}
        self.scratch = 0
        self.tops: set[int] = set()
        self.inputs = {
            values[0]: op.attrs
            for op, values in scope.block.definitions()
            if isinstance(op.attrs, InIterAttrs) and scope.plan.places[values[0]] is not Place.LITERAL
        }

    def emit(self) -> None:
        """The whole body."""
        resident = self.resident
        if not resident.shared:
            self._wait()
            with each(self.out, self.scope, Vectors(resident.kept, resident.width)) as kept:
                self._loads(list(self.inputs), kept)
                self._compute(kept)
            return
        self._declare_scratch()
        kept = self._shared_place()
        late = [v for v, attrs in self.inputs.items() if attrs.arg in self.written]
        # Where blocks wait for nobody else, what the first reduction needs is asked for last: what stands behind
        # something that is used at once waits with it.
        soon = needed(sketch_of(self.scope.block), 1) if resident.together else set[int]()
        early = sorted((v for v in self.inputs if v not in resident.behind), key=soon.__contains__)
        self._loads([v for v in early if v not in late], kept)
        if not resident.behind.issuperset(late):
            self._wait()
        self._loads([v for v in early if v in late], kept)
        self._compute(kept)

    def _wait(self) -> None:
        """For the kernel in front, once."""
        if self.pending:
            self.out.line("grid_dependency_wait();")
        self.pending = False

    def _declare_scratch(self) -> None:
        """What threads tell others of their part of a reduction."""
        resident = self.resident
        if resident.warps > 1 and (resident.lanes > LANES if resident.rows else self._sets > 1):
            rescaled = [op.inputs[1] for op in self.scope.block.ops if op.kind is OpKind.RESCALED_SUM]
            running = sum(op.kind is OpKind.RUNNING_SUM for op in self.scope.block.ops)
            folds = sum(_reduces(op.kind) for op in self.scope.block.ops) + len(set(rescaled))
            folds += running * (resident.slots - 1) if resident.rows else 0
            self.out.line(f"MIRAGE_SHARED(float, scratch, {folds * self._scratch_each});")

    @property
    def _scratch_each(self) -> int:
        """Floats of one reduction."""
        resident = self.resident
        return resident.warps if resident.rows else self._sets * resident.vectors * resident.width

    def _shared_place(self) -> Multi:
        """The index of the row, or of the vector of columns, that a thread shares, behind what names it: `place` among
        those that do."""
        out, resident = self.out, self.resident
        if not resident.rows:
            out.line(f"const int place = thread / {resident.vectors}, column = thread % {resident.vectors};")
            return unravel(named("column", resident.vectors) * resident.width, resident.kept)
        groups = self.scope.threads // resident.lanes
        if groups > 1:
            out.line(f"const int row = thread / {resident.lanes}, place = thread % {resident.lanes};")
        else:
            out.line("const int place = thread;")
        return (*unravel(named("row", groups), resident.tile[:-1]), Index())

    @property
    def _in_stretches(self) -> bool:
        """Whether what a thread has of a column lies together: sums run along it."""
        running = any(op.kind is OpKind.RUNNING_SUM for op in self.scope.block.ops)
        return running and self.resident.shared and not self.resident.rows

    @property
    def _row_warps(self) -> int:
        return self.resident.lanes // LANES

    @property
    def _sets(self) -> int:
        """Partial results of every column, when the lanes of each warp have combined theirs."""
        return int(partial_sets(self.resident.vectors, self.resident.lanes))

    def _along(self, kept: Multi, at: Multi, anyway: bool) -> Multi:
        """The index into the tile of a thread's vector at these places along the reduced axes; of the first one if
        `anyway` and there is none."""
        resident, index = self.resident, [*kept]
        for dim, place in zip(resident.dims, at, strict=True):
            if resident.shared:
                width = resident.width if resident.rows else 1
                vectors = resident.tile[dim] // width
                mine, slots = named("place", resident.lanes), resident.slots
                place = place + mine * slots if self._in_stretches else place * resident.lanes + mine
                if anyway and resident.ragged:
                    place = Index(((f"({place} < {vectors} ? {place} : 0)", vectors, 1),))
                place = place * width
            index[dim] = place
        return tuple(index)

    @contextmanager
    def _slots(
        self, shape: tuple[int, ...], kept: Multi, *, anyway: bool = False, run: int = 1
    ) -> Iterator[tuple[Multi, Multi]]:
        """All vectors of a value that this thread holds; yields the place of each along the reduced axes, and its index
        into the tile. anyway: without a look at whether there is one; run: so many of them at once."""
        resident = self.resident
        spans = resident.spans(shape)
        if not resident.long(shape):
            yield unravel(Index(), spans), kept
            return
        spans = (*spans[:-1], spans[-1] // run)
        with self.out.unrolled("s", math.prod(spans)) as slot:
            *first, behind = unravel(named(slot, math.prod(spans)), spans)
            at = (*first, behind * run)
            index = self._along(kept, at, anyway)
            guarded = resident.ragged and not anyway
            inside = [f"{index[dim].bare} < {resident.tile[dim]}" for dim in resident.dims if guarded]
            with self.out.block(f"if ({inside[0]})") if inside else nullcontext():
                yield at, index

    def _slot(self, shape: tuple[int, ...], at: Multi) -> Index:
        """Which vector of a value a thread has at this place along the reduced axes."""
        spans = self.resident.spans(shape)
        all_of_them = named("s", math.prod(spans))
        if at == unravel(all_of_them, spans):
            return all_of_them
        return linear([place if span > 1 else Index() for place, span in zip(at, spans, strict=True)], spans)

    def _shape(self, value: int) -> tuple[int, ...]:
        """How the tile has a value's elements."""
        if value in self.viewed:
            return self.viewed[value]
        return self.resident.kept if value in self.resident.turned else self.scope.shape(value)

    def _place(self, value: int, index: Multi) -> Multi:
        """Where an element of the tile lies in a value."""
        shape, lies = self._shape(value), self.scope.shape(value)
        at = broadcast_index(index, shape)
        return at if shape == lies else unravel(linear(at, shape), lies)

    def _loads(self, values: list[int], kept: Multi) -> None:
        """Everything is asked for before anything is used."""
        out, resident = self.out, self.resident
        for value in values:
            attrs, type_, shape = self.inputs[value], self.scope.block.types[value], self._shape(value)
            run = resident.run(shape)
            width = max(resident.vector(shape), run)
            vector, count = f"Vec<{c_type(type_.dtype)}, {width}>", resident.count(shape) // run
            out.line(f"{vector} h{value}[{count}];  // {type_}, %{value}")
            with self._slots(shape, kept, anyway=True, run=run) as (place, index):
                slot = (self._slot(shape, place) // run).bare
                dim = len(type_.shape) - 1 if width > 1 else None
                at = self._place(value, index)
                source = operand_leaf(self.scope, attrs, at, Index(), dim, width)
                if self.scope.plan.places[value] is Place.COUNTED:
                    with out.unrolled("v", width) as v:
                        out.line(f"h{value}[{slot}][{v}] = {counted(source.element, source.each_inside)};")
                    continue
                if (spread := spread_leaf(self.scope, attrs, at, dim, width)) is not None:
                    with out.block():
                        apart = width * spread.step
                        out.line(f"const Vec<{c_type(type_.dtype)}, {apart}> run = {loaded(apart, spread.leaf)};")
                        with out.unrolled("v", width) as v:
                            out.line(f"h{value}[{slot}][{v}] = run[{v} * {spread.step} + {spread.first}];")
                    continue
                if not source.whole and width > 1:
                    with out.unrolled("v", width) as v:
                        element = f"{source.pointer}[{source.element}]"
                        zero = f"from_float<{c_type(type_.dtype)}>(0.0f)"
                        found = f"{source.each_inside} ? {element} : {zero}" if source.each_inside else element
                        out.line(f"h{value}[{slot}][{v}] = {found};")
                    continue
                out.line(f"h{value}[{slot}] = {loaded(width, source, self._load(attrs))};")

    def _load(self, attrs: InIterAttrs) -> str:
        """The function of the device library that reads an operand: past L1, and first to go from L2, where nobody
        reads it again and there is little of it, or little is written beside it."""
        reduced = bool(self.resident.dims)
        if self._is_once(attrs) and (self._once_bytes <= ONCE_BYTES or (reduced and self._gathers)):
            return "load_once"
        ordered = self.resident.together and not self.resident.behind  # else compilers find room for what is behind
        return "load_now" if ordered and reduced else "load"

    def _is_once(self, attrs: InIterAttrs) -> bool:
        return read_once(self.scope.block, attrs) and attrs.arg not in self.overlap.again

    @cached_property
    def _once_bytes(self) -> int:
        """Of all that is read only once."""
        args = {attrs.arg for attrs in self.inputs.values() if self._is_once(attrs)}
        return sum(self.scope.block.args[arg].nbytes for arg in args)

    @property
    def _gathers(self) -> bool:
        """Whether it writes less than half of what it reads."""
        return 2 * sum(t.nbytes for t in self.outputs) < self._once_bytes

    def _compute(self, kept: Multi) -> None:
        """Results that wait for no reduction are on their way while rows are reduced."""
        savers = list(enumerate(self.scope.block.savers))
        waiting = self._waiting()
        early = [saver for saver in savers if waiting.isdisjoint(saver[1].inputs)]
        if early:
            self._wait()
            self._saves(early, kept)
            self._forget()
        for index, op in enumerate(self.scope.block.ops):
            if _reduces(op.kind):
                self._reduce(index)
        self._wait()
        self._loads([v for v in self.inputs if v in self.resident.behind], kept)
        self._saves([saver for saver in savers if saver not in early], kept)

    def _waiting(self) -> set[int]:
        """The values that are computed from a reduction, or from what is asked for behind the reductions."""
        found = {*self.resident.behind}
        for op, values in self.scope.block.definitions():
            if _reduces(op.kind) or not found.isdisjoint(op.inputs):
                found.update(values)
        return found

    def _saves(self, savers: list[tuple[int, Op]], kept: Multi) -> None:
        for number, op in savers:
            assert isinstance(op.attrs, OutSaverAttrs)
            self._save(number, op.inputs[0], op.attrs, self.outputs[number], kept)

    def _reader(self, at: Multi, width: int) -> Reader:
        """A reader for which inputs and reductions are registers, at this place along the reduced axes."""
        bound = {}
        for value, op in self.scope.ops.items():
            if value not in self.inputs and not _reduces(op.kind):
                continue
            shape = self._shape(value)
            slot, element = self._slot(shape, at), named("v", self.resident.vector(shape))
            if value in self.inputs:
                run = self.resident.run(shape)
                bound[value] = f"to_float(h{value}[{(slot // run).bare}][{(slot % run + element).bare}])"
            else:
                bound[value] = f"r{value}[{(slot * self.resident.vector(shape) + element).bare}]"
        return Reader(self.scope, width, bound)

    def _read(self, reader: Reader, value: int) -> str:
        """A value in registers: its elements have no place but the vector."""
        shape = self._shape(value)
        rank = max(len(shape), len(self.scope.shape(value)))
        return reader.read(value, (Index(),) * rank, rank - 1 if self.resident.vector(shape) > 1 else None)

    # Reductions

    def _reduce(self, index: int) -> None:
        scope, op = self.scope, self.scope.block.ops[index]
        value, operands = scope.first[index], ", ".join(f"%{v}" for v in op.inputs)
        self.out.line(f"// %{value} = {op.kind.value}({operands}): {scope.block.types[value]}")
        if isinstance(op.attrs, RunningAttrs):
            self._fold(f"r{value}", value, op.inputs, "sum", op.attrs)
            return
        if op.kind is not OpKind.RESCALED_SUM:
            self._fold(f"r{value}", value, op.inputs, "max" if op.kind is OpKind.MAX else "sum")
            return
        shift = op.inputs[1]
        if shift not in self.tops:
            self.tops.add(shift)
            self._fold(f"top{shift}", value, (shift,), "max")
        self._fold(f"r{value}", value, op.inputs, "sum")

    def _fold(
        self, target: str, result: int, operands: tuple[int, ...], kind: str, running: RunningAttrs | None = None
    ) -> None:
        """`target` = the sum or the maximum of a value over its rows or columns, shrunk by a shift if there is one, of
        which `result` has as many as a thread is left with; or its sums up to every element."""
        out, resident, left = self.out, self.resident, self._shape(result)
        shapes = [self.scope.shape(v) for v in operands]
        width = max(resident.vector(s) for s in shapes)
        results = 1 if resident.rows and running is None else width
        count = results * resident.count(left)
        start = "NEGATIVE_INFINITY" if kind == "max" else "0.0f"
        out.line(f"float {target}[{count}];")
        with out.unrolled("v", count) as v:
            out.line(f"{target}[{v}] = {start};")
        longest = max(shapes, key=resident.count)
        with self._slots(longest, (Index(),) * len(resident.tile)) as (at, _), out.block():
            reader = self._reader(at, width)
            found = [self._read(reader, o) for o in operands]
            out.lines(reader.loads)
            with out.unrolled("v", width):
                out.lines(reader.body)
                cell = f"{target}[{(self._slot(left, at) * results + named('v', results)).bare}]"
                if len(operands) > 1:
                    top = f"top{operands[1]}[{'v' if not resident.rows and resident.vector(shapes[1]) > 1 else '0'}]"
                    found[0] = f"rescaled({found[0]}, {found[1]}, {top})"
                out.line(f"{cell} = maximum({cell}, {found[0]});" if kind == "max" else f"{cell} += {found[0]};")
        if running is not None:
            self._run(target, count // width, width, running)
        elif resident.rows:
            out.line(f"{target}[0] = {self._collective(kind, f'{target}[0]')};")
        elif resident.shared:
            self._share(kind, target, results)
        self._forget()

    def _forget(self) -> None:
        """Nothing that is computed of long inputs stays in registers, if there are none for it."""
        if self.resident.computed_anew:
            early = (v for v in self.inputs if v not in self.resident.behind)
            shapes = {v: self._shape(v) for v in early}
            long = [v for v, s in shapes.items() if self.resident.long(s) and self.resident.vector(s) > 1]
            self.out.lines([f"forget(h{v});" for v in long])

    def _run(self, target: str, slots: int, width: int, attrs: RunningAttrs) -> None:
        """Elements of rows or columns become the sums up to them."""
        way = f"{str(attrs.backward).lower()}, {str(attrs.exclusive).lower()}"
        if not self.resident.shared:
            self.out.line(f"run_columns<{slots}, {width}, {way}>({target});")
            return
        if not self.resident.rows:
            shares = f"{self.resident.vectors}, {self._sets}, {slots}, {width}"
            self.out.line(f"run_shared_columns<{shares}, {way}>({target}, {self._column_scratch()});")
            return
        warps, groups = self._row_warps, self.resident.warps // self._row_warps
        at = named("row", groups) * (warps * slots) + self.scratch * self.resident.warps
        self.scratch += slots
        team = "nullptr, 0" if warps == 1 else f"scratch + {at.bare}, {'0' if groups == 1 else '1 + row'}"
        self.out.line(f"run_rows<{warps}, {slots}, {width}, {way}>({target}, {team});")

    def _share(self, kind: str, target: str, width: int) -> None:
        """Partial results of columns become one."""
        shares = f"{self.resident.vectors}, {self._sets}, {width}"
        self.out.line(f"columns_{kind}<{shares}>({target}, {self._column_scratch()});")

    def _column_scratch(self) -> str:
        """For partial results of columns."""
        if self._sets == 1:
            return "nullptr"
        self.scratch += 1
        return f"scratch + {(self.scratch - 1) * self._scratch_each}"

    def _collective(self, kind: str, value: str) -> str:
        """Partial results of a row become one."""
        warps, groups = self._row_warps, self.resident.warps // self._row_warps
        if warps == 1:
            return f"warp_{kind}({value})"
        at = named("row", groups) * warps + self.scratch * self.resident.warps
        self.scratch += 1
        barrier = "0" if groups == 1 else "1 + row"
        return f"team_{kind}<{warps}>({value}, scratch + {at.bare}, {barrier})"

    # Results

    def _save(self, number: int, value: int, attrs: OutSaverAttrs, type_: TensorType, kept: Multi) -> None:
        self.out.line(f"// output {number} = %{value}")
        found = parts(self.scope, value)
        width = self.resident.vector(self._shape(found[0].source))
        for group in [found] if alternate(found, width) else [[part] for part in found]:
            shape = self._shape(group[0].source)
            once = self.resident.shared and not self.resident.long(shape)
            with self.out.block("if (place == 0)") if once else nullcontext(), self._slots(shape, kept) as (at, place):
                run = self._leaf(group[0], number, attrs, type_, place, len(group))
                if run.whole or len(group) == 1:
                    self._save_vector(group, run, type_, at)
                    continue
                for part in group:
                    self._save_vector([part], self._leaf(part, number, attrs, type_, place), type_, at)

    def _leaf(
        self, part: Part, number: int, attrs: OutSaverAttrs, type_: TensorType, place: Multi, together: int = 1
    ) -> Leaf:
        """Where a vector of a result is saved; of so many results `together`, which take turns."""
        width = self.resident.vector(self._shape(part.source))
        whole = together > 1 or part.keeps(width)
        at = place if whole else (*place[:-1], place[-1] + named("v", width))
        index, count = part.at(self._place(part.source, at)), width * together if whole else 1
        leaf = output_leaf(self.scope, attrs, f"o{number}", index, part.whole, type_, count)
        return leaf if whole else replace(leaf, whole=False, element=leaf.offset, each_inside=leaf.inside)

    def _save_vector(self, group: list[Part], leaf: Leaf, type_: TensorType, at: Multi) -> None:
        """A vector of a result; of several, whose elements take turns, one run."""
        width = self.resident.vector(self._shape(group[0].source))
        with self.out.block():
            reader = self._reader(at, width)
            store_vector(self.out, reader, [self._read(reader, part.source) for part in group], leaf, type_.dtype)


def _reduces(kind: OpKind) -> bool:
    return kind in FOLDS
