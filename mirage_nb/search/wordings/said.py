"""A program as it is searched, which may be said otherwise than it was given.

In: a tensor program. Out: the same with its results put together last (`search.wordings.joined`), on parts of its
inputs (`search.wordings.parts`), in as few dimensions as say it (`search.wordings.coalesced`); and muGraphs of that
with the inputs and outputs of the program that was given, or the reverse.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mirage_nb.ir import KernelGraph
from mirage_nb.search.wordings.coalesced import Gap, coalesced, restored
from mirage_nb.search.wordings.joined import joined_last
from mirage_nb.search.wordings.parts import Parts, parts


@dataclass(frozen=True, slots=True)
class Said:
    """`program` says what `given` says, on parts of its inputs if it takes some."""

    given: KernelGraph
    program: KernelGraph
    parts: Parts | None = None

    @classmethod
    def of(cls, given: KernelGraph, apart: Collection[Gap] = ()) -> Said:
        """A program said otherwise, if it can be; apart: as of `coalesced`."""
        joined = joined_last(given)
        found = parts(joined)
        if found is None:
            return cls(given, coalesced(joined, apart))
        more = {(n, dim) for n, (value, _) in enumerate(found.taken) for of, dim in apart if of == value}
        return cls(given, coalesced(found.program, found.apart | more), found)

    def whole(self, graph: KernelGraph) -> KernelGraph:
        """A muGraph of `program` as one of `given`."""
        if self.parts is None:
            return restored(graph, self.given)
        return self.parts.whole(restored(graph, self.parts.program))

    def inner(self, graph: KernelGraph) -> KernelGraph:
        """A muGraph of `given` as one of `program`; one that is of another program as it is."""
        mine = self.given
        if self.parts is not None:
            graph, mine = self.parts.inner(graph), self.parts.program
        same = graph.inputs == mine.inputs and graph.output_types == mine.output_types
        return restored(graph, self.program) if same else graph
