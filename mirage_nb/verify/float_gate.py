"""The floating-point gate: what a kernel returned, against float64 (paper section 5.2, numerical stability).

In: outputs of an executed kernel, the float64 reference, the element type of the outputs. Out: a
`FloatReport`. Every kernel that is timed or handed out passes here first, on fresh random inputs and on
hard ones. Outputs are poisoned before the launch: every element is NaN, so that one that the kernel does
not write, or writes from what nobody wrote, cannot look right by chance or by an earlier run.

How a pass uses it, with a kernel behind `run(inputs by name) -> outputs`:

    report = gate(run, samples(program))     # samples are made one by one, the most telling ones first
    report.ok                                # nothing broke
    report.survived, report.broken           # names of samples; report.results has errors and places

With several kernels, or little time, it goes through the samples itself:

    for sample in samples(program):          # a large program takes seconds for each; stop when time is up
        result = judge(sample, run(sample.inputs))      # for every kernel; GateReport((result, ...)) at the end

The tolerance is the program's own: an element counts only where the program, each of its operators rounded
to the type of its result, is right itself. A program that overflows in its types may overflow in its
kernels; kernels may do better. With an infinite or undefined input, what the reference shows as not finite
has to stay so, and what it does not reach has to stay right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import OptionError, ShapeError
from mirage_nb.interp.reference import FloatAlgebra, evaluate
from mirage_nb.interp.run import run_block
from mirage_nb.ir import BlockGraph, DType, Input, KernelGraph
from mirage_nb.ir.ops import Shape, show_shape

Array = NDArray[Any]
Floats = NDArray[np.float64]
Run = Callable[[Mapping[str, Array]], Sequence[Array]]

TOLERANCES: dict[DType, float] = {
    DType.F16: 5e-3,
    DType.BF16: 3e-2,
    DType.F32: 1e-4,
    DType.F64: 1e-9,
}
"""Largest error, relative to the largest value of an output, that a kernel with outputs of this type may make:
a few units in the last place of what it stores and of the tiles that it rounds on the way."""

OWN_ERRORS = 2.0
"""How many times its program's own error a kernel may make, beyond the tolerance."""


@dataclass(frozen=True, slots=True)
class FloatReport:
    """`relative_error`: the largest absolute error over the largest absolute reference value, worst output
    (infinite when an element is missing or not a number); `ok`: within the tolerance; `note`: where and why."""

    relative_error: float
    ok: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class HardSample:
    """Inputs that strain numerical safety, by input name: float32 or float64 arrays of numbers that the input's
    type holds exactly; the reference outputs; for every output element, by how much a kernel may be off (NaN: it
    is not asked for); and the types of the outputs."""

    name: str
    inputs: Mapping[str, Array]
    outputs: tuple[Floats, ...]
    allowed: tuple[Floats, ...]
    dtypes: tuple[DType, ...]

    @property
    def asked(self) -> int:
        """Number of output elements that count."""
        return sum(int((~np.isnan(allowed)).sum()) for allowed in self.allowed)


@dataclass(frozen=True, slots=True)
class SampleReport:
    """What one sample showed; `error` is relative as in `FloatReport`, over the elements that count."""

    name: str
    survived: bool
    error: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class GateReport:
    """What all samples showed."""

    results: tuple[SampleReport, ...]

    @property
    def ok(self) -> bool:
        """Whether the kernel survived all samples."""
        return all(result.survived for result in self.results)

    @property
    def survived(self) -> tuple[str, ...]:
        """Names of the samples that the kernel survived."""
        return tuple(result.name for result in self.results if result.survived)

    @property
    def broken(self) -> tuple[str, ...]:
        """Names of the samples that broke it."""
        return tuple(result.name for result in self.results if not result.survived)

    def __str__(self) -> str:
        lines = [f"survived {len(self.survived)} of {len(self.results)} hard inputs"]
        lines += [f"  broken by {result.name}: {result.note}" for result in self.results if not result.survived]
        return "\n".join(lines)


def gate(run: Run, hard: Iterable[HardSample]) -> GateReport:
    """Run a kernel on every sample and judge it. Raises what `run` raises, and ShapeError as `judge`."""
    return GateReport(tuple(judge(sample, run(sample.inputs)) for sample in hard))


