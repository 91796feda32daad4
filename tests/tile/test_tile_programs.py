"""Tile programs: written and read back, valid as planned, run right; and what is changed in one is found.

The programs are those that the planner makes of small products. The reference is that of muGraphs.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from mirage_nb.errors import GraphError
from mirage_nb.interp.field import FieldAlgebra, FieldInstance
from mirage_nb.interp.reference import FloatAlgebra
from mirage_nb.interp.run import run_block
from mirage_nb.ir import BYTES, FLOAT8, HALVES, DType, KernelGraph, OpKind
from mirage_nb.optimize import BlockPlan, plan
from mirage_nb.runtime.execution.compile import DEVICE_FOLDER
from mirage_nb.targets import TARGETS
from mirage_nb.tile.instructions.groups import rows_of
from mirage_nb.tile.instructions.table import F8_COLUMNS, INSTRUCTIONS, WGMMA_COLUMNS, Unit, wgmma
from mirage_nb.tile.roles.program import Layout, Program
from mirage_nb.tile.roles.run import run
from mirage_nb.tile.roles.validate import LAYOUTS, validate
from mirage_nb.tile.rules import teams
from tests.codegen.mugraphs import linear, scaled_linear
from tests.codegen.test_attention_beside import NAMED as BESIDE
from tests.codegen.test_attention_programs import NAMED as CHAINED
from tests.codegen.test_folded import NAMED as FOLDED
from tests.codegen.test_sinks import NAMED as SUNK
from tests.codegen.test_specialised import FEW, H200
from tests.codegen.test_specialised import NAMED as PRODUCTS
from tests.shares import shared_out
from tests.tile.lines import program_of, text_of
from tests.tile.mutants import mutants

NAMED = PRODUCTS | FOLDED | CHAINED | BESIDE | SUNK
CHANGED = (
    *PRODUCTS, *FOLDED, "128 x 64, three iterations", "64 x 64, no maximum, one iteration", "causal, 64 x 64",
    "causal, 64 x 64, the last 200 keys", "70 keys on both sides", "a prefix of 70 keys, then causal",
    "slopes, causal", "a bias per key", "a table", "documents", "lengths, causal",
    "sinks of rows",
)  # fmt: skip
"""Those of which all mutants are looked at."""
FLOATS = FloatAlgebra(np.dtype(float))
LEAST_CAUGHT = 0.95


@cache
def planned(name: str) -> tuple[BlockPlan, Program]:
    block = next(block for block in plan(NAMED[name], FEW).kernels if block is not None)
    assert block.program is not None
    return block, block.program


@cache
def drawn(name: str) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Operands, and what the block makes of them."""
    block, _ = planned(name)
    rng = np.random.default_rng(0)
    places = [t.dtype is DType.F32 and len(t.shape) == 1 for t in block.block.args]
    arrays = [
        np.arange(t.shape[0], dtype=float) if numbered else rng.standard_normal(t.shape)
        for t, numbered in zip(block.block.args, places, strict=True)
    ]
    with np.errstate(all="ignore"):
        return {f"x{i}": a for i, a in enumerate(arrays)}, run_block(block.block, arrays, FLOATS)


def right(name: str, program: Program) -> bool:
    operands, expected = drawn(name)
    try:
        with np.errstate(all="ignore"):
            found = run(program, operands, FLOATS)
    except (GraphError, ValueError, IndexError):
        return False
    return all(
        found[f"o{i}"].shape == wanted.shape and np.allclose(found[f"o{i}"], wanted)
        for i, wanted in enumerate(expected)
    )


@pytest.mark.parametrize("name", NAMED)
def test_planned_programs_round_trip_are_valid_and_run(name: str) -> None:
    _, program = planned(name)
    assert program_of(text_of(program)) == program
    assert validate(program, H200) == ()
    assert right(name, program)


