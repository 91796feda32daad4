"""Explaining: what the search finds is said to be met, and what it does not make ends with the rule in the way."""

from __future__ import annotations

from dataclasses import replace
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
from mirage_nb.lang import parse
from mirage_nb.pipeline import superoptimize
from mirage_nb.report import describe
from mirage_nb.search import (
    EFFORTS,
    Budget,
    Effort,
    Switches,
    configurations,
    instances,
    prepare,
    tiny,
)
from mirage_nb.search.composition import UNSEARCHED
from mirage_nb.search.explain import Tally, explain, why_nothing
from mirage_nb.search.session.progress import Candidate, Snapshot
from mirage_nb.search.session.session import SearchSession
from mirage_nb.targets import TARGETS
from mirage_nb.tile.rules.thread_graph import fuse
from tests.clock import cpu_limit
from tests.search.explored import explored
from tests.search.programs import PROGRAMS, Builder, attention_safe, gqa, lora, rmsnorm, rmsnorm_fig3

STANDARD, H200 = EFFORTS["standard"], TARGETS["h200"]


@pytest.mark.parametrize("graph", [rmsnorm(), rmsnorm_fig3(), lora(), gqa(), attention_safe()])
def test_whatever_is_found_is_met(graph: KernelGraph) -> None:
    prepared = prepare(graph)
    for configuration in (c for c in configurations(prepared, STANDARD) if c.cut is None):
        result = explored(prepared, configuration, STANDARD)
        for structure in (*result.structures[:1], *result.structures[-1:]):
            program, found = tiny(prepared, structure)
            said = explain(prepare(program), STANDARD, found)
            assert "The search makes all of its values" in said, said
            if configuration.kernels == 1:
                assert f"'{configuration}'" in said
            in_registers = explain(prepare(program), STANDARD, fuse(found))
            assert len(in_registers.splitlines()) == len(said.splitlines()), "as it is built and printed"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_search_makes_the_values_of_the_program_itself(name: str) -> None:
    graph = PROGRAMS[name]()
    assert "The search makes all" in explain(prepare(graph), STANDARD, graph)


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
    assert "The search makes all" in explain(prepared, STANDARD, graph)
    for configuration in [c for c in configurations(prepared, STANDARD) if c.cut is None][:7]:
        result = explored(prepared, configuration, STANDARD)
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


def why(graph: KernelGraph, tally: Tally, effort: Effort = STANDARD) -> str:
    return why_nothing(prepare(graph), effort, effort.budget, tally)


def test_programs_that_are_only_searched_in_pieces() -> None:
    b = Builder.over(X=(4, 8))
    b.op(OpKind.EXP, b.max(0))
    assert "only its pieces: " in why(b.done(), Tally())


def test_what_became_of_the_mugraphs_that_were_found() -> None:
    said = why(rmsnorm(), Tally(structures=6, refuted=1, undecided=2, unfit=3, reasons=("the witness",)))
    for part in ("were found: 6", "refuted: 1", "rely on them: 2", "shared memory: 3", "the witness"):
        assert part in said


def test_limits_that_kept_something_out_are_named_with_the_call_that_raises_them() -> None:
    reached = frozenset({"max_block_ops", "max_values", "seconds"})
    said = why(rmsnorm(), Tally(reached=reached, left=2))
    assert "no kernel of at most 24 operators has them all; the program has 6" in said
    for call in ("max_block_ops=48", "max_values=240000", "configuration_seconds=240", "extend(effort='exhaustive')"):
        assert call in said
    assert "2 configurations were not explored to their end" in said
    assert "extend(effort" not in why(rmsnorm(), Tally(), EFFORTS["exhaustive"])


def test_the_last_values_on_the_way_are_shown() -> None:
    lines = why(rmsnorm_fig3(), Tally()).splitlines()
    assert lines[0].startswith("No fused muGraph was accepted;") and "(7 operators)" in lines[1]
    assert [line.split()[1] for line in lines[2:8]] == ["Sqr", "Sum", "EwMul", "Sqrt", "EwDiv", "Matmul"]


