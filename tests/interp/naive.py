"""The slow oracle of the reference: one block and one iteration at a time, slices by explicit offsets."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.reference import FloatAlgebra
from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    BlockGraph,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
)
from mirage_nb.ir.graph import ThreadGraph

Array = NDArray[Any]
FLOATS = FloatAlgebra(np.dtype(np.float64))


def evaluate(graph: KernelGraph, inputs: dict[str, Array]) -> tuple[Array, ...]:
    """The outputs, kernel by kernel."""
    values = [np.asarray(inputs[i.name], np.float64) for i in graph.inputs]
    for op in graph.ops:
        operands = [values[v] for v in op.inputs]
        values += block(op.body, operands) if isinstance(op.body, BlockGraph) else [plain(op, operands)]
    return tuple(values[v] for v in graph.outputs)


def plain(op: Op, operands: list[Array]) -> Array:
    return FLOATS.apply(op.kind, operands, op.attrs, 0)


def tile(array: Array, attrs: InIterAttrs, at: tuple[int, ...], grid: tuple[int, ...], i: int, loop: int) -> Array:
    """Halve the region once per role, in order: grid dims first, then the loop."""
    region = [(0, extent) for extent in array.shape]
    for dim, index, parts in [*zip(attrs.imap, at, grid, strict=True), (attrs.fmap, i, loop)]:
        if dim is not None:
            start, extent = region[dim]
            size = extent // parts
            region[dim] = (start + index * size, size)
    if attrs.tile is not None:
        return hanging_tile(array, attrs, at, grid, i, loop)
    return array[tuple(slice(start, start + size) for start, size in region)]


def hanging_tile(
    array: Array, attrs: InIterAttrs, at: tuple[int, ...], grid: tuple[int, ...], i: int, loop: int
) -> Array:
    """Element by element: where in the operand it would be, zero if there is nothing."""
    assert attrs.tile is not None
    part = [0] * array.ndim
    for dim, index, parts in [*zip(attrs.imap, at, grid, strict=True), (attrs.fmap, i, loop)]:
        if dim is not None:
            part[dim] = part[dim] * parts + index
    made = np.zeros(attrs.tile)
    for place in itertools.product(*map(range, attrs.tile)):
        where = tuple(p * size + x for p, size, x in zip(part, attrs.tile, place, strict=True))
        if all(x < extent for x, extent in zip(where, array.shape, strict=True)):
            made[place] = array[where]
    return made


def block(graph: BlockGraph, args: list[Array]) -> list[Array]:
    outputs = [np.full(t.shape, np.nan) for t in graph.output_types]
    written = [np.zeros(t.shape, int) for t in graph.output_types]
    for at in itertools.product(*map(range, graph.grid)):
        for number, (region, part) in enumerate(one_block(graph, args, at)):
            there = outputs[number][region].shape  # slices end where the tensor does
            outputs[number][region] = part[tuple(map(slice, there))]
            written[number][region] += 1
    assert all((w == 1).all() for w in written)
    return outputs


def one_block(graph: BlockGraph, args: list[Array], at: tuple[int, ...]) -> list[tuple[tuple[slice, ...], Array]]:
    rounds: list[dict[int, Array]] = []
    stages = graph.stages()
    for i in range(graph.loop):
        values: dict[int, Array] = {}
        for stage, (op, results) in zip(stages, graph.definitions(), strict=True):
            if op.kind is OpKind.IN_ITER:
                assert isinstance(op.attrs, InIterAttrs)
                values[results[0]] = tile(args[op.attrs.arg], op.attrs, at, graph.grid, i, graph.loop)
            elif stage == 0 or (stage is None):
                store(op, results, values)
        rounds.append(values)
    values = dict(rounds[0]) if not graph.has_loop else {v: rounds[0][v] for v in constants(graph)}
    saved = []
    for stage, (op, results) in zip(stages, graph.definitions(), strict=True):
        if op.kind is OpKind.ACCUM:
            values[results[0]] = accumulate(op, rounds)
        elif op.kind is OpKind.OUT_SAVER:
            assert isinstance(op.attrs, OutSaverAttrs)
            part = values[op.inputs[0]]
            saved.append((region(part.shape, op.attrs.omap, at, graph.grid), part))
        elif stage == 1 and op.kind is not OpKind.IN_ITER:
            store(op, results, values)
    return saved


def constants(graph: BlockGraph) -> list[int]:
    return [
        v for stage, (_, results) in zip(graph.stages(), graph.definitions(), strict=True) for v in results
        if stage is None
    ]  # fmt: skip


def store(op: Op, results: tuple[int, ...], values: dict[int, Array]) -> None:
    operands = [values[v] for v in op.inputs]
    if isinstance(op.body, ThreadGraph):
        held = list(operands)
        for inner in op.body.ops:
            held.append(plain(inner, [held[v] for v in inner.inputs]))
        values.update(zip(results, (held[v] for v in op.body.outputs), strict=True))
    else:
        values[results[0]] = plain(op, operands)


def accumulate(op: Op, rounds: list[dict[int, Array]]) -> Array:
    assert isinstance(op.attrs, AccumAttrs)
    parts = [values[op.inputs[0]] for values in rounds]
    match op.attrs.kind:
        case AccumKind.SUM:
            return np.asarray(sum(parts))
        case AccumKind.MAX:
            return np.asarray(np.max(parts, axis=0))
        case AccumKind.CONCAT:
            assert op.attrs.dim is not None
            return np.concatenate(parts, axis=op.attrs.dim)
        case AccumKind.HOLD:
            return parts[-1]
        case AccumKind.RESCALE:
            maxima = [values[op.inputs[1]] for values in rounds]
            top = np.max(maxima, axis=0)
            return np.asarray(sum(x * np.exp(m - top) for x, m in zip(parts, maxima, strict=True)))


def region(
    shape: tuple[int, ...], omap: tuple[int | None, ...], at: tuple[int, ...], grid: tuple[int, ...]
) -> tuple[slice, ...]:
    starts = list(shape)
    block_of = [0] * len(shape)
    for dim, index, extent in zip(omap, at, grid, strict=True):
        if dim is not None:
            block_of[dim] = block_of[dim] * extent + index
    starts = [b * size for b, size in zip(block_of, shape, strict=True)]
    return tuple(slice(s, s + size) for s, size in zip(starts, shape, strict=True))
