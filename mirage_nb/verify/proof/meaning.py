"""What the terms of a translation mean, held against the walk over the graphs that the interpreters share.

In: a translation. Out: nothing, or a ProofError. Both graphs are run by `interp.run`, and the terms are evaluated
here, on the same random residues modulo a prime: sums and products are those of the field, everything else (roots,
exponentials, functions, unknown constants) is a random function with a fresh key, the largest of several is that of
their residues. All of this is total and exact, so every element of every output has to be the same. Terms that are
not what the graph computes differ but with a probability of about 2^-30 for each operator, whoever wrote the graphs.

The walk and the views are the interpreters' own, and nothing here is of `translate`. Large graphs are run with every
part of every axis small (`shrunk`): terms know no extents.
"""

from __future__ import annotations

import functools
import hashlib
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import GraphError, ProofError
from mirage_nb.interp import arrays
from mirage_nb.interp.constants import root_of
from mirage_nb.interp.run import run_outputs
from mirage_nb.interp.undrawn import GOLDEN, scatter
from mirage_nb.ir import COMPARISONS, AccumKind, ConstAttrs, DimAttrs, OpKind, PowAttrs, WhereAttrs
from mirage_nb.ir.ops import Attrs
from mirage_nb.verify.proof.axes import Part, leaves, plain_parts
from mirage_nb.verify.proof.functions import MAX_POWER, square_roots
from mirage_nb.verify.proof.masked import Masked, logarithm, of_masked, raised, real
from mirage_nb.verify.proof.picked import as_given
from mirage_nb.verify.proof.shrunk import Sizes, shrunk
from mirage_nb.verify.proof.terms import BINDERS, INSIDE, Digit, Kind, Term, Var, opened, spend
from mirage_nb.verify.proof.translate import LARGEST_NUMERAL, Translation

Residues = NDArray[np.int64]
MOVED = frozenset({OpKind.CONCAT, OpKind.REPEAT, OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.CAST})
"""Operators that move numbers, whatever they are."""
Value = tuple[tuple[Var, ...], Residues]
"""An array with one dimension for each of these indices."""
Held = Residues | Masked[Residues]
"""What a value of a graph is."""

PRIME = 2**31 - 1
MOST = 2**20
"""Values of a term that are held at once."""
GRAIN = 32
"""Values that count as one unit of work."""


def hold(translation: Translation) -> None:
    """Raise ProofError unless the terms of every goal have the values of the graphs' outputs."""
    translation = as_given(translation)
    sizes, graphs = shrunk(translation)
    algebra = Algebra(secrets.token_bytes(16), translation.literal)
    given = {i.name: algebra.drawn(i.name, i.type.shape) for i in graphs[0].inputs}
    world = _World(algebra, sizes, given, translation)
    for graph, scope, side in zip(graphs, translation.scopes, ("left", "right"), strict=True):
        found = run_outputs(graph, [given[i.name] for i in graph.inputs], algebra)
        for number, other in enumerate(translation.outputs):
            output = number if side == "left" else other
            shape = graph.output_types[output].shape
            layout = scope.dims[graph.outputs[output]]
            own = [goal for goal in translation.goals if goal.output == number]
            goals = [(goal.index, getattr(goal, side), goal.inside) for goal in own]
            there = algebra.finite(found[output]) if side == "right" else real(found[output])
            if not np.array_equal(world.output(goals, shape, layout), np.broadcast_to(there, shape)):
                which = "program" if side == "left" else "muGraph"
                raise ProofError(f"the terms of output {number} are not what the {which} computes there")


def _inverse(value: Residues) -> Residues:
    """One over the residue, and 0 for 0."""
    found, power = np.ones_like(value), value
    for bit in range((PRIME - 2).bit_length()):
        if (PRIME - 2) >> bit & 1:
            found = found * power % PRIME
        power = power * power % PRIME
    return found


def _number(value: Fraction) -> int:
    if value.denominator % PRIME == 0:
        raise ProofError("a constant that is one over a multiple of 2^31 - 1")
    return value.numerator * pow(value.denominator, -1, PRIME) % PRIME


