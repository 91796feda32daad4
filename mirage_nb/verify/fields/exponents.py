"""The exponents of a program: which classes of input elements each depends on, and what a trial shows of them.

In: a program. Out: `Exponents`, or None for more than the argument of `towers` is meant for. Input elements on
which the same exponents depend are a class. What an exponent does not depend on is read off the graph; what it
does depend on is seen: it changes when only the elements of that class do.

Maxima are shifts that nobody interprets, so an exponent is a rational function of the inputs plus a sum of
maxima. `skeleton` evaluates that function alone: every maximum is zero in it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.field import FieldAlgebra, FieldInstance, FieldTensor, Noted
from mirage_nb.interp.instance import Words
from mirage_nb.interp.modular import Residues
from mirage_nb.interp.run import run_kernel
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.fields.reach import reached
from mirage_nb.verify.fields.roots import Mask, replaced

MAX_ELEMENTS = 4096
"""Input elements of a program for which dependence is worked out; 64 at a time."""
MAX_EXPONENTS = 1024
DRAWS = 48
"""New elements that a class is given at most to see what changes; half of them may have no square root."""

Classes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Exponents:
    """`classes`: for every input, the number of each element's class or -1; `meets`: which classes (columns) each
    exponent (rows, flat, in the order in which the interpreter meets them) may depend on; `apart`: for every class
    a colour, so that no exponent meets two classes of one colour."""

    graph: KernelGraph
    classes: tuple[Classes, ...]
    meets: Mask
    apart: Classes

    def changed(self, inputs: Sequence[FieldTensor], instance: FieldInstance, before: Residues) -> Mask:
        """The classes that each exponent is seen to depend on, at these inputs, where it is `before`."""
        found = np.zeros_like(self.meets)
        for colour in range(int(self.apart.max(initial=-1)) + 1):
            chosen = self.apart == colour
            users = self.meets & chosen
            for draw in range(DRAWS):
                fresh = (
                    instance.random(i.name, x.shape, x.p is not None, x.q is not None, f"instead {draw}")
                    for i, x in zip(self.graph.inputs, inputs, strict=True)
                )
                masks = ((classes >= 0) & chosen[classes] for classes in self.classes)
                mixed = [replaced(x, y, mask) for x, y, mask in zip(inputs, fresh, masks, strict=True)]
                after = skeleton(self.graph, mixed, instance)
                found |= users & (after.defined & (after.values != before))[:, None]
                if found[users].all():
                    break
        return found

    def reach(self, graph: KernelGraph) -> list[Mask]:
        """For every output of a graph of the same inputs, the classes (last axis) that reach each element."""
        by_name = {i.name: classes for i, classes in zip(self.graph.inputs, self.classes, strict=True)}
        found: list[list[Mask]] = [[np.zeros((*t.shape, 0), bool)] for t in graph.output_types]
        for start in range(0, len(self.apart), WORD):
            bits = np.uint64(1) << np.arange(min(WORD, len(self.apart) - start), dtype=np.uint64)
            table = np.zeros(len(self.apart) + 1, np.uint64)
            table[start : start + len(bits)] = bits
            words = reached(graph, [table[by_name[i.name]] for i in graph.inputs]).outputs
            for parts, word in zip(found, words, strict=True):
                parts.append((word[..., None] & bits) != 0)
        return [np.concatenate(parts, axis=-1) for parts in found]

    def spread(self, changed: Mask, labels: Classes, reach: Mask, usable: Mask) -> bool:
        """Whether all exponents of which elements may be made that these classes reach can be put in a row in which
        each has a class of its own among the usable: seen to change it, and met by none before it."""
        left = np.unique(labels[~(changed & ~reach).any(axis=1)])
        while len(left):
            own = self.meets[left].sum(axis=0) == 1
            last = (changed[left] & own & usable).any(axis=1)
            if not last.any():
                return False
            left = left[~last]
        return True


WORD = 64


@functools.lru_cache(maxsize=256)
def exponents_of(graph: KernelGraph) -> Exponents | None:
    """The exponents of a program; None if it or their number is large, or there are none."""
    sizes = [i.type.elements for i in graph.inputs]
    depends = _dependence(graph, sizes) if sum(sizes) <= MAX_ELEMENTS else None
    if depends is None:
        return None
    users, numbers = np.unique(depends, axis=0, return_inverse=True)
    used = users.any(axis=1)
    table = np.where(used, np.cumsum(used) - 1, -1)
    flat = table[numbers.reshape(-1)]
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    classes = tuple(part.reshape(i.type.shape) for i, part in zip(graph.inputs, parts, strict=True))
    meets = users[used].T
    return Exponents(graph, classes, meets, _coloured(meets))


def _coloured(meets: Mask) -> Classes:
    colours: list[Mask] = []
    found = []
    for users in meets.T:
        at = next((n for n, taken in enumerate(colours) if not (taken & users).any()), len(colours))
        if at == len(colours):
            colours.append(np.zeros_like(users))
        colours[at] |= users
        found.append(at)
    return np.array(found, np.int64)


def _dependence(graph: KernelGraph, sizes: list[int]) -> Mask | None:
    """For every input element, the exponents that may depend on it."""
    rows: list[Mask] = []
    for start in range(0, sum(sizes), WORD):
        bits = np.uint64(1) << np.arange(min(WORD, sum(sizes) - start), dtype=np.uint64)
        flat = np.zeros(sum(sizes), np.uint64)
        flat[start : start + len(bits)] = bits
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        marks = [part.reshape(i.type.shape) for i, part in zip(graph.inputs, parts, strict=True)]
        met = reached(graph, marks, maxima=False).exponents
        if not 0 < sum(word.size for word in met) <= MAX_EXPONENTS:
            return None
        words = np.concatenate([word.reshape(-1) for word in met])
        rows.append((words & bits[:, None]) != 0)
    return np.concatenate(rows) if rows else None


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The rational parts of all exponents modulo q, flat; which of them have a value; how many maxima were taken,
    and the largest number of elements of one, counted as often as they were taken in."""

    values: Residues
    defined: Mask
    sets: int
    folded: int


