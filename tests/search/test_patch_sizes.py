"""Folds of patches: ranking and planner agree on where there are any, and on every byte."""

from __future__ import annotations

from collections import Counter

import pytest

from mirage_nb.ir import OpKind
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.optimize.plan import rewritten
from mirage_nb.search import EFFORTS, configurations, instances, prepare
from mirage_nb.search.sizes.constants import FITTED
from mirage_nb.search.sizes.instantiate import numbered
from mirage_nb.search.sizes.patches import of_product, patched
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.search.sizes.written import written_kernels
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import flat
from mirage_nb.tile.rules.sharing import Patches
from mirage_nb.tile.staged.program import Dot, Partial, Reduce
from tests.search.explored import explored
from tests.search.test_derive import iterators
from tests.search.test_memory_sizes import by_threads, of_instance
from tests.tile.staged_plans import programs

H200, QUICK = TARGETS["h200"], EFFORTS["quick"]
PROGRAMS = {
    "distances": "X: f32[512, 64]\nY: f32[256, 64]\nreturn sum((X[:, None, :] - Y) ** 2, 2)",
    "the largest, f16": "X: f16[64, 128]\nY: f16[1000, 128]\nreturn max(abs(X[:, None, :] - Y), 2)",
    "weighed": "X: f32[4096, 16]\nM: f32[64, 16]\nP: f32[64, 16]\nreturn sum((X[:, None, :] - M) ** 2 * P, 2)",
    "batches": "X: f32[8, 64, 32]\nY: f32[8, 96, 32]\nreturn sum(abs(X[:, :, None, :] - Y[:, None, :, :]), 3)",
    "of columns": "X: f32[32, 512]\nY: f32[32, 256]\nreturn sum(relu(X[:, :, None] - Y[:, None, :]), 0)",
    "softmax of products": "X: f32[512, 48]\nW: f32[48, 96]\nreturn softmax(X @ W)",
    "forms": "X: f32[1024, 64]\nA: f32[64, 64]\nreturn sum((X @ A) * X, 1)",
    "one row": "X: f32[1, 64]\nY: f32[2048, 64]\nreturn sum((X[:, None, :] - Y) ** 2, 2)",
}


def compared(text: str, structures: int = 3, limit: int = 12) -> Counter[tuple[str, object]]:
    """What agrees of the first muGraphs of every configuration, and how often."""
    found: Counter[tuple[str, object]] = Counter()
    prepared = prepare(parse(text).graph)
    for configuration in configurations(prepared, QUICK):
        some = [s for s in explored(prepared, configuration, QUICK).structures if len(s.kernels) == 1]
        for structure in some[:structures]:
            for instance in instances(structure, prepared, H200, limit):
                if rewritten(instance.graph) != instance.graph:
                    continue
                ((kernel, sizes),) = numbered(structure, prepared, instance.sizes)
                tiles = Tiles.of(prepared, kernel, sizes)
                reads = sum(step.source is not None for step in kernel.steps)
                if by_threads(instance.graph) or iterators(instance.graph) < reads:  # it is ranked as it is written
                    ((_, written),) = written_kernels(instance.graph)
                    assert written is not None
                    tiles = written
                for what, ranked, planned in of_instance(tiles, instance.graph):
                    assert ranked == planned, (what, text)
                    found[what, ranked if isinstance(ranked, bool) else ""] += 1
                folds = (c for c in tiles.outline.cells if c.node.kind in (OpKind.SUM, OpKind.MAX))
                ranked_patches = [p for c in folds if (p := patched(tiles, c, FITTED)) is not None and p.able[0]]
                products = [c for c in tiles.outline.cells if c.node.kind is OpKind.MATMUL]
                products = [c for c in products if c.value not in tiles.outline.cores | tiles.outline.heads]
                elements = [(c, tiles.elements[c.value]) for c in products]
                ranked_patches += [p for c, n in elements if (p := of_product(tiles, c, n, FITTED)).able[0]]
                for program in programs(plan(instance.graph, H200)).values():
                    statements = [*flat(program.code)]
                    shares = [s.share for s in statements if isinstance(s, Partial | Reduce)]
                    dots = [s.vectors for s in statements if isinstance(s, Dot)]
                    in_patches = [s for s in shares if s.patch] + [v for v in dots if isinstance(v, Patches)]
                    assert len(in_patches) == len(ranked_patches), instance.sizes
                    found["patches", bool(in_patches)] += 1
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_ranking_and_planner_agree(name: str) -> None:
    found = compared(PROGRAMS[name])
    assert found["bytes", ""] > 5
    assert found["patches", True] or name == "one row"
