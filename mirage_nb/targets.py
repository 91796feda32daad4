"""Targets: GPUs as data. Nothing in the house asks for a card by name; it reads these numbers.

Sources: the CUDA programming guide's table of compute capabilities (shared memory, registers,
threads), the vendor's data sheets (multiprocessors, clocks, bandwidth); for the H200, read bandwidth,
kernel start-up and dense fp16 rate as measured on one card.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.errors import TargetError
from mirage_nb.typed import typed

SECTOR_BYTES = 32
"""What device memory and caches move at a time; what they find at a time is a line."""


@typed
@dataclass(frozen=True, slots=True)
class Target:
    """One GPU, and what its owner lets kernels do on it.

    Units: bytes, gigabytes per second, teraflops per second, microseconds. precision: of products of f32, one of
    `PRECISIONS`.
    """

    name: str
    arch: str
    multiprocessors: int
    shared_per_block: int
    shared_per_multiprocessor: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    device_memory: int
    l2_bytes: int
    device_bandwidth: float
    shared_bandwidth: float
    tensor_rate: float
    vector_rate: float
    start_us: float
    launch_us: float
    tma: bool
    precision: str = "f32"

    def __repr__(self) -> str:
        bandwidth = f"{self.device_bandwidth:g} GB/s"
        return f"<Target {self.name}: {self.arch}, {self.multiprocessors} multiprocessors, {bandwidth}>"

    @property
    def capability(self) -> int:
        """Compute capability as a number, 90 for sm_90a."""
        return int(self.arch.removeprefix("sm_").rstrip("af"))


EXACT = "f32"
"""The precision of f32 products that needs nobody's permission."""
PRECISIONS: dict[str, float] = {"f32": 1.0, "3xtf32": 4.0, "tf32": 2.0**12}
"""How products of f32 may be computed, and how many times what rounding to f32 explains such kernels may be off: four
times where three products of TF32 make one; with one, so much that what TF32 cuts off, 2^-9 of summed sizes, is in."""

TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target("h200", "sm_90a", 132, 232448, 233472, 65536, 2048, 141 * 10**9, 60 * 2**20,
               4450.0, 33000.0, 790.0, 60.0, 1.75, 1.2, True),
        Target("h100", "sm_90a", 132, 232448, 233472, 65536, 2048, 80 * 10**9, 50 * 2**20,
               3000.0, 33000.0, 790.0, 60.0, 1.75, 1.2, True),
        Target("a100", "sm_80", 108, 166912, 167936, 65536, 2048, 40 * 10**9, 40 * 2**20,
               1400.0, 19400.0, 280.0, 18.0, 2.5, 1.5, False),
        Target("rtx3090", "sm_86", 82, 101376, 102400, 65536, 1536, 24 * 10**9, 6 * 2**20,
               860.0, 17800.0, 130.0, 33.0, 2.5, 1.5, False),
        Target("rtx4090", "sm_89", 128, 101376, 102400, 65536, 1536, 24 * 10**9, 72 * 2**20,
               930.0, 41000.0, 320.0, 78.0, 2.0, 1.5, False),
    )
}  # fmt: skip

DEFAULT_TARGET = "h200"


def find_target(name: str) -> Target:
    """The target of this name, case ignored. Raises TargetError with the known names."""
    found = TARGETS.get(name.lower())
    if found is None:
        raise TargetError(f"unknown target {name!r}", hint=f"one of {', '.join(TARGETS)}")
    return found
