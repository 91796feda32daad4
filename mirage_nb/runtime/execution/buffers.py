"""Arrays for a muGraph: random inputs, what a caller passes in, and the way element types look on each side.

NumPy has no bf16 and no floats of one byte: such tensors travel as bit patterns, converted here and nowhere else.
Everything else has the NumPy type of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import DTypeError, LaunchError, ShapeError
from mirage_nb.ir import BYTES, COUNTS, DType, Input, KernelGraph, TensorType
from mirage_nb.ir.ops import EXACT, show_shape
from mirage_nb.ir.sizes import resized, size_of
from mirage_nb.runtime.picked import right_for
from mirage_nb.verify.reals.conditioning import ROUNDING
from mirage_nb.verify.reals.float_gate import Reference
from mirage_nb.verify.reals.places import places
from mirage_nb.verify.reals.ranges import ranges, within
from mirage_nb.verify.reals.rounding import bits_of, numbers_of, rounded

Array = NDArray[Any]

STORED: dict[DType, type[np.generic]] = {
    DType.F16: np.float16,
    DType.BF16: np.uint16,
    DType.F32: np.float32,
    DType.F64: np.float64,
    DType.I8: np.int8,
    DType.U8: np.uint8,
    DType.BOOL: np.bool_,
    DType.E4M3: np.uint8,
    DType.E5M2: np.uint8,
}
BITS = frozenset({DType.BF16, DType.E4M3, DType.E5M2})
"""The types that NumPy has not, whose numbers travel as their bits."""
BLOCK = 2**22 - 3
"""At most so many numbers are drawn for an input, and then again and again: a prime, so that no two rows are alike."""
SMALLEST_SCALE = 2.0**-5
"""Programs that overflow even with inputs this small overflow by themselves."""
ELSEWHERE = ((0.0, 0.125), (8.0, 1.0), (-8.0, 1.0), (64.0, 4.0), (-64.0, 4.0))
"""Where inputs lie, and how far they spread, of a program that has no value where they are normal numbers."""
HEADROOM = 0.5
"""Values of a check stay below this share of the largest number of their type."""
TELLING = 64.0
"""Inputs tell little of a kernel where the program's own rounding moves it by more than so many roundings of its
type: an exponential of large scores does."""


def encode(values: Array, dtype: DType) -> Array:
    """Real numbers rounded to `dtype`, as stored; those beyond it are infinite, of whole ones the last."""
    if dtype in COUNTS:
        return np.ascontiguousarray(rounded(values, dtype), dtype=STORED[dtype])
    if dtype in BYTES:
        return bits_of(values, dtype)
    if dtype is not DType.BF16:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(values, dtype=STORED[dtype])
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    even += np.uint32(0x7FFF)
    even += bits
    even >>= np.uint32(16)
    return even.astype(np.uint16)


def decode(stored: Array, dtype: DType) -> Array:
    """Stored elements as float64."""
    if dtype not in BITS:
        return stored.astype(np.float64)
    if dtype in BYTES:
        return numbers_of(dtype)[stored]
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def poisoned(type_: TensorType) -> Array:
    """An array full of NaN, or of a whole number that is rare: an element that is never written shows."""
    if type_.dtype in BYTES:
        return np.full(type_.shape, COUNTS.get(type_.dtype, (0x7F,))[-1], STORED[type_.dtype])
    if type_.dtype is DType.BF16:
        return np.full(type_.shape, 0x7FFF, np.uint16)
    return np.full(type_.shape, np.nan, STORED[type_.dtype])


WIDE_BYTES = 4
"""Whole numbers of fewer bytes are exact in f32."""
WHOLE = frozenset({DType.F32, DType.F64})
"""The types that hold whole numbers: indices, classes, counts."""
STRIDED = "torch.strided"
"""How PyTorch calls the layout of plain tensors."""
CAST = "or pass cast=True to have the inputs rounded"
"""What can be done about inputs of wider types than the program's, beside rounding them oneself."""


