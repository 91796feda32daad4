"""Precisions of f32 products: refused where unknown, planned where allowed, told beside exact ones."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mirage_nb
from mirage_nb.codegen import emit, variants
from mirage_nb.errors import OptionError
from mirage_nb.ir import DType
from mirage_nb.lang import parse
from mirage_nb.runtime import requested
from mirage_nb.runtime.contest.told import how_judged, off_by, sentence
from mirage_nb.runtime.execution.buffers import draw_sample
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.runtime.passes import Passes
from mirage_nb.targets import PRECISIONS, TARGETS
from mirage_nb.verify import VerdictKind
from tests.codegen.mugraphs import linear

H200 = TARGETS["h200"]
PROGRAM = parse("X: f32[128, 64]\nW: f32[64, 128]\nB: f32[128]\nreturn relu(X @ W + B)").graph
GRAPH = linear(128, 64, 128, 64, 64, dtype=DType.F32, step=32)


def test_an_unknown_precision() -> None:
    with pytest.raises(OptionError, match="bf32"):
        mirage_nb.superoptimize("X: f32[4, 4]\nreturn X @ X", precision="bf32")


def test_exact_unless_the_owner_says_otherwise() -> None:
    assert {o.precision for o in variants(GRAPH, H200)} == {"f32"}
    allowed = replace(H200, precision="3xtf32")
    # On tiles of 64x64 warps are faster than warpgroups, so these are the other kind.
    assert {o.precision for o in variants(GRAPH, allowed)} == {"3xtf32", "wgmma_3xtf32", "f32"}
    assert emit(GRAPH, allowed).options.precision == "3xtf32"
    f16 = linear(128, 64, 128, 64, 64)
    assert {o.precision for o in variants(f16, allowed)} == {"f32"} == {emit(f16, allowed).options.precision}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_kernels_are_as_far_off_as_allowed(precision: str) -> None:
    """The tolerance of a precision takes its own kernels, and not those of the next coarser one."""
    sample = draw_sample(PROGRAM, 2)
    names = list(PRECISIONS)
    for other in names[: names.index(precision) + 1]:
        executable = CpuExecutable(emit(GRAPH, replace(H200, precision=other)))
        assert executable.check(sample, PRECISIONS[precision]).ok
    for coarser in names[names.index(precision) + 1 :]:
        if coarser == "tf32":
            executable = CpuExecutable(emit(GRAPH, replace(H200, precision=coarser)))
            assert not executable.check(sample, PRECISIONS[precision]).ok


def test_the_error_stands_beside_that_of_exact_products() -> None:
    target = replace(H200, precision="tf32")
    emitted, sample = emit(GRAPH, target), draw_sample(PROGRAM, 2)
    report = CpuExecutable(emitted).check(sample, PRECISIONS["tf32"])
    winner = SimpleNamespace(
        emitted=emitted, report=report, candidate=SimpleNamespace(graph=GRAPH), origin=SimpleNamespace(target=target)
    )
    said = sentence(winner, sample, None)  # type: ignore[arg-type]
    tf32, exact = (float(part.split("by ")[-1]) for part in said.split(", "))
    assert "computed as tf32" in said and 1e-4 < tf32 < 1e-3 and exact < 1e-6


def test_exact_kernels_are_held_to_what_rounding_explains() -> None:
    """Whatever a session allows, and whichever GPU it turned to before: what others may be off by was theirs, too."""
    target = replace(H200, precision="tf32")
    passes: Any = Passes(SimpleNamespace(target=target, program=PROGRAM), None, 2.0)  # type: ignore[arg-type]
    kinds = {o.precision: emit(GRAPH, target, o) for o in variants(GRAPH, target)}
    assert {name: off_by(passes, emitted) / 2 for name, emitted in kinds.items()} == {
        name: 1.0 if name == "f32" else PRECISIONS["tf32"] for name in kinds
    }
    assert len(kinds) > 1 and off_by(passes, emit(parse("X: f32[8, 64]\nreturn softmax(X)").graph, target)) == 2.0
    turned: Any = Passes(SimpleNamespace(target=H200, program=PROGRAM), None, passes.tolerance)  # type: ignore[arg-type]
    assert off_by(turned, kinds["f32"]) == 2.0


def test_programs_without_f32_keep_their_own_tolerance() -> None:
    for text, expected in (
        ("X: f64[64, 64]\nreturn X @ X", "f32"),
        ("X: f16[64, 64]\nreturn X @ X", "f32"),
        ("X: f16[64, 64]\nW: f32[64, 64]\nreturn X @ W", "tf32"),
    ):
        assert requested.precise("h200", None, "tf32", parse(text).graph).precision == expected


@pytest.mark.parametrize(("product", "told"), [("X @ W.T", 1), ("f32(X) @ f32(W).T", 0), ("f16(X) @ W.T", 0)])
def test_sums_of_few_digits_are_told(product: str, told: int) -> None:
    said = list[str]()
    program = parse(f"X: f8e4m3[64, 128]\nW: f8e5m2[64, 128]\nreturn {product}").graph
    search = SimpleNamespace(program=program, target=H200, tell=said.append)
    how_judged(SimpleNamespace(search=search, tolerance=1.0))  # type: ignore[arg-type]
    assert len(said) == told


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "dtype", "said", "most"), [
    ("3xtf32", "f32", "computed as 3xtf32: off float64 by", 1e-6),
    ("tf32", "f32", "computed as tf32: off float64 by", 1e-3),
    ("f32", "f32", "", 5e-7),
    ("tf32", "f64", "", 1e-15),
])  # fmt: skip
def test_whole_sessions(precision: str, dtype: str, said: str, most: float) -> None:
    """Search, verification, kernel and what is told of its error; f64 is never computed shorter."""
    text = f"X: {dtype}[512, 256]\nW: {dtype}[256, 512]\nreturn relu(X @ W)"
    text = text.replace("relu(X @ W)", "X @ W") if precision == "tf32" else text
    session = mirage_nb.superoptimize(text, precision=precision, effort="quick", target="h200", budget=20, seed=0)
    messages = session.result().messages
    assert any(said in message for message in messages) if said else not any("products" in m for m in messages)
    rng = np.random.default_rng(0)
    X, W = (
        rng.standard_normal(s).astype({"f32": np.float32, "f64": np.float64}[dtype]) for s in ((512, 256), (256, 512))
    )
    exact = X.astype(np.float64) @ W.astype(np.float64)
    exact = np.maximum(exact, 0) if "relu" in text else exact
    off = np.linalg.norm(session(X, W) - exact) / np.linalg.norm(exact)
    assert off < most and session.best.candidate.verdict.kind in (VerdictKind.FIELD, VerdictKind.PROVED)
