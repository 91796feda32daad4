"""Resident programs with one thing changed: a number off by one, a statement lost, doubled or moved, another name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from mirage_nb.tile.resident.program import Depend, Each, Fold, Forget, ResidentProgram, Running, Save, Task
from mirage_nb.tile.roles.program import flat
from tests.tile.staged_mutants import bodies, numbers

Mutant = tuple[str, ResidentProgram]
NAMES = ("result", "top")


def mutants(program: ResidentProgram) -> Iterator[Mutant]:
    """Every program that differs from this one at one place."""
    for what, layout in numbers(program.layout):
        yield f"layout: {what}", replace(program, layout=layout)
    for value, form in enumerate(program.forms):
        for place, extent in enumerate(form):
            for other in {1, extent + 1, *form} - {extent}:
                changed = (*form[:place], other, *form[place + 1 :])
                forms = (*program.forms[:value], changed, *program.forms[value + 1 :])
                yield f"form of %{value} [{place}] {other}", replace(program, forms=forms)
    for step in (-1, 1):
        yield f"scratch {step:+}", replace(program, scratch=program.scratch + step)
    for what, code in bodies(program.code):
        yield what, replace(program, code=code)
    names = sorted({getattr(s, "result", "") for s in flat(program.code)})
    for what, code in _each(program.code, names):
        yield what, replace(program, code=code)


def _each(body: tuple[Any, ...], names: list[str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """With another name in one statement, an element less, a reduction by each thread alone."""
    for place, statement in enumerate(body):
        changed = [*_inside(statement, names)]
        if isinstance(statement, Each | Task):
            changed = [(what, replace(statement, body=inside)) for what, inside in _each(statement.body, names)]
        for what, other in changed:
            yield what, (*body[:place], other, *body[place + 1 :])


def _inside(statement: Any, names: list[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(statement, Depend):
        return
    kind = type(statement).__name__
    for field in fields(statement):
        if field.name in NAMES:
            for other in names:
                yield f"{kind} {field.name} {other}", replace(statement, **{field.name: other})
    match statement:
        case Fold(combine=combine) | Running(combine=combine) if combine is not None:
            yield f"{kind} alone", replace(statement, combine=None)
        case Save(parts=parts):
            yield f"{kind} less", replace(statement, parts=parts[1:])
        case Forget(values):
            yield f"{kind} less", replace(statement, values=values[1:])
