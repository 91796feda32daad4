"""The floating-point gate: what a kernel returned, against float64 (paper section 5.2, numerical stability).

In: outputs of an executed kernel, the float64 reference, the element type of the outputs. Out: a
`FloatReport`. Every kernel that is timed or handed out passes here first, on fresh random inputs and on
hard ones. Outputs are poisoned before the launch: every element is NaN, so that one that the kernel does
not write, or writes from what nobody wrote, cannot look right by chance or by an earlier run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import ShapeError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import DType, KernelGraph
from mirage_nb.ir.ops import Shape, show_shape

Array = NDArray[Any]

TOLERANCES: dict[DType, float] = {
    DType.F16: 5e-3,
    DType.BF16: 3e-2,
    DType.F32: 1e-4,
    DType.F64: 1e-9,
}
"""Largest error, relative to the largest value of an output, that a kernel with outputs of this type may make:
a few units in the last place of what it stores and of the tiles that it rounds on the way."""


@dataclass(frozen=True, slots=True)
class FloatReport:
    """`relative_error`: the largest absolute error over the largest absolute reference value, worst output
    (infinite when an element is missing or not a number); `ok`: within the tolerance; `note`: where and why."""

    relative_error: float
    ok: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class HardInputs:
    """Named inputs that strain numerical safety, float64, by input name."""

    name: str
    inputs: dict[str, NDArray[np.float64]]


def compare(
    outputs: Sequence[Array], reference: Sequence[Array], dtype: DType, tolerance: float | None = None
) -> FloatReport:
    """Compare all outputs with the float64 reference; `tolerance` overrides that of the element type.

    Elements whose reference is not finite, or beyond the largest number of the element type, have to be
    not finite as well; they count nothing otherwise.

    Raises:
        ShapeError: other shapes, or another number of outputs.
    """
    if len(outputs) != len(reference):
        raise ShapeError(f"{len(outputs)} outputs for {len(reference)} in the reference")
    limit = TOLERANCES[dtype] if tolerance is None else tolerance
    worst = FloatReport(0.0, True)
    for number, (got, want) in enumerate(zip(outputs, reference, strict=True)):
        if np.shape(got) != np.shape(want):
            raise ShapeError(f"output {number} is {show_shape(np.shape(got))}, not {show_shape(np.shape(want))}")
        report = _compare(number, np.asarray(got, np.float64), np.asarray(want, np.float64), dtype, limit)
        if report.relative_error >= worst.relative_error:
            worst = FloatReport(report.relative_error, worst.ok and report.ok, report.note or worst.note)
    return worst


LARGEST: dict[DType, float] = {DType.F16: 65504.0, DType.BF16: 3.38e38, DType.F32: 3.4e38, DType.F64: 1.79e308}


def _compare(number: int, got: Array, want: Array, dtype: DType, limit: float) -> FloatReport:
    holdable = np.isfinite(want) & (np.abs(want) <= LARGEST[dtype])
    lost = np.argwhere(holdable & ~np.isfinite(got))
    if len(lost):
        at = tuple(int(i) for i in lost[0])
        what = "not written, or not a number" if np.isnan(got[at]) else "infinite"
        note = f"output {number}{list(at)} is {what}, the reference is {want[at]:.6g}; {len(lost)} such elements"
        return FloatReport(float("inf"), False, note)
    kept = ~holdable & np.isfinite(got) & (np.abs(got) < LARGEST[dtype])
    if kept.any():
        at = tuple(int(i) for i in np.argwhere(kept)[0])
        note = f"output {number}{list(at)} is {got[at]:.6g}, the reference is {want[at]:.6g}"
        return FloatReport(float("inf"), False, note)
    if not holdable.any():
        return FloatReport(0.0, True)
    error = np.where(holdable, np.abs(np.where(holdable, got, 0) - np.where(holdable, want, 0)), 0)
    scale = float(np.abs(want[holdable]).max())
    relative = float(error.max()) / scale if scale else float(error.max())
    if relative <= limit:
        return FloatReport(relative, True)
    at = tuple(int(i) for i in np.unravel_index(int(error.argmax()), error.shape))
    return FloatReport(relative, False, f"output {number}{list(at)} is {got[at]:.6g}, the reference is {want[at]:.6g}")


def hard_inputs(program: KernelGraph, seed: int = 0) -> tuple[HardInputs, ...]:
    """Inputs on which unsafe but algebraically equal graphs break: large logits, tiny and huge norms.

    Only those on which the program as written stays finite in float32: no candidate has to survive what
    its program does not.
    """
    found = []
    for name, draw in DRAWS.items():
        rng = np.random.default_rng([seed, *name.encode()])
        inputs = {i.name: np.asarray(draw(rng, i.type.shape), np.float16).astype(np.float64) for i in program.inputs}
        if all(np.isfinite(out).all() for out in evaluate(program, inputs, np.float32)):
            found.append(HardInputs(name, inputs))
    return tuple(found)


Draw = Callable[[np.random.Generator, Shape], Array]


def _one_hot_rows(rng: np.random.Generator, shape: Shape) -> Array:
    """One large element per row, the rest tiny."""
    values = rng.normal(scale=1e-3, size=shape)
    if shape and shape[-1]:
        at = rng.integers(0, shape[-1], (*shape[:-1], 1))
        np.put_along_axis(values, at, 8.0, axis=-1)
    return values


DRAWS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "large logits": lambda rng, shape: 12.0 * rng.normal(size=shape),
    "one large element per row": _one_hot_rows,
    "near-zero norms": lambda rng, shape: 1e-3 * rng.normal(size=shape),
    "large norms": lambda rng, shape: 100.0 * rng.normal(size=shape),
    "constant rows": lambda rng, shape: np.broadcast_to(rng.normal(size=(*shape[:-1], 1)), shape),
    "all positive": lambda rng, shape: rng.uniform(0.5, 1.5, size=shape),
}
"""Ways to fill an input; values are rounded to f16 so that every element type holds them."""
