"""What staged and resident programs share that run: a block's values, numbers, and what goes wrong on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from mirage_nb.errors import GraphError
from mirage_nb.ir import AccumKind, OpKind, ThreadGraph
from mirage_nb.tile.lines import line_of
from mirage_nb.tile.resident.program import ResidentProgram
from mirage_nb.tile.roles.run import Algebra
from mirage_nb.tile.staged.program import StagedProgram

P = TypeVar("P", StagedProgram, ResidentProgram)


class Nothing:
    """An algebra without numbers: who reads and writes what, and when, is looked at alone."""

    def apply(self, kind: OpKind, operands: Sequence[None], attrs: object, batch: int) -> None:
        """No result."""

    def view(self, value: None, move: object) -> None:
        """Nothing, moved."""

    def fold(self, kind: AccumKind, state: object, operands: Sequence[None], batch: int) -> tuple[None, ...]:
        """A state that holds nothing."""
        return (None,)

    def join(self, parts: Sequence[None], dim: int, batch: int) -> None:
        """Nothing behind nothing."""


NOTHING: Algebra[Any] = Nothing()


@dataclass
class Machine(Generic[P]):
    """One block, or several side by side. tiles: the tile of an iterator in an iteration. found: what went wrong; now:
    the statement that is looked at."""

    program: P
    algebra: Algebra[Any] = NOTHING
    tiles: Callable[[int, int], Any] = lambda value, iteration: None
    found: dict[str, None] = field(default_factory=dict)
    now: object = None

    def __post_init__(self) -> None:
        self.block, self.batch = self.program.block, len(self.program.block.grid)
        self.ops = {v: op for op, values in self.block.definitions() for v in values}
        self.results = {v: i for _, values in self.block.definitions() for i, v in enumerate(values)}

    def wrong(self, what: str) -> None:
        """A finding; who computes stops there."""
        self.found[f"{line_of(self.now)}: {what}" if self.now is not None else what] = None
        if self.algebra is not NOTHING:
            raise GraphError(next(reversed(self.found)))

    def apply(self, kind: OpKind, operands: Sequence[Any], attrs: Any = None) -> Any:
        return self.algebra.apply(kind, operands, attrs, self.batch)

    def fold(self, kind: AccumKind, state: tuple[Any, ...], operands: Sequence[Any]) -> tuple[Any, ...]:
        return self.algebra.fold(kind, state, operands, self.batch)

    def made(self, value: int, operands: list[Any]) -> Any:
        """What the operator of a value, or its thread graph, makes of operands."""
        op = self.ops[value]
        if isinstance(op.body, ThreadGraph):
            for inner in op.body.ops:
                operands.append(self.apply(inner.kind, [operands[v] for v in inner.inputs], inner.attrs))
            return operands[op.body.outputs[self.results[value]]]
        return self.apply(op.kind, operands, op.attrs)
