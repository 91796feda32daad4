"""Kernels for regions: found once for each program, in the background, compared with PyTorch before they are used.

In: regions. Out: `Kernel`s, which say what they run, or why there is nothing to run. Invariant: what is handed out was
run on inputs like the region's own and agreed there with what PyTorch computes for it; on a GPU it was also timed as
faster than PyTorch's compiled code on that card. Where a region has no such kernel, or none of its own, its parts are
searched, and what saves more by these times is what runs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch

from mirage_nb.errors import LaunchError, MirageError, MissingPartError, NamedSizeError
from mirage_nb.frontend.compiled.comparing import Examples, Reference, Run, Shapes, compare, examples
from mirage_nb.frontend.compiled.operators import by_pytorch, register_operator
from mirage_nb.frontend.compiled.options import Options
from mirage_nb.frontend.compiled.parts import parts_of
from mirage_nb.frontend.compiled.racing import beside_pytorch
from mirage_nb.frontend.compiled.regions import Region
from mirage_nb.ir import KernelGraph, Size
from mirage_nb.ir.sizes import named
from mirage_nb.lang import TensorProgram
from mirage_nb.pipeline import Session, superoptimize
from mirage_nb.runtime.contest.later import Job, Later
from mirage_nb.runtime.execution.execute import Executable
from mirage_nb.runtime.gpu import TURN, attached_gpu
from mirage_nb.search import prepare
from mirage_nb.search.sizes.coarse import two_pay
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target

ALIGNMENT = 16
NO_TIME = "there was no time to search for it: options={'total': ...} says how much there is"
ENDS = (8, 64, 512)
"""Up to which batches there are kernels of their own, where the batch is known when they are called."""
MARGIN = 0.97
"""A kernel has to take this share of PyTorch's time at most: less is noise, and calling it costs the host more."""
FAR = 1.5
"""By so much estimates are never off: of 37 sessions for layers of models the best kernel took 0.87 to 1.39 times what
the least of its estimates said, and 1.6 to 1.8 times where three others searched on the same host."""
CLOSE = 1.15
"""A kernel that takes so many times as long as PyTorch's code at most, behind a kernel of somebody else's, may be
faster in a model, where it begins while one of ours ends."""
OTHERS = 10
"""So many ways that are about as fast are kept, one of which may be the fastest in a model."""
FUSED = 2
"""A region's own kernel is this many at most; what is put together of more may do with less as a whole."""


class Way(NamedTuple):
    """What runs a program, and what does where a kernel of ours runs before in the same graph, if that is something
    else."""

    run: Run
    behind: Run | None = None


@dataclass(frozen=True)
class Found:
    """What a search found for a program: what runs it, and how long it takes beside PyTorch's code for the region
    (microseconds; None: not measured, as without a GPU). `behind`: as of a `Way`; `others`: ways that are about as
    fast."""

    run: Run
    us: float | None = None
    before_us: float | None = None
    session: Session | None = None
    behind: Run | None = None
    others: tuple[Way, ...] = ()

    @property
    def ways(self) -> tuple[Way, ...]:
        """All that there are, the fastest alone first."""
        return Way(self.run, self.behind), *self.others

    @property
    def saves(self) -> float:
        """Microseconds that it takes less than PyTorch's code; infinite where nobody measured them."""
        return math.inf if self.us is None or self.before_us is None else self.before_us - self.us

    @property
    def is_far(self) -> bool:
        """Whether it takes far longer than the search estimated: there was no time to see what is as fast as that."""
        if self.session is None or self.us is None:
            return False
        return self.us > FAR * min((c.estimate_us for c in self.session.result().candidates), default=math.inf)

    @property
    def is_whole(self) -> bool:
        """Whether a kernel or two compute all of it; True where nobody searched."""
        return self.session is None or self.session.best.candidate.kernels <= FUSED


class Finder(Protocol):
    """Who finds something to run for a program."""

    def find(self, graph: KernelGraph, name: str, device: str, options: Options) -> Found:
        """Takes as long as it needs. Raises MirageError where there is nothing to run."""


