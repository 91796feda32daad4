"""PNG of our pictures: right size, our colours, and no CSS left that only pages know."""

from __future__ import annotations

import io
import re

import pytest

from mirage_nb.optimize.plan import plan
from mirage_nb.targets import find_target
from mirage_nb.viz.mugraph import mugraph_bundle, mugraph_svg
from mirage_nb.viz.raster import ZOOM, png, resolved
from mirage_nb.viz.schedule import memory_svg
from tests.viz.mugraph_samples import rmsnorm_fused


def test_variables_have_their_light_values() -> None:
    text = resolved(mugraph_svg(rmsnorm_fused()))
    assert "var(" not in text and "--mir" not in text and "@media" not in text
    assert "#0072b2" in text and "#57606a" in text, "an accent, and what stands behind the theme's own"
    assert resolved("<style>a{fill:var(--x,var(--mir-kernel))}</style>") == "<style>a{fill:#0072b2}</style>"


def test_mixed_colours_are_mixed() -> None:
    assert resolved("a{fill:color-mix(in srgb,#ff0000 25%,#fff)}") == "a{fill:rgb(255,191,191)}"
    assert resolved("a{fill:color-mix(in srgb,var(--mir-kernel) 7%,transparent)}") == "a{fill:rgba(0,114,178,0.07)}"
    graph = rmsnorm_fused()
    (block,) = plan(graph, find_target("h200")).kernels
    assert block is not None
    assert "color-mix" in (drawn := memory_svg(0, block, 1 << 17)) and "color-mix" not in resolved(drawn)


def test_the_picture_is_drawn() -> None:
    pytest.importorskip("resvg_py")
    image = pytest.importorskip("PIL.Image")
    svg = mugraph_svg(rmsnorm_fused())
    drawn = png(svg)
    assert drawn is not None
    shown = image.open(io.BytesIO(drawn)).convert("RGB")
    width, height = (float(n) for n in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0])
    assert abs(shown.width - ZOOM * width) <= 2 and abs(shown.height - ZOOM * height) <= 2
    colours = {colour for _, colour in shown.getcolors(10**6)}
    assert (0x00, 0x72, 0xB2) in colours and (0x00, 0x9E, 0x73) in colours, "kernel graph and block graph"
    assert set(mugraph_bundle(rmsnorm_fused())) == {"text/html", "text/plain", "image/png"}
