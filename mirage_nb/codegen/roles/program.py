"""The printer of tile programs: a program becomes a `__global__` function that calls the device library.

In: a tile program, a name, what may overlap. Out: CUDA C++ and the launch parameters. It decides nothing: every
statement is printed as it stands. Invariant: a stage's counters in every role start at the ring's first stage and move
as the program's statements do, across all points of the walk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mirage_nb.codegen.emitted import MapArg
from mirage_nb.codegen.roles.behind import BehindText
from mirage_nb.codegen.roles.copies import tensor_map, write_copy
from mirage_nb.codegen.roles.marks import MarkText
from mirage_nb.codegen.roles.products import ProductText
from mirage_nb.codegen.roles.registers import Defined, RegisterText, declared
from mirage_nb.codegen.roles.sums import SumText
from mirage_nb.codegen.roles.touches import write_touches
from mirage_nb.codegen.roles.values import TexelValueText, ValueText
from mirage_nb.codegen.texel_product import TexelProduct, WidenedProduct, WideProduct
from mirage_nb.codegen.writer import Writer, c_index, stored_type
from mirage_nb.optimize.overlap import Overlap
from mirage_nb.optimize.reach import EXTENT, Reach, Reaches
from mirage_nb.tile.instructions.groups import GROUPS, ROWS
from mirage_nb.tile.instructions.table import Place
from mirage_nb.tile.roles.program import (
    GROUP,
    LANES,
    PART,
    RANK,
    Acquire,
    Await,
    Clear,
    Combine,
    Copy,
    Count,
    Index,
    Loop,
    Map,
    Mark,
    Number,
    Pipeline,
    Product,
    Program,
    Read,
    Reduce,
    Release,
    Role,
    Set,
    Skip,
    Statement,
    Store,
    Table,
    Turn,
    Until,
    Walk,
    Yield,
    flat,
)
from mirage_nb.tile.roles.registers import register_tiles
from mirage_nb.tile.rules.teams import first_registers

TURN = 1
"""The named barrier of a role's first group; those of the others follow."""
Value = Number | Read | Count | Until | Map | Reduce | Set | Store


