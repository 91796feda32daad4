"""What the emitter may choose without changing a muGraph: the knobs that a tuner varies, as data."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.targets import Target

WARPGROUPS = 90
"""The one compute capability whose warpgroups multiply."""


@dataclass(frozen=True, slots=True)
class Options:
    """One way to emit.

    warps: warps that compute, per block. stages: tiles of the for-loop in flight (ring depth); fewer are
    used where they do not fit. bulk: stream the ring with bulk tensor copies from a warp of its own
    (sm_90 and later), where every streamed tile allows it. wide: products of a warp-private body by groups of four
    warps on tiles as the copy engine leaves them (wgmma, sm_90a), where each warp has 16 rows and all keys of them.
    """

    warps: int = 8
    stages: int = 4
    bulk: bool = False
    wide: bool = False

    @property
    def compute_threads(self) -> int:
        """Threads that compute."""
        return 32 * self.warps

    @property
    def threads(self) -> int:
        """Threads per block, the producer warp included."""
        return self.compute_threads + (32 if self.bulk else 0)


def default_options(target: Target) -> Options:
    """What is tried first on a target."""
    return Options(bulk=target.tma)


def all_options(target: Target) -> tuple[Options, ...]:
    """Everything that a tuner may try on a target, the default first."""
    first = default_options(target)
    others = (
        Options(warps, stages, bulk)
        for bulk in ((True, False) if target.tma else (False,))
        for warps in (8, 4)
        for stages in (4, 3, 6, 2)
    )
    wide = [Options(w, s, True, True) for w in (4, 8) for s in (4, 2)] if target.capability == WARPGROUPS else []
    return tuple(dict.fromkeys((first, *others, Options(16, 4, target.tma), *wide)))
