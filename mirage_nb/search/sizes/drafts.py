"""Instances of a structure, before and behind their muGraphs, and what they are rewritten to.

In: instances. Out: the same with others beside them that `search.derive` makes of their muGraphs, each with its own
estimate. Invariant: what makes one of another makes the small muGraph of field trials of the other one's, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_nb.ir import KernelGraph
from mirage_nb.search.derive import InThreads
from mirage_nb.search.sizes.cost import Cost
from mirage_nb.search.sizes.written import written_cost
from mirage_nb.targets import Target
from mirage_nb.tile.rules.teams import RESERVED_BYTES


@dataclass(frozen=True, slots=True)
class Instance:
    """One concrete muGraph. `sizes` names its numbers: "grid m" blocks along axis m, "loop k" iterations.

    overhanging: the axes over whose ends tiles hang.
    """

    sizes: Mapping[str, int]
    graph: KernelGraph
    cost: Cost
    overhanging: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Draft:
    """An instance before its muGraph is made, which takes a hundred times longer than to estimate it.

    sizes, overhanging: as of `Instance`. rewritten: what makes the muGraph of the structure's own, at any sizes, those
    of field trials among them; None: it is that one.
    """

    sizes: Mapping[str, int]
    cost: Cost
    overhanging: frozenset[int]
    made: Callable[[], Instance]
    rewritten: Callable[[KernelGraph], KernelGraph] | None = None

    @classmethod
    def of(cls, instance: Instance) -> Draft:
        """The draft of what is made already."""
        return cls(instance.sizes, instance.cost, instance.overhanging, lambda: instance)


def rewritten(one: Instance, by: Callable[[KernelGraph], KernelGraph], target: Target) -> Iterator[Draft]:
    """The draft of what an instance is rewritten to, if that is another muGraph and fits."""
    graph = by(one.graph)
    if graph == one.graph:
        return
    cost = written_cost(graph, target)  # operands of two products may be there at once
    if cost.shared_memory + RESERVED_BYTES <= target.shared_per_block:
        yield replace(Draft.of(replace(one, graph=graph, cost=cost)), rewritten=by)


def with_threads(found: Sequence[Draft], target: Target) -> list[Draft]:
    """These drafts of one structure, best estimate first, and with them those whose small products threads compute,
    where that is estimated faster: the choice of products that is best for the first instance."""
    plain = [draft for draft in found if draft.rewritten is None]
    both = [*plain, *(draft for draft in found if draft.rewritten is not None)]
    if not plain:
        return both
    first = plain[0].made()
    made = [draft for by in InThreads.choices(first.graph) for draft in rewritten(first, by, target)]
    made.sort(key=lambda draft: draft.cost.us)
    for best in made[:1]:
        assert best.rewritten is not None
        others = ((one, draft) for one in plain[1:] for draft in rewritten(one.made(), best.rewritten, target))
        both += [draft for one, draft in [(plain[0], best), *others] if draft.cost.us < one.cost.us]
    return sorted(both, key=lambda draft: draft.cost.us)
