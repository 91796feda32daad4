"""The least work of a program, counted by hand."""

from __future__ import annotations

from mirage_nb.bench.work import work
from mirage_nb.lang import parse


def test_work_of_a_product() -> None:
    done = work(parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn X @ W").graph)
    assert done.flops == 2 * 8 * 64 * 32 and done.nbytes == 2 * (8 * 64 + 64 * 32 + 8 * 32)
    assert done.intensity == done.flops / done.nbytes


def test_reductions_count_what_they_read_and_views_nothing() -> None:
    text = "X: f16[8, 64]\nY = sum(exp(X), axis=-1, keepdims=True)\nreturn transpose(Y) * 2"
    assert work(parse(text).graph).flops == 8 * 64 + 8 * 64 + 8
