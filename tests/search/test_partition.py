"""The partition of a program: convex pieces in launch order that compute it, found alike whatever its size."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.errors import SearchError
from mirage_nb.interp import reference
from mirage_nb.ir import (
    OPS,
    ArangeAttrs,
    BlockGraph,
    DimAttrs,
    KernelGraph,
    Op,
    OpKind,
    RepeatAttrs,
    ReshapeAttrs,
    Trait,
)
from mirage_nb.lang import parse
from mirage_nb.search.pieces.grain import COMPOSED, SEARCHED, Grain
from mirage_nb.search.pieces.partition import FREE, partition
from mirage_nb.search.pieces.piece import Piece, is_heavy
from mirage_nb.search.sizes import coarse
from mirage_nb.search.wordings.coalesced import coalesced
from mirage_nb.targets import TARGETS
from tests.clock import cpu_limit
from tests.search.programs import PROGRAMS, Builder, qknorm
from tests.shares import examples
from tests.strategies import programs

H200 = TARGETS["h200"]
GRAINS = (SEARCHED, COMPOSED, Grain(operators=1, products=1), Grain(operators=3, products=1))


def composed(program: KernelGraph, parts: tuple[Piece, ...], arrays: list[Any]) -> list[Any]:
    """What the pieces compute one after the other; a value that is not there yet is a KeyError."""
    held: dict[int, Any] = dict(enumerate(arrays))
    for op, (value, *_) in program.definitions():
        if op.kind is OpKind.CONST:
            held[value] = reference.evaluate(program.returning((value,)), arrays)[0]
    for piece in parts:
        held.update(zip(piece.writes, reference.evaluate(piece.graph, [held[v] for v in piece.reads]), strict=True))
    return [held[v] for v in program.outputs]


def depending(graph: KernelGraph) -> list[Op]:
    """The operators that compute something of an input: others are numbers, which count for nothing."""
    known, found = {*range(graph.input_count)}, list[Op]()
    for op, values in graph.definitions():
        if not known.isdisjoint(op.inputs):
            known.update(values)
            found.append(op)
    return found


@examples(60)
@given(programs(), st.sampled_from(GRAINS), st.integers(0, 9))
def test_pieces_in_order_compute_the_program(program: KernelGraph, grain: Grain, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.uniform(0.5, 2.0, i.type.shape) for i in program.inputs]
    parts = partition(program, H200, grain)
    with np.errstate(all="ignore"):
        expected = reference.evaluate(program, arrays)
        for found, right in zip(composed(program, parts, arrays), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-9)
    stored = [v for piece in parts for v in piece.writes]
    assert len(set(stored)) == len(stored)
    for piece in parts:
        counted = [op.kind for op in depending(piece.graph) if op.kind not in FREE]
        assert len(counted) <= max(1, grain.operators)
        assert len(counted) <= 1 or sum(is_heavy(piece.graph, op) for op in piece.graph.ops) <= grain.products
    assert parts == partition(program, H200, grain)


def test_every_operator_is_computed_once() -> None:
    for make in PROGRAMS.values():
        program = make()
        for grain in GRAINS:
            made = Counter(op.kind for piece in partition(program, H200, grain) for op in piece.graph.ops)
            wanted = Counter(op.kind for op in program.ops)
            assert {kind: n for kind, n in made.items() if kind not in FREE} == {
                kind: n for kind, n in wanted.items() if kind not in FREE
            }


def layer(b: Builder, x: int, weights: tuple[int, ...], heads: int, tables: tuple[int, int, int]) -> int:
    """One layer of a transformer with rotated queries and keys: about 50 operators."""
    rows, width = b.graph.types[x].shape
    each = width // heads
    query, key, value, out, gate, up, down = weights
    turn, cosine, sine = tables

    def split(y: int) -> int:
        return b.transpose_to(b.op(OpKind.RESHAPE, y, attrs=ReshapeAttrs((rows, heads, each))), (1, 0, 2))

    def rotated(y: int) -> int:
        return b.op(OpKind.ADD, b.op(OpKind.MUL, y, cosine), b.op(OpKind.MUL, b.matmul(y, turn), sine))

    normed = b.rms(x)
    q, k, v = (split(b.matmul(normed, w)) for w in (query, key, value))
    attended = b.matmul(b.softmax(b.matmul(rotated(q), b.transpose(rotated(k))), safe=True), v)
    joined = b.op(OpKind.RESHAPE, b.transpose_to(attended, (1, 0, 2)), attrs=ReshapeAttrs((rows, width)))
    x = b.op(OpKind.ADD, x, b.matmul(joined, out))
    normed = b.rms(x)
    gated = b.op(OpKind.MUL, b.op(OpKind.SILU, b.matmul(normed, gate)), b.matmul(normed, up))
    return b.op(OpKind.ADD, x, b.matmul(gated, down))


def model(layers: int, rows: int = 16, width: int = 1024, heads: int = 16) -> KernelGraph:
    each = width // heads
    shapes: dict[str, tuple[int, ...]] = {"X": (rows, width), "R": (each, each), "C": (rows, each), "S": (rows, each)}
    for n in range(layers):
        shapes |= {f"{w}{n}": (width, width) for w in ("Q", "K", "V", "O")}
        shapes |= {f"G{n}": (width, 4 * width), f"U{n}": (width, 4 * width), f"D{n}": (4 * width, width)}
    b = Builder.over(**shapes)
    x = 0
    for n in range(layers):
        x = layer(b, x, tuple(range(4 + 7 * n, 11 + 7 * n)), heads, (1, 2, 3))
    return b.done(x)


def test_layers_of_a_model_are_found_once_each() -> None:
    program = model(6)
    with cpu_limit(10):
        parts = partition(program, H200)
    digests = [piece.digest for piece in parts]
    assert len(parts) == 30 and digests[10:15] == digests[15:20] == digests[20:25]
    products = [[op.kind for op in piece.graph.ops].count(OpKind.MATMUL) for piece in parts[10:15]]
    assert products == [3, 4, 1, 2, 1]
    assert len({piece.digest for piece in partition(program, H200, COMPOSED)}) < 20


def test_what_pays_depends_on_the_rows() -> None:
    """Few rows: a norm and its product in one kernel. Many: every product by a library."""

    def parts(rows: int) -> list[int]:
        b = Builder.over(X=(rows, 4096), W=(4096, 4096))
        b.matmul(b.rms(0), 1)
        return [len(piece.graph.ops) for piece in partition(b.done(), H200)]

    assert len(parts(16)) == 1 and parts(4096)[-1] == 1


def test_attention_stays_whole() -> None:
    assert len(partition(qknorm(), H200)) == 1


def test_masks_of_places_make_no_piece_too_large() -> None:
    """Rotated keys are one piece; rotated queries, masked attention and the residual are the other."""
    text = """T = 64
