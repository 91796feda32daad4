"""The programs of planned muGraphs that are no tile programs."""

from __future__ import annotations

from mirage_nb.optimize.access import Scope
from mirage_nb.optimize.plan import Plan
from mirage_nb.optimize.resident_program import resident_program
from mirage_nb.optimize.staged_program import staged_program
from mirage_nb.tile.resident.program import ResidentProgram
from mirage_nb.tile.staged.program import StagedProgram


def programs(planned: Plan) -> dict[int, StagedProgram]:
    """The staged programs of a plan, by operator."""
    return {index: made for index, made in blocks(planned).items() if isinstance(made, StagedProgram)}


def blocks(planned: Plan) -> dict[int, StagedProgram | ResidentProgram]:
    """The same with those of blocks that hold their tiles in registers."""
    graph, found = planned.graph, dict[int, StagedProgram | ResidentProgram]()
    literals = graph.uniform()
    for index, (op, values) in enumerate(graph.definitions()):
        block = planned.kernels[index]
        if block is None or block.program is not None:
            continue
        seen = {i: planned.windows[v] for i, v in enumerate(op.inputs) if v in planned.windows}
        known = {i: literals[v] for i, v in enumerate(op.inputs) if v in literals}
        outputs, made = tuple(graph.types[v] for v in values), staged_program if block.staged else resident_program
        found[index] = made(Scope(block, known, windows=seen), planned.overlaps[index], outputs)
    return found
