"""Instruction texels: where in the computation space the registers of an instruction lie (iTex; Mosaic, section 4.1).

In: nothing, or a texel. Out: a `Texel`. The computation space of a product has the axes i (rows), j (columns), k
(summed) and b (batch). An operand's registers are numbered by the digits of warp, lane and register; every digit moves
its element by fixed steps along the axes, so an operand is a quasi-affine map, and a nested space such as (4, (2, 8))
is nothing but more digits. A *canonical* texel is what the manual says of an instruction; *derived* ones give its
results other coordinates (an FMA of 32 lanes is an outer product of 4 x 8), *transformed* ones are derived ones with
operands swapped, repeated over registers or over warps. Invariant: of a texel made here, `texel_run.multiplies` meets
every point of its space once, and the three operands of each multiply-add agree about which point it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

AXES = ("i", "j", "k", "b")
LANES = 32
Point = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of a number: `extent` values, each of which is one step further along the axes."""

    extent: int
    i: int = 0
    j: int = 0
    k: int = 0
    b: int = 0

    def steps(self) -> Point:
        """Along i, j, k, b."""
        return self.i, self.j, self.k, self.b


@dataclass(frozen=True, slots=True)
class Spread:
    """How an operand lies in registers: digits of the warp's, the lane's and the register's number, lowest first."""

    warps: tuple[Digit, ...] = ()
    lanes: tuple[Digit, ...] = ()
    registers: tuple[Digit, ...] = ()

    @property
    def count(self) -> int:
        """Registers of a thread."""
        return math.prod(d.extent for d in self.registers)

    def changed(self, change: Callable[[Digit], Digit]) -> Spread:
        """With every digit changed."""
        return Spread(*(tuple(map(change, digits)) for digits in (self.warps, self.lanes, self.registers)))

    def point(self, warp: int, lane: int, register: int) -> Point:
        """The element's coordinates; those of axes that the operand does not have are 0."""
        at = [0, 0, 0, 0]
        for number, digits in ((warp, self.warps), (lane, self.lanes), (register, self.registers)):
            for digit in digits:
                number, value = divmod(number, digit.extent)
                at = [x + value * step for x, step in zip(at, digit.steps(), strict=True)]
        return tuple(at)


@dataclass(frozen=True, slots=True)
class Texel:
    """result[b, i, j] += the sum over k of left[b, i, k] * right[b, k, j], by some instances of one instruction.

    extents: along i, j, k, b. left, right, result: where their elements lie; None for an operand that the instruction
    reads from shared memory itself. canonical: the texel of the one instruction that is issued. repeats: axis and count
    of what is issued again and again, innermost first. warps: that take part.
    """

    extents: Point
    left: Spread | None
    right: Spread | None
    result: Spread
    warps: int = 1
    repeats: tuple[tuple[str, int], ...] = ()
    canonical: Texel | None = None

    @property
    def m(self) -> int:
        """Rows."""
        return self.extents[0]

    @property
    def n(self) -> int:
        """Columns."""
        return self.extents[1]

    @property
    def k(self) -> int:
        """Summed elements."""
        return self.extents[2]

    @property
    def issued(self) -> int:
        """Instructions of a warp."""
        return math.prod(count for _, count in self.repeats)

    @property
    def source(self) -> Texel:
        """The canonical texel."""
        return self.canonical or self


def canonical_vector() -> Texel:
    """FMA: 32 lanes, each with a multiply-add of its own."""
    lanes = Spread(lanes=(Digit(LANES, b=1),))
    return Texel((1, 1, 1, LANES), lanes, lanes, lanes)


