"""Reads the text form of frozen dataclasses (`mirage_nb.tile.lines`): `parse(lines_of(part)) == part`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from mirage_nb import ir
from mirage_nb.tile import bodies, boxes, order, placement, shared, sharing, staged
from mirage_nb.tile.lines import BODY

ROOMS = ir, ir.ops, bodies, boxes, order, shared, sharing, staged, placement
KNOWN: dict[str, Any] = {name: thing for room in ROOMS for name, thing in vars(room).items()}
KNOWN |= {"Fraction": Fraction, "frozenset": frozenset}
LINE = re.compile(r"( *)(?:(\w+):(?: |\Z))?(.*)\Z")

Line = tuple[int, str, str]
"""How far it is indented, its label, what it says."""


def parse(lines: Iterable[str]) -> Any:
    """The part that the lines are of."""
    cut = [(len(found[1]), found[2] or "", found[3]) for found in map(LINE.match, lines) if found]
    ((label, part),) = _parts(cut)
    assert not label
    return part


def _parts(lines: list[Line]) -> list[tuple[str, Any]]:
    """What stands below each other, with labels."""
    found = []
    while lines:
        (indent, label, said), *lines = lines
        end = next((place for place, line in enumerate(lines) if line[0] <= indent), len(lines))
        inner, lines = _parts(lines[:end]), lines[end:]
        if not said:
            found.append((label, tuple(part for _, part in inner)))
            continue
        fields = {name: part for name, part in inner if name}
        if body := tuple(part for name, part in inner if not name):
            fields[BODY] = body
        found.append((label, _value(ast.parse(said, mode="eval").body, fields)))
    return found


def _value(node: ast.expr, fields: dict[str, Any] | None = None) -> Any:
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            named = {k.arg: _value(k.value) for k in keywords if k.arg}
            return KNOWN[name](*map(_value, args), **named, **(fields or {}))
        case ast.Attribute(value=ast.Name(id=name), attr=attr):
            return getattr(KNOWN[name], attr)
        case ast.Tuple(elts=parts):
            return tuple(map(_value, parts))
        case ast.Set(elts=parts):
            return frozenset(map(_value, parts))
        case _:
            return ast.literal_eval(node)
