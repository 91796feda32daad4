"""What a notebook shows for a muGraph that ends a cell."""

from __future__ import annotations

import subprocess
import sys

from mirage_nb.ir.text import parse_graph
from mirage_nb.viz import mugraph_svg
from mirage_nb.viz.raster import with_png
from tests.viz.mugraph_samples import rmsnorm_fused


def test_a_mugraph_shows_its_picture_or_its_text() -> None:
    graph = rmsnorm_fused()
    bundle = graph._repr_mimebundle_(include=None, exclude=None)
    assert bundle["text/html"] == with_png(mugraph_svg(graph), mugraph_svg(graph))
    assert parse_graph(bundle["text/plain"]) == graph


def test_graphs_load_no_pictures_before_one_is_shown() -> None:
    code = "import sys, mirage_nb.ir; sys.exit('mirage_nb.viz' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
