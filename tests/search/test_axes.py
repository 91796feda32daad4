"""prepare(): the program over axes says the same as the program over dimensions."""

from __future__ import annotations

import copy
import math
import random
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from mirage_nb.errors import SearchError
from mirage_nb.interp import reference
from mirage_nb.ir import DimAttrs, KernelGraph, OpKind, RepeatAttrs, ReshapeAttrs, TransposeAttrs
from mirage_nb.search import EFFORTS, Prepared, configurations, prepare
from mirage_nb.search.axes import over_axes as said_over_axes
from mirage_nb.search.dims import Symbols
from mirage_nb.search.sizes.instantiate import small_program
from tests.search.programs import PROGRAMS, Builder, attention_safe, gqa, moe, qknorm, rmsnorm

Array = npt.NDArray[np.float64]

RULES = {
    OpKind.ADD: np.add, OpKind.SUB: np.subtract, OpKind.MUL: np.multiply, OpKind.DIV: np.divide,
    OpKind.EXP: np.exp, OpKind.SQRT: np.sqrt, OpKind.SQR: np.square,
    OpKind.SILU: lambda x: x / (1 + np.exp(-x)), OpKind.RELU: lambda x: np.maximum(x, 0),
}  # fmt: skip


def over_axes(prepared: Prepared, arrays: list[Array]) -> list[Array]:
    """The program over axes in NumPy, one dimension for every axis; shares nothing with the search."""
    count = len(prepared.axes)
    values: list[Array] = []
    for operator, args in prepared.program:
        read = [values[a] for a in args]
        if operator.kind is OpKind.IN_ITER:
            tensor = prepared.tensors[operator.leaf]
            view = arrays[tensor.input].reshape([1 if a is None else prepared.axes[a].extent for a in tensor.axes])
            letters = [0 if axis is None else axis + 1 for axis in tensor.axes]
            present = sorted(axis for axis in tensor.axes if axis is not None)
            value = np.einsum(view, letters, [axis + 1 for axis in present])
            shape = [prepared.axes[axis].extent if axis in present else 1 for axis in range(count)]
            values.append(value.reshape(shape))
        elif operator.kind is OpKind.CONST:
            values.append(np.full([1] * count, float(prepared.constants[operator.leaf].value)))
        elif operator.kind is OpKind.MATMUL:
            values.append((read[0] * read[1]).sum(operator.axis, keepdims=True))
        elif operator.kind is OpKind.CONCAT:
            values.append(joined(prepared, operator.axis, *read))
        elif operator.kind is OpKind.SUM:
            values.append(read[0].sum(operator.axis, keepdims=True))
        elif operator.kind is OpKind.MAX:
            values.append(read[0].max(operator.axis, keepdims=True))
        else:
            values.append(RULES[operator.kind](*read))
    found = []
    for value, dims in zip(prepared.outputs, prepared.output_dims, strict=True):
        present = [axis for dim in dims for axis in dim]
        array = values[value].transpose([*present, *(a for a in range(count) if a not in present)])
        found.append(array.reshape([math.prod(prepared.axes[a].extent for a in dim) for dim in dims]))
    return found


def joined(prepared: Prepared, whole: int, *parts: Array) -> Array:
    (join,) = [join for join in prepared.joins if join.whole == whole]
    own = [whole if axis is None else axis for axis in (join.first, join.second)]
    return np.concatenate([part.swapaxes(axis, whole) for part, axis in zip(parts, own, strict=True)], whole)