class Searched:
    """The search."""

    def find(self, graph: KernelGraph, name: str, device: str, options: Options) -> Found:
        """The winner of a session. Raises MirageError with the reason where there is none."""
        on_gpu = device.startswith("cuda")
        if not on_gpu and not options.emulate:
            raise MissingPartError("kernels are for GPUs", hint='options={"emulate": True} runs them without one')
        if on_gpu and attached_gpu() is None:
            raise MissingPartError("there is no CuPy to run kernels with", hint="pip install 'mirage-nb[gpu]'")
        session = superoptimize(
            TensorProgram(name, "", graph, (), {}),
            name=name,
            effort=options.effort or effort_for(graph, target_of(options)),
            budget=options.seconds,
            target=options.target,
            store=options.store,
        )
        session.wait()
        best = session.best
        run, behind = way_of(best.executable, graph)
        others = [way_of(way.executable, graph) for way in session.ways if way.label != best.label]
        return Found(run, session=session, behind=behind, others=tuple(others[:OTHERS]))


def effort_for(graph: KernelGraph, target: Target) -> str:
    """What a program needs: one kernel is found in a tenth of the work that two are, and most regions need no more."""
    prepared = prepare(graph)
    return "standard" if prepared.refused or two_pay(prepared, target) else "quick"


def target_of(options: Options) -> Target:
    """The GPU to search for: the one that is asked for, else the attached one, else the usual one."""
    if options.target is not None:
        return find_target(options.target)
    gpu = attached_gpu()
    attached = gpu.target() if gpu is not None else None
    return attached if attached is not None else find_target(DEFAULT_TARGET)


def way_of(executable: Executable, graph: KernelGraph) -> Way:
    """An executable of a program as what runs it on tensors of PyTorch."""
    settled = [n for n, i in enumerate(graph.inputs) if i.settled]
    return Way(laid_out(executable), laid_out(executable.trusting, executable, settled) if settled else None)


