"""Products of tiles in shared memory by instructions whose operands are registers: loads, pieces, instances.

In: a product of a tile program whose row is derived from the plain cores or from mma.sync (`tile.instructions.groups`).
Out: statements that add it to registers `<result>[instance][register]`. Where every register's element lies is what the
row's texel says; the loads, 16 bytes at a time where neighbours are held together, follow from it. Instances go in
zig-zag: each shares an operand with the one in front (Mosaic, section 5.2). Invariant: the digits of a place are
powers of two, so what the thread decides and what the loops decide are different bits of it, and the swizzle of both
is the exclusive or of the swizzles.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from mirage_nb.codegen.writer import Writer, stored_type
from mirage_nb.ir import DType
from mirage_nb.tile.instructions.groups import ROWS
from mirage_nb.tile.instructions.texels import HAS, LANES, Digit, Spread, Texel
from mirage_nb.tile.roles.program import Product, Program, Tile, summed_axis
from mirage_nb.tile.rules.register_resident import VECTOR_BYTES
from mirage_nb.tile.rules.teams import HEIGHT, step

REST = "_rest"
"""Behind the name of registers: what is left of their elements."""


def place_text(digits: tuple[Digit, ...], number: str, axis: str) -> list[str]:
    """The terms of what the digits of a number add along an axis."""
    found, weight = [], 1
    for digit in digits:
        step = getattr(digit, axis)
        if step and digit.extent > 1:
            value = f"{number} / {weight} % {digit.extent}" if weight > 1 else f"{number} % {digit.extent}"
            found.append(f"{value} * {step}" if step > 1 else value)
        weight *= digit.extent
    return found


def thread_text(spread: Spread, axis: str, more: str = "0") -> str:
    """What warp and lane add along an axis, and something more."""
    terms = [*place_text(spread.warps, "warp", axis), *place_text(spread.lanes, "lane", axis)]
    return " + ".join([*([more] if more != "0" else []), *terms]) or "0"


@dataclass(frozen=True, slots=True)
class Run:
    """Registers that hold neighbours along an axis: how many, and the extents and weights of the digits that number
    them; and the loops over the others: variable, count, weight, digit."""

    length: int
    inside: tuple[tuple[int, int], ...]
    loops: tuple[tuple[str, int, int, Digit], ...]

    def number(self, element: str = "") -> str:
        """The number of a register."""
        terms = [f"{v} * {w}" if w > 1 else v for v, _, w, _ in self.loops]
        below = 1
        for extent, weight in self.inside if element else ():
            value = f"{element} / {below}" if below > 1 else element
            value = f"{value} % {extent}" if below * extent < self.length else value
            terms.append(f"{value} * {weight}" if weight > 1 else value)
            below *= extent
        return " + ".join(terms) or "0"

    def at(self, axis: str, more: str = "") -> str:
        """What the loops add along an axis."""
        steps = [(v, getattr(d, axis)) for v, _, _, d in self.loops if getattr(d, axis)]
        return " + ".join([*([more] if more else []), *(f"{v} * {s}" if s > 1 else v for v, s in steps)]) or "0"


def run_of(spread: Spread, axis: str, dtype: DType = DType.F32) -> Run:
    """The longest run of neighbours along an axis that one load of such elements brings."""
    most = VECTOR_BYTES // dtype.size
    weights, number = [], 1
    for digit in spread.registers:
        weights.append(number)
        number *= digit.extent
    inside: list[int] = []
    length = 1
    while True:
        found = [p for p, d in enumerate(spread.registers) if getattr(d, axis) == length and p not in inside]
        if not found or length * spread.registers[found[0]].extent > most:
            break
        inside.append(found[0])
        length *= spread.registers[found[0]].extent
    loops = tuple(
        (f"r{place}", digit.extent, weights[place], digit)
        for place, digit in enumerate(spread.registers)
        if place not in inside and digit.extent > 1
    )
    return Run(length, tuple((spread.registers[p].extent, weights[p]) for p in inside), loops)


@dataclass(frozen=True, slots=True)
class Side:
    """One operand: its name in the text, its tile in shared memory, the axis of its own and where it begins there."""

    name: str
    tile: Tile
    own: str
    first: str
    spread: Spread
    base: int

    def axes(self, summed: str) -> tuple[str, str]:
        """The axes of the tile's rows and columns."""
        return (self.own, "k") if self.tile.axes[-1] == summed else ("k", self.own)


