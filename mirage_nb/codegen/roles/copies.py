"""Copies of a tile program: boxes of global tensors that the copy engine brings to slots of rings.

In: a Copy or Multicast. Out: the tensor map that its boxes are cut by, and the calls that bring them: a box for each
panel of the tile, or, of a multicast, for each panel of this block's part of it.
"""

from __future__ import annotations

from mirage_nb.codegen.emitted import MapArg
from mirage_nb.codegen.writer import Writer, c_index
from mirage_nb.tile.roles.program import RANK, Copy, Multicast, Program
from mirage_nb.tile.rules.boxes import Matrix
from mirage_nb.tile.rules.shared import LINE_BYTES


def _rows(program: Program, copy: Copy) -> int:
    """Of the tile, that one block brings."""
    rows = program.tile(copy.target).shape[0]
    return rows // program.cluster if isinstance(copy, Multicast) else rows


def tensor_map(program: Program, copy: Copy) -> MapArg:
    """The map that a copy reads by, of the kernel's operand of this number."""
    source, target = program.tile(copy.source), program.tile(copy.target)
    box = (_rows(program, copy), LINE_BYTES // target.dtype.size)
    matrix = Matrix.of(source, target)
    return MapArg(
        program.operand(source.name),
        *matrix.shape,
        box,
        LINE_BYTES,
        matrices=matrix.matrices if matrix.matrices > 1 else 0,
    )


def write_copy(out: Writer, program: Program, copy: Copy, ring: str, *, ahead: bool = False) -> None:
    """The boxes of a tile, into the slot of its ring. ahead: they are wanted in L2 only."""
    target, rows = program.tile(copy.target), _rows(program, copy)
    matrix = Matrix.of(program.tile(copy.source), target)
    which, row, column = matrix.place(copy.at)
    panel = LINE_BYTES // target.dtype.size
    panels, size = target.shape[1] // panel, target.shape[0] * panel
    slot, down, full = f"{target.name} + {ring}_slot * {target.elements}", c_index(row), f"{ring}_full + {ring}_slot"
    if isinstance(copy, Multicast):
        slot, down = f"{slot} + {RANK} * {rows * panel}", f"{down} + {RANK} * {rows}"
    with out.unrolled("p", panels) as p:
        to = slot + (f" + {p} * {size}" if panels > 1 else "")
        box = c_index(column) + (f" + {p} * {panel}" if panels > 1 else "") + f", {down}"
        if matrix.matrices > 1:
            box = f"{box}, {c_index(which)}"
            call = f"tma_prefetch_3d(map_{target.name}, " if ahead else f"tma_load_3d({to}, map_{target.name}, {full}, "
            out.line(f"{call}{box});")
        elif ahead:
            out.line(f"tma_prefetch_2d(map_{target.name}, {box});")
        elif isinstance(copy, Multicast):
            out.line(f"tma_load_2d_all({to}, map_{target.name}, {full}, {box}, {program.cluster});")
        else:
            out.line(f"tma_load_2d({to}, map_{target.name}, {full}, {box});")
