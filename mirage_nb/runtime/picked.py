"""What is right for a large program: of some elements, those at a few indices of every axis that nothing folds.

In: a tensor program, its inputs. Out: a `Reference` of the whole program where it is small, and of picked elements
where computing that in float64 would take longer than everything else. Along an axis that nothing folds every operator
is pointwise, so what is picked is exactly what the program computes there: it is the same program with less of these
axes, and its inputs are parts of the inputs. The first and the last index are among those that are picked, wherever
more than two are. Whole outputs of large programs are compared on the card, in float64 too (`race`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.ir import ArangeAttrs, DType, Input, KernelGraph, TensorType
from mirage_nb.ir.sizes import size_of
from mirage_nb.search.axes import Prepared, flat, prepare
from mirage_nb.search.sizes.instantiate import small_program
from mirage_nb.verify.float_gate import Picked, Reference, reference
from mirage_nb.verify.indices import indices

Array = NDArray[Any]

WHOLE_ELEMENTS, PICKED_ELEMENTS = 2**25, 2**22
"""Elements of all tensors of a program that is computed whole; and of one with less of some axes, if it can be so."""
KEPT = (64, 32, 16, 8, 4, 2)
"""Indices of an axis that are picked: the most that keep the program so small."""


@dataclass(frozen=True, slots=True)
class Picking:
    """A large program and what of it is computed: `program` is the same with less of some axes, and its numbers of
    places as inputs behind the others; `inputs` and `outputs` say which elements of each tensor are meant."""

    program: KernelGraph
    inputs: tuple[Picked, ...]
    outputs: tuple[Picked, ...]
    numbers: tuple[Array, ...]

    def parts(self, given: Sequence[Array]) -> list[Array]:
        """What is picked of whole inputs, and of the numbers."""
        return [pick.of(array) for pick, array in zip(self.inputs, (*given, *self.numbers), strict=True)]

    def reference(self, parts: Sequence[Array], kinds: bool = False) -> Reference:
        """What is right for these parts, numbers that their types hold."""
        named = {i.name: array for i, array in zip(self.program.inputs, parts, strict=True)}
        return replace(reference(self.program, named, kinds=kinds), picks=self.outputs)


def right(program: KernelGraph, inputs: Mapping[str, Array], *, kinds: bool = False) -> Reference:
    """What is right for a program on inputs by name: all of it, or what is picked of it."""
    found = picking(program)
    if found is None:
        return reference(program, inputs, kinds=kinds)
    return found.reference(found.parts([inputs[i.name] for i in program.inputs]), kinds)


def right_for(program: KernelGraph, stored: Sequence[Array], decode: Callable[[Array, DType], Array]) -> Reference:
    """The same of inputs as stored, of which no more is decoded than is asked for."""
    found = picking(program)
    given, parts = (program, stored) if found is None else (found.program, found.parts(stored))
    arrays = [decode(array, i.type.dtype) for array, i in zip(parts, given.inputs, strict=False)]
    if found is not None:
        return found.reference([*arrays[: len(stored)], *parts[len(stored) :]])
    return reference(program, {i.name: array for i, array in zip(program.inputs, arrays, strict=True)})


@lru_cache(maxsize=4)
def picking(program: KernelGraph, whole: int = WHOLE_ELEMENTS, most: int = PICKED_ELEMENTS) -> Picking | None:
    """What is computed of a program of more than `whole` elements, `most` elements if that can be; None for a smaller
    one, and for one that is computed whole since nothing is known of its axes."""
    if _elements(program) <= whole or size_of(program) is not None or indices(program):
        return None
    numbered, numbers = _numbered(program)
    prepared = prepare(numbered)
    able = [axis for axis in prepared.free if _is_alone(prepared, axis)]
    chosen: dict[int, tuple[int, ...]] = {}
    small = numbered
    for kept in KEPT:
        chosen = {a: _some(prepared.axes[a].extent, kept, a) for a in able if prepared.axes[a].extent > kept}
        extents = prepared.joined([len(chosen.get(a, range(axis.extent))) for a, axis in enumerate(prepared.axes)])
        small = small_program(prepared, extents) if chosen else numbered
        if chosen and _elements(small) <= most:
            break
    if not chosen:
        return None
    dims = {tensor.input: tensor.dims for tensor in reversed(prepared.tensors)}
    inputs = [
        _picked(prepared, dims.get(n), chosen, i.type.shape, small.inputs[n].type.shape)
        for n, i in enumerate(numbered.inputs)
    ]
    rows = zip(prepared.output_dims, numbered.output_types, small.output_types, strict=True)
    outputs = [_picked(prepared, groups, chosen, whole.shape, made.shape) for groups, whole, made in rows]
    return Picking(small, tuple(inputs), tuple(outputs), numbers)


def _elements(program: KernelGraph) -> int:
    return sum(t.elements for t in program.types)


def _numbered(program: KernelGraph) -> tuple[KernelGraph, tuple[Array, ...]]:
    """The program with the numbers of places along an axis as inputs, behind its own and for every reader its own, so
    that these may read other places; and these."""
    counts = {value: op.attrs for op, (value, *_) in program.definitions() if isinstance(op.attrs, ArangeAttrs)}
    reads = [v for op in program.ops for v in op.inputs if v in counts] + [v for v in program.outputs if v in counts]
    given = [Input(f"numbers {n}", TensorType((counts[v].extent,), counts[v].dtype)) for n, v in enumerate(reads)]
    made, fresh = KernelGraph.start(*program.inputs, *given), iter(range(program.input_count, 2**31))
    place = {value: value for value in range(program.input_count)}

    def moved(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(next(fresh) if v in counts else place[v] for v in values)

    for op, (value, *_) in program.definitions():
        if value not in counts:
            made = made.append(replace(op, inputs=moved(op.inputs)))
            place[value] = len(made.types) - 1
    numbers = tuple(np.arange(counts[v].extent, dtype=np.float64) for v in reads)
    return made.returning(moved(program.outputs), program.output_names), numbers


def _is_alone(prepared: Prepared, axis: int) -> bool:
    """Whether no other axis runs along a dimension of an input that this one runs along, under another alias."""
    mine = {*prepared.axes[axis].dims}
    return all(mine.isdisjoint(other.dims) for n, other in enumerate(prepared.axes) if n != axis)


def _some(extent: int, count: int, seed: int) -> tuple[int, ...]:
    """So many indices of an axis that has more, in order: its last one, its first one if there are three, and others
    anywhere."""
    ends = {0, extent - 1} if count > 2 else {extent - 1}
    first = len(ends) - 1
    drawn = first + np.random.default_rng([extent, seed]).choice(extent - len(ends), count - len(ends), replace=False)
    return tuple(sorted([*ends, *map(int, drawn)]))


def _picked(
    prepared: Prepared,
    groups: tuple[tuple[int, ...], ...] | None,
    chosen: Mapping[int, tuple[int, ...]],
    whole: tuple[int, ...],
    made: tuple[int, ...],
) -> Picked:
    """The elements of a tensor with these axes in its dimensions; all of one that nothing reads."""
    if groups is None:
        return Picked(whole, whole, (), whole)
    axes = flat(groups)
    shape = tuple(1 if axis is None else prepared.axes[axis].extent for axis in axes)
    assert math.prod(shape) == math.prod(whole)
    places = [(dim, chosen[axis]) for dim, axis in enumerate(axes) if axis is not None and axis in chosen]
    return Picked(whole, shape, tuple(places), made)
