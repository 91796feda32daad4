"""Reads the text form of programs (`mirage_nb.tile.lines`): `parse(lines_of(part)) == part`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import is_dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any, get_type_hints

from mirage_nb import ir
from mirage_nb.tile.instructions import table as instructions
from mirage_nb.tile.lines import BODY, lines_of
from mirage_nb.tile.resident import program as resident
from mirage_nb.tile.roles import program
from mirage_nb.tile.roles.program import Index, Program
from mirage_nb.tile.rules import bodies, boxes, order, placement, shared, sharing
from mirage_nb.tile.staged import program as staged

STAGED = ir, ir.ops, bodies, boxes, order, shared, sharing, staged, placement
RESIDENT = ir, ir.ops, placement, resident
TILES = ir, ir.ops, instructions, program
"""Where the names stand that a program of each kind says."""
LINE = re.compile(r"( *)(?:(\w+):(?: |\Z))?(.*)\Z")
INDICES = tuple[Index, ...]

Line = tuple[int, str, str]
"""How far it is indented, its label, what it says."""


def text_of(program: Program) -> str:
    """The text of a tile program."""
    return "\n".join(lines_of(program)) + "\n"


def program_of(text: str) -> Program:
    """The tile program of a text."""
    found = parse(text.splitlines(), TILES)
    assert isinstance(found, Program)
    return found


def parse(lines: Iterable[str], rooms: tuple[ModuleType, ...] = STAGED) -> Any:
    """The part that the lines are of."""
    known: dict[str, Any] = {name: thing for room in rooms for name, thing in vars(room).items()}
    cut = [(len(found[1]), found[2] or "", found[3]) for found in map(LINE.match, lines) if found]
    ((label, part),) = _Reader(known | {"Fraction": Fraction, "frozenset": frozenset}).parts(cut)
    assert not label
    return part


class _Reader:
    def __init__(self, known: dict[str, Any]) -> None:
        self.known = known

    def parts(self, lines: list[Line]) -> list[tuple[str, Any]]:
        """What stands below each other, with labels."""
        found = []
        while lines:
            (indent, label, said), *lines = lines
            end = next((place for place, line in enumerate(lines) if line[0] <= indent), len(lines))
            inner, lines = self.parts(lines[:end]), lines[end:]
            if not said:
                found.append((label, tuple((name, part) if name else part for name, part in inner)))
                continue
            fields = {name: part for name, part in inner if name}
            if body := tuple(part for name, part in inner if not name):
                fields[BODY] = body
            found.append((label, self.value(ast.parse(said, mode="eval").body, fields)))
        return found

    def value(self, node: ast.expr, fields: dict[str, Any] | None = None) -> Any:
        match node:
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                kind, named = self.known[name], {k.arg: self.value(k.value) for k in keywords if k.arg}
                for field, hint in get_type_hints(kind).items() if is_dataclass(kind) else ():
                    if field in named and hint == INDICES:
                        named[field] = tuple(map(_index, named[field]))
                    elif field in named and hint in (Index, Index | None):
                        named[field] = _index(named[field])
                return kind(*map(self.value, args), **named, **(fields or {}))
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                return getattr(self.known[name], attr)
            case ast.Name(id=name):
                return program.counted(name)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return _index(self.value(left)) + _index(self.value(right))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self.value(right) * self.value(left)
            case ast.Tuple(elts=parts):
                return tuple(map(self.value, parts))
            case ast.Set(elts=parts):
                return frozenset(map(self.value, parts))
            case _:
                return ast.literal_eval(node)


def _index(value: Any) -> Index:
    return value if isinstance(value, Index) else Index((), value)
