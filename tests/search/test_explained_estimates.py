"""Where an estimate comes from: its pieces add up, each answers to its own constants, and a text names them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from mirage_nb.bench.workloads import workload
from mirage_nb.lang import parse
from mirage_nb.search import (
    EFFORTS,
    Instance,
    Prepared,
    Structure,
    configurations,
    instances,
    prepare,
)
from mirage_nb.search.sizes.constants import FITTED
from mirage_nb.search.sizes.explained import KernelEstimate, explain_estimate, kernel_estimates
from mirage_nb.targets import TARGETS, find_target
from tests.codegen.mugraphs import split_linear
from tests.search.explored import explored

H200 = find_target("h200")
QUICK = EFFORTS["quick"]
NAMES = ("rmsnorm", "gated_mlp", "lora", "gqa", "attention_safe")


def searched(name: str) -> tuple[Prepared, list[tuple[Structure, Instance]]]:
    """The best instances of the structures of a quick search."""
    prepared = prepare(parse(workload(name), name=name).graph)
    found = []
    for configuration in configurations(prepared, QUICK):
        result = explored(prepared, configuration, QUICK)
        for structure in result.structures[:3]:
            found += [(structure, i) for i in instances(structure, prepared, H200, 2)]
    return prepared, found


@pytest.mark.parametrize("name", NAMES)
def test_the_pieces_are_those_of_the_estimate(name: str) -> None:
    _, found = searched(name)
    for _, instance in found:
        kernels = kernel_estimates(instance.graph, H200)
        assert sum(kernel.us for kernel in kernels) == pytest.approx(instance.cost.us, rel=1e-12)
        assert sum(kernel.bytes_device for kernel in kernels) == pytest.approx(instance.cost.bytes_device, abs=1)
        assert max(kernel.blocks for kernel in kernels) == instance.cost.blocks
        for kernel in kernels:
            pieces = [kernel.start, kernel.device, kernel.copies, kernel.products, kernel.vectors, kernel.barriers]
            assert min(*pieces, kernel.waits) >= 0
            assert kernel.start + kernel.longest <= kernel.us * (1 + 1e-9)
            assert kernel.us == pytest.approx(kernel.start + kernel.longest + kernel.rest)
            assert kernel.waves * kernel.resident * H200.multiprocessors >= kernel.blocks


def test_every_piece_answers_to_its_constants() -> None:
    _, found = searched("rmsnorm")
    _, instance = next(f for f in found if any(key.startswith("loop") for key in f[1].sizes))

    def pieces(**changed: float) -> KernelEstimate:
        constants = replace(FITTED, **changed)
        (kernel,) = kernel_estimates(instance.graph, H200, constants)
        return kernel

    before = pieces()
    for piece, constant in (
        ("products", "product_us"),
        ("vectors", "pass_us"),
        ("barriers", "barrier_us"),
        ("copies", "panel_us"),
    ):
        after = pieces(**{constant: 3 * getattr(FITTED, constant)})
        for field in ("start", "copies", "products", "vectors", "barriers"):
            grown = getattr(after, field) > getattr(before, field) * (1 + 1e-9)
            assert grown == (field == piece), (field, constant)


def test_a_text_says_where_the_time_goes() -> None:
    _, found = searched("gqa")
    _, instance = min(found, key=lambda one: one[1].cost.us)
    text = explain_estimate(instance.graph, H200)
    for word in ("start", "device memory", "copies", "products", "vector work", "barriers", "wave", "shared memory"):
        assert word in text, word
    assert f"{instance.cost.blocks} blocks" in text
    assert text.count("kernel ") == instance.cost.kernels
    assert "MB" in text


def test_pre_defined_kernels_are_explained_by_what_they_are() -> None:
    prepared, _ = searched("rmsnorm")
    text = explain_estimate(prepared.graph, H200)
    assert text.count("by a library") == text.count("kernel ") == 2 < prepared.graph.kernel_count
    assert ": norm by a library" in text and ": Matmul by a library" in text


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_explained(target: str) -> None:
    card = find_target(target)
    prepared, found = searched("attention_safe")
    seen = 0
    for structure, _ in found:
        for instance in instances(structure, prepared, card, 1):
            for kernel in kernel_estimates(instance.graph, card):
                assert kernel.shared_memory <= card.shared_per_block
                assert kernel.stages <= 4
                seen += 1
    assert seen
    assert {field.name for field in fields(KernelEstimate)} >= {
        "us",
        "start",
        "device",
        "copies",
        "products",
        "vectors",
    }


def test_what_starts_early_is_not_waited_for() -> None:
    """A kernel that adds up what the one in front leaves starts while that runs, where a card can do that."""
    (first, second), (before, behind) = (kernel_estimates(split_linear(), TARGETS[name]) for name in ("h200", "a100"))
    assert second.start < first.start / 2
    assert behind.start >= before.start
