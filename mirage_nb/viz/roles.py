"""A tile program for people: its tiles, the pipelines from role to role, and a lane of statements for every role.

In: a tile program. Out: HTML, the block's tile in colours by instruction on top. Invariant: every tile and every
statement is shown once, as its text form has it.
"""

from __future__ import annotations

from html import escape

from mirage_nb.tile.program import Acquire, Await, Pipeline, Program, Role, flat
from mirage_nb.tile.text import body_lines, line_of
from mirage_nb.viz.svg import framed
from mirage_nb.viz.tessellation import program_drawing


def roles_html(program: Program) -> str:
    """Pipelines and tiles, and under them the roles side by side."""
    pipelines = "".join(f"<li>{escape(_pipeline(program, ring))}</li>" for ring in program.pipelines)
    tiles = escape("\n".join(line_of(tile) for tile in program.tiles))
    lanes = "".join(
        f"<td><b>{escape(_role(role))}</b><pre class='mir-source'>"
        f"{escape(chr(10).join(body_lines(program.statements(role.name))))}</pre></td>"
        for role in program.roles
    )
    return (
        f"{framed(program_drawing(program).svg, 'the tile by instruction')}"
        f"<ul class='mir-pipelines'>{pipelines}</ul><pre class='mir-source'>{tiles}</pre>"
        "<div class='mir-scroll mir-tall' tabindex='0' role='group' aria-label='roles'>"
        f"<table class='mir-table mir-roles'><tbody><tr>{lanes}</tr></tbody></table></div>"
    )


def _role(role: Role) -> str:
    registers = f", {role.registers} registers a thread" if role.registers else ""
    return f"{role.name}: {role.warps} warp{'s' if role.warps > 1 else ''}{registers}"


def _pipeline(program: Program, ring: Pipeline) -> str:
    """Who fills a pipeline with what, for whom."""
    fills, takes = (_who(program, ring, kind) for kind in (Acquire, Await))
    return f"{fills} → {', '.join(ring.tiles)} → {takes}: {ring.name}, {ring.stages} stages of {ring.nbytes:,} bytes"


def _who(program: Program, ring: Pipeline, kind: type[Acquire | Await]) -> str:
    return ", ".join(
        role.name
        for role in program.roles
        if any(isinstance(s, kind) and s.pipeline == ring.name for s in flat(program.statements(role.name)))
    )
