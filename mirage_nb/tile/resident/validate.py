"""What is wrong with a resident program, found without numbers.

In: a resident program, the target that it is made for. Out: findings in words, none for a valid program, each with the
statement that it is about: threads that do not share the tile out; values that lie otherwise than what they are made
of; vectors, registers, scratch and barriers that there are not, or that two folds take; statements that are not what
the block has; and what `resident_run` finds: reads of registers that nobody filled, or before the kernel in front has
ended, elements that nobody, or somebody twice, saves. Invariant: what has no findings stores every element of its
outputs once, of what was read before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mirage_nb.ir import AccumKind, BlockGraph, InIterAttrs, Op, OpKind, RunningAttrs, ThreadGraph
from mirage_nb.targets import Target
from mirage_nb.tile.lines import line_of
from mirage_nb.tile.resident import program as resident
from mirage_nb.tile.resident.program import ResidentProgram, deepest, result
from mirage_nb.tile.resident.run import Run
from mirage_nb.tile.roles.program import LANES, flat
from mirage_nb.tile.rules.boxes import read_once
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.rules.placing import alternate, parts
from mirage_nb.tile.rules.register_resident import (
    LONE_BUDGET,
    PLACING,
    REGISTER_BUDGET,
    REGISTER_BYTES,
    VECTOR_BYTES,
    WIDTHS,
    partial_sets,
)
from mirage_nb.tile.rules.sharing import SUM_BYTES, Extents
from mirage_nb.tile.rules.sketch import FOLDS
from mirage_nb.tile.rules.teams import RESERVED_BYTES
from mirage_nb.tile.staged.program import KINDS
from mirage_nb.tile.staged.validate import NONSENSE

BARRIERS = 16
"""Of a block, by number."""
MOST_WARPS = 32


def validate(program: ResidentProgram, target: Target) -> tuple[str, ...]:
    """Everything that is wrong, in words; () if nothing is."""
    try:
        return _Validator(program).findings(target)
    except NONSENSE as error:
        return (f"it makes no sense: {error!r}",)


class _Validator:
    """Looks at one program. made: operators by their values; place: of these among their results; results: reductions
    by their registers."""

    def __init__(self, program: ResidentProgram) -> None:
        self.program, self.block, self.layout, self.forms = program, program.block, program.layout, program.forms
        self.made = {v: op for op, values in self.block.definitions() for v in values}
        self.place = {v: i for _, values in self.block.definitions() for i, v in enumerate(values)}
        self.results = {result(v): v for v, op in self.made.items() if op.kind in FOLDS}

    def findings(self, target: Target) -> tuple[str, ...]:
        found = [*self._layout(), *self._forms(), *self._each(self.program.code, None), *self._scratch(target)]
        if found:  # what follows takes names for granted
            return tuple(dict.fromkeys(found))
        run = Run(self.program)
        run.run()
        return (*run.found, *self._registers(run))

    def _layout(self) -> Iterator[str]:
        """Whether threads share the tile out."""
        layout, folds = self.layout, [op for op in self.block.ops if op.kind in FOLDS]
        tile, kept = layout.tile, layout.kept
        if layout.dims != tuple(sorted({len(tile) + _axis(op, self.block) for op in folds})):
            yield f"reductions are along other axes than {layout.dims}"
        if layout.width not in WIDTHS or (tile if layout.teams else kept)[-1] % layout.width:
            yield f"vectors of {layout.width} do not fit into {tile}"
        if not 1 <= layout.warps <= MOST_WARPS or layout.lanes < 1:
            yield f"{layout.warps} warps, {layout.lanes} threads for each result"
            return
        if layout.together not in (MOST_WARPS // 2, MOST_WARPS):
            yield f"registers for {layout.together} warps"
        if not layout.shared:
            slots, shared, threads = math.prod(tile[dim] for dim in layout.dims), 1, 1
        else:
            vectors = tile[layout.dims[-1]] // layout.each(tile)
            slots, threads = -(-vectors // layout.lanes), layout.threads
            shared = layout.lanes * (math.prod(kept) if layout.teams else layout.vectors)
        if layout.slots != slots or shared != threads or (layout.teams and layout.lanes % LANES):
            yield f"{layout.threads} threads have {layout.slots} vectors each, of {tile}"
        running = any(op.kind is OpKind.RUNNING_SUM for op in folds)
        if layout.blocked is not (layout.shared and not layout.rows and running):
            yield "elements of a thread lie together, or do not"

    def _forms(self) -> Iterator[str]:
        """Whether operators find elements that belong together in one thread."""
        tile = self.layout.tile
        for value, op in self.made.items():
            form, own = self.forms[value], self._padded(value)
            if op.kind is OpKind.RESHAPE and form != self.forms[op.inputs[0]]:
                yield f"%{value} lies otherwise than what it is a view of"
            if op.kind in PLACING or op.kind is OpKind.CONST:
                continue
            fits = len(own) == len(tile) and all(self._lies(n, dim) for dim, n in enumerate(own))
            if not fits or math.prod(form) != self.block.types[value].elements:
                yield f"%{value} lies in no such tile: {form}"
            elif self._made_of(op, self.place[value]) not in (own, None):
                yield f"%{value} lies as {form}, what it is made of otherwise"

    def _lies(self, extent: int, dim: int) -> bool:
        """Whether values have so many elements along an axis: none, or all, or, where warps share rows, vectors."""
        layout, most = self.layout, self.layout.tile[dim]
        shorter = layout.rows and dim == layout.dims[-1] and extent < most and extent % layout.width == 0
        return extent in (1, most) or shorter

    def _made_of(self, op: Op, result: int) -> Extents | None:
        """How a result of what an operator reads lies; None where that is nothing, or a number, which lies anywhere."""
        if not op.inputs or any(map(self._literal, op.inputs)):
            return None
        lie = [self._padded(v) for v in op.inputs]
        if isinstance(op.body, ThreadGraph):
            for inner in op.body.ops:
                lie.append(np.broadcast_shapes((), *(lie[v] for v in inner.inputs)))
            return lie[op.body.outputs[result]]
        whole, axis = np.broadcast_shapes(*lie), _axis(op, self.block) + len(self.layout.tile)
        folded = op.kind in FOLDS and op.kind is not OpKind.RUNNING_SUM
        return tuple(1 if folded and dim == axis else extent for dim, extent in enumerate(whole))

    def _padded(self, value: int) -> Extents:
        form = self.forms[value]
        return (*(1,) * (len(self.layout.tile) - len(form)), *form)

    def _literal(self, value: int) -> bool:
        return self.program.places[value] is Place.LITERAL

    def _each(self, body: tuple[resident.Statement, ...], task: Op | None) -> Iterator[str]:
        """What is wrong with each statement."""
        for statement in body:
            match statement:
                case resident.Task(op):
                    yield from self._each(statement.body, self.block.ops[op])
                    continue
                case resident.Find():
                    wrong = self._find(statement)
                case resident.Load():
                    wrong = self._load(statement)
                case resident.Fold() | resident.Running():
                    wrong = self._fold(statement, task)
                case resident.Save():
                    wrong = self._save(statement, task)
                case _:
                    yield from self._each(getattr(statement, "body", ()), task)
                    continue
            yield from (f"{line_of(statement)}: {what}" for what in wrong)

    def _find(self, find: resident.Find) -> Iterator[str]:
        """Whether it asks for what its table is numbered by, and no number is taken that names no row."""
        table, form = self.program.table(find.value), self.forms[find.value]
        if table is None:
            yield f"%{find.value} is in no table"
            return
        if (find.numbers, find.rows) != (table.numbers, table.found.rows):
            yield f"it is found by numbers {table.numbers}, of {table.found.rows} rows"
        if find.width != max(self.layout.vector(form), self.layout.run(form)):
            yield f"vectors of {find.width} do not fit"
        elif find.each is not (find.width > 1 and not self._lies_whole(table, find.width)):
            yield f"vectors of {find.width} have one number, or do not"

    def _lies_whole(self, table: resident.Table, width: int) -> bool:
        """Whether vectors of an operand lie within rows of its table."""
        return table.whole(deepest(self.block.types[table.value].shape), width)

    def _load(self, load: resident.Load) -> Iterator[str]:
        layout, form, attrs = self.layout, self.forms[load.value], self.made[load.value].attrs
        if not isinstance(attrs, InIterAttrs) or self._literal(load.value):
            yield f"%{load.value} is no operand"
            return
        nbytes = load.width * self.block.types[load.value].dtype.size
        if load.width != max(layout.vector(form), layout.run(form)) or nbytes > 2 * VECTOR_BYTES:
            yield f"vectors of {load.width} do not fit"
        if (load.access is resident.Access.COUNTED) is not (self.program.places[load.value] is Place.COUNTED):
            yield "its elements are their places, or are not"
        if load.width == 1 and load.access in (resident.Access.AROUND, resident.Access.EACH):
            yield "there is no vector"
        table = self.program.table(load.value)
        if load.access is resident.Access.ONCE and (table is not None or not read_once(self.block, attrs)):
            yield f"%{load.value} is read again"
        if table is None:
            return
        if load.access not in (resident.Access.LOAD, resident.Access.EACH):
            yield f"%{load.value} is looked up"
        elif load.access is resident.Access.LOAD and load.width > 1 and not self._lies_whole(table, load.width):
            yield f"vectors of {load.width} lie in more than one row"

    def _fold(self, fold: resident.Fold | resident.Running, task: Op | None) -> Iterator[str]:
        """Whether it is a part of its task."""
        if task is None or replace(fold, combine=None) not in self._folds(task):
            yield "it is no part of this task"
        elif isinstance(fold, resident.Running) or task.kind is not OpKind.RUNNING_SUM:
            operand = self.forms[fold.operands[0]] if isinstance(fold, resident.Fold) else fold.form
            yield from self._combined(fold.combine, self.layout.combines(operand, fold.form))
        elif fold.combine is not None:
            yield "sums run before they are combined"

    def _folds(self, op: Op) -> Iterator[resident.Statement]:
        """What a reduction comes to, whoever combines it."""
        for name in (name for name, value in self.results.items() if self.made[value] is op):
            form, top = self.forms[self.results[name]], ""
            if isinstance(op.attrs, RunningAttrs):
                yield resident.Running(name, form, op.attrs.backward, op.attrs.exclusive, None)
            if op.kind is OpKind.RESCALED_SUM:
                shift = op.inputs[1]
                top, left = f"top{shift}", self.layout.reduced(self.forms[shift])
                yield resident.Fold(top, left, AccumKind.MAX, (shift,), None)
            yield resident.Fold(name, form, KINDS.get(op.kind, AccumKind.SUM), op.inputs, None, top)

    def _combined(self, combine: resident.Combine, parts: bool) -> Iterator[str]:
        """Whether the threads that share a result combine what they have, if they have parts of it."""
        layout = self.layout
        match combine:
            case resident.Team() | resident.Columns() if layout.shared and not parts:
                yield "threads have all of it"
            case resident.Team(warps, _, barrier):
                if not layout.teams or LANES * warps != layout.lanes:
                    yield f"{layout.lanes} threads share a row"
                named = range(1, BARRIERS + 1 - layout.groups) if warps > 1 and layout.groups > 1 else (0,)
                if barrier not in named:
                    yield f"{layout.groups} teams have no such barriers"
            case resident.Columns(vectors, sets):
                wanted = layout.vectors, int(partial_sets(layout.vectors, layout.lanes))
                if not layout.shared or layout.teams or (vectors, sets) != wanted:
                    yield f"{layout.lanes} threads share each of {layout.vectors} vectors of columns"
            case None if layout.shared and parts:
                yield "threads do not combine what they have"

    def _save(self, save: resident.Save, task: Op | None) -> Iterator[str]:
        if not 0 <= save.output < len(self.block.savers) or self.block.savers[save.output] is not task:
            yield f"there is no output {save.output}, or it is of another task"
            return
        found = parts(self.block, task.inputs[0])
        if not save.parts or not all(0 <= part < len(found) for part in save.parts):
            yield f"there are no parts {save.parts}"
            return
        form = self.forms[found[save.parts[0]].source]
        turns = alternate(found, self.layout.vector(form)) and save.parts == (*range(len(found)),)
        if len(save.parts) > 1 and not turns:
            yield "its elements do not take turns"
        if save.first is not (self.layout.shared and not self.layout.divided(form)):
            yield "it is saved by all threads that share it, or by one of several that have a part"

    def _scratch(self, target: Target) -> Iterator[str]:
        """Whether folds have scratch and barriers of their own."""
        layout, taken = self.layout, []
        for statement in flat(self.program.code):
            match statement:
                case resident.Fold(combine=resident.Team(warps, first)) if warps > 1:
                    floats = layout.warps * layout.count(statement.form)
                case resident.Running(combine=resident.Team(warps, first)) if warps > 1:
                    floats = layout.warps * layout.slots
                case (
                    resident.Fold(combine=resident.Columns(vectors, sets, first))
                    | resident.Running(combine=resident.Columns(vectors, sets, first))
                ) if sets > 1:
                    floats, warps = sets * vectors * layout.width, 1
                case _:
                    continue
            if first % math.gcd(warps, VECTOR_BYTES // SUM_BYTES):
                yield f"{line_of(statement)}: its scratch begins anywhere"
            taken.append((first, first + floats))
        teams = (getattr(statement, "combine", None) for statement in flat(self.program.code))
        named = sorted({team.barrier for team in teams if isinstance(team, resident.Team) and team.barrier})
        if any(other - one < layout.groups for one, other in pairwise(named)):
            yield "teams that are at different folds share a barrier"
        ends = [0, *(end for _, end in sorted(taken))]
        if any(first < end for (first, _), end in zip(sorted(taken), ends, strict=False)):
            yield "folds share scratch"
        if ends[-1] != self.program.scratch or ends[-1] * SUM_BYTES > target.shared_per_block - RESERVED_BYTES:
            yield f"{self.program.scratch} floats of scratch, {ends[-1]} are taken"

    def _registers(self, run: Run) -> Iterator[str]:
        """Whether a thread has room for what is still read when the last fold is done."""
        layout, held = self.layout, list[tuple[int, int, int]]()
        folds = [filled for name, (filled, _) in run.lives.items() if isinstance(name, str)]
        for name, (filled, last) in run.lives.items():
            value = self.results.get(name) if isinstance(name, str) else name
            if value is None or (isinstance(name, str) and not layout.long(self.forms[value])):
                continue
            size = SUM_BYTES if isinstance(name, str) else self.block.types[value].dtype.size
            registers = -(-layout.vector(self.forms[value]) * size // REGISTER_BYTES)
            held.append((filled, last, layout.count(self.forms[value]) * registers))
        most = REGISTER_BUDGET if layout.shared else LONE_BUDGET
        until = max(folds, default=0) if layout.shared else run.step
        for step in range(until):
            if (taken := sum(n for filled, last, n in held if filled <= step < last)) > most:
                yield f"{taken} registers for what a thread holds"
                return


def _axis(op: Op, block: BlockGraph) -> int:
    """The axis of a reduction, counted from the last one."""
    return getattr(op.attrs, "dim", 0) - len(block.types[op.inputs[0]].shape)
