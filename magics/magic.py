"""`%%mirage` and `%mirage`: parse the options, call the API, display what it gives back.

In: a line and a cell. Out: a session bound to a name, its view on the page. User mistakes show their message
with line and caret and no traceback (`mistakes`), and the cell counts as failed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from IPython.core.getipython import get_ipython

import mirage_nb
from mirage_nb.errors import MirageError
from mirage_nb.lang import TensorProgram, parse
from mirage_nb.search.session.progress import Snapshot, State
from mirage_nb.viz.html import snapshot_html
from mirage_nb.viz.text import snapshot_line, snapshot_text

from .options import CellOptions, Line, read_line
from .verbs import is_session, perform, say, show

LIVE = (State.WAITING, State.RUNNING, State.PAUSED)
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

        %%mirage NAME [--effort quick|standard|exhaustive] [--budget SECONDS] [--target GPU]
                      [--set NAME=NUMBER]... [--symbolic NAME] [--keep] [--fresh] [--wait]
                      [--without-axiom AXIOM]... [--with-axiom AXIOM]...
                      [--without-pruning PRUNING]... [--with-pruning PRUNING]...
                      [--grid-dims NUMBER] [--blocks RANGE] [--loop RANGE] [--without-operator OPERATOR]...
                      [--tolerance TIMES] [--precision f32|3xtf32|tf32]

        --effort   how much of the space is searched (default standard)
        --budget   seconds of search (default: the effort's)
        --target   the GPU to search for (default: the attached one, else h200)
        --set      override an integer constant of the program; may be repeated
        --symbolic a constant that is known at launch, from 1 to 64, or as in --symbolic B=1:256
        --keep     store the session under NAME, and use what is stored there; %mirage load NAME brings it back
        --fresh    forget first what is stored under NAME
        --wait     block until the search has ended
        --without-axiom, --with-axiom, --without-pruning, --with-pruning
                   switch one axiom or pruning off or on, other than the effort has it; may be repeated
        --grid-dims, --blocks, --loop, --without-operator
                   what kernels have to keep to: most grid dims, ranges such as 8:264, operators that they may not have
        --tolerance how far kernels may be off, in times the program's own rounding
        --precision how products of f32 are computed: f32 exactly, 3xtf32 as three products of TF32 each, which is about
                   as exact and twice as fast, or tf32 as one; the error is shown beside that of exact f32

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
        more: dict[str, Any] = {"store": True, "fresh": options.fresh} if options.keep or options.fresh else {}
        more |= {"axioms": options.axioms} if options.axioms else {}
        more |= {"prunings": options.prunings} if options.prunings else {}
        more |= {"limits": options.limits} if options.limits is not None else {}
        more |= {"tolerance": options.tolerance} if options.tolerance != 1 else {}
        more |= {"precision": options.precision} if options.precision != "f32" else {}
        session = mirage_nb.superoptimize(
            program,
            name=options.name,
            effort=options.effort,
            budget=options.budget,
            target=options.target,
            **more,
        )
        self.shell.push({options.name: session})
        show(session)
        if options.wait:
            _wait(session)

    def steer(self, line: str) -> None:
        """Look at sessions, steer them, tune them by hand, and get help.

        %mirage list                          the sessions of this notebook
        %mirage show NAME [DIGEST]            another live view of a session, or one of its muGraphs
        %mirage stop NAME                     end a search; what was found stays
        %mirage extend NAME [--effort LEVEL] [--seconds SECONDS] [--block-ops NUMBER] [--without-axiom AXIOM]...
                                              go on with larger bounds, other axioms, prunings or limits
        %mirage tune NAME [--seconds SECONDS] compile and time more ways to emit, on the GPU
        %mirage compare NAME DIGEST DIGEST    two muGraphs side by side; `best` is a digest, too
        %mirage explain NAME DIGEST           why the search has a muGraph or not
        %mirage submit NAME VARIABLE          check, verify and add a muGraph of your own
        %mirage pin NAME DIGEST, %mirage exclude NAME DIGEST, %mirage include NAME DIGEST
        %mirage torch MODEL INPUTS            what would become of a PyTorch model
        %mirage export NAME FILE              the session as one HTML page
        %mirage load NAME, %mirage stored     sessions that %%mirage NAME --keep stored
        %mirage help [WORD]                   the language of tensor programs, a function of it, or a verb
        %mirage doctor                        what this machine has and what is missing
        """
        perform(self.shell.user_ns, line)


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
