"""muGraphs: kernel graphs, block graphs and thread graphs of one operator type (paper section 2).

All graphs are frozen and in SSA form: a value is a small integer. Values 0 .. len(inputs)-1 are the
graph's inputs; operator i defines the next value (a graph-defined operator defines one value per
saver of its block graph, a saver defines none). `append` returns a new graph with the types inferred;
equality is structural and `digest` is the cache key. Definition 2.1 is checked in `ir.legality`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from operator import attrgetter
from typing import Any, Self, TypeVar

from mirage_nb.errors import GraphError, ShapeError
from mirage_nb.ir.dtypes import BYTES, MemSpace, TensorType, computed, result_dtype
from mirage_nb.ir.fields import INPUT_WORDS
from mirage_nb.ir.ops import (
    OPS,
    AccumAttrs,
    AccumKind,
    ArangeAttrs,
    Attrs,
    CastAttrs,
    ConstAttrs,
    InIterAttrs,
    Level,
    OpKind,
    OutSaverAttrs,
    Shape,
    Trait,
    broadcast,
    check_cover,
    check_dim,
    show_shape,
)


@dataclass(frozen=True, slots=True)
class Op:
    """One operator: kind, operand values, attributes, and the lower-level graph that defines it, if any."""

    kind: OpKind
    inputs: tuple[int, ...] = ()
    attrs: Attrs | None = None
    body: BlockGraph | ThreadGraph | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """A named extent that is known at launch: a number from `least` to `most`."""

    name: str
    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.name} from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Input:
    """A named input of a kernel graph.

    `dims`: what its author calls the dimensions, "" where nothing; for people to read. Equality and digests leave
    them out. `size`: what the outermost dimension is a multiple of, if that is known at launch only; the type is that
    of its largest extent then (`ir.sizes`). `settled`: it is like the weights of a model, which nothing writes that may
    still run while kernels of this graph begin. `places`: its elements are 0, 1, ... in their order (`ir.places`).
    """

    name: str
    type: TensorType
    dims: tuple[str, ...] = field(default=(), compare=False, repr=False)
    size: Size | None = field(default=None, repr=False)
    settled: bool = field(default=False, repr=False)
    places: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        size, shape = self.size, self.type.shape
        if size is not None and not (1 <= size.least <= size.most > 1 and shape and shape[0] % size.most == 0):
            raise GraphError(f"{self.name}: {self.type} has no outermost dimension for {size}")


@dataclass(frozen=True, slots=True)
class _Graph(ABC):
    """What the three levels share: operators and the types of all values, in definition order."""

    ops: tuple[Op, ...] = ()
    types: tuple[TensorType, ...] = ()

    @property
    @abstractmethod
    def input_count(self) -> int:
        """Number of values that the graph takes in; they come first."""

    @abstractmethod
    def results(self, op: Op) -> tuple[TensorType, ...]:
        """The types of the values that `op` would define here; raises GraphError or ShapeError."""

    def append(self, op: Op) -> Self:
        """A new graph with `op` behind the others.

        Raises:
            GraphError: the operator may not stand at this level or reads an unknown value.
            ShapeError: its operands do not fit.
        """
        for value in op.inputs:
            if not 0 <= value < len(self.types):
                raise GraphError(f"{op.kind.value} reads value %{value}, which is not defined before it")
        return type(self)((*self.ops, op), (*self.types, *self.results(op)), *_KEPT[type(self)](self))

    def definitions(self) -> Iterator[tuple[Op, tuple[int, ...]]]:
        """Every operator with the values it defines, in order."""
        value = self.input_count
        for op in self.ops:
            count = result_count(op)
            yield op, tuple(range(value, value + count))
            value += count

    def uses(self) -> tuple[tuple[int, ...], ...]:
        """For every value, the indices of the operators that read it."""
        found: list[list[int]] = [[] for _ in self.types]
        for index, op in enumerate(self.ops):
            for value in op.inputs:
                found[value].append(index)
        return tuple(map(tuple, found))


def result_count(op: Op) -> int:
    """Number of values that `op` defines."""
    if op.kind is OpKind.OUT_SAVER:
        return 0
    if op.body is None or op.kind not in (OpKind.GRAPH, OpKind.FUSED):
        return 1
    return len(op.body.savers if isinstance(op.body, BlockGraph) else op.body.outputs)


def infer(op: Op, operands: tuple[TensorType, ...], level: Level, space: MemSpace) -> TensorType:
    """The result type of a plain operator (one that has a shape rule in the table)."""
    spec = OPS[op.kind]
    if level not in spec.levels or spec.shape is None:
        raise GraphError(f"{op.kind.value} may not stand in a {level.value} graph")
    if spec.arity is not None and len(operands) != spec.arity:
        raise GraphError(f"{op.kind.value} takes {spec.arity} operands, not {len(operands)}")
    if spec.attrs is not None and not isinstance(op.attrs, spec.attrs):
        raise GraphError(f"{op.kind.value} needs {spec.attrs.__name__}")
    shape = spec.shape(tuple(t.shape for t in operands), op.attrs)
    if isinstance(op.attrs, ConstAttrs | ArangeAttrs | CastAttrs):
        if op.attrs.dtype in BYTES:
            raise GraphError(f"{op.kind.value} makes no {op.attrs.dtype.value}", hint="inputs may be, and their views")
        return TensorType(shape, op.attrs.dtype, space)
    dtype = result_dtype(operands[1:] if op.kind is OpKind.WHERE else operands)  # a condition has no part in it
    return TensorType(shape, dtype if Trait.VIEW in spec.traits else computed(dtype), space)


@dataclass(frozen=True, slots=True)
class KernelGraph(_Graph):
    """A tensor program or a muGraph: kernels between tensors in device memory.

    `inputs` are named; `outputs` are the values that it returns, `output_names` their names.

    >>> graph = session.best.graph
    >>> print(print_graph(graph))            # its text, which `parse_graph` reads back and `submit` takes
    >>> graph.kernel_count, graph.digest()
    """

    inputs: tuple[Input, ...] = ()
    outputs: tuple[int, ...] = ()
    output_names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        given = few([f"{i.name[:24]} {i.type}" for i in self.inputs])
        named = zip(self.outputs, self.output_names, strict=False)
        made = few([f"{name[:24]} {self.types[v]}" for v, name in named if v < len(self.types)])
        defined = sum(op.kind is OpKind.GRAPH for op in self.ops)
        what = f"{len(self.ops)} operators, {defined} graph-defined"
        return f"<KernelGraph {self.digest()[:8]}: {given} -> {made}; {what}>"

    @classmethod
    def start(cls, *inputs: Input) -> KernelGraph:
        """A graph with inputs and no operators."""
        return cls(inputs=inputs, types=tuple(i.type for i in inputs))

    @property
    def input_count(self) -> int:
        return len(self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """The types of the outputs, in order."""
        return tuple(self.types[v] for v in self.outputs)

    @property
    def is_weight_bound(self) -> bool:
        """Whether settled inputs are most of what it reads."""
        return 2 * sum(i.type.nbytes for i in self.inputs if i.settled) > sum(i.type.nbytes for i in self.inputs)

    def results(self, op: Op) -> tuple[TensorType, ...]:
        operands = tuple(self.types[v] for v in op.inputs)
        if op.kind is not OpKind.GRAPH:
            return (infer(op, operands, Level.KERNEL, MemSpace.DEVICE),)
        if not isinstance(op.body, BlockGraph):
            raise GraphError("a graph-defined operator needs a block graph")
        if op.body.args != operands:
            raise GraphError("the block graph was built for other operand types")
        return op.body.output_types

    def returning(self, outputs: tuple[int, ...], names: tuple[str, ...] = ()) -> KernelGraph:
        """The same graph with these outputs; names default to O, or O0, O1, ..."""
        for value in outputs:
            if not 0 <= value < len(self.types):
                raise GraphError(f"output %{value} is not defined")
        default = ("O",) if len(outputs) == 1 else tuple(f"O{i}" for i in range(len(outputs)))
        return replace(self, outputs=outputs, output_names=names or default)

    @property
    def kernel_count(self) -> int:
        """Number of kernels launched: graph-defined operators and pre-defined ones that compute."""
        uniform = self.uniform()
        return sum(op.kind is not OpKind.RESHAPE and values[0] not in uniform for op, values in self.definitions())

    def uniform(self) -> dict[int, Fraction]:
        """The values that are one number in all elements, and lie nowhere: constants, and what only graph-defined
        operators read of repeated ones."""
        first = [values[0] for _, values in self.definitions()]
        constants = {v: a.value for v, op in zip(first, self.ops, strict=True) if isinstance(a := op.attrs, ConstAttrs)}
        found = dict(constants)
        for value, op in zip(first, self.ops, strict=True):
            if op.kind in (OpKind.RESHAPE, OpKind.REPEAT) and op.inputs[0] in found:
                found[value] = found[op.inputs[0]]
        uses = self.uses()
        for value in reversed(list(found)):
            readers = uses[value]
            inside = all(self.ops[i].kind is OpKind.GRAPH or first[i] in found for i in readers)
            if value not in constants and (value in self.outputs or not inside):
                del found[value]
        return found

    def digest(self) -> str:
        """sha256 over the structure; equal graphs have equal digests, in every run."""
        return digest(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """What a notebook shows: the picture, or the text form."""
        from mirage_nb.viz.mugraph import mugraph_bundle

        return mugraph_bundle(self)


@dataclass(frozen=True, slots=True)
class BlockGraph(_Graph):
    """What one thread block computes, on tensors in shared memory.

    `args` are the types of the kernel operator's operands; input iterators read parts of them. `grid`
    has up to three extents; `loop` is the for-loop range (1: no loop). Operators that depend on no
    accumulator and stand before one are the loop body; see `stages`.
    """

    args: tuple[TensorType, ...] = ()
    grid: tuple[int, ...] = (1,)
    loop: int = 1

    def __repr__(self) -> str:
        return f"<BlockGraph {digest(self)[:8]}: grid {list(self.grid)}, loop {self.loop}, {len(self.ops)} operators>"

    @classmethod
    def start(cls, args: tuple[TensorType, ...], grid: tuple[int, ...], loop: int = 1) -> BlockGraph:
        """An empty block graph over these operands. Raises GraphError for an impossible grid or loop."""
        if not 1 <= len(grid) <= 3 or any(extent < 1 for extent in grid):
            raise GraphError(f"grid dims {grid}: one to three positive extents")
        if loop < 1:
            raise GraphError(f"for-loop range {loop}: at least 1")
        return cls(args=args, grid=grid, loop=loop)

    @property
    def input_count(self) -> int:
        return 0

    @property
    def has_loop(self) -> bool:
        """Whether there is a for-loop body (accumulators separate it from what follows)."""
        return self.loop > 1 or any(op.kind is OpKind.ACCUM for op in self.ops)

    @property
    def savers(self) -> tuple[Op, ...]:
        """The output savers, in output order."""
        return tuple(op for op in self.ops if op.kind is OpKind.OUT_SAVER)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Types of the tensors in device memory that the savers write, in order."""
        return tuple(self._saved(op) for op in self.savers)

    def _saved(self, op: Op) -> TensorType:
        if not isinstance(op.attrs, OutSaverAttrs) or len(op.inputs) != 1:
            raise GraphError("an output saver takes one value and an omap")
        tile = self.types[op.inputs[0]]
        shape = list(tile.shape)
        if len(op.attrs.omap) != len(self.grid):
            raise GraphError(f"omap {op.attrs.omap} does not cover the {len(self.grid)} grid dims")
        for extent, dim in zip(self.grid, op.attrs.omap, strict=True):
            if dim is None and extent != 1:
                raise GraphError("omap: every grid dim that is not of extent 1 needs a data dimension")
            if dim is not None:
                check_dim(tile.shape, dim, "omap")
                shape[dim] *= extent
        if op.attrs.shape is not None:
            parts = tuple(whole // part for whole, part in zip(shape, tile.shape, strict=True))
            check_cover(op.attrs.shape, parts, tile.shape)
            shape = list(op.attrs.shape)
        return TensorType(tuple(shape), tile.dtype, MemSpace.DEVICE)

    def tile_shape(self, attrs: InIterAttrs) -> Shape:
        """The part of operand `attrs.arg` that one block reads in one iteration. Raises GraphError, ShapeError."""
        if not 0 <= attrs.arg < len(self.args):
            raise GraphError(f"an input iterator reads operand {attrs.arg} of {len(self.args)}")
        if len(attrs.imap) != len(self.grid):
            raise GraphError(f"imap {attrs.imap} does not cover the {len(self.grid)} grid dims")
        operand = self.args[attrs.arg].shape
        shape, parts = list(operand), [1] * len(operand)
        splits = [*zip(attrs.imap, self.grid, strict=True), (attrs.fmap, self.loop)]
        for dim, extent in splits:
            if dim is None:
                continue
            check_dim(operand, dim, "imap or fmap")
            parts[dim] *= extent
            if attrs.tile is None and shape[dim] % extent:
                raise ShapeError(
                    f"dimension {dim} of {show_shape(tuple(shape))} is not divisible by {extent}",
                    hint="tile=[...] gives the parts a shape with which the last ones may hang over the end",
                )
            shape[dim] //= extent
        if attrs.tile is None:
            return tuple(shape)
        check_cover(operand, tuple(parts), attrs.tile)
        return attrs.tile

    def overhanging(self, attrs: InIterAttrs) -> tuple[bool, ...]:
        """For every dimension of operand `attrs.arg`, whether the last tile hangs over its end."""
        if attrs.tile is None:
            return (False,) * len(self.args[attrs.arg].shape)
        covered = list(attrs.tile)
        for dim, extent in [*zip(attrs.imap, self.grid, strict=True), (attrs.fmap, self.loop)]:
            if dim is not None:
                covered[dim] *= extent
        return tuple(a > b for a, b in zip(covered, self.args[attrs.arg].shape, strict=True))

    def results(self, op: Op) -> tuple[TensorType, ...]:
        operands = tuple(self.types[v] for v in op.inputs)
        match op.kind:
            case OpKind.IN_ITER:
                if not isinstance(op.attrs, InIterAttrs):
                    raise GraphError("an input iterator needs imap and fmap")
                shape = self.tile_shape(op.attrs)
                return (TensorType(shape, self.args[op.attrs.arg].dtype, MemSpace.SHARED),)
            case OpKind.OUT_SAVER:
                self._saved(op)
                return ()
            case OpKind.ACCUM:
                return (self._accumulated(op, operands),)
            case OpKind.FUSED:
                if not isinstance(op.body, ThreadGraph) or len(op.body.inputs) != len(operands):
                    raise GraphError("a fused operator needs a thread graph over its operands")
                if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(op.body.inputs, operands, strict=True)):
                    raise GraphError("the thread graph was built for other operand types")
                return tuple(replace(t, space=MemSpace.SHARED) for t in op.body.output_types)
            case _:
                return (infer(op, operands, Level.BLOCK, MemSpace.SHARED),)

    def _accumulated(self, op: Op, operands: tuple[TensorType, ...]) -> TensorType:
        if not isinstance(op.attrs, AccumAttrs) or not operands:
            raise GraphError("an accumulator needs a kind and an operand")
        tile = operands[0]
        expected = 2 if op.attrs.kind is AccumKind.RESCALE else 1
        if len(operands) != expected:
            raise GraphError(f"a {op.attrs.kind.value} accumulator takes {expected} operand(s), not {len(operands)}")
        if (op.attrs.dim is not None) != (op.attrs.kind is AccumKind.CONCAT):
            raise GraphError("a dimension belongs to the concat accumulator, and only to it")
        if op.attrs.kind is AccumKind.RESCALE and broadcast((tile.shape, operands[1].shape)) != tile.shape:
            raise ShapeError("the running maximum of a rescale accumulator is wider than its operand")
        if op.attrs.dim is None:
            return tile if op.attrs.kind is AccumKind.HOLD else replace(tile, dtype=computed(tile.dtype))
        check_dim(tile.shape, op.attrs.dim, "concat accumulator")
        shape = list(tile.shape)
        shape[op.attrs.dim] *= self.loop
        return replace(tile, shape=tuple(shape))

    def stages(self) -> tuple[int | None, ...]:
        """For every operator: 0 in the loop body, 1 after the accumulators (or no loop), None for constants.

        An accumulator counts as stage 1: its value exists after the loop.
        """
        first = 0 if self.has_loop else 1
        of_value: list[int | None] = []
        found: list[int | None] = []
        for op in self.ops:
            read = [of_value[v] for v in op.inputs if of_value[v] is not None]
            match op.kind:
                case OpKind.CONST:
                    stage: int | None = None
                case OpKind.IN_ITER:
                    stage = first
                case OpKind.ACCUM:
                    stage = 1
                case _:
                    stage = max((s for s in read if s is not None), default=None)
            found.append(stage)
            of_value.extend([stage] * result_count(op))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class ThreadGraph(_Graph):
    """A chain of operators on tensors in registers: each thread computes its own elements.

    `inputs` are the operand types, `outputs` the values that leave the chain.
    """

    inputs: tuple[TensorType, ...] = ()
    outputs: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"<ThreadGraph {digest(self)[:8]}: {few([op.kind.value for op in self.ops])}>"

    @classmethod
    def start(cls, inputs: tuple[TensorType, ...]) -> ThreadGraph:
        """A thread graph over these operand types."""
        held = tuple(replace(t, space=MemSpace.REGISTER) for t in inputs)
        return cls(inputs=held, types=held)

    @property
    def input_count(self) -> int:
        return len(self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """The types of the outputs, in order."""
        return tuple(self.types[v] for v in self.outputs)

    def results(self, op: Op) -> tuple[TensorType, ...]:
        return (infer(op, tuple(self.types[v] for v in op.inputs), Level.THREAD, MemSpace.REGISTER),)

    def returning(self, outputs: tuple[int, ...]) -> ThreadGraph:
        """The same chain with these outputs."""
        return replace(self, outputs=outputs)


Graph = KernelGraph | BlockGraph | ThreadGraph
G = TypeVar("G", KernelGraph, BlockGraph, ThreadGraph)
H = TypeVar("H", bound=Hashable)


def digest(graph: Graph) -> str:
    """sha256 over the structure of a graph, independent of the run."""
    return hashlib.sha256(_spelled(graph).encode()).hexdigest()


def _spelled(graph: Graph) -> str:
    """All of a graph, by all its fields, where `repr` has a line for people."""
    ops = f"({', '.join(map(_spelled_op, graph.ops))}{',' if len(graph.ops) == 1 else ''})"
    rest = "".join([f", {name}={getattr(graph, name)!r}" for name in _NAMES[type(graph)][1:]])
    inputs, words = graph.inputs if isinstance(graph, KernelGraph) else (), {w: w for w in INPUT_WORDS}
    every = ((name, [getattr(i, word) for i in inputs]) for name, word in ({"sizes": "size"} | words).items())
    rest += "".join(f", {name}={said}" for name, said in every if any(said))
    return f"{type(graph).__name__}(ops={ops}{rest})"


def _spelled_op(op: Op) -> str:
    body = _spelled(op.body) if op.body is not None else None
    return f"Op(kind={op.kind!r}, inputs={op.inputs!r}, attrs={op.attrs!r}, body={body})"


_NAMES = {kind: tuple(f.name for f in fields(kind)) for kind in (KernelGraph, BlockGraph, ThreadGraph)}
_KEPT: dict[type, attrgetter[tuple[Any, ...]]] = {kind: attrgetter(*names[2:]) for kind, names in _NAMES.items()}


def reached(start: Iterable[H], behind: Callable[[H], Iterable[H]]) -> set[H]:
    """Everything from here on: `behind` says what comes behind one thing."""
    found = {*start}
    front = [*found]
    for one in front:  # which grows meanwhile
        fresh = {*behind(one)} - found
        found |= fresh
        front += fresh
    return found


def few(texts: Sequence[str], most: int = 4) -> str:
    """The first ones of many texts, for people."""
    left = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {left} more" if left > 0 else "")
