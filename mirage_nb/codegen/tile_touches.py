"""What a role reads behind its products is on its way to L2 while it multiplies.

In: the statements of a point of the walk, the role that does them. Out: statements in front of its products that touch
the lines of the matrices that stand behind these, each by one of the threads of a part. Where they came from device
memory behind the products, a product of 2048 x 1024 x 1024 with a matrix added took 14.7 us of an H200, and 12.6 so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mirage_nb.codegen.tile_access import Part
from mirage_nb.codegen.writer import Writer
from mirage_nb.optimize.reach import Reach
from mirage_nb.tile.program import GROUP, LANES, Await, Loop, Program, Read, Role, Statement, Walk, flat
from mirage_nb.tile.shared import LINE_BYTES

MOST_POINTS = 2
"""Of the walk, that a block takes: of eight, a product of 4096 x 4096 x 4096 took 228 us without and 230 with it."""


def write_touches(out: Writer, program: Program, role: Role, walk: Walk, ends: dict[str, Reach]) -> None:
    """Those of one point, where blocks take few."""
    if math.prod(count for _, count in walk.counters) > MOST_POINTS * program.blocks:
        return
    for read in behind_products(program, role, walk.body):
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


def behind_products(program: Program, role: Role, body: Sequence[Statement]) -> list[Read]:
    """The matrices that a role reads behind the loop over its products, whose rows lie as those of its tiles do."""
    loops = [n for n, s in enumerate(body) if isinstance(s, Loop) and any(isinstance(i, Await) for i in flat(s.body))]
    found = dict.fromkeys(s for s in body[loops[-1] + 1 :] if isinstance(s, Read)) if loops else {}
    axes = {read: program.held_axes(program.tile(read.source), role.name) for read in found}
    return [r for r, own in axes.items() if len(own) == 2 and program.tile(r.source).axes[-1] == own[1]]
