"""What a search may try: effort presets and budgets, as frozen data.

Nothing here names a program: the configurations of a search follow from the program's axes and the effort.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from mirage_nb.algebra import QUICK, STANDARD, THOROUGH, AlgebraOptions
from mirage_nb.errors import SearchError
from mirage_nb.ir import KernelGraph
from mirage_nb.search.axes import Prepared, prepare
from mirage_nb.search.limits import MAX_GRID_DIMS as MAX_GRID_DIMS
from mirage_nb.search.limits import Limits
from mirage_nb.search.pieces.piece import HEAVY, Cut, concatenations, cuts, pieces, smallest_cut
from mirage_nb.search.saturation.closure import Rules
from mirage_nb.search.saturation.semantics import Semantics


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of one configuration: seconds of work, values in a closure, operators of a block graph."""

    seconds: float = 60.0
    max_values: int = 60_000
    max_block_ops: int = 24


UNCAPPED = sys.maxsize
WRITTEN_OUT = 32
"""Sums that are parts of one sum of a program whose products of sums are written out. Closures grow with them: 24 take
a tenth of a second, 96 some seconds, and of 216 in ten minutes nobody saw the end."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """What is kept of two kernels in one configuration. A cap that leaves something out is named in the result.

    Attributes:
        kept: graphs of two kernels, those with few concat accumulators and operators first.
        firsts: graphs of the first kernel for one set of tensors between, those with few concat accumulators first.
        looked_at: of so many of those.
        between: tensors that the first kernel hands to the second.
        extra: operators of the first kernel above its smallest graph.
    """

    kept: int = 64
    firsts: int = 12
    looked_at: int = 200
    between: int = 3
    extra: int = 2


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of the space is searched.

    Attributes:
        options: the axioms in force.
        kernels: at most so many kernels that are searched as one.
        pieces: at most so many kernels, the program cut into pieces that are searched by themselves; more only
            where it cannot be searched as a whole.
        cuts: at most so many such cuts.
        extra: graphs up to this many operators above the smallest one of a configuration, and one more for each output
            but the first.
        structures: at most so many graphs of one kernel per configuration, and of the second kernel of two.
        pairs: of two kernels.
        piece_structures: at most so many graphs of one kernel per configuration of a piece, and half as many of two.
        assemblies: at most so many muGraphs of a cut, the best of every number of kernels, then the best estimates.
        budget: what one configuration may take, unless the caller says otherwise.
        prefixes: size of the sample of events.
        rules: of the closures.
        limits: of the sizes of kernels.
        parts: any part of an axis may be left between two kernels, not only the grid's.
        written_out: products of sums are written out where no sum of the program then has more parts than so many.
        free_loops: loops over free axes are derived as well.
    """

    name: str
    options: AlgebraOptions
    kernels: int
    pieces: int
    cuts: int
    extra: int
    structures: int
    pairs: Pairs = Pairs()
    piece_structures: int = 8
    assemblies: int = 6
    budget: Budget = Budget()
    prefixes: int = 150
    rules: Rules = field(default_factory=Rules)
    limits: Limits = field(default_factory=Limits)
    parts: bool = False
    written_out: int = WRITTEN_OUT
    free_loops: bool = False

    def __repr__(self) -> str:
        return f"<Effort {self.name}: up to {max(self.kernels, self.pieces)} kernels, {self.budget}>"


