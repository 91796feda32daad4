"""Which part of every tensor a block reads in one iteration, and which part it writes: imap, omap and fmap drawn.

In: a graph-defined operator. Out: HTML with one small picture per operand and result, drawn for one block and one
iteration; the numbers in its `data-` attributes let a page redraw it for any other. Invariant: the parts are those
of the paper's section 2: the grid splits a dimension first, x outermost, the for-loop splits what is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from mirage_nb.ir import BlockGraph, InIterAttrs, OutSaverAttrs
from mirage_nb.viz import svg
from mirage_nb.viz.shapes import SMALL

GRID_DIMS = "xyz"
LONG, SHORT, PER_DOUBLING = 150.0, 16.0, 12.0
BAR = 9.0
MOST_LINES = 64
"""A dimension that is cut into more parts than this is drawn without the cuts."""

Span = tuple[int, int]
"""First element and number of elements along a dimension."""


@dataclass(frozen=True, slots=True)
class Access:
    """How blocks share one tensor: its shape, the data dimension of every grid dim, and that of the for-loop.

    covered: what all tiles cover, more than the shape where they hang over its ends; empty: the shape.
    """

    name: str
    place: str
    verb: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    dims: tuple[int | None, ...]
    loop_dim: int | None = None
    covered: tuple[int, ...] = ()

    def part(self, grid: Sequence[int], loop: int, block: Sequence[int], iteration: int | None) -> tuple[Span, ...]:
        """What block `block` touches in `iteration`, or in all of them (None)."""
        found = []
        for dim, extent in enumerate(self.shape):
            start, size = 0, (self.covered or self.shape)[dim]
            for splits, number, target in zip(grid, block, self.dims, strict=True):
                if target == dim:
                    size //= splits
                    start += number * size
            if self.loop_dim == dim and iteration is not None:
                size //= loop
                start += iteration * size
            found.append((start, min(size, extent - start)))
        return tuple(found)

    def cuts(self, grid: Sequence[int], loop: int, dim: int) -> tuple[int, int]:
        """Into how many parts the grid and the for-loop cut a dimension."""
        blocks = math.prod(g for g, target in zip(grid, self.dims, strict=True) if target == dim)
        return blocks, loop if self.loop_dim == dim else 1

    def ends(self, count: int, dim: int) -> list[float]:
        """Where `count` equal parts of a dimension end, as shares of its extent; the last one ends with it."""
        size = (self.covered or self.shape)[dim] / count
        return [size * k / self.shape[dim] for k in range(1, count)]


def accesses(number: int, block: BlockGraph, names: Sequence[str], axes: Sequence[Sequence[str]]) -> list[Access]:
    """The accesses of graph-defined operator `number`; `names` and `axes` are those of its operands, then results."""
    found = []
    operands, saved = len(block.args), 0
    for index, (op, _) in enumerate(block.definitions()):
        place = f"{number}.{index}"
        if isinstance(op.attrs, InIterAttrs):
            arg = op.attrs.arg
            shape = block.args[arg].shape
            splits = [*zip(op.attrs.imap, block.grid, strict=True), (op.attrs.fmap, block.loop)]
            covered = _covered(block.tile_shape(op.attrs), splits)
            axes_ = tuple(axes[arg])
            found.append(Access(names[arg], place, "reads", shape, axes_, op.attrs.imap, op.attrs.fmap, covered))
        elif isinstance(op.attrs, OutSaverAttrs):
            shape = block.output_types[saved].shape
            at = operands + saved
            covered = _covered(block.types[op.inputs[0]].shape, zip(op.attrs.omap, block.grid, strict=True))
            found.append(Access(names[at], place, "writes", shape, tuple(axes[at]), op.attrs.omap, None, covered))
            saved += 1
    return found


def _covered(tile: Sequence[int], splits: Iterable[tuple[int | None, int]]) -> tuple[int, ...]:
    """What so many tiles cover."""
    found = list(tile)
    for dim, parts in splits:
        if dim is not None:
            found[dim] *= parts
    return tuple(found)


def tiles_html(block: BlockGraph, shared: Sequence[Access]) -> str:
    """The tensors of one kernel, drawn for its first block and iteration, and the controls that a page brings to life.

    Green is the block's part of a tensor, orange what one iteration reads of it.
    """
    grid, loop = block.grid, block.loop
    controls = "".join(
        f"<label>{name}<input type='range' min='0' max='{extent - 1}' value='0' data-{kind}='{number}' "
        f"aria-label='{words}'><output>0</output></label>"
        for kind, number, name, extent, words in (
            *(
                ("block", n, f"block {d}", e, f"block index {d}")
                for n, (d, e) in enumerate(zip(GRID_DIMS, grid, strict=False))
            ),
            ("iteration", 0, "iteration i", loop, "for-loop iteration"),
        )
        if extent > 1
    )
    buttons = (
        "<button type='button' class='mir-button' data-tiles='back' aria-label='previous step'>‹</button>"
        "<button type='button' class='mir-button' data-tiles='play' aria-label='play the iterations'>play</button>"
        "<button type='button' class='mir-button' data-tiles='next' aria-label='next step'>›</button>"
    )
    legend = " <i class='mir-dot mir-tile-part'></i>what one iteration of it reads" if loop > 1 else ""
    drawn = "".join(_tensor(access, grid, loop) for access in shared)
    return (
        f"<div class='mir-tiles' data-grid='{_numbers(grid)}' data-loop='{loop}'>"
        f"<div class='mir-tile-controls mir-needs-script' role='group' aria-label='which block and iteration'>"
        f"{controls}<span class='mir-tile-buttons'>{buttons}</span></div>"
        f"<p class='mir-none'><i class='mir-dot mir-block-part'></i>the part of one block{legend}; "
        "lengths are not to scale</p>"
        f"<div class='mir-tile-row'>{drawn}</div></div>"
    )


def _tensor(access: Access, grid: Sequence[int], loop: int) -> str:
    """One tensor: a bar per leading dimension, and the last two as a rectangle."""
    first = [0] * len(grid)
    whole = access.part(grid, loop, first, None)
    tile = access.part(grid, loop, first, 0 if access.verb == "reads" else None)
    dims = ", ".join(f"{a}={e}" if a else str(e) for a, e in zip(access.axes, access.shape, strict=True))
    caption = (
        f"<figcaption><b>{escape(access.name)}</b> [{escape(dims)}]<br>{_chips(access, loop)}"
        f"<code class='mir-part'>{access.verb} [{_slices(tile)}]</code></figcaption>"
    )
    data = (
        f"data-shape='{_numbers(access.shape)}' data-covered='{_numbers(access.covered or access.shape)}' "
        f"data-dims='{_numbers(access.dims)}' "
        f"data-loop-dim='{'' if access.loop_dim is None else access.loop_dim}' data-verb='{access.verb}'"
    )
    picture = _picture(access, grid, loop, whole, tile)
    return f"<figure class='mir-tensor' data-op='{access.place}' {data}>{picture}{caption}</figure>"


def _picture(access: Access, grid: Sequence[int], loop: int, whole: Sequence[Span], tile: Sequence[Span]) -> str:
    rank = len(access.shape)
    lengths = [_length(extent) for extent in access.shape]
    flat = max(0, rank - 2)
    across = lengths[-1] if rank else SHORT
    down = lengths[-2] if rank > 1 else SHORT
    left, y = 30.0, 13.0
    parts: list[str] = []
    for dim in range(flat):
        parts += _box(access, grid, loop, (None, dim), (left, y, lengths[dim], BAR), (whole, tile))
        parts.append(svg.label(_axis(access, dim), left - 4.0, y + BAR / 2, SMALL - 1, cls="soft", anchor="end"))
        y += BAR + 6.0
    y += 9.0 if flat else 2.0
    rows, columns = (rank - 2 if rank > 1 else None), (rank - 1 if rank else None)
    parts += _box(access, grid, loop, (rows, columns), (left, y, across, down), (whole, tile))
    if columns is not None:
        parts.append(
            svg.label(_axis(access, columns), left + across / 2, y - 7.0, SMALL - 1, cls="soft", anchor="middle")
        )
    if rows is not None:
        parts.append(svg.label(_axis(access, rows), left - 4.0, y + down / 2, SMALL - 1, cls="soft", anchor="end"))
    width = left + max([across, *lengths[:flat]]) + 4.0
    return svg.element(
        "svg",
        parts,
        viewBox=f"0 0 {width:.0f} {y + down + 4.0:.0f}",
        width=width,
        height=y + down + 4.0,
        cls="mir-tile-picture",
        role="img",
        aria_label=f"{access.name}: what one block {access.verb}",
    )


Dims = tuple[int | None, int | None]
"""The dimensions that go down and across a box; None: it has none that way."""


def _box(
    access: Access,
    grid: Sequence[int],
    loop: int,
    dims: Dims,
    place: tuple[float, float, float, float],
    spans: tuple[Sequence[Span], Sequence[Span]],
) -> list[str]:
    """A rectangle of one or two dimensions with the cuts of grid and loop, the block's part, and the tile."""
    x, y, width, height = place
    parts = [svg.rect(x, y, width, height, "mir-whole", 2)]
    for dim, length, upright in ((dims[1], width, True), (dims[0], height, False)):
        if dim is None:
            continue
        blocks, steps = access.cuts(grid, loop, dim)
        for count, cls in ((blocks, "mir-cut"), (blocks * steps, "mir-cut mir-fine")):
            if 1 < count <= MOST_LINES and length / count >= 2.0:
                ends = [length * share for share in access.ends(count, dim)]
                d = "".join(
                    f"M{x + at:.1f} {y:.1f}v{height:.1f}" if upright else f"M{x:.1f} {y + at:.1f}h{width:.1f}"
                    for at in ends
                )
                parts.append(svg.element("path", d=d, cls=cls))
    numbers = " ".join("-" if dim is None else str(dim) for dim in dims)
    frame = f"{x:.1f} {y:.1f} {width:.1f} {height:.1f}"
    shown = (("mir-block-part", spans[0]), ("mir-tile-part", spans[1]))
    for cls, span in shown if loop > 1 and access.verb == "reads" else shown[:1]:
        at = _placed(access.shape, span, dims, place)
        parts.append(
            svg.element("rect", x=at[0], y=at[1], width=at[2], height=at[3], cls=cls, data_box=frame, data_dims=numbers)
        )
    return parts


