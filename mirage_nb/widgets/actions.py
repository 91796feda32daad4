"""What a reader can do to a session by hand, and the forms for it.

In: a session, which is asked what it can do by the names of its methods and their parameters, and what a form of the
page sends: `{"do": name, ...fields}`. Out: HTML of forms and of answers. Invariant: a control is enabled exactly when
the session can do it now; every mistake of the reader is shown as a message, never raised.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from mirage_nb.errors import MirageError, OptionError
from mirage_nb.options import EXTEND, TUNE, Option, positive
from mirage_nb.search.session.progress import LIVE, Candidate, State
from mirage_nb.viz.text import duration
from mirage_nb.viz.verdicts import verdict_html
from mirage_nb.widgets import boards


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an action: HTML to show, and the candidate that it is about."""

    html: str = ""
    candidate: Candidate | None = None


class Actions:
    """The hands of one session."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def able(self, name: str) -> bool:
        """Whether the session has such a method."""
        return callable(getattr(self.session, name, None))

    def fields(self, name: str, known: tuple[Option, ...]) -> tuple[Option, ...]:
        """The fields that the session's method takes."""
        if not self.able(name):
            return known[:3]
        return tuple(field for field in known if field.key in inspect.signature(getattr(self.session, name)).parameters)

    def now(self) -> dict[str, str]:
        """What the fields of the form that continues the search say without a reader."""
        search = getattr(self.session, "search", None)
        block_ops = getattr(getattr(search, "budget", None), "max_block_ops", "")
        target = getattr(getattr(self.session, "target", None), "name", "")
        return {"effort": getattr(search, "effort", ""), "max_block_ops": str(block_ops), "target": target}

    def perform(self, content: Mapping[str, object]) -> Answer:
        """Do what a form or a button of the page asks for; unknown actions do nothing."""
        name = str(content.get("do", ""))
        action = self._table().get(name)
        if action is None or not self.able(name):
            return Answer()
        try:
            return action(content)
        except MirageError as error:
            return Answer(f"<pre class='mir-complaint' role='alert'>{escape(str(error))}</pre>")

    def _table(self) -> dict[str, Callable[[Mapping[str, object]], Answer]]:
        return {
            "pause": self._plain,
            "resume": self._plain,
            "stop": self._plain,
            "pin": self._marked,
            "exclude": self._marked,
            "include": self._marked,
            "extend": self._extend,
            "tune": self._tune,
            "submit": self._submit,
            "explain": self._explain,
        }

    def _plain(self, content: Mapping[str, object]) -> Answer:
        getattr(self.session, str(content["do"]))()
        return Answer()

    def _marked(self, content: Mapping[str, object]) -> Answer:
        name, digest = str(content["do"]), str(content.get("digest", ""))
        getattr(self.session, name)(digest)
        undo = _button("include", digest, "undo", "let it stand where its rank puts it", self.able("include"))
        return Answer(
            f"<p role='status'>µGraph {escape(digest[:8])}: {_DONE[name]} {undo if name != 'include' else ''}</p>"
        )

    def _extend(self, content: Mapping[str, object]) -> Answer:
        now = self.now()
        read = self._read("extend", EXTEND, content)
        given = {name: value for name, value in read.items() if str(value) != now.get(name)}
        turned, changes = boards.turned(self.session, content)
        self.session.extend(**given, **turned)
        shown = ", ".join([*(f"{name} {value}" for name, value in given.items()), *changes]) or "the same bounds"
        return Answer(f"<p role='status'>continues with {escape(shown)}</p>")

    def _tune(self, content: Mapping[str, object]) -> Answer:
        self.session.tune(**self._read("tune", TUNE, content))
        return Answer("<p role='status'>more ways to emit are being tried</p>")

    def _submit(self, content: Mapping[str, object]) -> Answer:
        """A muGraph of the reader's own; once the session has ended, it is built at once, too."""
        candidate = self.session.submit(str(content.get("text", "")))
        shown = f"<p role='status'>checked µGraph {escape(candidate.digest[:8])}</p>{verdict_html(candidate.verdict)}"
        if self.able("build") and self.session.snapshot().state not in LIVE:
            try:
                winner = self.session.build(candidate)
                report = f"executed on {winner.executable.device}, error {winner.report.measured}"
                shown += f"<p role='status'>{escape(report)}; {escape(duration(winner.candidate))}</p>"
            except MirageError as error:
                shown += f"<p class='mir-complaint' role='note'>not built: {escape(str(error))}</p>"
        return Answer(shown, candidate)

    def _explain(self, content: Mapping[str, object]) -> Answer:
        words = self.session.explain(str(content.get("text", "")))
        return Answer(f"<h4>why the search has it or not</h4><pre class='mir-answer'>{escape(str(words))}</pre>")

    def _read(self, name: str, known: tuple[Option, ...], content: Mapping[str, object]) -> dict[str, object]:
        """The fields that the reader filled in. Raises OptionError."""
        given: dict[str, object] = {}
        for field in self.fields(name, known):
            text = str(content.get(field.key, "")).strip()
            if not text:
                continue
            try:
                given[field.key] = field.read(text)
            except ValueError as error:
                raise OptionError(f"{field.label}: {text!r}", hint="give a positive number") from error
        return given


