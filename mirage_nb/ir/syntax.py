"""Texts in Python's syntax as trees.

In: a text. Out: its tree, as `ast.parse` makes it. Invariant: threads that read texts at the same time do not fail each
other: until 3.11.8 and 3.12.2 they share a count of levels (CPython issue 106905), and one may find it changed.
"""

from __future__ import annotations

import ast

TRIES = 20
"""Two threads have to meet within microseconds, each time anew."""


def statements(text: str) -> ast.Module:
    """The statements of a text. Raises as `ast.parse` does."""
    for _ in range(TRIES - 1):
        try:
            return ast.parse(text)
        except SystemError:  # another thread's levels were counted
            continue
    return ast.parse(text)


def expression(text: str) -> ast.Expression:
    """A text that is one expression. Raises as `ast.parse` does."""
    for _ in range(TRIES - 1):
        try:
            return ast.parse(text, mode="eval")
        except SystemError:
            continue
    return ast.parse(text, mode="eval")
