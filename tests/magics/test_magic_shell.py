"""The magics in a real IPython shell: cells run, names are bound, mistakes are short."""

from __future__ import annotations

import _thread
import atexit
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("IPython")
pytest.importorskip("anywidget")

from pathlib import Path

import mirage_magics
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from mirage_magics.verbs import VERBS, Verb
from traitlets.config import Config

import mirage_nb
from mirage_nb.errors import MirageError, NoKernelError, OptionError, SearchError
from mirage_nb.lang import FUNCTIONS, parse
from mirage_nb.pipeline import superoptimize
from mirage_nb.search import Limits
from mirage_nb.search.session.progress import State
from mirage_nb.widgets import SessionView
from tests.browser.fake_session import FakeSession
from tests.sessions import LONG

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
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    mirage_magics.load_ipython_extension(shell)
    yield shell
    InteractiveShell.clear_instance()
    atexit.unregister(shell.atexit_operations)  # half a second for every shell


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
    program, options = calls.seen[0]
    assert options == {"name": "fused", "effort": "quick", "budget": 5.0, "target": "a100"}
    run(shell, f"%%mirage other --without-axiom sum_div\n{PROGRAM}")
    assert calls.seen[1][1]["axioms"] == {"sum_div": False} and "prunings" not in calls.seen[1][1]
    assert program.input_names == ("X", "W") and program.sizes["B"] == 2
    assert shell.user_ns["fused"] is calls.sessions[0]
    assert "fused: running" in shown


def test_the_view_is_live_and_knows_the_budget(shell: InteractiveShell) -> None:
    with capture_output() as captured:
        shell.run_cell(f"%%mirage fused\n{PROGRAM}")
    (output,) = captured.outputs
    assert set(output.data) == {"text/plain"}, "a terminal shows text"
    assert " of 30 s" in output.data["text/plain"]
    shell.kernel = object()
    with capture_output() as captured:
        shell.run_cell("%mirage show fused")
    live, still = (output.data for output in captured.outputs)
    assert "application/vnd.jupyter.widget-view+json" in live and "text/html" not in live
    assert "mir-static" in still["text/html"] and " of 30 s" in still["text/plain"]


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


@pytest.mark.parametrize(
    ("cell", "place", "hint"),
    [
        ("%%mirage f\nX: f16[4, 8]\nX: f16[8]\nreturn X", "line 3: X: f16[8]", "the first definition is in line 2"),
        ("%%mirage f\n# nothing\n\n", "line 1: %%mirage f", "an input is declared as"),
        ("%%mirage f --set B=8\nX: f16[4, 8]\nreturn X + X", "line 1: %%mirage f --set B=8", "no size B"),
        ("%%mirage f\nX: f16[4, 8]\r\nreturn xylophone(X)\r\n", "line 3: return xylophone(X)", "the functions are"),
        ("%%mirage f\nX:\tf16[4, 8]\nreturn X + X", "line 2: X: f16[4, 8]", "spaces"),
    ],
)
def test_places_are_those_of_the_cell(shell: InteractiveShell, cell: str, place: str, hint: str) -> None:
    """Lines count from the magic's, also in hints; what a mistake names in the magic's line is marked there."""
    shown, result = run(shell, cell)
    assert isinstance(result.error_in_exec, MirageError)
    assert place in shown and hint in shown and "^" in shown and "Traceback" not in shown
    assert "f" not in shell.user_ns


def test_the_session_keeps_the_program_as_it_was_written(shell: InteractiveShell, calls: Calls) -> None:
    run(shell, f"%%mirage fused\n{PROGRAM}")
    assert calls.seen[0][0].text == PROGRAM


def test_a_value_that_the_name_held_is_not_lost_without_a_word(shell: InteractiveShell, calls: Calls) -> None:
    shell.user_ns["fused"] = [1, 2]
    shown, result = run(shell, f"%%mirage fused\n{PROGRAM}")
    assert result.success and "fused was a value of type list; it is a session now" in shown


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


def test_an_interrupt_is_told_in_one_line(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: FakeSession, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeSession, "wait", interrupted)
    shown, result = run(shell, f"%%mirage fused --wait\n{PROGRAM}")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert "interrupted: fused was stopped; what it found stays" in shown and "Traceback" not in shown


def test_a_terminal_shows_the_result_of_a_cell_that_waited(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirage_nb, "superoptimize", lambda program, **given: FakeSession(0.3, given["name"]))
    shown, _ = run(shell, f"%%mirage fused --wait\n{PROGRAM}")
    assert "fused: finished" in shown and "1 kernel" in shown


