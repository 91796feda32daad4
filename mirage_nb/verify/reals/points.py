"""Where two graphs are looked at over the reals: points of several magnitudes and signs, and special values.

In: a seed. Out: points, each a function that gives the number that stands at an index of an input. All numbers are
short rationals, so sums and products of them are exact; no input is ever held, whatever its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp.nodes import Index
from mirage_nb.interp.numbers import Array, fmpq
from mirage_nb.interp.slices import Draw
from mirage_nb.interp.undrawn import splitmix

Words = NDArray[np.uint64]
Ints = NDArray[np.int64]

MANTISSA = 12
"""Bits of a number that is no special one."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How to fill inputs: from random words, whole numbers and powers of two that they are multiplied by; None: every
    input with something else. `close`: a difference is looked for beyond all rounding; `one`: all elements of an input
    are the same."""

    name: str
    fill: Callable[[Words], tuple[Ints, Ints]] | None
    close: bool = False
    one: bool = False


def point(kind: Kind, seed: int) -> Draw:
    """The point of a kind that follows from the seed. What it gave once it gives again."""
    known: dict[tuple[str, bytes], Array] = {}

    def draw(name: str, at: Index) -> Array:
        given = known.get((name, at.tobytes()))
        return known.setdefault((name, at.tobytes()), made(name, at)) if given is None else given

    def made(name: str, at: Index) -> Array:
        key = hashlib.sha256(f"{seed} {kind.name} {name}".encode()).digest()
        places = np.zeros_like(at) if kind.one else at
        fill = kind.fill or OWN[key[8] % len(OWN)]
        mantissas, exponents = fill(splitmix(places.view(np.uint64), int.from_bytes(key[:8], "little")))
        found = np.empty(len(at), object)
        found[:] = [_scaled(m, e) for m, e in zip(mantissas.tolist(), exponents.tolist(), strict=True)]
        return found

    return draw


def _scaled(mantissa: int, exponent: int) -> fmpq:
    return fmpq(mantissa << exponent) if exponent >= 0 else fmpq(mantissa, 1 << -exponent)


def _size(words: Words) -> Ints:
    """Numbers of `MANTISSA` bits and one more."""
    found: Ints = (words >> np.uint64(64 - MANTISSA)).astype(np.int64) + 2**MANTISSA
    return found


def _sign(words: Words) -> Ints:
    found: Ints = 1 - 2 * (words & np.uint64(1)).astype(np.int64)
    return found


def _below(words: Words, bound: int) -> Ints:
    found: Ints = ((words >> np.uint64(1)) % np.uint64(bound)).astype(np.int64)
    return found


def _around(exponent: int, spread: int = 1) -> Callable[[Words], tuple[Ints, Ints]]:
    """Both signs, around a power of two."""
    return lambda words: (_sign(words) * _size(words), exponent - MANTISSA + _below(words, spread) - spread // 2)


def _of_sign(sign: int, exponent: int = 0) -> Callable[[Words], tuple[Ints, Ints]]:
    return lambda words: (sign * _size(words), np.full(len(words), exponent - MANTISSA - 1))


def _whole(words: Words) -> tuple[Ints, Ints]:
    """From -3 to 3."""
    return _below(words, 7) - 3, np.zeros(len(words), np.int64)


def _sparse(words: Words) -> tuple[Ints, Ints]:
    """Half of all numbers 0, the others 1, -1, 2, -2."""
    twice: Ints = (words >> np.uint64(63)).astype(np.int64)
    return _below(words, 2) * _sign(words), twice


def _zero(words: Words) -> tuple[Ints, Ints]:
    return np.zeros(len(words), np.int64), np.zeros(len(words), np.int64)


def _mostly(sign: int) -> Callable[[Words], tuple[Ints, Ints]]:
    """Of one sign, but for one number in four."""
    return lambda words: (sign * _size(words) * (1 - 2 * (_below(words, 4) == 0)), np.full(len(words), -MANTISSA))


def _with_zeros(words: Words) -> tuple[Ints, Ints]:
    """Positive, but for one number in four, which is 0."""
    return _size(words) * (_below(words, 4) > 0), np.full(len(words), -MANTISSA)


OWN = (_of_sign(1), _of_sign(-1), _mostly(1), _with_zeros, _whole, _around(0))
"""What single inputs are filled with where each is of a kind of its own."""

KINDS = (
    Kind("around 1", _around(0), close=True),
    Kind("around 1/1000", _around(-10), close=True),
    Kind("small whole numbers", _whole),
    Kind("positive", _of_sign(1), close=True),
    Kind("around 1000", _around(10)),
    Kind("many zeros", _sparse),
    Kind("negative", _of_sign(-1), close=True),
    Kind("of all magnitudes", _around(0, 48)),
    Kind("positive, around 1000", _of_sign(1, 11)),
    Kind("around 2^70", _around(70)),
    Kind("all elements of an input the same", _around(0), one=True),
    Kind("zero", _zero),
    Kind("mostly positive", _mostly(1)),
    Kind("positive, with zeros", _with_zeros),
    Kind("mostly negative", _mostly(-1)),
    Kind("every input of a kind of its own", None),
    Kind("every input of another kind of its own", None),
    Kind("every input of a third kind of its own", None),
)
"""The most telling ones first."""
ZEROS = tuple(kind for kind in KINDS if kind.fill in (_sparse, _with_zeros))
"""At their points some elements are 0 and some are not."""
COUNTED = tuple((kind, step) for kind in KINDS if kind.name in ("positive", "around 1") for step in (1, 2))
"""What other inputs are, and how far it is from one place to the next, where those that are only compared count."""


def counted(start: Draw, below: Mapping[str, int], step: int) -> Draw:
    """A point with numbers of places in these inputs, below so many (0: any): of other real numbers hardly two are
    equal."""

    def draw(name: str, at: Index) -> Array:
        if name not in below:
            return start(name, at)
        found = np.empty(len(at), object)
        found[:] = [fmpq(step * place % (below[name] or step * place + 1)) for place in at.tolist()]
        return found

    return draw


def between(start: Draw, end: Draw, share: object) -> Draw:
    """The point that lies a share, a number, of the way from one point to another."""
    return lambda name, at: (first := start(name, at)) + (end(name, at) - first) * share
