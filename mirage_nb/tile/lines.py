"""The text form of programs, as of all frozen dataclasses: one a line, what they are made of below it.

In: a tile program, a staged one, or any part of them. Out: lines: its class, and its fields as Python says them,
without those that have their default, and indices as sums; statements of a body, and parts that have parts themselves,
follow indented. (`tests/tile/lines.py` reads them.)
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from mirage_nb.tile.roles.program import Index

BODY = "body"
"""The field of statements, which follow without its name."""


def lines_of(part: Any, indent: str = "", label: str = "") -> Iterator[str]:
    """The lines of a part."""
    yield f"{indent}{label}{line_of(part)}"
    for name, value in _below(part):
        unnamed = name == BODY and isinstance(value, tuple)
        yield from _lines(value, f"{indent}  ", "" if unnamed else f"{name}:")


def _lines(value: Any, indent: str, label: str) -> Iterator[str]:
    """A part, or several: these stand below their name, if they have one."""
    if not isinstance(value, tuple):
        yield from lines_of(value, indent, f"{label} ")
        return
    if label:
        yield f"{indent}{label}"
        indent += "  "
    for inner in value:
        named = isinstance(inner, tuple)
        yield from _lines(inner[1], indent, f"{inner[0]}:") if named else lines_of(inner, indent)


def line_of(part: Any) -> str:
    """The first of them."""
    if not is_dataclass(part):
        return _said(part)
    below = dict(_below(part))
    said = (f"{name}={_said(value)}" for name, value in _given(part) if name not in below)
    return f"{type(part).__name__}({', '.join(said)})"


def _given(part: Any) -> Iterator[tuple[str, Any]]:
    """The fields that do not have their default."""
    for field in fields(part):
        value = getattr(part, field.name)
        if value != field.default:
            yield field.name, value


def _below(part: Any) -> Iterator[tuple[str, Any]]:
    """The fields that follow on lines of their own."""
    for name, value in _given(part) if is_dataclass(part) else ():
        if _several(value) if isinstance(value, tuple) else any(_below(value)):
            yield name, value


def _several(values: tuple[Any, ...]) -> bool:
    """Whether values are parts, or parts by their names."""
    return any(
        (is_dataclass(v) and not isinstance(v, Index))
        or (isinstance(v, tuple) and len(v) == 2 and isinstance(v[1], tuple) and _several(v[1]))
        for v in values
    )  # fmt: skip


def _said(value: Any) -> str:
    """A value within a line."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Index):
        terms = [name if factor == 1 else f"{factor}*{name}" for name, factor in value.terms]
        return " + ".join([*terms, *([str(value.const)] if value.const or not terms else [])])
    if is_dataclass(value):
        return line_of(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_said, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(map(_said, sorted(value)))}}}" if value else "frozenset()"
    return repr(value)