SMALL = {
    "rmsnorm": (2, 4, 3), "rmsnorm_fig3": (2, 4, 3), "gated_mlp": (2, 3, 4), "lora": (2, 4, 3, 5),
    "gqa": (2, 3, 4, 5), "qknorm": (2, 3, 4, 5), "qknorm_k": (2, 3, 4, 5), "attention_safe": (2, 3, 4, 5),
    "ntrans": (3, 4), "moe": (2, 3, 4, 5, 6),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_over_axes_equals_the_program(name: str) -> None:
    graph = PROGRAMS[name](*SMALL[name])
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(i.type.shape) for i in graph.inputs]
    for found, expected in zip(over_axes(prepare(graph), arrays), reference.evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_extents_of_one_have_no_axis() -> None:
    prepared = prepare(gqa(1, 4, 8, 16))
    assert [tensor.axes[0] for tensor in prepared.tensors] == [None, None, None]
    assert [axis.extent for axis in prepared.axes] == [4, 8, 16, 8]


def test_transposes_vanish_and_reduced_axes_are_those_that_are_folded() -> None:
    prepared = prepare(attention_safe())
    assert OpKind.TRANSPOSE not in {operator.kind for operator, _ in prepared.program}
    assert [axis.reduced for axis in prepared.axes] == [False, False, True, True, False]
    assert prepare(qknorm()).axes[4].reduced
    assert [axis.reduced for axis in prepare(moe()).axes] == [False, False, True, True, False]


def test_a_shift_may_have_fewer_dimensions_than_what_is_rescaled() -> None:
    b = Builder.over(X=(4, 6), Y=(6,))
    b.op(OpKind.RESCALED_SUM, 0, 1, attrs=DimAttrs(1))
    prepared = prepare(b.done())
    assert [axis.reduced for axis in prepared.axes] == [False, True]
    b = Builder.over(X=(4, 6))
    b.op(OpKind.RESCALED_SUM, 0, b.const(Fraction(0)), attrs=DimAttrs(1))
    assert [axis.reduced for axis in prepare(b.done()).axes] == [False, True]


def test_a_tensor_that_meets_itself_is_read_under_two_aliases() -> None:
    b = Builder.over(X=(4, 6))
    b.matmul(0, b.transpose(0))
    prepared = prepare(b.done())
    assert [tensor.input for tensor in prepared.tensors] == [0, 0]
    first, second = (tensor.axes for tensor in prepared.tensors)
    assert first[0] != second[0] and first[1] == second[1]
    arrays = [np.random.default_rng(0).standard_normal((4, 6))]
    np.testing.assert_allclose(over_axes(prepared, arrays)[0], arrays[0] @ arrays[0].T)


def test_a_residual_around_a_square_matmul() -> None:
    b = Builder.over(X=(3, 6), W=(6, 6))
    b.op(OpKind.ADD, 0, b.matmul(0, 1))
    prepared = prepare(b.done())
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 6)), rng.standard_normal((6, 6))
    np.testing.assert_allclose(over_axes(prepared, [x, w])[0], x + x @ w)
    shared = {axis.extent for axis in prepared.axes if axis.reduced}
    assert shared == {6}, "both roles of the square axis are cut alike"


def test_shared_intermediates_stay_one() -> None:
    b = Builder.over(X=(3, 6))
    b.op(OpKind.ADD, 0, b.matmul(b.matmul(0, b.transpose(0)), 0))
    prepared = prepare(b.done())
    x = np.random.default_rng(0).standard_normal((3, 6))
    np.testing.assert_allclose(over_axes(prepared, [x])[0], x + x @ x.T @ x)


def test_small_program_keeps_the_meaning_of_reshapes_that_insert_ones() -> None:
    b = Builder.over(X=(4, 6))
    b.op(OpKind.MUL, b.op(OpKind.RESHAPE, 0, attrs=ReshapeAttrs((4, 1, 6))), b.const(Fraction(3)))
    prepared = prepare(b.done(), otherwise=False)
    small = small_program(prepared, (2, 3))
    assert small.output_types[0].shape == (2, 1, 3)


def reshaped(b: Builder, x: int, *shape: int) -> int:
    return b.op(OpKind.RESHAPE, x, attrs=ReshapeAttrs(shape))


