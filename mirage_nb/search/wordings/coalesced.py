"""Dimensions that always stand side by side are one: rows of a batch, the height and width of an image.

In: a tensor program. Out: the same one in as few dimensions as say it; and muGraphs of that as muGraphs of the program
itself, which see its inputs and outputs through reshapes. A kernel that has 8 x 16 rows as 128 reads a weight once for
all of them, and one that folds 16 x 16 elements as 256 folds a row. Invariant: elements lie in memory as before, and
these reshapes cost nothing. (PyTorch's TensorIterator coalesces the dimensions of one loop like that.)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_nb.ir import (
    DimAttrs,
    Input,
    KernelGraph,
    Op,
    OpKind,
    RepeatAttrs,
    ReshapeAttrs,
    TensorType,
    TransposeAttrs,
)
from mirage_nb.ir.ops import OPS, Trait
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.ir.sizes import sized
from mirage_nb.search.dims import folded_dim, joined_dim
from mirage_nb.search.stored import as_stored

FOLDS = frozenset({OpKind.SUM, OpKind.MAX})
"""Reductions of one operand."""
LEAST_RANK = 3
"""Of a tensor, for its program to be said in fewer dimensions: of two dimensions, search and kernels have both."""
Gap = tuple[int, int]
"""Between a dimension of a value and the next one: the value, and that dimension."""


def coalesced(program: KernelGraph, apart: Collection[Gap] = ()) -> KernelGraph:
    """The program in as few dimensions as say the same; itself, where these are all that it has, or where an output
    would be an input, or another output. An extent that is known at launch stays outermost in what it becomes part of.
    Places that are counted for several operators are counted for each: those of rows are no columns. What is stored in
    bytes is read so.

    apart: gaps of inputs whose elements do not lie one after the other there. Raises NamedSizeError as
    `ir.sizes.sized`.
    """
    program = as_stored(_counted_apart(program))
    if all(len(t.shape) < LEAST_RANK for t in program.types):
        return program
    gaps = _Gaps(program, apart)
    if not gaps.closed:
        return program
    made = _Writer(program, gaps).write()
    own = {*made.outputs} - {*range(made.input_count)}
    return made if len(own) == len(program.outputs) else program


def _counted_apart(program: KernelGraph) -> KernelGraph:
    """The program with numbers of places for each operator that reads some."""
    uses, again = program.uses(), set[int]()
    counting = {
        value: op for op, (value, *_) in program.definitions() if op.kind is OpKind.ARANGE and len({*uses[value]}) > 1
    }
    if not counting:
        return program
    made = Rewrite(KernelGraph.start(*program.inputs))
    for op, (value, *_) in program.definitions():
        for read in counting.keys() & {*op.inputs}:
            if read in again:
                made.copy(counting[read], (read,))
            again.add(read)
        made.copy(op, (value,))
    return made.returning(program)


def restored(graph: KernelGraph, program: KernelGraph) -> KernelGraph:
    """A muGraph of a program in fewer dimensions, on the inputs of `program` and with its outputs; or the reverse."""
    if graph.inputs == program.inputs and graph.output_types == program.output_types:
        return graph
    made = Rewrite(KernelGraph.start(*program.inputs))
    viewed = {n for n, (i, given) in enumerate(zip(graph.inputs, program.inputs, strict=True)) if i.type != given.type}
    uses = graph.uses()
    through = {  # reshapes that only an output is made by: it is reshaped at once
        values[0]: op.inputs[0]
        for op, values in graph.definitions()
        if op.kind is OpKind.RESHAPE and values[0] in graph.outputs and not uses[values[0]]
    }

    def reshaped(value: int, shape: tuple[int, ...]) -> int:
        same = made.graph.types[value].shape == shape
        return value if same else made.add(Op(OpKind.RESHAPE, (value,), ReshapeAttrs(shape)))

    for op, values in graph.definitions():
        if values[0] in through:
            continue
        if op.kind is OpKind.RESHAPE:  # it reads what an input is in any shape
            made.held[values[0]] = reshaped(made.held[op.inputs[0]], graph.types[values[0]].shape)
            continue
        for value in sorted(viewed.intersection(op.inputs)):
            made.held[value] = reshaped(value, graph.types[value].shape)
            viewed.discard(value)
        made.copy(op, values)
    shapes = [t.shape for t in program.output_types]
    outputs = [reshaped(made.held[through.get(v, v)], shape) for v, shape in zip(graph.outputs, shapes, strict=True)]
    return made.graph.returning(tuple(outputs), program.output_names)


@dataclass(frozen=True, slots=True)
class _Chain:
    """Folds of one kind, one after the other, of which only the last is read by others."""

    kind: OpKind
    source: int
    dims: tuple[int, ...]


class _Gaps:
    """Which gaps can be closed: where all that reads or makes a value does the same to both dimensions."""

    def __init__(self, program: KernelGraph, apart: Collection[Gap]) -> None:
        self._shapes = [t.shape for t in program.types]
        self._group: dict[Gap, Gap] = {}
        self._open = {*apart}
        self.chains, self.within = _chains(program)
        for op, (value, *_) in program.definitions():
            if value in self.chains:
                self._fold(value, self.chains[value])
            elif value not in self.within:
                self._relate(op, value)
        where = sized(program)
        if where is not None:
            self._outermost(where.dims, program.uses())
        self.closed = self._closed()

    def groups(self, value: int) -> list[tuple[int, ...]]:
        """The dimensions of a value, those that are one together."""
        found: list[tuple[int, ...]] = []
        for dim in range(len(self._shapes[value])):
            if found and (value, dim - 1) in self.closed:
                found[-1] = (*found[-1], dim)
            else:
                found.append((dim,))
        return found

    def _closed(self) -> frozenset[Gap]:
        stay = {self._first(gap) for gap in self._open}
        every = ((v, i) for v in range(len(self._shapes)) if v not in self.within for i in self._places(v))
        return frozenset(gap for gap in every if self._first(gap) not in stay)

    def _outermost(self, dims: Sequence[int | None], uses: Sequence[Sequence[int]]) -> None:
        """Kernels have the dimension whose extent is known at launch outermost, and read it in front of another one."""
        known = [(value, dim) for value, dim in enumerate(dims) if dim is not None]
        self._open.update((value, dim - 1) for value, dim in known if dim)
        closed, read = self._closed(), [value for value, _ in known if uses[value]]
        self._open.update((v, 0) for v in read if closed.issuperset((v, place) for place in self._places(v)))

    def _places(self, value: int) -> range:
        return range(len(self._shapes[value]) - 1)

    def _first(self, gap: Gap) -> Gap:
        while (before := self._group.get(gap, gap)) != gap:
            gap = before
        return gap

    def _same(self, one: Gap, other: Gap) -> None:
        """Both are closed, or none."""
        self._group[self._first(one)] = self._first(other)

    def _keep(self, *values: int) -> None:
        """All gaps of these stay open."""
        self._open.update((value, place) for value in values for place in self._places(value))

    def _relate(self, op: Op, value: int) -> None:
        """What an operator asks of the gaps of its operands and of its result."""
        if Trait.ELEMENTWISE in OPS[op.kind].traits:
            for operand in op.inputs:
                self._align(operand, value, len(self._shapes[value]))
            return
        match op.kind, op.attrs:
            case OpKind.MATMUL, _:
                self._product(op.inputs[0], op.inputs[1], value)
            case OpKind.TRANSPOSE, TransposeAttrs(perm):
                self._permute(op.inputs[0], value, perm)
            case OpKind.RESHAPE, _:
                self._reshape(op.inputs[0], value)
            case OpKind.REPEAT, RepeatAttrs(dim):
                self._along(op.inputs, value, dim)
            case OpKind.CONCAT, _:
                self._along(op.inputs, value, joined_dim(op))
            case _:
                self._keep(*op.inputs, value)

    def _align(self, operand: int, value: int, dims: int) -> None:
        """An operand that is repeated along dimensions of a result, of the first `dims` of them, which it has or lacks:
        those between which a gap closes it has both, or lacks both."""
        shape, result = self._shapes[operand], self._shapes[value]
        before = len(result) - len(shape)
        for place in range(dims - 1):
            has = [d >= before and shape[d - before] == result[d] for d in (place, place + 1)]
            if has[0] != has[1]:
                self._open.add((value, place))
            if place >= before:
                self._same((operand, place - before), (value, place))

    def _product(self, left: int, right: int, value: int) -> None:
        """The rows of a product join its batch where every batch meets the same second operand."""
        ranks = {v: len(self._shapes[v]) for v in (left, right, value)}
        for operand in (left, right):
            self._align(operand, value, ranks[value] - 2)
        self._open.update((v, rank - 2) for v, rank in ranks.items())  # beside what is folded, or is so in the result
        self._open.add((right, ranks[right] - 3))
        self._same((left, ranks[left] - 3), (value, ranks[value] - 3))
        if ranks[right] > 2:
            self._open.add((value, ranks[value] - 3))

    def _permute(self, operand: int, value: int, perm: Sequence[int]) -> None:
        kept = {place for place in self._places(value) if perm[place + 1] == perm[place] + 1}
        for place in self._places(value):
            if place in kept:
                self._same((operand, perm[place]), (value, place))
            else:
                self._open.add((value, place))
        moved = {perm[place] for place in kept}
        self._open.update((operand, place) for place in self._places(operand) if place not in moved)

    def _reshape(self, operand: int, value: int) -> None:
        """Gaps at the same place in memory are the same; the others are of one of both only."""
        ends = [{prod(self._shapes[v][place + 1 :]): place for place in self._places(v)} for v in (operand, value)]
        for behind in ends[0].keys() & ends[1].keys():
            self._same((operand, ends[0][behind]), (value, ends[1][behind]))

    def _along(self, operands: Sequence[int], value: int, dim: int) -> None:
        for v in (*operands, value):
            self._open.update({(v, dim - 1), (v, dim)})
        for operand in operands:
            for place in self._places(value):
                self._same((operand, place), (value, place))

    def _fold(self, value: int, chain: _Chain) -> None:
        for place in self._places(value):
            self._same((chain.source, place), (value, place))
            if (place in chain.dims) != (place + 1 in chain.dims):
                self._open.add((value, place))


def _chains(program: KernelGraph) -> tuple[dict[int, _Chain], frozenset[int]]:
    """The chains of folds by their results, and the values within them."""
    uses = program.uses()
    found: dict[int, _Chain] = {}
    for op, (value, *_) in program.definitions():
        if op.kind in FOLDS:
            chain = _Chain(op.kind, op.inputs[0], (folded_dim(op),))
            before, alone = found.get(chain.source), len(uses[chain.source]) == 1
            if before is not None and before.kind is op.kind and alone and chain.source not in program.outputs:
                chain = replace(before, dims=(*before.dims, *chain.dims))
            found[value] = chain
    within = {op.inputs[0] for op, (v, *_) in program.definitions() if v in found and found[v].source != op.inputs[0]}
    return {value: chain for value, chain in found.items() if value not in within}, frozenset(within)


class _Writer(Rewrite[KernelGraph]):
    """Writes a program with gaps closed."""

    def __init__(self, program: KernelGraph, gaps: _Gaps) -> None:
        self._program, self._gaps = program, gaps
        super().__init__(KernelGraph.start(*map(self._input, range(program.input_count))))

    def write(self) -> KernelGraph:
        """The whole program."""
        for op, (value, *_) in self._program.definitions():
            if value in self._gaps.within:
                continue
            chain = self._gaps.chains.get(value)
            self.held[value] = self._folded(chain) if chain is not None else self._written(op, value)
        return self.returning(self._program)

    def _shape(self, value: int) -> tuple[int, ...]:
        shape = self._program.types[value].shape
        return tuple(prod(shape[dim] for dim in group) for group in self._gaps.groups(value))

    def _input(self, number: int) -> Input:
        given, groups = self._program.inputs[number], self._gaps.groups(number)
        names = dict(enumerate(given.dims))
        called = [[names.get(dim, "") for dim in group] for group in groups]
        dims = tuple("".join(words) if all(words) else "" for words in called) if given.dims else ()
        type_ = TensorType(self._shape(number), given.type.dtype, given.type.space)
        return replace(given, type=type_, dims=dims)

    def _group_of(self, value: int, dim: int) -> int:
        return next(n for n, group in enumerate(self._gaps.groups(value)) if dim in group)

    def _folded(self, chain: _Chain) -> int:
        made = self.held[chain.source]
        for group in dict.fromkeys(self._group_of(chain.source, dim) for dim in chain.dims):
            made = self.add(Op(chain.kind, (made,), DimAttrs(group)))
        return made

    def _written(self, op: Op, value: int) -> int:
        inputs = self.places(op.inputs)
        match op.kind, op.attrs:
            case OpKind.RESHAPE, _:
                shape = self._shape(value)
                same = self.graph.types[inputs[0]].shape == shape
                return inputs[0] if same else self.add(Op(op.kind, inputs, ReshapeAttrs(shape)))
            case OpKind.TRANSPOSE, TransposeAttrs(perm):
                groups = [self._group_of(op.inputs[0], perm[group[0]]) for group in self._gaps.groups(value)]
                same = groups == sorted(groups)
                return inputs[0] if same else self.add(Op(op.kind, inputs, TransposeAttrs(tuple(groups))))
            case OpKind.REPEAT, RepeatAttrs(dim, times):
                return self.add(Op(op.kind, inputs, RepeatAttrs(self._group_of(op.inputs[0], dim), times)))
            case OpKind.CONCAT, _:
                return self.add(Op(op.kind, inputs, DimAttrs(self._group_of(value, joined_dim(op)))))
            case _:
                return self.add(Op(op.kind, inputs, op.attrs, op.body))
