"""The live view without a browser: its pump, its traffic, its answers to the reader."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("anywidget")

import comm
from IPython.core.events import EventManager

from mirage_nb.errors import SearchError
from mirage_nb.ir.text import print_graph
from mirage_nb.search.session.progress import Snapshot, State
from mirage_nb.viz.tree import key
from mirage_nb.widgets import SessionView, session_view
from mirage_nb.widgets.session_view import RATE
from tests.browser.fake_session import FakeSession, prefixes, rejected
from tests.sessions import threads, until
from tests.viz.mugraph_samples import rmsnorm_fused

SECTIONS = (
    "steer", "header", "controls", "counters", "notice", "chart", "history", "candidates", "outcomes", "rejected",
    "messages", "compared", "candidate", "editor", "answer", "prefixes", "prefix",
)  # fmt: skip


class Recorded(SessionView):
    """A view that keeps what it sends to the page."""

    def __init__(self, session: Any, **options: Any) -> None:
        self.sent: list[tuple[float, dict[str, Any]]] = []
        super().__init__(session, **options)

    def _send(self, msg: Any, buffers: Any = None) -> None:
        if getattr(self, "comm", None) is not None and msg.get("method") == "update":
            self.sent.append((time.monotonic(), msg["state"]))


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    assert until(lambda: not any(t.name == "mirage view" for t in threads()))


def click(view: SessionView, content: Any) -> None:
    view._handle_custom_msg(content, [])


def test_the_view_follows_the_session_to_its_end_and_the_pump_ends_with_it() -> None:
    session = FakeSession(60)
    view = SessionView(session)
    assert view.state == "running"
    session.length = 0.01
    assert view.wait(30)
    assert view.state == "finished"
    assert "8 of 8" in view.header or "whole space" in view.header
    assert view.candidates.count("data-choose") == 12


def test_at_most_rate_messages_and_only_what_changed() -> None:
    session = FakeSession(60)
    view = Recorded(session)
    while sum("header" in state for _, state in list(view.sent)) < 8:
        assert not view.wait(0.02)  # the pump is at work
    session.length = 0.01
    assert view.wait(30)
    times = [at for at, state in view.sent if "header" in state]
    assert all(b - a >= 0.9 / RATE for a, b in pairwise(times))
    for (_, old), (_, new) in pairwise(view.sent):
        assert not {k for k in new if k in old and old[k] == new[k]}


def test_a_paused_session_sends_nothing_new() -> None:
    session = FakeSession(60)
    view = Recorded(session)
    click(view, {"do": "pause"})
    assert until(lambda: view.state == State.PAUSED.value)
    view.sent.clear()
    time.sleep(0.4)
    assert view.sent == []
    view.close()


@pytest.mark.parametrize(("action", "state"), [("stop", State.STOPPED), ("pause", State.PAUSED)])
def test_buttons_act_at_once(action: str, state: State) -> None:
    session = FakeSession(60)
    view = SessionView(session)
    click(view, {"do": action})
    assert [name for name, _ in session.calls] == [action]
    assert view.state == state.value
    view.close()


def test_resume_after_pause_goes_on_and_after_the_end_starts_a_new_pump() -> None:
    session = FakeSession(60)
    view = SessionView(session)
    click(view, {"do": "pause"})
    click(view, {"do": "resume"})
    assert view.state == "running"
    click(view, {"do": "stop"})
    assert view.wait(30)
    click(view, {"do": "resume"})
    assert view.state == "running"
    session.length = 0.01
    assert view.wait(30)
    assert view.state == "finished"


def test_an_extension_that_ends_at_once_is_shown() -> None:
    class Instant(FakeSession):
        """Runs for a moment only, which is over before its pictures are drawn."""

        looks = 0

        def extend(self, **_: object) -> None:
            self.state, self.looks = State.RUNNING, 0

        def snapshot(self) -> Snapshot:
            self.looks += 1
            if self.state is State.RUNNING and self.looks > 1:
                self.state = State.FINISHED
            return replace(super().snapshot(), state=self.state)

    session = Instant(0.01)
    view = SessionView(session)
    assert view.wait(30)
    click(view, {"do": "extend"})
    assert view.wait(30)
    assert view.state == "finished"
    assert "finished" in view.header


def test_views_of_one_session_are_independent() -> None:
    session = FakeSession(60)
    first, second = SessionView(session), SessionView(session)
    first.close()
    assert first.wait(30)
    click(second, {"do": "stop"})
    assert second.wait(30)
    assert second.state == "stopped"


def test_choosing_rows_opens_them() -> None:
    session = FakeSession(0.01)
    view = SessionView(session)
    assert view.wait(30)
    third = session.snapshot().candidates[2]
    click(view, {"choose": f"candidate:{third.digest}"})
    assert f"µGraph {third.digest[:8]}" in view.candidate
    assert f"data-choose='candidate:{third.digest}' aria-current='true'" in view.candidates
    fourth = f"prefix:{key(prefixes()[4])}"
    click(view, {"choose": fourth})
    assert prefixes()[4].reason in view.prefix
    assert re.search(f"data-choose='{fourth}' data-outcome='[^']*' aria-current='true'", view.prefixes)


def test_choosing_a_refuted_mugraph_opens_its_witness_and_again_closes_it() -> None:
    view = SessionView(FakeSession(0.01))
    assert view.wait(30)
    one = rejected()[1]
    click(view, {"choose": f"rejected:{one.digest}"})
    assert "expected (524289, 17), found (3, 260002)" in view.rejected and "<svg" in view.rejected
    assert f"data-choose='rejected:{one.digest}' aria-current='true'" in view.outcomes
    click(view, {"choose": f"rejected:{one.digest}"})
    assert view.rejected == "" and "aria-current='true'" not in view.outcomes


@pytest.mark.parametrize(
    "content",
    [None, 3, "stop", {}, {"do": "explode"}, {"do": ["stop"]}, {"choose": "prefix:x"}, {"choose": 5}],
)
def test_odd_messages_change_nothing(content: Any) -> None:
    session = FakeSession(60)
    view = SessionView(session)
    click(view, content)
    assert session.calls == []
    view.close()


def test_a_refused_action_is_shown_and_not_raised() -> None:
    class Stubborn(FakeSession):
        def pause(self) -> None:
            raise SearchError("cannot pause <now>")

    view = SessionView(Stubborn(60))
    click(view, {"do": "pause"})
    assert "cannot pause &lt;now&gt;" in view.notice
    view.close()


def test_a_pump_that_breaks_says_so_in_the_view_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    class Broken(FakeSession):
        looks = 0

        def snapshot(self) -> Snapshot:
            self.looks += 1
            if self.looks > 4:
                raise RuntimeError("lost <it>")
            return super().snapshot()

    view = SessionView(Broken(60))
    assert view.wait(30)
    assert "RuntimeError: lost &lt;it&gt;" in view.notice
    assert capfd.readouterr() == ("", "")


def test_the_bundle_has_a_live_a_static_and_a_text_form_without_addresses() -> None:
    view = SessionView(FakeSession(0.01), budget_seconds=30)
    assert view.wait(30)
    data, _ = view._repr_mimebundle_()
    assert set(data) >= {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}
    assert "8/8 configurations" in data["text/plain"] and " of 30 s" in data["text/plain"]
    assert "mir-view" in data["text/html"] and "<svg" in data["text/html"]
    assert " 0x" not in repr(view) + data["text/plain"] + data["text/html"]


def test_the_static_form_is_brought_up_to_date_once_when_the_session_ends() -> None:
    updates: list[str] = []

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            updates.append(data["text/plain"])

    session = FakeSession(60)
    view = SessionView(session)
    view._handle = Handle()
    session.length = 0.01
    assert view.wait(30)
    assert len(updates) == 1 and "finished" in updates[0]


def test_a_session_that_goes_on_while_its_end_is_kept_is_watched() -> None:
    keeping, go_on = threading.Event(), threading.Event()

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            keeping.set()
            assert go_on.wait(30)

    session = FakeSession(60)
    view = SessionView(session)
    view._handle = Handle()
    session.length = 0.01
    assert keeping.wait(30) and view.state == "finished"
    session.length = 30
    click(view, {"do": "extend"})
    go_on.set()
    assert view.state == "running"
    session.length = 0.01
    assert until(lambda: view.state == State.FINISHED.value)


def test_all_sections_are_set_and_known_to_the_script() -> None:
    view = SessionView(FakeSession(0.01))
    assert view.wait(30)
    first, second = (c.digest for c in view._session.snapshot().candidates[:2])
    click(view, {"choose": f"prefix:{key(prefixes()[4])}"})
    click(view, {"choose": f"rejected:{rejected()[1].digest}"})
    click(view, {"do": "pin", "digest": first})
    click(view, {"do": "compare", "digest": first})
    click(view, {"choose": f"candidate:{second}"})
    click(view, {"do": "explain", "text": "mugraph 1"})
    assert until(lambda: "checking" not in view.answer)
    layout = view._esm.partition("const LAYOUT")[2].partition("];")[0]
    for name in SECTIONS:
        assert getattr(view, name) or name == "steer", name
        assert f'"{name}"' in layout


class Million(FakeSession):
    """A search of a million prefixes in which every snapshot differs from the one before in every section."""

    def snapshot(self) -> Snapshot:
        shown = super().snapshot()
        turn = int(shown.seconds * 1000)
        many = tuple(
            replace(
                prefixes()[n % 14], identity=n, parents=(n // 3,) if n else (), depth=(n + turn) % 97, reason=f"{turn}"
            )
            for n in range(2000)
        )
        counts = {key: count + 200_000 + turn for key, count in shown.counts.items()}
        found = tuple(
            replace(c, estimate_us=c.estimate_us + turn, digest=f"{turn % 7}{c.digest}") for c in shown.candidates
        )
        rows = tuple(replace(found[n % len(found)], digest=f"{turn}-{n}") for n in range(200)) if found else ()
        return replace(shown, prefixes=many, counts=counts, candidates=rows, messages=(f"turn {turn}",))


def test_the_traffic_of_a_million_prefixes_is_bounded() -> None:
    view = Recorded(Million(4.0))
    first = len(json.dumps({name: getattr(view, name) for name in SECTIONS}))
    assert view.wait(30)
    assert sum(view._session.snapshot().counts.values()) > 1_000_000
    # Sliding windows of two seconds; the last message, which opens the winner, comes once.
    sizes = [(at, len(json.dumps(state))) for at, state in view.sent[:-1]]
    worst = max(sum(size for at, size in sizes if start <= at < start + 2) for start, _ in sizes) / 2
    assert worst < 200_000, worst
    assert first < 400_000
    for name in ("prefixes", "candidates"):
        assert getattr(view, name).count("data-choose") <= 1000


@pytest.mark.slow  # a timing: it says something where nothing else is at work
def test_a_view_looks_between_two_and_ten_times_a_second() -> None:
    view = Recorded(FakeSession(3.0))
    assert view.wait(30)
    times = [at for at, state in view.sent if "header" in state]
    rate = (len(times) - 1) / (times[-1] - times[0])
    assert 2 <= rate <= 10.5, rate


def test_ten_views_opened_and_closed_leave_nothing() -> None:
    comms = set(comm.get_comm_manager().comms)
    before = threads()
    for number in range(10):
        view = SessionView(FakeSession(60))
        if number % 2:
            click(view, {"do": "submit", "text": "mugraph 1\n"})
        view.close()
        assert view.wait(30)
    assert until(lambda: threads() <= before)
    assert set(comm.get_comm_manager().comms) <= comms


def test_a_submitted_mugraph_is_opened_and_its_thread_ends() -> None:
    view = SessionView(FakeSession(0.01))
    assert view.wait(30)
    graph = rmsnorm_fused(blocks=64)
    click(view, {"do": "submit", "text": print_graph(graph)})
    assert until(lambda: graph.digest()[:8] in view.candidate)
    assert graph.digest()[:8] in view.answer and f"µGraph {graph.digest()[:8]}" in view.candidate
    click(view, {"do": "edit", "digest": graph.digest()})
    assert "grid=[64]" in view.editor
    view.close()


def test_who_asks_again_once_an_answer_is_there_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    view, go_on = SessionView(FakeSession(0.01)), threading.Event()
    assert view.wait(30)
    monkeypatch.setattr(view, "_watch", lambda: go_on.wait(30))
    click(view, {"do": "explain", "text": "what"})
    assert until(lambda: "mir-complaint" in view.answer)
    click(view, {"do": "submit", "text": print_graph(rmsnorm_fused(blocks=64))})
    assert until(lambda: "checked" in view.answer)
    go_on.set()


def test_comparing_needs_two() -> None:
    view = SessionView(FakeSession(0.01))
    assert view.wait(30)
    first, second = (c.digest for c in view._session.snapshot().candidates[:2])
    click(view, {"do": "compare", "digest": first})
    assert "another row" in view.compared and "<svg" not in view.compared
    click(view, {"choose": f"candidate:{second}"})
    assert view.compared.count("<svg") == 2
    click(view, {"do": "compare", "digest": first})
    assert view.compared == ""


def test_a_closed_view_leaves_the_events_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shell:
        kernel = object()

        def __init__(self) -> None:
            self.events = EventManager(self, {"post_run_cell": lambda result: None})

    shell = Shell()
    monkeypatch.setattr(session_view, "get_ipython", lambda: shell)
    monkeypatch.setattr(session_view, "_display", lambda data, raw: None)
    before = list(shell.events.callbacks["post_run_cell"])
    view = SessionView(FakeSession(60)).show()
    assert len(shell.events.callbacks["post_run_cell"]) == len(before) + 1
    view.close()
    assert shell.events.callbacks["post_run_cell"] == before


def test_the_next_cell_after_the_end_brings_the_static_form_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shell:
        """A kernel's shell, as far as a view uses it."""

        kernel = object()

        def __init__(self) -> None:
            self.events = EventManager(self, {"post_run_cell": lambda result: None})

    class Handle:
        updates = 0

        def display(self, data: dict[str, str], raw: bool) -> None:
            """Nothing to see."""

        def update(self, data: dict[str, str], raw: bool) -> None:
            self.updates += 1

    shell, handle = Shell(), Handle()
    monkeypatch.setattr(session_view, "get_ipython", lambda: shell)
    monkeypatch.setattr(session_view, "_new_handle", lambda: handle)
    monkeypatch.setattr(session_view, "_display", lambda data, raw: None)
    session = FakeSession(60)
    view = SessionView(session).show()
    shell.events.trigger("post_run_cell", None)
    assert handle.updates == 0
    session.stop()
    assert view.wait(30)
    shell.events.trigger("post_run_cell", None)
    assert handle.updates == 2
    shell.events.trigger("post_run_cell", None)
    assert handle.updates == 2
    session.pin("a digest")
    shell.events.trigger("post_run_cell", None)
    assert handle.updates == 3


def test_a_session_that_a_cell_extended_is_watched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shell:
        kernel = object()

        def __init__(self) -> None:
            self.events = EventManager(self, {"post_run_cell": lambda result: None})

    shell = Shell()
    monkeypatch.setattr(session_view, "get_ipython", lambda: shell)
    monkeypatch.setattr(session_view, "_display", lambda data, raw: None)
    monkeypatch.setattr(
        session_view,
        "_new_handle",
        lambda: SimpleNamespace(display=lambda *_, **__: None, update=lambda *_, **__: None),
    )
    session = FakeSession(0.05)
    view = SessionView(session).show()
    assert view.wait(30) and view.state == "finished"
    session.length = 60.0
    session.extend()
    shell.events.trigger("post_run_cell", None)
    assert until(lambda: view.state == State.RUNNING.value)
    view.close()
