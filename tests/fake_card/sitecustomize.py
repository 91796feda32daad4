"""A card that is not there: what every process loads that is started with this folder on its PYTHONPATH.

Kernels run on the CPU edition, by the process that would run them on a card, and every timing is a number that follows
from the kernel's name. With FAULTY set, every third kernel faults on large inputs, as only hard ones have them, and the
process that ran it is of no use for kernels any more. With CROWDED set, there is room for the session's own process
alone. With COLD set, as in "torch=2 cupy=0.8 context=0.5 held=0.3 nvrtc=0.3", every process takes so many seconds for
what a process does once: to load PyTorch, CuPy and the compiler, and to make a context, for `held` seconds of which no
other thread goes on; with "torch=ran" PyTorch is there once a kernel ran. With CARD_LOG set, what happens is written
to this file: the clock (`time.monotonic`), the process, what.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import time
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

LARGE = 20.0
LOST: list[bool] = []
TAKES = dict(part.split("=") for part in os.environ.get("COLD", "").split())
LONGEST = 40.0
ONCE: set[str] = set()
LOCKS: dict[str, threading.RLock] = collections.defaultdict(threading.RLock)
find_spec = importlib.util.find_spec


def seen(what: str) -> None:
    if log := os.environ.get("CARD_LOG"):
        with open(log, "a") as file:
            file.write(f"{time.monotonic():.3f} {os.getpid()} {what}\n")


def long(seconds: str) -> None:
    """So many, or until that has happened somewhere."""
    if seconds.replace(".", "").isdigit():
        return time.sleep(float(seconds))
    until = time.monotonic() + LONGEST
    while time.monotonic() < until and f" {seconds}\n" not in Path(os.environ["CARD_LOG"]).read_text():
        time.sleep(0.02)


def once(what: str, takes: Callable[[str], object] = long) -> None:
    """What a process does once, and every thread of it waits for."""
    with LOCKS[what]:
        if what in TAKES and what not in ONCE:
            ONCE.add(what)
            seen(f"{what}: begins")
            takes(TAKES[what])
            seen(f"{what}: is there")


def context() -> None:
    once("context")
    once("held", lambda seconds: ctypes.PyDLL(None).usleep(int(1e6 * float(seconds))))


def spec_of(name: str, package: Any = None) -> Any:
    """Of PyTorch nothing is there, which takes as long as if it was."""
    if name == "torch":
        once("torch")
    return None if name == "torch" else find_spec(name, package)


importlib.util.find_spec = spec_of


class Device:
    """The only one."""

    id, compute_capability, pci_bus_id = 0, "90", "0"

    def __init__(self, *number: int) -> None:
        """Whatever its number."""

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to do."""


