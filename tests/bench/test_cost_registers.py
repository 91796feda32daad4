"""What the cost model takes for the registers of warp-private bodies, against what the compiler gives them."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.bench.workloads import workload
from mirage_nb.codegen import Options, emit
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.search import EFFORTS, configurations, instances, prepare
from mirage_nb.search.sizes.constants import FITTED
from mirage_nb.search.sizes.cost import block_of
from mirage_nb.search.sizes.instantiate import numbered
from mirage_nb.search.sizes.occupancy import DEFAULT_VARIANT, Variant, fits, registers_per_thread
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.targets import find_target
from tests.search.explored import explored

H200 = find_target("h200")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch"), [("gqa", 8), ("mqa", 1)])
def test_registers_are_about_those_of_the_compiler(name: str, batch: int) -> None:
    prepared = prepare(parse(workload(name), name=name, sizes={"B": batch}).graph)
    quick = EFFORTS["quick"]
    seen: dict[tuple[int, bool, int], int] = {}
    for configuration in configurations(prepared, quick):
        result = explored(prepared, configuration, quick)
        for structure in result.structures[:2]:
            for instance in instances(structure, prepared, H200, 30):
                kernels = [(k, Tiles.of(prepared, k, n)) for k, n in numbered(structure, prepared, instance.sizes)]
                if len(kernels) != 1 or not kernels[0][1].chained:
                    continue
                block = block_of(kernels[0][1], H200, FITTED)
                for way in (DEFAULT_VARIANT, Variant(4), Variant(8, 4, True), Variant(4, 4, True)):
                    able = way == DEFAULT_VARIANT or fits(block.registers, block.copies.bulk, way, H200).all()
                    wanted = float(registers_per_thread(block.registers, (way,))[0, 0])
                    key = (way.warps, way.wide, round(wanted))
                    if not able or wanted > 200 or key in seen:
                        continue
                    emitted = emit(instance.graph, H200, Options(way.warps, way.stages, True, way.wide))
                    usage = compile_cubin(emitted.source, H200.arch).usage
                    seen[key] = max(each.registers for each in usage.values())
                    assert wanted == pytest.approx(seen[key], rel=0.25), (way, dict(instance.sizes))
    assert len(seen) >= 3
    assert np.mean([abs(key[2] - found) for key, found in seen.items()]) < 16
