"""`%mirage help WORD`: functions that are written in the language, too."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("IPython")

from mirage_magics import completion, verbs

from mirage_nb.errors import OptionError
from mirage_nb.lang import made


def said(monkeypatch: pytest.MonkeyPatch, word: str) -> str:
    told: list[str] = []
    monkeypatch.setattr(verbs, "say", lambda text, html="": told.append(text))
    verbs.perform({}, f"help {word}")
    return told[0]


def test_help_shows_the_lines_that_a_call_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were unknown functions."""
    assert said(monkeypatch, "rad2deg").startswith("def rad2deg(x): return ")
    both = said(monkeypatch, "median")
    assert "def torch_median(" in both and "def median(" in both
    assert said(monkeypatch, "concatenate").startswith("def cat(")
    assert said(monkeypatch, "clip").startswith("clamp(x, low=None, high=None)")
    with pytest.raises(OptionError) as caught:
        said(monkeypatch, "cumprd")
    assert caught.value.hint == "did you mean cumprod?"


def test_every_function_that_is_listed_has_help(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in made():
        assert re.search(rf"(^|^def |_){name}\(", said(monkeypatch, name), re.M), name
    assert {*made()} <= {*completion._after_line_magic(["help"], {})}
