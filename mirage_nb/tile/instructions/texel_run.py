"""Runs a texel as the card would: elements into registers, instructions on registers, registers into elements.

In: a texel, two operands, an algebra of numbers: floats, or pairs of residues (`interp`). Out: the product; of
a composition (`precision`), what its roundings make of it. Nothing here knows what a texel is meant to compute: which
registers an instruction multiplies is what its canonical texel says, where elements lie is what the texel says. So what
runs right has the right maps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_nb.ir import DimAttrs, OpKind
from mirage_nb.tile.instructions.precision import Array, Composition, summed
from mirage_nb.tile.instructions.texels import AXES, HAS, LANES, Point, Spread, Texel, instances
from mirage_nb.tile.roles.run import Algebra

T = TypeVar("T")
Indices = NDArray[np.int64]
Move = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the instructions of a texel do with registers, which are numbered through. elements: for left, right and
    result, the coordinates of every register. operands: for each, the register of every multiply-add."""

    elements: tuple[Indices, Indices, Indices]
    operands: tuple[Indices, Indices, Indices]


def registers_of(texel: Texel, name: str) -> Indices:
    """The coordinates of every register [warp, lane, register] of an operand; of one in shared memory, of every
    element of it."""
    spread: Spread | None = getattr(texel, name)
    if spread is None:
        extents = [e if axis in HAS[name] else 1 for axis, e in zip(AXES, texel.extents, strict=True)]
        return np.array(list(itertools.product(*map(range, extents))), np.int64)
    return np.array(
        [spread.point(w, lane, r) for w in range(texel.warps) for lane in range(LANES) for r in range(spread.count)],
        np.int64,
    )


@lru_cache(maxsize=256)
def wiring(texel: Texel) -> Wiring:
    """What is multiplied with what."""
    source = texel.source
    triples = _triples(source)
    operands: list[list[Indices]] = [[], [], []]
    elements = tuple(registers_of(texel, name) for name in HAS)
    for instance in instances(texel):
        for block in range(texel.warps // source.warps):
            for number, name in enumerate(HAS):
                spread = getattr(texel, name)
                if spread is None and len(registers_of(source, name)) != len(elements[number]):
                    raise ValueError("operands in shared memory are not repeated")
                count = 1 if spread is None else spread.count
                slots = triples[number]
                first = getattr(instance, name)
                lines = slots[:, 0] + block * source.warps * LANES
                operands[number].append(lines * count + slots[:, 1] + first)
    left, right, result = (np.concatenate(found) for found in operands)
    return Wiring((elements[0], elements[1], elements[2]), (left, right, result))


def _triples(source: Texel) -> tuple[Indices, ...]:
    """For left, right and result of a canonical texel: lane (of all warps) and register of every multiply-add."""
    found: list[Indices] = []
    for name in HAS:
        spread: Spread | None = getattr(source, name)
        count = 1 if spread is None else spread.count
        places: dict[Point, tuple[int, int]] = {}
        for number, at in enumerate(registers_of(source, name)):
            places.setdefault(tuple(int(x) for x in at), divmod(number, count))
        every = itertools.product(*map(range, source.extents))
        keys = (tuple(x if axis in HAS[name] else 0 for axis, x in zip(AXES, at, strict=True)) for at in every)
        found.append(np.array([places[key] for key in keys], np.int64))
    return tuple(found)


def multiplies(texel: Texel) -> Indices:
    """The point (i, j, k, b) of every multiply-add. Raises ValueError where operands of one disagree about it."""
    wired = wiring(texel)
    points = [at[taken] for at, taken in zip(wired.elements, wired.operands, strict=True)]
    for number, axis in enumerate(AXES):
        having = [p[:, number] for p, name in zip(points, HAS, strict=True) if axis in HAS[name]]
        if any((other != having[0]).any() for other in having[1:]):
            raise ValueError(f"operands of {texel.extents} meet at different {axis}")
    left, right, _ = points
    return np.stack([left[:, 0], right[:, 1], left[:, 2], left[:, 3]], axis=1)


def run_texel(texel: Texel, left: T, right: T, algebra: Algebra[T]) -> T:
    """The product [b, i, j] of left [b, i, k] and right [b, k, j]."""
    moves = _moves(texel)
    pairs = (algebra.view(left, moves[0]), algebra.view(right, moves[1]))
    made = algebra.apply(OpKind.MUL, pairs, None, 0)
    sums = algebra.apply(OpKind.SUM, (made,), DimAttrs(1), 0)
    return algebra.view(sums, lambda array: moves[2](array[:, 0]))


def run_composed(texel: Texel, left: Array, right: Array, composition: Composition) -> Array:
    """The products [..., b, i, j] of left [..., b, i, k] and right [..., b, k, j], rounded as the card rounds."""
    to_left, to_right, from_result = _moves(texel)
    return from_result(summed(to_left(left), to_right(right), composition, texel.source.k))


def _moves(texel: Texel) -> tuple[Move, Move, Move]:
    """From elements of left and of right to multiply-adds [result register, in order]; from sums to elements."""
    wired = wiring(texel)
    a, b, d = wired.elements
    of_left, of_right, of_result = wired.operands
    order = np.argsort(of_result, kind="stable").reshape(len(d), -1)
    a, b = a[of_left[order]], b[of_right[order]]
    m, n, _, batch = texel.extents
    place = np.empty((batch, m, n), np.int64)
    place[d[:, 3], d[:, 0], d[:, 1]] = np.arange(len(d))
    return (
        lambda array: array[..., a[..., 3], a[..., 0], a[..., 2]],
        lambda array: array[..., b[..., 3], b[..., 2], b[..., 1]],
        lambda array: array[..., place],
    )
