"""A muGraph as plain data: its tensors, how its kernels are launched, and what they have to compute.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package but what is
copied with it. In: nested dicts and lists, of whatever origin. Out: a `Plan`, or a KernelError that names the
first thing that does not fit. Invariants: a plan is checked as a whole before anything of it is used; reading
one executes nothing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from fractions import Fraction
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

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


LIMITS: dict[tuple[type, str], tuple[int, int]] = {
    (Tensor, "shape"): (1, 2**31), (Tensor, "sized"): (0, 7), (Argument, "shape"): (1, 2**32 - 1),
    (Argument, "box"): (1, 256), (Launch, "grid"): (1, 2**31 - 1), (Launch, "threads"): (1, 1024),
    (Launch, "shared_bytes"): (0, 2**20), (Launch, "cut"): (0, 2**31),
}  # fmt: skip
"""Of whole numbers in a file; those of other fields are in `ANY_WHOLE`."""
ANY_WHOLE = 0, 2**40
PLAIN = {str: "a text", bool: "true or false", dict: "an object", list: "a list"}


def write_plan(plan: Plan) -> dict[str, Any]:
    """The plan as nested dicts and lists, ready for `json.dumps`."""
    size = {} if plan.size is None else {"size": [plan.size.name, plan.size.least, plan.size.most]}
    return {
        "format": FORMAT, "version": SIZED_VERSION if size else VERSION, **_plain(replace(plan, cubin=b"")), **size,
        "source": _pack(plan.source.encode()), "cubin": _pack(plan.cubin),
        "cubin_sha256": hashlib.sha256(plan.cubin).hexdigest(),
    }  # fmt: skip


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
    size = _size(data["size"]) if "size" in data else None
    if data.get("version") != (VERSION if size is None else SIZED_VERSION):
        said = f"version {_short(data.get('version'))} of the format"
        raise KernelError(f"{said}; this reads {VERSION} and {SIZED_VERSION}")
    source, cubin = (_unpack(_value(str, data.get(n), f"the plan: {n}"), n) for n in ("source", "cubin"))
    if hashlib.sha256(cubin).hexdigest() != data.get("cubin_sha256"):
        raise KernelError("the cubin is damaged: its digest is another one")
    held = {**data, "source": source.decode(), "cubin": "", "size": None, "extent": 0}
    plan: Plan = replace(_record(Plan, held, "the plan"), cubin=cubin, size=size)
    _check_tensors(plan)
    for number, step in enumerate(plan.steps):
        _check_step(step, plan.tensors, f"step {number}")
    for number, applied in enumerate(plan.program):
        _check_operator(applied, {}, f"operator {number}")
    _check_numbers(plan)
    return plan


def _record(kind: Any, data: object, where: str) -> Any:
    """A dataclass in untrusted data, by the annotations of its fields; those that have a default may be missing."""
    given, kinds = _value(dict, data, where), _annotations(kind)
    held = {}
    for field in fields(kind):
        if field.name in given or field.default is MISSING:
            limits = LIMITS.get((kind, field.name), ANY_WHOLE)
            held[field.name] = _value(kinds[field.name], given.get(field.name), f"{where}: {field.name}", limits)
    return kind(**held)


@functools.cache
def _annotations(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(kind: Any, value: Any, where: str, limits: tuple[int, int] = ANY_WHOLE) -> Any:
    """A value of this type: whole numbers within limits, other numbers above 0."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:  # something or None; a launch or an operator
        if value is None and NoneType in parts:
            return None
        return _value(parts[isinstance(value, dict) and "operator" in value], value, where, limits)
    if is_dataclass(kind):
        return _record(kind, value, where)
    if origin is tuple:
        return _tuple(parts, _value(list, value, where), where, limits)
    if kind in (int, float):
        return _counted(kind, value, where, limits)
    wanted = {Mapping: dict, bytes: str}.get(origin or kind, kind)
    if not isinstance(value, wanted):
        raise KernelError(f"{where} has to be {PLAIN[wanted]}")
    return value


