"""Products of f32 as tile programs: valid, right on the CPU edition in every precision and layout, no spills."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mirage_nb.codegen import emit
from mirage_nb.errors import EmitError
from mirage_nb.interp.reference import FloatAlgebra
from mirage_nb.interp.run import run_block
from mirage_nb.ir import DType, KernelGraph, OpKind
from mirage_nb.optimize import default_options, plan
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.tile.instructions.groups import rows_of
from mirage_nb.tile.instructions.precision import allowed
from mirage_nb.tile.instructions.schemes import Asked, shares
from mirage_nb.tile.roles.program import Program
from mirage_nb.tile.roles.run import run as run_program
from mirage_nb.tile.roles.validate import validate
from tests.codegen.mugraphs import linear
from tests.codegen.running import WAYS, draw, errors, run
from tests.codegen.test_specialised import FEW, H200
from tests.mugraphs import Block, one_kernel, tensor
from tests.tile import hard
from tests.tile.lines import program_of, text_of

OFF = {"f32": 2e-7, "tf32": 6e-4, "wgmma_tf32": 6e-4, "mma_tf32": 3.5e-4, "3xtf32": 4e-7, "wgmma_3xtf32": 4e-7,
       "mma_3xtf32": 4e-7}  # fmt: skip
"""Relative errors in the 2-norm over 72 summed elements."""


def f32(m: int, n: int, rows: int, columns: int, left: str = "-", right: str = "-", **more: object) -> KernelGraph:
    turned = (left == "t", right == "t")
    return linear(m, 72, n, rows, columns, dtype=DType.F32, step=32, turned=turned, **more)  # type: ignore[arg-type]


def product(m: int, n: int, rows: int, columns: int, dtype: DType) -> KernelGraph:
    """One product over two stages, nothing behind it."""
    step = 128 // dtype.size
    args = (tensor((m, 2 * step), dtype), tensor((2 * step, n), dtype))
    b = Block(args, (-(-m // rows), -(-n // columns)), 2)
    x = b.read(0, (0, None), 1, (rows, step))
    w = b.read(1, (None, 1), 0, (step, columns))
    b.save(b.accum(b.op(OpKind.MATMUL, x, w)), (0, 1), (m, n))
    return one_kernel("X W", b)


CASES: dict[str, tuple[KernelGraph, str]] = {
    "exact, over both ends": (f32(136, 40, 128, 32, residual=True), "f32"),
    "exact, both turned": (f32(64, 64, 64, 64, "t", "t"), "f32"),
    "one, left turned": (f32(128, 32, 64, 32, "t"), "mma_tf32"),
    "three, right turned": (f32(64, 64, 64, 64, "-", "t"), "mma_3xtf32"),
    "warpgroups": (f32(200, 136, 128, 128, residual=True, activation=OpKind.SILU), "wgmma_3xtf32"),
    "warpgroups, right turned": (f32(64, 64, 64, 64, "-", "t"), "wgmma_3xtf32"),
    "warpgroups, one": (f32(64, 64, 64, 64), "tf32"),
    "batch": (f32(64, 64, 64, 64, batch=2), "f32"),
}


@pytest.mark.parametrize("name", CASES)
def test_right_on_the_cpu_edition(name: str) -> None:
    graph, precision = CASES[name]
    options = replace(default_options(H200), precision=precision)
    block = plan(graph, FEW, options).kernels[0]
    assert block is not None and block.program is not None
    assert validate(block.program, H200) == ()
    assert program_of(text_of(block.program)) == block.program
    emitted, inputs = emit(graph, FEW, options), draw(graph)
    for number, how in enumerate(WAYS):
        outputs = run(emitted, inputs, checked=number == 0 and name in ("exact, both turned", "warpgroups, one"), **how)
        for error in errors(graph, emitted, inputs, outputs):
            assert error < OFF[precision], how


@pytest.mark.parametrize("precision", ["wgmma_3xtf32:64+fma:32", "mma_tf32:64+fma:32"])
def test_two_kinds_side_by_side(precision: str) -> None:
    """Columns of the tensor cores and columns of the plain ones, by warps of their own, of one block's tile."""
    graph = f32(200, 184, 128, 96, residual=True)
    options = replace(default_options(H200), precision=precision)
    block = plan(graph, FEW, options).kernels[0]
    assert block is not None and block.program is not None
    kinds, program = precision.split("+"), block.program
    assert [role.name for role in program.roles[:2]] == [kind.partition(":")[0] for kind in kinds]
    assert validate(program, H200) == ()
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.shape) for t in block.block.args]
    (expected,) = run_block(block.block, arrays, FloatAlgebra(np.dtype(float)))
    found = run_program(program, {f"x{i}": a for i, a in enumerate(arrays)}, FloatAlgebra(np.dtype(float)))["o0"]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    emitted, inputs = emit(graph, FEW, options), draw(graph)
    for how in WAYS:
        for error in errors(graph, emitted, inputs, run(emitted, inputs, **how)):
            assert error < OFF[kinds[0].partition(":")[0]]


