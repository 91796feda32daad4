"""What is ranked is what is planned: how a block is emitted, the stages of its ring, its shared memory to the byte."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from mirage_nb.errors import TargetError
from mirage_nb.ir import BlockGraph, KernelGraph, OpKind, ThreadGraph
from mirage_nb.lang import parse
from mirage_nb.optimize import BlockPlan, plan
from mirage_nb.optimize.plan import rewritten
from mirage_nb.search import (
    EFFORTS,
    Assembly,
    Prepared,
    Structure,
    configurations,
    instances,
    prepare,
)
from mirage_nb.search.sizes.constants import FITTED
from mirage_nb.search.sizes.cost import block_of, run
from mirage_nb.search.sizes.instantiate import numbered
from mirage_nb.search.sizes.occupancy import DEFAULT_VARIANT
from mirage_nb.search.sizes.specialised import with_roles
from mirage_nb.search.sizes.tiles import Tiles
from mirage_nb.search.sizes.written import written_kernels
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import flat
from mirage_nb.tile.rules.sharing import Squares
from mirage_nb.tile.staged.program import Save
from tests.search.explored import explored
from tests.tile.staged_plans import programs

H200 = TARGETS["h200"]
QUICK = EFFORTS["quick"]
SCORES = "softmax({scaled} @ transpose(K))"
FORMS = {
    "rms_norm(X)": "X",
    "rms_norm(X, G) @ W": "XGW",
    "layer_norm(X)": "X",
    "softmax(X, axis={axis})": "X",
    "max(X + Y, axis={axis})": "XY",
    "exp(X) / sum(exp(X), axis=0, keepdims=True)": "X",
    "gelu(X @ W)": "XW",
    "silu(X @ W) * (X @ V)": "XWV",
    "relu(X @ W + b)": "XWb",
    "X @ W + Y @ V": "XYWV",
    "(X @ A) @ B + X @ W": "XABW",
    "concat(X, Y, axis=-1) @ concat(W, V, axis=0)": "XYWV",
    "softmax(X @ W)": "XW",
    "rms_norm(relu(X @ W))": "XW",
    "sum(X * Y, axis=-1, keepdims=True) * (X @ W)": "XYW",
    f"{SCORES} @ U": "QKU",
    f"rms_norm({SCORES} @ U)": "QKU",
    "exp(Q @ transpose(K)) @ U / sum(exp(Q @ transpose(K)), axis=-1, keepdims=True)": "QKU",
    f"{SCORES} @ rms_norm(U)": "QKU",
    "softmax(rms_norm(Q) @ transpose(rms_norm(K))) @ U": "QKU",
    "transpose(gelu(X + Y))": "XY",
    f"transpose({SCORES} @ U, 1, 0, 2)": "QKU",
    "transpose(layer_norm(K) * Q[0, 0], 0, 2, 1)": "QK",
}


def program(seed: int, stored: str = "") -> str:
    """A program of one of these forms, of random extents and types; stored: that of its weights and keys."""
    draw = random.Random(seed)
    form, names = list(FORMS.items())[seed % len(FORMS)]
    m, k, n = draw.choice((1, 8, 16, 35, 64, 200)), draw.choice((67, 128, 512, 1000, 1024)), draw.choice((48, 100, 512))
    heads, rows, keys, depth = draw.choice((2, 16)), draw.choice((1, 8, 64, 256)), draw.choice((256, 600, 1024)), 64
    shapes = {
        "X": [m, k], "Y": [m, k], "G": [k], "W": [k, n], "V": [k, n], "b": [n], "A": [k, 16], "B": [16, n],
        "Q": [heads, rows, depth], "K": [heads, keys, depth], "U": [heads, keys, depth],
    }  # fmt: skip
    types = [draw.choice(("f16", "f16", "bf16", "f32"))] * 9
    if draw.random() < 0.2:
        types = [draw.choice(("f16", "f32")) for _ in types]
    named = ((name, stored if stored and name in "WVABKG" else t) for name, t in zip(names, types, strict=False))
    declared = [f"{name}: {type_}{shapes[name]}" for name, type_ in named]
    scaled = "(Q * 0.125)" if draw.random() < 0.5 else "Q"
    return "\n".join([*declared, f"return {form.format(axis=draw.choice((-1, -2)), scaled=scaled)}"])


def compared(text: str, structures: int, limit: int) -> Iterator[tuple[str, object, object]]:
    """What, as it was ranked, and as it is planned."""
    prepared = prepare(parse(text).graph)
    for configuration in configurations(prepared, QUICK):
        result = explored(prepared, configuration, QUICK)
        found = [s for s in result.structures if not isinstance(s, Assembly) and len(s.kernels) == 1]
        for structure in found[:structures]:
            yield from of_structure(prepared, structure, limit)


def of_structure(prepared: Prepared, structure: Structure, limit: int) -> Iterator[tuple[str, object, object]]:
    for instance in instances(structure, prepared, H200, limit):
        ((kernel, sizes),) = numbered(structure, prepared, instance.sizes)
        if by_threads(instance.graph):  # it is ranked as it is written
            ((_, written),) = written_kernels(instance.graph)
            assert written is not None
            yield from of_instance(written, instance.graph)
        elif rewritten(instance.graph) == instance.graph and not adds_products(instance.graph):
            yield from of_instance(Tiles.of(prepared, kernel, sizes), instance.graph)


def by_threads(graph: KernelGraph) -> bool:
    """Whether threads compute products: another muGraph of these sizes."""
    ops = [op for body in (op.body for op in graph.ops) if isinstance(body, BlockGraph) for op in body.ops]
    return any(o.kind is OpKind.MATMUL for op in ops if isinstance(op.body, ThreadGraph) for o in op.body.ops)


def adds_products(graph: KernelGraph) -> bool:
    """Whether it is the other muGraph of these sizes, whose products are added as they are computed. Like those with
    quotients that the planner moves, it is another one than was ranked."""
    bodies = [op.body for op in graph.ops if isinstance(op.body, BlockGraph)]
    return any(op.kind is OpKind.CONCAT_MATMUL for body in bodies for op in body.ops)


def of_instance(tiles: Tiles, graph: KernelGraph) -> Iterator[tuple[str, object, object]]:
    block = block_of(tiles, H200, FITTED)
    running = run(block, (DEFAULT_VARIANT,), H200, FITTED)
    roles = with_roles(tiles, H200, FITTED, block.traffic.device)
    memory = running.memory[0, 0]
    try:
        planned: BlockPlan = next(k for k in plan(graph, H200).kernels if k is not None)
    except TargetError:
        yield "fits", bool(memory <= H200.shared_per_block), False
        return
    taken = roles is not None and bool(roles.able[0])
    yield "roles", taken, planned.program is not None
    if planned.program is not None or taken:
        return
    yield "held", not block.staged[0], planned.resident is not None
    if planned.staged is not None and block.staged[0]:
        yield "warp-private", bool(tiles.private[0]), planned.staged.region is not None
        yield "bulk", bool(block.copies.bulk[0]), planned.options.bulk
        yield "stages", int(running.stages[0, 0]), planned.options.stages
        yield "bytes", int(memory), planned.shared_bytes
        known = tiles.outline
        ranked = [tuple(int(n[0]) for n in tiles.square(v, saved)) for v, saved in known.saves if v in known.across]
        yield "squares", [sides for sides in ranked if sides[1] > 1], squares(graph)


def squares(graph: KernelGraph) -> list[tuple[int, int]]:
    """The sides of the squares in which its results are saved."""
    (made,) = programs(plan(graph, H200)).values()
    saves = (s.vectors for s in flat(made.code) if isinstance(s, Save))
    return [(v.width, v.rows) for v in saves if isinstance(v, Squares)]


def agree(text: str, structures: int, limit: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for what, ranked, planned in compared(text, structures, limit):
        assert ranked == planned, (what, text)
        found[what] += 1
    return found


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ranking_and_planner_agree(seed: int) -> None:
    found: Counter[str] = Counter()
    for form in range(len(FORMS)):
        found += agree(program(seed * len(FORMS) + form), 1, 2)
    assert found["bytes"] > 20 and found["held"] > found["bytes"]


@pytest.mark.parametrize("stored", ["i8", "bool"])
def test_they_agree_on_what_is_stored_in_bytes(stored: str) -> None:
    found: Counter[str] = Counter()
    for form, (text, names) in enumerate(FORMS.items()):
        if not {*names}.isdisjoint("WGK") and "concat" not in text:
            found += agree(program(form, stored), 1, 2)
    assert found["held"] >= found["bytes"] > 20


def test_they_agree_on_windows_that_no_boxes_bring() -> None:
    assert agree("X: f16[64, 1024]\nW: f16[512, 48]\nreturn X[:, ::2] @ W", 2, 8)["bulk"] > 10


def test_a_result_of_one_element_along_its_last_dimension_lies_across_nothing() -> None:
    shapes = "Q: f32[2, 1, 64]\nK: f32[2, 600, 64]"
    assert agree(f"{shapes}\nreturn transpose(layer_norm(K) * Q[0, 0], 0, 2, 1)", 4, 16)["squares"] > 20


@pytest.mark.slow
def test_they_agree_on_thousands() -> None:
    found: Counter[str] = Counter()
    for seed in range(40, 40 + 4 * len(FORMS)):
        found += agree(program(seed), 8, 16)
    assert found["roles"] > 5000
