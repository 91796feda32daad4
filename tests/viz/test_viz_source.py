"""Source lines and their operators: nothing is lost, nothing is claimed twice by strangers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mirage_nb.codegen import emit
from mirage_nb.ir import BlockGraph, KernelGraph, OpKind
from mirage_nb.targets import TARGETS
from mirage_nb.viz.source import Line, source_html, source_lines
from tests.viz.mugraph_samples import rmsnorm_fused, split_attention, twice_read

ROOT = Path(__file__).resolve().parents[2]
MADE = {"rmsnorm": rmsnorm_fused, "attention": split_attention, "twice": twice_read}


def listing(graph: KernelGraph, target: str = "h200") -> tuple[tuple[Line, ...], KernelGraph]:
    emitted = emit(graph, TARGETS[target])
    return source_lines(emitted.source, emitted.graph), emitted.graph


@pytest.mark.parametrize("target", ["h200", "a100"])
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_every_operator_that_computes_has_lines(make: object, target: str) -> None:
    lines, graph = listing(make(), target)  # type: ignore[operator]
    owned = {place for line in lines for place in line.owners}
    for number, op in enumerate(graph.ops):
        if isinstance(op.body, BlockGraph):
            wanted = {f"{number}.{index}" for index, inner in enumerate(op.body.ops) if inner.kind is not OpKind.CONST}
            assert wanted <= owned, wanted - owned


def test_the_lines_are_the_source() -> None:
    emitted = emit(rmsnorm_fused(), TARGETS["h200"])
    lines = source_lines(emitted.source, emitted.graph)
    assert [line.text for line in lines] == emitted.source.splitlines()


def test_what_has_no_step_belongs_to_its_readers() -> None:
    lines, graph = listing(rmsnorm_fused())
    body = graph.ops[0].body
    assert isinstance(body, BlockGraph)
    place = {op.kind: f"0.{index}" for index, op in enumerate(body.ops)}
    squares = [line.text for line in lines if place[OpKind.SQR] in line.owners]
    assert any("square(" in text for text in squares)
    assert all(place[OpKind.SUM] in line.owners for line in lines if place[OpKind.SQR] in line.owners)
    products = [line.text for line in lines if place[OpKind.MATMUL] in line.owners]
    assert any("mma" in text for text in products) and not any("square(" in text for text in products)


def test_a_step_ends_at_the_barrier() -> None:
    lines, _ = listing(rmsnorm_fused())
    barriers = [n for n, line in enumerate(lines) if line.barrier]
    assert barriers and all(lines[n].owners == () for n in barriers)
    last = barriers[-1]
    assert not set(lines[last - 1].owners) & set(lines[last + 1].owners)


def test_a_source_without_kernels_is_plain_text() -> None:
    lines = source_lines("#include <a>\n// %1 = x\n", KernelGraph.start())
    assert [line.owners for line in lines] == [(), ()]
    assert "&lt;a&gt;" in source_html(lines)


WHILE_IT_LOADS = """\
import sys, threading
from mirage_nb.viz.source import Line, source_html

class Slow:
    def find_spec(self, name, *_):
        if name == "pygments.lexers._mapping":
            begun.set()
            threading.Event().wait(0.2)

begun = threading.Event()
sys.meta_path.insert(0, Slow())
threading.Thread(target=__import__, args=("pygments.lexers",)).start()
begun.wait()
assert "<b class='mir-word'>int</b>" in source_html([Line("int x;", (), False)])
"""


def test_sources_are_coloured_while_another_thread_loads_pygments() -> None:
    pytest.importorskip("pygments")
    subprocess.run([sys.executable, "-c", WHILE_IT_LOADS], check=True, cwd=ROOT)
