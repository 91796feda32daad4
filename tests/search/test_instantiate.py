"""Instances: legal for the target, equal to the program, best estimate first; and the cost model that ranks them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from mirage_nb.interp import reference
from mirage_nb.ir import BlockGraph, KernelGraph, OpKind
from mirage_nb.ir.legality import check
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Structure, configurations, instances, prepare
from mirage_nb.search.pieces.assemble import drafts
from mirage_nb.search.sizes.drafts import Instance
from mirage_nb.search.sizes.instantiate import divisors
from mirage_nb.targets import find_target
from tests.search.explored import explored
from tests.search.programs import PROGRAMS, attention_safe, gated_mlp, gqa, lora, ntrans, rmsnorm
from tests.shares import shared_out

STANDARD = EFFORTS["standard"]
H200 = find_target("h200")


def structures_of(graph: KernelGraph, kernels: int, per_configuration: int = 100, share: int = 1) -> list[Structure]:
    """The first structures of one of so many configurations."""
    prepared = prepare(graph)
    found: list[Structure] = []
    for configuration in [c for c in configurations(prepared, STANDARD) if c.kernels == kernels][::share]:
        result = explored(prepared, configuration, STANDARD)
        found.extend(result.structures[:per_configuration])
    return found


def best(graph: KernelGraph, kernels: int = 1) -> Instance:
    prepared = prepare(graph)
    found = [i for s in structures_of(graph, kernels, 12) for i in instances(s, prepared, H200, 1)]
    return min(found, key=lambda instance: instance.cost.us)


SMALL = {
    "rmsnorm": (6, 12, 10), "rmsnorm_fig3": (4, 8, 6), "gated_mlp": (4, 6, 9), "lora": (4, 6, 2, 5),
    "gqa": (2, 6, 4, 12), "attention_safe": (2, 3, 4, 6), "ntrans": (4, 6), "moe": (2, 3, 4, 6, 5),
}  # fmt: skip


@shared_out
@pytest.mark.parametrize("kernels", [1, 2])
@pytest.mark.parametrize("name", SMALL)
def test_instances_compute_the_program_at_any_sizes(name: str, kernels: int, share: int) -> None:
    graph = PROGRAMS[name](*SMALL[name])
    prepared = prepare(graph)
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(i.type.shape) for i in graph.inputs]
    expected = reference.evaluate(graph, arrays)
    tried = 0
    for structure in structures_of(graph, kernels, 3 if share == 1 else 2, share if kernels > 1 else 1):
        found = drafts(structure, prepared, H200, 40 // share)
        for instance in [draft.made() for draft in found[:: max(1, len(found) // 3)]]:
            check(instance.graph, H200)
            for a, b in zip(reference.evaluate(instance.graph, arrays), expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
            tried += 1
    assert tried > (6 if share > 1 else 30 if kernels > 1 else 11)


@pytest.mark.parametrize("name", ["rmsnorm", "gqa", "attention_safe", "lora"])
def test_instances_are_ranked_legal_and_named(name: str) -> None:
    prepared = prepare(PROGRAMS[name]())
    for structure in structures_of(PROGRAMS[name](), 1, per_configuration=5):
        found = instances(structure, prepared, H200, 6)
        assert len(found) <= 6
        assert all(a.cost.us <= b.cost.us for a, b in pairwise(found))
        assert len({i.graph.digest() for i in found}) == len(found)
        for instance in found:
            check(instance.graph, H200)
            (op,) = instance.graph.ops
            assert isinstance(op.body, BlockGraph)
            assert instance.cost.blocks == np.prod(op.body.grid)
            assert instance.cost.shared_memory <= H200.shared_per_block
            assert all(extent > 1 for extent in instance.sizes.values())


def test_the_first_of_two_kernels_has_several_numbers_of_blocks() -> None:
    """What the second one may be cut into filled all places: one token of 32 heads had 64 blocks, and never 128."""
    text = "Q: bf16[32, 1, 128]\nK: bf16[32, 128, 4096]\nV: bf16[32, 4096, 128]\nreturn softmax(Q @ K) @ V"
    prepared = prepare(parse(text).graph)
    (split,) = [c for c in configurations(prepared, STANDARD) if c.label == "2 kernels; grid over c; loop over c"]
    every = (instances(s, prepared, H200, 6) for s in explored(prepared, split, STANDARD).structures)
    found = [instance.sizes for instance in next(filter(None, every))]
    assert {sizes["K1 grid a"] * sizes["K1 grid c"] for sizes in found} == {64, 128, 256}


def test_divisors_are_complete() -> None:
    for extent in (1, 2, 12, 36, 97, 6144):
        assert divisors(extent) == [d for d in range(1, extent + 1) if extent % d == 0]


def test_a_smaller_target_takes_smaller_tiles() -> None:
    graph = gated_mlp()
    prepared = prepare(graph)
    small = replace(H200, shared_per_block=48 * 1024)
    structure = structures_of(graph, 1)[-1]
    for instance in instances(structure, prepared, small, 5):
        assert instance.cost.shared_memory <= small.shared_per_block


def test_the_estimates_order_what_was_measured() -> None:
    """Streaming the weights once is the floor; keys split over the grid beat one block per row at batch 1."""
    floor = 1.75 + 50.3e6 / 4.45e6
    found = best(rmsnorm(2))
    assert floor < found.cost.us < 2 * floor
    assert "loop b" in found.sizes and found.cost.blocks >= 96
    assert best(gqa(), 2).cost.us < best(gqa(), 1).cost.us
    assert best(attention_safe(), 2).cost.us < best(attention_safe(), 1).cost.us
    assert best(lora()).cost.us < best(gated_mlp()).cost.us < best(rmsnorm(2)).cost.us * 2


def test_moving_more_bytes_costs_more() -> None:
    assert best(gated_mlp(8, 1024, 8192)).cost.us > best(gated_mlp(8, 1024, 4096)).cost.us
    assert best(ntrans(64)).cost.bytes_device == 8 * best(ntrans(8)).cost.bytes_device


@pytest.mark.parametrize(("text", "wanted"), [
    ("exp(f32(Q @ K.T)) @ V", [["f16", "f16"], ["f16", "f32"]]),
    ("f16(exp(f32(Q @ K.T))) @ V", [["f16", "f16"], ["f16", "f16"]]),
    ("exp(f32(Q)) @ V.T", [["f16", "f32"]]),
    ("f32(Q) @ V.T", [["f16", "f16"]]),
])  # fmt: skip
def test_products_read_what_is_computed_in_the_types_of_the_program(text: str, wanted: list[list[str]]) -> None:
    """They were in the type of what it is computed of: weights of attention in f32 were rounded to f16."""
    inputs = "".join(f"{name}: f16[64, 64]\n" for name in "QKV")
    block = best(parse(f"{inputs}return {text}").graph).graph.ops[-1].body
    assert isinstance(block, BlockGraph)
    products = [op for op in block.ops if op.kind is OpKind.MATMUL]
    assert [sorted(block.types[v].dtype.value for v in op.inputs) for op in products] == wanted
