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
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np

from mirage_nb.runtime.kernel.operators import LIBRARY, OPERATORS, PRIMITIVES, STORED

FORMAT, VERSION, SIZED_VERSION = "mirage_nb kernel", 1, 2
ALIGNMENT = 16
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""Swizzle of a tensor map in bytes -> the driver's number."""
MAX_ITEMS, MAX_TIMES, MAX_DEPTH = 4096, 2**24, 64
"""Entries of a list; repeats of one tensor; levels of a formula."""
LARGEST = sys.float_info.max
RATIONAL = re.compile(r"-?[0-9]{1,1200}(/[0-9]{1,1200})?", re.ASCII)


class KernelError(RuntimeError):
    """A plan that does not hold together, arrays that do not fit, or a card that refuses."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in device memory: its name ("" within), element type and shape, and where it begins: input or
    output number `at`, or `at` bytes into the workspace. sized: the dimension that is a multiple of the size."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    place: str
    at: int
    sized: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * np.dtype(STORED[self.dtype]).itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Argument:
    """A kernel argument: the address of a tensor, or with `shape` a tensor map over it as a row-major matrix."""

    tensor: int
    shape: tuple[int, int] | None = None
    box: tuple[int, int] = (1, 1)
    swizzle: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel: extents in blocks, threads per block, bytes of dynamic shared memory, arguments in order. sized: the
    size follows them. cut: a dimension of the grid has a block for every so many of the size, a quotient."""

    kernel: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    args: tuple[Argument, ...]
    overlaps: bool
    sized: bool = False
    cut: tuple[int, int, int] | None = None

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
    scalars: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Size:
    """An extent that is known at launch: a number from `least` to `most`."""

    name: str
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about one saved muGraph.

    about: texts for a reader (name, program, muGraph, verdict, target). program: the operators that say what has
    to be computed; values are numbered, inputs first; `results` are its outputs. scale, tolerance: of a self-check.
    cubin: machine code for `arch`, empty if it was left out; source: the CUDA text that it was compiled from.
    size: that is known at launch, if there is one; shapes and grids are those of its largest extent. extent: what it
    is, once that is known.
    """

    about: Mapping[str, str]
    arch: str
    tensors: tuple[Tensor, ...]
    steps: tuple[Launch | Apply, ...]
    workspace_bytes: int
    program: tuple[Apply, ...]
    results: tuple[int, ...]
    scale: float
    tolerance: float
    source: str
    cubin: bytes
    size: Size | None = None
    extent: int = 0

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
                replace(a, shape=(a.shape[0] * extent // most, a.shape[1]))
                if a.shape is not None and self.tensors[a.tensor].sized is not None
                else a
                for a in found.args
            )
            return replace(found, grid=(grid[0], grid[1], grid[2]), args=args)

        tensors, steps = tuple(map(tensor, self.tensors)), tuple(map(step, self.steps))
        return replace(self, tensors=tensors, steps=steps, size=None, extent=extent)


def write_plan(plan: Plan) -> dict[str, Any]:
    """The plan as nested dicts and lists, ready for `json.dumps`."""

    def step(found: Launch | Apply) -> dict[str, Any]:
        if isinstance(found, Apply):
            return {"operator": found.operator, "attrs": dict(found.attrs), "inputs": list(found.inputs),
                    "output": found.output, "scalars": [list(s) for s in found.scalars]}  # fmt: skip
        args = [
            {"tensor": a.tensor}
            if a.shape is None
            else {"tensor": a.tensor, "shape": list(a.shape), "box": list(a.box), "swizzle": a.swizzle}
            for a in found.args
        ]
        cut = {"cut": list(found.cut)} if found.cut is not None else {}
        sized = {"sized": True, **cut} if found.sized else {}
        return {"kernel": found.kernel, "grid": list(found.grid), "threads": found.threads,
                "shared_bytes": found.shared_bytes, "overlaps": found.overlaps, "args": args, **sized}  # fmt: skip

    size = {"size": [plan.size.name, plan.size.least, plan.size.most]} if plan.size is not None else {}
    return {
        "format": FORMAT,
        "version": SIZED_VERSION if size else VERSION,
        **size,
        "about": dict(plan.about),
        "arch": plan.arch,
        "tensors": [
            {"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "place": t.place, "at": t.at}
            | ({"sized": t.sized} if t.sized is not None else {})
            for t in plan.tensors
        ],
        "steps": [step(s) for s in plan.steps],
        "workspace_bytes": plan.workspace_bytes,
        "program": [step(s) for s in plan.program],
        "results": list(plan.results),
        "scale": plan.scale,
        "tolerance": plan.tolerance,
        "source": _pack(plan.source.encode()),
        "cubin": _pack(plan.cubin),
        "cubin_sha256": hashlib.sha256(plan.cubin).hexdigest(),
    }


def read_plan(data: object) -> Plan:
    """The plan in nested dicts and lists, checked. Raises KernelError at the first thing that does not fit."""
    top = _Record(data, "the plan")
    if top.text("format") != FORMAT:
        raise KernelError(f"this is no {FORMAT}")
    size = _size(top)
    if top.whole("version") != (VERSION if size is None else SIZED_VERSION):
        raise KernelError(f"version {top.whole('version')} of the format; this reads {VERSION} and {SIZED_VERSION}")
    about = top.mapping("about")
    if not all(isinstance(v, str) for v in about.values()):
        raise KernelError("the plan: about has to be texts")
    tensors = tuple(_tensor(_Record(t, f"tensor {n}"), size) for n, t in enumerate(top.items("tensors")))
    workspace = top.whole("workspace_bytes")
    for number, tensor in enumerate(tensors):
        if tensor.place == "workspace" and tensor.at + tensor.nbytes > workspace:
            raise KernelError(f"tensor {number} lies outside the workspace")
    steps = tuple(_step(_Record(s, f"step {n}"), tensors) for n, s in enumerate(top.items("steps")))
    program = tuple(_apply(_Record(s, f"operator {n}")) for n, s in enumerate(top.items("program")))
    cubin = _unpack(top.text("cubin"), "cubin")
    if hashlib.sha256(cubin).hexdigest() != top.text("cubin_sha256"):
        raise KernelError("the cubin is damaged: its digest is another one")
    source = _unpack(top.text("source"), "source").decode()
    plan = Plan(
        about, top.text("arch"), tensors, steps, workspace, program, tuple(top.wholes("results")),
        top.number("scale"), top.number("tolerance"), source, cubin, size,
    )  # fmt: skip
    _check_numbers(plan)
    return plan


def _check_numbers(plan: Plan) -> None:
    for place in ("input", "output"):
        found = [t.at for t in plan.at(place)]
        if found != list(range(len(found))) or any(t.place == place and t.at >= len(found) for t in plan.tensors):
            raise KernelError(f"the numbers of the {place}s are {found[:8]}")
    defined = len(plan.at("input"))
    for number, step in enumerate(plan.program):
        if step.output != defined or any(not 0 <= v < defined for v in step.inputs):
            raise KernelError(f"operator {number} of the program reads or writes a value out of turn")
        defined += 1
    if len(plan.results) != len(plan.at("output")) or any(not 0 <= v < defined for v in plan.results):
        raise KernelError("the results of the program are not its outputs")


@dataclass(frozen=True, slots=True)
class _Record:
    """A dict of untrusted data; every look at it is checked."""

    data: object
    where: str

    def _get(self, key: str, kind: type | tuple[type, ...], what: str) -> Any:
        value = self.data.get(key) if isinstance(self.data, dict) else None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise KernelError(f"{self.where}: {key} has to be {what}")
        return value

    def has(self, key: str) -> bool:
        return isinstance(self.data, dict) and key in self.data

    def text(self, key: str) -> str:
        return str(self._get(key, str, "a text"))

    def mapping(self, key: str) -> dict[Any, Any]:
        return dict(self._get(key, dict, "an object"))

    def items(self, key: str) -> list[Any]:
        found = self._get(key, list, "a list")
        if len(found) > MAX_ITEMS:
            raise KernelError(f"{self.where}: {key} has {len(found)} entries, at most {MAX_ITEMS}")
        return list(found)

    def flag(self, key: str) -> bool:
        return bool(self._get(key, bool, "true or false"))

    def whole(self, key: str, least: int = 0, most: int = 2**40) -> int:
        value = int(self._get(key, int, "a whole number"))
        if not least <= value <= most:
            raise KernelError(f"{self.where}: {key} is {_short(value)}, not from {least} to {most}")
        return value

    def number(self, key: str) -> float:
        value = self._get(key, (int, float), "a number")
        if not 0 < value < 1e6:  # as it is: a whole number may be too large for a float
            raise KernelError(f"{self.where}: {key} is {_short(value)}")
        return float(value)

    def wholes(self, key: str, least: int = 0, most: int = 2**40) -> tuple[int, ...]:
        values = self.items(key)
        if any(isinstance(v, bool) or not isinstance(v, int) or not least <= v <= most for v in values):
            raise KernelError(f"{self.where}: {key} has to be whole numbers from {least} to {most}")
        return tuple(values)

    def pair(self, key: str, most: int) -> tuple[int, int]:
        values = self.wholes(key, 1, most)
        if len(values) != 2:
            raise KernelError(f"{self.where}: {key} has to be two numbers")
        return values[0], values[1]


def _size(record: _Record) -> Size | None:
    if not record.has("size"):
        return None
    parts = record.items("size")
    if len(parts) != 3 or not isinstance(parts[0], str) or not all(map(_is_whole, parts[1:])):
        raise KernelError("the plan: size has to be a name and two numbers")
    size = Size(*parts)
    if not 1 <= size.least <= size.most:
        raise KernelError(f"the plan: a size from {_short(size.least)} to {_short(size.most)}")
    return size


def _tensor(record: _Record, size: Size | None) -> Tensor:
    found = Tensor(
        record.text("name"), record.text("dtype"), record.wholes("shape", 1, 2**31), record.text("place"),
        record.whole("at"), record.whole("sized", 0, 7) if record.has("sized") else None,
    )  # fmt: skip
    dim = found.sized
    if dim is not None and (size is None or dim >= len(found.shape) or found.shape[dim] % size.most):
        raise KernelError(f"{record.where}: {_short(found)} is no multiple of the size")
    if found.dtype not in STORED or found.place not in ("input", "output", "workspace") or len(found.shape) > 8:
        raise KernelError(f"{record.where}: {_short(found)} in {_short(found.place)!r}")
    if found.place == "workspace" and found.at % ALIGNMENT:
        raise KernelError(f"{record.where}: at {found.at}, no multiple of {ALIGNMENT}")
    return found


def _step(record: _Record, tensors: Sequence[Tensor]) -> Launch | Apply:
    if record.has("operator"):
        step = _apply(record, LIBRARY)
        used: Sequence[int] = (*step.inputs, step.output)
        found: Launch | Apply = step
    else:
        grid = record.wholes("grid", 1, 2**31 - 1)
        if len(grid) != 3:
            raise KernelError(f"{record.where}: grid has to be three numbers")
        args = tuple(_argument(_Record(a, f"{record.where}, argument {n}")) for n, a in enumerate(record.items("args")))
        used = [a.tensor for a in args]
        found = Launch(
            record.text("kernel"), (grid[0], grid[1], grid[2]), record.whole("threads", 1, 1024),
            record.whole("shared_bytes", 0, 2**20), args, record.flag("overlaps"),
            record.has("sized") and record.flag("sized"), _cut(record),
        )  # fmt: skip
    if any(number >= len(tensors) for number in used):
        raise KernelError(f"{record.where}: there are {len(tensors)} tensors only")
    for arg in found.args if isinstance(found, Launch) else ():
        tensor = tensors[arg.tensor]
        if arg.shape is not None and math.prod(arg.shape) != math.prod(tensor.shape):
            raise KernelError(f"{record.where}: a map of {arg.shape} over {tensor}")
    return found


def _cut(record: _Record) -> tuple[int, int, int] | None:
    if not record.has("cut"):
        return None
    found = record.wholes("cut", 0, 2**31)
    if len(found) != 3 or found[0] > 2 or not found[1] or not found[2]:
        raise KernelError(f"{record.where}: cut has to be a dimension and a quotient")
    return found[0], found[1], found[2]


def _apply(record: _Record, library: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Apply:
    operator = record.text("operator")
    if operator not in OPERATORS and operator not in library:
        raise KernelError(f"{record.where}: unknown operator {_short(operator)!r}")
    attrs = record.mapping("attrs")
    if operator in library and attrs.get("by") not in library[operator]:
        raise KernelError(f"{record.where}: {operator} by {_short(attrs.get('by'))}")
    for name, value in attrs.items():
        if name not in ATTRS or not (value is None or ATTRS[name](value)):
            raise KernelError(f"{record.where}: the attribute {_short(name)} is {_short(value)}")
    inputs, scalars = record.wholes("inputs"), record.items("scalars")
    if not all(_is_scalar(s, len(inputs) + len(scalars)) for s in scalars):
        raise KernelError(f"{record.where}: scalars have to be positions and numbers")
    return Apply(
        operator, attrs, inputs, record.whole("output"), tuple((place, float(value)) for place, value in scalars)
    )


def _is_scalar(pair: Any, count: int) -> bool:
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    place, value = pair
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return _is_whole(place, count - 1) and place >= 0 and number and -LARGEST <= value <= LARGEST


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
    **dict.fromkeys(("gain", "bias", "added"), lambda value: value in (0, 1)),
    **dict.fromkeys(("scale", "eps"), _is_rational), "by": _is_text,
    "symbol": _is_text, "dtype": _is_text, "name": _is_text, "formula": _is_formula,
}  # fmt: skip
"""Attributes of operators: what each has to be, unless it is null."""


def _short(value: object) -> str:
    """The start of a value of whatever size, for messages."""
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a number of more than 19 digits"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _argument(record: _Record) -> Argument:
    if not record.has("shape"):
        return Argument(record.whole("tensor"))
    swizzle = record.whole("swizzle")
    if swizzle not in SWIZZLES:
        raise KernelError(f"{record.where}: a swizzle of {swizzle} bytes")
    return Argument(record.whole("tensor"), record.pair("shape", 2**32 - 1), record.pair("box", 256), swizzle)


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
