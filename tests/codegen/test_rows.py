"""Reductions that go on with the rows that they reduced: norms and exponentials in front of products."""

from __future__ import annotations

import pytest

from mirage_nb.codegen import Options, emit
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.text import parse_graph
from mirage_nb.targets import TARGETS
from tests.codegen.running import check, draw, run

H200 = TARGETS["h200"]

NORM = """\
  %{0} = Sqr(%0) : {dtype}[{rows}, {length}]
  %{1} = Sum(%{0}) dim=1 : {dtype}[{rows}, 1]
  %{2} = Const value=1/{length} : f32[]
  %{3} = EwMul(%{1}, %{2}) : {dtype}[{rows}, 1]
  %{4} = Sqrt(%{3}) : {dtype}[{rows}, 1]
  %{5} = EwDiv(%0, %{4}) : {dtype}[{rows}, {length}]
"""
RAISED = """\
  %{0} = Max(%0) dim=1 : {dtype}[{rows}, 1]
  %{1} = EwSub(%0, %{0}) : {dtype}[{rows}, {length}]
  %{5} = EwExp(%{1}) : {dtype}[{rows}, {length}]
"""


def in_front_of_a_product(what: str, rows: int, length: int, dtype: str = "f16", loop: int = 1) -> KernelGraph:
    """[loop * rows, length] made by `what`, times a matrix; the rows come one tile after the other."""
    names = (2, 3, 4, 5, 6, 7) if what == NORM else (2, 3, 0, 0, 0, 4)
    body = what.format(*names, dtype=dtype, rows=rows, length=length)
    last = names[-1]
    fmap, kind = (" fmap=0", f"kind=concat dim=0 : {dtype}[{loop * rows}, 32]") if loop > 1 else ("", "")
    accumulated = f"  %{last + 2} = Accum(%{last + 1}) {kind}\n" if loop > 1 else ""
    return parse_graph(f"""\
mugraph 1
input %0 X {dtype}[{loop * rows}, {length}]
input %1 W {dtype}[{length}, 32]
%2 = Graph(%0, %1) grid=[1] loop={loop} {{
  %0 = InIter arg=0 imap=[*]{fmap} : {dtype}[{rows}, {length}]
  %1 = InIter arg=1 imap=[*] : {dtype}[{length}, 32]
{body}  %{last + 1} = Matmul(%{last}, %1) : {dtype}[{rows}, 32]
{accumulated}  OutSaver(%{last + 1 + (loop > 1)}) omap=[*]
}}
output %2 Y
""")


@pytest.mark.parametrize("length", [8, 24, 64, 256])
@pytest.mark.parametrize("rows", [5, 48])
@pytest.mark.parametrize("what", [NORM, RAISED], ids=["norm", "raised"])
def test_rows_in_front_of_a_product(what: str, rows: int, length: int) -> None:
    graph = in_front_of_a_product(what, rows, length)
    check(graph)
    run(emit(graph, H200, Options(4)), draw(graph), checked=True)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("what", [NORM, RAISED], ids=["norm", "raised"])
def test_rows_of_streamed_tiles(what: str, dtype: str) -> None:
    graph = in_front_of_a_product(what, 32, 64, dtype, loop=4)
    for options in (Options(4, 2), Options(4, 3, True)):
        check(graph, options)
        run(emit(graph, H200, options), draw(graph), checked=True)


@pytest.mark.parametrize(("length", "passes"), [(64, 1), (24, 2), (512, 2)])
def test_short_rows_are_read_once(length: int, passes: int) -> None:
    """A group of lanes has a row in its registers; no column of norms passes through shared memory."""
    source = emit(in_front_of_a_product(NORM, 64, length), H200, Options(4)).source
    assert source.count("fast_sqrt(") == 1 and source.count("square(") == 1
    assert source.count("load<8>(t0") == passes
