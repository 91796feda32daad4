"""The sections of a snapshot: well-formed, escaped, bounded."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from mirage_nb.search.saturation.events import Outcome
from mirage_nb.search.session.progress import State, Timed
from mirage_nb.verify.verdict import Verdict, VerdictKind, Witness
from mirage_nb.viz import page, snapshot_html, snapshot_text
from mirage_nb.viz.html import (
    LINES,
    ORDER,
    ROWS,
    Peer,
    candidate_html,
    candidates_html,
    counters_html,
    header_html,
    messages_html,
    prefix_html,
    prefixes_html,
)
from mirage_nb.viz.tree import sampled
from mirage_nb.viz.verdicts import verdict_text
from tests.browser.fake_session import candidates, prefixes, snapshot

VOID = {"img", "meta", "br", "rect", "path", "link", "input"}


class Balance(HTMLParser):
    """Fails on tags that do not match; collects the visible text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(html: str) -> Balance:
    parser = Balance()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("state", State)
def test_every_state_is_well_formed_and_says_so(share: float, state: State) -> None:
    found = read(page("t", snapshot_html(snapshot(share, state), 30)))
    assert state.value in found.words
    assert "script" not in found.tags


def test_an_end_without_a_kernel_is_no_good_end() -> None:
    bare = replace(snapshot(), candidates=tuple(replace(c, executed_on="") for c in snapshot().candidates))
    for ended in (bare, replace(bare, candidates=(), state=State.STOPPED)):
        shown = header_html(ended)
        assert "mir-state mir-lacking" in shown and "without a kernel" in " ".join(read(shown).words)
        assert ended.outcome in snapshot_text(ended)
    for fine in (snapshot(), replace(bare, state=State.RUNNING)):
        assert "lacking" not in header_html(fine)


def test_hostile_texts_stay_texts() -> None:
    bad = "<script>alert('x')</script>"
    shown = snapshot(1.0, name=bad)
    worst = replace(shown.candidates[0], configuration=bad, executed_on=bad, digest=bad, sizes={bad: 1})
    refuted = Verdict(VerdictKind.REFUTED, note=bad, witness=Witness(1, 0, (2,), bad, bad))
    worst = replace(worst, verdict=refuted)
    texts = dict.fromkeys(("operator", "type", "expression", "reason", "stage", "configuration"), bad)
    prefix = replace(prefixes()[0], **texts)
    shown = replace(shown, candidates=(worst,), prefixes=(prefix,), cut=(bad,), messages=(bad,))
    html = snapshot_html(shown, 1.0, bad) + prefix_html(prefix, [prefix])
    assert "script" not in read(html).tags
    assert "onload" not in html


def test_the_verdict_says_what_was_checked() -> None:
    words = " ".join(read(candidate_html(candidates(2)[1])).words)
    assert "6 trials over finite fields" in words
    assert "2^-71" in words and "X[16, 1024]" in words
    assert "estimated" in words


def test_a_witness_is_shown() -> None:
    refuted = Verdict(VerdictKind.REFUTED, witness=Witness(7, 0, (1, 2), "3", "4"))
    words = " ".join(read(candidate_html(replace(candidates(1)[0], verdict=refuted))).words)
    assert "element [1, 2]" in words and "expected 3, found 4" in words


def test_a_measured_time_is_told_from_an_estimate() -> None:
    (one,) = candidates(1)
    assert "≈8.10" in candidates_html(replace(snapshot(), candidates=(one,)))
    measured = candidates_html(replace(snapshot(), candidates=(replace(one, time_us=5.25),)))
    assert "5.25" in measured and "≈8.10" in measured


def test_a_time_that_was_measured_before_says_so_and_is_no_speed_up() -> None:
    one = replace(candidates(1)[0], before=Timed(5.25, "NVIDIA <H200>"))
    html = candidates_html(replace(snapshot(), candidates=(one,)), "", Peer("eager", 10.5))
    assert "5.25 µs stored" in html and "measured before on NVIDIA &lt;H200&gt;" in html and "2.00×" not in html
    assert "5.25 µs as stored, of NVIDIA <H200>" in snapshot_text(replace(snapshot(), candidates=(one,)))
    assert "µs stored" not in candidates_html(replace(snapshot(), candidates=(replace(one, time_us=6.0),)))


def test_messages_that_say_the_same_are_one_line_that_opens() -> None:
    html = messages_html(snapshot())
    words = " ".join(read(html).words)
    assert "numerically poor  11 times" in words and html.count("<details") == 1
    assert all(line in words for line in snapshot().messages)
    assert "numerically poor (11 times)" in snapshot_text(snapshot())
    many = tuple(f"{n:08x}: numerically poor: {n}" for n in range(LINES + 5))
    assert "and 5 before these" in messages_html(replace(snapshot(), messages=many))


def test_why_nothing_was_found_is_shown_as_it_is_told() -> None:
    told = "the search makes <E>, but not E / sum(E)\n  axiom div_distributes is off"
    shown = replace(snapshot(), candidates=(), why=told)
    assert told in " ".join(read(messages_html(shown)).words)
    assert told in snapshot_text(shown)
    assert told in " ".join(read(messages_html(replace(shown, cut=(), messages=()))).words)
    assert "why" not in messages_html(snapshot())


