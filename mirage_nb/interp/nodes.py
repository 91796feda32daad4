"""The algebra whose values are nodes: which elements every element is made of, and how, whatever the inputs are.

In: the operators of a walk (`run`). Out: `Node`s: a shape, operands, and a plan that says of any elements which ones of
the operands they take and what a system of numbers makes of these. The places of elements are found by moving their
numbers: what blocks, loops and views mean is said in `run` and `arrays` alone.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import GraphError
from mirage_nb.interp import arrays, numbers
from mirage_nb.interp.arrays import Move
from mirage_nb.interp.numbers import Array, Operation, Reals, fmpq, over
from mirage_nb.interp.residues import Field
from mirage_nb.interp.run import COMPOSED, composed
from mirage_nb.interp.tables import summed, tables
from mirage_nb.ir import (
    COMPARISONS,
    AccumKind,
    ApplyAttrs,
    ArangeAttrs,
    ConstAttrs,
    OpKind,
    PowAttrs,
    RunningAttrs,
    WhereAttrs,
    formula,
)
from mirage_nb.ir.ops import Attrs, Shape

Index = NDArray[np.int64]
"""Flat indices; those beyond the end of an operand are -1: zeros stand there."""

System = Reals | Field
"""Numbers and what operators make of them; rationals are numbers of every system."""


class Of(NamedTuple):
    """An operation of any system: the method that says what it is, of what; or that it is itself."""

    name: str
    args: tuple[Any, ...] = ()

    def __call__(self, system: System) -> Operation:
        found: Operation = getattr(system, self.name)
        return found(*self.args) if self.args else found


Combine = Callable[[System, Sequence[Array]], Array]
Plan = Callable[[Index], tuple[list[Index], Combine]]
"""For elements of a result: which elements of the operands they take, a row of these for each, and what makes them of
these."""

MAX_MOVED = 2**26
"""Elements of a tensor whose numbers are moved where moving it is no view."""


class TooMuch(Exception):
    """The elements depend on more than is looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One value of a graph; nodes have numbers above those of their operands. An input has a name and no plan.
    `varies`: it depends on inputs; `chooses`: where its first operand is 0 it does not need the second one."""

    number: int
    shape: Shape
    operands: tuple[Node, ...]
    plan: Plan | None
    name: str = ""
    varies: bool = False
    chooses: WhereAttrs | None = None


def broadcast(at: Index, shape: Shape, narrow: Shape) -> Index:
    """Of elements of a shape, the places in an operand that is broadcast to it."""
    if narrow == shape:
        return at
    rest, found, step = at, np.zeros_like(at), 1
    for axis in range(1, len(shape) + 1):
        extent = narrow[-axis] if axis <= len(narrow) else 1
        if extent > 1:
            found = found + rest % shape[-axis] * step
        rest = rest // shape[-axis]
        step *= extent
    return found


@dataclass
class SliceAlgebra:
    """The algebra whose values are nodes; the methods are those of `run.Algebra`. `nodes`: those of other graphs, too:
    what is made alike is one node; `critical`: what has no value for some numbers, and for which operand; `maxima`:
    what maxima of tensors are; `exponents`: whether anything is one."""

    limit: int
    nodes: dict[Hashable, Node] = field(default_factory=dict)
    critical: list[tuple[Node, int]] = field(default_factory=list)
    maxima: list[Node] = field(default_factory=list)
    exponents: bool = False
    decides: bool = False

    def afford(self, count: int) -> None:
        """Raise TooMuch for more numbers than may be taken."""
        if count > self.limit:
            raise TooMuch

    def input(self, name: str, shape: Shape) -> Node:
        """An input."""
        made = Node(len(self.nodes), shape, (), None, name=name, varies=True)
        return self.nodes.setdefault(("input", name, shape), made)

    def node(
        self, how: Hashable, shape: Shape, operands: Sequence[Node], plan: Plan, chooses: WhereAttrs | None = None
    ) -> Node:
        """A value; `how` and the shape tell its plan from others of the same operands."""
        key = (how, shape, *operands)
        if key not in self.nodes:
            varies = any(x.varies for x in operands)
            self.nodes[key] = Node(len(self.nodes), shape, tuple(operands), plan, varies=varies, chooses=chooses)
        return self.nodes[key]

    def apply(self, kind: OpKind, operands: Sequence[Node], attrs: Attrs | None, batch: int) -> Node:
        if kind in RULES:
            made = RULES[kind](self, operands, attrs, batch)
            self.decides |= kind in CHOOSING
            if kind is OpKind.MAX:
                self.maxima.append(made)
            return made
        if kind in COMPOSED:
            return composed(self, kind, operands, attrs, batch)
        if isinstance(attrs, ApplyAttrs):
            return self.formula(attrs, operands[0], batch)
        chooses = attrs if isinstance(attrs, WhereAttrs) else None
        self.exponents |= kind in EXPONENTIALS
        self.decides |= kind in CHOOSING and any(x.varies for x in operands)
        made = self.each(Of("elementwise", (kind, attrs)), operands, batch, chooses)
        if kind in PARTIAL:
            self.critical.append((made, PARTIAL[kind]))
        elif isinstance(attrs, PowAttrs):
            self._note_power(made, attrs.exponent)
        return made

    def _note_power(self, made: Node, exponent: Fraction) -> None:
        if exponent < 0 or exponent.denominator > 1:
            self.critical.append((made, 0))

    def formula(self, attrs: ApplyAttrs, x: Node, batch: int) -> Node:
        """A function of the program's own, step by step."""

        def step(name: str, *xs: Node) -> Node:
            self.exponents |= name in ("exp", "sigmoid")
            self.decides |= name in ("step", "minimum", "maximum")
            made = self.each(Of("scalar", (name,)), xs, batch)
            if name in PARTIAL_SCALARS:
                self.critical.append((made, PARTIAL_SCALARS[name]))
            return made

        def power(base: Node, exponent: Fraction) -> Node:
            made = self.each(Of("elementwise", (OpKind.POW, PowAttrs(exponent))), (base,), batch)
            self._note_power(made, exponent)
            return made

        def number(value: Fraction) -> Node:
            return self.constant(ConstAttrs(value), batch)

        table: dict[str, Callable[..., Node]] = {name: functools.partial(step, name) for name in numbers.SCALARS}
        table["pow"] = power
        table["log1p"] = lambda x: step("log", step("add", number(Fraction(1)), x))
        return formula.fold(formula.read(attrs.formula), x, number, table)

    def constant(self, attrs: ConstAttrs, batch: int) -> Node:
        """A number."""

        def plan(at: Index) -> tuple[list[Index], Combine]:
            return [], lambda system, xs: np.full(len(at), system.constant(attrs), object)

        return self.node(attrs, (1,) * batch, (), plan)

    def each(self, of: Of, operands: Sequence[Node], batch: int, chooses: WhereAttrs | None = None) -> Node:
        """An elementwise operation."""
        given = self.aligned(operands, batch)
        shapes = {x.shape for x in given}
        shape = shapes.pop() if len(shapes) == 1 else tuple(np.broadcast_shapes(*shapes))

        def plan(at: Index) -> tuple[list[Index], Combine]:
            return [broadcast(at, shape, x.shape) for x in given], lambda system, xs: over(of(system), *xs)

        return self.node(of, shape, given, plan, chooses)

    def aligned(self, operands: Sequence[Node], batch: int) -> list[Node]:
        """The operands with tiles of equal rank: the elements keep their places."""
        ranks = [len(x.shape) for x in operands]
        rank = max(ranks)
        return [x if own == rank else self._wider(x, rank, batch) for x, own in zip(operands, ranks, strict=True)]

    def _wider(self, x: Node, rank: int, batch: int) -> Node:
        shape = (*x.shape[:batch], *(1,) * (rank - len(x.shape)), *x.shape[batch:])
        return self.node("wider", shape, (x,), lambda at: ([at], lambda system, xs: xs[0]))

    def rows(self, of: Of, x: Node, axis: int) -> Node:
        """Folds one dimension to extent 1."""
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        inner = math.prod(x.shape[axis + 1 :])

        def plan(at: Index) -> tuple[list[Index], Combine]:
            first = at // inner * (inner * x.shape[axis]) + at % inner
            self.afford(len(at) * x.shape[axis])
            rows = first[:, None] + inner * np.arange(x.shape[axis], dtype=np.int64)
            return [rows], lambda system, xs: system.folded(of(system), xs[0])

        return self.node((of, axis), shape, (x,), plan)

    def running(self, x: Node, attrs: Attrs | None, batch: int) -> Node:
        """Running sums along a dimension: what is folded for an element, and zeros."""
        assert isinstance(attrs, RunningAttrs)
        axis = batch + attrs.dim
        extent, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
        steps = np.arange(extent, dtype=np.int64)
        backward, exclusive = attrs.backward, attrs.exclusive

        def plan(at: Index) -> tuple[list[Index], Combine]:
            self.afford(len(at) * extent)
            first, place = at // (inner * extent) * (inner * extent) + at % inner, (at // inner % extent)[:, None]
            summed = (steps >= place if backward else steps <= place) & ~(exclusive & (steps == place))

            def combine(system: System, xs: Sequence[Array]) -> Array:
                taken = np.full_like(xs[0], fmpq(0))
                np.copyto(taken, xs[0], where=summed)
                return system.folded(ADD(system), taken)

            return [first[:, None] + inner * steps], combine

        return self.node(attrs, x.shape, (x,), plan)

    def matmul(self, x: Node, y: Node, batch: int) -> Node:
        """x @ y."""
        x, y = self.aligned((x, y), batch)
        lead = tuple(np.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
        (rows, inner), columns = x.shape[-2:], y.shape[-1]

        def plan(at: Index) -> tuple[list[Index], Combine]:
            self.afford(2 * len(at) * inner)
            outer, row, column = at // (rows * columns), at // columns % rows, at % columns
            steps = np.arange(inner, dtype=np.int64)
            left = (broadcast(outer, lead, x.shape[:-2]) * rows + row)[:, None] * inner + steps
            right = (broadcast(outer, lead, y.shape[:-2])[:, None] * inner + steps) * columns + column[:, None]
            made = tables(outer, left[:, 0], right[:, 0])

            def combine(system: System, xs: Sequence[Array]) -> Array:
                found = summed(made, *xs) if isinstance(system, Reals) else None
                return system.product(*xs) if found is None else found

            return [left, right], combine

        return self.node("matmul", (*lead, rows, columns), (x, y), plan)

    def rescaled(self, x: Node, old: Node, new: Node, batch: int) -> Node:
        """x * exp(old - new)."""
        self.exponents = True
        return self.each(Of("rescaled"), (x, old, new), batch)

    def view(self, value: Node, move: Move) -> Node:
        places = _moved(move, value.shape)
        how = places if places.listed is None else object()
        return self.node(how, places.shape, (value,), lambda at: ([places(at)], lambda system, xs: xs[0]))

    def join(self, parts: Sequence[Node], dim: int, batch: int) -> Node:
        grid = tuple(np.broadcast_shapes(*(x.shape[:batch] for x in parts)))
        wide = [(*grid, *x.shape[batch:]) for x in parts]
        axis = batch + dim
        ends = list(itertools.accumulate(shape[axis] for shape in wide))
        shape = (*wide[0][:axis], ends[-1], *wide[0][axis + 1 :])
        inner = math.prod(shape[axis + 1 :])

        def plan(at: Index) -> tuple[list[Index], Combine]:
            outer, place, rest = at // (inner * shape[axis]), at // inner % shape[axis], at % inner
            of = np.searchsorted(ends, place, side="right")
            wanted = []
            for number, (part, whole) in enumerate(zip(parts, wide, strict=True)):
                here = of == number
                flat = (outer * whole[axis] + place - ends[number] + whole[axis]) * inner + rest
                wanted.append(np.where(here, broadcast(np.where(here, flat, 0), whole, part.shape), -1))

            def combine(system: System, xs: Sequence[Array]) -> Array:
                found = xs[0].copy()
                for number, x in enumerate(xs[1:], 1):
                    np.copyto(found, x, where=of == number)
                return found

            return wanted, combine

        return self.node(("join", axis), shape, parts, plan)

    def fold(self, kind: AccumKind, state: tuple[Node, ...], operands: Sequence[Node], batch: int) -> tuple[Node, ...]:
        if not state:
            return tuple(self.aligned(operands, batch))
        self.decides |= kind in (AccumKind.MAX, AccumKind.RESCALE)
        match kind:
            case AccumKind.SUM:
                return (self.each(ADD, (state[0], operands[0]), batch),)
            case AccumKind.MAX:
                return (self.each(MAXIMUM, (state[0], operands[0]), batch),)
            case AccumKind.HOLD:
                return state
            case AccumKind.RESCALE:
                (total, top), (x, m) = state, self.aligned(operands, batch)
                new = self.each(MAXIMUM, (top, m), batch)
                both = self.rescaled(total, top, new, batch), self.rescaled(x, m, new, batch)
                return (self.each(ADD, both, batch), new)
            case AccumKind.CONCAT:
                raise GraphError("tiles are joined, not folded")


@dataclass(frozen=True, slots=True)
class Places:
    """Where the elements of a moved tensor were: by their addresses in memory that is never touched, else listed."""

    shape: Shape
    strides: tuple[int, ...] = ()
    start: int = 0
    listed: Index | None = None

    def __call__(self, at: Index) -> Index:
        if self.listed is not None:
            return self.listed[at]
        found = np.full_like(at, self.start)
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            found += at % extent * stride
            at = at // extent
        return found


def _moved(move: Move, shape: Shape) -> Places:
    """Where a move takes the elements of a tensor from."""
    count = math.prod(shape)
    untouched = np.empty(count, np.bool_).reshape(shape)
    if not (isinstance(move, arrays.Split) and move.pads(shape)):
        moved = move(untouched)
        if np.may_share_memory(moved, untouched):
            start = moved.__array_interface__["data"][0] - untouched.__array_interface__["data"][0]
            return Places(moved.shape, moved.strides, start)
    if count > MAX_MOVED:
        raise TooMuch
    numbered = move(np.arange(1, count + 1, dtype=np.int64).reshape(shape))
    return Places(numbered.shape, listed=np.asarray(numbered, np.int64).reshape(-1) - 1)


ADD, MAXIMUM = Of("scalar", ("add",)), Of("scalar", ("maximum",))
Rule = Callable[[SliceAlgebra, Sequence[Node], Attrs | None, int], Node]


def _arange(algebra: SliceAlgebra, operands: Sequence[Node], attrs: Attrs | None, batch: int) -> Node:
    assert isinstance(attrs, ArangeAttrs)
    shape = (*(1,) * batch, attrs.extent)
    return algebra.node("arange", shape, (), lambda at: ([], lambda system, xs: over(fmpq, at.astype(object))))


def _rescaled_sum(algebra: SliceAlgebra, operands: Sequence[Node], attrs: Attrs | None, batch: int) -> Node:
    x, m = algebra.aligned(operands, batch)
    axis = len(x.shape) - len(operands[0].shape) + arrays.reduced_axis(attrs, batch)
    top = algebra.rows(MAXIMUM, m, axis)
    return algebra.rows(ADD, algebra.rescaled(x, m, top, batch), axis)


RULES: Mapping[OpKind, Rule] = {
    OpKind.CONST: lambda algebra, operands, attrs, batch: algebra.constant(arrays.scalar(attrs), batch),
    OpKind.MATMUL: lambda algebra, operands, attrs, batch: algebra.matmul(operands[0], operands[1], batch),
    OpKind.SUM: lambda algebra, operands, attrs, batch: algebra.rows(
        ADD, operands[0], arrays.reduced_axis(attrs, batch)
    ),
    OpKind.MAX: lambda algebra, operands, attrs, batch: algebra.rows(
        MAXIMUM, operands[0], arrays.reduced_axis(attrs, batch)
    ),
    OpKind.RESCALED_SUM: _rescaled_sum,
    OpKind.RUNNING_SUM: lambda algebra, operands, attrs, batch: algebra.running(operands[0], attrs, batch),
    OpKind.ARANGE: _arange,
}
EXPONENTIALS = frozenset({OpKind.EXP, OpKind.SIGMOID, OpKind.SILU})
CHOOSING = frozenset({OpKind.WHERE, OpKind.MAXIMUM, OpKind.MAX, OpKind.RESCALED_SUM, *COMPARISONS})
PARTIAL: Mapping[OpKind, int] = {OpKind.DIV: 1, OpKind.SQRT: 0}
PARTIAL_SCALARS: Mapping[str, int] = {"div": 1, "sqrt": 0, "log": 0}
"""The operand for some of whose numbers there is no value."""
