"""The field interpreter: the reference's walk over Z_p x Z_q (paper section 5.2, Table 3).

In: a graph, random field tensors, an instance (primes, root of unity, seed). Out: field tensors. The p part
is computed outside exponents, the q part inside: exp(x) is w ** x_q, which has no q part. An element that
meets a division by zero, the root of a non-square or a second exponential is marked undefined, and so is all
that is computed from it; it never gets a made-up value. Max and the operators outside LAX are uninterpreted
functions: Max of the set of elements that were reduced, whatever the order and grouping, the others of
their operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any, cast

import numpy as np

from mirage_nb.errors import GraphError
from mirage_nb.interp import arrays
from mirage_nb.interp.arrays import Array
from mirage_nb.interp.instance import FieldInstance, Fields, FieldTensor, Mask, Words, random_inputs
from mirage_nb.interp.modular import WORD, Arithmetic, Residues
from mirage_nb.interp.reference import ordered
from mirage_nb.interp.run import COMPOSED, Moved, composed, run_kernel, run_outputs
from mirage_nb.ir import (
    COMPARISONS,
    OPS,
    AccumKind,
    ApplyAttrs,
    ClampAttrs,
    KernelGraph,
    OpKind,
    PowAttrs,
    Trait,
    WhereAttrs,
)
from mirage_nb.ir.ops import Attrs

__all__ = ["FieldAlgebra", "FieldInstance", "FieldTensor", "Noted", "evaluate", "evaluate_all", "random_inputs"]


@dataclass(frozen=True, slots=True)
class Noted:
    """What an evaluation met on every level, in order: what square roots are taken of, what is an exponent, and
    the elements that maxima are taken of."""

    radicands: list[FieldTensor] = field(default_factory=list)
    exponents: list[FieldTensor] = field(default_factory=list)
    ranked: list[FieldTensor] = field(default_factory=list)


def evaluate(
    graph: KernelGraph,
    inputs: Mapping[str, FieldTensor] | Sequence[FieldTensor],
    instance: FieldInstance,
    noted: Noted | None = None,
    *,
    roots: bool = True,
) -> tuple[FieldTensor, ...]:
    """The outputs of a program or muGraph on these field tensors, by name or in the order of its inputs; without
    `roots`, square roots are uninterpreted functions, too.

    Raises:
        ShapeError: an input is missing, unknown or of another shape.
    """
    values = run_outputs(graph, _given(graph, inputs), FieldAlgebra(instance, noted, roots))
    types = graph.output_types
    return tuple(x.moved(partial(np.broadcast_to, shape=t.shape)) for x, t in zip(values, types, strict=True))


def evaluate_all(
    graph: KernelGraph,
    inputs: Mapping[str, FieldTensor] | Sequence[FieldTensor],
    instance: FieldInstance,
    noted: Noted | None = None,
) -> list[FieldTensor]:
    """Every value of the kernel graph, inputs first. Raises as `evaluate`."""
    return run_kernel(graph, _given(graph, inputs), FieldAlgebra(instance, noted))


def _given(graph: KernelGraph, inputs: Mapping[str, FieldTensor] | Sequence[FieldTensor]) -> list[FieldTensor]:
    """The inputs in graph order, their shapes checked."""
    if isinstance(inputs, Mapping):
        ordered(graph, {name: tensor.any_part for name, tensor in inputs.items()})
        return [inputs[i.name] for i in graph.inputs]
    ordered(graph, [tensor.any_part for tensor in inputs])
    return list(inputs)


Rule = Callable[["FieldAlgebra", Sequence[FieldTensor], Attrs | None, int], FieldTensor]
Operation = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class FieldAlgebra:
    """Pairs of residues over one instance, or over a stack of them; what is met is noted where that is asked for."""

    instance: Fields
    noted: Noted | None = None
    roots: bool = True

    def apply(self, kind: OpKind, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
        if kind in COMPOSED:
            return composed(self, kind, operands, attrs, batch)
        return TABLE[kind](self, operands, attrs, batch)

    def view(self, value: FieldTensor, move: Callable[[Array], Array]) -> FieldTensor:
        pads = isinstance(move, Moved) and move.kind is OpKind.PAD
        if value.sets is not None and (pads or (isinstance(move, arrays.Split) and move.pads(value.any_part.shape))):
            # The zeros beyond the end are maxima of nothing that was reduced: what they meet is a new element.
            value = replace(value, sets=None)
        return value.moved(move)

    def join(self, parts: Sequence[FieldTensor], dim: int, batch: int) -> FieldTensor:
        def joined(pieces: Sequence[Array | None]) -> Array | None:
            there = [piece for piece in pieces if piece is not None]
            return arrays.concat(there, dim, batch) if len(there) == len(pieces) else None

        p, q = joined([x.p for x in parts]), joined([x.q for x in parts])
        if p is None and q is None:
            return _nothing(arrays.concat([x.any_part for x in parts], dim, batch))
        undefined = None
        if any(part.undefined is not None for part in parts):
            undefined = joined([~part.defined for part in parts])
        sets = None
        if any(part.sets is not None for part in parts):
            sets = joined([self.sets_of(part) for part in parts])
        return FieldTensor(p, q, undefined, sets)

    def fold(
        self, kind: AccumKind, state: tuple[FieldTensor, ...], operands: Sequence[FieldTensor], batch: int
    ) -> tuple[FieldTensor, ...]:
        if kind is AccumKind.RESCALE:
            operands = aligned(operands, batch)
        if not state:
            return tuple(operands)
        match kind:
            case AccumKind.SUM:
                return (self.each(Arithmetic.add, state[0], operands[0]),)
            case AccumKind.MAX:
                return (self.union(state[0], operands[0]),)
            case AccumKind.HOLD:
                if not _same(state[0], operands[0]):
                    raise GraphError("a hold accumulator takes in a value that changes with the iteration")
                return state
            case AccumKind.RESCALE:
                (total, top), (x, m) = state, operands
                new = self.union(top, m)
                return (self.each(Arithmetic.add, self.rescaled(total, top, new), self.rescaled(x, m, new)), new)
            case AccumKind.CONCAT:
                raise GraphError("tiles are joined, not folded")

    def each(self, operation: Operation, *operands: FieldTensor) -> FieldTensor:
        """An elementwise operation on aligned operands, on every part that all of them have."""
        has_p = has_q = True
        undefined: Mask | None = None
        for x in operands:  # a plain loop: this is where small trials spend their time
            has_p, has_q = has_p and x.p is not None, has_q and x.q is not None
            if x.undefined is not None:
                undefined = x.undefined if undefined is None else undefined | x.undefined
        if not has_p and not has_q:
            return _nothing(operation(self.instance.p, *(x.any_part for x in operands)))
        return FieldTensor(
            operation(self.instance.p, *[x.p for x in operands]) if has_p else None,
            operation(self.instance.q, *[x.q for x in operands]) if has_q else None,
            undefined,
        )

    def rescaled(self, x: FieldTensor, old: FieldTensor, new: FieldTensor) -> FieldTensor:
        """x * exp(old - new)."""
        return self.each(Arithmetic.mul, x, exponential(self, self.each(Arithmetic.sub, old, new)))

    def sets_of(self, x: FieldTensor) -> Words:
        """The fingerprints of the sets that the elements are maxima of; a plain element is its own set."""
        if x.sets is not None:
            return x.sets
        if self.noted is not None:
            self.noted.ranked.append(x)
        return self.instance.mixed(_word(x), "element")

    def maximum(self, sets: Words, like: FieldTensor, undefined: Mask | None) -> FieldTensor:
        """The uninterpreted maximum of each set, in the parts that `like` has."""
        return self._scattered("maximum", sets, like, undefined, sets)

    def union(self, x: FieldTensor, y: FieldTensor) -> FieldTensor:
        """The elementwise maximum of two tensors, as the maximum of the united sets."""
        like = FieldTensor(x.p if y.p is not None else None, x.q if y.q is not None else None)
        sets = self.united(Arithmetic.add, self.sets_of(x), self.sets_of(y))
        if like.p is None and like.q is None:
            return _nothing(sets)
        return self.maximum(sets, like, _either(x.undefined, y.undefined))

    def united(self, operation: Operation, *sets: Words) -> Words:
        """The fingerprints of unions: sums modulo both primes, side by side. Nobody knows these, so nobody can fold a
        set so often that nothing is left of it."""
        above, below = (
            operation(modulus, *parts)
            for modulus, parts in (
                (self.instance.p, [x >> HALF for x in sets]), (self.instance.q, [x & BELOW for x in sets])
            )
        )  # fmt: skip
        found: Words = above << HALF | below
        return found

    def uninterpreted(self, label: str, x: FieldTensor) -> FieldTensor:
        """A random function of each element, one for every label."""
        return self._scattered(label, _word(x), x, x.undefined, None)

    def truth(self, x: FieldTensor) -> FieldTensor:
        """Whether elements are not 0: 0 and 1 stay what they are, a random function makes something of others."""
        made = self.uninterpreted("truth", x)
        parts = [part for part in (x.p, x.q) if part is not None]
        known = _both([part == 0 for part in parts]) | _both([part == 1 for part in parts])
        p, q = (
            None if old is None or new is None else np.where(known, old, new)
            for old, new in ((x.p, made.p), (x.q, made.q))
        )
        return FieldTensor(p, q, x.undefined)

    def _scattered(
        self, label: str, words: Words, like: FieldTensor, undefined: Mask | None, sets: Words | None
    ) -> FieldTensor:
        p, q = (
            None if part is None else modulus.reduced(self.instance.mixed(words, label, name))
            for name, part, modulus in (("p", like.p, self.instance.p), ("q", like.q, self.instance.q))
        )
        return FieldTensor(p, q, undefined, sets)


def _nothing(like: Residues) -> FieldTensor:
    """A tensor of this shape in which no element has a value."""
    return FieldTensor(np.zeros_like(like), None, np.ones_like(like, dtype=bool))


def _either(*masks: Mask | None) -> Mask | None:
    found: Mask | None = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else found | mask
    return found


def _both(masks: Sequence[Mask]) -> Mask:
    return masks[0] if len(masks) == 1 else masks[0] & masks[1]


def _where_any(mask: Mask | None) -> Mask | None:
    return mask if mask is not None and mask.any() else None


def _same(x: FieldTensor, y: FieldTensor) -> bool:
    return all(
        (a is None) == (b is None) and (a is None or b is None or arrays.one_view(a, b) or bool(np.array_equal(a, b)))
        for a, b in ((x.p, y.p), (x.q, y.q))
    )


def _word(x: FieldTensor) -> Words:
    """Both parts of every element in one 64-bit word."""
    if x.p is None or x.q is None:
        return x.any_part
    return (x.p.astype(WORD, copy=False) << HALF) | x.q


def aligned(operands: Sequence[FieldTensor], batch: int) -> list[FieldTensor]:
    """The operands with tiles of equal rank."""
    dims = [x.any_part.ndim for x in operands]
    rank = max(dims) - batch
    if min(dims) == rank + batch:
        return list(operands)
    return [x.moved(lambda array: arrays.align(array, rank, batch)) for x in operands]


def exponential(algebra: FieldAlgebra, x: FieldTensor) -> FieldTensor:
    """w ** x_q; no q part is left, and no element has a value where x has none."""
    if algebra.noted is not None:
        algebra.noted.exponents.append(x)
    if x.q is None:
        return _nothing(x.any_part)
    return FieldTensor(algebra.instance.exp(x.q), None, x.undefined)


def _inverse(algebra: FieldAlgebra, x: FieldTensor) -> FieldTensor:
    zero = _either(*(part == 0 for part in (x.p, x.q) if part is not None))
    inverse = algebra.each(lambda modulus, part: modulus.inverse(part), x)
    return FieldTensor(inverse.p, inverse.q, _either(x.undefined, _where_any(zero)))


def _square_root(algebra: FieldAlgebra, x: FieldTensor) -> FieldTensor:
    if not algebra.roots:
        return algebra.uninterpreted("root", x)
    if algebra.noted is not None:
        algebra.noted.radicands.append(x)
    root = algebra.each(lambda modulus, part: modulus.root(part), x)
    square = algebra.each(Arithmetic.mul, root, root)
    pairs = ((square.p, x.p), (square.q, x.q))
    wrong = _either(*(a != b for a, b in pairs if a is not None and b is not None))
    return FieldTensor(root.p, root.q, _either(x.undefined, _where_any(wrong)))


def _elementwise(operation: Operation) -> Rule:
    return lambda algebra, operands, attrs, batch: algebra.each(operation, *aligned(operands, batch))


def _const(algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
    """A rational number, or one random element for every symbol and value."""
    constant = arrays.scalar(attrs)
    if constant.symbol:
        return algebra.instance.symbol(f"{constant.symbol} = {constant.value}", batch)
    return algebra.instance.number(constant.value, batch)


def _matmul(algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
    x, y = aligned(operands, batch)
    if x.undefined is None and y.undefined is None:
        return algebra.each(Arithmetic.matmul, x, y)
    product = algebra.each(Arithmetic.matmul, replace(x, undefined=None), replace(y, undefined=None))
    return replace(product, undefined=_either(_reduced_mask(x, -1), _reduced_mask(y, -2)))


def _summed(algebra: FieldAlgebra, x: FieldTensor, axis: int) -> FieldTensor:
    p, q = (
        None if part is None else modulus.sum(part, axis)
        for modulus, part in ((algebra.instance.p, x.p), (algebra.instance.q, x.q))
    )
    return FieldTensor(p, q, _reduced_mask(x, axis))


def _reduced_mask(x: FieldTensor, axis: int) -> Mask | None:
    if x.undefined is None:
        return None
    return cast(Mask, np.broadcast_to(x.undefined, x.shape).any(axis=axis, keepdims=True))


def _max_along(algebra: FieldAlgebra, x: FieldTensor, axis: int) -> FieldTensor:
    if x.shape[axis] == 1:
        return x
    sets = algebra.united(partial(Arithmetic.sum, axis=axis), algebra.sets_of(x))
    return algebra.maximum(sets, x, _reduced_mask(x, axis))


def _max(algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
    return _max_along(algebra, operands[0], arrays.reduced_axis(attrs, batch))


def _rescaled_sum(
    algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int
) -> FieldTensor:
    x, m = aligned(operands, batch)
    axis = arrays.reduced_axis(attrs, batch)
    if m.shape[axis] == 1:
        return _summed(algebra, algebra.rescaled(x, m, m), axis)
    return _summed(algebra, algebra.rescaled(x, m, _max_along(algebra, m, axis)), axis)


def _sigmoid(algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
    """1 / (1 + exp(-x))."""
    (x,) = operands
    e = exponential(algebra, x)
    # exp(x) / (1 + exp(x)): the same function without the negation.
    below = algebra.each(lambda modulus, part: modulus.reduced(part + np.uint64(1)), e)
    return algebra.each(Arithmetic.mul, e, _inverse(algebra, below))


def _silu(algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
    return algebra.each(Arithmetic.mul, operands[0], _sigmoid(algebra, operands, attrs, batch))


def _divide(algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
    x, y = aligned(operands, batch)
    return algebra.each(Arithmetic.mul, x, _inverse(algebra, y))


def _pow(algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
    """Whole and half exponents are products, quotients and roots; others are uninterpreted."""
    assert isinstance(attrs, PowAttrs)
    (x,) = operands
    exponent = attrs.exponent
    if exponent.denominator > 2 or abs(exponent) > MAX_POWER:
        return algebra.uninterpreted(f"Pow {exponent}", x)
    base = x if exponent.denominator == 1 else _square_root(algebra, x)
    result = algebra.each(lambda modulus, part: modulus.power(part, abs(exponent.numerator)), base)
    return _inverse(algebra, result) if exponent < 0 else result


def _outside(kind: OpKind) -> Rule:
    def rule(algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
        limits = f" {attrs.low} {attrs.high}" if isinstance(attrs, ClampAttrs) else ""
        return algebra.uninterpreted(f"{kind.value}{limits}", operands[0])

    return rule


def _apply(algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
    assert isinstance(attrs, ApplyAttrs)
    return algebra.uninterpreted(f"{OpKind.APPLY.value} {attrs.formula}", operands[0])


def _where(algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
    """c * x + (1 - c) * other, which is what it means where the condition c is 0 or 1; a random function makes c of
    any other element. An infinity is a random element."""
    assert isinstance(attrs, WhereAttrs)
    condition, x = aligned(operands, batch)
    truth, rank = algebra.truth(condition), x.any_part.ndim
    one = algebra.instance.number(Fraction(1), rank)
    other = (
        algebra.instance.symbol(f"infinity {attrs.infinite}", rank)
        if attrs.infinite
        else algebra.instance.number(attrs.other, rank)
    )
    rest = algebra.each(Arithmetic.mul, algebra.each(Arithmetic.sub, one, truth), other)
    return algebra.each(Arithmetic.add, algebra.each(Arithmetic.mul, truth, x), rest)


def _comparison(kind: OpKind) -> Rule:
    """A random function of two elements, the same for either order where that means the same."""
    sides = ("", "") if Trait.COMMUTATIVE in OPS[kind].traits else ("first ", "second ")

    def rule(algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
        pair = zip(sides, aligned(operands, batch), strict=True)
        parts = (algebra.uninterpreted(side + kind.value, x) for side, x in pair)
        return algebra.uninterpreted(kind.value, algebra.each(Arithmetic.add, *parts))

    return rule


def _arange(algebra: FieldAlgebra, operands: Sequence[FieldTensor], attrs: Attrs | None, batch: int) -> FieldTensor:
    numbers = algebra.instance.placed(arrays.counted(attrs, batch).astype(WORD))
    one = algebra.instance.number(Fraction(1), batch + 1)
    return algebra.each(Arithmetic.mul, one, FieldTensor(numbers, numbers))


HALF, BELOW = np.uint64(32), np.uint64(2**32 - 1)
"""Half a word, and the lower one."""
MAX_POWER = 64
"""Whole exponents up to this are multiplied out."""

TABLE: dict[OpKind, Rule] = {
    OpKind.CONST: _const,
    OpKind.MATMUL: _matmul,
    OpKind.SUM: lambda algebra, x, attrs, batch: _summed(algebra, x[0], arrays.reduced_axis(attrs, batch)),
    OpKind.MAX: _max,
    OpKind.RESCALED_SUM: _rescaled_sum,
    OpKind.RUNNING_SUM: lambda algebra, operands, attrs, batch: algebra.each(
        Arithmetic.reduced, operands[0].moved(lambda array: arrays.running(array, attrs, batch))
    ),
    OpKind.ADD: _elementwise(Arithmetic.add),
    OpKind.SUB: _elementwise(Arithmetic.sub),
    OpKind.MUL: _elementwise(Arithmetic.mul),
    OpKind.DIV: _divide,
    OpKind.EXP: lambda algebra, operands, attrs, batch: exponential(algebra, operands[0]),
    OpKind.SQR: lambda algebra, operands, attrs, batch: algebra.each(Arithmetic.mul, operands[0], operands[0]),
    OpKind.SQRT: lambda algebra, operands, attrs, batch: _square_root(algebra, operands[0]),
    OpKind.SILU: _silu,
    OpKind.GELU: _outside(OpKind.GELU),
    OpKind.SIGMOID: _sigmoid,
    OpKind.RELU: _outside(OpKind.RELU),
    OpKind.CLAMP: _outside(OpKind.CLAMP),
    OpKind.ARANGE: _arange,
    OpKind.WHERE: _where,
    OpKind.MAXIMUM: lambda algebra, operands, attrs, batch: algebra.union(*aligned(operands, batch)),
    **{kind: _comparison(kind) for kind in COMPARISONS},
    OpKind.CAST: lambda algebra, operands, attrs, batch: operands[0],
    OpKind.APPLY: _apply,
    OpKind.POW: _pow,
}
"""What every operator computes; those of `run.STRUCTURE` and `run.COMPOSED` are the walk's."""
