"""What the emitter may choose without changing a muGraph: the knobs that a tuner varies, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mirage_nb.targets import EXACT, Target
from mirage_nb.tile.instructions.schemes import KINDS_OF
from mirage_nb.tile.rules.teams import CAPABILITY, VARIANTS

DEPENDENT_LAUNCH = 90
"""Compute capability from which on a kernel can wait for the one in front by itself."""
AHEAD = (2, 4)
"""Steps by which groups of warps begin one behind the other."""


@dataclass(frozen=True, slots=True)
class Options:
    """One way to emit.

    warps: warps that compute, per block. stages: tiles of the for-loop in flight (ring depth); fewer are
    used where they do not fit. bulk: stream the ring with bulk tensor copies from a warp of its own
    (sm_90 and later), where every streamed tile allows it. wide: products of a warp-private body by groups of four
    warps on tiles as the copy engine leaves them (wgmma, sm_90a), where each warp has 16 rows and all keys of them.
    chained: the first kernel starts while the launch in front of the muGraph still runs, and waits by itself (sm_90 and
    later). early: which kernels start while the one of the muGraph in front still runs: "some", those that stream
    nothing of what it writes; "all", blocks with roles, too, which ask for the rest beforehand; "none", which leaves
    the card to it. spread: kernels that start early ask for so much shared memory that no multiprocessor takes more of
    their blocks than its share. specialised: products of many rows by persistent blocks whose warps have roles
    (`optimize.product_program`, sm_90a); `warps` and `stages` follow from the tiles then. precision: how such blocks
    multiply f32: "f32" exactly, "tf32" or "3xtf32" (`tile.instructions.precision`) where the program's owner allows it.
    ahead: by how many steps of a product one group of such warps begins before the next, where columns are folded
    behind it: one folds while another multiplies. library: 0: a library computes pre-defined operators one by one; n:
    several at once where it can (`mirage_nb.predefined`), in the n-th of its ways, or the last one that it has.
    """

    warps: int = 8
    stages: int = 4
    bulk: bool = False
    wide: bool = False
    chained: bool = False
    spread: bool = False
    specialised: bool = False
    precision: str = "f32"
    library: int = 0
    early: str = "some"
    ahead: int = 0

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
    return Options(bulk=target.tma, specialised=target.capability == CAPABILITY, library=1, precision=target.precision)


def all_options(target: Target) -> tuple[Options, ...]:
    """Everything that a tuner may try on a target, the default first."""
    first = default_options(target)
    plain = replace(first, specialised=False)
    others = (Options(warps, stages, target.tma) for warps in (8, 4) for stages in (4, 3, 6, 2))
    wide = [Options(w, s, True, True) for w in (4, 8) for s in (4, 2)] if target.capability == CAPABILITY else []
    near = [Options(w, s, target.tma, wide) for w, s, wide in VARIANTS if target.capability >= DEPENDENT_LAUNCH]
    near += [first] if first.specialised else []
    kinds = KINDS_OF[target.precision] if target.precision != EXACT and first.specialised else ()
    allowed = [replace(first, precision=kind) for kind in (*kinds, EXACT)] if kinds else []
    chained = [replace(o, chained=True, spread=spread) for o in near for spread in (False, True)]
    able = target.capability >= DEPENDENT_LAUNCH
    alone = [replace(first, early=early) for early in ("none", "all") if able]
    turns = [replace(first, ahead=ahead) for ahead in AHEAD if first.specialised]
    ways = dict.fromkeys((first, *alone, *turns, *allowed, plain, *others, Options(16, 4, target.tma), *wide, *chained))
    library = [replace(first, library=n) for n in (2, 3, 4, 0)]
    return (*(replace(way, library=1) for way in ways), *library)
