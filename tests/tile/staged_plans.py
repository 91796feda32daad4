"""The staged programs of planned muGraphs."""

from __future__ import annotations

from mirage_nb.optimize.access import Scope
from mirage_nb.optimize.plan import Plan
from mirage_nb.optimize.staged_program import staged_program
from mirage_nb.tile.staged import StagedProgram


def programs(planned: Plan) -> dict[int, StagedProgram]:
    """The staged programs of a plan, by operator."""
    graph, found = planned.graph, {}
    literals = graph.uniform()
    for index, (op, values) in enumerate(graph.definitions()):
        block = planned.kernels[index]
        if block is None or block.staged is None:
            continue
        seen = {i: planned.windows[v] for i, v in enumerate(op.inputs) if v in planned.windows}
        known = {i: literals[v] for i, v in enumerate(op.inputs) if v in literals}
        outputs = tuple(graph.types[v] for v in values)
        found[index] = staged_program(Scope(block, known, windows=seen), planned.overlaps[index], outputs)
    return found
