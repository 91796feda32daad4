"""A look at a model: its regions, before anything is searched.

In: a model and inputs. Out: a `ModelReport`. Invariant: the model is traced as torch.compile traces it, and runs once,
by PyTorch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mirage_nb.frontend.compiled.backend import compile_inside
from mirage_nb.frontend.compiled.graphs import eager, reasons
from mirage_nb.frontend.compiled.kernels import target_of
from mirage_nb.frontend.compiled.options import Options
from mirage_nb.frontend.compiled.regions import find_regions
from mirage_nb.frontend.compiled.report import Entry, GraphReport, ModelReport


def look(model: Any, example_inputs: Sequence[Any], target: str | None = None) -> ModelReport:
    """The regions of a model for these inputs, with estimates."""
    chosen = target_of(Options.of(options={"target": target}))
    graphs: list[GraphReport] = []

    def inner(gm: torch.fx.GraphModule, inputs: Sequence[Any], **more: Any) -> Callable[[list[Any]], Any]:
        found = find_regions(gm, chosen, more.get("static_input_idxs", ()))
        graphs.append(GraphReport([Entry.of(region, None, chosen) for region in found.found], reasons(found)))
        return eager(gm, inputs, **more)

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_inside(inner, gm, inputs, {})

    with torch.no_grad():
        compiled: Any = torch.compile(model, backend=backend, dynamic=False)
        compiled(*example_inputs)
    return ModelReport(graphs)
