"""`bench mosaic`: what it would measure is planned; its table says who won, and whether the planner knew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_nb.__main__ import main
from mirage_nb.bench.mosaic import LIBRARY, Row, chose_right, line, summary, zigzag_gain
from mirage_nb.bench.mosaic_shapes import ODD, SHAPES, orders, product_graph, ways
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.search import EFFORTS, configurations, instances, prepare
from mirage_nb.search.sizes.instantiate import poor_axes
from mirage_nb.targets import TARGETS
from tests.search.explored import explored

H200 = TARGETS["h200"]


def test_at_least_twenty_shapes_of_four_precisions() -> None:
    assert len(SHAPES) >= 20 and {s.precision for s in SHAPES} == {"f16", "tf32", "3xtf32", "f32", "f64"}


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.name in ("LLaMA-3-8B scores", "Phi-3 down")], ids=str)
def test_every_way_is_planned(shape: object) -> None:
    for way in ways(shape, H200):  # type: ignore[arg-type]
        block = plan(product_graph(shape, way), H200, way.options).kernels[0]  # type: ignore[arg-type]
        assert block is not None and block.program is not None
        assert len(block.program.roles) == (3 if way.mixed else 2)


def test_the_planner_knows_odd_extents() -> None:
    """Plain cores beside tensor cores for ten products with a few rows more than tiles have; otherwise one kind."""
    odd = [s for s in SHAPES if s.name in ODD]
    assert len(odd) >= 10 and all(1 <= s.m % 64 <= 7 for s in odd)
    for shape in odd:
        assert any(way.few for way in ways(shape, H200)), shape


@pytest.mark.parametrize(("name", "precision"), [
    ("LLaMA-3-8B kv", "3xtf32"), ("LLaMA-3-8B q", "tf32"), ("257 fc, f32", "f32"), ("LLaMA-3-8B q", "f64"),
    ("257 fc", "3xtf32"), ("131 qkv, tf32", "tf32"),
])  # fmt: skip
def test_a_search_ranks_as_the_planner_does(name: str, precision: str) -> None:
    """By the same measured rates, plain cores beside tensor cores among them: the same tile, the same time."""
    shape = next(s for s in SHAPES if (s.name, s.precision) == (name, precision))
    way = ways(shape, H200)[0]
    t = shape.dtype.value
    text = f"X: {t}[{shape.m}, {shape.k}]\nW: {t}[{shape.k}, {shape.n}]\nreturn X @ W"
    prepared, target = prepare(parse(text).graph), replace(H200, precision=precision if t == "f32" else "f32")
    cut, effort = configurations(prepared, EFFORTS["quick"])[1], EFFORTS["quick"]  # a loop over the summed axis
    found = explored(prepared, cut, effort)
    best = instances(found.structures[0], prepared, target, 1, poor_axes(prepared))[0]
    block = plan(best.graph, target).kernels[0]
    assert block is not None and block.program is not None
    assert {v.shape for v in block.block.types[:2]} == {(way.rows, way.step), (way.step, way.columns)}
    assert 0.95 < best.cost.us / way.expected_us < 1.15


def test_zig_zag_is_compared_with_the_same_tile() -> None:
    for shape in SHAPES:
        both = orders(shape, H200)
        assert len(both) in (0, 2) and len({(way.rows, way.columns) for way in both}) <= 1
        assert not both or any(way.name in {w.name for w in ways(shape, H200)} for way in both)


def row(us: dict[str, float], planner: str) -> Row:
    off = dict.fromkeys(us, 1e-6)
    expected = {name: 1.0 for name in us if name not in (LIBRARY, "a_lines 1x1")}
    return {"shape": "a", "precision": "3xtf32", "planner": planner, "us": us, "off": off, "expected": expected,
            "orders": ["a 1x1", "a_lines 1x1"], "refused": {"c": "wrong"}}  # fmt: skip


def test_lines() -> None:
    won = row({LIBRARY: 30.0, "a 1x1": 20.0, "a+b 1x1": 25.0}, "a")
    assert "1.50" in line(won) and "0.80" in line(won) and "c refused: wrong" in line(won)
    assert chose_right(won) and not chose_right(row(won["us"], "a+b"))
    assert chose_right(row({LIBRARY: 1.0, "a": 1.0}, "a")) is None
    assert "1 of 2 shapes" in summary([won, row(won["us"], "a+b")])
    assert summary([row({LIBRARY: 30.0, "a": 20.0, "b": 10.0}, "a")]).endswith("2.000 times the fastest, at most 2.00")
    turned = row({"a 1x1": 10.0, "a_lines 1x1": 12.0}, "a")
    assert zigzag_gain(turned) == 1.2 and zigzag_gain(won) is None and "1.20" in line(turned)
    assert "the library alone" in line(row({LIBRARY: 30.0}, "a"))


def test_covers_need_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "mosaic", "--covers", "60"]) == 0
    assert "60 spaces" in capsys.readouterr().out and main(["bench", "mosaic", "--precisions", "f8"]) == 2
