"""The widgets in a page that is no JupyterLab: as VS Code and the classic notebook show them, without Lumino.

The module of a view is imported as it stands and handed a model of a few lines, which is all that an
anywidget host promises. VS Code's page has its own colour variables beside light ones of Jupyter's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anywidget")
pytest.importorskip("matplotlib")

from mirage_nb.ir.text import parse_graph
from mirage_nb.lang import parse
from mirage_nb.targets import find_target
from mirage_nb.viz.explorer import explorer_page
from mirage_nb.widgets import ExplorerView, SessionView
from tests.browser.conftest import OPEN
from tests.browser.fake_session import FakeSession, rejected
from tests.browser.test_lab_tuning import CONTRAST, UNNAMED
from tests.browser.test_pages import OUTSIDE
from tests.viz.mugraph_samples import split_attention
from tests.viz.test_viz_plots import all_figures, contrast

pytestmark = pytest.mark.browser

JUPYTER_LIGHT = {
    "--jp-content-font-color1": "rgba(0,0,0,0.87)",
    "--jp-content-font-color2": "rgba(0,0,0,0.54)",
    "--jp-layout-color1": "white",
    "--jp-border-color1": "#bdbdbd",
}
VSCODE_DARK = {
    "--vscode-editor-background": "#1f1f1f",
    "--vscode-editor-foreground": "#cccccc",
    "--vscode-descriptionForeground": "#9d9d9d",
    "--vscode-panel-border": "#2b2b2b",
    "--vscode-font-family": "'DejaVu Sans',sans-serif",
}
VSCODE_LIGHT = {
    "--vscode-editor-background": "#ffffff",
    "--vscode-editor-foreground": "#3b3b3b",
    "--vscode-descriptionForeground": "#5f5f5f",
    "--vscode-panel-border": "#e5e5e5",
    "--vscode-font-family": "'DejaVu Sans',sans-serif",
}


@dataclass(frozen=True)
class Host:
    """A page that shows widgets: its variables, whether its reader's scheme is dark, where outputs stand, and the
    ground that a view has to have there."""

    name: str
    variables: dict[str, str]
    dark: bool
    outputs: str
    ground: str


HOSTS = (
    Host("vscode-dark", JUPYTER_LIGHT | VSCODE_DARK, True, "cell_container", "rgb(31, 31, 31)"),
    Host("vscode-dark-by-day", JUPYTER_LIGHT | VSCODE_DARK, False, "cell_container", "rgb(31, 31, 31)"),
    Host("vscode-light", JUPYTER_LIGHT | VSCODE_LIGHT, False, "cell_container", "rgb(255, 255, 255)"),
    Host("classic", {}, False, "output", "rgb(255, 255, 255)"),
    Host("classic-dark", {}, True, "output", "rgb(22, 24, 28)"),
)

MOUNT = """async ([esm, values]) => {
  const heard = {};
  window.sent = [];
  window.model = {
    get: (name) => values[name],
    set: (name, value) => { values[name] = value; for (const told of heard[`change:${name}`] ?? []) told(); },
    on: (event, told) => { (heard[event] ??= []).push(told); },
    off: (event, told) => { heard[event] = (heard[event] ?? []).filter((one) => one !== told); },
    send: (content) => window.sent.push(content),
    save_changes: () => {},
  };
  window.listeners = () => Object.values(heard).flat().length;
  const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  const { default: widget } = await import(url);
  window.unmount = widget.render({ model, el: document.querySelector("#live") });
}"""


def mount(tab: Any, host: Host, view: Any) -> None:
    """Show a view, and its static form beside it, as the host does."""
    variables = "".join(f"{name}:{value};" for name, value in host.variables.items())
    ground = "var(--vscode-editor-background,transparent)"
    tab.set_content(
        "<!DOCTYPE html><html lang='en'><meta name='color-scheme' content='light dark'><title>a cell</title>"
        f"<style>:root{{{variables}}}body{{margin:12px;background:{ground}}}</style><style>{view._css}</style>"
        f"<body class='{host.name}'><div class='{host.outputs}'><div id='live'></div>"
        f"<div>{view._repr_mimebundle_()[0]['text/html']}</div></div></body></html>"
    )
    values = {name: value for name, value in view.get_state().items() if isinstance(value, str)}
    tab.evaluate(MOUNT, [view._esm, values])


@pytest.fixture
def view() -> SessionView:
    view = SessionView(FakeSession(0.01))
    assert view.wait(3)
    return view


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_the_view_stands_in_any_host(
    new_page: Callable[..., Any], view: SessionView, host: Host, tmp_path: Path
) -> None:
    tab = new_page(1280, host.dark)
    mount(tab, host, view)
    tab.wait_for_selector("#live .mir-explorer.mir-ready")
    assert tab.evaluate("getComputedStyle(document.querySelector('#live .mir-view')).backgroundColor") == host.ground
    assert tab.evaluate(CONTRAST) == {}
    assert tab.evaluate(UNNAMED) == []
    assert tab.evaluate(OUTSIDE) == []
    assert tab.locator(".mir-static:visible").count() == 0, "the static form hides beside the live one"
    tab.screenshot(path=tmp_path / f"{host.name}.png", full_page=True)


def test_it_talks_through_the_model_alone_and_leaves_nothing(new_page: Callable[..., Any], view: SessionView) -> None:
    tab = new_page(1280)
    mount(tab, HOSTS[0], view)
    tab.wait_for_selector("#live .mir-explorer.mir-ready")
    tab.evaluate(OPEN)
    tab.locator(f"#live [data-choose='rejected:{rejected()[1].digest}']").click()
    tab.locator("#live form[data-do=extend] [name=seconds]").fill("3")
    tab.locator("#live form[data-do=extend] button").click()
    tab.locator("#live [data-do=pin]").click()
    sent = tab.evaluate("window.sent")
    assert sent[0] == {"choose": f"rejected:{rejected()[1].digest}"}
    assert sent[1]["do"] == "extend" and sent[1]["seconds"] == "3"
    assert sent[2]["do"] == "pin"
    tab.evaluate("model.set('header', '<p id=fresh>told</p>')")
    assert tab.inner_text("#live #fresh") == "told"
    assert tab.evaluate("window.listeners()") > 0
    tab.evaluate("window.unmount()")
    assert tab.evaluate("window.listeners()") == 0


def test_a_search_is_stepped_through_forwards_and_backwards(
    new_page: Callable[..., Any], view: SessionView, tmp_path: Path
) -> None:
    for width, host in ((1280, HOSTS[0]), (1920, HOSTS[3])):
        tab = new_page(width, host.dark)
        mount(tab, host, view)
        tab.wait_for_selector("#live .mir-explorer.mir-ready")
        tab.evaluate(OPEN)
        tab.locator("#live [data-choose='steps:loop over b']").click()
        assert tab.evaluate("window.sent.at(-1)") == {"choose": "steps:loop over b"}
        view._receive(None, {"choose": "steps:loop over b"}, None)
        view._show(view._session.snapshot(), slow=True, rare=True)
        tab.evaluate("(html) => model.set('steps', html)", view.steps)
        stepper = tab.locator("#live .mir-stepper.mir-ready")
        told, shown = stepper.locator("output"), stepper.locator(".mir-step-events > li:visible")
        for _ in range(4):
            stepper.locator("[data-step=next]").click()
        assert told.inner_text().startswith("event 5 of ") and shown.count() == 1
        assert "no term has 2·X" in shown.inner_text() and "pruned: expression" in shown.inner_text()
        assert stepper.locator("[data-count=kept]").inner_text() == "4"
        assert stepper.locator("[data-only].mir-now").count() == 1 and stepper.locator(".mir-read").count() == 1
        stepper.locator("[data-step=back]").click()
        assert told.inner_text().startswith("event 4 of ") and stepper.locator("[data-count=kept]").inner_text() == "4"
        assert stepper.locator("[data-born].mir-now title").first.text_content() == "Matmul: Σb X·W"
        tab.evaluate("(html) => model.set('steps', html + ' ')", view.steps)
        assert told.inner_text().startswith("event 4 of "), "a section that is drawn anew goes on where it was"
        tab.screenshot(path=tmp_path / f"steps-{host.name}-{width}.png", full_page=True)
        assert tab.evaluate(OUTSIDE) == [] and tab.evaluate(UNNAMED) == [] and tab.evaluate(CONTRAST) == {}
        tab.close()


TEXT = "X: f16[16, 64]\nW: f16[64, 64]\nE = exp(X)\nreturn E @ W"
FUSED = """mugraph 1
input %0 X f16[16, 64]
input %1 W f16[64, 64]
%2 = Graph(%0, %1) grid=[2] loop=4 {
  %0 = InIter arg=0 imap=[*] fmap=1
  %1 = InIter arg=1 imap=[1] fmap=0
  %2 = EwExp(%0)
  %3 = Matmul(%2, %1)
  %4 = Accum(%3) kind=sum
  OutSaver(%4) omap=[1]
}
output %2 O
"""


def test_program_picture_and_source_light_each_other(new_page: Callable[..., Any], tmp_path: Path) -> None:
    tab = new_page(1280)
    tab.set_content(explorer_page(parse_graph(FUSED), find_target("h200"), program=parse(TEXT)))
    tab.wait_for_selector(".mir-explorer.mir-ready")
    line = "document.querySelectorAll('.mir-program .mir-line')"
    for number, operator in ((2, "EwExp"), (3, "Matmul")):
        tab.locator(".mir-program .mir-line").nth(number).hover()
        lit = tab.evaluate("[...document.querySelectorAll('.mir-canvas .mir-lit > title')].map((t) => t.textContent)")
        assert any(operator in title for title in lit), (operator, lit)
        assert tab.locator(".mir-source .mir-lit").count() > 0
    tab.evaluate(f"{line}.forEach((node) => node.classList.remove('mir-lit'))")
    tab.locator(".mir-canvas [data-op='0.2']").hover()
    assert tab.evaluate(f"[...{line}].map((node) => node.classList.contains('mir-lit'))")[2]
    tab.locator(".mir-source .mir-line[data-ops*='0.3']").last.hover()
    assert tab.evaluate(f"[...{line}].map((node) => node.classList.contains('mir-lit'))")[3]
    tab.screenshot(path=tmp_path / "three.png", full_page=True)


@pytest.mark.parametrize("host", [HOSTS[0], HOSTS[2]], ids=lambda host: host.name)
def test_the_explorer_stands_alone_too(new_page: Callable[..., Any], host: Host, tmp_path: Path) -> None:
    tab = new_page(1280, host.dark)
    mount(tab, host, ExplorerView(split_attention()))
    tab.wait_for_selector("#live .mir-explorer.mir-ready")
    box = "document.querySelector('#live .mir-canvas svg').getAttribute('viewBox')"
    before = tab.evaluate(box)
    tab.locator("#live [data-zoom=in]").click()
    assert tab.evaluate(box) != before
    assert tab.evaluate(CONTRAST) == {} and tab.evaluate(OUTSIDE) == []
    tab.screenshot(path=tmp_path / f"{host.name}.png", full_page=True)


FIGURES = """() => [...document.querySelectorAll('.mir-plot')].map((plot) => {
  const svg = plot.querySelector('svg');
  const ground = getComputedStyle(document.body).backgroundColor;
  const inks = [...svg.querySelectorAll('g:has(> use), g > text')].map((n) => getComputedStyle(n).fill);
  const box = svg.getBoundingClientRect();
  return {
    ground, inks: [...new Set(inks)], png: getComputedStyle(plot.querySelector('img')).display,
    wide: box.right <= document.body.clientWidth + 12, high: box.height > 60,
  };
})"""


@pytest.fixture(scope="module")
def figures() -> list[str]:
    """As a notebook shows them."""
    return [figure._repr_mimebundle_()["text/html"] for figure in all_figures().values()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_figures_stand_on_any_ground(
    new_page: Callable[..., Any], host: Host, figures: list[str], tmp_path: Path
) -> None:
    tab = new_page(1280, host.dark)
    variables = "".join(f"{name}:{value};" for name, value in host.variables.items())
    tab.set_content(
        f"<!DOCTYPE html><html lang='en'><style>:root{{{variables}}}body{{background:{host.ground}}}</style>"
        f"<body class='{host.name}'>{''.join(figures)}</body></html>"
    )
    seen = tab.evaluate(FIGURES)
    tab.screenshot(path=tmp_path / "figures.png", full_page=True)
    assert len(seen) == len(figures)
    for figure in seen:
        assert figure["png"] == "none" and figure["wide"] and figure["high"]
        ground, *inks = (channels(colour) for colour in (figure["ground"], *figure["inks"]))
        assert max(contrast(hex_of(over(ink, ground)), hex_of(ground)) for ink in inks) > 7, figure


def channels(colour: str) -> tuple[float, ...]:
    """Red, green, blue, and opacity, each of 0 to 1."""
    values = [float(x) for x in re.findall(r"[\d.]+", colour)]
    return (*(value / 255 for value in values[:3]), values[3] if len(values) > 3 else 1.0)


def hex_of(colour: tuple[float, ...]) -> str:
    """As #rrggbb."""
    return "#" + "".join(f"{round(255 * value):02x}" for value in colour[:3])


def over(ink: tuple[float, ...], ground: tuple[float, ...]) -> tuple[float, ...]:
    """The colour that is seen where a translucent one lies on another."""
    return tuple(ink[3] * a + (1 - ink[3]) * b for a, b in zip(ink[:3], ground[:3], strict=True))


BOOTSTRAP = "summary{display:block}label{display:inline-block;max-width:100%;margin-bottom:5px;font-weight:700}"
"""What the classic notebook says of all pages."""


def test_rules_of_the_page_do_not_hide_what_opens(new_page: Callable[..., Any], view: SessionView) -> None:
    tab = new_page(1280)
    mount(tab, HOSTS[3], view)
    tab.add_style_tag(content=BOOTSTRAP)
    looks = "(s) => [...document.querySelectorAll(s)].map((n) => getComputedStyle(n))"
    assert set(tab.evaluate(f"({looks})('#live summary').map((s) => s.display)")) == {"list-item"}
    assert set(tab.evaluate(f"({looks})('#live label').map((s) => s.fontWeight + ' ' + s.marginBottom)")) == {"400 0px"}
