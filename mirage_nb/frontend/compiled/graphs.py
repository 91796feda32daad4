"""The inner compiler: PyTorch's code for a graph, and kernels of the search in it once they are there.

In: functional ATen graphs. Out: callables that take their arguments in one list. A graph is compiled as it is, unless
its first call waits for kernels, and with regions replaced when all its kernels are known. A graph whose sizes are not
fixed is looked at anew for each of the first sizes that it is called with. Invariants: whatever fails on the way to a
replacement leaves the graph as it was, with the reason in the report; a swap happens between two calls, in the thread
that calls, with PyTorch's compiler set as it was for the graph; sizes beyond the first ones are PyTorch's, so nothing
is compiled without end. Nothing is waited for inside PyTorch's compiler: it holds a lock then, which the search needs
where it races against PyTorch.
"""

from __future__ import annotations

import contextlib
import copy
import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx

from mirage_nb.frontend.compiled.bodies import drop_numbers, own_bodies
from mirage_nb.frontend.compiled.comparing import lying_anyhow
from mirage_nb.frontend.compiled.compiling import compiling
from mirage_nb.frontend.compiled.fitting import Version, copied, fit, written_by
from mirage_nb.frontend.compiled.kernels import Kernel, Kernels, Settled, target_of
from mirage_nb.frontend.compiled.mutated import passes
from mirage_nb.frontend.compiled.options import Options
from mirage_nb.frontend.compiled.regions import Regions, find_regions
from mirage_nb.frontend.compiled.replacing import keep_strides, replace
from mirage_nb.frontend.compiled.report import GraphReport, Reports
from mirage_nb.frontend.compiled.seams import versions
from mirage_nb.runtime.contest.later import Guard

Call = Callable[[list[Any]], Any]
Build = Callable[..., Call]

MAX_SIZES = 8
"""So many different sizes of one graph get kernels of their own."""


@dataclass(frozen=True)
class Compiler:
    """The inner compiler with what it needs; called as PyTorch calls its own."""

    kernels: Kernels
    reports: Reports
    options: Options

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **more: Any) -> Call:
        try:
            original = own_bodies(torch.fx.GraphModule(gm, copy.deepcopy(gm.graph)))
        except Exception as error:  # noqa: BLE001  # whatever it is, the model has to run
            self.reports.add(GraphReport([], trouble=_first_line(error)))
            return self.build(gm, example_inputs, **more)
        if not fixed(original.graph):
            return _BySize(self, original, self.build(gm, example_inputs, **more), more)
        late = self.options.wait and more.get("is_inference", False)  # what derivatives need says now how it lies
        late = late and not _sized_by_values(original.graph)  # PyTorch takes some of these graphs once
        plain = None if late else self.build(gm, example_inputs, **more)  # before a search, which needs the cores
        try:
            keep_strides(original, _reported() if plain is not None else ())
            return self.swapping(original, list(example_inputs), more, plain)
        except Exception as error:  # noqa: BLE001  # as above
            self.reports.add(GraphReport([], trouble=_first_line(error)))
            return plain if plain is not None else self.build(gm, example_inputs, **more)

    @property
    def build(self) -> Build:
        """What compiles a graph without our help."""
        return eager if self.options.remainder == "eager" else compile_fx_inner

    def swapping(
        self,
        gm: torch.fx.GraphModule,
        examples: list[Any],
        more: dict[str, Any],
        plain: Call | None,
        batch: int | None = None,
    ) -> Swapping:
        """Look for regions and for kernels, from now on. plain: what runs until these are known; None where the first
        call waits for them: nothing is compiled before. batch: as of `Kernels.of`."""
        target = target_of(self.options)
        found = find_regions(gm, target, more.get("static_input_idxs", ()))
        until = time.monotonic() + (self.options.total if self.options.total is not None else math.inf)
        bytes_of: Counter[str] = Counter()
        for region in found.found:
            bytes_of[region.digest] += region.least_bytes
        heaviest = sorted(found.found, key=lambda region: -bytes_of[region.digest])
        of = {id(r): self.kernels.of(r, self.options, batch, until, bytes_of[r.digest]) for r in heaviest}
        held = [(region, of[id(region)]) for region in found.found]
        report = self.reports.add(GraphReport.of(held, reasons(found), target))

        def settled() -> list[list[Settled]]:
            every = (one for region in found.found for one in self.kernels.settled(region, self.options, batch))
            return versions(every, target)

        kernels = [kernel for _, kernel in held]
        again = partial(self.again, examples, more)
        return Swapping(gm, kernels, settled, report, again, plain, self.options.wait, self._fit)

    def _fit(self, found: Sequence[Version], arguments: Sequence[Any]) -> int:
        """Which version of compiled code is the fastest, and its kernels' ways, by its time, at once or later, as one
        waits for kernels or not: later it is the first. Not of code that keeps CUDA graphs of its own, within a capture
        of somebody's, nor without a GPU."""
        on_gpu = any(isinstance(a, torch.Tensor) and a.is_cuda for a in arguments)
        captured = on_gpu and torch.cuda.is_current_stream_capturing()
        if on_gpu and not captured and not self.options.patches.get("triton.cudagraphs"):
            with contextlib.suppress(torch.OutOfMemoryError):
                if self.options.wait:
                    return fit(found, copied(found, arguments))
                self.kernels.later(partial(fit, found[:1], copied(found[:1], arguments)))
        return 0

    def again(
        self, examples: list[Any], more: dict[str, Any], gm: torch.fx.GraphModule, *, changed: bool = False
    ) -> Call:
        """Compile a graph as the first one was, with a context to leave notes in: with the same settings, or if it is
        changed, those for what is left between kernels."""
        fake = next((one.fake_mode for one in examples if isinstance(one, FakeTensor)), None)  # not a caller's own
        settings = self.options.between if changed else self.options.patches
        with compiling(passes(settings)), contextlib.ExitStack() as stack:
            if fake is not None:
                stack.enter_context(V.set_fake_mode(fake))
                stack.enter_context(mock.patch.object(fake, "allow_non_fake_inputs", True))  # constants of the graph
                stack.enter_context(torch._guards.tracing(torch._guards.TracingContext(fake)))
            return self.build(gm, examples, **more)


