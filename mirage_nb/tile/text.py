"""The text form of tile programs, one statement a line: `parse_program(print_program(p)) == p`.

In: a tile program, or text. Out: the other. One table, `FORMS`, says how each kind of line reads; bodies are indented.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from mirage_nb.errors import FormatError
from mirage_nb.ir import DType, OpKind
from mirage_nb.ir.fields import read_attrs, write_attrs
from mirage_nb.tile.instructions import Place
from mirage_nb.tile.program import (
    Acquire,
    Await,
    Axis,
    Clear,
    Combine,
    Copy,
    Count,
    Index,
    Layout,
    Loop,
    Map,
    Multicast,
    Number,
    Pipeline,
    Product,
    Program,
    Read,
    Reduce,
    Release,
    Role,
    Set,
    Skip,
    Statement,
    Store,
    Tile,
    Turn,
    Walk,
    Yield,
)

FORMS: dict[type, str] = {
    Axis: "axis {name:word} {extent:count}",
    Role: "role {name:word} warps {warps:count} registers {registers:count}",
    Tile: "tile {name:word} {place:place} {axes:words} {shape:counts} {dtype:dtype} {layout:layout} x {stages:count}",
    Pipeline: "pipeline {name:word} {tiles:words} stages {stages:count} bytes {nbytes:count} arrivals {arrivals:count}",
    Walk: "walk {counters:counters} group {group:count}",
    Loop: "loop {counter:word} {count:count} more {more:index}",
    Acquire: "acquire {pipeline:word}",
    Copy: "copy {source:word} {target:word} {at:indices}",
    Multicast: "multicast {source:word} {target:word} {at:indices}",
    Await: "await {pipeline:word}",
    Product: "product {instruction:word} {result:word} {left:word} {right:word} row {row:index} column {column:index} "
    "rest {rest:maybe}",
    Release: "release {pipeline:word} behind {behind:count}",
    Clear: "clear {result:word}",
    Number: "number {name:word} {value:fraction}",
    Read: "read {name:word} {source:word} {at:indices}",
    Reduce: "reduce {name:word} {kind:kind} {operand:word} {axis:word}",
    Set: "set {result:word} {value:word}",
    Count: "count {name:word} {axis:word} from {at:index}",
    Skip: "skip {axis:word} from {start:index}",
    Combine: "combine {results:words} over {counter:word}",
    Turn: "turn",
    Yield: "yield",
    Map: "map {name:word} {kind:kind} {operands:words} {attrs:attrs}",
    Store: "store {value:word} {target:word} {at:indices}",
}
"""How a line reads: words as they stand, and {field:how it is written}."""
HEAD = re.compile(r"tile program capability (\d+) blocks (\d+)(?: cluster (\d+))? outputs (\[[^\]]*\])\Z", re.ASCII)
_TOKEN = re.compile(r"\{.*\}|\[[^\]]*\]|[^\s\[\]{}]+", re.ASCII)
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9.]*\Z", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,18}\Z", re.ASCII)
_TERM = re.compile(r"(?:(-?[0-9]{1,18})\*)?([A-Za-z_][A-Za-z_0-9]*)\Z|(-?[0-9]{1,18})\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Written:
    """How a kind of field is written as one token, and read back; `read` raises ValueError."""

    write: Callable[[Any], str]
    read: Callable[[str], Any]


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


def _several(one: _Written) -> _Written:
    return _Written(lambda items: f"[{', '.join(map(one.write, items))}]", lambda t: tuple(map(one.read, _items(t))))


def _index(index: Index) -> str:
    parts = [name if factor == 1 else f"{factor}*{name}" for name, factor in index.terms]
    return "+".join([*parts, *([str(index.const)] if index.const or not parts else [])])


def _read_index(text: str) -> Index:
    found = Index()
    for part in text.split("+"):
        term = _TERM.match(part.strip())
        if term is None:
            raise ValueError(f"{text!r} is no index")
        factor, name, const = term.groups()
        found = found + (Index(((name, int(factor or 1)),)) if name else Index((), int(const)))
    return found


def _counter(pair: tuple[str, int]) -> str:
    return f"{pair[0]} {pair[1]}"


def _read_counter(text: str) -> tuple[str, int]:
    name, _, count = text.partition(" ")
    return _word(name), _count(count.strip())


def _attrs(attrs: Any) -> str:
    return json.dumps(write_attrs(attrs), default=str)


_AXES = _Written(lambda name: name or "-", lambda text: "" if text == "-" else _word(text))
_INDEX = _Written(_index, _read_index)
_NUMBER = _Written(str, _count)
KINDS: dict[str, _Written] = {
    "word": _Written(str, _word),
    "maybe": _AXES,
    "words": _several(_AXES),
    "count": _NUMBER,
    "counts": _several(_NUMBER),
    "counters": _several(_Written(_counter, _read_counter)),
    "index": _INDEX,
    "indices": _several(_INDEX),
    "fraction": _Written(str, Fraction),
    "place": _Written(lambda place: place.value, Place),
    "layout": _Written(lambda layout: layout.value, Layout),
    "dtype": _Written(lambda dtype: dtype.value, DType),
    "kind": _Written(lambda kind: kind.value, OpKind),
    "attrs": _Written(_attrs, json.loads),
}


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


def body_lines(statements: Sequence[Statement], indent: str = "") -> Iterator[str]:
    """The lines of statements, those inside loops indented."""
    for statement in statements:
        yield indent + line_of(statement)
        if isinstance(statement, Walk | Loop):
            yield from body_lines(statement.body, indent + "  ")


def line_of(part: Any) -> str:
    """One line, as its form says."""
    return re.sub(r"\{(\w+):(\w+)\}", lambda m: KINDS[m[2]].write(getattr(part, m[1])), FORMS[type(part)])


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
        outputs = KINDS["words"].read(head[4])
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
    kind = next((kind for kind, form in FORMS.items() if form.split()[0] == tokens[0]), None)
    if kind is None:
        raise FormatError(f"line {number}: no statement begins with {tokens[0]!r}")
    form = FORMS[kind].split()
    if len(form) != len(tokens):
        raise FormatError(f"line {number}: {FORMS[kind]!r} has {len(form)} parts, this line {len(tokens)}")
    fields: dict[str, Any] = {}
    try:
        for wanted, token in zip(form, tokens, strict=True):
            if not wanted.startswith("{"):
                if wanted != token:
                    raise ValueError(f"{wanted!r} instead of {token!r}")
                continue
            field, how = wanted[1:-1].split(":")
            fields[field] = KINDS[how].read(token)
        if kind is Map:
            fields["attrs"] = read_attrs(fields["kind"], fields["attrs"])
    except (ValueError, ZeroDivisionError) as error:
        raise FormatError(f"line {number}: {error}") from error
    return kind(**fields, body=()) if kind in (Walk, Loop) else kind(**fields)
