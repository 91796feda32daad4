"""What is ranked as held in registers is planned so, on norms, softmax and sums of all types and extents."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from mirage_nb.errors import TargetError
from mirage_nb.ir import BlockGraph
from mirage_nb.lang import parse
from mirage_nb.optimize import plan
from mirage_nb.search import EFFORTS, configurations, instances, prepare
from mirage_nb.search.composition import library_and_fused
from mirage_nb.search.sizes.instantiate import numbered
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.search.sizes.work import held_in_registers
from mirage_nb.search.structure import as_they_stand
from mirage_nb.targets import TARGETS
from mirage_nb.tile.rules.held import holds
from mirage_nb.tile.rules.register_resident import Loaded, by_columns, by_rows, by_teams, widest
from tests.codegen.running import check
from tests.search.explored import explored
from tests.shares import crossed

H200 = TARGETS["h200"]
FORMS = (
    "softmax(X, axis={axis})", "rms_norm(X)", "rms_norm(X, G)", "layer_norm(X)", "X / sum(X * X, axis={axis}, "
    "keepdims=True)", "sum(X, axis={axis})", "max(X + Y, axis={axis})", "softmax(X * Y, axis={axis})",
    "rms_norm(X + Y) * Y",
)  # fmt: skip
OTHERS = ("silu(X * Y)", "gelu(X) + G", "max(X, axis=(-1, -2))", "sum(exp(X + Y), axis=(0, -1))", "max(X + G, axis=0)")
"""Of which nothing is reduced, or several axes."""
ROWS_AND_COLUMNS = ("X - mean(X * G, axis=-1, keepdims=True), sum(X, axis=-2)", "sum(X * Y, axis=-1), max(X, axis=-2)")
"""Of which some reductions are along rows, some along columns."""
GRADIENT = """
X: {0}[33, 130]
D: {0}[33, 130]
G: {0}[130]
M: f32[33]
R: f32[33]
H = (X - M[:, None]) * R[:, None]
E = D * G
return (E - mean(E, axis=1, keepdims=True) - H * mean(E * H, axis=1, keepdims=True)) * R[:, None]
"""
"""Of a layer norm."""


def program(seed: int, forms: tuple[str, ...] = FORMS) -> str:
    """A program that reduces along one axis, or of other forms."""
    draw = random.Random(seed)
    shape = [draw.choice((1, 8, 16, 35, 64)), draw.choice((16, 48, 67, 256, 768, 1000, 2048, 8192))]
    shape = [*([draw.choice((2, 8))] if draw.random() < 0.3 else []), *shape]
    x, y, g = (draw.choice(("f16", "bf16", "f32")) for _ in range(3))
    axis = draw.choice((-1, -1, -2))
    form = draw.choice(forms).format(axis=axis)
    declared = {"X": f"{x}{shape}", "Y": f"{y}{shape}", "G": f"{g}[{shape[-1]}]"}
    lines = [f"{name}: {type_}" for name, type_ in declared.items() if f"{name}" in form.replace("axis", "")]
    return "\n".join([*lines, f"return {form}"])


def compared(text: str, limit: int) -> Counter[tuple[bool, bool]]:
    """(ranked, planned) as held in registers, of instances of a program's kernels."""
    prepared, effort = prepare(parse(text).graph), EFFORTS["quick"]
    found: Counter[tuple[bool, bool]] = Counter()
    for configuration in configurations(prepared, effort):
        result = explored(prepared, configuration, effort)
        for structure in (s for s in result.structures[:8] if len(s.kernels) == 1):
            for instance in instances(structure, prepared, H200, limit):
                ((kernel, sizes),) = numbered(structure, prepared, instance.sizes)
                ranked = bool(held_in_registers(Tiles.of(prepared, kernel, sizes)).fits[0])
                try:
                    block = next(k for k in plan(instance.graph, H200).kernels if k is not None)
                except TargetError:
                    continue
                found[ranked, block.resident is not None] += 1
    return found


def test_ranking_and_planner_agree_on_what_registers_hold() -> None:
    found: Counter[tuple[bool, bool]] = Counter()
    for seed in range(48):
        one = compared(program(seed), 4)
        assert not one[True, False] and not one[False, True], program(seed)
        found += one
    assert found[True, True] > 100 and found[False, False] > 100


