"""What a worker hands to its session: findings on the way, and the end of a configuration, as frozen data.

Invariant: an `Explored` that is finished is what everybody finds who explores this configuration of the same
program within the same bounds, so it is searched once and kept (see `plain` for its form on the disk).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mirage_nb.errors import OptionError
from mirage_nb.search.saturation.events import Counts, Prefix
from mirage_nb.search.session.progress import Candidate, Rejected
from mirage_nb.search.space import EFFORTS, Budget, Configuration, Effort
from mirage_nb.search.switches import Switches


@dataclass(frozen=True, slots=True)
class Bounds:
    """What limits the search of one configuration: the name of an effort, a budget, and what differs from them."""

    effort: str
    budget: Budget
    switches: Switches = field(default_factory=Switches)

    @property
    def searched(self) -> Effort:
        """The effort with its switches.

        Raises:
            OptionError: the effort is unknown.
        """
        return self.switches.applied(known_effort(self.effort))

    def within(self, other: Bounds) -> bool:
        """Whether no bound of the other one is smaller, at the same effort."""
        return self.searched == other.searched and not self.lowered_by(other)

    def lowered_by(self, other: Bounds) -> tuple[str, ...]:
        """The bounds of the budget that the other one has smaller."""
        return tuple(name for name in BOUND_NAMES if getattr(self.budget, name) > getattr(other.budget, name))

    def raised_by(self, other: Bounds) -> frozenset[str]:
        """The bounds of the budget that the other one has larger."""
        return frozenset(other.lowered_by(self))


BOUND_NAMES = tuple(field.name for field in fields(Budget))


def raised(bounds: Bounds, effort: str | None, asked: Mapping[str, Any]) -> Bounds:
    """Larger bounds: those of the larger effort, and those that are asked for. Raises OptionError."""
    names = list(EFFORTS)
    chosen = effort if effort is not None else bounds.effort
    own = known_effort(chosen).budget
    if names.index(chosen) < names.index(bounds.effort):
        raise OptionError(f"effort {chosen!r} is smaller than {bounds.effort!r}", hint="start a new session")
    budget = bounds.budget
    if chosen != bounds.effort:
        budget = Budget(**{name: max(getattr(own, name), getattr(budget, name)) for name in BOUND_NAMES})
    for name, value in asked.items():
        if not getattr(bounds.budget, name) <= value < float("inf"):
            raise OptionError(
                f"{name}: {value:g} is less than {getattr(bounds.budget, name):g}", hint="bounds can only be raised"
            )
    return Bounds(chosen, replace(budget, **asked), bounds.switches)


def known_effort(name: str) -> Effort:
    """The effort of this name. Raises OptionError."""
    if name not in EFFORTS:
        raise OptionError(f"unknown effort {name!r}", hint=f"one of {', '.join(EFFORTS)}")
    return EFFORTS[name]


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of one configuration.

    `structures`: muGraphs extracted; `verified`: instances of those that passed; `candidates`: the best ones;
    `unfit`: muGraphs that passed, but have no sizes that fit the target; `rejected`: the first few of those that were
    refuted, and of those that nobody can judge.
    """

    counts: Counts = field(default_factory=dict)
    structures: int = 0
    verified: int = 0
    refuted: int = 0
    outside_lax: int = 0
    candidates: tuple[Candidate, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    unfit: int = 0

    def __repr__(self) -> str:
        return f"<Findings: {self.structures} structures, {self.verified} verified, {self.refuted} refuted>"

    @property
    def extent(self) -> tuple[int, int, int]:
        """How far they go: what is verified, what is extracted, what was tried."""
        return self.verified, self.structures, sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Explored:
    """The end of a task. `unfinished`: it was stopped or late; `cut` names what was left out and why.

    `reached`: the bounds that left something out; with those as they are, raising others changes nothing.
    """

    configuration: Configuration
    bounds: Bounds
    findings: Findings
    prefixes: tuple[Prefix, ...]
    cut: tuple[str, ...]
    reached: frozenset[str]
    unfinished: bool

    def __repr__(self) -> str:
        return f"<Explored {self.configuration}: {self.findings!r}>"

    def holds_within(self, bounds: Bounds) -> bool:
        """Whether exploring the configuration within these bounds would find the same."""
        same = not self.unfinished and self.bounds.within(bounds)
        return same and not self.reached & self.bounds.raised_by(bounds)
