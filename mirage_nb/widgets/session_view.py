"""The live view of a session: progress, pruning, verified muGraphs, prefixes, and forms to tune it by hand.

In: a session, that is anything with `snapshot`, `stop`, `pause` and `resume`; what else it can do is found out by
`mirage_nb.widgets.actions`. Out: an ipywidget whose traits are HTML sections; the script beside this file puts them
into the page. Invariants: one pump thread per view, at most RATE looks per second, which sets traits and never
prints; it ends when the session has ended or the view is closed. Only sections that changed travel, the large ones
at most once in SLOW looks, pictures and the tree once in RARE, unless the reader asks. Any number of views may watch
one session. Clicks are answered while a cell runs where page and kernel know subshells (JupyterLab 4.4, ipykernel
7), else when it has ended; what takes long has a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from html import escape
from importlib import resources
from typing import Any, Protocol

import anywidget
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import DisplayHandle, display

from mirage_nb.ir.text import print_graph
from mirage_nb.lang import TensorProgram
from mirage_nb.optimize import Options
from mirage_nb.search.session.progress import LIVE, Candidate, Snapshot
from mirage_nb.targets import Target
from mirage_nb.viz import compare, explorer, export, html, steps
from mirage_nb.viz.history import History
from mirage_nb.viz.mugraph import mugraph_svg
from mirage_nb.viz.outcomes import outcomes_html, rejected_html
from mirage_nb.viz.raster import png_bundle
from mirage_nb.viz.svg import STYLE
from mirage_nb.viz.text import snapshot_text
from mirage_nb.viz.tree import key
from mirage_nb.widgets import boards
from mirage_nb.widgets.actions import (
    SLOW_ACTIONS,
    Actions,
    Answer,
    candidate_buttons,
    controls_html,
    editor_html,
    steer_html,
)
from mirage_nb.widgets.explorer_view import still_html

RATE = 10.0
"""Looks per second, at most."""
SLOW = 5
"""Charts and the table are brought up to date at every SLOW-th look."""
RARE = 20
"""The opened muGraph and the tree, while the reader does nothing."""

_new_handle: Any = DisplayHandle  # IPython gives it no types
_display: Any = display
_FILES = resources.files("mirage_nb.widgets")


class Watched(Protocol):
    """What a view needs of a session; `name` and `stage` are shown where there are any."""

    def snapshot(self) -> Snapshot:
        """The state now; cheap."""

    def stop(self) -> None:
        """End the search."""

    def pause(self) -> None:
        """Hold the search."""

    def resume(self) -> None:
        """Go on."""


class SessionView(anywidget.AnyWidget):
    """The live view of one session.

    Args:
        session: what to watch.
        budget_seconds: the seconds that the search may take, shown against the seconds it took.
    """

    _scripts = (explorer.SCRIPT, steps.SCRIPT, export.SECTIONS_SCRIPT)
    _esm = "".join(_scripts) + _FILES.joinpath("session_view.js").read_text(encoding="utf-8")
    _css = STYLE + html.CSS + _FILES.joinpath("session_view.css").read_text(encoding="utf-8")

    state = traitlets.Unicode("waiting").tag(sync=True)
    header = traitlets.Unicode("").tag(sync=True)
    steer = traitlets.Unicode("").tag(sync=True)
    controls = traitlets.Unicode("").tag(sync=True)
    counters = traitlets.Unicode("").tag(sync=True)
    chart = traitlets.Unicode("").tag(sync=True)
    history = traitlets.Unicode("").tag(sync=True)
    candidates = traitlets.Unicode("").tag(sync=True)
    outcomes = traitlets.Unicode("").tag(sync=True)
    rejected = traitlets.Unicode("").tag(sync=True)
    messages = traitlets.Unicode("").tag(sync=True)
    notice = traitlets.Unicode("").tag(sync=True)
    answer = traitlets.Unicode("").tag(sync=True)
    compared = traitlets.Unicode("").tag(sync=True)
    candidate = traitlets.Unicode("").tag(sync=True)
    editor = traitlets.Unicode("").tag(sync=True)
    prefixes = traitlets.Unicode("").tag(sync=True)
    prefix = traitlets.Unicode("").tag(sync=True)
    steps = traitlets.Unicode("").tag(sync=True)

    def __init__(self, session: Watched, *, budget_seconds: float | None = None) -> None:
        super().__init__()
        self._session = session
        self._actions = Actions(session)
        self._budget_seconds = budget_seconds
        self._chosen_candidate: str | None = None
        self._chosen_prefix = ""
        self._chosen_rejected = ""
        self._stepped = ""
        self._compare_with = ""
        self._submitted: dict[str, Candidate] = {}
        self._history = History()
        self._drawn: dict[str, object] = {}
        self._guard, self._keeping = threading.RLock(), threading.Lock()
        self._closed = threading.Event()
        self._pump: threading.Thread | None = None
        self._pumping = False
        self._asked = False
        self._handle: Any = None
        self._shell: Any = None
        self._told: object = None
        # Pages send clicks to a subshell of the kernel, so that they do not wait behind a running cell. From
        # 7.4 on ipykernel sends them after the thread that last used the comm, the pump here; not for us.
        self.comm._reply_subshell_for = None
        self.on_msg(self._receive)
        self.editor = editor_html(self._actions, "", opened=False)
        self._show(session.snapshot(), slow=True, rare=True)
        self._watch()

    @property
    def _target(self) -> Target | None:
        """What the session searches for now, if it says so."""
        return getattr(self._session, "target", None)

    @property
    def _program(self) -> TensorProgram | None:
        """What it searches for, if it was written as a text."""
        return getattr(self._session, "program", None)

    def __repr__(self) -> str:
        return f"<SessionView of {self._session.snapshot().name or 'session'}: {self.state}>"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The live view, and for readers without a kernel the state now as HTML and as text."""
        live, metadata = super()._repr_mimebundle_() or ({}, {})
        return {**live, **self._still()}, metadata

    def _still(self) -> dict[str, str]:
        """The state now, without a kernel."""
        snapshot = self._session.snapshot()
        stage = getattr(self._session, "stage", "")
        drawn = html.snapshot_html(
            snapshot,
            self._budget_seconds,
            stage,
            target=self._target,
            peer=self._peer(),
            moments=self._history.moments,
            program=self._program,
        )
        picture = mugraph_svg(snapshot.best.graph) if snapshot.best and snapshot.state not in LIVE else ""
        return {
            "text/plain": snapshot_text(snapshot, self._budget_seconds, stage),
            "text/html": still_html(drawn),
            **(png_bundle(picture) if picture else {}),
        }

    def show(self) -> SessionView:
        """Display the view and, for readers without a kernel, a static form that is kept up to date with the end.

        They are two outputs of one cell, because whoever finds a live form in an output shows no other.
        """
        shell: Any = get_ipython()
        if not hasattr(shell, "kernel"):  # a terminal
            _display({"text/plain": self._still()["text/plain"]}, raw=True)
            return self
        live, _ = super()._repr_mimebundle_() or ({}, {})
        _display({**live, "text/plain": repr(self)}, raw=True)
        self._handle = _new_handle()
        self._handle.display(self._still(), raw=True)
        self._shell = shell
        shell.events.register("post_run_cell", self._after_cell)
        return self

    def _after_cell(self, _: object) -> None:
        """A cell has ended, which may have extended the session, or have waited for its end.

        Programs that execute notebooks only listen while a cell runs, so what the pump said may be lost.
        """
        snapshot = self._session.snapshot()
        if snapshot.state in LIVE:
            self._watch()
            return
        shown = (snapshot.state, dict(snapshot.counts), snapshot.candidates, snapshot.pinned, snapshot.messages)
        if shown != self._told:
            self._told = shown
            self._show(snapshot, slow=True, rare=True)
            self._keep()

    def _forget_cells(self) -> None:
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.events.unregister("post_run_cell", self._after_cell)

    def close(self) -> None:
        """End the pump and take the view off the page."""
        with self._guard:
            self._closed.set()
            self._forget_cells()
            layout = self.layout if self.comm is not None else None
            super().close()
            if layout is not None:
                layout.close()  # a widget of its own, which nobody else would close

    # -- the pump -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Start the pump unless it runs; a session that has ended meanwhile is shown once more instead."""
        with self._guard:
            if self._pumping or self._closed.is_set():
                return
            snapshot = self._session.snapshot()
            if snapshot.state in LIVE:
                self._pumping = True
                self._pump = threading.Thread(target=self._run, name="mirage view", daemon=True)
                self._pump.start()
            elif self.state != snapshot.state.value:
                self._show(snapshot, slow=True, rare=True)
                self._keep()

    def _run(self) -> None:
        """Look, show, rest; a thread may not print, so whatever goes wrong is shown in the view."""
        try:
            look = 0
            while not self._closed.wait(1.0 / RATE):
                look += 1
                with self._guard:  # what is shown is never older than what an action has shown
                    snapshot = self._session.snapshot()
                    ended = snapshot.state not in LIVE
                    self._show(snapshot, slow=ended or look % SLOW == 0, rare=ended or look % RARE == 0)
                    self._pumping = not ended  # what goes on while the end is kept has a pump of its own
                if ended:
                    self._keep()
                    return
        except Exception as error:  # noqa: BLE001 - shown in the view instead of in some cell
            self._pumping = False
            self._complain(f"the view stopped: {type(error).__name__}: {error}")

    def _keep(self) -> None:
        """Replace the static form that the notebook holds by that of the ended session."""
        with self._keeping:  # the last one holds the latest state
            if self._handle is not None and not self._closed.is_set():
                self._handle.update(self._still(), raw=True)

    def _show(self, snapshot: Snapshot, *, slow: bool, rare: bool) -> None:
        """Set the traits that changed, as one message."""
        stage = getattr(self._session, "stage", "")
        with self._guard, self.hold_sync():
            self._history.add(snapshot)
            self.state = snapshot.state.value
            self.header = html.header_html(snapshot, self._budget_seconds, stage)
            if self._changed("messages", (snapshot.why, snapshot.cut, snapshot.messages)):
                self.messages = html.messages_html(snapshot)
            self._show_controls(snapshot)
            if slow:
                self._show_lists(snapshot)
            if rare:
                self._show_opened(snapshot)
                self._show_prefixes(snapshot)

    def _changed(self, section: str, shown: object) -> bool:
        """Whether a large section has to be drawn again; pictures take time."""
        if section in self._drawn and self._drawn[section] == shown:
            return False
        self._drawn[section] = shown
        return True

    def _show_lists(self, snapshot: Snapshot) -> None:
        chosen = self._opened(snapshot)
        peer = self._peer()
        if self._changed("chart", dict(snapshot.counts)):
            self.chart = html.chart_html(snapshot)
        counted = (snapshot.structures, snapshot.verified, snapshot.refuted, snapshot.outside_lax)
        if self._changed("counters", (dict(snapshot.counts), counted)):
            self.counters = html.counters_html(snapshot)
        self.history = html.history_html(self._history.moments)
        self._show_outcomes(snapshot)
        shown = (snapshot.candidates, snapshot.pinned, snapshot.baseline, chosen and chosen.digest, peer)
        if self._changed("candidates", shown):
            self.candidates = html.candidates_html(snapshot, chosen.digest if chosen else "", peer)

    def _show_outcomes(self, snapshot: Snapshot) -> None:
        counts = (snapshot.verified, snapshot.refuted, snapshot.outside_lax)
        aside = tuple((c.digest, c.note) for c in snapshot.candidates if c.note)
        if self._changed("outcomes", (counts, snapshot.rejected, aside, self._chosen_rejected)):
            self.outcomes = outcomes_html(snapshot, self._chosen_rejected)
            opened = next((one for one in snapshot.rejected if one.digest == self._chosen_rejected), None)
            self.rejected = rejected_html(opened) if opened is not None else ""

    def _show_controls(self, snapshot: Snapshot) -> None:
        if self._changed("controls", (snapshot.state, self._actions.now(), boards.state(self._session))):
            self.steer = steer_html(snapshot.state)
            self.controls = controls_html(self._actions, snapshot.state)

    def _show_opened(self, snapshot: Snapshot) -> None:
        """The opened muGraph: all of it once the reader asked for it or the session has ended, else its picture."""
        chosen = self._opened(snapshot)
        whole = self._chosen_candidate is not None or snapshot.state not in LIVE
        options = self._options(chosen.digest) if chosen is not None else None
        pinned = chosen is not None and chosen.digest in snapshot.pinned
        if self._changed("candidate", (chosen, whole, options, self._compare_with, pinned, self._target)):
            self.candidate = "" if chosen is None else self._candidate(chosen, whole, options, pinned)
        other = self._named(snapshot, self._compare_with)
        if self._changed("compared", (chosen, other)):
            both = chosen is not None and other is not None and other.digest != chosen.digest
            hint = "<p class='mir-none' role='status'>choose another row to compare with</p>"
            self.compared = "" if other is None else hint
            if both and chosen is not None and other is not None and self._target is not None:
                self.compared = compare.compare_html(other, chosen, self._target)

    def _candidate(self, chosen: Candidate, whole: bool, options: Options | None, pinned: bool) -> str:
        buttons = candidate_buttons(self._actions, chosen.digest, self._compare_with == chosen.digest, pinned)
        return html.candidate_html(chosen, self._target if whole else None, options, buttons, self._program)

    def _show_prefixes(self, snapshot: Snapshot) -> None:
        opened = next((p for p in snapshot.prefixes if key(p) == self._chosen_prefix), None)
        if self._changed("prefixes", (snapshot.prefixes, self._chosen_prefix)):
            self.prefixes = html.prefixes_html(snapshot, self._chosen_prefix)
            self.prefix = html.prefix_html(opened, snapshot.prefixes) if opened else ""
        if self._changed("steps", (snapshot.prefixes, snapshot.state in LIVE, self._stepped)):
            self.steps = html.steps_html(snapshot, self._stepped)

    def _opened(self, snapshot: Snapshot) -> Candidate | None:
        return self._named(snapshot, self._chosen_candidate or "") or snapshot.best

    def _named(self, snapshot: Snapshot, digest: str) -> Candidate | None:
        found = next((c for c in snapshot.candidates if c.digest == digest), None)
        return found or self._submitted.get(digest)

    def _options(self, digest: str) -> Options | None:
        """How a candidate was emitted, if it was."""
        winners = getattr(self._session, "winners", ())
        return next((w.emitted.options for w in winners if w.candidate.digest == digest), None)

    def _peer(self) -> html.Peer | None:
        """The fastest peer that was timed."""
        return export.fastest(getattr(self._session, "baselines", ()))

    # -- what the reader does -----------------------------------------------------------------------

    def _receive(self, _: object, content: Any, __: object) -> None:
        """A message of the page: `{"do": name, ...}` acts, `{"choose": "kind:identity"}` opens a row."""
        if not isinstance(content, dict):
            return
        kind, _colon, identity = str(content.get("choose", "")).partition(":")
        action, digest = str(content.get("do", "")), str(content.get("digest", ""))
        with self._guard:
            if kind == "candidate":
                self._chosen_candidate = identity
            elif kind == "prefix":
                self._chosen_prefix = identity
            elif kind == "steps":
                self._stepped = identity
            elif kind == "rejected":
                self._chosen_rejected = "" if self._chosen_rejected == identity else identity
            elif action == "compare":
                self._compare_with = "" if self._compare_with == digest else digest
            elif action == "edit":
                self._edit(digest)
        if action in SLOW_ACTIONS:
            self._begin(content)
        else:
            self._take("notice", self._actions.perform(content))

    def _edit(self, digest: str) -> None:
        chosen = self._named(self._session.snapshot(), digest)
        if chosen is not None:
            self.editor = editor_html(self._actions, print_graph(chosen.graph), opened=True)

    def _begin(self, content: Mapping[str, object]) -> None:
        """Answer in a thread, one at a time: verification takes seconds."""
        with self._guard:
            if self._closed.is_set() or self._asked:
                return
            self._asked = True
            self.answer = "<p class='mir-none' role='status'>checking…</p>"
            threading.Thread(target=self._answer, args=(dict(content),), name="mirage view", daemon=True).start()

    def _answer(self, content: Mapping[str, object]) -> None:
        try:
            answer = self._actions.perform(content)
            self._asked = False  # before the answer is seen: whoever asks again then is answered, too
            self._take("answer", answer)
        except Exception as error:  # noqa: BLE001 - shown in the view instead of in some cell
            self._asked = False
            self._complain(f"{type(error).__name__}: {error}")

    def _take(self, section: str, answer: Answer) -> None:
        """Show what came of an action, in the section beside its control."""
        if self._closed.is_set():
            return
        with self._guard:
            snapshot = self._session.snapshot()
            self._show(snapshot, slow=False, rare=False)  # at once; pictures take a moment
        with self._guard, self.hold_sync():
            if answer.html:
                setattr(self, section, answer.html)
            if answer.candidate is not None:
                self._submitted[answer.candidate.digest] = answer.candidate
                self._chosen_candidate = answer.candidate.digest
            self._show(snapshot, slow=True, rare=True)
        self._watch()

    def _complain(self, text: str) -> None:
        with self._guard:
            self.notice = f"<p class='mir-complaint' role='alert'>{escape(text)}</p>"

    def wait(self, timeout: float) -> bool:
        """Block until the pump has ended, at most `timeout` seconds; returns whether it has."""
        if (pump := self._pump) is not None:
            pump.join(timeout)
        return pump is None or not pump.is_alive()