def judge(sample: HardSample, outputs: Sequence[Array]) -> SampleReport:
    """What these outputs, real numbers of any NumPy type, say about the kernel that made them from the sample.

    Raises:
        ShapeError: other shapes, or another number of outputs.
    """
    _check_count(outputs, sample.outputs)
    worst = SampleReport(sample.name, True, 0.0)
    rows = zip(outputs, sample.outputs, sample.allowed, sample.dtypes, strict=True)
    for number, (given, want, allowed, dtype) in enumerate(rows):
        got = _shaped(number, given, want)
        asked = ~np.isnan(allowed)
        lost = asked & _lost(got, want, dtype, allowed)
        kept = asked & _kept(got, want, dtype, allowed)
        compared = asked & np.isfinite(got) & _holdable(want, dtype)
        error = np.where(compared, np.abs(np.where(compared, got, 0) - np.where(compared, want, 0)), 0)
        wrong = lost | kept | (error > np.where(asked, allowed, np.inf))
        relative = float("inf") if (lost | kept).any() else float(error.max(initial=0.0)) / _scale(want, dtype)
        note = worst.note or (f"{_place(number, got, want, wrong)}; {int(wrong.sum())} such" if wrong.any() else "")
        worst = SampleReport(sample.name, not note, max(worst.error, relative), note)
    return worst


def _place(number: int, got: Array, want: Array, wrong: NDArray[np.bool_]) -> str:
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"output {number}{list(at)} is {got[at]:.6g}, the reference is {want[at]:.6g}"


def compare(
    outputs: Sequence[Array], reference: Sequence[Array], dtype: DType, tolerance: float | None = None
) -> FloatReport:
    """Compare all outputs with the float64 reference; `tolerance` overrides that of the element type.

    Elements whose reference is not finite, or beyond the largest number of the element type, have to be
    not finite as well; they count nothing otherwise.

    Raises:
        ShapeError: other shapes, or another number of outputs.
    """
    _check_count(outputs, reference)
    limit = TOLERANCES[dtype] if tolerance is None else tolerance
    worst = FloatReport(0.0, True)
    for number, (given, wanted) in enumerate(zip(outputs, reference, strict=True)):
        want = np.asarray(wanted, np.float64)
        report = _compare(number, _shaped(number, given, want), want, dtype, limit)
        if report.relative_error >= worst.relative_error:
            worst = FloatReport(report.relative_error, worst.ok and report.ok, report.note or worst.note)
    return worst


def _check_count(outputs: Sequence[Array], reference: Sequence[Array]) -> None:
    if len(outputs) != len(reference):
        raise ShapeError(f"{len(outputs)} outputs for {len(reference)} in the reference")


def _shaped(number: int, got: Array, want: Array) -> Floats:
    if np.shape(got) != np.shape(want):
        raise ShapeError(f"output {number} is {show_shape(np.shape(got))}, not {show_shape(np.shape(want))}")
    return np.asarray(got, np.float64)


LARGEST: dict[DType, float] = {DType.F16: 65504.0, DType.BF16: 3.38e38, DType.F32: 3.4e38, DType.F64: 1.79e308}
SMALLEST: dict[DType, float] = {DType.F16: 6.104e-5, DType.BF16: 1.176e-38, DType.F32: 1.176e-38, DType.F64: 2.3e-308}
"""The smallest normal numbers; what lies below is a denormal."""


def _holdable(want: Array, dtype: DType) -> NDArray[np.bool_]:
    return np.isfinite(want) & (np.abs(want) <= LARGEST[dtype])


def _lost(got: Array, want: Array, dtype: DType, allowed: Array | float) -> NDArray[np.bool_]:
    """Where a number that the type holds is not finite; at the end of its range a permitted error may lead out."""
    overflowed = np.isinf(got) & (np.sign(got) == np.sign(want)) & (np.abs(want) + allowed > LARGEST[dtype])
    found: NDArray[np.bool_] = _holdable(want, dtype) & ~np.isfinite(got) & ~overflowed
    return found


