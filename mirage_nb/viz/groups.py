"""Lines that say the same of many things, as one line with a count.

In: messages of a session, and what it left out. Out: groups in the order of their newest member. Invariant: every
line is in exactly one group, as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_DIGEST = re.compile(r"^[0-9a-f]{8}: ")
_NUMBER = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True, slots=True)
class Group:
    """`words`: what all of the lines say."""

    words: str
    lines: tuple[str, ...]


def messages(lines: Iterable[str]) -> list[Group]:
    """Messages that begin with a µGraph's digest are grouped by what they say of it."""
    return _grouped((line, _first_clause(_DIGEST.sub("", line)) if _DIGEST.match(line) else line) for line in lines)


def cuts(lines: Iterable[str]) -> list[Group]:
    """What was left out, grouped by the reason; in front of it stands what it is about, mostly a configuration."""
    return _grouped((line, line.partition(": ")[2] or line) for line in lines)


def _first_clause(text: str) -> str:
    return text.partition(": ")[0].partition("\n")[0]


def _grouped(told: Iterable[tuple[str, str]]) -> list[Group]:
    found: dict[str, list[tuple[str, str]]] = {}
    for line, words in told:
        key = _NUMBER.sub("…", words)
        found[key] = [*found.pop(key, []), (line, words)]  # the newest group comes last
    return [
        Group(key if len({words for _, words in members}) > 1 else members[0][1], tuple(line for line, _ in members))
        for key, members in found.items()
    ]
