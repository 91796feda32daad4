"""One muGraph to walk through: picture, tiles, schedule, shared memory and CUDA source, linked to each other.

In: a `KernelGraph`, a target, emission options. Out: one HTML fragment that stands on its own. Without a script it
shows everything; `explorer.js`, which the live view and exported pages bring, adds zoom, the animation of the tiles,
and highlights what belongs together: elements with `data-op` or `data-ops` name operators by their place.
Invariant: picture, plan and source are those of one emission.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib import resources

from mirage_nb.codegen import Emitted, emit
from mirage_nb.errors import MirageError
from mirage_nb.ir import BlockGraph, KernelGraph
from mirage_nb.lang import TensorProgram
from mirage_nb.optimize import Options
from mirage_nb.optimize.plan import BlockPlan, Plan, Staged, plan
from mirage_nb.targets import Target
from mirage_nb.tile.planned import Planned
from mirage_nb.tile.resident.program import ResidentProgram, Task
from mirage_nb.tile.roles.program import Program, flat
from mirage_nb.tile.rules.placement import Place
from mirage_nb.tile.rules.teams import RESERVED_BYTES
from mirage_nb.typed import typed
from mirage_nb.viz.axes import axis_names
from mirage_nb.viz.mugraph import mugraph_svg, place_of
from mirage_nb.viz.program_lines import program_html
from mirage_nb.viz.schedule import describe_buffer, kilobytes, memory_svg, schedule_html
from mirage_nb.viz.source import source_html, source_lines
from mirage_nb.viz.svg import STYLE
from mirage_nb.viz.tiles import accesses, tiles_html

_FILES = resources.files("mirage_nb.viz")
SCRIPT = _FILES.joinpath("explorer.js").read_text(encoding="utf-8")
"""Defines `attachExplorers(root)`: brings every explorer under an element to life; once is enough."""
CSS = _FILES.joinpath("snapshot.css").read_text(encoding="utf-8") + _FILES.joinpath("explorer.css").read_text(
    encoding="utf-8"
)

_ZOOMS = (("in", "+", "zoom in"), ("out", "−", "zoom out"), ("fit", "fit", "show the whole picture"))
_PLACES = {
    Place.LITERAL: "a constant in the code",
    Place.COUNTED: "the number of its place",
    Place.DEVICE: "read straight from device memory",
    Place.VIEW: "another view of its operand",
    Place.INLINE: "computed in registers where it is read",
    Place.REGISTER: "kept in registers",
    Place.NONE: "never stored: it goes into an accumulator or to device memory",
}


@dataclass(frozen=True, slots=True)
class Emission:
    """A muGraph as it was emitted, and the plan that says why it was emitted so."""

    plan: Plan
    emitted: Emitted


def emission(graph: KernelGraph, target: Target, options: Options | None = None) -> Emission:
    """Plan and emit.

    Raises:
        TargetError, EmitError: it does not fit the target, or cannot be emitted.
    """
    emitted = emit(graph, target, options)
    return Emission(plan(graph, target, emitted.options), emitted)


def explorer_html(
    graph: KernelGraph,
    target: Target,
    options: Options | None = None,
    *,
    opened: bool = True,
    program: TensorProgram | None = None,
) -> str:
    """The explorer of a muGraph, its panels open or closed; where it cannot be emitted for the target: its picture, its
    tiles, and the reason. With its program, lines of that and of the source and operators of the picture are linked."""
    try:
        found = emission(graph, target, options)
    except MirageError as error:
        complaint = f"<p class='mir-complaint' role='note'>not emitted: {escape(str(error))}</p>"
        return _framed(mugraph_svg(graph), complaint + "".join(_tiles(graph)), text=_text(program, graph))
    known = found.plan.graph
    panels = []
    for planned in found.emitted.programs:
        block = found.plan.kernels[planned.op]
        assert block is not None, "else nothing is planned"
        panels.append(_kernel(planned, found, block, target))
    listing = "<p class='mir-none'>there is no CUDA source of it: libraries compute every operator</p>"
    if found.emitted.generated.launches:
        listing = source_html(source_lines(found.emitted.source, known))
        listing = _panel("CUDA source", listing, f"{len(found.emitted.source.splitlines())} lines")
    drawn = _framed(mugraph_svg(known, _facts(found.plan)), "".join(panels), listing, _text(program, known))
    return drawn if opened else drawn.replace(_OPEN, _CLOSED)


@typed
def explorer_page(
    graph: KernelGraph, target: Target, options: Options | None = None, program: TensorProgram | None = None
) -> str:
    """The explorer with its style and script: for a page, or for a notebook cell that nothing else serves."""
    style = f"<style>{STYLE}{CSS}</style>"
    script = f"<script type='module'>{SCRIPT}\nattachExplorers(document);</script>"
    return f"{style}<div class='mir mir-view'>{explorer_html(graph, target, options, program=program)}</div>{script}"


def _text(program: TensorProgram | None, graph: KernelGraph) -> str:
    return "" if program is None else program_html(program, graph)


def _framed(picture: str, panels: str, listing: str = "", text: str = "") -> str:
    """Program, picture and source on one side, everything else on the other."""
    buttons = "".join(
        f"<button type='button' class='mir-button' data-zoom='{name}' title='{words}' aria-label='{words}'>"
        f"{sign}</button>"
        for name, sign, words in _ZOOMS
    )
    hint = "drag to move; Ctrl and the wheel, or + and −, to zoom"
    return (
        "<div class='mir-explorer'><div class='mir-explorer-left'>"
        f"<div class='mir-explorer-bar mir-needs-script' role='toolbar' aria-label='zoom'>{buttons}"
        f"<span class='mir-none'>{hint}</span></div>{text}"
        f"<div class='mir-canvas'>{picture}</div>"
        "<p class='mir-inspect mir-needs-script' role='status'>Point at an operator or a tensor.</p>"
        f"{listing}</div>"
        f"<div class='mir-explorer-right'>{panels}</div></div>"
    )


def _kernel(planned: Planned, found: Emission, block: BlockPlan, target: Target) -> str:
    """The panels of one graph-defined operator."""
    number, program = planned.op, planned.program
    grid = "×".join(map(str, block.block.grid))
    walked = f" in turns by {block.program.blocks} blocks" if block.program is not None else ""
    head = (
        f"grid {grid}{walked}, {block.threads} threads per block, "
        f"{kilobytes(block.shared_bytes) if block.shared_bytes else 'no'} shared memory"
    )
    tiles = next(html for at, html in _numbered_tiles(found.plan.graph) if at == number)
    memory = ""
    if block.staged is not None and block.staged.buffers:
        memory = f"<div class='mir-memory'>{memory_svg(number, block, target.shared_per_block - RESERVED_BYTES)}</div>"
    return (
        f"<h4 class='mir-kernel-head' data-op='{number}'><code>kernel{number}</code>: {head}</h4>"
        + _panel("tiles", tiles, "imap, omap and fmap")
        + _panel("schedule", schedule_html(number, block, program), _told(block, program))
        + (_panel("shared memory over time", memory, kilobytes(block.shared_bytes)) if memory else "")
    )


_OPEN, _CLOSED = "<details class='mir-panel' open", "<details class='mir-panel'"


def _told(block: BlockPlan, program: object) -> str:
    match program:
        case Program(roles=roles):
            return f"{len(roles)} roles"
        case ResidentProgram(code=code):
            return f"{sum(isinstance(s, Task) for s in flat(code))} steps"
    return f"{len((block.staged or Staged()).steps)} steps"


def _panel(title: str, body: str, remark: str) -> str:
    head = f"<summary>{title} <span>{escape(remark)}</span></summary>"
    return f"{_OPEN} data-branch='panel {title}'>{head}{body}</details>"


def _tiles(graph: KernelGraph) -> list[str]:
    return [_panel(f"tiles of kernel{n}", html, "imap, omap and fmap") for n, html in _numbered_tiles(graph)]


def _numbered_tiles(graph: KernelGraph) -> list[tuple[int, str]]:
    """The tiles of every graph-defined operator."""
    axes = axis_names(graph)
    names = {value: given.name for value, given in enumerate(graph.inputs)}
    names.update(dict(zip(graph.outputs, graph.output_names, strict=True)))
    found = []
    for number, (op, results) in enumerate(graph.definitions()):
        if isinstance(op.body, BlockGraph):
            values = (*op.inputs, *results)
            called = [names.get(value, f"%{value}") for value in values]
            shared = accesses(number, op.body, called, [axes.of((), value) for value in values])
            found.append((number, tiles_html(op.body, shared)))
    return found


def _facts(planned: Plan) -> Mapping[str, str]:
    """Where every tensor of every block graph lies."""
    found: dict[str, str] = {}
    for number, block in enumerate(planned.kernels):
        if block is None:
            continue
        lying = {buffer.value: describe_buffer(buffer) for buffer in (block.staged or Staged()).buffers}
        for value, place in enumerate(block.places):
            found[place_of((number,), value)] = lying.get(value) or _PLACES.get(place, place.value)
    offsets = zip(planned.temporaries, planned.workspace.offsets, strict=True)
    found.update({str(value): f"a temporary at offset {offset:,} of the workspace" for value, offset in offsets})
    return found