def _placed(
    shape: Sequence[int], span: Sequence[Span], dims: Dims, place: tuple[float, float, float, float]
) -> tuple[float, float, float, float]:
    """Left, top, width and height of a part; never thinner than two pixels."""
    x, y, width, height = place
    if dims[1] is not None:
        start, size = span[dims[1]]
        x, width = x + width * start / shape[dims[1]], max(2.0, width * size / shape[dims[1]])
    if dims[0] is not None:
        start, size = span[dims[0]]
        y, height = y + height * start / shape[dims[0]], max(2.0, height * size / shape[dims[0]])
    return x, y, width, height


def _length(extent: int) -> float:
    """Pixels for a dimension: longer for larger ones, by the logarithm."""
    return min(LONG, SHORT + PER_DOUBLING * math.log2(max(1, extent)))


def _axis(access: Access, dim: int) -> str:
    return access.axes[dim] or str(access.shape[dim])


def _chips(access: Access, loop: int) -> str:
    """The map in words: `x→c`."""
    word = "imap" if access.verb == "reads" else "omap"
    chips = [
        f"<span class='mir-chip mir-grid-chip'>{name}→{_target(access, dim)}</span>"
        for name, dim in zip(GRID_DIMS, access.dims, strict=False)
    ]
    if loop > 1 and access.verb == "reads":
        chips.append(f"fmap <span class='mir-chip mir-loop-chip'>i→{_target(access, access.loop_dim)}</span>")
    return f"<span class='mir-maps'>{word} {' '.join(chips)}</span><br>"


def _target(access: Access, dim: int | None) -> str:
    return "φ" if dim is None else escape(access.axes[dim] or str(dim))


def _slices(span: Sequence[Span]) -> str:
    return ", ".join(f"{start}:{start + size}" for start, size in span)


def _numbers(values: Sequence[int | None]) -> str:
    return " ".join("-" if value is None else str(value) for value in values)
