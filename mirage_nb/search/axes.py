"""Prepare a tensor program for the search: name its axes, and say it again over axes instead of dimensions.

In: a kernel graph of pre-defined operators. Out: `Prepared`, plain picklable data: the axes, the tensors as
sets of axes, and the program as operators on axes, in which transposes and reshapes have vanished. Every
dimension carries the identity of its axis; no tensor has the same axis twice: where a program makes a
tensor meet itself (X @ X^T), the input is read under several aliases with an axis of its own each. What
cannot be said over axes raises SearchError; the result is never another program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from mirage_nb.errors import SearchError
from mirage_nb.ir import OPS, ConstAttrs, DimAttrs, KernelGraph, Op, OpKind, PowAttrs, Trait, TransposeAttrs
from mirage_nb.ir.ops import Shape, show_shape
from mirage_nb.search.values import DATA, TILE, Node, Operator, Type

MAX_COPIES = 1000
"""Largest program, written out as a tree, for which aliases are looked for."""

Layout = tuple[int | None, ...]
"""The axis of every dimension; None for extent 1."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the program. `reduced`: some operator folds it, so grid, loop and tile split it in parts.

    `dims` are the (input, dimension) pairs that lie along it; aliased axes share them.
    """

    name: str
    extent: int
    reduced: bool
    dims: tuple[tuple[int, int], ...]

    @property
    def full(self) -> int:
        """Its code in the type of a tensor that has all of it."""
        return DATA if self.reduced else TILE


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input of the program under one alias: the axis of every dimension (None: extent 1)."""

    name: str
    input: int
    axes: Layout


@dataclass(frozen=True, slots=True)
class Prepared:
    """A tensor program, ready for the search. `program` is in definition order, leaves included."""

    graph: KernelGraph
    seed: int
    axes: tuple[Axis, ...]
    tensors: tuple[Tensor, ...]
    constants: tuple[ConstAttrs, ...]
    program: tuple[Node, ...]
    outputs: tuple[int, ...]
    output_axes: tuple[Layout, ...]

    def type_of(self, axes: Layout) -> Type:
        """The type of a tensor that has these axes whole."""
        return tuple(axis.full if index in axes else 0 for index, axis in enumerate(self.axes))

    @property
    def operators(self) -> frozenset[Operator]:
        """What the program computes with, axes left out."""
        return frozenset(op._replace(axis=-1) for op, _ in self.program if not op.is_leaf)

    @property
    def reduced(self) -> tuple[int, ...]:
        """The axes that have parts."""
        return tuple(i for i, axis in enumerate(self.axes) if axis.reduced)

    @property
    def free(self) -> tuple[int, ...]:
        """The axes along which every operator is pointwise."""
        return tuple(i for i, axis in enumerate(self.axes) if not axis.reduced)


@dataclass(slots=True)
class _Copy:
    """One copy of a value of the graph: the copies it reads, and the dimension symbol of every dimension."""

    value: int
    reads: tuple[int, ...]
    layout: Layout


class _Conflict(Exception):
    """Two dimensions of one tensor would get the same axis."""


def prepare(graph: KernelGraph, *, seed: int = 0) -> Prepared:
    """The program over axes.

    Args:
        graph: a tensor program: pre-defined operators only.
        seed: of the random field elements; equal seeds give equal searches.

    Raises:
        SearchError: an operator or a change of shape that the search does not support.
    """
    if not graph.outputs:
        raise SearchError("the program returns nothing", hint="name the outputs of the program")
    for shared in (True, False):
        table = _Dims(graph, shared)
        try:
            table.solve()
        except _Conflict:
            continue
        return _Writer(graph, table, seed).write()
    raise SearchError(
        "two dimensions of one tensor share an axis, and reading the inputs under aliases does not help"
    )


