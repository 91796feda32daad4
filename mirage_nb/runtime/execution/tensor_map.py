"""Tensor maps: how the copy engine finds boxes of a row-major array, for the CPU edition of the device library.

In: an array's address, element size and extents, a box, a swizzle. Out: the 128 bytes that a kernel takes
as `const __grid_constant__ TensorMap`. Invariant: extents and boxes are written slowest dimension first, as
NumPy writes shapes; the encoding turns them around. What the driver encodes is in `kernel.driver`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from mirage_nb.errors import LaunchError
from mirage_nb.runtime.kernel.driver import MAP_BYTES
from mirage_nb.runtime.kernel.plan import SWIZZLES

_CPU_MAGIC = 0x70616D6567617269


@dataclass(frozen=True, slots=True)
class MapShape:
    """The part of a tensor map that does not depend on where the array lies.

    shape: 2 or 3 extents; box: as many, in elements; swizzle: 0, or 32, 64 or 128, the bytes of a box's row. first,
    pitch: elements in front of the first one, and from one row to the next (0: as many as it has).

    Raises:
        LaunchError: the copy engine has no such box.
    """

    shape: tuple[int, ...]
    box: tuple[int, ...]
    element_bytes: int
    swizzle: int
    first: int = 0
    pitch: int = 0

    def __post_init__(self) -> None:
        row_bytes, pitch = self.box[-1] * self.element_bytes, (self.pitch or self.shape[-1]) * self.element_bytes
        if len(self.shape) not in (2, 3) or len(self.box) != len(self.shape):
            raise LaunchError(f"a tensor map has 2 or 3 dimensions, not shape {self.shape} with box {self.box}")
        if self.swizzle not in SWIZZLES:
            raise LaunchError(f"a swizzle of {self.swizzle} bytes", hint="0, 32, 64 or 128")
        if min(self.shape) < 1 or not all(1 <= extent <= 256 for extent in self.box):
            raise LaunchError(f"a box of {self.box} in shape {self.shape}", hint="a box has 1 to 256 elements each way")
        if pitch % 16:
            raise LaunchError(f"rows of {pitch} bytes cannot be mapped", hint="rows are multiples of 16 bytes")
        if self.first * self.element_bytes % 16:
            raise LaunchError(f"a tensor map from element {self.first} on", hint="it begins at a multiple of 16 bytes")
        if row_bytes % 16 or (self.swizzle and row_bytes != self.swizzle):
            raise LaunchError(
                f"a box row of {row_bytes} bytes with a swizzle of {self.swizzle}",
                hint="a box row is a multiple of 16 bytes, with a swizzle exactly as long as it",
            )

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one index to the next, slowest dimension first."""
        found = [self.element_bytes]
        for extent in reversed((*self.shape[1:-1], self.pitch or self.shape[-1])):
            found.insert(0, found[0] * extent)
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class TensorMap:
    """A kernel argument for `CpuModule.launch`: boxes of a C-contiguous NumPy array of 2 or 3 dimensions, or, with a
    `shape`, of the matrix in it that begins at `first` and has `pitch` elements from one row to the next."""

    array: NDArray[Any]
    box: tuple[int, ...]
    swizzle: int = 128
    shape: tuple[int, ...] | None = None
    first: int = 0
    pitch: int = 0

    @property
    def map_shape(self) -> MapShape:
        """The map without its address. Raises LaunchError as `MapShape` does."""
        shape = self.array.shape if self.shape is None else self.shape
        return MapShape(shape, self.box, self.array.itemsize, self.swizzle, self.first, self.pitch)


def encode_cpu(shape: MapShape, buffer: int) -> bytes:
    """The CPU edition's encoding (device/cpu/engine/async.cc); the runner adds the address of `buffer`."""
    extents, box = _three(shape.shape), _three(shape.box)
    strides = tuple(reversed(shape.strides)) + (0,) * (3 - len(shape.shape))
    rank = len(shape.shape)
    start = shape.first * shape.element_bytes
    words = (rank, shape.element_bytes, shape.swizzle, buffer)
    data = struct.pack("<QQ4I3Q3Q3I", _CPU_MAGIC, start, *words, *extents, *strides, *box)
    return data.ljust(MAP_BYTES, b"\0")


def _three(extents: tuple[int, ...]) -> tuple[int, ...]:
    """Fastest dimension first, filled up with ones."""
    return tuple(reversed(extents)) + (1,) * (3 - len(extents))
