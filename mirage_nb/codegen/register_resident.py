"""The printer of resident programs: every statement as it stands, through the device library.

In: a resident program, the scope in which its values are read. Out: the body of a `__global__` function. An operand v
is `h<v>[slot][element]` as it is stored, registers of results are `<name>[slot and element]`; what is computed from
them element by element is never stored. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import assert_never

from mirage_nb.codegen.lookup import number_of
from mirage_nb.codegen.maps import each, store_vector
from mirage_nb.codegen.reader import Reader, counted, loaded
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.ir import AccumKind, BlockGraph, OpKind
from mirage_nb.optimize.access import Leaf, Scope, operand_leaf, part_leaf
from mirage_nb.optimize.around import around
from mirage_nb.optimize.tables import line_leaves, table_leaf
from mirage_nb.tile.index import Index, Multi, named
from mirage_nb.tile.resident import program as resident
from mirage_nb.tile.resident.program import ResidentProgram, deepest, result, within
from mirage_nb.tile.roles.program import flat
from mirage_nb.tile.rules.placing import parts
from mirage_nb.tile.rules.sharing import Extents, Vectors
from mirage_nb.tile.rules.sketch import FOLDS


class ResidentText:
    """Writes the body of one kernel. asked: conditions that hold where it is at; aligned: the vectors that were read
    there for operands that lie around such, and their names."""

    def __init__(self, out: Writer, scope: Scope, program: ResidentProgram) -> None:
        self.out, self.scope, self.program = out, scope, program
        self.layout, self.forms = program.layout, program.forms
        self.asked: tuple[str, ...] = ()
        self.aligned: dict[str, str] = {}
        self.wide = {s.value: s.width for s in flat(program.code) if isinstance(s, resident.Load)}
        self.finds = {s.value: s for s in flat(program.code) if isinstance(s, resident.Find)}

    def emit(self) -> None:
        """The statements."""
        if self.program.scratch:
            self.out.line(f"MIRAGE_SHARED(float, scratch, {self.program.scratch});")
        if self.layout.shared:
            self._names()
        self._body(self.program.code)

    def _names(self) -> None:
        """What a thread shares, and its place among those that do."""
        out, layout = self.out, self.layout
        if not layout.teams and layout.vectors > 1:
            out.line(f"const int place = thread / {layout.vectors}, column = thread % {layout.vectors};")
        elif layout.teams and layout.groups > 1:
            out.line(f"const int row = thread / {layout.lanes}, place = thread % {layout.lanes};")
        else:
            out.line("const int place = thread;")

    def _body(self, statements: tuple[resident.Statement, ...]) -> None:
        for statement in statements:
            match statement:
                case resident.Depend():
                    self.out.line("grid_dependency_wait();")
                case resident.Each(body, asked):
                    self.asked, self.aligned = asked, {}
                    with each(self.out, self.scope, Vectors(self.layout.kept, self.layout.width)):
                        with self.out.block(f"if ({' && '.join(asked)})") if asked else nullcontext():
                            self._body(body)
                    self.asked, self.aligned = (), {}
                case resident.Task(body=body):
                    self.out.line(f"// {comment(self.scope.block, statement)}")
                    self._body(body)
                case resident.Find():
                    self._find(statement)
                case resident.Load():
                    self._load(statement)
                case resident.Fold():
                    self._fold(statement)
                case resident.Running():
                    self._run(statement)
                case resident.Forget(values):
                    self.out.lines([f"forget(h{v});" for v in values])
                case resident.Save():
                    self._save(statement)
                case _:
                    assert_never(statement)

    @contextmanager
    def _slots(self, form: Extents, *, anyway: bool = False, run: int = 1) -> Iterator[tuple[Multi, Multi]]:
        """All vectors of a value that this thread holds. anyway: without a look at whether there is one; run: so many
        of them at once."""
        layout = self.layout
        with self.out.unrolled("s", layout.count(form) // run) as slot:
            at, index = layout.held(form, slot, anyway=anyway, run=run)
            guarded = layout.ragged(form) and not anyway
            inside = [f"{index[dim].bare} < {layout.along(form, dim)}" for dim in layout.dims if guarded]
            with self.out.block(f"if ({inside[0]})") if inside else nullcontext():
                yield at, index

    # Operands

    def _find(self, find: resident.Find) -> None:
        out, layout, value, table = self.out, self.layout, find.value, self.program.table(find.value)
        assert table is not None
        form, shape = self.forms[value], self.scope.shape(value)
        run, many = find.width // layout.vector(form), find.width if find.each else 1
        target, count = f"f{value}", layout.count(form) // run * many
        out.line(f"int {target}[{count}];  // rows of %{value}")
        with self._slots(form, anyway=True, run=run) as (place, index):
            slot, dim = layout.slot(form, place) // run, deepest(shape) if find.width > 1 else None
            numbers, at = self.program.numbers[find.numbers], within(index, form, shape)
            leaves = line_leaves(self.scope, table, numbers, at, dim, find.width)
            inside = (leaves[0].each_inside if find.each else leaves[0].inside).without(self.asked)
            own = [f"to_float({n.pointer}[{n.element if find.each else n.offset}])" for n in leaves]
            with out.unrolled("v", many):
                row = f"{target}[{(slot * many + named('v', many)).bare}]"
                if inside:
                    out.line(f"{row} = -1;")
                apart = inside or numbers.formula is not None  # names of its own
                with out.block(f"if ({inside})" if inside else "") if apart else nullcontext():
                    statements, number = number_of(own, numbers.formula)
                    out.lines(statements)
                    out.line(f"{row} = row_named({number}, {find.rows});")

    def _operand(self, value: int, slot: Index, at: Multi, dim: int | None, width: int) -> Leaf:
        """Where a vector of an operand lies; of one that is looked up, in the rows that were found in this slot."""
        if (table := self.program.table(value)) is not None:
            return table_leaf(self.scope, table, self.finds[value], slot, at, dim, width)
        return operand_leaf(self.scope, self.scope.reads[value], at, Index(), dim, width)

    def _load(self, load: resident.Load) -> None:
        out, layout, value, width = self.out, self.layout, load.value, load.width
        attrs, type_, form = self.scope.reads[value], self.scope.block.types[value], self.forms[value]
        run = width // layout.vector(form)
        out.line(f"Vec<{c_type(type_.dtype)}, {width}> h{value}[{layout.count(form) // run}];  // {type_}, %{value}")
        with self._slots(form, anyway=True, run=run) as (place, index):
            slot = layout.slot(form, place) // run
            target = f"h{value}[{slot.bare}]"
            dim = deepest(type_.shape) if width > 1 else None
            at = within(index, form, type_.shape)
            source = self._operand(value, slot, at, dim, width).without(self.asked)
            element = c_type(type_.dtype)
            match load.access:
                case resident.Access.COUNTED:
                    with out.unrolled("v", width) as v:
                        out.line(f"{target}[{v}] = {counted(source.element, source.each_inside)};")
                case resident.Access.AROUND:
                    lies = around(self.scope, attrs, at, dim, width)
                    assert lies is not None
                    known = self.aligned if layout.count(form) == run else {}  # names last as long as a loop's body
                    read = [self._aligned(known, element, lies.width, leaf) for leaf in lies.vectors]
                    out.line(f"{target} = {{{', '.join(f'{read[n]}[{place}]' for n, place in lies.places)}}};")
                case resident.Access.EACH:
                    with out.unrolled("v", width) as v:
                        found = f"{source.pointer}[{source.element}]"
                        zero = f"from_float<{element}>(0.0f)"
                        found = f"{source.each_inside} ? {found} : {zero}" if source.each_inside else found
                        out.line(f"{target}[{v}] = {found};")
                case access:
                    out.line(f"{target} = {loaded(width, source, access.value)};")

    def _aligned(self, known: dict[str, str], element: str, width: int, leaf: Leaf) -> str:
        """The name of an aligned vector, which is read where it is first asked for."""
        vector = loaded(width, leaf.without(self.asked))
        if vector not in known:
            known[vector] = f"a{len(known)}"
            self.out.line(f"const Vec<{element}, {width}> {known[vector]} = {vector};")
        return known[vector]

    def _reader(self, at: Multi, width: int) -> Reader:
        """A reader for which operands and reductions are registers, at this place along the reduced axes."""
        bound, layout = {}, self.layout
        for value in (v for v, op in self.scope.ops.items() if v in self.wide or op.kind in FOLDS):
            slot, element = layout.slot(form := self.forms[value], at), named("v", each := layout.vector(form))
            if value in self.wide:
                run = self.wide[value] // each
                bound[value] = f"to_float(h{value}[{(slot // run).bare}][{(slot % run + element).bare}])"
            else:
                bound[value] = f"{result(value)}[{(slot * each + element).bare}]"
        return Reader(self.scope, width, bound)

    def _read(self, reader: Reader, value: int) -> str:
        """A value in registers: its elements have no place but the vector."""
        form = self.forms[value]
        rank = max(len(form), len(self.scope.shape(value)))
        return reader.read(value, (Index(),) * rank, rank - 1 if self.layout.vector(form) > 1 else None)

    # Reductions

    def _fold(self, fold: resident.Fold) -> None:
        out, layout, target = self.out, self.layout, fold.result
        forms = [self.forms[v] for v in fold.operands]
        width, results, largest = max(map(layout.vector, forms)), layout.vector(fold.form), fold.kind is AccumKind.MAX
        count = results * layout.count(fold.form)
        out.line(f"float {target}[{count}];")
        with out.unrolled("v", count) as v:
            out.line(f"{target}[{v}] = {'NEGATIVE_INFINITY' if largest else '0.0f'};")
        longest = max(forms, key=layout.count)
        with self._slots(longest) as (at, _), out.block():
            reader = self._reader(at, width)
            found = [self._read(reader, o) for o in fold.operands]
            out.lines(reader.loads)
            with out.unrolled("v", width):
                out.lines(reader.body)
                cell = f"{target}[{(layout.slot(fold.form, at) * results + named('v', results)).bare}]"
                if fold.top:
                    top = "v" if not layout.rows and layout.vector(forms[1]) > 1 else "0"
                    found[0] = f"rescaled({found[0]}, {found[1]}, {fold.top}[{top}])"
                out.line(f"{cell} = maximum({cell}, {found[0]});" if largest else f"{cell} += {found[0]};")
        kind = "max" if largest else "sum"
        match fold.combine:
            case resident.Team(1):
                with out.unrolled("v", count) as v:
                    out.line(f"{target}[{v}] = warp_{kind}({target}[{v}]);")
            case resident.Team(warps) if count > 1:
                out.line(f"team_{kind}<{warps}>({target}, {self._team(fold.combine, warps * count)});")
            case resident.Team(warps):
                out.line(f"{target}[0] = team_{kind}<{warps}>({target}[0], {self._team(fold.combine, warps)});")
            case resident.Columns(vectors, sets):
                shares = f"{vectors}, {sets}, {results}"
                out.line(f"columns_{kind}<{shares}>({target}, {self._scratch(fold.combine)});")

    def _run(self, run: resident.Running) -> None:
        layout, target = self.layout, run.result
        slots, width = layout.count(run.form), layout.vector(run.form)
        way = f"{str(run.backward).lower()}, {str(run.exclusive).lower()}"
        match run.combine:
            case resident.Team(warps):
                team = "nullptr, 0" if warps == 1 else self._team(run.combine, warps * slots)
                self.out.line(f"run_rows<{warps}, {slots}, {width}, {way}>({target}, {team});")
            case resident.Columns(vectors, sets):
                shares = f"{vectors}, {sets}, {slots}, {width}"
                self.out.line(f"run_shared_columns<{shares}, {way}>({target}, {self._scratch(run.combine)});")
            case _:
                self.out.line(f"run_columns<{slots}, {width}, {way}>({target});")

    def _team(self, team: resident.Team, floats: int) -> str:
        """The scratch and the barrier of a thread's team, each of which has so many floats."""
        at = named("row", self.layout.groups) * floats + team.scratch
        return f"scratch + {at.bare}, {f'{team.barrier} + row' if team.barrier else '0'}"

    def _scratch(self, columns: resident.Columns) -> str:
        return "nullptr" if columns.sets == 1 else f"scratch + {columns.scratch}"

    # Results

    def _save(self, save: resident.Save) -> None:
        every = parts(self.scope.block, self.scope.block.savers[save.output].inputs[0])
        found, type_ = [every[part] for part in save.parts], self.program.outputs[save.output]
        form = self.forms[found[0].source]
        width = self.layout.vector(form)
        with self.out.block("if (place == 0)") if save.first else nullcontext(), self._slots(form) as (at, index):
            leaf = part_leaf(self.scope, save.output, found, type_, form, index, width).without(self.asked)
            with self.out.block():
                reader = self._reader(at, width)
                results = [self._read(reader, part.source) for part in found]
                store_vector(self.out, reader, results, leaf, type_.dtype)


def comment(block: BlockGraph, task: resident.Task) -> str:
    """What a task computes or saves, in muGraph terms."""
    op, values = [*block.definitions()][task.op]
    operands = ", ".join(f"%{v}" for v in op.inputs)
    if op.kind is OpKind.OUT_SAVER:
        return f"output {sum(before.kind is op.kind for before in block.ops[: task.op])} = {operands}"
    return f"%{values[0]} = {op.kind.value}({operands}): {block.types[values[0]]}"
