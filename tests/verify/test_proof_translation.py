"""What graphs mean as terms is what the float64 reference computes, at any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject

from mirage_nb.errors import ProofError
from mirage_nb.interp import reference
from mirage_nb.interp.reference import TABLE
from mirage_nb.ir import (
    COMPARISONS,
    ApplyAttrs,
    ClampAttrs,
    ConstAttrs,
    DimAttrs,
    KernelGraph,
    OpKind,
    RepeatAttrs,
    ReshapeAttrs,
    TransposeAttrs,
)
from mirage_nb.ir.text import parse_graph
from mirage_nb.verify.fields.lax import all_ops
from mirage_nb.verify.proof.axes import plain_parts, scoped
from mirage_nb.verify.proof.meaning import hold
from mirage_nb.verify.proof.terms import Kind, Term
from mirage_nb.verify.proof.translate import translate
from tests.mugraphs import BUILDERS, Kernel
from tests.shares import examples
from tests.strategies import arrays_for, mugraphs, programs
from tests.verify.term_values import World, part_extents
from tests.verify.test_overhang import MATMUL, PRODUCT

UNARY = {
    "SiLU": OpKind.SILU, "GELU": OpKind.GELU, "Sigmoid": OpKind.SIGMOID, "ReLU": OpKind.RELU, "Clamp": OpKind.CLAMP,
}  # fmt: skip


def functions(term: Term, found: dict[str, object] | None = None) -> dict[str, object]:
    """The opaque functions in a term, by name."""
    found = {} if found is None else found
    if term.kind is Kind.FN and term.data not in found:
        found[term.data] = _function(term.data)
    for arg in term.args:
        functions(arg, found)
    return found


def _function(name: str) -> Callable[..., np.ndarray]:
    if name.startswith("@"):
        attrs = ApplyAttrs("f", name[name.index("=") + 1 : -1])
        return lambda x: TABLE[OpKind.APPLY]([x], attrs, 0)
    head, _, rest = name.partition("(")
    given = dict(item.split("=") for item in rest.rstrip(")").split(", ")) if rest else {}
    attrs = None
    if head == "Clamp":
        low, high = (Fraction(given[key]) if given.get(key) else None for key in ("low", "high"))
        attrs = ClampAttrs(low, high)
    if head == "Pow":
        return np.power
    return lambda x: TABLE[UNARY[head]]([x], attrs, 0)


def held_against_reference(graph: KernelGraph, seed: int = 0) -> None:
    """Every output's term has the value that the reference computes."""
    outputs = tuple(range(len(graph.outputs)))
    translation = translate(graph, graph, outputs, literal=True)
    goals = translation.goals
    assert all(goal.left == goal.right and goal.given == goal.owed for goal in goals)
    hold(translation)
    hold(translate(graph, graph, outputs))
    arrays = arrays_for(graph, seed)
    scope, _ = scoped(graph, graph, outputs)
    layouts = {i.name: scope.dims[number] for number, i in enumerate(graph.inputs)}
    world = World(part_extents(graph, graph, outputs), arrays, symbols(graph), layouts=layouts)
    world = world.with_ends(plain_parts((scope,)).values())
    for goal in goals:
        functions(goal.left, world.functions)
    for number, want in enumerate(reference.evaluate(graph, arrays)):
        own = replace(world, layouts={**world.layouts, "": scope.dims[graph.outputs[number]]})
        found = own.output([goal for goal in goals if goal.output == number], want.shape)
        defined = np.isfinite(want)
        np.testing.assert_allclose(found[defined], want[defined], rtol=1e-6, atol=1e-9)


def symbols(graph: KernelGraph) -> dict[str, float]:
    """The named constants in the order in which translation meets them: only their first use counts."""
    bodies = [outer.body for outer in graph.ops if outer.body is not None]
    ops = [op for part in (graph, *bodies) for op in part.ops]
    named = {(op.attrs.symbol, op.attrs.value) for op in ops if isinstance(op.attrs, ConstAttrs) and op.attrs.symbol}
    if len(named) > 1:
        reject()
    return {f"c{number}": float(value) for number, (_, value) in enumerate(named)}


@pytest.mark.parametrize("build", BUILDERS, ids=lambda b: b.__name__)
def test_named_muGraphs(build):
    case = build()
    held_against_reference(case.program)
    held_against_reference(case.candidate)


MAXIMA_OF_TILES = """mugraph 1
input %0 X f32[5, 7]
%1, %2 = Graph(%0) grid=[2] loop=2 {
  %0 = InIter arg=0 imap=[0] fmap=1 tile=[3, 4]
  %1 = Max(%0) dim=1
  %2 = Accum(%1) kind=max
  %3 = Accum(%0) kind=concat dim=1
  OutSaver(%2) omap=[0] shape=[5, 1]
  OutSaver(%3) omap=[0] shape=[5, 7]
}
%3 = Max(%2) dim=1
%4 = RescaledSum(%2, %2) dim=1
%5 = Sum(%2) dim=0
output %1 A
output %2 B
output %3 C
output %5 E
"""
SIZES = {
    "rmsnorm": {"m": 3, "k": 12, "n": 10, "grid": 5, "loop": 3},
    "rmsnorm_fig3": {"m": 2, "k": 6, "n": 9, "grid": 3, "loop": 3},
    "gated_mlp": {"m": 3, "k": 6, "n": 6, "grid": 3, "loop": 3},
    "lora": {"m": 2, "k": 6, "n": 6, "r": 3, "grid": 2, "loop": 3},
    "gqa": {"h": 3, "q": 2, "d": 3, "s": 6, "grid": (3, 2), "loop": 3},
    "attention_safe": {"h": 3, "q": 6, "d": 2, "s": 9, "grid": (3, 3), "loop": 3},
    "flash_decoding": {"h": 2, "q": 3, "d": 2, "s": 12, "parts": 3, "loop": 2},
    "qknorm": {"h": 2, "q": 6, "d": 3, "s": 6, "grid": (2, 3), "loop": 3},
    "concat_free": {"m": 6, "k": 3, "n": 6, "grid": 3, "loop": 3},
}


