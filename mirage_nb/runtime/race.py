"""A race on the attached GPU: our executables against PyTorch functions, checked first, then timed in turns.

In: a tensor program, executables of verified muGraphs, and peers as functions of torch tensors. Out: one
`Lap` per contestant. Only contestants whose output agrees with float64 on fresh random inputs are timed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import torch

from mirage_nb.ir import DType, KernelGraph
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.runtime.launch import GpuExecutable
from mirage_nb.runtime.timing import Contestant, Timing, set_count, time_interleaved
from mirage_nb.runtime.torch_program import as_torch

PEER_TOLERANCE = 2e-2
"""Peers compute in their own way; one that is further off than this from float64 is not timed."""
TORCH_DTYPE = {
    DType.F16: torch.float16, DType.BF16: torch.bfloat16, DType.F32: torch.float32, DType.F64: torch.float64,
}  # fmt: skip
Peer = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Lap:
    """One contestant: relative error against float64, and its timing, or None with the reason in `note`."""

    name: str
    error: float | None
    timing: Timing | None
    note: str = ""


def race(
    program: KernelGraph,
    ours: Mapping[str, GpuExecutable],
    peers: Mapping[str, Peer],
    gpu: Gpu,
    *,
    scale: float = 1.0,
    repeats: int = 40,
) -> list[Lap]:
    """Check every contestant, then time the correct ones interleaved.

    Args:
        program: the tensor program; its float64 value is the reference.
        ours: executables of muGraphs of the program.
        peers: functions of the program's inputs that return its outputs.
        gpu: the attached card.
        scale: standard deviation of the random inputs.
        repeats: replays of each contestant.
    """
    sets = _buffer_sets(program, gpu, scale)
    reference = as_torch(program, torch)(*(t.double() for t in sets[0][0]))
    laps: dict[str, Lap] = {}
    contestants: list[Contestant] = []
    for name, executable in ours.items():
        calls = [_ours(executable, inputs, outputs) for inputs, outputs in sets]
        for output in sets[0][1]:
            output.fill_(float("nan"))
        calls[0]()
        torch.cuda.synchronize()
        laps[name] = Lap(name, _error(sets[0][1], reference), None)
        contestants.append(Contestant(name, calls))
    for name, peer in peers.items():
        lap, contestant = _enter_peer(name, peer, sets, reference)
        laps[name] = lap
        if contestant is not None:
            contestants.append(contestant)
    correct = [c for c in contestants if (laps[c.name].error or 0.0) <= PEER_TOLERANCE]
    for timing in time_interleaved(correct, torch, repeats=repeats):
        laps[timing.name] = Lap(timing.name, laps[timing.name].error, timing)
    return list(laps.values())


def pytorch_peers(program: KernelGraph) -> dict[str, Peer]:
    """The program in eager PyTorch and through torch.compile."""
    eager = as_torch(program, torch)
    return {"eager": eager, "torch.compile": torch.compile(eager, dynamic=False)}


def _buffer_sets(program: KernelGraph, gpu: Gpu, scale: float) -> list[tuple[list[Any], list[Any]]]:
    bytes_per_set = sum(i.type.nbytes for i in program.inputs)
    generator = torch.Generator("cuda").manual_seed(0)
    sets = []
    for _ in range(set_count(bytes_per_set, gpu.l2_bytes)):
        inputs = [
            (torch.randn(i.type.shape, device="cuda", generator=generator) * scale).to(TORCH_DTYPE[i.type.dtype])
            for i in program.inputs
        ]
        outputs = [torch.empty(t.shape, device="cuda", dtype=TORCH_DTYPE[t.dtype]) for t in program.output_types]
        sets.append((inputs, outputs))
    return sets


def _ours(executable: GpuExecutable, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
    call = executable.bind(inputs, outputs)

    def run() -> None:
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            call()

    return run


def _enter_peer(
    name: str, peer: Peer, sets: list[tuple[list[Any], list[Any]]], reference: Sequence[Any]
) -> tuple[Lap, Contestant | None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outputs = peer(*sets[0][0])
            torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001  # a peer that does not support these shapes is not a contestant
        first = str(error).strip().splitlines() or [type(error).__name__]
        return Lap(name, None, None, first[0][:120]), None
    distance = _error(outputs, reference)
    note = "" if distance <= PEER_TOLERANCE else "wrong or inaccurate: not timed"
    calls = [_peer_call(peer, inputs) for inputs, _ in sets]
    return Lap(name, distance, None, note), Contestant(name, calls)


def _peer_call(peer: Peer, inputs: Sequence[Any]) -> Callable[[], object]:
    return lambda: peer(*inputs)


def _error(outputs: Sequence[Any], reference: Sequence[Any]) -> float:
    """The largest relative error over the outputs, in the Frobenius norm; NaN counts as infinite."""
    worst = 0.0
    for found, exact in zip(outputs, reference, strict=True):
        error = float((found.double() - exact).norm() / exact.norm())
        worst = max(worst, error if error == error else float("inf"))
    return worst