DOUBLES = {
    "tensor cores": (96, 80, 64, 64, "f32"),
    "plain cores": (64, 32, 64, 32, "fma_f64"),
    "both": (96, 192, 128, 96, "mma_f64:64+fma_f64:32"),
}
FEW_ROWS = {
    "f16": (67, 72, 67, 128, DType.F16, "f32"),
    "f32": (67, 64, 67, 128, DType.F32, "f32"),
    "3xtf32": (68, 128, 68, 128, DType.F32, "3xtf32"),
    "tf32": (131, 64, 66, 128, DType.F32, "tf32"),
}
"""m, n and the tile."""


def ran(graph: KernelGraph, precision: str) -> tuple[Program, list[float]]:
    """The tile program of a product, valid and right as such, and the errors of its kernel on the CPU edition."""
    options = replace(default_options(H200), precision=precision)
    block = plan(graph, FEW, options).kernels[0]
    assert block is not None and block.program is not None
    assert validate(block.program, H200) == ()
    assert program_of(text_of(block.program)) == block.program
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.shape) for t in block.block.args]
    (expected,) = run_block(block.block, arrays, FloatAlgebra(np.dtype(float)))
    found = run_program(block.program, {f"x{i}": a for i, a in enumerate(arrays)}, FloatAlgebra(np.dtype(float)))["o0"]
    np.testing.assert_allclose(found, expected, atol=1e-9)
    emitted, inputs = emit(graph, FEW, options), draw(graph)
    outputs = [run(emitted, inputs, checked=number == 0, **how) for number, how in enumerate(WAYS)]
    return block.program, [error for output in outputs for error in errors(graph, emitted, inputs, output)]


@pytest.mark.parametrize("name", DOUBLES)
def test_doubles(name: str) -> None:
    """f64 stays f64: by tensor cores, by plain ones, by both side by side."""
    m, n, rows, columns, precision = DOUBLES[name]
    program, off = ran(product(m, n, rows, columns, DType.F64), precision)
    assert max(off) < 1e-15 and len(program.roles) == (3 if name == "both" else 2)


def test_doubles_have_no_functions() -> None:
    """The device library's functions are those of f32: with one behind it, an f64 product is no tile program."""
    graph = linear(64, 32, 64, 64, 64, dtype=DType.F64, step=16)
    with pytest.raises(EmitError, match="f64"):
        emit(graph, FEW, default_options(H200))


@pytest.mark.parametrize("name", FEW_ROWS)
def test_a_few_rows_beyond_a_tile_are_multiplied_by_plain_cores(name: str) -> None:
    m, n, rows, columns, dtype, precision = FEW_ROWS[name]
    program, off = ran(product(m, n, rows, columns, dtype), precision)
    assert max(off) < (3e-4 if dtype is DType.F16 else OFF[precision]) and [role.name for role in program.roles] == [
        "math",
        "rest",
        "load",
    ]