def test_a_snapshot_is_shown_as_a_text_and_as_a_page(shell: InteractiveShell) -> None:
    shell.user_ns["found"] = ended().snapshot()
    shown, _ = shell.display_formatter.format(shell.user_ns["found"])
    assert shown["text/plain"].startswith("fused: ") and len(shown["text/plain"].splitlines()) < 25
    assert "mir-view" in shown["text/html"]


def test_a_session_on_a_line_of_its_own_is_looked_at(shell: InteractiveShell) -> None:
    session = mirage_nb.pipeline.superoptimize("X: f16[4, 8]\nreturn exp(X)", name="small", effort="quick")
    shell.user_ns["small"] = session
    shown, result = run(shell, "small")
    session.stop()
    assert result.success and "small: " in shown and "configurations" in shown and "<" not in shown


def test_list_show_and_stop(shell: InteractiveShell, calls: Calls) -> None:
    assert "no sessions" in run(shell, "%mirage list")[0]
    run(shell, f"%%mirage first\n{PROGRAM}")
    run(shell, f"%%mirage second\n{PROGRAM}")
    shown, _ = run(shell, "%mirage list")
    assert "first: running" in shown and "second: running" in shown
    assert "second: stopped" in run(shell, "%mirage stop second")[0]
    assert "first: running" in run(shell, "%mirage show first")[0]


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("%mirage lst", "unknown command 'lst'", "did you mean list?"),
        ("%mirage stop", "which session?", "there are none"),
        ("%mirage show fusd", "no session is named 'fusd'", "did you mean fused?"),
        ("%mirage help rmsnorm", "unknown function 'rmsnorm'", "did you mean rms_norm?"),
        ("%mirage extend fused --effrt quick", "unknown option '--effrt'", "did you mean --effort?"),
        ("%mirage extend fused --seconds -3", "--seconds -3: not SECONDS", "above 0"),
        ("%mirage stop fused --now", "unknown option '--now'", "it takes no options"),
        ("%mirage compare fused best", "compare needs NAME DIGEST DIGEST", "%mirage compare NAME DIGEST DIGEST"),
        ("%mirage compare fused best zz", "no µGraph begins with 'zz'", "one of best"),
        ("%mirage export fused a b", "export takes 2 words, not 3", "%mirage export NAME FILE"),
        ("%mirage load 3x", "'3x' cannot be a variable", "mirage_nb.resume"),
        ("%mirage fused --effort quick", "unknown command 'fused'", "the verb comes first, as in %mirage show fused"),
        ("%mirage LIST", "unknown command 'LIST'", "did you mean list?"),
        ("%mirage source", "unknown command 'source'", "in Python: NAME.best.source"),
        ("%mirage xyzzy", "unknown command 'xyzzy'", "searches start with %%mirage NAME and a program"),
        ("%mirage submit fused nope", "'nope' is neither a µGraph of the list nor a variable", "the text of one"),
        ("%mirage submit fused number", "'number' holds a value of type int", "print_graph(NAME.best.graph)"),
        ("%mirage pin fused", "pin needs NAME DIGEST", "%mirage pin NAME DIGEST"),
    ],
)
def test_mistakes_of_the_line_magic(shell: InteractiveShell, line: str, message: str, hint: str) -> None:
    shell.user_ns["number"] = 5
    if "fus" in line:
        shell.user_ns["fused"] = ended()
    shown, result = run(shell, line)
    assert isinstance(result.error_in_exec, OptionError)
    assert message in shown and hint in shown and "Traceback" not in shown
    lines = shown.splitlines()
    place = next(n for n, text in enumerate(lines) if f"line 1: {line}" in text)
    word = message.split("'")[1] if "'" in message else ""
    assert lines[place][lines[place + 1].index("^") :].startswith(word)


def test_bounds_that_are_lower_are_told_by_the_name_of_the_option(shell: InteractiveShell) -> None:
    def refuse(**given: object) -> None:
        raise OptionError("max_block_ops: 1 is less than 24", hint="bounds can only be raised")

    shell.user_ns["fused"] = fused = ended()
    fused.extend = refuse
    shown, _ = run(shell, "%mirage extend fused --block-ops 1")
    assert "--block-ops: 1 is less than 24\n  line 1: %mirage extend fused --block-ops 1\n" in shown


