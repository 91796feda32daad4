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
from mirage_nb.verify.proof.terms import NO_EXTENTS, counted


@dataclass(slots=True, eq=False)
class Part:
    """A part of an axis: joined with another, split in two, one axis behind another, or plain and named."""

    size: int
    name: str = ""
    joined: Part | None = None
    split: tuple[Part, Part] | None = None
    sides: tuple[Parts, Parts] | None = None


MAX_OPERATORS = 200

Parts = list[Part]
Dims = list[Parts]


def new(extent: int) -> Parts:
    """A dimension about which nothing else is known."""
    return [Part(extent)] if extent > 1 else []


def leaves(parts: Iterable[Part]) -> Parts:
    """The plain parts, and concatenated ones, that a list stands for now."""
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
    if part.size % outer or any(extent % inner for extent in extents):
        what = "a concatenated axis" if part.sides is not None else f"an axis part of extent {part.size}"
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
    x.sides = x.sides or y.sides
    y.joined = x


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

    def shape(self, value: int) -> Shape:
        return self.graph.types[value].shape


def check_pair(program: KernelGraph, mugraph: KernelGraph, outputs: tuple[int, ...]) -> None:
    """Raise ProofError for graphs of other inputs or outputs, or too large ones, GraphError for an illegal one,
    NamedSizeError for one that does not keep elements along a size that is known at launch apart."""
    if {i.name: (i.type, i.size) for i in program.inputs} != {i.name: (i.type, i.size) for i in mugraph.inputs}:
        raise ProofError("the graphs do not have the same inputs")
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
    return {name: part.size for name, part in plain_parts(scopes).items() if name not in unknown}


def _name(inputs: list[tuple[str, Dims]], scopes: list[Scope]) -> None:
    """Every plain part is called after the first dimension that has it."""
    used = set[str]()
    for name, dims in inputs:
        for dim, parts in enumerate(dims):
            _call(parts, f"{name}.{dim}", used)
    for parts in _everywhere(scopes):
        _call(parts, "r", used)


def _everywhere(scopes: Iterable[Scope]) -> Iterator[Parts]:
    """The parts of all grid dims, loops and dimensions, outer graphs first."""
    waiting = deque(scopes)
    while waiting:
        scope = waiting.popleft()
        yield from (*scope.grid, scope.loop, *(parts for dims in scope.dims for parts in dims))
        waiting += scope.inner.values()


def plain_parts(scopes: Iterable[Scope]) -> dict[str, Part]:
    """All plain parts of two graphs by their names."""
    return {leaf.name: leaf for parts in _everywhere(scopes) for leaf in _plain(parts)}


def _call(parts: Parts, axis: str, used: set[str]) -> None:
    """Name the leaves that have no name yet after the axis, each differently."""
    plain = _plain(parts)
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
        found += [leaf] if leaf.sides is None else [*_plain(leaf.sides[0]), *_plain(leaf.sides[1])]
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
            return [_saved(inner, saver) for saver in op.body.savers]
        case ThreadGraph(outputs=outputs):
            inner = Scope(op.body, scope, op.inputs, dims=operands)
            scope.inner[number] = inner
            _fill(inner)
            return [inner.dims[v] for v in outputs]
    match op.attrs:
        case InIterAttrs(arg, imap, fmap, tile):
            assert scope.outer is not None
            _refuse(tile)
            return [_tile(scope, scope.outer.dims[scope.feeds[arg]], imap, fmap)]
        case OutSaverAttrs(_, shape):
            _refuse(shape)
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


def _refuse(given: Shape | None) -> None:
    """Parts of axes say nothing of elements beyond the end of a tensor."""
    if given is not None:
        raise ProofError("tiles overhang the end of a tensor, which is known for these sizes only")


def _tile(scope: Scope, dims: Dims, imap: tuple[int | None, ...], fmap: int | None) -> Dims:
    """What an input iterator reads: the grid takes the outer parts, x outermost, the loop the next ones."""
    found = []
    for dim, parts in enumerate(dims):
        splits = [scope.grid[g] for g, d in enumerate(imap) if d == dim] + ([scope.loop] if fmap == dim else [])
        outer = [part for split in splits for part in split]
        head, rest = take(parts, math.prod(part.size for part in outer))
        unify(head, outer)
        found.append(rest)
    return found


def _saved(scope: Scope, saver: Op) -> Dims:
    """What a saver writes: the tile's parts behind those of the grid dims that are mapped there."""
    assert isinstance(saver.attrs, OutSaverAttrs)
    tile = scope.dims[saver.inputs[0]]
    omap = saver.attrs.omap
    return [
        [*(part for g, d in enumerate(omap) if d == dim for part in scope.grid[g]), *parts]
        for dim, parts in enumerate(tile)
    ]


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
