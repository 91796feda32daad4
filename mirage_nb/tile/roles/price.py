"""What a tile program takes, read off its statements: what is ranked and what is printed can be compared.

In: a valid tile program. Out: points that one block has of the walk, multiply-adds at a point.
"""

from __future__ import annotations

import math
from collections import Counter

from mirage_nb.targets import Target
from mirage_nb.tile.roles.program import Await, Loop, Product, Program, Statement, Walk, flat, summed_axis


def turns(program: Program, target: Target) -> int:
    """Points of the block that has most of them."""
    walks = [s for s in program.every if isinstance(s, Walk)]
    points = max((math.prod(count for _, count in walk.counters) for walk in walks), default=1)
    running = min(program.blocks, target.multiprocessors)
    return math.ceil(points / (running // program.cluster or 1))


def multiplied(program: Program) -> int:
    """Multiply-adds at the point that needs most: the products of one iteration in every step, which awaits a stage."""
    found = 0
    for role in program.roles:
        for product in (s for s in flat(program.statements(role.name)) if isinstance(s, Product)):
            left, right, result = (program.tile(name) for name in (product.left, product.right, product.result))
            found += result.elements * left.shape[left.axes.index(summed_axis(left, right))] * role.parts
    return found * max((count for _, code in program.code for count in _steps(code).values()), default=0)


def _steps(statements: tuple[Statement, ...], times: int = 1) -> Counter[str]:
    """Stages of every pipeline that a role awaits at the point that needs most."""
    count: Counter[str] = Counter()
    for statement in statements:
        if isinstance(statement, Walk | Loop):
            count += _steps(statement.body, times * (statement.times(0) if isinstance(statement, Loop) else 1))
        elif isinstance(statement, Await):
            count[statement.pipeline] += times
    return count
