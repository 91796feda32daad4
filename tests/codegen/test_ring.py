"""Rings of streamed tiles: a slot is given back when nothing reads it any more, and what is read once says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_nb.codegen import Options, emit
from mirage_nb.errors import LaunchError
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.targets import TARGETS
from tests.codegen import mugraphs
from tests.codegen.running import draw, run
from tests.mugraphs import Block, one_kernel, tensor

H200 = TARGETS["h200"]
FENCE = "fence_proxy_async();\n    warp_sync();"

MAKERS: dict[str, Callable[[], KernelGraph]] = {
    "rmsnorm": mugraphs.rmsnorm,
    "lora": lambda: mugraphs.lora(loop=4),
    "attention": lambda: mugraphs.split_safe_attention(loop=4),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_slot_is_not_given_back_while_loads_from_it_are_on_their_way(name: str) -> None:
    """An arrival does not wait for loads in front of it: on a card, slots were overwritten too early."""
    graph = MAKERS[name]()
    emitted = emit(graph, H200, Options(4, 2, bulk=True))
    assert emitted.source.count(FENCE) == 1
    inputs = draw(graph, scale=0.3)
    run(emitted, inputs, checked=True)
    bare = replace(emitted, source=emitted.source.replace(FENCE, "warp_sync();"))
    with pytest.raises(LaunchError, match="no fence_proxy_async came after the read"):
        run(bare, inputs, checked=True)


@pytest.mark.parametrize(("row_blocks", "once"), [(1, 2), (2, 0)])
def test_what_one_block_reads_once_makes_room_in_l2(row_blocks: int, once: int) -> None:
    """Keys and values belong to one block, or several blocks of rows share them."""
    graph = mugraphs.safe_attention(rows=32, row_blocks=row_blocks)
    source = emit(graph, H200, Options(4, 2, bulk=True)).source
    assert source.count("tma_load_2d_once(") == once
    assert source.count("tma_load_2d(") == 2 - once


def test_an_operand_of_two_iterators_is_read_again() -> None:
    b = Block((tensor((16, 256)), tensor((256, 64))), (1,), 4)
    x = b.read(0, (None,), 1)
    products = [b.op(OpKind.MATMUL, x, b.read(1, (None,), 0)) for _ in range(2)]
    for product in products:
        b.save(b.accum(product), (None,))
    source = emit(one_kernel("X W", b), H200, Options(4, 2, bulk=True)).source
    assert source.count("tma_load_2d_once(") == 1  # X
    assert source.count("tma_load_2d(") == 2  # W, twice