class _Dims:
    """Union-find over dimension symbols; the copies of the program's values that carry them."""

    def __init__(self, graph: KernelGraph, shared: bool) -> None:
        self.graph = graph
        self.copies: list[_Copy] = []
        self.parent: list[int] = []
        self.extent: list[int] = []
        self.shared = shared
        self.op_of = {v: op for op, values in graph.definitions() for v in values}
        self._memo: dict[int, int] = {}
        self.roots = tuple(self._copy(v) for v in graph.outputs)

    def find(self, symbol: int) -> int:
        """The representative of a dimension symbol."""
        while self.parent[symbol] != symbol:
            symbol = self.parent[symbol]
        return symbol

    def solve(self) -> None:
        """Merge copies of a value wherever that keeps every tensor's axes distinct. Raises _Conflict."""
        if not self._distinct():
            raise _Conflict
        by_value: dict[int, list[int]] = {}
        for index in range(len(self.copies) - 1, -1, -1):
            by_value.setdefault(self.copies[index].value, []).append(index)
        for value in sorted(by_value, reverse=True):
            kept: list[int] = []
            for index in reversed(by_value[value]):
                if not any(self._merged(index, other) for other in kept):
                    kept.append(index)

    def axes(self, layout: Layout) -> Layout:
        """The representatives of a layout's symbols."""
        return tuple(None if s is None else self.find(s) for s in layout)

    def _distinct(self) -> bool:
        for copy in self.copies:
            axes = [a for a in self.axes(copy.layout) if a is not None]
            if len(set(axes)) != len(axes):
                return False
        return True

    def _merged(self, first: int, second: int) -> bool:
        before = list(self.parent)
        self._unify_trees(first, second)
        if self._distinct():
            return True
        self.parent = before
        return False

    def _unify_trees(self, first: int, second: int) -> None:
        a, b = self.copies[first], self.copies[second]
        for x, y in zip(a.layout, b.layout, strict=True):
            if x is not None and y is not None:
                self._unify(x, y)
        for x, y in zip(a.reads, b.reads, strict=True):
            self._unify_trees(x, y)

    def _unify(self, first: int, second: int) -> None:
        a, b = sorted((self.find(first), self.find(second)))
        self.parent[b] = a

    def _fresh(self, extent: int) -> int | None:
        if extent == 1:
            return None
        self.parent.append(len(self.parent))
        self.extent.append(extent)
        return len(self.parent) - 1

    def _copy(self, value: int) -> int:
        if self.shared and value in self._memo:
            return self._memo[value]
        if value < self.graph.input_count:
            reads: tuple[int, ...] = ()
            layout: Layout = tuple(self._fresh(e) for e in self.graph.types[value].shape)
        else:
            op = self.op_of[value]
            reads = tuple(self._copy(v) for v in op.inputs)
            layout = self._layout(op, tuple(self.copies[r].layout for r in reads), value)
        if len(self.copies) > MAX_COPIES:
            raise SearchError(
                "the program is too large to look for aliases", hint="split it into smaller programs"
            )
        self.copies.append(_Copy(value, reads, layout))
        self._memo[value] = len(self.copies) - 1
        return len(self.copies) - 1

    def _layout(self, op: Op, layouts: tuple[Layout, ...], value: int) -> Layout:
        shapes = tuple(self.graph.types[v].shape for v in op.inputs)
        if Trait.ELEMENTWISE in OPS[op.kind].traits:
            return self._aligned(layouts)
        match op.kind:
            case OpKind.CONST:
                return ()
            case OpKind.SUM | OpKind.MAX:
                dim = folded_dim(op)
                return (*layouts[0][:dim], None, *layouts[0][dim + 1 :])
            case OpKind.MATMUL:
                return self._product(layouts[0], layouts[1])
            case OpKind.CONCAT_MATMUL:
                first = self._product(layouts[0], layouts[2])
                return self._aligned((first, self._product(layouts[1], layouts[3])))
            case OpKind.TRANSPOSE:
                assert isinstance(op.attrs, TransposeAttrs)
                return tuple(layouts[0][i] for i in op.attrs.perm)
            case OpKind.RESHAPE:
                return _reshaped(layouts[0], shapes[0], self.graph.types[value].shape)
            case OpKind.REPEAT if shapes[0] == self.graph.types[value].shape:
                return layouts[0]
            case _:
                raise SearchError(
                    f"{op.kind.value} is not supported in a program to search",
                    hint="the search takes matmuls, elementwise operators, sums, maxima and transposes",
                )

    def _aligned(self, layouts: tuple[Layout, ...]) -> Layout:
        rank = max(map(len, layouts), default=0)
        joined: list[int | None] = [None] * rank
        for layout in layouts:
            for position, symbol in enumerate(layout, start=rank - len(layout)):
                held = joined[position]
                if symbol is None:
                    continue
                if held is None:
                    joined[position] = symbol
                else:
                    self._unify(held, symbol)
        return tuple(joined)

    def _product(self, left: Layout, right: Layout) -> Layout:
        if left[-1] is not None and right[-2] is not None:
            self._unify(left[-1], right[-2])
        return (*self._aligned((left[:-2], right[:-2])), left[-2], right[-1])


def folded_dim(op: Op) -> int:
    """The dimension that a reduction folds."""
    assert isinstance(op.attrs, DimAttrs)
    return op.attrs.dim


def _reshaped(layout: Layout, before: Shape, after: Shape) -> Layout:
    if [e for e in before if e != 1] != [e for e in after if e != 1]:
        raise SearchError(
            f"a reshape from {show_shape(before)} to {show_shape(after)} splits or joins axes, "
            "which the search does not support",
            hint="give the tensors their final dimensions as inputs; only extents of 1 may come and go",
        )
    symbols = iter([s for s in layout if s is not None])
    return tuple(None if extent == 1 else next(symbols) for extent in after)


