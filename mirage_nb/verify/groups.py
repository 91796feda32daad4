"""Groups of input elements that are drawn again together until square roots exist, and what is known of the roots.

In: a program. Out: `RootGroups`, or None where the argument of `rooted` does not apply. Every root element
names the input elements that it shares with the fewest others, such as a row's own numbers and not a gain that
all rows share; roots that share named elements, with these elements, are a group. So groups are disjoint, a root
depends on named elements of its own group only, and a group in which a root does not exist is drawn again
whole. The elements of a group are then one of at most `VERSIONS` independent uniform draws, all the same one.

That no product of different radicands is a square is observed: a square of a rational function has a root
wherever it has a value. One sample in which an odd number of some radicands has none settles it for their
product; that holds for every non-empty set of them when the samples, as vectors over {0, 1}, have full rank.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mirage_nb.interp.field import FieldInstance, FieldTensor, evaluate_all, random_inputs
from mirage_nb.interp.instance import Words
from mirage_nb.interp.modular import LARGE, Residues
from mirage_nb.ir import KernelGraph
from mirage_nb.verify.lax import all_ops, inspect, is_root
from mirage_nb.verify.reach import GROUPS, reached
from mirage_nb.verify.roots import Mask, Parts, blame, replaced, rooted_inputs, up_to_roots

VERSIONS = 32
"""Draws of one group at most; a group of two roots fails them all once in ten thousand trials."""
MAX_TOGETHER = 2
"""Roots of one group. With more, they rarely exist together."""
SPARE_SAMPLES = 16
"""Samples beyond the number of roots, to see them independent; each fails by chance at most every second time."""


@dataclass(frozen=True, slots=True)
class RootGroups:
    """`pruned` computes the roots; `marks`: for every input, the bit of each element's group or 0; `of_roots`:
    for every output of `pruned`, the bit of each root's group; `roots`: how many roots every group has."""

    pruned: KernelGraph
    marks: tuple[Words, ...]
    of_roots: tuple[Words, ...]
    roots: tuple[int, ...]

    def failed(self, inputs: Sequence[FieldTensor], instance: FieldInstance) -> np.uint64:
        """The groups in which a root does not exist."""
        values = evaluate_all(self.pruned, inputs, instance)
        word = np.uint64(0)
        for value, words in zip(self.pruned.outputs, self.of_roots, strict=True):
            word |= np.bitwise_or.reduce(words[~values[value].defined], initial=np.uint64(0))
        return word

    def radicands(self, inputs: Sequence[FieldTensor], instance: FieldInstance) -> Residues:
        """All values that the program takes roots of, ascending."""
        noted: list[FieldTensor] = []
        evaluate_all(self.pruned, inputs, instance, noted)
        parts = [np.asarray(x.p)[np.broadcast_to(x.defined, x.shape)].reshape(-1) for x in noted]
        return np.unique(np.concatenate(parts))


def draw_inputs(graph: KernelGraph, instance: FieldInstance, parts: Parts) -> tuple[FieldTensor, ...]:
    """Random inputs of `graph` whose square roots exist, by groups where there are such."""
    groups = root_groups(graph)
    if groups is None:
        return rooted_inputs(graph, instance, parts)
    inputs = list(random_inputs(graph, instance, parts))
    for version in range(1, VERSIONS):
        failed = groups.failed(inputs, instance)
        if not failed:
            break
        for at, (given, marks) in enumerate(zip(graph.inputs, groups.marks, strict=True)):
            mask = (marks & failed) != 0
            if mask.any():
                fresh = instance.random(f"{given.name} again {version}", given.type.shape, *parts[given.name])
                inputs[at] = replaced(inputs[at], fresh, mask)
    return tuple(inputs)


@functools.lru_cache(maxsize=256)
def root_groups(graph: KernelGraph) -> RootGroups | None:
    """The groups of a program without exponentials and uninterpreted functions, of which the roots are few, not
    of each other, and seen to be independent."""
    lax = inspect(graph)
    if lax.exponentials or lax.opaque or lax.maxima:
        return None
    pruned = up_to_roots(graph)
    count = sum(pruned.types[v].elements for v in pruned.outputs)
    inside = any(is_root(inner) for op in graph.ops if op.body is not None for inner in all_ops(op.body))
    plain = [np.zeros(i.type.shape, np.uint64) for i in graph.inputs]
    if not 0 < count <= GROUPS or inside or reached(graph, plain).nested:
        return None
    found = _grouped(pruned, count)
    if found is None or max(found.roots) > MAX_TOGETHER or not _independent(found, count):
        return None
    return found


