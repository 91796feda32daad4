"""Hard inputs: named ways to fill the inputs of a program on which unsafe but algebraically equal kernels break.

In: a program, the name of a way, a seed. Out: arrays of numbers that the inputs' types hold, by input name. Inputs that
are added to what a maximum or an exponential is taken of are masks, as people write them: minus infinity, or a large
finite number, on whole tiles, on whole rows and in a triangle. In every other one indices are places of their axis,
and what is compared as these are is whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.ir import BYTES, COMPARISONS, OPS, ConstAttrs, Input, KernelGraph, Op, OpKind, Trait
from mirage_nb.ir.dtypes import LARGEST
from mirage_nb.ir.ops import Shape
from mirage_nb.verify.reals.places import places
from mirage_nb.verify.reals.ranges import Range, ranges, within
from mirage_nb.verify.reals.rounding import SMALLEST, rounded
from mirage_nb.verify.reals.unread import UNREAD, choosing, leaving_out, tables

Array = NDArray[Any]

BLOCK = 2**22
"""Of an input of more elements so many are drawn, at least a row."""
Draw = Callable[[np.random.Generator, Input], Array]


def _normal(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.standard_normal(shape, np.float32)


def _scaled(scale: float) -> Draw:
    return lambda rng, given: np.float32(scale) * _normal(rng, given.type.shape)


def _uniform(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.random(shape, np.float32)


def _one_large(columns: bool) -> Draw:
    """One large and one low element per row, or column, the rest tiny and of one sign: in two lines of three the first
    and the last of it, which are what a kernel leaves out if any. The last row has the largest, or the first column."""

    def draw(rng: np.random.Generator, given: Input) -> Array:
        shape: Shape = given.type.shape
        values = np.float32(1e-3) * _normal(rng, shape)
        if not shape:
            return values
        axis = _longest(shape[:-1]) if columns and max(shape[:-1], default=1) > 1 else len(shape) - 1
        lines = tuple(1 if dim == axis else extent for dim, extent in enumerate(shape))
        order = np.arange(math.prod(lines))[:: 1 if columns else -1].reshape(lines)
        values = np.abs(values) * np.where(order // 2 % 2, np.float32(1), np.float32(-1))
        size = np.select([order == 0, order == 1], [8.0, 7.5], 2 + 2 * _uniform(rng, lines))
        for sign, last in ((-1, columns), (1, not columns)):
            ends = (shape[axis] - 1) * np.array([last, not last], int)
            at = np.where(order % 3 < 2, ends[order % 3 % 2], rng.integers(0, shape[axis], lines))
            np.put_along_axis(values, at, sign * size, axis=axis)
        return values

    return draw


def _longest(extents: Shape) -> int:
    """The place of the largest of several."""
    return max(range(len(extents)), key=lambda place: extents[place])


def _zero_rows(rng: np.random.Generator, given: Input) -> Array:
    """Every third row is zero."""
    shape = given.type.shape
    rows = np.asarray(rng.integers(0, 3, (*shape[:-1], 1) if shape else ()) > 0)
    return np.where(rows, _normal(rng, shape), np.float32(0))


def _constant_rows(rng: np.random.Generator, given: Input) -> Array:
    """All elements of a row are equal."""
    shape = given.type.shape
    return np.broadcast_to(_normal(rng, (*shape[:-1], 1) if shape else ()), shape)


def _far_rows(rng: np.random.Generator, given: Input) -> Array:
    """The elements of a row are close to each other, beside how far they are from 0."""
    shape = given.type.shape
    center = 64 + 64 * _uniform(rng, (*shape[:-1], 1) if shape else ())
    return np.asarray(center + np.float32(0.25) * _normal(rng, shape))


def _far(rng: np.random.Generator, given: Input) -> Array:
    """All elements are close to one number."""
    return np.asarray(96 + np.float32(0.25) * _normal(rng, given.type.shape))


def _wide_range(rng: np.random.Generator, given: Input) -> Array:
    """Magnitudes from a thousandth to thirty, evenly on a logarithmic scale."""
    shape = given.type.shape
    size = np.float32(10) ** (np.float32(4.5) * _uniform(rng, shape) - 3)
    return np.asarray(np.copysign(size, _uniform(rng, shape) - np.float32(0.5)))


DRAWS: dict[str, tuple[Draw, ...]] = {
    "normal": (_scaled(1.0),),
    "large logits": (_scaled(12.0),),
    "one large element per row": (_one_large(columns=False),),
    "one large element per column": (_one_large(columns=True),),
    "near-zero norms": (_scaled(1e-3),),
    "large norms": (_scaled(100.0),),
    "large beside small inputs": (_scaled(2.0**12), _scaled(2.0**-10)),
    "small beside large inputs": (_scaled(2.0**-10), _scaled(2.0**12)),
    "rows far from zero": (_far_rows, _scaled(1.0)),
    "all close to one number": (_far,),
    "constant rows": (_constant_rows,),
    "all positive": (lambda rng, given: _uniform(rng, given.type.shape) + np.float32(0.5),),
    "all negative": (lambda rng, given: -_uniform(rng, given.type.shape) - np.float32(0.5),),
    "wide range": (_wide_range,),
    "zero rows": (_zero_rows,),
    "denormals": (lambda rng, given: SMALLEST[given.type.dtype] * (2 * _uniform(rng, given.type.shape) - 1),),
}
"""Ways to fill inputs, which take turns; values are rounded to the input's type. A product of large and small numbers
is neither, while a kernel that has scaled the large ones before may have left the range of its type."""

BETWEEN = frozenset([*DRAWS][1::2])
"""Where what only decides is no whole number either, and some indices name no place."""
BEYOND = frozenset({"all negative", "near-zero norms"})
"""Where numbers are not moved to where logarithms and roots surely have values: that of X + 9 has some elsewhere."""

SPOILED = {"infinite": np.inf, "undefined": np.nan}
"""What one element of one input may be."""

LOW = float("-inf")


def _triangle(rng: np.random.Generator, shape: Shape) -> Array:
    """The first row sees nothing of the last axis, row i what lies before i / rows of it."""
    rows = shape[-2] if len(shape) > 1 else 2
    row = np.arange(rows)[:, None] if len(shape) > 1 else 1
    return np.broadcast_to(np.arange(shape[-1]) / shape[-1] < row / rows, shape)


def _patches(rng: np.random.Generator, shape: Shape) -> Array:
    """Eight rows at a time see a tenth of the last axis, nothing, three elements in ten, or everything."""
    place, start = np.arange(shape[-1]) / shape[-1], 0.9 * rng.random((*shape[:-1], 1))
    window = (place >= start) & (place <= start + 0.1)
    row = np.arange(shape[-2])[:, None] if len(shape) > 1 else 0
    ways = [window, np.zeros(shape, bool), rng.random(shape) < 0.3, np.ones(shape, bool)]
    return np.choose(np.broadcast_to(row // 8 % 4, shape), ways)


Mask = tuple[Callable[[np.random.Generator, Shape], Array], float]

MASKS: dict[str, Mask] = {
    "causal mask": (_triangle, LOW),
    "masked tiles and rows": (_patches, LOW),
    "large finite mask": (_triangle, -6e4),
}
"""What a mask lets be seen, and the number that hides the rest."""


def masks_of(program: KernelGraph) -> tuple[str, ...]:
    """The inputs that are added to what a maximum or an exponential is taken of, itself included."""
    added: list[frozenset[str]] = [frozenset({i.name} if i.type.shape else ()) for i in program.inputs]
    found: set[str] = set()
    maker = {v: op for op, values in program.definitions() for v in values}
    for op, values in program.definitions():
        sums = [added[v] for v in op.inputs]
        if op.kind in (OpKind.EXP, OpKind.MAX):
            found.update(*sums)
        passed = frozenset[str]()
        if op.kind is OpKind.ADD or Trait.VIEW in OPS[op.kind].traits:
            passed = passed.union(*sums)
        elif op.kind is OpKind.SUB or (op.kind in (OpKind.MUL, OpKind.DIV) and _is_positive(maker, op.inputs[1])):
            passed = sums[0]
        elif op.kind is OpKind.MUL and _is_positive(maker, op.inputs[0]):
            passed = sums[1]
        added += [passed] * len(values)
    return tuple(i.name for i in program.inputs if i.name in found)


def _is_positive(maker: dict[int, Op], value: int) -> bool:
    """Whether it is a constant above zero, maybe behind views."""
    op = maker.get(value)
    while op is not None and op.inputs and Trait.VIEW in OPS[op.kind].traits:
        op = maker.get(op.inputs[0])
    return op is not None and isinstance(op.attrs, ConstAttrs) and op.attrs.value > 0


def tried_names(program: KernelGraph) -> tuple[str, ...]:
    """The names of hard inputs that a kernel is tried on, the most telling first: those that spoil what nobody reads,
    or an element, where the program asks of elements which are infinite or no number, then finite ones."""
    asked = _asked(program) if choosing(program) is not None else set[int]()
    spoiled = [i for n, i in enumerate(program.inputs) if n in asked and i.type.dtype not in BYTES]
    return (*_unread(program), *_spoiled(spoiled), *finite_names(program))


def _unread(program: KernelGraph) -> Iterator[str]:
    return (f"{UNREAD}{name}" for name in tables(program))


def _asked(program: KernelGraph) -> set[int]:
    """Values that are compared, element by element, with themselves or with the last number of a type."""
    last = {v for v, number in program.uniform().items() if abs(number) in LARGEST.values()}
    found = set[int]()
    for op, values in reversed([*program.definitions()]):
        same = op.kind in COMPARISONS and len({*op.inputs}) == 1
        ends = op.kind in {*COMPARISONS, OpKind.SUB} and not last.isdisjoint(op.inputs)
        carried = OPS[op.kind].traits & {Trait.ELEMENTWISE, Trait.VIEW} and not found.isdisjoint(values)
        if same or ends or (carried and op.kind not in COMPARISONS):
            found.update(op.inputs[1:] if op.kind is OpKind.WHERE else op.inputs)  # what is chosen, not by what
    return found


def _spoiled(inputs: Sequence[Input]) -> Iterator[str]:
    return (f"{what} element of {i.name}" for what in SPOILED for i in inputs)


def is_spoilt(name: str) -> bool:
    """Whether hard inputs have an element that is no finite number."""
    return name.split(" ")[0] in SPOILED


def finite_names(program: KernelGraph) -> tuple[str, ...]:
    """The names of hard inputs without such elements: masks, then ways to fill."""
    return (*(MASKS if masks_of(program) else ()), *DRAWS)


def sample_names(program: KernelGraph) -> tuple[str, ...]:
    """The names of all hard inputs: those of `finite_names`, then what spoils one element."""
    spoiled = _spoiled([i for i in program.inputs if i.type.dtype not in BYTES])
    return (*finite_names(program), *spoiled, *_unread(program))


def _filled(draw: Draw, rng: np.random.Generator, given: Input, wanted: Range | None) -> Array:
    """An input that is filled in this way; of a large one some rows, again and again."""
    type_ = given.type
    if type_.elements <= BLOCK or len(type_.shape) < 2:
        return rounded(within(draw(rng, given), wanted), type_.dtype)
    rows = BLOCK // type_.shape[-1] | 1  # odd: what is laid out in powers of two meets other rows
    few = replace(given, type=replace(type_, shape=(rows, type_.shape[-1])))
    return np.resize(rounded(within(draw(rng, few), wanted), type_.dtype), type_.shape)


def hard_inputs(program: KernelGraph, name: str, seed: int) -> dict[str, Array]:
    """The inputs of this name."""
    rng = np.random.default_rng([seed, *name.encode()])
    ways = DRAWS.get(name, DRAWS["normal"])
    whole, wanted = places(program), ranges(program)
    if name in BEYOND:
        wanted = {given: range_ for given, range_ in wanted.items() if range_ not in (Range.POSITIVE, Range.SHARE)}
    how = {"runs": True, "between": name in BETWEEN}
    inputs = {
        i.name: rounded(within(whole[i.name].drawn(rng, i.type.shape, **how), wanted.get(i.name)), i.type.dtype)
        if i.name in whole else _filled(ways[number % len(ways)], rng, i, wanted.get(i.name))
        for number, i in enumerate(program.inputs)
    }  # fmt: skip
    if name in MASKS:
        seen, low = MASKS[name]
        types = {i.name: i.type for i in program.inputs}
        for mask in masks_of(program):
            kept = np.where(seen(rng, types[mask].shape), inputs[mask], low)
            inputs[mask] = rounded(kept, types[mask].dtype)
    elif name.startswith(UNREAD):
        inputs = leaving_out(program, name.removeprefix(UNREAD), inputs)
    elif name not in DRAWS:
        what, _, _, given = name.split(" ", 3)
        inputs[given].flat[rng.integers(inputs[given].size)] = SPOILED[what]
    return inputs
