"""Lines that say the same become one, and none is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.viz import text as groups

POOR = [f"{n:08x}: numerically poor: output 0[1, {n}] is nan" for n in range(20)]


def test_what_is_said_of_many_mugraphs_is_one_line() -> None:
    told = ["no cubin: nvrtc is missing", *POOR[:10], "no cubin: the disk is full", *POOR[10:]]
    found = groups.messages(told)
    assert [(g.words, len(g.lines)) for g in found] == [
        ("no cubin: nvrtc is missing", 1),
        ("no cubin: the disk is full", 1),
        ("numerically poor", 20),
    ]
    assert found[-1].lines == tuple(POOR)


def test_numbers_that_differ_are_left_out_of_the_words() -> None:
    cut = [f"1 kernel; loop over {axis}: only the first {n} graphs were extracted" for axis, n in (("a", 3), ("b", 4))]
    assert [g.words for g in groups.cuts(cut)] == ["only the first … graphs were extracted"]
    assert [g.words for g in groups.cuts(cut[:1])] == ["only the first 3 graphs were extracted"]
    assert [g.words for g in groups.cuts(["stopped by the user"])] == ["stopped by the user"]


@given(st.lists(st.text(max_size=30) | st.sampled_from(POOR), unique=True))
def test_every_line_is_in_one_group(lines: list[str]) -> None:
    for grouped in (groups.messages, groups.cuts):
        assert sorted(line for group in grouped(lines) for line in group.lines) == sorted(lines)
