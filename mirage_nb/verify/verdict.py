"""The verdict: which rung of the ladder a muGraph reached, and exactly what was checked (paper section 5)."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass


class VerdictKind(enum.Enum):
    """The rungs. A higher rung says more; OUTSIDE_LAX and UNDECIDED say that field trials do not apply, STORED that a
    file says so and nobody has looked since."""

    REFUTED = "refuted"
    STORED = "as stored"
    UNDECIDED = "undecided"
    OUTSIDE_LAX = "outside LAX"
    FIELD = "field"
    PROVED = "proved"
    FLOAT = "float"


@dataclass(frozen=True, slots=True)
class Witness:
    """Where two graphs differ: the seed of the inputs, output number, element index, and both values: residues of a
    trial, or what they are over the reals at a point of the kind that `point` says."""

    seed: int
    output: int
    index: tuple[int, ...]
    expected: str
    found: str
    point: str = ""


class Outcome(enum.Enum):
    """What two graphs look like over the reals."""

    AGREE = "agree"
    DIFFERENT = "different"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Looked:
    """What was seen, in words, and where the graphs differ; `whole`: of all elements; `compared`: of any; `nowhere`:
    the program has a value at none of the points."""

    outcome: Outcome
    note: str
    witness: Witness | None = None
    whole: bool = True
    compared: bool = True
    nowhere: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a verification.

    >>> verdict, proof = verify_and_prove(program, graph)
    >>> verdict.kind, verdict.accepted       # the rung that was reached, and whether it says "equal"
    >>> verdict.log2_bound, verdict.sizes    # how unlikely a mistake is, and the shapes that this is said of
    >>> verdict.witness                      # where the two differ, if they were refuted

    `log2_bound` is the base-2 logarithm of the probability that non-equivalent graphs of the checked sizes pass
    all trials (Theorems 2 and 3, and `towers` for the graphs at hand), or None where no bound holds; `sizes` are
    the input shapes that were checked; `outputs` is the permutation that matches the candidate's outputs to the
    program's; `note` says in words what was checked or why it was not.
    """

    kind: VerdictKind
    trials: int = 0
    primes: tuple[tuple[int, int], ...] = ()
    seed: int = 0
    sizes: Mapping[str, tuple[int, ...]] | None = None
    log2_bound: float | None = None
    outputs: tuple[int, ...] = ()
    witness: Witness | None = None
    note: str = ""

    @property
    def accepted(self) -> bool:
        """Whether the graphs may be taken for equal."""
        return self.kind in (VerdictKind.FIELD, VerdictKind.PROVED, VerdictKind.FLOAT)

    def __str__(self) -> str:
        return ", ".join(filter(None, (self._short(), self.note)))

    def __repr__(self) -> str:
        return f"<Verdict {self._short()}>"

    def _short(self) -> str:
        parts = [self.kind.value]
        if self.trials:
            parts.append(f"{self.trials} trial{'s' * (self.trials != 1)}")
        if self.log2_bound is not None:
            parts.append(f"error probability at most 2^{math.ceil(self.log2_bound)}")
        return ", ".join(parts)