X: f16[4, T, 64]
Q: f16[4, T, 64]
K: f16[4, T, 64]
V: f16[4, T, 64]
C: f16[T, 64]
S: f16[T, 64]
P = softmax(where(arange(T)[:, None] >= arange(T), rope(Q, C, S) @ rope(K, C, S).T / 8, -inf))
return X + P @ V"""
    assert sum(piece.computes for piece in partition(coalesced(parse(text).graph), H200)) == 2


@examples(30)
@given(programs(), st.sampled_from(GRAINS), st.data())
def test_what_is_inside_lies_between_no_pieces_that_could_be_one(
    program: KernelGraph, grain: Grain, data: st.DataObject
) -> None:
    maker = {v: op for op, (v, *_) in program.definitions()}
    made = [*maker]
    inside = data.draw(st.sets(st.sampled_from(made))) - set(program.outputs)
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.5, 2.0, i.type.shape) for i in program.inputs]
    parts = partition(program, H200, grain, inside)
    with np.errstate(all="ignore"):
        expected = reference.evaluate(program, arrays)
        for found, right in zip(composed(program, parts, arrays), expected, strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-9)
    makers = {v: n for n, piece in enumerate(parts) for v in piece.writes}
    for value in inside & makers.keys():
        elementwise = Trait.ELEMENTWISE in OPS[maker[value].kind].traits
        assert not (elementwise and inside.isdisjoint(maker[value].inputs))
        for reader in (n for n, piece in enumerate(parts) if value in piece.reads):
            assert _by_another_way(parts, makers, makers[value], reader)


def _by_another_way(parts: tuple[Piece, ...], makers: dict[int, int], first: int, second: int) -> bool:
    """Whether a piece reads from others that read, in the end, from the first one."""
    front = [makers[v] for v in parts[second].reads if v in makers and makers[v] != first]
    while front:
        number = front.pop()
        if number == first:
            return True
        front.extend(makers[v] for v in parts[number].reads if v in makers)
    return False


def test_what_depends_on_nothing_is_made_again() -> None:
    b = Builder.over(X=(64, 64), A=(64, 64))
    mask = b.op(OpKind.EXP, b.op(OpKind.ARANGE, attrs=ArangeAttrs(64)))
    one = b.matmul(b.op(OpKind.MUL, 0, mask), 1)
    program = b.done(b.op(OpKind.MUL, b.matmul(b.matmul(one, 1), 1), mask))  # type: ignore[arg-type]
    parts = partition(program, H200, COMPOSED)
    assert not any(mask in (*piece.reads, *piece.writes) for piece in parts)
    assert not any(mask in (*p.reads, *p.writes) for p in partition(program, H200, inside={mask}))
    arrays = [np.random.default_rng(0).uniform(0.5, 2.0, i.type.shape) for i in program.inputs]
    np.testing.assert_allclose(composed(program, parts, arrays), reference.evaluate(program, arrays), rtol=1e-9)


def test_pieces_wait_for_none_that_waits_for_them() -> None:
    """A side branch through a library operator lies between two operators that would pay together."""
    b = Builder.over(X=(64, 64), A=(64, 64))
    first = b.op(OpKind.EXP, 0)
    side = b.matmul(first, 1)
    b.op(OpKind.ADD, first, side)
    parts = partition(b.done(), H200, COMPOSED)
    assert [piece.writes for piece in parts] == [(2,), (3,), (4,)]


def test_chains_of_what_is_joined_around_a_value_wait_for_none_that_waits_for_them() -> None:
    """Products lie between an operator on elements and the one that reads it, by way of what is joined with it."""
    program = parse(
        "X: f32[8, 64]\nY: f32[8, 64]\nW: f32[64, 64]\ni = exp(X)\none = i * Y\nother = i + Y\n"
        "return sqrt(one) + other @ W @ W"
    ).graph
    arrays = [np.random.default_rng(0).uniform(0.5, 2.0, i.type.shape) for i in program.inputs]
    parts = partition(program, H200, COMPOSED, inside={3})
    np.testing.assert_allclose(composed(program, parts, arrays), reference.evaluate(program, arrays), rtol=1e-9)


def test_elementwise_operators_inside_are_made_again_where_pieces_would_hand_them_on() -> None:
    """A mask that two products need, one of which reads what the other one made."""
    program = parse(
        "X: f32[8, 64]\nM: f32[8, 64]\nW: f32[64, 64]\nkept = 1 - sqrt(M)\nreturn kept * ((kept * X) @ W @ W) @ W"
    ).graph
    maker = {v: op.kind for op, (v, *_) in program.definitions()}
    inside = {v for v, kind in maker.items() if kind in (OpKind.SUB, OpKind.SQRT)}
    arrays = [np.random.default_rng(0).uniform(0.5, 2.0, i.type.shape) for i in program.inputs]
    parts = partition(program, H200, COMPOSED, inside)
    assert len(inside) == 2 and inside.isdisjoint(v for piece in parts for v in (*piece.reads, *piece.writes))
    np.testing.assert_allclose(composed(program, parts, arrays), reference.evaluate(program, arrays), rtol=1e-9)


def test_outputs_that_nothing_computes_need_no_piece() -> None:
    b = Builder.over(X=(4, 6))
    half = b.op(OpKind.REPEAT, 0, attrs=RepeatAttrs(1, 2))
    used = b.op(OpKind.EXP, 0)
    b.op(OpKind.SQRT, 0)
    parts = partition(b.done(0, half, used, b.const(1)), H200)  # type: ignore[arg-type]
    assert sorted(v for piece in parts for v in piece.writes) == [half, used]
    assert partition(b.done(0), H200) == ()


def test_mugraphs_are_not_partitioned() -> None:
    block = BlockGraph.start((Builder.over(X=(4,)).graph.types[0],), (1,))
    graph = Builder.over(X=(4,)).graph
    with pytest.raises(SearchError, match="pre-defined"):
        partition(KernelGraph(ops=(Op(OpKind.GRAPH, (0,), body=block),), inputs=graph.inputs, types=graph.types), H200)


def test_what_moves_no_more_bytes_is_made_again() -> None:
    """Normalisation of rows that no block holds stored x - mean for the two kernels that read it."""
    b = Builder.over(X=(64, 2**20))
    mean = b.op(OpKind.MUL, b.sum(0), b.const(Fraction(1, 2**20)))
    less = b.op(OpKind.SUB, 0, mean)
    b.op(OpKind.DIV, less, b.sum(b.op(OpKind.SQR, less)))
    program = b.done()
    parts = partition(program, H200, COMPOSED)
    assert less not in {v for piece in parts for v in piece.writes}
    assert [sum(op.kind is OpKind.SUB for op in piece.graph.ops) for piece in parts].count(1) == 2


def test_a_long_concatenation_is_a_piece_of_its_own() -> None:
    """Of a cache and one more row: no block cuts that axis, so that fused it took twice as long."""
    b = Builder.over(K=(8, 4095, 128), R=(8, 1, 128), S=(8, 1, 128))
    row = b.op(OpKind.ADD, 1, 2)
    b.op(OpKind.CONCAT, 0, row, attrs=DimAttrs(1))
    parts = partition(b.done(), H200, COMPOSED)
    assert [[op.kind for op in piece.graph.ops] for piece in parts] == [[OpKind.ADD], [OpKind.CONCAT]]


@pytest.mark.parametrize("seed", [56, 107, 228])
def test_pieces_that_are_joined_through_far_operators_wait_for_none_that_waits_for_them(seed: int) -> None:
    """A way between two pieces may lead over a piece all of whose operators stand behind both."""
    draw, b = random.Random(seed), Builder.over(X=(8, 8), Y=(8, 8))
    made = [0, 1]
    for _ in range(25):
        one, other = draw.choice(made[-8:] if draw.random() < 0.5 else made), draw.choice(made)
        made.append(b.op(draw.choice([OpKind.ADD, OpKind.MUL]), one, other))
    read = {v for op in b.graph.ops for v in op.inputs}
    program = b.done(*(v for v in made[2:] if v not in read))  # type: ignore[arg-type]
    draw = random.Random(seed)
    inside = [v for v in made[2:] if draw.random() < 0.6 and v not in program.outputs]
    parts = partition(program, H200, Grain(operators=4, products=1), inside)
    arrays = [np.random.default_rng(0).uniform(0.5, 0.6, i.type.shape) for i in program.inputs]
    for found, right in zip(composed(program, parts, arrays), reference.evaluate(program, arrays), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-9)


def depthwise(size: int) -> KernelGraph:
    """A convolution by slices: four operators for each of its taps."""
    return parse(
        f"X: f32[8, {7 + size}, {7 + size}]\nW: f32[8, {size}, {size}]\nacc = 0\nfor i in range({size}):\n"
        f"    for j in range({size}):\n        acc = acc + X[:, i:i+8, j:j+8] * W[:, i, j][:, None, None]\nreturn acc"
    ).graph


def test_long_chains_of_operators_on_elements_are_few_pieces_soon() -> None:
    tower = parse("X: f16[64, 64]\nz = X\nfor i in range(100):\n    z = tanh(z * X + X)\nreturn z").graph
    for program, most in ((depthwise(7), 7), (tower, 18)):
        for grain in (SEARCHED, COMPOSED):
            with cpu_limit(1.0):
                parts = partition(program, H200, grain)
            assert sum(piece.computes for piece in parts) <= most


def test_chains_between_which_tensors_are_reshaped_are_few_pieces_soon() -> None:
    """Five means of nine windows each, with a dimension more: pair by pair they are too many to look at."""
    x, y, xy = "F.avg_pool2d(X, 3, 1)", "F.avg_pool2d(Y, 3, 1)", "F.avg_pool2d(X * Y, 3, 1)"
    squares = "F.avg_pool2d(X * X, 3, 1) + F.avg_pool2d(Y * Y, 3, 1)"
    program = parse(f"X: f32[1, 1, 11, 11]\nY: f32[1, 1, 11, 11]\nreturn ({xy} - {x} * {y}) / ({squares} + 1)").graph
    parts = partition(coalesced(program), H200, COMPOSED)
    assert sum(part.computes for part in parts) == 2


def test_what_has_no_more_time_is_partitioned_all_the_same() -> None:
    program = depthwise(3)
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.5, 2.0, i.type.shape) for i in program.inputs]
    for grain in GRAINS:
        parts = partition(program, H200, grain, is_over=lambda: True)
        np.testing.assert_allclose(composed(program, parts, arrays), reference.evaluate(program, arrays), rtol=1e-9)


def test_what_was_estimated_is_known_to_the_next_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is partitioned in other words, too, and then its pieces: their tensors have other names."""
    said = "{0}: f16[24, 192]\n{1}: f16[192, 56]\nreturn rms_norm(silu(({0} + 0.5) @ {1}))"
    found = [p.digest for p in partition(parse(said.format("X", "W")).graph, H200, COMPOSED)]
    monkeypatch.setattr(coarse, "prepare", None)
    assert found == [p.digest for p in partition(parse(said.format("Y", "V")).graph, H200, COMPOSED)]


