"""Asynchronous products under way: which have ended when stages of a pipeline are handed back.

In: the products and releases of a role in order. Out: at a release, how many of the newest groups may still be under
way, and the groups that have ended by then. Neighbouring products that read the same pipelines are one group; groups
end in the order in which they began. Validator, interpreter and printer agree on it by asking here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mirage_nb.tile.instructions.table import Place
from mirage_nb.tile.roles.program import Product, Program


@dataclass(frozen=True, slots=True)
class Group:
    """Products that are committed together: the rings that they read, what they add to, left operands in registers."""

    rings: frozenset[str]
    results: tuple[str, ...]
    operands: tuple[str, ...]


def rings_of(program: Program, product: Product) -> frozenset[str]:
    """The pipelines that a product reads."""
    names = {product.left, product.right}
    return frozenset(ring.name for ring in program.pipelines if not names.isdisjoint(ring.tiles))


def group_of(program: Program, products: list[Product]) -> Group:
    """The group of some products."""
    results = tuple(dict.fromkeys(p.result for p in products))
    operands = tuple(p.left for p in products if program.tile(p.left).place is Place.REGISTER)
    return Group(rings_of(program, products[0]), results, operands)


@dataclass(slots=True)
class Flight:
    """committed: groups in order; unfinished: those of them that were not waited for. opened: products that no group
    has yet."""

    program: Program
    committed: list[Group] = field(default_factory=list)
    unfinished: list[Group] = field(default_factory=list)
    opened: list[Product] = field(default_factory=list)

    def add(self, product: Product) -> bool:
        """One more product; whether what was opened before is a group of its own now."""
        ends = bool(self.opened) and rings_of(self.program, product) != rings_of(self.program, self.opened[0])
        if ends:
            self.commit()
        self.opened.append(product)
        return ends

    def commit(self) -> bool:
        """Something else follows: the opened products are a group. Whether there are any."""
        if not self.opened:
            return False
        group = group_of(self.program, self.opened)
        self.opened.clear()
        self.committed.append(group)
        self.unfinished.append(group)
        return True

    def wait(self, ring: str, behind: int) -> tuple[int, list[Group]]:
        """How many of the newest groups may be under way when all stages of a ring but the newest `behind` are free;
        the groups that have ended then and had not before."""
        pending = seen = 0
        for group in reversed(self.committed):
            seen += ring in group.rings
            if seen > behind:
                break
            pending += 1
        ended = max(0, len(self.unfinished) - pending)
        found, self.unfinished = self.unfinished[:ended], self.unfinished[ended:]
        return pending, found

    def under_way(self, tile: str) -> bool:
        """Whether a product may still add to a register tile, or read it."""
        opened = any(tile in (p.result, p.left) for p in self.opened)
        return opened or any(tile in (*group.results, *group.operands) for group in self.unfinished)
