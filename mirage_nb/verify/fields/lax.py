"""Which graphs field trials can decide, and which field parts each input needs (paper Definition 5.1).

In: a graph. Out: a `LaxReport`. A backward pass asks every operator which parts of its operands it reads:
outside an exponential the p part, inside one the q part. An exponential of which the q part is asked for
is the second one on its path, and the graph is outside LAX. The same pass notes what else weakens the
statement that a trial makes: roots, symbols, and operators that are tested as uninterpreted functions.

Operators outside LAX (ReLU, GELU, Clamp, most powers, functions of the program's own) are random functions in a
trial, one for each operator with its attributes, of the elements they are applied to. Graphs that agree with
random functions in their place are equal as terms over uninterpreted functions, up to the chance that trials have
to miss it; so they are equal for all functions, the operators themselves among them, wherever both have a value
(`reals` says how that is looked at). Acceptance is sound, and the verdict says that it is of this kind and bears no
error bound. It is not complete: graphs that are equal by what an
operator is, such as relu(2 x) and 2 relu(x), differ in the field. That refutes nothing; unless float64 values
differ too, the verdict is `outside LAX`, which is not accepted, and only a proof can lift it. A maximum is a
random function of the set of elements that it is taken of, by the same argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirage_nb.interp.field import MAX_POWER
from mirage_nb.ir import (
    COMPARISONS,
    AccumAttrs,
    AccumKind,
    ApplyAttrs,
    BlockGraph,
    ConstAttrs,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    PowAttrs,
    ThreadGraph,
)

Graph = KernelGraph | BlockGraph | ThreadGraph


Part = int
"""The field parts of a value that are asked for: a sum of P and Q."""
NONE, P, Q = 0, 1, 2


@dataclass(frozen=True, slots=True)
class LaxReport:
    """`parts`: for every input, whether (p, q) are read; `second`: the operator whose exponential enters
    another one, or empty; `opaque`: the operators tested as uninterpreted functions; whether there are maxima,
    square roots, symbols, exponentials."""

    parts: Mapping[str, tuple[bool, bool]]
    second: str
    opaque: tuple[str, ...]
    maxima: bool
    roots: bool
    symbols: bool
    exponentials: bool

    @property
    def exact(self) -> bool:
        """Whether operators mean in the field what they mean for reals: field values that differ alone prove that
        graphs differ as functions of reals, and where the field has a value reals have one, but for few inputs."""
        return not (self.opaque or self.maxima or self.roots or self.symbols)

    @property
    def bounded(self) -> bool:
        """Whether Theorem 2 speaks about the graph: no roots, nothing uninterpreted."""
        return not (self.opaque or self.maxima or self.roots)


EXPONENTIALS = frozenset({OpKind.EXP, OpKind.SILU, OpKind.SIGMOID})
OPAQUE = frozenset({OpKind.RELU, OpKind.GELU, OpKind.CLAMP, OpKind.APPLY, OpKind.WHERE, *COMPARISONS})
MARKED = EXPONENTIALS | OPAQUE | {
    OpKind.POW, OpKind.SQRT, OpKind.MAX, OpKind.MAXIMUM, OpKind.RESCALED_SUM, OpKind.ACCUM, OpKind.CONST,
}  # fmt: skip
"""Operators that a report may mention; most of a graph are others."""


def inspect(graph: KernelGraph) -> LaxReport:
    """The report on one graph."""
    demand = _Demand()
    wanted = demand.of_kernel(graph)
    marked = [op for op in all_ops(graph) if op.kind in MARKED]
    return LaxReport(
        parts={i.name: (bool(part & P), bool(part & Q)) for i, part in zip(graph.inputs, wanted, strict=False)},
        second=demand.second,
        opaque=tuple(sorted({_name(op) for op in marked if is_opaque(op)})),
        maxima=any(_is_maximum(op) for op in marked),
        roots=any(is_root(op) for op in marked),
        symbols=any(isinstance(op.attrs, ConstAttrs) and op.attrs.symbol != "" for op in marked),
        exponentials=any(op.kind in EXPONENTIALS or _rescales(op) for op in marked),
    )


def joined(left: LaxReport, right: LaxReport) -> LaxReport:
    """The report on two graphs that are run on the same inputs."""
    parts = {name: (p or right.parts[name][0], q or right.parts[name][1]) for name, (p, q) in left.parts.items()}
    return LaxReport(
        parts=parts,
        second=left.second or right.second,
        opaque=tuple(sorted({*left.opaque, *right.opaque})),
        maxima=left.maxima or right.maxima,
        roots=left.roots or right.roots,
        symbols=left.symbols or right.symbols,
        exponentials=left.exponentials or right.exponentials,
    )


def all_ops(graph: Graph) -> Iterable[Op]:
    """Every operator of a graph on every level."""
    for op in graph.ops:
        yield op
        if op.body is not None:
            yield from all_ops(op.body)


def _name(op: Op) -> str:
    """What a reader calls the operator: a function of the program's own by its name."""
    return op.attrs.name if isinstance(op.attrs, ApplyAttrs) else op.kind.value


