"""How likely a trial is to miss that two graphs differ: degrees, terms and coefficients (Theorems 2 and 3).

In: two graphs of the same inputs and the pool of primes. Out: the base-2 logarithm of the probability that
an output element that differs agrees in one trial, or None where no theorem gives a bound below 1.

Every element is a quotient of sums of f * exp(g / h); a forward pass bounds degree, number of terms and
coefficients of both sides of the quotient. Theorem 2 wants coefficients below q / 2. Where they may be
larger, the primes being drawn at random from a pool takes that place: a non-zero integer of L bits is a
multiple of few primes of the pool. `towers` makes better bounds from the same forms, for square roots,
maxima and many exponentials too, where a trial shows more than values; this one holds for any exponents.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace

from mirage_nb.errors import VerificationError
from mirage_nb.interp.primes import Pool
from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    BlockGraph,
    ConstAttrs,
    DimAttrs,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    PadAttrs,
    PowAttrs,
    TensorType,
    ThreadGraph,
    TransposeAttrs,
)
from mirage_nb.ir.ops import Shape

Axis = int | str
"""A dimension counted from the right (-1 is the last), the loop, or a grid dimension."""

LOOP = "loop"


@dataclass(frozen=True, slots=True)
class Side:
    """Numerator or denominator: degree of the f, log2 of the number of terms, degree of the g and h,
    log2 of the largest absolute sum of coefficients of any of them, and how many exponentials and uninterpreted
    shifts in the exponent a term is a product of (or of their inverses)."""

    degree: float = 0
    terms: float = 0
    inner: float = 0
    bits: float = 0
    powers: float = 0

    def times(self, other: Side) -> Side:
        """The product: exponents add up over a common denominator."""
        both = self.inner > 0 and other.inner > 0
        added = Side(*(sum(pair) for pair in zip(astuple(self), astuple(other), strict=True)))
        return replace(added, bits=added.bits + both)

    def power(self, n: float) -> Side:
        """The product of n such sides."""
        both = max(0, n - 1) if self.inner > 0 else 0
        return Side(self.degree * n, self.terms * n, self.inner * n, self.bits * n + both, self.powers * n)

    def plus(self, other: Side) -> Side:
        """The sum."""
        found = self.either(other)
        terms = _log_add(self.terms, other.terms) if found.inner else 0.0
        return replace(found, terms=terms, bits=_log_add(self.bits, other.bits))

    def either(self, other: Side) -> Side:
        """A bound on both sides."""
        return Side(*(max(pair) for pair in zip(astuple(self), astuple(other), strict=True)))

    def sum_of(self, n: float) -> Side:
        """The sum of n such sides; exponential terms stay apart, others flow together."""
        more = math.log2(n)
        return replace(self, terms=self.terms + (more if self.inner > 0 else 0), bits=self.bits + more)


def _log_add(x: float, y: float) -> float:
    return max(x, y) + math.log2(1 + 2.0 ** -min(abs(x - y), 1000.0))


ONE = Side()


@dataclass(frozen=True, slots=True)
class Form:
    """A quotient; the axes along which it, and its denominator, may differ from element to element; a bound on
    both sides of every quotient whose square root it is made of, and of every exponent; and of how many maxima it
    is the sum with whole factors, beside a quotient that is made of none (infinite: it is no such sum)."""

    top: Side
    bottom: Side
    varies: frozenset[Axis]
    bottom_varies: frozenset[Axis]
    radicand: Side = ONE
    exponent: Side = ONE
    shift: float = 0

    def summed(self, axis: Axis, n: int) -> Form:
        """The sum of n elements along an axis: over one denominator, or over the product of all of them."""
        kept = replace(
            self, varies=self.varies - {axis}, bottom_varies=self.bottom_varies - {axis}, shift=self.shift * n
        )
        if axis not in self.bottom_varies or n == 1:
            return replace(kept, top=self.top.sum_of(n))
        top = self.top.times(self.bottom.power(n - 1)).sum_of(n)
        return replace(kept, top=top, bottom=self.bottom.power(n))


def trial_bound(program: KernelGraph, candidate: KernelGraph, pool: Pool) -> float | None:
    """log2 of the chance that an output element that differs agrees in one trial, however outputs are paired.

    The graphs must be bounded in the sense of `lax.LaxReport`. None: the theorems say nothing here.
    """
    worst = max(_chance(left, right, pool) for left in forms(program) for right in forms(candidate))
    return math.log2(worst) if 0 < worst < 1 else None


def _chance(left: Form, right: Form, pool: Pool) -> float:
    difference = across(left, right)
    low = pool.low // 2 - 1  # q is the smaller prime of a pair
    if difference.inner == 0:
        return difference.degree / pool.low + lost(difference.bits, 1, pool)
    k, d = difference.terms, max(difference.degree, 2 * difference.inner)
    if k > 16:
        return 1.0
    terms: float = 2.0**k
    exponents = lost(2 * difference.bits + 1, terms * terms, pool)
    return 8 * d * terms**4 / low + math.exp(-math.log(low) / (terms * terms)) + exponents


def across(left: Form, right: Form) -> Side:
    """The numerator of the difference of two quotients."""
    return left.top.times(right.bottom).plus(right.top.times(left.bottom))


def lost(bits: float, polynomials: float, pool: Pool) -> float:
    """The chance that a random prime of the pool divides the coefficients of one of some polynomials."""
    usable = math.log2(pool.low) - 1
    if bits + 1 < usable:
        return 0.0
    return polynomials * bits / usable / pool.count


def forms(graph: KernelGraph) -> list[Form]:
    """The bounds on every output of a graph."""
    values = [Form(Side(degree=1), ONE, _wide(i.type.shape), frozenset()) for i in graph.inputs]
    for op, results in graph.definitions():
        operands = [values[v] for v in op.inputs]
        if isinstance(op.body, BlockGraph):
            values += _block(op.body, operands)
        else:
            values.append(_plain(op, operands, graph.types, results[0]))
    return [values[v] for v in graph.outputs]


def _wide(shape: Shape) -> frozenset[Axis]:
    return frozenset(i - len(shape) for i, extent in enumerate(shape) if extent > 1)


def _block(graph: BlockGraph, args: list[Form]) -> list[Form]:
    values: list[Form] = []
    saved: list[Form] = []
    for op, results in graph.definitions():
        operands = [values[v] for v in op.inputs]
        if isinstance(op.attrs, InIterAttrs):
            values.append(_iterated(graph, op.attrs, args[op.attrs.arg]))
        elif isinstance(op.attrs, AccumAttrs):
            values.append(_accumulated(op.attrs, operands, graph, len(graph.types[results[0]].shape)))
        elif isinstance(op.attrs, OutSaverAttrs):
            saved.append(_saved(graph, op.attrs, operands[0], len(graph.types[op.inputs[0]].shape)))
        elif isinstance(op.body, ThreadGraph):
            inner = list(operands)
            for step, (value,) in op.body.definitions():
                inner.append(_plain(step, [inner[v] for v in step.inputs], op.body.types, value))
            values += [inner[v] for v in op.body.outputs]
        else:
            values.append(_plain(op, operands, graph.types, results[0]))
    return saved


def _iterated(graph: BlockGraph, attrs: InIterAttrs, whole: Form) -> Form:
    rank = len(graph.args[attrs.arg].shape)
    split: set[tuple[int, Axis]] = {(dim - rank, _grid(i)) for i, dim in enumerate(attrs.imap) if dim is not None}
    if attrs.fmap is not None:
        split.add((attrs.fmap - rank, LOOP))
    return _spread(whole, lambda axis: {axis, *(part for dim, part in split if dim == axis)})


def _grid(i: int) -> str:
    return f"grid {i}"


def _spread(form: Form, rename: Callable[[Axis], set[Axis]]) -> Form:
    varies, bottom = (
        frozenset(new for axis in axes for new in rename(axis)) for axes in (form.varies, form.bottom_varies)
    )
    return replace(form, varies=varies, bottom_varies=bottom)


def _accumulated(attrs: AccumAttrs, operands: list[Form], graph: BlockGraph, rank: int) -> Form:
    x = operands[0]
    if attrs.kind is AccumKind.SUM:
        return x.summed(LOOP, graph.loop)
    if attrs.kind is AccumKind.RESCALE:
        return _rescaled(x, operands[1], LOOP, graph.loop, graph.loop)
    if attrs.kind is AccumKind.MAX:
        return _maximum(x, LOOP)
    if attrs.dim is not None:
        dim = attrs.dim - rank
        return _spread(x, lambda axis: {dim} if axis == LOOP else {axis})
    return _spread(x, lambda axis: set() if axis == LOOP else {axis})


def _saved(graph: BlockGraph, attrs: OutSaverAttrs, x: Form, rank: int) -> Form:
    target = {_grid(i): dim - rank for i, dim in enumerate(attrs.omap) if dim is not None}
    return _spread(x, lambda axis: {target[axis]} if axis in target else {axis} - {_grid(i) for i in range(3)})


def _plain(op: Op, operands: list[Form], types: tuple[TensorType, ...], result: int) -> Form:
    """The bound on the result of an operator of the table; `types` are those of the graph's values."""
    rule = RULES.get(op.kind)
    shapes = [types[v].shape for v in op.inputs]
    if rule is None:
        raise VerificationError(f"no bound is known for {op.kind.value}")
    return rule(op, operands, shapes, types[result].shape)


