"""Is there a GPU, and which: the one place that decides between the GPU and the CPU edition."""

from __future__ import annotations

import ctypes
import math
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar

from mirage_nb.errors import LaunchError
from mirage_nb.settings import visible_devices
from mirage_nb.targets import TARGETS, Target


class CardLost(LaunchError):
    """A card that takes no more work from this process: a kernel spoiled its context, or it is gone."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The attached card: its name, compute capability (90 for 9.0), multiprocessors, driver ("13.0"), L2 bytes."""

    name: str
    capability: int
    multiprocessors: int
    driver: str
    l2_bytes: int

    def runs(self, target: Target) -> bool:
        """Whether a cubin for `target` loads on this card: same generation; sm_90a and the like only exactly."""
        if target.arch[-1] in "af":
            return self.capability == target.capability
        return self.capability // 10 == target.capability // 10 and self.capability >= target.capability

    def is_like(self, other: Gpu) -> bool:
        """Whether times on the other card are times on this one."""
        mine, theirs = ((g.name, g.capability, g.multiprocessors) for g in (self, other))
        return mine == theirs

    def target(self) -> Target | None:
        """The known target that describes this card best, or None."""
        fits = [t for t in TARGETS.values() if t.capability == self.capability]
        named = [t for t in fits if t.name.removeprefix("rtx").lower() in self.name.lower().replace(" ", "")]
        return next(iter(named or fits), None)


def attached_gpu() -> Gpu | None:
    """The current CUDA device, or None when there is no card, no driver, or no CuPy that finds a home folder."""
    try:
        import cupy
    except (ImportError, OSError):
        return None
    if not cupy.cuda.is_available():
        return None
    return _described(cupy.cuda.runtime, cupy.cuda.Device())


def others_like(gpu: Gpu) -> tuple[str, ...]:
    """The other CUDA devices that are like the current one, as `CUDA_VISIBLE_DEVICES` has them."""
    try:
        from cupy.cuda import Device, is_available, runtime
    except (ImportError, OSError):
        return ()
    if not is_available():
        return ()
    names = enumerate(visible_devices(runtime.getDeviceCount()))
    others = ((Device(index), name) for index, name in names if index != Device().id)
    return tuple(name for device, name in others if _described(runtime, device).is_like(gpu))


def _described(runtime: Any, device: Any) -> Gpu:
    properties, driver = runtime.getDeviceProperties(device.id), runtime.driverGetVersion()
    return Gpu(
        name=properties["name"].decode(),
        capability=int(device.compute_capability),
        multiprocessors=int(properties["multiProcessorCount"]),
        driver=f"{driver // 1000}.{driver % 1000 // 10}",
        l2_bytes=int(properties["l2CacheSize"]),
    )


SWITCH_SECONDS = 2e-4
"""Meanwhile threads of this interpreter hand over so soon. A call of many launches gives the interpreter away at each,
and got it back from a search after 5 ms: kernels of 0.2 ms took 50."""


class Turn:
    """Who holds it has the card for timing: whoever times on it in one interpreter takes turns, as times are of use
    only if nothing else runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended, self._switch = -math.inf, SWITCH_SECONDS

    def take(self, seconds: float = -1) -> bool:
        """Wait so long (default: for ever) for the card; whether it is ours now."""
        if not self._lock.acquire(timeout=seconds):
            return False
        self._switch = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch, SWITCH_SECONDS))
        return True

    def give(self) -> None:
        """The card is free again."""
        sys.setswitchinterval(self._switch)
        self._ended = time.monotonic()
        self._lock.release()

    def __enter__(self) -> Turn:
        self.take()
        return self

    def __exit__(self, *error: object) -> None:
        self.give()

    @property
    def quiet_seconds(self) -> float:
        """How long ago the last turn has ended; 0 while there is one."""
        return 0.0 if self._lock.locked() else time.monotonic() - self._ended


TURN = Turn()
"""The card belongs to the machine, not to a session: the one thing here that all of them share."""


class _Utilisation(ctypes.Structure):
    """nvmlUtilization_t: percent of the last moment, of the multiprocessors and of the memory."""

    _fields_: ClassVar = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


def busy_percent() -> int | None:
    """How busy the current device was in the last second, whoever used it; None where the driver does not say."""
    import cupy

    handle, found = ctypes.c_void_p(), _Utilisation()
    try:
        bus = str(cupy.cuda.Device().pci_bus_id).encode()
        driver = ctypes.CDLL("libnvidia-ml.so.1")
        status = driver.nvmlInit_v2() or driver.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle))
        status = status or driver.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(found))
    except (OSError, AttributeError, RuntimeError):  # the last of a card that is lost
        return None
    return int(found.gpu) if status == 0 else None