def heads(rows: int, count: int, width: int) -> KernelGraph:
    """Attention with heads: [S, H*D] -> [H, S, D] and back."""
    b = Builder.over(Q=(rows, count * width), K=(rows, count * width), V=(rows, count * width))
    q, k, v = (
        b.op(OpKind.TRANSPOSE, reshaped(b, x, rows, count, width), attrs=TransposeAttrs((1, 0, 2))) for x in (0, 1, 2)
    )
    o = b.matmul(b.softmax(b.matmul(q, b.transpose(k))), v)
    reshaped(b, b.op(OpKind.TRANSPOSE, o, attrs=TransposeAttrs((1, 0, 2))), rows, count * width)
    return b.done()


def repeated(rows: int, width: int) -> KernelGraph:
    """Four query heads share two heads of keys."""
    b = Builder.over(Q=(4, rows, width), K=(2, rows, width), V=(2, rows, width))
    k, v = (b.op(OpKind.REPEAT, x, attrs=RepeatAttrs(0, 2)) for x in (1, 2))
    b.matmul(b.softmax(b.matmul(0, b.transpose(k))), v)
    return b.done()


def split_and_joined(rows: int) -> KernelGraph:
    """A matmul over a dimension that elsewhere is split in two, and a sum over both parts."""
    b = Builder.over(X=(rows, 12), W=(12, 5), G=(rows, 3, 4))
    x = b.op(OpKind.MUL, reshaped(b, 0, rows, 3, 4), 2)
    y = b.matmul(reshaped(b, x, rows, 12), 1)
    return b.done(y, b.sum(reshaped(b, x, rows, 12)))


RESHAPED = {"heads": heads(3, 2, 4), "repeated": repeated(3, 4), "joined": split_and_joined(5)}


