"""A muGraph as plain data: its tensors, how its kernels are launched, and what they have to compute.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package but what is
copied with it. In: nested dicts and lists, of whatever origin. Out: a `Plan`, or a KernelError that names the
first thing that does not fit. Invariants: a plan is checked as a whole before anything of it is used; reading
one executes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from typing import Annotated, Any

import numpy as np

from mirage_nb.records import Records, short
from mirage_nb.runtime.kernel.operators import LIBRARY, OPERATORS, PRIMITIVES, STORED

FORMAT, VERSION, SIZED_VERSION, PARTS_VERSION = "mirage_nb kernel", 1, 2, 3
ALIGNMENT = 16
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""Swizzle of a tensor map in bytes -> the driver's number."""
MAX_ITEMS, MAX_TIMES, MAX_DEPTH = 4096, 2**24, 64
"""Entries of a list; repeats of one tensor; levels of a formula."""
LARGEST = sys.float_info.max
RATIONAL = re.compile(r"-?[0-9]{1,1200}(/[0-9]{1,1200})?", re.ASCII)


Extent = Annotated[int, 1, 2**31]
Blocks = Annotated[int, 1, 2**31 - 1]
Positive = Annotated[float, sys.float_info.min, 1e6]
"""Numbers of a plan, and their limits."""


