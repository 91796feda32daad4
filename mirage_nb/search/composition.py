"""The program without a search: its own operators, and library products with everything between them fused.

In: a tensor program, a target. Out: an instance of its operators, each a pre-defined kernel, and a `Composition` in
which every product is a library's and the operators between products are as few generated kernels as pay, each the
operators of its piece as they stand. Nothing is explored, so both are there within milliseconds: whatever a search
finds or does not find, there is something that runs, and nothing is called the best that is slower than it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.search.assemble import Assembly, Part, joined, part_drafts, part_instances, tiny_parts
from mirage_nb.search.axes import Prepared, prepare
from mirage_nb.search.limits import NO_LIMITS, Limits
from mirage_nb.search.partition import COMPOSED, partition
from mirage_nb.search.pieces import HEAVY, Piece
from mirage_nb.search.saturation.values import POST
from mirage_nb.search.sizes.instantiate import Instance
from mirage_nb.search.sizes.written import written_cost
from mirage_nb.search.structure import KernelStructure, Source, Step, Structure
from mirage_nb.targets import Target

OWN_OPERATORS = "the program's own operators"
LIBRARY_AND_FUSED = "library products, the rest fused"
PIECES = " pieces"
"""How the configuration of a muGraph ends that was made from the best ones of pieces, so many of them."""


def own_operators(program: KernelGraph, target: Target) -> Instance:
    """The program itself: every operator is a pre-defined kernel."""
    return Instance({}, program, written_cost(program, target))


@dataclass(frozen=True, slots=True)
class Composition:
    """A muGraph that nobody searched for: its parts, the instance that is estimated best, and its small pair."""

    assembly: Assembly
    instance: Instance
    small: tuple[KernelGraph, KernelGraph]


def library_and_fused(
    program: KernelGraph, target: Target, limits: Limits = NO_LIMITS, seed: int = 0
) -> Composition | None:
    """Library products and generated kernels between them; None where no operators can be joined to a kernel."""
    parts = [_computed(piece, target, limits, seed) for piece in partition(program, target, COMPOSED)]
    if all(part.structure is None for part in parts):
        return None
    assembly = Assembly.of(parts)
    chosen = [part_instances(part, target, 1, limits)[0] for part in parts]
    instance = joined(program, assembly.pieces, chosen, target)
    return Composition(assembly, instance, tiny_parts(assembly, instance.overhanging))


def _computed(piece: Piece, target: Target, limits: Limits, seed: int) -> Part:
    """What computes a piece: a library its product, one kernel anything else that fits one."""
    prepared = prepare(piece.graph, seed=seed)
    simple = bool(piece.reads) and not prepared.refused and len({*prepared.outputs}) == len(prepared.outputs)
    if simple and not any(op.kind in HEAVY for op in piece.graph.ops):
        fused = Part(piece, prepared, as_they_stand(prepared))
        if part_drafts(fused, target, 1, limits):
            return fused
    return Part(piece, prepared, None)


def as_they_stand(prepared: Prepared) -> Structure:
    """One kernel without a loop that does what the program says, all of its operators in their order."""
    steps = []
    for (operator, args), axes in zip(prepared.program, prepared.spans, strict=True):
        source = Source(operator.leaf) if operator.kind is OpKind.IN_ITER else None
        steps.append(Step(operator, args, prepared.type_of(axes), POST, source))
    kernel = KernelStructure(tuple(steps), prepared.outputs, (), None)
    return Structure((kernel,), tuple(Source(number, 0) for number in range(len(prepared.outputs))))
