"""Tensor maps: what the copy engine accepts, and what each edition is told."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest

from mirage_nb.errors import LaunchError
from mirage_nb.runtime.execution.tensor_map import MapShape, TensorMap, encode_cpu
from mirage_nb.runtime.kernel.driver import MAP_BYTES, encode_map
from mirage_nb.runtime.kernel.plan import KernelError


def test_strides_are_those_of_numpy() -> None:
    for shape in ((6, 64), (3, 5, 32)):
        array = np.zeros(shape, np.float32)
        assert MapShape(shape, (1,) * (len(shape) - 1) + (32,), 4, 128).strides == array.strides


@pytest.mark.parametrize(
    ("shape", "box", "element", "swizzle", "pattern"),
    [
        ((64,), (64,), 2, 128, "2 or 3 dimensions"),
        ((8, 8, 8, 64), (1, 1, 8, 64), 2, 128, "2 or 3 dimensions"),
        ((8, 64), (1, 8, 64), 2, 128, "2 or 3 dimensions"),
        ((8, 64), (8, 64), 2, 96, "a swizzle of 96 bytes"),
        ((0, 64), (8, 64), 2, 128, "1 to 256 elements"),
        ((512, 64), (257, 64), 2, 128, "1 to 256 elements"),
        ((8, 63), (8, 64), 2, 128, "rows of 126 bytes"),
        ((8, 64), (8, 32), 2, 128, "a box row of 64 bytes with a swizzle of 128"),
        ((8, 64), (8, 4), 2, 0, "a box row of 8 bytes"),
    ],
)
def test_boxes_that_do_not_exist_are_refused(
    shape: tuple[int, ...], box: tuple[int, ...], element: int, swizzle: int, pattern: str
) -> None:
    with pytest.raises(LaunchError, match=pattern):
        MapShape(shape, box, element, swizzle)


def test_the_cpu_edition_is_told_the_fastest_dimension_first() -> None:
    data = encode_cpu(TensorMap(np.zeros((3, 5, 64), np.float16), (2, 4, 64)).map_shape, 7)
    words = struct.unpack_from("<QQ4I3Q3Q3I", data)
    assert len(data) == MAP_BYTES
    assert words[1:] == (0, 3, 2, 128, 7, 64, 5, 3, 2, 128, 640, 64, 4, 2)
    flat = struct.unpack_from("<QQ4I3Q3Q3I", encode_cpu(MapShape((5, 32), (4, 32), 4, 0), 0))
    assert flat[2:] == (2, 4, 0, 0, 32, 5, 1, 4, 128, 0, 32, 4, 1)


def test_a_map_of_a_part_begins_within_an_array() -> None:
    array = np.zeros((6, 96), np.float16)
    half = TensorMap(array, (4, 32), 64, (6, 48), 48, 96).map_shape
    assert half.strides == array[:, 48:].strides
    words = struct.unpack_from("<QQ4I3Q3Q3I", encode_cpu(half, 7))
    assert words[1:] == (96, 2, 2, 64, 7, 48, 6, 1, 2, 192, 0, 32, 4, 1)
    for first, pitch, pattern in ((4, 96, "from element 4 on"), (0, 97, "rows of 194 bytes")):
        with pytest.raises(LaunchError, match=pattern):
            MapShape((6, 48), (4, 32), 2, 64, first, pitch)


class Driver:
    """Takes the place of libcuda: remembers what it was asked, answers with a status."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked: list[Any] = []

    def cuTensorMapEncodeTiled(self, *args: Any) -> int:
        self.asked = [list(a) if isinstance(a, ctypes.Array) else a.value for a in args]
        ctypes.memset(self.asked[0], 0x5A, MAP_BYTES)
        return self.status


def test_the_driver_is_told_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(0)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    found = encode_map(0x7000, 2, (3, 5, 64), (2, 4, 64), 128)
    assert found.shape == (1,) and found.tobytes() == b"\x5a" * MAP_BYTES
    storage, *rest = driver.asked
    assert storage % 64 == 0
    # Unsigned 16-bit elements, three dimensions, the fastest first; 128-byte swizzle is number 3.
    assert rest == [1, 3, 0x7000, [64, 5, 3], [128, 640], [64, 4, 2], [1, 1, 1], 0, 3, 3, 0]


def test_the_driver_is_told_how_far_rows_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(0)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    encode_map(0x7000, 2, (6, 48), (4, 32), 64, 96)
    assert driver.asked[4:6] == [[48, 6], [192]]


def test_a_map_that_the_driver_rejects_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(1))
    with pytest.raises(KernelError, match="at address 0x7008: CUDA error 1"):
        encode_map(0x7008, 2, (8, 64), (8, 64), 128)


def test_without_a_driver_there_are_no_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(KernelError, match="no CUDA driver"):
        encode_map(0x7000, 2, (8, 64), (8, 64), 128)