def test_the_axiom_that_would_let_it_through_is_named() -> None:
    """A muGraph that multiplies the roots, at an effort that knows no product of roots."""
    b = Builder.over(X=(4, 8), Y=(4, 8))
    b.op(OpKind.SQRT, b.op(OpKind.MUL, 0, 1))
    roots = Builder.over(X=(4, 8), Y=(4, 8))
    roots.op(OpKind.MUL, roots.op(OpKind.SQRT, 0), roots.op(OpKind.SQRT, 1))
    said = explain(prepare(b.done()), STANDARD, roots.done())
    assert "Not made: Sqrt of X: pruned: expression" in said
    assert "let through with sqrt_product switched on: axioms={'sqrt_product': True}" in said
    assert "let through" not in explain(prepare(b.graph.returning((3,))), EFFORTS["exhaustive"], roots.done())


def test_an_axiom_that_is_off_is_named_where_it_cuts() -> None:
    b = Builder.over(X=(4, 8), Y=(4, 8), m=(4, 1))
    b.sum(b.op(OpKind.DIV, 0, 2))
    after = Builder.over(X=(4, 8), Y=(4, 8), m=(4, 1))
    after.op(OpKind.DIV, after.sum(0), 2)
    effort = Switches.of({"sum_div": False}).applied(STANDARD)
    said = explain(prepare(b.done()), effort, after.done())
    assert "only by the axiom sum_div, Σi (x / y) = (Σi x) / y, where y does not depend on i; it is off" in said
    assert "axioms={'sum_div': True}" in said


def test_a_pruning_that_would_let_it_through_is_named() -> None:
    scale = Op(OpKind.CONST, attrs=ConstAttrs(Fraction(1, 3)))
    graph = one_kernel(product(), 2, (1, 0), scale, Op(OpKind.MUL, (0, 2)), Op(OpKind.MATMUL, (3, 1)), total(4))
    assert "prunings={'canonical_form': False}" in said_of(product(), graph)


SECOND = "X: f16[16, 64]\nY: f16[16, 64]\nZ = exp(exp(X) * Y)\nreturn Z * Z"
SMALL = "X: f16[16, 1024]\nW: f16[1024, 512]\nreturn rms_norm(X) @ W"


def ended(text: str, **bounds: object) -> Snapshot:
    session = SearchSession(parse(text).graph, H200, **bounds)  # type: ignore[arg-type]  # as the test says
    return session.start().result(60)


def searched(found: Snapshot) -> list[Candidate]:
    """What was found: the program's own operators are there without a search."""
    return [c for c in found.candidates if c.configuration not in UNSEARCHED]


def test_a_session_that_ends_with_nothing_says_why() -> None:
    found = ended(SMALL, effort="quick", budget=Budget(10.0, 60_000, 3))
    assert not searched(found) and "no kernel of at most 3 operators has them all" in found.why
    assert "extend(max_block_ops=6)" in found.why


def test_the_reason_is_gone_once_something_is_found() -> None:
    session = SearchSession(parse(SMALL).graph, H200, effort="quick", budget=Budget(10.0, 60_000, 3)).start()
    assert session.result(60).why
    session.extend(max_block_ops=8)
    assert session.result(60).candidates and not session.snapshot().why


def test_a_second_exponential_is_named() -> None:
    found = ended(SECOND, effort="quick")
    assert "Not made: EwExp of Y·exp(X): a second exponential on one path" in found.why
    assert "extend(effort='standard')" in found.why


def test_a_search_without_time_says_so() -> None:
    found = ended(SMALL, effort="quick", budget=Budget(1e-6, 60_000, 20))
    assert not searched(found) and "seconds for a configuration" in found.why


def test_a_search_without_fitting_tiles_says_so() -> None:
    tiny_target = replace(H200, shared_per_block=256)
    session = SearchSession(parse(SMALL).graph, tiny_target, effort="quick")
    found = session.start().result(60)
    assert not searched(found) and "none of their tiles fits the target's shared memory" in found.why


def test_the_report_says_why() -> None:
    session = superoptimize(SMALL.replace("1024", "64"), effort="quick", max_block_ops=3)
    session.result(60)
    assert "run without one.\nThe last values" in describe(session)


def test_many_equal_factors_are_looked_through_in_time() -> None:
    step = "v = A @ v\nv = v / np.linalg.norm(v)\n"
    with cpu_limit(10.0):
        said = why(parse(f"A: f32[16, 16]\nv: f32[16]\n{3 * step}return v @ A @ v").graph, Tally())
    assert "The last values of the program" in said
