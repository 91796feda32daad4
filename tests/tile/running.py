"""Programs of all blocks side by side, beside what their block graphs save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from mirage_nb.errors import GraphError
from mirage_nb.interp.field import FieldAlgebra, FieldInstance
from mirage_nb.interp.reference import FloatAlgebra
from mirage_nb.interp.run import run_block
from mirage_nb.targets import TARGETS
from mirage_nb.tile.planned import Planned
from mirage_nb.tile.resident.program import ResidentProgram
from mirage_nb.tile.staged.program import StagedProgram
from mirage_nb.tile.staged.validate import NONSENSE
from mirage_nb.verify.tiles import compare, run_staged

FLOATS = FloatAlgebra(np.dtype(float))
H200 = TARGETS["h200"]
LEAST_CAUGHT = 0.95
Blocks = StagedProgram | ResidentProgram


def right(program: Blocks, original: Blocks) -> bool:
    """Whether all blocks save what the block graph says."""
    rng = np.random.default_rng(0)
    args = [0.3 * rng.standard_normal(t.shape) for t in program.block.args]
    with np.errstate(all="ignore"):
        wanted = run_block(original.block, args, FLOATS)
        try:
            found = run_staged(program, args, FLOATS)
        except (GraphError, *NONSENSE):
            return False
        return all(np.shape(f) == w.shape and np.allclose(f, w) for f, w in zip(found, wanted, strict=True))


def right_over_residues(program: Blocks) -> bool:
    """The same over residues, of which some have a meaning."""
    for seed in range(1, 9):
        instance = FieldInstance.draw(seed)
        algebra: Any = FieldAlgebra(instance)
        args = [instance.random(f"x{i}", t.shape) for i, t in enumerate(program.block.args)]
        found, wanted = run_staged(program, args, algebra), run_block(program.block, args, algebra)
        both = [one.defined & other.defined for one, other in zip(found, wanted, strict=True)]
        for one, other, defined in zip(found, wanted, both, strict=True):
            if not np.array_equal(np.where(defined, one.p, 0), np.where(defined, other.p, 0)):
                return False
        if all(defined.any() for defined in both):
            return True
    return False


def assert_caught(changes: Iterable[tuple[Blocks, str, Blocks]], least: int) -> None:
    """Of programs, what was changed in them and what they are then: so many at least are found by the validator, nearly
    all that are not as good, and the others where winners are run."""
    outcomes: Counter[str] = Counter()
    for program, what, changed in changes:
        if changed == program:
            continue
        one = Planned(program.block, changed)
        if one.findings(H200):
            outcomes["found"] += 1
        elif right(changed, program):
            outcomes["as good"] += 1
        else:
            outcomes["missed"] += 1
            print(f"{program!r}: {what}")
            assert compare(one, H200, 3)[1], "a winner's is run"
    assert outcomes["found"] > least
    assert outcomes["found"] >= LEAST_CAUGHT * (outcomes["found"] + outcomes["missed"])
    assert outcomes["as good"] < 0.25 * outcomes["found"]