@pytest.mark.parametrize("graph", RESHAPED.values(), ids=RESHAPED)
def test_reshapes_that_split_or_join_axes_and_repeats(graph: KernelGraph) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(i.type.shape) for i in graph.inputs]
    prepared = prepare(graph)
    for found, expected in zip(over_axes(prepared, arrays), reference.evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    small = small_program(prepared, tuple(2 for _ in prepared.axes))
    assert [len(t.shape) for t in small.output_types] == [len(t.shape) for t in graph.output_types]


def test_aliases_of_an_input_are_split_alike() -> None:
    b = Builder.over(X=(8, 8))
    split = reshaped(b, b.matmul(0, b.transpose(0)), 2, 4, 8)
    b.sum(split, 1)
    prepared = prepare(b.done())
    assert [len(tensor.axes) for tensor in prepared.tensors] == [3, 3]
    shapes = {tuple(prepared.axes[a].extent for a in tensor.axes if a is not None) for tensor in prepared.tensors}
    assert len(shapes) == 1, "all aliases have one view"


def test_reshapes_without_common_factors_are_refused_by_name() -> None:
    b = Builder.over(X=(4, 6))
    reshaped(b, 0, 3, 8)
    with pytest.raises(SearchError, match="no common factors"):
        said_over_axes(b.done())
    assert "no common factors" in prepare(b.done()).refused


def test_what_is_only_repeated_is_neither_summed_nor_stored() -> None:
    b = Builder.over(X=(4, 6))
    b.op(OpKind.REPEAT, 0, attrs=RepeatAttrs(1, 2))
    with pytest.raises(SearchError, match="only repeated"):
        said_over_axes(b.done())
    b.sum(len(b.graph.types) - 1)
    with pytest.raises(SearchError, match="only repeated"):
        said_over_axes(b.done())


def test_preparing_is_deterministic_and_needs_outputs() -> None:
    graph = rmsnorm(2, 4, 3)
    assert prepare(graph) == prepare(graph)
    with pytest.raises(SearchError, match="returns nothing"):
        prepare(graph.returning(()))


def test_uses_that_no_cut_can_express_are_refused_before_the_search() -> None:
    b = Builder.over(X=(4, 6))
    b.op(OpKind.MUL, 0, b.op(OpKind.SQRT, b.const(Fraction(2))))
    with pytest.raises(SearchError, match="constants alone"):
        configurations(prepare(b.done()), EFFORTS["standard"])


def test_products_of_one_tensor_share_their_columns() -> None:
    b = Builder.over(X=(4, 6), A=(6, 5), B=(6, 5), C=(6, 7))
    graph = b.done(*(b.matmul(0, w) for w in (1, 2, 3)))
    prepared = prepare(graph)
    assert [axis.extent for axis in prepared.axes] == [4, 6, 5, 7]
    assert prepared.output_axes == ((0, 2), (0, 2), (0, 3))
    square = Builder.over(X=(6, 6), Y=(6, 6))
    square.matmul(0, 1)
    assert [axis.extent for axis in prepare(square.done(2, 2)).axes] == [6, 6, 6]


@pytest.mark.parametrize(
    ("shapes", "chained", "depths"),
    [
        (((6, 5), (4, 6), (6, 5)), False, 1),
        (((6, 5), (4, 7), (7, 5)), False, 2),
        (((6, 6), (4, 5), (5, 6)), False, 2),
        (((6, 5), (5, 6)), True, 2),
    ],
    ids=["as long", "not as long", "longer columns", "a chain"],
)
def test_products_that_are_added_share_their_depth(
    shapes: tuple[tuple[int, int], ...], chained: bool, depths: int
) -> None:
    b = Builder.over(X=(4, 6), **dict(zip("WHU", shapes, strict=False)))
    first = b.matmul(0, 1)
    graph = b.done(b.matmul(first, 2) if chained else b.op(OpKind.ADD, first, b.matmul(2, 3)))
    prepared = prepare(graph)
    assert len({operator.axis for operator, _ in prepared.program if operator.kind is OpKind.MATMUL}) == depths
    arrays = [np.random.default_rng(0).normal(size=i.type.shape) for i in graph.inputs]
    for found, wanted in zip(over_axes(prepared, arrays), reference.evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(found, wanted)


def test_a_wide_product_shares_the_columns_of_a_narrow_one() -> None:
    """Queries of several heads for each head of keys: a block computes columns of both."""
    b = Builder.over(X=(4, 6), A=(6, 256), B=(6, 64), C=(6, 64), D=(6, 48))
    graph = b.done(*(b.matmul(0, w) for w in (1, 2, 3, 4)))
    prepared = prepare(graph)
    assert [axis.extent for axis in prepared.axes] == [4, 6, 4, 64, 48]
    assert prepared.output_axes == ((0, 2, 3), (0, 3), (0, 3), (0, 4))
    arrays = [np.random.default_rng(0).normal(size=i.type.shape) for i in graph.inputs]
    for found, wanted in zip(over_axes(prepared, arrays), reference.evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(found, wanted)
    square = Builder.over(X=(64, 6), A=(6, 128))
    assert [axis.extent for axis in prepare(square.done(square.matmul(0, 1))).axes] == [64, 6, 128]


@pytest.mark.parametrize("seed", range(20))
def test_symbols_come_back_to_a_state(seed: int) -> None:
    """Splitting and joining them again and again ends where it began, and says which atoms changed."""
    rng, symbols = random.Random(seed), Symbols()
    for _ in range(12):
        symbols.fresh(rng.choice([2, 3, 4, 6, 12, 24]))

    def tried(times: int) -> Symbols:
        for _ in range(times):
            symbols.refine(*([rng.randrange(12)] for _ in "ab"), join=rng.random() < 0.7)
        return copy.deepcopy(symbols)

    known, state = tried(6), symbols.state
    before = [symbols.atoms([symbol]) for symbol in range(12)]
    tried(6)
    changed = {*symbols.changed[state[0] :]}
    assert all(symbols.atoms([s]) == before[s] for s in range(12) if changed.isdisjoint(before[s]))
    symbols.undo(state)
    assert symbols == known
