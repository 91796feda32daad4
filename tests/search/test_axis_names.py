"""Axes have the names that the program gives to extents; nothing but what people read depends on them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from mirage_nb.errors import FormatError
from mirage_nb.ir.jsonform import parse_json, print_json
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Budget, configurations, instances, prepare, run_configuration
from mirage_nb.search.explain import explain
from mirage_nb.search.session.session import SearchSession
from mirage_nb.search.sizes.instantiate import sized
from mirage_nb.targets import TARGETS
from mirage_nb.viz.axes import axis_names

H200 = TARGETS["h200"]
QUICK = EFFORTS["quick"]
TEXT = "{0} = 16\n{1} = 64\n{2} = 32\nX: f16[{0}, {1}]\nW: f16[{1}, {2}]\nreturn rms_norm(X) @ W"
NUMBERS = "X: f16[16, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W"


def names(text: str) -> list[str]:
    return [axis.name for axis in prepare(parse(text).graph).axes]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TEXT.format("B", "K", "N"), ["B", "K", "N"]),
        (NUMBERS, ["a", "b", "c"]),
        ("B = 4\nX: f16[2 * B, 64]\nW: f16[64, 32]\nreturn X @ W", ["2B", "b", "c"]),
        ("N = 8\nX: f16[N, N]\nW: f16[N, N]\nreturn X @ W", ["N", "N'", "N''"]),
        ("K = 64\nX: f16[16, 64]\nW: f16[K, 32]\nreturn X @ W", ["a", "K", "c"]),
        ("K = 64\nM = 64\nX: f16[16, M]\nW: f16[K, 32]\nreturn X @ W", ["a", "M", "c"]),
        ("b = 16\nX: f16[b, 64]\nW: f16[64, 32]\nreturn X @ W", ["b", "b'", "c"]),
        ("H = 4\nX: f16[16, H * 8]\nY: f16[H, 8]\nreturn sum(reshape(X, 16, H, 8) * Y, axis=1)", ["a", "H", "c"]),
    ],
)
def test_axes_are_called_as_the_program_calls_them(text: str, expected: Sequence[str]) -> None:
    assert names(text) == expected
    assert [axis.letter for axis in prepare(parse(text).graph).axes] == ["a", "b", "c"]


def test_names_reach_configurations_sizes_explanations_and_pictures() -> None:
    graph = parse(TEXT.format("B", "K", "N")).graph
    prepared = prepare(graph)
    looped = next(c for c in configurations(prepared, QUICK) if c.loop is not None)
    assert looped.label == "1 kernel; free axes on the grid; loop over K"
    found = run_configuration(prepared, looped, QUICK, Budget())
    assert any("K.gt^" in prefix.type for prefix in found.prefixes)
    assert any("ΣK" in prefix.expression for prefix in found.prefixes)
    (instance,) = instances(found.structures[0], prepared, H200, 1)
    assert {name.split()[1] for name in instance.sizes} <= {"B", "K", "N"}
    assert "loop over K" in explain(prepared, QUICK, instance.graph)
    assert axis_names(instance.graph).of((), 0) == ("B", "K")


def test_programs_that_differ_in_names_alone_have_equal_results() -> None:
    texts = (TEXT.format("B", "K", "N"), TEXT.format("Rows", "B", "K"), NUMBERS)
    graphs = [parse(text).graph for text in texts]
    assert graphs[0] == graphs[1] == graphs[2] and len({graph.digest() for graph in graphs}) == 1
    first, *others = (SearchSession(graph, H200, effort="quick").start().result(60) for graph in graphs)
    for other in others:
        assert [c.digest for c in other.candidates] == [c.digest for c in first.candidates]
        assert [list(c.sizes.values()) for c in other.candidates] == [list(c.sizes.values()) for c in first.candidates]
        assert (other.counts, other.structures, other.verified) == (first.counts, first.structures, first.verified)
    agendas = [configurations(prepare(graph), QUICK) for graph in graphs]
    assert agendas[0] == agendas[1] == agendas[2]


def test_sizes_may_be_named_by_letters_as_records_have_them() -> None:
    named, plain = (prepare(parse(text).graph) for text in (TEXT.format("B", "K", "N"), NUMBERS))
    (configuration, *_) = (c for c in configurations(named, QUICK) if c.loop is not None)
    found = run_configuration(named, configuration, QUICK, Budget())
    for structure in found.structures[:3]:
        for mine, other in zip(
            instances(structure, named, H200, 3), instances(structure, plain, H200, 3), strict=True
        ):
            assert mine.sizes != other.sizes
            again = sized(structure, named, H200, other.sizes)
            assert again is not None and again.sizes == mine.sizes and again.graph == mine.graph


def test_names_of_dimensions_survive_the_json_form() -> None:
    graph = parse(TEXT.format("B", "K", "N")).graph
    again = parse_json(print_json(graph))
    assert again == graph and [i.dims for i in again.inputs] == [("B", "K"), ("K", "N")]
    plain = json.loads(print_json(graph))
    plain["inputs"][0]["dims"] = ["B"]
    with pytest.raises(FormatError, match="1 names for 2 dimensions"):
        parse_json(json.dumps(plain))
