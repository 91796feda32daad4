"""What terms are worth: float64 values of proof terms, for given extents of axis parts, inputs and constants.

A reading of terms of its own, by brute force over all indices: what translation, axioms and steps are held against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.ir import KernelGraph
from mirage_nb.verify.proof.axes import Part, Scope, leaves, scoped
from mirage_nb.verify.proof.terms import BINDERS, INSIDE, Digit, Kind, Term, Var, opened
from mirage_nb.verify.proof.translate import Goal

Array = NDArray[np.float64]
Value = tuple[tuple[Var, ...], Array]
"""An array with one dimension for each of these indices."""


@dataclass
class World:
    """Extents of axis parts, arrays, constants and functions."""

    extents: Mapping[str, int]
    arrays: Mapping[str, Array] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    functions: Mapping[str, Callable[..., Array]] = field(default_factory=dict)
    layouts: Mapping[str, Sequence[Sequence[Part]]] = field(default_factory=dict)
    """For every input the parts of its dimensions, which say how long the sides of concatenated axes are."""

    def value(self, term: Term, indices: tuple[Var, ...]) -> Array:
        """The term as an array over these indices."""
        with np.errstate(all="ignore"):
            found = self._aligned(self._value(term, {}), indices)
        return np.array(np.broadcast_to(found, [self.extents[sort] for sort, _ in indices]))

    def _value(self, term: Term, memo: dict[Term, Value]) -> Value:
        if term not in memo:
            memo[term] = self._fresh(term, memo)
        return memo[term]

    def _fresh(self, term: Term, memo: dict[Term, Value]) -> Value:
        match term.kind:
            case Kind.NUM:
                return (), self._number(term.data)
            case Kind.SYM:
                name = term.data[0]
                return (), np.asarray(float(self.extents[name[1:-1]] if name[0] == "|" else self.constants[name]))
            case Kind.IN:
                return self._element(term)
        if term.kind in BINDERS:
            return self._bound(term, memo)
        indices = tuple(sorted(term.free))
        args = [self._aligned(self._value(arg, memo), indices) for arg in term.args]
        match term.kind:
            case Kind.ADD:
                return indices, self._reduced(np.asarray(sum(args)))
            case Kind.MUL:
                product = args[0]
                for arg in args[1:]:
                    product = self._reduced(product * arg)
                return indices, np.asarray(product)
            case Kind.TOP:
                return indices, np.asarray(np.maximum.reduce(np.broadcast_arrays(*args)))
            case Kind.FN:
                return indices, np.asarray(self.functions[term.data](*args))
        return indices, np.asarray(self._applied(term.kind, args[0]))

    def _number(self, value: Fraction) -> Array:
        return np.asarray(float(value))

    def _reduced(self, value: Array) -> Array:
        return value

    def _applied(self, kind: Kind, value: Array) -> Array:
        return {Kind.INV: lambda x: 1 / x, Kind.EXP: np.exp, Kind.SQRT: np.sqrt}[kind](value)

    def _bound(self, term: Term, memo: dict[Term, Value]) -> Value:
        inside, args = opened(term)
        outside = tuple(sorted(term.free))
        shape = [self.extents[sort] for sort, _ in inside]
        values = []
        for arg in args:
            value = self._aligned(self._value(arg, memo), (*outside, *inside))
            values.append(np.broadcast_to(value, (*value.shape[: len(outside)], *shape)))
        axes = tuple(range(-len(inside), 0))
        if term.kind is Kind.MAX:
            return outside, values[0].max(axis=axes)
        if term.kind is Kind.WITHIN:
            largest = np.where(values[1] != 0, values[0], -np.inf).max(axis=axes)
            return outside, np.where(np.isneginf(largest), 0.0, largest)
        if term.kind is Kind.RESCALED:
            weight = np.exp(values[1] - values[1].max(axis=axes, keepdims=True))
            return outside, (values[0] * weight).sum(axis=axes)
        return outside, self._reduced(values[0].sum(axis=axes))

    def _element(self, term: Term) -> Value:
        name, index = term.data
        indices = tuple(sorted(term.free))
        array = self.arrays[name]
        layout = self.layouts.get(name, [None] * len(index))
        places = [self.place(digits, indices, *of) for digits, *of in zip(index, array.shape, layout, strict=True)]
        return indices, np.asarray(array[tuple(np.broadcast_arrays(*places))] if places else array)

    def place(
        self, digits: tuple[Digit, ...], indices: tuple[Var, ...], extent: int, parts: Sequence[Part] | None = None
    ) -> Any:
        """The positions in a dimension that digits stand for; without its parts at most one of the digits is a side
        of a concatenated axis, and of none that is concatenated of others."""
        if parts is not None:
            return self._placed(digits, indices, parts)
        position: Any = np.zeros((1,) * len(indices), int)
        plain = math.prod(self.extents[digit[0]] for digit in digits if not isinstance(digit[1], tuple))
        for digit in digits:
            if isinstance(digit[1], tuple):
                own = extent // plain
                inside = math.prod(self.extents[sort] for sort, _ in digit[1])
                step = self.place(digit[1], indices, inside) + (own - inside if digit[0] == "R" else 0)
            else:
                own = self.extents[digit[0]]
                step = np.arange(own).reshape([own if var == digit else 1 for var in indices])
            position = position * own + step
        return position

    def _placed(self, digits: tuple[Digit, ...], indices: tuple[Var, ...], parts: Sequence[Part]) -> Any:
        position: Any = np.zeros((1,) * len(indices), int)
        for digit, leaf in zip(digits, leaves(parts), strict=True):
            if leaf.tiles is not None:  # the last element stands for those beyond the end
                step = np.minimum(self._placed(digit[1], indices, leaf.tiles), leaf.size - 1)
            elif leaf.sides is None:
                step = np.arange(leaf.size).reshape([leaf.size if var == digit else 1 for var in indices])
            else:
                left, right = leaf.sides
                own, start = (left, 0) if digit[0] == "L" else (right, math.prod(part.size for part in left))
                step = self._placed(digit[1], indices, own) + start
            position = position * leaf.size + step
        return position

    def output(self, goals: Sequence[Goal], shape: tuple[int, ...]) -> Array:
        """The array whose elements at their indices are the left sides of the goals, where these are inside."""
        parts = self.layouts.get("", [None] * len(shape))
        found = np.full(shape, np.nan)
        for goal in goals:
            indices = tuple(sorted(_plain(goal.index), key=lambda var: -var[1]))
            places = [self.place(digits, indices, *of) for digits, *of in zip(goal.index, shape, parts, strict=True)]
            values = (self.value(term, indices) for term in (goal.left, goal.inside))
            value, inside, *at = np.broadcast_arrays(*values, *places)
            found[tuple(place[inside != 0] for place in at)] = value[inside != 0] if at else value
        return found

    def with_ends(self, parts: Iterable[Part]) -> World:
        """With arrays of what tells elements of tiles inside an axis from those beyond its end."""
        names = {INSIDE + part.name: part for part in parts if part.tiles is not None}
        tiles = {name: part.tiles or [] for name, part in names.items()}
        covered = {name: math.prod(leaf.size for leaf in leaves(own)) for name, own in tiles.items()}
        ends = {name: np.where(np.arange(covered[name]) < part.size, 1.0, 0.0) for name, part in names.items()}
        layouts = {**self.layouts, **{name: [own] for name, own in tiles.items()}}
        return replace(self, arrays={**self.arrays, **ends}, layouts=layouts)

    def _aligned(self, value: Value, indices: tuple[Var, ...]) -> Array:
        own, array = value
        order = sorted(range(len(own)), key=lambda i: indices.index(own[i]))
        moved = np.transpose(array, order)
        extents = iter(moved.shape)
        return moved.reshape([next(extents) if var in own else 1 for var in indices])


@dataclass
class FieldWorld(World):
    """The same over Z_p, with exponents over Z_q: what field trials compute. Arrays hold whole numbers."""

    modulus: int = 1019
    exponents: FieldWorld | None = None
    root: int = 4

    def _fresh(self, term: Term, memo: dict[Term, Value]) -> Value:
        if term.kind is Kind.EXP:
            assert self.exponents is not None, "a second exponential"
            indices, power = self.exponents._value(term.args[0], {})
            return indices, np.vectorize(lambda x: pow(self.root, int(x), self.modulus))(power)
        indices, found = super()._fresh(term, memo)
        return indices, self._reduced(found)

    def _number(self, value: Fraction) -> Array:
        return np.asarray(value.numerator * pow(value.denominator, -1, self.modulus) % self.modulus)

    def _reduced(self, value: Array) -> Array:
        return np.asarray(value) % self.modulus

    def _applied(self, kind: Kind, value: Array) -> Array:
        assert kind is Kind.INV
        return np.vectorize(lambda x: pow(int(x), -1, self.modulus))(value)


def _plain(index: Iterable[tuple[Digit, ...]]) -> Iterator[Var]:
    for digits in index:
        for digit in digits:
            if isinstance(digit[1], tuple):
                yield from _plain([digit[1]])
            else:
                yield digit


def part_extents(program: KernelGraph, mugraph: KernelGraph, outputs: tuple[int, ...]) -> dict[str, int]:
    """The extents that the parts of all axes have in two graphs, by name."""
    found: dict[str, int] = {}

    def note(parts: list[Part]) -> None:
        for leaf in leaves(parts):
            if leaf.sides is leaf.tiles is None:
                found[leaf.name] = leaf.size
            for inner in (*(leaf.sides or ()), leaf.tiles or ()):
                note(inner)

    waiting: list[Scope] = list(scoped(program, mugraph, outputs))
    while waiting:
        scope = waiting.pop()
        for parts in (*scope.grid, scope.loop, *(parts for dims in scope.dims for parts in dims)):
            note(parts)
        waiting += scope.inner.values()
    return found
