"""What a role computes between products: values on register tiles as they lie in an instruction's fragments.

In: the statements of a tile program that define, reduce and keep values. Out: statements on a thread's own elements.
A value with rows only is computed where it stands; one with rows and columns is no more than an expression, computed
anew for whatever takes it, element by element. What is read is loaded where it stands (`reads`). Invariant: every
lane takes part in every reduction, and in every exchange of what was loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from mirage_nb.codegen.operators import CUDA, number
from mirage_nb.codegen.roles.access import Part
from mirage_nb.codegen.roles.reads import Element, ReadText, each_row, row_of
from mirage_nb.codegen.writer import Writer, c_index, c_type, stored_type
from mirage_nb.ir import DType, OpKind
from mirage_nb.optimize.reach import Reach
from mirage_nb.tile.instructions.table import Place
from mirage_nb.tile.roles.program import (
    Clear,
    Count,
    Index,
    Map,
    Number,
    Program,
    Read,
    Reduce,
    Set,
    Store,
    Tile,
    Until,
    flat,
)
from mirage_nb.tile.rules.sharing import COLUMN_TILE, DEPTH_TILE
from mirage_nb.tile.rules.teams import HEIGHT, QUAD

REDUCTIONS = {
    OpKind.SUM: ("0.0f", "{} + {}", "warp_sum"),
    OpKind.MAX: ("NEGATIVE_INFINITY", "maximum({}, {})", "warp_max"),
}
"""What a reduction begins with, how it goes on, how lanes do it together."""

Defined = Number | Read | Count | Until | Map | Reduce


def is_operand(tile: Tile) -> bool:
    """Whether a register tile holds a product's left operand."""
    return tile.dtype is not DType.F32


def declared(tile: Tile) -> str:
    """The registers of a tile."""
    subtiles = tile.shape[0] // HEIGHT
    if is_operand(tile):
        return f"uint32_t {tile.name}[{subtiles}][{tile.shape[1] // DEPTH_TILE}][1][4];"
    return f"float {tile.name}[{subtiles}][{tile.shape[1] // 2 if len(tile.shape) > 1 else 2}];"