@dataclass(slots=True)
class ProgramText:
    """Writes one kernel. `reaches`: how far its tensors go that end where a size does, which is known at launch. role:
    whose code it is; first: its first warp. held: stages of every ring that were awaited and not handed back. defined:
    values so far."""

    name: str
    program: Program
    overlap: Overlap
    reaches: Reaches = field(default_factory=Reaches)
    out: Writer = field(default_factory=Writer)
    role: str = ""
    first: int = 0
    held: dict[str, int] = field(default_factory=dict)
    defined: dict[str, Defined] = field(default_factory=dict)
    products: ProductText = field(init=False)

    def __post_init__(self) -> None:
        self.products = ProductText(self.out, self.program)

    def text(self) -> str:
        """The whole function."""
        out, program = self.out, self.program
        SumText(out, program, self.name).places()
        with out.block(self._signature()):
            out.line("const int warp = warp_uniform(warp_index()), lane = lane_index();")
            if program.cluster > 1:
                out.line(f"const int {RANK} = (int)blockIdx.x % {program.cluster};")
            if self.overlap.ahead:
                out.line("grid_dependency_launch();")
            read = {s.source for s in program.every if isinstance(s, Read)}
            for tile in program.tiles:
                if tile.name in read and "_" in tile.name:  # an operand along other axes
                    out.line(f"const {stored_type(tile.dtype)}* const {tile.name} = x{program.operand(tile.name)};")
            self._shared()
            first = 0
            for role in program.roles:
                if _shares(role, first) and first % GROUP == 0:
                    self._claim(role)
                with out.block(f"if (warp < {first + role.warps})" if role is not program.roles[-1] else ""):
                    self._role(role, first)
                    if program.cluster > 1:
                        out.line("cluster_sync();  // until nobody reaches into this block any more")
                    if role is not program.roles[-1]:
                        out.line("return;")
                first += role.warps
        return out.text()

    def params(self) -> tuple[int, ...]:
        """Operands that the kernel takes as pointers, in order."""
        return tuple(sorted({self.program.operand(s.source) for s in self.program.every if isinstance(s, Read)}))

    def tensor_maps(self) -> dict[str, MapArg]:
        """The tensor maps that follow the pointers, in order, by their names here; values are operands."""
        return {f"map_{s.target}": tensor_map(self.program, s) for s in self.program.every if isinstance(s, Copy)}

    def _signature(self) -> str:
        program = self.program
        # What changes while the kernel waits is not promised to be constant. Nor are matrices: promised, all of their
        # loads came first, and were spilled.
        inputs = []
        for number in self.params():
            matrix = sum(bool(axis) for axis in program.tile(f"x{number}").axes) > 1
            word = "" if number in self.overlap.late or matrix else " __restrict__"
            inputs.append(f"const {stored_type(program.tile(f'x{number}').dtype)}*{word} x{number}")
        outputs = [f"{stored_type(program.tile(name).dtype)}* __restrict__ {name}" for name in program.outputs]
        maps = [f"const __grid_constant__ TensorMap {name}" for name in self.tensor_maps()]
        size = [f"const int32_t {EXTENT}"] if self.reaches else []
        side_by_side = f"__cluster_dims__({program.cluster}, 1, 1) " if program.cluster > 1 else ""
        head = f'extern "C" __global__ void {side_by_side}__launch_bounds__({program.threads}, 1)'
        return f"{head}\n{self.name}({', '.join([*inputs, *outputs, *maps, *size])})"

    def _shared(self) -> None:
        """Tiles and barriers; the barriers exist for all threads behind the first meeting of the block."""
        out, program = self.out, self.program
        out.line("MIRAGE_DYNAMIC_SHARED(shared);")
        offset = 0
        for tile in program.tiles:
            element = stored_type(tile.dtype)
            if tile.name in program.marks:
                out.line(f"MIRAGE_SHARED({element}, {tile.name}, {tile.stages * tile.elements});")
            elif tile.place is Place.SHARED:
                shape = " x ".join(map(str, (tile.stages, *tile.shape)))
                out.line(f"{element}* const {tile.name} = reinterpret_cast<{element}*>(shared + {offset});  // {shape}")
                offset += tile.nbytes * tile.stages
        for ring in program.pipelines:
            out.line(f"MIRAGE_SHARED(uint64_t, {ring.name}_full, {ring.stages});")
            out.line(f"MIRAGE_SHARED(uint64_t, {ring.name}_empty, {ring.stages});")
        with out.block("if (warp == 0 && lane == 0)"):
            for ring in program.pipelines:
                with out.block(f"for (int i = 0; i < {ring.stages}; ++i)"):
                    out.line(f"mbarrier_init({ring.name}_full + i, 1);")
                    out.line(f"mbarrier_init({ring.name}_empty + i, {ring.arrivals});")
            out.line("fence_mbarrier_init();")
        out.line("cluster_sync();" if program.cluster > 1 else "block_sync();")

    # -- roles

    def _role(self, role: Role, first: int) -> None:
        out, program = self.out, self.program
        self.role, self.first, statements = role.name, first, program.statements(role.name)
        out.line(f"// {role.name}: {role.warps} warps")
        if not _shares(role, first):
            self._claim(role)
        copies = [s for s in flat(statements) if isinstance(s, Copy)]
        if role.parts > 1:
            out.line(f"const int {PART} = warp / {GROUP}{f' - {first // GROUP}' if first else ''};")
        used = {s.pipeline for s in flat(statements) if isinstance(s, Acquire | Await)}
        if not copies:
            self._wait()
            self._rings(statements, used)
            self._registers(role)
            self._body(statements)
            return
        with out.block(f"if (warp == {first} && lane == 0)"):
            for name in dict.fromkeys(s.target for s in copies):
                out.line(f"tma_prefetch_map(map_{name});")
            self._ahead(statements)
            self._wait()
            self._rings(statements, used)
            self._body(statements)

    def _claim(self, role: Role) -> None:
        """Registers, which a group of four warps hands over together."""
        if role.registers:
            word = "claim" if role.registers > first_registers(self.program.threads) else "release"
            self.out.line(f"registers_{word}<{role.registers}>();")

    def _wait(self) -> None:
        if self.overlap.behind:
            self.out.line("grid_dependency_wait();")

    def _ahead(self, statements: tuple[Statement, ...]) -> None:
        """What no kernel in front writes is on its way to L2 before that one has ended: as much as rings hold."""
        for walk in (s for s in statements if isinstance(s, Walk) and self.overlap.behind):
            loop = next((s for s in walk.body if isinstance(s, Loop) and s.count), None)
            copies = [s for s in loop.body if isinstance(s, Copy)] if loop is not None else []
            still = [s for s in copies if self.program.operand(s.source) not in self.overlap.written]
            if loop is None or not still:
                continue
            count = min(loop.count, max(self.products.ring_of(s.target).stages for s in still))
            with self._walk(walk):
                for table in (s for s in walk.body if isinstance(s, Table)):
                    self._table(table)
                with self.out.block(f"for (int {loop.counter} = 0; {loop.counter} < {count}; ++{loop.counter})"):
                    for copy in still:
                        self._copy(copy, ahead=True)
                self.out.line("break;")

    def _rings(self, statements: tuple[Statement, ...], used: set[str]) -> None:
        for ring in self.program.pipelines:
            if ring.name in used:
                self.out.line(f"int {ring.name}_stage = 0, {ring.name}_phase = 0, {ring.name}_slot = 0;")
            if any(isinstance(s, Release) and s.pipeline == ring.name for s in flat(statements)):
                self.out.line(f"int {ring.name}_kept = 0;  // the oldest stage that is not handed back")

    def _registers(self, role: Role) -> None:
        """Tiles in registers, and who has the first turn."""
        statements = tuple(flat(self.program.statements(role.name)))
        derived = {s.result for s in self._derived()}
        for tile in dict.fromkeys(tile for s in statements for tile in register_tiles(self.program, s)):
            if tile.name not in derived:
                self.out.line(declared(tile))
        if any(isinstance(s, Turn) for s in statements):
            with self.out.block(f"if ({PART} == {role.parts - 1})"):
                self.out.line(f"barrier_arrive({TURN}, {2 * GROUP * LANES});")

    def _body(self, statements: tuple[Statement, ...], counter: str = "") -> None:
        """Statements of one level."""
        waiting: list[Value] = []
        registers = RegisterText(self.out, self.program, self.role, self._ends(), self.defined)

        def compute() -> None:
            for value in waiting:
                assert not isinstance(value, Store)
                registers.write(value)
            waiting.clear()

        for place, statement in enumerate(statements):
            if not isinstance(statement, Product):
                self.products.commit()
            if isinstance(statement, Number | Read | Count | Until | Map | Store):
                waiting.append(statement)
                continue
            compute()
            match statement:
                case Walk():
                    with self._walk(statement):
                        write_touches(self.out, self.program, self._own(), statement, self._ends())
                        self._body(statement.body)
                case Loop():
                    self._loop(statement)
                case Release():
                    self._release(statement, counter)
                case Reduce() | Set():
                    registers.write(statement)
                case Clear() if self._derived():
                    self._clear(statement.result)
                case Clear():
                    if not self._overwritten(statement, statements[place + 1 :]):
                        registers.clear(statement)
                case Combine():
                    SumText(self.out, self.program, self.name).combine(self._own(), statement)
                case Product() if statement.instruction in GROUPS:
                    self._derived_product(statement)
                case Product():
                    before = statements[place - 1] if place else None
                    fresh = isinstance(before, Clear) and self._overwritten(before, statements[place:])
                    self.products.write(statement, fresh=fresh)
                case _:
                    self._statement(statement)
        self.products.commit()
        if any(isinstance(value, Store) for value in waiting):
            self._values(registers, waiting)
        else:
            compute()

    def _values(self, registers: RegisterText, waiting: list[Value]) -> None:
        """What stands behind the products of a role."""
        derived = self._derived()
        made = tuple(v for v in waiting if not isinstance(v, Store | Set))
        behind = BehindText(registers, made, tuple(v for v in waiting if isinstance(v, Store)))
        if behind.folds:
            behind.emit()
            return
        values = tuple(v for v in waiting if not isinstance(v, Until | Reduce | Set))
        if not derived:
            ValueText(self.out, self.program, values, self._ends()).emit()
            return
        held = tuple(self.program.tile(name) for name in dict.fromkeys(s.result for s in derived))
        TexelValueText(self.out, self.program, values, held, ROWS[derived[0].instruction], self._ends()).emit()

    def _own(self) -> Role:
        """The role whose code it is."""
        return next(role for role in self.program.roles if role.name == self.role)

    def _derived(self) -> list[Product]:
        """The products of this role whose operands are loaded into registers by instructions of their own."""
        products = (s for s in flat(self.program.statements(self.role)) if isinstance(s, Product))
        return [s for s in products if s.instruction in GROUPS]

    def _clear(self, name: str) -> None:
        """Zeros for such products, whose registers lie as their instruction has them."""
        row = next(ROWS[s.instruction] for s in self._derived() if s.result == name)
        count, base = row.texel.result.count, row.texel.source.result.count
        self.out.line(f"{stored_type(row.sums)} {name}[{count // base}][{base}] = {{}};")

    def _overwritten(self, clear: Clear, behind: tuple[Statement, ...]) -> bool:
        """Whether the next statement is a product that needs no zeros to add to."""
        product = behind[0] if behind else None
        if not isinstance(product, Product) or product.result != clear.result:
            return False
        return self.program.tile(product.left).place is Place.SHARED and not self._derived()

    def _loop(self, loop: Loop) -> None:
        """The body as it is printed once is the one behind many: groups of the iteration before are on their way."""
        name = loop.counter
        entered = dict(self.held)
        self.products.enter(loop.body)
        most = "" if loop.most is None else f" && {name} < {loop.most}"
        count = c_index(loop.more + Index((), loop.count))
        with self.out.block(f"for (int {name} = 0; {name} < {count}{most}; ++{name})"):
            self._only(loop)
            self._body(loop.body, name)
        for release in (s for s in loop.body if isinstance(s, Release)):
            self.held[release.pipeline] = min(entered.get(release.pipeline, 0) + loop.count, release.behind)

    def _only(self, loop: Loop) -> None:
        """Iterations that are not marked are left out: by whole warps, or by the thread that copies."""
        if loop.only is None:
            return
        (count,) = self.program.tile(loop.only.tile).shape
        place = f"{self.products.ring_of(loop.only.tile).name}_slot * {count} + {c_index(loop.only.at)}"
        mark = f"{loop.only.tile}[{place}]"
        alone = any(isinstance(s, Copy) for s in loop.body)
        self.out.line(f"if (!{mark if alone else f'warp_uniform({mark})'}) continue;")

    @contextmanager
    def _walk(self, walk: Walk) -> Iterator[None]:
        """The points of this block, decoded into their counters."""
        out, counters, sized = self.out, walk.counters, self._sized_counter()
        counts = {name: str(extent) for name, extent in counters}
        if sized in counts and self.reaches.cut is not None:
            per = self.reaches.cut.per
            rounded = f"{EXTENT} * {per.denominator} + {per.numerator - 1}"
            out.line(f"const int {sized}_count = ({rounded}) / {per.numerator};")
            counts[sized] = f"{sized}_count"
        points, cluster = _product([*counts.values()]), self.program.cluster
        first = f"(int)blockIdx.x{f' / {cluster}' if cluster > 1 else ''}"
        with out.block(f"for (int point = {first}; point < {points}; point += {self.program.blocks // cluster})"):
            last, outer = counters[-2:], counters[:-2]
            area = _product([counts[name] for name, _ in last])
            for place, (name, _) in enumerate(outer):
                below = _product([counts[n] for n, _ in outer[place + 1 :]])
                rest = f"point / {area}" + (f" / {below}" if below != "1" else "")
                out.line(f"const int {name} = {rest} % {counts[name]};")
            here = f"point % {area}" if outer else "point"
            if len(last) == 1:
                out.line(f"const int {last[0][0]} = {here};")
            elif last:
                (row, rows), (column, _) = last
                band = _product([str(walk.group), counts[column]])
                out.line(f"const int place = {here}, band = place / {band}, first = band * {walk.group};")
                left = f"{counts[row]} - first"
                even = rows % walk.group == 0 and sized != row
                height = str(walk.group) if even else f"{left} < {walk.group} ? {left} : {walk.group}"
                out.line(f"const int height = {height};")
                out.line(f"const int {row} = first + place % {band} % height, {column} = place % {band} / height;")
            yield

    def _sized_counter(self) -> str:
        """The counter along the size; empty where there is none of its own."""
        found = set()
        for statement in self.program.every:
            if isinstance(statement, Store) and self.program.operand(statement.target) in self.reaches.outputs:
                found.add(tuple(name for name, _ in statement.at[0].terms if name != PART))
        names = found.pop() if len(found) == 1 else ()
        return names[0] if len(names) == 1 else ""

    def _ends(self) -> dict[str, Reach]:
        """Where global tensors end along the size; blocks go no further than that where they count along it."""
        counted = bool(self._sized_counter())
        both = {"x": self.reaches.operands, "o": self.reaches.outputs}
        return {f"{k}{n}": replace(r, whole=r.whole and counted) for k, ends in both.items() for n, r in ends.items()}

    def _advance(self, ring: Pipeline, name: str = "stage") -> None:
        phase = f"{ring.name}_phase ^= 1;" if name == "stage" else ""
        variable = f"{ring.name}_{name}"
        self.out.line(f"if (++{variable} == {ring.stages}) {{ {variable} = 0; {phase} }}")

    # -- statements

    def _statement(self, statement: Statement) -> None:
        out = self.out
        match statement:
            case Acquire(name):
                ring = self.program.pipeline(name)
                out.line(f"mbarrier_wait({name}_empty + {name}_stage, {name}_phase ^ 1);")
                if self.program.marks.keys().isdisjoint(ring.tiles):
                    out.line(f"mbarrier_arrive_expect_tx({name}_full + {name}_stage, {ring.nbytes});")
                out.line(f"{name}_slot = {name}_stage;")
                self._advance(ring)
            case Copy():
                self._copy(statement)
            case Mark():
                ring = self.products.ring_of(statement.target)
                MarkText(out, self.program, statement, self._own(), self.first, self._ends()).emit(ring.name)
            case Await(name):
                out.line(f"mbarrier_wait({name}_full + {name}_stage, {name}_phase);")
                out.line(f"{name}_slot = {name}_stage;")
                self._advance(self.program.pipeline(name))
                self.held[name] = self.held.get(name, 0) + 1
            case Skip(axis, first, reach):
                within = "" if reach is None else f", {c_index(reach)} elements in front of it count"
                out.line(f"// {axis} ends at {c_index(first)}{within}")
            case Table():
                self._table(statement)
            case Turn():
                out.line(f"barrier_sync({TURN} + {PART}, {2 * GROUP * LANES});")
            case Yield():
                parts = next(r.parts for r in self.program.roles if statement in flat(self.program.statements(r.name)))
                out.line(f"barrier_arrive({TURN} + ({PART} + 1) % {parts}, {2 * GROUP * LANES});")
            case _:
                raise AssertionError(statement)

    def _table(self, table: Table) -> None:
        numbers = ", ".join(map(str, table.numbers))
        self.out.line(f"static constexpr int {table.counter}_at[] = {{{numbers}}};")
        self.out.line(f"const int {table.counter} = {table.counter}_at[{table.of}];")

    def _copy(self, copy: Copy, *, ahead: bool = False) -> None:
        write_copy(self.out, self.program, copy, self.products.ring_of(copy.target).name, ahead=ahead)

    def _derived_product(self, product: Product) -> None:
        row = ROWS[product.instruction]
        writer = WidenedProduct if row.other else TexelProduct if row.texel.left is not None else WideProduct
        slot = f"{self.products.ring_of(product.left).name}_slot"
        writer(self.out, self.program, product, slot, (c_index(product.row), c_index(product.column))).emit()

    def _release(self, release: Release, counter: str) -> None:
        """Stages go back in the order in which they were awaited."""
        out, ring = self.out, self.program.pipeline(release.pipeline)
        derived, held = bool(self._derived()), self.held.get(release.pipeline, 0)
        if derived and (counter or held > release.behind):
            out.line("fence_proxy_async();")  # what was loaded from the stage has come
            out.line("warp_sync();")
        elif not derived:
            self.products.wait(release)
        behind = f"{counter} >= {release.behind}" if counter and release.behind else ""
        for _ in range(1 if counter else held - release.behind):
            with out.block(f"if ({behind})" if behind else ""):
                empty, blocks = f"{ring.name}_empty + {ring.name}_kept", self.program.emptied_by(ring.name)
                arrival = f"mbarrier_arrive_of({empty}, lane)" if blocks > 1 else f"mbarrier_arrive({empty})"
                out.line(f"if (lane {f'< {blocks}' if blocks > 1 else '== 0'}) {arrival};")
                self._advance(ring, "kept")
        self.held[ring.name] = release.behind


def _shares(role: Role, first: int) -> bool:
    """Whether a role, from this warp on, is in one group of four warps with others."""
    return bool(first % GROUP or role.warps % GROUP)


def _product(counts: list[str]) -> str:
    """A C expression for a product, in brackets where it needs them."""
    number, names = 1, []
    for count in counts:
        if count.isdecimal():
            number *= int(count)
        else:
            names.append(count)
    parts = [*names, *([str(number)] if number > 1 or not names else [])]
    return parts[0] if len(parts) == 1 else f"({' * '.join(parts)})"
