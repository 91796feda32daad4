"""Asynchronous products of a tile program: issued in groups, waited for before their slots are handed back.

In: the products and releases of a role in the order in which they are printed. Out: the calls that issue, commit and
wait. Neighbouring products that read the same pipelines are one group. Invariant: a wait covers all groups that read a
stage which is handed back, and no group that was committed behind them; registers are pinned where their group ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mirage_nb.codegen.writer import Writer, c_index, c_type
from mirage_nb.tile.instructions.table import INSTRUCTIONS, Place
from mirage_nb.tile.roles.flight import Flight
from mirage_nb.tile.roles.program import Index, Pipeline, Product, Program, Release, Statement, Tile, summed_axis
from mirage_nb.tile.rules.shared import LINE_BYTES
from mirage_nb.tile.rules.teams import step

STEPS = 4
"""Instructions of a line of summed elements."""


@dataclass(slots=True)
class ProductText:
    """Writes them."""

    out: Writer
    program: Program
    flight: Flight = field(init=False)

    def __post_init__(self) -> None:
        self.flight = Flight(self.program)

    def ring_of(self, tile: str) -> Pipeline:
        """The pipeline that fills a tile."""
        return next(ring for ring in self.program.pipelines if tile in ring.tiles)

    def enter(self, body: Sequence[Statement]) -> None:
        """A loop begins: what is printed once is an iteration behind another."""
        for statement in body:
            if isinstance(statement, Product):
                self.flight.add(statement)
                continue
            self.flight.commit()
            if isinstance(statement, Release):
                self.flight.wait(statement.pipeline, statement.behind)
        self.flight.commit()

    def commit(self) -> None:
        """The products so far are a group."""
        if self.flight.commit():
            self.out.line("wgmma_commit();")

    def wait(self, release: Release) -> None:
        """Until the products that read what is released are done."""
        self.commit()
        pending, ended = self.flight.wait(release.pipeline, release.behind)
        pinned: dict[str, str] = {}
        for group in ended:
            for name in group.results:
                pinned[name] = f", {group.operands[0]}" if group.operands else ""
        for name, operand in pinned.items():
            with self.out.unrolled("i", self.program.tile(name).shape[0] // 64) as i:
                self.out.line(f"wgmma_wait<{pending}>({name}[{i}]{operand and f'{operand}[{i}]'});")

    def write(self, product: Product, *, fresh: bool) -> None:
        """All of the summed elements, 32 bytes of each line after the other, for every 64 rows of this part. fresh: the
        result holds nothing."""
        out, program = self.out, self.program
        if self.flight.add(product):
            out.line("wgmma_commit();")
        instruction, result = INSTRUCTIONS[product.instruction], program.tile(product.result)
        left, right = program.tile(product.left), program.tile(product.right)
        held = left.place is Place.REGISTER
        summed = summed_axis(left, right)
        subtiles, depth = result.shape[0] // instruction.m, right.shape[right.axes.index(summed)]
        with out.unrolled("i", subtiles) as i:
            out.line(f"wgmma_fence({result.name}[{i}]{f', {left.name}[{i}]' if held else ''});")
        function, element = instruction.function.removesuffix(">"), c_type(right.dtype)

        def one(k: str, word: str) -> None:
            with out.unrolled("i", subtiles) as i:
                major, b = self._shared(right, summed, k, product.column)
                if held:
                    out.line(f"{function}, {element}, {major}>({result.name}[{i}], {left.name}[{i}][{k}][0], {b});")
                    return
                first, a = self._shared(left, summed, k, product.row, f"{i} * {instruction.m}" if subtiles > 1 else "")
                out.line(f"{function}, {element}, {first}, {major}{word}>({result.name}[{i}], {a}, {b});")

        steps, k = depth // instruction.k, f"k{instruction.k}"
        if fresh:
            one("0", ", false")
        if fresh and steps > 1:
            out.line("MIRAGE_UNROLL")
            with out.block(f"for (int {k} = 1; {k} < {steps}; ++{k})"):
                one(k, "")
        elif not fresh:
            with out.unrolled(k, steps) as k:
                one(k, "")

    def _shared(self, tile: Tile, summed: str, k: str, at: Index, more: str = "") -> tuple[str, str]:
        """How a slot is read, and the descriptor of the next summed elements of it from a row or column on."""
        ring, rows, line = self.ring_of(tile.name).name, tile.shape[0], step(tile.dtype.size)
        each = line // STEPS
        parts = [tile.name, f"{ring}_slot * {tile.elements}"]
        if tile.axes[-1] == summed:
            major, unit = "K", line  # rows lie a line apart; a line of summed elements is a panel
            within = f"{k} * {each}"
            if tile.shape[1] > line:
                within = f"{k} / {STEPS} * {rows * line} + {k} % {STEPS} * {each}"
        else:
            major, unit = "MN", rows  # panels of 64 lie behind each other
            within = f"{k} * {each * line}"
        if (start := c_index(at * unit)) != "0":
            parts.append(start)
        parts += [f"{more} * {unit}"] if more else []
        parts += [within] if k != "0" else []
        return f"Major::{major}", f"wgmma_descriptor<Major::{major}>({' + '.join(parts)}, {rows * LINE_BYTES})"
