"""From fragments to device memory: what a warp-private body leaves is saved without passing through shared memory.

In: the fragments of a region whose accumulators only elementwise operators and savers read, one warp for all the
keys of its rows. Out: statements after the loop. Invariant: two neighbouring lanes exchange their halves of two
column tiles, so that each stores four elements and a quad whole sectors.
"""

from __future__ import annotations

from mirage_nb.codegen.fragments import Fragments
from mirage_nb.codegen.index import Index, named
from mirage_nb.codegen.maps import output_leaf
from mirage_nb.codegen.matmul import clamped
from mirage_nb.codegen.reader import Leaf, Reader
from mirage_nb.codegen.writer import c_type
from mirage_nb.ir import AccumAttrs, OutSaverAttrs, TensorType
from mirage_nb.tile.placement import Step
from mirage_nb.tile.sharing import COLUMN_TILE

WIDTH = 4
"""Elements that a lane stores at once."""


def close(fragments: Fragments) -> None:
    """Row sums that the four lanes of a row have parts of become whole."""
    out, region = fragments.out, fragments.region
    for value in sorted({fragments.scope.first[index] for index in fragments.folded.values()}):
        if fragments.columns(value):
            continue
        with out.unrolled("r", region.row_tiles) as r, out.unrolled("h", 2) as h:
            out.line(f"a{value}[{r}][{h}] = warp_sum<4>(a{value}[{r}][{h}]);")


def save(fragments: Fragments, step: Step, output: str, out_type: TensorType) -> None:
    """Save one value that is computed from accumulators in registers."""
    out, scope, region = fragments.out, fragments.scope, fragments.region
    op = scope.block.ops[step.op]
    attrs = op.attrs
    assert isinstance(attrs, OutSaverAttrs)
    saved = op.inputs[0]
    shape, columns = scope.shape(saved), scope.shape(saved)[-1]
    tiles = columns // COLUMN_TILE if columns > 1 else 0
    lead = (Index(),) * (len(shape) - 2)
    checks = [f"warp < {region.warps}"] if region.warps < scope.plan.options.warps else []
    target = c_type(out_type.dtype)

    def leaf(row: Index, column: Index, width: int) -> Leaf:
        return output_leaf(scope, attrs, output, (*lead, row, column), shape, out_type, width)

    with out.unrolled("r", region.row_tiles) as r, out.unrolled("h", 2) as h:
        out.line(f"const int row = {fragments.row(r).bare};")
        row = named("row", region.rows)
        if region.padded_rows > region.rows:
            checks = [*checks, f"row < {region.rows}"]
        within = clamped(named("row", region.padded_rows), region.rows)
        if not tiles:
            result = _value(fragments, saved, (*lead, within, Index()), "", f"[{r}][{h}]")
            at = leaf(row, Index(), 1)
            guard = " && ".join([*checks, "lane % 4 == 0", *([at.inside] if at.inside else [])])
            out.line(f"if ({guard}) {at.pointer}[{at.offset}] = from_float<{target}>({result});")
            return
        with out.unrolled("c", tiles // 2) as c:
            out.line("float z[2][2];")
            with out.unrolled("p", 2) as p, out.unrolled("e", 2) as e:
                column = (named(c, tiles // 2) * 2 + named(p, 2)) * COLUMN_TILE + named("mma_d_column(lane, e)", 8)
                cell = f"[0][{r}][2 * {c} + {p}][2 * {h} + {e}]"
                result = _value(fragments, saved, (*lead, within, column), cell, f"[{r}][{h}]")
                out.line(f"z[{p}][{e}] = {result};")
            out.line("const bool odd = lane % 2 != 0;  // takes the right tile, its neighbour the left one")
            out.line("const float low = shuffle_xor(odd ? z[0][0] : z[1][0], 1);")
            out.line("const float high = shuffle_xor(odd ? z[0][1] : z[1][1], 1);")
            out.line(f"Vec<float, {WIDTH}> y;")
            out.line("y[0] = odd ? low : z[0][0], y[1] = odd ? high : z[0][1];")
            out.line("y[2] = odd ? z[1][0] : low, y[3] = odd ? z[1][1] : high;")
            pair = (named(c, tiles // 2) * 2 + named("lane % 2", 2)) * COLUMN_TILE
            at = leaf(row, pair + named("lane % 4 / 2", 2) * WIDTH, WIDTH)
            vector = [*checks, at.inside] if at.inside and at.whole else checks
            with out.block(f"if ({' && '.join(vector)})" if vector else ""):
                if at.whole:
                    out.line(f"store({at.pointer} + {at.offset}, from_floats<{target}>(y));")
                else:
                    with out.unrolled("v", WIDTH):
                        when = f"if ({at.each_inside}) " if at.each_inside else ""
                        out.line(f"{when}{at.pointer}[{at.element}] = from_float<{target}>(y[v]);")


def _value(fragments: Fragments, value: int, index: tuple[Index, ...], cell: str, half: str) -> str:
    """A C expression for `value` at one register of the fragments."""
    scope = fragments.scope
    bound = {}
    for position in fragments.region.ops:
        op, accumulated = scope.block.ops[position], scope.first[position]
        if not isinstance(op.attrs, AccumAttrs):
            continue
        name = f"top{op.inputs[0]}" if fragments.is_shift(position) else f"a{accumulated}"
        bound[accumulated] = f"{name}{cell if fragments.columns(accumulated) else half}"
    reader = Reader(scope, 1, bound)
    result = reader.read(value, index, None)
    fragments.out.lines([*reader.loads, *reader.body])
    return result
