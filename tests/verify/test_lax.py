"""Which graphs the field decides, which parts inputs need, and inputs whose roots exist."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

from mirage_nb.interp import field
from mirage_nb.interp.field import FieldInstance, random_inputs
from mirage_nb.ir import ClampAttrs, DimAttrs, KernelGraph, OpKind, PowAttrs, RepeatAttrs, TransposeAttrs
from mirage_nb.verify.fields.lax import inspect, joined
from mirage_nb.verify.fields.roots import rooted_inputs
from tests.mugraphs import Kernel, attention_safe, cases, gated_mlp, gqa, qknorm, rms, rmsnorm, rmsnorm_fig3
from tests.shares import examples
from tests.strategies import mugraphs, programs


def test_the_parts_that_inputs_need() -> None:
    assert inspect(rmsnorm().candidate).parts == {"X": (True, False), "W": (True, False)}
    for graph in (gqa().program, gqa().candidate, attention_safe().candidate):
        assert inspect(graph).parts == {"Q": (False, True), "K": (False, True), "V": (True, False)}
    assert inspect(gated_mlp().candidate).parts == {"X": (True, True), "W1": (True, True), "W2": (True, False)}


@given(programs() | mugraphs())
@examples(150)
def test_the_parts_asked_for_are_enough(graph: KernelGraph) -> None:
    report = inspect(graph)
    instance = FieldInstance.draw(4)
    full = random_inputs(graph, instance)
    some = random_inputs(graph, instance, report.parts)
    for a, b in zip(field.evaluate(graph, full, instance), field.evaluate(graph, some, instance), strict=True):
        # An uninterpreted function of both parts is another one than of a single part.
        if not report.second and not report.opaque and not report.maxima:
            assert (b.defined | ~a.defined).all()
            assert (a.p[a.defined] == b.p[a.defined]).all()


@given(programs() | mugraphs())
@examples(150)
def test_a_second_exponential_is_found_before_it_is_met(graph: KernelGraph) -> None:
    """Without one, an element is undefined only through a division or a root."""
    report = inspect(graph)
    ops = {op.kind for op in all_kinds(graph)}
    if not report.second and not ops & {OpKind.DIV, OpKind.SQRT, OpKind.POW, OpKind.SILU, OpKind.SIGMOID}:
        instance = FieldInstance.draw(5)
        outputs = field.evaluate(graph, random_inputs(graph, instance), instance)
        assert all(out.defined.all() for out in outputs)


def all_kinds(graph: object) -> list[object]:
    return [inner for op in graph.ops for inner in (op, *(all_kinds(op.body) if op.body else ()))]


def test_reports_name_what_weakens_a_trial() -> None:
    flags = {
        case.name: (r.exact, r.bounded, r.maxima, r.roots, r.symbols, r.exponentials)
        for case in cases()
        for r in [joined(inspect(case.program), inspect(case.candidate))]
    }
    assert flags["lora"] == (True, True, False, False, False, False)
    assert flags["gqa"] == (True, True, False, False, False, True)
    assert flags["rmsnorm_fig3"] == (False, False, False, True, False, False)
    assert flags["attention_safe"] == (False, False, True, False, True, True)


@pytest.mark.parametrize(
    ("kind", "attrs", "opaque", "root"),
    [
        (OpKind.RELU, None, True, False),
        (OpKind.CLAMP, ClampAttrs(None, Fraction(1)), True, False),
        (OpKind.POW, PowAttrs(Fraction(1, 3)), True, False),
        (OpKind.POW, PowAttrs(Fraction(1000)), True, False),
        (OpKind.POW, PowAttrs(Fraction(3, 2)), False, True),
        (OpKind.POW, PowAttrs(Fraction(3)), False, False),
        (OpKind.SQRT, None, False, True),
    ],
)
def test_operators_outside_lax(kind: OpKind, attrs: object, opaque: bool, root: bool) -> None:
    k = Kernel(X=(2,))
    report = inspect(k.returning(k.op(kind, 0, attrs=attrs)))
    assert (bool(report.opaque), report.roots) == (opaque, root)


def defined(graph: KernelGraph, seed: int) -> np.ndarray:
    instance = FieldInstance.draw(seed)
    inputs = rooted_inputs(graph, instance, inspect(graph).parts)
    return field.evaluate(graph, inputs, instance)[0].defined


@pytest.mark.parametrize("seed", range(5))
def test_roots_of_many_rows_are_found(seed: int) -> None:
    assert defined(rmsnorm(64, 8, 8).program, seed).all()
    assert defined(rmsnorm_fig3(32, 8, 8).program, seed).all()
    assert defined(qknorm(2, 16, 8, 256).program, seed).all()


def nested() -> KernelGraph:
    k = Kernel(H=(128, 4), X=(128, 4))
    return k.returning(rms(k, k.op(OpKind.ADD, rms(k, 0, 1, 4), 1), 1, 4))


def through_views() -> KernelGraph:
    k = Kernel(X=(4, 6), Y=(4, 6))
    both = k.op(OpKind.CONCAT, 0, 1, attrs=DimAttrs(1))
    turned = k.op(OpKind.TRANSPOSE, k.op(OpKind.REPEAT, both, attrs=RepeatAttrs(0, 2)), attrs=TransposeAttrs((1, 0)))
    return k.returning(k.op(OpKind.SQRT, turned))


def through_matmuls() -> KernelGraph:
    k = Kernel(W=(16, 3), X=(3, 2), Y=(16, 3), Z=(3, 2))
    rows = k.sum(k.op(OpKind.CONCAT_MATMUL, 0, 2, 1, 3), 1)
    return k.returning(k.op(OpKind.SQRT, rows))


def of_a_muGraph() -> KernelGraph:
    k = Kernel(X=(2, 4))
    b = k.block((0,), (2,))
    b.save(b.sum(b.op(OpKind.SQR, b.read(0, (0,))), 1), (0,))
    return k.returning(k.op(OpKind.SQRT, k.launch((0,), b)))


@pytest.mark.parametrize("build", [nested, through_views, through_matmuls, of_a_muGraph])
@pytest.mark.parametrize("seed", range(3))
def test_roots_behind_other_operators_are_found(build: object, seed: int) -> None:
    assert defined(build(), seed).all()


def test_inputs_without_roots_are_uniform_draws() -> None:
    graph = gqa().program
    instance = FieldInstance.draw(1)
    parts = inspect(graph).parts
    plain = random_inputs(graph, instance, parts)
    for a, b in zip(plain, rooted_inputs(graph, instance, parts), strict=True):
        assert (a.any_part == b.any_part).all()


def test_only_what_a_failed_root_depends_on_is_drawn_again() -> None:
    graph = rmsnorm(64, 8, 8).program
    instance = FieldInstance.draw(2)
    parts = inspect(graph).parts
    first = field.evaluate(graph, random_inputs(graph, instance, parts), instance)[0].defined[:, 0]
    before, after = random_inputs(graph, instance, parts), rooted_inputs(graph, instance, parts)
    kept = (before[0].p == after[0].p).all(axis=1)
    assert kept.tolist() == first.tolist()
    assert (before[1].p == after[1].p).all()
