"""The text form of whole tile programs: `parse_program(print_program(p)) == p`.

In: a tile program, or text, whose lines are as `tile.text` writes them. Out: the other, or a FormatError with the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from mirage_nb.errors import FormatError
from mirage_nb.ir import DType, OpKind
from mirage_nb.ir.fields import read_attrs
from mirage_nb.tile import program
from mirage_nb.tile.instructions import Place
from mirage_nb.tile.program import Axis, Index, Layout, Loop, Map, Pipeline, Program, Role, Statement, Tile, Walk
from mirage_nb.tile.text import FORMS, body_lines, line_of

HEAD = re.compile(r"tile program capability (\d+) blocks (\d+)(?: cluster (\d+))? outputs (\[[^\]]*\])\Z", re.ASCII)
_TOKEN = re.compile(r"\{.*\}|\[[^\]]*\]|[^\s\[\]{}]+", re.ASCII)
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9.]*\Z", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,18}\Z", re.ASCII)
_TERM = re.compile(r"(?:(-?[0-9]{1,18})\*)?([A-Za-z_][A-Za-z_0-9]*)\Z|(-?[0-9]{1,18})\Z", re.ASCII)


def _word(text: str) -> str:
    if not _WORD.match(text):
        raise ValueError(f"{text!r} is no name")
    return text


def _count(text: str) -> int:
    if not _COUNT.match(text):
        raise ValueError(f"{text!r} is no count")
    return int(text)


def _items(text: str) -> list[str]:
    if text[:1] != "[" or text[-1:] != "]":
        raise ValueError(f"{text!r} is no list")
    inside = text[1:-1].strip()
    return [item.strip() for item in inside.split(",")] if inside else []


def _several(read: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(map(read, _items(text)))


def _index(text: str) -> Index:
    found = Index()
    for part in text.split("+"):
        term = _TERM.match(part.strip())
        if term is None:
            raise ValueError(f"{text!r} is no index")
        factor, name, const = term.groups()
        found = found + (Index(((name, int(factor or 1)),)) if name else Index((), int(const)))
    return found


def _counter(text: str) -> tuple[str, int]:
    name, _, count = text.partition(" ")
    return _word(name), _count(count.strip())


def _maybe(text: str) -> str:
    return "" if text == "-" else _word(text)


READ: dict[str, Callable[[str], Any]] = {
    "word": _word,
    "maybe": _maybe,
    "words": _several(_maybe),
    "count": _count,
    "counts": _several(_count),
    "counters": _several(_counter),
    "index": _index,
    "indices": _several(_index),
    "fraction": Fraction,
    "place": Place,
    "layout": Layout,
    "dtype": DType,
    "kind": OpKind,
    "attrs": json.loads,
}
"""How a token is read as a kind of field; raises ValueError."""


def print_program(program: Program) -> str:
    """The text form."""
    outputs = f"[{', '.join(program.outputs)}]"
    blocks = f"{program.blocks}" + (f" cluster {program.cluster}" if program.cluster != 1 else "")
    lines = [f"tile program capability {program.capability} blocks {blocks} outputs {outputs}"]
    for part in (*program.axes, *program.roles, *program.tiles, *program.pipelines):
        lines.append(line_of(part))
    for role, statements in program.code:
        lines += [f"{role}:", *body_lines(statements, "  ")]
    return "\n".join(lines) + "\n"


def parse_program(text: str) -> Program:
    """The tile program of a text. Raises FormatError with the line."""
    lines = [(n, line.rstrip()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    head = HEAD.match(lines[0][1]) if lines else None
    if head is None:
        raise FormatError("line 1: a tile program begins with 'tile program capability ... blocks ... outputs [...]'")
    parts: dict[type, list[Any]] = {Axis: [], Role: [], Tile: [], Pipeline: []}
    at = 1
    while at < len(lines) and not lines[at][1].endswith(":"):
        part = _parsed(*lines[at])
        if type(part) not in parts:
            raise FormatError(f"line {lines[at][0]}: {type(part).__name__} belongs to a role")
        parts[type(part)].append(part)
        at += 1
    code = []
    while at < len(lines):
        number, line = lines[at]
        role = line.removesuffix(":")
        if role == line or not _WORD.match(role):
            raise FormatError(f"line {number}: the name of a role and a colon")
        statements, at = _statements(lines, at + 1, 2)
        code.append((role, statements))
    try:
        outputs = READ["words"](head[4])
    except ValueError as error:
        raise FormatError(f"line 1: {error}") from error
    axes, roles, tiles, pipelines = (tuple(parts[kind]) for kind in (Axis, Role, Tile, Pipeline))
    numbers = int(head[1]), int(head[2])
    return Program(*numbers, axes, roles, tiles, pipelines, outputs, tuple(code), int(head[3] or 1))


def _statements(lines: list[tuple[int, str]], at: int, depth: int) -> tuple[tuple[Statement, ...], int]:
    """The statements at this depth, and the line behind them."""
    found: list[Statement] = []
    while at < len(lines):
        number, line = lines[at]
        indent = len(line) - len(line.lstrip())
        if indent < depth:
            break
        if indent > depth:
            raise FormatError(f"line {number}: indented deeper than the line above allows")
        part = _parsed(number, line)
        if isinstance(part, Axis | Role | Tile | Pipeline):
            raise FormatError(f"line {number}: {type(part).__name__} belongs before the roles")
        at += 1
        if isinstance(part, Walk | Loop):
            body, at = _statements(lines, at, depth + 2)
            part = replace(part, body=body)
        found.append(part)
    return tuple(found), at


def _parsed(number: int, line: str) -> Any:
    """What one line says. Raises FormatError."""
    tokens = _TOKEN.findall(line)
    if tokens[0] not in FORMS:
        raise FormatError(f"line {number}: no statement begins with {tokens[0]!r}")
    kind, form = getattr(program, tokens[0].capitalize()), [tokens[0], *FORMS[tokens[0]].split()]
    if len(form) != len(tokens):
        raise FormatError(f"line {number}: {' '.join(form)!r} has {len(form)} parts, this line {len(tokens)}")
    fields: dict[str, Any] = {}
    try:
        for wanted, token in zip(form, tokens, strict=True):
            if not wanted.startswith("{"):
                if wanted != token:
                    raise ValueError(f"{wanted!r} instead of {token!r}")
                continue
            field, how = wanted[1:-1].split(":")
            fields[field] = READ[how](token)
        if kind is Map:
            fields["attrs"] = read_attrs(fields["kind"], fields["attrs"])
    except (ValueError, ZeroDivisionError) as error:
        raise FormatError(f"line {number}: {error}") from error
    return kind(**fields, body=()) if kind in (Walk, Loop) else kind(**fields)