def is_opaque(op: Op) -> bool:
    """Whether the field knows the operator as an uninterpreted function only."""
    if isinstance(op.attrs, PowAttrs):
        return op.attrs.exponent.denominator > 2 or abs(op.attrs.exponent) > MAX_POWER
    return op.kind in OPAQUE


def is_root(op: Op) -> bool:
    """Whether the operator takes a square root."""
    return op.kind is OpKind.SQRT or (isinstance(op.attrs, PowAttrs) and half_power(op.attrs))


def half_power(attrs: PowAttrs) -> bool:
    """Whether the exponent makes a square root and a product of it."""
    return attrs.exponent.denominator == 2 and abs(attrs.exponent) <= MAX_POWER


def _rescales(op: Op) -> bool:
    accumulator = isinstance(op.attrs, AccumAttrs) and op.attrs.kind is AccumKind.RESCALE
    return op.kind is OpKind.RESCALED_SUM or accumulator


def _is_maximum(op: Op) -> bool:
    accumulator = isinstance(op.attrs, AccumAttrs) and op.attrs.kind is AccumKind.MAX
    return op.kind in (OpKind.MAX, OpKind.MAXIMUM) or accumulator or _rescales(op)


class _Demand:
    """The backward pass; `second` names an exponential that enters another one."""

    def __init__(self) -> None:
        self.second = ""

    def of_kernel(self, graph: KernelGraph) -> list[Part]:
        wanted = [NONE] * len(graph.types)
        for value in graph.outputs:
            wanted[value] |= P
        self._backward(graph, wanted, "")
        return wanted[: graph.input_count]

    def of_block(self, graph: BlockGraph, outputs: list[Part], place: str) -> list[Part]:
        wanted = [NONE] * len(graph.types)
        args = [NONE] * len(graph.args)
        saved = iter(outputs)
        for op in graph.ops:
            if op.kind is OpKind.OUT_SAVER:
                wanted[op.inputs[0]] |= next(saved)
        self._backward(graph, wanted, place)
        for op, values in graph.definitions():
            if isinstance(op.attrs, InIterAttrs):
                args[op.attrs.arg] |= wanted[values[0]]
        return args

    def of_thread(self, graph: ThreadGraph, outputs: list[Part], place: str) -> list[Part]:
        wanted = [NONE] * len(graph.types)
        for value, part in zip(graph.outputs, outputs, strict=True):
            wanted[value] |= part
        self._backward(graph, wanted, place)
        return wanted[: graph.input_count]

    def _backward(self, graph: Graph, wanted: list[Part], place: str) -> None:
        for number, (op, values) in reversed(list(enumerate(graph.definitions()))):
            results = [wanted[v] for v in values]
            for value, part in zip(op.inputs, self._reads(op, results, place, number), strict=True):
                wanted[value] |= part

    def _reads(self, op: Op, results: list[Part], place: str, number: int) -> list[Part]:
        """The parts of its operands that an operator reads when these parts of its results are read."""
        if op.kind is OpKind.OUT_SAVER:
            return [NONE]
        if isinstance(op.body, BlockGraph):
            return self.of_block(op.body, results, f"{_here(op, place, number)}, ")
        if isinstance(op.body, ThreadGraph):
            return self.of_thread(op.body, results, f"{_here(op, place, number)}, ")
        (part,) = results
        if op.kind not in MARKED:
            return [part] * len(op.inputs)
        exponent = Q if part else NONE
        if part & Q and (op.kind in EXPONENTIALS or _rescales(op)):
            self.second = self.second or _here(op, place, number)
        if _rescales(op):
            return [part, exponent]
        if op.kind is OpKind.SILU:
            return [part | exponent]
        if op.kind in EXPONENTIALS:
            return [exponent]
        return [part] * len(op.inputs)


def _here(op: Op, place: str, number: int) -> str:
    return f"{place}operator {number} ({op.kind.value})"
