"""What is right for a large program: of some elements, those at a few indices of every axis that nothing folds.

In: a tensor program, its inputs. Out: a `Reference` of the whole program where it is small, and of picked elements
where computing that in float64 would take longer than everything else. Along an axis that nothing folds every operator
is pointwise, so what is picked is exactly what the program computes there: it is the same program with less of these
axes, and its inputs are parts of the inputs, other ones for each operator that reads one along other axes. The first
and the last index are among those that are picked, wherever more than two are. Whole outputs of large programs are
compared on the card, in float64 too (`race`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.ir import OPS, ArangeAttrs, DType, Input, KernelGraph, TensorType, Trait
from mirage_nb.ir.rewrite import Rewrite, alone
from mirage_nb.ir.sizes import size_of
from mirage_nb.search.axes import Prepared, flat, prepare
from mirage_nb.search.sizes.instantiate import small_program
from mirage_nb.verify.fields.indices import indices
from mirage_nb.verify.reals.float_gate import Picked, Reference, reference

Array = NDArray[Any]

WHOLE_ELEMENTS, PICKED_ELEMENTS = 2**25, 2**22
"""Elements of all tensors of a program that is computed whole; and of one with less of some axes, if it can be so."""
FEW = 16
"""At most so many indices of any axis has an operator that is executed alone."""
KEPT, LEAST, WORTH = 64, 2, 0.95
"""At most and at least so many indices of an axis are picked; fewer only if that leaves this share of all elements."""


@dataclass(frozen=True, slots=True)
class Picking:
    """A large program and what of it is computed: `program` is the same with less of some axes; behind its own inputs
    it has some of these again, `copies`, and its numbers of places. `inputs` and `outputs` say which elements of each
    tensor are meant."""

    program: KernelGraph
    inputs: tuple[Picked, ...]
    outputs: tuple[Picked, ...]
    copies: tuple[int, ...]
    numbers: tuple[Array, ...]

    def parts(self, given: Sequence[Array]) -> list[Array]:
        """What is picked of whole inputs, and of the numbers."""
        every = (*given, *(given[n] for n in self.copies), *self.numbers)
        return [pick.of(array) for pick, array in zip(self.inputs, every, strict=True)]

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
        read = len(stored) + len(found.copies)
        return found.reference([*arrays[:read], *parts[read:]])
    return reference(program, {i.name: array for i, array in zip(program.inputs, arrays, strict=True)})


@lru_cache(maxsize=4)
def picking(program: KernelGraph, whole: int = WHOLE_ELEMENTS, most: int = PICKED_ELEMENTS) -> Picking | None:
    """What is computed of a program of more than `whole` elements, `most` elements if that can be; None for a smaller
    one, and for one that is computed whole since nothing is known of its axes."""
    if _elements(program) <= whole or size_of(program) is not None or indices(program):
        return None
    numbered, numbers = _numbered(program)
    prepared, copies = prepare(numbered, otherwise=False), tuple[int, ...]()
    if several := {n for n in _several(prepared) if n < program.input_count}:
        copied, copies = _copied(program, several)
        numbered, numbers = _numbered(copied)
        prepared = prepare(numbered, otherwise=False)
    able = [axis for axis in prepared.free if _is_alone(prepared, axis)]
    chosen = _chosen(prepared, able, most)
    if not chosen:
        return None
    small = _less(prepared, chosen)
    dims = {tensor.input: tensor.dims for tensor in reversed(prepared.tensors)}
    inputs = [
        _picked(prepared, dims.get(n), chosen, i.type.shape, small.inputs[n].type.shape)
        for n, i in enumerate(numbered.inputs)
    ]
    rows = zip(prepared.output_dims, numbered.output_types, small.output_types, strict=True)
    outputs = [_picked(prepared, groups, chosen, whole.shape, made.shape) for groups, whole, made in rows]
    return Picking(small, tuple(inputs), tuple(outputs), copies, numbers)


def operators_alone(program: KernelGraph) -> list[KernelGraph]:
    """Every operator of a program that computes, each a program of its own with axes of at most `FEW` indices; what
    changes no number is left out, and so is what cannot be said over axes."""
    found: dict[KernelGraph, None] = {}
    for op in program.ops:
        if not op.inputs or Trait.VIEW in OPS[op.kind].traits:
            continue
        prepared = prepare(alone(program, op), otherwise=False)
        if not prepared.refused:
            few = {n: range(min(FEW, axis.extent)) for n, axis in enumerate(prepared.axes)}
            found[_less(prepared, few)] = None
    return [*found]


def _chosen(prepared: Prepared, able: Sequence[int], most: int) -> dict[int, tuple[int, ...]]:
    """The indices of these axes that are picked: `KEPT` of each, and half as many of whichever saves the most, while
    the program has too many elements and that saves anything to speak of."""

    def picked(counts: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
        extents = {axis: prepared.axes[axis].extent for axis in counts}
        return {axis: _some(extents[axis], count, axis) for axis, count in counts.items() if extents[axis] > count}

    counts = {axis: min(KEPT, prepared.axes[axis].extent) for axis in able}
    chosen = picked(counts)
    size = _elements(_less(prepared, chosen))
    while size > most:
        halved = [{**counts, axis: counts[axis] // 2} for axis in able if counts[axis] > LEAST]
        sizes = [_elements(_less(prepared, picked(fewer))) for fewer in halved]
        if min(sizes, default=size) > WORTH * size:
            break
        size, counts = min(zip(sizes, halved, strict=True), key=lambda pair: pair[0])
        chosen = picked(counts)
    return chosen


def _less(prepared: Prepared, chosen: Mapping[int, Sequence[int]]) -> KernelGraph:
    """The program with the indices of these axes that were chosen, and whole others."""
    extents = [len(chosen.get(n, range(axis.extent))) for n, axis in enumerate(prepared.axes)]
    return small_program(prepared, prepared.joined(extents)) if prepared.axes else prepared.graph


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


def _several(prepared: Prepared) -> set[int]:
    """The inputs along a dimension of which several axes run, under an alias each."""
    along = Counter(dim for axis in prepared.axes for dim in {*axis.dims})
    return {n for (n, _), count in along.items() if count > 1}


def _copied(program: KernelGraph, several: Collection[int]) -> tuple[KernelGraph, tuple[int, ...]]:
    """The program with these inputs once more for every operator that reads one, behind its own, so that each may read
    other parts; and which those are."""
    copies = tuple(v for op in program.ops for v in op.inputs if v in several)
    again = (replace(program.inputs[v], name=f"{program.inputs[v].name} {n}") for n, v in enumerate(copies))
    made = Rewrite(KernelGraph.start(*program.inputs, *again))
    fresh = iter(range(program.input_count, made.graph.input_count))
    for op, (value, *_) in program.definitions():
        moved = tuple(next(fresh) if v in several else made.held[v] for v in op.inputs)
        made.held[value] = made.add(replace(op, inputs=moved))
    return made.returning(program), copies


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
