"""Kernels that start early: who waits for what, in chains too, and how their blocks spread."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_nb.codegen import Launch, Options, emit
from mirage_nb.ir import KernelGraph
from mirage_nb.optimize import plan, variants
from mirage_nb.optimize.overlap import RESERVED
from mirage_nb.targets import TARGETS
from tests.codegen import mugraphs
from tests.codegen.running import check

H200, A100 = TARGETS["h200"], TARGETS["a100"]
WAIT = "grid_dependency_wait();"
TOUCH = re.compile(r"\b[xo]\d+ \+|\b[xo]\d+\[|tma_load_2d\w*\(")
"""Device memory is read or written."""

MAKERS: dict[str, Callable[[], KernelGraph]] = {
    "rmsnorm": mugraphs.rmsnorm,
    "gated_mlp": mugraphs.gated_mlp,
    "lora": mugraphs.lora,
    "attention": mugraphs.safe_attention,
    "ntrans": mugraphs.ntrans,
    "split_attention": mugraphs.split_attention,
    "split_safe_attention": mugraphs.split_safe_attention,
}


def kernels(source: str) -> list[str]:
    """The body of every kernel."""
    return [text.split("{", 1)[1] for text in source.split('extern "C"')[1:]]


def roles(body: str) -> list[str]:
    """What the producer warp does and what the others do, or what all threads do."""
    found = re.search(r"\n  if \(warp == \d+\) \{\n(.*?)\n    return;\n  \}\n", body, re.DOTALL)
    return [body] if found is None else [found[1], body[: found.start()] + body[found.end() :]]


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_in_a_chain_every_thread_waits_before_it_touches_device_memory(name: str, bulk: bool) -> None:
    graph = MAKERS[name]()
    emitted = emit(graph, H200, Options(warps=4, stages=2, bulk=bulk, chained=True))
    assert all(step.overlaps for step in emitted.launches if isinstance(step, Launch))
    for body in kernels(emitted.source):
        assert body.count("grid_dependency_launch();") == 1
        for role in roles(body):
            assert not TOUCH.search(role.split(WAIT)[0]) and WAIT in role
    assert "__restrict__ x" not in emitted.source  # may change while the kernel waits



def test_a_chain_computes_the_same() -> None:
    check(mugraphs.split_safe_attention(), Options(4, 2, True, chained=True, spread=True), scale=0.3)


def test_older_cards_have_no_chains() -> None:
    assert "grid_dependency" not in emit(mugraphs.rmsnorm(), A100, Options(chained=True, spread=True)).source
    assert not any(o.chained or o.spread for o in variants(mugraphs.rmsnorm(), A100))


@pytest.mark.parametrize("heads", [1, 64, 133, 300])
def test_no_multiprocessor_takes_more_than_its_share(heads: int) -> None:
    graph = mugraphs.safe_attention(heads=heads)
    options = Options(4, 2, True, chained=True, spread=True)
    (launch,) = emit(graph, H200, options).launches
    assert isinstance(launch, Launch)
    share = math.ceil(math.prod(launch.grid) / H200.multiprocessors)
    taken = launch.shared_bytes + RESERVED
    assert (share + 1) * taken > H200.shared_per_multiprocessor >= share * taken
    (packed,) = emit(graph, H200, replace(options, spread=False)).launches
    assert isinstance(packed, Launch) and packed.shared_bytes == plan(graph, H200, options).kernels[0].shared_bytes


def test_chains_are_among_what_is_tried() -> None:
    found = variants(mugraphs.split_attention(), H200)
    assert {(o.chained, o.spread) for o in found} == {(False, False), (True, False), (True, True)}
    assert not found[0].chained
