"""Staged programs with one thing changed: a number off by one, a statement lost, doubled or moved, a tile elsewhere."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from mirage_nb.tile.rules.placement import Step
from mirage_nb.tile.rules.shared import Buffer
from mirage_nb.tile.staged.program import StagedProgram

Mutant = tuple[str, StagedProgram]
BODIES = ("loader", "code")


def mutants(program: StagedProgram) -> Iterator[Mutant]:
    """Every program that differs from this one at one place."""
    for place, buffer in enumerate(program.buffers):
        for what, changed in _buffers(buffer):
            new = (*program.buffers[:place], changed, *program.buffers[place + 1 :])
            yield f"%{buffer.value} {what}", replace(program, buffers=new)
    for step in (-1, 1):
        yield f"stages {step:+}", replace(program, stages=program.stages + step)
        yield f"warps {step:+}", replace(program, warps=program.warps + step)
        for place, (name, count) in enumerate(program.scratch):
            new_scratch = (*program.scratch[:place], (name, count + step), *program.scratch[place + 1 :])
            yield f"{name} {step:+}", replace(program, scratch=new_scratch)
    for value in program.streamed:
        yield f"%{value} not streamed", replace(program, streamed=tuple(v for v in program.streamed if v != value))
    for part in BODIES:
        for what, body in bodies(getattr(program, part)):
            yield f"{part}: {what}", replace(program, **{part: body})


def _buffers(buffer: Buffer) -> Iterator[tuple[str, Buffer]]:
    layout = buffer.layout
    for step in (-1024, -128, 16, 1024):
        yield f"offset {step:+}", replace(buffer, offset=buffer.offset + step)
    for step in (-1, 1):
        yield f"copies {step:+}", replace(buffer, copies=buffer.copies + step)
        yield f"elements {step:+}", replace(buffer, layout=replace(layout, elements=layout.elements + step))
    if len(layout.shape) > 1 and not layout.swizzle:
        yield "turned", replace(buffer, layout=replace(layout, strides=layout.strides[::-1]))


def bodies(body: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """With a statement lost, doubled, exchanged with the next one, or changed itself."""
    for place, statement in enumerate(body):
        before, behind = body[:place], body[place + 1 :]
        name = _name(statement)
        yield f"{name} lost", (*before, *behind)
        yield f"{name} doubled", (*before, statement, statement, *behind)
        if behind:
            yield f"{name} and {_name(behind[0])} exchanged", (*before, behind[0], statement, *behind[1:])
        if (inside := getattr(statement, "body", None)) is not None:
            for what, changed in bodies(inside):
                yield what, (*before, replace(statement, body=changed), *behind)
        for what, changed in numbers(statement):
            yield f"{name} {what}", (*before, changed, *behind)


def _name(statement: Any) -> str:
    return statement.name if isinstance(statement, enum.Enum) else type(statement).__name__


def numbers(part: Any) -> Iterator[tuple[str, Any]]:
    """With a number off by one, or another way to change registers; steps of the block are only comments."""
    if not is_dataclass(part) or isinstance(part, type | Step):
        return
    for field in fields(part):
        value = getattr(part, field.name)
        if field.name == "body":
            continue
        if type(value) is int and field.name != "number":
            for step in (-1, 1):
                yield f"{field.name} {step:+}", replace(part, **{field.name: value + step})
        elif isinstance(value, bool):
            yield f"not {field.name}", replace(part, **{field.name: not value})
        elif isinstance(value, enum.Enum):
            every = list(type(value))
            other = every[(every.index(value) + 1) % len(every)]
            yield f"{field.name} {other.name}", replace(part, **{field.name: other})
        elif isinstance(value, tuple) and value and all(type(v) is int for v in value):
            for place in range(len(value)):
                new = (*value[:place], value[place] + 1, *value[place + 1 :])
                yield f"{field.name}[{place}] +1", replace(part, **{field.name: new})
        else:
            for what, changed in numbers(value):
                yield f"{field.name} {what}", replace(part, **{field.name: changed})
