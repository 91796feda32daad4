"""Groups of input elements that are drawn again together until square roots exist, and what is known of the roots.

In: a program. Out: `RootGroups`, or None where the argument of `towers` does not apply. Every root element
names the input elements that it shares with the fewest others, such as a row's own numbers and not a gain that
all rows share; roots that share named elements, with these elements, are a group. So groups are disjoint, a root
depends on named elements of its own group only, and a group in which a root does not exist is drawn again
whole. Given the elements outside of groups, which are never drawn again, groups are independent, and what a
group becomes is one of at most `VERSIONS` independent uniform draws.

That a root is no rational function of the elements of its group and of the roots before it is observed, modulo
the primes of a trial and at its elements outside of groups: such a function of a point has a value wherever its
square has one that is not zero. So one sample of the group's elements settles it in which the roots before it
exist and it does not. What holds for every group by itself holds for all, as groups share no elements.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mirage_nb.interp.field import FieldAlgebra, FieldInstance, FieldTensor, Noted, evaluate_all
from mirage_nb.interp.instance import FieldStack, Words, stacked
from mirage_nb.interp.modular import Modulus, Residues
from mirage_nb.interp.run import run_kernel
from mirage_nb.interp.shared import StackAlgebra
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.verify.fields.lax import EXPONENTIALS, all_ops, is_opaque, is_root
from mirage_nb.verify.fields.roots import Mask, Parts, blame, replaced, rooted_inputs, up_to_roots

VERSIONS = 32
"""Draws of one group at most; a group of two roots fails them all once in ten thousand trials."""
AT_ONCE = 16
"""Versions that are drawn side by side."""
MAX_TOGETHER = 2
"""Roots of one group. With more, they rarely exist together."""
MAX_ROOTS = 64
"""Roots of a program, one bit for each."""
SAMPLES = 64
"""Samples to see that roots extend the field; every fourth one shows it for the second root of a group."""


@dataclass(frozen=True, slots=True)
class RootGroups:
    """`pruned` computes the roots; `marks`: for every input, the bit of each element's group or 0; `of_roots`:
    for every output of `pruned`, the bit of each root's group; `group`: for every root the first of its group."""

    pruned: KernelGraph
    marks: tuple[Words, ...]
    of_roots: tuple[Words, ...]
    group: tuple[int, ...]

    @property
    def together(self) -> int:
        """The largest number of roots in a group."""
        return max(self.group.count(first) for first in self.group)

    def failed(self, inputs: Sequence[FieldTensor], instances: FieldStack) -> Words:
        """For every instance, the groups in which a root does not exist."""
        values = run_kernel(self.pruned, list(inputs), StackAlgebra(FieldAlgebra(instances)))
        found = np.zeros(len(instances.instances), np.uint64)
        for value, words in zip(self.pruned.outputs, self.of_roots, strict=True):
            missing = np.where(values[value].defined, np.uint64(0), words)
            found |= np.bitwise_or.reduce(missing.reshape(len(found), -1), axis=1)
        return found

    def radicands(self, inputs: Sequence[FieldTensor], instance: FieldInstance) -> list[Radicands]:
        """What roots are taken of, modulo p and modulo q as far as there, in the order of `group`."""
        noted = Noted().radicands
        evaluate_all(self.pruned, inputs, instance, Noted(noted))
        shapes = [self.pruned.types[v].shape for v in self.pruned.outputs]
        defined = np.concatenate([x.defined.reshape(-1) for x in noted])
        found = []
        for modulus, parts in ((instance.p, [x.p for x in noted]), (instance.q, [x.q for x in noted])):
            flat = [
                np.zeros(shape, np.uint64).reshape(-1) if part is None else np.broadcast_to(part, shape).reshape(-1)
                for part, shape in zip(parts, shapes, strict=True)
            ]
            there = np.concatenate([np.full(x.size, part is not None) for x, part in zip(flat, parts, strict=True)])
            found.append(Radicands(modulus, np.concatenate(flat), there, defined))
        return found

    def extend_the_field(self, inputs: Sequence[FieldTensor], instance: FieldInstance) -> bool:
        """Whether samples show that each root is no function of those before it, modulo p and q."""
        before = [[n for n in range(number) if self.group[n] == first] for number, first in enumerate(self.group)]
        unseen: set[tuple[int, int]] | None = None
        for sample in range(SAMPLES):
            mixed = [
                replaced(x, instance.random(i.name, x.shape, x.p is not None, x.q is not None, f"sample {sample}"), m)
                for i, x, m in zip(self.pruned.inputs, inputs, (marks != 0 for marks in self.marks), strict=True)
            ]
            radicands = self.radicands(mixed, instance)
            if unseen is None:
                unseen = {(part, int(n)) for part, r in enumerate(radicands) for n in np.flatnonzero(r.there)}
            for part, found in enumerate(radicands):
                square, other = found.squares()
                seen = {n for at, n in unseen if at == part and other[n] and all(square[k] for k in before[n])}
                unseen -= {(part, n) for n in seen}
            if not unseen:
                return True
        return False


