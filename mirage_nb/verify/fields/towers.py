"""How likely trials are to miss that two graphs differ, from what they show beside equal values.

In: two graphs of the same inputs, the pool of primes; then trial after trial. Out: the base-2 logarithm of the
chance that an output element that differs agrees in one trial and the trial shows what is said below; and of the
factor that counts once for all trials. It is Theorem 2 with a count of its own for the graphs at hand: linear in
their degrees, whatever the number of exponential terms.

What an element is. Let s_1, s_2, .. be the roots of the program's radicands, r_1, r_2, .. the different rational
parts of its exponents, M_T the uninterpreted maximum of a set T of the r. If all radicands of the candidate are
radicands of the program, and its exponents are such r, their negatives or zero, plus maxima, then an element of
either graph is a quotient of polynomials in the inputs, the s, and the E_j = exp(r_j), F_T = exp(M_T) and their
inverses, and so is the difference of two elements. Take the E and F as variables of their own: if its numerator A
is zero as such a polynomial, the elements are equal for any E, F, so as functions of reals. Let A not be zero.

Blocks. A group of `groups` is a block of inputs with its roots. Given the inputs outside of blocks, and modulo
the primes at hand, its m roots extend the field of rational functions of its elements to degree 2^m (seen in the
trial). A polynomial of degree d in the elements and roots of a block, a root counting half the degree of its
radicand, that is not zero has a norm over that field, a polynomial of degree 2^m d that is not zero and
vanishes where it does. So it vanishes for at most a part 2^m d / p of all elements (Schwartz and Zippel), and
for those drawn in a trial, one of VERSIONS uniform draws, with chance VERSIONS 2^m d / p. A polynomial in
several blocks and other inputs is treated one block after the other: with the coefficients of the highest terms
in a block, degrees add up. Blocks are independent given the other inputs, as their roots depend on no others.

1. Some coefficient C of A, of a product of powers of E and F, is not zero. It vanishes modulo p, at the trial's
   elements outside of exponents, with chance VERSIONS 2^m deg C / p, unless p divides all its coefficients.
   Should it not, A is a polynomial of E, F over Z_p that is not zero. The root of unity w is 1 with chance 1 / q;
   else x -> w^x takes as many values as x does.
2. The exponents that two elements may be made of: those that depend on nothing but the classes that reach these
   elements. In a row, each has a class of its own, none before it depends on it, and at the elements of the trial
   it changes when only that class does. Given all else, an exponent takes a value e where the numerator of r - e
   vanishes, a polynomial in the class that is not zero since r changes: with chance VERSIONS 2^m D / q, for D the
   degree of both sides of r. So does its E. The F are uniform: maxima of different sets are independent.
   A polynomial, in which a product of powers has at most L factors, vanishes with chance at most
   2 L VERSIONS 2^m D / q: by induction over the row. Let b be the largest absolute exponent of the last variable.
   The coefficient at it, with products of at most L - b factors, vanishes with chance 2 (L - b) times the
   above; else the variable has to be one of at most 2 b values.
3. Different sets T have different fingerprints, sums of random words modulo p and q, one per element: two of less
   than MAX_SETS sets whose elements count less than MAX_FOLDED times, fewer than q, agree with chance SCATTER at most.

Where the candidate has another radicand or exponent than the program, the first such one that is met agrees in a
trial with a given one of the program with chance VERSIONS 2^m deg / p (or q). Which ones are seen to be equal
has to be the same in all trials; so the choice of the one counts once. In the same way no two different exponents
of the program can be taken for one. Generator and scattering are taken to be random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.field import FieldInstance, FieldTensor
from mirage_nb.interp.modular import Modulus, Residues
from mirage_nb.interp.primes import Pool
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.fields.bound import ONE, Form, Side, across, forms, lost
from mirage_nb.verify.fields.exponents import Exponents, exponents_of, skeleton
from mirage_nb.verify.fields.groups import VERSIONS, RootGroups, root_groups
from mirage_nb.verify.fields.lax import LaxReport
from mirage_nb.verify.fields.roots import Mask

SPARED = 2
"""Trials in whose place others are drawn because they show too little, as where a group of roots failed in all of its
versions: of four groups of two roots one trial in 2,500."""
MAX_SETS = 2**10
MAX_FOLDED = 2**12
SCATTER = 2.0**-32
"""MAX_SETS^2 / 2 pairs; a difference of sums vanishes with chance 1 / (p q), at most 2^-59; the rest is for rounding
words to residues."""


@dataclass(frozen=True, slots=True)
class Tower:
    """What is known of two graphs before any trial: log2 of the chance of one trial, and of what counts once;
    `usable`: the classes of exponents that no group is partly in."""

    program: KernelGraph
    candidate: KernelGraph
    groups: RootGroups | None
    exponents: Exponents | None
    usable: Mask
    chance: float
    once: float


@dataclass(frozen=True, slots=True)
class Shown:
    """What a trial shows of the program: its radicands modulo p and q, its exponents, and the classes that each is
    seen to depend on; or that it does not show enough."""

    enough: bool
    p: Residues
    q: Residues
    exponents: Residues
    changed: Mask


NOTHING: Residues = np.zeros(0, np.uint64)


def tower(program: KernelGraph, candidate: KernelGraph, lax: LaxReport, pool: Pool) -> Tower | None:
    """The bound for two graphs, however their outputs are paired; None if there is none below 1. `lax` is the
    joint report of both graphs."""
    groups = root_groups(program) if lax.roots else None
    exponents = exponents_of(program) if lax.exponentials else None
    if lax.opaque or (lax.roots and groups is None) or (lax.exponentials and exponents is None):
        return None
    ours, theirs = forms(program), forms(candidate)
    if any(form.shift or form.radicand.powers or form.exponent.powers for form in (*ours, *theirs)):
        return None
    factor = 1.0 if groups is None else VERSIONS * 2.0**groups.together
    chance = max(_missed(a, b, factor, pool) for a in ours for b in theirs)
    known = 0.0
    if groups is not None:
        chance = max(chance, _mistaken([f.radicand for f in ours], [f.radicand for f in theirs], factor, pool))
        known += len(groups.group)
    if exponents is not None:
        chance = max(chance, _mistaken([f.exponent for f in ours], [f.exponent for f in theirs], factor, pool))
        known += (len(exponents.meets) + 2) ** 2
    once = math.log2(len(program.outputs) * len(candidate.outputs)) + math.log2(max(1.0, known))
    if not 0 < chance < 1:
        return None
    usable = _usable(groups, exponents)
    return Tower(program, candidate, groups, exponents, usable, math.log2(chance), once)


def _usable(groups: RootGroups | None, exponents: Exponents | None) -> Mask:
    """The classes that consist of whole groups and of elements outside of groups: only then the roots of a group
    are seen to extend the field of what may change when only a class does."""
    if exponents is None:
        return np.zeros(0, bool)
    usable = np.ones(len(exponents.apart), bool)
    if groups is None:
        return usable
    met: dict[int, set[int]] = {}
    for marks, classes in zip(groups.marks, exponents.classes, strict=True):
        for group, number in zip(marks.reshape(-1).tolist(), classes.reshape(-1).tolist(), strict=True):
            if group:
                met.setdefault(group, set()).add(number)
    for numbers in met.values():
        if len(numbers) > 1:
            usable[[number for number in numbers if number >= 0]] = False
    return usable


def _missed(left: Form, right: Form, factor: float, pool: Pool) -> float:
    """The candidate's radicands and exponents are the program's, and A is zero in a trial."""
    difference = across(left, right)
    chance = factor * difference.degree / pool.low + lost(difference.bits, 1, pool)
    if difference.powers:
        degree = max(1.0, left.exponent.degree)
        chance += (1 + 2 * difference.powers * factor * degree) / _low(pool) + SCATTER
    return chance


def _low(pool: Pool) -> int:
    return pool.low // 2 - 1  # q is the smaller prime of a pair


def _mistaken(ours: list[Side], theirs: list[Side], factor: float, pool: Pool) -> float:
    """Two quotients that differ, as radicands or exponents, agree in a trial."""
    chances = []
    sides = [*ours, *theirs, ONE]
    for a in sides:
        for b in sides:
            difference = a.times(b).plus(b.times(a))
            chances.append(factor * difference.degree / _low(pool) + lost(difference.bits + 1, 1, pool))
    return max(chances)


def shown(
    groups: RootGroups | None, exponents: Exponents | None, inputs: Sequence[FieldTensor], instance: FieldInstance
) -> Shown:
    """What a trial shows of a program; `inputs` in its order."""
    enough, p, q = True, NOTHING, NOTHING
    if groups is not None:
        of_p, of_q = groups.radicands(inputs, instance)
        enough = bool(of_p.defined.all()) and groups.extend_the_field(inputs, instance)
        p, q = of_p.values[of_p.there], of_q.values[of_q.there]
    values, changed = NOTHING, np.zeros((0, 0), bool)
    if exponents is not None:
        found = skeleton(exponents.graph, inputs, instance)
        enough &= bool(found.defined.all()) and found.sets < MAX_SETS and found.folded < MAX_FOLDED
        values, changed = found.values, exponents.changed(inputs, instance, found.values)
    return Shown(enough, p, q, values, changed)


class Observer:
    """Looks at one trial after the other; `holds` until one does not show what the argument needs, though it counts."""

    def __init__(self, tower: Tower) -> None:
        self._tower = tower
        self._seen: tuple[bytes, ...] | None = None
        self._reach = _compared(tower)
        self._spared = 0
        self.holds = True

    def spares(self, trial: Shown) -> bool:
        """Whether a trial shall count for nothing, since it shows too little of the program and another one may show
        more. What is claimed is of trials that agree and show enough, whichever of all that were drawn those are."""
        spared = not trial.enough and self._spared < SPARED
        self._spared += spared
        return spared

    def look(
        self,
        trial: Shown,
        inputs: Sequence[FieldTensor],
        instance: FieldInstance,
        radicands: Sequence[FieldTensor],
        ranked: Sequence[FieldTensor],
    ) -> None:
        """Take in a trial: what it shows of the program, the inputs in the order of the candidate, what the
        candidate takes roots of and what both graphs take maxima of."""
        seen = self._places(trial, inputs, instance, radicands, ranked) if self.holds and trial.enough else None
        self.holds = seen is not None and self._seen in (None, seen) and self._spread(trial)
        self._seen = seen

    def _places(
        self,
        trial: Shown,
        inputs: Sequence[FieldTensor],
        instance: FieldInstance,
        radicands: Sequence[FieldTensor],
        ranked: Sequence[FieldTensor],
    ) -> tuple[bytes, ...] | None:
        if not all(x.defined.all() for x in (*radicands, *ranked)):
            return None
        found = [
            places(trial.p, [x.p for x in radicands if x.p is not None], None),
            places(trial.q, [x.q for x in radicands if x.q is not None], None),
            places(trial.exponents, [trial.exponents], None),
        ]
        if self._tower.exponents is not None:
            theirs = skeleton(self._tower.candidate, inputs, instance)
            few = theirs.defined.all() and theirs.sets < MAX_SETS and theirs.folded < MAX_FOLDED
            found.append(places(trial.exponents, [theirs.values], instance.q) if few else None)
        met = [x.q for x in ranked if x.q is not None]
        found.append(places(trial.exponents, met, None) if len(met) == len(ranked) else None)
        known = tuple(part.tobytes() for part in found if part is not None)
        return known if len(known) == len(found) else None

    def _spread(self, trial: Shown) -> bool:
        exponents = self._tower.exponents
        if exponents is None:
            return True
        labels = places(trial.exponents, [trial.exponents], None)
        assert labels is not None
        return all(exponents.spread(trial.changed, labels, reach, self._tower.usable) for reach in self._reach)


def _compared(tower: Tower) -> list[Mask]:
    """The classes that reach two elements that may be compared, all such sets."""
    if tower.exponents is None:
        return []
    left, right = (tower.exponents.reach(graph) for graph in (tower.program, tower.candidate))
    both = [(a | b).reshape(math.prod(a.shape[:-1]), a.shape[-1]) for a in left for b in right if a.shape == b.shape]
    return list(np.unique(np.concatenate(both), axis=0)) if both else []


def places(known: Residues, parts: Sequence[Residues], modulus: Modulus | None) -> NDArray[np.int64] | None:
    """Where each of the residues stands among the known ones first; with a modulus also their negatives, behind
    all others, and zero; None if one is not there."""
    values = np.concatenate([NOTHING, *(part.reshape(-1) for part in parts)])
    listed = known
    if modulus is not None:
        listed = np.concatenate([known, np.uint64(modulus.value) - known, np.zeros(1, np.uint64)])
    unique, first = np.unique(listed, return_index=True)
    if not len(unique):
        return None if len(values) else np.zeros(0, np.int64)
    at = np.minimum(np.searchsorted(unique, values), len(unique) - 1)
    return first[at].astype(np.int64) if bool((unique[at] == values).all()) else None
