"""One launch of a hand-written kernel: what it reads, and what it should have written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
KERNELS = Path(__file__).parent / "runtime" / "kernels"


@dataclass(frozen=True)
class In:
    """An array that the kernel reads."""

    array: Array


@dataclass(frozen=True)
class Out:
    """An array that the kernel writes: what it should hold, how far off it may be, what it starts with."""

    expected: Array
    relative: float = 0.0
    absolute: float = 0.0
    start: Array | None = None


@dataclass(frozen=True)
class Map:
    """A tensor map over an array that the kernel reads."""

    array: Array
    box: tuple[int, ...]
    swizzle: int = 128


@dataclass(frozen=True)
class Case:
    """One launch."""

    name: str
    file: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    args: tuple[In | Out | Map | int, ...]
    options: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The kernel text."""
        return (KERNELS / self.file).read_text()


def fresh(out: Out) -> Array:
    """The array as the kernel finds it: NaN, or bytes that are no small number."""
    if out.start is not None:
        return out.start.copy()
    return np.full(out.expected.nbytes, 0xFF, np.uint8).view(out.expected.dtype).reshape(out.expected.shape)


def compare(out: Out, found: Array) -> None:
    """Fails unless `found` is what the kernel should have written."""
    if out.expected.dtype.kind != "f" or (out.relative == 0 and out.absolute == 0):
        np.testing.assert_array_equal(found, out.expected)
    else:
        np.testing.assert_allclose(found, out.expected, rtol=out.relative, atol=out.absolute)
