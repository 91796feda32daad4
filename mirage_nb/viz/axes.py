"""Names for the axes of a muGraph, so that a picture can say `x→n` instead of `x→dimension 1`.

In: a kernel graph. Out: for every value on every level one letter per dimension, equal letters where the
operators force two dimensions to be the same axis. A dimension that is 1 by nature (a reduced one) has no
name; one that is 1 because grid or loop split it down to 1 keeps the name of its axis. What the author of the
program calls an axis is its name; the letters of others follow the order of first appearance, inputs first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from mirage_nb.ir import (
    BlockGraph,
    DimAttrs,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    PadAttrs,
    RepeatAttrs,
    SliceAttrs,
    ThreadGraph,
    TransposeAttrs,
)
from mirage_nb.search.axes import letters

Path = tuple[int, ...]
"""Where a graph stands: () the kernel graph, (i,) the body of its operator i, (i, j) one level below."""

_Graph = KernelGraph | BlockGraph | ThreadGraph
_Slot = tuple[Path, int, int]
_Dims = list[_Slot | None]
"""The dimensions of a value; None where the extent is 1 by nature."""


@dataclass(frozen=True, slots=True)
class AxisNames:
    """`of(path, value)`: one name per dimension, "" where the extent is 1 by nature."""

    table: dict[tuple[Path, int], tuple[str, ...]]

    def of(self, path: Path, value: int) -> tuple[str, ...]:
        """The names of the dimensions of a value."""
        return self.table[path, value]


@dataclass(slots=True)
class _Axes:
    """Union-find over dimensions; of two classes the one that appeared first stays."""

    parent: dict[_Slot, _Slot] = field(default_factory=dict)
    dims: dict[tuple[Path, int], _Dims] = field(default_factory=dict)

    def find(self, slot: _Slot) -> _Slot:
        root = self.parent.setdefault(slot, slot)
        while root != self.parent[root]:
            root = self.parent[root]
        self.parent[slot] = root
        return root

    def join(self, a: _Slot | None, b: _Slot | None) -> _Slot | None:
        """One axis from two; the dimension that is not 1 by nature wins."""
        if a is None or b is None:
            return a or b
        first, second = sorted((self.find(a), self.find(b)))
        self.parent[second] = first
        return first


def axis_names(graph: KernelGraph) -> AxisNames:
    """Unify the dimensions over all levels and name the classes."""
    axes = _Axes()
    for value in range(graph.input_count):
        axes.dims[(), value] = _fresh((), value, graph)
    _visit(axes, (), graph)
    names = _called(axes, graph)
    supply = (letter for letter in letters() if letter not in names.values())
    table: dict[tuple[Path, int], tuple[str, ...]] = {}
    for key in sorted(axes.dims, key=lambda key: (len(key[0]), key)):
        found = []
        for slot in axes.dims[key]:
            root = None if slot is None else axes.find(slot)
            if root is not None and root not in names:
                names[root] = next(supply)
            found.append("" if root is None else names[root])
        table[key] = tuple(found)
    return AxisNames(table)


def _called(axes: _Axes, graph: KernelGraph) -> dict[_Slot, str]:
    """The names that the inputs give to axes, made unique."""
    called: dict[_Slot, str] = {}
    for value, given in enumerate(graph.inputs):
        for name, slot in zip(given.dims, axes.dims[(), value], strict=False):
            if name and slot is not None:
                called.setdefault(axes.find(slot), name)
    names: dict[_Slot, str] = {}
    for slot, name in called.items():
        while name in names.values():
            name += "'"
        names[slot] = name
    return names


def _fresh(path: Path, value: int, graph: _Graph) -> _Dims:
    return [(path, value, dim) if extent != 1 else None for dim, extent in enumerate(graph.types[value].shape)]


def _visit(axes: _Axes, path: Path, graph: _Graph) -> None:
    """Give dimensions to every value that the operators of `graph` define, bodies included."""
    for index, (op, results) in enumerate(graph.definitions()):
        if op.body is not None:
            _enter(axes, path, op, results, (*path, index), graph)
        elif op.kind not in (OpKind.IN_ITER, OpKind.OUT_SAVER):
            operands = [axes.dims[path, value] for value in op.inputs]
            fresh = _fresh(path, results[0], graph)
            if op.kind is OpKind.RESHAPE:
                before, after = graph.types[op.inputs[0]].shape, graph.types[results[0]].shape
                axes.dims[path, results[0]] = _reshaped(operands[0], before, after, fresh)
            else:
                axes.dims[path, results[0]] = _result(axes, op, operands, fresh)


def _enter(axes: _Axes, path: Path, op: Op, results: Sequence[int], inner: Path, graph: _Graph) -> None:
    """Visit the body of `op`; its inputs take the dimensions of the operands, results those of outputs."""
    body = op.body
    assert body is not None
    if isinstance(body, BlockGraph):
        for lower, values in body.definitions():
            if isinstance(lower.attrs, InIterAttrs):
                axes.dims[inner, values[0]] = list(axes.dims[path, op.inputs[lower.attrs.arg]])
        outputs = [saver.inputs[0] for saver in body.savers]
    else:
        for value, outer in enumerate(op.inputs):
            axes.dims[inner, value] = list(axes.dims[path, outer])
        outputs = list(body.outputs)
    _visit(axes, inner, body)
    for result, value in zip(results, outputs, strict=True):
        fresh = _fresh(path, result, graph)
        for outer_slot, inner_slot in zip(fresh, axes.dims[inner, value], strict=True):
            axes.join(outer_slot, inner_slot)
        axes.dims[path, result] = [a or b for a, b in zip(axes.dims[inner, value], fresh, strict=True)]


def _result(axes: _Axes, op: Op, operands: list[_Dims], fresh: _Dims) -> _Dims:
    """The dimensions of an operator's result, those that must be one axis joined."""
    match op.kind:
        case OpKind.CONST | OpKind.ARANGE:
            return fresh
        case OpKind.MATMUL:
            return _matmul(axes, operands[0], operands[1])
        case OpKind.CONCAT_MATMUL:
            w, x, y, z = operands
            return _aligned(axes, [_matmul(axes, w, y), _matmul(axes, x, z)])
        case OpKind.TRANSPOSE:
            assert isinstance(op.attrs, TransposeAttrs)
            return [operands[0][source] for source in op.attrs.perm]
        case _:
            dims = _aligned(axes, operands)
            if isinstance(op.attrs, DimAttrs | RepeatAttrs | SliceAttrs | PadAttrs):
                dims[op.attrs.dim] = fresh[op.attrs.dim]
            return dims


