"""The text form of tile programs, one statement a line.

In: parts of a tile program. Out: lines. One table, `FORMS`, says how each kind of line reads; bodies are indented.
(`tests/tile/text.py` writes and reads whole programs.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from mirage_nb.ir.fields import write_attrs
from mirage_nb.tile.program import Index, Loop, Statement, Walk

FORMS: dict[str, str] = {
    "axis": "{name:word} {extent:count}",
    "role": "{name:word} warps {warps:count} registers {registers:count}",
    "tile": "{name:word} {place:place} {axes:words} {shape:counts} {dtype:dtype} {layout:layout} x {stages:count}",
    "pipeline": "{name:word} {tiles:words} stages {stages:count} bytes {nbytes:count} arrivals {arrivals:count}",
    "walk": "{counters:counters} group {group:count}",
    "loop": "{counter:word} {count:count} more {more:index}",
    "acquire": "{pipeline:word}",
    "copy": "{source:word} {target:word} {at:indices}",
    "multicast": "{source:word} {target:word} {at:indices}",
    "await": "{pipeline:word}",
    "product": "{instruction:word} {result:word} {left:word} {right:word} row {row:index} column {column:index} "
    "rest {rest:maybe}",
    "release": "{pipeline:word} behind {behind:count}",
    "clear": "{result:word}",
    "number": "{name:word} {value:fraction}",
    "read": "{name:word} {source:word} {at:indices}",
    "reduce": "{name:word} {kind:kind} {operand:word} {axis:word}",
    "set": "{result:word} {value:word}",
    "count": "{name:word} {axis:word} from {at:index}",
    "skip": "{axis:word} from {start:index}",
    "combine": "{results:words} over {counter:word}",
    "turn": "",
    "yield": "",
    "map": "{name:word} {kind:kind} {operands:words} {attrs:attrs}",
    "store": "{value:word} {target:word} {at:indices}",
}
"""How a line reads behind the name of its class: words as they stand, and {field:how it is written}."""


def _word(name: str) -> str:
    return name or "-"


def _value(of: Any) -> str:
    return str(of.value)


def _several(write: Callable[[Any], str], items: Iterable[Any]) -> str:
    return f"[{', '.join(map(write, items))}]"


def _counter(pair: tuple[str, int]) -> str:
    return f"{pair[0]} {pair[1]}"


def _index(index: Index) -> str:
    parts = [name if factor == 1 else f"{factor}*{name}" for name, factor in index.terms]
    return "+".join([*parts, *([str(index.const)] if index.const or not parts else [])])


def _attrs(attrs: Any) -> str:
    return json.dumps(write_attrs(attrs), default=str)


WRITTEN: dict[str, Callable[[Any], str]] = {
    "word": str,
    "maybe": _word,
    "words": partial(_several, _word),
    "count": str,
    "counts": partial(_several, str),
    "counters": partial(_several, _counter),
    "index": _index,
    "indices": partial(_several, _index),
    "fraction": str,
    "place": _value,
    "layout": _value,
    "dtype": _value,
    "kind": _value,
    "attrs": _attrs,
}
"""How a kind of field is written as one token."""


def body_lines(statements: Sequence[Statement], indent: str = "") -> Iterator[str]:
    """The lines of statements, those inside loops indented."""
    for statement in statements:
        yield indent + line_of(statement)
        if isinstance(statement, Walk | Loop):
            yield from body_lines(statement.body, indent + "  ")


def line_of(part: Any) -> str:
    """One line, as its form says."""
    name = type(part).__name__.lower()
    fields = re.sub(r"\{(\w+):(\w+)\}", lambda m: WRITTEN[m[2]](getattr(part, m[1])), FORMS[name])
    return f"{name} {fields}".rstrip()
