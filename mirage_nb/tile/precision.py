"""Products of f32 made of products of shorter numbers: what is computed, and how far off it may be.

In: nothing. Out: `COMPOSITIONS`, by name; what NumPy makes of one, rounding as the card does; its error bound.
An operand x is cut into pieces x0 + x1 + ..., each of what is left rounded to the bits of a shorter type; a product is
the sum of the listed products of pieces, smallest first. (Mosaic transforms instructions so, section 4.1; cutting
floats is Dekker's, and that sums have to leave the tensor cores, which drop bits, is Ootomo and Yokota's, 2022.)
Invariant: for finite operands that neither overflow nor sink below the smallest normal number of the shorter type,
|found - exact| <= `bound(composition, depth)` times the sum of |left| |right|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

UNIT = 2.0**-24
"""Half a last place of f32."""
CHUNK = 32
"""Summed elements after which a sum of tensor cores is added to one of plain cores."""


@dataclass(frozen=True, slots=True)
class Composition:
    """bits: of a piece's significand, the leading one included. cut: bits beyond are dropped, else rounded to nearest.
    pieces: of an operand. terms: which pieces of left and right are multiplied, in order. exponents: bits of the
    shorter type's exponent; where they are fewer than f32's, piece number p is held 2^(bits * p) times as large."""

    name: str
    bits: int
    cut: bool
    pieces: int
    terms: tuple[tuple[int, int], ...]
    exponents: int = 8

    def scale(self, piece: int) -> float:
        """How much larger a piece is held."""
        return 2.0 ** (self.bits * piece) if self.exponents < 8 else 1.0

    @property
    def unit(self) -> float:
        """The largest relative error of one rounding."""
        return 2.0 ** -(self.bits - (1 if self.cut else 0))


def _terms(pieces: int, most: int) -> tuple[tuple[int, int], ...]:
    """All pairs of pieces whose numbers add up to at most `most`, the smallest products first."""
    every = [(a, b) for a in range(pieces) for b in range(pieces) if a + b <= most]
    return tuple(sorted(every, key=lambda pair: (-sum(pair), pair)))


COMPOSITIONS: dict[str, Composition] = {
    c.name: c
    for c in (
        Composition("tf32", 11, True, 1, _terms(1, 0)),
        Composition("3xtf32", 11, True, 2, _terms(2, 1)),
        Composition("3xbf16", 8, False, 2, _terms(2, 1)),
        Composition("6xbf16", 8, False, 3, _terms(3, 2)),
        Composition("3xf16", 11, False, 2, _terms(2, 1), exponents=5),
    )
}


def bound(composition: Composition, depth: int) -> float:
    """The error that may be, relative to the sum of |left| |right| over `depth` elements.

    What is missing is the rest of each operand behind its pieces, and the terms left out. What is summed is summed in
    f32: inside a chunk by tensor cores, which may drop a last place at every step, then by rounding additions.
    """
    u, pieces = composition.unit, composition.pieces
    rest = u**pieces
    size = (1 + u) ** 2
    left_out = sum(u ** (a + b) * size for a in range(pieces) for b in range(pieces) if (a, b) not in composition.terms)
    steps = len(composition.terms) * min(depth, CHUNK)
    chunks = -(-depth // CHUNK)
    summed = (2 * steps + chunks) * UNIT
    return (2 * rest + rest * rest + left_out + summed * (1 + u) ** 2) * (1 + summed)


def rounded(values: Array, bits: int, *, cut: bool) -> Array:
    """f32 values with so many bits left; to nearest, ties away from zero, or cut off."""
    stored = np.ascontiguousarray(values, np.float32).view(np.uint32)
    drop = np.uint32(24 - bits)
    half = np.uint32(0 if cut else 1 << (23 - bits))
    return ((stored + half) >> drop << drop).view(np.float32)


def pieces(values: Array, composition: Composition) -> list[Array]:
    """The pieces of f32 values, not scaled."""
    rest, found = np.asarray(values, np.float32), []
    for number in range(composition.pieces):
        piece = rounded(rest, composition.bits, cut=composition.cut)
        if composition.exponents == 5:
            scale = np.float32(composition.scale(number))
            piece = (piece * scale).astype(np.float16).astype(np.float32) / scale
        found.append(piece)
        rest = rest - piece
    return found


def composed(left: Array, right: Array, composition: Composition) -> Array:
    """left [..., m, k] @ right [..., k, n] as the card computes it: products are exact in f32's neighbours, sums of a
    chunk drop what lies beyond f32, chunks are added rounding to nearest."""
    a, b = pieces(left, composition), pieces(right, composition)
    depth = left.shape[-1]
    total = np.zeros(np.matmul(left[..., :1], right[..., :1, :]).shape, np.float32)
    for start in range(0, depth, CHUNK):
        part = np.zeros_like(total)
        for k in range(start, min(depth, start + CHUNK)):
            for x, y in composition.terms:
                exact = np.multiply(a[x][..., :, k, None], b[y][..., None, k, :], dtype=np.float64)
                part = toward_zero(part.astype(np.float64) + exact)
        total = total + part
    return total


def toward_zero(values: Array) -> Array:
    """float64 values as f32, cut off."""
    near = values.astype(np.float32)
    beyond = np.abs(near.astype(np.float64)) > np.abs(values)
    return np.where(beyond, np.nextafter(near, np.float32(0)), near)
