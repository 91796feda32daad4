"""Arguments of an emulated launch: checked against the kernel's parameters, written out, read back.

In: the parameters as the compiler saw them, NumPy arrays, scalars and tensor maps. Out: a `Job`. Invariant:
arrays that share their memory share one buffer, so a kernel sees the same memory through both; arrays that
overlap in part are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.errors import LaunchError
from mirage_nb.runtime.execution.tensor_map import TensorMap, encode_cpu

_DTYPES: dict[str, tuple[str, ...]] = {
    "float": ("float32",),
    "double": ("float64",),
    "f16": ("float16",),
    "bf16": ("uint16", "bfloat16"),
    "bool": ("bool",),
    **{f"{name}_t": (name,) for name in ("int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
    "uint8_t": ("uint8", "bool"),
    **dict.fromkeys(("f8e4m3", "f8e5m2"), ("uint8",)),
}
"""Element type in the kernel -> names of NumPy dtypes that hold it; other element types take any array."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel: its type, of the element for a pointer."""

    type: str
    pointer: bool
    constant: bool

    @staticmethod
    def parse(text: str) -> Parameter:
        """From C++: "const f16*", "float*", "int32_t", "TensorMap"."""
        constant = text.startswith("const ")
        return Parameter(text.removeprefix("const ").removesuffix("*"), text.endswith("*"), constant)

    def __str__(self) -> str:
        return f"{'const ' if self.constant else ''}{self.type}{'*' if self.pointer else ''}"


@dataclass(slots=True)
class _Buffer:
    array: NDArray[Any]
    name: str
    constant: bool


@dataclass(slots=True)
class Job:
    """The arrays of one launch and the lines that describe them and the arguments to the runner."""

    buffers: list[_Buffer] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes in all arrays."""
        return sum(buffer.array.nbytes for buffer in self.buffers)

    @property
    def lines(self) -> list[str]:
        """Buffers first: arguments speak of them by number."""
        buffers = [f"buffer {n} {b.array.nbytes} {int(b.constant)} {b.name}" for n, b in enumerate(self.buffers)]
        return buffers + self.arguments

    def write(self, folder: Path) -> None:
        """One file for each array."""
        for number, buffer in enumerate(self.buffers):
            buffer.array.tofile(folder / str(number))

    def read_back(self, folder: Path) -> None:
        """Change the arrays that the kernel could write."""
        for number, buffer in enumerate(self.buffers):
            if not buffer.constant:
                found = np.fromfile(folder / str(number), dtype=buffer.array.dtype)
                buffer.array[...] = found.reshape(buffer.array.shape)

    def buffer(self, array: NDArray[Any], name: str, constant: bool) -> int:
        """The number of the buffer of this array's memory."""
        for number, known in enumerate(self.buffers):
            if not np.may_share_memory(known.array, array):
                continue
            if known.array.ctypes.data != array.ctypes.data or known.array.nbytes != array.nbytes:
                raise LaunchError(f"{known.name} and {name} overlap in part", hint="pass whole arrays, or copies")
            known.constant &= constant
            return number
        self.buffers.append(_Buffer(array, name, constant))
        return len(self.buffers) - 1


def bind(parameters: Sequence[Parameter], args: Sequence[Any]) -> Job:
    """Check the arguments and lay them out. Raises LaunchError with the position of a wrong one."""
    if len(args) != len(parameters):
        raise LaunchError(f"{len(args)} arguments for {len(parameters)} parameters", hint=_signature(parameters))
    job = Job()
    for position, (parameter, value) in enumerate(zip(parameters, args, strict=True)):
        name = f"argument {position}"
        if parameter.type == "TensorMap" and not parameter.pointer:
            job.arguments.append(_map(job, value, name, parameters))
        elif parameter.pointer:
            job.arguments.append(f"pointer {_array(job, value, name, parameter, parameters)}")
        else:
            job.arguments.append(f"scalar {_scalar(value, name, parameter).tobytes().hex()}")
    for buffer in job.buffers:
        if not buffer.constant and not buffer.array.flags.writeable:
            raise LaunchError(f"{buffer.name} is read-only, but the kernel may write it")
    return job


def _signature(parameters: Sequence[Parameter]) -> str:
    return f"the parameters are ({', '.join(map(str, parameters))})"


def _map(job: Job, value: Any, name: str, parameters: Sequence[Parameter]) -> str:
    if not isinstance(value, TensorMap):
        raise LaunchError(f"{name} is a {type(value).__name__}, not a TensorMap", hint=_signature(parameters))
    array = _contiguous(value.array, name)
    return f"map {encode_cpu(value.map_shape, job.buffer(array, f'the array of {name}', True)).hex()}"


def _array(job: Job, value: Any, name: str, parameter: Parameter, parameters: Sequence[Parameter]) -> int:
    if not isinstance(value, np.ndarray):
        raise LaunchError(f"{name} is a {type(value).__name__}, not an array", hint=_signature(parameters))
    wanted = _DTYPES.get(parameter.type)
    if wanted is not None and value.dtype.name not in wanted:
        raise LaunchError(f"{name} is an array of {value.dtype}, the kernel takes {parameter}", hint=f"use {wanted[0]}")
    return job.buffer(_contiguous(value, name), name, parameter.constant)


def _contiguous(array: NDArray[Any], name: str) -> NDArray[Any]:
    if not array.flags.c_contiguous:
        raise LaunchError(f"{name} is not C-contiguous", hint="use numpy.ascontiguousarray")
    return array


def _scalar(value: Any, name: str, parameter: Parameter) -> NDArray[Any]:
    wanted = _DTYPES.get(parameter.type)
    if wanted is None or isinstance(value, (np.ndarray, TensorMap)):
        raise LaunchError(f"{name} cannot be passed as {parameter}")
    try:
        found = np.asarray(value, dtype=wanted[0])
    except (OverflowError, TypeError, ValueError) as error:
        raise LaunchError(f"{name} is {value!r}, the kernel takes {parameter}: {error}") from error
    if found.dtype.kind in "iub" and found != value:
        raise LaunchError(f"{name} is {value!r}, which {parameter} cannot hold")
    return found
