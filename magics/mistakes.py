"""Mistakes in a notebook as what they are: the message, the place, the hint; the calls that led there on request.

In: an IPython shell. Out: the same, in which whatever raises a `MirageError`, a magic, a method of a session or a
function, shows its few lines, and so does Ctrl-C while a session is waited for; `%tb` shows the whole chain. Invariant:
what another handler showed it still shows, and `remove` leaves the shell as it was.
"""

from __future__ import annotations

import sys
from traceback import walk_tb
from types import TracebackType
from typing import Any

from mirage_nb.errors import MirageError
from mirage_nb.search.session.background import Background

WAITED = "the session goes on in the background\n  hint: its stop() ends it, its result() waits again"


def install(shell: Any) -> None:
    """Show mistakes without their tracebacks from now on; once, however often it is called."""
    if MirageError in shell.custom_exceptions:
        return
    before: tuple[Any, Any] = shell.custom_exceptions, getattr(shell, "CustomTB", None)

    def shown(
        _: Any, kind: type[BaseException], error: BaseException, trace: TracebackType, tb_offset: int | None = None
    ) -> list[str]:
        waited = any(frame.f_code is Background.wait.__code__ for frame, _ in walk_tb(trace))
        if isinstance(error, before[0]):  # some other handler's
            found: list[str] = before[1](kind, error, trace, tb_offset=tb_offset)
            return found
        if not isinstance(error, MirageError) and not waited:
            shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
            return []
        sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace  # for %tb
        lines = [f"{kind.__name__}: {WAITED if waited else error}"]
        shell._showtraceback(kind, error, lines)
        return lines

    shell.set_custom_exc((*before[0], MirageError, KeyboardInterrupt), shown)
    shell.mirage_before = before


def remove(shell: Any) -> None:
    """Undo `install`."""
    before = shell.__dict__.pop("mirage_before", None)
    if before is not None:
        shell.custom_exceptions, shell.CustomTB = before
