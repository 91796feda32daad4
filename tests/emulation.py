"""Running device cases and small kernels on the CPU edition, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from mirage_nb.runtime.execution.emulate import CpuModule
from mirage_nb.runtime.execution.tensor_map import TensorMap
from tests.device_cases import AMPERE, HOPPER
from tests.launches import Array, Case, In, Map, Out, fresh

CASES = {case.name: case for case in (*AMPERE, *HOPPER)}
MODES: tuple[tuple[bool, str | int], ...] = (
    (False, "forward"), (True, "forward"), (False, "reversed"), (True, "reversed"), (False, 1), (True, 2),
)  # fmt: skip
"""Copies deferred or not, and the order of warps."""
HEAD = '#include "mirage_device.cuh"\nusing namespace mirage;\n'


def launch(module: CpuModule, case: Case, **mode: Any) -> list[tuple[Out, Array]]:
    """Run a case; each output with what was found in it."""
    args: list[Any] = []
    outputs: list[tuple[Out, Array]] = []
    for arg in case.args:
        if isinstance(arg, Out):
            outputs.append((arg, fresh(arg)))
            args.append(outputs[-1][1])
        elif isinstance(arg, In):
            args.append(arg.array)
        else:
            args.append(TensorMap(arg.array, arg.box, arg.swizzle) if isinstance(arg, Map) else arg)
    module.launch(case.kernel, case.grid, case.block, case.shared_bytes, args, **mode)
    return outputs


def run(
    body: str, args: list[Any], *, threads: int = 32, shared: int = 0, checked: bool = False, **mode: Any
) -> None:
    """Run one block of `extern "C" __global__ void k` + `body`, which begins on line 3."""
    module = CpuModule(f'{HEAD}extern "C" __global__ void k{body}', checked=checked)
    module.launch("k", (1, 1, 1), (threads, 1, 1), shared, args, **mode)


def floats(n: int = 64) -> Array:
    return np.full(n, np.nan, np.float32)
