"""How large the pieces of a program may become, by who computes them.

In: a kernel graph of pre-defined operators. Out: `Grain`s, plain data, and whether a program folds more than pieces of
one may.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mirage_nb.ir import OPS, DimAttrs, KernelGraph, Op, TensorType, Trait

FOLDING = frozenset({Trait.REDUCTION, Trait.RUNNING})
"""What folds rows or columns."""


@dataclass(frozen=True, slots=True)
class Grain:
    """How large pieces may become.

    Attributes:
        operators: most operators of a piece of several, views and what depends on no input apart.
        products: most products among them.
        looped: whether their kernels may have loops; else a block holds what it computes as a whole.
        rank: most elements that a product folds of what another one of a piece has made.
        folds: whether a piece with a product may fold anything else.
        row, column: most elements that are folded along the innermost dimension, or another, if something is joined
            with that.
    """

    operators: int
    products: int
    looped: bool = True
    rank: float = math.inf
    folds: bool = True
    row: float = math.inf
    column: float = math.inf

    def limit(self, op: Op, made: TensorType) -> float:
        """How many elements there may be beside an operator that folds and makes this, for all of its results."""
        if not OPS[op.kind].traits & FOLDING or not isinstance(op.attrs, DimAttrs):
            return math.inf
        dim = op.attrs.dim
        return (self.row if dim == len(made.shape) - 1 else self.column) * made.elements / made.shape[dim]

    def is_exceeded(self, graph: KernelGraph) -> bool:
        """Whether something is folded, through other folds as well, from more elements for each of its results."""
        most = [type_.elements for type_ in graph.types]
        for op, values in graph.definitions():
            for value in values:
                most[value] = max(most[v] for v in (value, *op.inputs))
                if most[value] > self.limit(op, graph.types[value]):
                    return True
        return False


SEARCHED = Grain(operators=18, products=4)
"""Pieces that a search takes seconds for."""
COMPOSED = Grain(operators=64, products=0, looped=False)
"""Every product alone, for a library; what lies between them in as few pieces as pay, each as it stands."""
