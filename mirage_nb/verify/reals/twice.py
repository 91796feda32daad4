"""Elements beside the largest of them, where a graph computes both in sums of their own: equal but for rounding.

In: a program, and a muGraph that equals it over the reals. Out: what is compared so, in words, or nothing. A value that
is summed twice, by other threads, differs from itself in its last bit now and then; the place of the largest element is
none then, which hardly any inputs show. Invariant: values that depend on the same sums are computed alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_nb.ir import (
    COMPARISONS,
    OPS,
    AccumAttrs,
    AccumKind,
    BlockGraph,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    ThreadGraph,
    Trait,
)
from mirage_nb.verify.reals.conditioning import LINEAR, extremes_of

Key = tuple[int, ...]
Sums = frozenset[Key]
"""Operators that add up, by their numbers: that of a kernel, and those inside."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What a value depends on; `end`: for the largest elements of something, what that depends on."""

    sums: Sums = frozenset()
    end: Sums | None = None


class _Twice(Exception):
    """Something is compared with the largest of it that was computed otherwise."""


def twice(program: KernelGraph, graph: KernelGraph) -> str:
    """Which comparison the order of sums decides, in words; or nothing."""
    if not extremes_of(program):
        return ""
    try:
        _walk(graph, [_Made()] * graph.input_count, ())
    except _Twice:
        return "what is compared with the largest of it is computed twice, and differs by a rounding"
    return ""


def _walk(graph: KernelGraph | BlockGraph | ThreadGraph, given: Sequence[_Made], place: Key) -> list[_Made]:
    """What all values of a graph depend on. Raises _Twice."""
    held = [] if isinstance(graph, BlockGraph) else [*given]
    for number, (op, values) in enumerate(graph.definitions()):
        key = (*place, number)
        operands = [held[v] for v in op.inputs]
        match op.body:
            case BlockGraph() as body:
                inner = _walk(body, operands, key)
                held += [inner[saver.inputs[0]] for saver in body.savers]
            case ThreadGraph() as body:
                inner = _walk(body, operands, key)
                held += [inner[v] for v in body.outputs]
            case _ if isinstance(op.attrs, InIterAttrs):
                held.append(given[op.attrs.arg])
            case _ if values:
                held.append(_of(op, operands, key))
    return held


def _of(op: Op, operands: Sequence[_Made], key: Key) -> _Made:
    kind = op.attrs.kind if isinstance(op.attrs, AccumAttrs) else None
    if op.kind in LINEAR or op.kind is OpKind.RESCALED_SUM or kind in (AccumKind.SUM, AccumKind.RESCALE):
        return _Made(frozenset({key}))
    sums = frozenset[Key]().union(*(x.sums for x in operands))
    if op.kind is OpKind.MAX or kind is AccumKind.MAX:
        return _Made(sums, sums if operands[0].end is None else operands[0].end)
    if op.kind in COMPARISONS:
        one, other = operands
        if any(end.end not in (None, x.sums) and x.end is None for end, x in ((one, other), (other, one))):
            raise _Twice
        return _Made(sums)
    ends = {x.end for x in operands} - {None}
    moves = Trait.VIEW in OPS[op.kind].traits or op.kind in (OpKind.MUL, OpKind.CAST) or kind is not None
    return _Made(sums, ends.pop() if moves and len(ends) == 1 else None)
