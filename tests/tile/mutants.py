"""Tile programs with one thing changed: a count off by one, a statement lost, doubled or moved, a name exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from mirage_nb.ir import OpKind
from mirage_nb.tile.instructions.groups import ROWS
from mirage_nb.tile.instructions.table import INSTRUCTIONS, Place
from mirage_nb.tile.roles.program import (
    RANK,
    Combine,
    Copy,
    Count,
    Index,
    Loop,
    Map,
    Mark,
    Multicast,
    Pipeline,
    Product,
    Program,
    Read,
    Reduce,
    Release,
    Set,
    Skip,
    Statement,
    Store,
    Table,
    Tile,
    Until,
    Walk,
)

Mutant = tuple[str, Program]
STEPS = {"warps": (-4, 4), "nbytes": (-128, 128), "registers": (-128, 16)}
"""By how much a number is changed; others by one."""


def mutants(program: Program) -> Iterator[Mutant]:
    """Every program that differs from this one at one place."""
    for kind in ("axes", "roles", "tiles", "pipelines"):
        parts = getattr(program, kind)
        for place, part in enumerate(parts):
            for what, changed in _parts(part):
                yield f"{part.name}: {what}", replace(program, **{kind: (*parts[:place], changed, *parts[place + 1 :])})
    for step in (-1, 1):
        yield f"blocks {step:+}", replace(program, blocks=program.blocks + step)
        yield f"cluster {step:+}", replace(program, cluster=program.cluster + step)
    for place, (role, statements) in enumerate(program.code):
        for what, body in _bodies(program, statements):
            code = (*program.code[:place], (role, body), *program.code[place + 1 :])
            yield f"{role}: {what}", replace(program, code=code)


def _parts(part: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(part):
        value = getattr(part, field.name)
        if type(value) is int:
            for step in STEPS.get(field.name, (-1, 1)):
                yield f"{field.name} {step:+}", replace(part, **{field.name: value + step})
    if isinstance(part, Tile):
        for dim, extent in enumerate(part.shape):
            for new in (extent // 2, extent * 2):
                yield f"extent {dim} {new}", replace(part, shape=(*part.shape[:dim], new, *part.shape[dim + 1 :]))
        if len(part.axes) > 1:
            yield "axes turned", replace(part, axes=part.axes[::-1])
    if isinstance(part, Pipeline) and len(part.tiles) > 1:
        yield "a tile lost", replace(part, tiles=part.tiles[1:])


def _bodies(program: Program, body: tuple[Statement, ...]) -> Iterator[tuple[str, tuple[Statement, ...]]]:
    for place, statement in enumerate(body):
        before, behind = body[:place], body[place + 1 :]
        name = type(statement).__name__
        yield f"{name} lost", (*before, *behind)
        yield f"{name} doubled", (*before, statement, statement, *behind)
        if behind:
            yield f"{name} and {type(behind[0]).__name__} exchanged", (*before, behind[0], statement, *behind[1:])
        for what, changed in _statements(program, statement):
            yield f"{name} {what}", (*before, changed, *behind)
        if isinstance(statement, Walk | Loop | Mark):
            for what, inside in _bodies(program, statement.body):
                yield what, (*before, replace(statement, body=inside), *behind)


def _statements(program: Program, statement: Statement) -> Iterator[tuple[str, Statement]]:
    match statement:
        case Walk(counters, group):
            for place, (name, count) in enumerate(counters):
                for step in (-1, 1):
                    new = (*counters[:place], (name, count + step), *counters[place + 1 :])
                    yield f"{name} {step:+}", replace(statement, counters=new)
            yield "group 0", replace(statement, group=0)
            yield "group +1", replace(statement, group=group + 1)
        case Loop() | Mark():
            yield from _marked(statement)
        case Table(_, _, numbers):
            for place, number in enumerate(numbers):
                for step in (-1, 1):
                    changed = (*numbers[:place], number + step, *numbers[place + 1 :])
                    yield f"number {place} {step:+}", replace(statement, numbers=changed)
            yield "a number lost", replace(statement, numbers=numbers[1:])
            yield "of nobody", replace(statement, of="nobody")
        case Skip(_, start, reach):
            yield "start moved", replace(statement, start=start + Index((), 64))
            yield "reach", replace(statement, reach=None if reach else Index((), 64))
        case Release(_, behind):
            for new in (behind + 1, program.pipelines[0].stages):
                yield f"behind {new}", replace(statement, behind=new)
        case Product():
            yield "operands exchanged", replace(statement, left=statement.right, right=statement.left)
            tile = ROWS[statement.instruction]
            for other in INSTRUCTIONS.values():
                if other.m == tile.m and abs(other.n - tile.n) <= 16 and other.name != tile.name:
                    yield f"by {other.name}", replace(statement, instruction=other.name)
            for what, index in _indices(statement.row, tile.m):
                yield f"row {what}", replace(statement, row=index)
            yield "column", replace(statement, column=Index((), 8))
        case Copy(_, target, at) | Store(_, target, at):
            for dim, index in enumerate(at):
                for what, changed in _indices(index, 64):
                    yield f"at {dim} {what}", replace(statement, at=(*at[:dim], changed, *at[dim + 1 :]))
            if isinstance(statement, Copy):
                by_all = not isinstance(statement, Multicast)
                yield "by others", (Multicast if by_all else Copy)(statement.source, target, at)
                for ring in program.pipelines:
                    for other_name in ring.tiles:
                        if other_name != target:
                            yield f"to {other_name}", replace(statement, target=other_name)
        case Read(_, source, at):
            for dim, index in enumerate(at):
                for what, changed in _indices(index, 64):
                    yield f"at {dim} {what}", replace(statement, at=(*at[:dim], changed, *at[dim + 1 :]))
            for tile in program.tiles:
                if tile.place is Place.GLOBAL and tile.name != source:
                    yield f"of {tile.name}", replace(statement, source=tile.name)
        case Until(_, number, axis, at):
            yield "another number", replace(statement, number=number + 1)
            for what, changed_at in _indices(at, 64):
                yield f"at {what}", replace(statement, at=changed_at)
            for other_axis in program.axes:
                if other_axis.name != axis:
                    yield f"along {other_axis.name}", replace(statement, axis=other_axis.name)
        case Combine(_, counter):
            for other_counter in (RANK, *(name for role in program.roles for name in _counters(program, role.name))):
                if other_counter != counter:
                    yield f"over {other_counter}", replace(statement, counter=other_counter)
            yield "of nothing", replace(statement, results=())
            yield "of all tiles", replace(statement, results=tuple(t.name for t in program.tiles))
        case Reduce(_, kind, _, axis):
            yield "of another kind", replace(statement, kind=OpKind.MAX if kind is OpKind.SUM else OpKind.SUM)
            for other_axis in program.axes:
                if other_axis.name != axis:
                    yield f"along {other_axis.name}", replace(statement, axis=other_axis.name)
        case Set(result, _):
            for tile in program.tiles:
                if tile.place is Place.REGISTER and tile.name != result:
                    yield f"in {tile.name}", replace(statement, result=tile.name)
        case Count(_, _, at):
            for what, changed_at in _indices(at, 64):
                yield f"at {what}", replace(statement, at=changed_at)
        case Map(_, _, _, operands) if len(operands) == 2:
            yield "one operand", replace(statement, operands=operands[:1])
            yield "of an unknown value", replace(statement, operands=(operands[0], "nobody"))


def _marked(statement: Loop | Mark) -> Iterator[tuple[str, Statement]]:
    match statement:
        case Loop(_, count, only=only):
            for step in (-1, 1):
                yield f"{step:+}", replace(statement, count=count + step)
            if only is not None:
                yield "all of it", replace(statement, only=None)
                for what, index in _indices(only.at, 1):
                    yield f"mark {what}", replace(statement, only=replace(only, at=index))
        case Mark(_, _, count, sides, body, values):
            for step in (-1, 1):
                yield f"count {step:+}", replace(statement, count=count + Index((), step))
            for place, (axis, extent) in enumerate(sides):
                wider = (*sides[:place], (axis, 2 * extent), *sides[place + 1 :])
                yield f"{axis} doubled", replace(statement, sides=wider)
            yield "sides exchanged", replace(statement, sides=sides[::-1])
            for made in body:
                if made.name not in values:
                    yield f"of {made.name}", replace(statement, values=(made.name, *values[1:]))


def _counters(program: Program, role: str) -> dict[str, int]:
    return {name: count for s in program.statements(role) if isinstance(s, Walk) for name, count in s.counters}


def _indices(index: Index, unit: int) -> Iterator[tuple[str, Index]]:
    yield "moved", replace(index, const=index.const + unit)
    yield "with rank", index + Index(((RANK, unit),))
    for place, (name, factor) in enumerate(index.terms):
        rest = (*index.terms[:place], *index.terms[place + 1 :])
        yield f"without {name}", replace(index, terms=rest)
        yield f"{name} doubled", replace(index, terms=(*rest, (name, 2 * factor)))
