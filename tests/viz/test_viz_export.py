"""The exported page: whole, well-formed, and alone in the world."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mirage_nb.errors import StoreError
from mirage_nb.lang import parse
from mirage_nb.runtime.contest.timing import Lap, Timing
from mirage_nb.search.saturation.events import Outcome
from mirage_nb.viz.export import OPENED_CANDIDATES, export, session_page
from tests.browser.fake_session import FakeSession
from tests.viz.test_viz_html import read


class Exported(FakeSession):
    """A scripted session with what an export reads besides."""

    program = parse("X: f16[16, 1024]\nG: f16[1024]\nW: f16[1024, 4096]\nX = rms_norm(X, G) @ W\nreturn X  # <b>")
    winners: tuple[Any, ...] = ()
    baselines = (
        Lap("eager", 0.0, Timing("eager", 9.0, 9.0, 9.0, 9)),
        Lap("torch.compile", None, None),
    )


@pytest.fixture(scope="module")
def html() -> str:
    session = Exported(0.01)
    session.result()
    return session_page(session)  # type: ignore[arg-type]


def test_the_page_is_whole(html: str) -> None:
    found = read(re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL))
    words = " ".join(found.words)
    assert "return X  # <b>" in words and "target h200, effort quick" in words
    assert html.count("data-opened='candidate:") == OPENED_CANDIDATES + 1
    assert html.count("class='mir-explorer'") == OPENED_CANDIDATES
    assert all(outcome.value in words for outcome in Outcome)


def test_the_page_reaches_nothing_outside(html: str) -> None:
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|fetch\(|https?://(?!www\.w3\.org/2000/svg)", html)
    assert re.search(r"\bimport\b.*from|^import ", html, flags=re.MULTILINE) is None


def test_no_text_ends_the_script(html: str) -> None:
    assert html.count("<script") == html.count("</script>") == 1


def test_it_is_written_or_says_why_not(tmp_path: Path) -> None:
    session: Any = Exported(0.01)
    assert export(session, tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    with pytest.raises(StoreError, match="cannot be written"):
        export(session, tmp_path / "none" / "a.html")
