"""Texts are read, whatever other threads read meanwhile."""

from __future__ import annotations

import ast

import pytest

from mirage_nb.ir import syntax
from mirage_nb.lang import parse


def test_levels_that_another_thread_counted_are_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [SystemError("AST constructor recursion depth mismatch (before=90, after=83)")] * 3
    python = ast.parse

    def disturbed(*args: str, **how: str) -> ast.AST:
        if failures:
            raise failures.pop()
        return python(*args, **how)  # type: ignore[call-overload, no-any-return]  # whatever it is called with

    monkeypatch.setattr(ast, "parse", disturbed)
    assert parse("X: f16[4]\nreturn X + 1").graph.ops and not failures
    with pytest.raises(SyntaxError):
        syntax.expression("1 +")