def _tuple(parts: tuple[Any, ...], items: list[Any], where: str, limits: tuple[int, int]) -> tuple[Any, ...]:
    if len(items) > MAX_ITEMS:
        raise KernelError(f"{where} has {len(items)} entries, at most {MAX_ITEMS}")
    if get_origin(parts[0]) is tuple:
        if not all(map(_is_scalar, items)):
            raise KernelError(f"{where} have to be positions and numbers")
        return tuple((place, float(value)) for place, value in items)
    if parts[0] is not int:
        return tuple(_value(parts[0], item, f"{where} {number}") for number, item in enumerate(items))
    if not all(isinstance(v, int) and not isinstance(v, bool) and limits[0] <= v <= limits[1] for v in items):
        raise KernelError(f"{where} has to be whole numbers from {limits[0]} to {limits[1]}")
    if parts[-1] is not Ellipsis and len(items) != len(parts):
        raise KernelError(f"{where} has to be {'two' if len(parts) == 2 else 'three'} numbers")
    return tuple(items)


def _counted(kind: Any, value: Any, where: str, limits: tuple[int, int]) -> Any:
    if not isinstance(value, int if kind is int else (int, float)) or isinstance(value, bool):
        raise KernelError(f"{where} has to be {'a whole number' if kind is int else 'a number'}")
    if not (limits[0] <= value <= limits[1] if kind is int else 0 < value < 1e6):  # it may be too large for a float
        raise KernelError(f"{where} is {_short(value)}, not from {limits[0]} to {limits[1] if kind is int else 1e6:g}")
    return kind(value)


def _size(parts: Any) -> Size:
    if not isinstance(parts, list) or len(parts) != 3 or not isinstance(parts[0], str):
        raise KernelError("the plan: size has to be a name and two numbers")
    size = Size(parts[0], *(_counted(int, number, "the plan: size", (1, 2**31)) for number in parts[1:]))
    if size.least > size.most:
        raise KernelError(f"the plan: a size from {size.least} to {size.most}")
    return size


def _check_tensors(plan: Plan) -> None:
    for number, found in enumerate(plan.tensors):
        dim, size, where = found.sized, plan.size, f"tensor {number}"
        if dim is not None and (size is None or dim >= len(found.shape) or found.shape[dim] % size.most):
            raise KernelError(f"{where}: {_short(found)} is no multiple of the size")
        if found.dtype not in STORED or found.place not in ("input", "output", "workspace") or len(found.shape) > 8:
            raise KernelError(f"{where}: {_short(found)} in {_short(found.place)!r}")
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
    elif step.cut is not None and (step.cut[0] > 2 or not all(step.cut[1:])):
        raise KernelError(f"{where}: cut has to be a dimension and a quotient")
    if any(number >= len(tensors) for number in used):
        raise KernelError(f"{where}: there are {len(tensors)} tensors only")
    for arg in args:
        if arg.swizzle not in SWIZZLES:
            raise KernelError(f"{where}: a swizzle of {arg.swizzle} bytes")
        if arg.shape is not None and math.prod(arg.shape) != math.prod(tensors[arg.tensor].shape):
            raise KernelError(f"{where}: a map of {arg.shape} over {tensors[arg.tensor]}")


def _check_operator(step: Apply, library: Mapping[str, Sequence[str]], where: str) -> None:
    if step.operator not in OPERATORS and step.operator not in library:
        raise KernelError(f"{where}: unknown operator {_short(step.operator)!r}")
    if step.operator in library and step.attrs.get("by") not in library[step.operator]:
        raise KernelError(f"{where}: {step.operator} by {_short(step.attrs.get('by'))}")
    for name, value in step.attrs.items():
        if name not in ATTRS or not (value is None or ATTRS[name](value)):
            raise KernelError(f"{where}: the attribute {_short(name)} is {_short(value)}")
    if any(place >= len(step.inputs) + len(step.scalars) for place, _ in step.scalars):
        raise KernelError(f"{where}: scalars have to be positions and numbers")


def _check_numbers(plan: Plan) -> None:
    if not all(isinstance(text, str) for text in plan.about.values()):
        raise KernelError("the plan: about has to be texts")
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


def _is_scalar(pair: Any) -> bool:
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    place, value = pair
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return _is_whole(place) and place >= 0 and number and -LARGEST <= value <= LARGEST


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
