"""Loop bodies that stay with warps, at many sizes: where they do, by the rules of `tile.bodies`.

In: a body, the extents of its values. Out: `Private`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mirage_nb.search.sizes.anatomy import Numbers, Truths
from mirage_nb.tile.bodies import Body, split
from mirage_nb.tile.sharing import ROW_TILE


@dataclass(frozen=True, slots=True)
class Private:
    """Where a body stays with warps; where its results are saved from registers, too; how many fragments lie below
    each other; into how many partial sums warps split its keys."""

    able: Truths
    direct: Truths
    fragments: Numbers
    keys: Numbers


def private(
    body: Body | None, extents: Callable[[int], Sequence[Numbers]], shape: tuple[int, ...], warps: int
) -> Private:
    """A body, if there is one, on so many warps. extents: of a value, in arrays of this shape."""
    if body is None:
        nowhere = np.zeros(shape, bool)
        return Private(nowhere, nowhere, np.ones(shape), np.ones(shape))
    found = split(body, extents, warps)
    direct = found.able & (found.key_warps == 1) & body.plain
    return Private(found.able, direct, np.ceil(found.rows / ROW_TILE), found.key_warps)
