"""What the emitter may choose without changing a muGraph: the knobs that a tuner varies, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """One way to emit.

    warps: warps that compute, per block. stages: tiles of the for-loop in flight (ring depth).
    bulk: stream the ring with bulk tensor copies from a warp of its own (sm_90 and later).
    """

    warps: int = 8
    stages: int = 3
    bulk: bool = False

    @property
    def compute_threads(self) -> int:
        """Threads that compute."""
        return 32 * self.warps

    @property
    def threads(self) -> int:
        """Threads per block, the producer warp included."""
        return self.compute_threads + (32 if self.bulk else 0)
