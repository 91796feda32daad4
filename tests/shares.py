"""How much of a large family the default tests look at; the slow ones look at all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

SHARE = 3
"""One of so many."""

shared_out = pytest.mark.parametrize("share", [SHARE, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
"""A test with a `share`: it takes one of so many, `[::share]`."""


def some(names: Sequence[str], first: int = 0, share: int = SHARE) -> list[Any]:
    """Parameters of a test: one of so many from the `first` on is a default test, the others are slow ones."""
    return [
        name if at % share == first % share else pytest.param(name, marks=pytest.mark.slow)
        for at, name in enumerate(names)
    ]
