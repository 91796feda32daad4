"""The table of ATen operators: what each becomes in a tensor program.

In: the name of an overload, as `aten.mm.default`. Out: its row. Invariant: the table is the whole of what the front
end takes over from PyTorch; every row has a test against eager PyTorch, and what has no row stays PyTorch's.
"""

from __future__ import annotations

from mirage_nb.frontend.aten import (
    borrowed,
    composites,
    folds,
    lookups,
    masks,
    orders,
    pointwise,
    products,
    views,
    windows,
    writes,
)
from mirage_nb.frontend.aten.terms import Row

ROWS: dict[str, Row] = {
    **pointwise.ROWS, **folds.ROWS, **views.ROWS, **products.ROWS, **masks.ROWS, **composites.ROWS, **borrowed.ROWS,
    **writes.ROWS,
}  # fmt: skip

WHOLE: dict[str, Row] = {
    **ROWS, **lookups.ROWS, **lookups.NUMBERS, **borrowed.WHOLE, **writes.WHOLE, **orders.ROWS, **windows.WHOLE,
    **composites.WHOLE,
}  # fmt: skip
"""The same with what only whole programs have rows for: PyTorch looks up and writes where tensors lie."""
NUMBERS = frozenset(lookups.NUMBERS)
"""Those that make whole numbers, too."""
LOOKUPS = frozenset(lookups.ROWS)
"""Those rows, which read integers."""
VIEWS = frozenset(views.ROWS)
"""Rows that only move elements."""
POINTWISE = frozenset(pointwise.ROWS)
"""Rows that compute element by element."""
