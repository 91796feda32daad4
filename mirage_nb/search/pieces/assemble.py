"""Assemble muGraphs of many kernels from the pieces of a program, and give structures of all kinds their sizes.

In: an assembly (the pieces of a cut, a structure for each), a target. Out: concrete muGraphs, and the small pair
for field trials. A piece is computed by a structure of its own program, or, if it is one operator on stored
tensors, by a pre-defined kernel. Invariant: an assembly computes the program because every part computes its
piece; that is also what its small pair says, side by side for all parts (paper section 2).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.search.axes import Prepared
from mirage_nb.search.limits import NO_LIMITS, Limits
from mirage_nb.search.pieces.piece import Piece
from mirage_nb.search.sizes import instantiate
from mirage_nb.search.sizes.drafts import Draft, Instance
from mirage_nb.search.sizes.written import written_cost
from mirage_nb.search.structure import Structure
from mirage_nb.targets import Target

PER_PART = 4
"""Instances of a part that are combined with those of the others."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece and what computes it: a structure over the axes of `prepared`, or pre-defined operators (None)."""

    piece: Piece
    prepared: Prepared
    structure: Structure | None

    @property
    def operators(self) -> int:
        """Operators of its kernels; a pre-defined kernel is one."""
        return 1 if self.structure is None else self.structure.operators


