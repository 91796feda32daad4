"""Where results go that are concatenated, reshaped or transposed on their way out: into their places at once.

In: a saved value. Out: the results that it consists of, and where an element of each lies in it. Invariant: what stands
between a result and where it is saved computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mirage_nb.ir import BlockGraph, DimAttrs, Op, OpKind, ReshapeAttrs, TransposeAttrs
from mirage_nb.tile.index import Index, Multi, linear, unravel
from mirage_nb.tile.rules.register_resident import PLACING


@dataclass(frozen=True, slots=True)
class Placing:
    """An operator between a result and where it is saved: how its operand lies, how what it makes, and the places in
    front of this operand along the dimension of a concatenation."""

    op: Op
    lies: tuple[int, ...]
    shape: tuple[int, ...]
    before: int

    def keeps(self, width: int) -> bool:
        """Whether the elements of a vector still lie one behind the other."""
        match self.op.attrs:
            case TransposeAttrs(perm=perm) if perm[-1] != len(perm) - 1:
                return False
            case TransposeAttrs() | DimAttrs():
                return self.lies[-1] % width == 0
            case _:
                return True

    def at(self, index: Multi) -> Multi:
        """Where an element of the operand is in the result."""
        match self.op.attrs:
            case TransposeAttrs(perm=perm):
                return tuple(index[dim] for dim in perm)
            case DimAttrs(dim=along):
                return tuple(part + self.before if dim == along else part for dim, part in enumerate(index))
            case _:
                return unravel(linear(index, self.lies), self.shape)


@dataclass(frozen=True, slots=True)
class Part:
    """A result of a saved value, which lies as `shape`, and what stands between them, in order."""

    source: int
    shape: tuple[int, ...]
    path: tuple[Placing, ...] = ()

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of the saved value."""
        return self.path[-1].shape if self.path else self.shape

    def keeps(self, width: int, tensor: tuple[int, ...]) -> bool:
        """Whether the elements of a vector lie one behind the other where they are saved, in a tensor of this shape."""
        shorter = any(isinstance(p.op.attrs, ReshapeAttrs) and p.shape[-1] % width for p in self.path)
        return all(p.keeps(width) for p in self.path) and not (shorter and _run(self.whole, tensor) % width)

    def at(self, index: Multi) -> Multi:
        """Where an element is in the saved value."""
        for placing in self.path:
            index = placing.at(index)
        return index


def _run(tile: tuple[int, ...], tensor: tuple[int, ...]) -> int:
    """Elements of a tile that lie behind one another in its tensor."""
    run = 1
    for own, whole in zip(reversed(tile), reversed(tensor), strict=True):
        run *= own
        if own != whole:
            break
    return run


def parts(block: BlockGraph, value: int) -> list[Part]:
    """What a saved value consists of, in order."""
    made = {v: op for op, values in block.definitions() for v in values}

    def paths(value: int, path: tuple[Placing, ...]) -> Iterator[Part]:
        op, shape = made[value], block.types[value].shape
        if op.kind not in PLACING:
            yield Part(value, shape, path)
            return
        before = 0
        for source in op.inputs:
            lies = block.types[source].shape
            yield from paths(source, (Placing(op, lies, shape, before), *path))
            before += lies[op.attrs.dim] if isinstance(op.attrs, DimAttrs) else 0

    return [*paths(value, ())]


def alternate(found: list[Part], width: int) -> bool:
    """Whether elements of these parts take turns where they are saved, so that vectors of all of them are one run."""
    alike = len({part.shape for part in found}) == 1
    if len(found) not in (2, 4) or not alike or not all(_is_turned(part, width) for part in found):
        return False

    def place(part: Part, element: int) -> int:
        index = (*(Index() for _ in part.shape[1:]), Index(const=element))
        return linear(part.at(index), part.whole).const

    turns = range(width * len(found))
    return [place(part, element) for element in range(width) for part in found] == [*turns]


def _is_turned(part: Part, width: int) -> bool:
    """Whether what lies along its last dimension is turned away from there, once, in whole vectors."""
    turned = [n for n, placing in enumerate(part.path) if not placing.keeps(1)]
    if len(turned) != 1:
        return False
    until, behind = part.path[: turned[0] + 1], part.path[turned[0] + 1 :]
    return all(p.lies[-1] % width == 0 for p in until) and all(p.op.kind is OpKind.RESHAPE for p in behind)
