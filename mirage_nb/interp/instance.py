"""Random field instances and the tensors over them (paper section 5.2).

In: a seed and a pool of primes. Out: `FieldInstance`, from which every random element of a trial follows,
and `FieldTensor`, a tensor of pairs of residues in which single elements may be undefined. The same seed
gives the same instance and the same elements on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.arrays import Array
from mirage_nb.interp.modular import SMALL, Modulus, Pool, Residues
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.ops import Shape

Mask = NDArray[np.bool_]
Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FieldTensor:
    """Residues modulo p and modulo q (None: not there, as after an exponential), both of one shape.

    `undefined` marks elements without a value (None: all have one). `sets` is there for maxima: for every
    element a fingerprint of the set of elements that it is the maximum of.
    """

    p: Residues | None
    q: Residues | None
    undefined: Mask | None = None
    sets: Words | None = None

    @property
    def any_part(self) -> Residues:
        """One of the parts, for its shape."""
        part = self.p if self.p is not None else self.q
        if part is None:
            raise AssertionError("a field tensor has a part")
        return part

    @property
    def shape(self) -> Shape:
        """Extents."""
        return self.any_part.shape

    @property
    def exponential(self) -> bool:
        """Whether the value has no q part: an exponential stands on a path to it."""
        return self.q is None

    @property
    def defined(self) -> Mask:
        """Which elements have a value."""
        if self.undefined is None:
            return np.ones(self.shape, bool)
        return ~np.broadcast_to(self.undefined, self.shape)

    def moved(self, move: Callable[[Array], Array]) -> FieldTensor:
        """The tensor with its elements moved."""
        undefined = None
        if self.undefined is not None:
            undefined = move(np.broadcast_to(self.undefined, self.shape))
        p, q, sets = (None if part is None else move(part) for part in (self.p, self.q, self.sets))
        return FieldTensor(p, q, undefined, sets)


@dataclass(frozen=True)
class FieldInstance:
    """One random choice of fields: primes p = 2q + 1, a q-th root of unity modulo p, and the seed."""

    p: Modulus
    q: Modulus
    root: int
    seed: int

    @classmethod
    def draw(cls, seed: int, pool: Pool = SMALL) -> FieldInstance:
        """Primes uniform in the pool, root uniform among the q-th roots of unity; a function of the seed."""
        rng = np.random.default_rng([seed, 0])
        p, q = pool.pairs[int(rng.integers(len(pool.pairs)))]
        return cls(Modulus(p), Modulus(q), pow(int(rng.integers(1, p)), 2, p), seed)

    def random(self, name: str, shape: Shape, p: bool = True, q: bool = True) -> FieldTensor:
        """Uniform elements, independent for every name and part; the parts asked for, at least one."""
        p = p or not q
        parts = [
            self.generator(name, part).integers(0, modulus.value, shape, dtype=np.uint64) if wanted else None
            for part, modulus, wanted in (("p", self.p, p), ("q", self.q, q))
        ]
        return FieldTensor(parts[0], parts[1])

    def generator(self, *labels: str) -> np.random.Generator:
        """A generator that depends on the seed and the labels only."""
        named = hashlib.sha256(repr(labels).encode()).digest()
        words = [int.from_bytes(named[i : i + 4], "little") for i in range(0, 16, 4)]
        return np.random.Generator(np.random.SFC64([self.seed, 1, *words]))

    def key(self, *labels: str) -> int:
        """A random 64-bit key for the labels."""
        return int(self.generator("key", *labels).integers(0, 2**63))

    def exp(self, x: Residues) -> Residues:
        """root ** x modulo p, by two tables of sqrt(q) entries."""
        low, high = self._tables
        bits = np.uint64(self._bits)
        return self.p.mul(low[x & np.uint64(2**self._bits - 1)], high[x >> bits])

    @cached_property
    def _bits(self) -> int:
        return (self.q.value.bit_length() + 1) // 2

    @cached_property
    def _tables(self) -> tuple[Residues, Residues]:
        size = 2**self._bits
        step = pow(self.root, size, self.p.value)
        return _powers(self.root, size, self.p), _powers(step, self.q.value // size + 1, self.p)


def _powers(base: int, count: int, modulus: Modulus) -> Residues:
    powers = np.ones(1, np.uint64)
    while len(powers) < count:
        factor = np.full(1, pow(base, len(powers), modulus.value), np.uint64)
        powers = np.concatenate([powers, modulus.mul(powers, factor)])
    return powers[:count]


def random_inputs(
    graph: KernelGraph, instance: FieldInstance, parts: Mapping[str, tuple[bool, bool]] | None = None
) -> tuple[FieldTensor, ...]:
    """Uniform field tensors for the inputs of a graph; `parts` says which of (p, q) an input needs."""
    return tuple(
        instance.random(i.name, i.type.shape, *(parts[i.name] if parts is not None else (True, True)))
        for i in graph.inputs
    )