@dataclass(frozen=True, slots=True)
class _Rational(FieldAlgebra):
    """All maxima are zero, and their sets are counted."""

    sets: list[Words] = field(default_factory=list)

    def sets_of(self, x: FieldTensor) -> Words:
        return x.sets if x.sets is not None else np.ones(x.shape, np.uint64)

    def maximum(self, sets: Words, like: FieldTensor, undefined: Mask | None) -> FieldTensor:
        self.sets.append(sets)
        p, q = (None if part is None else np.zeros(sets.shape, np.uint64) for part in (like.p, like.q))
        return FieldTensor(p, q, undefined, np.minimum(sets, np.uint64(MOST)))


MOST = 2**32
"""Sizes of sets are counted up to this, so that sums of them fit a word."""


def skeleton(graph: KernelGraph, inputs: Sequence[FieldTensor], instance: FieldInstance) -> Skeleton:
    """What is known of the exponents of a graph at these inputs, in its order."""
    noted = Noted()
    algebra = _Rational(instance, noted)
    run_kernel(graph, list(inputs), algebra)
    values = [np.zeros(x.shape, np.uint64) if x.q is None else x.q for x in noted.exponents]
    defined = [x.defined & (x.q is not None) for x in noted.exponents]
    return Skeleton(
        np.concatenate([np.zeros(0, np.uint64), *(part.reshape(-1) for part in values)]),
        np.concatenate([np.zeros(0, bool), *(part.reshape(-1) for part in defined)]),
        sum(sets.size for sets in algebra.sets),
        max((int(sets.max(initial=0)) for sets in algebra.sets), default=0),
    )
