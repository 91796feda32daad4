"""Parts of what is computed are computed from parts of inputs: the halves of a fused projection, one of its heads.

In: a tensor program. Out: the same one on parts of its inputs, where every slice in it goes back to these; and muGraphs
of that as muGraphs of the program itself, which take those parts where they lie. Both halves of `X @ W` become products
with the halves of W, which one kernel computes side by side with what joins them. Invariant: nothing is computed twice:
the parts in which a value is read have no more elements than it has; any other value stays whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from mirage_nb.ir import Input, KernelGraph, Op, OpKind, ReshapeAttrs, SliceAttrs, TransposeAttrs
from mirage_nb.ir.ops import OPS, DimAttrs, Shape, Trait
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.ir.windows import Share, shares, views
from mirage_nb.tile.rules.boxes import in_boxes

Part = tuple[SliceAttrs, ...]
"""Of a value: the places that are taken of every dimension."""


@dataclass(frozen=True, slots=True)
class Parts:
    """`program` says what `given` says, on inputs of which each is a part of one of `given`."""

    given: KernelGraph
    program: KernelGraph
    taken: tuple[tuple[int, Part], ...]

    @property
    def apart(self) -> frozenset[tuple[int, int]]:
        """Inputs of `program`, and dimensions that are no run of elements with the next one, as not all of that one is
        taken, or not every element of theirs."""
        found = set[tuple[int, int]]()
        for number, (value, part) in enumerate(self.taken):
            for attrs in _proper(part, self.given.types[value].shape):
                found.update((number, dim) for dim in range(attrs.dim - 1, attrs.dim + (attrs.step != 1)))
        return frozenset(found)

    @property
    def shares(self) -> tuple[Share, ...]:
        """What each input of `program` is of the tensor of which several may be parts."""
        graph, values = self._values()
        return shares(graph, values, views(graph), range(len(graph.types)))

    @property
    def boxed(self) -> tuple[bool | None, ...]:
        """Of each input of `program`, whether the copy engine brings boxes of it; None of what is no window."""
        graph, values = self._values()
        seen, types = views(graph), graph.types
        return tuple(in_boxes(seen[v], types[v], types[v].shape[-1]) if v in seen else None for v in values)

    def _values(self) -> tuple[KernelGraph, tuple[int, ...]]:
        """What is taken of the inputs of `given`, and the values there that are inputs of `program`."""
        front = self._front()
        return front.graph, tuple(front.held[number] for number in range(len(self.taken)))

    def whole(self, graph: KernelGraph) -> KernelGraph:
        """A muGraph of `program` on the inputs of `given`."""
        made = self._front()
        for op, values in graph.definitions():
            made.copy(op, values)
        return made.returning(graph)

    def inner(self, graph: KernelGraph) -> KernelGraph:
        """A muGraph of `given` that begins with taking these parts as one of `program`; any other as it is."""
        front = self._front()
        count = len(front.graph.ops)
        if graph.inputs != front.graph.inputs or graph.ops[:count] != front.graph.ops:
            return graph
        taken = {value: number for number, value in front.held.items()}
        made = Rewrite(KernelGraph.start(*self.program.inputs), taken)
        for op, values in [*graph.definitions()][count:]:
            if not made.held.keys() >= {*op.inputs}:
                return graph
            made.copy(op, values)
        return made.returning(graph)

    def _front(self) -> Rewrite[KernelGraph]:
        """The inputs of `given` and what is taken of them; it holds the inputs of `program`."""
        made = Rewrite(KernelGraph.start(*self.given.inputs), {})
        for number, (value, part) in enumerate(self.taken):
            made.held[number] = _taken(made, value, part)
        return made


def parts(program: KernelGraph) -> Parts | None:
    """The program on parts of its inputs; None where it takes none, or where an output is one, or another output."""
    if all(op.kind is not OpKind.SLICE for op in program.ops):
        return None
    made = _Writer(program, _wanted(program)).write()
    own = {*made.program.outputs} - {*range(made.program.input_count)}
    return made if made.program.inputs != program.inputs and len(own) == len(program.outputs) else None


def _all(shape: Shape) -> Part:
    return tuple(SliceAttrs(dim, 0, extent) for dim, extent in enumerate(shape))


def _begin(part: Part) -> tuple[int, ...]:
    return tuple(attrs.start for attrs in part)


def _proper(part: Part, shape: Shape) -> list[SliceAttrs]:
    """Of dimensions of which not all is taken, what is."""
    return [attrs for attrs, every in zip(part, _all(shape), strict=True) if attrs != every]


def _taken(made: Rewrite[KernelGraph], value: int, part: Part) -> int:
    """A part of a value that is there."""
    for attrs in _proper(part, made.graph.types[value].shape):
        value = made.add(Op(OpKind.SLICE, (value,), attrs))
    return value


def _wanted(program: KernelGraph) -> dict[int, tuple[Part, ...]]:
    """By value, inputs among them, the parts that are made of it: all of it, alone, or some."""
    every = [_all(t.shape) for t in program.types]
    asked: dict[int, dict[Part, None]] = {value: {every[value]: None} for value in program.outputs}
    found: dict[int, tuple[Part, ...]] = {}
    for op, (value, *_) in reversed([*program.definitions()]):
        own = tuple(asked.get(value, ()))
        few = sum(_elements(part) for part in own) <= program.types[value].elements
        read = {part: _operands(program, op, value, part) for part in own} if few or op.kind is OpKind.SLICE else {}
        if op.kind is not OpKind.SLICE and not (few and all(read.values())):
            read = {every[value]: _operands(program, op, value, every[value])}
        found[value] = tuple(read)
        for its_own in read.values():
            for operand, its in zip(op.inputs, its_own or [every[v] for v in op.inputs], strict=True):
                asked.setdefault(operand, {})[its] = None
    return found | {value: tuple(asked.get(value, ())) for value in range(program.input_count)}


def _elements(part: Part) -> int:
    return prod(attrs.extent for attrs in part)


def _operands(program: KernelGraph, op: Op, value: int, part: Part) -> list[Part]:
    """The parts of its operands from which a part of an operator's result is computed; none where that is not said."""
    shapes = [program.types[v].shape for v in op.inputs]
    if Trait.ELEMENTWISE in OPS[op.kind].traits:
        return [_repeated(part, shape) for shape in shapes]
    match op.kind, op.attrs:
        case OpKind.MATMUL, _:
            left, right = map(_all, shapes)
            batch = part[:-2]
            rows, columns = _along(len(left) - 2, part[-2]), _along(len(right) - 1, part[-1])
            return [
                (*_repeated(batch, shapes[0][:-2]), rows, left[-1]),
                (*_repeated(batch, shapes[1][:-2]), right[-2], columns),
            ]
        case (OpKind.SUM | OpKind.MAX), DimAttrs(dim) if program.types[value].shape[dim] == 1:
            return [(*part[:dim], _all(shapes[0])[dim], *part[dim + 1 :])]
        case OpKind.TRANSPOSE, TransposeAttrs(perm):
            return [tuple(_along(dim, part[perm.index(dim)]) for dim in range(len(perm)))]
        case OpKind.SLICE, SliceAttrs(dim, start, _, step):
            own = part[dim]
            inner = SliceAttrs(dim, start + own.start * step, own.extent, step * own.step if own.extent > 1 else 1)
            return [(*part[:dim], inner, *part[dim + 1 :])]
        case OpKind.RESHAPE, _:
            source = _reshaped(part, program.types[value].shape, shapes[0])
            return [source] if source is not None else []
    return []


