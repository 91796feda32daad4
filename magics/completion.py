"""Tab completion of `%%mirage` and `%mirage`.

In: the line up to the cursor. Out: the words that may stand there, from the same tables that read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage_nb.lang import FUNCTIONS

from .magic import ACTIONS, sessions
from .options import OPTIONS


def complete(line: str, variables: Mapping[str, object]) -> list[str]:
    """The words that can stand at the end of `line`, which starts with the magic's name."""
    magic, *words = line.split(" ")
    given = [word for word in words[:-1] if word]
    last = words[-1] if words else ""
    found = _after_cell_magic(given) if magic == "%%mirage" else _after_line_magic(given, variables)
    return [word for word in found if word.startswith(last)]


def _after_cell_magic(given: list[str]) -> list[str]:
    if given and given[-1] in OPTIONS and OPTIONS[given[-1]].metavar:
        return list(OPTIONS[given[-1]].values)
    used = {word for word in given if word != "--set"}
    return [name for name in OPTIONS if name not in used] if given else []


def _after_line_magic(given: list[str], variables: Mapping[str, object]) -> list[str]:
    match given:
        case []:
            return list(ACTIONS)
        case ["show" | "stop"]:
            return list(sessions(variables))
        case ["help"]:
            return list(FUNCTIONS)
        case _:
            return []


def register(shell: Any) -> None:
    """Hook the completion into a shell."""

    def completer(_: Any, event: Any) -> list[str]:
        return complete(event.text_until_cursor.lstrip(), shell.user_ns)

    for magic in ("%%mirage", "%mirage"):
        shell.set_hook("complete_command", completer, str_key=magic)
