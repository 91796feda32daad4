"""Saturating the specimens: few expressions survive, and always enough to build the target."""

from __future__ import annotations

import pytest

from mirage_nb.algebra import QUICK, STANDARD, Algebra, Oracle
from mirage_nb.algebra.options import THOROUGH
from tests.algebra.specimens import SPECIMENS, saturate

PRESETS = {"quick": QUICK, "standard": STANDARD, "thorough": THOROUGH}

KEPT = {
    "rmsnorm": 38,
    "gated_mlp": 30,
    "lora": 102,
    "attention": 37,
    "attention_safe": 57,
    "qknorm": 90,
    "qknorm_k": 104,
    "ntrans": 74,
}
"""Expressions that reach the target, without types, when products of sums stay factored."""


@pytest.mark.parametrize("preset", ["quick", "standard"])
@pytest.mark.parametrize("name", SPECIMENS)
def test_kept_expressions(name: str, preset: str) -> None:
    algebra = Algebra(PRESETS[preset])
    specimen = SPECIMENS[name](algebra)
    oracle = Oracle(algebra, [specimen.target])
    kept, complete = saturate(algebra, oracle, specimen, 300)
    assert len(set(kept)) == len(kept)
    if (name, preset) == ("ntrans", "standard"):
        assert not complete  # the square of a sum of three, multiplied out, has thousands of parts
        return
    assert specimen.target in kept
    assert (len(kept), complete) == (KEPT[name], True)


def test_more_axioms_keep_more() -> None:
    kept = {}
    for preset, options in PRESETS.items():
        algebra = Algebra(options)
        specimen = SPECIMENS["qknorm_k"](algebra)
        kept[preset] = len(saturate(algebra, Oracle(algebra, [specimen.target]), specimen, 1000)[0])
    assert kept["quick"] == kept["standard"] < kept["thorough"]


def test_limit_is_kept_and_said() -> None:
    algebra = Algebra(STANDARD)
    specimen = SPECIMENS["rmsnorm"](algebra)
    kept, complete = saturate(algebra, Oracle(algebra, [specimen.target]), specimen, 10)
    assert (len(kept), complete) == (10, False)
