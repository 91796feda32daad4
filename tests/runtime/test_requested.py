"""What a caller asks for is checked before anything is searched."""

from __future__ import annotations

import pytest

from mirage_nb.codegen import emit
from mirage_nb.errors import OptionError
from mirage_nb.lang import parse
from mirage_nb.runtime import requested
from mirage_nb.runtime.contest.trial import try_on_cpu
from mirage_nb.targets import find_target
from tests.codegen import mugraphs


@pytest.mark.parametrize("times", [0.0, -1.0, float("inf"), float("nan")])
def test_a_tolerance_is_a_positive_number(times: float) -> None:
    with pytest.raises(OptionError, match="a tolerance of"):
        requested.tolerance(times)
    assert requested.tolerance(0.5) == 0.5


def test_a_tolerance_makes_the_gate_stricter_or_looser() -> None:
    program = parse("X: f16[8, 64]\nW: f16[64, 32]\nreturn rms_norm(X) @ W").graph
    emitted = emit(mugraphs.rmsnorm(8, 64, 32, 16, 2), find_target("h200"))
    usual, strict, loose = (try_on_cpu(program, emitted, 3, times).report for times in (1.0, 0.01, 100.0))
    assert usual.ok and loose.ok and not strict.ok
    assert strict.allowed == pytest.approx(usual.allowed / 100)
