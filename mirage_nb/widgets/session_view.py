"""The live view of a session: progress, pruning, verified muGraphs, prefixes, and buttons that steer it.

In: a session, that is anything with `snapshot`, `stop`, `pause` and `resume`. Out: an ipywidget whose traits
are the HTML sections of `mirage_nb.viz.html`; the script beside this file puts them into the page.
Invariants: one pump thread per view, at most RATE looks per second, which sets traits and never prints; it
ends when the session has ended or the view is closed. Only sections that changed travel, the large ones at
most once in SLOW looks. Any number of views may watch one session. Clicks are answered while a cell runs
where page and kernel know subshells (JupyterLab 4.4, ipykernel 7), else when it has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from html import escape
from importlib import resources
from typing import Any, Protocol

import anywidget
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import DisplayHandle

from mirage_nb.errors import MirageError
from mirage_nb.search.progress import Snapshot, State
from mirage_nb.viz import html
from mirage_nb.viz.svg import STYLE
from mirage_nb.viz.text import snapshot_text

RATE = 10.0
"""Looks per second, at most."""
SLOW = 5
"""The chart and the lists are brought up to date at every SLOW-th look."""

ENDED = frozenset({State.STOPPED, State.FINISHED, State.FAILED})

_new_handle: Any = DisplayHandle  # IPython gives it no types
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

    _esm = _FILES.joinpath("session_view.js").read_text(encoding="utf-8")
    _css = STYLE + html.CSS + _FILES.joinpath("session_view.css").read_text(encoding="utf-8")

    state = traitlets.Unicode("waiting").tag(sync=True)
    header = traitlets.Unicode("").tag(sync=True)
    chart = traitlets.Unicode("").tag(sync=True)
    prefixes = traitlets.Unicode("").tag(sync=True)
    prefix = traitlets.Unicode("").tag(sync=True)
    candidates = traitlets.Unicode("").tag(sync=True)
    candidate = traitlets.Unicode("").tag(sync=True)
    messages = traitlets.Unicode("").tag(sync=True)

    def __init__(self, session: Watched, *, budget_seconds: float | None = None) -> None:
        super().__init__()
        self._session = session
        self._budget_seconds = budget_seconds
        self._chosen_candidate: str | None = None
        self._chosen_prefix: int | None = None
        self._drawn: tuple[object, ...] = ()
        self._complaint = ""
        self._guard = threading.RLock()
        self._closed = threading.Event()
        self._pump: threading.Thread | None = None
        self._handle: Any = None
        # Pages send clicks to a subshell of the kernel, so that they do not wait behind a running cell. From
        # 7.4 on ipykernel sends them after the thread that last used the comm, the pump here; not for us.
        self.comm._reply_subshell_for = None
        self.on_msg(self._receive)
        self._show(session.snapshot(), slow=True)
        self._watch()

    def __repr__(self) -> str:
        return f"<SessionView of {self._session.snapshot().name or 'session'}: {self.state}>"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The live view, and for readers without a kernel the state now as HTML and as text."""
        live, metadata = super()._repr_mimebundle_() or ({}, {})
        snapshot = self._session.snapshot()
        stage = getattr(self._session, "stage", "")
        still = {
            "text/plain": snapshot_text(snapshot, self._budget_seconds),
            "text/html": html.snapshot_html(snapshot, self._budget_seconds, stage),
        }
        return {**live, **still}, metadata

    def show(self) -> SessionView:
        """Display the view; when the session ends, its static form in the notebook is brought up to date."""
        handle = _new_handle()
        handle.display(self)
        shell: Any = get_ipython()
        if hasattr(shell, "kernel"):  # a terminal would print the static form instead
            self._handle = handle
            # Programs that execute notebooks only listen while a cell runs, so the next cell says it again.
            shell.events.register("post_run_cell", self._after_cell)
        return self

    def _after_cell(self, _: object) -> None:
        if self._session.snapshot().state in ENDED:
            shell: Any = get_ipython()
            shell.events.unregister("post_run_cell", self._after_cell)
            self._keep()

    def close(self) -> None:
        """End the pump and take the view off the page."""
        with self._guard:
            self._closed.set()
            super().close()

    # -- the pump -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Start the pump unless it runs, or the session has ended."""
        with self._guard:
            alive = self._pump is not None and self._pump.is_alive()
            if alive or self._closed.is_set() or self._session.snapshot().state in ENDED:
                return
            self._pump = threading.Thread(target=self._run, name="mirage view", daemon=True)
            self._pump.start()

    def _run(self) -> None:
        """Look, show, rest; a thread may not print, so whatever goes wrong is shown in the view."""
        try:
            look = 0
            while not self._closed.wait(1.0 / RATE):
                snapshot = self._session.snapshot()
                look += 1
                ended = snapshot.state in ENDED
                self._show(snapshot, slow=ended or look % SLOW == 0)
                if ended:
                    self._keep()
                    return
        except Exception as error:  # noqa: BLE001 - shown in the view instead of in some cell
            self._complain(f"the view stopped: {type(error).__name__}: {error}")

    def _keep(self) -> None:
        """Replace the static form that the notebook holds by that of the ended session."""
        if self._handle is not None and not self._closed.is_set():
            self._handle.update(self)

    def _show(self, snapshot: Snapshot, *, slow: bool) -> None:
        """Set the traits that changed, as one message."""
        stage = getattr(self._session, "stage", "")
        with self._guard, self.hold_sync():
            self.state = snapshot.state.value
            self.header = html.header_html(snapshot, self._budget_seconds, stage)
            self.messages = self._complaint + html.messages_html(snapshot)
            if slow:
                self._show_lists(snapshot)

    def _show_lists(self, snapshot: Snapshot) -> None:
        """The large sections; drawn only when what they show has changed."""
        best = snapshot.best
        chosen = next((c for c in snapshot.candidates if c.digest == self._chosen_candidate), best)
        opened = next((p for p in snapshot.prefixes if p.identity == self._chosen_prefix), None)
        shown = (dict(snapshot.counts), snapshot.candidates, snapshot.prefixes, chosen, opened)
        if self._drawn == shown:
            return
        self._drawn = shown
        self.chart = html.chart_html(snapshot)
        self.candidates = html.candidates_html(snapshot, chosen.digest if chosen else "")
        self.candidate = html.candidate_html(chosen) if chosen else ""
        self.prefixes = html.prefixes_html(snapshot, self._chosen_prefix)
        self.prefix = html.prefix_html(opened, snapshot.prefixes) if opened else ""

    # -- what the reader does -----------------------------------------------------------------------

    def _receive(self, _: object, content: Any, __: object) -> None:
        """A message of the page: `{"do": name}` steers, `{"choose": "kind:identity"}` opens a row."""
        if not isinstance(content, dict):
            return
        actions: dict[str, Callable[[], None]] = {
            "stop": self._session.stop,
            "pause": self._session.pause,
            "resume": self._session.resume,
        }
        action = actions.get(str(content.get("do", "")))
        if action is not None:
            self._steer(action)
        kind, _colon, identity = str(content.get("choose", "")).partition(":")
        with self._guard:
            if kind == "candidate":
                self._chosen_candidate = identity
            elif kind == "prefix" and identity.isdecimal():
                self._chosen_prefix = int(identity)
        self._show(self._session.snapshot(), slow=True)

    def _steer(self, action: Callable[[], None]) -> None:
        try:
            action()
        except MirageError as error:
            self._complain(str(error))
        self._watch()

    def _complain(self, text: str) -> None:
        with self._guard:
            self._complaint = f"<p class='mir-complaint' role='alert'>{escape(text)}</p>"
            self.messages = self._complaint

    def wait(self, timeout: float) -> bool:
        """Block until the pump has ended, at most `timeout` seconds; returns whether it has."""
        deadline = time.monotonic() + timeout
        pump = self._pump
        if pump is not None:
            pump.join(max(0.0, deadline - time.monotonic()))
        return pump is None or not pump.is_alive()