class Anything:
    """Memory of the card, of which nobody asks what is in it."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        import numpy as np

        context()
        self.shape, self.nbytes, self.data = shape, int(np.prod(shape)) * np.dtype(dtype).itemsize, self

    def __add__(self, other: int) -> Anything:
        return self

    def copy_from_host(self, *given: object) -> None:
        """Goes nowhere."""

    copy_from_device = memset = copy_from_host


class Executable:
    """Kernels by the CPU edition."""

    workspace_bytes = 0

    def __init__(self, emitted: Any, cubin: object, gpu: Any) -> None:
        context()
        self.device, self._emitted, self._made = gpu.name, emitted, None

    def ran(self, inputs: Sequence[Any]) -> list[Any]:
        from mirage_nb.errors import LaunchError
        from mirage_nb.runtime.execution.execute import CpuExecutable

        seen("ran")
        if isinstance(inputs[0], Anything):
            return []
        import numpy as np

        faulty = "FAULTY" in os.environ and zlib.crc32(self._emitted.source.encode()) % 3 == 0
        if faulty and max(np.abs(a.astype(np.float64)).max() for a in inputs) > LARGE:
            LOST.append(True)
            raise LaunchError("the card reports an illegal memory access")
        self._made = self._made or CpuExecutable(self._emitted)
        return self._made.run([*inputs])


def asarray(array: Any) -> Any:
    """The array; in workers, which head a group of their own, where there is room."""
    if "CROWDED" in os.environ and os.getsid(0) == os.getpid():
        raise MemoryError("the card is full")
    import numpy as np

    context()
    return np.array(array)


def lap(name: str, executable: object = None, limit_us: float = 0.0, own: bool = False) -> Any:
    """A time that follows from the name."""
    from mirage_nb.runtime.contest.timing import Lap, Timing

    seen(f"timed {'a way of the operators' if own else 'a kernel'}: {name}")
    us = 2 + zlib.crc32(name.encode()) % 1000 / 100
    return Lap(name, 0.0, Timing(name, us, us, us, 9))


def raced(ours: Any, peers: Any, repeats: int) -> list[Any]:
    return [lap(name) for name in (*ours, *peers)]


@contextlib.contextmanager
def card_errors() -> Iterator[None]:
    """There are none."""
    yield


def card(cupy: Any) -> None:
    """CuPy's side of it."""
    import numpy as np

    for name, value in {
        "getDeviceProperties": lambda number: {"name": b"H200", "multiProcessorCount": 132, "l2CacheSize": 60 * 2**20},
        "getDeviceCount": lambda: 1, "driverGetVersion": lambda: 13000,
        "memGetInfo": lambda: (2**36, 2**37), "deviceSynchronize": lambda: None,
    }.items():  # fmt: skip
        setattr(cupy.cuda.runtime, name, value)
    cupy.cuda.is_available, cupy.cuda.Device = lambda: True, Device
    cupy.asarray, cupy.asnumpy, cupy.empty = asarray, np.asarray, Anything
    if "nvrtc" in TAKES:
        from cupy.cuda import nvrtc

        version = nvrtc.getVersion
        nvrtc.getVersion = lambda: (once("nvrtc"), version())[1]


def launch(module: Any) -> None:
    import cupy  # noqa: F401

    def lanes(workers: int) -> int:
        context()
        return 2

    module.GpuExecutable, module.card_errors, module.usable = Executable, card_errors, lambda: not LOST
    module.exclusive, module.lanes, module.poisoned = lambda: False, lanes, lambda type_: context()


class Track:
    scale = 1.0
    lap, race = staticmethod(lap), staticmethod(raced)

    def __init__(self, program: Any, gpu: Any) -> None:
        context()
        seen("track")


def no_torch(module: Any) -> None:
    once("torch")
    raise ModuleNotFoundError(module.__name__)


def race(module: Any) -> None:
    once("torch")
    module.Track, module.doubt, module.pytorch_peers = Track, lambda laps, gpu: None, lambda program: {"eager": None}


MADE: dict[str, Callable[[Any], None]] = {
    "mirage_nb.runtime.execution.launch": launch, "mirage_nb.runtime.contest.race": race,
    "torch": no_torch,
}  # fmt: skip

CHANGED: dict[str, Callable[[Any], None]] = {
    "cupy": card,
    "mirage_nb.runtime.loading": lambda module: setattr(module, "DRIVERS", (Path("/"),)),
}  # fmt: skip


class Late(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of the card as they are imported: a process that needs none of them loads none."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in MADE:
            return importlib.machinery.ModuleSpec(name, self)
        if name not in CHANGED or (found := importlib.machinery.PathFinder.find_spec(name, path)) is None:
            return None
        real: Any = found.loader
        real.exec_module = functools.partial(self._real, real.exec_module)
        return found

    def exec_module(self, module: types.ModuleType) -> None:
        MADE[module.__name__](module)

    def _real(self, execute: Callable[[Any], None], module: types.ModuleType) -> None:
        once(module.__name__)
        execute(module)
        CHANGED[module.__name__](module)


sys.meta_path.insert(0, Late())