def _reported() -> Sequence[Any]:
    """How the results of the graph that was compiled last lie, as its code told PyTorch."""
    context = torch._guards.TracingContext.try_get()
    return (context.output_strides if context is not None else None) or ()


def _strides_like(node: Any, told: Sequence[Any] | None) -> tuple[int, ...] | None:
    """The strides of a result whose dimensions lie in the order of these strides, which are of other sizes; None where
    they do already, or nothing is known."""
    value = node.meta.get("val") if hasattr(node, "meta") else None
    if told is None or not isinstance(value, torch.Tensor):
        return None
    wide = [dim for dim, extent in enumerate(value.shape) if extent != 1]
    order, own = (sorted(wide, key=[*map(int, strides)].__getitem__) for strides in (told, value.stride()))
    if order == own:
        return None
    made, step = [1] * len(told), 1
    for dim in order:
        made[dim], step = step, step * value.shape[dim]
    return tuple(made)


def fixed(graph: torch.fx.Graph) -> bool:
    """Whether all sizes of the inputs are numbers."""
    values = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
    return not any(
        isinstance(value, torch.SymInt)
        or (isinstance(value, torch.Tensor) and any(isinstance(extent, torch.SymInt) for extent in value.shape))
        for value in values
    )


def _sized_by_values(graph: torch.fx.Graph) -> bool:
    """Whether sizes inside of it depend on values, as of what a mask picks."""
    return any(node.meta.get("unbacked_bindings") for node in graph.nodes)


def batch_of(graph: torch.fx.Graph, arguments: Sequence[Any]) -> int | None:
    """What the one size that is not fixed is now, where it is the outermost dimension of inputs; None if it is another
    one, or there are several."""
    found: dict[Any, int | None] = {}
    for node, argument in zip((n for n in graph.nodes if n.op == "placeholder"), arguments, strict=True):
        value = node.meta.get("val")
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
        if any(isinstance(extent, torch.SymInt) for extent in shape[1:]):
            return None
        open_ = value if isinstance(value, torch.SymInt) else shape[0] if shape else None
        if isinstance(open_, torch.SymInt):
            expression = open_.node.expr
            for symbol in expression.free_symbols:
                found.setdefault(symbol, None)
                if symbol == expression:
                    found[symbol] = argument if isinstance(argument, int) else int(argument.shape[0])
    return next(iter(found.values())) if len(found) == 1 else None


def eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **more: Any) -> Call:
    """The graph by PyTorch's own operators, one after the other."""
    lying_anyhow(gm)

    def run(arguments: list[Any]) -> Any:
        return gm(*arguments)

    run._boxed_call = True  # type: ignore[attr-defined]  # how PyTorch knows
    return run


class Swapping:
    """Compiled code that becomes better once, between two calls, when all kernels are known.

    `report`: what became of it. May be called from any thread.

    Args:
        original: the graph.
        kernels: those that are looked for.
        settled: what became of its regions and their parts, once that is known, in versions (`seams.versions`).
        again: compiles a graph, one that is `changed` or as it was.
        plain: the compiled graph as it was; None: it is compiled when it is known what takes the place of regions.
        wait: whether the first call waits until that is known.
        fit: which version of compiled code is the fastest for arguments like these, with kernels in the best ways.
    """

    def __init__(
        self,
        original: torch.fx.GraphModule,
        kernels: Sequence[Kernel],
        settled: Callable[[], list[list[Settled]]],
        report: GraphReport,
        again: Build,
        plain: Call | None,
        wait: bool,
        fit: Callable[[Sequence[Version], Sequence[Any]], int],
    ) -> None:
        self._boxed_call = True  # takes its arguments in one list; PyTorch looks for it in the object itself
        self._original: torch.fx.GraphModule | None = original
        self._kernels = kernels
        self._settled = settled
        self.report = report
        self._again = again
        self._run = plain
        self._wait = wait
        self._fit = fit
        self._made: list[tuple[Version, list[Settled]]] = []
        self._turn = Guard()
        self._named: tuple[int, ...] = ()

    def __call__(self, arguments: list[Any]) -> Any:
        if self._original is not None or self._run is None:
            self._named = named_only(arguments)  # PyTorch guards the classes of arguments
            self._look()
        assert self._run is not None
        for number in self._named:
            arguments[number] = arguments[number].as_subclass(torch.Tensor)
        if self._made:
            made, self._made = self._made, []
            version, settled = made[self._fit([version for version, _ in made], arguments)]
            self._run = version.call
            self.report.settle(settled)
        return self._run(arguments)

    def _look(self) -> None:
        """Swap if it is time; whoever comes while another thread does goes on with the code that is there."""
        if torch.compiler.is_compiling() and self._run is not None:
            return
        if not self._turn.acquire(blocking=self._wait):
            return
        try:
            for kernel in self._kernels if self._wait else ():
                kernel.wait()
            if self._original is not None and not any(kernel.pending for kernel in self._kernels):
                original, self._original = self._original, None
                self._swap(original)
        finally:
            self._turn.release()

    def _swap(self, original: torch.fx.GraphModule) -> None:
        """Put kernels in the place of their regions; on any failure everything stays."""
        first, *others = self._settled()
        plain = copy_of(original)[0] if self._run is None else None
        try:
            if any(one.taken for one in first):
                # A graph whose runs count is not run to see which version is the fastest.
                open_ = self._wait and written_by(original.graph) is not None
                more = [(settled, *copy_of(original)) for settled in others if open_]
                self._made = [(self._version(original, first, {}), first)]
                self._made += [(self._version(gm, settled, nodes), settled) for settled, gm, nodes in more]
        except Exception as error:  # noqa: BLE001  # the code that is there goes on
            self.report.trouble = _first_line(error)
        if not self._made:
            first = [one._replace(taken=False) for one in first]
            if plain is not None:
                self._run = self._again(plain)
        else:
            self._run = self._made[0][0].call
        self.report.settle(first)

    def _version(self, gm: torch.fx.GraphModule, settled: Sequence[Settled], nodes: Mapping[Any, Any]) -> Version:
        """A graph compiled with kernels in the place of the regions that are taken, which is changed. nodes: those of
        the graph that regions are of, and what they are in this one."""
        taken = [(one.region.among(nodes), one.kernel) for one in settled if one.taken]
        replace(gm, taken)
        kernels = {id(kernel): kernel for _, kernel in taken}
        return Version(self._again(gm, changed=True), written_by(gm.graph), tuple(kernels.values()))


