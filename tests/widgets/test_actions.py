"""Forms and buttons: enabled exactly when the session can, read with care, mistakes shown and not raised."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("anywidget")

from mirage_nb.ir.text import print_graph
from mirage_nb.search.session.progress import State
from mirage_nb.verify.verdict import VerdictKind
from mirage_nb.widgets.actions import Actions, candidate_buttons, controls_html, editor_html, steer_html
from mirage_nb.widgets.boards import MARK
from tests.browser.fake_session import FakeSession
from tests.viz.mugraph_samples import rmsnorm_fused
from tests.viz.test_viz_html import read

FORMS = ("extend", "tune")


class Plain:
    """A session that can only be watched and steered."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def stop(self) -> None:
        self.said.append("stop")

    pause = resume = stop


def called(session: FakeSession) -> list[str]:
    return [name for name, _ in session.calls]


@pytest.mark.parametrize("state", State)
def test_controls_fit_what_the_session_can_do_now(state: State) -> None:
    live = state in (State.WAITING, State.RUNNING, State.PAUSED)
    for session, able in ((FakeSession(0.01), True), (Plain(), False)):
        html = controls_html(Actions(session), state)
        read(html)
        assert ("data-do='stop'" in steer_html(state)) == live
        assert ("data-do='resume'" in steer_html(state)) == (state is State.PAUSED)
        assert "<details class='mir-fold mir-tuning'>" in html, "closed: results come first"
        forms = {name: html.partition(f"data-do='{name}'")[2].partition("</form>")[0] for name in FORMS}
        off = {name: "<button type='submit' class='mir-button' disabled" in form for name, form in forms.items()}
        assert off == {"extend": not able, "tune": not able or live}


def test_a_field_appears_only_if_the_method_takes_it() -> None:
    class Narrow(Plain):
        def extend(self, *, seconds: float | None = None) -> None:
            self.said.append(f"{seconds}")

    session = Narrow()
    html = controls_html(Actions(session), State.FINISHED)
    form = html.partition("data-do='extend'")[2].partition("</form>")[0]
    assert "name='seconds'" in form and "name='effort'" not in form and "checkbox" not in form
    Actions(session).perform({"do": "extend", "seconds": "3", MARK: "1", "effort": "quick"})
    assert session.said == ["3.0"]


def test_what_a_field_says_anyway_is_not_sent_and_another_target_is() -> None:
    session = FakeSession(0.01)
    session.result()
    actions = Actions(session)
    said = {"do": "extend", **actions.now()}
    assert said["target"] == "h200" and "the same bounds" in actions.perform(said).html
    assert "continues with target a100" in actions.perform({**said, "target": "a100"}).html
    assert session.target.name == "a100" and "<option selected>a100" in controls_html(actions, State.FINISHED)


def test_filled_fields_reach_the_session_and_empty_ones_do_not() -> None:
    session = FakeSession(0.01)
    session.result()
    answer = Actions(session).perform({"do": "extend", "effort": "standard", "max_block_ops": " ", "seconds": "2.5"})
    assert "continues with effort standard, seconds 2.5" in answer.html
    assert called(session) == ["extend {'effort': 'standard', 'seconds': 2.5, 'max_block_ops': None}"]


@pytest.mark.parametrize(
    ("name", "field", "text"),
    [("extend", "seconds", "-1"), ("extend", "seconds", "nan"), ("extend", "max_block_ops", "2.5"),
     ("tune", "seconds", "<b>"), ("extend", "max_block_ops", "0")],
)  # fmt: skip
def test_impossible_numbers_are_refused_with_a_message(name: str, field: str, text: str) -> None:
    session = FakeSession(0.01)
    answer = Actions(session).perform({"do": name, field: text})
    assert "role='alert'" in answer.html and "positive number" in answer.html and "<b>" not in answer.html
    assert called(session) == []


def test_a_submitted_mugraph_comes_back_with_its_verdict() -> None:
    actions = Actions(FakeSession(0.01))
    good = actions.perform({"do": "submit", "text": print_graph(rmsnorm_fused())})
    assert good.candidate is not None and good.candidate.verdict.kind is VerdictKind.FIELD
    graph = print_graph(rmsnorm_fused()).partition("%3 = Graph")[0] + "output %0 X\n"
    bad = actions.perform({"do": "submit", "text": graph})
    assert "expected 3, found 4" in bad.html
    broken = actions.perform({"do": "submit", "text": "mugraph 1\ninput %0 X f17[2]\n"})
    assert broken.candidate is None and "role='alert'" in broken.html and "f17" in broken.html


def test_explanations_are_escaped() -> None:
    shown = Actions(FakeSession(0.01)).perform({"do": "explain", "text": print_graph(rmsnorm_fused())}).html
    assert "1 kernels &lt;in all&gt;" in shown


@pytest.mark.parametrize("content", [{}, {"do": "erase"}, {"do": "__class__"}, {"do": ["stop"]}, {"do": "tune"}])
def test_what_a_session_cannot_do_does_nothing(content: Any) -> None:
    session = Plain()
    assert Actions(session).perform(content).html == ""
    assert session.said == []


def test_buttons_and_editor_are_well_formed_and_escaped() -> None:
    actions = Actions(FakeSession(0.01))
    html = candidate_buttons(actions, "a'b", compared=True, pinned=True) + editor_html(actions, "<x>", opened=True)
    read(html)
    assert "a&#x27;b" in html and "&lt;x&gt;" in html and "aria-pressed='true'" in html
    assert editor_html(Actions(Plain()), "", opened=False).count("disabled") == 2
