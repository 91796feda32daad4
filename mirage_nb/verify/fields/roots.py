"""Inputs of a trial whose square roots exist, as far as they can be had.

In: a program and a field instance. Out: random inputs. Half of all residues have no root; a program that
takes one root per row of a large tensor would never get all of them by luck. So elements that a
failed root depends on, and only such, are drawn again, round by round, until every root exists or the
rounds stop helping. What still fails is marked undefined by the interpreter and left out of the trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.arrays import running, sliced
from mirage_nb.interp.field import FieldInstance, FieldTensor, evaluate_all
from mirage_nb.ir import OPS, KernelGraph, Op, OpKind, RepeatAttrs, SliceAttrs, Trait
from mirage_nb.ir.ops import Shape
from mirage_nb.verify.fields.lax import is_root

Mask = NDArray[np.bool_]
Parts = Mapping[str, tuple[bool, bool]]

ROUNDS = 48
PATIENCE = 12
"""Rounds without a twentieth fewer failures after which what fails is left to the masks."""


def rooted_inputs(graph: KernelGraph, instance: FieldInstance, parts: Parts) -> tuple[FieldTensor, ...]:
    """Random inputs of `graph`, uniform but for the condition that its square roots exist."""
    inputs = [instance.random(i.name, i.type.shape, *parts[i.name]) for i in graph.inputs]
    pruned = up_to_roots(graph)
    operands = {values[0]: op.inputs[0] for op, values in pruned.definitions() if is_root(op)}
    best, waited = math.inf, 0
    for number in range(ROUNDS if pruned.outputs else 0):
        values = evaluate_all(pruned, inputs, instance)
        failed = {root: values[of].defined & ~values[root].defined for root, of in operands.items()}
        count = sum(int(mask.sum()) for mask in failed.values())
        waited = 0 if count < 0.95 * best else waited + 1
        best = min(best, count)
        if count == 0 or waited > PATIENCE:
            break
        for at, mask in enumerate(_redrawn(pruned, failed)):
            if mask is not None:
                given = graph.inputs[at]
                fresh = instance.random(given.name, given.type.shape, *parts[given.name], f"again {number}")
                inputs[at] = replaced(inputs[at], fresh, mask)
    return tuple(inputs)


def replaced(old: FieldTensor, new: FieldTensor, mask: Mask) -> FieldTensor:
    p, q = (None if a is None or b is None else np.where(mask, b, a) for a, b in ((old.p, new.p), (old.q, new.q)))
    return FieldTensor(p, q)


def up_to_roots(graph: KernelGraph) -> KernelGraph:
    """The operators that square roots of the kernel graph depend on, equal ones once, as far as outputs of the
    graph depend on the roots; the outputs are the roots."""
    live, needed = set(graph.outputs), set[int]()
    definitions = list(graph.definitions())
    for op, values in reversed(definitions):
        if live & set(values):
            live |= set(op.inputs)
            if is_root(op) or needed & set(values):
                needed |= {*values, *op.inputs}
    pruned = KernelGraph.start(*graph.inputs)
    renamed = {v: v for v in range(graph.input_count)}
    first_of: dict[Op, int] = {}
    roots: dict[int, None] = {}
    for op, values in definitions:
        if not needed & set(values):
            continue
        same = Op(op.kind, tuple(renamed[v] for v in op.inputs), op.attrs, op.body)
        if same not in first_of:
            first_of[same] = len(pruned.types)
            pruned = pruned.append(same)
        renamed |= {v: first_of[same] + i for i, v in enumerate(values)}
        roots |= {renamed[v]: None for v in values if is_root(op)}
    return pruned.returning(tuple(roots))


def _redrawn(graph: KernelGraph, failed: Mapping[int, Mask]) -> list[Mask | None]:
    """For every input, the elements to draw again: for each root, in the inputs where it depends on the
    smallest part, so that a row's own numbers change and not the weights that all rows share."""
    found: list[Mask | None] = [None] * graph.input_count
    for value, mask in failed.items():
        blamed = blame(graph, {value: mask})
        parts = [0.0 if mask is None else float(mask.mean()) for mask in blamed]
        least = min((part for part in parts if part), default=0.0)
        for at, (part, elements) in enumerate(zip(parts, blamed, strict=True)):
            if elements is not None and part == least > 0:
                before = found[at]
                found[at] = elements if before is None else before | elements
    return found


