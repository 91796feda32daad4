"""The backend `mirage_nb` of torch.compile.

In: what Dynamo traced. Out: a callable. PyTorch's own compiler does all it does for any model (guards, mutation,
autograd, decompositions, code for what is left); its inner compiler alone is ours: it gets functional ATen graphs,
compiles them as they are, and once kernels are there compiles them again with regions replaced by operators
(`torch.library`) that run these. Invariants: derivatives were taken before, so what is replaced needs none; whatever
fails on the way to a replacement leaves the graph as it was, with the reason in the report; a swap happens between
two calls, in the thread that calls.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.pattern_matcher import stable_topological_sort
from torch._inductor.virtualized import V

from mirage_nb.frontend.compiled.kernels import Kernel, Kernels, Searched, without_strides
from mirage_nb.frontend.compiled.options import Options
from mirage_nb.frontend.compiled.regions import Region, Regions, find_regions
from mirage_nb.frontend.compiled.report import Entry, GraphReport, Reports
from mirage_nb.frontend.compiled.restore import restore_softmax
from mirage_nb.runtime.gpu import attached_gpu
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target

Inner = Callable[..., Callable[[list[Any]], Any]]

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
    inner = partial(_inner, kernels, reports, chosen)
    patches = torch._inductor.list_mode_options(chosen.mode) if chosen.mode else {}
    with torch._functorch.config.patch(enable_autograd_cache=False):
        made: Any = inner  # PyTorch calls what it gets back, and looks at no more of it than that it is boxed
        return compile_fx(model, example_inputs, inner_compile=made, config_patches=patches or None)


def _inner(
    kernels: Kernels,
    reports: Reports,
    options: Options,
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    **more: Any,
) -> Callable[[list[Any]], Any]:
    """The inner compiler: PyTorch's code for the graph, and regions of it to come."""
    build: Inner = eager if options.remainder == "eager" else compile_fx_inner
    original = copy.deepcopy(gm)
    try:
        restore_softmax(original.graph)
        found = find_regions(original.graph, target_of(options), more.get("static_input_idxs", ()))
    except Exception as error:  # noqa: BLE001  # whatever it is, the model has to run
        found = Regions()
        reports.add(GraphReport([], {"the whole graph": f"{type(error).__name__}: {error}"}))
        return build(gm, example_inputs, **more)
    held = [(region, kernels.of(region, options)) for region in found.found]
    report = reports.add(GraphReport([Entry.of(r, k, target_of(options)) for r, k in held], reasons(found)))
    if not held:
        return build(gm, example_inputs, **more)
    swapping = _Swapping(original, held, report, partial(_again, build, list(example_inputs), more))
    if options.wait:
        for _, kernel in held:
            kernel.job.wait()
        swapping.swap()
    if not swapping.swapped:
        swapping.run = build(gm, example_inputs, **more)
    return swapping


def eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **more: Any) -> Callable[[list[Any]], Any]:
    """The graph by PyTorch's own operators, one after the other."""
    for node in gm.graph.nodes:
        node.target = without_strides(node.target)
    gm.recompile()

    def run(arguments: list[Any]) -> Any:
        return gm(*arguments)

    return _boxed(run)


