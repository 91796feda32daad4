"""What a walk holds: tiles, and what became of every application."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.search.axes import Layout
from mirage_nb.search.saturation.events import Outcome
from mirage_nb.search.saturation.sample import Sample
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.search.saturation.values import Operator, Type, Value


class Ended(Exception):
    """The search does not make the next value; says why."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A value of the walk, and the axis of each of its dimensions. `value` is None for constants: see `leaf`.

    `input`: of the program, whose aliases iterators may read instead.
    """

    value: Value | None
    layout: Layout
    leaf: int = -1
    input: int = -1


class Record(Sample):
    """Remembers what became of every application."""

    def __init__(self, semantics: Semantics) -> None:
        super().__init__(semantics, "", 0)
        self.seen: dict[tuple[Operator, tuple[int, ...]], tuple[Outcome, str, int]] = {}

    def event(
        self, outcome: Outcome, operator: Operator, args: list[Value], depth: int, type_: Type, stage: int,
        reason: str, expr: int,
    ) -> None:  # fmt: skip
        self.seen[operator, tuple(arg.id for arg in args)] = (outcome, reason, expr)
