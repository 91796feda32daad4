"""What generated kernels look up themselves: operators of a graph that say a lookup, and are no kernel then.

In: a kernel graph, which kernels can look up. Out: for values, where their elements stand. Invariant: whoever needs
such a value reads it so; no kernel writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count

from mirage_nb.ir import DType, KernelGraph, Op, OpKind, TensorType, ThreadGraph
from mirage_nb.ir.lookups import Lookup, Rows, Seen
from mirage_nb.ir.ops import Shape
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.ir.windows import Share, Window, row_major, windows
from mirage_nb.predefined.patterns import numbers_of, parts_of_lookup, seen_table
from mirage_nb.predefined.reading import Reading
from mirage_nb.predefined.rows import LOOKUP, Match
from mirage_nb.targets import SECTOR_BYTES


def lookup_of(graph: KernelGraph, match: Match) -> Lookup:
    """Where the elements of what a match of the row `lookup` makes stand."""
    r, base = Reading(graph), match.inputs[0]
    index, table, turned = parts_of_lookup(r, match.output)
    leaves = numbers_of(r, index)[0]
    windows, formula = [r.window(v) for v in leaves], _formula(r, index, leaves)
    numbers, stored = tuple(r.reshaped(w.base) for w in windows), tuple(graph.types[v].dtype for v in leaves)
    seen = tuple((*turned, *_seen(r.shape(v), window)) for v, window in zip(leaves, windows, strict=True))
    shape = graph.types[match.output].shape
    if match.attrs["apart"]:
        window, extents = seen_table(r, table, 0)
        pairs = zip(extents[:-1], window.strides[:-1], strict=True)
        steps = tuple(step if extent > 1 else 0 for extent, step in pairs)
        found = Rows(extents[-1], window.strides[-1], shape[:-1], steps, (), (), window.offset)
    else:
        window, (rows, *inner) = seen_table(r, table, r.shape(table)[0])
        step, inside = window.strides[0], window.strides[1:]
        found = Rows(rows, step, shape[:-1], (0,) * len(shape[:-1]), (*inner,), inside, window.offset)
    return Lookup(base, numbers, formula, found, stored, seen)


def _seen(shape: Shape, window: Window) -> tuple[Seen, ...]:
    """Where the elements of a window lie, row-major; nothing is said of all of a tensor."""
    dense = window.offset == 0 and window.strides == row_major(shape)
    return () if dense else (Seen(shape, window.strides, window.offset),)


def _formula(r: Reading, index: int, numbers: Sequence[int]) -> ThreadGraph | None:
    """What makes numbers of these; None where they are the numbers."""
    _, inside = numbers_of(r, index)
    if not inside:
        return None
    made = Rewrite(ThreadGraph.start((TensorType((1,), DType.F32),) * len(numbers)), dict(zip(numbers, count())))
    for number in inside:
        op = r.op(number)
        assert op is not None
        operands = [r.reshaped(v) for v in op.inputs]
        for operand in operands:
            if operand not in made.held and (constant := r.op(operand)) is not None:
                made.copy(constant, (operand,))
        made.copy(replace(op, inputs=tuple(operands)), (number,))
    return made.graph.returning((made.held[r.reshaped(index)],))


def is_looked_up(graph: KernelGraph, match: Match) -> bool:
    """Whether kernels may read what a match makes where it stands in its table: in the table's own type."""
    return match.row == LOOKUP and graph.types[match.inputs[0]].dtype is graph.types[match.output].dtype


def lookups(graph: KernelGraph, matched: Collection[Match], able: Callable[[Op], bool]) -> dict[int, Lookup]:
    """Of matches, the values that are looked up, and other shapes of such, that nobody reads, they or windows of them,
    but kernels that are able to look up."""
    found = {match.output: lookup_of(graph, match) for match in matched if is_looked_up(graph, match)}
    if not found:
        return {}
    seen = {v: w for v, w in windows(graph).items() if not any(places is not None for places in w.inside)}
    kept = {*range(len(graph.types))} - {*graph.outputs}
    for op, values in reversed([*graph.definitions()]):
        view = op.kind is OpKind.RESHAPE or values[0] in seen
        if not (able(op) if op.body is not None else view and kept.issuperset(values)):
            kept.difference_update(op.inputs)
    for op, values in graph.definitions():
        if op.kind is OpKind.RESHAPE and op.inputs[0] in kept & found.keys() and values[0] not in seen:
            found[values[0]] = found[op.inputs[0]]
    return {value: lookup for value, lookup in found.items() if value in kept}


def share_of(graph: KernelGraph, value: int, lookup: Lookup) -> Share:
    """Of the bytes of a value that is looked up, what is read: numbers beside it, and whole sectors where only one
    element of each stands together."""
    table, size = graph.types[lookup.table], graph.types[value].dtype.size
    columns, run = lookup.found.columns, lookup.found.run
    number = sum(dtype.size for dtype in lookup.stored)
    part = columns // run * (run * size if run > 1 else SECTOR_BYTES) + number
    return Share(part / (columns * size), (), table.nbytes, number / part)


def looked_up(
    operands: Sequence[int], known: Mapping[int, Lookup], seen: Mapping[int, Window]
) -> dict[int, Lookup]:  # fmt: skip
    """Of the operands of a kernel, by their places, those that are looked up, or windows of what is."""
    bases = enumerate(seen[value].base if value in seen else value for value in operands)
    return {place: known[base] for place, base in bases if base in known}