def _boxed(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """A function that takes its arguments in one list."""
    run._boxed_call = True  # type: ignore[attr-defined]  # how PyTorch knows
    return run


def _again(build: Inner, example_inputs: list[Any], more: dict[str, Any], gm: torch.fx.GraphModule) -> Any:
    """Compile a changed graph as the first one was: the compiler leaves notes in a context of its own."""
    fake = torch._guards.detect_fake_mode(example_inputs)
    if fake is None:
        return build(gm, example_inputs, **more)
    with V.set_fake_mode(fake), torch._guards.tracing(torch._guards.TracingContext(fake)):
        return build(gm, example_inputs, **more)


class _Swapping:
    """Compiled code that becomes better once, between two calls, when all kernels are known."""

    run: Callable[[list[Any]], Any]
    swapped = False

    def __init__(
        self,
        original: torch.fx.GraphModule,
        held: list[tuple[Region, Kernel]],
        report: GraphReport,
        again: Callable[[torch.fx.GraphModule], Any],
    ) -> None:
        self._boxed_call = True  # takes its arguments in one list; PyTorch looks for it in the object itself
        self._original: torch.fx.GraphModule | None = original
        self._held = held
        self._report = report
        self._again = again

    def __call__(self, arguments: list[Any]) -> Any:
        if self._original is not None and not any(kernel.pending for _, kernel in self._held):
            self.swap()
        return self.run(arguments)

    def swap(self) -> None:
        """Put kernels in the place of their regions; on any failure everything stays."""
        original, self._original = self._original, None
        if original is None:
            return
        taken = [(region, kernel) for region, kernel in self._held if kernel.operator is not None]
        if not taken:
            return
        try:
            replace(original, taken)
            self.run = self._again(original)
        except Exception as error:  # noqa: BLE001  # the code that is there goes on
            self._report.failed(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
        else:
            self.swapped = True
            self._report.taken(region for region, _ in taken)


def replace(gm: torch.fx.GraphModule, taken: Sequence[tuple[Region, Kernel]]) -> None:
    """Calls of operators in the place of regions.

    Args:
        gm: the graph that the regions were found in.
        taken: regions in order, and what computes them.
    """
    put: dict[Any, Any] = {}
    for region, kernel in taken:
        reads = [put.get(node, node) for node in region.reads]
        last = max(reads, key=list(gm.graph.nodes).index)
        for node, new in zip(region.writes, _call(gm.graph, kernel, reads, region.writes, last), strict=True):
            node.replace_all_uses_with(new)
            put[node] = new
    stable_topological_sort(gm.graph)
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    gm.recompile()


def _call(
    graph: torch.fx.Graph, kernel: Kernel, reads: Sequence[Any], writes: Sequence[Any], after: Any
) -> Iterator[Any]:
    """A call of an operator behind a node, and a node for each of its results, shaped and typed as it is there."""
    overload = kernel.operator._opoverload
    shapes = [i.type.shape for i in kernel.graph.inputs]
    with graph.inserting_after(_behind_inputs(graph, after)):
        marker = graph.call_function(torch.ops.aten.alias.default, (reads[0],))
    with graph.inserting_before(marker):
        given = [_reshaped(graph, node, shape) for node, shape in zip(reads, shapes, strict=True)]
        call = graph.call_function(overload, tuple(given))
        fake = overload(*(node.meta["val"] for node in given))
        made = fake if isinstance(fake, tuple | list) else (fake,)
        call.meta["val"] = fake
        for number, (value, old) in enumerate(zip(made, writes, strict=True)):
            node = call
            if len(made) > 1:
                node = graph.call_function(operator.getitem, (call, number))
                node.meta["val"] = value
            wanted = old.meta["val"]
            if wanted.dtype != value.dtype:
                node = _derived(graph, torch.ops.prims.convert_element_type.default, node, wanted.dtype)
            yield _reshaped(graph, node, tuple(wanted.shape))
    graph.erase_node(marker)


def _behind_inputs(graph: torch.fx.Graph, node: Any) -> Any:
    """The node, or the last placeholder if it is one: these stay together."""
    return [n for n in graph.nodes if n.op == "placeholder"][-1] if node.op == "placeholder" else node


def _reshaped(graph: torch.fx.Graph, node: Any, shape: tuple[int, ...]) -> Any:
    if tuple(node.meta["val"].shape) == shape:
        return node
    return _derived(graph, torch.ops.aten.reshape.default, node, list(shape))


def _derived(graph: torch.fx.Graph, target: Any, node: Any, argument: Any) -> Any:
    made = graph.call_function(target, (node, argument))
    made.meta["val"] = target(node.meta["val"], argument)
    return made


def target_of(options: Options) -> Target:
    """The GPU to search for: the one that is asked for, else the attached one, else the usual one."""
    if options.target is not None:
        return find_target(options.target)
    gpu = attached_gpu()
    attached = gpu.target() if gpu is not None else None
    return attached if attached is not None else find_target(DEFAULT_TARGET)


def reasons(found: Regions) -> dict[str, str]:
    """Why nodes are in no region, by their operators."""
    skipped = ("placeholder", "get_attr")
    return {
        f"{node.name} ({node.target})": why
        for node, why in found.left.items()
        if node.op not in skipped and node.target is not operator.getitem
    }
