"""Which parts of which axes two graphs have in common: every dimension of every value as a list of parts.

In: a program and a muGraph. Out: for each value of each (nested) graph and each dimension, the parts of its axis,
outermost first; a dimension of extent 1 has none. Concrete extents serve to find the parts that grid dims, for-loop
and regrouping declare, and are then forgotten: what is said of the parts holds for all their sizes. Invariant: two
dimensions that an operator, an input name or an output joins have the same parts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mirage_nb.errors import ProofError
from mirage_nb.ir import (
    AccumAttrs,
    BlockGraph,
    DimAttrs,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    TensorType,
    ThreadGraph,
    TransposeAttrs,
    legality,
)
from mirage_nb.ir.fields import write_attrs
from mirage_nb.ir.ops import Shape
from mirage_nb.ir.sizes import output_dims
from mirage_nb.verify.proof.terms import INSIDE, NO_EXTENTS, counted


@dataclass(slots=True, eq=False)
class Part:
    """A part of an axis: joined with another, split in two, one axis behind another, covered by tiles the last of which
    hang over its end, or plain and named."""

    size: int
    name: str = ""
    joined: Part | None = None
    split: tuple[Part, Part] | None = None
    sides: tuple[Parts, Parts] | None = None
    tiles: Parts | None = None


MAX_OPERATORS = 200

Parts = list[Part]
Dims = list[Parts]


def new(extent: int) -> Parts:
    """A dimension about which nothing else is known."""
    return [Part(extent)] if extent > 1 else []


def leaves(parts: Iterable[Part]) -> Parts:
    """The plain parts, and concatenated and covered ones, that a list stands for now."""
    found: Parts = []
    for part in parts:
        while part.joined is not None:
            part = part.joined
        found += [part] if part.split is None else leaves(part.split)
    return found


def unify(left: Parts, right: Parts) -> None:
    """Make two lists of parts of one axis the same. Raises ProofError where their cuts do not nest."""
    a, b = deque(left), deque(right)
    while a and b:
        for queue in (a, b):
            queue.extendleft(reversed(leaves([queue.popleft()])))
        x, y = a.popleft(), b.popleft()
        if x is y:
            continue
        if x.size == y.size:
            _join(x, y)
        elif x.size > y.size:
            a.extendleft(reversed(_cut(x, y.size)))
            b.appendleft(y)
        else:
            b.extendleft(reversed(_cut(y, x.size)))
            a.appendleft(x)
    if a or b:
        raise ProofError("two dimensions that belong together have different extents")


def take(parts: Parts, extent: int) -> tuple[Parts, Parts]:
    """The outermost parts that make up `extent`, and the rest."""
    head, rest = Parts(), deque(leaves(parts))
    while (missing := extent // math.prod(part.size for part in head)) > 1:
        part = rest.popleft()
        if part.size > missing:
            outer, inner = _cut(part, missing)
            rest.appendleft(inner)
            part = outer
        if missing % part.size:
            raise ProofError(f"a partition into {missing} does not nest with one into {part.size}")
        head.append(part)
    return head, list(rest)


def _cut(part: Part, outer: int) -> tuple[Part, Part]:
    """The part in so many parts; of a concatenated axis some are the one side's and some the other's."""
    inner = part.size // outer
    extents = [math.prod(piece.size for piece in side) for side in part.sides or ()]
    if part.tiles is not None or part.size % outer or any(extent % inner for extent in extents):
        what = f"an axis part of extent {part.size}" if part.sides is None else "a concatenated axis"
        raise ProofError(f"{what} is partitioned into {outer}, which does not nest with its other partitions")
    part.split = (Part(outer), Part(inner))
    if part.sides is not None:
        left, right = (take(side, extent // inner) for side, extent in zip(part.sides, extents, strict=True))
        part.split[0].sides = (left[0], right[0])
        for rest in (left[1], right[1]):
            unify([part.split[1]], rest)
    return part.split


def _join(x: Part, y: Part) -> None:
    if x.sides is not None and y.sides is not None:
        for one, other in zip(x.sides, y.sides, strict=True):
            unify(one, other)
    x.sides, y.joined = x.sides or y.sides, x
    if y.tiles is not None:
        _cover(x, y.tiles)


def _cover(part: Part, tiles: Parts) -> None:
    """The part as one that has these tiles, the last of which hang over its end."""
    if part.sides is not None or any(leaf.sides is not None for leaf in leaves(tiles)):
        raise ProofError("tiles hang over the end of a concatenated axis")
    if part.tiles is None:
        part.tiles = tiles
    else:
        unify(part.tiles, tiles)


@dataclass(slots=True, eq=False)
class Scope:
    """A graph with the parts of all its values, the graphs inside, and the parts of its grid dims and loop."""

    graph: KernelGraph | BlockGraph | ThreadGraph
    outer: Scope | None = None
    feeds: tuple[int, ...] = ()
    dims: list[Dims] = field(default_factory=list)
    defined: list[tuple[int, int]] = field(default_factory=list)
    inner: dict[int, Scope] = field(default_factory=dict)
    grid: list[Parts] = field(default_factory=list)
    loop: Parts = field(default_factory=list)
    numbered: dict[int, str] = field(default_factory=dict)
    """Inputs and what operators of BY_NUMBER make of them: tensors of which terms know names and no more."""
    shared: dict[str, Dims] = field(default_factory=dict)
    """The parts of the latter, the same in both graphs."""
    saved: list[Dims] = field(default_factory=list)
    """The parts of what savers write."""

    def shape(self, value: int) -> Shape:
        return self.graph.types[value].shape


def check_pair(program: KernelGraph, mugraph: KernelGraph, outputs: tuple[int, ...]) -> None:
    """Raise ProofError for graphs of other inputs or outputs, or too large ones, GraphError for an illegal one,
    NamedSizeError for one that does not keep elements along a size that is known at launch apart."""
    if {i.name: (i.type, i.size) for i in program.inputs} != {i.name: (i.type, i.size) for i in mugraph.inputs}:
        raise ProofError("the graphs do not have the same inputs")
    if any(i.name.startswith(INSIDE) for i in program.inputs):
        raise ProofError("an input has the name of what tells where an axis ends")
    if sorted(outputs) != list(range(len(program.outputs))) or len(mugraph.outputs) != len(program.outputs):
        raise ProofError("the outputs of the graphs are not paired one to one")
    for number, other in enumerate(outputs):
        if program.output_types[number] != mugraph.output_types[other]:
            raise ProofError(f"output {number} has another type in the muGraph")
    for graph in (program, mugraph):
        if sum(1 + len(op.body.ops if op.body else ()) for op in graph.ops) > MAX_OPERATORS:
            raise ProofError(f"a graph of more than {MAX_OPERATORS} operators")
        legality.check(graph)
    dims = output_dims(mugraph)
    if output_dims(program) != [dims[other] for other in outputs if dims]:
        raise ProofError("outputs have the size that is known at launch in other dimensions than the program's")


def scoped(
    program: KernelGraph, mugraph: KernelGraph, outputs: Sequence[int], extents: Mapping[str, int] = NO_EXTENTS
) -> tuple[Scope, Scope]:
    """Both graphs with their parts named; output `outputs[i]` of the muGraph is output i of the program.

    A graph beside itself is read once, so that ranges that no dimension tells (a loop over replicas) are the same.
    The names of the parts in `extents` say them. Raises ProofError for partitions that do not nest, and for what is no
    extent of a part, or belongs to a size that is known at launch.
    """
    inputs = {i.name: [new(extent) for extent in i.type.shape] for i in program.inputs}
    found, shared = [], dict[str, Dims]()
    for graph in (program, mugraph)[: 2 - (program == mugraph)]:
        numbered = {value: repr(i.name) for value, i in enumerate(graph.inputs)}
        scope = Scope(graph, dims=[inputs[i.name] for i in graph.inputs], numbered=numbered, shared=shared)
        _fill(scope)
        found.append(scope)
    first, second = found[0], found[-1]
    for number, other in enumerate(outputs):
        left, right = first.dims[program.outputs[number]], second.dims[mugraph.outputs[other]]
        for a, b in zip(left, right, strict=True):
            unify(a, b)
    _name(list(inputs.items()), found)
    fixed, parts = fixed_extents((first, second)), plain_parts((first, second))
    for name, extent in extents.items():
        if fixed.get(name) != extent:
            raise ProofError(f"no part {name} of an axis has the extent {extent} always")
        parts[name].name = counted(name, extent)
    return first, second


def fixed_extents(scopes: Sequence[Scope]) -> dict[str, int]:
    """The extents of all plain parts of two graphs but those of sizes that are known at launch."""
    graph = scopes[0].graph
    assert isinstance(graph, KernelGraph)
    outermost = (dims[0] for i, dims in zip(graph.inputs, scopes[0].dims, strict=False) if i.size)
    unknown = {leaf.name for parts in outermost for leaf in _plain(parts)}
    named = plain_parts(scopes).items()
    return {name: part.size for name, part in named if part.tiles is None and name not in unknown}


def _name(inputs: list[tuple[str, Dims]], scopes: list[Scope]) -> None:
    """Every plain part is called after the first dimension that has it, a covered one after its tiles: those of one
    extent that are covered by the same ones have the same elements inside."""
    used = set[str]()
    for name, dims in inputs:
        for dim, parts in enumerate(dims):
            _call(parts, f"{name}.{dim}", used)
    for parts in _everywhere(scopes):
        _call(parts, "r", used)
    extents: dict[str, list[int]] = {}
    for parts in _everywhere(scopes):
        for leaf in filter(lambda leaf: leaf.tiles is not None, _plain(parts)):
            tiles = " ".join(_spelled(leaf.tiles or ()))
            known = extents.setdefault(tiles, [])
            known += [leaf.size] if leaf.size not in known else []
            leaf.name = f"{tiles} / {known.index(leaf.size)}"


def _spelled(tiles: Iterable[Part]) -> Iterator[str]:
    """The names of tiles, those of tiles of tiles in brackets."""
    for leaf in leaves(tiles):
        yield leaf.name if leaf.tiles is None else f"({leaf.size}: {' '.join(_spelled(leaf.tiles))})"


def _everywhere(scopes: Iterable[Scope]) -> Iterator[Parts]:
    """The parts of all grid dims, loops and dimensions, outer graphs first."""
    waiting = deque(scopes)
    while waiting:
        scope = waiting.popleft()
        yield from (*scope.grid, scope.loop, *(parts for dims in scope.dims for parts in dims))
        waiting += scope.inner.values()


def plain_parts(scopes: Iterable[Scope]) -> dict[str, Part]:
    """All plain and covered parts of two graphs by their names."""
    return {leaf.name: leaf for parts in _everywhere(scopes) for leaf in _plain(parts)}


def _call(parts: Parts, axis: str, used: set[str]) -> None:
    """Name the leaves that have no name yet after the axis, each differently."""
    plain = [leaf for leaf in _plain(parts) if leaf.tiles is None]
    for place, leaf in enumerate(plain):
        if not leaf.name:
            wanted = axis if len(plain) == 1 else f"{axis}.{place}"
            leaf.name = wanted
            while leaf.name in used:
                leaf.name = f"{wanted}~{len(used)}"
            used.add(leaf.name)


def _plain(parts: Parts) -> Parts:
    found: Parts = []
    for leaf in leaves(parts):
        found += [] if leaf.sides is not None else [leaf]
        for inner in (*(leaf.sides or ()), leaf.tiles or ()):
            found += _plain(inner)
    return found


def _fill(scope: Scope) -> None:
    """The parts of every value, in order of definition."""
    graph = scope.graph
    scope.defined = [(-1, i) for i in range(graph.input_count)]
    for number, (op, values) in enumerate(graph.definitions()):
        operands = [scope.dims[v] for v in op.inputs]
        scope.dims += _results(scope, number, op, operands)
        scope.defined += [(number, i) for i in range(len(values))]


def _results(scope: Scope, number: int, op: Op, operands: list[Dims]) -> list[Dims]:
    match op.body:
        case BlockGraph(grid=grid, loop=loop):
            inner = Scope(op.body, scope, op.inputs, grid=[new(extent) for extent in grid], loop=new(loop))
            scope.inner[number] = inner
            _fill(inner)
            inner.saved = [_saved(inner, saver) for saver in op.body.savers]
            return inner.saved
        case ThreadGraph(outputs=outputs):
            inner = Scope(op.body, scope, op.inputs, dims=operands)
            scope.inner[number] = inner
            _fill(inner)
            return [inner.dims[v] for v in outputs]
    match op.attrs:
        case InIterAttrs(arg):
            assert scope.outer is not None
            return [_tile(scope, scope.outer.dims[scope.feeds[arg]], op.attrs)]
        case OutSaverAttrs():
            return []
        case AccumAttrs(dim=dim) if dim is not None:
            return [[[*scope.loop, *parts] if d == dim else parts for d, parts in enumerate(operands[0])]]
        case AccumAttrs():
            return [_broadcast(operands, scope.graph.types[op.inputs[0]])]
    value = len(scope.defined)
    if op.kind in BY_NUMBER:
        return [_numbered(scope, op, operands, value)]
    return [_plain_result(op, operands, [scope.graph.types[v] for v in op.inputs], scope.graph.types[value])]


def _numbered(scope: Scope, op: Op, operands: list[Dims], value: int) -> Dims:
    """What is picked by the numbers of elements from an input: a tensor of its own, with a name that says all of it."""
    if any(v not in scope.numbered for v in op.inputs):
        raise ProofError(f"{op.kind.value} of a computed tensor knows elements by their number, as no term does")
    attrs = " ".join(f"{field}={part}" for field, part in write_attrs(op.attrs).items())
    name = f"{op.kind.value} {attrs}" + "".join(f" of {scope.numbered[v]}" for v in op.inputs)
    if isinstance(scope.graph, KernelGraph) and any(i.name == name for i in scope.graph.inputs):
        raise ProofError(f"an input has the name of what is made by {op.kind.value}")
    own = getattr(op.attrs, "dim", 0)
    shape = scope.shape(value)
    made: Dims = [new(extent) if dim == own else operands[0][dim] for dim, extent in enumerate(shape)]
    scope.numbered[value] = name
    return scope.shared.setdefault(name, made)


BY_NUMBER = frozenset({OpKind.ARANGE, OpKind.SLICE, OpKind.PAD, OpKind.RUNNING_SUM})
"""Operators whose elements are told by their numbers along an axis."""


def _tile(scope: Scope, dims: Dims, attrs: InIterAttrs) -> Dims:
    """What an input iterator reads: the grid takes the outer parts, x outermost, the loop the next ones."""
    assert isinstance(scope.graph, BlockGraph)
    found = []
    for dim, (parts, hanging) in enumerate(zip(dims, scope.graph.overhanging(attrs), strict=True)):
        splits = [scope.grid[g] for g, d in enumerate(attrs.imap) if d == dim]
        splits += [scope.loop] if attrs.fmap == dim else []
        outer = [part for split in splits for part in split]
        if hanging:
            inner = new((attrs.tile or ())[dim])
            _cover(covered(parts), [*outer, *inner])
            found.append(inner)
            continue
        head, rest = take(parts, math.prod(part.size for part in outer))
        unify(head, outer)
        found.append(rest)
    return found


def covered(parts: Parts) -> Part:
    """The axis over whose end tiles hang."""
    axis = leaves(parts)
    if len(axis) != 1:
        raise ProofError("tiles hang over the end of an axis of several parts, or of one element")
    return axis[0]


def _saved(scope: Scope, saver: Op) -> Dims:
    """What a saver writes: the tile's parts behind those of the grid dims that are mapped there, up to the end."""
    assert isinstance(saver.attrs, OutSaverAttrs)
    found = []
    for dim, tile in enumerate(scope.dims[saver.inputs[0]]):
        parts = [*(part for g, d in enumerate(saver.attrs.omap) if d == dim for part in scope.grid[g]), *tile]
        if saver.attrs.shape is not None and drops(scope, saver, dim):
            axis = new(saver.attrs.shape[dim])
            _cover(covered(axis), parts)
            parts = axis
        found.append(parts)
    return found