def _repeated(part: Part, shape: Shape) -> Part:
    """The part of an operand of this shape that is broadcast."""
    first = len(part) - len(shape)
    own = _all(shape)
    return tuple(own[d] if extent == 1 else _along(d, part[first + d]) for d, extent in enumerate(shape))


def _along(dim: int, attrs: SliceAttrs) -> SliceAttrs:
    """The same part of another dimension."""
    return attrs if attrs.dim == dim else replace(attrs, dim=dim)


def _reshaped(part: Part, shape: Shape, source: Shape) -> Part | None:
    """The part of what is reshaped: dimensions that become several, or are made of several, are taken by the outermost
    of these; None where that is not a part."""
    found: list[SliceAttrs] = []
    mine, its = 0, 0
    while mine < len(shape) or its < len(source):
        ends = _run(shape, mine, source, its)
        run, inner = part[mine : ends[0]], source[its : ends[1]]
        made = _joined(run, shape[mine : ends[0]], inner)
        if made is None:
            return None
        found += [_along(its + n, attrs) for n, attrs in enumerate(made)]
        mine, its = ends
    return tuple(found)


def _run(shape: Shape, mine: int, source: Shape, its: int) -> tuple[int, int]:
    """Where the next dimensions end that have as many elements in both, from these places on."""
    ends, counts = [mine, its], [1, 1]
    for n, (own, first) in enumerate(((shape, mine), (source, its))):
        if first < len(own):
            counts[n] *= own[first]
            ends[n] += 1
    while counts[0] != counts[1]:
        n = 0 if counts[0] < counts[1] else 1
        counts[n] *= (shape, source)[n][ends[n]]
        ends[n] += 1
    return ends[0], ends[1]