def test_they_agree_on_elements_and_windows() -> None:
    found: Counter[tuple[bool, bool]] = Counter()
    for seed in range(16):
        found += compared(text := program(seed, OTHERS), 6)
        assert not found[True, False] and not found[False, True], text
    assert found[True, True] > 60 and found[False, False] > 60


def test_they_agree_on_rows_beside_columns() -> None:
    found: Counter[tuple[bool, bool]] = Counter()
    for seed in range(16):
        found += compared(text := program(seed, ROWS_AND_COLUMNS), 6)
        assert not found[True, False] and not found[False, True], text
    assert found[True, True] > 8 and found[False, False] > 8


@crossed({
    "rows": [64, 65, 4096],
    "form": ["silu(R + {}) * 2", "gelu({} + B)", "silu({} * B) + R"],
})
def test_they_agree_on_results_that_lie_along_a_line(rows: int, form: str) -> None:
    """A residual, a bias or a scale behind the product of one row, which come along a line where it is a column."""
    text = f"W: bf16[{rows}, 2048]\nX: bf16[1, 2048]\nR: bf16[1, {rows}]\nB: bf16[{rows}]\n"
    text = "\n".join(line for line in text.splitlines() if line[0] in f"WX{form}")
    found = compared(f"{text}\nreturn {form.format(f'reshape(sum(W * X, axis=1), (1, {rows}))')}", 12)
    assert found[True, True] and not found[True, False] and not found[False, True]


def test_they_agree_on_shorter_rows_beside_rows() -> None:
    """A product of low rank behind another one."""
    found: Counter[tuple[bool, bool]] = Counter()
    for depth, rank in ((2048, 16), (1024, 768), (512, 24), (512, 9)):
        text = f"W: bf16[64, {depth}]\nX: f32[1, {depth}]\nC: bf16[64, {rank}]\nT: f32[{rank}, 1]\n"
        one = compared(f"{text}return sum(W * X, axis=1) + 2 * sum(C * reshape(T, {rank}), axis=1)", 12)
        assert one[True, True] and not one[True, False] and not one[False, True], text
        found += one
    assert found[True, True] > 8 and found[False, False] > 8


@pytest.mark.parametrize(
    "result",
    [
        "concatenate([X * c - Y * s, X * s + Y * c], axis=2)",
        "stack([X * c, exp(Y)], axis=2)",
        "concatenate([X, relu(Y)], axis=0)",
        "concatenate([max(X, axis=2), sum(Y, axis=2)], axis=1)",
        "concatenate([softmax(X + Y, axis=1), Y], axis=1)",
        "exp(concatenate([X * c, Y * s], axis=2))",
    ],
)
def test_they_agree_on_results_that_are_joined(result: str) -> None:
    sizes = "".join(f"{name}: f16[4, 48, 64]\n" for name in "XY") + "c: f16[48, 64]\ns: f16[48, 64]\n"
    text = "\n".join(line for line in sizes.splitlines() if line[0] in result.replace("concat", ""))
    found = compared(f"{text}\nreturn {result}", 12)
    assert found[True, True] and not found[True, False] and not found[False, True]


@pytest.mark.parametrize("form", ["exp(transpose(P, 2, 0, 1))", "transpose(rms_norm(P), 0, 2, 1)", "transpose(P * Q)"])
def test_they_agree_on_tiles_that_are_turned_past_one_element(form: str) -> None:
    """Where a tile has one element along an axis, its transpose is a reshape, which threads that hold it can do."""
    lines = "P: f16[8, 67]\nQ: f16[8, 67]" if "Q" in form else "P: f16[2, 16, 64]"
    found = compared(f"{lines}\nreturn {form}", 64)
    assert found[True, True] and not found[True, False] and not found[False, True]


LONG = (
    "log_softmax(X, axis=-1)", "softmax(X * 0.125 + G, axis=-1)", "softmax(X + Y, axis=-1)", "layer_norm(X) * G + G",
    "rms_norm(X, G)", "X / max(X, axis=-1, keepdims=True) + Y",
)  # fmt: skip


