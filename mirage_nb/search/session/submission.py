"""A user's own muGraph as a candidate like those that the search finds.

In: the program, a muGraph in any of its written forms, a target. Out: a verified `Candidate`. Invariant: nothing
gets in that is not legal, does not fit the target, or was not verified against the program at its own shape.
"""

from __future__ import annotations

from mirage_nb.errors import FormatError, VerificationError
from mirage_nb.ir import OPS, KernelGraph, Op, OpKind, Trait
from mirage_nb.ir.legality import check
from mirage_nb.search.composition import with_running_sums
from mirage_nb.search.session.progress import Candidate
from mirage_nb.search.sizes.drafts import Instance
from mirage_nb.search.sizes.written import written_cost
from mirage_nb.targets import Target
from mirage_nb.tile.rules.held import holds
from mirage_nb.verify.fields.drawn import is_small
from mirage_nb.verify.files import describe, read_graph
from mirage_nb.verify.proof import verify_and_prove
from mirage_nb.verify.reals.twice import computed_once
from mirage_nb.verify.trials import TRIALS, verify
from mirage_nb.verify.verdict import Verdict, VerdictKind

CONFIGURATION = "submitted"
MAX_ELEMENTS = 2**26
"""Elements of all tensors of a program that is tried at its real shape: a trial takes about 20 bytes for each."""


def submitted(program: KernelGraph, text: str | KernelGraph, target: Target) -> Candidate:
    """The muGraph in `text` (text form, JSON form, a tensor program, or the muGraph itself) as a candidate.

    Outputs may come in any order and under any names. `estimate_us` is what the same muGraph is estimated to take
    when the search finds it.

    Raises:
        FormatError, ProgramSizeError: the text is no muGraph.
        GraphError: it breaks Definition 2.1, or does not fit the target.
        VerificationError: it has other inputs, it is refuted, or nobody can tell.
    """
    graph = read_legal(text, target)
    if graph.inputs != program.inputs:
        wanted = ", ".join(f"{i.name}: {i.type}" for i in program.inputs)
        raise VerificationError("its inputs are not those of the program", hint=f"they are {wanted}, in this order")
    if len(graph.outputs) != len(program.outputs):
        raise VerificationError(f"it has {len(graph.outputs)} outputs, the program has {len(program.outputs)}")
    elements = sum(t.elements for t in program.types)
    if elements > MAX_ELEMENTS:
        raise VerificationError(
            f"not verified: the program has {elements:,} elements, at most {MAX_ELEMENTS:,} can be tried",
            hint="submit it to a session of a smaller shape",
        )
    verdict = computed_once(_verdict(program, graph), program, graph)
    if verdict.kind is VerdictKind.REFUTED:
        raise VerificationError("it does not compute the program", hint=describe(verdict))
    if not verdict.accepted:
        raise VerificationError("it can be neither verified nor refuted", hint=describe(verdict))
    order = verdict.outputs or tuple(range(len(graph.outputs)))
    graph = graph.returning(tuple(graph.outputs[place] for place in order), program.output_names)
    instance = Instance({}, graph, written_cost(graph, target))
    return Candidate.of(instance, CONFIGURATION, sum(map(_operators, graph.ops)), verdict)


def _verdict(program: KernelGraph, graph: KernelGraph) -> Verdict:
    """The verdict at the program's own shape, where a trial may take seconds: of what is proved one is enough. Where
    nobody can tell, that on the program with running sums that it says as products as what they are, as searches find
    them."""
    verdict, proof = verify_and_prove(program, graph, permuted=True, trials=TRIALS if is_small(program) else 1)
    if verdict.accepted and proof is None and not is_small(program):
        verdict = verify(program, graph, permuted=True)
    if verdict.accepted or verdict.kind is VerdictKind.REFUTED:
        return verdict
    said, pairs = with_running_sums(program)
    if not pairs or not all(verify(*pair).accepted for pair in pairs):
        return verdict
    other, _ = verify_and_prove(said, graph, permuted=True)
    return other if other.accepted else verdict


def read_legal(text: str | KernelGraph, target: Target | None = None) -> KernelGraph:
    """The muGraph in a text, or itself. Raises FormatError, ProgramSizeError, GraphError."""
    if not isinstance(text, str | KernelGraph):
        raise FormatError(
            f"a muGraph or its text is wanted, not a {type(text).__name__}",
            hint="print_graph(muGraph) writes the text; a program is given as its text",
        )
    graph = text if isinstance(text, KernelGraph) else read_graph(text)
    check(graph, target, holds)
    return graph


def _operators(op: Op) -> int:
    """Operators that compute, iterators, constants and views apart, as the search counts them."""
    if op.body is not None:
        return sum(map(_operators, op.body.ops))
    structural = op.kind in (OpKind.IN_ITER, OpKind.OUT_SAVER, OpKind.CONST)
    return int(not structural and Trait.VIEW not in OPS[op.kind].traits)
