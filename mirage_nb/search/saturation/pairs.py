"""What the types of two tiles allow: an elementwise operator, or a matmul along a shared axis.

In: two types. Out: `Pair`, the types of the possible results. No operator may form an outer product except a
matmul, unless the program itself does so; no axis may be data of one tile and index of the other (paper
Definition 2.1, over axes).
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_nb.ir import OpKind
from mirage_nb.search.saturation.semantics import BINARY, Semantics
from mirage_nb.search.saturation.values import DATA, Type, is_legal


@dataclass(frozen=True, slots=True)
class Pair:
    """The elementwise result, and for each axis that a matmul can fold its result."""

    elementwise: Type | None
    matmuls: tuple[tuple[int, Type], ...]

    @property
    def fits(self) -> bool:
        """Whether any operator takes the two."""
        return self.elementwise is not None or bool(self.matmuls)


class Pairs:
    """The pairs of one program, each worked out once. `outer`: outer products are allowed in any case."""

    def __init__(self, semantics: Semantics, *, outer: bool = False) -> None:
        prepared = semantics.prepared
        self._reduced = [axis.reduced for axis in prepared.axes]
        self._known: dict[tuple[Type, Type], Pair] = {}
        types = semantics.program_types
        products = [args for operator, args in prepared.program if operator.kind is OpKind.MATMUL]
        self._thin = outer or not all(crossed(types[a], types[b]) for a, b in products)
        pairs = [args for operator, args in prepared.program if operator.kind in BINARY]
        self.outer = outer or any(crossed(types[a], types[b]) for a, b in pairs)

    def of(self, first: Type, second: Type) -> Pair:
        """What tiles of these types can become together."""
        key = (first, second)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._paired(first, second)
        return found

    def _paired(self, first: Type, second: Type) -> Pair:
        both = list(zip(first, second, strict=True))
        joined = tuple(a | b for a, b in both)
        agree = all(a & DATA == b & DATA or not a & DATA or not b & DATA for a, b in both)
        if not agree or not is_legal(joined):
            return Pair(None, ())
        one_way, other_way = wider(first, second), wider(second, first)
        elementwise = None if one_way and other_way and not self.outer else joined
        matmuls: list[tuple[int, Type]] = []
        if (one_way and other_way) or (self._thin and (one_way or other_way)):
            for axis, (a, b) in enumerate(both):
                if a & DATA and b & DATA and self._reduced[axis]:
                    matmuls.append((axis, (*joined[:axis], joined[axis] & ~DATA, *joined[axis + 1 :])))
        return Pair(elementwise, tuple(matmuls))


def wider(first: Type, second: Type) -> bool:
    """Whether `first` has data along an axis where `second` has none."""
    return any(a & DATA and not b & DATA for a, b in zip(first, second, strict=True))


def crossed(first: Type, second: Type) -> bool:
    """Whether each has data along an axis where the other has none."""
    return wider(first, second) and wider(second, first)