def _aligned(axes: _Axes, operands: list[_Dims]) -> _Dims:
    """NumPy broadcasting: the dimensions matched from the right."""
    rank = max(map(len, operands), default=0)
    dims: _Dims = [None] * rank
    for operand in operands:
        for dim, slot in enumerate(operand, start=rank - len(operand)):
            dims[dim] = axes.join(dims[dim], slot)
    return dims


def _matmul(axes: _Axes, left: _Dims, right: _Dims) -> _Dims:
    axes.join(left[-1], right[-2])
    return [*_aligned(axes, [left[:-2], right[:-2]]), left[-2], right[-1]]


def _reshaped(old: _Dims, before: Sequence[int], after: Sequence[int], fresh: _Dims) -> _Dims:
    """Dimensions of extent 1 come and go freely, and those that stay where they are in memory stay the same; what is
    split or merged makes new axes."""
    more = len(after) - len(before)
    if more >= 0 and (*[1] * more, *before) == tuple(after):
        return [*[None] * more, *old]
    named = [(slot, extent) for slot, extent in zip(old, before, strict=True) if slot is not None]
    if [extent for _, extent in named] == list(after):
        return [slot for slot, _ in named]
    kept = {place: slot for place, slot in zip(_places(before), old, strict=True) if place[0] != 1}
    return [kept.get(place, new) for place, new in zip(_places(after), fresh, strict=True)]


def _places(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Of every dimension its extent, and the elements from one of its indices to the next."""
    return [(extent, prod(shape[dim + 1 :])) for dim, extent in enumerate(shape)]
