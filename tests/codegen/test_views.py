"""Views of what kernels write, as outputs: each of them has memory of its own, and something writes it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mirage_nb.codegen import Emitted, Launch, emit
from mirage_nb.errors import EmitError
from mirage_nb.ir import KernelGraph, Op, OpKind, ReshapeAttrs
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.targets import TARGETS
from tests.mugraphs import Block, one_kernel, tensor

H200 = TARGETS["h200"]
VIEWS = [
    order
    for count in (1, 2, 3, 4)
    for some in itertools.combinations((1, 2, 3, 4, 5), count)
    for order in (some, some[::-1])
]


def viewed(outputs: tuple[int, ...]) -> KernelGraph:
    """exp(X), %1, seen as %2, through that as %3, and as %4; X itself seen as %5."""
    b = Block((tensor((4, 6)),), (1,))
    b.save(b.op(OpKind.EXP, b.read(0, (None,))), (None,))
    graph = one_kernel("X", b)
    for source, shape in ((1, (24,)), (2, (2, 12)), (1, (6, 4)), (0, (3, 8))):
        graph = graph.append(Op(OpKind.RESHAPE, (source,), ReshapeAttrs(shape)))
    return graph.returning(outputs)


def memory(emitted: Emitted) -> dict[int, int]:
    """For every value whose memory it is in: that of an input, an output or a temporary."""
    graph = emitted.graph
    own = (*range(graph.input_count), *graph.outputs, *(t.value for t in emitted.temporaries))
    found = {value: value for value in own}
    for view, original in emitted.aliases:
        assert view in found or original in found
        found.setdefault(original, found.get(view, -1))
        assert found.setdefault(view, found[original]) == found[original]
    return found


@pytest.mark.parametrize("outputs", dict.fromkeys(VIEWS), ids=str)
def test_every_output_is_written_where_it_is(outputs: tuple[int, ...]) -> None:
    emitted = emit(viewed(outputs), H200)
    graph, where = emitted.graph, memory(emitted)
    holds = {0: 0}  # by memory: the value behind all views of what is in it
    behind = {0: 0, 1: 1, 2: 1, 3: 1, 4: 1, 5: 0}
    for step in emitted.launches:
        if isinstance(step, Launch):
            holds[where[1]] = 1
        else:
            holds[where[step.output]] = holds[where[step.inputs[0]]]
    assert {value: holds[where[value]] for value in outputs} == {value: behind[value] for value in outputs}
    assert len({where[value] for value in outputs}) == len(outputs)
    copied = len(emitted.launches) - 1
    assert copied == len(outputs) - any(behind[v] == 1 for v in outputs)
    assert graph.outputs == outputs


def test_one_value_is_not_two_outputs() -> None:
    with pytest.raises(EmitError, match="O0, O1: two of them are one value"):
        emit(viewed((1, 1)), H200)


@pytest.mark.parametrize("outputs", [(3,), (1, 3), (3, 2, 4, 5)])
def test_views_run(outputs: tuple[int, ...]) -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float16).reshape(4, 6)
    found = CpuExecutable(emit(viewed(outputs), H200)).run([x])
    for value, array in zip(outputs, found, strict=True):
        np.testing.assert_allclose(array.ravel(), (x if value == 5 else np.exp(x)).ravel(), rtol=2e-3)
