"""Everything for everybody: names, keys, focus, roles and contrast of the views, with all that opens opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("anywidget")

from mirage_nb.viz.tree import key
from mirage_nb.widgets import SessionView
from tests.browser.fake_session import FakeSession, prefixes, rejected, snapshot
from tests.browser.test_bare_page import HOSTS, Host, mount
from tests.browser.test_lab_tuning import CONTRAST, UNNAMED

pytestmark = pytest.mark.browser

FOCUSABLE = "a[href],button,input,select,textarea,summary,[tabindex]"
ROLES = """() => {
  const wrong = [];
  const say = (why, node) => wrong.push(`${why}: ${node.outerHTML.slice(0, 90)}`);
  const all = [...document.querySelectorAll('#live *')].filter((n) => n.checkVisibility());
  for (const node of all) {
    const role = node.getAttribute('role');
    if (['button', 'img', 'progressbar'].includes(role) && node.querySelector('[tabindex],button,input,summary')) {
      say('a control within a control', node);
    }
    if (['img', 'group', 'toolbar', 'region', 'progressbar'].includes(role) && !node.getAttribute('aria-label')) {
      say('a part without a name', node);
    }
    if (node.hasAttribute('aria-selected')) say('selected, but no option of a list', node);
    const style = getComputedStyle(node);
    const scrolls = /auto|scroll/.test(style.overflow) && node.scrollHeight > node.clientHeight + 1;
    if (scrolls && node.tabIndex < 0 && !node.querySelector('FOCUSABLE')) say('scrolls by mouse alone', node);
    if (node.tagName === 'TH' && !node.textContent.trim()) say('a head without words', node);
  }
  const ids = all.map((n) => n.id).filter(Boolean);
  if (new Set(ids).size !== ids.length) wrong.push('an id twice');
  return wrong;
}""".replace("FOCUSABLE", FOCUSABLE)
NUMBER = """() => {
  const found = [...document.querySelectorAll('#live :is(FOCUSABLE)')]
      .filter((n) => n.checkVisibility() && !n.disabled && n.tabIndex >= 0 && n.type !== 'hidden');
  found.forEach((n, i) => { n.dataset.number = i; });
  return found.length;
}""".replace("FOCUSABLE", FOCUSABLE)
FOCUS = """() => {
  const node = document.activeElement;
  const style = getComputedStyle(node);
  const ring = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
  return [Number(node.dataset.number ?? -1), ring, node.outerHTML.slice(0, 90)];
}"""


@pytest.fixture
def view() -> SessionView:
    """A view with everything chosen that can be."""
    view = SessionView(FakeSession(0.01))
    assert view.wait(30)
    first, second = (c.digest for c in snapshot().candidates[:2])
    for content in (
        {"choose": f"rejected:{rejected()[1].digest}"},
        {"choose": f"prefix:{key(prefixes()[4])}"},
        {"do": "compare", "digest": first},
        {"choose": f"candidate:{second}"},
    ):
        view._handle_custom_msg(content, [])
    return view


def shown(tab: Any, host: Host, view: SessionView) -> None:
    mount(tab, host, view)
    tab.wait_for_selector("#live .mir-explorer.mir-ready")
    tab.evaluate("document.querySelectorAll('#live details').forEach((n) => { n.open = true; })")


@pytest.mark.parametrize("host", [HOSTS[0], HOSTS[3]], ids=lambda host: host.name)
def test_roles_names_and_contrast(new_page: Callable[..., Any], view: SessionView, host: Host) -> None:
    tab = new_page(1280, host.dark)
    shown(tab, host, view)
    assert tab.evaluate(ROLES) == []
    assert tab.evaluate(UNNAMED) == []
    assert tab.evaluate(CONTRAST) == {}


def test_the_check_of_roles_sees_what_is_wrong(new_page: Callable[..., Any]) -> None:
    tab = new_page(1280)
    tab.set_content(
        "<div id='live'><span role='button'><input></span><svg role='img'></svg><b aria-selected='true'>x</b>"
        "<div style='height:9px;overflow:auto'><p>x</p></div><table><tr><th></th></tr></table></div>"
    )
    assert [text.partition(":")[0] for text in tab.evaluate(ROLES)] == [
        "a control within a control", "a part without a name", "selected, but no option of a list",
        "scrolls by mouse alone", "a head without words",
    ]  # fmt: skip


def test_the_tab_key_reaches_every_control_and_the_focus_is_seen(
    new_page: Callable[..., Any], view: SessionView
) -> None:
    tab = new_page(1280)
    shown(tab, HOSTS[2], view)
    count = tab.evaluate(NUMBER)
    assert count > 60
    reached: set[int] = set()
    unseen = []
    tab.evaluate("document.body.focus()")
    for _ in range(count + 5):
        tab.keyboard.press("Tab")
        number, ring, html = tab.evaluate(FOCUS)
        reached.add(number)
        if not ring:
            unseen.append(html)
    missing = set(range(count)) - reached
    names = tab.evaluate(
        "ns => ns.map((n) => document.querySelector(`[data-number='${n}']`).outerHTML.slice(0, 90))", sorted(missing)
    )
    assert names == [] and [html for html in unseen if "<body" not in html] == []
