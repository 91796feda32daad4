"""What a block takes of a multiprocessor: threads, registers, shared memory; and how many blocks run there at once.

In: the tiles of a kernel at many sizes. Out: the bytes that are alive at once in a muGraph, resident blocks. Registers
are those of a quarter of a multiprocessor, to which a warp belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from mirage_nb.ir.legality import alive
from mirage_nb.search.sizes.anatomy import WARPS, Numbers, Part, Truths
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.search.sizes.work import HELD_REGISTERS
from mirage_nb.targets import Target
from mirage_nb.tile.roles.program import GROUP
from mirage_nb.tile.rules.teams import CAPABILITY, REGISTER_UNIT, RESERVED_BYTES, VARIANTS

REGISTERS = 48
"""Of a thread, beside its accumulators."""
PRIVATE_REGISTERS, PRIVATE_SHARE = 50, 1.5
"""The same where a loop body stays in fragments, and what its widest value takes: f32, and half of it as operands."""
WIDE_REGISTERS = 42
"""The same where groups of four warps multiply, which take operands from shared memory."""
QUARTERS = 4
"""Parts of a multiprocessor among which registers and warps are shared out."""
STAGES = 4
"""Tiles of the for-loop in flight, fewer where they do not fit; at least 2."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One emission of a kernel: warps that compute, stages of its ring at most, products by groups of four warps."""

    warps: int = WARPS
    stages: int = STAGES
    wide: bool = False


DEFAULT_VARIANT = Variant()
OTHER_VARIANTS = tuple(Variant(*numbers) for numbers in VARIANTS[1:])
"""What else is tried with warp-private bodies."""


def live(tiles: Tiles) -> Numbers:
    """Bytes of the shared tensors of the muGraph that are alive at once (`ir.legality.peak_shared_bytes`): emission
    needs less where values stay in registers, and more for the stages of the ring."""
    operators, widths = tiles.outline.legal
    return reduce(np.maximum, alive(operators, lambda value: tiles.elements[value] * widths[value]))


@dataclass(frozen=True, slots=True)
class Registers:
    """What a block has in registers: elements of all accumulators, of those that have the axis of the loop, and of the
    widest value of a warp-private body; where there is such a body, where its results are saved from registers if
    every warp has rows of its own, how many fragments lie below each other."""

    accumulated: Numbers
    along: Numbers
    widest: Numbers
    private: Truths
    direct: Truths
    fragments: Numbers

    def holding(self, held: Truths, loaded: Numbers, warps: Numbers) -> Registers:
        """The same where a block holds its tiles in so many registers of a thread, shared out to so many warps."""
        elements = ((HELD_REGISTERS + loaded) * warps - REGISTERS * WARPS) * 32
        return replace(self, accumulated=np.where(held, elements, self.accumulated))


def registers_of(tiles: Tiles) -> Registers:
    """What a block has in registers."""
    accumulated, along, widest = (np.zeros(tiles.shape) for _ in range(3))
    keyed = tiles.outline.body.keyed if tiles.outline.body is not None else frozenset[int]()
    for index, part in enumerate(tiles.outline.parts):
        if part is Part.ACCUMULATOR:
            accumulated = accumulated + tiles.elements[index]
            along = along + tiles.elements[index] if index in keyed else along
        elif part is Part.PRIVATE:
            widest = np.maximum(widest, tiles.elements[index])
    fragments, few = tiles.body.fragments, tiles.private_on(GROUP)
    direct = np.where(fragments == GROUP, few.direct, tiles.body.direct)
    return Registers(accumulated, along, widest, tiles.body.able, direct, fragments)


def registers_per_thread(held: Registers, variants: Sequence[Variant]) -> Numbers:
    """What a thread needs, a row for each variant."""
    warps = np.array([[variant.warps] for variant in variants], np.float64)
    accumulated = held.accumulated / (32 * warps)
    registers = REGISTERS + accumulated
    if held.private.any():
        # Warps with the same rows share what has the axis of the loop, and have sums over it of their own.
        own = (held.accumulated - held.along) * np.maximum(warps / held.fragments, 1.0)
        sums = (own + held.along) / (32 * warps)
        wide = np.array([[variant.wide] for variant in variants])
        beside = np.where(wide, WIDE_REGISTERS, PRIVATE_REGISTERS)
        values = held.widest / (32 * warps) * np.where(wide, 1.0, PRIVATE_SHARE)
        registers = np.where(held.private, beside + sums + values, registers)
    return registers


def resident(held: Registers, memory: Numbers, bulk: Truths, variants: Sequence[Variant], target: Target) -> Numbers:
    """Blocks that one multiprocessor runs at once, a row for each variant: what its memory, threads and registers hold.

    A warp has its registers in one of the quarters of a multiprocessor. One more warp of a block asks for bulk copies.
    """
    warps = np.array([[variant.warps] for variant in variants], np.float64)
    registers = np.ceil(registers_per_thread(held, variants) / REGISTER_UNIT) * REGISTER_UNIT
    most = QUARTERS * np.floor(target.registers_per_multiprocessor / QUARTERS / (32 * registers))
    most = np.minimum(most, target.threads_per_multiprocessor / 32)
    by_memory = target.shared_per_multiprocessor / (memory + RESERVED_BYTES)
    together: Numbers = np.maximum(np.floor(np.minimum(by_memory, most / (warps + bulk))), 1)
    return together


def fits(held: Registers, bulk: Truths, variant: Variant, target: Target) -> Truths:
    """Where a block can be emitted in another variant than the default one: as warp-private bodies, half of whose warps
    have rows of their own.

    Groups of four warps multiply where every warp has 16 rows, on tiles that the copy engine brought.
    """
    if variant.wide:
        able: Truths = held.direct & bulk & (held.fragments == variant.warps)
        return able & (target.capability == CAPABILITY)
    rows: Truths = held.private & (2 * held.fragments >= variant.warps)
    return rows
