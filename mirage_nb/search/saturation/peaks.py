"""Maxima as uninterpreted elements: what they are the largest of says which of them are the same.

In: values, array dims that are folded. Out: a `Peak` and its elements, random ones that hang on the seed alone.
Invariant: maxima of the same values over the same dims have the same elements, in whichever order these were folded,
and whichever maximum was joined by what.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from mirage_nb.ir import OpKind
from mirage_nb.search.saturation.fields import Array, Field
from mirage_nb.search.saturation.values import Operator, Peak, Value

Shape = tuple[int, ...]


class Peaks:
    """The maxima of one search. varies: the array dims along which a value is not constant, by its print."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._known: dict[Peak, tuple[Array, Array]] = {}
        self._varies: dict[bytes, frozenset[int]] = {}

    def elements(self, peak: Peak, shape: Shape) -> tuple[Array, Array]:
        """Those of a maximum of this shape."""
        if peak not in self._known:
            name = b"|".join(sorted(of + bytes(sorted(folded)) for of, folded in peak))
            self._known[peak] = self._field.drawn_for(name, shape)
        return self._known[peak]

    def folded(self, a: Value, dims: Collection[int]) -> tuple[Peak, Shape]:
        """The maximum of a value over some dims."""
        shape = tuple(1 if dim in dims else extent for dim, extent in enumerate(a.p.shape))
        if a.peak is None:
            self._varies[a.print] = a.varies
            return frozenset({(a.print, frozenset(dims))}), shape
        return frozenset((of, folded | self._varies[of].intersection(dims)) for of, folded in a.peak), shape

    def raised(self, args: Sequence[Value]) -> tuple[Peak, Shape]:
        """The larger one of two, one of which is a maximum."""
        every = (self.folded(arg, ())[0] if arg.peak is None else arg.peak for arg in args)
        return Peak().union(*every), np.broadcast_shapes(*(arg.p.shape for arg in args))


def raises(operator: Operator, args: Sequence[Value]) -> bool:
    """Whether something joins a maximum: the larger one is the maximum of both."""
    return operator.kind is OpKind.MAXIMUM and any(arg.peak is not None for arg in args)


def prints(peak: Peak) -> frozenset[bytes]:
    """Of what it is the largest."""
    return frozenset(of for of, _ in peak)
