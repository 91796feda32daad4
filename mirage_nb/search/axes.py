"""Prepare a tensor program for the search: name its axes, and say it again over axes instead of dimensions.

In: a kernel graph of pre-defined operators. Out: `Prepared`, plain picklable data: the axes, the tensors as
sets of axes, and the program as operators on axes, in which transposes, reshapes and repeats have vanished.
Every dimension carries the identity of its axis, or of several where reshapes split it (heads); kernels read
and write such tensors through views that have a dimension for each. No tensor has the same axis twice: where
a program makes a tensor meet itself (X @ X^T), the input is read under several aliases with an axis of its
own each. What cannot be said over axes raises SearchError; the result is never another program.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count, islice, zip_longest

from mirage_nb.errors import SearchError
from mirage_nb.ir import ConstAttrs, DType, KernelGraph, Op, OpKind, PowAttrs
from mirage_nb.ir.windows import WHOLE, Share
from mirage_nb.search.dims import Conflict, Copy, Dims, folded_dim
from mirage_nb.search.dims import Layout as Groups
from mirage_nb.search.saturation.values import DATA, TILE, Node, Operator, Type
from mirage_nb.search.wordings.said import Said

Layout = tuple[int | None, ...]
"""The axis of every dimension; None for extent 1."""
FOLDS = frozenset({OpKind.SUM, OpKind.MAX, OpKind.RESCALED_SUM, OpKind.MATMUL})
"""Operators of a program over axes that fold one."""


def flat(groups: Groups) -> Layout:
    """The view of a tensor in which every dimension has at most one axis."""
    return tuple(axis for group in groups for axis in (group or (None,)))


def shape_of(groups: Groups, extents: Sequence[int]) -> tuple[int, ...]:
    """The shape of a tensor when the axes have these extents."""
    return tuple(math.prod(extents[axis] for axis in group) for group in groups)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the program. `name` is for people: what the program calls its extent, if it does; `letter` comes from
    its place among the axes. `reduced`: some operator folds it, so grid, loop and tile split it in parts.

    `whole`: kernels do not cut it, since a concatenation joins it with another one, or made it so.
    `dims` are the (input, dimension) pairs that lie along it; aliased axes share them.
    """

    name: str
    extent: int
    reduced: bool
    dims: tuple[tuple[int, int], ...]
    whole: bool = False
    letter: str = ""

    @property
    def full(self) -> int:
        """Its code in the type of a tensor that has all of it."""
        return DATA if self.reduced and not self.whole else TILE