@pytest.mark.parametrize("build", BUILDERS, ids=lambda b: b.__name__)
def test_other_sizes(build):
    case = build(**SIZES[build.__name__])
    held_against_reference(case.program)
    held_against_reference(case.candidate)


def graph_with(kind, *shapes, attrs=None):
    k = Kernel(**dict(zip("XYZW", shapes, strict=False)))
    value = k.op(kind, *range(len(shapes)), attrs=attrs)
    return k.returning(value)


def concatenated_matmul() -> KernelGraph:
    """(X || Y) @ (Z || W) with real concatenations, the rows of one block regrouped."""
    k = Kernel(X=(3, 4), Y=(3, 2), Z=(4, 5), W=(2, 5), U=(6, 2))
    left = k.op(OpKind.CONCAT, 0, 1, attrs=DimAttrs(1))
    right = k.op(OpKind.CONCAT, 2, 3, attrs=DimAttrs(0))
    return k.returning(k.op(OpKind.MATMUL, left, right), k.op(OpKind.MATMUL, left, 4))


def concatenated(kind: OpKind, *, twice: bool = False, nested: bool = False) -> KernelGraph:
    """A reduction over a concatenated axis: of two, of three, or of two such axes in one dimension."""
    k = Kernel(X=(3, 4), Y=(3, 2), Z=(3, 5))
    value = k.op(OpKind.CONCAT, 0, 1, attrs=DimAttrs(1))
    if nested:
        value = k.op(OpKind.CONCAT, value, 2, attrs=DimAttrs(1))
    if twice:
        both = k.op(OpKind.CONCAT, value, k.op(OpKind.SQR, value), attrs=DimAttrs(0))
        value = k.op(OpKind.RESHAPE, both, attrs=ReshapeAttrs((36,)))
    if kind is OpKind.RESHAPE:
        return k.returning(value)
    dim = 0 if twice else 1
    operands = (value, k.op(OpKind.SQR, value)) if kind is OpKind.RESCALED_SUM else (value,)
    return k.returning(k.op(kind, *operands, attrs=DimAttrs(dim)))


@pytest.mark.parametrize(
    "kind", [OpKind.SUM, OpKind.MAX, OpKind.RESCALED_SUM, OpKind.RESHAPE], ids=lambda kind: kind.value
)
@pytest.mark.parametrize("shape", [{}, {"twice": True}, {"nested": True}], ids=["two", "twice", "nested"])
def test_concatenated_axes(kind: OpKind, shape: dict[str, bool]) -> None:
    held_against_reference(concatenated(kind, **shape))


@pytest.mark.parametrize(
    "graph",
    [
        graph_with(OpKind.REPEAT, (2, 3), attrs=RepeatAttrs(1, 2)),
        graph_with(OpKind.RESHAPE, (4, 3), attrs=ReshapeAttrs((2, 2, 3))),
        graph_with(OpKind.RESHAPE, (4, 6), attrs=ReshapeAttrs((8, 3))),
        graph_with(OpKind.TRANSPOSE, (2, 3, 4), attrs=TransposeAttrs((1, 2, 0))),
        graph_with(OpKind.MATMUL, (2, 3, 4), (4, 5)),
        graph_with(OpKind.MATMUL, (3, 4), (2, 4, 5)),
        graph_with(OpKind.MATMUL, (1, 3, 4), (2, 4, 1)),
        graph_with(OpKind.ADD, (2, 1, 3), (4, 1)),
        graph_with(OpKind.CONCAT, (3, 4), (3, 2), attrs=DimAttrs(1)),
        graph_with(OpKind.CONCAT_MATMUL, (3, 4), (3, 2), (4, 5), (2, 5)),
        concatenated_matmul(),
        graph_with(OpKind.RESCALED_SUM, (3, 4), (4,), attrs=DimAttrs(0)),
        graph_with(OpKind.RESCALED_SUM, (3, 4), (3, 1), attrs=DimAttrs(0)),
    ],
    ids=lambda graph: graph.ops[0].kind.value,
)
def test_operators(graph):
    held_against_reference(graph)


@examples(40, suppress_health_check=list(HealthCheck))
@given(programs())
def test_random_programs(graph):
    try:
        held_against_reference(graph)
    except ProofError:
        reject()


@pytest.mark.parametrize("text", [
    PRODUCT.format(**MATMUL), PRODUCT.format(**{**MATMUL, "columns": 8}), MAXIMA_OF_TILES,
])  # fmt: skip
def test_tiles_that_hang_over(text):
    held_against_reference(parse_graph(text))


@examples(40, suppress_health_check=list(HealthCheck))
@given(mugraphs(overhang=True))
def test_random_muGraphs_whose_tiles_hang_over(graph):
    if any(op.kind in COMPARISONS for op in all_ops(graph)):  # float64 compares what is undefined, too
        reject()
    try:
        held_against_reference(graph)
    except ProofError:
        reject()


@examples(40, suppress_health_check=list(HealthCheck))
@given(mugraphs())
def test_random_muGraphs(graph):
    try:
        held_against_reference(graph)
    except ProofError:
        reject()
