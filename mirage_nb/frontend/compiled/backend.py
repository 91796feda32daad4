"""The backend `mirage_nb` of torch.compile, and a look at what it would do.

In: what Dynamo traced. Out: a callable. PyTorch's own compiler does all it does for any model (guards, mutation,
autograd, decompositions, code for what is left); its inner compiler alone is ours (`graphs`). Invariant: derivatives
were taken before the inner compiler gets a graph, so what it replaces needs none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._inductor.compile_fx import compile_fx

from mirage_nb.errors import TraceError
from mirage_nb.frontend.compiled.graphs import Compiler, eager, reasons
from mirage_nb.frontend.compiled.kernels import Kernels, Searched, target_of
from mirage_nb.frontend.compiled.mutated import passes
from mirage_nb.frontend.compiled.options import Options
from mirage_nb.frontend.compiled.regions import find_regions
from mirage_nb.frontend.compiled.report import GraphReport, ModelReport, Reports, untraced
from mirage_nb.frontend.program import unlogged
from mirage_nb.frontend.spelled import spell_out

KERNELS = Kernels(Searched())
REPORTS = Reports()


def mirage_nb(
    model: Any, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Any:
    """The backend, as torch.compile calls it; `options` as in `Options`. Raises OptionError."""
    return compile_with(KERNELS, REPORTS, model, example_inputs, mode=mode, options=options)


def compile_with(
    kernels: Kernels,
    reports: Reports,
    model: Any,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """The same with other kernels, and with reports of its own."""
    chosen = Options.of(mode, options)
    return compile_inside(Compiler(kernels, reports, chosen), model, example_inputs, chosen.patches)


def compile_inside(inner: Any, model: Any, example_inputs: Sequence[Any], patches: Mapping[str, Any]) -> Any:
    """PyTorch's compiler with another inner compiler, of which it looks at no more than that results are boxed."""
    spell_out(model)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        return compile_fx(model, example_inputs, inner_compile=inner, config_patches=passes(patches))


def look(model: Any, example_inputs: Any, target: str | None = None) -> ModelReport:
    """The regions of a model for these inputs, with estimates: nothing is searched, and PyTorch alone runs it once.
    Raises TraceError where it cannot."""
    chosen = target_of(Options.of(options={"target": target}))
    graphs: list[GraphReport] = []

    def inner(gm: torch.fx.GraphModule, inputs: Sequence[Any], **more: Any) -> Callable[[list[Any]], Any]:
        found = find_regions(gm, chosen, more.get("static_input_idxs", ()))
        graphs.append(GraphReport.of(((region, None) for region in found.found), reasons(found), chosen))
        return eager(gm, inputs, **more)

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_inside(inner, gm, inputs, {})

    before = untraced()
    with torch.no_grad(), unlogged():
        compiled: Any = torch.compile(model, backend=backend, dynamic=False)
        try:
            compiled(*(example_inputs if isinstance(example_inputs, list | tuple) else (example_inputs,)))
        except Exception as error:
            raised = re.search(r"got \w+\([\"'](.*)[\"']\)$", str(error), re.MULTILINE)  # what the model raised itself
            first = raised[1] if raised else (str(error).splitlines() or [type(error).__name__])[0]
            hint = "model_report(model, inputs) calls model(*inputs): a tensor, or a tuple of all that it takes"
            raise TraceError(f"the model fails on these inputs: {first}", hint=hint) from error
    return ModelReport(graphs, untraced() - before)
