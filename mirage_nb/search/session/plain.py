"""Frozen dataclasses as JSON texts, by their annotations, and strictly back.

In: values made of dataclasses, enums, tuples, mappings, numbers, texts and kernel graphs. Out: a JSON text with
a schema version, and the other way round: `read(T, write(x)) == x`. Every graph stands once in a table beside
the values, in its own JSON form. What cannot be read is a FormatError; a text is never executed, and reading
takes time linear in it. Such texts travel between workers and their session, and lie in the store.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping, MutableMapping
from typing import Any, TypeVar

from mirage_nb.errors import FormatError, MirageError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.fields import shown
from mirage_nb.ir.jsonform import parse_json, to_plain
from mirage_nb.records import Records

T = TypeVar("T")

SCHEMA = "mirage_nb"
VERSION = 1
MAX_TEXT = 64_000_000
"""Characters; a configuration's whole result takes about half a million."""
MAX_WHOLE = 2**64 - 1
ODD_NUMBERS = ("inf", "-inf", "nan")

Memo = MutableMapping[str, KernelGraph]
"""Graphs that were read before, by their text: reading one takes a millisecond."""


Written = MutableMapping[int, tuple[KernelGraph, str]]
"""The texts of graphs that were written before, by their identity: writing one takes a millisecond."""


def write(value: object, written: Written | None = None) -> str:
    """The JSON text of a value; `written` keeps the graphs of earlier ones."""
    writer = _Writer({} if written is None else written)
    plain = writer.plain(value)
    top = {"schema": SCHEMA, "version": VERSION, "graphs": writer.graphs, "value": plain}
    return json.dumps(top, separators=(",", ":"), allow_nan=False)


def read(kind: type[T], text: str, memo: Memo | None = None) -> T:
    """The value of this dataclass in a JSON text.

    Raises:
        FormatError: it is none, or of another version.
    """
    if len(text) > MAX_TEXT:
        raise FormatError(f"a text of {len(text):,} characters; at most {MAX_TEXT:,}")
    try:
        top = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {shown(str(error))}") from error
    if not isinstance(top, dict) or top.keys() != {"schema", "version", "graphs", "value"}:
        raise FormatError("not a record: it has schema, version, graphs and value")
    if top["schema"] != SCHEMA or top["version"] != VERSION or isinstance(top["version"], bool):
        raise FormatError(f"schema {shown(top['schema'])} {shown(top['version'])}; this reads {SCHEMA} {VERSION}")
    if not isinstance(top["graphs"], list):
        raise FormatError(f"graphs: {shown(top['graphs'])} is not a list")
    try:
        found: T = _Reader(top["graphs"], {} if memo is None else memo).value(kind, top["value"], kind.__name__)
    except RecursionError as error:
        raise FormatError("lists within lists beyond all measure") from error
    return found


class _Writer:
    """Collects the graphs of a value."""

    def __init__(self, written: Written) -> None:
        self.graphs: list[str] = []
        self._written = written
        self._texts: dict[str, int] = {}

    def plain(self, value: Any) -> Any:
        match value:
            case None | bool() | str():
                return value
            case enum.Enum():
                return value.value
            case KernelGraph():
                return self._graph(value)
            case float():
                return float(value) if math.isfinite(value) else str(float(value))
            case Mapping():
                if all(isinstance(key, str) for key in value):
                    return {key: self.plain(item) for key, item in value.items()}
                return [[self.plain(key), self.plain(item)] for key, item in value.items()]
            case tuple() | list():
                return [self.plain(item) for item in value]
            case frozenset():
                return sorted(self.plain(item) for item in value)
        if dataclasses.is_dataclass(value):
            return {field.name: self.plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return int(value)

    def _graph(self, graph: KernelGraph) -> int:
        """Its place in the table; candidates share their programs, which are compared by identity first."""
        known = self._written.get(id(graph))
        if known is None:  # the graph is kept with its text, so that no other one gets its identity
            known = self._written[id(graph)] = graph, json.dumps(to_plain(graph), separators=(",", ":"))
        place = self._texts.setdefault(known[1], len(self.graphs))
        if place == len(self.graphs):
            self.graphs.append(known[1])
        return place


class _Reader(Records):
    """Reads values by the annotations of their fields, and graphs from the table."""

    error, limits = FormatError, (-MAX_WHOLE, MAX_WHOLE)

    def __init__(self, graphs: list[Any], memo: Memo) -> None:
        self._texts = graphs
        self._memo = memo

    def value(self, kind: Any, plain: Any, where: str) -> Any:
        """A graph is its place in the table."""
        return self._graph(plain, where) if kind is KernelGraph else super().value(kind, plain, where)

    def leaf(self, kind: Any, plain: Any, where: str) -> Any:
        """One of several names, or what JSON has; floats that it does not have are texts."""
        if kind is float and plain in ODD_NUMBERS:
            return float(plain)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            try:
                return kind(plain)
            except ValueError as error:
                raise FormatError(f"{where}: no {kind.__name__} is {shown(plain)}") from error
        return super().leaf(kind, plain, where)

    def _graph(self, plain: Any, where: str) -> KernelGraph:
        if type(plain) is not int or not 0 <= plain < len(self._texts):
            raise FormatError(f"{where}: {shown(plain)} is no place in the table of graphs")
        text = self._texts[plain]
        if not isinstance(text, str):
            raise FormatError(f"graph {plain}: {shown(text)} is not a text")
        known = self._memo.get(text)
        if known is None:
            try:
                known = self._memo[text] = parse_json(text)
            except FormatError:
                raise
            except MirageError as error:
                raise FormatError(f"graph {plain}: {error.message}") from error
        return known
