"""`%%mirage` and `%mirage`: parse the options, call the API, display what it gives back.

In: a line and a cell. Out: a session bound to a name, its view on the page. User mistakes show their message
with line and caret and no traceback (`mistakes`), and the cell counts as failed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from textwrap import indent
from typing import Any

from IPython.core.getipython import get_ipython

import mirage_nb
from mirage_nb.errors import MirageError
from mirage_nb.lang import TensorProgram, parse
from mirage_nb.search.session.progress import LIVE, Snapshot
from mirage_nb.viz.html import snapshot_html
from mirage_nb.viz.text import snapshot_line, snapshot_text

from .options import OPTIONS, USAGE, CellOptions, Line, read_line
from .verbs import VERBS, folded, is_session, perform, say, show

LINE_SECONDS = 0.2


class MirageMagics:
    """The two magics of one shell; they keep nothing, sessions live in the notebook's variables."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def register(self) -> None:
        """Make them known to the shell, and what a cell shows that ends with a session or a snapshot."""
        self.shell.register_magic_function(self.superoptimize, "cell", "mirage")
        self.shell.register_magic_function(self.steer, "line", "mirage")
        shown = self.shell.display_formatter
        shown.ipython_display_formatter.for_type_by_name("mirage_nb.pipeline", "Session", show)
        shown.formatters["text/html"].for_type(Snapshot, snapshot_html)
        shown.formatters["text/plain"].for_type(Snapshot, lambda it, printer, _: printer.text(snapshot_text(it)))

    def superoptimize(self, line: str, cell: str) -> None:
        """Superoptimize the tensor program in this cell and bind the session to NAME; returns at once.

        {options}

        A live session that NAME held before is stopped. Afterwards: NAME.result() waits, NAME.best is the
        winner with its muGraph and source, NAME(X, W) runs it. The language: %mirage help.

        Example:

            %%mirage fused --effort quick
            X: f16[16, 1024]
            W: f16[1024, 4096]
            return rms_norm(X) @ W
        """
        options = read_line(line)
        program = _parsed(cell, line, options)
        for remark in program.remarks:
            say(f"note: {remark}")
        held = self.shell.user_ns.get(options.name)
        if is_session(held) and held.snapshot().state in LIVE:
            held.stop()
        elif held is not None and not is_session(held):
            say(f"note: {options.name} was a value of type {type(held).__name__}; it is a session now")
        kept: dict[str, Any] = {"store": True, "fresh": options.fresh} if options.keep or options.fresh else {}
        session = mirage_nb.superoptimize(program, name=options.name, **options.asked, **kept)
        self.shell.push({options.name: session})
        show(session)
        if options.wait:
            _wait(session)

    def steer(self, line: str) -> None:
        """Look at sessions, steer them, tune them by hand, and get help.

        {verbs}
        """
        perform(self.shell.user_ns, line)


def _document() -> None:
    """What the two magics say of themselves is what their tables say."""
    options = [folded(USAGE), "", *(f"{option.name:<20} {option.doc}" for option in OPTIONS.values())]
    verbs = (f"{verb.usage}\n    {verb.doc}" for verb in VERBS.values())
    for magic, name, lines in (("superoptimize", "options", options), ("steer", "verbs", verbs)):
        method = vars(MirageMagics)[magic]
        method.__doc__ = method.__doc__.replace(f"{{{name}}}", indent("\n".join(lines), " " * 8).lstrip())


_document()


def _parsed(cell: str, line: str, options: CellOptions) -> TensorProgram:
    """The tensor program of a cell; mistakes count the lines of the whole cell, the magic's is the first."""
    try:
        program = parse("\n" + cell.replace("\r\n", "\n"), name=options.name, sizes=options.sizes)
    except MirageError as error:
        typed = Line(line, "%%mirage")
        typed.place(error)
        if error.span is not None and error.span.line == 1 and error.span.text == "":  # no program at all
            error.span = typed.span()
        raise
    return replace(program, text=cell)


def _wait(session: Any) -> None:
    """Wait for the end; an interrupt ends the search and keeps what was found. A terminal, which has no live view,
    shows a line meanwhile and the result in the end."""
    terminal = not hasattr(get_ipython(), "kernel")
    line = sys.stdout.write if terminal and sys.stdout.isatty() else lambda text: 0
    try:
        while not session.wait(LINE_SECONDS if terminal else None):
            now = session.snapshot()
            line(f"\r{snapshot_line(now, session.search.seconds, session.stage)}, {now.verified:,} verified\033[K")
            sys.stdout.flush()
    except KeyboardInterrupt as error:
        session.stop()
        told = f"interrupted: {session.snapshot().name} was stopped; what it found stays"
        error.__dict__["_render_traceback_"] = lambda: [told]
        raise
    finally:
        line("\r\033[K")
    if terminal:
        show(session)