@crossed({
    "dtype, most": [("f32", 53248), ("bf16", 106496)],
    "form": LONG,
})
def test_they_agree_on_long_rows(form: str, dtype: str, most: int) -> None:
    """Rows that sixteen warps have to share, and those that are too long for them."""
    for width in (most // 4, most // 2, most, most + 8):
        shapes = {"X": f"[64, {width}]", "Y": f"[64, {width}]", "G": f"[{width}]"}
        lines = [f"{name}: {dtype}{shape}" for name, shape in shapes.items() if name in form]
        found = compared("\n".join([*lines, f"return {form}"]), 4)
        long = form.startswith("softmax") and width >= most  # of two operands
        assert not found[True, False] and not found[False, True]
        assert bool(found[True, True]) == (width <= most and not long)


@pytest.mark.parametrize("form", LONG)
@pytest.mark.parametrize(("dtype", "width"), [("f32", 16384), ("f32", 26000), ("f16", 50000), ("bf16", 53248)])
def test_rows_that_are_held_cross_memory_once(form: str, dtype: str, width: int) -> None:
    """They were read twice, in parts. What all blocks read again, and work that nothing hides, is some of it."""
    shapes = {"X": f"[512, {width}]", "Y": f"[512, {width}]", "G": f"[{width}]"}
    lines = [f"{name}: {dtype}{shape}" for name, shape in shapes.items() if name in form]
    graph = parse("\n".join([*lines, f"return {form}"])).graph
    nbytes = sum(i.type.nbytes for i in graph.inputs) + graph.output_types[0].nbytes
    prepared = prepare(graph)
    best = instances(as_they_stand(prepared), prepared, H200, 1)[0]
    once = H200.start_us + nbytes / (1e3 * H200.device_bandwidth)
    assert once < best.cost.us < 1.75 * once


@pytest.mark.slow
def test_they_agree_on_thousands() -> None:
    found: Counter[tuple[bool, bool]] = Counter()
    for seed in range(24, 424):
        found += compared(program(seed), 12)
        assert not found[True, False] and not found[False, True], program(seed)
    assert found.total() > 5000


def test_rules_say_the_same_of_numbers_and_of_arrays() -> None:
    draw = np.random.default_rng(0)
    last, rows = draw.integers(1, 4000, 300), draw.integers(1, 64, 300)
    for size in (2, 4):
        loaded = [Loaded(True, True, size), Loaded(False, True, 2)]
        most = widest([last], [size])
        at_once = [by_rows(last, rows, most, loaded, 8), by_columns(rows, last, most, loaded, 8)]
        at_once += by_teams(last, rows, most, loaded, 8)
        for n in range(300):
            one, few = int(last[n]), int(rows[n])
            own = widest([one], [size])
            assert own == most[n]
            singly = [by_rows(one, few, own, loaded, 8), by_columns(few, one, own, loaded, 8)]
            singly += by_teams(one, few, own, loaded, 8)
            assert [int(a[n]) for a in at_once] == [int(s) for s in singly]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_numbers_of_rows_that_several_operators_read_are_held(dtype: str) -> None:
    """A gradient of a layer norm reads one of its rows' numbers twice, and was staged: 8.0 us estimated, now 5.9."""
    made = library_and_fused(parse(GRADIENT.format(dtype)).graph, H200)
    assert made is not None
    (body,) = (op.body for op in made.instance.graph.ops if op.body is not None)
    assert isinstance(body, BlockGraph) and holds(body)
    check(made.instance.graph)


@pytest.mark.parametrize(
    "form", ["V * (g / sqrt(sum(V * V, 1)))[:, None]", "V - (g * mean(V, 1) + g)[:, None]", "g / (1 + sum(V * V, 1))"]
)
def test_numbers_of_rows_meet_results_where_these_lie(form: str) -> None:
    """A gain for each row, over its norm, is no line that the norm is laid along: of 4096 x 4096 that took 45 us."""
    made = library_and_fused(parse(f"V: f32[40, 300]; g: f32[40]\nreturn {form}").graph, H200)
    assert made is not None
    (body,) = (op.body for op in made.instance.graph.ops if op.body is not None)
    assert isinstance(body, BlockGraph) and holds(body)
    check(made.instance.graph)
