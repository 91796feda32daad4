"""Attributes as data: which fields the attributes of an operator have and how each is written.

In: an attributes dataclass. Out: its fields as plain values (numbers, strings, lists, None) and back. The
text and JSON forms both go through here, so a new attributes class needs one row.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from fractions import Fraction
from typing import Any

from mirage_nb.errors import FormatError, ProgramSizeError, printable
from mirage_nb.ir import formula
from mirage_nb.ir.dtypes import DTYPE_NAMES, DType
from mirage_nb.ir.ops import (
    OPS,
    AccumAttrs,
    AccumKind,
    ApplyAttrs,
    ArangeAttrs,
    Attrs,
    CastAttrs,
    ClampAttrs,
    ConstAttrs,
    DimAttrs,
    InIterAttrs,
    OpKind,
    OutSaverAttrs,
    PadAttrs,
    PowAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    RunningAttrs,
    Shape,
    SliceAttrs,
    TransposeAttrs,
    WhereAttrs,
)

Plain = int | str | Fraction | list[Any] | None

MAX_OPERATORS = 2000
MAX_RANK = 16
MAX_EXTENT = 2**40
MAX_ELEMENTS = 2**60
MAX_DIGITS = 1200
INPUT_WORDS = ("settled", "places")
"""What is true of an input or is not."""
MAX_BLOCKS = 2**31 - 1
"""Blocks of a grid, in all and along each of its dims, that CUDA starts at once."""
INDEX_LIMIT = 2**31
"""Of elements of a tensor that generated kernels read or write: their offsets have 32 bits."""
MAX_LOOP = 2**20
MAX_NAME = 200
MAX_LIST = 4096
LARGEST = Fraction(sys.float_info.max)
_NUMBER = re.compile(r"-?[0-9]+(/[0-9]+)?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Codec:
    """How one field is written and read back; `read` raises FormatError."""

    write: Callable[[Any], Plain]
    read: Callable[[Plain], Any]


def whole(value: Plain) -> int:
    """An integer of moderate size."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormatError(f"{shown(value)} is not a whole number")
    if abs(value) > MAX_EXTENT:
        raise ProgramSizeError(f"the number {shown(value)} is beyond 2^40")
    return value


def check_size(shape: Shape, place: str = "") -> None:
    """Raise ProgramSizeError, which begins with the place, for a tensor beyond the limits."""
    if len(shape) > MAX_RANK or math.prod(shape) > MAX_ELEMENTS:
        raise ProgramSizeError(f"{place}a tensor of more than 2^60 elements or {MAX_RANK} dimensions")


def check_launch(grid: Shape, loop: int) -> None:
    """Raise ProgramSizeError for more blocks or iterations than any launch has."""
    if any(extent > MAX_BLOCKS for extent in grid) or math.prod(grid) > MAX_BLOCKS:
        raise ProgramSizeError(f"a grid of {shown(list(grid))}; at most {MAX_BLOCKS} blocks")
    if loop > MAX_LOOP:
        raise ProgramSizeError(f"a for-loop range of {loop}; at most {MAX_LOOP}")


def shown(value: object) -> str:
    """The start of a value, for messages."""
    text = printable(value[:200] if isinstance(value, str) else repr(value)[:200])
    return text if len(text) <= 40 else f"{text[:40]}..."


def name(value: Plain) -> str:
    """A string of moderate length that can be printed and encoded."""
    if not isinstance(value, str):
        raise FormatError(f"{shown(value)} is not a name")
    if len(value) > MAX_NAME:
        raise ProgramSizeError(f"the name {shown(value)} has more than {MAX_NAME} characters")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise FormatError(f"the name {value!a} has half a character, which nothing can print")
    return value


def listed(plain: object, what: str, most: int = MAX_LIST) -> list[Any]:
    """A list that is not too long."""
    if not isinstance(plain, list):
        raise FormatError(f"{what}: {shown(plain)} is not a list")
    if len(plain) > most:
        raise ProgramSizeError(f"{what}: {len(plain)} entries; at most {most}")
    return plain


def record(plain: object, what: str, wanted: Sequence[str] = (), optional: Sequence[str] | None = ()) -> dict[str, Any]:
    """An object with these keys, and others that it may have (None: any)."""
    if not isinstance(plain, dict):
        raise FormatError(f"{what}: {shown(plain)} is not an object")
    for key in wanted:
        if key not in plain:
            raise FormatError(f"{what} needs {key!r}")
    if optional is not None:
        known = (*wanted, *optional)
        for key in plain.keys() - known:
            raise FormatError(f"{what} has no {shown(key)}", hint=f"it has {', '.join(known)}")
    return plain