def test_layers_that_repeat_are_looked_at_once() -> None:
    asked: list[KernelGraph] = []

    def told(graph: KernelGraph) -> KernelGraph:
        asked.append(graph)
        return graph

    counts = []
    for layers in (4, 12):
        asked.clear()
        partition(model(layers), H200, told=told)
        counts.append(len(asked))
    assert counts[0] == counts[1] == len({Piece(graph, (), ()).digest for graph in asked})


MASKED = {
    "a window": "where(D >= 0, where(D < 100, S, -inf), -inf)",
    "numbers of places with slopes": "where(D >= 0, S - m * D, -inf)",
    "a mask beside one that is data": "where(D >= 0, S + a, -inf)",
}


@pytest.mark.parametrize("body", MASKED.values(), ids=[*MASKED])
def test_masks_of_places_cost_attention_next_to_nothing(body: str) -> None:
    """Threads know the places of their elements: a window of 1000 rows was two pieces, the scores stored between."""
    shape = "f16[2, 8, 1000, 64]"
    text = f"""
Q: {shape}
K: {shape}
V: {shape}
m: f16[8, 1, 1]
a: f16[2, 1, 1, 1000]
I = arange(1000)
D = I[:, None] - I[None, :]
S = Q @ transpose(K, 0, 1, 3, 2) * 0.125
return softmax({body}) @ V
"""
    parts = partition(coalesced(parse(text).graph), H200)
    assert sum(piece.computes for piece in parts) == 1
