"""What kernels look up themselves: only where all who read it can, and where nobody else needs it."""

from __future__ import annotations

import pytest

from mirage_nb.codegen import Launch
from mirage_nb.ir import ApplyAttrs, ArangeAttrs, DType, Input, KernelGraph, Op, OpKind, ReshapeAttrs, TensorType
from mirage_nb.lang import parse
from mirage_nb.predefined import LOOKUP, matches, needed
from mirage_nb.predefined.lookups import lookup_of, lookups, share_of
from mirage_nb.predefined.patterns import ZERO
from tests.codegen.test_windows import read_by_a_kernel
from tests.lookups import PROGRAMS, composed


def looked_up(graph: KernelGraph) -> list[int]:
    return sorted(lookups(graph, matches(graph, [LOOKUP]), lambda op: True))


def test_lookups_by_the_same_numbers_share_their_mask() -> None:
    graph = parse("C: f32[40,16]\nS: f32[40,12]\nI: i64[7]\nreturn C[I], S[I]").graph
    found = matches(graph)
    assert [match.row for match in found] == [LOOKUP, LOOKUP] and found[0].inside & found[1].inside
    assert [lookup_of(graph, match).found.columns for match in found] == [16, 12]


def test_a_mask_that_others_need_is_made_beside_the_lookup() -> None:
    graph = parse("W: f32[40,64]\nI: int[7]\nH = one_hot(I, 40)\nreturn H, H @ W").graph
    (match,) = matches(graph)
    assert match.row == LOOKUP and match.output == graph.outputs[1]
    assert graph.outputs[0] in needed(graph, [match])


def test_what_others_read_is_written() -> None:
    """An output, or what a library's kernel reads."""
    graph = composed(PROGRAMS["embedding, position and layer norm"])[1].graph
    value, view = looked_up(graph)  # rows of all lines, and of lines in rows
    assert looked_up(graph.returning((*graph.outputs, value))) == []
    assert looked_up(graph.returning((*graph.outputs, view))) == []
    again = graph.append(Op(graph.ops[-1].kind, graph.ops[-1].inputs, body=graph.ops[-1].body))
    assert looked_up(again) == [value, view]
    assert lookups(graph, matches(graph, [LOOKUP]), lambda op: False) == {}


def test_a_table_of_another_type_is_looked_up_by_a_kernel_of_its_own() -> None:
    types = TensorType((40, 12), DType.BF16), TensorType((9,), DType.F32)
    graph = KernelGraph.start(*(Input(name, type_) for name, type_ in zip("WI", types, strict=True)))
    places = graph.append(Op(OpKind.ARANGE, (), ArangeAttrs(40))).append(Op(OpKind.RESHAPE, (1,), ReshapeAttrs((9, 1))))
    away = places.append(Op(OpKind.SUB, (2, 3)))
    hot = away.append(Op(OpKind.APPLY, (4,), ApplyAttrs("compared", ZERO)))
    graph = read_by_a_kernel(hot.append(Op(OpKind.MATMUL, (5, 0))))
    assert graph.types[6].dtype is DType.F32 and [match.output for match in matches(graph)] == [6]
    assert looked_up(graph) == []


@pytest.mark.parametrize(("text", "part", "table"), [
    ("E: f32[4000,16]\nI: i64[100]\nreturn E[I]", 1 + 4 / 64, 256000),
    ("E: f32[10,16]\nI: i64[100]\nreturn E[I]", 1 + 4 / 64, 640),
    ("X: f32[100,40]\nI: i64[100]\nreturn sum(where(arange(40) == I[:, None], X, 0), 1, keepdims=True)", 9.0, 16000),
])  # fmt: skip
def test_what_lookups_read(text: str, part: float, table: int) -> None:
    """Numbers, too; whole sectors of lone elements; of a small table no more than it has."""
    graph = parse(text).graph
    (match,) = matches(graph)
    share = share_of(graph, match.output, lookup_of(graph, match))
    assert (share.part, share.table) == (pytest.approx(part), table)


def test_no_kernel_makes_what_is_looked_up() -> None:
    _, emitted = composed(PROGRAMS["embedding, position and layer norm"])
    (launch,) = emitted.launches
    assert isinstance(launch, Launch) and emitted.temporaries == ()
    assert [arg.value for arg in launch.args] == [0, 1, 3, 4, 2, *emitted.graph.outputs]
