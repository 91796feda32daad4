"""A notebook that its reader has not trusted: JupyterLab takes styles, scripts and SVG out; a picture stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anywidget")
pytest.importorskip("resvg_py")

from mirage_nb.viz.steps import Walkthrough
from mirage_nb.widgets import ExplorerView, SessionView
from tests.browser.conftest import Server
from tests.browser.fake_session import FakeSession, prefixes
from tests.viz.mugraph_samples import rmsnorm_fused

pytestmark = pytest.mark.browser

SEEN = """() => [...document.querySelectorAll('.jp-CodeCell')].map((cell) => ({
  pictures: [...cell.querySelectorAll('.jp-OutputArea img')].filter((n) => n.checkVisibility() && n.naturalWidth > 100)
    .length,
  drawn: [...cell.querySelectorAll('.jp-OutputArea svg.mir')].filter((n) => n.checkVisibility()).length,
  words: cell.querySelector('.jp-OutputArea-output').innerText.trim(),
}))"""


def test_pictures_survive_distrust(server: Server, new_page: Callable[..., Any], tmp_path: Path) -> None:
    view = SessionView(FakeSession(0.01))
    assert view.wait(5)
    bundles = [
        rmsnorm_fused()._repr_mimebundle_(),
        Walkthrough("loop over b", prefixes())._repr_mimebundle_(),
        ExplorerView(rmsnorm_fused()).still(),
        view._still(),
    ]
    address = server.notebook("untrusted", *(f"# {n}" for n in range(len(bundles))))
    path = server.home / "untrusted.ipynb"
    content = json.loads(path.read_text(encoding="utf-8"))
    for cell, bundle in zip(content["cells"], bundles, strict=True):
        cell["outputs"] = [{"output_type": "display_data", "data": bundle, "metadata": {}}]
    path.write_text(json.dumps(content), encoding="utf-8")
    server.setting("tracker", {"windowingMode": "none"}, "notebook-extension")
    page = new_page(1280)
    page.goto(address)
    page.wait_for_selector(".jp-Notebook .jp-OutputArea-output")
    page.wait_for_function(f"({SEEN})().every((cell) => cell.pictures > 0)")
    page.screenshot(path=tmp_path / "untrusted.png", full_page=True)
    seen = page.evaluate(SEEN)
    assert [(cell["pictures"], cell["drawn"]) for cell in seen] == [(1, 0)] * len(bundles)
    *pictures, session = (cell["words"] for cell in seen)
    assert pictures == [""] * len(pictures), "of an SVG stay its words, which are hidden"
    assert "finished" in session and "verified µGraphs" in session and "matmul" not in session.lower()
    page.evaluate("void window.jupyterapp.commands.execute('notebook:trust')")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    page.wait_for_function(f"({SEEN})().every((cell) => cell.drawn > 0)")
    assert [cell["pictures"] for cell in page.evaluate(SEEN)] == [0] * len(bundles), "trusted: drawn, and only once"
