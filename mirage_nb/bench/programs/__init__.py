"""The programs of `bench programs`: what people write, at sizes that a CPU executes in a moment, one file each.

In: nothing. Out: `PROGRAMS`, `text`. Invariant: every file begins with a comment that names its source; whose program
it is follows from that, the text is our own.
"""

from __future__ import annotations

from importlib import resources

SUFFIX = ".mirage"

PROGRAMS: tuple[str, ...] = tuple(
    sorted(entry.name.removesuffix(SUFFIX) for entry in resources.files(__name__).iterdir() if SUFFIX in entry.name)
)
"""Names, in alphabetical order."""


def text(name: str) -> str:
    """The text of a program."""
    return (resources.files(__name__) / f"{name}{SUFFIX}").read_text(encoding="utf-8")
