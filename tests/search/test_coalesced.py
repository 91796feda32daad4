"""Programs in fewer dimensions compute what they did, and muGraphs of them are muGraphs of the programs."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb import superoptimize
from mirage_nb.bench.generated import program as random_program
from mirage_nb.bench.programs import text
from mirage_nb.errors import MirageError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import BlockGraph, KernelGraph, Op, OpKind, ThreadGraph
from mirage_nb.ir.sizes import resized
from mirage_nb.lang import parse
from mirage_nb.search.axes import prepare
from mirage_nb.search.session.unsearched import unsearched
from mirage_nb.search.wordings.coalesced import coalesced, restored
from mirage_nb.targets import find_target
from tests.shares import shared_out

MASKED = """Q: f16[2, 8, 32, 16]
S = Q @ transpose(Q, (0, 1, 3, 2))
return softmax(where(arange(32)[:, None] >= arange(32), S, -inf)) @ Q"""
IMAGE = "X: f32[8, 64, 6, 10]\n"


def shapes(graph: KernelGraph) -> list[tuple[int, ...]]:
    return [i.type.shape for i in graph.inputs]


def agrees(program: KernelGraph) -> bool:
    """Whether a program computes the same in fewer dimensions, and on its own inputs; True if it has none to spare."""
    said = coalesced(program)
    if said is program:
        return True
    given = {i.name: np.random.default_rng(n).normal(size=i.type.shape) for n, i in enumerate(program.inputs)}
    inner = {i.name: given[i.name].reshape(i.type.shape) for i in said.inputs}
    whole = restored(said, program)
    assert whole.inputs == program.inputs and whole.output_types == program.output_types
    assert whole.output_names == program.output_names
    right = evaluate(program, given)
    for wanted, found, again in zip(right, evaluate(said, inner), evaluate(whole, given), strict=True):
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(again, wanted, rtol=1e-9, atol=1e-9)
    return True


@pytest.mark.parametrize(
    "program, said",
    [
        ("X: f16[8, 16, 64]\nW: f16[64, 32]\nreturn gelu(X @ W)", [(128, 64), (64, 32)]),
        ("X: f16[2, 3, 4, 64]\nW: f16[64, 32]\nb: f16[32]\nreturn X @ W + b", [(24, 64), (64, 32), (32,)]),
        ("X: f16[8, 16, 64]\nW: f16[8, 64, 32]\nreturn X @ W", [(8, 16, 64), (8, 64, 32)]),
        ("X: f16[4, 8, 16, 64]\nW: f16[4, 8, 64, 32]\nreturn X @ W", [(32, 16, 64), (32, 64, 32)]),
        ("X: f16[4, 8, 16, 64]\nW: f16[8, 64, 32]\nreturn X @ W", [(4, 8, 16, 64), (8, 64, 32)]),
        ("X: f16[1, 64]\nW: f16[8, 64, 32]\nreturn X @ W", [(1, 64), (8, 64, 32)]),
        ("X: f16[8, 16, 64]\nG: f16[64]\nreturn rms_norm(X, G)", [(128, 64), (64,)]),
        ("X: f16[8, 16, 64]\nG: f16[16, 64]\nreturn X * G", [(8, 1024), (1024,)]),
        ("X: f16[8, 16, 64]\nG: f16[8, 1, 1]\nreturn X * G", [(8, 1024), (8, 1)]),
        ("X: f16[8, 16, 64]\nG: f16[8, 1, 64]\nreturn X * G", [(8, 16, 64), (8, 1, 64)]),
        (IMAGE + "return mean(X, axis=(2, 3))", [(512, 60)]),
        (IMAGE + "return mean(X, axis=(3, 2))", [(512, 60)]),
        (IMAGE + "return sum(max(X, axis=3), axis=2)", [(512, 6, 10)]),
        (IMAGE + "return mean(X, axis=1)", [(8, 64, 60)]),
        (IMAGE + "return mean(X, axis=(1, 3))", [(8, 64, 6, 10)]),
        (IMAGE + "Y = sum(X, axis=3)\nreturn Y, sum(Y, axis=2)", [(512, 6, 10)]),
        (IMAGE + "return softmax(reshape(X, 8, 64, 60))", [(512, 60)]),
        (IMAGE + "return transpose(X, (0, 2, 3, 1)) * 2", [(8, 64, 60)]),
        (IMAGE + "return X[:, :, 1:] * 2", [(8, 64, 6, 10)]),
        (IMAGE + "Y: f32[8, 3, 6, 10]\nreturn exp(concat(X, Y, axis=1))", [(8, 64, 60), (8, 3, 60)]),
        ("X: f32[60, 90]\nreturn exp(X)", [(60, 90)]),
    ],
)
def test_what_stands_side_by_side_is_one_dimension(program: str, said: list[tuple[int, ...]]) -> None:
    graph = parse(program).graph
    assert shapes(coalesced(graph)) == said
    assert agrees(graph)


def test_a_library_computes_a_batch_of_rows_as_one_product() -> None:
    """64 products of one row each read the weight 64 times."""
    graph = parse("X: f16[64, 1, 512]\nW: f16[512, 512]\nreturn X @ W").graph
    own, folded, _ = unsearched(graph, find_target("h200"))
    kinds = [op.kind for op in folded.graph.ops]
    assert kinds == [OpKind.RESHAPE, OpKind.MATMUL, OpKind.RESHAPE] and folded.graph.types[2].shape == (64, 512)
    assert own.graph == graph and folded.estimate_us < own.estimate_us


def test_a_library_alone_is_compared_only_where_something_can_be_said_of_it() -> None:
    """Parts that cannot be said over axes have no small instance: a session of a masked attention ended with that."""
    graph = parse(MASKED).graph
    known = [*unsearched(graph, find_target("h200"))]
    assert coalesced(graph) is not graph and known[0].graph == graph


def test_a_fold_of_both_dimensions_is_one() -> None:
    graph = parse(IMAGE + "return sum(X * X, axis=(1, 2, 3))").graph
    assert [op.kind for op in graph.ops].count(OpKind.SUM) == 3
    assert [op.kind for op in coalesced(graph).ops].count(OpKind.SUM) == 1


def test_of_reshapes_nothing_is_left() -> None:
    """Rows that a program itself makes of an image are rows from the start."""
    said = coalesced(parse(IMAGE + "return reshape(softmax(reshape(X, 8, 64, 60)), 8, 64, 6, 10)").graph)
    assert all(op.kind is not OpKind.RESHAPE for op in said.ops)


@pytest.mark.parametrize(
    "program, said",
    [
        ("X: f16[B, 16, 64]\nreturn exp(X)", [(8, 1024)]),
        ("X: f16[B, 64]\nreturn exp(X)", [(8, 64)]),
        ("X: f16[B, 1, 64]\nW: f16[64, 32]\nreturn gelu(X @ W)", [(8, 64), (64, 32)]),
        ("X: f16[B, 4, 64]\nG: f16[64]\nreturn rms_norm(X, G) + X", [(32, 64), (64,)]),
        ("X: f16[B, 4, 64]\nG: f16[4, 1]\nreturn X * G", [(8, 4, 64), (4, 1)]),
        ("X: f16[2 * B, 4, 64]\nW: f16[64, 32]\nreturn X @ W", [(64, 64), (64, 32)]),
        ("X: f32[B, 8, 6, 10]\nreturn mean(X, axis=(2, 3))", [(64, 60)]),
        ("X: f16[B, 3, 4, 8]\nreturn exp(transpose(X, (2, 0, 1, 3)))", [(24, 4, 8)]),
        ("X: f16[B, 3, 4, 8]\nreturn exp(transpose(X, (1, 2, 0, 3)))", [(8, 12, 8)]),
        ("X: f16[B, 3, 64]\nW: f16[64, 32]\nreturn reshape(X, B * 3, 64) @ W", [(24, 64), (64, 32)]),
        ("X: f16[B, 3, 64]\nW: f16[B, 64, 32]\nreturn X @ W", [(8, 3, 64), (8, 64, 32)]),
    ],
)
def test_an_extent_known_at_launch_is_part_of_the_outermost_one(program: str, said: list[tuple[int, ...]]) -> None:
    graph = parse("B: size(8)\n" + program).graph
    fewest = coalesced(graph)
    assert shapes(fewest) == said
    whole = restored(fewest, graph)
    for extent in (1, 3, 8):
        wanted = resized(graph, extent)
        given = {i.name: np.random.default_rng(0).normal(size=i.type.shape) for i in wanted.inputs}
        right = evaluate(wanted, given)
        for made in (resized(fewest, extent), resized(whole, extent)):
            inner = {i.name: given[i.name].reshape(i.type.shape) for i in made.inputs}
            for one, other in zip(right, evaluate(made, inner), strict=True):
                np.testing.assert_allclose(other.reshape(one.shape), one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["attention", "average_pool_2d", "batch_norm", "squeeze_excite"])
def test_published_programs_compute_the_same(name: str) -> None:
    graph = parse(text(name)).graph
    assert coalesced(graph) is not graph and agrees(graph)


@shared_out
def test_random_programs_compute_the_same(share: int) -> None:
    said = 0
    for seed in range(0, 400, share):
        try:
            graph = parse(random_program(seed)).graph
        except MirageError:
            continue
        with np.errstate(all="ignore"):
            assert agrees(graph), seed
        said += coalesced(graph) is not graph
    assert said > 40 / share


def test_a_muGraph_has_the_inputs_and_outputs_of_the_program() -> None:
    """Eight batches of 16 rows read the weight of a product once, as 128 rows do: they were eight products."""
    found = []
    for rows in ("8, 16", "128"):
        program = f"X: f16[{rows}, 256]\nW: f16[256, 512]\nreturn gelu(X @ W)"
        session = superoptimize(program, effort="quick", target="h200")
        session.wait()
        assert session.best.graph.inputs == session.program.graph.inputs
        assert session.best.graph.output_types == session.program.graph.output_types
        best = session.snapshot().candidates[0]
        assert "The search makes all of its values" in session.explain(best.digest)
        found.append(best.estimate_us)
    assert found[0] == pytest.approx(found[1])


def test_products_in_thread_graphs_are_the_same_ones_at_all_sizes() -> None:
    """They were numbered with the reshapes in front, which the small muGraph of field trials does not have."""
    program = "X: f32[3, 5, 4, 4]\nY: f32[3, 5, 4, 4]\nreturn exp(Y @ X)"
    session = superoptimize(program, effort="quick", target="h200")
    session.wait()
    found = session.snapshot()
    assert not any("internal error" in message for message in found.messages)
    threads = [c for c in found.candidates if any(op.kind is OpKind.MATMUL for op in _inner(c.graph))]
    assert threads and all(c.small is not None and len(_inner(c.small[1])) == len(_inner(c.graph)) for c in threads)


def _inner(graph: KernelGraph) -> list[Op]:
    """The operators of all thread graphs."""
    blocks = [op.body for op in graph.ops if isinstance(op.body, BlockGraph)]
    return [small for block in blocks for op in block.ops if isinstance(op.body, ThreadGraph) for small in op.body.ops]


def test_nothing_is_said_of_what_cannot_be() -> None:
    """Where the program in fewer dimensions cannot be said over axes, neither can the given one be searched whole."""
    graph = parse("X: f32[4, 6, 10]\nreturn pad(X, 1, 1, 1) * 2").graph
    assert prepare(graph).refused and prepare(graph).said is None