@dataclass(frozen=True, slots=True)
class Algebra:
    """Residues with random functions; the methods `apply`, `view`, `fold` and `join` are those of `run.Algebra`."""

    key: bytes
    literal: bool

    def function(self, name: object, *args: Residues) -> Residues:
        """A random function of its arguments, another one for every name."""
        seed = hashlib.blake2b(repr(name).encode(), key=self.key, digest_size=8).digest()
        mixed: NDArray[np.uint64] = np.asarray(int.from_bytes(seed, "big"), np.uint64)
        with np.errstate(over="ignore"):
            for arg in args:
                mixed = scatter((mixed ^ arg.astype(np.uint64)) * GOLDEN)
        return (mixed % np.uint64(PRIME)).astype(np.int64)

    def finite(self, value: Held) -> Residues:
        """A value that is not minus infinity."""
        if not isinstance(value, Masked):
            return value
        return (value.shift + self.function("log", value.weight)) % PRIME

    def drawn(self, name: str, shape: tuple[int, ...]) -> Residues:
        """The elements of an input."""
        return self.function(("input", name), np.arange(math.prod(shape)).reshape(shape))

    def unknown(self, key: object) -> int:
        """A constant that stands for any."""
        return int(self.function(("constant", key)))

    def exp(self, value: Residues) -> Residues:
        return np.where(value == 0, 1, self.function("exp", value))

    def power(self, value: Residues, exponent: Fraction) -> Residues:
        """Whole and half powers are products of the number, its root and their inverses; others are functions."""
        if exponent.denominator > 2 or abs(exponent) > MAX_POWER:
            return self.function("Pow", value, np.asarray(_number(exponent)))
        found = self.function("sqrt", value) if exponent.denominator == 2 else np.ones_like(value)
        for _ in range(math.floor(abs(exponent))):
            found = found * value % PRIME
        return found if exponent > 0 else _inverse(found)

    def apply(self, kind: OpKind, operands: Sequence[Held], attrs: Attrs | None, batch: int) -> Held:
        infinite = isinstance(attrs, WhereAttrs) and attrs.infinite != 0
        if infinite or any(isinstance(x, Masked) for x in operands):
            return self._masked(kind, operands, attrs, batch)
        return self._real(kind, [real(x) for x in operands], attrs, batch)

    def _masked(self, kind: OpKind, operands: Sequence[Held], attrs: Attrs | None, batch: int) -> Held:
        """An operator where something may be minus infinity."""
        if kind in MOVED:
            return _each(lambda *parts: self._real(kind, parts, attrs, batch), *operands)
        rank = arrays.tile_rank([_parts(x).shift for x in operands], batch)
        aligned = [_each(lambda part: arrays.align(part, rank, batch), x) for x in operands]
        match kind, attrs:
            case OpKind.MAX, DimAttrs(dim):
                largest = np.asarray(raised(aligned[0], self).max(axis=dim + batch, keepdims=True))
                return _whole(logarithm(largest, self))
            case OpKind.RESCALED_SUM, DimAttrs(dim):
                weight = raised(aligned[1], self)
                return self._weighted(real(aligned[0]), weight, dim + batch)
        return _whole(of_masked(kind, attrs, aligned, self))

    def _weighted(self, x: Residues, weight: Residues, axis: int) -> Residues:
        """A rescaled sum: the weights are by the largest of them."""
        share = weight * _inverse(np.asarray(weight.max(axis=axis, keepdims=True))) % PRIME
        return np.asarray((x * share % PRIME).sum(axis=axis, keepdims=True) % PRIME)

    def number(self, value: int) -> Residues:
        return np.asarray(value)

    def add(self, a: Residues, b: Residues) -> Residues:
        return (a + b) % PRIME

    def mul(self, a: Residues, b: Residues) -> Residues:
        return a * b % PRIME

    def neg(self, a: Residues) -> Residues:
        return -a % PRIME

    def inv(self, a: Residues) -> Residues:
        return _inverse(a)

    def larger(self, a: Residues, b: Residues) -> Residues:
        return np.maximum(a, b)

    def chosen(self, condition: Residues, value: Residues, other: Fraction) -> Residues:
        return self.function((OpKind.WHERE.value, WhereAttrs(other)), condition, value)

    def _real(self, kind: OpKind, operands: Sequence[Residues], attrs: Attrs | None, batch: int) -> Residues:
        match kind, attrs:
            case OpKind.CONST, ConstAttrs():
                return np.full((1,) * batch, self._constant(attrs))
            case OpKind.CONCAT, DimAttrs(dim):
                return arrays.concat(operands, dim, batch)
            case ((OpKind.REPEAT | OpKind.RESHAPE | OpKind.TRANSPOSE), _):
                move = {
                    OpKind.REPEAT: arrays.repeat, OpKind.RESHAPE: arrays.reshape, OpKind.TRANSPOSE: arrays.transpose,
                }[kind]  # fmt: skip
                return move(operands[0], attrs, batch)
        aligned = arrays.aligned(operands, batch)
        match kind, attrs:
            case OpKind.MATMUL, _:
                return _product(aligned[0], aligned[1])
            case OpKind.CONCAT_MATMUL, _:
                w, x, y, z = aligned
                return (_product(w, y) + _product(x, z)) % PRIME
            case OpKind.SUM, DimAttrs(dim):
                return np.asarray(aligned[0].sum(axis=dim + batch, keepdims=True) % PRIME)
            case OpKind.MAX, DimAttrs(dim):
                return np.asarray(aligned[0].max(axis=dim + batch, keepdims=True))
            case OpKind.RESCALED_SUM, DimAttrs(dim):
                x, m = np.broadcast_arrays(*aligned)
                return self.rescaled(x, m, dim + batch)
            case OpKind.POW, PowAttrs(exponent):
                return self.power(aligned[0], exponent)
        return self._elementwise(kind, attrs, aligned)

    def _elementwise(self, kind: OpKind, attrs: Attrs | None, operands: Sequence[Residues]) -> Residues:
        first, second = operands[0], operands[-1]
        match kind:
            case OpKind.ADD:
                return (first + second) % PRIME
            case OpKind.SUB:
                return (first - second) % PRIME
            case OpKind.MUL:
                return first * second % PRIME
            case OpKind.SQR:
                return first * first % PRIME
            case OpKind.DIV:
                return first * _inverse(second) % PRIME
            case OpKind.EXP:
                return self.exp(first)
            case OpKind.MAXIMUM:
                return np.maximum(first, second)
            case _ if kind in COMPARISONS:
                return self.function((OpKind.APPLY.value, COMPARISONS[kind]), (first - second) % PRIME)
            case OpKind.CAST:  # to itself, as numbers have no precision here
                return first
            case OpKind.SQRT:
                return self.function("sqrt", first)
        return self.function((kind.value, attrs), *operands)

    def _constant(self, attrs: ConstAttrs) -> int:
        number, degree = (self.literal and root_of(attrs)) or (Fraction(), 0)
        if times := square_roots(degree):
            root = np.asarray(_number(abs(number)))
            for _ in range(times):
                root = self.function("sqrt", root)
            return int(_inverse(root) if degree < 0 else root) * (-1 if number < 0 else 1) % PRIME
        if attrs.symbol:
            return self.unknown((attrs.value, attrs.symbol))
        if self.literal:
            return _number(attrs.value)
        top, bottom = (
            n % PRIME if abs(n) <= LARGEST_NUMERAL else self.unknown(abs(n)) * (1 if n > 0 else -1)
            for n in (attrs.value.numerator, attrs.value.denominator)
        )
        return top * pow(bottom, -1, PRIME) % PRIME

    def rescaled(self, x: Residues, m: Residues, axis: int | tuple[int, ...]) -> Residues:
        """The sum of x * exp(m - max m)."""
        weight = self.exp((m - m.max(axis=axis, keepdims=True)) % PRIME)
        return np.asarray((x * weight % PRIME).sum(axis=axis, keepdims=True) % PRIME)

    def view(self, value: Held, move: Callable[[Residues], Residues]) -> Held:
        return _each(move, value)

    def join(self, parts: Sequence[Held], dim: int, batch: int) -> Held:
        return _each(lambda *parts: arrays.concat(parts, dim, batch), *parts)

    def fold(self, kind: AccumKind, state: tuple[Any, ...], operands: Sequence[Held], batch: int) -> tuple[Any, ...]:
        if isinstance(operands[-1], Masked):
            return self._fold_masked(kind, state, operands, batch)
        taken = [real(x) for x in operands]
        match kind:
            case AccumKind.RESCALE:  # an exponential that is a random function is none of a running maximum
                seen = (*state[1:], *np.broadcast_arrays(*arrays.aligned(taken, batch)))
                return (self.rescaled(np.stack(seen[::2]), np.stack(seen[1::2]), 0)[0], *seen)
            case _ if not state:
                return tuple(taken)
            case AccumKind.SUM:
                return ((state[0] + taken[0]) % PRIME,)
            case AccumKind.MAX:
                return (np.maximum(state[0], taken[0]),)
        if not np.array_equal(state[0], taken[0]):
            raise GraphError("a hold accumulator takes in a value that changes with the iteration")
        return state

    def _fold_masked(
        self, kind: AccumKind, state: tuple[Any, ...], operands: Sequence[Held], batch: int
    ) -> tuple[Any, ...]:
        match kind:
            case AccumKind.MAX:
                parts = [raised(x, self) for x in (*state, *operands)]
                return (_whole(logarithm(functools.reduce(np.maximum, parts), self)),)
            case AccumKind.RESCALE:
                x, m = real(operands[0]), raised(operands[1], self)
                seen = (*state[1:], *np.broadcast_arrays(*arrays.aligned((x, m), batch)))
                return (self._weighted(np.stack(seen[::2]), np.stack(seen[1::2]), 0)[0], *seen)
            case AccumKind.HOLD:
                return state or tuple(operands)
        raise ProofError("a sum of what may be minus infinity")


