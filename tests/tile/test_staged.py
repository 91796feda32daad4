"""Staged programs: what is planned is valid and right over floats and residues, what is changed is not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.interp.reference import evaluate
from mirage_nb.interp.run import run_block
from mirage_nb.ir import BlockGraph, DType, KernelGraph
from mirage_nb.optimize import Options, fuse, plan
from mirage_nb.optimize.plan import Plan, plan_chains, rewritten
from mirage_nb.targets import TARGETS
from mirage_nb.tile.lines import lines_of
from mirage_nb.tile.planned import Planned
from mirage_nb.tile.staged.program import StagedProgram
from mirage_nb.tile.staged.validate import validate
from mirage_nb.verify.tiles import Level, compare, run_staged
from tests import strategies
from tests.codegen import mugraphs
from tests.codegen.test_patches import distances
from tests.mugraphs import Block, one_kernel, tensor
from tests.shares import examples, shared_out
from tests.tile.lines import parse
from tests.tile.running import FLOATS, assert_caught, right, right_over_residues
from tests.tile.squares import turned
from tests.tile.staged_mutants import mutants
from tests.tile.staged_plans import blocks, programs

H200 = TARGETS["h200"]


def both_ways() -> KernelGraph:
    """Sums along two dimensions of one tile."""
    b = Block((tensor((16, 24, 6), DType.F32),), (2,))
    x = b.read(0, (2,))
    b.save(b.sum(x, 1), (2,))
    b.save(b.sum(x, 0), (2,))
    return one_kernel("X", b)


NAMED: dict[str, tuple[KernelGraph, Options]] = {
    "norm, bulk": (mugraphs.rmsnorm(), Options(4, 2, bulk=True)),
    "norm, three stages": (mugraphs.rmsnorm(), Options(4, 3)),
    "norm, bf16": (mugraphs.rmsnorm(dtype=DType.BF16), Options(8, 2, bulk=True)),
    "norm, f32": (mugraphs.rmsnorm(dtype=DType.F32), Options(4, 2)),
    "norm, odd extents": (mugraphs.rmsnorm(7, 100, 130, 65, 2), Options(4)),
    "norm, whole rows": (mugraphs.rmsnorm(2, 4096, 32, 16, 2), Options(4, 2, bulk=True)),
    "gain": (mugraphs.rmsnorm_gain(), Options(4, 3, bulk=True)),
    "gated": (mugraphs.gated_mlp(), Options(8, 4, bulk=True)),
    "three products": (mugraphs.lora(loop=4), Options(4, 2)),
    "concatenated": (mugraphs.lora_concat(loop=4), Options(4, 2, bulk=True)),
    "attention": (mugraphs.attention(loop=4), Options(4, 2)),
    "safe, keys split": (mugraphs.safe_attention(rows=64, loop=4), Options(8, 2, bulk=True)),
    "safe, rows alone": (mugraphs.safe_attention(rows=64, loop=4), Options(4, 2)),
    "safe, warpgroups": (mugraphs.safe_attention(rows=64, loop=4), Options(4, 2, bulk=True, wide=True)),
    "sinks, keys split": (mugraphs.sunk(64, 64, 4, t=64, masked=False), Options(8, 2, bulk=True)),
    "sinks of rows": (mugraphs.sunk(64, 64, 4, (2, 64, 1), t=64, masked=False), Options(4, 2, bulk=True, wide=True)),
    "keys normed": (mugraphs.normed_attention("K"), Options(4, 2, bulk=True)),
    "patches": (distances((32, 64), 8, 4, weighed=True), Options(4, 3)),
    "patches, bulk": (distances((16, 32), 16, 4, behind=True), Options(4, 2, bulk=True)),
    "turned": (turned(32, 16, DType.F16, (16, 16)), Options(1)),
    "both ways": (both_ways(), Options(4)),
    "split": (mugraphs.split_safe_attention(loop=4), Options(4, 2, bulk=True)),
}


def run_plan(planned: Plan, inputs: Sequence[Any]) -> list[Any]:
    """All values of a planned muGraph, whose kernels are run as programs."""
    values, made = list(inputs), blocks(planned)
    for index, op in enumerate(planned.graph.ops):
        operands = [values[v] for v in op.inputs]
        if index in made:
            values.extend(run_staged(made[index], operands, FLOATS))
        elif isinstance(op.body, BlockGraph):
            values.extend(run_block(op.body, operands, FLOATS))
        else:
            values.append(FLOATS.apply(op.kind, operands, op.attrs, 0))
    return values


@cache
def planned(name: str) -> tuple[StagedProgram, ...]:
    graph, options = NAMED[name]
    return tuple(programs(plan(graph, H200, options)).values())


@pytest.mark.parametrize("name", NAMED)
def test_the_text_form(name: str) -> None:
    for program in planned(name):
        assert parse(lines_of(program)) == program


@pytest.mark.parametrize("name", NAMED)
def test_planned_programs_are_valid_and_right(name: str) -> None:
    assert planned(name)
    for program in planned(name):
        assert validate(program, H200) == ()
        assert right(program, program)


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("stages", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("warps", [1, 2, 4, 8, 16])
def test_every_ring_depth_and_warp_count(warps: int, stages: int, bulk: bool) -> None:
    graph = mugraphs.rmsnorm_gain(m=5, columns=32, loop=8)
    for program in programs(plan(graph, H200, Options(warps, stages, bulk))).values():
        assert validate(program, H200) == ()
        assert right(program, program)


@examples(300)
@given(
    strategies.mugraphs(overhang=True),
    st.builds(Options, st.sampled_from([1, 2, 4, 8]), st.integers(2, 3), st.booleans()),
    st.booleans(),
    st.integers(0, 99),
)
def test_any_mugraph(graph: KernelGraph, options: Options, private: bool, seed: int) -> None:
    """Also one in which every operator reads and writes shared memory."""
    made = rewritten(graph)
    planned = plan_chains(fuse(made) if private else made, H200, options, private=private)
    for program in blocks(planned).values():
        assert Planned(program.block, program).findings(H200) == ()
    inputs = strategies.arrays_for(graph, seed)
    with np.errstate(all="ignore"):
        values = run_plan(planned, [inputs[i.name] for i in graph.inputs])
        for value, wanted in zip(planned.graph.outputs, evaluate(graph, inputs), strict=True):
            found = np.broadcast_to(values[value], wanted.shape)
            assert np.allclose(found, wanted, rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("name", [
    "gain", "gated", "three products", "concatenated", "attention", "safe, keys split", "safe, rows alone",
    "safe, warpgroups", "sinks, keys split", "split",
])  # fmt: skip
def test_planned_programs_are_right_over_residues(name: str) -> None:
    assert all(map(right_over_residues, planned(name)))


@pytest.mark.parametrize("name", NAMED)
def test_blocks_of_a_winner_are_run(name: str) -> None:
    for program in planned(name):
        assert compare(Planned(program.block, program), H200, 3) == (Level.RESIDUES, ())


@shared_out
def test_mutants_are_caught(share: int) -> None:
    """A barrier dropped, a stage off by one, a tile moved, a share too small."""
    named = (program for name in NAMED for program in planned(name))
    assert_caught(((p, *one) for p in named for one in list(mutants(p))[::share]), 1500 // share)


def test_patches_end_as_they_were_folded() -> None:
    (program,) = planned("patches")
    lines = [line.replace("(4, 1, 4)", "(2, 1, 8)") if "Total" in line else line for line in lines_of(program)]
    turned = parse(lines)
    assert turned != program
    assert any("shared otherwise" in text for text in validate(turned, H200))


@pytest.mark.parametrize(("name", "what", "finding"), [
    ("norm, bulk", "code: RELEASE lost", "wait for each other|handed back"),
    ("norm, bulk", "code: FENCE lost", "a stage is handed back while loads from it are on their way"),
    ("norm, bulk", "loader: ACQUIRE lost", "a stage that is not empty"),
    ("norm, three stages", "code: Landed newer +1", "read before it is there"),
    ("norm, three stages", "stages -1", "stages"),
    ("norm, three stages", "%0 elements +1", "its next stage, begins anywhere"),
    ("norm, three stages", "code: Loop first -1", "not over the iterations"),
    ("safe, keys split", "code: BARRIER lost", "without a barrier"),
    ("safe, warpgroups", "code: Change lost", "has not followed its maximum"),
    ("gain", "code: Zeros lost", "added to before it is there"),
    ("three products", "code: Warps doubled", "adds twice"),
    ("norm, odd extents", "code: Save vectors width +1", "vectors of 2"),
    ("norm, odd extents", "%0 offset -1024", "Carry.*is written while others are at"),
    ("both ways", "code: Reduce share dim -1", "reduced along 0"),
    ("gated", "code: AWAIT lost", "read before it is there"),
    ("gain", "code: READY lost", "whether the barriers of the ring are there"),
    ("sinks, keys split", "code: Largest not running", "is a running maximum, or is not"),
    ("safe, keys split", "code: PLACE lost", "find their place once"),
    ("safe, keys split", "code: Change cells columns -1", "other cells"),
    ("safe, keys split", "code: Pack cells rows -1", "other cells"),
    ("safe, keys split", "code: Pack dtype BF16", "packed as bf16"),
    ("safe, keys split", "code: SumPacked dtype BF16", "packed as bf16"),
    ("safe, keys split", "code: SumPacked cells columns -1", "other cells"),
    ("safe, keys split", "code: MultiplyPacked columns not fours", "another side than its product has"),
    ("safe, keys split", "code: MultiplyPacked columns not transposed", "another side than its product has"),
    ("safe, keys split", "code: Load rows not fours", "other rows than those of their product"),
    ("safe, keys split", "code: Unload twins ROWS", "lies otherwise"),
    ("safe, rows alone", "code: Loop and Change exchanged", "is read before it is there"),
    ("safe, warpgroups", "code: Load rows not transposed", "another side than its product has"),
    ("safe, warpgroups", "code: MultiplyPanels leaf +1", "does not lie in"),
    ("safe, warpgroups", "code: MultiplyPanels columns extent -1", "does not lie in"),
    ("safe, warpgroups", "code: Zeros form[3] +1", "other cells"),
    ("attention", "code: Load tiling split[1] +1", "other rows than those of their product"),
    ("attention", "code: Zeros form[1] +1", "other cells"),
    ("attention", "code: Zeros lost", "added to before it is there"),
    ("keys normed", "%0 offset -128", "read before it is there|is written while"),
    ("safe, keys split", "code: Loop and Publish exchanged", "without a barrier"),
])  # fmt: skip
def test_findings_by_name(name: str, what: str, finding: str) -> None:
    """One of the mutants of this kind, at least, is found for this reason."""
    program, *_ = planned(name)
    found = [validate(changed, H200) for called, changed in mutants(program) if called == what]
    assert any(re.search(finding, text) for texts in found for text in texts), found
