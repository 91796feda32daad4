"""How likely a trial is to miss a difference between two graphs with square roots and without exponentials.

In: two graphs of the same inputs, the groups of the program's roots, the pool. Out: the base-2 logarithm of
the chance that an output element that differs has a value in a trial, agrees, and every radicand of the
candidate is among the program's; or None. The caller has to see to the last part in every trial.

The argument. Let r_1 .. r_m be the different radicands, rational functions of the inputs, that an element of
either graph depends on, and s_j the root of r_j. No product of them is a square (`groups`), so the field of
rational functions extended by the s_j has degree 2^m, and its automorphisms flip the signs of the s_j at will.
Let A be the numerator of the difference, a polynomial in the inputs and in the roots sqrt(n * d) of quotients
n / d = r_j. The product N of the 2^m conjugates of A is a polynomial in the inputs with whole coefficients.
It is not zero unless A is; its degree is at most 2^m times that of A where a root counts half the degree of
its square; and its coefficients have at most 2^m times the bits, since where all inputs have absolute value 1
no conjugate is above the sum of A's absolute coefficients. Sending the inputs to elements u of Z_p, and s_j to
the root of r_j(u) that trials compute, respects all of this whatever the sign of that root. So a difference
that vanishes at u makes N(u) = 0, which for uniform u has chance at most 2^m * degree / p (Schwartz and
Zippel) unless p divides all coefficients of N.

The u of a trial are not uniform, as groups are drawn again until their roots exist. But N depends on g groups
only, and for each of the VERSIONS^g choices of a draw per group all elements are uniform: the chance grows
at most by that factor. Nothing is assumed about how residues are distributed. An element depends on a root only
if its graph reaches the root's group, since radicands are seen to change with their groups: that bounds m.

If instead an element of the candidate depends on a root of another radicand, that one agrees with some
radicand of the program in a trial with small chance, by the same count without conjugates.
"""

from __future__ import annotations

import math

import numpy as np

from mirage_nb.interp.modular import Pool
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.bound import Form, across, forms, lost
from mirage_nb.verify.groups import VERSIONS, RootGroups
from mirage_nb.verify.reach import Reached, reached

MAX_EXPONENT = 40
"""log2 of 2^m * VERSIONS^g beyond which no prime of a pool is large enough."""


def rooted_bound(program: KernelGraph, candidate: KernelGraph, groups: RootGroups, pool: Pool) -> float | None:
    """log2 of the chance that one trial misses a difference, however outputs are paired; None: no bound below 1."""
    marks = {given.name: words for given, words in zip(program.inputs, groups.marks, strict=True)}
    left, right = (reached(graph, [marks[i.name] for i in graph.inputs]) for graph in (program, candidate))
    if right.nested:
        return None
    conjugates, draws = _worst(left, right, groups)
    if conjugates + draws > MAX_EXPONENT:
        return None
    ours, theirs = forms(program), forms(candidate)
    chance = max(_missed(a, b, conjugates, draws, pool) for a in ours for b in theirs)
    chance = max(chance, _mistaken(ours, theirs, right, groups, pool))
    return math.log2(chance) if 0 < chance < 1 else None


def _worst(left: Reached, right: Reached, groups: RootGroups) -> tuple[float, float]:
    """log2 of the conjugates and of the choices of draws, over all pairs of elements that may be compared."""
    pairs = [(a, b) for a in left.outputs for b in right.outputs if a.shape == b.shape]
    words = {int(word) for a, b in pairs for word in np.unique(a | b)}
    conjugates = max((sum(groups.roots[group] for group in _groups(word)) for word in words), default=0)
    met = max((word.bit_count() for word in words), default=0)
    return conjugates, met * math.log2(VERSIONS)


def _groups(word: int) -> list[int]:
    return [number for number in range(word.bit_length()) if word >> number & 1]


def _missed(left: Form, right: Form, conjugates: float, draws: float, pool: Pool) -> float:
    """The candidate's radicands are the program's, and N is zero."""
    difference = across(left, right)
    norms: float = 2.0**conjugates
    choices: float = 2.0**draws
    return norms * choices * difference.degree / pool.low + lost(norms * difference.bits, 1, pool)


def _mistaken(ours: list[Form], theirs: list[Form], right: Reached, groups: RootGroups, pool: Pool) -> float:
    """A radicand of the candidate is none of the program's, and equals one of them in the trial."""
    if not right.radicands:
        return 0.0
    chances: list[float] = []
    for radicand in right.radicands:
        choices = float(VERSIONS ** (radicand.bit_count() + 1))
        for a, b in ((a.radicand, b.radicand) for a in ours for b in theirs):
            difference = a.times(b).plus(b.times(a))
            chances.append(choices * difference.degree / pool.low + lost(difference.bits, 1, pool))
    return sum(groups.roots) * max(chances)
