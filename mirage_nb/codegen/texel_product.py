"""Products of tiles in shared memory by instructions whose operands are registers: loads, pieces, instances.

In: a product of a tile program whose row is derived from the plain cores or from mma.sync (`tile.groups`). Out:
statements that add it to registers `<result>[instance][register]`. Where every register's element lies is what the
row's texel says; the loads, four floats at a time where neighbours are held together, follow from it. Instances go in
zig-zag: each shares an operand with the one in front (Mosaic, section 5.2). Invariant: the digits of a place are
powers of two, so what the thread decides and what the loops decide are different bits of it, and the swizzle of both
is the exclusive or of the swizzles.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from mirage_nb.codegen.writer import Writer
from mirage_nb.tile.groups import ROWS
from mirage_nb.tile.precision import COMPOSITIONS
from mirage_nb.tile.program import Product, Program, Tile
from mirage_nb.tile.texels import HAS, Digit, Spread, Texel

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
    """Registers that hold neighbours along an axis: how many, and how far apart they are numbered; and the loops over
    the others: variable, count, weight, digit."""

    length: int
    weight: int
    loops: tuple[tuple[str, int, int, Digit], ...]

    def number(self, inside: str = "") -> str:
        """The number of a register."""
        terms = [f"{v} * {w}" if w > 1 else v for v, _, w, _ in self.loops]
        if inside and self.length > 1:
            terms.append(f"{inside} * {self.weight}" if self.weight > 1 else inside)
        return " + ".join(terms) or "0"

    def at(self, axis: str, more: str = "") -> str:
        """What the loops add along an axis."""
        steps = [(v, getattr(d, axis)) for v, _, _, d in self.loops if getattr(d, axis)]
        return " + ".join([*([more] if more else []), *(f"{v} * {s}" if s > 1 else v for v, s in steps)]) or "0"


def run_of(spread: Spread, axis: str, most: int = 4) -> Run:
    """The longest run of neighbours along an axis, of at most `most`."""
    length, weight, number, loops = 1, 1, 1, []
    for place, digit in enumerate(spread.registers):
        if getattr(digit, axis) == 1 and length == 1 and digit.extent <= most:
            length, weight = digit.extent, number
        elif digit.extent > 1:
            loops.append((f"r{place}", digit.extent, number, digit))
        number *= digit.extent
    return Run(length, weight, tuple(loops))


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
    """Writes one product."""

    def __init__(self, out: Writer, program: Program, product: Product, slot: str, first: tuple[str, str]) -> None:
        self.out, self.product, self.slot = out, product, slot
        self.row = ROWS[product.instruction]
        self.texel: Texel = self.row.texel
        left, right = program.tile(product.left), program.tile(product.right)
        (self.summed,) = set(left.axes) & set(right.axes)
        self.depth = left.shape[left.axes.index(self.summed)]
        source = self.texel.source
        assert self.texel.left and self.texel.right and source.left and source.right
        self.sides = (
            Side("left", left, "i", first[0], self.texel.left, source.left.count),
            Side("right", right, "j", first[1], self.texel.right, source.right.count),
        )
        self.composition = COMPOSITIONS.get(self.row.composition)

    def emit(self) -> None:
        """All steps of the slot."""
        out, texel = self.out, self.texel
        target = self.product.result
        with out.block():
            for side in self.sides:
                self._base(side)
            if self.row.apart:
                target = "chunk"
                out.line(f"float chunk{_shape(texel.result.count, texel.source.result.count)} = {{}};")
            with out.unrolled("step", self.depth // texel.k) as step:
                for side in self.sides:
                    self._load(side, step)
                self._instances(target)
            if self.row.apart:
                base = texel.source.result.count
                with out.unrolled("x", texel.result.count // base) as x, out.unrolled("y", base) as y:
                    out.line(f"{self.product.result}[{x}][{y}] += chunk[{x}][{y}];")

    def _base(self, side: Side) -> None:
        """Where the thread begins in the slot, and what it adds to the swizzle."""
        out, tile, name = self.out, side.tile, side.name
        texts = [thread_text(side.spread, a, side.first if a == side.own else "0") for a in side.axes(self.summed)]
        out.line(f"const int {name}_row = {texts[0]}, {name}_column = {texts[1]};")
        start = f"panel_start<{tile.shape[0]}>({name}_row, {name}_column)"
        out.line(f"const float* const {name}_base = {tile.name} + {self.slot} * {tile.elements} + {start};")
        out.line(f"const int {name}_mixed = panel_mixed({name}_row, {name}_column);")

    def _load(self, side: Side, step: str) -> None:
        """The registers of one step, and their pieces."""
        out, name, base = self.out, side.name, side.base
        row, column = side.axes(self.summed)
        run = run_of(side.spread, column)
        out.line(f"float {name}{_shape(side.spread.count, base)};")
        pieces = self.composition.pieces if self.composition else 1
        if pieces > 1:
            out.line(f"float {name}{REST}{_shape(side.spread.count, base)};")
        with ExitStack() as stack:
            for variable, count, _, _ in run.loops:
                stack.enter_context(out.unrolled(variable, count))
            deep = f"{step} * {self.texel.k}" if step != "0" else ""
            places = [run.at(axis, deep if axis == "k" else "") for axis in (row, column)]
            at = f"panel_step<{side.tile.shape[0]}>({name}_mixed, {places[0]}, {places[1]})"
            out.line(f"const auto v = load<{run.length}>({name}_base + {at});")
            with out.unrolled("e", run.length) as e:
                self._piece(name, run.number(e), base, f"v[{e}]")

    def _piece(self, name: str, number: str, base: int, value: str) -> None:
        """One register: the element, or its pieces. What the tensor cores cut off themselves is not cut off here."""
        out, made = self.out, self.composition
        place = f"[{_over(number, base)}][{_below(number, base)}]"
        if made is not None and made.pieces == 1:
            value = f"round_tf32({value})"
        out.line(f"{name}{place} = {value};")
        if made is not None and made.pieces > 1:
            out.line(f"{name}{REST}{place} = {value} - to_tf32({value});")

    def _instances(self, target: str) -> None:
        """Zig-zag over k, rows, columns."""
        out, texel = self.out, self.texel
        counts = dict.fromkeys("kij", 1)
        for axis, count in texel.repeats:
            counts[axis] *= count
        terms = self.composition.terms if self.composition else ((0, 0),)
        with out.unrolled("k", counts["k"]) as k, out.unrolled("turn", counts["i"]) as turn:
            i = turn
            if counts["i"] > 1 and counts["k"] > 1:
                out.line(f"const int i = {k} % 2 ? {counts['i'] - 1} - turn : turn;")
                i = "i"
            with out.unrolled("back", counts["j"]) as back:
                j = back
                if counts["j"] > 1 and counts["i"] > 1:
                    out.line(f"const int j = turn % 2 ? {counts['j'] - 1} - back : back;")
                    j = "j"
                at = {"k": k, "i": i, "j": j}
                left, right, result = (f"[{self._instance(name, at)}]" for name in HAS)
                for a, b in terms:
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
