"""Limits that a user sets by hand: grid dims, blocks, for-loop ranges, and the operators that kernels may have.

In: ranges and names. Out: which sizes and which operators are allowed. Invariant: what is left out is named, one
sentence each; pre-defined operators are the library's, no limit touches them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirage_nb.errors import OptionError
from mirage_nb.ir import OPS, AccumKind, Level, OpKind, Trait
from mirage_nb.typed import typed

Numbers = npt.NDArray[np.float64]
MAX_GRID_DIMS = 3
_UNCOUNTED = frozenset({OpKind.ACCUM, OpKind.GRAPH, OpKind.FUSED, OpKind.CONST})
OPERATORS: tuple[str, ...] = (
    *(
        kind.value
        for kind, spec in OPS.items()
        if Level.BLOCK in spec.levels and Trait.STRUCTURAL not in spec.traits and kind not in _UNCOUNTED
    ),
    *(f"{OpKind.ACCUM.value} {accum.value}" for accum in AccumKind),
)
"""What a block graph may be forbidden to have."""


@typed
@dataclass(frozen=True, slots=True)
class Limits:
    """What every graph-defined kernel has to keep to.

    Attributes:
        grid_dims: most dims of its grid.
        blocks: fewest and most blocks; None: as many as the target takes.
        loop: smallest and largest for-loop range; a kernel without a loop has 1.
        without: names from `OPERATORS` that it may not have.
    """

    grid_dims: int = MAX_GRID_DIMS
    blocks: tuple[int, int | None] = (1, None)
    loop: tuple[int, int | None] = (1, None)
    without: frozenset[str] = frozenset()

    def check(self) -> None:
        """Raises OptionError: a range without members, or an operator that there is not."""
        if not 0 <= self.grid_dims <= MAX_GRID_DIMS:
            raise OptionError(f"{self.grid_dims} grid dims", hint=f"0 to {MAX_GRID_DIMS}")
        for what, (least, most) in (("blocks", self.blocks), ("loop", self.loop)):
            if least < 1 or (most is not None and most < least):
                raise OptionError(f"{what}: from {least} to {most}", hint="a range of positive numbers, as (1, 64)")
        for name in sorted(self.without - set(OPERATORS)):
            raise OptionError(f"{name!r} is no operator of a block graph", hint=f"one of {', '.join(OPERATORS)}")

    def allowed(self, blocks: Mapping[int, Numbers], loop: Numbers) -> npt.NDArray[np.bool_]:
        """Which sizes keep to it: numbers of blocks along every axis, and for-loop ranges."""
        total, dims = np.ones(len(loop)), np.zeros(len(loop))
        for along in blocks.values():
            total = total * along
            dims += along > 1
        return (dims <= self.grid_dims) & _within(total, self.blocks) & _within(loop, self.loop)

    def sentences(self) -> tuple[str, ...]:
        """What is left out."""
        found = [f"at most {self.grid_dims} grid dims"] if self.grid_dims < MAX_GRID_DIMS else []
        for what, limit in (("blocks", self.blocks), ("for-loop ranges", self.loop)):
            least, most = limit
            if limit != (1, None):
                found.append(f"only {what} from {least}" + (f" to {most}" if most is not None else ""))
        return (*found, *(f"{name} is not allowed" for name in sorted(self.without)))


NO_LIMITS = Limits()


def read_range(text: str) -> tuple[int, int | None]:
    """`8:264`, `:264`, `8:`, or `64` for just this one. Raises ValueError, also for a range without members."""
    first, colon, last = text.partition(":")
    least = int(first or "1") if colon else int(text)
    most = (int(last) if last else None) if colon else least
    if least < 1 or (most is not None and most < least):
        raise ValueError(text)
    return least, most


def _within(numbers: Numbers, limit: tuple[int, int | None]) -> npt.NDArray[np.bool_]:
    least, most = limit
    return (numbers >= least) & (numbers <= (math.inf if most is None else most))
