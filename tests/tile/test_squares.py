"""Results that are stored along another dimension than what they are computed of lies along."""

from __future__ import annotations

import itertools

import numpy as np

from mirage_nb.codegen import Options, emit
from mirage_nb.ir import DType, KernelGraph
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.search import EFFORTS, configurations, instances, prepare
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import flat
from mirage_nb.tile.rules.sharing import Squares
from mirage_nb.tile.rules.squares import SIDE_BYTES, square
from mirage_nb.tile.staged.program import Save
from tests.codegen.running import TOLERANCE, WAYS, draw, errors, run
from tests.search.explored import explored
from tests.shares import crossed
from tests.tile.squares import turned
from tests.tile.staged_plans import programs

H200 = TARGETS["h200"]


def squares(graph: KernelGraph, options: Options) -> list[tuple[int, int]]:
    """The sides of the squares in which results are saved."""
    made = programs(plan(graph, H200, options)).values()
    saves = (s.vectors for program in made for s in flat(program.code) if isinstance(s, Save))
    return [(v.width, v.rows) for v in saves if isinstance(v, Squares)]


EXTENTS = [
    (64, 64, (64, 64)), (48, 80, (16, 40)), (36, 20, (16, 16)), (64, 24, (32, 24)), (14, 28, (14, 28)),
    (33, 8, (11, 8)),
]  # fmt: skip


@crossed({"rows, columns, tile": EXTENTS, "dtype": [DType.F16, DType.BF16, DType.F32], "shared": [False, True]})
def test_they_are_turned_in_registers(
    rows: int, columns: int, tile: tuple[int, int], dtype: DType, shared: bool
) -> None:
    graph, options = turned(rows, columns, dtype, tile, shared=shared and columns % tile[1] == 0), Options(warps=2)
    assert squares(graph, options)
    emitted = emit(graph, H200, options)
    inputs = draw(graph)
    for how in WAYS:
        outputs = run(emitted, inputs, checked=True, **how)
        assert errors(graph, emitted, inputs, outputs)[0] < TOLERANCE[dtype] * (4 if shared else 1), how


def test_sides_are_those_that_fit() -> None:
    """As large as all threads have one, no wider than a vector, dividing both runs; numbers and arrays alike."""
    extents = [*itertools.product((1, 2, 4, 6, 7, 8, 64), (1, 3, 4, 8, 20, 64))]
    last, along = (np.array(column) for column in zip(*extents, strict=True))
    for size, threads in itertools.product((2, 4), (32, 256)):
        widths, heights = square(last, along, last * along, threads, size)
        for (m, n), width, rows in zip(extents, widths.tolist(), heights.tolist(), strict=True):
            assert (int(width), int(rows)) == tuple(map(int, square(m, n, m * n, threads, size)))
            assert m % width == n % rows == 0 and max(width, rows) * size <= SIDE_BYTES
            assert width * rows <= 2 or m * n >= threads * width * rows or width * rows == 4 or 1 in (width, rows)
            assert (rows == 1) is (n % 2 == 1) or rows == 1 == width


def test_what_is_stored_across_fills_sectors() -> None:
    """Tokens of a layer norm whose result has them innermost: so many in a block that their runs fill sectors."""
    prepared = prepare(parse("X: f16[8, 256, 512]\nreturn transpose(layer_norm(X), 0, 2, 1)").graph)
    for configuration in configurations(prepared, EFFORTS["quick"]):
        if configuration.loop is None and not configuration.grid:
            (structure, *_) = explored(prepared, configuration, EFFORTS["quick"]).structures
            (best, *_) = instances(structure, prepared, H200, 4)
            (body,) = (op.body for op in best.graph.ops if op.body is not None)
            assert body.types[body.savers[0].inputs[0]].shape[-1] >= 16  # of two bytes
            return
    raise AssertionError("no such configuration")
