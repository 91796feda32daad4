"""A kernel's program, of any kind, beside the block graph that it was planned of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from mirage_nb.ir import BlockGraph
from mirage_nb.targets import Target
from mirage_nb.tile.resident import validate as resident_validate
from mirage_nb.tile.resident.program import Numbers, ResidentProgram, Table
from mirage_nb.tile.roles import validate
from mirage_nb.tile.roles.program import LANES, Program
from mirage_nb.tile.staged import validate as staged_validate
from mirage_nb.tile.staged.program import StagedProgram


@dataclass(frozen=True, slots=True)
class Planned:
    """A tile program, a staged or a resident one, and the block graph that it was planned of; `numbers`: operands that
    are one number, `places`: those that number the places of an axis; `op`: the operator that it is; `tables`: what
    operands are looked up in, by which `lines`."""

    block: BlockGraph
    program: Program | StagedProgram | ResidentProgram
    numbers: Mapping[int, Fraction] = field(default_factory=dict)
    places: frozenset[int] = frozenset()
    op: int = 0
    tables: tuple[Table, ...] = ()
    lines: tuple[Numbers, ...] = ()

    def __repr__(self) -> str:
        return f"<Planned {type(self.program).__name__} of {self.block!r}>"

    @property
    def asked(self) -> tuple[int, int]:
        """The threads of a block, the loader's among them, and its bytes of dynamic shared memory."""
        match self.program:
            case Program() as program:
                return program.threads, program.shared_bytes
            case StagedProgram() as program:
                return program.threads + (LANES if program.loader else 0), program.shared_bytes
            case ResidentProgram() as program:
                return program.layout.threads, 0

    def findings(self, target: Target) -> tuple[str, ...]:
        """Everything that is wrong with the program, in words; () if nothing is."""
        match self.program:
            case Program():
                return validate.validate(self.program, target)
            case StagedProgram():
                return staged_validate.validate(self.program, target)
            case ResidentProgram() as program:
                alike = (program.tables, program.numbers) == (self.tables, self.lines)
                found = () if alike else ("its operands are looked up otherwise",)
                return (*found, *resident_validate.validate(program, target))
