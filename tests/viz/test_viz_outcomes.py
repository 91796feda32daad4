"""Verifier outcomes: what was not accepted is listed with its reason, opens with its witness, and is bounded."""

from __future__ import annotations

from dataclasses import replace

from mirage_nb.viz.outcomes import ROWS, outcomes_html, rejected_html
from tests.browser.fake_session import candidates, rejected, snapshot
from tests.viz.test_viz_html import read


def test_nothing_to_tell_is_no_section() -> None:
    assert outcomes_html(replace(snapshot(), rejected=(), refuted=0, outside_lax=0)) == ""


def test_each_has_its_outcome_and_reason_and_can_be_chosen() -> None:
    html = outcomes_html(snapshot(), rejected()[1].digest)
    words = " ".join(read(html).words)
    assert "12 accepted, 3 refuted, 1 outside LAX, 1 wrong when executed; a sample of 3 is listed" in words
    assert "element [1, 2], seed 7: expected (524289, 17), found (3, 260002); the field values differ" in words
    assert "no proof was found" in words and "relative error 0.31" in words
    for one in rejected():
        assert f"data-choose='rejected:{one.digest}' aria-current='{str(one == rejected()[1]).lower()}'" in html


def test_candidates_that_could_not_be_built_are_there_and_open_as_candidates() -> None:
    first, *others = candidates(3)
    poor = replace(first, note="numerically poor: large logits: output 0[1, 2] is nan")
    html = outcomes_html(replace(snapshot(), candidates=(poor, *others)))
    assert "1 set aside" in html and "large logits" in html
    assert html.count("data-choose='candidate:") == 1 and f"data-choose='candidate:{poor.digest}'" in html


def test_long_lists_are_cut() -> None:
    one = rejected()[1]
    many = tuple(replace(one, digest=f"{n:064x}") for n in range(3 * ROWS))
    html = outcomes_html(replace(snapshot(), rejected=many, refuted=3 * ROWS))
    assert html.count("data-choose") == ROWS and f"a sample of {ROWS} is listed" in html


def test_an_opened_one_shows_witness_reason_and_picture() -> None:
    wrong, refuted, outside = (read(rejected_html(one)) for one in rejected())
    assert all("svg" in found.tags for found in (wrong, refuted, outside))
    assert "expected (524289, 17), found (3, 260002)" in " ".join(refuted.words)
    assert "wrong result" in " ".join(wrong.words) and "outside LAX" in " ".join(outside.words)


def test_hostile_reasons_stay_texts() -> None:
    bad = "<script>alert('x')</script>"
    one = rejected()[1]
    witness = one.verdict.witness
    assert witness is not None
    verdict = replace(one.verdict, note=bad, witness=replace(witness, expected=bad, found=bad))
    worst = replace(one, digest=bad, configuration=bad, why=bad, verdict=verdict)
    assert "script" not in read(outcomes_html(replace(snapshot(), rejected=(worst,))) + rejected_html(worst)).tags