def copy_of(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, dict[Any, Any]]:
    """The same graph once more, and for its nodes those of the copy."""
    graph = copy.deepcopy(gm.graph)
    return torch.fx.GraphModule(gm, graph), dict(zip(gm.graph.nodes, graph.nodes, strict=True))


def named_only(arguments: Sequence[Any]) -> tuple[int, ...]:
    """Which arguments are of a user's classes that dispatch as tensors do: operators of ours would meet the class."""
    usual = torch.Tensor, torch.nn.Parameter
    found = [(n, type(a)) for n, a in enumerate(arguments) if isinstance(a, torch.Tensor) and type(a) not in usual]
    return tuple(n for n, kind in found if kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__)


class _BySize:
    """A graph whose sizes are not fixed: kernels for the first ones that come, PyTorch's code for all others."""

    def __init__(self, compiler: Compiler, graph: torch.fx.GraphModule, plain: Call, more: dict[str, Any]) -> None:
        self._boxed_call = True  # as above
        self._compiler = compiler
        self._graph = lying_anyhow(graph)
        self._plain = plain
        self._reported = tuple(_reported())
        self._more = more
        self._known: dict[tuple[Any, ...], Call] = {}

    def __call__(self, arguments: list[Any]) -> Any:
        key = tuple(tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in arguments)
        known = self._known.get(key)
        if known is None:
            known = self._plain
            if len(self._known) < MAX_SIZES:
                known = self._known[key] = self._made(arguments)
            else:
                self._tell()
        return known(arguments)

    def _tell(self) -> None:
        """Say with one of the known sizes that there were others."""
        known = next((call for call in self._known.values() if isinstance(call, Swapping)), None)
        if known is not None and not known.report.trouble:
            known.report.trouble = f"of many sizes the first {MAX_SIZES} have kernels"

    def _made(self, arguments: list[Any]) -> Call:
        """Traced again with these sizes as numbers."""
        compiler = self._compiler
        try:
            arguments = [*arguments]
            for number in named_only(arguments):
                arguments[number] = arguments[number].as_subclass(torch.Tensor)
            with torch.no_grad(), compiling({}):
                gm = make_fx(self._graph, tracing_mode="fake")(*arguments)
            drop_numbers(gm)
            _type_numbers(gm.graph)
            (new,), (old,) = (made.graph.find_nodes(op="output") for made in (gm, self._graph))
            new.meta |= old.meta  # which results a user sees, that lie as they did
            examples = [n.meta.get("val", a) for n, a in zip(_placeholders(gm), arguments, strict=True)]
            keep_strides(gm, [*map(_strides_like, new.args[0], self._reported)])
            batch = batch_of(self._graph.graph, arguments)
            return compiler.swapping(gm, examples, self._more, self._plain, batch)
        except Exception as error:  # noqa: BLE001  # whatever it is, the model has to run
            compiler.reports.add(GraphReport([], trouble=_first_line(error)))
            return self._plain


def _type_numbers(graph: torch.fx.Graph) -> None:
    """Say of which type tensors of one number are: a whole number that does not PyTorch's compiler makes an integer,
    where it is a float."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.scalar_tensor.default):
        node.kwargs = {"dtype": node.meta["val"].dtype, **node.kwargs}


def _placeholders(gm: torch.fx.GraphModule) -> list[Any]:
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def reasons(found: Regions) -> dict[str, str]:
    """Why nodes are in no region, by their operators."""
    skipped = ("placeholder", "get_attr")
    return {
        f"{node.name} ({node.target})": why
        for node, why in found.left.items()
        if node.op not in skipped and node.target is not operator.getitem
    }
