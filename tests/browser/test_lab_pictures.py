"""How it looks: nothing cut off in a real font, and screenshots near those that were looked at."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_nb.viz import counts_svg, mugraph_svg, page, prefix_svg
from tests.browser.conftest import CELL, OPEN, PAGE_MS, Notebook
from tests.browser.fake_session import prefixes, snapshot
from tests.viz.mugraph_samples import SAMPLES

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.browser

GOLDEN = Path(__file__).parent / "golden"
THUMB = 360
"""Width of the kept screenshots."""
TOLERANCE = 8.0
"""Mean difference of 8-bit channels in the worst tile of 24 pixels; another font stays below it."""

SPILLED = """() => {
  const spilled = [];
  for (const text of document.querySelectorAll('svg text')) {
    const box = text.getBoundingClientRect();
    const holds = (r) => r.left <= box.left + 1 && r.right >= box.right - 1 &&
        r.top <= box.top + 4 && r.bottom >= box.bottom - 4;
    const near = [...text.parentNode.querySelectorAll(':scope > rect')].map((r) => r.getBoundingClientRect());
    const whole = text.ownerSVGElement.getBoundingClientRect();
    const boxed = near.length && text.parentNode.tagName !== 'svg' && !text.closest('.mir-chart');
    if (boxed && !near.some(holds)) spilled.push(text.textContent);
    if (!holds(whole)) spilled.push('outside: ' + text.textContent);
  }
  return spilled;
}"""


@pytest.mark.parametrize("name", SAMPLES)
def test_no_text_leaves_its_box(new_page: Callable[..., Any], name: str) -> None:
    tab = new_page(1920)
    tab.set_content(page("t", mugraph_svg(SAMPLES[name]())))
    assert tab.evaluate(SPILLED) == []


def test_no_text_leaves_the_other_pictures(new_page: Callable[..., Any]) -> None:
    tab = new_page(1280)
    sample = prefixes()
    tab.set_content(page("t", counts_svg(snapshot().counts) + prefix_svg(sample[11], sample)))
    assert tab.evaluate(SPILLED) == []


def test_the_check_for_spilled_text_sees_one(new_page: Callable[..., Any]) -> None:
    tab = new_page(1280)
    svg = mugraph_svg(SAMPLES["rmsnorm_fused"]()).replace(">Matmul<", ">Matmul of two rather large operands<")
    tab.set_content(page("t", svg))
    assert tab.evaluate(SPILLED) == ["Matmul of two rather large operands"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1920])
def test_the_view_looks_as_it_did(
    open_notebook: Callable[..., Notebook], width: int, dark: bool, update_golden: bool, tmp_path: Path
) -> None:
    notebook = open_notebook(CELL, seconds=0.3, width=width, dark=dark)
    notebook.run(1)
    tab = notebook.page
    tab.wait_for_function("document.querySelector('.mir-live .mir-state')?.innerText === 'finished'")
    tab.wait_for_selector(".mir-live .mir-explorer.mir-ready")
    tab.evaluate(OPEN)
    tab.evaluate("document.querySelectorAll('.mir-tree details').forEach((n) => { n.open = true; })")
    tab.locator(".mir-live [data-choose^='prefix:11@']").click()
    tab.wait_for_selector(".mir-section-prefix svg")
    tab.evaluate("document.querySelectorAll('.mir-live .mir-scroll').forEach((n) => { n.scrollTop = 0; })")
    tab.evaluate("document.activeElement.blur()")
    tab.evaluate("document.querySelector('.mir-section-history').style.visibility = 'hidden'")  # as fast as the machine
    tab.mouse.move(0, 0)
    part = tab.locator(".mir-live")
    high = 400 + part.bounding_box()["height"]
    tab.set_viewport_size({"width": width, "height": math.ceil(high)})
    tab.evaluate("document.querySelectorAll('.jp-WindowedPanel-outer').forEach((n) => { n.scrollTop = 0; })")
    seen = part.bounding_box()
    assert seen["y"] > 0 and seen["y"] + seen["height"] < high, "all of it is in the window"
    whole = settled(part)
    (tmp_path / "whole.png").write_bytes(whole)
    shot = Image.open(io.BytesIO(whole)).convert("RGB")
    thumb = shot.resize((THUMB, round(shot.height * THUMB / shot.width)), Image.Resampling.BOX)
    kept = GOLDEN / f"view-{width}-{'dark' if dark else 'light'}.png"
    if update_golden:
        GOLDEN.mkdir(exist_ok=True)
        thumb.save(kept, optimize=True)
        return
    assert kept.exists(), f"{kept} is missing; write it with --update-golden and look at it"
    old = Image.open(kept).convert("RGB")
    assert abs(old.height - thumb.height) <= 0.08 * old.height
    assert worst_tile(np.asarray(old.resize(thumb.size), float), np.asarray(thumb, float)) < TOLERANCE


def settled(part: Any) -> bytes:
    """A screenshot once nothing moves any more."""
    before, now = b"", bytes(part.screenshot())
    deadline = time.monotonic() + PAGE_MS / 1000
    while now != before and time.monotonic() < deadline:
        part.page.wait_for_timeout(250)
        before, now = now, bytes(part.screenshot())
    return now


def worst_tile(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], size: int = 24) -> float:
    """The largest mean difference over tiles."""
    apart = np.abs(a - b).mean(axis=2)
    rows, columns = (n // size * size for n in apart.shape)
    tiles = apart[:rows, :columns].reshape(rows // size, size, columns // size, size)
    return float(tiles.mean(axis=(1, 3)).max())


def test_the_comparison_sees_a_lost_box() -> None:
    whole = np.full((480, 480, 3), 250.0)
    whole[100:150, 100:200] = 60.0
    lost = np.full((480, 480, 3), 250.0)
    assert worst_tile(whole, whole) == 0.0
    assert worst_tile(whole, lost) > TOLERANCE
