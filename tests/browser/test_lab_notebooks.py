"""Every notebook in JupyterLab: it runs from its first cell to its last without a complaint, and nothing that it shows
is cut off, spilled or unreadable, narrow and wide, light and dark. Screenshots stay in the test's folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import ROOT, Notebook, Server
from tests.browser.test_lab_pictures import SPILLED
from tests.browser.test_lab_tuning import CONTRAST

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RUN_MS = 600_000
SLICE = 1700
"""Pixels of a notebook in one screenshot."""
ENDED = """() => {
  const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map((n) => n.innerText);
  const idle = document.querySelector('#jp-main-statusbar')?.innerText.includes('| Idle');
  return idle && prompts.some((text) => /\\d/.test(text)) && !prompts.some((text) => text.includes('*'));
}"""
NOT_RUN = """() => [...document.querySelectorAll('.jp-CodeCell')]
    .filter((cell) => !/\\d/.test(cell.querySelector('.jp-InputPrompt').innerText))
    .map((cell) => cell.previousElementSibling?.innerText)"""
"""Cells that were not run, for one before them failed: what stands in front of each."""
CUT = """() => {
  const page = document.querySelector('.jp-Notebook').getBoundingClientRect();
  const scrolls = '.mir-scroll,.mir-picture,.mir-source,.mir-canvas,svg,.mir-static,pre';
  return [...document.querySelectorAll('.jp-OutputArea-output *')]
      .filter((n) => n.checkVisibility() && !n.parentElement.closest(scrolls))
      .filter((n) => n.getBoundingClientRect().right > page.right + 1)
      .map((n) => n.outerHTML.slice(0, 90));
}"""


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 8


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_everything_in_it_is_seen(
    server: Server, new_page: Callable[..., Any], tmp_path: Path, path: Path
) -> None:
    server.setting("themes", {"theme": "JupyterLab Light"})
    server.setting("tracker", {"windowingMode": "none"}, "notebook-extension")
    fresh = json.loads(path.read_text(encoding="utf-8"))
    for cell in fresh["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    (server.home / path.name).write_text(json.dumps(fresh), encoding="utf-8")
    page = new_page(1280)
    page.goto(f"http://127.0.0.1:{server.port}/doc/tree/{path.name}")
    Notebook(page)
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(ENDED, timeout=RUN_MS)
    assert page.evaluate(NOT_RUN) == []
    assert page.locator("[data-mime-type='application/vnd.jupyter.error']").all_inner_texts() == []
    assert page.locator(".jp-RenderedImage img").count() == 0, "a figure with a ground of its own follows no theme"
    for dark in (False, True):
        theme = f"JupyterLab {'Dark' if dark else 'Light'}"
        page.evaluate("t => window.jupyterapp.commands.execute('apputils:change-theme', { theme: t })", theme)
        page.emulate_media(color_scheme="dark" if dark else "light")
        for width in (1280, 1920):
            page.set_viewport_size({"width": width, "height": SLICE + 100})
            page.wait_for_function(f"document.body.clientWidth === {width}")
            page.wait_for_timeout(500)  # for the transitions of JupyterLab's own panels
            assert page.evaluate(CUT) == [], (theme, width)
            assert [text for text in page.evaluate(SPILLED) if not text.startswith(("outside", "%"))] == []
            assert page.evaluate(CONTRAST) == {}, (theme, width)
            photograph(page, tmp_path, f"{path.stem}-{width}-{'dark' if dark else 'light'}")
    shutil.copy(server.home / path.name, tmp_path)


def photograph(page: Any, folder: Path, name: str) -> None:
    """The whole notebook in slices."""
    outer = "[...document.querySelectorAll('.jp-WindowedPanel-outer')].find((n) => n.scrollHeight > n.clientHeight)"
    tall = page.evaluate(f"{outer}.scrollHeight")
    for number, top in enumerate(range(0, tall, SLICE)):
        page.evaluate(f"{outer}.scrollTop = {top}")
        page.screenshot(path=folder / f"{name}-{number}.png")
