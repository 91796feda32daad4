"""The magics in a real IPython shell: cells run, names are bound, mistakes are short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("IPython")
pytest.importorskip("anywidget")

import mirage_magics
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import mirage_nb
from mirage_nb.errors import MirageError, OptionError, SearchError
from mirage_nb.lang import FUNCTIONS
from mirage_nb.search.progress import State
from mirage_nb.widgets import SessionView
from tests.browser.fake_session import FakeSession

PROGRAM = "X: f16[16, 1024]\nW: f16[1024, 4096]\nreturn rms_norm(X) @ W\n"


class Calls:
    """Stands for `mirage_nb.superoptimize`: keeps the arguments, gives a scripted session."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, dict[str, Any]]] = []
        self.sessions: list[FakeSession] = []

    def __call__(self, program: Any, **options: Any) -> FakeSession:
        self.seen.append((program, options))
        self.sessions.append(FakeSession(30, options["name"]))
        return self.sessions[-1]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    calls = Calls()
    monkeypatch.setattr(mirage_nb, "superoptimize", calls, raising=False)
    yield calls
    for session in calls.sessions:
        session.stop()


@pytest.fixture
def shell(calls: Calls) -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()
    mirage_magics.load_ipython_extension(shell)
    yield shell
    InteractiveShell.clear_instance()


def run(shell: InteractiveShell, cell: str) -> tuple[str, Any]:
    """What the cell shows, and how it ended."""
    with capture_output() as captured:
        result = shell.run_cell(cell)
    shown = captured.stdout + captured.stderr
    for output in captured.outputs:
        shown += output.data.get("text/plain", "")
    return shown, result


def test_a_cell_starts_a_search_binds_the_name_and_shows_a_view(shell: InteractiveShell, calls: Calls) -> None:
    shown, result = run(shell, f"%%mirage fused --effort quick --budget 5 --target a100 --set B=2\nB = 1\n{PROGRAM}")
    assert result.success
    ((program, options),) = calls.seen
    assert options == {"name": "fused", "effort": "quick", "budget": 5.0, "target": "a100"}
    assert program.input_names == ("X", "W") and program.sizes["B"] == 2
    assert shell.user_ns["fused"] is calls.sessions[0]
    assert "fused: running" in shown


def test_the_view_is_live_and_knows_the_budget(shell: InteractiveShell) -> None:
    with capture_output() as captured:
        shell.run_cell(f"%%mirage fused\n{PROGRAM}")
    data = captured.outputs[0].data
    assert "application/vnd.jupyter.widget-view+json" in data and "text/html" in data
    assert " of 30 s" in data["text/plain"]


def test_running_the_cell_again_stops_the_search_before(shell: InteractiveShell, calls: Calls) -> None:
    for _ in range(2):
        run(shell, f"%%mirage fused\n{PROGRAM}")
    assert [s.state for s in calls.sessions] == [State.STOPPED, State.RUNNING]


def test_a_mistake_in_the_program_shows_line_and_caret_and_no_traceback(shell: InteractiveShell, calls: Calls) -> None:
    shown, result = run(shell, "%%mirage fused\nX: f16[16, 1024]\nreturn rms_nrm(X)\n")
    assert isinstance(result.error_in_exec, MirageError)
    assert "line 3: return rms_nrm(X)" in shown
    assert "^^^^^^^" in shown and "rms_norm" in shown
    assert "Traceback" not in shown and "File " not in shown and "---" not in shown
    assert calls.seen == [] and "fused" not in shell.user_ns


def test_remarks_on_the_program_are_shown_with_their_line(shell: InteractiveShell) -> None:
    shown, result = run(shell, f"%%mirage fused\nU: f16[2, 2]\n{PROGRAM}")
    assert result.success
    assert "note: " in shown and "line 2: U: f16[2, 2]" in shown


def test_a_mistake_in_the_options_does_the_same(shell: InteractiveShell) -> None:
    shown, result = run(shell, f"%%mirage fused --efort quick\n{PROGRAM}")
    assert isinstance(result.error_in_exec, OptionError)
    lines = shown.splitlines()
    place = next(i for i, line in enumerate(lines) if "line 1: %%mirage fused --efort quick" in line)
    assert lines[place + 1].index("^") == lines[place].index("--efort")
    assert "did you mean --effort?" in shown and "Traceback" not in shown