class KernelError(RuntimeError):
    """A plan that does not hold together, arrays that do not fit, or a card that refuses."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in device memory: its name ("" within), element type and shape, and where it begins: input or
    output number `at`, or `at` bytes into the workspace. sized: the dimension that is a multiple of the size."""

    name: str
    dtype: str
    shape: tuple[Extent, ...]
    place: str
    at: int
    sized: Annotated[int, 0, 7] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * np.dtype(STORED[self.dtype]).itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Argument:
    """A kernel argument: the address of a tensor, or with `shape` a tensor map over it as a row-major matrix; `first`,
    `pitch`: its elements in front of that, and from one row to the next, where it has others, too; `matrices`: so many
    of this shape behind each other, whose boxes end where their matrix does."""

    tensor: int
    shape: tuple[Annotated[int, 1, 2**32], Annotated[int, 1, 2**32]] | None = None
    box: tuple[Annotated[int, 1, 256], Annotated[int, 1, 256]] = (1, 1)
    swizzle: int = 0
    first: Annotated[int, 0, 2**40] | None = None
    pitch: Annotated[int, 1, 2**32] | None = None
    matrices: Annotated[int, 1, 2**32] | None = None

    def resized(self, extent: int, most: int) -> Argument:
        """A map over `extent` of `most` rows, or matrices."""
        assert self.shape is not None
        if self.matrices:
            return replace(self, matrices=self.matrices * extent // most)
        return replace(self, shape=(self.shape[0] * extent // most, self.shape[1]))


def mapped(shape: tuple[int, int], box: tuple[int, int], matrices: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and the box of a tensor map over one matrix, or over so many that are kept apart, one or more."""
    return ((matrices, *shape), (1, *box)) if matrices else (shape, box)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel: extents in blocks, threads per block, bytes of dynamic shared memory, arguments in order. sized: the
    size follows them. cut: a dimension of the grid has a block for every so many of the size, a quotient."""

    kernel: str
    grid: tuple[Blocks, Blocks, Blocks]
    threads: Annotated[int, 1, 1024]
    shared_bytes: Annotated[int, 0, 2**20]
    args: tuple[Argument, ...]
    overlaps: bool
    sized: bool = False
    cut: tuple[Annotated[int, 0, 2], Extent, Extent] | None = None

    def __repr__(self) -> str:
        blocks = f"{self.grid} blocks of {self.threads} threads"
        return f"<Launch of {self.kernel[:40]}: {blocks}, {len(self.args)} arguments>"


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator of `OPERATORS` on whole tensors: numbers of tensors in, the number of one out; `scalars` are
    operands that are numbers, each with its position. As a step of a plan also a kernel of `LIBRARY`, launched the way
    that the attribute `by` says."""

    operator: str
    attrs: Mapping[str, Any]
    inputs: tuple[int, ...]
    output: int
    scalars: tuple[tuple[int, Annotated[float, -LARGEST, LARGEST]], ...] = ()


@dataclass(frozen=True, slots=True)
class Size:
    """An extent that is known at launch: a number from `least` to `most`."""

    name: str
    least: Extent
    most: Extent


Whole = Annotated[int, -(2**31), 2**31]
SHARE = 0.25
SPREAD = 32
KINDS: Mapping[str, Callable[[Any], Any]] = {
    "normal": lambda x: x, "positive": np.abs, "share": lambda x: 0.5 ** np.abs(x), "truth": lambda x: 1.0 * (x > 0),
    "whole": lambda x: np.rint(SPREAD * x), "natural": lambda x: np.abs(np.rint(SPREAD * x)),
    "counted": lambda x: 1 + np.abs(np.rint(SPREAD * x)),
}  # fmt: skip
"""What becomes of normal numbers where a program has values for some only, and of whole ones so many times larger."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """How an input of a self-check is drawn: as `KINDS` has it, or, where there are some, whole numbers from `least` on
    and below `below`, and `also` others."""

    kind: str = "normal"
    least: Whole = 0
    below: Whole = 0
    also: tuple[Whole, ...] = ()

    def numbers(self, rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Any:
        """An array of them; `scale`: of normal numbers."""
        if self.below <= self.least:
            return KINDS[self.kind](rng.standard_normal(shape, np.float32) * np.float32(scale))
        found = rng.integers(self.least, self.below, shape)
        return np.where(rng.random(shape) < SHARE, rng.choice(self.also, shape), found) if self.also else found


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about one saved muGraph.

    about: texts for a reader (name, program, muGraph, verdict, target). program: the operators that say what has
    to be computed; values are numbered, inputs first; `results` are its outputs. scale, tolerance: of a self-check.
    cubin: machine code for `arch`, empty if it was left out; source: the CUDA text that it was compiled from.
    size: that is known at launch, if there is one; shapes and grids are those of its largest extent. extent: what it
    is, once that is known. drawn: of every input how a self-check draws it; none: as normal numbers.
    """

    about: Mapping[str, str]
    arch: str
    tensors: tuple[Tensor, ...]
    steps: tuple[Launch | Apply, ...]
    workspace_bytes: int
    program: tuple[Apply, ...]
    results: tuple[int, ...]
    scale: Positive
    tolerance: Positive
    source: str
    cubin: bytes = b""
    size: Size | None = None
    extent: int = 0
    drawn: tuple[Drawn, ...] = ()

    def __repr__(self) -> str:
        called = self.about.get("name", "")[:40]
        return f"<Plan {called}: {len(self.steps)} steps, {len(self.cubin):,} bytes for {self.arch[:20]}>"

    def at(self, place: str) -> tuple[Tensor, ...]:
        """The inputs, or the outputs, in order."""
        return tuple(sorted((t for t in self.tensors if t.place == place and t.name), key=lambda t: t.at))

    def extent_of(self, shapes: Sequence[Sequence[int]]) -> int:
        """The size that inputs of these shapes have; 0 without one. Raises KernelError where it is out of its range."""
        found = set()
        for tensor, shape in zip(self.at("input"), shapes, strict=True):
            if self.size is not None and tensor.sized == 0 and shape:
                found.add(Fraction(shape[0] * self.size.most, tensor.shape[0]))
        if self.size is None or not found:
            return 0
        if len(found) > 1 or not all(n.denominator == 1 and self.size.least <= n <= self.size.most for n in found):
            said = " or ".join(map(str, sorted(found)))
            raise KernelError(f"{self.size.name} is {said}, not a number from {self.size.least} to {self.size.most}")
        return int(found.pop())

    def sized(self, extent: int) -> Plan:
        """The same kernels at an extent of the size, which is in its range; 0: as it is."""
        if self.size is None or not extent:
            return self
        most = self.size.most

        def tensor(found: Tensor) -> Tensor:
            dim, shape = found.sized, found.shape
            if dim is None:
                return found
            return replace(found, shape=(*shape[:dim], shape[dim] // most * extent, *shape[dim + 1 :]))

        def step(found: Launch | Apply) -> Launch | Apply:
            if isinstance(found, Apply):
                return found
            grid = list(found.grid)
            if found.cut is not None:
                dim, many, few = found.cut
                grid[dim] = max(1, -(-extent * few // many))
            args = tuple(
                a.resized(extent, most)
                if a.shape is not None and self.tensors[a.tensor].sized is not None
                else a
                for a in found.args
            )
            return replace(found, grid=(grid[0], grid[1], grid[2]), args=args)

        tensors, steps = tuple(map(tensor, self.tensors)), tuple(map(step, self.steps))
        return replace(self, tensors=tensors, steps=steps, size=None, extent=extent)


class _Plain(Records):
    """Reads what plans are made of; a file may say more than there is a field for."""

    error, most_items, limits, strict = KernelError, MAX_ITEMS, (0, 2**40), False


def write_plan(plan: Plan) -> dict[str, Any]:
    """The plan as nested dicts and lists, ready for `json.dumps`."""
    size = {} if plan.size is None else {"size": [plan.size.name, plan.size.least, plan.size.most]}
    return {
        "format": FORMAT, "version": _version(plan), **_plain(replace(plan, cubin=b"")), **size,
        "source": _pack(plan.source.encode()), "cubin": _pack(plan.cubin),
        "cubin_sha256": hashlib.sha256(plan.cubin).hexdigest(),
    }  # fmt: skip


def _version(plan: Plan) -> int:
    """The least version of the format that says it all."""
    args = [arg for step in plan.steps if isinstance(step, Launch) for arg in step.args]
    if any(arg.first is not None or arg.pitch is not None for arg in args):
        return PARTS_VERSION
    return VERSION if plan.size is None else SIZED_VERSION


def _plain(value: Any) -> Any:
    """A value of a plan as JSON has it; what is nothing by default is left out if it is."""
    if is_dataclass(value):
        held = {field.name: getattr(value, field.name) for field in fields(value)}
        left = {f.name for f in fields(value) if f.default in (None, False) and held[f.name] is f.default}
        return {name: _plain(one) for name, one in held.items() if name not in left}
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def read_plan(data: object) -> Plan:
    """The plan in nested dicts and lists, checked. Raises KernelError at the first thing that does not fit."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise KernelError(f"this is no {FORMAT}")
    plain = _Plain()
    size = Size(*plain.value(tuple[str, Extent, Extent], data["size"], "size")) if "size" in data else None
    if data.get("version") not in (VERSION if size is None else SIZED_VERSION, PARTS_VERSION):
        said = f"version {short(data.get('version'))} of the format"
        raise KernelError(f"{said}; this reads {VERSION} to {PARTS_VERSION}")
    if size is not None and size.least > size.most:
        raise KernelError(f"a size from {size.least} to {size.most}")
    source, cubin = (_unpack(plain.value(str, data.get(name), name), name) for name in ("source", "cubin"))
    if hashlib.sha256(cubin).hexdigest() != data.get("cubin_sha256"):
        raise KernelError("the cubin is damaged: its digest is another one")
    held = {name: value for name, value in data.items() if name not in ("cubin", "size", "extent")}
    plan: Plan = replace(plain.value(Plan, {**held, "source": source.decode()}, "plan"), cubin=cubin, size=size)
    _check_tensors(plan)
    for number, step in enumerate(plan.steps):
        _check_step(step, plan.tensors, f"step {number}")
    for number, applied in enumerate(plan.program):
        _check_operator(applied, {}, f"operator {number}")
    _check_numbers(plan)
    return plan


def _check_tensors(plan: Plan) -> None:
    for number, found in enumerate(plan.tensors):
        dim, size, where = found.sized, plan.size, f"tensor {number}"
        if dim is not None and (size is None or dim >= len(found.shape) or found.shape[dim] % size.most):
            raise KernelError(f"{where}: {short(found)} is no multiple of the size")
        if found.dtype not in STORED or found.place not in ("input", "output", "workspace") or len(found.shape) > 8:
            raise KernelError(f"{where}: {short(found)} in {short(found.place)!r}")
        if found.place == "workspace" and found.at % ALIGNMENT:
            raise KernelError(f"{where}: at {found.at}, no multiple of {ALIGNMENT}")
        if found.place == "workspace" and found.at + found.nbytes > plan.workspace_bytes:
            raise KernelError(f"{where} lies outside the workspace")


def _check_step(step: Launch | Apply, tensors: Sequence[Tensor], where: str) -> None:
    args = step.args if isinstance(step, Launch) else ()
    used: Sequence[int] = [a.tensor for a in args]
    if isinstance(step, Apply):
        _check_operator(step, LIBRARY, where)
        used = (*step.inputs, step.output)
    if any(number >= len(tensors) for number in used):
        raise KernelError(f"{where}: there are {len(tensors)} tensors only")
    for arg in args:
        if arg.swizzle not in SWIZZLES:
            raise KernelError(f"{where}: a swizzle of {arg.swizzle} bytes")
        if arg.shape is not None and not _maps(arg, math.prod(tensors[arg.tensor].shape)):
            raise KernelError(f"{where}: a map of {arg.shape} over {tensors[arg.tensor]}")


def _maps(arg: Argument, elements: int) -> bool:
    """Whether a matrix is all of a tensor with so many elements, or lies in it."""
    assert arg.shape is not None
    rows, columns = arg.shape[0] * (arg.matrices or 1), arg.shape[1]
    if arg.first is None and arg.pitch is None:
        return rows * columns == elements
    pitch = arg.pitch or columns
    return pitch >= columns and (arg.first or 0) + (rows - 1) * pitch + columns <= elements


def _check_operator(step: Apply, library: Mapping[str, Sequence[str]], where: str) -> None:
    if step.operator not in OPERATORS and step.operator not in library:
        raise KernelError(f"{where}: unknown operator {short(step.operator)!r}")
    if step.operator in library and step.attrs.get("by") not in library[step.operator]:
        raise KernelError(f"{where}: {step.operator} by {short(step.attrs.get('by'))}")
    for name, value in step.attrs.items():
        if name not in ATTRS or not (value is None or ATTRS[name](value)):
            raise KernelError(f"{where}: the attribute {short(name)} is {short(value)}")
    if any(place >= len(step.inputs) + len(step.scalars) for place, _ in step.scalars):
        raise KernelError(f"{where}: scalars have to be positions and numbers")


def _check_numbers(plan: Plan) -> None:
    for place in ("input", "output"):
        found = [t.at for t in plan.at(place)]
        if found != list(range(len(found))) or any(t.place == place and t.at >= len(found) for t in plan.tensors):
            raise KernelError(f"the numbers of the {place}s are {found[:8]}")
    defined = len(plan.at("input"))
    if len(plan.drawn) not in (0, defined) or any(one.kind not in KINDS for one in plan.drawn):
        raise KernelError(f"{len(plan.drawn)} ways to draw {defined} inputs, or unknown ones")
    for number, step in enumerate(plan.program):
        if step.output != defined or any(not 0 <= v < defined for v in step.inputs):
            raise KernelError(f"operator {number} of the program reads or writes a value out of turn")
        defined += 1
    if len(plan.results) != len(plan.at("output")) or any(not 0 <= v < defined for v in plan.results):
        raise KernelError("the results of the program are not its outputs")


def _is_whole(value: Any, most: int = 2**31) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value <= most


def _is_wholes(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 16 and all(map(_is_whole, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_rational(value: Any) -> bool:
    """The text of a number that float64 has, and short: what it stands for is computed."""
    if not isinstance(value, str) or not RATIONAL.fullmatch(value):
        return False
    top, _, bottom = value.partition("/")
    return int(bottom or 1) != 0 and abs(Fraction(int(top), int(bottom or 1))) <= LARGEST


def _is_views(value: Any) -> bool:
    """For each operand the moves that make a view of it: dimensions turned, or a part along one."""
    lists = isinstance(value, list) and len(value) <= 16 and all(isinstance(v, list) and len(v) <= 16 for v in value)
    moves = [move for moves in value for move in moves] if lists else [None]
    return all(isinstance(m, list) and m[:1] in (["turn"], ["part"]) and _is_wholes(m[1:]) for m in moves)


def _is_formula(value: Any, depth: int = 0) -> bool:
    """Nested lists of primitives and their operands; "x", and numbers as texts."""
    if isinstance(value, str):
        return value == "x" or _is_rational(value)
    if not isinstance(value, list) or not 2 <= len(value) <= 3 or depth > MAX_DEPTH:
        return False
    name, *operands = value
    return isinstance(name, str) and name in PRIMITIVES and all(_is_formula(v, depth + 1) for v in operands)


ATTRS: dict[Any, Callable[[Any], bool]] = {
    "dim": _is_whole, "times": lambda value: _is_whole(value, MAX_TIMES) and value > 0, "shape": _is_wholes,
    "perm": _is_wholes, "value": _is_rational, "exponent": _is_rational, "low": _is_rational, "high": _is_rational,
    **dict.fromkeys(("start", "extent", "step", "before", "after", "infinite"), _is_whole), "other": _is_rational,
    **dict.fromkeys(("heads", "groups", "queries", "keys", "head"), lambda value: _is_whole(value) and value > 0),
    "window": _is_whole, "views": _is_views,
    **dict.fromkeys(("left", "right", "relu", "causal", "centred"), lambda value: value in (0, 1)),
    **dict.fromkeys(("gain", "bias", "added", "backward", "exclusive"), lambda value: value in (0, 1)),
    **dict.fromkeys(("scale", "eps"), _is_rational), "by": _is_text,
    "symbol": _is_text, "dtype": _is_text, "name": _is_text, "formula": _is_formula,
}  # fmt: skip
"""Attributes of operators: what each has to be, unless it is null."""


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _unpack(text: str, what: str, limit: int = 2**26) -> bytes:
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(text, validate=True), limit)
    except (ValueError, zlib.error) as error:
        raise KernelError(f"the {what} cannot be unpacked: {error}") from error
    if not stream.eof:
        raise KernelError(f"the {what} is cut short, or has more than {limit} bytes")
    return data
