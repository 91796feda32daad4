"""A race on the attached GPU: our executables against PyTorch functions, checked first, then timed in turns.

In: a tensor program, executables of verified muGraphs, and peers as functions of torch tensors. Out: one
`Lap` per contestant. Only contestants whose output agrees with float64 on fresh random inputs are timed.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cupy
import numpy as np
import torch

from mirage_nb.errors import LaunchError
from mirage_nb.ir import Input, KernelGraph
from mirage_nb.runtime.contest.timing import (
    ROUNDS,
    Contestant,
    Lane,
    Lap,
    foreign_kernel,
    set_count,
    time_interleaved,
    time_quickly,
)
from mirage_nb.runtime.execution.buffers import SMALLEST_SCALE
from mirage_nb.runtime.execution.launch import SHOWN, Call, GpuExecutable, torch_errors, usable
from mirage_nb.runtime.execution.torch_program import as_torch, torch_dtype
from mirage_nb.runtime.gpu import CardLost, Gpu
from mirage_nb.verify.reals.places import places
from mirage_nb.verify.reals.ranges import ranges, within

RACE_TOLERANCE = 2e-2
"""Everybody computes in their own way; who is further off than this from float64 is not timed."""
NOISY = 1.5
"""Spread, 90th over 10th percentile, beyond which a timing is doubted."""
CHAIN_REPEATS = 6
"""Calls back to back vary little: so many replays of them."""
LONG_US = 250.0
"""What takes longer hides where it begins: it is tuned by its time behind a foreign kernel alone."""
DROWNED = "its time drowned in what else ran on the card"
RESTART = "restart the Python process to use the GPU again"
Buffers = tuple[list[Any], list[Any]]
"""Inputs and outputs of one call."""
Calls = list[Callable[[], object]]


def as_they_come(*inputs: Any) -> tuple[Any, ...]:
    """The inputs as the program has them."""
    return inputs


@dataclass(frozen=True, slots=True)
class Peer:
    """A function that returns the program's outputs, and how it likes its inputs: `arrange` may lay them out
    in another order in memory beforehand, which is not timed."""

    run: Callable[..., Any]
    arrange: Callable[..., tuple[Any, ...]] = as_they_come


def make_room() -> None:
    """Give back the memory that torch and CuPy keep for later, each of which finds no room beside the other's; not
    before the card is half full, since that takes most of a second."""
    free, all_ = torch.cuda.mem_get_info()
    if 2 * free < all_:
        torch.cuda.empty_cache()
        cupy.get_default_memory_pool().free_all_blocks()


def doubt(laps: Sequence[Lap], gpu: Gpu) -> str | None:
    """What is to be said of times that vary; None if they do not."""
    timed = [lap.timing for lap in laps if lap.timing is not None]
    drowned = sum(lap.note == DROWNED for lap in laps)
    noisy = drowned + sum(t.high_us > NOISY * t.low_us for t in timed)
    if 2 * noisy <= len(timed) + drowned:
        return None
    return f"times vary by more than {NOISY:g} to 1: another program may be using the {gpu.name}"


class Track:
    """Buffers of a program, rotated past L2, on which executables are checked and timed, alone or in turns.

    `scale`: the standard deviation of its random inputs; default: one on which the program agrees with itself in
    float64. Raises LaunchError where there is too little memory.
    """

    def __init__(self, program: KernelGraph, gpu: Gpu, scale: float | None = None) -> None:
        self._program, self._gpu = program, gpu
        with torch_errors():
            make_room()
            self.scale = _scale(program) if scale is None else scale
            self._sets = _buffer_sets(program, gpu, self.scale)
            self._reference = as_torch(program, torch, exact=True)(*(t.double() for t in self._sets[0][0]))
            foreign = foreign_kernel(torch)
            self._back_to_back = Lane(torch, None, foreign)
            # In front of what reads weights run kernels of the same model, which let it begin.
            self._behind = self._back_to_back if program.is_weight_bound else Lane(torch, foreign)
            make_room()

    def lap(self, name: str, executable: GpuExecutable, limit_us: float, own: bool = False) -> Lap:
        """Check one executable and time it in both ways, briefly if it takes longer than `limit_us`. `own`: it is the
        program's own operators, which are what the program is in its types, however far that is from real numbers.

        Raises:
            LaunchError: the card refuses it, or it failed there.
            CardLost: and it takes no more work from this process.
        """
        try:
            with torch_errors():
                lap = self._lap(name, executable, limit_us, sys.float_info.max if own else RACE_TOLERANCE)
        except LaunchError as error:
            if usable():
                raise
            raise CardLost(f"the {self._gpu.name} is lost to this process: {error.message}", hint=RESTART) from error
        if lap.timing is None and not usable():
            raise CardLost(f"the {self._gpu.name} is lost to this process: {lap.note}", hint=RESTART)
        return lap

    def _lap(self, name: str, executable: GpuExecutable, limit_us: float, tolerance: float) -> Lap:
        calls, outputs = _ours(executable, self._sets)
        distance = _error(outputs, self._reference)
        if not distance <= tolerance:
            return Lap(name, distance, None, "wrong or inaccurate: not timed")
        contestant, chain = Contestant(name, calls), None
        timing = time_quickly(contestant, torch, limit_us, lane=self._behind)
        if timing is None:
            return Lap(name, distance, None, "not captured into a CUDA graph")
        if self._behind is not self._back_to_back and timing.median_us <= min(limit_us, LONG_US):
            chain = time_quickly(contestant, torch, limit_us, repeats=CHAIN_REPEATS, lane=self._back_to_back)
        return Lap(name, distance, timing, chain=chain)

    def race(
        self,
        ours: Mapping[str, GpuExecutable],
        peers: Mapping[str, Peer],
        repeats: int = ROUNDS,
        seconds: float = 0.0,
    ) -> list[Lap]:
        """Check executables of muGraphs of the program, and functions of its inputs, then time those that are right in
        turns, so often, and more often until so many seconds are over (`timing.time_interleaved`); one that fails is
        left out and says why. Raises LaunchError where the card fails."""
        with torch_errors():
            try:
                return self._race(ours, peers, repeats, seconds)
            finally:
                make_room()

    def _race(
        self, ours: Mapping[str, GpuExecutable], peers: Mapping[str, Peer], repeats: int, seconds: float
    ) -> list[Lap]:
        laps: dict[str, Lap] = {}
        contestants: list[Contestant] = []
        entrants: dict[str, Callable[[], tuple[Calls, Sequence[Any]]]] = {
            **{name: partial(_ours, executable, self._sets) for name, executable in ours.items()},
            **{name: partial(_peer, peer, self._sets) for name, peer in peers.items()},
        }
        for name, enter in entrants.items():
            try:
                calls, outputs = enter()
            except Exception as error:  # noqa: BLE001  # who cannot run at these shapes is no contestant
                first = str(error).strip().splitlines() or [type(error).__name__]
                laps[name] = Lap(name, None, None, first[0][:SHOWN])
                continue
            distance = _error(outputs, self._reference)
            if distance <= RACE_TOLERANCE:
                laps[name] = Lap(name, distance, None, "not captured into a CUDA graph")
                contestants.append(Contestant(name, calls))
            else:
                laps[name] = Lap(name, distance, None, "wrong or inaccurate: not timed")
        often: Any = {"repeats": repeats, "seconds": seconds}
        chained = {t.name: t for t in time_interleaved(contestants, self._back_to_back, **often)}
        captured = [contestant for contestant in contestants if contestant.name in chained]
        behind = {t.name: t for t in time_interleaved(captured, self._behind, **often)}
        for name, chain in chained.items():
            if (timing := behind.get(name)) is not None:
                laps[name] = replace(laps[name], timing=timing, note="", chain=chain)
            else:
                laps[name] = replace(laps[name], note=DROWNED)
        return list(laps.values())


def pytorch_peers(program: KernelGraph) -> dict[str, Peer]:
    """The program in eager PyTorch and through torch.compile, compiled once however often it is asked for."""
    eager, fused = _compiled(program)
    return {"eager": Peer(eager), "torch.compile": Peer(fused)}


@functools.lru_cache(maxsize=4)
def _compiled(program: KernelGraph) -> tuple[Callable[..., Any], Callable[..., Any]]:
    eager = as_torch(program, torch)
    return eager, torch.compile(eager, dynamic=False)


def _scale(program: KernelGraph) -> float:
    """1, halved while that brings what the program computes in its own types nearer to float64."""
    run, exact = as_torch(program, torch), as_torch(program, torch, exact=True)
    best, least, scale = 1.0, math.inf, 1.0
    while scale >= SMALLEST_SCALE:
        inputs, _ = _buffers(program, scale, torch.Generator("cuda").manual_seed(0))
        distance = _error(run(*inputs), exact(*(t.double() for t in inputs)))
        if distance <= RACE_TOLERANCE / 2:
            return scale
        if distance >= least and least < math.inf:
            break
        best, least, scale = (scale, distance, scale / 2) if distance < least else (best, least, scale / 2)
    return best


def _buffer_sets(program: KernelGraph, gpu: Gpu, scale: float) -> list[Buffers]:
    """Sets of buffers to rotate.

    Raises LaunchError when there is too little memory for buffers that exceed the L2 cache.
    """
    bytes_per_set = sum(i.type.nbytes for i in program.inputs)
    generator = torch.Generator("cuda").manual_seed(0)
    sets = []
    wanted = set_count(bytes_per_set, gpu.l2_bytes)
    for number in range(wanted):
        try:
            sets.append(_buffers(program, scale, generator))
        except torch.cuda.OutOfMemoryError as error:
            if number < 2 or number * bytes_per_set < 2 * gpu.l2_bytes:
                what = f"{number} of {wanted} sets of buffers fit into the memory of the {gpu.name}"
                raise LaunchError(what, hint="another program may be using the card") from error
            break
    return sets


def _buffers(program: KernelGraph, scale: float, generator: torch.Generator) -> Buffers:
    """Random inputs, and outputs, of one call."""

    whole, wanted = places(program), ranges(program)

    def random(given: Input) -> torch.Tensor:
        if given.name in whole:  # what is looked up has to be there
            rng = np.random.default_rng(int(torch.randint(2**31, (), device="cuda", generator=generator)))
            values = torch.from_numpy(whole[given.name].drawn(rng, given.type.shape)).to("cuda")
        else:
            values = torch.randn(given.type.shape, device="cuda", generator=generator) * scale
        return within(values, wanted.get(given.name)).to(torch_dtype(torch, given.type.dtype))

    outputs = [torch.empty(t.shape, device="cuda", dtype=torch_dtype(torch, t.dtype)) for t in program.output_types]
    return [random(i) for i in program.inputs], outputs


def _ours(executable: GpuExecutable, sets: Sequence[Buffers]) -> tuple[Calls, Sequence[Any]]:
    """The calls of one of our executables, and its outputs on the first set, poisoned before. What lies between its
    kernels lies in the same place for all calls, as PyTorch's allocator has it."""
    between = torch.empty(executable.workspace_bytes, dtype=torch.uint8, device="cuda")
    binds = (executable.bind(inputs, outputs, between.data_ptr(), trusted=True) for inputs, outputs in sets)
    calls = [_on_stream(call, between) for call in binds]
    for output in sets[0][1]:
        output.fill_(float("nan"))
    calls[0]()
    torch.cuda.synchronize()
    return [*calls], sets[0][1]


def _on_stream(call: Call, kept: object) -> Callable[[], None]:
    def run(kept: object = kept) -> None:
        call(torch.cuda.current_stream().cuda_stream)

    return run


def _peer(peer: Peer, sets: Sequence[Buffers]) -> tuple[Calls, Sequence[Any]]:
    """The calls of a peer, and its outputs on the first set. Those of every set stay until its next turn, so that its
    outputs rotate past L2 as ours do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arranged = [peer.arrange(*inputs) for inputs, _ in sets]
        outputs = peer.run(*arranged[0])
        torch.cuda.synchronize()
    return [_keeping(peer, inputs) for inputs in arranged], outputs


def _keeping(peer: Peer, inputs: Sequence[Any]) -> Callable[[], None]:
    kept: list[Any] = []

    def run() -> None:
        kept[:] = [peer.run(*inputs)]

    return run


def _error(outputs: Sequence[Any], reference: Sequence[Any]) -> float:
    """The largest relative error over the outputs, in the Frobenius norm; NaN counts as infinite."""
    worst = 0.0
    for found, exact in zip(outputs, reference, strict=True):
        error = float((found.double() - exact).norm() / exact.norm())
        worst = max(worst, error if error == error else float("inf"))
    return worst