def _const(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    assert isinstance(op.attrs, ConstAttrs)
    if op.attrs.symbol:
        return Form(Side(degree=1), ONE, frozenset(), frozenset())
    value = op.attrs.value
    return Form(Side(bits=_bits(value.numerator)), Side(bits=_bits(value.denominator)), frozenset(), frozenset())


def _arange(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    return Form(Side(bits=_bits(result[0])), ONE, _wide(result), frozenset())


def _pad(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    """Zeros are quotients of zero by one: both sides vary where they begin."""
    assert isinstance(op.attrs, PadAttrs)
    (x,), axis = operands, op.attrs.dim - len(result)
    return replace(x, varies=x.varies | {axis}, bottom_varies=x.bottom_varies | {axis})


def _bits(number: int) -> float:
    return math.log2(abs(number)) if number else 0.0


def _met(a: Form, b: Form, top: Side, bottom: Side, shift: float, along: frozenset[Axis] = frozenset()) -> Form:
    """What two quotients make together, which may differ along other axes, too."""
    varies, below = a.varies | b.varies | along, a.bottom_varies | b.bottom_varies | along
    return Form(top, bottom, varies, below, a.radicand.either(b.radicand), a.exponent.either(b.exponent), shift)


def _product(a: Form, b: Form) -> Form:
    return _met(a, b, a.top.times(b.top), a.bottom.times(b.bottom), math.inf if a.shift or b.shift else 0)


def _total(a: Form, b: Form) -> Form:
    return replace(_product(a, b), top=across(a, b), shift=a.shift + b.shift)


def _inverse(a: Form) -> Form:
    return replace(a, top=a.bottom, bottom=a.top, bottom_varies=a.varies, shift=_worse(a))


def _worse(a: Form) -> float:
    return math.inf if a.shift else 0


def _root(x: Form) -> Form:
    """sqrt(n / d) as sqrt(n * d) / d, the root a variable of half the degree and size of its square."""
    top = Side(
        degree=(x.top.degree + x.bottom.degree) / 2,
        bits=(x.top.bits + x.bottom.bits) / 2,
        powers=x.top.powers + x.bottom.powers,
    )
    return replace(x, top=top, radicand=x.radicand.either(x.top).either(x.bottom), shift=_worse(x))


def _power(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    assert isinstance(op.attrs, PowAttrs)
    exponent = op.attrs.exponent
    x = _root(operands[0]) if exponent.denominator == 2 else operands[0]
    n = abs(exponent.numerator)
    raised = replace(x, top=x.top.power(n), bottom=x.bottom.power(n), shift=_worse(x))
    return _inverse(raised) if exponent < 0 else raised


def _exponential(x: Form) -> Form:
    inner = max(1.0, x.top.degree, x.bottom.degree)
    top = Side(inner=inner, bits=max(x.top.bits, x.bottom.bits), powers=1 + x.shift)
    exponent = x.exponent.either(x.top).either(x.bottom)
    return Form(top, ONE, x.varies, frozenset(), x.radicand, exponent)


def _sigmoid(x: Form) -> Form:
    e = _exponential(x)
    return replace(e, bottom=ONE.plus(e.top), bottom_varies=x.varies)


def _maximum(x: Form, axis: Axis) -> Form:
    """An uninterpreted shift, or the one element that there is."""
    top = x.top.either(Side(degree=1))
    return replace(x, top=top, shift=max(1, x.shift), varies=x.varies - {axis}, bottom_varies=x.bottom_varies - {axis})


def _rescaled(x: Form, m: Form, axis: Axis, n: int, times: int) -> Form:
    """A sum over an axis of elements that are multiplied by exp(old - new) some times, old and new maxima of m."""
    factor = _exponential(_total(m, _maximum(m, axis)))
    factors = replace(factor, top=factor.top.power(times), varies=factor.varies - {axis})
    return _product(x, factors).summed(axis, n)


def _matmul_of(inner: int, a: Form, b: Form) -> Form:
    left = _spread(a, lambda axis: {"inner"} if axis == -1 else {axis})
    right = _spread(b, lambda axis: {"inner"} if axis == -2 else {axis})
    return _product(left, right).summed("inner", inner)


def _matmul(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    return _matmul_of(shapes[0][-1], *operands)


def _concat_matmul(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    w, x, y, z = operands
    return _total(_matmul_of(shapes[0][-1], w, y), _matmul_of(shapes[1][-1], x, z))


def _sum(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    assert isinstance(op.attrs, DimAttrs)
    (shape,) = shapes
    return operands[0].summed(op.attrs.dim - len(shape), shape[op.attrs.dim])


def _running_sum(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    (x,) = operands
    return replace(_sum(op, operands, shapes, result), varies=x.varies, bottom_varies=x.bottom_varies)


def _max(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    assert isinstance(op.attrs, DimAttrs)
    (shape,) = shapes
    return _maximum(operands[0], op.attrs.dim - len(shape))


def _larger(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    """The maximum of two: an uninterpreted shift, or one of them."""
    a, b = operands
    top = a.top.either(b.top).either(Side(degree=1))
    return _met(a, b, top, a.bottom.either(b.bottom), max(1, a.shift, b.shift))


def _rescaled_sum(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    assert isinstance(op.attrs, DimAttrs)
    (x, m), shape = operands, shapes[0]
    return _rescaled(x, m, op.attrs.dim - len(shape), shape[op.attrs.dim], 1)


def _reshape(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    """Regrouped dimensions: if one of them varies, all of them may."""
    wide = _wide(result)

    def regrouped(axes: frozenset[Axis]) -> frozenset[Axis]:
        named = frozenset(axis for axis in axes if isinstance(axis, str))
        return named | wide if len(named) < len(axes) else named

    (x,) = operands
    return replace(x, varies=regrouped(x.varies), bottom_varies=regrouped(x.bottom_varies))


def _transpose(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    assert isinstance(op.attrs, TransposeAttrs)
    rank = len(result)
    moved: dict[Axis, Axis] = {old - rank: new - rank for new, old in enumerate(op.attrs.perm)}
    return _spread(operands[0], lambda axis: {moved.get(axis, axis)})


def _same(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    return operands[0]


def _concat(op: Op, operands: list[Form], shapes: list[Shape], result: Shape) -> Form:
    assert isinstance(op.attrs, DimAttrs)
    a, b = operands
    axis: frozenset[Axis] = frozenset({op.attrs.dim - len(result)})
    return _met(a, b, a.top.plus(b.top), a.bottom.plus(b.bottom), max(a.shift, b.shift), axis)


Rule = Callable[[Op, list[Form], list[Shape], Shape], Form]

RULES: dict[OpKind, Rule] = {
    OpKind.CONST: _const,
    OpKind.MATMUL: _matmul,
    OpKind.CONCAT_MATMUL: _concat_matmul,
    OpKind.SUM: _sum,
    OpKind.MAX: _max,
    OpKind.RESCALED_SUM: _rescaled_sum,
    OpKind.RUNNING_SUM: _running_sum,
    OpKind.ADD: lambda op, operands, shapes, result: _total(*operands),
    OpKind.SUB: lambda op, operands, shapes, result: _total(*operands),
    OpKind.MUL: lambda op, operands, shapes, result: _product(*operands),
    OpKind.DIV: lambda op, operands, shapes, result: _product(operands[0], _inverse(operands[1])),
    OpKind.EXP: lambda op, operands, shapes, result: _exponential(operands[0]),
    OpKind.SQRT: lambda op, operands, shapes, result: _root(operands[0]),
    OpKind.SQR: lambda op, operands, shapes, result: _product(operands[0], operands[0]),
    OpKind.SILU: lambda op, operands, shapes, result: _product(operands[0], _sigmoid(operands[0])),
    OpKind.SIGMOID: lambda op, operands, shapes, result: _sigmoid(operands[0]),
    OpKind.POW: _power,
    OpKind.REPEAT: _same,
    OpKind.RESHAPE: _reshape,
    OpKind.TRANSPOSE: _transpose,
    OpKind.CONCAT: _concat,
    OpKind.ARANGE: _arange,
    OpKind.SLICE: _same,
    OpKind.PAD: _pad,
    OpKind.CAST: _same,
    OpKind.MAXIMUM: _larger,
}
"""Every operator that Theorem 2 covers, square roots, and maxima as shifts."""
