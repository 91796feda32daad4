"""Why the search has a muGraph or not: its values, walked through the rules of the closure.

In: a prepared program, an effort, and a muGraph of the same inputs (or the program itself). Out: text. Every
operator is applied by the closure to just the values that the muGraph applies it to, so what is said here is
what the search does; the walk ends at the first value that the search does not make, with the rule in the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product

from mirage_nb.ir import BlockGraph, KernelGraph, OpKind
from mirage_nb.ir.text import Lines
from mirage_nb.search.axes import Prepared
from mirage_nb.search.explore import semantics_for
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.search.space import EFFORTS, Budget, Effort, configurations, why_refused
from mirage_nb.search.switches import AXIOMS, PRUNINGS, WIDENING, Switches, switched
from mirage_nb.search.walk import Walk

MAX_ALIASES = 32
"""Ways to tell apart the roles of inputs that meet themselves."""
LAST = 6
"""Values of a program that are shown where nothing was found."""
NOTHING = "No fused muGraph was accepted; the program's own operators run without one."
HOPELESS = frozenset({"oracle", "merging"})
"""Without the oracle no search ends, and merging loses nothing."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a search came to that accepted no generated kernel.

    `structures`: muGraphs without sizes that were extracted; `refuted`, `undecided`: how many the verifier refuted, or
    could not judge; `unfit`: how many were verified, but have no sizes that fit the target; `reasons`: what was said
    of some of those; `reached`: bounds of the budget that kept something out; `left`: configurations that were not
    explored to their end.
    """

    structures: int = 0
    refuted: int = 0
    undecided: int = 0
    unfit: int = 0
    reasons: tuple[str, ...] = ()
    reached: frozenset[str] = frozenset()
    left: int = 0


def explain(prepared: Prepared, effort: Effort, graph: KernelGraph) -> str:
    """Where the search meets a muGraph of this program, or why it does not.

    Args:
        graph: a muGraph with the inputs of the program.

    Returns:
        One line for each value up to the first one that the search does not make, and what follows from that.
    """
    refused = why_refused(prepared, effort)
    if refused is not None:
        return Lines(f"The program as a whole is not searched, only its pieces: {refused}")
    graph = prepared.inner(graph)
    walk, semantics, notes = _walked(prepared, effort, graph)
    lines = [*walk.lines, walk.ended or _met(semantics, effort, walk)]
    if walk.ended:
        lines += [f"(in force: {note})" for note in notes]
        lines += _let_through(prepared, effort, graph, walk)
    return Lines("\n".join(lines))


def why_nothing(prepared: Prepared, effort: Effort, budget: Budget, tally: Tally) -> str:
    """For a search that accepted no generated kernel: the last values of the program on the way to one, what stood in
    the way, and what would let it through.
    """
    refused = why_refused(prepared, effort)
    if refused is not None:
        lines = [f"The program as a whole is not searched, only its pieces: {refused}"]
    else:
        walk, _, notes = _walked(prepared, effort, prepared.graph)
        operators = sum(not operator.is_leaf for operator, _ in prepared.program)
        lines = [f"The last values of the program ({operators} operators) that the search makes:", *walk.lines[-LAST:]]
        if walk.ended:
            lines += [walk.ended, *(f"(in force: {note})" for note in notes)]
            lines += _let_through(prepared, effort, prepared.graph, walk)
        elif not tally.structures:
            lines.append(f"The search makes all of its values, but {_what_is_missing(budget, tally, walk)}")
    against = _spoken_against(tally, prepared)
    return "\n".join([NOTHING, *lines, *against, *_bounds_reached(budget, tally), *_larger(effort)])


def _what_is_missing(budget: Budget, tally: Tally, walk: Walk) -> str:
    if "max_block_ops" in tally.reached:
        return f"no kernel of at most {budget.max_block_ops} operators has them all; the program has {walk.operators}."
    if tally.reached or tally.left:
        return "it did not come to a graph of them."
    return "no configuration has a graph that reads its inputs as the configuration splits them."


def _spoken_against(tally: Tally, prepared: Prepared) -> list[str]:
    """What became of the muGraphs that were found."""
    lines = []
    if tally.structures:
        lines.append(f"muGraphs without sizes that were found: {tally.structures}")
    if tally.refuted:
        lines.append(f"  refuted: {tally.refuted}")
    if tally.undecided:
        lines.append(f"  neither refuted nor proved, so nobody may rely on them: {tally.undecided}")
    if tally.unfit:
        lines.append(f"  verified, but none of their tiles fits the target's shared memory: {tally.unfit}")
        whole = [f"{prepared.axes[join.whole].name} ({prepared.axes[join.whole].extent})" for join in prepared.joins]
        if whole:
            lines.append(f"  every tile has all of what concatenations join: {', '.join(whole)} parts of equal size")
    return lines + [f"  {reason}" for reason in tally.reasons]


def _bounds_reached(budget: Budget, tally: Tally) -> list[str]:
    """The bounds that kept something out, and how to raise them."""
    raised = {
        "max_block_ops": ("operators of a kernel", "max_block_ops", 2 * budget.max_block_ops),
        "max_values": ("values of a closure", "max_values", 4 * budget.max_values),
        "seconds": ("seconds for a configuration", "configuration_seconds", 4 * budget.seconds),
    }
    lines = []
    for bound, (what, argument, value) in raised.items():
        if bound in tally.reached:
            lines.append(f"A limit kept something out: {getattr(budget, bound):g} {what}. extend({argument}={value:g})")
    if tally.left:
        lines.append(f"{tally.left} configurations were not explored to their end: extend() goes on with them")
    return lines


def _larger(effort: Effort) -> list[str]:
    """What the next larger effort has more of."""
    names = list(EFFORTS)
    after = names[names.index(effort.name) + 1 :][:1]
    return [
        f"A larger effort has more: extend(effort={name!r}), with {larger.kernels} kernels searched as one, programs "
        f"in up to {larger.pieces} pieces, and graphs of {larger.extra} operators above the smallest"
        for name in after
        for larger in (EFFORTS[name],)
    ]


def _walked(prepared: Prepared, effort: Effort, graph: KernelGraph) -> tuple[Walk, Semantics, list[str]]:
    """The walk that comes farthest, whichever aliases of its inputs the muGraph reads."""
    semantics, notes = semantics_for(prepared, effort)
    walks = []
    for picks in islice(_picks(prepared, graph), MAX_ALIASES):
        walk = Walk(semantics, effort, graph, picks)
        walk.run()
        walks.append(walk)
        if not walk.ended:
            break
    return max(walks, key=lambda walk: (not walk.ended, len(walk.lines))), semantics, notes


def _let_through(prepared: Prepared, effort: Effort, graph: KernelGraph, ended: Walk) -> list[str]:
    """Each switch with which the search makes the value at which a walk ended."""
    found = []
    state = switched(effort)
    for what, known in (("axioms", AXIOMS), ("prunings", PRUNINGS)):
        for name in known:
            wanted = name in WIDENING if what == "prunings" else True
            if state[name] == wanted or name in HOPELESS:
                continue
            switch = {name: wanted}
            switches = Switches.of(switch, None) if what == "axioms" else Switches.of(None, switch)
            walk, _, _ = _walked(prepared, switches.applied(effort), graph)
            if not walk.ended or len(walk.lines) > len(ended.lines):
                verb = "on" if wanted else "off"
                found.append(f"It would be let through with {name} switched {verb}: {what}={{{name!r}: {wanted}}}")
    return found


def _picks(prepared: Prepared, graph: KernelGraph) -> Iterator[tuple[int, ...]]:
    """Which alias of its input every iterator reads, where an input has several; in every combination."""
    most = max(Counter(tensor.input for tensor in prepared.tensors).values(), default=1)
    blocks = [op.body for op in graph.ops if isinstance(op.body, BlockGraph)]
    reads = sum(op.kind is OpKind.IN_ITER for block in blocks for op in block.ops) if most > 1 else 0
    yield from product(range(most), repeat=reads)


def _met(semantics: Semantics, effort: Effort, walk: Walk) -> str:
    """What is left to say of a muGraph whose values the search makes."""
    kernels = walk.labels
    known = {c.label for c in configurations(semantics.prepared, effort)}
    said = f"The search makes all of its values; it has {walk.operators} operators. "
    if len(kernels) == 1:
        if walk.labels[0] not in known:
            return said + f"No configuration of this effort is '{walk.labels[0]}': only axes of all outputs are split."
        return said + (
            f"It is among the graphs of '{walk.labels[0]}', unless smaller ones fill the limits: at most "
            f"{effort.extra + len({*semantics.prepared.outputs}) - 1} operators above the smallest graph, "
            f"{effort.structures} graphs."
        )
    if len(kernels) == 2 and effort.kernels > 1 and not walk.splits_late:
        return said + (
            f"Two kernels are searched: at most {effort.extra} operators above the smallest second kernel, and a "
            f"few first kernels for each set of tensors between."
        )
    if walk.between <= walk.of_program:
        return said + f"Its kernels compute pieces of the program: found if {len(kernels)} <= {effort.pieces} kernels."
    return said + (
        "It has more kernels than are searched together, or splits an axis in a later kernel that is summed there, and "
        "stores what is no value of the program: no configuration has it."
    )