@dataclass(frozen=True, slots=True)
class Join:
    """Axis `whole` is axis `first`, then axis `second`; None: one element."""

    whole: int
    first: int | None
    second: int | None


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input of the program under one alias: the axes of every dimension, outermost first. share: what it is of a
    tensor of which several inputs are parts, by the dimensions of its view; boxed: of a part, whether the copy engine
    brings boxes of it."""

    name: str
    input: int
    dims: Groups
    share: Share = WHOLE
    boxed: bool | None = None

    @property
    def axes(self) -> Layout:
        """The axis of every dimension of its view."""
        return flat(self.dims)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A tensor program, ready for the search. `program` is in definition order, leaves included.

    `output_dims`: the axes of every dimension of the outputs. `shapes`: the same for all values of `graph` that
    the outputs need, by value. `joins`: what concatenations make of axes, operands first. `refused`: why the program
    as a whole cannot be said over axes; it has none then, and only its pieces are searched. `said`: the program whose
    inputs and outputs muGraphs have at its own extents, of which `graph` says the same; None: that is `graph`.
    """

    graph: KernelGraph
    seed: int
    axes: tuple[Axis, ...]
    tensors: tuple[Tensor, ...]
    constants: tuple[ConstAttrs, ...]
    program: tuple[Node, ...]
    outputs: tuple[int, ...]
    output_dims: tuple[Groups, ...]
    shapes: Mapping[int, Groups]
    joins: tuple[Join, ...] = ()
    refused: str = ""
    said: Said | None = None

    def whole(self, graph: KernelGraph) -> KernelGraph:
        """A muGraph at the program's own extents with the inputs and outputs of the program that was given."""
        return graph if self.said is None else self.said.whole(graph)

    def inner(self, graph: KernelGraph) -> KernelGraph:
        """A muGraph of the program that was given with the inputs and outputs of `self.graph`; any other as it is."""
        return graph if self.said is None else self.said.inner(graph)

    def __hash__(self) -> int:
        return hash((self.seed, self.axes, self.tensors, self.outputs))

    @property
    def output_axes(self) -> tuple[Layout, ...]:
        """The axis of every dimension of the views in which the outputs are written."""
        return tuple(map(flat, self.output_dims))

    def named(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Sizes, named as in `Instance.sizes`, whose last words may be letters of axes, under the names of these."""
        names = {axis.letter: axis.name for axis in self.axes} | {axis.name: axis.name for axis in self.axes}
        parts = ((key.rpartition(" "), size) for key, size in sizes.items())
        return {f"{role} {names.get(word, word)}".lstrip(): size for (role, _, word), size in parts}

    @property
    def spans(self) -> tuple[frozenset[int], ...]:
        """For every node of the program the axes that its value has."""
        found: list[frozenset[int]] = []
        for operator, args in self.program:
            axes = frozenset[int]().union(*(found[a] for a in args))
            if operator.kind is OpKind.IN_ITER:
                axes = frozenset(axis for axis in self.tensors[operator.leaf].axes if axis is not None)
            elif operator.kind is OpKind.CONCAT:
                join = self.join(operator.axis)
                axes = axes - {join.first, join.second} | {operator.axis}
            found.append(axes - {operator.axis} if operator.kind in FOLDS else axes)
        return tuple(found)

    def type_of(self, axes: Collection[int | None]) -> Type:
        """The type of a tensor that has these axes whole."""
        return tuple(axis.full if index in axes else 0 for index, axis in enumerate(self.axes))

    @property
    def operators(self) -> frozenset[Operator]:
        """What the program computes with, axes left out."""
        return frozenset(op._replace(axis=-1) for op, _ in self.program if not op.is_leaf)

    @property
    def reduced(self) -> tuple[int, ...]:
        """The axes that have parts."""
        return tuple(i for i, axis in enumerate(self.axes) if axis.reduced and not axis.whole)

    @property
    def free(self) -> tuple[int, ...]:
        """The axes along which every operator is pointwise, and which kernels may cut."""
        return tuple(i for i, axis in enumerate(self.axes) if not axis.reduced and not axis.whole)

    def join(self, whole: int) -> Join:
        """How an axis was made by a concatenation."""
        return next(join for join in self.joins if join.whole == whole)

    def joined(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Extents of the axes, those that concatenations make as long as their parts together."""
        made = list(extents)
        for join in self.joins:
            whole = sum(1 if axis is None else made[axis] for axis in (join.first, join.second))
            for axis in self.alike(join.whole):
                made[axis] = whole
        return tuple(made)

    def read_as(self, axis: int) -> DType | None:
        """The widest type of computed operands of the program's products along an axis."""
        made = {v for _, values in self.graph.definitions() for v in values}
        found = [
            self.graph.types[v].dtype
            for op in self.graph.ops
            if op.kind is OpKind.MATMUL and axis in self.shapes.get(op.inputs[0], ((),))[-1]
            for v in op.inputs
            if v in made
        ]
        return max(found, key=lambda dtype: dtype.size, default=None)

    def alike(self, axis: int) -> tuple[int, ...]:
        """The axes that are as long as one in any case: itself, and those of the same dimensions of inputs."""
        dims = {*self.axes[axis].dims}
        return tuple(i for i, other in enumerate(self.axes) if i == axis or not dims.isdisjoint(other.dims))


def prepare(
    graph: KernelGraph,
    *,
    seed: int = 0,
    otherwise: bool = True,
    apart: Collection[tuple[int, int]] = (),
    shares: Sequence[Share] = (),
) -> Prepared:
    """The program over axes; without any where it cannot be said over axes, with the reason.

    Args:
        graph: a tensor program: pre-defined operators only.
        seed: of the random field elements; equal seeds give equal searches.
        otherwise: the program may be said otherwise (`search.wordings.said`).
        apart: gaps of inputs whose elements do not lie one after the other there (`search.wordings.coalesced`).
        shares: of each input, what it is of a tensor of which several are parts (`ir.windows`); default: all.

    Raises:
        SearchError: the program returns nothing.
    """
    if not graph.outputs:
        raise SearchError("the program returns nothing", hint="name the outputs of the program")
    said = Said.of(graph, apart) if otherwise else Said(graph, graph)
    try:
        prepared, given = over_axes(said.program, seed=seed), graph
        if said.parts is not None:
            given, shares, boxed = said.parts.program, said.parts.shares, said.parts.boxed
            prepared = replace(prepared, tensors=tuple(replace(t, boxed=boxed[t.input]) for t in prepared.tensors))
        if shares:
            pairs = [(g.type.shape, i.type.shape) for g, i in zip(given.inputs, said.program.inputs, strict=True)]
            own = [share.coalesced(*pair) for share, pair in zip(shares, pairs, strict=True)]
            tensors = tuple(replace(t, share=_by_axes(own[t.input], t.dims)) for t in prepared.tensors)
            prepared = replace(prepared, tensors=tensors)
        return prepared if said.program is graph else replace(prepared, said=said)
    except SearchError as why:
        return Prepared(graph, seed, (), (), (), (), (), (), {}, refused=str(why))


def _by_axes(share: Share, dims: Groups) -> Share:
    """By the dimensions of a view: of those that are one dimension of the tensor, the last one has what lies beside."""
    beside = (n for group, own in zip(dims, share.beside, strict=False) for n in (*(0 for _ in group[1:]), own))
    return replace(share, beside=tuple(beside))


def over_axes(graph: KernelGraph, *, seed: int = 0) -> Prepared:
    """The program over axes.

    Raises:
        SearchError: an operator or a change of shape that cannot be said over axes.
    """
    for shared in (True, False):
        table = Dims(graph, shared)
        try:
            table.solve()
        except Conflict:
            continue
        return _Writer(graph, table, seed).write()
    raise SearchError("two dimensions of one tensor share an axis, and reading the inputs under aliases does not help")


class _Writer:
    """Writes the program over axes: equal copies become one operator, views none at all."""

    def __init__(self, graph: KernelGraph, table: Dims, seed: int) -> None:
        self._graph = graph
        self._table = table
        self._seed = seed
        self._axis_of: dict[int, int] = {}
        self._layouts: list[Groups] = []
        self._program: dict[Node, int] = {}
        self._has: list[frozenset[int]] = []
        self._tensors: dict[tuple[int, Groups], int] = {}
        self._constants: dict[ConstAttrs, int] = {}
        self._folds: set[int] = set()
        self._joins: dict[int, Join] = {}

    def write(self) -> Prepared:
        """The whole program."""
        table = self._table
        inputs = [n for n, copy in enumerate(table.copies) if copy.value < self._graph.input_count]
        symbols = [*map(table.layout, table.copies)]
        for number in [*sorted(inputs, key=lambda n: table.copies[n].value), *range(len(symbols))]:
            for symbol in (s for dim in symbols[number] for s in dim):
                self._axis_of.setdefault(symbol, len(self._axis_of))
        self._layouts = [tuple(tuple(self._axis_of[s] for s in dim) for dim in layout) for layout in symbols]
        written: list[int] = []
        for number, copy in enumerate(table.copies):
            written.append(self._write(number, copy, tuple(written[r] for r in copy.reads)))
        for root in table.roots:
            self._require(written[root], {a for dim in self._layouts[root] for a in dim}, "an output")
        return Prepared(
            graph=self._graph,
            seed=self._seed,
            axes=self._axes(),
            tensors=tuple(Tensor(self._graph.inputs[i].name, i, dims) for i, dims in self._tensors),
            constants=tuple(self._constants),
            program=tuple(self._program),
            outputs=tuple(written[r] for r in table.roots),
            output_dims=tuple(self._layouts[r] for r in table.roots),
            shapes={c.value: layout for c, layout in zip(reversed(table.copies), reversed(self._layouts), strict=True)},
            joins=tuple(self._joins.values()),
        )

    def _require(self, value: int, axes: set[int], what: str) -> None:
        """What was only repeated along an axis does not have it, so nothing may fold or store it there."""
        if not axes <= self._has[value]:
            raise SearchError(
                f"{what} along an axis on which its operand is only repeated",
                hint="let the repeated tensor meet one that has all of the elements",
            )

    def _emit(self, operator: Operator, args: tuple[int, ...] = (), has: frozenset[int] | None = None) -> int:
        index = self._program.setdefault((operator, args), len(self._program))
        if index == len(self._has):
            of_args = frozenset[int]().union(*(self._has[a] for a in args))
            self._has.append(of_args - {operator.axis} if has is None else has)
        return index

    def _write(self, number: int, copy: Copy, args: tuple[int, ...]) -> int:
        if copy.value < self._graph.input_count:
            dims = self._layouts[number]
            leaf = self._tensors.setdefault((copy.value, dims), len(self._tensors))
            return self._emit(Operator(OpKind.IN_ITER, leaf=leaf), has=frozenset(a for dim in dims for a in dim))
        op = self._table.op_of[copy.value]
        layouts = tuple(self._layouts[r] for r in copy.reads)
        match op.kind:
            case OpKind.CONST:
                assert isinstance(op.attrs, ConstAttrs)
                leaf = self._constants.setdefault(op.attrs, len(self._constants))
                return self._emit(Operator(OpKind.CONST, leaf=leaf))
            case OpKind.TRANSPOSE | OpKind.RESHAPE | OpKind.REPEAT | OpKind.CAST:
                return args[0]
            case OpKind.SUM:
                self._require(args[0], set(layouts[0][folded_dim(op)]), "a sum")
                return self._folded(op.kind, layouts[0][folded_dim(op)], args[0])
            case OpKind.MAX:
                return self._folded(op.kind, layouts[0][folded_dim(op)], args[0])
            case OpKind.RESCALED_SUM:
                self._require(args[0], set(layouts[0][folded_dim(op)]), "a rescaled sum")
                return self._rescaled(layouts[0][folded_dim(op)], *args)
            case OpKind.RUNNING_SUM:
                return self._running(op, layouts[0][folded_dim(op)], args[0])
            case OpKind.MATMUL:
                return self._matmul(layouts[0][-1], args[0], args[1])
            case OpKind.CONCAT_MATMUL:
                first = self._matmul(layouts[0][-1], args[0], args[2])
                return self._emit(Operator(OpKind.ADD), (first, self._matmul(layouts[1][-1], args[1], args[3])))
            case OpKind.CONCAT:
                return self._concatenated(copy, args)
            case OpKind.MUL if args[0] == args[1]:
                return self._emit(Operator(OpKind.SQR), args[:1])
            case OpKind.POW:
                assert isinstance(op.attrs, PowAttrs)
                return self._power(op.attrs, args)
            case _:
                return self._emit(Operator(op.kind, attrs=op.attrs), args)

    def _folded(self, kind: OpKind, dim: Sequence[int], value: int) -> int:
        """A reduction along every axis of a dimension that the value has, the innermost first."""
        for axis in reversed(dim):
            if axis in self._has[value]:
                self._folds.add(axis)
                value = self._emit(Operator(kind, axis=axis), (value,))
        return value

    def _rescaled(self, dim: Sequence[int], value: int, shift: int) -> int:
        """A rescaled sum along every axis of a dimension: what is left of the shift is its maximum."""
        for place, axis in enumerate(reversed(dim), 1):
            self._folds.add(axis)
            value = self._emit(Operator(OpKind.RESCALED_SUM, axis=axis), (value, shift))
            shift = self._folded(OpKind.MAX, [axis], shift) if place < len(dim) else shift
        return value

    def _running(self, op: Op, dim: Sequence[int], value: int) -> int:
        """Running sums along the one axis of a dimension, which a block has whole."""
        self._require(value, set(dim), "a running sum")
        if len(dim) != 1:
            raise SearchError("a running sum along a dimension that is cut, or of one element")
        self._folds.update(dim)
        return self._emit(Operator(op.kind, axis=dim[0], attrs=op.attrs), (value,), self._has[value])

    def _matmul(self, dim: Sequence[int], left: int, right: int) -> int:
        """A matmul along the innermost axis that both have, summed along the other axes of the dimension."""
        both = self._has[left] & self._has[right]
        axis = next((a for a in reversed(dim) if a in both), None)
        if axis is None:
            product = self._emit(Operator(OpKind.MUL), (left, right))
        else:
            self._folds.add(axis)
            product = self._emit(Operator(OpKind.MATMUL, axis=axis), (left, right))
        rest = [a for a in dim if a != axis]
        self._require(product, set(rest), "a matmul")
        return self._folded(OpKind.SUM, rest, product)

    def _concatenated(self, copy: Copy, args: tuple[int, ...]) -> int:
        """One tensor after the other along an axis of their own, which has no parts."""
        first, second, whole = (next((self._axis_of[s] for s in side), None) for side in self._table.join(copy))
        assert whole is not None
        own = [frozenset[int]() if axis is None else {axis} for axis in (first, second)]
        for arg, axes in zip(args, own, strict=True):
            self._require(arg, set(axes), "a concatenation")
        rest, other = (self._has[arg] - axes for arg, axes in zip(args, own, strict=True))
        if rest != other:
            raise SearchError("the two parts of a concatenation are repeated along different axes")
        if self._joins.setdefault(whole, Join(whole, first, second)) != Join(whole, first, second):
            raise SearchError("concatenations of different extents share an axis")
        return self._emit(Operator(OpKind.CONCAT, axis=whole), args, rest | {whole})

    def _power(self, attrs: PowAttrs, args: tuple[int, ...]) -> int:
        kinds = {Fraction(2): OpKind.SQR, Fraction(1, 2): OpKind.SQRT}
        if attrs.exponent == 1:
            return args[0]
        kind = kinds.get(attrs.exponent)
        return self._emit(Operator(OpKind.POW, attrs=attrs) if kind is None else Operator(kind), args)

    def _axes(self) -> tuple[Axis, ...]:
        found: dict[int, set[tuple[int, int]]] = {axis: set() for axis in self._axis_of.values()}
        for value, dims in self._tensors:
            for dim, axis in enumerate(flat(dims)):
                if axis is not None:
                    found[axis].add((value, dim))
        siblings = _closed(found)
        joined = {axis for join in self._joins.values() for axis in (join.whole, join.first, join.second)}
        extents = {axis: self._table.symbols.extent[symbol] for symbol, axis in self._axis_of.items()}
        supply = list(islice(letters(), len(found)))
        return tuple(
            Axis(
                name,
                extents[axis],
                not self._folds.isdisjoint(siblings[axis]),
                tuple(sorted(found[axis])),
                whole=not joined.isdisjoint(siblings[axis]),
                letter=letter,
            )
            for axis, name, letter in zip(found, self._names(supply), supply, strict=True)
        )

    def _names(self, letters: Sequence[str]) -> list[str]:
        """What the program calls the axes where it does, made unique, else their letters: the one place of names."""
        called: dict[int, str] = {}
        for value, dims in self._tensors:
            for name, axes in zip(self._graph.inputs[value].dims, dims, strict=False):
                if name and len(axes) == 1:
                    called.setdefault(axes[0], name)
        names: dict[int, str] = {}
        for axis in sorted(range(len(letters)), key=lambda axis: (axis not in called, axis)):
            name = called.get(axis, letters[axis])
            while name in names.values():
                name += "'"
            names[axis] = name
        return [names[axis] for axis in range(len(letters))]


def _closed(dims: dict[int, set[tuple[int, int]]]) -> dict[int, set[int]]:
    """For every axis, the axes whose parts must be cut like its own: they lie along the same data."""
    groups = {axis: {axis} for axis in dims}
    for axis, own in dims.items():
        for other, theirs in dims.items():
            if not own.isdisjoint(theirs) and groups[axis] is not groups[other]:
                joined = groups[axis] | groups[other]
                for member in joined:
                    groups[member] = joined
    return groups


def letters() -> Iterator[str]:
    """Names of axes without one, but those of grid dims (x, y, z) and of the for-loop (i)."""
    known = "abcdefghjklmnopqrstuvw"
    yield from known
    yield from (f"{letter}{number}" for number in count(1) for letter in known)


def broadcast_layouts(first: Layout, second: Layout) -> Layout:
    """The axes of two tiles on the dimensions of their elementwise result."""
    pairs = [*zip_longest(reversed(first), reversed(second))]
    return tuple(b if a is None else a for a, b in reversed(pairs))


def spread_layout(layout: Sequence[int | None], before: Sequence[int], after: Sequence[int]) -> Layout:
    """The axes of a tile on the dimensions of another shape of it, the last ones first: new extents of 1 lead."""
    left = [(axis, extent) for axis, extent in zip(layout, before, strict=True) if axis is not None]
    found = [left.pop()[0] if left and left[-1][1] == extent else None for extent in reversed(after)]
    return tuple(reversed(found))
