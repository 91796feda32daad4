"""Whether a block fits: whatever is offered can be emitted in one of its ways."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice

import pytest

from mirage_nb.codegen import variants
from mirage_nb.ir import AccumKind, KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, Assembly, Prepared, Structure, configurations, prepare
from mirage_nb.search.sizes.instantiate import drafts
from mirage_nb.search.sizes.representative import outline
from mirage_nb.search.structure import KernelStructure
from mirage_nb.targets import find_target
from mirage_nb.tile.rules.placement import Place
from tests.search.explored import explored
from tests.search.programs import gated_mlp, gqa, lora, moe
from tests.shares import shared_out

H200 = find_target("h200")
STANDARD = EFFORTS["standard"]
TRIED = 10
"""Structures of a program that are looked at."""
SCORES = "Q: f16[8, 1024, 64]\nK: f16[8, 64, 4096]\nE = exp(Q @ K)\nreturn E, sum(E, axis=-1)"


def concatenates(kernel: KernelStructure) -> bool:
    return any(step.operator.accum is AccumKind.CONCAT for step in kernel.steps)


def multiplies_whole_tiles(kernel: KernelStructure) -> bool:
    return kernel.loop is None and any(step.operator.kind is OpKind.MATMUL for step in kernel.steps)


def holds_products(kernel: KernelStructure) -> bool:
    """Computed before the loop, while its first tiles are on their way."""
    steps = kernel.steps
    held = {step.reads[0] for step in steps if step.operator.accum is AccumKind.HOLD}
    return any(steps[index].operator.kind is OpKind.MATMUL for index in held)


def saves_what_it_reads(kernel: KernelStructure) -> bool:
    return any(output in step.reads for output in kernel.outputs for step in kernel.steps)


CASES: dict[str, tuple[KernelGraph, Callable[[KernelStructure], bool]]] = {
    "concatenations beside a ring": (gated_mlp(64), concatenates),
    "concatenations that are saved": (moe(), concatenates),
    "rows that banks tell apart": (gqa(16), multiplies_whole_tiles),
    "products before a loop": (lora(128), holds_products),
    "saved and read": (parse(SCORES).graph, saves_what_it_reads),
}


def structures(prepared: Prepared, wanted: Callable[[KernelStructure], bool]) -> Iterator[Structure]:
    """Those of a standard search with a kernel that is wanted, by configurations in some order."""
    every = configurations(prepared, STANDARD)
    for configuration in random.Random(0).sample(every, len(every)):
        result = explored(prepared, configuration, STANDARD)
        for structure in random.Random(0).sample(result.structures, len(result.structures)):
            if not isinstance(structure, Assembly) and any(map(wanted, structure.kernels)):
                yield structure


@shared_out
@pytest.mark.parametrize("case", CASES)
def test_what_fits_can_be_emitted(case: str, share: int) -> None:
    """Also the instance of a structure that takes most of the shared memory."""
    graph, wanted = CASES[case]
    prepared = prepare(graph)
    seen = 0
    for structure in islice(structures(prepared, wanted), TRIED // share):
        offered = drafts(structure, prepared, H200, 30)
        for draft in sorted(offered, key=lambda draft: -draft.cost.shared_memory)[:2]:
            assert variants(draft.made().graph, H200)
            seen += 1
    assert seen


def test_what_is_saved_and_read_is_a_tile() -> None:
    """An elementwise result with one reader stays in registers, but not if it is saved, too."""
    prepared = prepare(parse(SCORES).graph)
    kernels = {k for s in structures(prepared, saves_what_it_reads) for k in s.kernels}
    seen = 0
    for kernel in kernels:
        made = outline(prepared, kernel)
        read = {value for cell in made.cells for value in cell.reads}
        for output in read.intersection(made.leaves[value] for value, _ in made.saves):
            if made.by_value[output].node.kind is OpKind.EXP:
                assert made.placed.places[output] is Place.SHARED
                seen += 1
    assert seen