@pytest.mark.parametrize("graph", [
    linear(192, 64, 64, 64, 64, batch=2), linear(320, 64, 64, 64, 64), linear(64, 64, 320, 64, 64),
    linear(64, 64, 64, 64, 64, batch=3),
])  # fmt: skip
def test_walks_of_few_counters(graph: KernelGraph) -> None:
    """Where rows or columns are one tile, other counters come last."""
    block = plan(graph, FEW).kernels[0]
    assert block is not None and block.program is not None
    assert validate(block.program, H200) == ()


def test_a_printed_program_is_verified_over_residues_too() -> None:
    """Over Z_p x Z_q a program is the muGraph that it was made of, element by element."""
    graph = linear(128, 192, 64, 64, 64, activation=OpKind.SQR, residual=True)
    block = plan(graph, FEW).kernels[0]
    assert block is not None and block.program is not None
    instance = FieldInstance.draw(5)
    algebra = FieldAlgebra(instance)
    operands = [instance.random(f"x{i}", t.shape) for i, t in enumerate(block.block.args)]
    found = run(block.program, {f"x{i}": x for i, x in enumerate(operands)}, algebra)["o0"]
    (expected,) = run_block(block.block, operands, algebra)
    np.testing.assert_array_equal(found.p, expected.p)
    np.testing.assert_array_equal(found.q, expected.q)


@shared_out
def test_what_is_changed_is_found(share: int) -> None:
    """Of programs with one thing changed, those without findings run, and right; the others are nearly all."""
    outcomes: Counter[str] = Counter()
    for name in CHANGED:
        _, program = planned(name)
        for what, changed in list(mutants(program))[::share]:
            if changed == program:
                continue
            if validate(changed, H200):
                outcomes["found"] += 1
            elif right(name, changed):
                outcomes["as good"] += 1
            else:
                outcomes["missed"] += 1
                print(f"{name}: {what}")
    assert outcomes["found"] > 1000 // share
    assert outcomes["found"] >= LEAST_CAUGHT * (outcomes["found"] + outcomes["missed"])
    assert outcomes["as good"] < 0.1 * outcomes["found"]


@pytest.mark.parametrize(("line", "changed", "finding"), [
    ("wait", "Await(pipeline='ring')", ""),
    ("stage still read", "behind=1", "behind=99"),
    ("elements stored twice", "at=(128*m + 64*part, 0)", "at=(128*m, 0)"),
    ("beyond the end", "at=(128*m, 64*k)", "at=(256*m, 64*k)"),
    ("too many registers", "warps=8, registers=240", "warps=8, registers=248"),
    ("an instruction that others have", "wgmma.m64n64k16.f16', result='c5'", "mma.m16n8k16.f16', result='c5'"),
])  # fmt: skip
def test_findings_by_name(line: str, changed: str, finding: str) -> None:
    program = plan(linear(256, 128, 64, 128, 64), FEW).kernels[0].program  # type: ignore[union-attr]
    assert program is not None
    text = text_of(program)
    assert changed in text
    if line == "wait":
        text = "\n".join(row for row in text.splitlines() if row.strip() != changed)
    assert validate(program_of(text.replace(changed, finding) if finding else text), H200)


def test_a_target_that_lacks_the_instruction() -> None:
    assert validate(planned("split")[1], TARGETS["a100"])


def valid_and_right(graph: KernelGraph) -> Program:
    """The tile program of a product, which has no findings and makes what the muGraph says."""
    block = plan(graph, FEW).kernels[0]
    assert block is not None and block.program is not None
    assert validate(block.program, H200) == ()
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.shape) for t in block.block.args]
    with np.errstate(all="ignore"):
        found = run(block.program, {f"x{i}": a for i, a in enumerate(arrays)}, FLOATS)
        (wanted,) = run_block(block.block, arrays, FLOATS)
    np.testing.assert_allclose(found["o0"], wanted, atol=1e-9)
    return block.program


@pytest.mark.parametrize("columns", [n for n in WGMMA_COLUMNS if n >= teams.LEAST_COLUMNS])
def test_every_product_of_warpgroups_is_planned_and_right(columns: int) -> None:
    for dtype in HALVES:
        program = valid_and_right(linear(64, 64, columns, 64, columns, dtype=dtype, turned=(False, True)))
        assert wgmma(columns, dtype) in rows_of(program)


