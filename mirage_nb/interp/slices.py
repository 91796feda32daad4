"""Single elements of the outputs of a graph, and of nothing that they do not depend on.

In: a graph, and flat indices of output elements. Out: a `Slice`: for every value the elements that are needed, and
these computed over `numbers` on inputs that are functions of an index. So a few elements of a large graph cost what
they depend on, whatever the shapes are. A walk like the interpreters', and the places of elements are found by moving
their numbers: what blocks, loops and views mean is said in `run` and `arrays` alone.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import GraphError
from mirage_nb.interp import arrays, numbers
from mirage_nb.interp.arrays import Move
from mirage_nb.interp.numbers import Array, fmpq
from mirage_nb.interp.run import run_kernel
from mirage_nb.ir import AccumKind, ApplyAttrs, ArangeAttrs, DimAttrs, KernelGraph, OpKind, PowAttrs, formula
from mirage_nb.ir.ops import Attrs, Shape

Index = NDArray[np.int64]
"""Flat indices; those beyond the end of an operand are -1: zeros stand there."""

Combine = Callable[[Sequence[Array]], Array]
Plan = Callable[[Index], tuple[list[Index], Combine]]
"""For elements of a result: which elements of the operands they take, and what makes them of these."""

MAX_TAKEN = 400_000
"""Elements that may be taken altogether."""
MAX_MOVED = 2**26
"""Elements of a tensor whose numbers are moved where moving it is no view."""


class TooMuch(Exception):
    """The elements depend on more than is looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One value of a graph; nodes have numbers above those of their operands. An input has a name and no plan."""

    number: int
    shape: Shape
    operands: tuple[Node, ...]
    plan: Plan | None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """The elements of a node that are needed, ascending, and how they are made."""

    node: Node
    at: Index
    wanted: tuple[Index, ...]
    combine: Combine | None


Draw = Callable[[str, Index], Array]
"""Numbers for elements of an input."""


class Slice:
    """Some output elements of a graph, ready to be computed on any inputs. `operators`: which of those operators of the
    walk that some numbers have no value in are behind them, by number.

    Raises TooMuch; GraphError where an evaluation does.
    """

    def __init__(self, graph: KernelGraph, wanted: Sequence[Index], limit: int = MAX_TAKEN) -> None:
        self._limit = limit
        algebra = SliceAlgebra(limit)
        leaves = [algebra.node(i.type.shape, (), None, name=i.name) for i in graph.inputs]
        values = run_kernel(graph, leaves, algebra)
        found = [values[v] for v in graph.outputs]
        shapes = [graph.types[v].shape for v in graph.outputs]
        self._outputs = [
            (node, _broadcast(at, shape, node.shape)) for node, at, shape in zip(found, wanted, shapes, strict=True)
        ]
        self.taken = tuple(_taken(self._outputs, limit))
        wanted_of = {taken.node: taken.wanted for taken in self.taken}
        self._places = places = {taken.node: taken.at for taken in self.taken}
        used = [number for number, (node, _) in enumerate(algebra.critical) if node in wanted_of]
        self.operators = tuple(used)
        self._maxima = [node for node in algebra.maxima if node in places]
        self._critical = [
            (node.operands[operand], np.searchsorted(places[node.operands[operand]], _there(wanted_of[node][operand])))
            for node, operand in (algebra.critical[number] for number in used)
        ]

    def critical(self, draw: Draw) -> list[Array]:
        """What the elements divide by, and take roots, powers and logarithms of, operator by operator."""
        made = self._made(draw)
        return [made[node][at] for node, at in self._critical]

    def numbers(self, draw: Draw) -> tuple[list[Array], list[Array]]:
        """What `critical` gives, and the maxima behind the elements."""
        made = self._made(draw)
        return [made[node][at] for node, at in self._critical], [made[node] for node in self._maxima]

    def reads(self, operator: int, places: Sequence[int]) -> dict[str, Index]:
        """The input elements that some of the numbers depend on that `critical` gives for an operator."""
        node, at = self._critical[operator]
        wanted = self._places[node][at[np.asarray(places)]]
        return {t.node.name: t.at for t in _taken([(node, wanted)], self._limit) if t.combine is None}

    def compute(self, draw: Draw) -> list[Array]:
        """The output elements."""
        made = self._made(draw)
        return [self._of(made, node, at) for node, at in self._outputs]

    @property
    def is_total(self) -> bool:
        """Whether the elements have a value whatever the inputs are."""
        return not self._critical

    def _made(self, draw: Draw) -> dict[Node, Array]:
        made: dict[Node, Array] = {}
        for taken in self.taken:
            if taken.combine is None:
                made[taken.node] = draw(taken.node.name, taken.at)
                continue
            given = zip(taken.node.operands, taken.wanted, strict=True)
            made[taken.node] = taken.combine([self._of(made, node, at) for node, at in given])
        return made

    def _of(self, made: Mapping[Node, Array], node: Node, at: Index) -> Array:
        beyond = at < 0
        if not beyond.any():
            return made[node][np.searchsorted(self._places[node], at)]
        found = np.full(at.shape, numbers.ZERO, object)
        found[~beyond] = made[node][np.searchsorted(self._places[node], at[~beyond])]
        return found


def _there(at: Index) -> Index:
    return np.unique(at[at >= 0])


def _taken(outputs: Sequence[tuple[Node, Index]], limit: int) -> list[Taken]:
    """What outputs need, operands first. Raises TooMuch."""
    needs: dict[Node, list[Index]] = {}
    waiting: list[tuple[int, Node]] = []

    def need(node: Node, at: Index) -> None:
        if node not in needs:
            needs[node] = []
            heapq.heappush(waiting, (-node.number, node))
        needs[node].append(at)

    for node, at in outputs:
        need(node, at)
    found: list[Taken] = []
    count = 0
    while waiting:
        node = heapq.heappop(waiting)[1]
        at = np.unique(np.concatenate([part.reshape(-1) for part in needs.pop(node)]))
        at = at[at >= 0]
        if node.plan is None:
            found.append(Taken(node, at, (), None))
            continue
        wanted, combine = node.plan(at)
        count += 1 + sum(part.size for part in wanted)
        if count > limit:
            raise TooMuch
        found.append(Taken(node, at, tuple(wanted), combine))
        for operand, part in zip(node.operands, wanted, strict=True):
            need(operand, part)
    return found[::-1]


def _broadcast(at: Index, shape: Shape, narrow: Shape) -> Index:
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
    """The algebra whose values are nodes; the methods are those of `run.Algebra`."""

    limit: int
    critical: list[tuple[Node, int]] = field(default_factory=list)
    """What has no value for some numbers, and for which operand."""
    maxima: list[Node] = field(default_factory=list)
    """What maxima of tensors are."""
    _count: Iterator[int] = field(default_factory=itertools.count)

    def afford(self, count: int) -> None:
        """Raise TooMuch for more numbers than may be taken."""
        if count > self.limit:
            raise TooMuch

    def node(self, shape: Shape, operands: Sequence[Node], plan: Plan | None, name: str = "") -> Node:
        """A new value."""
        return Node(next(self._count), shape, tuple(operands), plan, name=name)

    def apply(self, kind: OpKind, operands: Sequence[Node], attrs: Attrs | None, batch: int) -> Node:
        if kind in RULES:
            made = RULES[kind](self, operands, attrs, batch)
            if kind is OpKind.MAX:
                self.maxima.append(made)
            return made
        if kind in MOVES:
            move: Move = functools.partial(MOVES[kind], attrs=attrs, batch=batch)
            return self.view(operands[0], move)
        if isinstance(attrs, ApplyAttrs):
            return self.formula(attrs, operands[0], batch)
        made = self.each(numbers.elementwise(kind, attrs), operands, batch)
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
            made = self.each(numbers.strict(numbers.SCALARS[name]), xs, batch)
            if name in PARTIAL_SCALARS:
                self.critical.append((made, PARTIAL_SCALARS[name]))
            return made

        def power(base: Node, exponent: Fraction) -> Node:
            made = self.each(numbers.strict(functools.partial(numbers.power, exponent)), (base,), batch)
            self._note_power(made, exponent)
            return made

        number = functools.partial(self.number, batch=batch)
        table: dict[str, Callable[..., Node]] = {name: functools.partial(step, name) for name in numbers.SCALARS}
        table["pow"] = power
        table["log1p"] = lambda x: step("log", step("add", number(numbers.ONE), x))
        return formula.fold(formula.read(attrs.formula), x, lambda value: number(numbers.rational(value)), table)

    def number(self, value: numbers.Number, batch: int) -> Node:
        """A number."""
        return self.node((1,) * batch, (), lambda at: ([], lambda xs: np.full(len(at), value, object)))

    def each(self, operation: numbers.Operation, operands: Sequence[Node], batch: int) -> Node:
        """An elementwise operation."""
        given = self.aligned(operands, batch)
        shape = tuple(np.broadcast_shapes(*(x.shape for x in given)))

        def plan(at: Index) -> tuple[list[Index], Combine]:
            return [_broadcast(at, shape, x.shape) for x in given], lambda xs: numbers.over(operation, *xs)

        return self.node(shape, given, plan)

    def aligned(self, operands: Sequence[Node], batch: int) -> list[Node]:
        """The operands with tiles of equal rank: the elements keep their places."""
        rank = max(len(x.shape) for x in operands)
        return [x if len(x.shape) == rank else self._wider(x, rank, batch) for x in operands]

    def _wider(self, x: Node, rank: int, batch: int) -> Node:
        shape = (*x.shape[:batch], *(1,) * (rank - len(x.shape)), *x.shape[batch:])
        return self.node(shape, (x,), lambda at: ([at], lambda xs: xs[0]))

    def rows(self, operation: numbers.Operation, x: Node, axis: int) -> Node:
        """Folds one dimension to extent 1."""
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        inner = math.prod(x.shape[axis + 1 :])

        def plan(at: Index) -> tuple[list[Index], Combine]:
            first = at // inner * (inner * x.shape[axis]) + at % inner
            self.afford(len(at) * x.shape[axis])
            rows = first[:, None] + inner * np.arange(x.shape[axis], dtype=np.int64)
            return [rows], lambda xs: numbers.folded(operation, xs[0])

        return self.node(shape, (x,), plan)

    def matmul(self, x: Node, y: Node, batch: int) -> Node:
        """x @ y."""
        x, y = self.aligned((x, y), batch)
        lead = tuple(np.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
        (rows, inner), columns = x.shape[-2:], y.shape[-1]

        def plan(at: Index) -> tuple[list[Index], Combine]:
            self.afford(2 * len(at) * inner)
            outer, row, column = at // (rows * columns), at // columns % rows, at % columns
            steps = np.arange(inner, dtype=np.int64)
            left = (_broadcast(outer, lead, x.shape[:-2]) * rows + row)[:, None] * inner + steps
            right = (_broadcast(outer, lead, y.shape[:-2])[:, None] * inner + steps) * columns + column[:, None]
            return [left, right], lambda xs: numbers.folded(numbers.ADD, numbers.over(numbers.MULTIPLY, *xs))

        return self.node((*lead, rows, columns), (x, y), plan)

    def rescaled(self, x: Node, old: Node, new: Node, batch: int) -> Node:
        """x * exp(old - new)."""
        return self.each(numbers.rescaled, (x, old, new), batch)

    def view(self, value: Node, move: Move) -> Node:
        places = _moved(move, value.shape)
        return self.node(places.shape, (value,), lambda at: ([places(at)], lambda xs: xs[0]))

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
                start = ends[number] - whole[axis]
                flat = (outer[here] * whole[axis] + place[here] - start) * inner + rest[here]
                wanted.append(_broadcast(flat, whole, part.shape))

            def combine(xs: Sequence[Array]) -> Array:
                found = np.empty(len(at), object)
                for number, x in enumerate(xs):
                    found[of == number] = x
                return found

            return wanted, combine

        return self.node(shape, parts, plan)

    def fold(self, kind: AccumKind, state: tuple[Node, ...], operands: Sequence[Node], batch: int) -> tuple[Node, ...]:
        if not state:
            return tuple(self.aligned(operands, batch))
        match kind:
            case AccumKind.SUM:
                return (self.each(numbers.ADD, (state[0], operands[0]), batch),)
            case AccumKind.MAX:
                return (self.each(numbers.MAXIMUM, (state[0], operands[0]), batch),)
            case AccumKind.HOLD:
                return state
            case AccumKind.RESCALE:
                (total, top), (x, m) = state, self.aligned(operands, batch)
                new = self.each(numbers.MAXIMUM, (top, m), batch)
                both = self.rescaled(total, top, new, batch), self.rescaled(x, m, new, batch)
                return (self.each(numbers.ADD, both, batch), new)
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


Rule = Callable[[SliceAlgebra, Sequence[Node], Attrs | None, int], Node]


def _arange(algebra: SliceAlgebra, operands: Sequence[Node], attrs: Attrs | None, batch: int) -> Node:
    assert isinstance(attrs, ArangeAttrs)
    shape = (*(1,) * batch, attrs.extent)
    return algebra.node(shape, (), lambda at: ([], lambda xs: numbers.over(fmpq, at.astype(object))))


def _concat_matmul(algebra: SliceAlgebra, operands: Sequence[Node], attrs: Attrs | None, batch: int) -> Node:
    w, x, y, z = operands
    return algebra.each(numbers.ADD, (algebra.matmul(w, y, batch), algebra.matmul(x, z, batch)), batch)


def _rescaled_sum(algebra: SliceAlgebra, operands: Sequence[Node], attrs: Attrs | None, batch: int) -> Node:
    x, m = algebra.aligned(operands, batch)
    axis = len(x.shape) - len(operands[0].shape) + arrays.reduced_axis(attrs, batch)
    top = algebra.rows(numbers.MAXIMUM, m, axis)
    return algebra.rows(numbers.ADD, algebra.rescaled(x, m, top, batch), axis)


def _concat(algebra: SliceAlgebra, operands: Sequence[Node], attrs: Attrs | None, batch: int) -> Node:
    assert isinstance(attrs, DimAttrs)
    return algebra.join(operands, attrs.dim, batch)


RULES: Mapping[OpKind, Rule] = {
    OpKind.CONST: lambda algebra, operands, attrs, batch: algebra.number(
        numbers.constant(arrays.scalar(attrs)), batch
    ),
    OpKind.MATMUL: lambda algebra, operands, attrs, batch: algebra.matmul(operands[0], operands[1], batch),
    OpKind.CONCAT_MATMUL: _concat_matmul,
    OpKind.SUM: lambda algebra, operands, attrs, batch: algebra.rows(
        numbers.ADD, operands[0], arrays.reduced_axis(attrs, batch)
    ),
    OpKind.MAX: lambda algebra, operands, attrs, batch: algebra.rows(
        numbers.MAXIMUM, operands[0], arrays.reduced_axis(attrs, batch)
    ),
    OpKind.RESCALED_SUM: _rescaled_sum,
    OpKind.ARANGE: _arange,
    OpKind.CONCAT: _concat,
}
MOVES: Mapping[OpKind, Callable[..., arrays.Array]] = {
    OpKind.REPEAT: arrays.repeat,
    OpKind.RESHAPE: arrays.reshape,
    OpKind.TRANSPOSE: arrays.transpose,
    OpKind.SLICE: arrays.sliced,
    OpKind.PAD: arrays.padded,
}
PARTIAL: Mapping[OpKind, int] = {OpKind.DIV: 1, OpKind.SQRT: 0}
PARTIAL_SCALARS: Mapping[str, int] = {"div": 1, "sqrt": 0, "log": 0}
"""The operand for some of whose numbers there is no value."""
