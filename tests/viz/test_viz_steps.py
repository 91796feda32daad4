"""Steps through a search: every event once, in order, with its rule; and the program beside its muGraph."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html import unescape

import pytest

from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, configurations, instances, prepare
from mirage_nb.search.saturation.events import Outcome
from mirage_nb.search.session.progress import State
from mirage_nb.targets import find_target
from mirage_nb.viz.explorer import CSS, explorer_html
from mirage_nb.viz.program_lines import program_html
from mirage_nb.viz.source import Line, source_html
from mirage_nb.viz.steps import Walkthrough, steps_html, steps_page
from mirage_nb.viz.steps import configurations as walkable
from tests.browser.fake_session import snapshot
from tests.search.explored import explored

TEXT = "X: f16[64, 256]\nY: f16[256, 64]\nE = exp(X)\nZ = E @ Y\nreturn Z"


def test_a_snapshot_gives_its_events_in_order() -> None:
    now = replace(snapshot(), candidates=tuple(replace(c, configuration="loop over b") for c in snapshot().candidates))
    walked = Walkthrough.of(now, "loop over b")
    assert walkable(now) == ("loop over b",) and repr(walked).startswith("<Walkthrough of ")
    page = unescape(steps_html(walked))
    events = re.findall(r"<li data-kind='(\w+)'", page)
    assert len(events) == len(walked) == len(now.prefixes) + len(walked.verified) + len(walked.rejected)
    assert events[-1] == "verified" and {"kept", "merged", "expression", "canonical", "shift"} <= set(events)
    assert [int(n) for n in re.findall(r"value='(\d+)' class", page)] == list(range(1, len(walked) + 1))
    for prefix in now.prefixes:
        assert prefix.reason in page, "the rule is named"
    assert "the value of event 3" in page, "what a merged one is equal to"
    assert [c.operators for c in walked.verified] == sorted(c.operators for c in walked.verified)


def test_a_refuted_mugraph_comes_with_its_witness() -> None:
    now = snapshot()
    refuted = next(one for one in now.rejected if one.verdict.witness is not None)
    walked = Walkthrough("", (), (), (refuted,))
    assert "expected (524289, 17), found (3, 260002)" in unescape(steps_html(walked))


def test_without_events_it_says_so() -> None:
    empty = replace(snapshot(0.0, State.RUNNING), candidates=())
    assert "nothing was met yet" in steps_html(Walkthrough.of(empty)) and not len(Walkthrough.of(empty))


def test_a_real_search_can_be_walked_through() -> None:
    prepared, effort = prepare(parse(TEXT).graph), EFFORTS["quick"]
    looped = next(c for c in configurations(prepared, effort) if c.loop is not None)
    found = explored(prepared, looped, effort)
    walked = Walkthrough(looped.label, found.prefixes)
    bundle = walked._repr_mimebundle_()
    assert "<script type='module'>" in steps_page(walked) and steps_page(walked) in bundle["text/html"]
    pytest.importorskip("resvg_py")
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    kept = sum(prefix.outcome is Outcome.KEPT for prefix in found.prefixes)
    assert len(re.findall(r'data-born="', bundle["text/html"])) == kept


def test_words_numbers_and_comments_of_cuda_have_colours_of_their_own() -> None:
    pytest.importorskip("pygments")
    text = "for (int i = 0; i < 8; ++i) {  // every row\n/* of two\n   lines */ x = a < b;"
    html = source_html([Line(line, (), False) for line in text.split("\n")])
    shown = re.findall(r"<b class='mir-(\w+)'>([^<]*)</b>", html)
    assert {("word", "for"), ("word", "int"), ("number", "8"), ("comment", "// every row")} <= set(shown)
    assert [words for kind, words in shown if kind == "comment"][1:] == ["/* of two", "   lines */"]
    assert unescape(re.sub(r"<i>\d+</i>|<[^>]*>", "", html)).rstrip("\n") == text
    assert all(f"b.mir-{kind}{{" in CSS for kind, _ in shown)


def owners(html: str) -> dict[int, set[str]]:
    """The operators that each line of the program names."""
    lines = re.findall(r"<span class='mir-line'(?: data-ops='([^']*)')?><i>(\d+)</i>", html)
    return {int(number): set(ops.split()) for ops, number in lines}


def test_lines_of_the_program_name_the_operators_that_serve_them() -> None:
    program = parse(TEXT)
    prepared, effort = prepare(program.graph), EFFORTS["quick"]
    (graph,) = (
        structure
        for configuration in configurations(prepared, effort)[:1]
        for structure in explored(prepared, configuration, effort).structures[:1]
    )

    (best,) = instances(graph, prepared, find_target("h200"), 1)
    kinds = {f"0.{n}": op.kind.value for n, op in enumerate(best.graph.ops[0].body.ops)}  # type: ignore[union-attr]
    named = {line: {kinds[op] for op in ops} for line, ops in owners(program_html(program, best.graph)).items()}
    assert named == {1: {"InIter"}, 2: {"InIter"}, 3: {"EwExp"}, 4: {"Matmul"}, 5: {"OutSaver"}}
    assert program_html(program, best.graph) in explorer_html(best.graph, find_target("h200"), program=program)
    assert program_html(replace(program, spans=()), best.graph) == ""