EFFORTS: dict[str, Effort] = {
    effort.name: effort
    for effort in (
        Effort(
            "quick",
            QUICK,
            kernels=1,
            pieces=1,
            cuts=4,
            extra=2,
            structures=64,
            budget=Budget(10.0),
            rules=Rules(concat=False),
        ),
        Effort("standard", STANDARD, kernels=2, pieces=5, cuts=16, extra=3, structures=128),
        Effort(
            "exhaustive",
            THOROUGH,
            kernels=2,
            pieces=5,
            cuts=128,
            extra=5,
            structures=4096,
            pairs=Pairs(UNCAPPED, UNCAPPED, UNCAPPED, UNCAPPED, 5),
            piece_structures=4096,
            assemblies=256,
            budget=Budget(600.0, 200_000, 32),
            parts=True,
            written_out=128,
            free_loops=True,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """The roles of the reduced axes: those that the grid of the first kernel splits, and the for-loop's.

    With two kernels the second one runs over everything that the first can produce, its grid and loop left open. With a
    `cut`, these values of the program are stored, and every piece between them is searched by itself; `single`: for one
    kernel each, which takes a part of the time. With a `piece` (`Piece.digest`) all this is said of that piece of a
    large program; `alone`: all others are single operators, which nobody searches. `label` is for people: what the
    program calls its axes tells no configurations apart.
    """

    grid: tuple[int, ...]
    loop: int | None
    kernels: int = 1
    label: str = field(default="", compare=False)
    cut: tuple[int, ...] | None = None
    piece: str = ""
    single: bool = False
    alone: bool = False

    def __str__(self) -> str:
        return self.label


HELD = 1024
"""Elements of an axis beyond which a block hardly holds all that two products read."""
PIECE_SHARE = 12
"""The part of a configuration's seconds that one of a piece has: a large program has many."""
PIECE_GRAPHS = 4
"""The part of its graphs."""


def of_piece(effort: Effort, budget: Budget) -> tuple[Effort, Budget]:
    """What a configuration of one piece of several may take."""
    pairs = replace(effort.pairs, kept=max(1, effort.pairs.kept // PIECE_GRAPHS))
    fewer = replace(effort, structures=max(1, effort.structures // PIECE_GRAPHS), pairs=pairs)
    return fewer, replace(budget, seconds=budget.seconds / PIECE_SHARE)


def configurations(prepared: Prepared, effort: Effort) -> tuple[Configuration, ...]:
    """Every configuration of a program at this effort, simplest first, loops over long axes before those over short
    ones, and before none where a block would hold all that two products read. Rows that only lie along the same data as
    what is folded are no loop's, and the grid's if they can be. They are independent of each other.

    Raises:
        SearchError: neither the program nor a cut of it can be expressed by the closure.
    """
    refused = why_refused(prepared, effort)
    if refused is not None:
        return _cut_up(prepared, effort, refused)
    alike = {*prepared.reduced}.difference(operator.axis for operator, _ in prepared.program)
    loops = [None, *sorted(prepared.reduced, key=lambda axis: (axis in alike, -prepared.axes[axis].extent))]
    chained = sum(operator.kind in HEAVY for operator, _ in prepared.program) > 1
    if chained and any(axis is not None and prepared.axes[axis].extent > HELD for axis in loops[:2]):
        loops[:2] = loops[1], None
    found: list[Configuration] = []
    for kernels in range(1, effort.kernels + 1):
        grids = last_grids(prepared) if kernels == 1 else _grids(prepared.reduced)
        for grid in sorted(grids, key=lambda grid: -len(alike.intersection(grid))):
            for loop in loops:
                found.append(Configuration(grid, loop, kernels, label(prepared, grid, loop, kernels)))
    if effort.kernels > 1 and effort.cuts:
        found += [_cutting(prepared, cut) for cut in cuts(prepared.graph, frozenset(), effort.pieces, effort.cuts)]
    elif effort.cuts and (apart := concatenations(prepared.graph)):  # whole axes may not fit shared memory
        found.append(_cutting(prepared, apart))
    if effort.cuts and len(prepared.graph.ops) == 1 and prepared.graph.ops[0].kind in HEAVY:
        found.append(_cutting(prepared, frozenset()))
    found.sort(key=lambda c: (min(c.kernels, 2), c.kernels > 1 and c.cut is None))
    return tuple(found)


def last_grids(prepared: Prepared) -> tuple[tuple[int, ...], ...]:
    """The reduced axes that the grid of the last kernel may split: those that all outputs have."""
    outputs = set(range(len(prepared.axes)))
    for axes in prepared.output_axes:
        outputs &= {axis for axis in axes if axis is not None}
    return _grids([axis for axis in prepared.reduced if axis in outputs])


def _grids(axes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(grid for count in range(min(MAX_GRID_DIMS, len(axes)) + 1) for grid in combinations(axes, count))


def why_refused(prepared: Prepared, effort: Effort) -> SearchError | None:
    """Why the program cannot be searched as a whole; None if it can."""
    if prepared.refused:
        return SearchError(prepared.refused)
    try:
        Semantics(prepared, effort.options)  # evaluates the program by the rules of the closure, or raises
    except SearchError as error:
        return error
    return None


def expressible(graph: KernelGraph, effort: Effort) -> bool:
    """Whether the closure can express a program."""
    return why_refused(prepare(graph), effort) is None


def _cut_up(prepared: Prepared, effort: Effort, refused: SearchError) -> tuple[Configuration, ...]:
    least = smallest_cut(prepared.graph, lambda graph: expressible(graph, effort))
    made = pieces(prepared.graph, least)
    within = [piece for piece in made if expressible(piece.graph, effort)]
    if not within or not all(piece in within or piece.in_library for piece in made):
        raise refused
    found = cuts(prepared.graph, least, max(effort.pieces, len(made) + 1), effort.cuts)
    whole = sorted((_cutting(prepared, cut) for cut in found), key=lambda c: c.kernels)
    soon = [replace(c, single=True, label=f"{c.label}; one kernel each") for c in whole[:1] if effort.kernels > 1]
    return (*soon, *whole)


def _cutting(prepared: Prepared, cut: Cut) -> Configuration:
    count = len(pieces(prepared.graph, cut))
    stored = ", ".join(f"%{value}" for value in sorted(cut)) or "nothing"
    label = f"{count} pieces; {stored} between them" if count > 1 else "a pre-defined operator"
    return Configuration((), None, count, label, tuple(sorted(cut)))


def label(prepared: Prepared, grid: Sequence[int], loop: int | None, kernels: int = 1) -> str:
    """What a configuration with these roles of axes is called."""
    names = [axis.name for axis in prepared.axes]
    parts = [f"{kernels} kernel{'s' if kernels > 1 else ''}"]
    parts.append(f"grid over {', '.join(names[axis] for axis in grid)}" if grid else "free axes on the grid")
    parts.append(f"loop over {names[loop]}" if loop is not None else "no loop")
    return "; ".join(parts)
