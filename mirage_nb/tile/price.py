"""What a tile program takes: counts that a cost model turns into time.

In: a valid tile program, a target. Out: a `Price`. Every number is read off the statements, so what is ranked and what
is printed can be held against each other.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from mirage_nb.targets import Target
from mirage_nb.tile.groups import ROWS
from mirage_nb.tile.program import Await, Copy, Loop, Product, Program, Role, Statement, Store, Walk, flat, summed_axis


@dataclass(frozen=True, slots=True)
class Price:
    """Of a whole launch: points of the walk, and turns of the block that has most of them. Of a point: steps, which
    await a stage each, and bytes that it stores. Of a step: bytes that are copied, multiply-adds, and cycles in which
    the unit of its instructions is busy. Of a block: stages of its ring, bytes of shared memory."""

    points: int
    turns: int
    steps: int
    stored: int
    copied: int
    multiplied: int
    cycles: float
    stages: int
    shared_bytes: int


def price(program: Program, target: Target) -> Price:
    """The price of a program on a target."""
    walks = [s for s in program.every if isinstance(s, Walk)]
    points = max((math.prod(count for _, count in walk.counters) for walk in walks), default=1)
    running = min(program.blocks, target.multiprocessors)
    multiplied, cycles, stored = 0, 0.0, 0
    for role in program.roles:
        for statement in flat(program.statements(role.name)):
            if isinstance(statement, Product):
                made = _multiplied(program, statement) * role.parts
                multiplied += made
                tile = ROWS[statement.instruction]
                cycles += made / (tile.m * tile.n * tile.k) * tile.cycles
            elif isinstance(statement, Store):
                stored += _stored(program, role, statement)
    copies = [s.target for s in program.every if isinstance(s, Copy)]
    awaited = [count for _, code in program.code for count in _steps(code).values()]
    steps = max(awaited, default=0)
    return Price(
        points,
        math.ceil(points / (running // program.cluster or 1)),
        steps,
        stored,
        sum(program.tile(name).nbytes for name in copies),
        multiplied,
        cycles,
        max((ring.stages for ring in program.pipelines), default=1),
        program.shared_bytes,
    )


def _multiplied(program: Program, product: Product) -> int:
    """Multiply-adds of one part of a role in one step."""
    left, right, result = (program.tile(name) for name in (product.left, product.right, product.result))
    return result.elements * left.shape[left.axes.index(summed_axis(left, right))]


def _stored(program: Program, role: Role, store: Store) -> int:
    """Bytes that all parts of a role store at one point."""
    held = [s.result for s in flat(program.statements(role.name)) if isinstance(s, Product)]
    return program.tile(held[0]).elements * role.parts * program.tile(store.target).dtype.size if held else 0


def _steps(statements: tuple[Statement, ...], times: int = 1) -> Counter[str]:
    """Stages of every pipeline that a role awaits at one point."""
    count: Counter[str] = Counter()
    for statement in statements:
        if isinstance(statement, Walk | Loop):
            count += _steps(statement.body, times * (statement.count if isinstance(statement, Loop) else 1))
        elif isinstance(statement, Await):
            count[statement.pipeline] += times
    return count