class TexelProduct:
    """Writes one product. slot: the stage; first: where the part begins in left's rows and right's columns."""

    def __init__(self, out: Writer, program: Program, product: Product, slot: str, first: tuple[str, str]) -> None:
        self.out, self.product, self.slot = out, product, slot
        self.row = ROWS[product.instruction]
        self.texel: Texel = self.row.texel
        left, right = program.tile(product.left), program.tile(product.right)
        self.summed = summed_axis(left, right)
        self.depth = left.shape[left.axes.index(self.summed)]
        self.tiles, self.first = (left, right), first
        self.made = self.row.arithmetic
        self.type, self.element = stored_type(self.row.sums), stored_type(self.row.dtype)

    def side(self, number: int) -> Side:
        """The left (0) or right operand (1), which comes in registers."""
        name = ("left", "right")[number]
        spread, source = getattr(self.texel, name), getattr(self.texel.source, name)
        return Side(name, self.tiles[number], "ij"[number], self.first[number], spread, source.count)

    def emit(self) -> None:
        """All steps of the slot."""
        out, texel = self.out, self.texel
        target, sides = self.product.result, (self.side(0), self.side(1))
        with out.block():
            for side in sides:
                self._base(side)
            if self.made.apart:
                target = "chunk"
                out.line(f"{self.type} chunk{_shape(texel.result.count, texel.source.result.count)} = {{}};")
            with out.unrolled("step", self.depth // texel.k) as step:
                for side in sides:
                    self._registers(side)
                    self._load(side, step)
                self._instances(target)
            if self.made.apart:
                self._add_chunk()

    def _add_chunk(self) -> None:
        """What tensor cores summed, added rounding to nearest."""
        out, base = self.out, self.texel.source.result.count
        with out.unrolled("x", self.texel.result.count // base) as x, out.unrolled("y", base) as y:
            out.line(f"{self.product.result}[{x}][{y}] += chunk[{x}][{y}];")

    def _base(self, side: Side) -> None:
        """Where the thread begins in the slot, and what it adds to the swizzle."""
        out, tile, name = self.out, side.tile, side.name
        texts = [thread_text(side.spread, a, side.first if a == side.own else "0") for a in side.axes(self.summed)]
        out.line(f"const int {name}_row = {texts[0]}, {name}_column = {texts[1]};")
        start = f"panel_start<{tile.shape[0]}{self._typed()}>({name}_row, {name}_column)"
        out.line(f"const {self.element}* const {name}_base = {tile.name} + {self.slot} * {tile.elements} + {start};")
        typed = f"<{self.element}>" if self._typed() else ""
        out.line(f"const int {name}_mixed = panel_mixed{typed}({name}_row, {name}_column);")

    def _typed(self) -> str:
        """What the functions of panels have to be told that do not hold floats."""
        return "" if self.row.dtype is DType.F32 else f", {self.element}"

    def _registers(self, side: Side, steps: int = 1) -> None:
        """Room for the pieces of an operand."""
        many = f"[{steps}]" if steps > 1 else ""
        for piece in range(self.made.pieces):
            self.out.line(f"{self.type} {side.name}{REST * piece}{many}{_shape(side.spread.count, side.base)};")

    def _load(self, side: Side, step: str, where: str = "") -> None:
        """The registers of one step, and their pieces."""
        out, name, base = self.out, side.name, side.base
        row, column = side.axes(self.summed)
        run = run_of(side.spread, column, self.row.dtype)
        with ExitStack() as stack:
            for variable, count, _, _ in run.loops:
                stack.enter_context(out.unrolled(variable, count))
            deep = f"{step} * {self.texel.k}" if step != "0" else ""
            places = [run.at(axis, deep if axis == "k" else "") for axis in (row, column)]
            at = f"panel_step<{side.tile.shape[0]}{self._typed()}>({name}_mixed, {places[0]}, {places[1]})"
            out.line(f"const auto v = load<{run.length}>({name}_base + {at});")
            with out.unrolled("e", run.length) as e:
                value = f"to_float(v[{e}])" if self.row.dtype.size < self.row.sums.size else f"v[{e}]"
                self._piece(name, run.number(e), base, value, where)

    def _piece(self, name: str, number: str, base: int, value: str, where: str) -> None:
        """One register: the element, or its pieces. What the tensor cores cut off themselves is not cut off here."""
        out, made = self.out, self.made
        place = f"{where}[{_over(number, base)}][{_below(number, base)}]"
        if made.pieces == 1 and not made.exact:
            value = f"round_tf32({value})"
        out.line(f"{name}{place} = {value};")
        if made.pieces > 1:
            out.line(f"{name}{REST}{place} = {value} - to_tf32({value});")

    def _instances(self, target: str) -> None:
        """Over k, rows, columns; in zig-zag, or line by line."""
        out, texel, zigzag = self.out, self.texel, self.row.zigzag
        counts = dict.fromkeys("kij", 1)
        for axis, count in texel.repeats:
            counts[axis] *= count
        with out.unrolled("k", counts["k"]) as k, out.unrolled("turn", counts["i"]) as turn:
            i = turn
            if zigzag and counts["i"] > 1 and counts["k"] > 1:
                out.line(f"const int i = {k} % 2 ? {counts['i'] - 1} - turn : turn;")
                i = "i"
            with out.unrolled("back", counts["j"]) as back:
                j = back
                if zigzag and counts["j"] > 1 and counts["i"] > 1:
                    out.line(f"const int j = turn % 2 ? {counts['j'] - 1} - back : back;")
                    j = "j"
                at = {"k": k, "i": i, "j": j}
                left, right, result = (f"[{self._instance(name, at)}]" for name in HAS)
                for a, b in self.made.terms:
                    self._call(target + result, f"left{REST * a}{left}", f"right{REST * b}{right}")

    def _call(self, result: str, left: str, right: str) -> None:
        if self.texel.source.extents[:3] == (1, 1, 1):
            self.out.line(f"{result}[0] = {self.row.function}({left}[0], {right}[0], {result}[0]);")
        else:
            self.out.line(f"{self.row.function}({result}, {left}, {right});")

    def _instance(self, name: str, at: dict[str, str]) -> str:
        """Which of an operand's instances is at a place of the repeats."""
        terms, weight = [], 1
        passed = dict.fromkeys("kij", 1)
        for axis, count in self.texel.repeats:
            below, here = passed[axis], at[axis]
            passed[axis] *= count
            if axis not in HAS[name]:
                continue
            if here != "0":
                value = f"{here} / {below}" if below > 1 else here
                last = all(a != axis for a, _ in self.texel.repeats[self.texel.repeats.index((axis, count)) + 1 :])
                value = value if last else f"{value} % {count}"
                terms.append(f"{value} * {weight}" if weight > 1 else value)
            weight *= count
        return " + ".join(terms) or "0"


def _shape(count: int, base: int) -> str:
    return f"[{count // base}][{base}]"


def _over(number: str, base: int) -> str:
    return f"({number}) / {base}" if base > 1 else number


def _below(number: str, base: int) -> str:
    return f"({number}) % {base}" if base > 1 else "0"


class WideProduct(TexelProduct):
    """Writes one product of a warpgroup whose left operand is read from shared memory by the instruction: registers of
    a step wait for the products of the step in front, second pieces of left lie in a tile of their own."""

    def emit(self) -> None:
        """All steps of the slot."""
        out, texel, side = self.out, self.texel, self.side(1)
        steps, base = self.depth // texel.k, texel.source.result.count
        subtiles = texel.result.count // base
        target = "chunk" if self.made.apart else self.product.result
        left = self.tiles[0]
        with out.block():
            self._base(side)
            out.line(f"const float* const left = {left.name} + {self.slot} * {left.elements} + ({self.first[0]}) * 32;")
            if self.product.rest:
                self._left_rest()
            if self.made.apart:
                out.line(f"float chunk{_shape(texel.result.count, base)} = {{}};")
            self._registers(side, steps)
            with out.unrolled("step", steps) as step:
                self._load(side, step, f"[{step}]")
                self._each_register(step, subtiles)
                with out.unrolled("s", subtiles) as s:
                    out.line(f"wgmma_fence({target}[{s}]);")
                with out.unrolled("s", subtiles) as s:
                    for a, b in self.made.terms:
                        tile = "left_rest" if a else "left"
                        at = f"wgmma_descriptor<Major::K>({tile} + {step} * {texel.k})"
                        out.line(f"{self.row.function}({target}[{s}], right{REST * b}[{step}][{s}], {at});")
                out.line("wgmma_commit();")
                with out.block(f"if ({step} > 0)"):
                    out.line("wgmma_pass<1>();")
                    self._each_register(f"({step} > 0 ? {step} - 1 : 0)", subtiles)
            with out.unrolled("s", subtiles) as s:
                out.line(f"wgmma_wait<0>({target}[{s}]);")
            self._each_register(str(steps - 1), subtiles)
            if self.made.apart:
                self._add_chunk()

    def _each_register(self, step: str, subtiles: int) -> None:
        """The registers of a step are as they are up to here."""
        with self.out.unrolled("s", subtiles) as s:
            for piece in range(self.made.pieces):
                self.out.line(f"wgmma_hold(right{REST * piece}[{step}][{s}]);")

    def _left_rest(self) -> None:
        """The second pieces of this group's rows, in the same order; the group meets before and after."""
        out, rows, threads = self.out, self.row.m, LANES * self.row.warps
        group = f"warp / {self.row.warps}"
        out.line(f"float* const left_rest = {self.product.rest} + ({self.first[0]}) * 32;")
        out.line(f"barrier_sync(1 + {group}, {threads});")
        with out.unrolled("q", rows * 32 // (4 * threads)) as q:
            out.line(f"const int at = ((warp % {self.row.warps} * {LANES} + lane) + {q} * {threads}) * 4;")
            out.line("auto v = load<4>(left + at);")
            with out.unrolled("e", 4) as e:
                out.line(f"v[{e}] -= to_tf32(v[{e}]);")
            out.line("store(left_rest + at, v);")
        out.line("fence_proxy_async();")
        out.line(f"barrier_sync(1 + {group}, {threads});")


class WidenedProduct(WideProduct):
    """Writes one product of a warpgroup whose right operand is stored in bytes: pairs of a row are widened to words of
    the left operand's type, while the instructions of the step in front multiply."""

    def __init__(self, out: Writer, program: Program, product: Product, slot: str, first: tuple[str, str]) -> None:
        super().__init__(out, program, product, slot, first)
        self.wide, self.element = stored_type(self.row.dtype), stored_type(self.row.types[1])

    def emit(self) -> None:
        """All steps of the slot."""
        out, texel, target, left = self.out, self.texel, self.product.result, self.tiles[0]
        steps, subtiles, line = self.depth // texel.k, texel.extents[1] // HEIGHT, step(self.row.dtype.size)
        each = line // texel.k
        function = self.row.function.removesuffix(">")
        with out.block():
            self._base(self.side(1))
            begin = f" + ({self.first[0]}) * {line}" if self.first[0] != "0" else ""
            out.line(f"const {self.wide}* const left = {left.name} + {self.slot} * {left.elements}{begin};")
            out.line(f"uint32_t right[{steps}][{subtiles}][1][4];")
            with out.unrolled("step", steps) as step_:
                self._widen(step_, subtiles)
                out.line(f"wgmma_hold(right[{step_}]);")
                with out.unrolled("s", subtiles) as s:
                    out.line(f"wgmma_fence({target}[{s}]);")
                place = f"{step_} / {each} * {left.shape[0] * line} + {step_} % {each} * {texel.k}"
                with out.unrolled("s", subtiles) as s:
                    b = f"wgmma_descriptor<Major::K>(left + {place})"
                    out.line(f"{function}, {self.wide}, Major::K>({target}[{s}], right[{step_}][{s}][0], {b});")
                out.line("wgmma_commit();")
                with out.block(f"if ({step_} > 0)"):
                    out.line("wgmma_pass<1>();")
                    out.line(f"wgmma_hold(right[{step_} > 0 ? {step_} - 1 : 0]);")
            with out.unrolled("s", subtiles) as s:
                out.line(f"wgmma_wait<0>({target}[{s}]);")
            out.line(f"wgmma_hold(right[{steps - 1}]);")

    def _widen(self, step_: str, subtiles: int) -> None:
        """The words of one step: of every row the pairs of its two halves."""
        rows, typed = self.tiles[1].shape[0], self._typed()
        with self.out.unrolled("s", subtiles) as s, self.out.unrolled("h", 2) as h:
            places = [f"{HEIGHT} * {s} + 8 * {h}, {self.texel.k} * {step_} + {8 * half}" for half in range(2)]
            twos = ", ".join(f"right_base + panel_step<{rows}{typed}>(right_mixed, {at})" for at in places)
            words = f"right[{step_}][{s}][0][{h}], right[{step_}][{s}][0][2 + {h}]"
            self.out.line(f"widen_bytes<{self.element}, {self.wide}>(load_twos({twos}), {words});")
