"""Arrays for a muGraph: random inputs, what a caller passes in, and the way element types look on each side.

NumPy has no bf16: such tensors travel as uint16 bit patterns, converted here and nowhere else. Everything
else has the NumPy type of the same name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import DTypeError, LaunchError, ShapeError
from mirage_nb.interp import evaluate
from mirage_nb.ir import DType, Input, KernelGraph, TensorType
from mirage_nb.ir.ops import show_shape

Array = NDArray[Any]

STORED: dict[DType, type[np.generic]] = {
    DType.F16: np.float16,
    DType.BF16: np.uint16,
    DType.F32: np.float32,
    DType.F64: np.float64,
}
LARGEST: dict[DType, float] = {DType.F16: 65504.0, DType.BF16: 3e38, DType.F32: 3e38, DType.F64: 1e300}
SMALLEST_SCALE = 2.0**-5
"""Programs that overflow even with inputs this small overflow by themselves."""
HEADROOM = 0.5
"""Values of a check stay below this share of the largest number of their type."""


def encode(values: Array, dtype: DType) -> Array:
    """Real numbers rounded to `dtype`, as stored."""
    if dtype is not DType.BF16:
        return np.ascontiguousarray(values, dtype=STORED[dtype])
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))
    return (rounded >> np.uint64(16)).astype(np.uint16)


def decode(stored: Array, dtype: DType) -> Array:
    """Stored elements as float64."""
    if dtype is not DType.BF16:
        return stored.astype(np.float64)
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def poisoned(type_: TensorType) -> Array:
    """An array full of NaN: an element that is never written shows."""
    if type_.dtype is DType.BF16:
        return np.full(type_.shape, 0x7FFF, np.uint16)
    return np.full(type_.shape, np.nan, STORED[type_.dtype])


def accept(tensor: Any, into: Input) -> Array:
    """A caller's array as stored: real numbers are rounded to the input's dtype, bf16 bits (uint16) are taken as such.

    Raises:
        ShapeError: another shape than the program says.
        DTypeError: not an array of real numbers.
    """
    host = np.asarray(tensor)
    check_shape(host.shape, into)
    if into.type.dtype is DType.BF16 and host.dtype == np.uint16:
        return np.ascontiguousarray(host)
    if host.dtype.kind not in "fiub":
        raise DTypeError(f"{into.name} has dtype {host.dtype}, the program says {into.type.dtype.value}")
    return encode(host, into.type.dtype)


def check_count(tensors: Sequence[Any], wanted: Sequence[Input], what: str = "inputs") -> None:
    """Raises LaunchError when there are more or fewer tensors than wanted; `what` they are for."""
    if len(tensors) != len(wanted):
        names = ", ".join(i.name for i in wanted)
        raise LaunchError(f"{len(tensors)} tensors for {len(wanted)} {what}", hint=f"pass {names}, in this order")


def check_shape(shape: Sequence[int], into: Input) -> None:
    """Raises ShapeError when an input has another shape."""
    if tuple(shape) != into.type.shape:
        raise ShapeError(f"{into.name} has shape {show_shape(tuple(shape))}, the program says {into.type}")


@dataclass(frozen=True, slots=True)
class Sample:
    """Random inputs of a program, as stored, its float64 outputs on exactly these, and their scale.

    `safe`: every value on the way fits its type, so a kernel that overflows is wrong. Otherwise the program
    itself overflows in its own types, on inputs of any scale.
    """

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    scale: float
    safe: bool = True


def draw_sample(graph: KernelGraph, seed: int) -> Sample:
    """Normally distributed inputs with the program's outputs.

    The scale starts at 1 and is halved while some value on the way comes near the end of its type's range,
    as long as that helps.
    """
    whole = graph.returning((*range(len(graph.inputs), len(graph.types)), *graph.outputs))
    first, excess = _attempt(whole, graph, seed, 1.0)
    sample, least = first, excess
    while excess > 1 and sample.scale > SMALLEST_SCALE:
        sample, excess = _attempt(whole, graph, seed, sample.scale / 2)
        if least <= excess < float("inf"):
            break
        least = excess
    return sample if excess <= 1 else replace(first, safe=False)


def _attempt(whole: KernelGraph, graph: KernelGraph, seed: int, scale: float) -> tuple[Sample, float]:
    """A sample of this scale, and by how much its largest value exceeds what its type may hold."""
    stored = draw(graph, seed, scale)
    values = evaluate(whole, [decode(a, i.type.dtype) for a, i in zip(stored, graph.inputs, strict=True)])
    largest = (float(np.max(np.abs(a), initial=0.0)) for a in values)
    excess = max(a / (HEADROOM * LARGEST[t.dtype]) for a, t in zip(largest, whole.output_types, strict=True))
    outputs = values[-len(graph.outputs) :]
    return Sample(tuple(stored), outputs, scale), excess if excess == excess else float("inf")


def draw(graph: KernelGraph, seed: int, scale: float) -> list[Array]:
    """One stored array per input: normal numbers of standard deviation `scale`."""
    rng = np.random.default_rng(seed)
    return [encode(rng.standard_normal(i.type.shape, np.float32) * scale, i.type.dtype) for i in graph.inputs]