def drops(scope: Scope, saver: Op, dim: int) -> bool:
    """Whether tiles that a saver writes hang over the end of a dimension."""
    assert isinstance(saver.attrs, OutSaverAttrs) and isinstance(scope.graph, BlockGraph)
    blocks = math.prod(n for n, d in zip(scope.graph.grid, saver.attrs.omap, strict=True) if d == dim)
    return saver.attrs.shape is not None and blocks * scope.shape(saver.inputs[0])[dim] > saver.attrs.shape[dim]


def _plain_result(op: Op, operands: list[Dims], types: list[TensorType], result: TensorType) -> Dims:
    match op.kind, op.attrs:
        case OpKind.MATMUL, _:
            return _matmul(operands[0], operands[1], result)
        case OpKind.CONCAT_MATMUL, _:
            one, other = _matmul(operands[0], operands[2], result), _matmul(operands[1], operands[3], result)
            return _broadcast([one, other], result)
        case OpKind.RESCALED_SUM, DimAttrs(dim):
            joined = _broadcast(operands, types[0])
            return [[] if d == dim else parts for d, parts in enumerate(joined)]
        case OpKind.SUM | OpKind.MAX, DimAttrs(dim):
            return [[] if d == dim else parts for d, parts in enumerate(operands[0])]
        case _, RepeatAttrs(dim, times):
            return [[*new(times), *parts] if d == dim else parts for d, parts in enumerate(operands[0])]
        case _, TransposeAttrs(perm):
            return [operands[0][d] for d in perm]
        case _, ReshapeAttrs(shape):
            return _regrouped(operands[0], shape)
        case OpKind.CONCAT, DimAttrs(dim):
            return _concatenated(operands, types, dim)
        case _:
            return _broadcast(operands, result)


def _broadcast(operands: list[Dims], result: TensorType) -> Dims:
    found: Dims = [[] for _ in result.shape]
    for dims in operands:
        for d, parts in enumerate(dims, start=len(found) - len(dims)):
            if parts and found[d]:
                unify(found[d], parts)
            found[d] = found[d] or parts
    return found


def _matmul(left: Dims, right: Dims, result: TensorType) -> Dims:
    unify(left[-1], right[-2])
    batch = TensorType(result.shape[:-2], result.dtype)
    return [*_broadcast([left[:-2], right[:-2]], batch), left[-2], right[-1]]


def _regrouped(dims: Dims, shape: Shape) -> Dims:
    rest = [part for parts in dims for part in parts]
    found = []
    for extent in shape:
        head, rest = take(rest, extent)
        found.append(head)
    return found


def _concatenated(operands: list[Dims], types: list[TensorType], dim: int) -> Dims:
    left, right = operands
    for d, (a, b) in enumerate(zip(left, right, strict=True)):
        if d != dim:
            unify(a, b)
    joined = Part(types[0].shape[dim] + types[1].shape[dim], sides=(left[dim], right[dim]))
    return [[joined] if d == dim else parts for d, parts in enumerate(left)]
