"""`bench models` on small layers: who is right, what a table says, what options there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import mirage_nb
from mirage_nb.bench.models import (
    NAMES,
    OURS,
    Point,
    best_peer,
    floor_us,
    measured,
    points_of,
    ratio,
    show_records,
    table,
)
from mirage_nb.bench.pytorch.layers import MODELS
from mirage_nb.bench.pytorch.racing_models import Contestants
from mirage_nb.errors import OptionError
from mirage_nb.frontend.compiled.kernels import Kernels
from mirage_nb.targets import find_target
from tests.frontend.traced import Composed

H200 = find_target("h200")


def everybody(finder: Any = None) -> Contestants:
    return Contestants("cpu", Kernels(finder or Composed()), {"remainder": "eager"}, modes={})


@pytest.mark.parametrize(
    ("model", "what"),
    [("llama-3-8b", "2"), *(pytest.param(m, w, marks=pytest.mark.slow) for m in NAMES for w in ("1", "prefill"))],
)
def test_small_layers_are_right_with_regions_replaced(model: str, what: str) -> None:
    (point,) = points_of(model, what, is_small=True)
    row = measured(point, 1, everybody(), H200)
    assert set(row["errors"]) == {"eager", OURS} and row["errors"][OURS] < 1e-5
    assert not row["left_out"] and not row["us"]
    assert " 0 replaced" not in row["regions"][0]


def test_who_is_wrong_is_not_timed() -> None:
    (point,) = points_of("qwen3-8b", "1", is_small=True)
    made = everybody()
    stack, inputs = made.stack(point, 1)
    made.ours = lambda module, reports: lambda *given: module(*given) * 1.01  # type: ignore[method-assign]
    found = made.compared(stack, inputs)
    errors, calls, left_out = found.errors, found.calls, found.left_out
    assert errors[OURS] > 5e-3 and set(calls) == {"eager"}
    assert "off single precision" in left_out[OURS]


def test_no_second_mode_is_begun_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda module, **_: module)  # the real one takes ten seconds
    (point,) = points_of("qwen3-8b", "1", is_small=True)
    modes = {"torch.compile": "default", "max-autotune": "max-autotune"}
    made = Contestants("cpu", Kernels(Composed()), {"remainder": "eager"}, modes=modes)
    made.ours = lambda module, reports: module  # type: ignore[method-assign]
    row = measured(point, 1, made, H200, seconds=-1.0)
    assert row["left_out"] == {"max-autotune": "there was no time for it"}
    assert set(row["errors"]) == {"eager", OURS, "torch.compile"}


@pytest.mark.slow
def test_a_small_model_says_the_same_tokens() -> None:
    theirs, margins = everybody().spoken(8, ours=False)
    ours, _ = everybody().spoken(8, ours=True)
    assert ours == theirs and len(margins) == 8


def test_floors_are_those_of_the_published_layers() -> None:
    """Microseconds of a decode step's layer over a cache of 4096 keys, by hand: weights and cache over 4.45 TB/s."""
    weights = {"llama-3-8b": 4096 * (4096 * 2 + 1024 * 2) + 3 * 4096 * 14336, "ngpt-1b": 4 * 2048**2 + 3 * 2048 * 8192}
    for model, batch, wanted in (
        ("llama-3-8b", 1, 104),
        ("llama-3-8b", 8, 130),
        ("ngpt-1b", 1, 40),
        ("ngpt-1b", 8, 92),
    ):
        point = Point(model, MODELS[model], batch)
        assert floor_us(point, 2.0 * weights[model], H200) == pytest.approx(wanted, rel=0.03)
    prefill = Point("llama-3-8b", MODELS["llama-3-8b"], 1, 2048)
    assert floor_us(prefill, 2.0 * weights["llama-3-8b"], H200) > 1000


ROWS: list[dict[str, Any]] = [
    {"model": "a", "point": "decode B=1", "us": {OURS: 100.0, "eager": 300.0, "max-autotune": 150.0}, "floor_us": 80.0,
     "errors": {"eager": 1e-3}, "left_out": {}, "regions": ["1 graph"]},
    {"model": "a", "point": "decode B=8", "us": {OURS: 100.0, "torch.compile": 90.0}, "floor_us": 80.0,
     "errors": {}, "left_out": {"eager": "no"}, "regions": []},
    {"model": "b", "point": "prefill of 8", "us": {}, "floor_us": None, "trouble": "RuntimeError: no memory"},
]  # fmt: skip


def test_losses_are_shown_like_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert best_peer(ROWS[0]) == ("max-autotune", 150.0)
    assert ratio(ROWS[1]) == pytest.approx(0.9)
    shown = table(ROWS)
    assert "geometric mean of 2 ratios 1.16, least 0.90" in shown
    file = tmp_path / "record.json"
    file.write_text(json.dumps({"card": "H200", "rows": ROWS}))
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"card": "H200", "rows": [{**ROWS[1], "us": {OURS: 100.0, "eager": 200.0}}]}))
    show_records([str(file), str(other)])
    shown = capsys.readouterr().out
    assert "not measured: RuntimeError: no memory" in shown
    assert "1.50 times as fast as the best, 80% of the floor" in shown
    assert "geometric mean of 3 ratios 1.39, least 0.90" in shown
    file.write_text('{"rows": 3}')
    with pytest.raises(OptionError, match="no record"):
        show_records([str(other), str(file)])


def test_the_record_that_comes_along_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = (Path(mirage_nb.__file__).parent / "bench/records").glob("models-*.json")
    assert show_records([str(path)]) == 0
    shown = capsys.readouterr().out
    assert "decode: geometric mean of 8 ratios" in shown and "prefill: geometric mean of 4 ratios" in shown


def test_models_and_points_that_there_are_not() -> None:
    assert tuple(MODELS) == NAMES
    with pytest.raises(OptionError, match="unknown model"):
        points_of("llama-9", "1")
    for wrong in ("0", "two", "1,-1"):
        with pytest.raises(OptionError, match="neither a batch size nor prefill"):
            points_of("llama-3-8b", wrong)
    assert [p.what for p in points_of("qwen3-8b", "8,prefill")] == ["decode B=8", "prefill of 2048"]


def test_the_device_says_what_is_computed_in() -> None:
    assert everybody().dtype is torch.float32 and Contestants("cuda", Kernels(Composed()), {}).dtype is torch.bfloat16
