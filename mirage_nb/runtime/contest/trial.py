"""A kernel's first runs: on a card one in a process of its own, on the CPU edition on random inputs and on hard ones.

In: a program, what was emitted for one of its muGraphs, a cubin where there is a GPU. Out: an `Outcome`. Outputs are
poisoned before every run. Invariant: whatever a kernel does, faults and endless loops included, it does it to a process
that is replaced; a CUDA context that saw a fault is never used again. What it computes is asked later (`Gate`).
Importing this loads no CuPy: processes are forked of one that has imported it, and a card is none's before that.
"""

from __future__ import annotations

import concurrent.futures as futures
import contextlib
import ctypes
import itertools
import math
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mirage_nb.codegen import Emitted
from mirage_nb.errors import LaunchError
from mirage_nb.ir import Input, KernelGraph, TensorType
from mirage_nb.runtime.contest.standby import STANDBY, Place
from mirage_nb.runtime.execution.buffers import Array, Sample, decode, draw_sample, encode
from mirage_nb.runtime.execution.compile import Cubin
from mirage_nb.runtime.execution.execute import CpuExecutable, Executable
from mirage_nb.runtime.gpu import CardLost, Gpu, attached_gpu
from mirage_nb.runtime.picked import right
from mirage_nb.search.session.crew import Stopped, call_all
from mirage_nb.search.session.pool import Workers
from mirage_nb.verify.reals.float_gate import FloatReport, GateReport, HardSample, judge, samples
from mirage_nb.verify.reals.hard_inputs import tried_names

T = TypeVar("T")

HARD_ELEMENTS = 2**27
"""Elements of all hard inputs together: drawing them and computing what is right takes about 0.1 us for each."""
HARD_ELEMENTS_CPU, HARD_CPU = 2**22, 10
"""The same without a GPU, and the largest number of hard inputs there: kernels take long on the CPU edition."""
POLL_SECONDS = 0.05
GRACE_SECONDS = 0.5
"""How long calls that have begun may go on when there is no time for more."""
PLACE_SECONDS = 60.0
"""What it may take to load what is needed, and to lay inputs on the card."""
FIRST_SECONDS = 30.0
"""What the first run of a kernel may take."""
FAULTED = 3
"""Exit code of a process whose kernel spoiled the card's context."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the first runs showed: the comparison on random inputs, whether these are `safe` and of which
    `scale` (see `Sample`), how the kernel did on hard ones, and how long all that took (seconds)."""

    report: FloatReport
    safe: bool
    hard: GateReport = field(default_factory=lambda: GateReport(()))
    seconds: float = 0.0
    scale: float = 1.0


RAN = Outcome(FloatReport(0.0, True, "ran"), True)
"""What is known of kernels that ended."""


