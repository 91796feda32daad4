"""Explaining: what the search finds is said to be met, and what it does not make ends with the rule in the way."""

from __future__ import annotations

from fractions import Fraction

import pytest

from mirage_nb.ir import (
    AccumAttrs,
    AccumKind,
    BlockGraph,
    ConstAttrs,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    ReshapeAttrs,
    TransposeAttrs,
)
from mirage_nb.search import EFFORTS, Budget, configurations, instances, prepare, run_configuration, tiny
from mirage_nb.search.explain import explain, why_nothing
from mirage_nb.targets import TARGETS
from tests.search.programs import PROGRAMS, Builder, attention_safe, gqa, lora, rmsnorm, rmsnorm_fig3

STANDARD, H200 = EFFORTS["standard"], TARGETS["h200"]


@pytest.mark.parametrize("graph", [rmsnorm(), rmsnorm_fig3(), lora(), gqa(), attention_safe()])
def test_whatever_is_found_is_met(graph: KernelGraph) -> None:
    prepared = prepare(graph)
    for configuration in (c for c in configurations(prepared, STANDARD) if c.cut is None):
        result = run_configuration(prepared, configuration, STANDARD, Budget(), lambda c: None, lambda: False)
        for structure in (*result.structures[:1], *result.structures[-1:]):
            program, found = tiny(prepared, structure)
            said = explain(prepare(program), STANDARD, found)
            assert "The search makes all of its values" in said, said
            if configuration.kernels == 1:
                assert f"'{configuration}'" in said


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_search_makes_the_values_of_the_program_itself(name: str) -> None:
    assert "The search makes all" in why_nothing(prepare(PROGRAMS[name]()), STANDARD)


def heads() -> KernelGraph:
    b = Builder.over(Q=(32, 64), K=(32, 64), V=(32, 64))
    split = [b.op(OpKind.RESHAPE, x, attrs=ReshapeAttrs((32, 4, 16))) for x in (0, 1, 2)]
    q, k, v = (b.op(OpKind.TRANSPOSE, x, attrs=TransposeAttrs((1, 0, 2))) for x in split)
    o = b.matmul(b.softmax(b.matmul(q, b.transpose(k))), v)
    b.op(OpKind.RESHAPE, b.op(OpKind.TRANSPOSE, o, attrs=TransposeAttrs((1, 0, 2))), attrs=ReshapeAttrs((32, 64)))
    return b.done()


def gram() -> KernelGraph:
    b = Builder.over(X=(32, 64))
    b.matmul(0, b.transpose(0))
    return b.done()


@pytest.mark.parametrize("graph", [heads(), gram()], ids=["heads", "gram"])
def test_views_and_aliases_are_followed(graph: KernelGraph) -> None:
    prepared = prepare(graph)
    assert "The search makes all" in why_nothing(prepared, STANDARD)
    for configuration in [c for c in configurations(prepared, STANDARD) if c.cut is None][:7]:
        result = run_configuration(prepared, configuration, STANDARD, Budget(), lambda c: None, lambda: False)
        for structure in result.structures[:2]:
            for instance in instances(structure, prepared, H200, 1):
                assert "The search makes all" in explain(prepared, STANDARD, instance.graph)


def one_kernel(program: KernelGraph, loop: int, fmaps: tuple[int | None, ...], *ops: Op) -> KernelGraph:
    """A muGraph of one kernel: every input is read, then these operators; the last value is saved."""
    block = BlockGraph.start(tuple(i.type for i in program.inputs), (1,), loop)
    for number, fmap in enumerate(fmaps):
        block = block.append(Op(OpKind.IN_ITER, attrs=InIterAttrs(number, (None,), fmap)))
    for op in ops:
        block = block.append(op)
    block = block.append(Op(OpKind.OUT_SAVER, (len(block.types) - 1,), OutSaverAttrs((None,))))
    graph = KernelGraph.start(*program.inputs)
    graph = graph.append(Op(OpKind.GRAPH, tuple(range(len(program.inputs))), body=block))
    return graph.returning((len(program.inputs),))


def total(x: int) -> Op:
    return Op(OpKind.ACCUM, (x,), AccumAttrs(AccumKind.SUM))


def said_of(program: KernelGraph, graph: KernelGraph) -> str:
    return explain(prepare(program), STANDARD, graph)


def product() -> KernelGraph:
    b = Builder.over(X=(4, 8), W=(8, 4))
    b.op(OpKind.MUL, b.matmul(0, 1), b.const(Fraction(1, 3)))
    return b.done()


def test_a_value_that_cannot_become_part_of_the_program_is_named() -> None:
    b = Builder.over(X=(4, 8), W=(8, 4))
    b.op(OpKind.SQRT, b.matmul(0, 1))
    said = said_of(b.done(), one_kernel(b.graph, 2, (1, 0), Op(OpKind.SQRT, (0,)), Op(OpKind.MATMUL, (2, 1)), total(3)))
    assert "Not made: Sqrt of X: pruned: expression" in said
    assert "Matmul" not in said.split("Not made")[0]


def test_scaling_before_a_sum_is_another_form_of_what_is_found() -> None:
    scale = Op(OpKind.CONST, attrs=ConstAttrs(Fraction(1, 3)))
    graph = one_kernel(product(), 2, (1, 0), scale, Op(OpKind.MUL, (0, 2)), Op(OpKind.MATMUL, (3, 1)), total(4))
    assert "pruned: canonical form. the matmul comes before the scaling" in said_of(product(), graph)


def test_operators_and_constants_that_the_program_lacks() -> None:
    graph = one_kernel(product(), 2, (1, 0), Op(OpKind.MATMUL, (0, 1)), total(2), Op(OpKind.EXP, (3,)))
    assert "the program has no EwExp" in said_of(product(), graph)
    half = Op(OpKind.CONST, attrs=ConstAttrs(Fraction(1, 2)))
    graph = one_kernel(product(), 2, (1, 0), Op(OpKind.MATMUL, (0, 1)), total(2), half, Op(OpKind.MUL, (3, 4)))
    assert "constants of the program only" in said_of(product(), graph)


def test_another_function_is_told_from_the_program() -> None:
    graph = one_kernel(product(), 2, (1, 0), Op(OpKind.MATMUL, (0, 1)), total(2))
    assert "other functions" in said_of(product(), graph)


def test_two_loops_at_once_are_no_part_of_the_space() -> None:
    b = Builder.over(X=(4, 8), Y=(8, 4), Z=(4, 4))
    b.op(OpKind.ADD, b.matmul(0, 1), 2)
    graph = one_kernel(b.done(), 2, (1, 0, 0), Op(OpKind.MATMUL, (0, 1)), total(3))
    assert "two different axes" in said_of(b.done(), graph)


def test_programs_that_are_only_searched_in_pieces() -> None:
    b = Builder.over(X=(4, 8))
    b.op(OpKind.DIV, 0, b.max(0))
    assert "only its pieces: " in why_nothing(prepare(b.done()), STANDARD)
    assert "3 muGraphs were found, but none was accepted" in why_nothing(prepare(b.done()), STANDARD, found=3)
