"""Products side by side have one depth: recurrent cells, whose input and state are multiplied in one loop."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, configurations, prepare
from mirage_nb.search.composition import PRODUCTS_FUSED, UNSEARCHED
from mirage_nb.search.pieces.assemble import instances, tiny
from mirage_nb.search.session.unsearched import unsearched
from mirage_nb.search.sizes.looked import launched
from mirage_nb.search.wordings.depths import PARTS, evened, halved, joined, parted, uneven
from mirage_nb.targets import TARGETS
from mirage_nb.verify.proof import Proof, prove
from mirage_nb.verify.trials import verify
from tests.codegen.running import check
from tests.search.explored import explored
from tests.shares import crossed

H200, QUICK = TARGETS["h200"], EFFORTS["quick"]
GATES = {
    "rnn": (1, "return tanh(A + B)"),
    "lstm": (
        4,
        "G = A + B; N = sigmoid(G[:, {1}]) * C + sigmoid(G[:, {0}]) * tanh(G[:, {2}])\n"
        "return sigmoid(G[:, {3}]) * tanh(N), N",
    ),
    "gru": (
        3,
        "R = sigmoid(A[:, {0}] + B[:, {0}]); Z = sigmoid(A[:, {1}] + B[:, {1}])\n"
        "return (1 - Z) * tanh(A[:, {2}] + R * B[:, {2}]) + Z * H",
    ),
}
"""How many gates a cell has, and what it does with `A`, `B`, its state `H` and its memory `C`."""


def cell(name: str, turned: bool, rows: int, depth: int, width: int) -> KernelGraph:
    """A cell of this width, whose input has this depth; turned: weights as PyTorch has them."""
    count, gates = GATES[name]
    shapes = ([k, count * width] for k in (depth, width))
    w, u = (f"f16{shape[::-1] if turned else shape}" for shape in shapes)
    parts = [f"{n * width}:{(n + 1) * width}" for n in range(count)]
    turn = ".T" if turned else ""
    return parse(
        f"X: f16[{rows}, {depth}]; H: f16[{rows}, {width}]; C: f16[{rows}, {width}]\n"
        f"W: {w}; U: {u}; b: f16[{count * width}]; c: f16[{count * width}]\n"
        f"A = X @ W{turn} + b; B = H @ U{turn} + c\n{gates.format(*parts)}"
    ).graph


@crossed({"name": GATES, "turned": [False, True], "depth": [128, 64, 192], "rows": [1, 16]})
def test_a_cell_is_a_kernel_for_its_products_and_one_for_its_gates(
    name: str, turned: bool, depth: int, rows: int
) -> None:
    program = cell(name, turned, rows, depth, 128)
    found = {c.configuration: c for c in unsearched(program, H200)}[PRODUCTS_FUSED]
    assert found.verdict.accepted and launched(found.graph) == (1 if name == "rnn" else 2)
    check(found.graph)


@pytest.mark.parametrize(("name", "depth", "most"), [("lstm", 1024, 7.5), ("lstm", 512, 6.5), ("gru", 1024, 7.5)])
def test_it_is_estimated_below_what_libraries_take(name: str, depth: int, most: float) -> None:
    found = {c.configuration: c.estimate_us for c in unsearched(cell(name, True, 64, depth, 1024), H200)}
    others = min(us for configuration, us in found.items() if configuration in UNSEARCHED - {PRODUCTS_FUSED})
    assert found[PRODUCTS_FUSED] < most < 0.8 * others


SUM = "X: f16[{m}, {k}]; H: f16[{m}, {d}]; W: f16[{k}, 64]; U: f16[{d}, 64]\nreturn X @ W + H @ U"


@pytest.mark.parametrize(
    ("m", "k", "d", "cut"),
    [
        (8, 128, 128, []), (8, 128, 256, [256]), (8, 192, 128, [192, 128]), (8, 72, 64, []), (100, 128, 256, [256]),
        (8, 64, 64 * PARTS, []),
    ],
)  # fmt: skip
def test_the_deeper_ones_are_cut(m: int, k: int, d: int, cut: list[int]) -> None:
    program = parse(SUM.format(m=m, k=k, d=d)).graph
    found = uneven(program)
    assert [program.types[left].shape[-1] for left, _ in found.values()] == cut
    assert (evened(program) is program) == (not cut)
    if cut:
        assert not uneven(evened(program))
        arrays = {i.name: np.random.default_rng(0).normal(size=i.type.shape) for i in program.inputs}
        (wanted,) = evaluate(program, arrays)
        for said in (evened(program), halved(program)):
            np.testing.assert_allclose(*evaluate(said, arrays), wanted)


@pytest.mark.parametrize(
    ("left", "parts"),
    [("concat(X, H, 1)", 2), ("concat(concat(X, H, 1), X, 1)", 3), ("concat(X, T, 1)", 0), ("(X + H[:, :64])", 0)],
)
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_what_is_joined_are_those_of_its_parts(left: str, parts: int, turned: bool) -> None:
    depth = {2: 192, 3: 256}.get(parts, 72 if "T" in left else 64)
    given = f"X: f16[16, 64]; H: f16[16, 128]; T: f16[16, 8]; W: f16{[128, depth] if turned else [depth, 128]}\n"
    program = parse(f"{given}return tanh({left} @ W{'.T' if turned else ''})").graph
    assert [len(read) - 1 for read in joined(program).values()] == [parts] * (parts > 0)
    said, arrays = parted(program), [np.random.default_rng(0).normal(size=i.type.shape) for i in program.inputs]
    assert (said is program) == (not parts)
    np.testing.assert_allclose(*evaluate(said, dict(zip("XHTW", arrays, strict=True))),
                               *evaluate(program, dict(zip("XHTW", arrays, strict=True))))  # fmt: skip
    if parts:
        found = {c.configuration: c for c in unsearched(program, H200)}[PRODUCTS_FUSED]
        assert found.verdict.accepted and launched(found.graph) == 1
        check(found.graph)


def test_one_loop_that_adds_both_products_is_found() -> None:
    prepared = prepare(parse(SUM.format(m=16, k=128, d=128)).graph)
    looped = next(c for c in configurations(prepared, QUICK) if c.kernels == 1 and c.loop is not None and not c.grid)
    steps = [
        (s, [step.operator.kind for step in s.kernels[0].steps]) for s in explored(prepared, looped, QUICK).structures
    ]
    found = [s for s, kinds in steps if (kinds.count(OpKind.MATMUL), kinds.count(OpKind.ACCUM)) == (2, 1)]
    assert found and verify(*tiny(prepared, found[0]), seed=1).accepted
    made = prepared.whole(instances(found[0], prepared, H200, 1)[0].graph)
    assert isinstance(prove(prepared.graph, made), Proof)
    check(made)