def test_errors_of_the_api_are_shown_as_short(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise SearchError("no workers", hint="wait")

    monkeypatch.setattr(mirage_nb, "superoptimize", refuse, raising=False)
    shown, result = run(shell, f"%%mirage fused\n{PROGRAM}")
    assert isinstance(result.error_in_exec, SearchError)
    assert "SearchError: no workers" in shown and "Traceback" not in shown


def test_a_slip_of_ours_keeps_its_traceback(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(mirage_nb, "superoptimize", broken, raising=False)
    shown, _ = run(shell, f"%%mirage fused\n{PROGRAM}")
    assert "Traceback" in shown


def test_wait_blocks_until_the_end(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = FakeSession(0.4)
    monkeypatch.setattr(mirage_nb, "superoptimize", lambda *_, **__: quick, raising=False)
    run(shell, f"%%mirage fused --wait\n{PROGRAM}")
    assert quick.state is State.FINISHED


def test_an_interrupt_while_waiting_stops_the_search(shell: InteractiveShell, calls: Calls, monkeypatch: Any) -> None:
    def interrupted(self: FakeSession, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeSession, "wait", interrupted)
    run(shell, f"%%mirage fused --wait\n{PROGRAM}")
    assert calls.sessions[0].state is State.STOPPED
    assert shell.user_ns["fused"] is calls.sessions[0]


def test_list_show_and_stop(shell: InteractiveShell, calls: Calls) -> None:
    assert "no sessions" in run(shell, "%mirage list")[0]
    run(shell, f"%%mirage first\n{PROGRAM}")
    run(shell, f"%%mirage second\n{PROGRAM}")
    shown, _ = run(shell, "%mirage list")
    assert "first: running" in shown and "second: running" in shown
    assert "second: stopped" in run(shell, "%mirage stop second")[0]
    with capture_output() as captured:
        shell.run_cell("%mirage show first")
    assert "application/vnd.jupyter.widget-view+json" in captured.outputs[0].data


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("%mirage lst", "unknown command 'lst'", "did you mean list?"),
        ("%mirage stop", "which session?", "there are none"),
        ("%mirage show fusd", "no session is named 'fusd'", "did you mean fused?"),
        ("%mirage help rmsnorm", "unknown function 'rmsnorm'", "did you mean rms_norm?"),
    ],
)
def test_mistakes_of_the_line_magic(shell: InteractiveShell, line: str, message: str, hint: str) -> None:
    if "fusd" in line:
        shell.user_ns["fused"] = FakeSession(0.1)
    shown, result = run(shell, line)
    assert isinstance(result.error_in_exec, OptionError)
    assert message in shown and hint in shown and "Traceback" not in shown


def test_help_covers_the_language_and_each_function(shell: InteractiveShell) -> None:
    shown, _ = run(shell, "%mirage help")
    assert "%%mirage NAME" in shown and all(row.signature in shown for row in FUNCTIONS.values())
    assert run(shell, "%mirage")[0] == shown
    for row in FUNCTIONS.values():
        one, _ = run(shell, f"%mirage help {row.name}")
        assert row.signature in one and row.example in one


def test_doctor_reports_what_is_there(shell: InteractiveShell) -> None:
    assert "numpy" in run(shell, "%mirage doctor")[0]


def test_question_marks_show_the_options(shell: InteractiveShell) -> None:
    assert "--effort" in (shell.find_cell_magic("mirage").__doc__ or "")
    assert "%mirage doctor" in (shell.find_line_magic("mirage").__doc__ or "")
    assert "--budget" in run(shell, "%%mirage?")[0] or "--budget" in str(shell.object_inspect("%%mirage"))


@pytest.mark.parametrize(
    ("line", "wanted", "unwanted"),
    [
        ("%%mirage fused --", {"--effort", "--budget", "--set"}, {"list"}),
        ("%%mirage fused --effort ", {"quick", "standard", "exhaustive"}, {"--wait"}),
        ("%%mirage fused --effort quick --e", set(), {"--effort"}),
        ("%%mirage fused --target h", {"h200", "h100"}, {"a100"}),
        ("%mirage s", {"show", "stop"}, {"list"}),
        ("%mirage stop f", {"fused"}, {"first_number"}),
        ("%mirage help rms", {"rms_norm"}, {"softmax"}),
    ],
)
def test_completion(shell: InteractiveShell, line: str, wanted: set[str], unwanted: set[str]) -> None:
    shell.user_ns["fused"] = FakeSession(0.1)
    shell.user_ns["first_number"] = 1
    _, matches = shell.complete(line.split(" ")[-1], line, len(line))
    assert wanted <= set(matches)
    assert not unwanted & set(matches)


def test_views_end_with_their_sessions(calls: Calls, shell: InteractiveShell) -> None:
    run(shell, f"%%mirage fused\n{PROGRAM}")
    view = SessionView(calls.sessions[0])
    calls.sessions[0].stop()
    assert view.wait(3)
