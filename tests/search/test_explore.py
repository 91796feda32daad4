"""Exploring configurations: the named muGraphs are found without hints, and everything found is right."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mirage_nb.interp import reference
from mirage_nb.ir import KernelGraph, OpKind, ReshapeAttrs, TransposeAttrs
from mirage_nb.ir.legality import check
from mirage_nb.search import (
    EFFORTS,
    Budget,
    Configuration,
    ConfigurationResult,
    KernelStructure,
    Structure,
    configurations,
    prepare,
    run_configuration,
    tiny,
)
from mirage_nb.verify.trials import verify
from tests.clock import cpu_limit
from tests.search.programs import PROGRAMS, Builder, attention_safe, gqa, rmsnorm
from tests.shares import shared_out

STANDARD = EFFORTS["standard"]


def explore(graph: KernelGraph, configuration: Configuration, seed: int = 0) -> ConfigurationResult:
    prepared = prepare(graph, seed=seed)
    return run_configuration(prepared, configuration, STANDARD, Budget())


def labels(kernel: KernelStructure) -> Counter[str]:
    """Operators by name, those of the loop body marked."""
    return Counter(
        ("in " if step.stage == 0 else "") + step.operator.label for step in kernel.steps if not step.operator.is_leaf
    )


def count(text: str) -> Counter[str]:
    return Counter({name.strip(): int(number) for number, name in (part.split("*") for part in text.split(","))})


NORMED = "2*in Sqr, 3*in Sum, 2*in EwMul, 2*in Sqrt, 2*in EwDiv, 2*in Matmul, 1*in EwExp"

NAMED = {
    "rmsnorm": (1, "1*in Sqr, 1*in Sum, 1*in Matmul, 2*Accum sum, 1*EwMul, 1*Sqrt, 1*EwDiv"),
    "rmsnorm_fig3": (1, "1*in EwMul, 1*in Sqr, 1*in Sum, 1*in Matmul, 2*Accum sum, 1*EwMul, 1*Sqrt, 1*EwDiv"),
    "gated_mlp": (1, "2*in Matmul, 2*Accum sum, 1*SiLU, 1*EwMul"),
    "lora": (1, "3*in Matmul, 1*in EwAdd, 1*Accum sum"),
    "gqa": (3, "2*in Matmul, 1*in EwExp, 1*in Sum, 2*Accum sum, 1*EwDiv"),
    "attention_safe": (
        3, "2*in Matmul, 1*in EwMul, 1*in Max, 1*in EwSub, 1*in EwExp, 1*in Sum, 2*Accum rescale, 1*EwDiv",
    ),
    "qknorm": (3, f"{NORMED}, 2*Accum sum, 1*EwDiv"),
    "qknorm_k": (3, f"{NORMED}, 2*Accum sum, 1*EwDiv"),
    "ntrans": (None, "2*Sqr, 2*Sum, 3*EwMul, 2*Sqrt, 2*EwDiv, 2*EwAdd"),
    "moe": (3, "2*in Matmul, 1*in EwExp, 1*Accum sum"),
}  # fmt: skip


def named_configuration(graph: KernelGraph, grid: tuple[int, ...], loop: int | None, kernels: int) -> Configuration:
    wanted = (grid, loop, kernels, None)
    found = [
        c for c in configurations(prepare(graph), STANDARD) if (c.grid, c.loop, c.kernels, c.cut) == wanted
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("name", NAMED)
def test_the_named_one_kernel_muGraph_is_found(name: str) -> None:
    loop, wanted = NAMED[name]
    graph = PROGRAMS[name]()
    result = explore(graph, named_configuration(graph, (), loop, 1))
    assert count(wanted) in [labels(s.kernels[0]) for s in result.structures]


SPLIT = {
    "gqa": ("2*in Matmul, 1*in EwExp, 1*in Sum, 2*Accum sum", "2*Sum, 1*EwDiv"),
    "attention_safe": (
        "2*in Matmul, 1*in EwMul, 1*in Max, 1*in EwSub, 1*in EwExp, 1*in Sum, 1*Accum max, 2*Accum rescale",
        "2*RescaledSum, 1*EwDiv",
    ),
    "qknorm": (f"{NORMED}, 2*Accum sum", "2*Sum, 1*EwDiv"),
    "qknorm_k": (f"{NORMED}, 2*Accum sum", "2*Sum, 1*EwDiv"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPLIT)
def test_the_split_reduction_in_two_kernels_is_found(name: str) -> None:
    graph = PROGRAMS[name]()
    result = explore(graph, named_configuration(graph, (3,), 3, 2))
    wanted = tuple(map(count, SPLIT[name]))
    found = [s for s in result.structures if tuple(map(labels, s.kernels)) == wanted]
    assert any(all(step.source is None or step.source.kernel == 0 for step in s.kernels[1].steps) for s in found)


def test_rows_are_split_over_blocks_when_the_norm_runs_along_them() -> None:
    graph = PROGRAMS["ntrans"]()
    result = explore(graph, named_configuration(graph, (1,), None, 1))
    readers = [sum(step.operator.kind is OpKind.IN_ITER for step in s.kernels[0].steps) for s in result.structures]
    assert result.structures and max(readers) == 6, "each input read twice, split and whole"


def relative_error(prepared_seed: int, program: KernelGraph, candidate: KernelGraph) -> float:
    rng = np.random.default_rng(prepared_seed)
    arrays = {i.name: rng.standard_normal(i.type.shape) for i in program.inputs}
    pairs = zip(reference.evaluate(program, arrays), reference.evaluate(candidate, arrays), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


@shared_out
@pytest.mark.parametrize("name", PROGRAMS)
def test_everything_found_computes_the_program(name: str, share: int) -> None:
    prepared = prepare(PROGRAMS[name]())
    whole = [c for c in configurations(prepared, STANDARD) if c.cut is None]
    one, several = ([c for c in whole if (c.kernels > 1) is more] for more in (False, True))
    verified: set[int] = set()  # float64 looks at everything, the verifier at one of so many kernels
    for configuration in [*one[:: min(share, 2)], *several[::share]]:
        effort = replace(STANDARD, structures=4)
        result = run_configuration(prepared, configuration, effort, Budget())
        digests = [s.digest() for s in result.structures]
        assert len(set(digests)) == len(digests), "a structure came twice"
        for structure in result.structures:
            program, candidate = tiny(prepared, structure)
            check(candidate)
            assert relative_error(1, program, candidate) < 1e-9, (str(configuration), structure)
        for structure in result.structures[:1]:
            if len(structure.kernels) in verified:
                continue
            verified.add(len(structure.kernels))
            assert verify(*tiny(prepared, structure), seed=5).accepted, (str(configuration), structure)


def test_a_tensor_that_meets_itself() -> None:
    b = Builder.over(X=(32, 64))
    b.matmul(b.softmax(b.matmul(0, b.transpose(0))), 0)
    found = every_structure(b.done())
    assert found


def test_a_bias_joins_after_the_loop() -> None:
    b = Builder.over(X=(16, 64), W=(64, 32), c=(32,))
    b.op(OpKind.ADD, b.matmul(0, 1), 2)
    found = every_structure(b.done())
    assert any(labels(s.kernels[0]) == count("1*in Matmul, 1*Accum sum, 1*Accum hold, 1*EwAdd") for s in found)


def test_two_outputs_come_from_one_kernel() -> None:
    b = Builder.over(X=(16, 64), W=(64, 32))
    y = b.matmul(0, 1)
    z = b.op(OpKind.SILU, y)
    found = every_structure(b.done(y, z))
    assert any(len(s.kernels) == 1 and len(s.kernels[0].outputs) == 2 for s in found)


def test_a_matrix_times_a_vector() -> None:
    b = Builder.over(X=(1, 64), W=(64, 32))
    b.matmul(0, 1)
    assert any(labels(s.kernels[0]) == count("1*in Matmul, 1*Accum sum") for s in every_structure(b.done()))


def test_heads_are_attended_to_in_one_kernel() -> None:
    b = Builder.over(Q=(32, 128), K=(32, 128), V=(32, 128))
    split = [b.op(OpKind.RESHAPE, x, attrs=ReshapeAttrs((32, 4, 32))) for x in (0, 1, 2)]
    q, k, v = (b.op(OpKind.TRANSPOSE, x, attrs=TransposeAttrs((1, 0, 2))) for x in split)
    o = b.matmul(b.softmax(b.matmul(q, b.transpose(k))), v)
    b.op(OpKind.RESHAPE, b.op(OpKind.TRANSPOSE, o, attrs=TransposeAttrs((1, 0, 2))), attrs=ReshapeAttrs((32, 128)))
    wanted = count("2*in Matmul, 1*in EwExp, 1*in Sum, 2*Accum sum, 1*EwDiv")
    assert any(labels(s.kernels[0]) == wanted for s in every_structure(b.done()))


def test_a_reshape_between_two_matmuls() -> None:
    b = Builder.over(X=(4, 12), W=(12, 12), G=(4,), V=(12, 8))
    y = b.op(OpKind.MUL, b.op(OpKind.RESHAPE, b.matmul(0, 1), attrs=ReshapeAttrs((4, 3, 4))), 2)
    b.matmul(b.op(OpKind.RESHAPE, y, attrs=ReshapeAttrs((4, 12))), 3)
    assert every_structure(b.done())


def every_structure(graph: KernelGraph) -> list[Structure]:
    prepared = prepare(graph)
    found = []
    for configuration in configurations(prepared, replace(STANDARD, kernels=1)):
        result = run_configuration(prepared, configuration, STANDARD, Budget())
        assert result.saturated
        for structure in result.structures:
            assert relative_error(2, *tiny(prepared, structure)) < 1e-9
            found.append(structure)
    return found


def test_equal_seeds_give_equal_results_and_other_seeds_the_same_structures() -> None:
    graph = attention_safe()
    configuration = named_configuration(graph, (), 3, 1)
    first, again, other = (explore(graph, configuration, seed) for seed in (0, 0, 1))
    assert replace(first, seconds=0.0) == replace(again, seconds=0.0)
    assert first.structures == other.structures and first.counts == other.counts


@pytest.mark.parametrize("name", ["rmsnorm", "lora", "gqa", "attention_safe"])
def test_three_seeds_give_the_same_sets(name: str) -> None:
    graph = PROGRAMS[name]()
    whole = configurations(prepare(graph), STANDARD)
    for configuration in (whole[0], *[c for c in whole if c.cut is not None][:1], whole[-1]):
        first, *others = (explore(graph, configuration, seed) for seed in (0, 1, 2))
        assert first.structures
        for other in others:
            assert other.counts == first.counts and other.values == first.values
            if configuration.cut is None:
                assert other.structures == first.structures
            else:
                assert [s.operators for s in other.structures] == [s.operators for s in first.structures]


def test_everything_crosses_a_process_boundary() -> None:
    prepared = prepare(gqa())
    configuration = configurations(prepared, STANDARD)[0]
    result = explore(gqa(), configuration)
    for thing in (prepared, configuration, STANDARD, Budget(), result):
        assert pickle.loads(pickle.dumps(thing)) == thing


def test_configurations_begin_with_the_simplest() -> None:
    found = configurations(prepare(rmsnorm()), STANDARD)
    whole = [c for c in found if c.cut is None]
    assert [(c.kernels, len(c.grid)) for c in whole] == sorted((c.kernels, len(c.grid)) for c in whole)
    assert len({str(c) for c in found}) == len(found)
    assert found[0].loop is None and all(c.kernels <= STANDARD.kernels for c in whole)
    first_of_two = next(i for i, c in enumerate(found) if c.kernels > 1)
    assert all(c.kernels == 1 for c in found[:first_of_two]) and found[first_of_two].cut is not None


def test_stopping_is_prompt_and_named() -> None:
    prepared = prepare(PROGRAMS["ntrans"]())
    effort = replace(STANDARD, written_out=1_000)
    configuration = configurations(prepared, effort)[0]
    limit = Budget(seconds=0.3)
    with cpu_limit(3.0):
        result = run_configuration(prepared, configuration, effort, limit)
    assert not result.saturated and any("stopped" in reason for reason in result.cut)


def test_restricted_axioms_are_named() -> None:
    prepared = prepare(PROGRAMS["ntrans"]())
    configuration = configurations(prepared, STANDARD)[0]
    result = run_configuration(prepared, configuration, STANDARD, Budget())
    assert any("factored" in reason and "216 sums" in reason for reason in result.cut)
    result = run_configuration(prepare(gqa()), configuration, STANDARD, Budget())
    assert not any("factored" in reason for reason in result.cut)


def test_counts_are_reported_while_it_runs() -> None:
    seen: list[int] = []
    prepared = prepare(attention_safe())
    configuration = configurations(prepared, STANDARD)[-1]
    result = run_configuration(
        prepared,
        configuration,
        STANDARD,
        Budget(),
        lambda counts: seen.append(sum(counts.values())),
        lambda: False,
    )
    assert seen == sorted(seen) and len(seen) > 3 and seen[-1] == sum(result.counts.values())
