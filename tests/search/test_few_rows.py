"""Generated products: one kernel with a loop for those that share rows, with what stands behind each."""

from __future__ import annotations

import pytest

from mirage_nb.ir import OpKind
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.search import prepare
from mirage_nb.search.composition import (
    GENERATED,
    GENERATED_PRODUCTS,
    OWN_OPERATORS,
    PRODUCTS_FUSED,
    library_and_fused,
)
from mirage_nb.search.pieces.assemble import instances, tiny
from mirage_nb.search.session.unsearched import unsearched
from mirage_nb.search.sizes.looked import launched
from mirage_nb.search.structure import looped
from mirage_nb.targets import TARGETS
from mirage_nb.verify.trials import verify
from tests.codegen.running import check
from tests.shares import crossed

H200 = TARGETS["h200"]
FORMS = (
    "Y @ {w}.T", "gelu(Y @ {w}.T) * {b}", "Y @ {w}.T + {b} + 2 * ((Y @ {a}.T) @ {c}.T)", "silu(Y @ {w}.T) + R @ {c}.T"
)  # fmt: skip


def layers(form: str, norm: str, widths: tuple[int, ...], rows: int, depth: int) -> str:
    """Layers of one input."""
    lines = [f"X: bf16[{rows}, {depth}]", *([f"g: bf16[{depth}]"] if norm != "X" else [])]
    lines += [f"R: bf16[{rows}, 16]"] if "R" in form else []
    for n, width in enumerate(widths):
        shapes = {"w": f"[{width}, {depth}]", "b": f"[{width}]", "a": f"[16, {depth}]", "c": f"[{width}, 16]"}
        lines += [f"{name.upper()}{n}: bf16{shape}" for name, shape in shapes.items() if f"{{{name}}}" in form]
    made = (form.format(w=f"W{n}", b=f"B{n}", a=f"A{n}", c=f"C{n}") for n in range(len(widths)))
    return "\n".join([*lines, f"Y = {norm}", "return " + ", ".join(made)])


@crossed({
    "form": FORMS,
    "norm": ["X", "rms_norm(X, g)"],
    "widths": [(96, 96, 96), (128, 32, 32), (64, 64)],
    "rows": [2, 8, 16],
})  # fmt: skip
def test_layers_of_one_input_are_one_kernel(form: str, norm: str, widths: tuple[int, ...], rows: int) -> None:
    program = parse(layers(form, norm, widths, rows, 256)).graph
    fused = {c.configuration: c for c in unsearched(program, H200)}[PRODUCTS_FUSED]
    assert fused.verdict.accepted and launched(fused.graph) == 1 + (norm != "X")
    last = [kernel for kernel in plan(fused.graph, H200).kernels if kernel is not None][-1]
    assert len(last.block.savers) == len(widths) and last.block.loop > 1
    check(fused.graph)


def test_it_is_estimated_below_what_each_layer_takes() -> None:
    """Three layers with adapters, and queries with fewer keys and values, behind a norm."""
    for text, most in (
        (layers(FORMS[2], "rms_norm(X, g)", (4096, 4096, 4096), 8, 4096), 29.0),
        (layers(FORMS[0], "rms_norm(X, g)", (4096, 1024, 1024), 8, 4096), 17.0),
    ):
        found = library_and_fused(parse(text).graph, H200, rows=GENERATED_PRODUCTS, said_as=GENERATED)
        assert found is not None and found.instance.cost.us < most


@pytest.mark.parametrize("text", [
    "X: bf16[4096, 4096]; W: bf16[4096, 64]\nreturn softmax(X @ W, 1)",
    "X: f16[256, 2048]; W: f16[2048, 1000]; B: f16[1000]\nreturn log_softmax(relu(X) @ W + B, 1)",
])  # fmt: skip
def test_a_softmax_behind_a_product_is_generated_with_it_or_by_itself(text: str) -> None:
    """A library's softmax stood between products that were generated, with a launch of its own."""
    found = {c.configuration: c for c in unsearched(parse(text).graph, H200)}
    fused = found[PRODUCTS_FUSED]
    kinds = {op.kind for op in fused.graph.ops}
    assert fused.verdict.accepted and kinds <= {OpKind.GRAPH, OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.CONST}
    assert fused.estimate_us < found[OWN_OPERATORS].estimate_us


@pytest.mark.parametrize(
    ("text", "generated"),
    [
        ("X: f16[8, 64]\nW: f16[32, 64]\nreturn X @ W.T", 1),
        ("X: f16[8, 64]\nY: f16[8, 64]\nW: f16[32, 64]\nreturn X @ W.T, Y @ W.T", 1),
        ("X: f16[8, 256]\nW: f16[256, 256]\nV: f16[32, 256]\nreturn (X @ W.T) @ V.T", 2),
        ("X: f16[256, 32, 784]\nW: f16[64, 32]\nB: f16[64]\nreturn relu(W @ X + B[:, None])", 1),
        ("X: f32[64, 64]\nreturn exp(X) + X.T", None),
        ("X: f32[64, 64]; Y: f32[4, 64]\nreturn exp(Y[:, :3] @ X[:3])", None),
    ],
)
def test_every_product_may_be_a_kernel(text: str, generated: int | None) -> None:
    found = library_and_fused(parse(text).graph, H200, rows=GENERATED_PRODUCTS, said_as=GENERATED)
    assert (None if found is None else len(found.assembly.kernels)) == generated
    if found is not None:
        assert verify(*found.small).accepted and launched(found.instance.graph) == generated


@pytest.mark.parametrize(
    ("result", "able"),
    [
        ("X @ W.T + B", True), ("(X * R) @ W.T", True), ("exp(X) @ W.T", True), ("(X @ W.T) @ V", True),
        ("softmax(X @ W.T)", True), ("X @ W.T, sum(X, axis=1)", True), ("rms_norm(X) @ W.T", False),
        ("X @ W.T, X * R", False), ("X @ W.T, max(X, axis=1)", False), ("X * R", False),
    ],
)  # fmt: skip
def test_what_stands_in_a_loop(result: str, able: bool) -> None:
    """What folds the axis of the loop is summed up behind it; what waits for that stands nowhere, nor what has it."""
    named = {"X": "[8, 64]", "W": "[32, 64]", "B": "[32]", "R": "[8, 1]", "V": "[32, 24]"}
    text = "\n".join([*(f"{n}: f16{s}" for n, s in named.items() if n in result), f"return {result}"])
    prepared = prepare(parse(text).graph)
    structure = looped(prepared)
    assert (structure is not None) is able
    if structure is not None:
        assert verify(*tiny(prepared, structure), seed=1).accepted
        check(instances(structure, prepared, H200, 1)[0].graph)