def fraction(value: Plain) -> Fraction:
    """An exact rational: a whole number, or a text n or n/d, no larger than float64 has numbers."""
    if isinstance(value, Fraction):
        return _finite(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return _finite(Fraction(value))
    if not isinstance(value, str) or len(value) > 2 * MAX_DIGITS:
        raise FormatError(f"{shown(value)} is not a rational number like 1/8")
    if not _NUMBER.match(value) or max(map(len, value.split("/"))) > MAX_DIGITS + 1:
        raise FormatError(f"{shown(value)} is not a rational number like 1/8")
    top, _, bottom = value.partition("/")
    if bottom and int(bottom) == 0:
        raise FormatError(f"{shown(value)} divides by zero")
    return _finite(Fraction(int(top), int(bottom or 1)))


def _finite(value: Fraction) -> Fraction:
    if abs(value) > LARGEST:
        raise ProgramSizeError("a constant is beyond the numbers of float64", hint="they end at 1.8e308")
    return value


def _write_fraction(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator).bit_length() > 3 * MAX_DIGITS:
        raise ProgramSizeError(f"a constant has more than {MAX_DIGITS} digits")
    return _finite(value)


def optional(codec: Codec) -> Codec:
    """The codec, or None."""
    return Codec(
        lambda value: None if value is None else codec.write(value),
        lambda value: None if value is None else codec.read(value),
    )


def several(codec: Codec) -> Codec:
    """A tuple of at most MAX_RANK."""

    def read(value: Plain) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise FormatError(f"{shown(value)} is not a list")
        if len(value) > MAX_RANK:
            raise ProgramSizeError(f"a list of {len(value)} dimensions; at most {MAX_RANK}")
        return tuple(codec.read(item) for item in value)

    return Codec(lambda values: [codec.write(value) for value in values], read)


def _formula(value: Plain) -> str:
    text = name(value)
    formula.read(text)
    return text


def _dtype(value: Plain) -> DType:
    found = DTYPE_NAMES.get(value) if isinstance(value, str) else None
    if found is None:
        raise FormatError(f"unknown element type {shown(value)}", hint=f"one of {', '.join(DTYPE_NAMES)}")
    return found


def _sign(value: Plain) -> int:
    if value not in (-1, 0, 1):
        raise FormatError(f"{shown(value)} is no sign", hint="1, -1, or 0 for none")
    return whole(value)


def _flag(value: Plain) -> bool:
    if value not in (0, 1):
        raise FormatError(f"{shown(value)} is neither 0 nor 1")
    return value == 1


def _accumulator(value: Plain) -> AccumKind:
    try:
        return AccumKind(value)
    except ValueError:
        kinds = ", ".join(kind.value for kind in AccumKind)
        raise FormatError(f"unknown accumulator {shown(value)}", hint=f"one of {kinds}") from None


INT = Codec(int, whole)
SIGN = Codec(int, _sign)
FLAG = Codec(int, _flag)
NAME = Codec(str, name)
FRACTION = Codec(_write_fraction, fraction)
DIM = optional(INT)
FORMULA = Codec(str, _formula)
DTYPE = Codec(lambda dtype: str(dtype.value), _dtype)
KIND = Codec(lambda kind: str(kind.value), _accumulator)

FIELDS: dict[type, dict[str, Codec]] = {
    InIterAttrs: {"arg": INT, "imap": several(DIM), "fmap": DIM, "tile": optional(several(INT))},
    OutSaverAttrs: {"omap": several(DIM), "shape": optional(several(INT))},
    AccumAttrs: {"kind": KIND, "dim": DIM},
    ConstAttrs: {"value": FRACTION, "symbol": NAME, "dtype": DTYPE},
    DimAttrs: {"dim": INT},
    RunningAttrs: {"dim": INT, "backward": FLAG, "exclusive": FLAG},
    RepeatAttrs: {"dim": INT, "times": INT},
    ReshapeAttrs: {"shape": several(INT)},
    TransposeAttrs: {"perm": several(INT)},
    SliceAttrs: {"dim": INT, "start": INT, "extent": INT, "step": INT},
    PadAttrs: {"dim": INT, "before": INT, "after": INT},
    ArangeAttrs: {"extent": INT, "dtype": DTYPE},
    WhereAttrs: {"other": FRACTION, "infinite": SIGN},
    CastAttrs: {"dtype": DTYPE},
    ClampAttrs: {"low": optional(FRACTION), "high": optional(FRACTION)},
    PowAttrs: {"exponent": FRACTION},
    ApplyAttrs: {"name": NAME, "formula": FORMULA},
}

DEFAULTS: dict[type, dict[str, Plain]] = {
    kind: {f.name: codecs[f.name].write(f.default) for f in dataclasses.fields(kind) if f.default is not MISSING}
    for kind, codecs in FIELDS.items()
}
"""Fields that are left out when they have this value."""


def write_attrs(attrs: Attrs | None) -> dict[str, Plain]:
    """The fields of attributes as plain values, without those that have their default."""
    if attrs is None:
        return {}
    kind = type(attrs)
    written = {field: codec.write(getattr(attrs, field)) for field, codec in FIELDS[kind].items()}
    defaults = DEFAULTS.get(kind, {})
    return {field: value for field, value in written.items() if field not in defaults or value != defaults[field]}


def read_attrs(kind: OpKind, values: Mapping[str, Plain]) -> Attrs | None:
    """The attributes of an operator from plain values. Raises FormatError, ProgramSizeError."""
    wanted = OPS[kind].attrs
    fields = FIELDS[wanted] if wanted is not None else {}
    for given in values:
        if given not in fields:
            known = f"it has {', '.join(fields)}" if fields else "it has none"
            raise FormatError(f"{kind.value} has no attribute {shown(given)}", hint=known)
    if wanted is None:
        return None
    full = {**DEFAULTS.get(wanted, {}), **values}
    missing = [field for field in fields if field not in full]
    if missing:
        raise FormatError(f"{kind.value} needs the attribute {missing[0]}")
    found: Attrs = wanted(**{field: codec.read(full[field]) for field, codec in fields.items()})
    return found
