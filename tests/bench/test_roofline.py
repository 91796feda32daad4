"""Rooflines: work is counted on the program, points stand where they belong."""

from __future__ import annotations

import pytest

from mirage_nb.bench.roofline import roofline_figure, work
from mirage_nb.lang import parse
from mirage_nb.targets import find_target


def test_work_of_a_product() -> None:
    done = work(parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn X @ W").graph)
    assert done.flops == 2 * 8 * 64 * 32 and done.nbytes == 2 * (8 * 64 + 64 * 32 + 8 * 32)
    assert done.intensity == done.flops / done.nbytes


def test_reductions_count_what_they_read_and_views_nothing() -> None:
    text = "X: f16[8, 64]\nY = sum(exp(X), axis=-1, keepdims=True)\nreturn transpose(Y) * 2"
    assert work(parse(text).graph).flops == 8 * 64 + 8 * 64 + 8


def test_a_point_for_every_time() -> None:
    rows = [
        {"workload": "rmsnorm", "B": 1, "ours_us": 14.0},
        {"workload": "gqa", "B": 8, "ours_us": None},
        {"workload": "moe", "B": 1, "ours_us": 80.0},
    ]
    target = find_target("h200")
    (axes,) = roofline_figure(rows, target, "a title").axes
    assert axes.get_title() == "a title" and len(axes.collections) == 2
    (x, y), *_ = axes.collections[0].get_offsets().tolist()
    assert x * target.device_bandwidth * 1e9 > y > 0  # below the roof
    assert y == pytest.approx(x * 51e6 / 14e-6, rel=0.1)
