"""The planner's last word on a block that holds its tiles in registers: its plan becomes a resident program.

In: the scope of a planned block, what may overlap, the types of its outputs. Out: a `ResidentProgram`: what is asked
for in which order and how, which threads combine what and where, what is saved when. Invariant: no thread reads what an
earlier launch writes, or stores to device memory, before it has waited for the kernel in front; no two reductions share
scratch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property

from mirage_nb.ir import AccumKind, InIterAttrs, OpKind, RunningAttrs, TensorType
from mirage_nb.optimize.access import Leaf, Scope, operand_leaf, part_leaf
from mirage_nb.optimize.around import around
from mirage_nb.optimize.overlap import Overlap
from mirage_nb.optimize.register_resident import Resident
from mirage_nb.optimize.tables import is_whole, numbers_of, tables_of
from mirage_nb.tile.index import Index, Multi
from mirage_nb.tile.resident import program as resident
from mirage_nb.tile.resident.program import ResidentProgram, deepest, result, within
from mirage_nb.tile.roles.program import LANES, flat
from mirage_nb.tile.rules.boxes import read_once
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.rules.placing import alternate, parts
from mirage_nb.tile.rules.register_resident import needed, partial_sets
from mirage_nb.tile.rules.sketch import FOLDS, sketch_of

ONCE_BYTES = 2**20
"""Of so little that is read only once, kernels of 2 us take 3 % less where it goes past L1. Of more it is a loss where
as much is written: a layer norm of 4096 x 4096 in f16 took 25.0 us with such loads and 24.6 without, on an H100."""


def resident_program(scope: Scope, overlap: Overlap, outputs: tuple[TensorType, ...]) -> ResidentProgram:
    """The program of a block that is planned as `Resident`."""
    return _Planner(scope, overlap, outputs).program()


class _Planner:
    """Writes one program. pending: nothing has waited for the kernel in front; scratch: floats that are taken."""

    def __init__(self, scope: Scope, overlap: Overlap, outputs: tuple[TensorType, ...]) -> None:
        assert isinstance(scope.plan.strategy, Resident)
        self.scope, self.block, self.overlap, self.outputs = scope, scope.block, overlap, outputs
        self.resident, self.layout, self.forms = (r := scope.plan.strategy), r.layout, r.forms
        self.pending, self.scratch = overlap.behind, 0
        self.tops: set[int] = set()
        self.parts = [parts(self.block, op.inputs[0]) for op in self.block.savers]
        self.inputs = {v: attrs for v, attrs in scope.reads.items() if scope.plan.places[v] is not Place.LITERAL}
        self.tables = {table.value: table for table in tables_of(self.block, scope.lookups, scope.windows)}

    def program(self) -> ResidentProgram:
        code = tuple(self._shared() if self.layout.shared else self._alone())
        overlap, places = self.overlap, self.scope.plan.places
        return ResidentProgram(
            self.block, places, self.forms, self.outputs, self.layout, self.scratch, code, overlap.late, overlap.behind,
            tuple(self.tables.values()), numbers_of(self.scope.lookups),
        )  # fmt: skip

    # -- when

    def _depend(self) -> Iterator[resident.Statement]:
        """A wait for the kernel in front, once."""
        if self.pending:
            self.pending = False
            yield resident.Depend()

    def _alone(self) -> Iterator[resident.Statement]:
        yield from self._depend()
        body = (*self._loads(self.inputs), *self._compute())
        yield resident.Each(body, self._asked(s for s in flat(body) if isinstance(s, resident.Save)))

    def _asked(self, saves: Iterable[resident.Save]) -> tuple[str, ...]:
        """What all of them ask of a whole vector, where a thread folds nothing."""
        if self.layout.dims:
            return ()
        leaves = [self._leaf(save.output, save.parts) for save in saves]
        return tuple(c for c in leaves[0].inside if all(c in one.inside and c in one.each_inside for one in leaves))

    def _shared(self) -> Iterator[resident.Statement]:
        """Everything is asked for before anything is used."""
        behind, late = self.resident.behind, {v for v, a in self.inputs.items() if a.arg in self.overlap.late}
        # Where blocks wait for nobody else, what the first reduction needs is asked for last: what stands behind
        # something that is used at once waits with it.
        soon = needed(sketch_of(self.block), 1) if self.resident.together else set[int]()
        early = sorted((v for v in self.inputs if v not in behind), key=soon.__contains__)
        yield from self._loads(v for v in early if v not in late)
        if not behind.issuperset(late):
            yield from self._depend()
        yield from self._loads(v for v in early if v in late)
        yield from self._compute()

    def _compute(self) -> Iterator[resident.Statement]:
        """Results that wait for no reduction are on their way while rows are reduced."""
        waiting = self._waiting()
        early = [number for number, op in enumerate(self.block.savers) if waiting.isdisjoint(op.inputs)]
        if early:
            yield from self._depend()
            yield from map(self._save, early)
            yield from self._forget()
        for index, op in enumerate(self.block.ops):
            if op.kind in FOLDS:
                yield resident.Task(index, tuple(self._reduce(index)))
        yield from self._depend()
        yield from self._loads(v for v in self.inputs if v in self.resident.behind)
        yield from (self._save(number) for number in range(len(self.block.savers)) if number not in early)

    def _waiting(self) -> set[int]:
        """The values that are computed from a reduction, or from what is asked for behind the reductions."""
        found = {*self.resident.behind}
        for op, values in self.block.definitions():
            if op.kind in FOLDS or not found.isdisjoint(op.inputs):
                found.update(values)
        return found

    # -- loads

    def _loads(self, values: Iterable[int]) -> Iterator[resident.Statement]:
        """Numbers are on their way while others are asked for, and then what stands there."""
        asked = sorted(values, key=self.tables.__contains__)
        for value in asked:
            if (table := self.tables.get(value)) is not None:
                width = self._width(value)
                each = width > 1 and not table.whole(deepest(self.scope.shape(value)), width)
                yield resident.Find(value, width, each, table.numbers, table.found.rows)
        for value in asked:
            yield resident.Load(value, self._width(value), self._access(value))

    def _access(self, value: int) -> resident.Access:
        """As it lies. Vectors past L1, and first to go from L2, where nobody reads them again and there is little of
        it, or little is written beside it."""
        attrs, width = self.inputs[value], self._width(value)
        if self.scope.plan.places[value] is Place.COUNTED:
            return resident.Access.COUNTED
        if value in self.tables:
            return resident.Access.LOAD if width == 1 or self._whole(value) else resident.Access.EACH
        if width > 1 and self._pays_around(value):
            return resident.Access.AROUND
        if width > 1 and not self._whole(value):
            return resident.Access.EACH
        reduced = bool(self.layout.dims)
        if self._is_once(attrs) and (self._once_bytes <= ONCE_BYTES or (reduced and self._gathers)):
            return resident.Access.ONCE
        ordered = self.resident.together and not self.resident.behind  # else compilers find room for what is behind
        return resident.Access.NOW if ordered and reduced else resident.Access.LOAD

    def _width(self, value: int) -> int:
        """Elements that are loaded at once."""
        return max(self.layout.vector(self.forms[value]), self.layout.run(self.forms[value]))

    def _place(self, value: int) -> Multi:
        """Where the first of them lies in its tile."""
        form = self.forms[value]
        run = self._width(value) // self.layout.vector(form)
        return within(self.layout.held(form, anyway=True, run=run)[1], form, self.scope.shape(value))

    def _whole(self, value: int) -> bool:
        """Whether they are a vector where they lie."""
        dim, width = deepest(self.scope.shape(value)), self._width(value)
        if (table := self.tables.get(value)) is not None:
            return is_whole(self.scope, table, self._place(value), dim, width)
        return operand_leaf(self.scope, self.inputs[value], self._place(value), Index(), dim, width).whole

    def _pays_around(self, value: int) -> bool:
        """Whether aligned vectors around those of a window are fewer than their elements, or read for others, too."""
        window = self.scope.windows.get(self.inputs[value].arg)
        if window is None or value in self.tables or all(self._wholes[window.base]):
            return False
        dim, width = deepest(self.scope.shape(value)), self._width(value)
        found = around(self.scope, self.inputs[value], self._place(value), dim, width)
        return found is not None and (len(found.vectors) < width or len(self._wholes[window.base]) > 1)

    @cached_property
    def _wholes(self) -> dict[int, list[bool]]:
        """Of tensors, whether the vectors of each of their windows are such where they lie."""
        found = defaultdict[int, list[bool]](list)
        for value, attrs in self.inputs.items():
            if attrs.arg in self.scope.windows and self._width(value) > 1:
                found[self.scope.windows[attrs.arg].base].append(self._whole(value))
        return found

    def _is_once(self, attrs: InIterAttrs) -> bool:
        once = read_once(self.block, attrs) and attrs.arg not in self.scope.lookups
        return once and attrs.arg not in self.overlap.again

    @cached_property
    def _once_bytes(self) -> int:
        """Of all that is read only once."""
        args = {attrs.arg for attrs in self.inputs.values() if self._is_once(attrs)}
        return sum(self.block.args[arg].nbytes for arg in args)

    @property
    def _gathers(self) -> bool:
        """Whether it writes less than half of what it reads."""
        return 2 * sum(t.nbytes for t in self.outputs) < self._once_bytes

    # -- reductions

    def _reduce(self, index: int) -> Iterator[resident.Statement]:
        op, value, layout = self.block.ops[index], self.scope.first[index], self.layout
        name, form = result(value), self.forms[value]
        if isinstance(op.attrs, RunningAttrs):
            yield resident.Fold(name, form, AccumKind.SUM, op.inputs, None)
            stretches = layout.slots if layout.rows else 1
            yield resident.Running(name, form, op.attrs.backward, op.attrs.exclusive, self._combine(stretches))
        elif op.kind is OpKind.RESCALED_SUM:
            shift = op.inputs[1]
            if shift not in self.tops:
                self.tops.add(shift)
                left = layout.reduced(self.forms[shift])
                yield resident.Fold(f"top{shift}", left, AccumKind.MAX, (shift,), self._combine())
                yield from self._forget()
            yield resident.Fold(name, form, AccumKind.RESCALE, op.inputs, self._combine(), f"top{shift}")
        else:
            kind = AccumKind.MAX if op.kind is OpKind.MAX else AccumKind.SUM
            combines = layout.combines(self.forms[op.inputs[0]], form)
            combine = self._combine(layout.count(form)) if combines else None
            yield resident.Fold(name, form, kind, op.inputs, combine)
        yield from self._forget()

    def _combine(self, stretches: int = 1) -> resident.Combine:
        """How threads combine what they have of a row, or of stretches of it, or of columns."""
        layout, scratch = self.layout, self.scratch
        if not layout.shared:
            return None
        if not layout.teams:
            sets = int(partial_sets(layout.vectors, layout.lanes))
            self.scratch += sets * layout.vectors * layout.width if sets > 1 else 0
            return resident.Columns(layout.vectors, sets, scratch)
        warps = layout.lanes // LANES
        self.scratch += layout.warps * stretches if warps > 1 else 0
        return resident.Team(warps, scratch, 1 if warps > 1 and layout.groups > 1 else 0)

    def _forget(self) -> Iterator[resident.Statement]:
        """Nothing that is computed of long inputs stays in registers, if there are none for it."""
        if self.resident.computed_anew:
            early = (v for v in self.inputs if v not in self.resident.behind)
            forms = {v: self.forms[v] for v in early}
            if long := tuple(v for v, f in forms.items() if self.layout.long(f) and self.layout.vector(f) > 1):
                yield resident.Forget(long)

    # -- results

    def _save(self, number: int) -> resident.Task:
        """Parts whose elements take turns where they are saved go there together."""
        found, layout = self.parts[number], self.layout
        every, forms = (*range(len(found)),), [self.forms[part.source] for part in found]
        turns = alternate(found, layout.vector(forms[0])) and self._leaf(number, every).whole
        groups = [every] if turns else [(part,) for part in every]
        body = (resident.Save(number, g, layout.shared and not layout.divided(forms[g[0]])) for g in groups)
        savers = [index for index, op in enumerate(self.block.ops) if op.kind is OpKind.OUT_SAVER]
        return resident.Task(savers[number], tuple(body))

    def _leaf(self, number: int, chosen: Iterable[int]) -> Leaf:
        """Where a vector of parts of what is saved goes."""
        found = [self.parts[number][part] for part in chosen]
        form = self.forms[found[0].source]
        index, width = self.layout.held(form)[1], self.layout.vector(form)
        return part_leaf(self.scope, number, found, self.outputs[number], form, index, width)
