"""How much of a large family the default tests look at; the slow ones look at all of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def crossed(families: Mapping[str, Iterable[Any]], ids: Callable[[Any], str] | None = None) -> pytest.MarkDecorator:
    """A test of one of each family, by the names of its parameters: every one of them is in a default test, beside some
    of the others; the slow ones take all together."""
    lists = [[one if "," in names else (one,) for one in family] for names, family in families.items()]
    sizes = [len(family) for family in lists]
    # Families of one size go at paces of their own, as far as there are turns enough.
    alike = [sizes[:at].count(n) for at, n in enumerate(sizes)]
    paces = [n**before if n ** (before + 1) <= max(sizes) else 1 for n, before in zip(sizes, alike, strict=True)]
    enough = {tuple(at // pace % n for pace, n in zip(paces, sizes, strict=True)) for at in range(max(sizes))}
    taken = [
        pytest.param(
            *(value for family, at in zip(lists, places, strict=True) for value in family[at]),
            marks=[pytest.mark.slow] * (places not in enough),
        )
        for places in itertools.product(*map(range, sizes))
    ]
    return pytest.mark.parametrize(", ".join(families), taken, ids=ids)


def examples(count: int, **others: Any) -> settings:
    """A property that is looked at for so many examples by the profile `whole`, and a share of them by default."""
    default = settings.default
    assert default is not None
    return settings(max_examples=max(1, count * default.max_examples // WHOLE), **others)
