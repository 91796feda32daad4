"""Tile programs that a person wrote, as no planner does: valid, right where they are interpreted, and right as printed.

Two products of clusters whose blocks bring the left operand to each other and whose sums two points combine, the second
with plain cores for a few of its rows; attention whose weights stay in registers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from mirage_nb.codegen.cuda import HEADER
from mirage_nb.codegen.roles.program import ProgramText
from mirage_nb.errors import GraphError, LaunchError
from mirage_nb.interp.field import FieldAlgebra, FieldInstance
from mirage_nb.interp.reference import FloatAlgebra
from mirage_nb.ir import OpKind
from mirage_nb.optimize.overlap import Overlap
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.execution.emulate import CpuModule
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import Program
from mirage_nb.tile.roles.run import run
from mirage_nb.tile.roles.validate import validate
from tests.codegen.running import WAYS
from tests.emulation import launch
from tests.launches import Array, Case, Map, Out, compare
from tests.tile.lines import program_of, text_of
from tests.tile.mutants import mutants

H200 = TARGETS["h200"]
FOLDER = Path(__file__).parent.parent / "tile" / "programs"
NAMES = ("split_product", "plain_rows", "attention")
LEAST_CAUGHT = 0.95
RELEASE, COMBINE = "        Release(pipeline='ring')\n", "        Combine(results=('c0',), counter='s')\n"


@dataclass(frozen=True)
class Printed(Case):
    """A launch of a printed program."""

    text: str = ""

    @property
    def source(self) -> str:
        return self.text


@cache
def written(name: str) -> Program:
    return program_of((FOLDER / f"{name}.txt").read_text())


@cache
def operands(name: str) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    tiles = [t for t in written(name).tiles if t.name in ("x0", "x1", "x2")]
    return {t.name: rng.standard_normal(t.shape).astype(np.float16) for t in tiles}


@cache
def expected(name: str) -> Array:
    x = [a.astype(float) for a in operands(name).values()]
    if name != "attention":
        return np.asarray(x[0] @ x[1])
    scores = x[0] @ x[1].transpose(0, 2, 1) / 8
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ x[2])


def right(name: str, program: Program) -> bool:
    try:
        with np.errstate(all="ignore"):
            floats = {k: v.astype(float) for k, v in operands(name).items()}
            found = run(program, floats, FloatAlgebra(np.dtype(float)))["o0"]
    except (GraphError, ValueError, IndexError):
        return False
    return found.shape == expected(name).shape and np.allclose(found, expected(name))


@cache
def printed(name: str) -> Case:
    """As a kernel, with its operands and what it should make of them."""
    program, arrays = written(name), operands(name)
    text = ProgramText(name, program, Overlap())
    source = HEADER + text.text()
    out = Out(expected(name).astype(np.float16), 1e-3, 1e-2)
    maps = [
        Map(arrays[f"x{m.value}"].reshape(m.rows, m.columns), m.box, m.swizzle) for m in text.tensor_maps().values()
    ]
    grid, block = (program.blocks, 1, 1), (program.threads, 1, 1)
    return Printed(name, "", name, grid, block, program.shared_bytes, (out, *maps), text=source)


@pytest.mark.parametrize("name", NAMES)
def test_valid_and_right(name: str) -> None:
    program = written(name)
    assert program_of(text_of(program)) == program
    assert validate(program, H200) == ()
    assert right(name, program)


def test_sums_of_several_points_are_the_product_over_residues_too() -> None:
    instance = FieldInstance.draw(3)
    algebra = FieldAlgebra(instance)
    drawn = {name: instance.random(name, array.shape) for name, array in operands("plain_rows").items()}
    found = run(written("plain_rows"), drawn, algebra)["o0"]
    wanted = algebra.apply(OpKind.MATMUL, (drawn["x0"], drawn["x1"]), None, 0)
    np.testing.assert_array_equal(found.p, wanted.p)
    np.testing.assert_array_equal(found.q, wanted.q)


@pytest.mark.parametrize("name", NAMES)
def test_right_as_printed(name: str) -> None:
    """On the CPU edition, copies and products at once or as late as may be, warps in two orders."""
    module = CpuModule(printed(name).source)
    for how in WAYS:
        for out, found in launch(module, printed(name), **how):
            compare(out, found)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_free_of_races(name: str) -> None:
    module = CpuModule(printed(name).source, checked=True)
    for how in (*WAYS, {"deferred": True, "order": 7}):
        for out, found in launch(module, printed(name), **how):
            compare(out, found)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "plain_rows" else n for n in NAMES])
def test_no_spills_and_no_warnings(name: str) -> None:
    cubin = compile_cubin(printed(name).source, "sm_90a")
    (usage,) = cubin.usage.values()
    assert usage.spill_store_bytes == usage.spill_load_bytes == usage.stack_bytes == 0
    assert "warning" not in cubin.log and "serialized" not in cubin.log, cubin.log


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_right_on_the_card(name: str) -> None:
    """Twice: places that points leave their sums in are as they were."""
    from tests.runtime import test_gpu_device_library as on_card

    cupy = pytest.importorskip("cupy")
    if int(cupy.cuda.Device().compute_capability) != H200.capability:
        pytest.skip("needs a Hopper GPU")
    for _ in range(2):
        for out, found in on_card.run(cupy, printed(name)):
            compare(out, found)


@pytest.mark.parametrize(("line", "changed"), [
    ("cluster_sync();  // until nobody reaches into this block any more", ""),
    ("tma_load_2d_all(a", "tma_load_2d_all(b"),
    ("mbarrier_init(ring_empty + i, 16);", "mbarrier_init(ring_empty + i, 8);"),
    ("mbarrier_arrive_of(ring_empty + ring_kept, lane)", "mbarrier_arrive_of(ring_empty + ring_kept, 1)"),
])  # fmt: skip
def test_what_blocks_of_a_cluster_do_wrong_is_named(line: str, changed: str) -> None:
    """A block that ends too early, a copy to the wrong place, arrivals that are not those of all blocks."""
    case = printed("plain_rows")
    assert line in case.source
    module = CpuModule(case.source.replace(line, changed), checked=True)
    with pytest.raises(LaunchError):
        launch(module, case, deferred=True, order="reversed")


def test_what_is_changed_is_found() -> None:
    """By the validator nearly always, else where the program is interpreted."""
    outcomes: Counter[str] = Counter()
    for name in NAMES[1:]:  # the first has no statement that the second has not
        for what, changed in mutants(written(name)):
            if validate(changed, H200):
                outcomes["found"] += 1
            elif not right(name, changed):
                outcomes["missed"] += 1
                print(f"{name}: {what}")
            else:
                outcomes["as good"] += 1
    assert outcomes["found"] > 300
    assert outcomes["found"] >= LEAST_CAUGHT * (outcomes["found"] + outcomes["missed"])
    assert outcomes["as good"] < 0.1 * outcomes["found"]


@pytest.mark.parametrize(("said", "changed", "finding"), [
    ("blocks=2", "blocks=3", "3 blocks in clusters of 2"),
    ("cluster=2", "cluster=16", "clusters of 16"),
    ("arrivals=16", "arrivals=8", "16 warps hand stages back"),
    ("target='a', at=(68*m,", "target='a', at=(68*m + 40*rank,", "another tile for every block"),
    ("shape=(80, 64)", "shape=(72, 64)", "no part of its rows for each of 2 blocks"),
    ("at=(68*m, 256*rank)", "at=(68*m, 256*s)", "s does not run here"),
    ("        Combine(results=('c0',), counter='s')\n", "", "stored more than once"),
    ("('c0',), counter='s'", "('c0',), counter='m'", "added several times"),
    ("('c0',), counter='s'", "('c0',), counter='rank'", "no counter of the walk"),
    ("results=('c0',)", "results=('c1',)", "no sum of products"),
    (f"{RELEASE}{COMBINE}", f"{COMBINE}{RELEASE}", "before all is there"),
    ("Loop(counter='k', count=2)", "Loop(counter='k', count=2, more=rank)", "longer for some groups or blocks"),
    ("('m', 2)", "('h', 2)", "called as what a kernel calls its own"),
    ("warps=4, registers=216", "warps=8, registers=80", "begin with 128 registers"),
])  # fmt: skip
def test_findings_by_name(said: str, changed: str, finding: str) -> None:
    text = text_of(written("plain_rows"))
    assert said in text
    found = validate(program_of(text.replace(said, changed)), H200)
    assert any(finding in one for one in found), found
