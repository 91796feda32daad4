"""Layers of one input become one piece, where that is estimated faster, and pieces still find what they read."""

from __future__ import annotations

import pytest

from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.search.pieces import layers as module
from mirage_nb.search.pieces.layers import layers_joined
from mirage_nb.search.pieces.partition import partition
from mirage_nb.search.pieces.piece import Piece
from mirage_nb.targets import TARGETS

H200 = TARGETS["h200"]
ADAPTED = "Y @ W{n}.T + B{n} + 2 * ((Y @ A{n}.T) @ C{n}.T)"


def program(rows: int, result: str, layers: int = 3, depth: int = 2048) -> KernelGraph:
    """Layers with adapters behind a norm; result: what is returned, with `{layers}`."""
    lines = [f"X: bf16[{rows}, {depth}]", f"g: bf16[{depth}]", f"h: bf16[{depth}]"]
    for n in range(layers):
        shapes = {"W": [depth, depth], "B": [depth], "A": [16, depth], "C": [depth, 16]}
        lines += [f"{name}{n}: bf16{shape}" for name, shape in shapes.items()]
    made = ", ".join(ADAPTED.format(n=n) for n in range(layers))
    return parse("\n".join([*lines, "Y = layer_norm(X, g, h)", *result.format(layers=made).splitlines()])).graph


def cut(graph: KernelGraph) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """The pieces of a program, and with its layers joined."""
    pieces = partition(graph, H200)
    return pieces, layers_joined(graph, pieces, H200, lambda told: told)


@pytest.mark.parametrize("rows", [1, 8])
def test_three_layers_and_their_norm_are_one_piece(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as they are faster in one way, no other one is composed."""
    asked: list[object] = []
    compose = module.library_and_fused
    monkeypatch.setattr(module, "library_and_fused", lambda *a, **more: asked.append(more) or compose(*a, **more))
    graph = program(rows, "return {layers}")
    before, (piece,) = cut(graph)
    assert len(before) > 3 and piece.writes == graph.outputs and len(asked) == 1


def test_what_others_read_is_written() -> None:
    """A norm that somebody else reads stays a piece of its own, and what comes behind the layers finds them."""
    graph = program(1, "Q, K, V = {layers}\nreturn softmax(Q * K) @ C0, V, Y")
    before, after = cut(graph)
    found = {*range(graph.input_count)}
    for piece in after:
        assert found.issuperset(piece.reads)
        found.update(piece.writes)
    assert len(after) < len(before) and found.issuperset(graph.outputs)


@pytest.mark.parametrize("result", [
    "return {layers}", "return X @ W0.T + Y @ W1.T",
])  # fmt: skip
def test_others_stay_what_they_are(result: str) -> None:
    """More rows than a kernel without a search is for."""
    before, after = cut(program(128, result, 3, 256))
    assert before == after


def test_layers_that_wait_for_one_another_stay_apart() -> None:
    graph = parse(
        "X: bf16[8, 2048]\nW: bf16[2048, 2048]\nV: bf16[2048, 2048]\nU: bf16[8, 2048]\n"
        "T = softmax(X @ W.T)\nS = softmax(T * U + X)\nreturn S * (X @ (V * sum(S)).T)"
    ).graph
    before, after = cut(graph)
    assert before == after
