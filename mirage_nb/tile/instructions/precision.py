"""How products are made on the card: as they are, or f32 of products of shorter numbers; and how far off they may be.

In: nothing. Out: `COMPOSITIONS`, by name, and `EXACT`, by the type of the sums; what NumPy makes of one, rounding as
the card does; how far off it may be. An operand x is cut into pieces x0 + x1 + ..., each of what is left rounded to the
bits of a shorter type; a product is the sum of the listed products of pieces, smallest first. (Mosaic transforms
instructions so, section 4.1; cutting floats is Dekker's, and that sums have to leave the tensor cores, which drop bits,
is Ootomo and Yokota's, 2022.)
Invariant: |found - exact| <= `allowed(left, right, composition)` wherever the sum of |left| |right| is a number of f32
and the operands are numbers of the shorter type's range, however small. What an infinity meets is not finite; where
operands are one piece, it is what IEEE 754 says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_nb.ir import FLOAT8, DType, OpKind

Array = NDArray[Any]

FEW_DIGITS = 13
"""Digits behind the point that tensor cores keep of sums of floats of one byte, on cards with wgmma; others of f32 keep
23 (Khattak and Mikaitis, Accurate Models of NVIDIA Tensor Cores, 2025)."""
FEW_DEPTH = 32
"""Summed elements of such an instruction."""
FEW_CHUNK = 128
"""Summed elements after which such a sum is added to one of plain cores, as libraries do (DeepSeek-V3, section 3.3)."""
CHUNK = 32
"""Summed elements after which a sum of tensor cores is added to one of plain cores."""
SMALLEST = {DType.F32: 2.0**-149, DType.F64: 2.0**-1074}
"""Numbers above zero."""


@dataclass(frozen=True, slots=True)
class Composition:
    """bits: of a piece's significand, the leading one included. cut: bits beyond are dropped, else rounded to nearest.
    pieces: of an operand. terms: which pieces of left and right are multiplied, in order. exponents: bits of the
    shorter type's exponent; where they are fewer than f32's, piece number p is held 2^(bits * p) times as large.
    sums: their type."""

    name: str
    bits: int
    cut: bool
    pieces: int
    terms: tuple[tuple[int, int], ...]
    exponents: int = 8
    sums: DType = DType.F32

    @property
    def exact(self) -> bool:
        """Whether operands are multiplied as they are."""
        return not self.name

    @property
    def apart(self) -> bool:
        """Whether tensor cores sum chunks, and plain ones the chunks."""
        return self.pieces > 1

    def scale(self, piece: int) -> float:
        """How much larger a piece is held."""
        return 2.0 ** (self.bits * piece) if self.exponents < 8 else 1.0

    @property
    def unit(self) -> float:
        """The largest relative error of one rounding of an operand."""
        return 0.0 if self.exact else 2.0 ** -(self.bits - (1 if self.cut else 0))

    def spacing(self, piece: int) -> float:
        """How far apart the smallest numbers are that a piece can be."""
        least = 2 - (1 << self.exponents - 1)
        return 0.0 if self.exact else 2.0 ** (least - self.bits + 1) / self.scale(piece)


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
EXACT = {
    DType.F32: Composition("", 24, False, 1, _terms(1, 0)),
    DType.F64: Composition("", 53, False, 1, _terms(1, 0), exponents=11, sums=DType.F64),
}


def bound(composition: Composition, depth: int) -> float:
    """The error that may be, relative to the sum of |left| |right| over `depth` elements.

    What is missing is the rest of each operand behind its pieces, and the terms left out. What is summed is summed in
    the type of the sums: by tensor cores, which may drop a last place at every step, and where they leave off after a
    chunk by rounding additions.
    """
    u, pieces = composition.unit, composition.pieces
    rest = u**pieces
    size = (1 + u) ** 2
    left_out = sum(u ** (a + b) * size for a in range(pieces) for b in range(pieces) if (a, b) not in composition.terms)
    chunk = CHUNK if composition.apart else depth
    steps, chunks = len(composition.terms) * min(depth, chunk), -(-depth // chunk)
    summed = (2 * steps + chunks) * 2.0 ** (-24 if composition.sums is DType.F32 else -53)
    return (2 * rest + rest * rest + left_out + summed * size) * (1 + summed)


def allowed(left: Array, right: Array, composition: Composition) -> Array:
    """How far left [..., m, k] @ right [..., k, n] may be off: `bound` times the sum of magnitudes, and what is lost of
    elements, and of sums, that are too small to have all their bits."""
    a, b = (np.abs(operand.astype(np.float64)) for operand in (left, right))
    depth, last = left.shape[-1], composition.pieces - 1
    lost = composition.spacing(last) + composition.unit * composition.spacing(0)
    steps = 2 * depth * len(composition.terms)
    least = depth * composition.spacing(0) ** 2 + steps * SMALLEST[composition.sums]
    small = lost * (a.sum(-1)[..., :, None] + b.sum(-2)[..., None, :]) + least
    return np.asarray(bound(composition, depth) * (a @ b) + small)


def rounded(values: Array, bits: int, *, cut: bool) -> Array:
    """f32 values with so many bits left; to nearest, ties away from zero, or cut off."""
    stored = np.ascontiguousarray(values, np.float32).view(np.uint32)
    drop = np.uint32(24 - bits)
    half = np.uint32(0 if cut else 1 << (23 - bits))
    return ((stored + half) >> drop << drop).view(np.float32)


def pieces(values: Array, composition: Composition) -> list[Array]:
    """The pieces of values, not scaled."""
    if composition.exact:
        return [values]
    rest, found = np.asarray(values, np.float32), []
    for number in range(composition.pieces):
        piece = rounded(rest, composition.bits, cut=composition.cut)
        if composition.exponents == 5:
            scale = np.float32(composition.scale(number))
            piece = (piece * scale).astype(np.float16).astype(np.float32) / scale
        found.append(piece)
        rest = rest - piece
    return found


def summed(left: Array, right: Array, composition: Composition, together: int = 1) -> Array:
    """The sums of left * right along the last axis; of each term `together` elements are added before the next term.

    Products are exact in f32's neighbours, sums of tensor cores drop what lies beyond f32, those of chunks are added
    rounding to nearest. Sums of f64 round to nearest.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        a, b = pieces(left, composition), pieces(right, composition)
        depth = left.shape[-1]
        chunk = CHUNK if composition.apart else depth
        shape = np.broadcast_shapes(left.shape[:-1], right.shape[:-1])
        number = np.dtype(np.float32 if composition.sums is DType.F32 else np.float64)
        total = np.zeros(shape, number)
        for start in range(0, depth, chunk):
            part = np.zeros(shape, number)
            for first in range(start, min(depth, start + chunk), together):
                for x, y in composition.terms:
                    for k in range(first, min(depth, first + together)):
                        exact = np.multiply(a[x][..., k], b[y][..., k], dtype=np.float64)
                        part = toward_zero(part + exact) if composition.sums is DType.F32 else part + exact
            total = total + part if composition.apart else part
    return total


