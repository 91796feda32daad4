"""Products of one row, said as sums: the same program, and one kernel with what stands around them."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.codegen import LibraryCall, emit
from mirage_nb.interp import reference
from mirage_nb.ir import OpKind
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.search.composition import ONE_ROW, ROWS_FUSED, library_and_fused
from mirage_nb.search.session.unsearched import judged, unsearched
from mirage_nb.search.sizes.looked import launched
from mirage_nb.search.wordings.one_row import as_sums, evened, uneven
from mirage_nb.targets import TARGETS
from tests.codegen.running import check
from tests.shares import crossed

H200 = TARGETS["h200"]
GATED = """
X: bf16[1, 256]
g: bf16[256]
A: bf16[384, 256]
B: bf16[384, 256]
C: bf16[256, 384]
x = rms_norm(X, g, eps=1e-5)
return X + (silu(x @ A.T) * (x @ B.T)) @ C.T
"""
OTHERS = (
    "X: f32[2, 64]\nW: f32[32, 64]\nreturn X @ W.T",
    "X: f32[1, 64]\nW: f32[64, 32]\nreturn X @ W",
    "X: f32[1, 64]\nW: f32[3, 32, 64]\nreturn X @ W.T",
)


@pytest.mark.parametrize(
    "text", ["X: f32[1, 24]\nW: f32[10, 24]\nreturn X @ W.T + 1", "X: f32[3, 1, 8]\nW: f32[3, 5, 8]\nreturn X @ W.T"]
)
def test_it_stays_the_program(text: str) -> None:
    program = parse(text).graph
    made = as_sums(program)
    assert OpKind.MATMUL not in {op.kind for op in made.ops} and made.output_types == program.output_types
    assert judged(program, made, 0).accepted
    arrays = [np.random.default_rng(0).standard_normal(i.type.shape) for i in program.inputs]
    for found, right in zip(reference.evaluate(made, arrays), reference.evaluate(program, arrays), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-9)


@pytest.mark.parametrize("text", OTHERS)
def test_other_products_stay_products(text: str) -> None:
    program = parse(text).graph
    assert as_sums(program) is program and library_and_fused(program, H200, said_as=ONE_ROW) is None


@pytest.mark.parametrize("form", ["X @ W.T + B + R", "silu((X @ W.T) * B) * (X @ V.T * C) + R"])
def test_what_comes_along_a_line_is_added_where_rows_are_held(form: str) -> None:
    """A bias, a scale or a residual costs no shared memory: the kernel is as fast as the product alone."""
    declared = {"X": "[1, 512]", "W": "[384, 512]", "V": "[384, 512]", "B": "[384]", "C": "[384]", "R": "[1, 384]"}
    lines = [f"{name}: bf16{shape}" for name, shape in declared.items() if name in form]
    program = parse("\n".join([*lines, f"return {form}"])).graph
    fused = {c.configuration: c for c in unsearched(program, H200)}[ROWS_FUSED]
    (kernel,) = plan(fused.graph, H200).kernels
    assert kernel is not None and kernel.resident is not None and kernel.resident.layout.rows
    check(fused.graph)


QKV = """
X: bf16[1, 256]
g: bf16[256]
Q: bf16[512, 256]
K: bf16[128, 256]
V: bf16[128, 256]
x = rms_norm(X, g, eps=1e-5)
return x @ Q.T, x @ K.T, x @ V.T
"""


def test_layers_of_different_widths_are_one_kernel() -> None:
    """Queries, and the fewer keys and values: a thread holds a row of each of six parts of one height."""
    fused = {c.configuration: c for c in unsearched(parse(QKV).graph, H200)}[ROWS_FUSED]
    (kernel,) = [kernel for kernel in plan(fused.graph, H200).kernels if kernel is not None]
    assert kernel.resident is not None and kernel.resident.layout.rows
    assert launched(fused.graph) == 1 and fused.verdict.accepted
    assert OpKind.SLICE in {op.kind for op in fused.small[1].ops}  # the parts were judged, too
    check(fused.graph)


@pytest.mark.parametrize(
    ("widths", "parts"),
    [((512, 128, 128), 4), ((512, 384), 4), ((512, 128, 120), 1), ((512, 32), 1), ((256, 256), 1), ((384,), 1)],
)
def test_matrices_that_share_a_row_are_cut_to_one_height(widths: tuple[int, ...], parts: int) -> None:
    names = "ABC"[: len(widths)]
    lines = ["X: f32[1, 64]", *(f"{n}: f32[{width}, 64]" for n, width in zip(names, widths, strict=True))]
    program = parse("\n".join([*lines, "return " + ", ".join(f"X @ {n}.T" for n in names)])).graph
    made = evened(program)
    cut = [op.attrs for op in made.ops if op.kind is OpKind.SLICE and op.inputs == (1,)]
    assert len(cut) == (parts if parts > 1 else 0) and (made is program) == (not uneven(program))
    arrays = [np.random.default_rng(0).standard_normal(i.type.shape) for i in program.inputs]
    for found, right in zip(reference.evaluate(made, arrays), reference.evaluate(program, arrays), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-9)


LAYERS = ("Y @ {w}.T + {b}", "gelu(Y @ {w}.T) * {b}", "Y @ {w}.T + {b} + 2 * ((X @ {a}.T) @ {c}.T)")


@crossed({"widths": [(384, 384, 384), (512, 128, 128)], "form": LAYERS, "norm": ["X", "layer_norm(X, g, h)"]})
def test_layers_of_one_input_are_one_kernel(form: str, norm: str, widths: tuple[int, ...]) -> None:
    """With what stands behind each of them; products of low rank are one kernel in front."""
    low = "{a}" in form
    lines = ["X: bf16[1, 1024]", "g: bf16[1024]", "h: bf16[1024]"][: 1 if norm == "X" else 3]
    for n, width in enumerate(widths):
        lines += [f"W{n}: bf16[{width}, 1024]", f"b{n}: bf16[{width}]"]
        lines += [f"A{n}: bf16[16, 1024]", f"C{n}: bf16[{width}, 16]"] if low else []
    made = (form.format(w=f"W{n}", b=f"b{n}", a=f"A{n}", c=f"C{n}") for n in range(len(widths)))
    program = parse("\n".join([*lines, f"Y = {norm}", "return " + ", ".join(made)])).graph
    fused = {c.configuration: c for c in unsearched(program, H200)}[ROWS_FUSED]
    assert launched(fused.graph) == 1 + low and fused.verdict.accepted
    kernels = [kernel for kernel in plan(fused.graph, H200).kernels if kernel is not None]
    last = kernels[-1]
    assert len(last.block.savers) == len(widths)
    assert last.resident is not None and last.resident.layout.rows
    check(fused.graph)


def test_a_gated_layer_is_two_kernels() -> None:
    program = parse(GATED).graph
    fused = {c.configuration: c for c in unsearched(program, H200)}[ROWS_FUSED]
    assert fused.verdict.accepted
    launches = emit(fused.graph, H200).launches
    assert len(launches) == 2 and not any(isinstance(launch, LibraryCall) for launch in launches)
    check(fused.graph)