def accept(tensor: Any, into: Input) -> Array:
    """A caller's array as stored: the bits of bf16 (uint16) and of floats of one byte (uint8) are taken as such. NumPy
    has no such types otherwise: floats are rounded to them, and so are whole numbers and lists.

    Raises:
        ShapeError: another shape than the program says.
        DTypeError: not an array of real numbers, or one of a wider type than the program says, or whole numbers that
            f32 or f64 would round.
    """
    check_shape(_shape(tensor, into), into)
    host = np.asarray(tensor)
    check_floats(tensor, into)
    if into.type.dtype in BITS and host.dtype == STORED[into.type.dtype]:
        return np.ascontiguousarray(host)
    if host.dtype.kind not in "fiub":
        said = f"{into.name} has dtype {host.dtype}, the program says {into.type.dtype.value}"
        raise DTypeError(said, hint="inputs are arrays of real numbers")
    stored = encode(host, into.type.dtype)
    if host.dtype != stored.dtype and may_round(host.dtype.kind, host.dtype.itemsize, into):
        with np.errstate(invalid="ignore"):  # those that are rounded beyond their type
            check_whole(bool((stored.astype(host.dtype) != host).any()), into)
    return stored


def may_round(kind: str, itemsize: int, into: Input) -> bool:
    """Whether an input's type may lack a number of another type, of such a kind and size, and should have them all."""
    if into.type.dtype in COUNTS:
        return into.type.dtype is not DType.BOOL  # any number but 0 is true
    return kind in "iu" and itemsize >= WIDE_BYTES and into.type.dtype in WHOLE


def check_whole(rounded: bool, into: Input) -> None:
    """Raises DTypeError where whole numbers would be rounded to the type that an input is held in."""
    dtype = into.type.dtype
    if rounded and dtype in COUNTS:
        what = f"{into.name} has numbers that {dtype.value} does not have"
        raise DTypeError(what, hint=f"these are {COUNTS[dtype][0]} to {COUNTS[dtype][-1]}")
    if rounded:
        what = f"{into.name} has whole numbers that {dtype.value}, which holds them here, would round"
        raise DTypeError(what, hint=f"{dtype.value} has all of them up to {EXACT[dtype]:,}, {CAST}")


def check_floats(tensor: Any, into: Input) -> None:
    """Raises DTypeError for a NumPy array whose floats the input's type would round."""
    dtype = into.type.dtype
    if isinstance(tensor, np.ndarray) and tensor.dtype.kind == "f" and dtype not in BITS | BYTES:
        if not np.can_cast(tensor.dtype, STORED[dtype], "safe"):
            wanted = np.dtype(STORED[dtype]).name
            said = f"{into.name} has dtype {tensor.dtype}, the program says {dtype.value}"
            raise DTypeError(said, hint=f"{into.name}.astype({wanted!r}) rounds it, {CAST}")


def check_count(tensors: Sequence[Any], wanted: Sequence[Input], what: str = "inputs") -> None:
    """Raises LaunchError when there are more or fewer tensors than wanted; `what` they are for."""
    if len(tensors) != len(wanted):
        names = ", ".join(i.name for i in wanted)
        raise LaunchError(f"{len(tensors)} tensors for {len(wanted)} {what}", hint=f"pass {names}, in this order")


def shapes_of(tensors: Sequence[Any], wanted: Sequence[Input]) -> list[tuple[int, ...]]:
    """The shapes of a caller's tensors. Raises as `check_count`, and ShapeError for a list that is no array."""
    check_count(tensors, wanted)
    return [_shape(tensor, into) for tensor, into in zip(tensors, wanted, strict=True)]


def _shape(tensor: Any, into: Input) -> tuple[int, ...]:
    try:
        shape: tuple[int, ...] = np.shape(tensor)
    except ValueError as error:
        raise ShapeError(f"{into.name} is no array: {error}", hint="rows of a list have one length") from error
    if not (shape or hasattr(tensor, "shape") or isinstance(tensor, Number)):
        raise ShapeError(f"{into.name} is no tensor, but of type {type(tensor).__name__}", hint=f"pass {into.type}")
    if getattr(tensor, "is_meta", False) or str(getattr(tensor, "layout", STRIDED)) != STRIDED:
        said = f"{into.name} has no elements side by side in memory: it is a meta tensor, or a sparse one"
        raise ShapeError(said, hint="pass a tensor with its elements, as x.to_dense() is")
    return shape


