"""Texts that somebody might hand to a reader: files of ours with a few changes, each of them meant badly."""

from __future__ import annotations

import json
import random
import re
from typing import Any

NUMBERS = (
    0, -1, 1, 2, 3, 7, 16, 2**20, 2**31, 2**40, 2**63, 10**18, 10**30, 10**400, -(10**400), 0.5, -0.0, 1e308, 1e-320,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", "x", "X", "O", "0", "1/0", "1/3", "-1", "9" * 3000, "1e999999999", "9**9**9**9", "inf", "nan", "*", "%0", "\0",
    "\ud800", "é\u202e", "n" * 100_000, "../../etc/passwd", "__import__('os')", "{}", "[" * 50, "EwExp", "Matmul",
    "Graph", "field", "proved", "f64", "quick",
)  # fmt: skip
DEEP = 200


def value(chance: random.Random, there: Any = None) -> Any:
    """A value of any kind; often one that is like what was there."""
    deep: Any = []
    for _ in range(chance.choice((3, DEEP))):
        deep = [deep] if chance.random() < 0.9 else {"x": deep}
    like: list[Any] = []
    if isinstance(there, bool):
        like = [not there]
    elif isinstance(there, int):
        like = [there + 1, there - 1, -there, there * 2, there * 10**9]
    elif isinstance(there, str):
        like = [there * 2, there[1:], there.upper(), f"{there} {there}"]
    elif isinstance(there, list):
        like = [there * 2, there[::-1], there[1:], there * 200, [there]]
    choices = [*NUMBERS, *TEXTS, None, True, False, [], {}, deep, *like * 6]
    return chance.choice(choices)


def damaged_json(text: str, chance: random.Random) -> str:
    """The JSON text with values, keys and entries changed, once to three times, anywhere."""
    top = json.loads(text)
    for _ in range(chance.randint(1, 3)):
        place: Any = top
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = chance.choice(keys)
            inner = place[key]
            if isinstance(inner, (dict, list)) and inner and chance.random() < 0.85:
                place = inner
                continue
            match chance.randrange(6):
                case 0 if isinstance(place, dict):
                    place[chance.choice(TEXTS)] = place.pop(key)
                case 1:
                    del place[key]
                case 2 if isinstance(place, list):
                    place.insert(key, inner)
                case _:
                    place[key] = value(chance, inner)
            break
    return json.dumps(top)


def damaged_text(text: str, chance: random.Random) -> str:
    """The text with numbers, words, lines and characters changed, once to three times."""
    for _ in range(chance.randint(1, 3)):
        match chance.randrange(5):
            case 0:
                found = [*re.finditer(r"-?\d+", text)]
                if found:
                    at = chance.choice(found)
                    new = str(chance.choice([n for n in NUMBERS if isinstance(n, int)]))
                    text = text[: at.start()] + new + text[at.end() :]
            case 1:
                found = [*re.finditer(r"[A-Za-z_]+", text)]
                if found:
                    at, other = chance.choice(found), chance.choice(found)
                    new = chance.choice((other[0], chance.choice(TEXTS)))
                    text = text[: at.start()] + new + text[at.end() :]
            case 2:
                lines = text.split("\n")
                one, two = chance.randrange(len(lines)), chance.randrange(len(lines))
                lines[one], lines[two] = (lines[two], lines[one]) if chance.random() < 0.5 else (lines[two], lines[two])
                text = "\n".join(lines)
            case 3:
                at_ = chance.randrange(len(text) + 1)
                text = text[:at_] + chance.choice(("{", "}", "[", "(", '"', "\0", "%", "-", "9" * 400)) + text[at_:]
            case _:
                start = chance.randrange(len(text) + 1)
                text = text[:start] + text[start + chance.randint(1, 40) :]
    return text
