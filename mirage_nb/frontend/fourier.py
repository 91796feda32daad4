"""What whole programs alone compute of complex numbers part by part: Fourier transforms, products, norms, writes.

In: nodes of complex tensors, as in `complexes`. Out: their parts. A transform along an axis is a product with cosines
and sines of all its frequencies: PyTorch has faster ones, and keeps them in a model that it runs. Invariant: tables
are made in double precision of angles within one turn, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from mirage_nb.frontend.complexes import ATEN, ROWS, Apart, Pair, Row, alike, length, product, quotient

MOST = 1024
"""Elements of an axis that is transformed: a table has their square."""


def wave(
    name: str, frequencies: int, extent: int, rows: int, scale: float, doubled: bool, dtype: Any, device: Any
) -> torch.Tensor:
    """cos or sin of 2 pi * row * column / extent, times a scale, as a matrix of so many rows of `extent` or fewer
    columns. doubled: each row counts for the frequency beyond the half, too, that is its conjugate."""
    turns = torch.arange(rows)[:, None] * torch.arange(frequencies) % extent
    made: torch.Tensor = getattr(torch, name)(turns.double() * (2 * math.pi / extent)) * scale
    if doubled:
        made[1 : (extent + 1) // 2] *= 2
    return made.to(device, dtype)


def _waves(apart: Apart, like: Any, frequencies: int, extent: int, rows: int, scale: float, doubled: bool) -> Pair:
    """Nodes that depend on no input."""
    held = like.meta["val"]
    given = (frequencies, extent, rows, scale, doubled, held.dtype, held.device)
    cos, sin = (apart.graph.call_function(wave, (name, *given)) for name in ("cos", "sin"))
    for node in (cos, sin):
        node.meta["val"] = held.new_empty((rows, frequencies))
    return cos, sin


def _along(apart: Apart, pair: Pair, dim: int, extent: int, sign: int, scale: float, kept: int | None = None) -> Pair:
    """The transform of one axis. kept: so many frequencies; default: all of them."""
    cos, sin = _waves(apart, pair[0], extent if kept is None else kept, extent, extent, scale, False)

    def times(part: Any, table: Any) -> Any:
        moved = apart.call(ATEN.transpose.int, part, dim, -1)
        return apart.call(ATEN.transpose.int, apart.call(ATEN.matmul.default, moved, table), dim, -1)

    turned = sin if sign > 0 else apart.call(ATEN.neg.default, sin)
    real, imaginary = pair
    if imaginary is None:
        return times(real, cos), times(real, turned)
    return (
        apart.call(ATEN.sub.Tensor, times(real, cos), times(imaginary, turned)),
        apart.call(ATEN.add.Tensor, times(real, turned), times(imaginary, cos)),
    )


def _extents(node: Any, dims: Sequence[int], last: int | None = None) -> list[int] | None:
    """Those of the axes that are transformed; None where they are too long, or not fixed."""
    shape = node.args[0].meta["val"].shape
    found = [shape[dim] for dim in dims]
    found = found if last is None else [*found[:-1], last]
    return found if all(type(extent) is int and extent <= MOST for extent in found) else None


def _scale(extents: Sequence[int], normalization: int) -> float:
    return float(math.prod(extents) ** (0.0, -0.5, -1.0)[normalization])


def _from_real(apart: Apart, node: Any) -> Pair | None:
    x, dims, normalization, onesided = node.args
    if (extents := _extents(node, dims)) is None:
        return None
    kept = extents[-1] // 2 + 1 if onesided else None
    pair = _along(apart, (x, None), dims[-1], extents[-1], -1, _scale(extents, normalization), kept)
    for dim, extent in zip(dims[:-1], extents, strict=False):
        pair = _along(apart, pair, dim, extent, -1, 1.0)
    return pair


def _transformed(apart: Apart, node: Any) -> Pair | None:
    x, dims, normalization, forward = node.args
    if (extents := _extents(node, dims)) is None:
        return None
    pair, scale = apart.parts(x), _scale(extents, normalization)
    for dim, extent in zip(dims, extents, strict=True):
        pair, scale = _along(apart, pair, dim, extent, -1 if forward else 1, scale), 1.0
    return pair


def _to_real(apart: Apart, node: Any) -> Any:
    x, dims, normalization, last = node.args
    if (extents := _extents(node, dims, last)) is None:
        return None
    pair = apart.both(x)
    for dim, extent in zip(dims[:-1], extents, strict=False):
        pair = _along(apart, pair, dim, extent, 1, 1.0)
    moved = (apart.call(ATEN.transpose.int, part, dims[-1], -1) for part in pair)
    waves = _waves(apart, pair[0], last, last, last // 2 + 1, _scale(extents, normalization), True)
    real, imaginary = (apart.call(ATEN.matmul.default, *both) for both in zip(moved, waves, strict=True))
    return apart.call(ATEN.transpose.int, apart.call(ATEN.sub.Tensor, real, imaginary), dims[-1], -1)


def _einsum(apart: Apart, node: Any) -> Pair | None:
    equation, tensors, *_ = node.args
    if len(tensors) != 2:
        return None
    one, other = map(apart.parts, tensors)
    return apart.product(lambda x, y: apart.call(node.target, equation, [x, y]), one, other)


def _written(apart: Apart, node: Any) -> Pair:
    """One tensor with another one in a part of it."""
    held = zip(*map(apart.both, node.args[:2]), strict=True)
    real, imaginary = (apart.call(node.target, *parts, *node.args[2:]) for parts in held)
    return real, imaginary


def _zeros(apart: Apart, node: Any) -> Pair:
    """As many as another tensor has elements."""
    like = apart.parts(node.args[0])[0]
    return apart.zeros(like), apart.zeros(like)


def _norm(apart: Apart, node: Any) -> Any:
    return apart.call(node.target, length(apart, node), *node.args[1:])


def _angle(apart: Apart, node: Any) -> Any:
    return apart.call(ATEN.atan2.default, *apart.both(node.args[0])[::-1])


LINEAR = (
    "cumsum.default", "roll.default", "unfold.default", "index.Tensor", "index_select.default", "diagonal.default",
)  # fmt: skip
WHOLE: dict[str, Row] = {
    **ROWS,
    **{f"aten.{name}": alike for name in LINEAR},
    **{f"aten.{name}.default": product for name in ("mm", "bmm", "matmul", "mv", "dot")},
    **{f"aten.{name}": _written for name in ("copy.default", "slice_scatter.default", "select_scatter.default")},
    **{f"aten.{name}_like.default": _zeros for name in ("zeros", "empty")},
    "aten._fft_r2c.default": _from_real,
    "aten._fft_c2c.default": _transformed,
    "aten._fft_c2r.default": _to_real,
    "aten.div.Tensor": quotient,
    "aten.einsum.default": _einsum,
    "aten.angle.default": _angle,
    "aten.linalg_vector_norm.default": _norm,
}
