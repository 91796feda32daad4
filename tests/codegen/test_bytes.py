"""Tensors of one byte: read as they are stored, widened in registers, in front of tensor cores, too."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from mirage_nb.codegen import Options, emit
from mirage_nb.errors import GraphError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import BYTES, COUNTS, FLOAT8, CastAttrs, DType, Input, KernelGraph, Op, OpKind, TensorType
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.runtime.execution.buffers import STORED, decode, draw, encode
from mirage_nb.search import EFFORTS, configurations, instances, prepare
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import flat
from mirage_nb.tile.rules.sharing import Side, Twins
from mirage_nb.tile.staged.program import Multiply, StagedProgram, Unload
from mirage_nb.tile.staged.validate import validate
from mirage_nb.verify.reals.rounding import numbers_of
from tests.codegen.running import run
from tests.mugraphs import Block, one_kernel
from tests.search.explored import explored
from tests.tile.staged_mutants import mutants
from tests.tile.staged_plans import programs

H200, QUICK = TARGETS["h200"], EFFORTS["quick"]
HALF = [DType.F16, DType.BF16]
TYPES = [dtype for dtype in DType if dtype in BYTES]


def product(
    rows: int, columns: int, half: DType, stored: DType, *, lies: str, batch: int = 1, first: bool = False,
    upright: bool = False,
) -> KernelGraph:  # fmt: skip
    """Of tiles of X, of two bytes, and W, of one: 96 summed elements in two iterations. lies: whether these or the
    columns of W lie side by side; first: W stands on the left; upright: rows of X lie side by side."""
    turned = lies == "depth"
    x = TensorType((batch, 96, rows) if upright else (batch, rows, 96), half)
    w = TensorType((batch, columns, 96) if turned else (batch, 96, columns), stored)
    b = Block((x, w), (1,), 2)
    left = b.transpose(b.read(0, (None,), 1), 0, 2, 1) if upright else b.read(0, (None,), 2)
    right = b.read(1, (None,), 2 if turned else 1)
    if first:
        made = b.op(OpKind.MATMUL, right if turned else b.transpose(right, 0, 2, 1), b.transpose(left, 0, 2, 1))
    else:
        made = b.op(OpKind.MATMUL, left, b.transpose(right, 0, 2, 1) if turned else right)
    b.save(b.accum(made), (None,))
    return one_kernel("X W", b)


def small(given: Input, rng: np.random.Generator) -> np.ndarray:
    """All numbers of a byte, of floats those of middle size, and halves: every product and sum is exact in f32."""
    if given.type.dtype not in BYTES:
        return rng.integers(-8, 9, given.type.shape)
    held = np.array(COUNTS.get(given.type.dtype, ()))
    if not held.size:
        every = numbers_of(given.type.dtype)
        held = every[(np.abs(every) >= 0.25) & (np.abs(every) <= 16)]
    return rng.permutation(np.resize(held, given.type.elements)).reshape(given.type.shape)


def planned(graph: KernelGraph, options: Options) -> StagedProgram:
    (program,) = programs(plan(graph, H200, options)).values()
    assert validate(program, H200) == ()
    return program


def sides(program: StagedProgram) -> list[Side]:
    return [side for s in flat(program.code) if isinstance(s, Multiply) for side in (s.rows, s.columns)]


def exact(graph: KernelGraph, options: Options) -> None:
    """Results are halves of the exact ones, without any other rounding."""
    rng = np.random.default_rng(0)
    inputs = [encode(small(i, rng), i.type.dtype) for i in graph.inputs]
    wanted = evaluate(graph, [decode(x, i.type.dtype) for x, i in zip(inputs, graph.inputs, strict=True)])
    found = run(emit(graph, H200, options), inputs)
    for made, right, type_ in zip(found, wanted, graph.output_types, strict=True):
        np.testing.assert_array_equal(made, encode(right, type_.dtype))


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("lies", ["depth", "side"])
@pytest.mark.parametrize(("rows", "columns", "first"), [(16, 64, False), (8, 48, False), (5, 32, True), (24, 64, True)])
@pytest.mark.parametrize("stored", TYPES)
def test_products_of_bytes(stored: DType, rows: int, columns: int, first: bool, lies: str, bulk: bool) -> None:
    for half in HALF:
        graph, options = product(rows, columns, half, stored, lies=lies, first=first), Options(4, bulk=bulk)
        assert any(side.along == lies for side in sides(planned(graph, options)))
        exact(graph, options)


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("lies", ["depth", "side"])
@pytest.mark.parametrize(("left", "right"), [*permutations(sorted(FLOAT8, key=str)), (DType.E4M3, DType.E4M3)])
def test_floats_of_one_byte_are_multiplied_as_halves(left: DType, right: DType, lies: str, upright: bool) -> None:
    """Which have them exactly; by tensor cores, whose sums then have the digits of f32."""
    for rows, columns, first in ((16, 64, False), (8, 48, True), (7, 20, False)):
        graph = product(rows, columns, left, right, lies=lies, first=first, upright=upright)
        assert sides(planned(graph, Options(4)))
        exact(graph, Options(4))


@pytest.mark.parametrize("lies", ["depth", "side"])
def test_batches_and_sides_that_no_chunk_fits(lies: str) -> None:
    exact(product(16, 32, DType.F16, DType.I8, lies=lies, batch=3), Options(4))
    ragged = product(7, 20, DType.F16, DType.U8, lies=lies)
    assert lies == "depth" or not any(side.along == "side" for side in sides(planned(ragged, Options(4))))
    exact(ragged, Options(4))


@pytest.mark.parametrize("lies", ["depth", "side"])
def test_lanes_that_have_other_elements_are_found(lies: str) -> None:
    program = planned(product(16, 64, DType.F16, DType.I8, lies=lies), Options(4))
    changed = {what for what, mutant in mutants(program) if validate(mutant, H200)}
    asked = [what for what, _ in mutants(program) if "fours" in what or "twins" in what]
    assert asked and changed.issuperset(asked)
    twins = {s.twins for s in flat(program.code) if isinstance(s, Unload)}
    assert twins == {Twins.NEITHER if lies == "depth" else Twins.COLUMNS}


TEXTS = (
    "W: i8[64, 96]; s: f16[96]; return W * s",
    "W: u8[5, 7, 32]; return f16(W) / 255 - 0.5",
    "X: f16[64, 80]; M: bool[64, 80]; return where(M, X, -2)",
    "X: bf16[64, 80]; M: bool[80]; return X * M + M",
    "S: f32[9, 304]; M: bool[9, 304]; return softmax(where(M, S, -1e4))",
    "M: bool[40, 128]; return sum(M, 1)",
    "W: f8e4m3[16, 64]; s: f16[16, 1]; return f16(W) * s",
    "X: bf16[16, 256]; W: float8_e5m2[64, 256]; return X @ bf16(W).T",
    "W: i8[32, 64]; return exp(W.T / 64)",
    "X: f8e4m3[16, 256]; W: f8e5m2[64, 256]; s: f32[64]; return bf16((X @ W.T) * s)",
    "X: f16[1, 256]; W: i8[64, 256]; s: f16[64]; return (X @ f16(W).T) * s",
    "X: bf16[8, 256]; W: i8[256, 64]; return X @ W",
    "Q: f16[2, 16, 64]; K: i8[2, 64, 64]; M: bool[16, 64]; return softmax(where(M, Q @ f16(K).transpose(1, 2), -1e4))",
)


@pytest.mark.parametrize("text", TEXTS)
def test_what_the_search_makes_of_programs_with_bytes(text: str) -> None:
    program = parse(text.replace("; ", "\n")).graph
    assert all(t.dtype not in BYTES for t in program.output_types)
    prepared, inputs = prepare(program), draw(program, 1, 0.1)
    (wanted,) = evaluate(program, [decode(x, i.type.dtype) for x, i in zip(inputs, program.inputs, strict=True)])
    graphs: list[KernelGraph] = []
    for configuration in configurations(prepared, QUICK):
        found = explored(prepared, configuration, QUICK).structures[:2]
        graphs += [i.graph for structure in found for i in instances(structure, prepared, H200, 20)[:2]]
        if len(graphs) > 3:
            break
    assert graphs
    for graph in graphs[:4]:
        (made,) = run(emit(graph, H200, Options(4)), inputs, deferred=True, order="reversed")
        error = np.linalg.norm(decode(made, graph.output_types[0].dtype) - wanted) / np.linalg.norm(wanted)
        assert error < (6e-3 if graph.output_types[0].dtype is DType.BF16 else 2e-3), graph


@pytest.mark.parametrize("stored", TYPES)
def test_every_number_of_a_byte(stored: DType) -> None:
    """Read one by one, and copied as it is stored."""
    b = Block((TensorType((256,), stored),), (1,))
    read = b.read(0, (None,))
    b.save(b.op(OpKind.CAST, read, attrs=CastAttrs(DType.F32)), (None,))
    b.save(b.reshape(read, 16, 16), (None,))
    graph, every = one_kernel("X", b), np.arange(256, dtype=np.uint8).astype(STORED[stored])
    wide, same = run(emit(graph, H200, Options(1)), [every])
    np.testing.assert_array_equal(wide, decode(every, stored).astype(np.float32))
    np.testing.assert_array_equal(decode(same.reshape(256), stored), decode(every, stored))


def test_types() -> None:
    text = "W: i8[4, 8]; U: u8[4, 8]; M: bool[4, 8]; X: f16[4, 8]; D: f64[4, 8]; Y: bf16[4, 8]; return "
    made = {
        "W * X": DType.F16, "W * Y": DType.BF16, "W * D": DType.F64, "W * U": DType.F32, "W * W": DType.F32,
        "exp(W)": DType.F32, "sum(M)": DType.F32, "W.T": DType.F32, "M + X": DType.F16, "X @ W.T": DType.F16,
        "W @ U.T": DType.F32, "f16(W)": DType.F16, "where(M, X, 0)": DType.F16,
    }  # fmt: skip
    for expression, dtype in made.items():
        graph = parse((text + expression).replace("; ", "\n")).graph
        assert graph.output_types[0].dtype is dtype, expression
    read = parse((text + "X @ W.T").replace("; ", "\n")).graph
    assert [i.type.dtype for i in read.inputs[:3]] == [DType.I8, DType.U8, DType.BOOL]


def test_bytes_are_neither_made_nor_handed_out() -> None:
    graph = KernelGraph.start(Input("X", TensorType((4,), DType.F16)))
    for dtype in TYPES:
        with pytest.raises(GraphError, match=f"Cast makes no {dtype.value}"):
            graph.append(Op(OpKind.CAST, (0,), CastAttrs(dtype)))
