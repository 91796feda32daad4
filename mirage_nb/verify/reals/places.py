"""Inputs that only decide: whatever is made of them is compared in the end. They are drawn as whole numbers.

In: a tensor program. Out: for each such input the numbers that it is drawn from: the places of an axis, if it meets
those, and else a few around 0; and those next to constants that it meets, as a class that is left out. Of other real
numbers hardly two are equal: a mask of document numbers would be a diagonal, a class would be none, and a kernel that
has such a mask wrong would be right. Invariant: an input that meets values of another kind (a threshold) is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.ir import COMPARISONS, OPS, ConstAttrs, KernelGraph, Op, OpKind, Trait
from mirage_nb.ir.ops import ArangeAttrs
from mirage_nb.verify.fields.indices import compares, indices

FEW = 4
"""Whole numbers on either side of 0, where no axis says how many."""
SHARE = 0.25
"""Of the elements, those that are constants or next to one."""
MOST = 2**22 - 3
"""At most so many numbers are drawn, and then again and again: a prime, so that no two rows are alike."""


@dataclass(frozen=True, slots=True)
class Places:
    """Whole numbers from `least` on, and below `below`; `also`: others."""

    below: int
    least: int = 0
    also: tuple[int, ...] = ()

    def drawn(
        self, rng: np.random.Generator, shape: tuple[int, ...], *, runs: bool = False, between: bool = False
    ) -> NDArray[np.float32]:
        """An array of them, the last one of an axis among them. `runs`: equal ones may lie side by side, as documents
        do: whole tiles are masked then, and whole rows may be; and a length for all is any one. `between`: what lies
        between them, where they are around 0, tells a kernel that rounds what it compares, or compares with another
        constant; and some of what should be places of an axis are none, as padding is."""
        count = min(math.prod(shape), MOST)
        found: NDArray[Any] = rng.integers(self.least, self.below, count)
        if self.also:
            found = np.where(rng.random(count) < SHARE, rng.choice(self.also, count), found)
        if count > 1 or not runs:
            found[rng.integers(count)] = self.below - 1
        if runs and rng.random() < 0.5:
            found.sort()
        if between and self.least < 0:
            found = found + rng.uniform(-0.5, 0.5, count)
        elif between:
            found = np.where(rng.random(count) < SHARE / 2, rng.choice((-1, self.below, 2 * self.below), count), found)
        return np.resize(found.astype(np.float32), shape)


@dataclass(slots=True)
class _Met:
    """Values that meet: inputs, extents of axes, and constants; `others`: anything else."""

    names: set[str] = field(default_factory=set)
    extents: set[int] = field(default_factory=set)
    constants: set[Fraction] = field(default_factory=set)
    others: bool = False

    def join(self, other: _Met) -> None:
        """Take in what the other one has."""
        self.names |= other.names
        self.extents |= other.extents
        self.constants |= other.constants
        self.others |= other.others


OTHERS = _Met(others=True)


def places(program: KernelGraph) -> dict[str, Places]:
    """The inputs that are drawn as whole numbers, by their names."""
    known = indices(program)
    found: dict[str, Places] = {}
    for met in _meetings(program):
        for name in met.names:
            if name in known:
                classes = (c.numerator for c in met.constants if c.denominator == 1)
                found[name] = Places(known[name], also=tuple(sorted({*classes} - {*range(known[name])})))
            elif not met.others:
                below, least = (max(met.extents) + 1, 0) if met.extents else (FEW, -FEW)
                found[name] = Places(below, least, tuple(sorted(_around(met.constants))))
    return {i.name: found[i.name] for i in program.inputs if i.name in found}


def _around(constants: Iterable[Fraction]) -> set[int]:
    """Whole numbers on either side of constants, these among them."""
    return {n for c in constants for n in range(math.ceil(c) - 1, math.floor(c) + 2)}


def _meetings(program: KernelGraph) -> Iterator[_Met]:
    """Which inputs that only decide meet, and what else they do."""
    decide = _deciding(program)
    held = {v: _Met({i.name}) for v, i in enumerate(program.inputs) if v in decide and i.type.shape}
    alone: dict[int, _Met] = {}
    groups = [*held.values()]
    for op, (value, *_) in program.definitions():
        if not op.inputs or all(v in alone for v in op.inputs):
            alone[value] = _numbers(op, alone)
            continue
        ours = [held[v] for v in op.inputs if v in held] if value in decide or _compares(op) else []
        if not ours:
            continue
        first, *rest = ours
        for met in (alone.get(v, OTHERS) for v in op.inputs if v not in held):
            turned = {-c for c in met.constants} if op.kind is OpKind.ADD else met.constants  # x - 3 is x + -3
            first.join(replace(met, constants=turned))
        for other in rest:
            if other is not first:
                first.join(other)
                groups = [met for met in groups if met is not other]
                held = {v: first if met is other else met for v, met in held.items()}
        if value in decide:
            held[value] = first
    yield from groups


def _numbers(op: Op, alone: dict[int, _Met]) -> _Met:
    """What a value that no input makes is made of."""
    made = _Met()
    match op.attrs:
        case ArangeAttrs(extent=extent):
            made.extents.add(extent)
        case ConstAttrs(value=value):
            made.constants.add(value)
    for v in op.inputs:
        made.join(alone[v])
    return made


def _deciding(program: KernelGraph) -> set[int]:
    """Values that are read, and reach no output but through a comparison."""
    uses, found = program.uses(), set[int]()
    made = [values for _, values in program.definitions()]
    for value in reversed(range(len(program.types))):
        readers = [(program.ops[number], made[number]) for number in uses[value]]
        if readers and value not in program.outputs:
            if all(_compares(op) or (_carries(op) and found.issuperset(values)) for op, values in readers):
                found.add(value)
    return found


def _compares(op: Op) -> bool:
    """Whether an operator only compares."""
    return op.kind in COMPARISONS or compares(op.attrs)


def _carries(op: Op) -> bool:
    """Whether an operator makes elements of elements, or moves them."""
    return bool(OPS[op.kind].traits & {Trait.ELEMENTWISE, Trait.VIEW})