def _kept(got: Array, want: Array, dtype: DType, allowed: Array | float) -> NDArray[np.bool_]:
    """Where what the type does not hold is a number all the same; just beyond its range, a large one may be."""
    found: NDArray[np.bool_] = ~_holdable(want, dtype) & np.isfinite(got) & (np.abs(got) + allowed < LARGEST[dtype])
    return found


def _scale(want: Array, dtype: DType) -> float:
    """The largest value of an output that its type holds; 1 for zeros."""
    return float(np.abs(want[_holdable(want, dtype)]).max(initial=0.0)) or 1.0


def _compare(number: int, got: Array, want: Array, dtype: DType, limit: float) -> FloatReport:
    holdable = _holdable(want, dtype)
    allowed = limit * _scale(want, dtype)
    lost = np.argwhere(_lost(got, want, dtype, allowed))
    if len(lost):
        at = tuple(int(i) for i in lost[0])
        what = "not written, or not a number" if np.isnan(got[at]) else "infinite"
        note = f"output {number}{list(at)} is {what}, the reference is {want[at]:.6g}; {len(lost)} such elements"
        return FloatReport(float("inf"), False, note)
    kept = _kept(got, want, dtype, allowed)
    if kept.any():
        return FloatReport(float("inf"), False, _place(number, got, want, kept))
    if not holdable.any():
        return FloatReport(0.0, True)
    compared = holdable & np.isfinite(got)
    error = np.where(compared, np.abs(np.where(compared, got, 0) - np.where(compared, want, 0)), 0)
    relative = float(error.max()) / _scale(want, dtype)
    if relative <= limit:
        return FloatReport(relative, True)
    return FloatReport(relative, False, _place(number, got, want, error == error.max()))


def samples(program: KernelGraph, seed: int = 0, *, names: Collection[str] | None = None) -> Iterator[HardSample]:
    """Named inputs on which unsafe but algebraically equal kernels break, as far as something is asked on them.

    Args:
        seed: the inputs follow from it.
        names: only these, of `sample_names(program)`.

    Raises:
        OptionError: a name that does not exist.
    """
    known = sample_names(program)
    unknown = set(names or ()) - set(known)
    if unknown:
        raise OptionError(f"no hard inputs are named {min(unknown)!r}", hint=", ".join(known))
    made = (_sample(program, name, _inputs(program, name, seed)) for name in known if names is None or name in names)
    return (sample for sample in made if sample.asked)


def sample_names(program: KernelGraph) -> tuple[str, ...]:
    """The names of all hard inputs, the most telling ones first: the ways to fill, then what spoils one element."""
    return (*DRAWS, *(f"{what} element of {i.name}" for what in SPOILED for i in program.inputs))


SPOILED = {"infinite": np.inf, "undefined": np.nan}