_DONE = {"pin": "pinned", "exclude": "excluded", "include": "stands where its rank puts it"}

SLOW_ACTIONS = frozenset({"submit", "explain"})
"""They check and verify before they return."""


def steer_html(state: State) -> str:
    """Buttons that pause and stop what runs."""
    live = state in LIVE
    steering = [] if not live else ["resume" if state is State.PAUSED else "pause", "stop"]
    hints = {"pause": "let the workers sleep", "resume": "go on", "stop": "end the search and keep what was found"}
    buttons = "".join(
        f"<button type='button' class='mir-button' data-do='{name}' title='{hints[name]}'>{name}</button>"
        for name in steering
    )
    return f"<div class='mir-steer' role='group' aria-label='steer the search'>{buttons}</div>" if buttons else ""


def controls_html(actions: Actions, state: State) -> str:
    """The forms that continue a search with other bounds and that time more."""
    forms = _form(
        actions, "extend", "apply and continue", EXTEND, actions.now(), below=boards.boards_html(actions.session)
    )
    busy = "the search still runs" if state in LIVE else ""
    forms += _form(actions, "tune", "time more on the GPU", TUNE, {}, busy)
    opens = "<details class='mir-fold mir-tuning'><summary>tune by hand</summary>"
    return f"{opens}<div class='mir-forms'>{forms}</div></details>"


def _form(
    actions: Actions,
    name: str,
    label: str,
    known: tuple[Option, ...],
    now: Mapping[str, str],
    busy: str = "",
    below: str = "",
) -> str:
    reason = busy if actions.able(name) else "this session cannot do that"
    off = f" disabled title='{reason}'" if reason else ""
    inputs = "".join(_input(field, now.get(field.key, ""), off) for field in actions.fields(name, known))
    return (
        f"<form class='mir-form' data-do='{name}'>{inputs}"
        f"<button type='submit' class='mir-button'{off}>{label}</button>{below}</form>"
    )


def _input(field: Option, now: str, off: str) -> str:
    if field.values:
        options = "".join(f"<option{' selected' * (v == now)}>{v}</option>" for v in field.values)
        select = f"<select name='{field.key}'{off}>{options}</select>"
        return f"<label title='{escape(field.doc)}'>{field.label} {select}</label>"
    kind = "number' step='any" if field.read is positive else "number"
    return (
        f"<label title='{escape(field.doc)}'>{field.label} <input type='{kind}' min='0' name='{field.key}' "
        f"value='{escape(now)}' placeholder='{field.hint}'{off}></label>"
    )


def candidate_buttons(actions: Actions, digest: str, compared: bool, pinned: bool) -> str:
    """What can be done with one muGraph."""
    rows = (
        ("compare", "compare with another", "choose this one, then another row", True),
        ("edit", "edit the text", "put its text into the editor below", True),
        ("include", "unpin", "let it stand where its rank puts it", actions.able("include"))
        if pinned
        else ("pin", "pin", "keep it in the list and build it, whatever its rank", actions.able("pin")),
        ("exclude", "exclude", "take it out of the results; it can be undone", actions.able("exclude")),
    )
    pressed = {"compare": f" aria-pressed='{str(compared).lower()}'"}
    shown = "".join(_button(name, digest, label, hint, able, pressed.get(name, "")) for name, label, hint, able in rows)
    return f"<span class='mir-actions' role='group' aria-label='this µGraph'>{shown}</span>"


def _button(name: str, digest: str, label: str, hint: str, able: bool, more: str = "") -> str:
    off = "" if able else " disabled"
    return (
        f"<button type='button' class='mir-button' data-do='{name}' data-digest='{escape(digest)}' title='{hint}'"
        f"{off}{more}>{label}</button>"
    )


def editor_html(actions: Actions, text: str, opened: bool) -> str:
    """The text of a muGraph to change, check, verify and time."""
    buttons = "".join(
        f"<button type='submit' class='mir-button' data-do='{name}'"
        f"{'' if actions.able(name) else ' disabled title=' + repr('this session cannot do that')}>{label}</button>"
        for name, label in (("submit", "check, verify and time"), ("explain", "explain"))
    )
    return (
        f"<details class='mir-fold mir-editor'{' open' if opened else ''}><summary>a µGraph of your own</summary>"
        "<form class='mir-form mir-column' data-do='submit'>"
        "<label>text of a µGraph; choose one above and press “edit the text” to begin with it</label>"
        f"<textarea name='text' rows='14' spellcheck='false' aria-label='text of a µGraph'>{escape(text)}</textarea>"
        f"<div>{buttons}</div></form></details>"
    )
