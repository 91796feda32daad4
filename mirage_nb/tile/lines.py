"""The text form of frozen dataclasses, whatever they are: one a line, what they are made of below it.

In: a staged program, or any part of it. Out: lines: its class, and its fields as Python says them, without those that
have their default; statements of a body, and parts that have parts themselves, follow indented. (`tests/tile/lines.py`
reads them.)
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from typing import Any

BODY = "body"
"""The field whose parts follow without its name."""


def lines_of(part: Any, indent: str = "", label: str = "") -> Iterator[str]:
    """The lines of a part."""
    yield f"{indent}{label}{line_of(part)}"
    for name, value in _inner(part):
        below = f"{indent}  "
        if not isinstance(value, tuple):
            yield from lines_of(value, below, f"{name}: ")
            continue
        if name != BODY:
            yield f"{below}{name}:"
            below += "  "
        for inner in value:
            yield from lines_of(inner, below)


def line_of(part: Any) -> str:
    """The first of them."""
    if not is_dataclass(part):
        return _said(part)
    inner = dict(_inner(part))
    said = (f"{f.name}={_said(value)}" for f, value in _given(part) if f.name not in inner)
    return f"{type(part).__name__}({', '.join(said)})"


def _given(part: Any) -> Iterator[tuple[Field[Any], Any]]:
    """The fields that do not have their default."""
    for field in fields(part):
        value = getattr(part, field.name)
        if value != field.default:
            yield field, value


def _inner(part: Any) -> Iterator[tuple[str, Any]]:
    """The fields that follow on lines of their own."""
    for field, value in _given(part) if is_dataclass(part) else ():
        if isinstance(value, tuple) and any(map(is_dataclass, value)):
            yield field.name, value
        elif any(True for _ in _inner(value)):
            yield field.name, value


def _said(value: Any) -> str:
    """A value within a line."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if is_dataclass(value):
        return line_of(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_said, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(map(_said, sorted(value)))}}}" if value else "frozenset()"
    return repr(value)
