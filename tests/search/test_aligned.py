"""Products whose rows begin anywhere, on operands with zeros behind them."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import OpKind
from mirage_nb.lang import parse
from mirage_nb.predefined.rows import CHUNK
from mirage_nb.search.composition import OWN_OPERATORS, PADDED_FUSED
from mirage_nb.search.session.unsearched import unsearched
from mirage_nb.search.sizes.written import written_cost
from mirage_nb.search.wordings.aligned import padded, products
from mirage_nb.targets import TARGETS

H200 = TARGETS["h200"]
SMALL = {
    "X: f16[4, 8]; W: f16[8, 13]; return relu(X @ W)": 1,
    "X: f16[4, 7]; W: f16[7, 16]; return X @ W": 1,
    "X: bf16[4, 7]; W: bf16[13, 7]; return logsumexp(X @ W.T, 1)": 1,
    "X: f16[3, 4, 8]; Y: f16[3, 9, 8]; return softmax(X @ transpose(Y)) @ Y": 2,
    "X: f16[4, 8]; W: f16[8, 16]; return X @ W": 0,
    "X: f32[4, 7]; W: f32[7, 13]; return X @ W": 0,
    "B: size(1, 8); X: f16[B, 7]; W: f16[7, 13]; return X @ W": 0,
}


@pytest.mark.parametrize("text", SMALL)
def test_the_program_stays_what_it_was(text: str) -> None:
    program = parse(text.replace("; ", "\n")).graph
    made = padded(program, work=0)
    assert made.output_types == program.output_types and (made is program) is (SMALL[text] == 0)
    cut = [(made.types[v], op) for op, (v, *_) in made.definitions() if op.kind is OpKind.MATMUL]
    changed = [op for kind in (OpKind.PAD,) for op in made.ops if op.kind is kind]
    assert bool(changed) is bool(SMALL[text])
    if changed:
        assert all(n % CHUNK == 0 for t, op in cut for n in (t.shape[-1], made.types[op.inputs[0]].shape[-1]))
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-4, 5, i.type.shape).astype(float) for i in program.inputs]
    for one, other in zip(evaluate(made, inputs), evaluate(program, inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert not SMALL[text] or padded(made, work=0) is made


def test_large_ones_are_offered_where_they_pay() -> None:
    program = parse("X: bf16[2048, 768]\nW: bf16[50257, 768]\nreturn logsumexp(X @ W.T, 1)").graph
    assert len(products(program)) == 1
    found = {c.configuration: c for c in unsearched(program, H200)}
    offered = found[PADDED_FUSED]
    assert offered.verdict.accepted
    assert offered.estimate_us < 0.5 * min(c.estimate_us for name, c in found.items() if "library products, " in name)
    few = parse("X: bf16[1, 768]\nW: bf16[50257, 768]\nreturn relu(X @ W.T)").graph
    assert not products(few) and PADDED_FUSED not in {c.configuration for c in unsearched(few, H200)}


@pytest.mark.parametrize("behind", ["X @ W", "relu(X @ W)", "gelu(X @ W)"])
def test_what_stands_behind_them_is_fused(behind: str) -> None:
    program = parse(f"X: f16[2048, 1023]\nW: f16[1023, 4096]\nreturn {behind}").graph
    found = {c.configuration: c for c in unsearched(program, H200)}
    assert found[PADDED_FUSED].verdict.accepted
    assert found[PADDED_FUSED].estimate_us < 0.4 * found[OWN_OPERATORS].estimate_us
    cut = [op.kind for op in found[PADDED_FUSED].graph.ops].index(OpKind.MATMUL)
    kernels = [op for op in found[PADDED_FUSED].graph.ops[cut + 1 :] if op.kind is not OpKind.RELU]
    assert len(kernels) == ("gelu" in behind), "a library multiplies and takes what is negative as 0 in one call"


def test_libraries_are_slow_where_rows_begin_anywhere() -> None:
    def us(dtype: str, columns: int, depth: int = 1024) -> float:
        text = f"X: {dtype}[1024, {depth}]\nW: {dtype}[{depth}, {columns}]\nreturn X @ W"
        return written_cost(parse(text).graph, H200).us

    assert us("f16", 4097) > 1.5 * us("f16", 4098) > 2 * us("f16", 4104) and us("f16", 4104, 1023) > 4 * us("f16", 4104)
    assert us("f32", 4097) < 1.01 * us("f32", 4104)