@dataclass(slots=True)
class RegisterText:
    """Writes them. ends: of global tensors that end where a size does, which is known at launch; defined: the statement
    of every value so far; reads: how those of this body are loaded; stored: what is stored element by element, and what
    that is made of, which is said as `values` says it: what is stored equals its folds, to the last bit."""

    out: Writer
    program: Program
    role: str
    ends: dict[str, Reach]
    defined: dict[str, Defined]
    reads: dict[str, ReadText] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        statements = tuple(flat(self.program.statements(self.role)))
        self.stored = {s.value for s in statements if isinstance(s, Store)}
        for made in reversed(statements):
            if isinstance(made, Map) and made.name in self.stored:
                self.stored.update(made.operands)

    def write(self, statement: Defined | Set) -> None:
        """One statement."""
        match statement:
            case Read():
                self.defined[statement.name] = statement
                self._reading(statement).load()
            case Count():
                self.defined[statement.name] = statement
                self._count(statement)
            case Number():
                self.defined[statement.name] = statement
            case Until(name, _, axis, at):
                self.defined[name] = statement
                left = at * -1 + Index((), self.program.extents[axis])  # elements of the axis
                self.out.line(f"const int {name}_in = {c_index(left)} - 2 * (lane % 4);")
            case Map():
                self.defined[statement.name] = statement
                if self.of_rows(statement.name):
                    self._rows(statement)
            case Reduce():
                self.defined[statement.name] = statement
                self._exchange()
                self._reduce(statement)
            case Set():
                self._exchange()
                self._set(statement)

    def store(self, made: Store) -> None:
        """A value with rows only, by the first of the lanes that have it."""
        held = next(t for t in self.program.register_tiles(self.role) if len(t.shape) > 1)
        (rows, columns), (height, width) = held.axes, held.shape
        access = Part(self.program, self.ends, (rows, columns), (height, width)).access(made.target, made.at)
        with each_row(self.out, height // HEIGHT) as at:
            self.out.line(f"const int row = {row_of(*at)};")
            with self.out.block(f"if ({' && '.join(filter(None, (f'lane % {QUAD} == 0', access.inside)))})"):
                value = self._element(made.value, Element(*at), set())
                rounded = f"from_float<{stored_type(access.tile.dtype)}>({value})"
                self.out.line(f"{access.tile.name}[{access.offset}] = {rounded};")

    def clear(self, statement: Clear) -> None:
        """Zeros."""
        tile = self.program.tile(statement.result)
        count = tile.shape[1] // 2 if len(tile.shape) > 1 else 2
        with self.out.unrolled("i", tile.shape[0] // HEIGHT) as i, self.out.unrolled("r", count) as r:
            self.out.line(f"{tile.name}[{i}][{r}] = 0.0f;")

    def axes(self, name: str) -> tuple[str, ...]:
        """The axes of a value or register tile, rows first."""
        tile = self._tile(name)
        if tile is not None:
            return tile.axes
        match self.defined[name]:
            case Number():
                return ()
            case Read(_, source):
                return self.program.held_axes(self.program.tile(source), self.role)
            case Count(_, axis) | Until(_, _, axis):
                return (axis,)
            case Map(_, _, _, operands):
                found = {axis for operand in operands for axis in self.axes(operand)}
                return tuple(axis for axis in self._order() if axis in found)
            case Reduce(_, _, operand, axis):
                return tuple(a for a in self.axes(operand) if a != axis)

    def _order(self) -> tuple[str, ...]:
        """The axes of register tiles: those of rows first."""
        tiles = [t.axes for t in self.program.tiles if t.place is Place.REGISTER]
        return tuple(dict.fromkeys(axis for dim in range(2) for axes in tiles for axis in axes[dim : dim + 1]))

    def of_rows(self, name: str) -> bool:
        """Whether a value has rows only."""
        axes = self.axes(name)
        return axes == self._order()[:1]

    def _tile(self, name: str) -> Tile | None:
        return next((t for t in self.program.tiles if t.name == name and t.place is Place.REGISTER), None)

    def _shape(self, name: str) -> tuple[int, ...]:
        """The extents of a value: those of register tiles along its axes."""
        sizes: dict[str, int] = {}
        for tile in self.program.tiles:
            if tile.place is Place.REGISTER:
                sizes |= dict(zip(tile.axes, tile.shape, strict=True))
        return tuple(sizes[axis] for axis in self.axes(name))

    # -- statements

    def _reading(self, made: Read) -> ReadText:
        if made.name not in self.reads:
            scores = next(t for t in self.program.register_tiles(self.role) if len(t.shape) > 1)
            axes = self.axes(made.name)
            self.reads[made.name] = ReadText(self.out, self.program, self.ends, made, axes, scores)
        return self.reads[made.name]

    def _exchange(self) -> None:
        """Lanes hand each other what they loaded for each other, which is used from here on."""
        for read in self.reads.values():
            read.exchange()

    def _count(self, made: Count) -> None:
        """Rows one by one; columns from this lane's first one on."""
        out, name = self.out, made.name
        if self.of_rows(name):
            subtiles = self._shape(name)[0] // HEIGHT
            out.line(f"float {name}[{subtiles}][2];")
            with each_row(self.out, subtiles) as (i, h):
                out.line(f"{name}[{i}][{h}] = float({c_index(made.at)} + {row_of(i, h)});")
            return
        out.line(f"const float {name} = float({c_index(made.at)} + 2 * (lane % 4));")

    def _rows(self, made: Map) -> None:
        subtiles = self._shape(made.name)[0] // HEIGHT
        self.out.line(f"float {made.name}[{subtiles}][2];")
        with each_row(self.out, subtiles) as (i, h):
            self.out.line(f"{made.name}[{i}][{h}] = {self._said(made, Element(i, h), set())};")

    def _reduce(self, made: Reduce) -> None:
        rows, columns = self._shape(made.operand)
        start, combine, across = REDUCTIONS[made.kind]
        self.out.line(f"float {made.name}[{rows // HEIGHT}][2];")
        with each_row(self.out, rows // HEIGHT) as (i, h):
            self.out.line(f"float part[2] = {{{start}, {start}}};")
            with self.out.unrolled("j", columns // COLUMN_TILE) as j, self.out.unrolled("e", 2) as e:
                text = self._element(made.operand, Element(i, h, j, e), set())
                self.out.line(f"part[{e}] = {combine.format(f'part[{e}]', text)};")
            self.out.line(f"{made.name}[{i}][{h}] = {across}<{QUAD}>({combine.format('part[0]', 'part[1]')});")

    def _set(self, made: Set) -> None:
        tile = self._tile(made.result)
        assert tile is not None
        name, subtiles = tile.name, tile.shape[0] // HEIGHT
        if is_operand(tile):
            self._set_operand(made, tile)
            return
        with each_row(self.out, subtiles) as (i, h):
            if len(tile.shape) == 1:
                self.out.line(f"{name}[{i}][{h}] = {self._element(made.value, Element(i, h), set())};")
                return
            with self.out.unrolled("j", tile.shape[1] // COLUMN_TILE) as j, self.out.unrolled("e", 2) as e:
                at = Element(i, h, j, e)
                text = self._element(made.value, at, set())
                self.out.line(f"{name}{self._place(at)} = {text};")

    def _set_operand(self, made: Set, tile: Tile) -> None:
        """Two neighbours in a row to a word: a fragment of sixteen columns is two accumulators' of eight."""
        out, element = self.out, c_type(tile.dtype)
        with (
            each_row(self.out, tile.shape[0] // HEIGHT) as (i, h),
            out.unrolled("j", tile.shape[1] // COLUMN_TILE) as j,
        ):
            out.line("float pair[2];")
            with out.unrolled("e", 2) as e:
                out.line(f"pair[{e}] = {self._element(made.value, Element(i, h, j, e), set())};")
            out.line(f"{tile.name}[{i}][{j} / 2][0][{j} % 2 * 2 + {h}] = pack2<{element}>(pair[0], pair[1]);")

    # -- elements

    def _element(self, name: str, at: Element, said: set[str]) -> str:
        """The C name of a value's element, behind the lines that compute it."""
        tile = self._tile(name)
        if tile is not None:
            return f"{name}{self._place(at) if len(tile.shape) > 1 else f'[{at.i}][{at.h}]'}"
        made = self.defined[name]
        if isinstance(made, Number):
            return number(made.value)
        if isinstance(made, Read):
            return self._reading(made).element(at)
        if self.of_rows(name):
            return f"{name}[{at.i}][{at.h}]"
        if isinstance(made, Until):
            return self._until(made, at)
        if isinstance(made, Count):
            return f"({name} + float({COLUMN_TILE} * {at.j} + {at.e}))"
        assert isinstance(made, Map)
        if name not in said:
            said.add(name)
            self.out.line(f"const float {name} = {self._said(made, at, said)};")
        return name

    def _until(self, made: Until, at: Element) -> str:
        """A number in front of the end of the columns' axis."""
        name, column = f"{made.name}_in", f"{COLUMN_TILE} * {at.j} + {at.e}"
        return f"({name} > {column} ? {number(made.number)} : 0.0f)"

    def _said(self, made: Map, at: Element, said: set[str]) -> str:
        """What a Map computes, its operands at the same element."""
        whole = made.kind is OpKind.EXP and len(self.axes(made.name)) > 1 and made.name not in self.stored
        fall = self.defined.get(made.operands[0]) if whole else None
        if not isinstance(fall, Map) or fall.kind is not OpKind.SUB:
            return CUDA[made.kind]([self._element(o, at, said) for o in made.operands], made.attrs)
        # In powers of two, factors and differences are one instruction.
        name, factor = self._scaled(fall.operands[0])
        scaled, top = self._element(name, at, said), self._element(fall.operands[1], at, said)
        return f"fast_exp2(fused_multiply_add({scaled}, {number(factor)} * LOG2_E, -({top} * LOG2_E)))"

    def _scaled(self, name: str) -> tuple[str, Fraction]:
        """A value as another one times a number."""
        made = self.defined.get(name)
        if isinstance(made, Map) and made.kind is OpKind.MUL:
            for value, other in (made.operands, made.operands[::-1]):
                by = self.defined.get(other)
                if isinstance(by, Number):
                    return value, by.value
        return name, Fraction(1)

    def _place(self, at: Element) -> str:
        return f"[{at.i}][4 * {at.j} + 2 * {at.h} + {at.e}]"
