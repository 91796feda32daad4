"""The modules of `bench modules`, one by one through the backend.

In: a module and its inputs. Out: its `Fate`. Invariant: outputs are compared with eager PyTorch's, whether a region was
taken or not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from mirage_nb.bench.modules import Fate
from mirage_nb.bench.pytorch.module_problems import Problem, problems
from mirage_nb.frontend.compiled.backend import compile_with
from mirage_nb.frontend.compiled.kernels import Found, Kernels
from mirage_nb.frontend.compiled.operators import by_pytorch
from mirage_nb.frontend.compiled.options import Options
from mirage_nb.frontend.compiled.report import ModelReport, Reports
from mirage_nb.ir import KernelGraph

__all__ = ["Composed", "fate", "problems"]
TOLERANCE = 2e-3


class Composed:
    """Finds for every program its operators in PyTorch: nothing is searched, everything else is as it would be."""

    def find(self, graph: KernelGraph, name: str, device: str, options: Options) -> Found:
        """As `Finder` has it."""
        return Found(by_pytorch(graph))


def fate(name: str, problem: Problem) -> Fate:
    """What becomes of one module; one that fails is wrong."""
    model, inputs = problem
    if isinstance(model, torch.nn.Module):
        model.eval()
    kernels, reports = Kernels(Composed()), Reports()
    options = {"wait": True, "remainder": "eager"}

    def backend(gm: Any, examples: Any) -> Any:
        return compile_with(kernels, reports, gm, examples, options=options)

    torch._dynamo.reset()
    wrong = ""
    try:
        with torch.no_grad():
            compiled: Any = torch.compile(model, backend=backend)
            found, wanted = compiled(*inputs), model(*inputs)
        for ours, theirs in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    except Exception as error:  # noqa: BLE001  # a module that fails is told like one that is wrong
        wrong = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    report = reports.all()
    return Fate(name, len(report.entries), report.replaced, reasons_of(report), wrong)


def reasons_of(report: ModelReport) -> tuple[str, ...]:
    """Why something was left, each reason once."""
    states = [entry.state for entry in report.entries if not entry.taken]
    troubles = [graph.trouble for graph in report.graphs if graph.trouble]
    return tuple(dict.fromkeys([*report.reasons(), *states, *troubles]))