def blame(graph: KernelGraph, failed: Mapping[int, Mask]) -> list[Mask | None]:
    """For every input, the elements that the failed elements depend on (None: no element)."""
    blamed: dict[int, Mask] = dict(failed)
    shapes = [t.shape for t in graph.types]
    for op, values in reversed(list(graph.definitions())):
        masks = [blamed[v] for v in values if v in blamed]
        if not masks or not any(mask.any() for mask in masks):
            continue
        for value, mask in zip(op.inputs, _dependencies(op, masks, [shapes[v] for v in op.inputs]), strict=True):
            blamed[value] = blamed[value] | mask if value in blamed else mask
    return [blamed.get(v) for v in range(graph.input_count)]


def _dependencies(op: Op, masks: Sequence[Mask], shapes: Sequence[Shape]) -> list[Mask]:
    """For every operand, the elements that the marked elements of the results depend on."""
    rule = RULES.get(op.kind)
    if rule is not None:
        return rule(op.attrs, masks[0], shapes)
    if Trait.ELEMENTWISE in OPS[op.kind].traits:
        return [_narrowed(masks[0], shape) for shape in shapes]
    return [np.ones(shape, bool) for shape in shapes]


def _narrowed(mask: Mask, shape: Shape) -> Mask:
    """The mask folded to an operand that was broadcast to it."""
    extra = mask.ndim - len(shape)
    folded: Mask = np.asarray(mask.any(axis=tuple(range(extra))))
    axes = tuple(i for i, extent in enumerate(shape) if extent == 1)
    return np.broadcast_to(np.asarray(np.any(folded, axis=axes, keepdims=True)), shape)


def _matmul(mask: Mask, left: Shape, right: Shape) -> list[Mask]:
    rows = np.broadcast_to(mask.any(axis=-1, keepdims=True), (*mask.shape[:-1], left[-1]))
    columns = np.broadcast_to(mask.any(axis=-2, keepdims=True), (*mask.shape[:-2], right[-2], mask.shape[-1]))
    return [_narrowed(rows, left), _narrowed(columns, right)]


def _concat_matmul(attrs: Any, mask: Mask, shapes: Sequence[Shape]) -> list[Mask]:
    (w, y), (x, z) = _matmul(mask, shapes[0], shapes[2]), _matmul(mask, shapes[1], shapes[3])
    return [w, x, y, z]


def _reduction(attrs: Any, mask: Mask, shapes: Sequence[Shape]) -> list[Mask]:
    wide = np.broadcast_to(mask, shapes[0])
    return [_narrowed(wide, shape) for shape in shapes]


def _repeat(attrs: RepeatAttrs, mask: Mask, shapes: Sequence[Shape]) -> list[Mask]:
    copies = mask.reshape(*shapes[0][: attrs.dim], attrs.times, *shapes[0][attrs.dim :])
    return [np.asarray(copies.any(axis=attrs.dim))]


def _slice(attrs: SliceAttrs, mask: Mask, shapes: Sequence[Shape]) -> list[Mask]:
    whole = np.zeros(shapes[0], bool)
    sliced(whole, attrs, 0)[...] = mask
    return [whole]


RULES: dict[OpKind, Callable[[Any, Mask, Sequence[Shape]], list[Mask]]] = {
    OpKind.CONST: lambda attrs, mask, shapes: [],
    OpKind.ARANGE: lambda attrs, mask, shapes: [],
    OpKind.MATMUL: lambda attrs, mask, shapes: _matmul(mask, *shapes),
    OpKind.CONCAT_MATMUL: _concat_matmul,
    **dict.fromkeys((OpKind.SUM, OpKind.MAX, OpKind.RESCALED_SUM), _reduction),
    OpKind.RUNNING_SUM: lambda attrs, mask, shapes: [running(mask, replace(attrs, backward=not attrs.backward), 0)],
    OpKind.REPEAT: _repeat,
    OpKind.RESHAPE: lambda attrs, mask, shapes: [mask.reshape(shapes[0])],
    OpKind.TRANSPOSE: lambda attrs, mask, shapes: [mask.transpose(np.argsort(attrs.perm))],
    OpKind.CONCAT: lambda attrs, mask, shapes: list(np.split(mask, [shapes[0][attrs.dim]], axis=attrs.dim)),
    OpKind.SLICE: _slice,
    OpKind.PAD: lambda attrs, mask, shapes: [
        sliced(mask, SliceAttrs(attrs.dim, attrs.before, shapes[0][attrs.dim]), 0)
    ],
}
"""How marks go backward, by attributes; elementwise operators have one rule, everything else blames its operands
whole."""
