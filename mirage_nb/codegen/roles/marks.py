"""Marks of a tile program: of which tiles anything is left, found from bounds of what a mask is computed of.

In: a Mark, the role whose warps make it. Out: a warp looks at a tile at a time: at the least and the largest of what is
read along it, which the lanes share out, and from these at the bounds of every value. Invariant: a tile is not marked
only where the bounds say that all of a mask is zero; what is not known is anything; whoever awaits the stage sees
all of its marks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirage_nb.codegen.operators import CUDA, SCALARS, called, left_out, number
from mirage_nb.codegen.roles.access import Part, loaded
from mirage_nb.codegen.writer import Writer, c_index
from mirage_nb.ir import ApplyAttrs, Attrs, OpKind, formula
from mirage_nb.optimize.reach import Reach
from mirage_nb.tile.roles.program import LANES, Computed, Count, Index, Map, Mark, Number, Program, Read, Role

BARRIER = 8
"""The named barrier of the warps that mark; those of turns are in front of it."""
KNOWN = frozenset({"add", "sub", "mul", "neg", "square", "abs", "sign", "floor", "step", "minimum", "maximum"})
"""The primitives of formulas that the device library has of bounds, under the names that they have of numbers."""
Said = Callable[[list[str], Attrs | None], str]


BOUNDS: Mapping[OpKind, Said] = {
    OpKind.GREATER: called("greater"), OpKind.GREATER_EQUAL: called("greater_equal"), OpKind.EQUAL: called("equal"),
    OpKind.WHERE: lambda operands, attrs: f"choice({', '.join(operands)}, {left_out(attrs)})",
    **{kind: CUDA[kind] for kind in (OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.SQR, OpKind.RELU, OpKind.CLAMP,
                                     OpKind.MAXIMUM, OpKind.CAST)},
}  # fmt: skip
"""Elementwise operators as they are said of bounds."""


@dataclass(frozen=True, slots=True)
class MarkText:
    """Writes one. first: the first warp of the role; ends: of global tensors that end where a size does."""

    out: Writer
    program: Program
    mark: Mark
    role: Role
    first: int
    ends: dict[str, Reach]

    def emit(self, ring: str) -> None:
        """All of it, into a stage of this pipeline."""
        out, mark, warps = self.out, self.mark, self.role.warps
        (count,) = self.program.tile(mark.target).shape
        moving = self._moving()
        with out.block():
            for made in mark.body:
                if made not in moving:
                    self._write(made)
            own = f"warp - {self.first}" if self.first else "warp"
            step, tile = f"{mark.counter} += {warps}", mark.counter
            with out.block(f"for (int {tile} = {own}; {tile} < {c_index(mark.count)}; {step})"):
                for made in moving:
                    self._write(made)
                place = f"{mark.target}[{ring}_slot * {count} + {tile}]"
                out.line(f"if (lane == 0) {place} = {' && '.join(f'may_be({value})' for value in mark.values)};")
        out.line(f"barrier_sync({BARRIER}, {LANES * warps});" if warps > 1 else "warp_sync();")
        out.line(f"if (warp == {self.first} && lane == 0) mbarrier_arrive({ring}_full + {ring}_slot);")

    def _moving(self) -> tuple[Computed, ...]:
        """What is another value for every tile."""
        found, names = list[Computed](), set[str]()
        for made in self.mark.body:
            match made:
                case Read(name, _, at):
                    moves = any(self._moves(index) for index in at)
                case Count(name, _, index):
                    moves = self._moves(index)
                case Map(name, _, _, operands):
                    moves = not names.isdisjoint(operands)
                case _:
                    continue
            if moves:
                found.append(made)
                names.add(name)
        return tuple(found)

    def _moves(self, index: Index) -> bool:
        return any(name == self.mark.counter for name, _ in index.terms)

    def _write(self, made: Computed) -> None:
        """The bounds of a value."""
        self.out.line(f"const Bounds {made.name} = {self._bounds(made)};")

    def _bounds(self, made: Computed) -> str:
        match made:
            case Number(_, value):
                return number(value)
            case Count(_, axis, at):
                last = at + Index((), dict(self.mark.sides)[axis] - 1)
                return f"Bounds(float({c_index(at)}), float({c_index(last)}))"
            case Map(_, kind, attrs, operands):
                return _said(kind, attrs, operands)
            case Read():
                return self._read(made)

    def _read(self, made: Read) -> str:
        """Of what is read along rows or keys; along both nothing is known."""
        (rows, height), (keys, width) = self.mark.sides
        along = {rows, keys} & {*self.program.tile(made.source).axes}
        access = Part(self.program, self.ends, (rows, keys), (height, width)).access(made.source, made.at)
        if not along:
            return loaded(access)
        if len(along) > 1:
            return "any_bounds()"
        place, extent = ("row", height) if rows in along else ("column", width)
        own = f"{made.name}_own"
        self.out.line(f"Bounds {own} = no_bounds();")
        self.out.line("MIRAGE_UNROLL")
        with self.out.block(f"for (int {place} = lane; {place} < {extent}; {place} += {LANES})"):
            self.out.line(f"{own}.take({loaded(access)});")
        return f"across_lanes({own})"


def _said(kind: OpKind, attrs: Attrs | None, operands: tuple[str, ...]) -> str:
    """The bounds of what an operator makes."""
    if isinstance(attrs, ApplyAttrs):
        table = {name: said for name, said in SCALARS.items() if name in KNOWN}
        try:
            return formula.fold(formula.read(attrs.formula), operands[0], lambda v: f"Bounds({number(v)})", table)
        except KeyError:  # a primitive of which nothing is known
            return "any_bounds()"
    return BOUNDS[kind](list(operands), attrs) if kind in BOUNDS else "any_bounds()"