def test_what_is_excluded_is_included_again_by_its_digest(shell: InteractiveShell) -> None:
    session = mirage_nb.pipeline.superoptimize("X: f16[4, 8]\nreturn exp(X)", name="small", effort="quick")
    session.result()
    shell.user_ns["small"] = session
    digest = session.best.candidate.digest[:8]
    shown, _ = run(shell, "%mirage exclude small best")
    assert f"%mirage include small {digest} undoes it" in shown and f"  {digest}" not in shown
    with pytest.raises(NoKernelError, match="what was executed is excluded"):
        _ = session.best
    assert f"  {digest}" in run(shell, f"%mirage include small {digest}")[0]
    assert session.best.candidate.digest.startswith(digest)
    assert "line 1: %mirage export small /dev/null/a\n" in run(shell, "%mirage export small /dev/null/a")[0]


def test_help_covers_the_language_and_each_function(shell: InteractiveShell) -> None:
    shown, _ = run(shell, "%mirage help")
    assert all(verb.usage in shown and verb.doc in shown for verb in VERBS.values())
    assert "%%mirage NAME" in shown and all(row.signature in shown for row in FUNCTIONS.values())
    alone, _ = run(shell, "%mirage")  # the language takes some hundred lines more
    assert all(verb.usage in alone for verb in VERBS.values()) and len(alone.splitlines()) < 60 < shown.count("\n")
    for row in FUNCTIONS.values():
        one, _ = run(shell, f"%mirage help {row.name}")
        assert row.signature in one and row.example in one


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_verb_has_help_and_stands_in_the_docstring(shell: InteractiveShell, verb: Verb) -> None:
    if verb.name not in ("help", "list"):
        shown, _ = run(shell, f"%mirage help {verb.name}")
        assert verb.usage in shown and all(option.doc in shown for option in verb.options)
    assert f"%mirage {verb.name}" in (shell.find_line_magic("mirage").__doc__ or "")


def ended() -> FakeSession:
    session = FakeSession(0.01)
    session.result()
    return session


def test_extend_and_tune_hand_their_options_on(shell: InteractiveShell) -> None:
    session = shell.user_ns["fused"] = ended()
    run(shell, "%mirage extend fused --effort standard --seconds=4 --block-ops 9")
    session.stop()
    run(shell, "%mirage tune fused --seconds 2")
    run(shell, "%mirage extend fused --without-axiom sum_div --without-pruning oracle")
    session.stop()
    said = [name for name, _ in session.calls]
    assert said[:3] == ["extend {'effort': 'standard', 'seconds': 4.0, 'max_block_ops': 9}", "stop", "tune 2.0"]
    assert "'axioms': {'sum_div': False}, 'prunings': {'oracle': False}" in said[3]
    run(shell, "%mirage extend fused --blocks 8:64")
    run(shell, "%mirage extend fused --loop :4 --without-operator Accum-concat")
    assert session.limits == Limits(blocks=(8, 64), loop=(1, 4), without=frozenset({"Accum concat"}))


def test_compare_show_and_explain_speak_text_in_a_terminal(shell: InteractiveShell) -> None:
    session = shell.user_ns["fused"] = ended()
    second = session.snapshot().candidates[1].digest[:8]
    shown, _ = run(shell, f"%mirage compare fused best {second}")
    assert "!= kernels" in shown and second in shown and "+" in shown
    assert "mugraph 1" in run(shell, "%mirage show fused best")[0]
    assert "1 kernels <in all>" in run(shell, "%mirage explain fused best")[0]
    shell.user_ns["mine"] = session.snapshot().candidates[0].graph
    assert "field" in run(shell, "%mirage submit fused mine")[0]


def test_pin_exclude_and_export(shell: InteractiveShell, tmp_path: Path) -> None:
    session = shell.user_ns["fused"] = ended()
    session.winners, session.baselines, session.program = (), (), parse(PROGRAM)
    first = session.snapshot().candidates[0].digest
    run(shell, f"%mirage pin fused {first[:8]}")
    assert session.pinned == {first}
    run(shell, f"%mirage exclude fused {first[:8]}")
    assert session.excluded == {first}
    shown, result = run(shell, f"%mirage export fused {tmp_path / 'a.html'}")
    assert result.success and "KB" in shown
    assert (tmp_path / "a.html").read_text(encoding="utf-8").endswith("</html>")


def test_stored_sessions_are_listed_and_loaded(shell: InteractiveShell, tmp_path: Path, monkeypatch: Any) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(mirage_nb, "resume", lambda name, **o: asked.append((name, o)) or ended(), raising=False)
    run(shell, f"%mirage load mine --store {tmp_path / 's.db'}")
    assert asked == [("mine", {"store": str(tmp_path / "s.db")})]
    assert "mine: finished" in run(shell, "%mirage list")[0]
    shown, result = run(shell, f"%mirage stored --store {tmp_path / 's.db'}")
    assert result.success and "nothing is stored" in shown


