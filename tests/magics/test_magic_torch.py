"""`%mirage torch`: what of a model would be taken over."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("IPython")

import torch
from mirage_magics import verbs

from mirage_nb.errors import OptionError


def test_a_model_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(verbs, "say", lambda text, html="": said.append((text, html)))
    variables: dict[str, Any] = {"model": lambda x: torch.softmax(x @ x, -1), "x": torch.randn(8, 8)}
    verbs.perform(variables, "torch model x")
    ((text, html),) = said
    assert text.startswith("1 graph, 1 region, 0 replaced") and "<table>" in html


@pytest.mark.parametrize("line", ["torch model y", "torch nobody x"])
def test_variables_that_there_are_not(line: str) -> None:
    with pytest.raises(OptionError, match="there is no variable"):
        verbs.perform({"model": torch.relu, "x": torch.randn(2)}, line)
