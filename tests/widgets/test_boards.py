"""Boards: a box for everything that can be turned, and only what was turned reaches the session."""

from __future__ import annotations

from html import escape

import pytest

pytest.importorskip("anywidget")

from mirage_nb.search import EFFORTS, OPERATORS, Limits, switched
from mirage_nb.search.session.progress import State
from mirage_nb.widgets.actions import Actions, controls_html
from mirage_nb.widgets.boards import MARK, SWITCHES, boards_html
from tests.browser.fake_session import FakeSession
from tests.viz.test_viz_html import read
from tests.widgets.test_actions import Plain, called


@pytest.fixture
def session() -> FakeSession:
    session = FakeSession(0.01)
    session.result()
    return session


def untouched(session: FakeSession) -> dict[str, str]:
    """What the form sends of boards that nobody touched."""
    boxes = [f"{k}.{s}" for k, table in SWITCHES.items() for s in table if session.switches[s]]
    boxes += [f"operators.{name}" for name in OPERATORS if name not in session.limits.without]
    return {"do": "extend", MARK: "1", "grid_dims": "3", "blocks.least": "", "blocks.most": "", "loop.least": "",
            "loop.most": "", **dict.fromkeys(boxes, "on")}  # fmt: skip


def test_every_axiom_and_pruning_has_a_box_that_says_what_it_does(session: FakeSession) -> None:
    html = boards_html(session)
    read(html)
    for keyword, table in SWITCHES.items():
        for switch in table.values():
            box = html.partition(f"name='{keyword}.{switch.name}'")[2].partition(">")[0]
            assert ("checked" in box) == switched(EFFORTS["quick"])[switch.name]
            assert ("disabled" in box) == bool(switch.fixed)
            assert escape(switch.says) in html and escape(switch.fixed) in html
    assert "14 of 15 on" in html
    assert html.count("name='operators.") == len(OPERATORS)


def test_boards_that_nobody_touched_change_nothing(session: FakeSession) -> None:
    session.limits = Limits(2, (1, 64), (2, None), frozenset({"Accum concat"}))
    sent = untouched(session) | {"grid_dims": "2", "blocks.most": "64", "loop.least": "2"}
    assert "the same bounds" in Actions(session).perform(sent).html
    assert "limits" not in called(session)[0]


def test_only_switches_that_were_turned_reach_the_session(session: FakeSession) -> None:
    sent = untouched(session)
    del sent["axioms.sum_div"], sent["prunings.oracle"]
    sent["axioms.sqrt_product"] = "on"
    answer = Actions(session).perform(sent)
    assert "sum_div off, sqrt_product on, oracle off" in answer.html
    assert "'axioms': {'sum_div': False, 'sqrt_product': True}, 'prunings': {'oracle': False}" in called(session)[0]
    assert "14 of 15 on" in controls_html(Actions(session), State.FINISHED)


def test_limits_reach_the_session_and_stand_in_the_fields(session: FakeSession) -> None:
    sent = untouched(session) | {"grid_dims": "2", "blocks.least": "8", "blocks.most": "264", "loop.most": "16"}
    del sent["operators.Accum concat"]
    answer = Actions(session).perform(sent)
    assert session.limits == Limits(2, (8, 264), (1, 16), frozenset({"Accum concat"}))
    assert "only blocks from 8 to 264" in answer.html and "Accum concat is not allowed" in answer.html
    html = boards_html(session)
    assert "name='blocks.most' value='264'" in html and f"{len(OPERATORS) - 1} of {len(OPERATORS)} allowed" in html


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"blocks.most": "many"}, "whole number"), ({"blocks.least": "9", "blocks.most": "3"}, "from 9 to 3"),
     ({"grid_dims": "7"}, "0 to 3"), ({"loop.least": "-4"}, "from -4")],
)  # fmt: skip
def test_impossible_limits_are_refused_with_a_message(
    session: FakeSession, fields: dict[str, str], message: str
) -> None:
    answer = Actions(session).perform(untouched(session) | fields)
    assert "role='alert'" in answer.html and message in answer.html
    assert called(session) == []


def test_a_session_that_takes_none_has_no_boards() -> None:
    assert boards_html(Plain()) == ""