def test_a_function_of_the_author_is_called_by_its_name() -> None:
    formula = "ApplyApplyAttrs(name='mish', formula='x * tanh(log(1 + exp(x)))')(Σb X·W)"
    own = replace(prefixes()[0], expression=formula)
    assert "mish(Σb X·W)" in prefix_html(own, [own]) and "ApplyAttrs" not in prefix_html(own, [own])
    assert "ApplyAttrs" not in prefixes_html(replace(snapshot(), prefixes=(own,)))


def test_speed_ups_are_against_the_fastest_peer_and_only_for_measured_times() -> None:
    (one,) = candidates(1)
    timed = replace(snapshot(), candidates=(replace(one, time_us=5.0), replace(one, digest="f" * 8)))
    html = candidates_html(timed, "", Peer("torch.compile", 12.5))
    assert html.count("2.50×") == 1 and "torch.compile" in html and "12.50 µs" in html
    assert "×</td>" not in html.replace("2.50×", "") and "speed-up" not in candidates_html(timed, "", None)


def test_without_a_gpu_estimates_are_against_that_of_the_programs_own_operators() -> None:
    one, two = (replace(c, estimate_us=us) for c, us in zip(candidates(2), (4.0, 10.0), strict=True))
    base = replace(two, digest="b" * 8)
    html = candidates_html(replace(snapshot(), candidates=(one, two, base), baseline=base), "", None)
    assert "<i>≈2.50×</i>" in html and "<i>≈1.00×</i>" in html and html.count("≈1.00×") == 1
    assert '<td colspan="2">own operators</td>' in html and "mir-baseline" in html
    measured = replace(one, time_us=2.0)
    assert "×</i>" not in candidates_html(replace(snapshot(), candidates=(measured,), baseline=base), "", None)


def test_the_table_says_its_order_and_shows_no_empty_column() -> None:
    one, two, three = candidates(3)
    shown = replace(snapshot(), candidates=(replace(one, time_us=5.0), replace(two, executed_on="CPU edition"), three))
    html = candidates_html(shown)
    assert ORDER in html and html.count("mir-divide") == 2, "a line where what is only executed begins, and estimated"
    assert ">time</th>" in html and ">speed-up</th>" not in html
    without = candidates_html(replace(shown, candidates=(one, two, three)))
    assert ">time</th>" not in without and "title=" in without
    assert [html.count(f">{cell}</td>") for cell in ("2×8×16, 2×64", "4, 1")] == [1, 1], "grid and loop of each kernel"


def test_counters_say_what_they_count() -> None:
    found = counters_html(snapshot())
    assert found.count("<div title='") == 7 and "title=''" not in found and "12</b>" in found


def test_pinned_rows_say_so() -> None:
    shown = snapshot()
    html = candidates_html(replace(shown, pinned=frozenset({shown.candidates[1].digest})))
    assert html.count("pinned") == 1


def test_long_tables_are_cut_and_say_so() -> None:
    many = tuple(replace(candidates(1)[0], digest=f"{i:04}") for i in range(ROWS + 7))
    html = candidates_html(replace(snapshot(), candidates=many))
    assert html.count("data-choose") == ROWS
    assert "and 7 more" in html


def test_progress_is_bounded() -> None:
    late = replace(snapshot(0.5, State.RUNNING), seconds=99.0)
    assert "width:100.0%" in header_html(late, 30)
    assert "width:50.0%" in header_html(late, None)
    assert "aria-label='seconds'" not in header_html(late, None), "no bar against nothing"
    assert "width:0.0%" in header_html(replace(late, configurations_total=0, configurations_done=0), None)


def test_the_sample_has_some_of_every_outcome() -> None:
    kept = prefixes()[0]
    rare = [replace(kept, identity=1000 + i, outcome=o) for i, o in enumerate(Outcome)]
    shown = sampled([*(replace(kept, identity=i) for i in range(500)), *rare], 20)
    assert len(shown) == 20
    assert {p.outcome for p in shown} == set(Outcome)
    assert "no sample" in prefixes_html(snapshot(0.0))


def test_the_text_form_says_the_same() -> None:
    text = snapshot_text(snapshot(1.0), 30)
    assert "8/8 configurations" in text and "12 verified" in text and "and 4 more" in text
    assert "refuted: " in text and "expected (524289, 17), found (3, 260002)" in text
    assert len(text.splitlines()) <= 20


def test_error_bounds_are_never_rounded_down() -> None:
    text = verdict_text(Verdict(VerdictKind.FIELD, trials=4, log2_bound=-66.6))
    assert "error probability at most 2^-66" in text


def test_time_beyond_the_limit_of_the_search_is_not_shown_against_it() -> None:
    """Compiling and running take time, too, and an extension has a limit of its own."""
    for seconds, shown in ((3.0, "3.0 s of 4 s"), (13.6, "13.6 s,")):
        text = snapshot_text(replace(snapshot(), seconds=seconds), 4)
        assert shown in text.splitlines()[0]
    assert " of 4 s" not in header_html(replace(snapshot(), seconds=13.6), 4)