def canonical_matrix(m: int, n: int, k: int, packed: int = 1) -> Texel:
    """mma.sync of 16 or 8 rows and 8 columns; `packed`: neighbours along k that one 32-bit register holds. Four lanes
    hold a row of the result, and a row of left or a column of right."""
    half = (Digit(2, i=8),) if m == 16 else ()
    along = (Digit(packed, k=1),) if packed > 1 else ()
    deep = tuple(Digit(2, k=4 * packed << n) for n in range((k // (4 * packed)).bit_length() - 1))
    return Texel(
        (m, n, k, 1),
        Spread(lanes=(Digit(4, k=packed), Digit(8, i=1)), registers=(*along, *half, *deep)),
        Spread(lanes=(Digit(4, k=packed), Digit(8, j=1)), registers=(*along, *deep)),
        Spread(lanes=(Digit(4, j=2), Digit(8, i=1)), registers=(Digit(2, j=1), *half)),
    )


def canonical_group(n: int, k: int, packed: int) -> Texel:
    """wgmma of 64 x n: four warps with 16 rows each; right is read from shared memory, left may be."""
    one, warp = canonical_matrix(16, 8, k, packed), (Digit(4, i=16),)
    assert one.left is not None
    columns = (Digit(n // 8, j=8),) if n > 8 else ()
    result = replace(one.result, warps=warp, registers=(*one.result.registers, *columns))
    return Texel((64, n, k, 1), replace(one.left, warps=warp), None, result, warps=4)


# -- derived: other coordinates for what an instruction computes


def derived(texel: Texel, m: int, n: int, b: int = 1) -> Texel:
    """The vector instruction as b products of m x n x 1: lane = i + m * (j + n * b). m = n = 1 is the canonical one,
    b = 1 an outer product; n = 1 multiplies a matrix, of one column, with a vector. Raises ValueError."""
    if texel.extents[:3] != (1, 1, 1) or m * n * b != texel.extents[3]:
        raise ValueError(f"{m} x {n} x 1, {b} of them, is nothing that {texel.extents} computes")
    digits = {"i": Digit(m, i=1), "j": Digit(n, j=1), "b": Digit(b, b=1)}

    def lanes(axes: str) -> Spread:
        found = [d if axis in axes else Digit(d.extent) for axis, d in digits.items()]
        return Spread(lanes=tuple(d for d in found if d.extent > 1))

    return Texel((m, n, 1, b), lanes("ib"), lanes("jb"), lanes("ijb"), canonical=texel.source)


# -- transformed: the same instruction, seen or issued otherwise


def swapped(texel: Texel) -> Texel:
    """The transposed product: right transposed is the left operand now."""

    def turn(spread: Spread | None) -> Any:
        return spread and spread.changed(lambda d: replace(d, i=d.j, j=d.i))

    m, n, k, b = texel.extents
    names = {"i": "j", "j": "i"}
    repeats = tuple((names.get(axis, axis), count) for axis, count in texel.repeats)
    return replace(
        texel, extents=(n, m, k, b), left=turn(texel.right), right=turn(texel.left), result=turn(texel.result),
        repeats=repeats, canonical=texel.canonical and swapped(texel.canonical),
    )  # fmt: skip


HAS = {"left": "ikb", "right": "kjb", "result": "ijb"}


def repeated(texel: Texel, axis: str, count: int, *, near: bool = False) -> Texel:
    """Issued `count` times along an axis, in more registers. near: the copies' elements are neighbours, so that one
    load brings several of them (Figure 6c of the paper); else they lie behind each other."""
    return _grown(texel, axis, count, near, "registers")


def nearest(texel: Texel, axis: str) -> Texel:
    """Places along an axis renamed: those that one register's number tells apart come first, then those of lanes, of
    warps. Any order of rows gives the same product. Raises ValueError where the operands cut the axis differently."""
    spreads = [s for name in HAS if axis in HAS[name] and (s := getattr(texel, name)) is not None]
    cuts = [
        [(getattr(d, axis), d.extent, rank) for rank, digits in enumerate((s.registers, s.lanes, s.warps))
         for d in digits if getattr(d, axis)]
        for s in spreads
    ]  # fmt: skip
    if any(sorted(cut) != sorted(cuts[0]) for cut in cuts[1:]):
        raise ValueError(f"the operands of {texel.extents} cut {axis} differently")
    steps, weight = dict[int, int](), 1
    for step, extent, _ in sorted(cuts[0], key=lambda cut: (cut[2], cut[0])):
        steps[step], weight = weight, weight * extent
    return renamed(texel, axis, steps)


def renamed(texel: Texel, axis: str, steps: Mapping[int, int]) -> Texel:
    """Places along an axis renamed: digits that stepped so far step as far as is said. Raises KeyError for a step that
    is not named."""
    named = {0: 0, **steps}

    def turned(spread: Spread | None) -> Any:
        return spread and spread.changed(lambda d: replace(d, **{axis: named[getattr(d, axis)]}))

    left, right, result = (turned(getattr(texel, name)) if axis in HAS[name] else getattr(texel, name) for name in HAS)
    return replace(texel, left=left, right=right, result=result, canonical=texel.source)


def in_bits(texel: Texel, axis: str) -> Texel:
    """With every digit along an axis that counts to a power of two as digits of two, so that each can be renamed."""

    def split(digits: tuple[Digit, ...]) -> Iterator[Digit]:
        for digit in digits:
            step, bits = getattr(digit, axis), digit.extent.bit_length() - 1
            if step and digit.extent == 1 << bits:
                yield from (Digit(2, **{axis: step << n}) for n in range(bits))
            else:
                yield digit

    def parts(spread: Spread | None) -> Any:
        return spread and Spread(*(tuple(split(d)) for d in (spread.warps, spread.lanes, spread.registers)))

    left, right, result = (parts(getattr(texel, name)) for name in HAS)
    return replace(texel, left=left, right=right, result=result, canonical=texel.source)


def over_warps(texel: Texel, axis: str, count: int) -> Texel:
    """By `count` times as many warps, behind each other along an axis."""
    return replace(_grown(texel, axis, count, False, "warps"), warps=texel.warps * count)


def _grown(texel: Texel, axis: str, count: int, near: bool, where: str) -> Texel:
    if count == 1:
        return texel
    at = AXES.index(axis)
    step = 1 if near else texel.extents[at]
    stretched = {axis: count} if near else {}

    def grow(name: str, spread: Spread | None) -> Any:
        if spread is None:
            return None
        if stretched:
            spread = spread.changed(lambda d: replace(d, **{a: getattr(d, a) * by for a, by in stretched.items()}))
        new = Digit(count, **{axis: step}) if axis in HAS[name] else Digit(count)
        if where == "registers" and axis not in HAS[name]:
            return spread  # the same registers again
        return replace(spread, **{where: (*getattr(spread, where), new)})

    extents = tuple(e * count if a == at else e for a, e in enumerate(texel.extents))
    left, right, result = (grow(name, getattr(texel, name)) for name in HAS)
    repeats = (*texel.repeats, (axis, count)) if where == "registers" else texel.repeats
    return replace(
        texel, extents=extents, left=left, right=right, result=result, repeats=repeats, canonical=texel.source
    )


# -- what is issued


@dataclass(frozen=True, slots=True)
class Instance:
    """One instruction of a warp: the first of its left, right and result registers."""

    left: int
    right: int
    result: int


def instances(texel: Texel, zigzag: bool = True) -> Iterator[Instance]:
    """The instructions of a warp, those that sum after each other last to differ. zigzag: each shares an operand with
    the one in front (section 5.2): the inner axis turns round at its ends."""
    counts = dict.fromkeys(AXES, 1)
    for axis, count in texel.repeats:
        counts[axis] *= count
    order = ("k", "b", "i", "j")
    turned = dict.fromkeys(AXES, False)
    for at in itertools.product(*(range(counts[axis]) for axis in order)):
        place = dict(zip(order, at, strict=True))
        turned["i"] = zigzag and (place["k"] * counts["b"] + place["b"]) % 2 == 1
        turned["j"] = zigzag and (sum(place[a] * math.prod(counts[x] for x in order[n + 1 : 3]) for n, a in
                                      enumerate(order[:3]))) % 2 == 1  # fmt: skip
        place = {axis: counts[axis] - 1 - p if turned[axis] else p for axis, p in place.items()}
        yield Instance(*(_first(texel, name, dict(place)) for name in HAS))


def _first(texel: Texel, name: str, place: dict[str, int]) -> int:
    """The number of an operand's first register at a place of the repeats."""
    source = getattr(texel.source, name)
    if source is None:
        return 0
    number, weight = 0, source.count
    for axis, count in texel.repeats:
        place[axis], value = divmod(place[axis], count)
        if axis in HAS[name]:
            number, weight = number + value * weight, weight * count
    return number
