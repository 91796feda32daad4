"""Sizes that are known at launch: what is accepted computes every place along the size by itself."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from mirage_nb.errors import FormatError, GraphError, NamedSizeError, ShapeError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import DType, Input, KernelGraph, Op, OpKind, RunningAttrs, Size, TensorType
from mirage_nb.ir.jsonform import parse_json, print_json
from mirage_nb.ir.sizes import Sized, extent_of, named, resized, sized
from mirage_nb.ir.text import parse_graph, print_graph
from tests.mugraphs import Block, one_kernel, rmsnorm, tensor
from tests.shares import examples
from tests.strategies import arrays_for, mugraphs, programs

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def with_size(graph: KernelGraph, data: st.DataObject) -> tuple[KernelGraph, Sized]:
    """The graph with a size for the outermost dimension of some inputs, where it computes along it place by place."""
    ways = []
    for most in (2, 3, 4):
        able = [n for n, i in enumerate(graph.inputs) if i.type.shape and i.type.shape[0] % most == 0]
        ways += [(most, {n}) for n in able] + [(most, set(able))]
    found = []
    for most, chosen in ways:
        inputs = tuple(replace(i, size=Size("B", 1, most)) if n in chosen else i for n, i in enumerate(graph.inputs))
        made = replace(graph, inputs=inputs)
        with contextlib.suppress(NamedSizeError):
            if (where := sized(made)) is not None:
                found.append((made, where))
    assume(found)
    return data.draw(st.sampled_from(found))


def first(array: Array, dim: int | None, most: int, extent: int) -> Array:
    """The part of an array that there is at an extent."""
    return array if dim is None else array.take(range(array.shape[dim] // most * extent), axis=dim)


def close(a: Array, b: Array) -> bool:
    return a.shape == b.shape and np.allclose(a, b, rtol=1e-9, equal_nan=True)


def test_a_size_that_a_kernel_stores_a_part_of_is_refused() -> None:
    b = Block((tensor((2, 1)),), (1,))
    b.save(b.read(0, (None,)), (None,), shape=(1, 1))
    graph = one_kernel("X", b)
    sizes = replace(graph, inputs=(replace(graph.inputs[0], size=Size("B", 1, 2)),))
    with pytest.raises(NamedSizeError, match="cut off where it is stored"):
        sized(sizes)


def test_a_size_along_which_sums_run_is_refused() -> None:
    graph = KernelGraph.start(Input("X", tensor((8, 4)), size=Size("B", 1, 8)))
    for dim, refused in ((1, False), (0, True)):
        made = graph.append(Op(OpKind.RUNNING_SUM, (0,), RunningAttrs(dim))).returning((1,))
        with pytest.raises(NamedSizeError, match="summed up to") if refused else contextlib.nullcontext():
            sized(made)


@given(st.one_of(programs(), mugraphs(), mugraphs(overhang=True)), st.data())
@examples(60, suppress_health_check=[HealthCheck.filter_too_much])
def test_what_stands_behind_an_extent_changes_nothing_before_it(graph: KernelGraph, data: st.DataObject) -> None:
    graph, where = with_size(graph, data)
    most, extent = where.size.most, data.draw(st.integers(1, where.size.most - 1))
    one, other = (arrays_for(graph, seed) for seed in (1, 2))
    for value, i in enumerate(graph.inputs):
        dim = where.dims[value]
        cut = first(one[i.name], dim, most, extent).shape
        other[i.name][tuple(map(slice, cut))] = one[i.name][tuple(map(slice, cut))]
    with np.errstate(all="ignore"):
        found = [evaluate(graph, [arrays[i.name] for i in graph.inputs]) for arrays in (one, other)]
    for value, *pair in zip(graph.outputs, *found, strict=True):
        a, b = (first(array, where.dims[value], most, extent) for array in pair)
        assert close(a, b)


@given(programs(), st.data())
@examples(30, suppress_health_check=[HealthCheck.filter_too_much])
def test_at_an_extent_a_program_is_the_first_part_of_itself(graph: KernelGraph, data: st.DataObject) -> None:
    graph, where = with_size(graph, data)
    most, extent = where.size.most, data.draw(st.integers(1, where.size.most))
    arrays = arrays_for(graph, 1)
    given_ = [first(arrays[i.name], where.dims[v], most, extent) for v, i in enumerate(graph.inputs)]
    assert extent_of(graph.inputs, [a.shape for a in given_]) == extent
    with np.errstate(all="ignore"):
        whole = evaluate(graph, [arrays[i.name] for i in graph.inputs])
        part = evaluate(resized(graph, extent), given_)
    for value, w, p in zip(graph.outputs, whole, part, strict=True):
        assert close(first(w, where.dims[value], most, extent), p)


@given(programs(), st.data())
@examples(20, suppress_health_check=[HealthCheck.filter_too_much])
def test_a_graph_is_named_alike_from_every_extent(graph: KernelGraph, data: st.DataObject) -> None:
    graph, where = with_size(graph, data)
    inputs = [n for n, i in enumerate(graph.inputs) if i.size is not None]
    for extent in range(2, where.size.most + 1):
        assert named(resized(graph, extent), where.size, extent, inputs) == graph
    with pytest.raises(NamedSizeError):
        named(resized(graph, 1), where.size, 1, inputs)


@given(programs(), st.data())
@examples(15, suppress_health_check=[HealthCheck.filter_too_much])
def test_both_forms_keep_sizes(graph: KernelGraph, data: st.DataObject) -> None:
    plain = graph
    graph, _ = with_size(graph, data)
    assert parse_graph(print_graph(graph)) == graph == parse_json(print_json(graph))
    assert graph.digest() != plain.digest()


def test_the_grid_follows_from_the_extent() -> None:
    case = rmsnorm(m=8, k=16, n=16)
    size = Size("B", 1, 4)
    inputs = tuple(replace(i, size=size if i.name == "X" else None) for i in case.candidate.inputs)
    graph = replace(case.candidate, inputs=inputs)
    where = sized(graph)
    assert where is not None and where.dims[graph.outputs[0]] == 0
    assert all(cut is None or 1 <= cut.blocks(1) <= cut.blocks(3) <= cut.blocks(4) for cut in where.cuts)


ROWS = Input("X", TensorType((8, 6), DType.F16), size=Size("B", 1, 4))
KEYS = Input("K", TensorType((6, 8), DType.F16))
REFUSED = {
    "summed": (Op(OpKind.MATMUL, (1, 0)), "summed in a product"),
    "a number": (Op(OpKind.ADD, (0, 2)), "meets the number 8"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_mixes_places_is_refused(how: str) -> None:
    op, told = REFUSED[how]
    table = Input("T", TensorType((8, 6), DType.F16))
    graph = KernelGraph.start(ROWS, KEYS, table).append(op).returning((3,))
    with pytest.raises(NamedSizeError, match=told):
        sized(graph)


def test_extents_out_of_range_are_named() -> None:
    with pytest.raises(ShapeError, match=r"X has shape \[10, 6\], the program says f16\[2\*B, 6\], with B from 1 to 4"):
        extent_of([ROWS], [(10, 6)])
    with pytest.raises(ShapeError, match=r"the program says f16\[2\*B, 6\]"):
        extent_of([ROWS], [(3, 6)])
    with pytest.raises(ShapeError, match="B is 1 in X, 2 in Y"):
        extent_of([ROWS, replace(ROWS, name="Y")], [(2, 6), (4, 6)])
    with pytest.raises(GraphError, match="no outermost dimension"):
        replace(ROWS, size=Size("B", 1, 3))
    with pytest.raises(FormatError, match="no outermost dimension"):
        parse_graph('mugraph 1\ninput %0 X f16[8, 6] size "B" 1 3\n')