def _inputs(program: KernelGraph, name: str, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng([seed, *name.encode()])
    draw = DRAWS.get(name, DRAWS["normal"])
    inputs = {i.name: rounded(draw(rng, i), i.type.dtype) for i in program.inputs}
    if name not in DRAWS:
        what, _, _, given = name.split(" ", 3)
        inputs[given].flat[rng.integers(inputs[given].size)] = SPOILED[what]
    return inputs


def _sample(program: KernelGraph, name: str, inputs: dict[str, Array]) -> HardSample:
    outputs = evaluate(program, inputs)
    written = as_written(program, inputs)
    dtypes = tuple(t.dtype for t in program.output_types)
    finite = all(np.isfinite(array).all() for array in inputs.values())
    allowed = tuple(_allowed(*row, finite) for row in zip(outputs, written, dtypes, strict=True))
    return HardSample(name, inputs, outputs, allowed, dtypes)


def _allowed(want: Floats, written: Floats, dtype: DType, finite: bool) -> Floats:
    """By how much every element may be off: the tolerance, and twice what the program is off by; NaN where the
    program is off by more than the tolerance, and where only an overflow of the reference could be compared."""
    tolerance = TOLERANCES[dtype] * _scale(want, dtype)
    with np.errstate(invalid="ignore"):
        own = np.abs(written - want)
    right = _holdable(want, dtype) & (own <= tolerance)
    spread = np.where(right, tolerance + OWN_ERRORS * own, np.nan)
    lost = ~np.isfinite(want) & ~np.isfinite(written)
    return spread if finite else np.where(lost, 0.0, spread)


def as_written(program: KernelGraph, inputs: Mapping[str, Array]) -> tuple[Array, ...]:
    """The outputs of a program whose every kernel computes in float32, or float64 for such results, and rounds
    what it returns to its type."""
    values: list[Array] = [rounded(inputs[i.name], i.type.dtype) for i in program.inputs]
    with np.errstate(all="ignore"):
        for op, results in program.definitions():
            operands = [values[v] for v in op.inputs]
            types = [program.types[v].dtype for v in results]
            algebra = FloatAlgebra(np.dtype(np.float64 if DType.F64 in types else np.float32))
            if isinstance(op.body, BlockGraph):
                made: Sequence[Array] = run_block(op.body, operands, algebra)
            else:
                made = [algebra.apply(op.kind, operands, op.attrs, 0)]
            values += [rounded(x, dtype) for x, dtype in zip(made, types, strict=True)]
    return tuple(np.broadcast_to(values[v], program.types[v].shape) for v in program.outputs)


def rounded(values: Array, dtype: DType) -> Array:
    """A new array of the numbers as the element type holds them: float64 for it, else float32."""
    if dtype is DType.F64:
        return np.array(values, np.float64)
    with np.errstate(all="ignore"):
        single = np.array(values, np.float32)
        if dtype is DType.F16:
            return single.astype(np.float16).astype(np.float32)
        if dtype is DType.BF16:
            bits = single.view(np.uint32)
            even = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
            return np.where(np.isfinite(single), even.view(np.float32), single)
    return single


Draw = Callable[[np.random.Generator, Input], Array]


def _normal(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.standard_normal(shape, np.float32)


def _scaled(scale: float) -> Draw:
    return lambda rng, given: np.float32(scale) * _normal(rng, given.type.shape)


def _uniform(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.random(shape, np.float32)


def _one_hot_rows(rng: np.random.Generator, given: Input) -> Array:
    """One large element per row, the rest tiny."""
    shape: Shape = given.type.shape
    values = np.float32(1e-3) * _normal(rng, shape)
    if shape:
        at = rng.integers(0, shape[-1], (*shape[:-1], 1))
        np.put_along_axis(values, at, 8.0, axis=-1)
    return values


def _zero_rows(rng: np.random.Generator, given: Input) -> Array:
    """Every third row is zero."""
    shape = given.type.shape
    rows = np.asarray(rng.integers(0, 3, (*shape[:-1], 1) if shape else ()) > 0)
    return np.where(rows, _normal(rng, shape), np.float32(0))


def _constant_rows(rng: np.random.Generator, given: Input) -> Array:
    """All elements of a row are equal."""
    shape = given.type.shape
    return np.broadcast_to(_normal(rng, (*shape[:-1], 1) if shape else ()), shape)


def _wide_range(rng: np.random.Generator, given: Input) -> Array:
    """Magnitudes from a thousandth to thirty, evenly on a logarithmic scale."""
    shape = given.type.shape
    size = np.float32(10) ** (np.float32(4.5) * _uniform(rng, shape) - 3)
    return np.asarray(np.copysign(size, _uniform(rng, shape) - np.float32(0.5)))


DRAWS: dict[str, Draw] = {
    "normal": _scaled(1.0),
    "large logits": _scaled(12.0),
    "one large element per row": _one_hot_rows,
    "near-zero norms": _scaled(1e-3),
    "large norms": _scaled(100.0),
    "constant rows": _constant_rows,
    "all positive": lambda rng, given: _uniform(rng, given.type.shape) + np.float32(0.5),
    "all negative": lambda rng, given: -_uniform(rng, given.type.shape) - np.float32(0.5),
    "wide range": _wide_range,
    "zero rows": _zero_rows,
    "denormals": lambda rng, given: SMALLEST[given.type.dtype] * (2 * _uniform(rng, given.type.shape) - 1),
}
"""Ways to fill an input; values are rounded to the input's type."""
