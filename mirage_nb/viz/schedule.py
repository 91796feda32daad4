"""What the threads of a block do in order, and where its tensors lie in shared memory meanwhile.

In: the `BlockPlan` of a graph-defined operator, its program. Out: an HTML table of the program's statements with the
barriers between them, and an SVG with time to the right and offsets upwards, one rectangle per shared tensor.
Invariant: rectangles of tensors that live at the same time do not overlap, because the plan's do not (paper section 6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import pairwise
from types import ModuleType

from mirage_nb.codegen import register_resident
from mirage_nb.codegen.staged import comment
from mirage_nb.ir import BlockGraph
from mirage_nb.optimize.plan import BlockPlan, Staged
from mirage_nb.tile.lines import line_of, lines_of
from mirage_nb.tile.resident import program as resident
from mirage_nb.tile.resident.program import ResidentProgram
from mirage_nb.tile.roles import program as specialised
from mirage_nb.tile.roles.program import Acquire, Await, Pipeline, Program, Role, flat
from mirage_nb.tile.rules.order import Phase, lifetime
from mirage_nb.tile.rules.placement import Step
from mirage_nb.tile.rules.shared import Buffer
from mirage_nb.tile.staged import program as staged
from mirage_nb.tile.staged.program import StagedProgram
from mirage_nb.viz import svg
from mirage_nb.viz.shapes import SMALL
from mirage_nb.viz.svg import framed
from mirage_nb.viz.tessellation import block_drawing, program_drawing

PHASES = {Phase.BEFORE: "before the loop", Phase.LOOP: "loop body", Phase.AFTER: "after the loop"}
UNLOOPED = {Phase.BEFORE: "copies", Phase.LOOP: "", Phase.AFTER: "body"}
LEFT, TOP, HEIGHT = 62.0, 40.0, 190.0
LEAST_COLUMN, WIDTH = 34.0, 620.0
STYLE = """
.mir .mir-barrier-line{fill:none;stroke:var(--mir-loop);stroke-width:1.4;stroke-dasharray:4 3}
.mir .band{fill:color-mix(in srgb,var(--mir-soft) 7%,transparent);stroke:var(--mir-line);stroke-width:.7}
.mir rect.mir-buffer{fill:color-mix(in srgb,var(--mir-block) 28%,var(--mir-ground));
stroke:var(--mir-block);stroke-width:1}
.mir .mir-lit>rect.mir-buffer{stroke:var(--mir-loop);stroke-width:2.4}
"""


def schedule_html(number: int, plan: BlockPlan, program: Program | StagedProgram | ResidentProgram) -> str:
    """What the threads of graph-defined operator `number` do, as their program says: of a tile program its roles, side
    by side; of others a table of their statements, in order. Above them its products by instruction."""
    if isinstance(program, Program):
        return roles_html(program)
    if isinstance(program, ResidentProgram):
        held = f"<p class='mir-none'>threads keep their elements in registers: {escape(line_of(program.layout))}</p>"
        return held + _table(_resident_rows(number, program, program.code))
    steps = (plan.staged or Staged()).steps
    rows = [*_rows(number, program, steps, program.code)]
    if program.loader:
        loader = _rows(number, program, steps, program.loader)
        rows = [_head("a warp of its own, which brings tiles"), *loader, _head("all other warps"), *rows]
    drawn = block_drawing(plan)
    return f"{framed(drawn.svg, 'products by instruction') if drawn is not None else ''}{_table(rows)}"


def _table(rows: Iterable[str]) -> str:
    """Statements in order, each with what it computes."""
    head = "".join(f"<th scope='col'>{name}</th>" for name in ("#", "computes", "statements"))
    return (
        "<div class='mir-scroll mir-tall' tabindex='0' role='group' aria-label='schedule'>"
        "<table class='mir-table mir-steps'>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _resident_rows(number: int, program: ResidentProgram, body: Sequence[resident.Statement]) -> Iterator[str]:
    """A row for every statement; those of a reduction, or of a saver, share one."""
    first = [values[0] if values else -1 for _, values in program.block.definitions()]
    tasks = [statement for statement in flat(program.code) if isinstance(statement, resident.Task)]
    bare = "<td></td><td></td>"
    for statement in body:
        match statement:
            case resident.Each(body=inside):
                yield _head("for each of a thread's vectors of results")
                yield from _resident_rows(number, program, inside)
            case resident.Task(op, inside):
                computes = escape(register_resident.comment(program.block, statement))
                what = f"<td>{tasks.index(statement)}</td><td><code>{computes}</code></td>"
                yield _row(what, _code(map(line_of, inside), resident), [f"{number}.{op}"])
            case resident.Load(value):
                yield _row(bare, _code([line_of(statement)], resident), [f"{number}.{first.index(value)}"])
            case _:
                yield _row(bare, _code([line_of(statement)], resident))


def _row(what: str, code: str, ops: Sequence[str] = ()) -> str:
    """A row of the table; ops: what lights up with it."""
    places = f" data-ops='{' '.join(ops)}'" if ops else ""
    return f"<tr{places}>{what}<td><code>{code}</code></td></tr>"


def _code(lines: Iterable[str], room: ModuleType) -> str:
    """Lines of a program whose statements a module has; pointed at, each says what such a statement does."""
    return "\n".join(f"<span title='{escape(_meaning(line, room))}'>{escape(line)}</span>" for line in lines)


def _meaning(line: str, room: ModuleType) -> str:
    """The first sentence of the docstring of what a line is of."""
    doc = getattr(getattr(room, line.strip().partition("(")[0], None), "__doc__", None)
    return " ".join((doc or "").split()).partition(". ")[0]


def _rows(
    number: int, program: StagedProgram, steps: Sequence[Step], body: Sequence[staged.Statement]
) -> Iterator[str]:
    """A row for every statement; those of a step share one."""
    block, last = program.block, body[-1]
    for statement in body:
        match statement:
            case staged.Task(step=step):
                what = f"<td>{steps.index(step)}</td><td><code>{escape(comment(block, statement))}</code></td>"
                ops = [step.op] if step.accum is None else [step.op, step.accum]
                lines = [line for inner in statement.body for line in lines_of(inner)]
            case staged.Loop(body=inside) | staged.Refill(body=inside):
                yield _head(_repeated(statement))
                yield from _rows(number, program, steps, inside)
                yield _head("then") if statement is not last else ""
                continue
            case staged.Signal.BARRIER:
                yield "<tr class='mir-barrier'><td colspan='3'>barrier: all threads wait for each other</td></tr>"
                continue
            case staged.Signal():
                yield f"<tr><td></td><td></td><td>{escape(statement.value)}</td></tr>"
                continue
            case _:
                what, lines = "<td></td><td></td>", [line_of(statement)]
                value = getattr(statement, "value", None)
                ops = [i for i, (_, values) in enumerate(block.definitions()) if value in values]
        yield _row(what, _code(lines, staged), [f"{number}.{op}" for op in ops])


def _repeated(statement: staged.Loop | staged.Refill) -> str:
    """When the statements inside one run."""
    if isinstance(statement, staged.Refill):
        return f"while there are tiles to bring, {statement.ahead} iterations ahead"
    return f"for {escape(statement.counter)} from {statement.first} to {statement.count - 1}"


def _head(words: str) -> str:
    return f"<tr class='mir-phase'><th colspan='3' scope='rowgroup'>{words}</th></tr>"


def memory_svg(number: int, plan: BlockPlan, available: int) -> str:
    """Offset over time of every shared tensor; `available` is what a block may have, in bytes."""
    staged = plan.staged or Staged()
    steps = len(staged.steps)
    column = max(LEAST_COLUMN, (WIDTH - LEFT) / max(1, steps))
    width, scale = LEFT + column * steps + 4.0, HEIGHT / max(1, plan.shared_bytes)
    parts: list[str] = []
    for phase, title in (PHASES if plan.block.has_loop else UNLOOPED).items():
        inside = [index for index, step in enumerate(staged.steps) if step.phase is phase]
        if inside:
            x, right = LEFT + column * inside[0], LEFT + column * (inside[-1] + 1)
            parts.append(svg.rect(x, TOP, right - x, HEIGHT, "loop" if phase is Phase.LOOP else "band", 0))
            short = title.split()[0] if svg.text_width(title, SMALL) > right - x else title
            parts.append(svg.label(short, (x + right) / 2, 9.0, SMALL, cls="soft", anchor="middle"))
    for index in range(steps):
        parts.append(svg.label(str(index), LEFT + column * (index + 0.5), 27.0, SMALL, cls="soft", anchor="middle"))
    for share in (0.0, 0.5, 1.0):
        y = TOP + HEIGHT * (1.0 - share)
        parts.append(svg.label(kilobytes(plan.shared_bytes * share), LEFT - 6.0, y, SMALL, cls="soft", anchor="end"))
    parts += [_buffer(number, plan.block, staged, buffer, column, scale) for buffer in staged.buffers]
    for index in sorted(staged.barriers):
        x = LEFT + column * index
        mark = svg.element("title", f"barrier before step {index}")
        parts.append(svg.element("path", mark, d=f"M{x:.1f} {TOP - 6:.1f}V{TOP + HEIGHT:.1f}", cls="mir-barrier-line"))
    used = f"{kilobytes(plan.shared_bytes)} of {kilobytes(available)} shared memory"
    parts.append(svg.label("step", LEFT - 6.0, 27.0, SMALL, cls="soft", anchor="end"))
    parts.append(svg.label("- - barrier", LEFT, TOP + HEIGHT + 14.0, SMALL, cls="soft"))
    parts.append(svg.label(used, width - 4.0, TOP + HEIGHT + 14.0, SMALL, anchor="end"))
    return svg.document(width, TOP + HEIGHT + 26.0, f"shared memory over time: {used}", parts, STYLE)


def _buffer(number: int, block: BlockGraph, staged: Staged, buffer: Buffer, column: float, scale: float) -> str:
    first, last = lifetime(staged.steps, buffer.value)
    x, width = LEFT + column * first + 1.0, column * (last - first + 1) - 2.0
    height = max(2.0, buffer.nbytes * scale)
    y = TOP + HEIGHT - buffer.offset * scale - height
    layout = buffer.layout
    copies = f"{buffer.copies} × " if buffer.copies > 1 else ""
    hover = f"%{buffer.value}: {copies}{block.types[buffer.value]}, {describe_buffer(buffer)}; steps {first} to {last}"
    parts = [svg.element("title", escape(hover)), svg.rect(x, y, width, height, "mir-buffer", 2)]
    text = f"%{buffer.value} {copies}{list(layout.shape)}"
    edges = [first, *(index for index in sorted(staged.barriers) if first < index <= last), last + 1]
    begin, end = max(pairwise(edges), key=lambda span: span[1] - span[0])  # no line goes through a label
    for shown in (text, f"%{buffer.value}"):
        if height >= SMALL + 2.0 and svg.text_width(shown, SMALL) < column * (end - begin) - 2.0:
            parts.append(svg.label(shown, LEFT + column * (begin + end) / 2, y + height / 2, SMALL, anchor="middle"))
            break
    defined = next(i for i, (_, values) in enumerate(block.definitions()) if buffer.value in values)
    return svg.element("g", parts, data_ops=f"{number}.{defined}")


def describe_buffer(buffer: Buffer) -> str:
    """Where a shared tensor lies and how."""
    layout = buffer.layout
    how = f"swizzled by {layout.swizzle} bytes" if layout.swizzle else f"strides {list(layout.strides)}"
    copies = f"{buffer.copies} copies, " if buffer.copies > 1 else ""
    return f"{copies}{buffer.nbytes:,} bytes at offset {buffer.offset:,}, {layout.dtype.value}, {how}"


def kilobytes(count: float) -> str:
    """Bytes for a reader."""
    return f"{count / 1024:.4g} KB" if count >= 1024 else f"{count:.0f} B"


# -- tile programs


def roles_html(program: Program) -> str:
    """A tile program: the block's tile in colours by instruction, pipelines, tiles, and roles side by side, every
    statement as its text form has it."""
    pipelines = "".join(f"<li>{escape(_pipeline(program, ring))}</li>" for ring in program.pipelines)
    tiles = _code(map(line_of, program.tiles), specialised)
    lanes = "".join(
        f"<td><b>{escape(_role(role))}</b><pre class='mir-source mir-wrapped'>"
        f"{_code(_written(program, role), specialised)}</pre></td>"
        for role in program.roles
    )
    return (
        f"{framed(program_drawing(program).svg, 'the tile by instruction')}"
        f"<ul class='mir-pipelines'>{pipelines}</ul><pre class='mir-source mir-wrapped'>{tiles}</pre>"
        "<div class='mir-scroll mir-tall' tabindex='0' role='group' aria-label='roles'>"
        f"<table class='mir-table mir-roles'><tbody><tr>{lanes}</tr></tbody></table></div>"
    )


def _written(program: Program, role: Role) -> Iterator[str]:
    """What a role does, line by line."""
    for statement in program.statements(role.name):
        yield from lines_of(statement)


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
