"""The explorer: well-formed, its parts speak of the same operators, and every muGraph has one."""

from __future__ import annotations

import re
from html import escape

import pytest

from mirage_nb.codegen.staged import comment
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.optimize.plan import Staged
from mirage_nb.targets import TARGETS, find_target
from mirage_nb.tile.lines import line_of, lines_of
from mirage_nb.tile.roles.program import flat
from mirage_nb.tile.rules.placement import StepKind
from mirage_nb.tile.staged.program import Loop, Signal, StagedProgram, Task
from mirage_nb.viz import page
from mirage_nb.viz.explorer import emission, explorer_html, explorer_page
from mirage_nb.viz.schedule import memory_svg, schedule_html
from tests.codegen.mugraphs import linear
from tests.viz.mugraph_samples import SAMPLES, rmsnorm_fused, split_attention
from tests.viz.svg_geometry import boxes, texts
from tests.viz.test_viz_html import read

H200 = find_target("h200")


def places(html: str, attribute: str) -> set[str]:
    return {place for found in re.findall(rf"{attribute}=['\"]([^'\"]*)['\"]", html) for place in found.split()}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_well_formed_and_needs_no_script(name: str) -> None:
    found = read(page("t", f"<div>{explorer_html(SAMPLES[name](), H200)}</div>"))
    assert "script" not in found.tags
    assert "svg" in found.tags


@pytest.mark.parametrize("make", [rmsnorm_fused, split_attention])
def test_schedule_memory_and_source_name_operators_of_the_picture(make: object) -> None:
    html = explorer_html(make(), H200)  # type: ignore[operator]
    drawn = places(html, "data-op")
    named = places(html, "data-ops")
    assert named and named <= drawn


def test_tensors_say_where_they_lie() -> None:
    titles = re.findall(r"<title>([^<]*)</title>", explorer_html(rmsnorm_fused(), H200))
    streamed = next(title for title in titles if title.startswith("%2 f16[64, 32]"))
    assert "in shared memory" in streamed and "offset" in streamed and "copies" in streamed
    assert any("kept in registers" in t or "computed in registers" in t or "never stored" in t for t in titles)


@pytest.mark.parametrize("target", ["h200", "a100", "rtx4090"])
@pytest.mark.parametrize("make", [rmsnorm_fused, split_attention])
def test_buffers_that_live_together_do_not_overlap(make: object, target: str) -> None:
    plan = emission(make(), TARGETS[target]).plan  # type: ignore[operator]
    for number, block in enumerate(plan.kernels):
        assert block is not None
        svg = memory_svg(number, block, TARGETS[target].shared_per_block)
        drawn = [box for box in boxes(svg) if "mir-buffer" in box.classes]
        assert len(drawn) == len((block.staged or Staged()).buffers)
        for i, a in enumerate(drawn):
            for b in drawn[i + 1 :]:
                tall = min(a.bottom - a.top, b.bottom - b.top)
                assert not a.overlaps(b) or tall <= 2.1, "thin ones are drawn two pixels high"
        whole = max((box.right for box in boxes(svg)), default=0.0)
        assert not drawn or all(0 <= text.left and text.right <= whole + 5 for text in texts(svg))


def test_the_schedule_lists_every_statement_and_every_barrier() -> None:
    found = emission(rmsnorm_fused(), H200)
    block, (planned,) = found.plan.kernels[0], found.emitted.programs
    assert block is not None and block.staged is not None and isinstance(planned.program, StagedProgram)
    html, statements = schedule_html(0, block, planned.program), [*flat(planned.program.code)]
    assert html.count("barrier: all threads") == statements.count(Signal.BARRIER) >= len(block.staged.barriers)
    tasks = [statement for statement in statements if isinstance(statement, Task)]
    assert {task.step for task in tasks} == {step for step in block.staged.steps if step.kind is not StepKind.LOAD}
    shown = (*tasks, *(s for task in tasks for s in task.body), *flat(planned.program.loader))
    for statement in (s for s in shown if not isinstance(s, Loop)):
        line = comment(block.block, statement) if isinstance(statement, Task) else line_of(statement)
        assert escape(statement.value if isinstance(statement, Signal) else line) in html
    assert "<span title='The loader says how many bytes land in the stage.'>Announce(" in html
    assert "for f from 0 to 15" in html and "for iteration from 0 to 15" in html


def test_what_does_not_fit_is_shown_with_the_reason() -> None:
    wide = rmsnorm_fused(rows=512, blocks=1, loop=1)
    html = explorer_html(wide, H200)
    assert "not emitted" in html and "shared memory" in html
    assert "mir-tiles" in html and "mir-source" not in html


def test_the_page_brings_its_own_script_and_style_and_reaches_nothing_outside() -> None:
    html = explorer_page(rmsnorm_fused(), H200)
    assert "function attachExplorers" in html
    assert not re.search(r"(?:src|href)=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", html)


def test_an_empty_program_has_an_explorer() -> None:
    assert "mir-canvas" in explorer_html(KernelGraph.start(), H200)


def test_a_tile_program_is_shown_by_its_roles() -> None:
    """Every tile and every statement once, in the lane of its role."""
    graph = linear(256, 256, 256, 128, 128, residual=True)
    block = emission(graph, H200).plan.kernels[0]
    assert block is not None and block.program is not None
    html = re.sub("</?span[^>]*>", "", schedule_html(0, block, block.program))
    for tile in block.program.tiles:
        assert html.count(escape(line_of(tile))) == 1
    for role in block.program.roles:
        assert f"<b>{role.name}: " in html
        for statement in block.program.statements(role.name):
            assert escape("\n".join(lines_of(statement))) in html
    whole = explorer_html(graph, H200)
    assert "in turns by 4 blocks, 384 threads per block" in whole and "load → s0, s1 → math" in whole


def test_what_libraries_compute_has_no_empty_source() -> None:
    """The program's own operators were shown with a CUDA source of three lines, none of which computed anything."""
    html = explorer_html(parse("X: f16[64, 64]\nreturn X @ X + X").graph, H200)
    assert "libraries compute every operator" in html and "CUDA source <span>" not in html
    generated = explorer_html(rmsnorm_fused(), H200)
    assert "libraries compute" not in generated and "CUDA source <span>" in generated
