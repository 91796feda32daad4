"""The floating-point gate on a card: a kernel that ran meets random and hard inputs, in a process of its own.

In: what `trial.draw_into` wrote for a program; kernels. Out: an `Outcome` of each. Invariants: a kernel that faults on
hard inputs only ends that process and no other, but on a card that takes one process at a time; inputs, and what is
right for them, lie on the card once for all kernels; outputs are poisoned before every run, and compared there by
PyTorch with the formulas of `reals.float_gate`, which takes milliseconds; without PyTorch they are compared on the
host. A kernel that writes to its inputs is wrong.
"""

from __future__ import annotations

import importlib.util
import math
import pickle
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from mirage_nb.errors import LaunchError
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.contest.trial import Hard, Outcome
from mirage_nb.runtime.execution.buffers import Array, Sample, decode
from mirage_nb.runtime.execution.launch import GpuExecutable, torch_errors
from mirage_nb.runtime.kernel.plan import Tensor
from mirage_nb.runtime.kernel.pytorch import torch_view
from mirage_nb.verify.reals.float_gate import FloatReport, GateReport, Reference, SampleReport, compare

WORDS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
"""By their bytes, the whole numbers that arrays are taken for where they are summed up."""
WEIGHTS = np.random.default_rng(5).integers(-(2**62), 2**62, 4096) * 2 + 1
"""Of the words of a line: odd, so that none hides what changes."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """Inputs on the card, what is right for them there, and what their words sum up to. hard: how a kernel does on
    random ones says whether it is right, on hard ones whether it is safe."""

    name: str
    inputs: list[Any]
    reference: Reference
    hard: bool
    sums: list[int]


@lru_cache(maxsize=1)
def gate_of(program: KernelGraph, folder: Path) -> CardGate:
    """The gate of this process for what is drawn in a folder."""
    return CardGate(program)


class CardGate:
    """The gate for kernels of one program, in the process that runs them."""

    def __init__(self, program: KernelGraph) -> None:
        self._program = program
        self._files: dict[Path, None] = {}
        self._placed: list[_Placed] = []
        self._safe = True
        self._torch: Any = None
        if importlib.util.find_spec("torch") is not None:
            import torch

            self._torch = torch

    def take(self, drawn: Iterable[Path]) -> None:
        """Place what was drawn since; random inputs are the first. Raises LaunchError where there is no room for it."""
        for path in drawn:
            if path not in self._files:
                found: Sample | list[Hard] = pickle.loads(path.read_bytes())  # of this session: its folder is its own
                if isinstance(found, Sample):
                    self._safe = found.safe
                    others = (("", found), *found.others)
                    placed = [self._place(name, s.inputs, s.reference, hard=False) for name, s in others]
                else:
                    placed = [self._place(right.name, given, right.reference, hard=True) for given, right in found]
                self._placed += placed
                self._files[path] = None

    def _place_again(self) -> None:
        """For the kernels that come behind one that wrote to its inputs."""
        files, self._files, self._placed = self._files, {}, []
        self.take(files)

    def _place(self, name: str, inputs: Sequence[Array], reference: Reference, *, hard: bool) -> _Placed:
        with torch_errors():
            placed = [cupy.asarray(array) for array in inputs]
            if self._torch is not None:
                outputs, deviations = (tuple(map(self._floats, x)) for x in (reference.outputs, reference.deviations))
                reference = replace(reference, outputs=outputs, deviations=deviations)
            return _Placed(name, placed, reference, hard, self._sums(placed))

    def _floats(self, array: Array) -> Any:
        return self._torch.from_numpy(np.array(array, np.float64)).cuda()

    def outcome(self, executable: GpuExecutable, tolerance: float) -> Outcome:
        """How a kernel does: on random inputs, and where these come out right on hard ones; `tolerance` as of
        `float_gate.compare`. Raises LaunchError where the card refuses it, or it wrote to its inputs."""
        started, report, hard = time.monotonic(), FloatReport(0.0, True), list[SampleReport]()
        for placed in self._placed:
            if placed.hard and not report.ok:
                break
            with torch_errors():
                found = self._compared(executable.ran(placed.inputs), placed, tolerance)
                sums = self._sums(placed.inputs)
            if sums != placed.sums:
                self._place_again()
                raise LaunchError("the kernel wrote where it may not: its inputs have changed")
            if placed.hard:
                hard.append(SampleReport(placed.name, found.ok, found.relative_error, found.note))
            elif not placed.name or (report.ok and not found.ok):
                report = replace(found, note=f"{placed.name}: {found.note}") if placed.name else found
        return Outcome(report, self._safe, GateReport(tuple(hard)), time.monotonic() - started)

    def _compared(self, outputs: Sequence[Any], placed: _Placed, tolerance: float) -> FloatReport:
        dtypes = [t.dtype for t in self._program.output_types]
        if self._torch is None:
            host = [decode(cupy.asnumpy(a), dtype) for a, dtype in zip(outputs, dtypes, strict=True)]
            return compare(host, placed.reference, tolerance)
        seen = [self._seen(a, dtype.value) for a, dtype in zip(outputs, dtypes, strict=True)]
        return compare(seen, placed.reference, tolerance, self._torch)

    def _seen(self, array: Any, dtype: str) -> Any:
        tensor = Tensor("", dtype, tuple(array.shape), "output", 0)
        return torch_view(self._torch, tensor, int(array.data.ptr), int(array.device.id))

    def _sums(self, inputs: Sequence[Any]) -> list[int]:
        """Of every input."""
        if self._torch is None:
            return [summed(cupy.asnumpy(a), np, WEIGHTS) for a in inputs]
        seen = [self._seen(a, i.type.dtype.value) for a, i in zip(inputs, self._program.inputs, strict=True)]
        return [summed(x, self._torch, self._torch.from_numpy(WEIGHTS).to(x.device)) for x in seen]


def summed(array: Any, library: Any, weights: Any) -> int:
    """What the words of an array, of NumPy or PyTorch, sum up to, each by the weight of its place: whatever moves in
    the array, or makes up for what has changed there, changes that."""
    words, line = array.reshape(-1).view(getattr(library, WORDS[math.gcd(array.nbytes, 8)])), len(weights)
    while len(words) > 1:
        whole = len(words) // line * line
        lines, rest = words[:whole].reshape(-1, line), words[whole:]
        sums = (lines * weights).sum(1), (rest * weights[: len(rest)]).sum().reshape(1)
        words, weights = library.concatenate(sums), weights * weights  # of lines: else rows and columns are alike
    return int(words[0])
