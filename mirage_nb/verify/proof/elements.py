"""Goals of small graphs, one for each element of an output: for these sizes, whatever tiles there are.

In: a program and a muGraph of few elements. Out: what there is to prove. Both graphs are run by the walk of the
interpreters (`interp.run`), over arrays whose elements are terms: an element of an input is an unknown number, and sums
and maxima are written out. So partitions need not nest, tiles may hang over an end, and what is picked by its number is
what it is; but what is proved is proved for these sizes only, and the proof says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import GraphError, ProofError
from mirage_nb.interp import arrays
from mirage_nb.interp.run import COMPOSED, composed, run_outputs
from mirage_nb.ir import AccumKind, ConstAttrs, DimAttrs, KernelGraph, Op, OpKind
from mirage_nb.ir.ops import Attrs
from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.fields.work import unrolled
from mirage_nb.verify.proof.axes import check_pair
from mirage_nb.verify.proof.masked import TERMS, Masked, logarithm, raised, real
from mirage_nb.verify.proof.terms import Term, add, exp, inv, mul, neg, num, sym, top
from mirage_nb.verify.proof.translate import Goal, Needs, Reader, Value

MOST = 4096
"""Elements of all tensors of a graph, those inside in all blocks and iterations."""
MOST_GOALS = 64


@dataclass(frozen=True, slots=True)
class Element:
    """A value, and what it needs so that there is one."""

    value: Value
    needs: frozenset[tuple[Need, Term]] = frozenset()


Elements = NDArray[Any]
ZERO = Element(num(0))


def element_goals(program: KernelGraph, mugraph: KernelGraph, outputs: tuple[int, ...]) -> tuple[Goal, ...]:
    """A goal for each element of each output. Raises ProofError for graphs that are too large, and as `translate`."""
    check_pair(program, mugraph, outputs)
    if max(map(unrolled, (program, mugraph))) > MOST or sum(t.elements for t in program.output_types) > MOST_GOALS:
        raise ProofError(f"tensors of more than {MOST} elements, or outputs of more than {MOST_GOALS}")
    given = {i.name: _inputs(i.name, i.type.shape) for i in program.inputs}
    algebra = _Algebra(Reader(literal=True))
    left, right = (
        [np.broadcast_to(found, t.shape) for found, t in zip(
            run_outputs(graph, [given[i.name] for i in graph.inputs], algebra), graph.output_types, strict=True)]
        for graph in (program, mugraph)
    )  # fmt: skip
    return tuple(
        Goal(real(ours.value), real(theirs.value), number, (), _ordered(ours.needs), _ordered(theirs.needs))
        for number, other in enumerate(outputs)
        for ours, theirs in zip(left[number].reshape(-1), right[other].reshape(-1), strict=True)
    )


def _inputs(name: str, shape: tuple[int, ...]) -> Elements:
    made = np.empty(shape, object)
    for index in itertools.product(*map(range, shape)):
        made[index] = Element(sym(f"{name}[{', '.join(map(str, index))}]"))
    return made


def _ordered(needs: Iterable[tuple[Need, Term]]) -> Needs:
    return tuple(sorted(needs, key=lambda pair: (pair[0].value, pair[1].digest)))


def _element(value: object) -> Element:
    """What stands where a tensor is counted or filled up: a whole number."""
    return value if isinstance(value, Element) else Element(num(int(value)))  # type: ignore[call-overload]  # a number


def _each(function: Callable[..., Element], *operands: Elements) -> Elements:
    return np.asarray(np.frompyfunc(function, len(operands), 1)(*operands), object)


@dataclass(frozen=True, slots=True)
class _Algebra:
    """Elements as terms; the methods are those of `run.Algebra`. `reader` says what an operator makes of one."""

    reader: Reader

    def apply(self, kind: OpKind, operands: Sequence[Elements], attrs: Attrs | None, batch: int) -> Elements:
        match kind, attrs:
            case OpKind.CONST, ConstAttrs(value, symbol):
                return _each(_element, np.full((1,) * batch, Element(self.reader.constant(value, symbol)), object))
            case OpKind.ARANGE, _:
                return _each(_element, arrays.counted(attrs, batch).astype(object))
            case _ if kind in COMPOSED and kind is not OpKind.CONCAT_MATMUL:
                return composed(self, kind, operands, attrs, batch)
        aligned = arrays.aligned(operands, batch)
        match kind, attrs:
            case OpKind.MATMUL, _:
                return self._product(*aligned)
            case OpKind.CONCAT_MATMUL, _:
                w, x, y, z = aligned
                return _each(_added, self._product(w, y), self._product(x, z))
            case OpKind.SUM | OpKind.MAX, DimAttrs(dim):
                return _folded(_added if kind is OpKind.SUM else _larger, aligned[0], dim + batch)
            case OpKind.RUNNING_SUM, _:
                add = np.frompyfunc(_added, 2, 1)
                return arrays.running(aligned[0], attrs, batch, lambda x, axis: add.accumulate(x, axis, object), ZERO)
            case OpKind.RESCALED_SUM, DimAttrs(dim):
                x, m = np.broadcast_arrays(*aligned)
                return self._rescaled(x, m, dim + batch)
        return _each(lambda *values: self._elementwise(Op(kind, (), attrs), *values), *aligned)

    def _elementwise(self, op: Op, *operands: Element) -> Element:
        if op.kind is OpKind.WHERE:
            condition, chosen = operands
            return self._guarded(real(condition.value), chosen, lambda x: self._made(op, condition, Element(x.value)))
        return self._made(op, *operands)

    def _made(self, op: Op, *operands: Element) -> Element:
        value, needs = self.reader.one(op, [x.value for x in operands])
        return Element(value, frozenset(needs).union(*(x.needs for x in operands)))

    def _guarded(self, condition: Term, chosen: Element, made: Callable[[Element], Element]) -> Element:
        """What is read where the condition is not 0, and needed there only."""
        found = made(chosen)
        return Element(found.value, found.needs | self.reader.guarded(condition, chosen.needs))

    def _product(self, left: Elements, right: Elements) -> Elements:
        parts = _each(_times, left[..., :, :, None], right[..., None, :, :])
        return np.squeeze(_folded(_added, parts, parts.ndim - 2), -2)

    def _rescaled(self, x: Elements, m: Elements, axis: int) -> Elements:
        largest = _folded(_larger, m, axis)
        return _folded(_added, _each(self._share, x, m, largest), axis)

    def _share(self, x: Element, m: Element, largest: Element) -> Element:
        """x * exp(m - largest), which counts nothing where m is minus infinity."""
        if not isinstance(largest.value, Masked):
            weight = exp(add(real(m.value), neg(real(largest.value))))
            return Element(mul(real(x.value), weight), x.needs | m.needs | largest.needs)
        weight, below = raised(m.value, TERMS), largest.value.weight
        made = Element(mul(real(x.value), weight, inv(below)), m.needs | largest.needs | {(Need.NONZERO, inv(below))})
        return self._guarded(weight, x, lambda _: made)

    def view(self, value: Elements, move: Callable[[Elements], Elements]) -> Elements:
        return _each(_element, move(value))

    def join(self, parts: Sequence[Elements], dim: int, batch: int) -> Elements:
        return arrays.concat(parts, dim, batch)

    def fold(
        self, kind: AccumKind, state: tuple[Elements, ...], operands: Sequence[Elements], batch: int
    ) -> tuple[Elements, ...]:
        match kind:
            case AccumKind.RESCALE:
                seen = (*state[1:], *np.broadcast_arrays(*arrays.aligned(operands, batch)))
                return (self._rescaled(np.stack(seen[::2]), np.stack(seen[1::2]), 0)[0], *seen)
            case _ if not state:
                return tuple(operands)
            case AccumKind.SUM | AccumKind.MAX:
                return (_each(_added if kind is AccumKind.SUM else _larger, state[0], operands[0]),)
        if not (state[0] == operands[0]).all():
            raise GraphError("a hold accumulator takes in a value that changes with the iteration")
        return state


def _needs(parts: Iterable[Element]) -> frozenset[tuple[Need, Term]]:
    return frozenset[tuple[Need, Term]]().union(*(x.needs for x in parts))


def _added(*parts: Element) -> Element:
    return Element(add(*(real(x.value) for x in parts)), _needs(parts))


def _times(a: Element, b: Element) -> Element:
    return Element(mul(real(a.value), real(b.value)), a.needs | b.needs)


def _larger(*parts: Element) -> Element:
    if any(isinstance(x.value, Masked) for x in parts):
        return Element(logarithm(top(*(raised(x.value, TERMS) for x in parts)), TERMS), _needs(parts))
    return Element(top(*(real(x.value) for x in parts)), _needs(parts))


def _folded(function: Callable[..., Element], array: Elements, axis: int) -> Elements:
    """All elements along an axis as one."""
    moved = np.moveaxis(array, axis, -1)
    made = np.empty(moved.shape[:-1], object)
    for index in np.ndindex(made.shape):
        made[index] = function(*moved[index])
    return np.expand_dims(made, axis)