def check_shape(shape: Sequence[int], into: Input) -> None:
    """Raises ShapeError when an input has another shape."""
    if tuple(shape) != into.type.shape:
        said = f"{into.name} has shape {show_shape(tuple(shape))}, the program says {into.type}"
        raise ShapeError(said, hint="inputs come in the order of the program, or by name")


@dataclass(frozen=True, slots=True)
class Sample:
    """Random inputs of a program, as stored, what is right for exactly these, and their scale.

    `safe`: every value on the way fits its type, so a kernel that overflows is wrong. Otherwise the program
    itself overflows in its own types, on inputs of any scale. `others`: samples at other extents of a size that is
    known at launch, by what they are called.
    """

    inputs: tuple[Array, ...]
    reference: Reference
    scale: float
    safe: bool = True
    others: tuple[tuple[str, Sample], ...] = ()


def draw_sample(graph: KernelGraph, seed: int) -> Sample:
    """Normally distributed inputs with the program's outputs.

    The scale starts at 1 and is halved while some value on the way comes near the end of its type's range, or the
    program's own rounding moves what it computes by much, as long as that helps. Where an output has no value, inputs
    lie elsewhere.
    """
    first, least, center = (*_attempt(graph, seed, 1.0), 0.0)
    for middle, spread in ELSEWHERE:
        if first.reference.answered == len(graph.outputs):
            break
        sample, excess = _attempt(graph, seed, spread, middle)
        if sample.reference.answered > first.reference.answered:
            first, least, center = sample, excess, middle
    best = first
    while max(least) > 1 and best.scale > SMALLEST_SCALE:
        sample, excess = _attempt(graph, seed, best.scale / 2, center)
        if not excess < least:
            break
        best, least = sample, excess
    found = best if least[0] <= 1 else replace(first, safe=False)
    size = size_of(graph)
    if size is None:
        return found
    extents = dict.fromkeys((size.least, (2 * size.least + size.most) // 3))
    others = ((f"{size.name} = {n}", draw_sample(resized(graph, n), seed)) for n in extents if n != size.most)
    return replace(found, others=tuple(others))


def _attempt(graph: KernelGraph, seed: int, scale: float, center: float = 0.0) -> tuple[Sample, tuple[float, float]]:
    """A sample of this scale around a number; by how much its largest value exceeds what its type may hold, and by how
    much its outputs are moved beyond what tells of a kernel. Neither counts below 1."""
    stored = tuple(draw(graph, seed, scale, center))
    right = right_for(graph, stored, decode)
    rows = zip(right.outputs, right.deviations, right.dtypes, strict=True)
    moved = max((_moved(want, deviation) / (TELLING * ROUNDING[dtype]) for want, deviation, dtype in rows), default=0.0)
    return Sample(stored, right, scale), (max(right.fullest / HEADROOM, 1.0), max(moved, 1.0))


def _moved(want: Array, deviation: Array) -> float:
    """By how much rounding moves an output, relative to it, all elements together."""
    asked = ~np.isnan(deviation)
    size = float(np.linalg.norm(want[asked]))
    return float(np.linalg.norm(deviation[asked])) / size if size else 0.0


def draw(graph: KernelGraph, seed: int, scale: float, center: float = 0.0) -> list[Array]:
    """One stored array per input: normal numbers of standard deviation `scale` around one, in the range that the
    program has values for; of an index, places of its axis, and whole numbers of what is compared as these are."""
    rng, whole, wanted = np.random.default_rng(seed), places(graph), ranges(graph)
    return [
        encode(within(whole[i.name].drawn(rng, i.type.shape), wanted.get(i.name)), i.type.dtype) if i.name in whole
        else repeated(encode(within(_normal(rng, i) * scale + center, wanted.get(i.name)), i.type.dtype), i)
        for i in graph.inputs
    ]  # fmt: skip


def _normal(rng: np.random.Generator, given: Input) -> Array:
    return rng.standard_normal(min(BLOCK, given.type.elements), np.float32)


def repeated(block: Array, given: Input) -> Array:
    """A block of numbers, as often as it takes to fill an input."""
    return np.resize(block, given.type.shape) if block.size < given.type.elements else block.reshape(given.type.shape)
