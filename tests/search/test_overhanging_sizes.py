"""Sizes for axes with poor divisors: tiles that hang over the ends, where the verifier agrees."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.codegen import emit
from mirage_nb.interp import reference
from mirage_nb.ir import BlockGraph, InIterAttrs, KernelGraph, OpKind
from mirage_nb.ir.legality import check
from mirage_nb.lang import parse
from mirage_nb.search import (
    EFFORTS,
    Instance,
    Prepared,
    Structure,
    configurations,
    instances,
    prepare,
    tiny,
)
from mirage_nb.search.derive import free_loops
from mirage_nb.search.pieces.assemble import drafts
from mirage_nb.search.session.session import SearchSession
from mirage_nb.search.sizes import concrete
from mirage_nb.search.sizes.concrete import GRAIN, Axes, BlockWriter, tile_of, zeros
from mirage_nb.search.sizes.instantiate import divisors, overhangs, poor_axes, sized
from mirage_nb.targets import TARGETS
from mirage_nb.tile.rules.teams import few
from mirage_nb.verify.proof import decided
from mirage_nb.verify.trials import screen, verify
from mirage_nb.verify.verdict import VerdictKind
from tests.search.explored import explored
from tests.shares import some

H200 = TARGETS["h200"]
QUICK = EFFORTS["quick"]

PROGRAMS = {
    "norm and product": "X: f16[7, 1000]\nW: f16[1000, 1300]\nreturn (X / sqrt(sum(X * X, axis=1, keepdims=True))) @ W",
    "prime product": "X: f16[211, 257]\nW: f16[257, 223]\nreturn X @ W",
    "wide product": "X: f16[16, 127]\nW: f16[127, 4093]\nreturn X @ W",
    "softmax": "X: f16[131, 257]\nreturn softmax(X, axis=1)",
    "attention": "Q: f16[67, 16]\nK: f16[131, 16]\nV: f16[131, 16]\nreturn softmax(Q @ transpose(K, 1, 0), axis=1) @ V",
    "softmax and product": "X: f16[16, 515]\nW: f16[515, 32]\nreturn softmax(X, axis=1) @ W",
    "safe attention": (
        "Q: f16[64, 16]\nK: f16[131, 16]\nV: f16[131, 16]\nS = Q @ transpose(K, 1, 0)\n"
        "E = exp(S - max(S, axis=1, keepdims=True))\nreturn (E / sum(E, axis=1, keepdims=True)) @ V"
    ),
    "masked attention": (
        "Q: f16[64, 16]\nK: f16[131, 16]\nV: f16[131, 16]\nM: f16[64, 131]\n"
        "return softmax(where(M > -1, Q @ transpose(K, 1, 0), -inf), axis=1) @ V"
    ),
    "logsumexp of a product": "X: f16[64, 16]\nW: f16[16, 131]\nreturn logsumexp(X @ W, 1)",
    "largest of a product": "X: f16[64, 16]\nW: f16[16, 131]\nreturn max(X @ W, axis=1)",
    "variance of a product": "X: f16[64, 16]\nW: f16[16, 131]\nreturn var(X @ W, axis=1)",
    "columns": "X: f16[131, 67]\nreturn X / sum(X * X, axis=0, keepdims=True)",
    "heads": "X: f16[2, 67, 37]\nW: f16[37, 67]\nB: f16[67]\nreturn silu(X @ W + B)",
}


def structures_of(graph: KernelGraph, kernels: int, per_configuration: int = 100) -> list[Structure]:
    prepared = prepare(graph)
    found: list[Structure] = []
    for configuration in configurations(prepared, QUICK):
        if configuration.kernels == kernels and configuration.cut is None:
            result = explored(prepared, configuration, QUICK)
            found.extend(result.structures[:per_configuration])
    return found


def sound(prepared: Prepared, structure: Structure) -> frozenset[int]:
    """The axes over whose ends tiles of a structure may hang."""
    pairs = {a: tiny(prepared, structure, frozenset({a})) for a in poor_axes(prepared)}
    return frozenset(a for a, pair in pairs.items() if decided(screen(*pair, seed=1), *pair).accepted)


def hangs(graph: KernelGraph) -> bool:
    bodies = [op.body for op in graph.ops if isinstance(op.body, BlockGraph)]
    reads = [(body, op.attrs) for body in bodies for op in body.ops if isinstance(op.attrs, InIterAttrs)]
    return any(any(body.overhanging(attrs)) for body, attrs in reads)


@given(st.integers(1, 5000), st.integers(1, 400))
def test_every_tile_holds_an_element(extent: int, parts: int) -> None:
    tile = tile_of(extent, parts)
    if tile:
        assert (parts - 1) * tile < extent <= parts * tile
        good = tile * parts == extent or tile % GRAIN == 0 or few(tile)
        assert good or (parts - 1) * (-(-tile // GRAIN) * GRAIN) >= extent
    else:
        assert (parts - 1) * -(-extent // parts) >= extent


def test_axes_with_good_divisors_stay_as_they_are() -> None:
    good = (1, 7, 16, 32, 48, 64, 96, 128, 1000, 1024, 4096, 6144, 11008, 14336)
    poor = (33, 67, 100, 257, 1009, 1016, 1300, 4093)
    for extents, expected in ((good, False), (poor, True)):
        for extent in extents:
            prepared = prepare(parse(f"X: f16[3, {extent}]\nreturn exp(X)").graph)
            assert (1 in poor_axes(prepared)) == expected, extent


@pytest.mark.parametrize(("text", "across"), [("A @ X", True), ("A @ (X * 2)", None), ("A @ Y.T", False)])
@pytest.mark.parametrize(
    ("extent", "dtype", "poor"),
    [(784, "f16", {True}), (768, "f16", set()), (1000, "f16", {True, False}), (784, "f32", {True}), (96, "f32", set())],
)
def test_tiles_of_operands_are_whole_lines_or_rows(
    text: str, across: bool | None, extent: int, dtype: str, poor: set[bool]
) -> None:
    """The copy engine brings 128 bytes of what a product reads across: of 28 x 28 places no tiles are such lines; and
    instructions take 16 rows."""
    inputs = f"A: {dtype}[512, 256]; X: {dtype}[256, {extent}]; Y: {dtype}[{extent}, 256]"
    prepared = prepare(parse(f"{inputs}\nreturn {text}").graph)
    found = {prepared.axes[axis].extent for axis in poor_axes(prepared)}
    assert found == ({extent} if across in poor else set())


@pytest.mark.parametrize("kernels", [1, 2])
@pytest.mark.parametrize("name", PROGRAMS)
def test_instances_compute_the_program_at_odd_sizes(name: str, kernels: int) -> None:
    graph = parse(PROGRAMS[name]).graph
    prepared = prepare(graph)
    rng = np.random.default_rng(3)
    arrays = [0.3 * rng.standard_normal(i.type.shape) for i in graph.inputs]
    expected = reference.evaluate(graph, arrays)
    tried = 0
    for structure in structures_of(graph, kernels, per_configuration=1)[:5]:
        found = [d for d in drafts(structure, prepared, H200, 40, sound(prepared, structure)) if d.overhanging]
        for instance in [draft.made() for draft in found[:: max(1, len(found) // 2)][:2]]:
            check(instance.graph, H200)
            assert hangs(instance.graph)
            for a, b in zip(reference.evaluate(instance.graph, arrays), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
            tried += 1
    assert tried > 0 or kernels == 2


def best(text: str, *, overhang: bool) -> Instance:
    graph = parse(text).graph
    prepared = prepare(graph)
    return min(
        (
            instance
            for structure in structures_of(graph, 1, per_configuration=2)
            for instance in instances(
                structure, prepared, H200, 1, sound(prepared, structure) if overhang else frozenset()
            )
        ),
        key=lambda instance: instance.cost.us,
    )


@pytest.mark.parametrize("name", ["prime product", "wide product"])
def test_primes_are_no_longer_cut_into_single_elements(name: str) -> None:
    assert best(PROGRAMS[name], overhang=True).cost.us < 0.8 * best(PROGRAMS[name], overhang=False).cost.us


def small_verdicts(name: str) -> set[tuple[bool, bool]]:
    """Of the small instances of some structures: accepted, overhanging."""
    graph = parse(PROGRAMS[name]).graph
    prepared = prepare(graph)
    found = set()
    for structure in structures_of(graph, 1, per_configuration=2):
        for axes in overhangs(prepared):
            program, small = tiny(prepared, structure, axes)
            check(small)
            assert not hangs(small) or axes
            found.add((verify(program, small).accepted, hangs(small)))
    return found


@pytest.mark.parametrize("name", some(["attention", "softmax", "safe attention", "softmax and product"], 1, 2))
def test_what_sums_exponentials_is_masked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert small_verdicts(name) == {(True, False), (True, True)}
    monkeypatch.setattr(BlockWriter, "_masked", lambda self, value, axis, step: value)
    assert (False, True) in small_verdicts(name)


@pytest.mark.parametrize("forgotten", [OpKind.EXP, OpKind.ADD, OpKind.SIGMOID])
def test_what_is_wrongly_held_for_zero_is_refuted(forgotten: OpKind, monkeypatch: pytest.MonkeyPatch) -> None:
    text = {OpKind.EXP: "exp(X)", OpKind.ADD: "(X + G) * (X + G)", OpKind.SIGMOID: "sigmoid(X)"}[forgotten]
    monkeypatch.setitem(PROGRAMS, "sums", f"X: f16[3, 131]\nG: f16[3, 1]\nreturn sum({text} * G, axis=1)")
    assert (True, True) in small_verdicts("sums")

    def optimistic(kind: OpKind, operands: Sequence[Axes]) -> Axes:
        return operands[0] if kind is forgotten else zeros(kind, operands)

    monkeypatch.setattr(concrete, "zeros", optimistic)
    assert (False, True) in small_verdicts("sums")


def test_masks_are_numbers_and_no_kernels() -> None:
    graph = parse(PROGRAMS["safe attention"]).graph
    prepared = prepare(graph)
    for structure in structures_of(graph, 1, per_configuration=1):
        for instance in instances(structure, prepared, H200, 20, frozenset({2})):
            masked = any(op.kind is OpKind.REPEAT for op in instance.graph.ops)
            assert masked == (2 in instance.overhanging)
            assert instance.graph.kernel_count == len(structure.kernels)
            emitted = emit(instance.graph, H200)
            assert len(emitted.launches) == 1 and not emitted.temporaries


def test_scores_far_below_zero_keep_their_weights() -> None:
    """Beyond the end scores are zero; were they in the maximum, every weight of such a row would vanish."""
    graph = parse(PROGRAMS["safe attention"]).graph
    prepared = prepare(graph)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(i.type.shape) for i in graph.inputs)
    low = [np.abs(q) * 8, -np.abs(k) * 8, v]
    assert float((low[0] @ low[1].T).max()) < -100
    tried = 0
    for structure in structures_of(graph, 1, per_configuration=2):
        for draft in [d for d in drafts(structure, prepared, H200, 9, frozenset({2})) if d.overhanging][:2]:
            (found,) = reference.evaluate(draft.made().graph, low, np.float32)
            np.testing.assert_allclose(found, reference.evaluate(graph, low)[0], rtol=2e-4, atol=2e-4)
            tried += 1
    assert tried


def test_named_sizes_find_their_instance_again() -> None:
    graph = parse(PROGRAMS["prime product"]).graph
    prepared = prepare(graph)
    structure = structures_of(graph, 1)[0]
    for instance in instances(structure, prepared, H200, 4, sound(prepared, structure)):
        again = sized(structure, prepared, H200, instance.sizes)
        assert again is not None and again.graph == instance.graph


def test_divisors_are_among_the_parts_that_are_tried() -> None:
    graph = parse("X: f16[2310, 64]\nreturn exp(X)").graph  # many divisors, none a multiple of eight
    prepared = prepare(graph)
    (structure, *_) = structures_of(graph, 1)
    found = drafts(structure, prepared, H200, 400)
    blocks = {i.sizes.get(f"grid {prepared.axes[0].name}", 1) for i in found}
    assert blocks & set(divisors(2310)) and blocks - set(divisors(2310))


def test_loops_over_free_axes_overhang_too() -> None:
    graph = parse("X: f16[7, 64]\nW: f16[64, 4093]\nreturn rms_norm(X) @ W").graph
    prepared = prepare(graph)
    axis = next(i for i, axis in enumerate(prepared.axes) if axis.extent == 4093)
    looped = [loop for s in structures_of(graph, 1) for loop in free_loops(s, prepared) if loop.kernels[0].loop == axis]
    assert looped
    for structure in looped[:2]:
        program, small = tiny(prepared, structure, frozenset({axis}))
        check(small)
        assert hangs(small) and verify(program, small).accepted
        assert any(f"loop {prepared.axes[axis].name}" in i.sizes for i in drafts(structure, prepared, H200, 9))


def test_tiles_hang_beside_numbers_of_places() -> None:
    """Those of keys, too, whose scores a mask of places leaves out, beside the kernel that numbers them."""
    text = (
        "Q: f16[16, 577, 64]\nK: f16[16, 577, 64]\nV: f16[16, 577, 64]\nI = arange(577)\n"
        "return softmax(where(abs(I[:, None] - I) < 60, Q @ transpose(K, 0, 2, 1), -inf)) @ V"
    )
    with ThreadPoolExecutor(1) as pool:
        session = SearchSession(parse(text).graph, H200, effort="quick", executor=pool)
        session.start()
        session.wait()
    best = session.snapshot().candidates[0]
    bodies = [op.body for op in best.graph.ops if isinstance(op.body, BlockGraph) and op.body.has_loop]
    streamed = [(b, op.attrs) for b in bodies for op in b.ops if getattr(op.attrs, "fmap", None) is not None]
    assert best.kernels == 1 and any(isinstance(a, InIterAttrs) and any(b.overhanging(a)) for b, a in streamed)


def test_columns_of_a_product_are_folded_tile_by_tile() -> None:
    """A tile of columns in each block, whose largest and sum another kernel joins: no field trials, but a proof."""
    prepared = prepare(parse("X: bf16[256, 128]\nW: bf16[1009, 128]\nreturn logsumexp(X @ W.T, 1)").graph)
    depth, columns = (next(i for i, axis in enumerate(prepared.axes) if axis.extent == n) for n in (128, 1009))
    standard = EFFORTS["standard"]
    configuration = next(c for c in configurations(prepared, standard) if (c.grid, c.loop) == ((columns,), depth))
    found = explored(prepared, configuration, standard).structures[:4]
    over = frozenset({columns})
    pairs = [(structure, tiny(prepared, structure, over)) for structure in found]
    proved = [s for s, pair in pairs if decided(screen(*pair, seed=1), *pair).kind is VerdictKind.PROVED]
    assert any(i.overhanging == over for s in proved for i in instances(s, prepared, H200, 2, over))
