"""Finalists without a GPU: executed on the CPU edition, best estimate first, until one is right.

In: the passes of a session. Out: a winner, if anything runs at all on this machine. Invariant: whatever is wrong with
the muGraphs that were found, the program's own operators are executed in the end; where time is short, before them; and
where that cannot be, one by one at smaller extents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from mirage_nb.codegen import default_options, emit
from mirage_nb.errors import CompileError, MirageError, MissingPartError, SearchError
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.runtime.contest.confirm import Confirmation
from mirage_nb.runtime.contest.trial import RAN, draw_ahead, hard_drawn, try_on_cpu
from mirage_nb.runtime.contest.winner import ALONE, Origin, PoorResult, Winner
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.runtime.picked import operators_alone
from mirage_nb.search.pieces.piece import HEAVY
from mirage_nb.search.session.crew import Stopped
from mirage_nb.search.session.progress import Candidate
from mirage_nb.verify.reals.unread import is_spoilt, tables

if TYPE_CHECKING:
    from mirage_nb.runtime.passes import Passes

T = TypeVar("T")

FINALISTS = 4
"""How many generated muGraphs may be tried until one was executed correctly."""
ESTIMATE_US = 300.0
"""The CPU edition takes about 0.2 s for every microsecond that the cost model estimates for a GPU."""
NUMPY_OPERATIONS = 2e11
"""Operations of a program that NumPy computes within about a minute."""
AT_ONCE = 1e9
"""What it computes in less time than a worker takes to start."""
ELEMENT = 200.0
"""Operations of a product that take as long as one element of a value: making it, and what its rounding may do."""
AT_ONCE_US = 20.0
"""The same of generated kernels, by their estimates."""


def meanwhile(passes: Passes) -> None:
    """What the passes of a session without a GPU can do while workers search; called in the supervising thread."""
    if passes.gpu is None:
        WithoutGpu(passes, passes.search.snapshot().baseline).begin()
        passes.stage = ""


def here(function: Callable[..., T], *args: Any, seconds: float = 0.0) -> T:
    """The call of a function by this thread."""
    return function(*args)


class WithoutGpu:
    """The finalists of one session."""

    def __init__(self, passes: Passes, baseline: Candidate | None) -> None:
        self._passes, self._search = passes, passes.search
        self._own = baseline
        self._poor: set[frozenset[str]] = set()
        self._nothing_compiles = False

    def begin(self) -> None:
        """While others search, where time is limited: the program's own operators, and the inputs for all finalists; of
        a large program another process draws these."""
        count = operations(self._search.program)
        if self._search.left < math.inf and AT_ONCE < count <= NUMPY_OPERATIONS:
            self._search.begin_beside(draw_ahead, self._search.program, self._passes.sample_seed)
        if self._search.left == math.inf or count > AT_ONCE:
            return
        if self._own is not None and self._own.digest not in self._passes.winners:
            self._executed(self._own)
        hard_drawn(self._search.program, self._passes.sample_seed)

    def run(self, pinned: Sequence[Candidate], ranked: Sequence[Candidate]) -> None:
        """Execute until one is right."""
        if self._own is not None and self._search.left < math.inf and self._own.digest not in self._passes.winners:
            self._executed(self._own)
        for candidate in self._in_turn(pinned, ranked):
            known = self._passes.winners
            if candidate.digest in known and candidate is not self._own:
                return
            if self._search.left <= 0:
                self._search.tell(f"{candidate.digest[:8]}: not executed, the budget is over; build() does it")
                return
            if candidate.digest not in known and self._executed(candidate) and self._kept(candidate):
                return

    def _kept(self, candidate: Candidate) -> bool:
        """Whether a candidate that ran is verified, too, and its kernels compile for the card."""
        if not Confirmation(self._passes).learn([self._passes.winners[candidate.digest]]):
            return False
        winner = self._passes.winners[candidate.digest]
        if winner.cubin is not None or self._search.left == math.inf:
            return True
        try:
            if self._search.left <= 0:
                raise SearchError("not compiled, the budget is over; build() does it")
            cubin = self._passes.cubin_of(candidate, winner.emitted, self._search.call)
            self._passes.keep(replace(winner, cubin=cubin))
        except CompileError as error:
            self._passes.set_aside(candidate, error)
            return False
        except Stopped:
            raise
        except SearchError as error:
            self._search.tell(f"{candidate.digest[:8]}: {error}")
        return True

    def _in_turn(self, pinned: Sequence[Candidate], ranked: Sequence[Candidate]) -> Iterator[Candidate]:
        """What to try next, as long as nothing was right; muGraphs that compute alike are poor alike, and those that
        read tables otherwise than by lookups as the program has them."""
        others = [c for c in ranked if c not in pinned and c != self._own]
        if tables(self._search.program):
            others.sort(key=lambda c: is_spoilt(self._search.program, c.graph))
        waiting = [*pinned, *others]
        tried = 0
        while waiting:
            chosen = next((c for c in waiting if c.kinds not in self._poor), waiting[0])
            waiting.remove(chosen)
            generated = is_generated(chosen.graph)
            if generated and (tried == FINALISTS and chosen not in pinned):
                continue
            tried += generated
            yield chosen
        if self._own is not None:
            yield self._own

    def at_least(self) -> None:
        """Where nothing was right, the program's own operators, unless these are wrong: each alone at small extents,
        which takes a moment whatever the program's are."""
        own, target = self._own, self._search.target
        if self._passes.winners or own is None or own.digest not in {c.digest for c in self._search.candidates()}:
            return
        options, seed = replace(default_options(target), library=0), self._passes.sample_seed
        try:
            emitted = [emit(alone, target, options) for alone in operators_alone(own.graph)]
            outcomes = [RAN, *(try_on_cpu(e.graph, e, seed) for e in emitted)]
            worst = max(outcomes, key=lambda found: (not found.report.ok, found.report.relative_error))
            whole = emit(own.graph, target, options)
            origin = Origin(self._search.name, own.graph, target)
            winner = Winner.judged(own, whole, CpuExecutable(whole), None, worst, origin)
            self._passes.keep(replace(winner, candidate=replace(winner.candidate, executed_on=ALONE)))
        except MirageError as error:
            self._passes.set_aside(own, error)

    def _executed(self, candidate: Candidate) -> bool:
        if not self._soon(candidate):
            return False
        if self._nothing_compiles and is_generated(candidate.graph):
            return False
        try:
            soon = self._search.left < math.inf and candidate.estimate_us <= AT_ONCE_US
            at_once = operations(self._search.program) <= AT_ONCE and (soon or not is_generated(candidate.graph))
            self._passes.built(candidate, here if at_once else self._search.call, self._search.left)
        except MissingPartError as error:  # what needs no compiler runs all the same
            self._nothing_compiles = True
            self._search.tell(f"no generated kernel was executed: {error}")
            return False
        except Stopped:
            raise
        except MirageError as error:
            if isinstance(error, PoorResult):
                self._poor.add(candidate.kinds)
            self._passes.set_aside(candidate, error)
            return False
        return True

    def _soon(self, candidate: Candidate) -> bool:
        """Whether it can be executed soon; says so where it cannot."""
        if not is_generated(candidate.graph):
            if operations(candidate.graph) <= NUMPY_OPERATIONS:
                return True
            why = "too large for NumPy on this machine"
        elif candidate.estimate_us <= ESTIMATE_US:
            return True
        else:
            shown = f"estimated at {candidate.estimate_us:.0f} us on the {self._search.target.name}"
            why = f"too long for the CPU edition ({shown})"
        self._search.tell(f"{candidate.digest[:8]}: not executed, {why}")
        return False


def is_generated(graph: KernelGraph) -> bool:
    """Whether any kernel of a muGraph is a generated one."""
    return any(op.kind is OpKind.GRAPH for op in graph.ops)


def operations(graph: KernelGraph) -> float:
    """Additions and multiplications of products, and elements of all values as so many of them."""
    total = 0.0
    for op, values in graph.definitions():
        depth = sum(graph.types[v].shape[-1] for v in op.inputs[: len(op.inputs) // 2]) if op.kind in HEAVY else 0
        total += (2.0 * depth + ELEMENT) * sum(graph.types[v].elements for v in values)
    return total
