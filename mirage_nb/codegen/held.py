"""Kernels that hold their tiles in registers: load everything, reduce, compute, store.

In: a block plan with a `Held`. Out: the statements of the kernel. An input v is `h<v>[slot][element]` as it is
stored, the result of a reduction `r<v>[element]`, the largest shift of a rescaled sum `top<v>[element]`; what
is computed from them element by element is never stored. Invariant: every thread that shares a row reaches
every barrier; no two reductions share scratch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from mirage_nb.codegen.dependence import Dependence
from mirage_nb.codegen.index import Index, linear, named, unravel
from mirage_nb.codegen.maps import Walk, each, output_leaf, store_vectors
from mirage_nb.codegen.reader import Reader, Scope, counted, loaded, operand_leaf
from mirage_nb.codegen.thread_values import Multi, broadcast_index, vector_reads
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.ir import InIterAttrs, Op, OpKind, OutSaverAttrs, TensorType, ThreadGraph
from mirage_nb.optimize.held import Held
from mirage_nb.optimize.layout import read_once
from mirage_nb.tile.placement import Place
from mirage_nb.tile.program import LANES
from mirage_nb.tile.sketch import REDUCTIONS


class HeldText:
    """Writes the body of one kernel."""

    def __init__(self, out: Writer, scope: Scope, held: Held, dependence: Dependence) -> None:
        self.out, self.scope, self.held, self.dependence = out, scope, held, dependence
        self.scratch = 0
        self.tops: set[int] = set()
        self.inputs = {
            values[0]: op.attrs
            for op, values in scope.block.definitions()
            if isinstance(op.attrs, InIterAttrs) and scope.plan.places[values[0]] is not Place.LITERAL
        }

    def emit(self, outputs: tuple[TensorType, ...]) -> None:
        """The whole body."""
        held = self.held
        if not held.rows:
            self.dependence.wait()
            with each(self.out, self.scope, Walk(held.kept, held.width)) as kept:
                self._loads(list(self.inputs), kept)
                self._compute(kept, outputs)
            return
        if self._row_warps > 1:
            rescaled = [op.inputs[1] for op in self.scope.block.ops if op.kind is OpKind.RESCALED_SUM]
            shared = sum(_reduces(op.kind) for op in self.scope.block.ops) + len(set(rescaled))
            self.out.line(f"MIRAGE_SHARED(float, scratch, {shared * held.warps});")
        groups = self.scope.threads // held.lanes
        if groups > 1:
            self.out.line(f"const int row = thread / {held.lanes}, place = thread % {held.lanes};")
        else:
            self.out.line("const int place = thread;")
        kept = (*unravel(named("row", groups), held.tile[:-1]), Index())
        late = [v for v, attrs in self.inputs.items() if attrs.arg in self.dependence.written]
        soon = self._soon() if held.together else frozenset[int]()
        early = sorted((v for v in self.inputs if v not in held.behind), key=soon.__contains__)
        self._loads([v for v in early if v not in late], kept)
        if not held.behind.issuperset(late):
            self.dependence.wait()
        self._loads([v for v in early if v in late], kept)
        self._compute(kept, outputs)

    def _soon(self) -> set[int]:
        """What the first reduction is computed from. Where blocks wait for nobody else it is asked for last: what
        stands behind something that is used at once waits with it."""
        needed: set[int] = set()
        for op, values in reversed(tuple(self.scope.block.definitions())):
            made = needed.intersection(values)
            if _reduces(op.kind):
                needed = set(op.inputs)
            elif made and isinstance(op.body, ThreadGraph):
                results = [op.body.outputs[self.scope.results[value]] for value in made]
                needed.update(op.inputs[v] for result in results for v, _ in vector_reads(op.body, result, None))
            elif made:
                needed.update(op.inputs)
        return needed

    @property
    def _row_warps(self) -> int:
        return self.held.lanes // LANES

    def _along(self, kept: Multi, slot: str, anyway: bool) -> Multi:
        """The index into the tile of a thread's vector `slot`; of the first one if `anyway` and there is none."""
        held = self.held
        at = named(slot, held.slots)
        if held.rows:
            at, vectors = at * held.lanes + named("place", held.lanes), held.tile[-1] // held.width
            if anyway and held.ragged:
                at = Index(((f"({at} < {vectors} ? {at} : 0)", vectors, 1),))
            at = at * held.width
        return (*kept[: held.dim], at, *kept[held.dim + 1 :])

    @contextmanager
    def _slots(self, shape: tuple[int, ...], kept: Multi, *, anyway: bool = False) -> Iterator[tuple[str, Multi]]:
        """All vectors of a value that this thread holds; yields the slot and its index into the tile. anyway: without
        a look at whether there is one."""
        held = self.held
        if not held.long(shape):
            yield "0", kept
            return
        with self.out.unrolled("s", held.slots) as slot:
            index = self._along(kept, slot, anyway)
            inside = f"if ({index[-1].bare} < {held.tile[-1]})"
            with self.out.block(inside) if held.ragged and not anyway else nullcontext():
                yield slot, index

    def _shape(self, value: int) -> tuple[int, ...]:
        """How the tile has a value's elements."""
        return self.held.kept if value in self.held.turned else self.scope.shape(value)

    def _place(self, value: int, index: Multi) -> Multi:
        """Where an element of the tile lies in a value."""
        at = broadcast_index(index, self._shape(value))
        lies = self.scope.shape(value)
        return unravel(linear(at, self.held.kept), lies) if value in self.held.turned else at

    def _loads(self, values: list[int], kept: Multi) -> None:
        """Everything is asked for before anything is used."""
        out, held = self.out, self.held
        for value in values:
            attrs, type_, shape = self.inputs[value], self.scope.block.types[value], self._shape(value)
            width = held.vector(shape)
            out.line(f"Vec<{c_type(type_.dtype)}, {width}> h{value}[{held.count(shape)}];  // {type_}, %{value}")
            with self._slots(shape, kept, anyway=True) as (slot, index):
                dim = len(type_.shape) - 1 if width > 1 else None
                at = self._place(value, index)
                source = operand_leaf(self.scope, attrs, at, Index(), dim, width)
                if self.scope.plan.places[value] is Place.COUNTED:
                    with out.unrolled("v", width) as v:
                        out.line(f"h{value}[{slot}][{v}] = {counted(source.element, source.each_inside)};")
                    continue
                if not source.whole and width > 1:
                    with out.unrolled("v", width) as v:
                        element = f"{source.pointer}[{source.element}]"
                        zero = f"from_float<{c_type(type_.dtype)}>(0.0f)"
                        found = f"{source.each_inside} ? {element} : {zero}" if source.each_inside else element
                        out.line(f"h{value}[{slot}][{v}] = {found};")
                    continue
                once = read_once(self.scope.block, attrs) and attrs.arg not in self.dependence.again
                load = "load_now" if held.together else "load_once" if once else "load"
                out.line(f"h{value}[{slot}] = {loaded(width, source, load)};")

    def _compute(self, kept: Multi, outputs: tuple[TensorType, ...]) -> None:
        """Results that wait for no reduction are on their way while rows are reduced."""
        savers = list(enumerate(self.scope.block.savers))
        waiting = self._waiting()
        early = [saver for saver in savers if waiting.isdisjoint(saver[1].inputs)]
        if early:
            self.dependence.wait()
            self._saves(early, outputs, kept)
        for index, op in enumerate(self.scope.block.ops):
            if _reduces(op.kind):
                self._reduce(index)
        self.dependence.wait()
        self._loads([v for v in self.inputs if v in self.held.behind], kept)
        self._saves([saver for saver in savers if saver not in early], outputs, kept)

    def _waiting(self) -> set[int]:
        """The values that are computed from a reduction, or from what is asked for behind the reductions."""
        found = {*self.held.behind}
        for op, values in self.scope.block.definitions():
            if _reduces(op.kind) or not found.isdisjoint(op.inputs):
                found.update(values)
        return found

    def _saves(self, savers: list[tuple[int, Op]], outputs: tuple[TensorType, ...], kept: Multi) -> None:
        for number, op in savers:
            assert isinstance(op.attrs, OutSaverAttrs)
            self._save(number, op.inputs[0], op.attrs, outputs[number], kept)

    def _reader(self, slot: str, width: int) -> Reader:
        """A reader for which inputs and reductions are registers."""
        bound = {}
        for value, op in self.scope.ops.items():
            shape = self._shape(value)
            element = "v" if self.held.vector(shape) > 1 else "0"
            if value in self.inputs:
                bound[value] = f"to_float(h{value}[{slot if self.held.long(shape) else '0'}][{element}])"
            elif _reduces(op.kind):
                bound[value] = f"r{value}[{element}]"
        return Reader(self.scope, width, bound)

    def _read(self, reader: Reader, value: int) -> str:
        """A value in registers: its elements have no place but the vector."""
        shape = self._shape(value)
        rank = max(len(shape), len(self.scope.shape(value)))
        return reader.read(value, (Index(),) * rank, rank - 1 if self.held.vector(shape) > 1 else None)

    # Reductions

    def _reduce(self, index: int) -> None:
        scope, op = self.scope, self.scope.block.ops[index]
        value, operands = scope.first[index], ", ".join(f"%{v}" for v in op.inputs)
        self.out.line(f"// %{value} = {op.kind.value}({operands}): {scope.block.types[value]}")
        if op.kind is not OpKind.RESCALED_SUM:
            self._fold(f"r{value}", op.inputs, "max" if op.kind is OpKind.MAX else "sum")
            return
        shift = op.inputs[1]
        if shift not in self.tops:
            self.tops.add(shift)
            self._fold(f"top{shift}", (shift,), "max")
        self._fold(f"r{value}", op.inputs, "sum")

    def _fold(self, target: str, operands: tuple[int, ...], kind: str) -> None:
        """`target` = the sum or the maximum of a value over its row or column, shrunk by a shift if there is one."""
        out, held = self.out, self.held
        shapes = [self.scope.shape(v) for v in operands]
        width = max(held.vector(s) for s in shapes)
        results = 1 if held.rows else width
        start = "NEGATIVE_INFINITY" if kind == "max" else "0.0f"
        out.line(f"float {target}[{results}];")
        with out.unrolled("v", results) as v:
            out.line(f"{target}[{v}] = {start};")
        longest = next((s for s in shapes if held.long(s)), shapes[0])
        with self._slots(longest, (Index(),) * len(held.tile)) as (slot, _), out.block():
            reader = self._reader(slot, width)
            found = [self._read(reader, o) for o in operands]
            out.lines(reader.loads)
            with out.unrolled("v", width):
                out.lines(reader.body)
                cell = f"{target}[{'0' if results == 1 else 'v'}]"
                if len(operands) > 1:
                    top = f"top{operands[1]}[{'v' if not held.rows and held.vector(shapes[1]) > 1 else '0'}]"
                    found[0] = f"rescaled({found[0]}, {found[1]}, {top})"
                out.line(f"{cell} = maximum({cell}, {found[0]});" if kind == "max" else f"{cell} += {found[0]};")
        if held.rows:
            out.line(f"{target}[0] = {self._collective(kind, f'{target}[0]')};")

    def _collective(self, kind: str, value: str) -> str:
        """Partial results of a row become one."""
        warps, groups = self._row_warps, self.held.warps // self._row_warps
        if warps == 1:
            return f"warp_{kind}({value})"
        at = named("row", groups) * warps + self.scratch * self.held.warps
        self.scratch += 1
        barrier = "0" if groups == 1 else "1 + row"
        return f"team_{kind}<{warps}>({value}, scratch + {at.bare}, {barrier})"

    # Results

    def _save(self, number: int, value: int, attrs: OutSaverAttrs, out_type: TensorType, kept: Multi) -> None:
        out, held, scope = self.out, self.held, self.scope
        names = [value]
        while scope.ops[names[-1]].kind is OpKind.RESHAPE:
            names.append(scope.ops[names[-1]].inputs[0])
        source = names.pop()
        shape = self._shape(source)
        width = held.vector(shape)
        out.line(f"// output {number} = %{value}")
        once = held.rows and not held.long(shape)
        with (
            out.block("if (place == 0)") if once else nullcontext(),
            self._slots(shape, kept) as (slot, at),
            out.block(),
        ):
            index = self._place(source, at)
            reader = self._reader(slot, width)
            result = self._read(reader, source)
            last = scope.shape(source)
            for name in reversed(names):
                index, last = unravel(linear(index, last), scope.shape(name)), scope.shape(name)
            leaf = output_leaf(scope, attrs, f"o{number}", index, last, out_type, width)
            store_vectors(out, reader, [(result, leaf)], out_type.dtype)


def _reduces(kind: OpKind) -> bool:
    return kind in REDUCTIONS
