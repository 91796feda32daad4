"""What is wrong with the shape of a tile program's code: walks, loops and their counters, what is computed for nobody.

In: a tile program whose declarations fit. Out: findings in words. Nothing is followed here, statements are only looked
at: `tile.roles.flow` takes what is asked here for granted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from mirage_nb.tile.roles.program import (
    PART,
    RANK,
    SAID,
    Await,
    Combine,
    Count,
    Loop,
    Map,
    Mark,
    Number,
    Program,
    Read,
    Reduce,
    Release,
    Set,
    Statement,
    Store,
    Table,
    Until,
    Walk,
    flat,
)


def misshapen(program: Program) -> Iterator[str]:
    """All findings."""
    walks: set[Walk | None] = set()
    for role, statements in program.code:
        outer = [s for s in statements if isinstance(s, Walk)]
        if len(outer) != sum(isinstance(s, Walk) for s in flat(statements)) or len(outer) > 1:
            yield f"{role}: {len(outer)} walks"
        walks.update(replace(walk, body=()) for walk in outer)
        if not outer:
            walks.add(None)
        yield from _bodies(role, statements, {PART, RANK})
        yield from _combined(role, statements)
    if len(walks) > 1:
        yield "the roles walk differently"
    for walk in walks:
        if walk is None:
            continue
        counts = dict(walk.counters)
        rows = walk.counters[-2][1] if len(walk.counters) > 1 else 1
        if len(counts) < len(walk.counters) or min(counts.values(), default=1) < 1:
            yield f"walk over {walk.counters}"
        elif not SAID.isdisjoint(counts):
            yield f"counters {sorted(SAID & counts.keys())} are called as what a kernel calls its own"
        elif not 1 <= walk.group <= max(rows, 1):
            yield f"groups of {walk.group} of {rows} rows"
    for role, statements in program.code:
        inside = tuple(flat(statements))
        used = {name for s in inside for name in _used(s)}
        made = [s.name for s in inside if isinstance(s, Number | Read | Count | Until | Map | Reduce)]
        for name, count in Counter(made).items():
            if name not in used or count > 1:
                yield f"{role}: {name} is computed {count} times, and {'' if name in used else 'not '}used"
    for name in program.outputs:
        stores = program.stores(name)
        starts = {tuple(index.const for index in store.at) for _, store in stores}
        if not stores or len({role for role, _ in stores}) < len(stores) or len(starts) < len(stores):
            yield f"output {name} is stored by {len(stores)} statements"


def _combined(role: str, statements: tuple[Statement, ...]) -> Iterator[str]:
    """Combining that stands elsewhere than in front of all that is computed of the sums, where some points end."""
    body = (s for walk in statements if isinstance(walk, Walk) for s in walk.body)
    behind = itertools.dropwhile(lambda s: not isinstance(s, Combine), body)
    rest = [s for s in behind if not isinstance(s, Number | Read | Count | Until | Map | Reduce | Set | Store)]
    if rest != [s for s in flat(statements) if isinstance(s, Combine)] or len(rest) > 1:
        yield f"{role}: sums are combined inside a loop, several times, or before all is there"


def _used(statement: Statement) -> tuple[str, ...]:
    """The values that a statement computes with."""
    match statement:
        case Map():
            return statement.operands
        case Reduce():
            return (statement.operand,)
        case Set() | Store():
            return (statement.value,)
        case Mark():
            return statement.values
        case _:
            return ()


def _bodies(role: str, statements: tuple[Statement, ...], running: set[str], *, walked: bool = False) -> Iterator[str]:
    """Loops whose counters run already, and those that hand back other stages than they await; walked: they stand in
    the body of a walk."""
    for statement in statements:
        if isinstance(statement, Table):
            if statement.counter in running | SAID or not walked:
                yield f"{role}: a table for {statement.counter}, which is a counter already, or not at a point"
            running = running | {statement.counter}
            continue
        if isinstance(statement, Walk):
            names = {name for name, _ in statement.counters}
        elif isinstance(statement, Loop):
            names = {statement.counter}
            if statement.count < 1 and not statement.more.terms:
                yield f"{role}: loop of {statement.count}"
            if {PART, RANK} & {name for name, _ in statement.more.terms}:
                yield f"{role}: loop that is longer for some groups or blocks"
            awaited = sorted(s.pipeline for s in statement.body if isinstance(s, Await))
            released = sorted(s.pipeline for s in statement.body if isinstance(s, Release))
            if awaited != released or len(set(awaited)) < len(awaited):
                yield f"{role}: an iteration awaits {awaited} and hands back {released}"
        else:
            continue
        if names & running:
            yield f"{role}: counters {sorted(names)} run already"
        yield from _bodies(role, statement.body, running | names, walked=isinstance(statement, Walk))
