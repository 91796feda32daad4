"""Decompose a program into pieces, a kernel or two for each: which values lie in device memory between them.

In: a kernel graph of pre-defined operators. Out: `Piece`s, convex parts of it as programs of their own, in launch
order. A cut is the set of values that are stored between kernels; every piece computes one of those, or an
output, from inputs and other stored values, and computes again what is not stored. Pieces that would repeat a
matmul, and pieces that do the same to one tensor side by side, are one piece with several outputs. Invariant: the
pieces of a cut compute the program, whatever computes the pieces (paper section 2: a kernel graph of pre-defined
and graph-defined operators).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from mirage_nb.errors import SearchError
from mirage_nb.ir import Input, KernelGraph, Op, OpKind
from mirage_nb.ir.graph import reached
from mirage_nb.ir.places import numbered
from mirage_nb.ir.sizes import size_of, sized
from mirage_nb.ir.windows import MOVING

VIEWS = frozenset({OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.REPEAT})
HEAVY = frozenset({OpKind.MATMUL, OpKind.CONCAT_MATMUL})
NARROW = 4
"""Elements that a product sums at most where no library is asked for it: it is a few operations for each of its own."""
EXPONENTIALS = frozenset({OpKind.EXP, OpKind.SILU, OpKind.SIGMOID})
MAX_POINTS = 8
"""Values of a program, the smallest ones, that cuts may store beside those that they have to."""
MAX_STORED = 4
"""So many of them in one cut."""
LAUNCH_BYTES = 16_000_000
"""What device memory moves while another kernel starts."""


def is_heavy(graph: KernelGraph, op: Op) -> bool:
    """Whether an operator of a program is a product of any depth."""
    return op.kind in HEAVY and graph.types[op.inputs[0]].shape[-1] > NARROW


Cut = frozenset[int]
"""The values that are stored between kernels."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a program. `values` are the program's values behind those of `graph`, `writes` behind its outputs."""

    graph: KernelGraph
    values: tuple[int, ...]
    writes: tuple[int, ...]

    @property
    def reads(self) -> tuple[int, ...]:
        """The program's values behind the inputs."""
        return self.values[: self.graph.input_count]

    @property
    def computes(self) -> bool:
        """Whether it does more than to number places, or to say where in a tensor others read."""
        return any(op.kind not in VIEWS | MOVING | {OpKind.CONST, OpKind.ARANGE} for op in self.graph.ops)

    @property
    def unnamed(self) -> KernelGraph:
        """Equal for equal parts, wherever they stand and whatever their tensors are called."""
        return unnamed(self.graph)

    @property
    def digest(self) -> str:
        """Equal for equal parts, as they are unnamed."""
        return self.unnamed.digest()

    @property
    def in_library(self) -> bool:
        """Whether a pre-defined kernel computes it: a single operator on stored tensors."""
        return len(self.graph.ops) == 1 and self.graph.ops[0].kind is not OpKind.CONST


@dataclass(frozen=True, slots=True)
class Cone:
    """A part of a program: what it reads, what it computes, operands first, and what it writes of that."""

    reads: tuple[int, ...]
    computed: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Whole:
    """A program that pieces are cut from: what makes its values, and which dimension of each has the size; those whose
    elements are their places."""

    program: KernelGraph
    maker: dict[int, Op]
    dims: tuple[int | None, ...]
    numbered: frozenset[int]

    @classmethod
    def of(cls, program: KernelGraph) -> Whole:
        """Raises NamedSizeError as `ir.sizes.sized`."""
        where = sized(program)
        dims = where.dims if where is not None else (None,) * len(program.types)
        maker = {value: op for op, values in program.definitions() for value in values}
        return cls(program, maker, dims, numbered(program))

    def part(self, stored: Collection[int], writes: Sequence[int]) -> Piece:
        """The piece that computes these values from stored ones, as far as they are not among these themselves."""
        return self.piece(self.cone(stored, writes))

    def cone(self, stored: Collection[int], writes: Sequence[int], inside: Collection[int] = ()) -> Cone:
        """What that piece has; values inside are computed again, though they are stored."""
        computed = _cone(self.maker, stored, writes, inside)
        reads = {v for value in computed for v in self.maker[value].inputs}.difference(computed)
        return Cone((*sorted(reads),), (*computed,), (*writes,))

    def piece(self, cone: Cone) -> Piece:
        """The piece that has this."""
        types, values = self.program.types, (*cone.reads, *cone.computed)
        place = {value: number for number, value in enumerate(values)}
        made = (self.maker[v] for v in cone.computed)
        ops = (Op(op.kind, tuple(place[v] for v in op.inputs), op.attrs, op.body) for op in made)
        graph = KernelGraph((*ops,), tuple(types[v] for v in values), (*self._inputs(cone.reads),))
        return Piece(graph.returning(tuple(place[v] for v in cone.writes)), values, cone.writes)

    def _inputs(self, reads: Sequence[int]) -> Iterator[Input]:
        """Values that a piece reads; extents are numbers where one has the size in another than the outermost one."""
        program = self.program
        inner = any(self.dims[value] for value in reads)
        taken = {i.name for i in program.inputs}
        for value in reads:
            name = f"t{value}"
            while name in taken:
                name += "_"
            made = Input(name, program.types[value], places=value in self.numbered)
            given = program.inputs[value] if value < program.input_count else made
            known = self.dims[value] is not None and not inner
            yield replace(given, size=size_of(program) if known else None)


