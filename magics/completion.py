"""Tab completion of `%%mirage` and `%mirage`.

In: the line up to the cursor. Out: the words that may stand there, from the same tables that read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage_nb.lang import FUNCTIONS, made
from mirage_nb.options import Option

from .options import OPTIONS
from .verbs import VERBS, sessions

REPEATED = frozenset(option.name for option in OPTIONS.values() if option.repeats)


def complete(line: str, variables: Mapping[str, object]) -> list[str]:
    """The words that can stand at the end of `line`, which starts with the magic's name."""
    magic, *words = line.split(" ")
    given = [word for word in words[:-1] if word]
    last = words[-1] if words else ""
    found = _after_cell_magic(given) if magic == "%%mirage" else _after_line_magic(given, variables)
    return [word for word in found if word.startswith(last)]


def _after_cell_magic(given: list[str]) -> list[str]:
    return _options(given, OPTIONS) if given else []


def _options(given: list[str], table: Mapping[str, Option]) -> list[str]:
    """The values of the option before the cursor, or the options that are left."""
    if given and given[-1] in table and table[given[-1]].metavar:
        return list(table[given[-1]].values)
    used = {word for word in given if word not in REPEATED}
    return [name for name in table if name not in used]


def _after_line_magic(given: list[str], variables: Mapping[str, object]) -> list[str]:
    if not given:
        return list(VERBS)
    verb, known = VERBS.get(given[0]), sessions(variables)
    if verb is None:
        return []
    words = [word for word in given[1:] if not word.startswith("--")]
    if verb.name == "help":
        return [*FUNCTIONS, *made(), *VERBS] if not words else []
    if verb.takes_session and not words:
        return list(known)
    takes = verb.words.replace("[", "").replace("]", "").split()
    if len(words) < len(takes) and takes[len(words)] == "DIGEST" and words[0] in known:
        return ["best", *(c.digest[:8] for c in known[words[0]].snapshot().candidates)]
    return _options(given[1:], {option.name: option for option in verb.options})


def register(shell: Any) -> None:
    """Hook the completion into a shell."""

    def completer(_: Any, event: Any) -> list[str]:
        return complete(event.text_until_cursor.lstrip(), shell.user_ns)

    for magic in ("%%mirage", "%mirage"):
        shell.set_hook("complete_command", completer, str_key=magic)
