"""Two muGraphs beside each other: what differs is marked, equal ones differ in nothing."""

from __future__ import annotations

import re
from dataclasses import replace

from mirage_nb.targets import find_target
from mirage_nb.viz.compare import compare_html, compare_text
from tests.browser.fake_session import candidates
from tests.codegen.mugraphs import linear
from tests.viz.mugraph_samples import rmsnorm_fused
from tests.viz.test_viz_html import read

H200 = find_target("h200")


def test_facts_that_differ_are_marked() -> None:
    first = candidates(1)[0]
    other = replace(first, graph=rmsnorm_fused(blocks=64, loop=32), estimate_us=9.0)
    html = compare_html(first, other, H200)
    read(html)
    marked = {row.split("</th>")[0].rpartition("≠ ")[2] for row in html.split("<tr class='mir-differs'>")[1:]}
    assert {"time", "grid dims", "for-loop range", "blocks", "shared memory"} <= marked
    assert "kernels" not in marked and "verdict" not in marked
    assert "-%3 = Graph" in html and "+%3 = Graph" in html


def test_a_tile_program_is_compared_by_its_roles() -> None:
    """It has neither the steps nor the barriers of a staged program, and was said to have none of them: 0."""
    first = candidates(1)[0]
    html = compare_html(first, replace(first, graph=linear(256, 256, 256, 128, 128)), H200)
    assert re.search("schedule</th><td>[1-9][0-9]* steps, [1-9][0-9]* barriers</td><td>2 roles</td>", html)


def test_a_mugraph_differs_in_nothing_from_itself() -> None:
    first = candidates(1)[0]
    html = compare_html(first, first, H200)
    assert "≠" not in html and "the texts are equal" in html


def test_what_does_not_fit_is_compared_all_the_same() -> None:
    first = candidates(1)[0]
    html = compare_html(first, replace(first, graph=rmsnorm_fused(rows=512, blocks=1, loop=1)), H200)
    assert "unknown: it cannot be emitted" in html


def test_the_text_form_marks_differences_behind_its_width() -> None:
    first = candidates(2)[1]
    other = replace(first, verdict=replace(first.verdict, note="x" * 80 + "other"))
    first = replace(first, verdict=replace(first.verdict, note="x" * 80))
    lines = compare_text(first, other, H200).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("!=")] == ["verdict"]
    assert max(map(len, lines)) < 140
