"""The shared field interpreter: the same values as one evaluation per graph and instance, each computed once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from mirage_nb.interp import field, shared
from mirage_nb.interp.field import FieldInstance, FieldTensor, random_inputs
from mirage_nb.interp.instance import FieldStack, stacked
from mirage_nb.interp.shared import SharedFields
from mirage_nb.ir import KernelGraph
from tests.mugraphs import cases, rmsnorm
from tests.strategies import mugraphs, program_pairs


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


def check(fields: SharedFields, graph: KernelGraph, instances: list[FieldInstance], inputs: list[dict]) -> None:
    outputs = fields.run(graph)
    for number, (one, given_inputs) in enumerate(zip(instances, inputs, strict=True)):
        expected = field.evaluate(graph, given_inputs, one)
        assert all(same(at(a, number), b) for a, b in zip(outputs, expected, strict=True))


@given(mugraphs() | mugraphs(overhang=True) | program_pairs().map(lambda pair: pair[0]))
@settings(max_examples=60)
def test_values_are_those_of_single_evaluations(graph: KernelGraph) -> None:
    instances, inputs = drawn(graph, (1, 2))
    check(shared_fields(instances, inputs), graph, instances, inputs)


def test_graphs_of_one_program_share_values() -> None:
    for case in cases():
        instances, inputs = drawn(case.program, (3, 4, 5))
        fields = shared_fields(instances, inputs)
        for graph in (case.program, case.candidate, case.program):
            check(fields, graph, instances, inputs)
        known = len(fields._steps)
        check(fields, case.candidate, instances, inputs)
        assert len(fields._steps) == known


@pytest.mark.parametrize("limit", ["MAX_VALUES", "MAX_BYTES"])
def test_values_are_forgotten_when_there_are_many(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, limit, 3)
    case = rmsnorm()
    instances, inputs = drawn(case.program, (7,))
    fields = shared_fields(instances, inputs)
    for graph in (case.program, case.candidate, case.program):
        check(fields, graph, instances, inputs)
        assert len(fields._steps) < 60
