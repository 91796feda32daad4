"""What a search may try: effort presets and budgets, as frozen data.

Nothing here names a program: the configurations of a search follow from the program's axes and the effort.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from mirage_nb.algebra import QUICK, STANDARD, THOROUGH, AlgebraOptions
from mirage_nb.search.axes import Prepared
from mirage_nb.search.semantics import Semantics

MAX_GRID_DIMS = 3


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of one configuration: seconds of work, values in a closure, operators of a block graph."""

    seconds: float = 60.0
    max_values: int = 60_000
    max_block_ops: int = 24


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of the space is searched.

    Attributes:
        options: the axioms in force.
        kernels: at most so many kernels.
        extra: graphs up to this many operators above the smallest one of a configuration.
        structures: at most so many graphs per configuration.
        budget: what one configuration may take, unless the caller says otherwise.
        prefixes: size of the sample of events.
        replicas, concat, hold: see `closure.Rules`.
        parts: any part of an axis may be left between two kernels, not only the grid's.
        expand: products of long sums are always written out.
        free_loops: loops over free axes are derived as well.
    """

    name: str
    options: AlgebraOptions
    kernels: int
    extra: int
    structures: int
    budget: Budget = Budget()
    prefixes: int = 150
    replicas: bool = True
    concat: bool = True
    hold: bool = True
    parts: bool = False
    expand: bool = False
    free_loops: bool = False


EFFORTS: dict[str, Effort] = {
    effort.name: effort
    for effort in (
        Effort("quick", QUICK, kernels=1, extra=2, structures=64, budget=Budget(10.0), concat=False),
        Effort("standard", STANDARD, kernels=2, extra=3, structures=128),
        Effort(
            "exhaustive",
            THOROUGH,
            kernels=2,
            extra=5,
            structures=4096,
            budget=Budget(600.0, 200_000, 32),
            parts=True,
            expand=True,
            free_loops=True,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """The roles of the reduced axes: those that the grid of the first kernel splits, and the for-loop's.

    With two kernels the second one runs over everything that the first can produce, its loop left open.
    """

    grid: tuple[int, ...]
    loop: int | None
    kernels: int = 1
    label: str = ""

    def __str__(self) -> str:
        return self.label


def configurations(prepared: Prepared, effort: Effort) -> tuple[Configuration, ...]:
    """Every configuration of a program at this effort, simplest first. They are independent of each other.

    Raises:
        SearchError: the program uses an operator in a way that the closure cannot express.
    """
    Semantics(prepared, effort.options)  # evaluates the program by the rules of the closure, or raises
    outputs = set(range(len(prepared.axes)))
    for axes in prepared.output_axes:
        outputs &= {axis for axis in axes if axis is not None}
    loops = (None, *prepared.reduced)
    found: list[Configuration] = []
    for kernels in range(1, effort.kernels + 1):
        splittable = [axis for axis in prepared.reduced if kernels > 1 or axis in outputs]
        for count in range(min(MAX_GRID_DIMS, len(splittable)) + 1):
            for grid in combinations(splittable, count):
                for loop in loops:
                    found.append(Configuration(grid, loop, kernels, _label(prepared, grid, loop, kernels)))
    return tuple(found)


def _label(prepared: Prepared, grid: tuple[int, ...], loop: int | None, kernels: int) -> str:
    names = [axis.name for axis in prepared.axes]
    parts = [f"{kernels} kernel{'s' if kernels > 1 else ''}"]
    parts.append(f"grid over {', '.join(names[axis] for axis in grid)}" if grid else "free axes on the grid")
    parts.append(f"loop over {names[loop]}" if loop is not None else "no loop")
    return "; ".join(parts)