def unnamed(graph: KernelGraph) -> KernelGraph:
    """A program, whatever its tensors are called."""
    inputs = tuple(replace(i, name=f"x{n}", dims=()) for n, i in enumerate(graph.inputs))
    return replace(graph, inputs=inputs).returning(graph.outputs)


def pieces(program: KernelGraph, cut: Cut) -> tuple[Piece, ...]:
    """The pieces of a cut in an order in which each finds its operands.

    Raises:
        SearchError: an output is an input, or nothing but a constant.
    """
    whole, stored = Whole.of(program), {*cut, *program.outputs}
    made = [whole.part(stored, writes) for writes in _written(program, whole.maker, stored)]
    return tuple(ordered(made, set(range(program.input_count))))


def _written(program: KernelGraph, maker: dict[int, Op], stored: set[int]) -> list[list[int]]:
    """The stored values, those of one piece together."""
    groups: list[tuple[list[int], set[int]]] = []
    for value in sorted(stored):
        if value not in maker or maker[value].kind is OpKind.CONST:
            raise SearchError("an output of the program is one of its inputs or a constant", hint="leave it out")
        cone = _cone(maker, stored, [value])
        again = {v for v in cone if maker[v].kind in HEAVY}
        shared = [group for group in groups if group[1] & again]
        for group in shared:
            groups.remove(group)
            again |= group[1]
        groups.append((sorted([value, *(v for group in shared for v in group[0])]), again))
    _join_alike(program, maker, stored, groups)
    return [writes for writes, _ in groups]


def _join_alike(
    program: KernelGraph, maker: dict[int, Op], stored: set[int], groups: list[tuple[list[int], set[int]]]
) -> None:
    """Join groups of one output that read one tensor and do the same, where none waits for another."""
    kept: dict[object, tuple[list[int], set[int]]] = {}
    for group in list(groups):
        (value, *more), _ = group
        cone = _cone(maker, stored, [value])
        reads = [v for v in maker[cone[0]].inputs if v not in cone]
        if more or not reads or not any(maker[v].kind in HEAVY for v in cone):
            continue
        doing = tuple((maker[v].kind, maker[v].attrs, program.types[v]) for v in cone)
        twin = kept.setdefault((reads[0], doing), group)
        if twin is not group and not any(_follows(maker, value, v) or _follows(maker, v, value) for v in twin[0]):
            twin[0].append(value)
            twin[1].update(group[1])
            groups.remove(group)


def _follows(maker: dict[int, Op], value: int, other: int) -> bool:
    """Whether `value` is computed from `other`."""
    return other in _cone(maker, set(), [value])


def _cone(
    maker: Mapping[int, Op], stored: Collection[int], writes: Sequence[int], inside: Collection[int] = ()
) -> list[int]:
    """What has to be computed for `writes` from stored values that are not inside, operands first."""

    def behind(value: int) -> list[int]:
        return [v for v in maker[value].inputs if v in maker and (v not in stored or v in writes or v in inside)]

    return sorted(reached(filter(maker.__contains__, writes), behind))


