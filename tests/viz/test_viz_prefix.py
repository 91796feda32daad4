"""Pictures of prefixes, of incomplete and of long ones too."""

from __future__ import annotations

from dataclasses import replace

from mirage_nb.search.saturation.events import Outcome, Prefix
from mirage_nb.viz import prefix_svg
from mirage_nb.viz.prefix import MOST, ancestors
from tests.browser.fake_session import prefixes
from tests.viz.svg_geometry import boxes, texts


def test_a_prefix_is_drawn_with_all_it_follows_from() -> None:
    sample = prefixes()
    svg = prefix_svg(sample[11], sample)
    shown = [t.text for t in texts(svg)]
    assert {"X", "W", "Sqr", "Matmul", "Sum", "Accum sum", "Sqrt", "EwDiv"} <= set(shown)
    assert "EwAdd" not in shown
    assert sum("sure" in b.classes for b in boxes(svg)) == 1


def test_a_parent_outside_the_sample_is_shown_as_unknown() -> None:
    sample = prefixes()
    svg = prefix_svg(sample[13], sample)
    assert "…" in [t.text for t in texts(svg)]
    assert sum("unknown" in b.classes for b in boxes(svg)) == 1


def test_the_outcome_colours_the_last_operator() -> None:
    sample = prefixes()
    (last,) = [b for b in boxes(prefix_svg(sample[4], sample)) if "sure" in b.classes]
    assert "expression" in last.classes


def test_a_long_history_is_cut_at_the_nearest_ancestors() -> None:
    chain = [
        Prefix(i, (i - 1,) if i else (), "c", i, f"op{i}", "loop", "[m]", "e", Outcome.KEPT, "") for i in range(100)
    ]
    found = ancestors(chain[-1], {p.identity: p for p in chain})
    assert len(found) == MOST and min(found) == 100 - MOST
    assert "op60" in prefix_svg(chain[-1], chain) and "op59<" not in prefix_svg(chain[-1], chain)


def test_boxes_do_not_overlap() -> None:
    sample = prefixes()
    for prefix in sample:
        found = [b for b in boxes(prefix_svg(prefix, sample)) if b.classes & {"op", "pill"}]
        assert [1 for i, a in enumerate(found) for b in found[i + 1 :] if a.overlaps(b)] == []


def test_expressions_are_escaped() -> None:
    prefix = replace(prefixes()[0], operator="<b>", expression="a<b & c")
    assert "<b>" not in prefix_svg(prefix, [])
