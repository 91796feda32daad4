"""Random field instances and the tensors over them (paper section 5.2).

In: a seed and a pool of primes. Out: `FieldInstance`, from which every random element of a trial follows,
and `FieldTensor`, a tensor of pairs of residues in which single elements may be undefined. The same seed
gives the same instance and the same elements on every machine. `FieldStack` is several instances side by side, for
tensors whose first dimension counts them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.arrays import Array
from mirage_nb.interp.modular import Arithmetic, Moduli, Modulus, Residues, mix
from mirage_nb.interp.primes import PRIMES, Pool
from mirage_nb.interp.undrawn import AT_ONCE, Undrawn
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
    def defined(self) -> Mask:
        """Which elements have a value."""
        if self.undefined is None:
            return np.ones_like(self.any_part, dtype=bool)
        return ~np.broadcast_to(self.undefined, self.shape)

    def moved(self, move: Callable[[Array], Array]) -> FieldTensor:
        """The tensor with its elements moved."""
        undefined = None
        if self.undefined is not None:
            undefined = move(np.broadcast_to(self.undefined, self.shape))
        p, q, sets = (None if part is None else move(part) for part in (self.p, self.q, self.sets))
        return FieldTensor(p, q, undefined, sets)


def _same(array: Array) -> Array:
    return array


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Device:
    """Where field values are computed: `to` brings NumPy arrays there, `back` brings arrays from there, `release` gives
    back the memory of arrays that are gone."""

    name: str = "CPU"
    to: Callable[[Array], Array] = _same
    back: Callable[[Array], Array] = _same
    release: Callable[[], None] = _nothing

    def __repr__(self) -> str:
        return f"<Device {self.name}>"


CPU = Device()


@dataclass(frozen=True)
class FieldInstance:
    """One random choice of fields: primes p = 2q + 1, a q-th root of unity modulo p, and the seed.

    Elements are drawn on the CPU wherever the `device` is, so they are the same.
    """

    p: Modulus
    q: Modulus
    root: int
    seed: int
    device: Device = CPU

    @classmethod
    def draw(cls, seed: int, pool: Pool = PRIMES) -> FieldInstance:
        """Primes uniform in the pool, root uniform among the q-th roots of unity; a function of the seed."""
        rng = np.random.default_rng([seed, 0])
        p, q = pool.draw(rng)
        return cls(Modulus(p), Modulus(q), pow(int(rng.integers(1, p)), 2, p), seed)

    def random(self, name: str, shape: Shape, p: bool = True, q: bool = True, kind: str = "") -> FieldTensor:
        """Uniform elements, independent for every name, kind and part; the parts asked for, at least one. Inputs have
        any names, so what else is drawn has a kind."""
        p = p or not q
        parts = [
            self.placed(self._uniform((kind, name, part) if kind else (name, part), modulus.value, shape))
            if wanted
            else None
            for part, modulus, wanted in (("p", self.p, p), ("q", self.q, q))
        ]
        return FieldTensor(parts[0], parts[1])

    def _uniform(self, labels: tuple[str, ...], bound: int, shape: Shape) -> Residues:
        if math.prod(shape) < UNDRAWN:
            return _uniform(self.generator(*labels), bound, shape)
        undrawn: Any = Undrawn.of(self.key("undrawn elements", "of", *labels), bound, shape)
        return cast(Residues, undrawn)

    def number(self, value: Fraction, dims: int) -> FieldTensor:
        """A rational number; undefined where its denominator is zero."""
        return _rational(self.p, self.q, value, dims).moved(self.placed)

    def symbol(self, name: str, dims: int) -> FieldTensor:
        """One random element."""
        if name not in self._symbols:
            self._symbols[name] = self.random(name, (), kind="symbol")
        return self._symbols[name].moved(lambda part: part.reshape((1,) * dims))

    def placed(self, array: Array) -> Array:
        """The array where the others are."""
        return self.device.to(array)

    def generator(self, *labels: str) -> np.random.Generator:
        """A generator that depends on the seed and the labels only."""
        return np.random.Generator(np.random.SFC64([self.seed, 1, *_words(labels)]))

    def key(self, *labels: str) -> int:
        """A random 64-bit key for the labels."""
        if labels not in self._keys:
            named = hashlib.sha256(f"{self.seed} {labels}".encode()).digest()  # quicker than a generator
            self._keys[labels] = int.from_bytes(named[:8], "little")
        return self._keys[labels]

    def mixed(self, words: Words, *labels: str) -> Words:
        """A random function of words, one for the labels."""
        return mix(words, self.key(*labels))

    def exp(self, x: Residues) -> Residues:
        """root ** x modulo p, by a table for every digit of x."""
        factors = [table[digit] for table, digit in zip(self._tables, _digits(x), strict=False)]
        return functools.reduce(self.p.mul, factors)

    @cached_property
    def _keys(self) -> dict[tuple[str, ...], int]:
        return {}

    @cached_property
    def _symbols(self) -> dict[str, FieldTensor]:
        return {}

    @cached_property
    def _tables(self) -> tuple[Residues, ...]:
        """For every digit of an exponent, lowest first, root to the power of it."""
        roots = np.full(1, self.root, np.uint64)
        return tuple(map(self.placed, _digit_tables(roots, self.p, self.q.value)))


class FieldStack:
    """Several instances of one pool side by side: of every array, index n of the first dimension is that of
    instance n, and the same as if that instance were by itself."""

    def __init__(self, instances: Sequence[FieldInstance]) -> None:
        self.instances = tuple(instances)
        self.p = Moduli(tuple(instance.p.value for instance in instances))
        self.q = Moduli(tuple(instance.q.value for instance in instances))
        self._keys: dict[tuple[str, ...], Words] = {}
        self._constants: dict[str | Fraction, FieldTensor] = {}

    def random(self, name: str, shape: Shape, p: bool = True, q: bool = True, kind: str = "") -> FieldTensor:
        """Uniform elements; `shape` is that of every instance."""
        return stacked([instance.random(name, shape, p, q, kind) for instance in self.instances])

    def number(self, value: Fraction, dims: int) -> FieldTensor:
        """A rational number, made once."""
        if value not in self._constants:
            self._constants[value] = _rational(self.p, self.q, value, 1)
        return self._constants[value].moved(lambda part: part.reshape(-1, *(1,) * (dims - 1)))

    def symbol(self, name: str, dims: int) -> FieldTensor:
        """One random element for each instance, drawn once."""
        if name not in self._constants:
            self._constants[name] = stacked([instance.symbol(name, 0) for instance in self.instances])
        return self._constants[name].moved(lambda part: part.reshape(-1, *(1,) * (dims - 1)))

    def placed(self, array: Array) -> Array:
        """The array: a stack is made of small ones, which stay here."""
        return array

    def mixed(self, words: Words, *labels: str) -> Words:
        """A random function of words for each instance and the labels."""
        if labels not in self._keys:
            self._keys[labels] = np.array([instance.key(*labels) for instance in self.instances], np.uint64)
        return mix(words, self._keys[labels])

    def exp(self, x: Residues) -> Residues:
        """The roots to the power of x."""
        lead = np.arange(len(self.instances)).reshape(-1, *(1,) * (x.ndim - 1))
        factors = [table[lead, digit] for table, digit in zip(self._tables, _digits(x), strict=False)]
        return functools.reduce(self.p.mul, factors)

    @cached_property
    def _tables(self) -> tuple[Residues, ...]:
        """For every digit of an exponent, lowest first, the roots to the power of it."""
        roots = np.array([[instance.root] for instance in self.instances], np.uint64)
        return tuple(_digit_tables(roots, self.p, max(self.q.values)))


Fields = FieldInstance | FieldStack
"""What an evaluation needs to know of."""


def stacked(tensors: Sequence[FieldTensor]) -> FieldTensor:
    """Tensors of the same shape and parts as one, which counts them in its first dimension."""

    def joined(parts: Sequence[Any]) -> Any:
        if any(part is None for part in parts):
            return None
        return parts[0][None] if len(parts) == 1 else np.stack(parts)

    undefined = None
    if any(x.undefined is not None for x in tensors):
        undefined = np.stack([~x.defined for x in tensors])
    return FieldTensor(
        joined([x.p for x in tensors]), joined([x.q for x in tensors]), undefined, joined([x.sets for x in tensors])
    )


def _rational(p: Arithmetic, q: Arithmetic, value: Fraction, dims: int) -> FieldTensor:
    parts = [m.mul(m.residues(value.numerator, dims), m.inverse(m.residues(value.denominator, dims))) for m in (p, q)]
    zero = (p.residues(value.denominator, dims) == 0) | (q.residues(value.denominator, dims) == 0)
    return FieldTensor(parts[0], parts[1], zero if zero.any() else None)


LARGE_TENSOR = 2**22
"""Elements from which on residues are kept as uint32."""
UNDRAWN = 2**28
"""Elements from which on they are drawn where they are read: what is held takes less than 1 GiB."""


def _uniform(generator: np.random.Generator, bound: int, shape: Shape) -> Residues:
    """Uniform numbers below the bound; for a large tensor below the largest power of two in it. These are no fewer than
    the smallest prime of a pool that begins at one, which is what the lemma of Schwartz and Zippel asks for."""
    if math.prod(shape) < LARGE_TENSOR:
        return generator.integers(0, bound, shape, dtype=np.uint64)
    flat = np.empty(math.prod(shape), np.uint32)
    surplus = np.uint32(33 - bound.bit_length())
    for at in range(0, len(flat), AT_ONCE):
        block = flat[at : at + AT_ONCE]
        drawn = generator.integers(0, 2**64, (len(block) + 1) // 2, dtype=np.uint64)
        np.right_shift(drawn.view(np.uint32)[: len(block)], surplus, out=block)
    found: Any = flat.reshape(shape)
    return cast(Residues, found)


@functools.lru_cache(maxsize=4096)
def _words(labels: tuple[str, ...]) -> tuple[int, ...]:
    """Four words of 32 bits that stand for the labels."""
    named = hashlib.sha256(repr(labels).encode()).digest()
    return tuple(int.from_bytes(named[i : i + 4], "little") for i in range(0, 16, 4))


DIGIT = 10
"""Bits of a digit of an exponent: tables of so many powers stay in the cache."""


def _digits(x: Residues) -> Iterator[Residues]:
    """The digits of exponents, lowest first."""
    mask = np.uint64(2**DIGIT - 1)
    return (x >> np.uint64(shift) & mask for shift in itertools.count(0, DIGIT))


def _digit_tables(roots: Residues, modulus: Arithmetic, below: int) -> Iterator[Residues]:
    """For every digit of exponents below a number, the powers of the roots, of which each has one element."""
    while below > 0:
        yield _powers(roots, min(2**DIGIT, below + 1), modulus)
        below >>= DIGIT
        roots = modulus.power(roots, 2**DIGIT)


def _powers(base: Residues, count: int, modulus: Arithmetic) -> Residues:
    """base ** 0, base ** 1, .. along the last dimension, of which base has one element."""
    powers, step = np.ones_like(base), base
    while powers.shape[-1] < count:
        powers = np.concatenate([powers, modulus.mul(powers, step)], axis=-1)
        step = modulus.mul(step, step)
    return powers[..., :count]


def random_inputs(
    graph: KernelGraph, instance: FieldInstance, parts: Mapping[str, tuple[bool, bool]] | None = None
) -> tuple[FieldTensor, ...]:
    """Uniform field tensors for the inputs of a graph; `parts` says which of (p, q) an input needs."""
    return tuple(
        instance.random(i.name, i.type.shape, *(parts[i.name] if parts is not None else (True, True)))
        for i in graph.inputs
    )