def ordered(made: Sequence[Piece], known: set[int]) -> Iterator[Piece]:
    """Pieces, each behind those that it reads. Raises SearchError where some wait for each other."""
    left = list(made)
    while left:
        ready = next((piece for piece in left if known.issuperset(piece.reads)), None)
        if ready is None:
            raise SearchError("pieces that wait for each other")
        left.remove(ready)
        known.update(ready.writes)
        yield ready


def smallest_cut(program: KernelGraph, expressible: Callable[[KernelGraph], bool]) -> Cut:
    """A cut whose pieces all are expressible, or a single operator that is not.

    Views within a piece are not asked for: what they make matters to their readers only.
    """
    whole = Whole.of(program)
    maker = whole.maker
    cut: set[int] = set(program.outputs)
    alone: set[int] = set()
    grown = -1
    while grown != len(cut):
        grown = len(cut)
        for value, op in maker.items():
            if op.kind is OpKind.CONST or (op.kind in VIEWS and value not in cut):
                continue
            while value not in alone and not expressible(whole.part(cut, [value]).graph):
                operands = {v for v in op.inputs if v in maker and maker[v].kind is not OpKind.CONST}
                if operands <= cut:
                    alone.add(value)
                    cut.add(value)
                cut |= operands
    return frozenset(cut) - set(program.outputs)


def cuts(program: KernelGraph, least: Cut, kernels: int, limit: int) -> tuple[Cut, ...]:
    """At most `limit` cuts that store `least` and more, into at most `kernels` pieces; few pieces, few bytes first.

    Points to cut at are values that feed a matmul or a second exponential, and values that several operators read.
    What is stored beyond `least` is no larger than the inputs and outputs together.
    """
    maker = {value: op for op, values in program.definitions() for value in values}
    size = [t.nbytes for t in program.types]
    fixed = {*least, *program.outputs}
    points = [v for v in _points(maker) if v not in fixed and maker[v].kind is not OpKind.CONST]
    points = sorted(points, key=lambda v: (size[v], v))[:MAX_POINTS]
    most = sum(t.nbytes for t in (*(i.type for i in program.inputs), *program.output_types))
    found: list[tuple[int, int, list[int]]] = []
    for count in range(min(len(points), MAX_STORED) + 1):
        for extra in combinations(points, count):
            stored = sum(size[v] for v in extra)
            cut = least.union(extra)
            if stored > most or len(cut) + len(program.outputs) < 2:
                continue
            number = len(_written(program, maker, {*cut, *program.outputs}))
            if cut == least or 1 < number <= kernels:
                found.append((number * LAUNCH_BYTES + 2 * stored, number, sorted(cut)))
    allowed = (frozenset(cut) for _, _, cut in sorted(found) if frozenset(cut) == least or _ends(program, cut))
    return tuple(cut for _, cut in zip(range(limit), allowed, strict=False))


def concatenations(program: KernelGraph) -> Cut:
    """The cut that stores every concatenation, so that a pre-defined kernel makes each."""
    made = {values[0] for op, values in program.definitions() if op.kind is OpKind.CONCAT}
    return frozenset(made) - set(program.outputs)


def _points(maker: dict[int, Op]) -> set[int]:
    """Where kernels may be cut apart: computed values that matmuls or several operators read, concatenations, and
    exponentials that read what another one was part of, since field trials take one on a path.
    """
    readers: dict[int, set[int]] = {}
    points = {value for value, op in maker.items() if op.kind is OpKind.CONCAT}
    for value, op in maker.items():
        for source in op.inputs:
            while source in maker and maker[source].kind in VIEWS:
                source = maker[source].inputs[0]
            readers.setdefault(source, set()).add(value)
            if op.kind in HEAVY:
                points.add(source)
    points |= {v for v, found in readers.items() if len(found) > 1}
    raised: set[int] = set()
    for value, op in maker.items():
        if raised.intersection(op.inputs):
            raised.add(value)
            if op.kind in EXPONENTIALS:
                points.update(v for v in op.inputs if maker[v].kind not in HEAVY)
        if op.kind in EXPONENTIALS:
            raised.add(value)
    return points & maker.keys()


def _ends(program: KernelGraph, cut: Sequence[int]) -> bool:
    """Whether no two pieces wait for each other."""
    try:
        return bool(pieces(program, frozenset(cut)))
    except SearchError:
        return False