def has_few_digits(kind: OpKind, operands: Iterable[DType]) -> bool:
    """Whether an operator on operands of these types is a product of floats of one byte with each other, of whose sums
    nobody is promised more digits than `FEW_DIGITS`."""
    return kind is OpKind.MATMUL and FLOAT8.issuperset(operands)


def few_summed(left: Array, right: Array, chunk: int = FEW_CHUNK) -> Array:
    """left [m, k] @ right [k, n] of floats of one byte, k a multiple of the chunk, in f32. An instruction lines its
    products, which are exact, and the sum so far up with the largest of them, and drops what lies beyond its digits."""
    total = np.zeros((len(left), right.shape[1]), np.float32)
    for start in range(0, left.shape[1], chunk):
        part = np.zeros(total.shape)
        for k in range(start, start + chunk, FEW_DEPTH):
            exact = left[:, k : k + FEW_DEPTH, None] * right[None, k : k + FEW_DEPTH]
            terms = np.concatenate([exact, part[:, None]], axis=1)
            part = _cut(_cut(terms, np.abs(terms).max(1, keepdims=True)).sum(1))
        total = total + part.astype(np.float32)
    return total


def _cut(values: Array, largest: Array | None = None) -> Array:
    """Numbers without what lies beyond the digits of the largest of them, or each without its own."""
    _, exponent = np.frexp(np.abs(values) if largest is None else largest)
    unit = np.ldexp(1.0, exponent - 1 - FEW_DIGITS)
    return np.asarray(np.trunc(values / unit) * unit)


def toward_zero(values: Array) -> Array:
    """float64 values as f32, cut off."""
    near = values.astype(np.float32)
    beyond = np.abs(near.astype(np.float64)) > np.abs(values)
    return (near.view(np.int32) - beyond).view(np.float32)  # a last place less of the magnitude
