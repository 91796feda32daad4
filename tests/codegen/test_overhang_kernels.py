"""Kernels whose tiles hang over the ends of tensors: right, and nothing beyond the ends is read or written.

They come from the search, at sizes that no useful tile divides. The CPU edition reports every access beyond the end
of a tensor.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from mirage_nb.codegen import MapArg, Options, emit, variants
from mirage_nb.ir import DType, KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.search import EFFORTS, configurations, instances, prepare, tiny
from mirage_nb.search.sizes.instantiate import poor_axes
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import Reduce, flat
from mirage_nb.tile.staged.program import Save
from mirage_nb.verify.trials import verify
from tests.codegen.running import TOLERANCE, WAYS, check, draw, errors, run
from tests.mugraphs import Block, one_kernel, tensor
from tests.search.explored import explored
from tests.shares import shared_out
from tests.tile.staged_plans import programs

H200 = TARGETS["h200"]
PROGRAMS = {
    "prime sizes": "X: f16[37, 67]\nW: f16[67, 41]\nreturn X @ W",
    "rows that the copy engine takes": "X: f16[37, 136]\nW: f16[136, 152]\nreturn X @ W",
    "f32": "X: f32[37, 67]\nW: f32[67, 41]\nreturn X @ W",
    "norm and product": "X: f16[35, 67]\nG: f16[67]\nW: f16[67, 74]\nreturn rms_norm(X, G) @ W",
    "gates": "X: f16[37, 34]\nW: f16[34, 41]\nV: f16[34, 41]\nreturn silu(X @ W) * (X @ V)",
    "rows held in registers": "X: f16[67, 48]\nreturn softmax(X, axis=1)",
    "columns held in registers": "X: f16[37, 74]\nreturn X / sum(X * X, axis=0, keepdims=True)",
    "elements": "X: f16[5, 37, 34]\nB: f16[34]\nreturn silu(X + B)",
    "masked keys": (
        "Q: f16[64, 16]\nK: f16[131, 16]\nV: f16[131, 16]\nS = Q @ transpose(K, 1, 0)\n"
        "E = exp(S - max(S, axis=1, keepdims=True))\nreturn (E / sum(E, axis=1, keepdims=True)) @ V"
    ),
    "masked sums": "X: f16[16, 515]\nW: f16[515, 32]\nreturn softmax(X, axis=1) @ W",
    "attention": (
        "Q: f16[2, 67, 16]\nK: f16[2, 64, 16]\nV: f16[2, 64, 16]\nreturn softmax(Q @ transpose(K, 0, 2, 1), axis=2) @ V"
    ),
}


def overhanging(text: str, count: int) -> Iterator[KernelGraph]:
    """Some muGraphs of a program with tiles that hang over ends, the same in every run."""
    program = parse(text).graph
    prepared = prepare(program)
    choose = random.Random(1)
    found: list[KernelGraph] = []
    effort = EFFORTS["quick"]
    few = [c for c in configurations(prepared, effort) if c.cut is None][:6]
    for configuration in choose.sample(few, len(few)):
        result = explored(prepared, configuration, effort)
        for structure in result.structures[:2]:
            sound = frozenset(
                a for a in poor_axes(prepared) if verify(*tiny(prepared, structure, frozenset({a}))).accepted
            )
            found += [i.graph for i in instances(structure, prepared, H200, 20, sound) if i.overhanging]
        if len(found) >= 10 * count:
            break
    assert found
    yield from choose.sample(found, min(count, len(found)))


@shared_out
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_beyond_an_end_is_read_or_written(name: str, share: int) -> None:
    choose = random.Random(2)
    first = len(name) % 2 if share > 1 else 0
    for number, graph in enumerate(overhanging(PROGRAMS[name], 1 if share > 1 else 2), first):
        ways = variants(graph, H200)
        options = choose.choice(ways) if number else ways[0]
        emitted, inputs = emit(graph, H200, options), draw(graph)
        outputs = run(emitted, inputs, **WAYS[number % 2])
        for error, type_ in zip(errors(graph, emitted, inputs, outputs), graph.output_types, strict=True):
            assert error < TOLERANCE[type_.dtype], (graph, options)


def test_folds_of_columns_that_fill_no_tile_leave_out_what_lies_beyond_the_end() -> None:
    """Zeros there are no maximum of what is less, and no exponential."""
    text = "X: f16[64, 128]\nW: f16[1009, 128]\nreturn logsumexp(X @ W.T, 1)"
    prepared, effort = prepare(parse(text).graph), EFFORTS["standard"]
    (among,) = (c for c in configurations(prepared, effort) if str(c) == "2 kernels; grid over c; loop over b")
    found = (i.graph for s in explored(prepared, among, effort).structures
             for i in instances(s, prepared, H200, 2, poor_axes(prepared)) if i.overhanging)  # fmt: skip
    able = (graph for graph in found if len(folds(graph)) == 2)
    for graph, way in zip(itertools.islice(able, 2), WAYS, strict=True):
        x, w = draw(graph)
        emitted, inputs = emit(graph, H200), [abs(x), -abs(w)]
        (error,) = errors(graph, emitted, inputs, run(emitted, inputs, checked=True, **way))
        assert error < TOLERANCE[DType.F16]


def folds(graph: KernelGraph) -> list[Reduce]:
    """What the first kernel folds, if its warps have roles."""
    kernel = next(kernel for kernel in plan(graph, H200).kernels if kernel is not None)
    every = kernel.program.every if kernel.program is not None else ()
    return [statement for statement in every if isinstance(statement, Reduce)]


def test_columns_that_fill_no_line_are_multiplied_by_warps_with_roles() -> None:
    """Places of images, 28 x 28: the last tile of columns hangs over, of every image and of the results."""
    prepared = prepare(parse("X: f16[2, 64, 784]\nW: f16[64, 64]\nB: f16[64]\nreturn relu(W @ X + B[:, None])").graph)
    few = [c for c in configurations(prepared, EFFORTS["quick"]) if c.cut is None][:2]
    structures = [s for c in few for s in explored(prepared, c, EFFORTS["quick"]).structures[:1]]
    found = [i.graph for s in structures for i in instances(s, prepared, H200, 6) if i.overhanging]
    able = [(graph, way) for graph in found for way in variants(graph, H200) if way.specialised]
    graph, way = able[0]
    emitted, inputs = emit(graph, H200, way), draw(graph)
    (error,) = errors(graph, emitted, inputs, run(emitted, inputs, **WAYS[1]))
    assert error < TOLERANCE[graph.output_types[0].dtype], (graph, way)


def test_the_copy_engine_fills_in_zeros_by_itself() -> None:
    """Tiles that hang over the matrix are boxes; those that would reach other rows, or unaligned ones, are not."""
    found = [emit(graph, H200) for graph in overhanging(PROGRAMS["rows that the copy engine takes"], 40)]
    bulk = [e for e in found if any(isinstance(arg, MapArg) for step in e.launches for arg in step.args)]
    assert bulk
    for emitted in bulk:
        assert "load_inside" not in emitted.source


def test_exact_tiles_have_no_conditions() -> None:
    graph = parse("X: f16[32, 64]\nW: f16[64, 128]\nreturn X @ W").graph
    prepared = prepare(graph)
    effort = EFFORTS["quick"]
    (configuration, *_) = configurations(prepared, effort)
    result = explored(prepared, configuration, effort)
    for instance in instances(result.structures[0], prepared, H200, 8):
        assert not instance.overhanging
        assert all(op.attrs.tile is None for k in instance.graph.ops for op in k.body.ops if op.kind.value == "InIter")


@pytest.mark.parametrize(("extent", "width"), [(2601, 1), (2602, 2), (2604, 4), (2608, 8)])
def test_rows_that_begin_anywhere_are_stored_side_by_side(extent: int, width: int) -> None:
    """Vectors that no store takes whole would be stored one element after the other, by threads that lie far apart."""
    b = Block((tensor((64, extent)), tensor((extent,))), (1, 2))
    x, y = b.read(0, (None, 1), tile=(64, 1304)), b.read(1, (None, 0), tile=(1304,))
    b.save(b.op(OpKind.RELU, b.op(OpKind.ADD, x, y)), (None, 1), (64, extent))
    graph, options = one_kernel("X Y", b), Options(4)
    (program,) = programs(plan(graph, H200, options)).values()
    (save,) = (s for s in flat(program.code) if isinstance(s, Save))
    assert save.vectors.width == width
    check(graph, options)