class _Writer:
    """Writes the program over axes: equal copies become one operator, views none at all."""

    def __init__(self, graph: KernelGraph, table: _Dims, seed: int) -> None:
        self._graph = graph
        self._table = table
        self._seed = seed
        self._axis_of: dict[int, int] = {}
        self._program: dict[Node, int] = {}
        self._tensors: dict[tuple[int, Layout], int] = {}
        self._constants: dict[ConstAttrs, int] = {}
        self._folded: set[int] = set()

    def write(self) -> Prepared:
        """The whole program."""
        table = self._table
        inputs = [c for c in table.copies if c.value < self._graph.input_count]
        for copy in sorted(inputs, key=lambda c: c.value):
            for symbol in table.axes(copy.layout):
                if symbol is not None:
                    self._axis_of.setdefault(symbol, len(self._axis_of))
        written: list[int] = []
        for copy in table.copies:
            written.append(self._write(copy, tuple(written[r] for r in copy.reads)))
        outputs = tuple(written[r] for r in table.roots)
        return Prepared(
            graph=self._graph,
            seed=self._seed,
            axes=self._axes(),
            tensors=tuple(Tensor(self._graph.inputs[i].name, i, axes) for i, axes in self._tensors),
            constants=tuple(self._constants),
            program=tuple(self._program),
            outputs=outputs,
            output_axes=tuple(self._layout(table.copies[r].layout) for r in table.roots),
        )

    def _layout(self, layout: Layout) -> Layout:
        return tuple(None if s is None else self._axis_of[s] for s in self._table.axes(layout))

    def _emit(self, operator: Operator, args: tuple[int, ...] = ()) -> int:
        return self._program.setdefault((operator, args), len(self._program))

    def _write(self, copy: _Copy, args: tuple[int, ...]) -> int:
        if copy.value < self._graph.input_count:
            key = (copy.value, self._layout(copy.layout))
            return self._emit(
                Operator(OpKind.IN_ITER, leaf=self._tensors.setdefault(key, len(self._tensors)))
            )
        op = self._table.op_of[copy.value]
        layouts = tuple(self._layout(self._table.copies[r].layout) for r in copy.reads)
        match op.kind:
            case OpKind.CONST:
                assert isinstance(op.attrs, ConstAttrs)
                leaf = self._constants.setdefault(op.attrs, len(self._constants))
                return self._emit(Operator(OpKind.CONST, leaf=leaf))
            case OpKind.TRANSPOSE | OpKind.RESHAPE | OpKind.REPEAT:
                return args[0]
            case OpKind.SUM | OpKind.MAX:
                axis = layouts[0][folded_dim(op)]
                return args[0] if axis is None else self._fold(op.kind, axis, args)
            case OpKind.MATMUL:
                return self._matmul(layouts[0][-1], args[0], args[1])
            case OpKind.CONCAT_MATMUL:
                first = self._matmul(layouts[0][-1], args[0], args[2])
                return self._emit(
                    Operator(OpKind.ADD), (first, self._matmul(layouts[1][-1], args[1], args[3]))
                )
            case OpKind.MUL if args[0] == args[1]:
                return self._emit(Operator(OpKind.SQR), args[:1])
            case OpKind.POW:
                assert isinstance(op.attrs, PowAttrs)
                return self._power(op.attrs, args)
            case _:
                return self._emit(Operator(op.kind, attrs=op.attrs), args)

    def _fold(self, kind: OpKind, axis: int, args: tuple[int, ...]) -> int:
        self._folded.add(axis)
        return self._emit(Operator(kind, axis=axis), args)

    def _matmul(self, axis: int | None, left: int, right: int) -> int:
        if axis is None:
            return self._emit(Operator(OpKind.MUL), (left, right))
        return self._fold(OpKind.MATMUL, axis, (left, right))

    def _power(self, attrs: PowAttrs, args: tuple[int, ...]) -> int:
        kinds = {Fraction(2): OpKind.SQR, Fraction(1, 2): OpKind.SQRT}
        if attrs.exponent == 1:
            return args[0]
        kind = kinds.get(attrs.exponent)
        return self._emit(Operator(OpKind.POW, attrs=attrs) if kind is None else Operator(kind), args)

    def _axes(self) -> tuple[Axis, ...]:
        dims: dict[int, set[tuple[int, int]]] = {axis: set() for axis in self._axis_of.values()}
        for value, axes in self._tensors:
            for dim, axis in enumerate(axes):
                if axis is not None:
                    dims[axis].add((value, dim))
        siblings = _closed(dims)
        extents = {axis: self._table.extent[symbol] for symbol, axis in self._axis_of.items()}
        return tuple(
            Axis(name, extents[axis], not self._folded.isdisjoint(siblings[axis]), tuple(sorted(dims[axis])))
            for axis, name in zip(dims, _names(), strict=False)
        )


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


def _names() -> Iterator[str]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    yield from letters
    round_ = 1
    while True:
        yield from (f"{letter}{round_}" for letter in letters)
        round_ += 1
