"""Concatenations inside kernels: an axis that is one axis after another, which no kernel cuts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mirage_nb.codegen import Options, emit
from mirage_nb.errors import SearchError
from mirage_nb.interp import reference
from mirage_nb.ir import BlockGraph, KernelGraph, OpKind
from mirage_nb.ir.legality import check
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import decode
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.search import (
    EFFORTS,
    Budget,
    Prepared,
    Structure,
    configurations,
    instances,
    prepare,
    tiny,
)
from mirage_nb.search.axes import over_axes as said_over_axes
from mirage_nb.search.explain import Tally, explain, why_nothing
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.targets import TARGETS
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import VerdictKind
from tests.search.explored import explored
from tests.search.test_axes import over_axes
from tests.search.test_foreign_programs import error, exact, stored

H200 = TARGETS["h200"]
STANDARD = EFFORTS["standard"]

PROGRAMS = {
    "two_operands": "X: f16[16, 64]\nY: f16[16, 64]\nW: f16[128, 64]\nreturn concat(X, Y, axis=-1) @ W",
    "uneven": "X: f16[16, 64]\nY: f16[16, 32]\nW: f16[96, 64]\nreturn concat(X, Y, axis=-1) @ W",
    "no_common_size": "X: f16[16, 7]\nY: f16[16, 9]\nW: f16[16, 64]\nreturn concat(X, Y, axis=-1) @ W",
    "three": "X: f16[16, 64]\nY: f16[16, 64]\nZ: f16[16, 64]\nW: f16[192, 64]\n"
    "return concat(concat(X, Y, axis=-1), Z, axis=-1) @ W",
    "two_products": "X: f16[16, 64]\nA: f16[64, 64]\nB: f16[64, 64]\nC: f16[128]\n"
    "return silu(concat(X @ A, X @ B, axis=-1) + C)",
    "rows": "X: f16[16, 64]\nY: f16[48, 64]\nW: f16[64, 32]\nreturn relu(concat(X, Y, axis=0) @ W)",
    "rotary": "C: f16[64, 32]\nS: f16[64, 32]\nX: f16[64, 32]\nY: f16[64, 32]\n"
    "return concat(X * C - Y * S, Y * C + X * S, axis=-1)",
    "normalised": "X: f16[16, 64]\nY: f16[16, 64]\nreturn rms_norm(concat(X, Y, axis=-1))",
    "skip": "X: f16[16, 64]\nA: f16[64, 32]\nW: f16[96, 64]\nreturn concat(X, relu(X @ A), axis=-1) @ W",
    "cache": "Q: f16[2, 16, 32]\nK: f16[2, 128, 32]\nk: f16[2, 16, 32]\nV: f16[2, 128, 32]\nv: f16[2, 16, 32]\n"
    "S = exp(Q @ concat(K, k, axis=1).T)\nreturn (S / sum(S, axis=-1, keepdims=True)) @ concat(V, v, axis=1)",
    "with_itself": "X: f16[16, 32]\nreturn concat(X, X * X, axis=0)",
}


SEEN_THROUGH = frozenset({OpKind.RESHAPE, OpKind.SLICE})
"""What kernels read where it lies."""
EMITTED = ("uneven", "three", "rows", "cache")
"""Of which one instance is executed: compiling takes longer than all else."""


def program(name: str) -> KernelGraph:
    return parse(PROGRAMS[name]).graph


def found(prepared: Prepared, kernels: int = 1) -> list[Structure]:
    every: list[Structure] = []
    for configuration in configurations(prepared, STANDARD):
        if configuration.kernels == kernels and configuration.cut is None:
            every += explored(prepared, configuration, STANDARD).structures
    return every


@pytest.mark.parametrize("name", PROGRAMS)
def test_over_axes_it_is_the_same_program(name: str) -> None:
    graph = program(name)
    prepared = said_over_axes(graph)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(i.type.shape) for i in graph.inputs]
    for mine, wanted in zip(over_axes(prepared, arrays), reference.evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-9)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_kernel_computes_it(name: str) -> None:
    """What is found is verified and legal; emitted, it computes the program."""
    graph = program(name)
    prepared = prepare(graph)
    choose = random.Random(name)
    structures = found(prepared)
    assert structures
    for structure in choose.sample(structures, min(3, len(structures))):
        pair = tiny(prepared, structure)
        assert verify(*pair, seed=3).accepted
        assert error(exact(pair[1], stored(pair[0])), exact(pair[0], stored(pair[0]))) < 1e-9
        made = instances(structure, prepared, H200, 8)
        for instance in made:
            check(instance.graph)
            assert [op.kind for op in instance.graph.ops if op.kind not in SEEN_THROUGH] == [OpKind.GRAPH]
    few = [instance for instance in made if instance.cost.blocks <= 64]
    if name in EMITTED:
        inputs = stored(graph)
        instance = choose.choice(few)
        outputs = CpuExecutable(emit(instance.graph, H200, Options(2))).run(inputs, deferred=True)
        types = instance.graph.output_types
        assert error([decode(o, t.dtype) for o, t in zip(outputs, types, strict=True)], exact(graph, inputs)) < 3e-3


@pytest.mark.parametrize("name", ["two_operands", "two_products", "rotary"])
def test_parts_that_are_swapped_are_refuted(name: str) -> None:
    graph = program(name)
    prepared = prepare(graph)
    judged = 0
    for structure in found(prepared):
        pair = tiny(prepared, structure)
        wrong = _swapped(pair[1])
        if wrong is not None:
            judged += 1
            assert verify(pair[0], wrong, seed=3).kind is VerdictKind.REFUTED
    assert judged


def _swapped(graph: KernelGraph) -> KernelGraph | None:
    """The muGraph with the operands of its concatenations swapped, where their shapes are equal."""
    (op,) = [op for op in graph.ops if op.kind is OpKind.GRAPH]
    assert isinstance(op.body, BlockGraph)
    made, changed = BlockGraph.start(op.body.args, op.body.grid, op.body.loop), False
    for inner in op.body.ops:
        first, second = inner.inputs if inner.kind is OpKind.CONCAT else (0, 0)
        if first != second and op.body.types[first].shape == op.body.types[second].shape:
            inner, changed = type(inner)(inner.kind, (second, first), inner.attrs), True
        made = made.append(inner)
    swapped = tuple(type(o)(o.kind, o.inputs, o.attrs, made) if o is op else o for o in graph.ops)
    return KernelGraph(swapped, graph.types, graph.inputs, graph.outputs, graph.output_names) if changed else None


def test_two_kernels_and_pieces_have_concatenations_inside() -> None:
    prepared = prepare(program("cache"))
    two = found(prepared, kernels=2)
    assert two and all(verify(*tiny(prepared, s), seed=3).accepted for s in two[:6])
    assert {len(s.kernels) for s in two} == {2}


def test_what_a_concatenation_joins_is_never_cut() -> None:
    for name in PROGRAMS:
        prepared = prepare(program(name))
        whole = {n for n, axis in enumerate(prepared.axes) if axis.whole}
        assert whole.isdisjoint({*prepared.reduced, *prepared.free})
        for configuration in configurations(prepared, STANDARD):
            assert whole.isdisjoint({*configuration.grid, configuration.loop})


def test_parts_without_a_common_size_are_said_to_be_whole_where_nothing_fits() -> None:
    """65536 rows, too many for a tile, in two parts that have no common size: their concatenation is a kernel."""
    text = "X: f16[40961, 64]\nY: f16[24575, 64]\nW: f16[16, 65536]\nreturn W @ exp(concat(X, Y, axis=0))"
    prepared = prepare(parse(text).graph)
    for structure in found(prepared):
        assert not instances(structure, prepared, H200, 1)
    for effort in ("quick", "standard"):
        stored_ = [c for c in configurations(prepared, EFFORTS[effort]) if c.cut is not None]
        made = explored(prepared, stored_[0], EFFORTS[effort])
        assert any(instances(s, prepared, H200, 1) for s in made.structures)
    said = why_nothing(prepared, STANDARD, Budget(), Tally(structures=3, unfit=3))
    assert "every tile has all of what concatenations join" in said and "(65536)" in said


def test_what_is_summed_beside_a_concatenation_is_as_long_where_it_is_read_again() -> None:
    product = "P = reshape(X * X, 1, 3, 3) @ reshape(concat([A, B, A * B], axis=2), 3, 1, 3, 1)"
    head, end = "X: f16[3, 1, 3]\nA: f16[3, 1, 1]\nB: f16[3, 1, 1]", "return where(X > 0, reshape(P, 3, 3, 1), 0)"
    prepared = prepare(parse(f"{head}\n{product}\n{end}").graph)
    assert [tensor.input for tensor in prepared.tensors].count(0) == 2, "X has two aliases"
    assert Semantics(prepared, EFFORTS["quick"].options).targets


def test_explaining_a_kernel_with_a_concatenation() -> None:
    prepared = prepare(program("two_products"))
    for structure in found(prepared)[:3]:
        (instance, *_) = instances(structure, prepared, H200, 1)
        assert "The search makes all of its values" in explain(prepared, STANDARD, instance.graph)


def test_concatenations_that_share_an_axis_have_their_parts_in_common_or_are_refused() -> None:
    text = "A: f16[4, 4]\nB: f16[4, 8]\nreturn concat(A, B, axis=-1) + concat(A, B, axis=-1) * concat({}, axis=-1)"
    assert len(prepare(parse(text.format("A, B")).graph).joins) == 1
    with pytest.raises(SearchError, match="different extents share an axis"):
        said_over_axes(parse(text.format("B, A")).graph)


def test_a_reshape_within_a_part_is_refused() -> None:
    text = "A: f16[4, 6]\nB: f16[4, 10]\nC: f16[4, 4, 4]\nreturn reshape(concat(A, B, axis=-1), (4, 4, 4)) * C"
    with pytest.raises(SearchError, match="splits a concatenated dimension"):
        said_over_axes(parse(text).graph)
    fits = "A: f16[4, 8]\nB: f16[4, 8]\nC: f16[4, 4, 4]\nreturn reshape(concat(A, B, axis=-1), (4, 4, 4)) * C"
    assert said_over_axes(parse(fits).graph).joins


def test_what_two_products_have_put_together_is_looped_over() -> None:
    """As matrices the two parts would be one: a configuration was lost."""
    text = "X: f16[16, 64]\nP: f16[16, 64]\nA: f16[128, 64]\nB: f16[128, 64]\nc = concat(X, P, axis=1)"
    prepared, quick = prepare(parse(f"{text}\nreturn silu(c @ A) * (c @ B)").graph), EFFORTS["quick"]
    (looped,) = [c for c in configurations(prepared, quick) if c.kernels == 1 and c.loop is not None]
    structures = explored(prepared, looped, quick).structures
    assert any(instances(structure, prepared, H200, 4) for structure in structures)