def _joined(run: Part, shape: Shape, source: Shape) -> Part | None:
    """The part of dimensions that are one run of elements in memory: of them all, or of the outermost longer than 1."""
    own = [_along(n, attrs) for n, attrs in enumerate(run)]
    taken = [(n, attrs) for n, (attrs, every) in enumerate(zip(own, _all(shape), strict=True)) if attrs != every]
    if not taken:
        return _all(source)
    longest, outer = (next(n for n, extent in enumerate(extents) if extent > 1) for extents in (shape, source))
    (first, attrs), *more = taken
    rest, inner = prod(shape[first + 1 :]), prod(source[outer + 1 :])
    if more or first != longest or (rest != inner and attrs.step != 1):
        return None
    start, length = attrs.start * rest, attrs.extent * rest
    if rest == inner:
        made = SliceAttrs(outer, attrs.start, attrs.extent, attrs.step)
    elif start % inner or length % inner:
        return None
    else:
        made = SliceAttrs(outer, start // inner, length // inner)
    return tuple(made if n == outer else every for n, every in enumerate(_all(source)))


class _Writer:
    """Writes a program on the parts that are wanted of its values."""

    def __init__(self, program: KernelGraph, wanted: dict[int, tuple[Part, ...]]) -> None:
        self._program, self._wanted = program, wanted
        inputs = [(v, part) for v in range(program.input_count) for part in sorted(wanted[v], key=_begin)]
        self._taken = tuple(inputs)
        self._new = Rewrite(KernelGraph.start(*(self._input(value, part) for value, part in inputs)))
        self._held = {taken: number for number, taken in enumerate(inputs)}

    def write(self) -> Parts:
        """The whole program."""
        program = self._program
        for op, (value, *_) in program.definitions():
            for part in self._wanted[value]:
                self._held[value, part] = self._made(op, value, part)
        outputs = tuple(self._get(value, _all(program.types[value].shape)) for value in program.outputs)
        return Parts(program, self._new.graph.returning(outputs, program.output_names), self._taken)

    def _input(self, value: int, part: Part) -> Input:
        given = self._program.inputs[value]
        shape = tuple(attrs.extent for attrs in part)
        said = [_text(attrs, extent) for attrs, extent in zip(part, given.type.shape, strict=True)]
        while said and said[-1] == ":":
            said.pop()
        name = f"{given.name}[{', '.join(said)}]" if said else given.name
        return replace(given, name=name, type=replace(given.type, shape=shape))

    def _made(self, op: Op, value: int, part: Part) -> int:
        read = _operands(self._program, op, value, part) or [_all(self._program.types[v].shape) for v in op.inputs]
        inputs = tuple(self._get(v, its) for v, its in zip(op.inputs, read, strict=True))
        if op.kind is OpKind.SLICE:
            return inputs[0]
        shape = tuple(attrs.extent for attrs in part)
        attrs = ReshapeAttrs(shape) if op.kind is OpKind.RESHAPE else op.attrs
        return self._new.add(Op(op.kind, inputs, attrs, op.body))

    def _get(self, value: int, part: Part) -> int:
        """A part of a value: made so, or taken of all of it."""
        if (value, part) not in self._held:
            whole = self._held[value, _all(self._program.types[value].shape)]
            self._held[value, part] = _taken(self._new, whole, part)
        return self._held[value, part]


def _text(attrs: SliceAttrs, extent: int) -> str:
    """A part of a dimension as it is written in a program."""
    if attrs == SliceAttrs(attrs.dim, 0, extent):
        return ":"
    end = attrs.start + (attrs.extent - 1) * attrs.step + (1 if attrs.step > 0 else -1)
    return f"{attrs.start}:{end if end >= 0 else ''}{f':{attrs.step}' if attrs.step != 1 else ''}"