def hard_names(program: KernelGraph, elements: int) -> tuple[str, ...]:
    """Names of hard inputs, the most telling first, as many as these elements allow, one at least."""
    names = [name for name in tried_names(program) if name != "normal"]
    return tuple(names[: max(1, elements // max(1, sum(t.elements for t in program.types)))])


def try_on_cpu(
    program: KernelGraph, emitted: Emitted, seed: int, tolerance: float = 1.0, seconds: float = math.inf
) -> Outcome:
    """Build emitted kernels on the CPU edition and run them on samples of the program; on random ones alone where these
    are its own operators, of which nobody asks for more than they are. `tolerance` as of `tried`; compiler and kernels
    end after so many seconds.

    Raises:
        MissingPartError: there is no C++ compiler.
        CompileError, LaunchError: the kernels do not compile or do not run.
    """
    hard = () if emitted.graph == program else hard_drawn(program, seed)
    executable = CpuExecutable(emitted, seconds=seconds)
    runs = [partial(executable.run, **way) for way in WAYS]
    return tried(executable, emitted, drawn(program, seed), hard, tolerance, runs)


WAYS: tuple[dict[str, Any], ...] = ({"deferred": True, "order": "reversed"}, {"order": 1}, {})
"""How the CPU edition runs on hard inputs, one after the other: what a barrier or a wait is for lands late, and warps
take turns otherwise than they do on random inputs."""


@lru_cache(maxsize=2)
def drawn(program: KernelGraph, seed: int) -> Sample:
    """Random inputs, for all finalists of a program: drawing takes longer than running some of them."""
    return draw_sample(program, seed)


def draw_ahead(program: KernelGraph, seed: int) -> None:
    """For whatever is tried by this process later; nothing is handed over."""
    drawn(program, seed)


@lru_cache(maxsize=2)
def hard_drawn(program: KernelGraph, seed: int) -> Sequence[Hard]:
    """Hard inputs for the CPU edition, likewise."""
    names = hard_names(program, HARD_ELEMENTS_CPU)[:HARD_CPU]
    return [hard for name in names for hard in draw_hard(program, seed, name)]


def tried(
    executable: Executable,
    emitted: Emitted,
    sample: Sample,
    hard: Sequence[Hard],
    tolerance: float = 1.0,
    runs: Sequence[Callable[[Sequence[Array]], list[Array]]] = (),
) -> Outcome:
    """Run on random inputs, of several extents where there is a size that is known at launch, and if these come out
    right on hard ones, in each of these ways in turn; `tolerance` as of `float_gate.compare`."""
    report = executable.check(sample, tolerance)
    for name, other in sample.others if report.ok else ():
        there = executable.check(other, tolerance)
        if not there.ok:
            report = replace(there, note=f"{name}: {there.note}")
            break
    if not report.ok:
        return Outcome(report, sample.safe, scale=sample.scale)
    types = emitted.graph.output_types
    results = []
    for (inputs, wanted), run in zip(hard, itertools.cycle(runs or [executable.run]), strict=False):
        outputs = [decode(a, t.dtype) for a, t in zip(run(inputs), types, strict=True)]
        results.append(judge(wanted, outputs, tolerance))
    return Outcome(report, sample.safe, GateReport(tuple(results)), scale=sample.scale)


Hard = tuple[list[Array], HardSample]
"""The stored inputs of a hard sample, and what is right for them."""


def draw_hard(program: KernelGraph, seed: int, name: str) -> list[Hard]:
    """The hard inputs of a program that have this name; none where nothing is asked of them."""
    return [
        ([encode(found.inputs[i.name], i.type.dtype) for i in program.inputs], replace(found, inputs={}))
        for found in samples(program, seed, names=(name,), right=right)
    ]


def draw_into(drawn: Path, program: KernelGraph, seed: int, name: str = "") -> None:
    """Write what kernels of a program are tried on to this file: random inputs, or the hard ones of this name. Drawing
    these and computing what is right takes longer than the trials do."""
    found: Sample | list[Hard] = draw_hard(program, seed, name) if name else draw_sample(program, seed)
    with tempfile.NamedTemporaryFile(dir=drawn.parent, delete=False) as file:
        pickle.dump(found, file, protocol=pickle.HIGHEST_PROTOCOL)
    Path(file.name).replace(drawn)  # whoever finds the file finds all of it


def warm(program: KernelGraph) -> None:
    """Load what first runs of this program on the card need, in a process that is there for them."""
    if attached_gpu() is None:
        return
    from mirage_nb.runtime.execution.launch import poisoned

    poisoned(TensorType((1,), program.output_types[0].dtype))


def run_once(emitted: Emitted, cubin: Cubin, scale: float = 1.0) -> Outcome:
    """Run kernels that never ran on inputs of this size, for nothing but to see that they end: in a process that is
    there for trials, and ends when they have spoiled its CUDA context. A library's kernels between them end.

    Raises:
        LaunchError: the card rejects the cubin or a launch, or a kernel failed on it.
    """
    from mirage_nb.runtime.execution.launch import GpuExecutable, card_errors

    gpu = own_gpu()
    started = time.monotonic()
    with ending(), card_errors():
        GpuExecutable(emitted.generated, cubin, gpu).ran(_any_inputs(emitted.graph.inputs, scale))
    return replace(RAN, seconds=time.monotonic() - started)


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Ends this process, which is there for trials, where a kernel has spoiled its CUDA context."""
    from mirage_nb.runtime.execution.launch import usable

    try:
        yield
    except LaunchError as error:
        if not usable():
            sys.stderr.write(f"{error.message}\n")
            sys.stderr.flush()
            os._exit(FAULTED)
        raise


def own_gpu() -> Gpu:
    """The card of this process. Raises LaunchError where there is none for it."""
    from mirage_nb.runtime.execution.launch import card_errors

    with card_errors():
        gpu = attached_gpu()
    if gpu is None:
        raise LaunchError("there is no GPU for this process", hint="another program may hold it exclusively")
    return gpu


def placed(program: KernelGraph, folder: Path, drawn: Sequence[Path]) -> None:
    """Load what kernels meet inputs with, and lay these on the card, for whatever meets them in this process."""
    from mirage_nb.runtime.contest.card_gate import gate_of

    gate_of(program, folder).take(drawn)


def meet(program: KernelGraph, drawn: Sequence[Path], emitted: Emitted, cubin: Cubin, tolerance: float) -> Outcome:
    """How a kernel does on what was drawn, in this process. Raises as `CardGate.outcome` does."""
    from mirage_nb.runtime.contest.card_gate import gate_of
    from mirage_nb.runtime.execution.launch import GpuExecutable

    placed(program, drawn[0].parent, drawn)
    return gate_of(program, drawn[0].parent).outcome(GpuExecutable(emitted, cubin, own_gpu()), tolerance)


def meet_alone(*given: Any) -> Outcome:
    """The same in a process that is there for it."""
    with ending():
        return meet(*given)


@lru_cache(maxsize=1)
def _any_inputs(inputs: Sequence[Input], scale: float) -> list[Any]:
    """Some numbers of this size for each input, on the card, by copies alone; nobody asks what comes of them."""
    import cupy

    _any_inputs.cache_clear()  # those before make room first
    numbers = np.random.default_rng(0).standard_normal(2**16, np.float32) * np.float32(scale)
    found = []
    for given in inputs:
        block = encode(numbers[: given.type.elements], given.type.dtype)
        array = cupy.empty(given.type.shape, block.dtype)
        array.data.copy_from_host(block.ctypes.data_as(ctypes.c_void_p), block.nbytes)
        there = block.nbytes
        while there < array.nbytes:
            more = min(there, array.nbytes - there)
            (array.data + there).copy_from_device(array.data, more)
            there += more
        found.append(array)
    return found


def forget() -> None:
    """Hold nothing of a program any more, on the card or beside it."""
    _any_inputs.cache_clear()
    loaded = sys.modules.get
    if (gates := loaded("mirage_nb.runtime.contest.card_gate")) is not None:
        gates.gate_of.cache_clear()
    if (cupy := loaded("cupy")) is not None:
        cupy.get_default_memory_pool().free_all_blocks()
    if (torch := loaded("torch")) is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class Trials:
    """Up to `count` processes for first runs, each replaced when it dies. `proceed` says whether to go on waiting. They
    have cores beside a search that uses all of them: the first times of a session are waited for. `kept`: if they have
    nothing to do when they are to end, they wait for the next session, as some of them come from the last one.
    `environment`: variables that they have beside this process's."""

    def __init__(
        self,
        proceed: Callable[[], bool],
        count: int = 1,
        *,
        kept: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._proceed, self._kept, self._place = proceed, kept, Place.now(count, (environment or {}).items())
        self._guard = threading.Lock()
        self._workers = STANDBY.take(self._place) if kept else Workers(count, urgent=True, environment=environment)
        self._terminated = False

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *error: object) -> None:
        self.terminate()

    def terminate(self, wait: bool = True) -> None:
        """End the processes, and wait until they are gone, which takes those with a card a second; who waits for a call
        is told that there is no reason to go on, and blames no kernel."""
        with self._guard:
            self._terminated = True
            if self._kept and STANDBY.give(self._workers, self._place, forget):
                self._workers = Workers(0)
                self._workers.shutdown(wait=False)
        self._workers.terminate(wait)

    def later(self, function: Callable[..., T], /, *args: Any) -> futures.Future[T]:
        """A call in one of the processes, for whoever looks by himself whether it is done."""
        with self._guard:
            return self._workers.submit(function, *args)

    @property
    def ended(self) -> bool:
        """Whether they take no more calls."""
        return self._terminated

    def call(self, function: Callable[..., T], /, *args: Any, seconds: float, until: float = math.inf) -> T:
        """`function(*args)` in one of the processes.

        Raises:
            LaunchError: the process died, or it took longer than `seconds`, or until the clock says so.
            Stopped: there is no reason to go on.
            whatever the function raises.
        """
        ((_, done),) = self.call_all(function, [args], seconds=seconds, until=until)
        return done.result()

    def call_all(
        self,
        function: Callable[..., T],
        arguments: Sequence[tuple[Any, ...]],
        *,
        seconds: float,
        until: float = math.inf,
    ) -> Iterator[tuple[int, futures.Future[T]]]:
        """Many calls side by side; yields the number of a call and its done future as they end, outcomes as of `call`.
        Those that no process has begun when the clock (`time.monotonic`) says `until` fail, the others a moment later:
        a process that is ended is missed by whoever has the next call.

        Raises:
            Stopped: there is no reason to go on.
        """
        rules = seconds, self._check, until, GRACE_SECONDS, "the kernel", LaunchError
        with self._guard:
            if self._terminated:
                raise Stopped("the session was stopped")
            return call_all(self._workers, function, arguments, *rules)

    def _check(self) -> None:
        if self._terminated or not self._proceed():
            raise Stopped("the session was stopped")


@dataclass(frozen=True, slots=True)
class Gate:
    """The gate for kernels of one program as a session sees it: what was drawn, and the process where they meet it; on
    a card that takes one process at a time, this one."""

    program: KernelGraph
    trials: Trials
    drawn: tuple[Path, ...]
    alone: bool = False

    def ready(self, tell: Callable[[str], None], until: float = math.inf) -> Gate:
        """The gate with what was drawn on the card, unless that lies there; in this process where the other cannot take
        it, which is told. Raises LaunchError where there is no room for it, or no time until the clock
        (`time.monotonic`) says so."""
        given = self.program, self.drawn[0].parent, self.drawn
        if self.alone:
            placed(*given)
            return self
        try:
            self.trials.call(placed, *given, seconds=PLACE_SECONDS, until=until)
        except LaunchError as error:
            if time.monotonic() >= until:
                raise
            tell(f"kernels meet random and hard inputs in this process: {error}")
            return replace(self, alone=True).ready(tell)
        return self

    def outcome(self, emitted: Emitted, cubin: Cubin, tolerance: float) -> Outcome:
        """What `meet` says. Raises LaunchError as it does, or where that process died of the kernel, and CardLost where
        there can be none."""
        given = self.program, self.drawn, emitted, cubin, tolerance
        if not self.alone:
            return self.trials.call(meet_alone, *given, seconds=PLACE_SECONDS)
        from mirage_nb.runtime.execution.launch import usable

        try:
            return meet(*given)
        except LaunchError as error:
            if not usable():
                raise CardLost(f"the card is lost to this process: {error}") from error
            raise
