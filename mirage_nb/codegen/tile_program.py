"""The printer of tile programs: a program becomes a `__global__` function that calls the device library.

In: a tile program, a name, what may overlap. Out: CUDA C++ and the launch parameters. It decides nothing: every
statement is printed as it stands. Invariant: a stage's counters in every role start at the ring's first stage and move
as the program's statements do, across all points of the walk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mirage_nb.codegen.reach import EXTENT, Reach, Reaches
from mirage_nb.codegen.texel_product import TexelProduct, WideProduct
from mirage_nb.codegen.texel_values import TexelValueText
from mirage_nb.codegen.tile_values import ValueText
from mirage_nb.codegen.writer import Writer, c_type
from mirage_nb.optimize.overlap import Overlap
from mirage_nb.tile.groups import GROUPS, ROWS
from mirage_nb.tile.instructions import Place
from mirage_nb.tile.program import (
    GROUP,
    PART,
    Acquire,
    Await,
    Clear,
    Copy,
    Index,
    Loop,
    Map,
    Number,
    Pipeline,
    Product,
    Program,
    Read,
    Release,
    Role,
    Statement,
    Store,
    Tile,
    Walk,
    flat,
    inner,
)

PANEL = 64
"""Elements of 16 bits across a panel."""
LINE_BYTES = 128
"""Of a row of a panel."""
REGISTERS_OF_MULTIPROCESSOR = 65536
REGISTER_UNIT = 8


@dataclass(frozen=True, slots=True)
class MapBox:
    """A tensor map: the operand as a row-major matrix [rows, columns], and the box (rows, columns) of one copy."""

    operand: int
    name: str
    rows: int
    columns: int
    box: tuple[int, int]


def c_index(index: Index) -> str:
    """The C expression of an index; it needs brackets inside a product."""
    parts = [name if factor == 1 else f"{name} * {factor}" for name, factor in index.terms]
    return " + ".join([*parts, *([str(index.const)] if index.const or not parts else [])])


def start(tile: Tile, at: tuple[Index, ...]) -> tuple[Index, Index]:
    """Row and column of a box in a global tensor seen as a matrix: its last dimension is the columns."""
    row = Index()
    for place, extent in zip(at[:-1], tile.shape[:-1], strict=True):
        row = row * extent + place
    return row, at[-1]


@dataclass(slots=True)
class ProgramText:
    """Writes one kernel. `uncommitted`: products were printed that no group has yet; `role`: whose code it is.
    `reaches`: how far its tensors go that end where a size does, which is known at launch."""

    name: str
    program: Program
    overlap: Overlap
    reaches: Reaches = field(default_factory=Reaches)
    out: Writer = field(default_factory=Writer)
    uncommitted: bool = False
    role: str = ""

    def text(self) -> str:
        """The whole function."""
        out, program = self.out, self.program
        with out.block(self._signature()):
            out.line("const int warp = warp_uniform(warp_index()), lane = lane_index();")
            if self.overlap.ahead:
                out.line("grid_dependency_launch();")
            self._shared()
            first = 0
            for role in program.roles:
                with out.block(f"if (warp < {first + role.warps})" if role is not program.roles[-1] else ""):
                    self._role(role, first)
                    if role is not program.roles[-1]:
                        out.line("return;")
                first += role.warps
        return out.text()

    def params(self) -> tuple[int, ...]:
        """Operands that the kernel takes as pointers, in order."""
        read = {s.source for s in self._all() if isinstance(s, Read)}
        return tuple(sorted(self.program.operand(name) for name in read))

    def tensor_maps(self) -> tuple[MapBox, ...]:
        """The tensor maps that follow the pointers, in order."""
        found: dict[str, MapBox] = {}
        for statement in self._all():
            if isinstance(statement, Copy):
                source, target = self.program.tile(statement.source), self.program.tile(statement.target)
                rows = source.elements // source.shape[-1]
                box = (target.shape[0], LINE_BYTES // target.dtype.size)
                found[target.name] = MapBox(
                    self.program.operand(source.name), f"map_{target.name}", rows, source.shape[-1], box
                )
        return tuple(found.values())

    def _all(self) -> Iterator[Statement]:
        for _, statements in self.program.code:
            yield from flat(statements)

    def _signature(self) -> str:
        program = self.program
        # What changes while the kernel waits is not promised to be constant. Nor are matrices: promised, all of their
        # loads came first, and were spilled.
        late = self.overlap.written if self.overlap.behind else frozenset[int]()
        inputs = []
        for number in self.params():
            matrix = sum(bool(axis) for axis in program.tile(f"x{number}").axes) > 1
            word = "" if number in late or matrix else " __restrict__"
            inputs.append(f"const {c_type(program.tile(f'x{number}').dtype)}*{word} x{number}")
        outputs = [f"{c_type(program.tile(name).dtype)}* __restrict__ {name}" for name in program.outputs]
        maps = [f"const __grid_constant__ TensorMap {box.name}" for box in self.tensor_maps()]
        size = [f"const int32_t {EXTENT}"] if self.reaches else []
        head = f'extern "C" __global__ void __launch_bounds__({program.threads}, 1)'
        return f"{head}\n{self.name}({', '.join([*inputs, *outputs, *maps, *size])})"

    def _shared(self) -> None:
        """Tiles and barriers; the barriers exist for all threads behind the first meeting of the block."""
        out, program = self.out, self.program
        out.line("MIRAGE_DYNAMIC_SHARED(shared);")
        offset = 0
        for tile in program.tiles:
            if tile.place is Place.SHARED:
                element = c_type(tile.dtype)
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
        out.line("block_sync();")
        if self.overlap.behind:
            out.line("grid_dependency_wait();")

    # -- roles

    def _role(self, role: Role, first: int) -> None:
        out, program = self.out, self.program
        self.role, statements = role.name, program.statements(role.name)
        out.line(f"// {role.name}: {role.warps} warps")
        if role.registers:
            entry = REGISTERS_OF_MULTIPROCESSOR // program.threads // REGISTER_UNIT * REGISTER_UNIT
            word = "claim" if role.registers > entry else "release"
            out.line(f"registers_{word}<{role.registers}>();")
        copies = [s for s in flat(statements) if isinstance(s, Copy)]
        if role.parts > 1:
            out.line(f"const int {PART} = warp / {GROUP}{f' - {first // GROUP}' if first else ''};")
        used = {s.pipeline for s in flat(statements) if isinstance(s, Acquire | Await)}
        if not copies:
            self._rings(statements, used)
            self._body(statements)
            return
        with out.block(f"if (warp == {first} && lane == 0)"):
            for name in dict.fromkeys(s.target for s in copies):
                out.line(f"tma_prefetch_map(map_{name});")
            self._rings(statements, used)
            self._body(statements)

    def _rings(self, statements: tuple[Statement, ...], used: set[str]) -> None:
        for ring in self.program.pipelines:
            if ring.name in used:
                self.out.line(f"int {ring.name}_stage = 0, {ring.name}_phase = 0;")
            if any(isinstance(s, Release) and s.pipeline == ring.name for s in flat(statements)):
                self.out.line(f"int {ring.name}_kept = 0;  // the oldest stage that is not handed back")

    def _body(self, statements: tuple[Statement, ...], counter: str = "", held: int = 0) -> None:
        """Statements of one level; `held`: stages that the loop before them has left unreleased."""
        values: list[Number | Read | Map | Store] = []
        for statement in statements:
            if isinstance(statement, Number | Read | Map | Store):
                values.append(statement)
                continue
            match statement:
                case Walk():
                    with self._walk(statement):
                        self._body(statement.body)
                case Loop():
                    name = statement.counter
                    head = f"for (int {name} = 0; {name} < {statement.count}; ++{name})"
                    with self.out.block(head):
                        self._body(statement.body, name)
                        for ring in (s.pipeline for s in statement.body if isinstance(s, Acquire)):
                            self._advance(self.program.pipeline(ring))
                    left = [s.behind for s in inner(statement) if isinstance(s, Release)]
                    held = min(left[-1], statement.count) if left else 0
                case Release():
                    self._release(statement, counter, held)
                case _:
                    self._statement(statement)
        if values:
            self._values(tuple(values))

    def _values(self, values: tuple[Number | Read | Map | Store, ...]) -> None:
        """What stands behind the products of a role."""
        derived = self._derived()
        if not derived:
            ValueText(self.out, self.program, values, self._ends()).emit()
            return
        held = tuple(self.program.tile(name) for name in dict.fromkeys(s.result for s in derived))
        TexelValueText(self.out, self.program, values, held, ROWS[derived[0].instruction], self._ends()).emit()

    def _derived(self) -> list[Product]:
        """The products of this role whose operands are loaded into registers by instructions of their own."""
        products = (s for s in flat(self.program.statements(self.role)) if isinstance(s, Product))
        return [s for s in products if s.instruction in GROUPS]

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
        points = _product([*counts.values()])
        with out.block(f"for (int point = (int)blockIdx.x; point < {points}; point += {self.program.blocks})"):
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
        for statement in self._all():
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
                out.line(f"mbarrier_arrive_expect_tx({name}_full + {name}_stage, {ring.nbytes});")
            case Copy():
                self._copy(statement)
            case Await(name):
                out.line(f"mbarrier_wait({name}_full + {name}_stage, {name}_phase);")
                out.line(f"const int {name}_slot = {name}_stage;")
                self._advance(self.program.pipeline(name))
            case Clear(name):
                tile = self.program.tile(name)
                rows = {ROWS[s.instruction] for s in self._derived() if s.result == name}
                count, base = tile.shape[0] // 64 * tile.shape[1] // 2, tile.shape[1] // 2
                for row in rows:
                    count, base = row.texel.result.count, row.texel.source.result.count
                out.line(f"float {name}[{count // base}][{base}] = {{}};")
            case Product():
                self._product(statement)
            case _:
                raise AssertionError(statement)

    def _ring_of(self, tile: str) -> Pipeline:
        return next(ring for ring in self.program.pipelines if tile in ring.tiles)

    def _copy(self, copy: Copy) -> None:
        """A tile is a box for each of its panels."""
        target = self.program.tile(copy.target)
        ring = self._ring_of(copy.target).name
        row, column = start(self.program.tile(copy.source), copy.at)
        panel = LINE_BYTES // target.dtype.size
        panels, size = target.shape[1] // panel, target.shape[0] * panel
        with self.out.unrolled("p", panels) as p:
            to = f"{target.name} + {ring}_stage * {target.elements}" + (f" + {p} * {size}" if panels > 1 else "")
            across = c_index(column) + (f" + {p} * {panel}" if panels > 1 else "")
            full = f"{ring}_full + {ring}_stage"
            self.out.line(f"tma_load_2d({to}, map_{target.name}, {full}, {across}, {c_index(row)});")

    def _product(self, product: Product) -> None:
        """All of the slot's summed elements, 16 by 16, for every 64 rows of this part."""
        out, program = self.out, self.program
        instruction, result = ROWS[product.instruction], program.tile(product.result)
        left, right = program.tile(product.left), program.tile(product.right)
        ring = self._ring_of(product.left).name
        if product.instruction in GROUPS:
            writer = WideProduct if instruction.texel.left is None else TexelProduct
            writer(out, program, product, f"{ring}_slot", (c_index(product.row), c_index(product.column))).emit()
            return
        summed = right_axis(left, right)
        subtiles, depth = result.shape[0] // instruction.m, left.shape[left.axes.index(summed)]
        if not self.uncommitted:
            accumulators = dict.fromkeys(s.result for s in self._all() if isinstance(s, Product))
            for name in accumulators:
                with out.unrolled("i", program.tile(name).shape[0] // instruction.m) as i:
                    out.line(f"wgmma_fence({name}[{i}]);")
        self.uncommitted = True
        majors = [("K" if tile.axes[-1] == summed else "MN") for tile in (left, right)]
        steps = [instruction.k if m == "K" else instruction.k * PANEL for m in majors]
        # Rows of the left tile lie 64 elements apart, or panels of 64 of them lie a whole panel apart.
        unit = PANEL if majors[0] == "K" else left.shape[0]
        at = c_index(product.row * unit)
        base = f"{left.name} + {ring}_slot * {left.elements}" + (f" + {at}" if at != "0" else "")
        with out.unrolled("k16", depth // instruction.k) as k, out.unrolled("i", subtiles) as i:
            below = f" + {i} * {instruction.m * unit}" if subtiles > 1 else ""
            a = f"wgmma_descriptor<Major::{majors[0]}>({base}{below} + {k} * {steps[0]}, {left.shape[0] * LINE_BYTES})"
            at = c_index(product.column * (PANEL if majors[1] == "K" else right.shape[0]))
            b_base = f"{right.name} + {ring}_slot * {right.elements}" + (f" + {at}" if at != "0" else "")
            b = f"wgmma_descriptor<Major::{majors[1]}>({b_base} + {k} * {steps[1]}, {right.shape[0] * LINE_BYTES})"
            kinds = f"{c_type(left.dtype)}, Major::{majors[0]}, Major::{majors[1]}"
            function = instruction.function.removesuffix(">")
            out.line(f"{function}, {kinds}>({product.result}[{i}], {a}, {b});")

    def _release(self, release: Release, counter: str, held: int) -> None:
        """Stages go back in the order in which they were awaited."""
        out, ring = self.out, self.program.pipeline(release.pipeline)
        if self.uncommitted:
            out.line("wgmma_commit();")
            self.uncommitted = False
        derived = bool(self._derived())
        if derived and (counter or held):
            out.line("fence_proxy_async();")  # what was loaded from the stage has come
            out.line("warp_sync();")
        for name in () if derived else dict.fromkeys(s.result for s in self._all() if isinstance(s, Product)):
            tile = self.program.tile(name)
            with out.unrolled("i", tile.shape[0] // 64) as i:
                out.line(f"wgmma_wait<{release.behind}>({name}[{i}]);")
        behind = f"{counter} >= {release.behind}" if counter and release.behind else ""
        for _ in range(1 if counter else held):
            with out.block(f"if ({behind})" if behind else ""):
                out.line(f"if (lane == 0) mbarrier_arrive({ring.name}_empty + {ring.name}_kept);")
                self._advance(ring, "kept")


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


def right_axis(left: Tile, right: Tile) -> str:
    """The axis along which two tiles are multiplied."""
    (axis,) = set(left.axes) & set(right.axes)
    return axis