@dataclass(frozen=True, slots=True)
class Radicands:
    """One part of all radicands of a program, flat; which of them have this part, and which have a value."""

    modulus: Modulus
    values: Residues
    there: Mask
    defined: Mask

    def squares(self) -> tuple[Mask, Mask]:
        """Which ones are squares other than zero, and which ones have no root (Euler's criterion)."""
        sign = self.modulus.power(self.values, (self.modulus.value - 1) // 2)
        usable = self.there & self.defined & (self.values != 0)
        return usable & (sign == 1), usable & (sign != 1)


def draw_inputs(graph: KernelGraph, instance: FieldInstance, parts: Parts) -> tuple[FieldTensor, ...]:
    """Random inputs of `graph` whose square roots exist, by groups where there are such."""
    if root_groups(graph) is None:
        return rooted_inputs(graph, instance, parts)
    found = draw_stacked(graph, FieldStack((instance,)), parts)
    return tuple(x.moved(lambda array: array[0]) for x in found)


def draw_stacked(graph: KernelGraph, instances: FieldStack, parts: Parts) -> tuple[FieldTensor, ...]:
    """What `draw_inputs` draws for every instance, side by side."""
    groups = root_groups(graph)
    if groups is None:
        drawn = [rooted_inputs(graph, instance, parts) for instance in instances.instances]
        return tuple(stacked(tensors) for tensors in zip(*drawn, strict=True))
    inputs = [instances.random(i.name, i.type.shape, *parts[i.name]) for i in graph.inputs]
    failed = groups.failed(inputs, instances)
    for version in range(1, VERSIONS, AT_ONCE):
        still = [number for number, word in enumerate(failed) if word]
        if not still:
            break
        failed[still] = _again(groups, inputs, [instances.instances[n] for n in still], still, failed, parts, version)
    return tuple(inputs)


def _again(
    groups: RootGroups,
    inputs: Sequence[FieldTensor],
    instances: Sequence[FieldInstance],
    places: Sequence[int],
    failed: Words,
    parts: Parts,
    version: int,
) -> Words:
    """Draw failed groups of the instances at these places again, several versions side by side: each takes the first
    in which its roots exist. The words of the groups that are left."""
    count = min(AT_ONCE, VERSIONS - version)
    rows = list(places)
    side_by_side: list[FieldTensor] = []
    fresh: list[FieldTensor | None] = []
    read = {value for op in groups.pruned.ops for value in op.inputs}
    for value, (given, old, marks) in enumerate(zip(groups.pruned.inputs, inputs, groups.marks, strict=True)):
        if value not in read:
            side_by_side.append(old)
            fresh.append(None)
            continue
        repeated = old.moved(lambda array: np.repeat(array[rows], count, axis=0))
        new = None
        if marks.any():
            shape = count, *given.type.shape
            new = stacked([x.random(given.name, shape, *parts[given.name], f"again {version}") for x in instances])
            repeated = replaced(repeated, new.moved(lambda array: array.reshape(-1, *array.shape[2:])), marks != 0)
        fresh.append(new)
        side_by_side.append(repeated)
    bad = groups.failed(side_by_side, FieldStack([instance for instance in instances for _ in range(count)]))
    bits = np.unique(np.array([1 << first for first in groups.group], np.uint64))
    wanted = (failed[rows, None] & bits) != 0
    good = (bad.reshape(-1, count, 1) & bits) == 0
    chosen = np.where(wanted & good.any(axis=1), good.argmax(axis=1), -1)
    for old, drawn, marks in zip(inputs, fresh, groups.marks, strict=True):
        if drawn is not None:
            group = np.searchsorted(bits, marks)  # of what is in no group, any
            version_of = np.where(marks == 0, -1, chosen[:, np.minimum(group, len(bits) - 1)])
            for kept, other in ((old.p, drawn.p), (old.q, drawn.q)):
                if kept is not None and other is not None:
                    taken = np.take_along_axis(other, np.maximum(version_of, 0)[:, None], axis=1)[:, 0]
                    kept[rows] = np.where(version_of >= 0, taken, kept[rows])
    left: Words = np.bitwise_or.reduce(np.where(wanted & (chosen < 0), bits, np.uint64(0)), axis=1)
    return left


@functools.lru_cache(maxsize=256)
def root_groups(graph: KernelGraph) -> RootGroups | None:
    """The groups of a program whose roots are few and depend on no exponential and no uninterpreted function."""
    pruned = up_to_roots(graph)
    count = sum(pruned.types[v].elements for v in pruned.outputs)
    inside = any(is_root(inner) for op in graph.ops if op.body is not None for inner in all_ops(op.body))
    if not 0 < count <= MAX_ROOTS or inside or any(_unwanted(op.kind) or is_opaque(op) for op in all_ops(pruned)):
        return None
    found = _grouped(pruned, count)
    return found if found is not None and found.together <= MAX_TOGETHER else None


def _unwanted(kind: OpKind) -> bool:
    return kind in EXPONENTIALS or kind in (OpKind.MAX, OpKind.RESCALED_SUM, OpKind.ACCUM)


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
    named = _named({int(word) for words in users if words.any() for word in np.unique(words)}, count)
    group = _joined(named, count)
    marks = tuple(_marked(words, named, group) for words in users)
    names = np.array([1 << first for first in group], np.uint64)
    ends = list(itertools.accumulate(pruned.types[v].elements for v in pruned.outputs))[:-1]
    of_roots = tuple(
        part.reshape(pruned.types[v].shape) for v, part in zip(pruned.outputs, np.split(names, ends), strict=True)
    )
    return RootGroups(pruned, marks, of_roots, tuple(group))


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
    if not words.any():
        return words
    unique, inverse = np.unique(words, return_inverse=True)
    bits = [1 << group[(word & -word).bit_length() - 1] if word in named else 0 for word in map(int, unique)]
    return np.array(bits, np.uint64)[inverse].reshape(words.shape)