@dataclass(frozen=True, slots=True)
class Assembly(Structure):
    """A muGraph without sizes whose kernels compute the pieces of a cut; `kernels` are the generated ones."""

    parts: tuple[Part, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Assembly:
        """The assembly of these parts, in launch order."""
        kernels = tuple(kernel for part in parts if part.structure is not None for kernel in part.structure.kernels)
        return cls(kernels, (), tuple(parts))

    @property
    def alone(self) -> Part | None:
        """The part that has a structure, where no other one has."""
        found = [part for part in self.parts if part.structure is not None]
        return found[0] if len(found) == 1 else None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """What the parts compute."""
        return tuple(part.piece for part in self.parts)

    @property
    def operators(self) -> int:
        """Operators of all kernels."""
        return sum(part.operators for part in self.parts)

    @property
    def launches(self) -> int:
        """Kernels, pre-defined ones included."""
        return len(self.kernels) + sum(part.structure is None for part in self.parts)

    @property
    def can_be_tried(self) -> bool:
        """Whether some part has a small pair; a pre-defined operator without axes has none."""
        return any(not part.prepared.refused for part in self.parts)


def hanging_over(structure: Structure, prepared: Prepared) -> Prepared | None:
    """What has the axes over whose ends tiles may hang that are summed, too: the program, or the part of an assembly
    that is `alone`."""
    if not isinstance(structure, Assembly):
        return prepared
    return structure.alone.prepared if structure.alone is not None else None


def instances(
    structure: Structure,
    prepared: Prepared,
    target: Target,
    limit: int,
    overhang: frozenset[int] | None = None,
    limits: Limits = NO_LIMITS,
) -> list[Instance]:
    """At most `limit` instances, best estimate first: diverse for one program, the fastest parts for an assembly.

    overhang: the axes over whose ends tiles may hang, in an assembly those of the part that is `alone`; default, and in
    other assemblies: free ones with poor divisors.
    limits: what a user allows.
    """
    return [draft.made() for draft in drafts(structure, prepared, target, limit, overhang, limits)]


def drafts(
    structure: Structure,
    prepared: Prepared,
    target: Target,
    limit: int,
    overhang: frozenset[int] | None = None,
    limits: Limits = NO_LIMITS,
) -> list[Draft]:
    """The same, before their muGraphs are made."""
    if not isinstance(structure, Assembly):
        return instantiate.drafts(structure, prepared, target, limit, overhang, limits)
    alone, most = structure.alone, min(limit, PER_PART)
    hanging = [overhang if part is alone else None for part in structure.parts]
    found = [part_instances(*one, target, most, limits) for one in zip(structure.parts, hanging, strict=True)]
    chosen = cheapest([[instance.cost.us for instance in part] for part in found], limit)
    picked = ([part[i] for part, i in zip(found, pick, strict=True)] for pick in chosen)
    made = [_whole(prepared, structure, parts, target) for parts in picked]
    return sorted(map(Draft.of, made), key=lambda draft: draft.cost.us)


def part_instances(
    part: Part, overhang: frozenset[int] | None, target: Target, limit: int, limits: Limits = NO_LIMITS
) -> list[Instance]:
    """The instances of one part, best estimate first; overhang: as of `instances`."""
    return [draft.made() for draft in part_drafts(part, target, limit, limits, overhang)]


def part_drafts(
    part: Part, target: Target, limit: int, limits: Limits = NO_LIMITS, overhang: frozenset[int] | None = None
) -> list[Draft]:
    """The same, before their muGraphs are made."""
    if part.structure is None:
        return [Draft.of(Instance({}, part.piece.graph, written_cost(part.piece.graph, target)))]
    return instantiate.drafts(part.structure, part.prepared, target, limit, overhang, limits)


def sized(structure: Structure, prepared: Prepared, target: Target, sizes: Mapping[str, int]) -> Instance | None:
    """The instance with these sizes, named as in `Instance.sizes`; None if the structure has no such instance."""
    if not isinstance(structure, Assembly):
        return instantiate.sized(structure, prepared, target, sizes)
    chosen: list[Instance] = []
    for part, mine in sizes_of_parts(structure, sizes):
        found = (
            part_instances(part, None, target, 1)[0]
            if part.structure is None
            else instantiate.sized(part.structure, part.prepared, target, mine)
        )
        if found is None:
            return None
        chosen.append(found)
    made = _whole(prepared, structure, chosen, target)
    return made if len(made.sizes) == len(sizes) else None


def sizes_of_parts(assembly: Assembly, sizes: Mapping[str, int]) -> Iterator[tuple[Part, dict[str, int]]]:
    """The parts of an assembly, each with its share of the sizes of an instance."""
    for number, part in enumerate(assembly.parts):
        prefix = f"P{number + 1} "
        yield part, {name.removeprefix(prefix): n for name, n in sizes.items() if name.startswith(prefix)}


def cheapest(costs: Sequence[Sequence[float]], limit: int) -> Iterator[tuple[int, ...]]:
    """One index from each ascending list: at most `limit` combinations, the smallest sums first."""
    if not all(costs):
        return
    start = (0,) * len(costs)
    heap = [(sum(row[0] for row in costs), start)]
    seen = {start}
    while heap and limit > 0:
        total, pick = heapq.heappop(heap)
        yield pick
        limit -= 1
        for position, index in enumerate(pick):
            moved = (*pick[:position], index + 1, *pick[position + 1 :])
            if index + 1 < len(costs[position]) and moved not in seen:
                seen.add(moved)
                heapq.heappush(heap, (total - costs[position][index] + costs[position][index + 1], moved))


def tiny(
    prepared: Prepared, structure: Structure, overhanging: frozenset[int] = frozenset()
) -> tuple[KernelGraph, KernelGraph]:
    """The program and the muGraph with every axis small; for an assembly, those of all its parts side by side.

    Pre-defined operators, which stand for themselves on both sides, are left out beside others. Tiles hang over the
    ends of these axes, in an assembly of those of the part that is `alone`, else of all free axes of its parts that
    have such a number.
    """
    if not isinstance(structure, Assembly):
        return instantiate.tiny(prepared, structure, overhanging)
    return tiny_parts(structure, overhanging)


def tiny_parts(assembly: Assembly, overhanging: frozenset[int] = frozenset()) -> tuple[KernelGraph, KernelGraph]:
    """The same of an assembly alone; parts that are the same stand there once."""
    pairs: dict[tuple[KernelGraph, KernelGraph], None] = {}
    for part in assembly.parts:
        if part.structure is not None:
            hanging = overhanging if part is assembly.alone else overhanging.intersection(part.prepared.free)
            pairs[instantiate.tiny(part.prepared, part.structure, hanging)] = None
    if not pairs:
        able = [part.prepared for part in assembly.parts if not part.prepared.refused]
        alone = [instantiate.small_program(prepared, instantiate.tiny_extents(prepared)) for prepared in able]
        pairs = dict.fromkeys((small, small) for small in alone)
    first, second = zip(*pairs, strict=True)
    return beside(first), beside(second)


def beside(graphs: Sequence[KernelGraph]) -> KernelGraph:
    """Several programs as one; names get the number of their program."""
    inputs = [replace(i, name=f"{i.name}_{number}") for number, graph in enumerate(graphs) for i in graph.inputs]
    made = KernelGraph.start(*inputs)
    outputs: list[int] = []
    first = 0
    for graph in graphs:
        behind = _inlined(made, graph, range(first, first + graph.input_count))
        made, outputs = behind.graph, [*outputs, *behind.places(graph.outputs)]
        first += graph.input_count
    return made.returning(tuple(outputs))


def _inlined(made: KernelGraph, graph: KernelGraph, operands: Sequence[int]) -> Rewrite[KernelGraph]:
    """`made` with the operators of `graph` on these values behind it."""
    behind = Rewrite(made, dict(enumerate(operands)))
    for op, values in graph.definitions():
        behind.copy(op, values)
    return behind


def _whole(prepared: Prepared, assembly: Assembly, chosen: Sequence[Instance], target: Target) -> Instance:
    made = joined(prepared.graph, assembly.pieces, chosen, target)
    return on_given(made, prepared.whole(made.graph), target)


def on_given(made: Instance, graph: KernelGraph, target: Target) -> Instance:
    """A muGraph on the inputs that were given, `graph`: where a library reads parts of these, they are copied."""
    taken = any(op.kind is OpKind.SLICE for op in graph.ops)
    return replace(made, graph=graph, cost=written_cost(graph, target) if taken else made.cost)


def joined(program: KernelGraph, pieces: Sequence[Piece], chosen: Sequence[Instance], target: Target) -> Instance:
    """A muGraph of the program from one of each piece, in launch order; outputs that are inputs stay what they are.

    Its cost is that of the whole: what generated kernels hand on to others travels in another type.
    """
    made = Rewrite(KernelGraph.start(*program.inputs))
    sizes: dict[str, int] = {}
    for number, (piece, instance) in enumerate(zip(pieces, chosen, strict=True)):
        behind = _inlined(made.graph, instance.graph, made.places(piece.reads))
        made.graph = behind.graph
        made.held.update(zip(piece.writes, behind.places(instance.graph.outputs), strict=True))
        sizes.update({f"P{number + 1} {name}": size for name, size in instance.sizes.items()})
    for op, values in program.definitions():
        if values[0] in program.outputs and values[0] not in made.held:  # no piece makes constants
            made.copy(op, values)
    graph = made.returning(program)
    overhanging = frozenset[int]().union(*(instance.overhanging for instance in chosen))
    return Instance(sizes, graph, written_cost(graph, target), overhanging)