def test_functions_behind_a_few_rows() -> None:
    """What stands behind the products is computed for these rows, too; over the end of the last tile."""
    graph = linear(132, 128, 72, 67, 128, dtype=DType.BF16, residual=True, activation=OpKind.SILU)
    program, off = ran(graph, "f32")
    assert max(off) < 3e-3 and len(program.stores("o0")) == 2


def test_one_kind_where_its_rate_says_so() -> None:
    """By the rates that were measured no tile of 96 columns is faster by two kinds: the planner shares none."""
    assert shares(Asked(128, 96, 64, 1, ("k", "m")), "wgmma_tf32", "fma") is None


def test_overlapping_and_missing_columns_are_found() -> None:
    options = replace(default_options(H200), precision="mma_tf32:64+fma:32")
    block = plan(f32(256, 192, 128, 96), FEW, options).kernels[0]
    assert block is not None and block.program is not None
    text = text_of(block.program)
    for said, wrong in (("96*n + 64)", "96*n + 32)"), ("96*n + 64)", "96*n + 96)"), ("column=64", "column=32")):
        assert said in text
        assert validate(program_of(text.replace(said, wrong)), H200)


@pytest.mark.parametrize(("rows", "columns", "precision"), [
    (128, 128, "f32"), (256, 128, "f32"), (128, 128, "mma_3xtf32"), (128, 128, "3xtf32"), (256, 128, "tf32"),
])  # fmt: skip
def test_no_spills(rows: int, columns: int, precision: str) -> None:
    graph = linear(4096, 4096, 4096, rows, columns, dtype=DType.F32, step=32)
    cubin = compile_cubin(emit(graph, H200, replace(default_options(H200), precision=precision)).source, "sm_90a")
    (usage,) = cubin.usage.values()
    assert usage.spill_store_bytes == usage.spill_load_bytes == usage.stack_bytes == 0
    assert "warning" not in cubin.log and "serialized" not in cubin.log, cubin.log


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "dtype"), [
    *((p, DType.F32) for p in ("f32", "wgmma_tf32", "mma_tf32", "wgmma_3xtf32", "mma_3xtf32")),
    ("f32", DType.F64), ("fma_f64", DType.F64),
])  # fmt: skip
def test_hard_inputs_on_the_card(precision: str, dtype: DType) -> None:
    """Rows and columns of every kind of numbers, each met by all: what the card makes of them is within the error."""
    from mirage_nb.runtime.execution.launch import GpuExecutable
    from mirage_nb.runtime.gpu import attached_gpu

    gpu, rows, columns = attached_gpu(), 256, 640
    assert gpu is not None
    graph = product(rows, columns, 64, 64 if dtype is DType.F32 else 32, dtype)
    emitted = emit(graph, H200, replace(default_options(H200), precision=precision))
    (planned,) = emitted.programs
    (made,) = {row.arithmetic for row in rows_of(planned.program)}
    rng, depth = np.random.default_rng(5), graph.inputs[0].type.shape[1]
    left = np.stack([hard.hard(rng, (depth,), row) for row in range(rows)])
    right = np.stack([hard.hard(rng, (depth,), column // 7) for column in range(columns)], axis=1)
    hard.cancel(rng, left[::3], right[:, ::3])
    left, right = hard.held(left, made, dtype), hard.held(right, made, dtype)
    (found,) = GpuExecutable(emitted, compile_cubin(emitted.source, "sm_90a"), gpu).run([left, right])
    off = np.abs(np.asarray(found) - hard.exact(left, right)) / allowed(left, right, made)
    for kind in range(hard.KINDS):
        assert off[kind :: hard.KINDS].max() <= 1, (kind, float(off[kind :: hard.KINDS].max()))
