"""`%%mirage` and `%mirage`: parse the options, call the API, display what it gives back.

In: a line and a cell. Out: a session bound to a name, its view on the page. User mistakes show their message
with line and caret and no traceback, and the cell counts as failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from IPython.display import display

import mirage_nb
from mirage_nb.errors import MirageError, OptionError, SourceSpan
from mirage_nb.lang import FUNCTIONS, parse, reference
from mirage_nb.runtime.doctor import examine, report
from mirage_nb.search.progress import State
from mirage_nb.viz.text import snapshot_text
from mirage_nb.widgets import SessionView

from .options import USAGE, nearest, read_line

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LIVE = (State.WAITING, State.RUNNING, State.PAUSED)


def without_traceback(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """User mistakes leave the magic as they are, but IPython shows their message only."""

    @wraps(method)
    def shown(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            return method(*arguments, **named)
        except MirageError as error:
            text = f"{type(error).__name__}: {error}"
            error.__dict__["_render_traceback_"] = lambda: [text]
            raise

    return shown


def is_session(value: object) -> bool:
    """Whether a variable of the notebook holds a session."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("snapshot", "stop", "pause", "resume", "result")
    )


def sessions(variables: Mapping[str, object]) -> dict[str, Any]:
    """The sessions among the notebook's variables, by name."""
    return {name: v for name, v in variables.items() if not name.startswith("_") and is_session(v)}


class MirageMagics:
    """The two magics of one shell; they keep nothing, sessions live in the notebook's variables."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def register(self) -> None:
        """Make them known to the shell."""
        self.shell.register_magic_function(self.superoptimize, "cell", "mirage")
        self.shell.register_magic_function(self.steer, "line", "mirage")

    @without_traceback
    def superoptimize(self, line: str, cell: str) -> None:
        """Superoptimize the tensor program in this cell and bind the session to NAME; returns at once.

        %%mirage NAME [--effort quick|standard|exhaustive] [--budget SECONDS] [--target GPU]
                      [--set NAME=NUMBER]... [--wait]

        --effort   how much of the space is searched (default standard)
        --budget   seconds of search (default: the effort's)
        --target   the GPU to search for (default: the attached one, else h200)
        --set      override an integer constant of the program; may be repeated
        --wait     block until the search has ended

        A live session that NAME held before is stopped. Afterwards: NAME.result() waits, NAME.best is the
        winner with its muGraph and source, NAME(X, W) runs it. The language: %mirage help.

        Example:

            %%mirage fused --effort quick
            X: f16[16, 1024]
            W: f16[1024, 4096]
            return rms_norm(X) @ W
        """
        options = read_line(line)
        program = _parsed(cell, options.name, options.sizes)
        for remark in program.remarks:
            _say(f"note: {replace(remark, span=_in_cell(remark.span))}")
        before = sessions(self.shell.user_ns).get(options.name)
        if before is not None and before.snapshot().state in LIVE:
            before.stop()
        session = mirage_nb.superoptimize(
            program, name=options.name, effort=options.effort, budget=options.budget, target=options.target
        )
        self.shell.push({options.name: session})
        _show(session)
        if options.wait:
            _wait(session)

    @without_traceback
    def steer(self, line: str) -> None:
        """Look at sessions, steer them, and get help.

        %mirage list             the sessions of this notebook
        %mirage show NAME        another live view of a session
        %mirage stop NAME        end a search; what was found stays
        %mirage help [FUNCTION]  the language of tensor programs, or one function of it
        %mirage doctor           what this machine has and what is missing
        """
        verb, *rest = line.split() or ["help"]
        action = ACTIONS.get(verb)
        if action is None:
            raise OptionError(f"unknown command {verb!r}", hint=nearest(verb, ACTIONS))
        action(self.shell.user_ns, rest)


def _list(variables: Mapping[str, object], words: list[str]) -> None:
    found = sessions(variables)
    if not found:
        _say("no sessions; start one with a %%mirage cell")
    for name, session in found.items():
        snapshot = session.snapshot()
        _say(snapshot_text(replace(snapshot, name=name)).splitlines()[0])


def _show_named(variables: Mapping[str, object], words: list[str]) -> None:
    _show(_named(variables, words))


def _stop(variables: Mapping[str, object], words: list[str]) -> None:
    session = _named(variables, words)
    session.stop()
    _say(snapshot_text(session.snapshot()).splitlines()[0])


def _help(variables: Mapping[str, object], words: list[str]) -> None:
    if not words:
        _say(f"{USAGE}\n\n{reference()}")
        return
    row = FUNCTIONS.get(words[0].removesuffix("()"))
    if row is None:
        raise OptionError(f"unknown function {words[0]!r}", hint=nearest(words[0], FUNCTIONS))
    same = f"\nthe same as {row.same_as}" if row.same_as else ""
    _say(f"{row.signature}\n{row.summary}\nshape: {row.shape}\nexample: {row.example}{same}")


def _doctor(variables: Mapping[str, object], words: list[str]) -> None:
    _say(report(examine()))


ACTIONS: dict[str, Callable[[Mapping[str, object], list[str]], None]] = {
    "list": _list,
    "show": _show_named,
    "stop": _stop,
    "help": _help,
    "doctor": _doctor,
}


def _named(variables: Mapping[str, object], words: list[str]) -> Any:
    """The session that the first word names. Raises OptionError."""
    found = sessions(variables)
    if not words:
        raise OptionError("which session?", hint=f"one of {', '.join(found)}" if found else "there are none")
    if words[0] not in found:
        hint = nearest(words[0], found) if found else "there are no sessions; start one with a %%mirage cell"
        raise OptionError(f"no session is named {words[0]!r}", hint=hint)
    return found[words[0]]


def _parsed(cell: str, name: str, sizes: Mapping[str, int]) -> Any:
    """The tensor program of a cell; mistakes count the lines of the whole cell, the magic's is the first."""
    try:
        return parse(cell, name=name, sizes=sizes)
    except MirageError as error:
        if error.span is not None:
            error.span = _in_cell(error.span)
        raise


def _in_cell(span: SourceSpan) -> SourceSpan:
    return replace(span, line=span.line + 1)


def _show(session: Any) -> None:
    """Put a live view of a session on the page."""
    SessionView(session, budget_seconds=session.search.seconds).show()


def _wait(session: Any) -> None:
    """Wait for the end; an interrupt ends the search and keeps what was found."""
    try:
        session.wait()
    except KeyboardInterrupt:
        session.stop()
        raise


_display: Any = display  # IPython gives it no types


def _say(text: str) -> None:
    _display({"text/plain": text}, raw=True)
