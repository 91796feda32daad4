"""What a role reads early: the lines of matrices that stand behind its products are touched in front of them, each by
one of the threads of a part."""

from __future__ import annotations

from mirage_nb.codegen.roles.access import Part
from mirage_nb.codegen.writer import Writer
from mirage_nb.optimize.reach import Reach
from mirage_nb.tile.roles.program import GROUP, LANES, Program, Read, Role, Walk
from mirage_nb.tile.rules.shared import LINE_BYTES


def write_touches(out: Writer, program: Program, role: Role, walk: Walk, ends: dict[str, Reach]) -> None:
    """Those of one point."""
    for read in (s for s in walk.body if isinstance(s, Read) and s.early):
        tile, held = program.tile(read.source), program.register_tiles(role.name)
        rows, columns = program.held_axes(tile, role.name)
        sizes = {axis: extent for one in held for axis, extent in zip(one.axes, one.shape, strict=True)}
        height, width, line = sizes[rows], sizes[columns], LINE_BYTES // tile.dtype.size
        lines = -(-width // line)
        access = Part(program, ends, (rows, columns), (height, lines * line)).access(read.source, read.at)
        first, threads = f"{LANES} * (warp % {GROUP}) + lane", LANES * min(role.warps, GROUP)
        with out.block(f"for (int e = {first}; e < {height * lines}; e += {threads})"):
            row, column = (f"e / {lines}", f"e % {lines} * {line}") if lines > 1 else ("e", "0")
            out.line(f"const int row = {row}, column = {column};")
            asked = f"if ({access.inside}) " if access.inside else ""
            out.line(f"{asked}touch({tile.name} + {access.offset});")
