"""The shared field interpreter: the same values as one evaluation per graph and instance, each computed once."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given

from mirage_nb.interp import field, shared
from mirage_nb.interp.field import FieldInstance, FieldTensor, random_inputs
from mirage_nb.interp.instance import FieldStack, stacked
from mirage_nb.interp.reference import FloatAlgebra, evaluate
from mirage_nb.interp.shared import Recorder, SharedFields, Values
from mirage_nb.ir import AccumKind, KernelGraph, OpKind
from tests.mugraphs import Kernel, cases, rmsnorm
from tests.shares import examples
from tests.strategies import arrays_for, mugraphs, program_pairs


def drawn(graph: KernelGraph, seeds: tuple[int, ...]) -> tuple[list[FieldInstance], list[dict[str, FieldTensor]]]:
    instances = [FieldInstance.draw(seed) for seed in seeds]
    names = [i.name for i in graph.inputs]
    return instances, [dict(zip(names, random_inputs(graph, one), strict=True)) for one in instances]


def same(a: FieldTensor, b: FieldTensor) -> bool:
    parts = ((a.p, b.p), (a.q, b.q), (a.defined, b.defined))
    return all((x is None) == (y is None) and (x is None or np.array_equal(x, y)) for x, y in parts)


def shared_fields(instances: list[FieldInstance], inputs: list[dict[str, FieldTensor]]) -> SharedFields:
    return SharedFields(FieldStack(instances), {name: stacked([i[name] for i in inputs]) for name in inputs[0]})


def at(x: FieldTensor, number: int) -> FieldTensor:
    p, q, undefined = (None if part is None else part[number] for part in (x.p, x.q, x.undefined))
    return FieldTensor(p, q, undefined)


def check(
    fields: SharedFields, recorder: Recorder, graph: KernelGraph, instances: list[FieldInstance], inputs: list[dict]
) -> None:
    outputs = fields.run(recorder.plan(graph))
    for number, (one, given_inputs) in enumerate(zip(instances, inputs, strict=True)):
        expected = field.evaluate(graph, given_inputs, one)
        assert all(same(at(a, number), b) for a, b in zip(outputs, expected, strict=True))


@given(mugraphs() | mugraphs(overhang=True) | program_pairs().map(lambda pair: pair[0]))
@examples(60)
def test_values_are_those_of_single_evaluations(graph: KernelGraph) -> None:
    instances, inputs = drawn(graph, (1, 2))
    check(shared_fields(instances, inputs), Recorder(), graph, instances, inputs)


def test_graphs_of_one_program_share_values() -> None:
    for case in cases():
        instances, inputs = drawn(case.program, (3, 4, 5))
        fields, recorder = shared_fields(instances, inputs), Recorder()
        for graph in (case.program, case.candidate, case.program):
            check(fields, recorder, graph, instances, inputs)
        known = len(fields)
        check(fields, recorder, case.candidate, instances, inputs)
        assert len(fields) == known


def test_what_does_not_depend_on_the_iteration_is_computed_once() -> None:
    kernel = Kernel(X=(4, 8), Y=(8, 8))
    block = kernel.block((kernel["X"], kernel["Y"]), (1,), loop=4)
    x, y = block.read(0, (None,)), block.read(1, (None,), 1)
    product = block.op(OpKind.MATMUL, block.op(OpKind.SQRT, block.op(OpKind.SQR, x)), y)
    block.save(block.accum(product, kind=AccumKind.CONCAT, dim=1), (None,))
    steps = Recorder().plan(kernel.returning(kernel.launch((0, 1), block))).steps
    # Two tilings; the one tile of X, its square and root; four tiles of Y and products; what joins and saves them.
    assert len(steps) == 2 + 3 + 4 + 4 + 2


def test_a_plan_runs_in_every_algebra() -> None:
    for case in cases():
        recorder = Recorder()
        arrays = arrays_for(case.program, 5)
        values = Values(FloatAlgebra(np.dtype(np.float64)), arrays)
        for graph in (case.program, case.candidate):
            plan = recorder.plan(graph)
            expected = evaluate(graph, arrays)
            for found, shape, want in zip(values.run(plan), plan.shapes, expected, strict=True):
                assert np.array_equal(np.broadcast_to(found, shape), want)


@pytest.mark.parametrize("limit", ["MAX_STEPS", "MAX_VALUES", "MAX_BYTES"])
def test_what_is_kept_is_forgotten_when_there_is_much(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, limit, 3)
    case = rmsnorm()
    instances, inputs = drawn(case.program, (7,))
    fields, recorder = shared_fields(instances, inputs), Recorder()
    for graph in (case.program, case.candidate, case.program):
        check(fields, recorder, graph, instances, inputs)
        assert len(fields) < 60


def test_threads_may_share_a_recorder_and_values() -> None:
    """Steps made at once by two threads are made twice, and never taken for one another."""
    case = rmsnorm()
    instances, inputs = drawn(case.program, (7, 8))
    graphs = [case.program, case.candidate]
    expected = [[field.evaluate(graph, i, one) for one, i in zip(instances, inputs, strict=True)] for graph in graphs]
    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(20):
                fields, recorder = shared_fields(instances, inputs), Recorder()
                found = list(pool.map(lambda graph: fields.run(recorder.plan(graph)), graphs * 4))  # noqa: B023
                for outputs, wanted in zip(found, expected * 4, strict=True):
                    for number, want in enumerate(wanted):
                        assert all(same(at(a, number), b) for a, b in zip(outputs, want, strict=True))
    finally:
        sys.setswitchinterval(old)
