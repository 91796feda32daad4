"""Pictures of covers: what is drawn fills its panel once, in a colour and a word for every kind."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from mirage_nb.bench.mosaic_shapes import SHAPES, product_graph, ways
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.optimize import plan
from mirage_nb.targets import TARGETS
from mirage_nb.tile.instructions.table import Unit
from mirage_nb.tile.instructions.tessellation import Kind, Tessellation, tessellate
from mirage_nb.tile.rules.thread_graph import shallow, with_products
from mirage_nb.viz.explorer import emission
from mirage_nb.viz.schedule import roles_html, schedule_html
from mirage_nb.viz.tessellation import Panel, block_drawing, program_drawing, tessellation_drawing
from mirage_nb.viz.tessellation import _planes as planes
from mirage_nb.viz.tessellation import _products as products
from tests.codegen.mugraphs import attention, lora, rmsnorm
from tests.mugraphs import Block, one_kernel, tensor

SAMPLES: dict[str, Callable[[], KernelGraph]] = {"lora": lora, "rmsnorm": rmsnorm, "attention": attention}
H200 = TARGETS["h200"]
TENSOR = Kind("tensor", (16, 8, 8, 1), 2.0, Unit.TENSOR)
PLAIN = Kind("plain", (4, 8, 1, 1), 0.25, Unit.PLAIN)
ONE = Kind("one", (1, 1, 1, 1), 1 / 128, Unit.PLAIN)


def covered(panel: Panel) -> bool:
    """Whether every element of a panel is in one area."""
    seen = [[0] * panel.columns for _ in range(panel.rows)]
    for area in panel.areas:
        for row in range(*area.rows):
            for column in range(*area.columns):
                seen[row][column] += 1
    return all(count == 1 for row in seen for count in row)


def found(rng: random.Random) -> Tessellation:
    space = (rng.randint(1, 60), rng.randint(1, 60), rng.randint(1, 40), rng.randint(1, 3))
    made = tessellate(space, [TENSOR, PLAIN, ONE])
    assert made is not None
    return made


@pytest.mark.parametrize("seed", range(6))
def test_panels_are_filled_once(seed: int) -> None:
    cover = found(random.Random(seed))
    assert all(covered(panel) for panel in planes(cover))
    drawing = tessellation_drawing(cover)
    for name in cover.kinds:
        assert f"{name} (" in drawing.text and f">{name} (" in drawing.svg
    boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', drawing.svg)
    assert boxes and min(float(side) for box in boxes for side in box[2:]) >= 8.9  # nothing is too thin to be seen
    assert {"text/html", "text/plain", "image/png"} >= set(drawing._repr_mimebundle_())


def test_a_tile_by_two_kinds_has_two_colours() -> None:
    shape = next(s for s in SHAPES if s.name == "129 up, tf32")
    few = next(way for way in ways(shape, H200) if way.few)
    block = plan(product_graph(shape, few), H200, few.options).kernels[0]
    assert block is not None and block.program is not None
    drawing = program_drawing(block.program)
    assert {"tx-kernel", "tx-loop"} <= set(re.findall(r'class="(tx-\w+)"', drawing.svg))
    assert f"rows {shape.m - 1}:{shape.m}" in drawing.svg and drawing.svg in roles_html(block.program)


@pytest.mark.parametrize("name", ["lora", "rmsnorm", "attention"])
def test_products_of_a_block_are_drawn_as_warps_share_them(name: str) -> None:
    (block,), (planned,) = (found := emission(SAMPLES[name](), H200)).plan.kernels, found.emitted.programs
    assert block is not None and block.program is None
    panels = list(products(block))
    assert panels and all(covered(panel) for panel in panels)
    drawing = block_drawing(block)
    assert drawing is not None and "mma.m16n8k16" in drawing.text
    assert drawing.svg in schedule_html(0, block, planned.program)


def test_products_of_threads_have_the_colour_of_plain_cores() -> None:
    b = Block((tensor((24, 4)), tensor((4, 16))), (2,))
    b.save(b.op(OpKind.RELU, b.op(OpKind.MATMUL, b.read(0, (0,)), b.read(1, (None,)))), (0,))
    graph = one_kernel("X W", b)
    drawn = []
    for made in (graph, with_products(graph, shallow(graph))):
        (block,) = plan(made, H200).kernels
        assert block is not None and all(covered(panel) for panel in products(block))
        drawing = block_drawing(block)
        assert drawing is not None
        drawn.append(set(re.findall(r'class="(tx-\w+)"', drawing.svg)))
    assert drawn == [{"tx-kernel"}, {"tx-loop"}]
