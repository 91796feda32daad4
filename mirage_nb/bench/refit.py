"""What the cost model says of recorded instances with other constants, and what constants the others alone would give.

In: instances that a search found again, and their times. Out: estimates for any `Constants`; for every workload
the estimates with constants that were fitted without it. One step of Gauss and Newton, in logarithms, leads from
the constants of all workloads to those of all but one: what changes is what its instances pulled at.
Invariant: at the fitted constants the estimates are those of the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mirage_nb.search import Instance, Prepared, Structure
from mirage_nb.search.pieces.assemble import Assembly, sizes_of_parts
from mirage_nb.search.sizes.anatomy import Numbers, Sizes
from mirage_nb.search.sizes.constants import FITTED, Constants
from mirage_nb.search.sizes.cost import estimate
from mirage_nb.search.sizes.instantiate import numbered
from mirage_nb.search.sizes.occupancy import OTHER_VARIANTS, Variant
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.search.structure import KernelStructure
from mirage_nb.targets import Target

STEP = 0.05
"""By how much a constant is moved, in logarithms, to see what it does."""
FAST = 2.0
"""An instance counts by this power of how near it is to the fastest of its workload."""
TRUST = 0.4
"""No constant changes by more than this, in logarithms: further off one step says nothing."""
DAMPING = 0.3
"""Of the diagonal: constants that few instances tell anything of stay where they are."""


@dataclass(frozen=True, slots=True)
class Found:
    """A recorded instance that a search found again: its row, with today's estimate, and where it comes from."""

    row: dict[str, Any]
    prepared: Prepared
    structure: Structure
    instance: Instance

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants to emit it, besides the default one, that were timed: all of them if the row does not say."""
        tried = self.row.get("tried")
        return tuple(v for v in OTHER_VARIANTS if tried is None or [v.warps, v.stages, v.wide] in tried)

    def kernels(self) -> Iterator[tuple[Prepared, KernelStructure, Sizes]]:
        """Its generated kernels at their sizes."""
        parts: list[tuple[Prepared, Structure, Mapping[str, int]]] = [
            (self.prepared, self.structure, self.instance.sizes)
        ]
        if isinstance(self.structure, Assembly):
            chosen = sizes_of_parts(self.structure, self.instance.sizes)
            parts = [(part.prepared, part.structure, mine) for part, mine in chosen if part.structure is not None]
        for prepared, structure, sizes in parts:
            for kernel, numbers in numbered(structure, prepared, sizes):
                yield prepared, kernel, numbers


class Estimator:
    """Estimates of many recorded instances at once, for any constants."""

    def __init__(self, found: Sequence[Found], target: Target) -> None:
        self._target = target
        self._found = found
        groups: dict[object, _Group] = {}
        self._where: list[list[tuple[_Group, int]]] = []
        for one in found:
            mine = []
            for prepared, kernel, numbers in one.kernels():
                key = (id(prepared), kernel, tuple(sorted(numbers.interface.items())), one.variants)
                group = groups.setdefault(key, _Group(prepared, kernel, one.variants, []))
                group.sizes.append(numbers)
                mine.append((group, len(group.sizes) - 1))
            self._where.append(mine)
        self._groups = tuple(groups.values())
        for group in self._groups:
            group.join()
        every = self._sums(lambda group: group.us(target, FITTED, OTHER_VARIANTS))
        self._rest = np.array([one.instance.cost.us for one in found]) - every

    def us(self, constants: Constants) -> Numbers:
        """The estimates in microseconds, in the order of the instances: the best of the variants that were timed."""
        return self._rest + self._sums(lambda group: group.us(self._target, constants, group.variants))

    def _sums(self, us: Callable[[_Group], Numbers]) -> Numbers:
        of = {id(group): us(group) for group in self._groups}
        return np.array([sum(float(of[id(group)][index]) for group, index in mine) for mine in self._where])

    def without(self, times: Numbers, workloads: Sequence[str]) -> Numbers:
        """The estimates of every workload with constants that were fitted to the others, to first order.

        Args:
            times: what was measured. workloads: of every instance.
        """
        names = [field.name for field in fields(Constants)]
        now = np.log(self.us(FITTED))
        moved = [replace(FITTED, **{n: getattr(FITTED, n) * float(np.exp(STEP))}) for n in names]
        slopes = np.stack([(np.log(self.us(constants)) - now) / STEP for constants in moved], axis=1)
        belongs = np.asarray(workloads)
        weights = np.zeros(len(times))
        for name in dict.fromkeys(workloads):
            mine = belongs == name
            weights[mine] = (times[mine].min() / times[mine]) ** FAST
            weights[mine] /= weights[mine].sum()
        off = now - np.log(times)

        def step(chosen: Numbers) -> Numbers:
            pull = slopes.T @ (chosen[:, None] * slopes)
            held = pull + np.diag(DAMPING * np.diag(pull) + 1e-9)
            solved: Numbers = -np.linalg.solve(held, slopes.T @ (chosen * off))
            return solved

        whole = step(weights)
        result = now.copy()
        for name in dict.fromkeys(workloads):
            mine = belongs == name
            change = np.clip(step(np.where(mine, 0.0, weights)) - whole, -TRUST, TRUST)
            result[mine] = now[mine] + slopes[mine] @ change
        return np.exp(result)


@dataclass(slots=True)
class _Group:
    """Instances of one kernel with the same interface, timed in the same variants; joined, their sizes are one."""

    prepared: Prepared
    kernel: KernelStructure
    variants: tuple[Variant, ...]
    sizes: list[Sizes]

    def us(self, target: Target, constants: Constants, variants: Sequence[Variant]) -> Numbers:
        """What each takes."""
        return estimate(Tiles.of(self.prepared, self.kernel, self.sizes[0]), target, constants, variants).us

    def join(self) -> None:
        first = self.sizes[0]
        joined = Sizes(
            first.extents,
            {axis: np.concatenate([sizes.blocks[axis] for sizes in self.sizes]) for axis in first.blocks},
            np.concatenate([sizes.loop for sizes in self.sizes]),
            first.interface,
            {axis: np.concatenate([sizes.tiles[axis] for sizes in self.sizes]) for axis in first.tiles},
        )
        self.sizes[:] = [joined]
