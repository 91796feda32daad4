"""The live view in JupyterLab: it moves, it answers, it fits, and it outlives its kernel."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.conftest import CELL, Notebook, Server

pytestmark = pytest.mark.browser

BUSY = "import time\ntime.sleep(6)"

CLICK_UNTIL = """([selector, state]) => new Promise((done, fail) => {
  const started = performance.now();
  const seen = () => document.querySelector('.mir-live .mir-state').innerText === state;
  const watch = () => seen() ? done(performance.now() - started) :
      performance.now() - started > 5000 ? fail(new Error('never ' + state)) : requestAnimationFrame(watch);
  const buttons = [...document.querySelectorAll('.mir-live button')];
  buttons.find((b) => b.innerText === selector && !b.hidden).click();
  requestAnimationFrame(watch);
})"""


def seconds_shown(page: Any) -> float:
    found = re.search(r"([\d.]+) s", page.inner_text(".mir-live .mir-progress"))
    assert found
    return float(found[1])


def test_the_cell_returns_at_once_and_the_view_moves(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook(CELL)
    started = time.monotonic()
    notebook.run(1)
    assert time.monotonic() - started < 5  # of a search of 20
    page = notebook.page
    page.wait_for_selector(".mir-live")
    first = seconds_shown(page)
    time.sleep(1.0)
    assert seconds_shown(page) > first + 0.5
    assert page.inner_text(".mir-live .mir-state") == "running"


def test_the_view_moves_and_stops_while_another_cell_runs(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook(CELL, BUSY)
    notebook.run(1)
    page = notebook.page
    page.wait_for_selector(".mir-live button")
    notebook.run(2, wait=False)
    time.sleep(0.5)
    first = seconds_shown(page)
    time.sleep(1.0)
    assert seconds_shown(page) > first + 0.5
    milliseconds = page.evaluate(CLICK_UNTIL, ["stop", "stopped"])
    prompt = page.locator(".jp-CodeCell .jp-InputPrompt").nth(2).inner_text()
    assert prompt == "[*]:", "the other cell must still run"
    assert milliseconds < 200


def test_pause_resume_and_stop(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook(CELL)
    notebook.run(1)
    page = notebook.page
    page.wait_for_selector(".mir-live button")
    assert page.evaluate(CLICK_UNTIL, ["pause", "paused"]) < 300
    held = seconds_shown(page)
    time.sleep(0.6)
    assert seconds_shown(page) == held
    assert page.evaluate(CLICK_UNTIL, ["resume", "running"]) < 300
    assert page.evaluate(CLICK_UNTIL, ["stop", "stopped"]) < 300
    assert page.locator(".mir-live .mir-steer button").count() == 0


@pytest.fixture
def finished(open_notebook: Callable[..., Notebook]) -> Notebook:
    notebook = open_notebook(CELL, "%mirage show fused", "fused.stop(); 1 + 1", seconds=0.3)
    notebook.run(1)
    notebook.page.wait_for_function("document.querySelector('.mir-live .mir-state')?.innerText === 'finished'")
    return notebook


def test_rows_open_with_mouse_and_keyboard(finished: Notebook) -> None:
    page = finished.page
    row = page.locator(".mir-live [data-choose^='candidate:']").nth(1)
    digest = row.locator("td").nth(1).inner_text()
    row.click()
    page.wait_for_function(
        "d => document.querySelector('.mir-title h4')?.innerText === 'µGraph ' + d", arg=digest
    )
    assert "2 kernels" in page.text_content(".mir-section-candidate svg")
    prefix = page.locator(".mir-live [data-choose^='prefix:4@']")
    prefix.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".mir-section-prefix svg")
    assert "no term has 2·X" in page.inner_text(".mir-section-prefix")
    assert page.evaluate("document.activeElement.dataset.choose").startswith("prefix:4@")


def test_columns_sort_both_ways(finished: Notebook) -> None:
    page = finished.page
    head = page.locator(".mir-live .mir-section-candidates th").nth(5)
    column = ".mir-live .mir-section-candidates td:nth-child(6)"

    def times() -> list[float]:
        return [float(text.strip("≈ µs")) for text in page.locator(column).all_inner_texts()]

    head.click()
    assert times() == sorted(times())
    head.click()
    assert times() == sorted(times(), reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    page.locator(".mir-live [data-choose^='candidate:']").nth(3).click()
    page.wait_for_timeout(300)
    assert times() == sorted(times(), reverse=True)


def test_two_views_of_one_session(finished: Notebook) -> None:
    page = finished.page
    finished.run(2)
    page.wait_for_function("document.querySelectorAll('.mir-live').length === 2")
    page.locator(".mir-live").nth(1).locator("[data-choose^='candidate:']").nth(2).click()
    page.wait_for_timeout(400)
    opened = page.locator(".mir-live .mir-title h4").all_inner_texts()
    assert opened[0] != opened[1]


def test_a_mistake_shows_line_and_caret_without_traceback(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("%%mirage bad\nX: f16[4, 4]\nreturn rms_nrm(X)\n")
    notebook.run(1)
    text = notebook.output(1)
    lines = text.splitlines()
    place = next(n for n, line in enumerate(lines) if "line 3" in line)
    assert lines[place + 1].strip() == "^" * len("rms_nrm")
    assert lines[place + 1].index("^") == lines[place].index("rms_nrm")
    assert "Traceback" not in text and len(lines) <= 5


def test_the_saved_notebook_holds_the_end_as_html_and_text(finished: Notebook, server: Server, request: Any) -> None:
    page = finished.page
    page.wait_for_timeout(500)
    page.keyboard.press("Control+s")
    name = "".join(c if c.isalnum() else "_" for c in request.node.name)
    path = server.home / f"{name}.ipynb"
    deadline = time.monotonic() + 10
    data: dict[str, Any] = {}
    while "text/html" not in data and time.monotonic() < deadline:
        time.sleep(0.2)
        outputs = json.loads(path.read_text())["cells"][1]["outputs"]
        data = outputs[1]["data"] if len(outputs) > 1 else {}
    assert "finished" in "".join(data["text/plain"])
    assert "mir-view" in "".join(data["text/html"]) and "12</b><span>verified" in "".join(data["text/html"])
    assert "application/vnd.jupyter.widget-view+json" in outputs[0]["data"]
    assert len(outputs) == 2


def test_narrow_pages_put_the_columns_below_each_other(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook(CELL, seconds=0.3, width=700)
    notebook.run(1)
    page = notebook.page
    page.wait_for_selector(".mir-section-candidate svg")
    side, main = (page.locator(f".mir-live .{name}").first.bounding_box() for name in ("mir-side", "mir-main"))
    assert main["y"] >= side["y"] + side["height"] - 1
    assert page.evaluate("(n => n.scrollWidth <= n.clientWidth)(document.querySelector('.mir-live'))")


def test_a_real_search_from_cell_to_kernel(open_notebook: Callable[..., Notebook]) -> None:
    real = CELL.replace("fused", "fused --effort quick")
    notebook = open_notebook(
        "del mirage_nb.superoptimize\nfrom mirage_nb.pipeline import superoptimize\n"
        "mirage_nb.superoptimize = superoptimize",
        real,
        "print(fused.result(150).state.value, fused.best.graph.kernel_count)",
        "fused.best.graph",
    )
    notebook.run(1)
    notebook.run(2)
    notebook.run(3, seconds=150)
    assert notebook.output(3).strip() == "finished 1"
    notebook.run(4)
    page = notebook.page
    page.wait_for_function("document.querySelector('.mir-live .mir-state')?.innerText === 'finished'")
    assert page.locator(".mir-live .mir-canvas svg").count() == 1
    assert "block graph" in str(page.locator(".jp-CodeCell").nth(4).locator("svg.mir").text_content())
