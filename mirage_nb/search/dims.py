"""Which dimensions of a program are the same axis: union-find over dimension symbols that may be products.

In: a kernel graph of pre-defined operators. Out: `Dims`, the copies of the program's values with the symbols of
their dimensions, unified by what the operators do. A dimension that a reshape splits or joins is a product of
symbols, outer ones first; both sides of the reshape are refined until they have the same factors. A concatenated
dimension is a product, too: the largest size that both parts are multiples of, and before it a symbol for how many of
those there are; it and those of the parts are never products. Invariant: no copy of a value has the same symbol twice:
where a program makes a tensor meet itself (X @ X^T), the tensor is read in several copies, with symbols of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import gcd

from mirage_nb.errors import SearchError
from mirage_nb.ir import OPS, DimAttrs, KernelGraph, Op, OpKind, RepeatAttrs, Trait, TransposeAttrs
from mirage_nb.ir.ops import Shape, show_shape

MAX_COPIES = 1000
"""Largest program, written out as a tree, for which aliases are looked for."""

LEAST_SHARED = 64
"""Shorter axes are no grid for longer ones."""

Dim = tuple[int, ...]
"""The symbols, later the axes, whose product a dimension is, outermost first; none for extent 1."""
Layout = tuple[Dim, ...]


State = tuple[int, int]
"""Of symbols: how often they changed, and how many there are."""


class Conflict(Exception):
    """Two dimensions of one tensor would get the same axis."""


@dataclass(slots=True)
class Copy:
    """One copy of a value of the graph: the copies it reads, and the symbols of every dimension."""

    value: int
    reads: tuple[int, ...]
    layout: Layout


@dataclass(slots=True)
class Symbols:
    """Union-find over symbols. `factors[s]`: the outer and the inner symbol whose product `s` was found to be;
    `changed`: what was an atom until it became another one or a product, one after the other."""

    parent: list[int] = field(default_factory=list)
    extent: list[int] = field(default_factory=list)
    factors: list[tuple[int, int] | None] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)

    def fresh(self, extent: int) -> int:
        """A new symbol, the same as no other."""
        self.parent.append(len(self.parent))
        self.extent.append(extent)
        self.factors.append(None)
        return len(self.parent) - 1

    def find(self, symbol: int) -> int:
        """The representative of a symbol."""
        while self.parent[symbol] != symbol:
            symbol = self.parent[symbol]
        return symbol

    def atoms(self, dim: Sequence[int]) -> Dim:
        """The representatives of symbols that are no products, in order."""
        found: list[int] = []
        for symbol in dim:
            while (first := self.parent[symbol]) != symbol:
                symbol = first
            parts = self.factors[symbol]
            if parts is None:
                found.append(symbol)
            else:
                found += self.atoms(parts)
        return tuple(found)

    def split(self, symbol: int, inner: int) -> None:
        """Make an atom a product whose inner factor has that extent."""
        assert self.factors[symbol] is None and self.extent[symbol] % inner == 0
        self.factors[symbol] = (self.fresh(self.extent[symbol] // inner), self.fresh(inner))
        self.changed.append(symbol)

    def refine(self, first: Sequence[int], second: Sequence[int], join: bool) -> bool:
        """Split the symbols of two runs of equal product until they have the same factors; `join`: unify those.

        False where that is impossible: neither of two factors divides the other.
        """
        left, right = list(self.atoms(first)), list(self.atoms(second))
        while left and right:
            a, b = self.find(left.pop()), self.find(right.pop())
            if self.factors[a] is not None or self.factors[b] is not None:
                left.extend(self.atoms((a,)))
                right.extend(self.atoms((b,)))
            elif a != b and self.extent[a] == self.extent[b]:
                if join:
                    self.parent[max(a, b)] = min(a, b)
                    self.changed.append(max(a, b))
            elif a != b:
                wide, narrow = (a, b) if self.extent[a] > self.extent[b] else (b, a)
                if self.extent[wide] % self.extent[narrow]:
                    return False
                self.split(wide, self.extent[narrow])
                left.append(a)
                right.append(b)
        return not left and not right

    @property
    def state(self) -> State:
        """The state now, to come back to."""
        return len(self.changed), len(self.parent)

    def undo(self, state: State) -> None:
        """Come back to a state."""
        changes, count = state
        for symbol in self.changed[changes:]:
            self.parent[symbol], self.factors[symbol] = symbol, None
        for kept, most in ((self.changed, changes), (self.parent, count), (self.extent, count), (self.factors, count)):
            del kept[most:]


class Dims:
    """The copies of a program's values. `shared`: every value has one copy, else one for every use."""

    def __init__(self, graph: KernelGraph, shared: bool) -> None:
        self.graph = graph
        self.copies: list[Copy] = []
        self.symbols = Symbols()
        self.shared = shared
        self.op_of = {v: op for op, values in graph.definitions() for v in values}
        self._common = _common(self.op_of, graph)
        self._memo: dict[int, int] = {}
        self.roots = tuple(self._copy(v) for v in graph.outputs)
        tensors = {tuple(chain.from_iterable(copy.layout)) for copy in self.copies}
        self._axes = {symbols: self.symbols.atoms(symbols) for symbols in tensors}

    def solve(self) -> None:
        """Merge copies of a value wherever that keeps every tensor's axes distinct.

        Raises:
            Conflict: some tensor has an axis twice even so.
            SearchError: two uses of an input split the same dimension in ways that have no common factors.
        """
        if any(len(axes) != len({*axes}) for axes in self._axes.values()):
            raise Conflict
        by_value: dict[int, list[int]] = {}
        for index in range(len(self.copies) - 1, -1, -1):
            by_value.setdefault(self.copies[index].value, []).append(index)
        for value in sorted(by_value, reverse=True):
            kept: list[int] = []
            for index in reversed(by_value[value]):
                if not any(self._merged(index, other) for other in kept):
                    kept.append(index)
        self._align_inputs()
        self._share_parts()
        if self.shared:
            self._share_columns()
            self._share_depths()

    def layout(self, copy: Copy) -> Layout:
        """The atoms of every dimension of a copy."""
        return tuple(map(self.symbols.atoms, copy.layout))

    def _share_parts(self) -> None:
        """Concatenations along one axis have their parts in common, if these are as long."""
        before = -1
        while before != sum(s == p for s, p in enumerate(self.symbols.parent)):
            before = sum(s == p for s, p in enumerate(self.symbols.parent))
            known: dict[Dim, tuple[Dim, Dim]] = {}
            for copy in self.copies:
                first, second, whole = self.join(copy)
                for part, other in zip((first, second), known.setdefault(whole, (first, second)), strict=True):
                    if part and other:
                        self._share(*part, *other)

    def join(self, copy: Copy) -> tuple[Dim, Dim, Dim]:
        """Of a concatenation: the atoms that its parts, and it itself, have before what they have in common, if any.

        Raises:
            SearchError: they are more than one each, because something else splits the dimension.
        """
        op = self.op_of.get(copy.value)
        if op is None or op.kind is not OpKind.CONCAT:
            return (), (), ()
        dim = joined_dim(op)
        common = len(self.symbols.atoms(copy.layout[dim][1:]))
        sides = [self.layout(self.copies[r])[dim] for r in copy.reads] + [self.layout(copy)[dim]]
        left, right, whole = (side[: len(side) - common] for side in sides)
        if max(map(len, (left, right, whole))) > 1:
            raise SearchError(
                "a reshape splits a concatenated dimension within one of its parts",
                hint="such an operator becomes a kernel of its own",
            )
        return left, right, whole

    def _align_inputs(self) -> None:
        """All copies of an input have their dimensions split alike: they lie along the same data."""
        inputs = [c for c in self.copies if c.value < self.graph.input_count]
        state, before = self.symbols.state, -1
        while before != len(self.symbols.parent):
            before = len(self.symbols.parent)
            for copy in inputs:
                for other in inputs:
                    if other.value == copy.value and other is not copy:
                        for a, b in zip(copy.layout, other.layout, strict=True):
                            if not self.symbols.refine(a, b, join=False):
                                name = self.graph.inputs[copy.value].name
                                raise SearchError(f"{name} is reshaped in two ways that have no common factors")
        self._holds(state)

    def _share_columns(self) -> None:
        """Axes of different outputs become one, if they are as long and nothing folds them or has both; then also the
        inner part of a longer one and one that has as many elements (queries of several heads for each of the keys).

        Every operator is pointwise along them, so one grid can split them all: several products of one tensor.
        """
        folded = {axis for copy in self.copies for axis in self.symbols.atoms(self._folded(copy))}
        folded |= {axis for copy in self.copies for part in self.join(copy) for axis in part}
        for share in (self._share, self._share_inner):
            for number, root in enumerate(self.roots):
                for other in self.roots[number + 1 :]:
                    for axis in self._columns(root):
                        for candidate in self._columns(other):
                            if not folded & {axis, candidate}:
                                share(axis, candidate)

    def _share_depths(self) -> None:
        """Axes that products fold become one, if they are as long, no tensor has both, and neither product is made of
        the other: what a sum counts by is its own, and one loop goes over the sums of X @ W + H @ U."""
        made_of: list[frozenset[int]] = []
        products: dict[int, Dim] = {}
        for number, copy in enumerate(self.copies):
            before = frozenset[int]().union(*(made_of[read] for read in copy.reads))
            op = self.op_of.get(copy.value)
            if op is not None and op.kind is OpKind.MATMUL:
                mine = self.symbols.atoms(self.copies[copy.reads[0]].layout[-1])
                for other, its in products.items():
                    if other not in before and len(its) == len(mine) == 1:
                        self._share(*its, *mine)
                products[number], before = mine, before | {number}
            made_of.append(before)

    def _columns(self, copy: int) -> Dim:
        """The atoms of all dimensions of a copy."""
        return tuple(axis for dim in self.layout(self.copies[copy]) for axis in dim)

    def _share(self, first: int, second: int) -> None:
        first, second = self.symbols.find(first), self.symbols.find(second)
        if first != second and self.symbols.extent[first] == self.symbols.extent[second]:
            state = self.symbols.state
            self.symbols.refine((first,), (second,), join=True)
            self._holds(state)

    def _share_inner(self, first: int, second: int) -> None:
        """The narrow one of two axes with the inner part of the wide one, each of which is no product yet."""
        wide, narrow = sorted((first, second), key=self.symbols.extent.__getitem__, reverse=True)
        ratio, rest = divmod(self.symbols.extent[wide], self.symbols.extent[narrow])
        apart = all(self.symbols.atoms((axis,)) == (axis,) for axis in (wide, narrow))
        if apart and ratio > 1 and not rest and self.symbols.extent[narrow] >= LEAST_SHARED:
            state = self.symbols.state
            self.symbols.split(wide, self.symbols.extent[narrow])
            _, inner = self.symbols.atoms((wide,))
            self.symbols.refine((inner,), (narrow,), join=True)
            self._holds(state)

    def _folded(self, copy: Copy) -> Dim:
        """The symbols along which the operator of a copy folds its operand."""
        op = self.op_of.get(copy.value)
        if op is None:
            return ()
        read = [self.copies[r].layout for r in copy.reads]
        match op.kind:
            case OpKind.SUM | OpKind.MAX | OpKind.RESCALED_SUM | OpKind.RUNNING_SUM:
                place = folded_dim(op) - len(read[0])  # a shift may have fewer dimensions
                return tuple(symbol for layout in read if -place <= len(layout) for symbol in layout[place])
            case OpKind.MATMUL:
                return read[0][-1] + read[1][-2]
            case OpKind.CONCAT_MATMUL:
                return read[0][-1] + read[1][-1]
            case _:
                return ()

    def _holds(self, state: State) -> bool:
        """Whether no tensor has an axis twice by what changed since; undone where one has."""
        changed = {*self.symbols.changed[state[0] :]}
        found: dict[Dim, Dim] = {}
        for symbols, axes in self._axes.items():
            if not changed.isdisjoint(axes):
                found[symbols] = atoms = self.symbols.atoms(symbols)
                if len(atoms) != len({*atoms}):
                    self.symbols.undo(state)
                    return False
        self._axes.update(found)
        return True

    def _merged(self, first: int, second: int) -> bool:
        state = self.symbols.state
        if self._unify_trees(first, second):
            return self._holds(state)
        self.symbols.undo(state)
        return False

    def _unify_trees(self, first: int, second: int) -> bool:
        a, b = self.copies[first], self.copies[second]
        pairs = zip(a.layout, b.layout, strict=True)
        return all(self.symbols.refine(x, y, join=True) for x, y in pairs if x and y) and all(
            self._unify_trees(x, y) for x, y in zip(a.reads, b.reads, strict=True)
        )

    def _fresh(self, extent: int) -> Dim:
        return () if extent == 1 else (self.symbols.fresh(extent),)

    def _copy(self, value: int) -> int:
        if self.shared and value in self._memo:
            return self._memo[value]
        if value < self.graph.input_count:
            reads: tuple[int, ...] = ()
            layout: Layout = tuple(map(self._fresh, self.graph.types[value].shape))
        else:
            op = self.op_of[value]
            reads = tuple(self._copy(v) for v in op.inputs)
            layout = self._layout(op, tuple(self.copies[r].layout for r in reads), value)
        if len(self.copies) > MAX_COPIES:
            raise SearchError("the program is too large to look for aliases", hint="split it into smaller programs")
        self.copies.append(Copy(value, reads, layout))
        self._memo[value] = len(self.copies) - 1
        return len(self.copies) - 1

    def _layout(self, op: Op, layouts: tuple[Layout, ...], value: int) -> Layout:
        shape = self.graph.types[value].shape
        if Trait.ELEMENTWISE in OPS[op.kind].traits:
            return self._aligned(op, layouts)
        match op.kind:
            case OpKind.CONST:
                return ()
            case OpKind.RUNNING_SUM:
                return layouts[0]
            case OpKind.SUM | OpKind.MAX | OpKind.RESCALED_SUM:
                layout, dim = self._aligned(op, layouts), folded_dim(op)
                return (*layout[:dim], (), *layout[dim + 1 :])
            case OpKind.MATMUL:
                return self._product(op, layouts[0], layouts[1])
            case OpKind.CONCAT_MATMUL:
                first = self._product(op, layouts[0], layouts[2])
                return self._aligned(op, (first, self._product(op, layouts[1], layouts[3])))
            case OpKind.TRANSPOSE:
                assert isinstance(op.attrs, TransposeAttrs)
                return tuple(layouts[0][i] for i in op.attrs.perm)
            case OpKind.RESHAPE:
                return self._reshaped(layouts[0], self.graph.types[op.inputs[0]].shape, shape)
            case OpKind.REPEAT:
                assert isinstance(op.attrs, RepeatAttrs)
                dim, copies = op.attrs.dim, self._fresh(op.attrs.times)
                return (*layouts[0][:dim], copies + layouts[0][dim], *layouts[0][dim + 1 :])
            case OpKind.CONCAT:
                return self._concatenated(op, layouts, value)
            case _:
                raise SearchError(
                    f"{op.kind.value} cannot be said over axes", hint="such an operator becomes a kernel of its own"
                )

    def _reshaped(self, layout: Layout, before: Shape, after: Shape) -> Layout:
        moved = tuple(self._fresh(extent) for extent in after)
        if not self.symbols.refine([s for d in layout for s in d], [s for d in moved for s in d], join=True):
            raise SearchError(
                f"a reshape from {show_shape(before)} to {show_shape(after)} has no common factors to split axes into",
                hint="such a reshape becomes a kernel of its own",
            )
        return moved

    def _concatenated(self, op: Op, layouts: tuple[Layout, ...], value: int) -> Layout:
        dim = joined_dim(op)
        extents = [self.graph.types[v].shape[dim] for v in op.inputs]
        common = self._common[value]
        shared = self._fresh(common)
        for layout, extent in zip(layouts, extents, strict=True):
            self._unify(op, layout[dim], self._fresh(extent // common) + shared)
        joined = self._aligned(op, tuple((*layout[:dim], (), *layout[dim + 1 :]) for layout in layouts))
        return (*joined[:dim], self._fresh(sum(extents) // common) + shared, *joined[dim + 1 :])

    def _aligned(self, op: Op, layouts: tuple[Layout, ...]) -> Layout:
        rank = max(map(len, layouts), default=0)
        joined: list[Dim] = [()] * rank
        for layout in layouts:
            for position, dim in enumerate(layout, start=rank - len(layout)):
                if joined[position] and dim:
                    self._unify(op, joined[position], dim)
                joined[position] = joined[position] or dim
        return tuple(joined)

    def _product(self, op: Op, left: Layout, right: Layout) -> Layout:
        if left[-1] and right[-2]:
            self._unify(op, left[-1], right[-2])
        return (*self._aligned(op, (left[:-2], right[:-2])), left[-2], right[-1])

    def _unify(self, op: Op, first: Dim, second: Dim) -> None:
        if not self.symbols.refine(first, second, join=True):
            raise SearchError(
                f"the operands of {op.kind.value} were reshaped in ways that have no common factors",
                hint="such an operator becomes a kernel of its own",
            )


def _common(op_of: Mapping[int, Op], graph: KernelGraph) -> dict[int, int]:
    """Of every concatenation, what the extents of its parts are multiples of, and those of concatenations along the
    same dimension that it is a part of, or that are parts of it."""
    found: dict[int, int] = {}
    joins = {value: op for value, op in op_of.items() if op.kind is OpKind.CONCAT}
    parts = [(v, r) for v, op in joins.items() for r in op.inputs if r in joins and op.attrs == joins[r].attrs]
    for value, op in joins.items():
        inner = (found[r] if (value, r) in parts else graph.types[r].shape[joined_dim(op)] for r in op.inputs)
        found[value] = gcd(*inner)
    for value, part in reversed(parts):
        found[part] = gcd(found[part], found[value])
    return found


def joined_dim(op: Op) -> int:
    """The dimension along which a concatenation puts its operands one after the other."""
    assert isinstance(op.attrs, DimAttrs)
    return op.attrs.dim


def folded_dim(op: Op) -> int:
    """The dimension that a reduction folds."""
    assert isinstance(op.attrs, DimAttrs)
    return op.attrs.dim
