"""Products that threads compute by themselves: what they sum is loaded in chunks, without bank conflicts."""

from __future__ import annotations

import pytest

from mirage_nb.codegen import emit
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.text import parse_graph
from mirage_nb.targets import TARGETS
from mirage_nb.tile.rules.shared import LINE_BYTES
from mirage_nb.tile.staged.program import StagedProgram
from tests.codegen.running import check

H200 = TARGETS["h200"]
TURNED = "  %2 = Transpose(%1) perm=[1, 0]                         : {t}[{k}, 24]\n"


def scores(depth: int, turned: bool, dtype: str = "f32") -> KernelGraph:
    """The largest product of each row with 24 others, whose matrix lies across or not."""
    matrix, view, right = (
        (f"[24, {depth}]", TURNED.format(k=depth, t=dtype), 2) if turned else (f"[{depth}, 24]", "", 1)
    )
    first = right + 1
    return parse_graph(f"""mugraph 1
input %0 X {dtype}[64, {depth}]
input %1 Y {dtype}{matrix}
%2 = Graph(%0, %1) grid=[2] loop=1 {{
  %0 = InIter arg=0 imap=[0] : {dtype}[32, {depth}]
  %1 = InIter arg=1 imap=[*] : {dtype}{matrix}
{view}  %{first} = Matmul(%0, %{right}) : {dtype}[32, 24]
  %{first + 1} = Max(%{first}) dim=1 : {dtype}[32, 1]
  OutSaver(%{first + 1}) omap=[0]
}}
output %2 O
""")


@pytest.mark.parametrize("depth", [16, 32, 64, 20, 7])
@pytest.mark.parametrize("turned", [True, False])
def test_they_are_right(depth: int, turned: bool) -> None:
    check(scores(depth, turned))


@pytest.mark.parametrize("depth", [16, 32, 64, 128])
def test_rows_that_are_read_across_lie_on_banks_of_their_own(depth: int) -> None:
    """Threads side by side read chunks of rows beside each other: unpadded, all of eight were in one or two places."""
    emitted = emit(scores(depth, turned=True), H200)
    (found,) = emitted.programs
    assert isinstance(found.program, StagedProgram)
    pitch, unit = found.program.buffer(1).layout.strides
    assert unit == 1 and len({4 * row * pitch % LINE_BYTES // 16 for row in range(8)}) == 8
    assert f"load<4>(t1 + (c1 * {pitch} + k * 4))" in emitted.source
