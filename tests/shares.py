"""How much of a large family the default tests look at; the slow ones look at all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

SHARE = 5
"""One of so many."""
WHOLE = 100
"""What the profile `whole` draws for a property that names no number."""

shared_out = pytest.mark.parametrize("share", [SHARE, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
"""A test with a `share`: it takes one of so many, `[::share]`."""


def some(names: Sequence[Any], first: int = 0, share: int = SHARE) -> list[Any]:
    """Parameters of a test: one of so many from the `first` on is a default test, the others are slow ones."""
    return [
        name
        if at % share == first % share
        else pytest.param(*(name if isinstance(name, tuple) else (name,)), marks=pytest.mark.slow)
        for at, name in enumerate(names)
    ]


def examples(count: int, **others: Any) -> settings:
    """A property that is looked at for so many examples by the profile `whole`, and a share of them by default."""
    default = settings.default
    assert default is not None
    return settings(max_examples=max(1, count * default.max_examples // WHOLE), **others)
