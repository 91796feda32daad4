"""Where a kernel that started early waits for the one in front.

In: the steps of a block plan in the order in which they are written, the kernel's `Overlap`. Out: one
`grid_dependency_wait()` in front of the first step that may not be early. Invariant: no thread that computes
reads what an earlier launch writes, or stores to device memory, before that line.
"""

from __future__ import annotations

from collections.abc import Iterable

from mirage_nb.codegen.reader import Scope
from mirage_nb.codegen.writer import Writer
from mirage_nb.ir import InIterAttrs
from mirage_nb.optimize.overlap import Overlap
from mirage_nb.tile.placement import Place, Step, StepKind


class Dependence:
    """What one kernel still has to wait for."""

    def __init__(self, out: Writer, scope: Scope, overlap: Overlap) -> None:
        self.out, self.scope = out, scope
        self.written = overlap.written if overlap.behind else frozenset[int]()
        self.ahead, self.again = overlap.ahead, overlap.again
        self.pending = overlap.behind

    def begin(self) -> None:
        """The next kernel may come as soon as every block of this one has begun: it waits for itself."""
        if self.ahead:
            self.out.line("grid_dependency_launch();")

    def before(self, steps: Iterable[Step]) -> None:
        """Wait, if one of the steps that follow has to and nothing has waited yet."""
        if self.pending and any(self.late(step) for step in steps):
            self.wait()

    def wait(self) -> None:
        """Wait, once."""
        if self.pending:
            self.out.line("grid_dependency_wait();")
        self.pending = False

    def between(self, steps: Iterable[Step]) -> bool:
        """Whether nothing has waited yet, and some of the steps have to and others do not."""
        return self.pending and len({self.late(step) for step in steps}) > 1

    def late(self, step: Step) -> bool:
        """Whether a step stores to device memory, or reads there what an earlier launch writes."""
        op = self.scope.block.ops[step.op]
        if step.kind is StepKind.SAVE:
            return True
        if isinstance(op.attrs, InIterAttrs):
            return op.attrs.arg in self.written
        return any(self._reads_late(v) for v in op.inputs)

    def _reads_late(self, value: int) -> bool:
        op = self.scope.ops[value]
        match self.scope.plan.places[value]:
            case Place.DEVICE:
                return isinstance(op.attrs, InIterAttrs) and op.attrs.arg in self.written
            case Place.SHARED | Place.LITERAL | Place.COUNTED:
                return False
            case _:
                return any(self._reads_late(v) for v in op.inputs)