@pytest.mark.parametrize(("left", "right"), [*product(sorted(FLOAT8, key=str), repeat=2)])
def test_every_product_of_floats_of_a_byte_is_planned_and_right(left: DType, right: DType) -> None:
    for columns in F8_COLUMNS:
        program = valid_and_right(scaled_linear(64, 256, columns, 64, columns, left=left, right=right))
        assert wgmma(columns, left, right) in rows_of(program)


@pytest.mark.parametrize("half", sorted(HALVES, key=str))
@pytest.mark.parametrize("stored", sorted(BYTES, key=str))
def test_every_product_with_bytes_is_planned_and_right(stored: DType, half: DType) -> None:
    for rows, columns in ((16, 64), (80, 128), (256, 64)):
        program = valid_and_right(scaled_linear(rows, 128, columns, rows, columns, left=half, right=stored))
        (row,) = rows_of(program)
        assert row.types == (half, stored) and len(program.roles) == 1 + columns // 64


def test_sums_of_few_digits_are_sums_of_chunks() -> None:
    """More elements than that are found, and what is added up only in part."""
    program = plan(scaled_linear(64, 512, 64, 64, 64), FEW).kernels[0].program  # type: ignore[union-attr]
    assert program is not None
    text = text_of(program)
    clear, once = ("  " * n + f"Clear(result='c6{what}')\n" for n, what in ((5, "_chunk"), (4, "")))
    assert text.count(clear) == text.count(once) == 1
    early = text.replace(clear, "").replace(once, once + clear[2:])
    assert any("more than 128" in what for what in validate(program_of(early), H200))
    added = [row for row in text.splitlines() if "_sum" in row]
    assert len(added) == 2 and validate(program_of(text.replace("\n".join(added) + "\n", "")), H200)


TEAMS_OF = {DType.F16: teams.TEAMS, DType.E4M3: teams.TEAMS, DType.F32: teams.FLOAT_TEAMS}
TEAMS = [(dtype, rows) for dtype, teams in TEAMS_OF.items() for rows in teams]


@pytest.mark.parametrize(("dtype", "rows"), TEAMS)
def test_every_team_is_planned_and_right(dtype: DType, rows: int) -> None:
    """The roles of a tile of so many rows claim no more registers than there are, and share it."""
    step = teams.step(dtype.size)
    whole = scaled_linear(rows, step, 64, rows, 64) if dtype in FLOAT8 else None
    program = valid_and_right(whole or linear(rows, step, 64, rows, 64, dtype=dtype, step=step))
    team = TEAMS_OF[dtype][rows]
    assert [(role.parts, role.registers) for role in program.roles[:1]] == [(team.parts, team.math_registers)]


def test_every_layout_is_planned() -> None:
    """Tiles of planned programs, which are valid, run and printed, lie in every way that there is."""
    seen = {tile.layout for name in NAMED for tile in planned(name)[1].tiles}
    assert seen == set(Layout) == set(LAYOUTS.values())


@pytest.mark.parametrize("edition", ["cuda", "cpu"])
def test_the_device_library_has_every_instruction_tile(edition: str) -> None:
    """Under its name, and with the columns that are asked for."""
    folder = DEVICE_FOLDER / edition
    headers = "".join(
        header.read_text() for part in (folder, DEVICE_FOLDER / "common") for header in part.glob("*.cuh")
    )
    for tile in INSTRUCTIONS.values():
        name, _, columns = tile.function.partition("<")
        assert re.search(rf"\b{name}\(", headers), tile.name
        shape = "WGMMA_F8" if tile.dtype in FLOAT8 else "WGMMA_SHAPE"
        assert not columns or edition == "cpu" or f"MIRAGE_{shape}({tile.n}," in headers, tile.name


def test_instruction_tiles_fill_the_registers_of_their_warps() -> None:
    for tile in INSTRUCTIONS.values():
        assert tile.unit is Unit.PLAIN or tile.registers * 128 * tile.warps == tile.m * tile.n * tile.sums.size
        assert 0 < tile.cycles <= tile.latency