def laid_out(run: Run, otherwise: Run | None = None, settled: Collection[int] = ()) -> Run:
    """What runs on tensors as kernels need them: contiguous, at addresses that are multiples of `ALIGNMENT`.
    `otherwise`: what takes its place where one of the `settled` has to be copied, which then is not."""

    def fit(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_contiguous() and (not tensor.is_cuda or tensor.data_ptr() % ALIGNMENT == 0):
            return tensor
        return tensor.clone(memory_format=torch.contiguous_format)

    def call(*tensors: torch.Tensor) -> Any:
        fitting = [*map(fit, tensors)]
        chosen = run if otherwise is None or all(fitting[n] is tensors[n] for n in settled) else otherwise
        return chosen(*fitting)

    return call


@dataclass
class Kernel:
    """What became of a program. `operator`: of PyTorch, an overload, once there is one; `behind`: the one for where
    another kernel of ours runs before in the same graph; `way`: what they run; `close`: alone PyTorch is as fast;
    `parts`: the kernels of smaller regions, where these were looked at, too; `again`: a second search; `failed`: why
    PyTorch's operators run instead, since what was found did not at a call."""

    digest: str
    graph: KernelGraph
    job: Job
    again: Job | None = None
    found: Found | None = None
    operator: Any = None
    behind: Any = None
    way: Way | None = None
    close: bool = False
    parts: tuple[Kernel, ...] = ()
    failed: str = ""

    def register(self, name: str, which: int) -> Any:
        """An operator that runs this part of its way; from a call on at which it fails, PyTorch's operators one by one.
        What finds no memory may find some at the next call."""
        instead = functools.cache(lambda: by_pytorch(self.graph))

        def call(*tensors: torch.Tensor) -> Any:
            if not self.failed:
                try:
                    return self.way[which](*tensors)  # type: ignore[index,misc]  # there is one once it is registered
                except torch.OutOfMemoryError:
                    raise
                except Exception as error:  # noqa: BLE001  # whatever it is, the model goes on
                    self.failed = _told(error)
            return instead()(*tensors)

        return register_operator(self.graph, name, call)

    @property
    def pending(self) -> bool:
        """Whether nobody knows yet."""
        jobs = (job for job in (self.job, self.again) if job is not None)
        return not all(job.ended for job in jobs) or any(part.pending for part in self.parts)

    def wait(self) -> None:
        """Block until it is known."""
        self.job.wait()
        if self.again is not None:
            self.again.wait()
        for part in self.parts:
            part.wait()

    @property
    def why(self) -> str:
        """Why there is nothing to run; empty where there is, or where nobody knows yet."""
        if self.job.lost:
            return "another process was searching for it when this one was forked off"
        return _told(self.job.error) if self.job.error is not None else ""

    @property
    def saves_whole(self) -> float:
        """Microseconds that what runs takes less than PyTorch's code; infinite where nobody measured them."""
        return self.found.saves if self.found is not None and self.is_faster else 0.0

    @property
    def is_faster(self) -> bool:
        """Whether there is something to run that is faster alone than PyTorch's code."""
        return self.operator is not None and not self.close

    @property
    def saves(self) -> float:
        """The same as a whole or in parts, whichever is more."""
        return max(self.saves_whole, sum(part.saves for part in self.parts))

    @property
    def in_parts(self) -> bool:
        """Whether its parts save more."""
        return self.saves > self.saves_whole


class Settled(NamedTuple):
    """A region, or a part of one, its kernel, whether that takes its place, and its `seams` then."""

    region: Region
    kernel: Kernel
    taken: bool
    seams: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Asked:
    """A region that is searched for, and what it is compared with: read from its graph before that is changed."""

    region: Region
    options: Options
    extent: int | None
    until: float
    weight: float
    name: str
    reference: Reference
    inputs: Examples
    run: Shapes


class Kernels:
    """The kernels of this process, by program, device and options. May be used from any thread."""

    def __init__(self, finder: Finder) -> None:
        self.finder = finder
        self._later = Later("mirage_nb: kernels for torch.compile")  # a session has all cores, and the card
        self._held: dict[Key, Kernel] = {}

    def of(
        self, region: Region, options: Options, extent: int | None = None, until: float = math.inf, weight: float = 0.0
    ) -> Kernel:
        """The kernel for a region: searched for from now on, if nobody did before.

        Args:
            extent: a batch, of which outermost dimensions of inputs are multiples; it will be another one in other
                calls, and one kernel serves a range.
            until: no search is begun after the clock (`time.monotonic`) says so.
            weight: bytes that it moves, wherever it stands: what weighs more is searched first.
        """
        graph, key = _known_by(region, options, extent)
        if (known := self._held.get(key)) is not None and not known.job.lost:
            return known
        if known is not None:
            self._held.pop(key, None)
        name = f"region_{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"
        beside = Reference.of(region), examples(region), Shapes.of(region)
        asked = _Asked(region, options, extent, until, weight, name, *beside)
        fresh = Kernel(key[0], graph, Job(lambda: self._work(fresh, asked)))
        if (held := self._held.setdefault(key, fresh)) is fresh:
            self._later.put(fresh.job, weight)
        return held

    def settled(self, region: Region, options: Options, extent: int | None = None) -> Iterator[Settled]:
        """What became of a region, in order: itself, and its parts and theirs where one of them takes its place."""
        kernel = self._held.get(_known_by(region, options, extent)[1])
        if kernel is None or kernel.pending:
            return
        yield Settled(region, kernel, kernel.is_faster and not kernel.in_parts)
        if kernel.in_parts:
            for part in parts_of(region, target_of(options))[0]:
                yield from self.settled(part, options, extent)

    def later(self, work: Callable[[], Any]) -> None:
        """Do this when nobody is searched for any more."""
        self._later.put(Job(work), -1.0)

    def _work(self, kernel: Kernel, asked: _Asked) -> None:
        if time.monotonic() > asked.until:
            raise LaunchError(NO_TIME)
        try:
            kernel.found = self._raced(kernel, asked)
            self._take(kernel, asked)
        except MissingPartError:  # parts would miss it, too
            raise
        except Exception:
            kernel.parts = self._parts(kernel, asked)
            raise
        finally:
            if asked.until < math.inf and (before := kernel.found) is not None and before.is_far:
                kernel.again = Job(functools.partial(self._again, kernel, asked, before))
                self._later.put(kernel.again)  # behind all others
        if not kernel.found.is_whole:
            kernel.parts = self._parts(kernel, asked)

    def _again(self, kernel: Kernel, asked: _Asked, before: Found) -> None:
        """Search once more, if there is time, and keep what is faster than what was found before."""
        if time.monotonic() > asked.until:
            return
        found = self._raced(kernel, asked)
        if found.saves > before.saves:
            kernel.found = found
            try:
                self._take(kernel, asked)
                kernel.job.error = None
            except LaunchError as error:
                kernel.job.error = error

    def _raced(self, kernel: Kernel, asked: _Asked) -> Found:
        """What the search finds, compared with PyTorch; on a GPU it has raced against its code."""
        device = str(asked.region.writes[0].meta["val"].device)
        found = self.finder.find(kernel.graph, f"region_{kernel.digest[:16]}", device, asked.options)
        on_gpu = device.startswith("cuda")
        ways = [asked.run.around(run) for run in (found.run, found.behind) if run is not None]
        with TURN if on_gpu else contextlib.nullcontext():
            for run in ways:
                compare(_fresh(run, kernel.graph), asked.reference, asked.inputs)
            found = replace(found, others=tuple(way for way in found.others if self._agrees(way, kernel, asked)))
        if on_gpu:
            us, before = beside_pytorch(ways[-1], asked.reference.graph, asked.inputs, asked.options.code)
            found = replace(found, us=us, before_us=before)
        return found

    def _agrees(self, way: Way, kernel: Kernel, asked: _Asked) -> bool:
        """Whether another way computes what PyTorch does, too."""
        try:
            compare(_fresh(asked.run.around(way.behind or way.run), kernel.graph), asked.reference, asked.inputs)
        except MirageError:
            return False
        return True

    def _take(self, kernel: Kernel, asked: _Asked) -> None:
        """Make operators of what was found. Raises LaunchError where PyTorch's code is as fast."""
        found = kernel.found
        assert found is not None, "there is something to take"
        share = found.us / found.before_us if found.us is not None and found.before_us is not None else 0.0
        if share <= CLOSE:
            self._register(kernel, asked, found)
        kernel.close = share > MARGIN
        if kernel.close:
            raise LaunchError(f"PyTorch is as fast: {found.before_us:.1f} us, the best kernel {found.us:.1f} us")

    def _register(self, kernel: Kernel, asked: _Asked, found: Found) -> None:
        kernel.way = found.ways[0]
        kernel.operator = kernel.behind = kernel.register(asked.name, 0)
        if found.behind is not None:
            kernel.behind = kernel.register(f"{asked.name}_behind", 1)

    def _parts(self, kernel: Kernel, asked: _Asked) -> tuple[Kernel, ...]:
        """The kernels of a region's parts, searched for from now on, where these are estimated to take less than
        what is there."""
        there = (kernel.found.us, kernel.found.before_us) if kernel.found is not None else ()
        parts, us = parts_of(asked.region, target_of(asked.options))
        if us >= min((known for known in there if known is not None), default=math.inf):
            return ()
        times = asked.weight / asked.region.least_bytes
        return tuple(
            self.of(part, asked.options, asked.extent, asked.until, times * part.least_bytes) for part in parts
        )


Key = tuple[str, str, Options]
"""A program's digest, a device, and what of the options a search depends on."""


def _known_by(region: Region, options: Options, extent: int | None) -> tuple[KernelGraph, Key]:
    """A region's program, and by what its kernel is known."""
    graph = named_region(region, extent)
    digest = region.digest if graph is region.graph else graph.digest()
    device = str(region.writes[0].meta["val"].device)
    return graph, (digest, device, replace(options, wait=False, remainder="inductor", total=None))


def named_region(region: Region, extent: int | None) -> KernelGraph:
    """A region's program for a range of batches, as it is where it does not compute them apart from each other. Regions
    at several extents that come to the same program are equal at all extents of the range."""
    most = next((end for end in ENDS if extent is not None and 1 < extent <= end), None)
    if extent is None or most is None:
        return region.graph
    fixed = {n for n, parameter in enumerate(region.parameters) if parameter}
    able = [n for n, i in enumerate(region.graph.inputs) if n not in fixed and i.type.shape[:1] != ()]
    batched = [n for n in able if region.graph.inputs[n].type.shape[0] % extent == 0]
    for inputs in (batched, batched[:1]):
        with contextlib.suppress(NamedSizeError):
            if inputs:
                return named(region.graph, Size("batch", 1, most), extent, inputs)
    return region.graph


def _told(error: BaseException) -> str:
    if isinstance(error, MirageError):
        return f"{error.message}: {error.hint}" if error.hint else error.message
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"


def _fresh(run: Run, graph: KernelGraph) -> Run:
    """A kernel behind launches that write what it has to wait for."""
    return lambda *tensors: run(*(t if i.settled else t.clone() for t, i in zip(tensors, graph.inputs, strict=True)))
