"""Programs of all blocks side by side, beside what their block graphs save."""

from __future__ import annotations

from typing import Any

import numpy as np

from mirage_nb.errors import GraphError
from mirage_nb.interp.field import FieldAlgebra, FieldInstance
from mirage_nb.interp.reference import FloatAlgebra
from mirage_nb.interp.run import run_block
from mirage_nb.tile.resident import ResidentProgram
from mirage_nb.tile.staged import StagedProgram
from mirage_nb.tile.staged_validate import NONSENSE
from mirage_nb.verify.tiles import run_staged

FLOATS = FloatAlgebra(np.dtype(float))
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