def test_keep_and_fresh_reach_the_store(shell: InteractiveShell, calls: Calls) -> None:
    run(shell, f"%%mirage fused --keep\n{PROGRAM}")
    run(shell, f"%%mirage fused --fresh\n{PROGRAM}")
    given = [{k: o.get(k) for k in ("store", "fresh")} for _, o in calls.seen]
    assert given == [{"store": True, "fresh": False}, {"store": True, "fresh": True}]


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
        ("%mirage help ex", {"exp", "extend", "export"}, {"softmax"}),
        ("%mirage extend f", {"fused"}, {"first_number"}),
        ("%mirage extend fused --", {"--effort", "--seconds", "--block-ops"}, {"--budget"}),
        ("%mirage extend fused --effort s", {"standard"}, {"quick"}),
        ("%mirage extend fused --without-axiom sum_", {"sum_div", "sum_mul"}, {"sum_one", "sum_sum"}),
        ("%%mirage fused --without-axiom sum_div --wi", {"--without-axiom", "--with-pruning"}, {"--wait"}),
        ("%mirage compare fused b", {"best"}, {"--effort"}),
        ("%mirage load --", {"--store"}, {"--seconds"}),
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
    assert view.wait(30)


FAILING = """
from mirage_nb import Store, parse
from mirage_nb.pipeline import superoptimize
def below(): return parse("X: f16[2]\\nreturn rms_nrm(X)")
"""
MISTAKES = {
    "a function": ("below()", ("UnknownNameError: ", "line 2: return rms_nrm(X)", "^^^^^^^", "hint: ")),
    "an option": ("superoptimize('X: f16[2]\\nreturn exp(X)', effort='huge')", ("OptionError: ", "hint: ")),
    "a method": ("Store('/proc/nowhere/s').load('x')\nStore('/proc').save('x', None, (), None)", ("StoreError: ",)),
}


@pytest.mark.parametrize("how", MISTAKES)
def test_mistakes_outside_of_the_magics_are_as_short(how: str, shell: InteractiveShell) -> None:
    cell, wanted = MISTAKES[how]
    run(shell, FAILING)
    shown, result = run(shell, cell)
    assert isinstance(result.error_in_exec, MirageError)
    assert all(part in shown for part in wanted) and shown.count("\n") <= 4
    assert "Traceback" not in shown and "File " not in shown and "below" not in shown.partition("line 2")[0]


def test_the_chain_of_calls_is_shown_on_request(shell: InteractiveShell) -> None:
    run(shell, FAILING)
    run(shell, "below()")
    shown, _ = run(shell, "%tb")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "Traceback" in plain and "in below()" in plain and "UnknownNameError" in plain


def test_ctrl_c_while_a_session_is_waited_for_is_as_short(shell: InteractiveShell) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child of a background job would ignore it
    session = superoptimize(LONG)
    shell.user_ns["session"] = session
    try:
        threading.Timer(0.5, _thread.interrupt_main).start()
        shown, result = run(shell, "session.result()")
        assert isinstance(result.error_in_exec, KeyboardInterrupt) and session.snapshot().state is State.RUNNING
        assert shown.startswith("KeyboardInterrupt: the session goes on in the background") and shown.count("\n") <= 2
        assert "Background.wait" in run(shell, "%tb")[0].replace("\x1b", "")
    finally:
        session.stop()
        signal.signal(signal.SIGINT, before)
    shown, _ = run(shell, "raise KeyboardInterrupt")
    assert "Traceback" in shown and "the session" not in shown


def test_other_mistakes_are_as_ever_and_unloading_leaves_nothing() -> None:
    shell = InteractiveShell.instance()
    seen: list[str] = []

    def theirs(shell: Any, kind: type, error: BaseException, trace: Any, tb_offset: Any = None) -> list[str]:
        seen.append(kind.__name__)
        return []

    try:
        shell.set_custom_exc((LookupError,), theirs)
        before = shell.custom_exceptions, shell.CustomTB
        for _ in range(2):
            mirage_magics.load_ipython_extension(shell)
        run(shell, "{}['x']")
        assert seen == ["KeyError"], "another handler has its own"
        assert "ZeroDivisionError" in run(shell, "1 / 0")[0] and "Traceback" in run(shell, "1 / 0")[0]
        mirage_magics.unload_ipython_extension(shell)
        assert (shell.custom_exceptions, shell.CustomTB) == before
        run(shell, FAILING)
        assert "Traceback" in run(shell, "below()")[0]
        mirage_magics.unload_ipython_extension(shell)
    finally:
        InteractiveShell.clear_instance()
