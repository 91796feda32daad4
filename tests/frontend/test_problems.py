"""What people benchmark compilers with goes through the backend: right outputs, and regions taken."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tests.frontend.problems import PROBLEMS
from tests.frontend.traced import Backend

AT_LEAST = 0.75
"""Of the problems have a region."""


def run(name: str) -> tuple[Any, Any, Backend]:
    model, inputs = PROBLEMS[name]
    if isinstance(model, torch.nn.Module):
        model.eval()
    torch._dynamo.reset()
    backend = Backend()
    with torch.no_grad():
        return torch.compile(model, backend=backend)(*inputs), model(*inputs), backend


@pytest.mark.slow
def test_every_problem_is_right_and_most_have_regions() -> None:
    taken, table = 0, []
    for name in PROBLEMS:
        found, wanted, backend = run(name)
        torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3, msg=lambda said, name=name: f"{name}: {said}")
        report = backend.reports.all()
        taken += report.replaced > 0
        why = "; ".join({*report.reasons(), *(e.state for e in report.entries if not e.taken)})
        table.append(f"{name}: {report.replaced} of {len(report.entries)} regions{'; ' + why if why else ''}")
    print("\n".join([*table, f"{taken} of {len(PROBLEMS)} problems have a region"]))
    assert taken >= AT_LEAST * len(PROBLEMS)


@pytest.mark.parametrize("name", ["gelu, softmax", "layer norm", "attention", "upper triangle"])
def test_some_problems(name: str) -> None:
    found, wanted, _ = run(name)
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
