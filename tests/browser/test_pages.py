"""Pages without a kernel: the exported session, the explorer and the static form, in both schemes and widths."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage_nb.ir import BlockGraph
from mirage_nb.lang import parse
from mirage_nb.targets import find_target
from mirage_nb.viz import page
from mirage_nb.viz.axes import axis_names
from mirage_nb.viz.explorer import explorer_page
from mirage_nb.viz.export import export
from mirage_nb.viz.tiles import accesses
from tests.browser.conftest import OPEN, ROOT
from tests.browser.fake_session import FakeSession
from tests.browser.test_lab_pictures import SPILLED
from tests.viz.mugraph_samples import SAMPLES, split_attention

pytestmark = pytest.mark.browser

H200 = find_target("h200")

OUTSIDE = """() => [...document.querySelectorAll('*')].filter((n) => {
  if (n.closest('.mir-scroll,.mir-picture,.mir-source,.mir-canvas,svg') || !n.checkVisibility()) return false;
  const box = n.getBoundingClientRect();
  return box.right > document.documentElement.clientWidth + 1;
}).map((n) => n.className)"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    session: Any = FakeSession(0.01)
    session.result()
    session.winners, session.baselines, session.program = (), (), parse("X: f16[16, 1024]\nreturn exp(X)")
    return export(session, tmp_path_factory.mktemp("exported") / "session.html").as_uri()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (1920, False), (1920, True), (700, False)])
def test_the_exported_page_fits_and_works(new_page: Callable[..., Any], exported: str, width: int, dark: bool) -> None:
    tab = new_page(width, dark)
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(exported)
    tab.wait_for_selector(".mir-explorer.mir-ready")
    assert tab.evaluate(OUTSIDE) == []
    shown = tab.locator("section[data-opened^='candidate:']:visible")
    assert shown.count() == 1
    row = tab.locator("tr[data-choose]").nth(2)
    row.focus()
    tab.keyboard.press("Enter")
    assert row.locator("code").inner_text() in shown.locator(".mir-title").inner_text()
    estimates = "[...document.querySelectorAll('tr[data-choose] td:nth-child(3)')].map((n) => n.dataset.value * 1)"
    tab.locator("th[data-column='2']").click()
    tab.locator("th[data-column='2']").click()
    found = tab.evaluate(estimates)
    assert found == sorted(found, reverse=True)
    tab.evaluate(OPEN)
    tab.locator("[data-choose^='prefix:4@']").click()
    assert "no term has 2·X" in tab.inner_text("section[data-opened^='prefix:4@']")
    tab.locator("[data-filter]").select_option("merged")
    assert tab.locator(".mir-leaf:visible").all_inner_texts() == [tab.inner_text("[data-choose^='prefix:7@']")]
    assert [url for url in asked if not url.startswith("file:")] == []


def test_without_a_script_everything_is_shown(chromium: Any, exported: str) -> None:
    context = chromium.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 1000})
    try:
        tab = context.new_page()
        tab.goto(exported)
        assert tab.locator("section[data-opened^='candidate:']:visible").count() == 12
        assert tab.locator(".mir-needs-script:visible").count() == 0
    finally:
        context.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1920])
def test_explorers_fit(new_page: Callable[..., Any], width: int, dark: bool) -> None:
    tab = new_page(width, dark)
    for name in SAMPLES:
        tab.set_content(page("t", explorer_page(SAMPLES[name](), H200)))
        tab.wait_for_selector(".mir-explorer.mir-ready")
        picture = tab.locator(".mir-canvas svg")
        assert float(picture.get_attribute("viewBox").split()[0]) < 0.1, "it begins at its left side"
        tab.locator("[data-zoom=fit]").click()
        assert tab.evaluate(OUTSIDE) == [], name
        spilled = [text for text in tab.evaluate(SPILLED) if not text.startswith("outside")]
        assert [text for text in spilled if not text.startswith("%")] == [], name


def test_the_page_splits_tensors_as_python_does(new_page: Callable[..., Any]) -> None:
    graph = split_attention()
    op = graph.ops[0]
    assert isinstance(op.body, BlockGraph)
    names = axis_names(graph)
    values = (*op.inputs, 3, 4, 5)
    called = [f"t{v}" for v in values]
    wanted = accesses(0, op.body, called, [names.of((), v) for v in values])
    tab = new_page(1280)
    tab.set_content(page("t", explorer_page(graph, H200)))
    tab.wait_for_selector(".mir-explorer.mir-ready")
    tiles = tab.locator(".mir-tiles").first
    for block, iteration in itertools.product([(0, 0, 0), (1, 7, 15), (0, 3, 9)], [0, 3]):
        for axis, index in enumerate(block):
            tiles.locator(f"[data-block='{axis}']").fill(str(index))
        tiles.locator("[data-iteration]").fill(str(iteration))
        shown = tiles.locator(".mir-part").all_inner_texts()
        for access, text in zip(wanted, shown, strict=True):
            spans = access.part(op.body.grid, op.body.loop, block, iteration if access.verb == "reads" else None)
            assert text == f"{access.verb} [{', '.join(f'{s}:{s + n}' for s, n in spans)}]"


def test_reduced_motion_is_respected(chromium: Any) -> None:
    context = chromium.new_context(reduced_motion="reduce", viewport={"width": 1280, "height": 1000})
    try:
        tab = context.new_page()
        tab.set_content(page("t", explorer_page(split_attention(), H200)))
        tab.wait_for_selector(".mir-explorer.mir-ready")
        assert tab.locator("[data-tiles=play]").first.is_disabled()
        assert tab.evaluate("getComputedStyle(document.querySelector('rect.mir-tile-part')).transitionDuration") == "0s"
        tab.locator("[data-tiles=next]").first.click()
        assert tab.locator("input[data-iteration]").first.input_value() == "1"
    finally:
        context.close()


def test_a_converted_notebook_shows_the_static_form(new_page: Callable[..., Any], tmp_path: Path) -> None:
    nbconvert = pytest.importorskip("nbconvert")
    nbformat = pytest.importorskip("nbformat")
    outputs = []
    for name in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(name, as_version=4).cells
        outputs = [c.outputs for c in cells if c.cell_type == "code" and c.source.startswith("%%mirage")]
        if outputs and any("mir-static" in str(o) for o in outputs[0]):
            break
    html, _ = nbconvert.HTMLExporter(embed_images=True, require_js_url="", mathjax_url="").from_filename(str(name))
    path = tmp_path / "notebook.html"
    path.write_text(html, encoding="utf-8")
    tab = new_page(1280)
    tab.route(re.compile("^https?://"), lambda route: route.fulfill(body=""))
    tab.goto(path.as_uri(), wait_until="networkidle")  # what the page asks for later nobody would answer
    assert tab.locator(".mir-static table:visible").count() >= 1
    assert tab.locator(".jp-OutputArea-output img[src^='data:image/png']:visible").count() >= 1
    assert tab.get_by_text("finished", exact=True).count() >= 1, "the end, not what was seen on the way"
