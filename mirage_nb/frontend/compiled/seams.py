"""Seams: what PyTorch would compute in one launch with a region, and computes apart from it beside a kernel of ours.

In: regions, and what was found for them. Out: those that kernels take the place of. Invariant: a region is taken only
where it saves more than it costs that operators around it, those of regions that are left to PyTorch among them, are
no longer fused with it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable
from typing import Any

from torch._inductor.lowering import fallbacks

from mirage_nb.frontend.aten import VIEWS
from mirage_nb.frontend.compiled.kernels import Settled
from mirage_nb.frontend.compiled.regions import Region, base_of, users
from mirage_nb.frontend.lists import LISTED
from mirage_nb.targets import Target

SEAM_US = 1.5
"""What it costs that PyTorch has a kernel of its own for what it would have fused with a region; and what lies between
the two is written and read."""
_LIBRARY = re.compile(r"mm\b|matmul|attention|convolution|sort|topk")


def versions(settled: Iterable[Settled], target: Target) -> list[list[Settled]]:
    """Regions that kernels may take the place of: those that are `chosen`, and where these are others, all that have a
    kernel about as fast as PyTorch's code alone. Which is the faster, whoever runs both knows."""
    every = [*settled]
    first = chosen(every, target)
    able = [one._replace(taken=one.kernel.operator is not None and not one.kernel.in_parts) for one in first]
    return [first, able] if any(one.taken for one in first) and able != first else [first]


def chosen(settled: Iterable[Settled], target: Target) -> list[Settled]:
    """The same with the seams of all, and those left that save less than these cost, which are seams of others then."""
    found = [*settled]
    while True:
        inside = {node for one in found if one.taken for node in one.region.covers}
        looked = [_beside(one, inside, target) for one in found]
        if all(new.taken == old.taken for new, old in zip(looked, found, strict=True)):
            return looked
        found = looked


def _beside(one: Settled, inside: Collection[Any], target: Target) -> Settled:
    between = seams(one.region, inside)
    cost = sum(SEAM_US + 2 * nbytes / (target.device_bandwidth * 1e3) for nbytes in between)
    return one._replace(taken=one.taken and one.kernel.saves_whole > cost, seams=between)


def seams(region: Region, inside: Collection[Any]) -> tuple[int, ...]:
    """For operators not `inside` of regions that make what generated code of this one reads, or read what it makes, the
    bytes between; for other tensors that PyTorch has in the same launch, none."""
    covers = {*region.covers}
    read = [node for node in region.reads if any(_is_generated(u) for u in users(node) if u in covers)]
    between = {base_of(node): node for node in read}
    between |= {user: node for node in region.writes if _is_generated(base_of(node)) for user in users(node)}
    covers.update(inside)
    beside = (0,) if any(node.meta.get(LISTED) for node in region.covers) else ()
    outside = (n for other, n in between.items() if other not in covers and _is_generated(other))
    return (*beside, *(n.meta["val"].nbytes for n in outside))


def _is_generated(node: Any) -> bool:
    """Whether PyTorch's compiler generates code for an operator, and so fuses it with others: not products, attention
    and convolutions, which are a library's."""
    if node.op != "call_function" or node.target is operator.getitem or str(node.target) in VIEWS:
        return False
    return node.target not in fallbacks and not _LIBRARY.search(str(node.target))
