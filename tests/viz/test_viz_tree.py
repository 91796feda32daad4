"""The tree of prefixes: everything shown hangs together, configurations are kept apart, sizes are bounded."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.search.saturation.events import Outcome, Prefix
from mirage_nb.viz import page
from mirage_nb.viz.html import prefix_html
from mirage_nb.viz.tree import MOST, connected, key, tree_html
from tests.browser.fake_session import prefixes
from tests.viz.test_viz_html import read


@st.composite
def samples(draw: st.DrawFn) -> list[Prefix]:
    found: list[Prefix] = []
    for configuration in draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3)):
        for identity in range(draw(st.integers(0, 40))):
            parents = tuple(draw(st.lists(st.integers(0, max(0, identity - 1)), max_size=2))) if identity else ()
            outcome = draw(st.sampled_from(Outcome))
            found.append(Prefix(identity, parents, configuration, len(parents), "Op", "loop", "[a]", "x", outcome, ""))
    return found


@given(samples(), st.integers(0, 30))
def test_what_is_shown_comes_with_what_it_stands_below(found: list[Prefix], most: int) -> None:
    shown = connected(found, most)
    assert len(shown) <= most and len({key(p) for p in shown}) == len(shown)
    inside = {(p.configuration, p.identity) for p in shown}
    for prefix in shown:
        assert not prefix.parents or any((prefix.configuration, parent) in inside for parent in prefix.parents)


@given(samples())
def test_every_prefix_appears_once(found: list[Prefix]) -> None:
    html = tree_html(found, 1000)
    read(page("t", f"<div>{html}</div>"))
    assert html.count("data-choose=") == len(found)
    assert all(f"prefix:{key(p)}'" in html for p in found)


def test_equal_identities_of_two_configurations_are_two_prefixes() -> None:
    first = prefixes()
    second = tuple(replace(p, configuration="no loop", expression="other") for p in first)
    drawn = prefix_html(second[6], (*first, *second))
    assert "other" in drawn and "Σb X²" not in drawn
    html = tree_html((*first, *second), 99, key(second[6]))
    assert html.count("aria-current='true'") == 1


def test_a_large_sample_is_cut_and_says_so() -> None:
    many = [replace(prefixes()[0], identity=n, configuration=f"c{n % 7}") for n in range(3000)]
    html = tree_html(many, 1_000_000)
    assert html.count("data-choose=") == MOST and f"{MOST} of 1,000,000" in html
