"""Single-site mutants of the named muGraphs: whatever float64 tells apart is refuted, nothing else is.

Over a thousand legal mutants, of which the default tests take a sixth: imap, fmap and omap entries, operators,
operands, reduced dimensions, accumulators, loop ranges, grids and constants, at several sizes.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import VerdictKind
from tests.mugraphs import (
    Case,
    attention_safe,
    concat_free,
    flash_decoding,
    gated_mlp,
    gqa,
    lora,
    qknorm,
    rmsnorm,
    rmsnorm_fig3,
)
from tests.strategies import arrays_for
from tests.verify.mutants import is_legal, mutants

GROUPS: dict[str, tuple[Case, ...]] = {
    "rmsnorm": (rmsnorm(), rmsnorm(4, 12, 8, 4, 3), rmsnorm(2, 4, 4, 1, 2), rmsnorm(2, 8, 8, 2, 1)),
    "rmsnorm_fig3": (rmsnorm_fig3(), rmsnorm_fig3(2, 12, 6, 3, 4), rmsnorm_fig3(4, 4, 4, 2, 1)),
    "gated_mlp": (gated_mlp(), gated_mlp(8, 8, 8, 4, 4), gated_mlp(2, 6, 4, 2, 3), gated_mlp(4, 4, 4, 1, 2)),
    "lora": (lora(), lora(8, 8, 8, 8, 4, 4), lora(2, 6, 4, 4, 2, 3), lora(4, 4, 4, 4, 1, 1)),
    "gqa": (gqa(), gqa(2, 4, 8, 8, (2, 4), 4), gqa(1, 2, 4, 6, (1, 2), 3), gqa(4, 4, 4, 4, (4, 1), 1)),
    "attention_safe": (attention_safe(), attention_safe(1, 2, 4, 12, (1, 2), 3)),
    "flash_decoding": (flash_decoding(2, 2, 2, 8, 2, 2), flash_decoding(1, 1, 2, 12, 3, 2)),
    "qknorm": (qknorm(2, 2, 2, 4, (2, 2), 2), qknorm(1, 4, 4, 4, (1, 4), 2), qknorm(2, 2, 8, 4, (2, 1), 1)),
    "concat_free": (concat_free(), concat_free(4, 4, 12, 4, 3)),
}
SHARE = 6
"""The default tests take every sixth mutant of a case, other ones of the next case; the slow ones take all of them."""
EXPECTED_LEGAL = 1000
EXPECTED_REFUTED = 800

tally: Counter[str] = Counter()


def equal_in_reals(program: KernelGraph, mutant: KernelGraph) -> bool:
    """Equal on normal, on positive and on negative inputs, up to rounding; undefined elements in the same places."""
    for sign in (0, 1, -1):
        inputs = {n: sign * (np.abs(a) + 0.5) if sign else a for n, a in arrays_for(program, 11).items()}
        left, right = evaluate(program, inputs)[0], evaluate(mutant, inputs)[0]
        if not np.allclose(left, right, rtol=1e-8, atol=1e-12, equal_nan=True):
            return False
    return True


@pytest.mark.parametrize("name", GROUPS)
def test_mutants_are_refuted_or_equal(name: str) -> None:
    judge(name, SHARE)


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS)
def test_all_mutants_are_refuted_or_equal(name: str) -> None:
    judge(name, 1)


def judge(name: str, share: int) -> None:
    for number, case in enumerate(GROUPS[name]):
        legal = [(text, mutant) for text, mutant in mutants(case.candidate) if is_legal(mutant)]
        for description, mutant in legal[number % share :: share]:
            verdict = verify(case.program, mutant)
            tally["legal"] += 1
            tally[verdict.kind.value] += 1
            place = f"{case.name}: {description}: {verdict}"
            if equal_in_reals(case.program, mutant):
                assert verdict.kind is not VerdictKind.REFUTED, place
            else:
                assert verdict.kind is VerdictKind.REFUTED, place


def test_there_were_enough_of_them(request: pytest.FixtureRequest) -> None:
    run = [item for item in request.session.items if item.name.startswith("test_mutants_are_refuted_or_equal[")]
    if len(run) < len(GROUPS):
        pytest.skip("the groups were not run together")
    assert tally["legal"] >= EXPECTED_LEGAL // SHARE, tally
    assert tally["refuted"] >= EXPECTED_REFUTED // SHARE, tally


def test_undecided_is_rare() -> None:
    assert tally[VerdictKind.UNDECIDED.value] <= tally["legal"] // 50, tally
