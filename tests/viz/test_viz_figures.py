"""matplotlib figures in the colours of the page."""

from __future__ import annotations

import base64
import io
import re
import xml.etree.ElementTree as ET
from functools import cache

import pytest

pytest.importorskip("matplotlib")

import matplotlib.image as mpl_image
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from mirage_nb.viz.figures import VARIABLES, ThemedFigure, inline_svg, summary, themed
from tests.viz.test_viz_plots import FIGURES

NAMES = tuple(FIGURES)


@cache
def drawn(name: str) -> str:
    """A picture, drawn once."""
    return inline_svg(FIGURES[name]())


@pytest.fixture(params=NAMES)
def picture(request: pytest.FixtureRequest) -> str:
    return drawn(request.param)


def test_nothing_but_data_has_a_colour_of_its_own(picture: str) -> None:
    outside = re.sub(r"<pattern.*?</pattern>", "", picture)
    assert not set(VARIABLES) & set(re.findall("#[0-9a-f]{6}", outside))
    assert "var(--mir-fg)" in outside and "fill: none" in outside


def test_it_may_stand_in_a_page_beside_others(picture: str) -> None:
    root = ET.fromstring(picture)
    assert "<style" not in picture and "<!--" not in picture  # rules of a picture would hold for the whole page
    ids = [node.get("id") for node in root.iter() if node.get("id")]
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', picture)
    assert used and set(used) <= set(ids)
    other = drawn(NAMES[0])
    if other != picture:
        assert not set(used) & set(re.findall(r'id="([^"]+)"', other))


def test_it_is_drawn_the_same_each_time() -> None:
    assert inline_svg(FIGURES["pruning"]()) == inline_svg(FIGURES["pruning"]())


def test_letters_keep_their_size() -> None:
    """Glyphs are drawn at 1/64 and scaled; rounded to hundredths they would be a third too wide."""
    figure = FIGURES["pruning"]()
    whole = io.StringIO()
    figure.savefig(whole, format="svg")
    texts = (whole.getvalue(), inline_svg(figure))
    exact, drawn = (sorted({float(x) for x in re.findall(r"scale\(([\d.]+)", text)}) for text in texts)
    assert drawn == pytest.approx(exact, rel=0.01)


def test_nothing_is_cut_off() -> None:
    """Figures of pyplot have a layout of their own only if they are told to; labels may stand outside."""
    figure = Figure(figsize=(3, 1))
    figure.subplots().set(xlabel="below", ylabel="beside", title="above")
    x, y, width, height = map(float, ET.fromstring(inline_svg(figure)).get("viewBox", "").split())
    assert (x, y) == (0, 0) and height > 72 and width > 0.8 * 3 * 72


def test_it_says_what_it_shows() -> None:
    figure = FIGURES["roofline"]()
    assert summary(figure) == "figure: roofline; teraflops per second against operations per byte"
    assert summary(Figure()) == "figure"
    figure.suptitle("a 'b' <c>")
    assert ET.fromstring(inline_svg(figure)).get("aria-label", "").startswith("figure: a 'b' <c>")


def test_notebooks_get_the_page_s_colours_and_files_stay_white() -> None:
    figure = FIGURES["ablation"]()
    bundle = figure._repr_mimebundle_()  # type: ignore[attr-defined]  # themed
    assert set(bundle) == {"text/html", "text/plain", "image/png"}
    assert inline_svg(figure) in bundle["text/html"]
    assert bundle["image/png"] in bundle["text/html"]  # for pages that take SVG out
    written = io.BytesIO()
    figure.savefig(written, format="png")
    for png in (written, io.BytesIO(base64.b64decode(bundle["image/png"]))):
        png.seek(0)
        assert mpl_image.imread(png)[2, 2].tolist() == [1.0, 1.0, 1.0, 1.0]


def test_a_figure_with_a_ground_of_its_own_stays_as_it_is() -> None:
    figure = themed(Figure(facecolor="#16181c"))
    assert inline_svg(figure) == ""
    assert set(figure._repr_mimebundle_()) == {"text/plain", "image/png"}  # type: ignore[attr-defined]  # themed


def test_pyplot_makes_them_where_it_is_told_to() -> None:
    with plt.rc_context({"figure.hooks": ["mirage_nb.viz.figures:themed"], "backend": "agg"}):
        figure = plt.figure()
        plt.close(figure)
    assert isinstance(figure, ThemedFigure)
    assert themed(figure) is figure
