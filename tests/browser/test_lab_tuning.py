"""Tuning by hand in JupyterLab: forms, compare, edit and submit, the explorer's controls, keys, and a reload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mirage_nb.ir.text import print_graph
from tests.browser.conftest import CELL, CLIPPED, OPEN, PAGE_MS, Notebook, Server
from tests.viz.mugraph_samples import rmsnorm_fused

pytestmark = pytest.mark.browser

ENDED = "document.querySelector('.mir-live .mir-state')?.innerText === 'finished'"
CALLS = "print([name for name, _ in fused.calls])"


@pytest.fixture
def finished(open_notebook: Callable[..., Notebook]) -> Notebook:
    notebook = open_notebook(CELL, CALLS, "%mirage show fused best", seconds=0.3)
    notebook.run(1)
    notebook.page.wait_for_function(ENDED)
    notebook.page.evaluate(OPEN)
    return notebook


def test_forms_reach_the_session(finished: Notebook) -> None:
    page = finished.page
    form = page.locator(".mir-live form[data-do=extend]")
    form.locator("[name=effort]").select_option("standard")
    form.locator("[name=max_block_ops]").fill("30")
    form.locator("[name=seconds]").fill("7.5")
    form.locator("button").click()
    page.wait_for_function("document.querySelector('.mir-section-notice').innerText.includes('continues')")
    page.wait_for_function(ENDED)
    page.locator(".mir-live form[data-do=tune] [name=seconds]").fill("10")
    page.locator(".mir-live form[data-do=tune] button").click()
    page.wait_for_function("document.querySelector('.mir-section-notice').innerText.includes('tried')")
    row = page.locator(".mir-live tr[data-choose]").nth(1)
    row.click()
    digest = row.locator("code").inner_text()
    page.wait_for_function("d => document.querySelector('.mir-title h4').innerText === 'µGraph ' + d", arg=digest)
    page.locator(".mir-live [data-do=pin]").click()
    page.wait_for_function("document.querySelector('.mir-section-candidates').innerText.includes('pinned')")
    assert page.evaluate(CLIPPED) == 0, "a pinned row fits, too"
    page.locator(".mir-live [data-do=exclude]").click()
    page.wait_for_function("document.querySelectorAll('.mir-section-candidates tr[data-choose]').length === 11")
    page.locator(".mir-section-notice").get_by_role("button", name="undo").click()
    page.wait_for_function("document.querySelectorAll('.mir-section-candidates tr[data-choose]').length === 12")
    finished.run(2)
    said = finished.output(2)
    assert "'effort': 'standard', 'seconds': 7.5, 'max_block_ops': 30" in said
    assert "tune 10.0" in said


def test_compare_edit_and_submit(finished: Notebook) -> None:
    page = finished.page
    page.locator(".mir-live [data-do=compare]").click()
    page.wait_for_selector(".mir-live [data-do=compare][aria-pressed=true]")
    page.locator(".mir-live tr[data-choose]").nth(1).click()
    page.wait_for_selector(".mir-compare svg")
    assert page.locator(".mir-compare svg").count() == 2
    assert "≠ kernels" in page.inner_text(".mir-compare")
    assert page.evaluate("(n => n.scrollWidth <= n.clientWidth + 1)(document.querySelector('.mir-compare'))")
    page.locator(".mir-live [data-do=edit]").click()
    text = page.locator(".mir-editor textarea")
    page.wait_for_function("document.querySelector('.mir-editor textarea').value.startsWith('mugraph 1')")
    text.fill(print_graph(rmsnorm_fused()).replace("Sqr", "Sqrx"))
    page.get_by_role("button", name="check, verify and time").click()
    page.wait_for_selector(".mir-section-answer .mir-complaint")
    assert "Sqrx" in page.inner_text(".mir-section-answer") and "^" in page.inner_text(".mir-section-answer")
    text.fill(print_graph(rmsnorm_fused(blocks=64)))
    page.get_by_role("button", name="check, verify and time").click()
    page.wait_for_function("document.querySelector('.mir-section-answer').innerText.includes('checked')")
    assert "grid dims x=64" in page.text_content(".mir-section-candidate svg")
    page.get_by_role("button", name="explain").click()
    page.wait_for_function("document.querySelector('.mir-section-answer').innerText.includes('1 kernels <in all>')")


def test_the_explorer_moves_zooms_and_links(finished: Notebook) -> None:
    page = finished.page
    page.wait_for_selector(".mir-live .mir-explorer.mir-ready")
    box = "document.querySelector('.mir-live .mir-canvas svg').getAttribute('viewBox')"
    page.evaluate(OPEN)
    page.locator(".mir-live .mir-canvas").focus()
    page.keyboard.press("0")
    fitted = page.evaluate(box)
    page.locator(".mir-live [data-zoom=in]").click()
    zoomed = page.evaluate(box)
    assert float(zoomed.split()[2]) < float(fitted.split()[2])
    page.locator(".mir-live .mir-canvas").focus()
    page.keyboard.press("ArrowRight")
    assert float(page.evaluate(box).split()[0]) > float(zoomed.split()[0])
    page.keyboard.press("0")
    assert page.evaluate(box) == fitted
    page.locator(".mir-live .mir-canvas [data-op='0.7'] rect.op").hover()
    lit = page.locator(".mir-live .mir-line.mir-lit").all_inner_texts()
    assert lit and any("// %" in line for line in lit)
    assert "f16" in page.inner_text(".mir-live .mir-inspect")
    slider = page.locator(".mir-live input[data-iteration]")
    slider.focus()
    page.keyboard.press("ArrowRight")
    part = page.locator(".mir-live .mir-tensor .mir-part").first
    page.wait_for_function("document.querySelector('.mir-live .mir-part').innerText === 'reads [0:16, 64:128]'")
    page.locator(".mir-live [data-tiles=back]").click()
    page.locator(".mir-live [data-tiles=back]").click()
    assert part.inner_text() == "reads [0:16, 960:1024]", "the last iteration of the last block"
    play = page.locator(".mir-live [data-tiles=play]")
    play.click()
    page.wait_for_function("document.querySelector('.mir-live .mir-part').innerText !== 'reads [0:16, 960:1024]'")
    play.click()
    assert play.inner_text() == "play"


def test_one_mugraph_has_a_view_of_its_own(finished: Notebook) -> None:
    page = finished.page
    finished.run(3)
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(3)
    live = cell.locator(".mir-live")
    live.locator(".mir-explorer.mir-ready").wait_for()
    assert cell.locator(".mir-static:visible").count() == 0
    live.locator("[data-zoom=in]").click()
    live.locator("input[data-block]").first.focus()
    page.keyboard.press("End")
    live.locator(".mir-part", has_text="4064:4096").first.wait_for()


def test_a_reloaded_page_finds_the_view_again(
    open_notebook: Callable[..., Notebook], server: Server, request: Any
) -> None:
    notebook = open_notebook(CELL, seconds=10 * PAGE_MS / 1000)
    notebook.run(1)
    page = notebook.page
    page.wait_for_selector(".mir-live")
    notebook.save()
    assert "widget-view" in (server.home / f"{request.node.name}.ipynb").read_text()
    page.reload()
    page.wait_for_selector(".mir-live .mir-state")
    page.wait_for_function("document.querySelector('.mir-live .mir-state')?.innerText === 'running'")
    page.get_by_role("button", name="stop", exact=True).click()
    page.wait_for_function("document.querySelector('.mir-live .mir-state')?.innerText === 'stopped'")
    assert page.locator(".mir-static:visible").count() == 0


UNNAMED = """() => [...document.querySelectorAll('.mir-live :is(button,input,select,textarea)')]
    .filter((n) => n.checkVisibility())
    .filter((n) => !(n.innerText.trim() || n.getAttribute('aria-label') || n.labels?.length))
    .map((n) => n.outerHTML)"""

CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
      .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const c = parse(getComputedStyle(at).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const worst = {};
  for (const node of document.querySelectorAll('.mir-live *')) {
    if (node.closest('svg,:disabled,label:has(:disabled)') || !node.checkVisibility()) continue;
    if (![...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) worst[node.className + ' ' + node.textContent.slice(0, 30)] = ratio;
  }
  return worst;
}"""


FOCUSED = """() => {
  const n = document.activeElement;
  const { zoom, tiles, choose } = n.dataset;
  return n.name || n.dataset.do || zoom || tiles || choose || n.getAttribute('class') || '';
}"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_controls_have_names_texts_have_contrast_and_keys_reach_all(
    open_notebook: Callable[..., Notebook], dark: bool
) -> None:
    notebook = open_notebook(CELL, seconds=0.3, dark=dark)
    notebook.run(1)
    page = notebook.page
    page.wait_for_function(ENDED)
    page.wait_for_selector(".mir-live .mir-explorer.mir-ready")
    page.evaluate(OPEN)
    assert page.evaluate(UNNAMED) == []
    assert page.evaluate(CONTRAST) == {}
    reached = set()
    page.locator(".mir-live .mir-tuning > summary").focus()
    for _ in range(160):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(FOCUSED))
    wanted: set[Any] = {"effort", "seconds", "compare", "pin", "in", "play", "mir-canvas", "mir-source"}
    assert wanted <= reached, wanted - reached
