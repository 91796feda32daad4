"""Dataclasses in untrusted plain data, by the annotations of their fields.

Copied into every file that saves a muGraph, so it imports nothing of this package. In: nested dicts and lists, of
whatever origin. Out: a value of a type, or an error that names the first place that does not fit. Invariant: reading
executes nothing, and takes time linear in the data.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin, get_type_hints

WORDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", NoneType: "null"}


class Records:
    """Reads values. Who extends it says what its error is, how long lists may be and how large whole numbers, whether
    fields that a record does not have are refused, and how other types are read that have no parts."""

    error: type[Exception] = ValueError
    most_items = math.inf
    limits: tuple[float, float] = (-math.inf, math.inf)
    strict = True

    def value(self, kind: Any, plain: Any, where: str) -> Any:
        """The value of this type in plain data; `where` it stands is for messages."""
        origin, parts = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            if plain is None and NoneType in parts:
                return None
            return self.value(_meant([part for part in parts if part is not NoneType], plain), plain, where)
        if origin is tuple or origin is frozenset:
            return origin(self._items(origin, parts, self.listed(plain, where), where))
        if origin in (Mapping, dict):
            return self._mapping(parts, plain, where)
        if is_dataclass(kind):
            return self._record(kind, plain, where)
        return self.leaf(kind, plain, where)

    def leaf(self, kind: Any, plain: Any, where: str) -> Any:
        """A text, a truth value or a number; `Annotated[int, 1, 8]` is one from 1 to 8."""
        least, most = self.limits if kind is int else (-math.inf, math.inf)
        if get_origin(kind) is Annotated:
            kind, least, most = get_args(kind)
        if kind is Any:
            return plain
        if kind not in WORDS:
            self.refuse(f"{where}: {short(plain)} cannot be read as {kind}")
        if type(plain) is not kind and (kind is not float or type(plain) is not int):
            self.refuse(f"{where} has to be {WORDS[kind]}, not {short(plain)}")
        if kind in (int, float) and not least <= plain <= most:
            self.refuse(f"{where} is {short(plain)}, not from {short(least)} to {short(most)}")
        try:
            return plain if kind is NoneType else kind(plain)
        except OverflowError:
            self.refuse(f"{where} is {short(plain)}, more than float64 has")

    def listed(self, plain: Any, where: str) -> list[Any]:
        """A list that is not too long."""
        if not isinstance(plain, list):
            self.refuse(f"{where} has to be a list, not {short(plain)}")
        if len(plain) > self.most_items:
            self.refuse(f"{where} has {len(plain)} entries, at most {self.most_items}")
        return plain

    def refuse(self, said: str) -> NoReturn:
        """Raise the error."""
        raise self.error(said)

    def _items(self, origin: type, parts: tuple[Any, ...], plain: list[Any], where: str) -> list[Any]:
        if origin is frozenset or parts[-1] is Ellipsis:
            parts = parts[:1] * len(plain)
        if len(plain) != len(parts):
            self.refuse(f"{where} has {len(plain)} entries instead of {len(parts)}")
        return [self.value(parts[n], item, f"{where}[{n}]") for n, item in enumerate(plain)]

    def _mapping(self, parts: tuple[Any, ...], plain: Any, where: str) -> dict[Any, Any]:
        """An object, or a list of pairs where keys are no texts."""
        pairs = [*map(list, plain.items())] if isinstance(plain, dict) else self.listed(plain, where)
        named = ((pair, f"{where}[{number}]") for number, pair in enumerate(pairs))
        return dict(self._items(tuple, parts, self.listed(pair, place), place) for pair, place in named)

    def _record(self, kind: Any, plain: Any, where: str) -> Any:
        if not isinstance(plain, dict):
            self.refuse(f"{where} has to be an object, not {short(plain)}")
        kinds, needed = field_types(kind)
        for name in needed:
            if name not in plain:
                self.refuse(f"{where} needs {name!r}")
        for name in plain if self.strict else ():
            if name not in kinds:
                self.refuse(f"{where} has no {short(name)}")
        return kind(**{n: self.value(kinds[n], item, f"{where}.{n}") for n, item in plain.items() if n in kinds})


@functools.cache
def field_types(kind: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The types of a dataclass's fields, and those that have no default."""
    needed = (f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    return get_type_hints(kind, include_extras=True), tuple(needed)


def _meant(parts: list[Any], plain: Any) -> Any:
    """Of several records, the one whose fields are there."""
    if len(parts) == 1 or not isinstance(plain, dict):
        return parts[0]
    return max(parts, key=lambda part: len(field_types(part)[0].keys() & plain.keys()))


def short(value: object) -> str:
    """The start of a value of whatever size, for messages."""
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a number of more than 19 digits"
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
