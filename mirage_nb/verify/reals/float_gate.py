"""The floating-point gate: what a kernel returned, against float64 (paper section 5.2, numerical stability).

In: outputs of an executed kernel, and the `Reference` of the program on the same inputs. Out: a `FloatReport`. Every
kernel that is timed or handed out passes here first, on fresh random inputs and on hard ones. Outputs are poisoned
before the launch: every element is NaN, so that one that the kernel does not write, or writes from what nobody wrote,
cannot look right by chance or by an earlier run.

How a pass uses it, with a kernel behind `run(inputs by name) -> outputs`:

    report = gate(run, samples(program))     # samples are made one by one, the most telling ones first
    report.ok                                # nothing broke
    report.survived, report.broken           # names of samples; report.results has errors and places

With several kernels, or little time, it goes through the samples itself:

    for sample in samples(program):          # a large program takes seconds for each; stop when time is up
        result = judge(sample, run(sample.inputs))      # for every kernel; GateReport((result, ...)) at the end

The tolerance is the program's own and knows nothing of the kernel: `conditioning` says by how much rounding moves
each element of the program, evaluated in its types. No element may be off by more than `SINGLE` times that, and all
of an output together, each relative to its own, by no more than `OVERALL` times. What they are off by in common, as
a factor, tells more still: a wrong scale may be within what any one element may be off by. Where the program leaves
the range of its types nothing is asked. With an infinite or undefined input, what the reference shows as not finite
has to stay so, and what it does not reach has to stay right; under a mask of minus infinity, what is infinite has to
be so, and what is no number too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import OptionError, ShapeError
from mirage_nb.interp.reference import FloatAlgebra
from mirage_nb.interp.run import run_block
from mirage_nb.ir import OPS, BlockGraph, DType, KernelGraph, Trait
from mirage_nb.ir.ops import show_shape
from mirage_nb.verify.reals.conditioning import ROUNDING, SINGLE, analyse
from mirage_nb.verify.reals.hard_inputs import MASKS, hard_inputs, is_spoilt, sample_names
from mirage_nb.verify.reals.rounding import LARGEST, SMALLEST, rounded
from mirage_nb.verify.reals.unread import UNREAD, choosing, spoilt

Array = NDArray[Any]
Floats = NDArray[np.float64]
Run = Callable[[Mapping[str, Array]], Sequence[Array]]
Right = Callable[..., "Reference"]
"""Takes a program, inputs by name, and `kinds`, as `reference` does."""

OVERALL = 2.0
"""Deviations that many elements of an output may be off by, as the root of the mean of squares; few of them more."""
COMMON = 6.0
"""Roundings of its type by which an output may be too large throughout: those of a factor that all of it shares."""
FLOOR = 1 / 64
"""What lies that far below the largest value of an output, in roundings of that, need not be more exact: a kernel may
lose there what its type can hold."""


@dataclass(frozen=True, slots=True)
class FloatReport:
    """`relative_error`: the largest absolute error over the largest absolute reference value, worst output
    (infinite when an element is missing or not a number); `ok`: within what the program's own rounding allows;
    `note`: where and why not; `allowed`: the largest error that an element might have had, relative likewise."""

    relative_error: float
    ok: bool
    note: str = ""
    allowed: float = 0.0

    @property
    def measured(self) -> str:
        """`1.2e-03, at most 7.0e-03`: the error beside what is allowed."""
        return f"{self.relative_error:.1e}" + (f", at most {self.allowed:.1e}" if self.allowed else "")


@dataclass(frozen=True, slots=True)
class Picked:
    """Some elements of an array of shape `whole`: of it as an array of `shape`, those at `places`, which are indices of
    dimensions; as an array of shape `made`."""

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    places: tuple[tuple[int, tuple[int, ...]], ...]
    made: tuple[int, ...]

    def of(self, array: Array) -> Array:
        """The elements."""
        found = array.reshape(self.shape)
        for dim, at in self.places:
            found = found[(slice(None),) * dim + ([*at],)]
        return found.reshape(self.made)

    def at(self, place: tuple[int, ...]) -> tuple[int, ...]:
        """Where in the whole array an element stands."""
        kept = dict(self.places)
        inner = [len(kept[dim]) if dim in kept else extent for dim, extent in enumerate(self.shape)]
        found = np.unravel_index(np.ravel_multi_index(place, self.made), inner) if place else ()
        there = [kept[dim][int(i)] if dim in kept else int(i) for dim, i in enumerate(found)]
        return tuple(map(int, np.unravel_index(np.ravel_multi_index(there, self.shape), self.whole))) if place else ()


@dataclass(frozen=True, slots=True)
class Reference:
    """What is right for a program on some inputs: its outputs in float64; by how much its own rounding moves every
    element (NaN: it is not asked for); the types of the outputs. `kinds`: of what is not finite the kind counts.
    `fullest`: the largest share of its type's range that a value on the way takes. `picks`: of outputs of which only
    some elements were computed, which these are."""

    outputs: tuple[Floats, ...]
    deviations: tuple[Floats, ...]
    dtypes: tuple[DType, ...]
    kinds: bool = False
    fullest: float = 0.0
    picks: tuple[Picked, ...] = ()

    @property
    def asked(self) -> int:
        """Number of output elements that count."""
        return sum(int((~np.isnan(deviation)).sum()) for deviation in self.deviations)

    @property
    def answered(self) -> int:
        """Number of outputs of which some element counts."""
        return sum(not np.isnan(deviation).all() for deviation in self.deviations)


@dataclass(frozen=True, slots=True)
class HardSample:
    """Inputs that strain numerical safety, by input name: float32 or float64 arrays of numbers that the input's
    type holds exactly; and what is right for them."""

    name: str
    inputs: Mapping[str, Array]
    reference: Reference


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


def gate(run: Run, hard: Iterable[HardSample], tolerance: float = 1.0) -> GateReport:
    """Run a kernel on every sample and judge it. Raises what `run` raises, and ShapeError as `judge`."""
    return GateReport(tuple(judge(sample, run(sample.inputs), tolerance) for sample in hard))


def judge(sample: HardSample, outputs: Sequence[Array], tolerance: float = 1.0) -> SampleReport:
    """What these outputs say about the kernel that made them from the sample; arguments as of `compare`."""
    report = compare(outputs, sample.reference, tolerance)
    return SampleReport(sample.name, report.ok, report.relative_error, report.note)


def compare(outputs: Sequence[Any], reference: Reference, tolerance: float = 1.0, xp: Any = np) -> FloatReport:
    """Compare all outputs, real numbers of any NumPy type, with what is right.

    Args:
        tolerance: how many times the program's own rounding allows may be off.
        xp: the module whose arrays outputs and reference are: NumPy, or PyTorch.

    Raises:
        ShapeError: other shapes, or another number of outputs.
    """
    wanted = reference.outputs
    if len(outputs) != len(wanted):
        raise ShapeError(f"{len(outputs)} outputs for {len(wanted)} in the reference")
    worst = FloatReport(0.0, True)
    rows = zip(outputs, wanted, reference.deviations, reference.dtypes, strict=True)
    for number, (given, want, deviation, dtype) in enumerate(rows):
        pick = reference.picks[number] if reference.picks else None
        shape = np.shape(want) if pick is None else pick.whole
        if np.shape(given) != shape:
            raise ShapeError(f"output {number} is {show_shape(np.shape(given))}, not {show_shape(shape)}")
        some: Any = given if pick is None else pick.of(np.asarray(given) if xp is np else given)
        got = np.asarray(some, np.float64) if xp is np else some.double()
        with np.errstate(all="ignore"):
            found = _compare(xp, number, got, want, deviation, dtype, tolerance, reference.kinds, pick)
        worst = FloatReport(
            max(worst.relative_error, found.relative_error),
            worst.ok and found.ok,
            worst.note or found.note,
            max(worst.allowed, found.allowed),
        )
    return worst


def _compare(
    xp: Any,
    number: int,
    got: Floats,
    want: Floats,
    deviation: Floats,
    dtype: DType,
    tolerance: float,
    kinds: bool,
    pick: Picked | None,
) -> FloatReport:
    """One output."""
    asked, allowed = ~xp.isnan(deviation), SINGLE * tolerance * deviation
    lost = asked & _lost(xp, got, want, dtype, allowed)
    kept = asked & _kept(xp, got, want, dtype, allowed)
    if kinds:
        kept |= asked & ~xp.isfinite(want) & (xp.isnan(want) != xp.isnan(got))
        kept |= asked & xp.isinf(want) & xp.isinf(got) & (want != got)
    compared = asked & xp.isfinite(got) & _holdable(xp, want, dtype)
    error = xp.where(compared, xp.abs(xp.where(compared, got, 0.0) - xp.where(compared, want, 0.0)), 0.0)
    wrong = lost | kept | (compared & (error > allowed))
    scale = _scale(xp, want, dtype)
    largest = _most(allowed[compared]) / scale
    relative = float("inf") if bool((lost | kept).any()) else _most(error) / scale
    if bool(wrong.any()):
        note = f"{_place(xp, number, got, want, wrong, pick)}; {int(wrong.sum())} such elements"
        return FloatReport(relative, False, note, largest)
    telling = compared & (deviation > 0)
    note = _together(xp, (got - want)[telling] / deviation[telling], (want / deviation)[telling], dtype, tolerance)
    return FloatReport(relative, not note, f"output {number} {note}" if note else "", largest)


def _together(xp: Any, off: Floats, size: Floats, dtype: DType, tolerance: float) -> str:
    """What is wrong with an output as a whole; `off`, `size`: errors and values of its elements, in deviations."""
    if not (count := math.prod(off.shape)):
        return ""
    overall = float(xp.mean(off**2)) ** 0.5
    if overall > tolerance * OVERALL * (1 + 3 / count**0.5):
        return f"is off by {overall:.1f} times what its rounding explains, all elements together"
    weight = float(xp.sum(size**2))
    factor = float(xp.sum(off * size)) / weight if weight else 0.0
    typical = (count / weight) ** 0.5 if weight else 0.0  # what rounding moves an element by, relative to it
    limit = tolerance * (max(COMMON * ROUNDING[dtype], typical) + 4 * typical / count**0.5)
    if abs(factor) > limit:
        size_ = "large" if factor > 0 else "small"
        return f"is too {size_} throughout, by {abs(factor):.2%}; rounding explains {limit:.2%}"
    return ""


def _place(xp: Any, number: int, got: Array, want: Array, wrong: NDArray[np.bool_], pick: Picked | None) -> str:
    at = tuple(int(i) for i in xp.argwhere(wrong)[0])
    what = "not written, or not a number" if xp.isnan(got[at]) else f"{got[at]:.6g}"
    place = list(at if pick is None else pick.at(at))
    return f"output {number}{place} is {what}, the reference is {want[at]:.6g}"


def _holdable(xp: Any, want: Array, dtype: DType) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = xp.isfinite(want) & (xp.abs(want) <= LARGEST[dtype])
    return found


def _lost(xp: Any, got: Array, want: Array, dtype: DType, allowed: Array) -> NDArray[np.bool_]:
    """Where a number that the type holds is not finite; at the end of its range a permitted error may lead out."""
    overflowed = xp.isinf(got) & (xp.sign(got) == xp.sign(want)) & (xp.abs(want) + allowed > LARGEST[dtype])
    found: NDArray[np.bool_] = _holdable(xp, want, dtype) & ~xp.isfinite(got) & ~overflowed
    return found


def _kept(xp: Any, got: Array, want: Array, dtype: DType, allowed: Array) -> NDArray[np.bool_]:
    """Where what the type does not hold is a number all the same; just beyond its range, a large one may be."""
    found: NDArray[np.bool_] = ~_holdable(xp, want, dtype) & xp.isfinite(got) & (xp.abs(got) + allowed < LARGEST[dtype])
    return found


def _most(sizes: Array) -> float:
    """The largest of some sizes; 0 of none."""
    return float(sizes.max()) if math.prod(sizes.shape) else 0.0


def _scale(xp: Any, want: Array, dtype: DType) -> float:
    """The largest value of an output that its type holds; 1 for zeros."""
    return _most(xp.abs(want[_holdable(xp, want, dtype)])) or 1.0


def samples(
    program: KernelGraph, seed: int = 0, *, names: Collection[str] | None = None, right: Right | None = None
) -> Iterator[HardSample]:
    """Named inputs on which unsafe but algebraically equal kernels break, as far as something is asked on them.

    Args:
        seed: the inputs follow from it.
        names: only these, of `sample_names(program)`.
        right: computes what is right; default: `reference`.

    Raises:
        OptionError: a name that does not exist.
    """
    known = sample_names(program)
    unknown = set(names or ()) - set(known)
    if unknown:
        raise OptionError(f"no hard inputs are named {min(unknown)!r}", hint=", ".join(known))
    made = (_sample(program, name, seed, right or reference) for name in known if names is None or name in names)
    return (sample for sample in made if sample.reference.asked)


def _sample(program: KernelGraph, name: str, seed: int, right: Right) -> HardSample:
    inputs = hard_inputs(program, name, seed)
    said = choosing(program) if is_spoilt(name) else program
    wanted = right(said or program, inputs, kinds=name in MASKS)
    if name.startswith(UNREAD):
        inputs = spoilt(program, name.removeprefix(UNREAD), inputs)
    return HardSample(name, inputs, wanted)


def reference(program: KernelGraph, inputs: Mapping[str, Array], *, kinds: bool = False) -> Reference:
    """What is right for a program on inputs by name, numbers that their types hold."""
    analysis = analyse(program, inputs)
    written = as_written(program, inputs)
    dtypes = tuple(t.dtype for t in program.output_types)
    finite = all(np.isfinite(array).all() for array in inputs.values())
    chosen = finite and analysis.fullest < math.inf and any(np.isinf(want).any() for want in analysis.outputs)
    rows = zip(analysis.outputs, analysis.deviations, written, dtypes, strict=True)
    with np.errstate(all="ignore"):
        moved = tuple(_moved(*row, finite, kinds, chosen) for row in rows)
    return Reference(analysis.outputs, moved, dtypes, kinds or chosen, analysis.fullest)


def _moved(
    want: Floats, deviation: Floats, written: Floats, dtype: DType, finite: bool, kinds: bool, chosen: bool
) -> Floats:
    """By how much rounding moves every element: as the analysis says, and as it does here; NaN where the program
    leaves the range of its types, and where only an overflow of the reference could be compared."""
    least = ROUNDING[dtype] * np.maximum(np.maximum(np.abs(want), FLOOR * _scale(np, want, dtype)), SMALLEST[dtype])
    here = np.where(_holdable(np, want, dtype), np.abs(written - want), 0.0)
    total = np.sqrt(deviation**2 + here**2 + least**2)
    known: Floats = np.where(np.isfinite(total) & np.isfinite(want), total, np.nan)
    if chosen:  # infinities are what masks have put in
        return np.where(np.isinf(want) & (want == written) & (deviation == 0), 0.0, known)
    if finite:
        return known
    alike = np.isnan(want) == np.isnan(written) if kinds else True
    return np.where(~np.isfinite(want) & ~np.isfinite(written) & alike, 0.0, known)


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
            if Trait.VIEW in OPS[op.kind].traits and {program.types[v].dtype for v in op.inputs} == {*types}:
                values += made  # they are what the types hold already
            else:
                values += [rounded(x, dtype) for x, dtype in zip(made, types, strict=True)]
    return tuple(np.broadcast_to(values[v], program.types[v].shape) for v in program.outputs)