def _grouped(pruned: KernelGraph, count: int) -> RootGroups | None:
    """The groups, each named by its first root; None if a root depends on no input."""
    users = [np.zeros(i.type.shape, np.uint64) for i in pruned.inputs]
    bits = (np.uint64(1 << number) for number in itertools.count())
    for value in pruned.outputs:
        for index in np.ndindex(pruned.types[value].shape):
            mask: Mask = np.zeros(pruned.types[value].shape, bool)
            mask[index] = True
            bit, blamed = next(bits), blame(pruned, {value: mask})
            if not any(part is not None and part.any() for part in blamed):
                return None
            for words, part in zip(users, blamed, strict=True):
                if part is not None:
                    words[part] |= bit
    named = _named({int(word) for words in users for word in np.unique(words)}, count)
    group = _joined(named, count)
    marks = tuple(_marked(words, named, group) for words in users)
    names = np.array([1 << first for first in group], np.uint64)
    ends = list(itertools.accumulate(pruned.types[v].elements for v in pruned.outputs))[:-1]
    of_roots = tuple(
        part.reshape(pruned.types[v].shape) for v, part in zip(pruned.outputs, np.split(names, ends), strict=True)
    )
    return RootGroups(pruned, marks, of_roots, tuple(group.count(number) for number in range(count)))


def _named(words: set[int], count: int) -> set[int]:
    """Of the sets of roots that share an element, the smallest that each root is in."""
    least = [min(word.bit_count() for word in words if word >> number & 1) for number in range(count)]
    return {word for word in words if any(word >> n & 1 and word.bit_count() == least[n] for n in range(count))}


def _joined(words: set[int], count: int) -> list[int]:
    """For every root the first one of its group; the roots of a word are of one group."""
    group = list(range(count))
    for word in words:
        together = {group[number] for number in range(count) if word >> number & 1}
        group = [min(together) if first in together else first for first in group]
    return group


def _marked(words: Words, named: set[int], group: list[int]) -> Words:
    """The words that are named as the bit of their one group, others as 0."""
    unique, inverse = np.unique(words, return_inverse=True)
    bits = [1 << group[(word & -word).bit_length() - 1] if word in named else 0 for word in map(int, unique)]
    return np.array(bits, np.uint64)[inverse].reshape(words.shape)


def _independent(groups: RootGroups, count: int) -> bool:
    """Whether samples show that no product of the radicands is a square, and that each changes with its group."""
    basis: dict[int, int] = {}
    varied = np.zeros(count, bool)
    for seed in range(count + SPARE_SAMPLES):
        instance = FieldInstance.draw(seed, LARGE)
        one, other = (
            [instance.random(f"{i.name} {label}", i.type.shape, True, False) for i in groups.pruned.inputs]
            for label in ("one", "other")
        )
        mixed = [replaced(x, y, marks != 0) for x, y, marks in zip(one, other, groups.marks, strict=True)]
        first, second = (_sample(groups.pruned, instance, inputs) for inputs in (one, mixed))
        if first is None or second is None:
            continue
        varied |= first[0] != second[0]
        for _, missing in (first, second):
            _reduce(basis, sum(1 << int(number) for number in np.flatnonzero(missing)))
        if len(basis) == count and varied.all():
            return True
    return False


def _sample(
    pruned: KernelGraph, instance: FieldInstance, inputs: Sequence[FieldTensor]
) -> tuple[Residues, Mask] | None:
    """The radicands at these inputs and which have no root; None if one of them is zero or has no value."""
    noted: list[FieldTensor] = []
    evaluate_all(pruned, inputs, instance, noted)
    shapes = [pruned.types[v].shape for v in pruned.outputs]
    flat = [np.broadcast_to(np.asarray(x.p), shape).reshape(-1) for x, shape in zip(noted, shapes, strict=True)]
    radicands = np.concatenate(flat)
    if not all(x.defined.all() for x in noted) or not radicands.all():
        return None
    return radicands, instance.p.power(radicands, (instance.p.value - 1) // 2) != 1  # Euler's criterion


def _reduce(basis: dict[int, int], vector: int) -> None:
    """Add a vector over {0, 1} to a basis, keyed by leading bits, unless it is a sum of others."""
    while vector:
        lead = vector.bit_length()
        if lead not in basis:
            basis[lead] = vector
            return
        vector ^= basis[lead]