def _each(move: Callable[..., Residues], *values: Held) -> Held:
    """What becomes of values as arrays are moved."""
    if not any(isinstance(value, Masked) for value in values):
        return move(*values)
    parts = [_parts(value) for value in values]
    return Masked(move(*(part.shift for part in parts)), move(*(part.weight for part in parts)))


def _parts(value: Held) -> Masked[Residues]:
    """Shift and weight, of a real number, too."""
    if isinstance(value, Masked):
        return Masked(value.shift, value.weight)
    return Masked(value, np.ones_like(value))


def _whole(value: Held) -> Held:
    """Shift and weight of one shape."""
    if not isinstance(value, Masked):
        return value
    shift, weight = np.broadcast_arrays(value.shift, value.weight)
    return Masked(shift, weight)


def _product(left: Residues, right: Residues) -> Residues:
    total = np.zeros((), np.int64)
    for k in range(left.shape[-1]):
        total = (total + left[..., :, k : k + 1] * right[..., k : k + 1, :]) % PRIME
    return total


@dataclass(slots=True)
class _World:
    """Values of terms: every index runs over the extent of its part."""

    algebra: Algebra
    sizes: Sizes
    arrays: Mapping[str, Residues]
    translation: Translation
    layouts: dict[str, Sequence[Sequence[Part]]] = field(default_factory=dict)
    known: dict[Term, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first = self.translation.scopes[0]
        self.layouts = {name: first.dims[place] for place, name in enumerate(self.arrays)}
        tiles = {INSIDE + name: part for name, part in plain_parts(self.translation.scopes).items() if part.tiles}
        extent, self.arrays = self.sizes.extent, dict(self.arrays)
        for name, part in tiles.items():
            self.layouts[name] = [part.tiles or ()]
            self.arrays[name] = (np.arange(extent(part.tiles or ())) < extent([part])).astype(np.int64)

    def output(
        self,
        goals: Iterable[tuple[tuple[tuple[Digit, ...], ...], Term, Term]],
        shape: tuple[int, ...],
        layout: Sequence[Sequence[Part]],
    ) -> Residues:
        """The array whose elements at their indices are these terms, where those are inside; -1 where there is none."""
        found = np.full(shape, -1, np.int64)
        for index, *terms in goals:
            own = tuple(_plain(digit for digits in index for digit in digits))
            places = [self._place(digits, own, parts) for digits, parts in zip(index, layout, strict=True)]
            values = (self._aligned(self._value(term), own) for term in terms)
            value, inside, *at = np.broadcast_arrays(*values, *places)
            found[tuple(place[inside != 0] for place in at)] = value[inside != 0] if at else value
        return found

    def _value(self, term: Term) -> Value:
        if term not in self.known:
            indices, found = self._fresh(term)
            spend(found.size // GRAIN)
            self.known[term] = indices, found
        return self.known[term]

    def _fresh(self, term: Term) -> Value:
        algebra = self.algebra
        if term.kind in BINDERS:
            return self._bound(term)
        own = tuple(sorted(term.free))
        args = [self._aligned(self._value(arg), own) for arg in term.args]
        found: Any
        match term.kind:
            case Kind.NUM:
                found = np.asarray(_number(term.data))
            case Kind.SYM:
                found = np.asarray(algebra.unknown(self.translation.constants[term.data[0]]))
            case Kind.IN:
                name, index = term.data
                places = [self._place(d, own, parts) for d, parts in zip(index, self.layouts[name], strict=True)]
                found = self.arrays[name][tuple(np.broadcast_arrays(*places)) if places else ()]
            case Kind.ADD:
                found = sum(args) % PRIME
            case Kind.MUL:
                found = args[0]
                for arg in args[1:]:
                    found = found * arg % PRIME
            case Kind.TOP:
                found = args[0]
                for arg in args[1:]:
                    found = np.maximum(found, arg)
            case Kind.INV:
                found = _inverse(args[0])
            case Kind.EXP:
                found = algebra.exp(args[0])
            case Kind.SQRT:
                found = algebra.function("sqrt", args[0])
            case _:
                found = algebra.function(self.translation.functions.get(term.data, term.data), *args)
        return own, np.asarray(found)

    def _bound(self, term: Term) -> Value:
        inside, args = opened(term)
        outside = tuple(sorted(term.free))
        shape = [self.sizes.parts[sort] for sort, _ in inside]
        if math.prod(self.sizes.parts[sort] for sort, _ in (*inside, *outside)) > MOST:
            raise ProofError("a term with more indices than can be run over")
        values = []
        for arg in args:
            value = self._aligned(self._value(arg), (*outside, *inside))
            values.append(np.broadcast_to(value, (*value.shape[: len(outside)], *shape)))
        axes = tuple(range(-len(inside), 0))
        if term.kind is Kind.MAX:
            return outside, np.asarray(values[0].max(axis=axes))
        if term.kind is Kind.WITHIN:
            x, within = np.broadcast_arrays(*values)
            return outside, np.asarray(np.where(within != 0, x, 0).max(axis=axes))
        if term.kind is Kind.RESCALED:
            x, m = np.broadcast_arrays(*values)
            found = self.algebra.rescaled(x, m, axes)
            return outside, found.reshape(found.shape[: len(outside)])
        return outside, np.asarray(values[0].sum(axis=axes) % PRIME)

    def _place(self, digits: tuple[Digit, ...], own: tuple[Var, ...], parts: Sequence[Part]) -> Any:
        """The positions in a dimension with these parts that digits stand for. Raises ProofError for other parts."""
        position: Any = np.zeros((1,) * len(own), np.int64)
        plain = leaves(parts)
        if len(digits) != len(plain):
            raise ProofError(f"{len(digits)} indices where the dimension has {len(plain)} parts")
        for digit, leaf in zip(digits, plain, strict=True):
            extent = self.sizes.extent([leaf])
            if leaf.tiles is None and leaf.sides is None and digit[0] != leaf.name:
                raise ProofError(f"an index over {digit[0]} where the dimension has {leaf.name}")
            if leaf.tiles is not None:  # what lies beyond the end is read nowhere
                step = np.minimum(self._place(digit[1], own, leaf.tiles), extent - 1)
            elif leaf.sides is None:
                step = np.arange(extent).reshape([extent if var == digit else 1 for var in own])
            else:
                side = leaf.sides["LR".index(digit[0])]
                step = self._place(digit[1], own, side) + (digit[0] == "R") * self.sizes.extent(leaf.sides[0])
            position = position * extent + step
        return position

    @staticmethod
    def _aligned(value: Value, own: tuple[Var, ...]) -> Residues:
        indices, array = value
        moved = np.transpose(array, sorted(range(len(indices)), key=lambda i: own.index(indices[i])))
        extents = iter(moved.shape)
        return moved.reshape([next(extents) if var in indices else 1 for var in own])


def _plain(digits: Iterable[Digit]) -> Iterator[Var]:
    for digit in digits:
        if isinstance(digit[1], tuple):
            yield from _plain(digit[1])
        else:
            yield digit
