"""Concatenations behind what is computed of them: the same program, with nothing computed twice."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mirage_nb.bench.programs import text
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.search.wordings.joined import joined_last
from mirage_nb.search.wordings.said import Said

ROPE = """X: f16[4, 6, 32]
c: f16[6, 32]
s: f16[6, 32]
def rotate_half(x): return concatenate([-x[..., 16:], x[..., :16]], axis=-1)
return """


def said(program: str) -> KernelGraph:
    """The program with its concatenations last, which computes the same."""
    graph = parse(program).graph
    made = joined_last(graph)
    assert made.inputs == graph.inputs and made.output_types == graph.output_types
    assert made.output_names == graph.output_names
    given = {i.name: np.random.default_rng(n).normal(size=i.type.shape) for n, i in enumerate(graph.inputs)}
    for wanted, found in zip(evaluate(graph, given), evaluate(made, given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    whole = Said.of(graph)
    for wanted, found in zip(evaluate(graph, given), evaluate(whole.whole(whole.program), given), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    return made


def are_last(graph: KernelGraph) -> bool:
    """Whether there are concatenations, and nobody reads one but another one."""
    joins = {values[0]: op for op, values in graph.definitions() if op.kind is OpKind.CONCAT}
    readers = {op.kind for op in graph.ops for value in op.inputs if value in joins}
    return bool(joins) and readers <= {OpKind.CONCAT}


@pytest.mark.parametrize(
    "program",
    [
        ROPE + "X * c + rotate_half(X) * s",
        ROPE + "(exp(X) * c + rotate_half(exp(X)) * s) * 0.125",
        ROPE + "X * c + rotate_half(X) * s, relu(concatenate([X, -X], axis=0))",
        "A: f32[4, 6]\nB: f32[4, 6]\nreturn relu(concatenate([A, B], axis=1)) + concatenate([B, A], axis=1)",
        "A: f32[4, 6]\nB: f32[4, 6]\nr: f32[8, 1]\nreturn exp(concatenate([A, B], axis=0) * r)",
        "A: f32[4, 6]\nB: f32[4, 6]\nr: f32[4, 1]\nreturn exp(concatenate([A, B], axis=1) * r)",
        "A: f32[4, 6]\nB: f32[4, 6]\nC: f32[4, 6]\nD: f32[4, 6]\nreturn exp(concatenate([A, B, C, D], axis=1))",
        "A: f32[4, 6]\nB: f32[4, 6]\nv: f32[8]\nreturn exp(concatenate([A, B], axis=0)) * v[:, None]",
    ],
)
def test_what_is_computed_of_parts_is_put_together_last(program: str) -> None:
    assert are_last(said(program))


@pytest.mark.parametrize(
    "program",
    [
        "A: f32[4, 6]\nB: f32[4, 6]\nreturn concatenate([exp(A), B], axis=1)",  # it is
        "A: f32[4, 6]\nB: f32[4, 2]\nreturn relu(concatenate([A, B], axis=1))",  # of other extents
        "A: f32[4, 6]\nB: f32[4, 6]\nW: f32[12, 3]\nreturn relu(concatenate([A, B], axis=1)) @ W",
        "A: f32[4, 6]\nB: f32[4, 6]\nreturn softmax(2 * concatenate([A, B], axis=1))",
        "A: f32[4, 6]\nB: f32[4, 6]\nC = concatenate([A, B], axis=1)\nreturn relu(C), C",
        "A: f32[4, 6]\nB: f32[4, 6]\nC = concatenate([A, B], axis=1)\nreturn relu(C), sum(C, axis=1)",
        # exp(Y) is read whole, too; Z is no part of an input
        "A: f32[4, 6]\nB: f32[4, 6]\nY: f32[4, 12]\nE = exp(Y)\nreturn concatenate([A, B], axis=1) * E, E",
        "A: f32[4, 6]\nB: f32[4, 6]\nY: f32[4, 12]\nreturn concatenate([A, B], axis=1) * softmax(Y)",
    ],
)
def test_other_concatenations_stay_where_they_are(program: str) -> None:
    assert said(program) == parse(program).graph


def test_in_front_of_halves_dimensions_are_one() -> None:
    """Batch and heads of a rope: its halves lie apart, whole heads do not."""
    program = text("liger_rope")
    said(program)
    assert {len(i.type.shape) for i in Said.of(parse(program).graph).program.inputs} == {2, 3}


def test_random_programs_compute_the_same() -> None:
    moved = 0
    for seed in range(200):
        draw = random.Random(seed)
        values = ["A", "B", "exp(A)", "A * B"]
        wide = ["Y", "concatenate([A, B], axis=1)"]
        for _ in range(draw.randint(1, 5)):
            kind = draw.randrange(5)
            if kind == 0:
                wide.append(f"concatenate([{draw.choice(values)}, {draw.choice(values)}], axis=1)")
            elif kind == 1:
                wide.append(f"tanh({draw.choice(wide)})")
            elif kind == 2:
                wide.append(f"({draw.choice(wide)} + {draw.choice(wide)} * r)")
            elif kind == 3:
                wide.append(f"({draw.choice(wide)} * {draw.choice(wide)})")
            else:
                values.append(f"{draw.choice(wide)}[:, {draw.choice(('6:', ':6', '::2'))}]")
        result = f"2 * {wide[-1]}, 3 * {draw.choice(values)}"
        inputs = ["A: f32[4, 6]", "B: f32[4, 6]", "Y: f32[4, 12]", "r: f32[4, 1]"]
        inputs = [line for line in inputs if line[0] in result.replace("axis", "")]
        moved += are_last(said("\n".join([*inputs, f"return {result}"])))
    assert moved > 20
