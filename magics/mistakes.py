"""Mistakes in a notebook as what they are: the message, the place, the hint; the calls that led there on request.

In: an IPython shell. Out: the same, in which whatever raises a `MirageError`, a magic, a method of a session or a
function, shows its few lines; `%tb` shows the whole chain. Invariant: what another handler showed it still shows, and
`remove` leaves the shell as it was.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from mirage_nb.errors import MirageError


def install(shell: Any) -> None:
    """Show mistakes without their tracebacks from now on; once, however often it is called."""
    if MirageError in shell.custom_exceptions:
        return
    before: tuple[Any, Any] = shell.custom_exceptions, getattr(shell, "CustomTB", None)

    def shown(
        _: Any, kind: type[BaseException], error: BaseException, trace: TracebackType, tb_offset: int | None = None
    ) -> list[str]:
        if not isinstance(error, MirageError):  # some other handler's
            found: list[str] = before[1](kind, error, trace, tb_offset=tb_offset)
            return found
        sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace  # for %tb
        lines = [f"{kind.__name__}: {error}"]
        shell._showtraceback(kind, error, lines)
        return lines

    shell.set_custom_exc((*before[0], MirageError), shown)
    shell.mirage_before = before


def remove(shell: Any) -> None:
    """Undo `install`."""
    before = shell.__dict__.pop("mirage_before", None)
    if before is not None:
        shell.custom_exceptions, shell.CustomTB = before
