"""Folds of a few elements of pairs, written out: distances in two or three dimensions, between all points.

In: a tensor program. Out: the same program in which a sum, or maximum, along a short axis of what is computed element
by element of far fewer elements is that of each place of the axis, one added to the other: what stands between the
pairs and their fold has that axis no longer, so that threads hold pairs in registers, and what folds these in turn is
theirs, too. Invariant: over the real numbers the program stays what it was.
"""

from __future__ import annotations

from functools import partial, reduce

from mirage_nb.ir import OPS, DimAttrs, KernelGraph, Op, OpKind, SliceAttrs, Trait
from mirage_nb.ir.rewrite import Rewrite, saying

SHORT = 4
"""Elements that are folded, at most."""
OPERATORS = 8
"""Operators that are written out, at most, for each of them."""
FEWER = 16
"""Times as many elements as what they are computed of pairs have, at least."""
TOGETHER = {OpKind.SUM: OpKind.ADD, OpKind.MAX: OpKind.MAXIMUM}
"""What makes a fold of two parts one of both."""


def folds(program: KernelGraph, short: int = SHORT, fewer: int = FEWER) -> dict[int, tuple[int, ...]]:
    """Such folds of a program: for each what its pairs are made of."""
    maker = {value: op for op, (value, *_) in program.definitions()}
    found = {}
    for value, op in maker.items():
        if op.kind not in TOGETHER or not isinstance(op.attrs, DimAttrs):
            continue
        shape = program.types[op.inputs[0]].shape
        if shape[op.attrs.dim] > short:
            continue
        between, sources = _cone(program, maker, op.inputs[0], len(shape) - op.attrs.dim)
        largest = max((program.types[v].elements for v in sources), default=0)
        if 0 < len(between) <= OPERATORS and fewer * largest <= program.types[op.inputs[0]].elements:
            found[value] = tuple(sorted(sources))
    return found


def written_out(program: KernelGraph, short: int = SHORT, fewer: int = FEWER) -> KernelGraph:
    """The program with these written out; itself where it has none."""
    maker = {value: op for op, (value, *_) in program.definitions()}

    def say(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        assert isinstance(op.attrs, DimAttrs)
        shape = program.types[op.inputs[0]].shape
        behind = len(shape) - op.attrs.dim
        between, _ = _cone(program, maker, op.inputs[0], behind)

        def at(place: int) -> int:
            there: dict[int, int] = {}

            def found(v: int) -> int:
                if v not in there and v in between:
                    inner = maker[v]
                    there[v] = made.add(Op(inner.kind, tuple(map(found, inner.inputs)), inner.attrs))
                elif v not in there:
                    there[v] = made.held[v]
                    if _varies(program, v, behind):
                        dim = len(program.types[v].shape) - behind
                        there[v] = made.add(Op(OpKind.SLICE, (there[v],), SliceAttrs(dim, place, 1, 1)))
                return there[v]

            return found(op.inputs[0])

        parts = map(at, range(shape[op.attrs.dim]))
        return reduce(lambda one, other: made.add(Op(TOGETHER[op.kind], (one, other))), parts)

    return saying(program, folds(program, short, fewer), say)


small = partial(written_out, short=2**30, fewer=0)
"""The same of a small program."""


def _varies(program: KernelGraph, value: int, behind: int) -> bool:
    """Whether a value has elements along a dimension, counted from behind."""
    shape = program.types[value].shape
    return len(shape) >= behind and shape[-behind] > 1


def _cone(program: KernelGraph, maker: dict[int, Op], top: int, behind: int) -> tuple[set[int], set[int]]:
    """The elementwise operators that make a value and have elements along the dimension, and what they are made of."""
    between, sources, waiting = set[int](), set[int](), [top]
    while waiting:
        value = waiting.pop()
        op = maker.get(value)
        inner = op is not None and Trait.ELEMENTWISE in OPS[op.kind].traits and _varies(program, value, behind)
        if value not in between | sources:
            (between if inner else sources).add(value)
            waiting += op.inputs if inner and op is not None else ()
    return between, sources
