"""The table of library kernels: what is recognised, what is not, and that a match computes what its operators do."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mirage_nb.codegen import Launch, LibraryCall, emit
from mirage_nb.interp import evaluate
from mirage_nb.ir import DType, KernelGraph
from mirage_nb.lang import parse
from mirage_nb.optimize.plan import variants
from mirage_nb.predefined import LOOKUP, ROWS, Match, matches, part
from mirage_nb.predefined.patterns import attention
from mirage_nb.predefined.reading import Reading
from mirage_nb.runtime.execution.buffers import draw_sample
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.runtime.kernel.operators import LIBRARY
from mirage_nb.runtime.kernel.rows import LAUNCHES
from mirage_nb.targets import find_target
from tests.library_programs import OTHERWISE, WHOLE, Sample

H200 = find_target("h200")


def program(text: str) -> KernelGraph:
    return parse(text).graph


def only_match(text: str) -> Match:
    graph = program(text)
    (match,) = matches(graph)
    assert match.output in graph.outputs
    return match


@pytest.mark.parametrize("sample", WHOLE.values(), ids=[*WHOLE])
def test_what_a_kernel_computes_is_found_however_it_is_written(sample: Sample) -> None:
    match = only_match(sample.text)
    assert (match.row, {*match.launches}) == (sample.row, {*sample.launches})
    assert sample.attrs.items() <= match.attrs.items()
    graph = program(sample.text)
    assert set(match.inputs) == set(range(graph.input_count)) and match.us(graph, H200) > 0


@pytest.mark.parametrize("text", OTHERWISE.values(), ids=[*OTHERWISE])
def test_what_only_looks_like_it_is_left_to_its_operators(text: str) -> None:
    graph = program(text)
    assert not any(match.output == graph.outputs[-1] for match in matches(graph))


def test_every_launch_has_its_call_and_its_name_in_saved_files() -> None:
    named = {(row, launch) for row, it in ROWS.items() for launch in it.launches if row != LOOKUP}
    assert named == {(row, launch) for row, launches in LIBRARY.items() for launch in launches}
    assert named - {("linear", "cublas")} == {*LAUNCHES}


@pytest.mark.parametrize(
    "types", ["W: f16[40,64]\nI: f32[5,7]", "W: f32[40,1]\nI: f32[5,7]", "W: f32[3,500]\nI: f16[2]"]
)
def test_numbers_of_no_row_find_zeros(types: str) -> None:
    """Below, above, between two of them, none at all."""
    graph = program(f"{types}\nreturn where(I[..., None] == arange(W.shape[0]), 1, 0) @ W")
    emitted = emit(graph, H200)
    assert [type(step) for step in emitted.launches] == [Launch]
    shape, rows = graph.inputs[0].type.shape, graph.inputs[0].type.shape[0]
    kinds = {DType.F16: np.float16, DType.F32: np.float32}
    table = (np.arange(math.prod(shape)) % 251 + 1).reshape(shape).astype(kinds[graph.inputs[0].type.dtype])
    numbers = np.resize([rows - 1, 0, -1, rows, 0.5, np.nan, 1, -np.inf, 2], graph.inputs[1].type.shape)
    found = CpuExecutable(emitted)(table, numbers.astype(kinds[graph.inputs[1].type.dtype]))
    known = np.isin(numbers, range(rows))
    wanted = np.where(known[..., None], table[np.where(known, numbers, 0).astype(int)], 0)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "types", ["X: f16[5,7,40]\nI: f32[5,7]", "X: f32[35,500]\nI: f16[35]", "X: bf16[9,3]\nI: f32[9]"]
)
def test_numbers_of_no_element_of_a_row_find_zeros(types: str) -> None:
    """What is infinite elsewhere in the row is not looked at."""
    graph = program(f"{types}\nreturn sum(where(I[..., None] == arange(X.shape[-1]), X, 0), axis=-1)")
    emitted, shape = emit(graph, H200), graph.inputs[0].type.shape
    assert [type(step) for step in emitted.launches] == [Launch]
    x = np.random.default_rng(0).integers(1, 99, shape).astype(np.float32)
    x[..., shape[-1] // 2 + 1 :] = np.inf
    numbers = np.resize([shape[-1] // 2, 0, -1, shape[-1], 0.5, np.nan, 1, -np.inf, 2], shape[:-1]).astype(np.float32)
    kinds = [np.float16 if i.type.dtype is DType.F16 else np.float32 for i in graph.inputs]
    found = CpuExecutable(emitted)(x.astype(kinds[0]), numbers.astype(kinds[1]))
    wanted = np.where(numbers[..., None] == np.arange(shape[-1]), x, 0).sum(-1)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "text",
    [
        "return sum(where(arange(40)[:, None] == I, X, 0), axis=0)",
        "return sum(where(arange(40) == I[:, None], X, 1), axis=1)",
        "return sum(where(arange(40) == I[:, None], X, 0), axis=0)",
        "return max(where(arange(40) == I[:, None], X, 0), axis=1)",
        "return sum(where(arange(40) >= I[:, None], X, 0), axis=1)",
        "return sum(where(arange(40) == I[None, :], X, 0), axis=1)",
        "return sum(where(arange(40) + 1 == I[:, None], X, 0), axis=1)",
    ],
)
def test_what_is_no_lookup_of_elements(text: str) -> None:
    assert not matches(program(f"X: f32[40,40]\nI: f32[40]\n{text}"), [LOOKUP])


@pytest.mark.parametrize("sample", WHOLE.values(), ids=[*WHOLE])
def test_the_operators_of_a_match_are_the_program(sample: Sample) -> None:
    graph = program(sample.text)
    drawn = np.random.default_rng(0)
    inputs = [drawn.standard_normal(i.type.shape) for i in graph.inputs]
    match = only_match(sample.text)
    (mine,) = evaluate(part(graph, match), [inputs[v] for v in match.inputs])
    (whole,) = evaluate(graph, inputs)
    np.testing.assert_array_equal(mine, whole)
    meant = _meant(match, [inputs[v] for v in match.inputs], whole.shape)
    np.testing.assert_allclose(meant, whole, rtol=1e-9, atol=1e-12)


def _meant(match: Match, inputs: list[Any], shape: tuple[int, ...]) -> Any:
    """What libraries say that the kernel of a match computes, from its attributes alone."""
    attrs = match.attrs
    if match.row in ("softmax", "log_softmax"):
        raised = np.exp(inputs[0] - inputs[0].max(attrs["dim"], keepdims=True))
        share = raised / raised.sum(attrs["dim"], keepdims=True)
        return share if match.row == "softmax" else np.log(share)
    if match.row == LOOKUP:
        table, index = inputs  # those that a program gives, not computed ones
        if attrs["apart"]:
            table = table.reshape(index.size, -1)
            return np.where(index.reshape(-1, 1) == np.arange(table.shape[1]), table, 0).sum(1).reshape(shape)
        table = table.reshape(len(table), -1)
        return ((index[..., None] == np.arange(len(table))) @ table).reshape(shape)
    if match.row == "running_sum":
        return inputs[0].cumsum(attrs["dim"])
    if match.row == "norm":
        x, *rest = inputs
        x = x - x.mean(-1, keepdims=True) * attrs["centred"]
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + float(Fraction(attrs["eps"])))
        return x * (rest[0] if attrs["gain"] else 1) + (rest[-1] if attrs["bias"] else 0)
    if match.row == "group_norm":
        x, gain, bias = inputs
        x = x.reshape(-1, attrs["groups"], x.shape[-1])
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + float(Fraction(attrs["eps"])))
        x = x.reshape(len(x), gain.size, -1)
        return (x * gain.reshape(-1, 1) + bias.reshape(-1, 1)).reshape(shape)
    if match.row == "linear":
        parts = [viewed(x, moves) for x, moves in zip(inputs, attrs.get("views", [[]] * len(inputs)), strict=True)]
        sides = zip(parts[:2], ("left", "right"), strict=True)
        left, right = (np.swapaxes(x, -1, -2) if attrs[side] else x for x, side in sides)
        made = left @ right + (inputs[2] if attrs["bias"] or attrs["added"] else 0)
        return np.maximum(made, 0) if attrs["relu"] else made
    return _attended(attrs, *inputs)


def viewed(x: Any, moves: Any) -> Any:
    for kind, *numbers in moves:
        if kind == "turn":
            x = x.transpose(numbers)
        else:
            dim, start, extent, step = numbers
            x = np.take(x, [start + n * step for n in range(extent)], dim)
    return x


def _attended(attrs: Any, q: Any, k: Any, v: Any, *bias: Any) -> Any:
    heads, groups = attrs["heads"], attrs["groups"]
    q, k, v = (viewed(x, moves) for x, moves in zip((q, k, v), attrs["views"], strict=True))
    shape = (*q.shape[:-1], v.shape[-1])
    q = q.reshape(heads, *q.shape[-2:])
    k, v = (np.repeat(x.reshape(groups, *x.shape[-2:]), heads // groups, axis=0) for x in (k, v))
    scores = float(Fraction(attrs["scale"])) * q @ np.swapaxes(k, -1, -2)
    for added in bias:
        scores = scores + np.broadcast_to(added, (*shape[:-2], *scores.shape[-2:])).reshape(scores.shape)
    row, column = np.arange(scores.shape[-2])[:, None], np.arange(scores.shape[-1])
    if attrs["causal"]:
        scores = np.where(row >= column, scores, -np.inf)
    if attrs["window"] >= 0:
        scores = np.where(row - column <= attrs["window"], scores, -np.inf)
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return (raised / raised.sum(-1, keepdims=True) @ v).reshape(shape)


def test_a_match_is_one_call_and_what_it_hides_is_computed_by_nobody() -> None:
    graph = program(WHOLE["causal"].text)
    ways = {way.library: emit(graph, H200, way) for way in variants(graph, H200)}
    assert [*ways] == [1, 2, 3, 0]
    for number, launch in enumerate(only_match(WHOLE["causal"].text).launches, 1):
        (call,) = ways[number].launches
        assert isinstance(call, LibraryCall) and call.by == launch and ways[number].workspace_bytes == 0
    assert len(ways[0].launches) > 5 and ways[0].workspace_bytes > 0
    sample = draw_sample(graph, 0)
    assert all(CpuExecutable(emitted).check(sample).ok for emitted in ways.values())


def test_what_a_match_reads_lives_until_it_runs() -> None:
    """The scaled queries are read by an operator in front that the match computes, and by the match itself."""
    text = "Q: f16[4,64,64]\nK: f16[4,64,64]\nV: f16[4,64,64]\nreturn softmax(exp(Q) @ exp(K).T) @ exp(V)"
    graph = program(text)
    for way in variants(graph, H200):
        assert CpuExecutable(emit(graph, H200, way)).check(draw_sample(graph, 0)).ok


def test_the_way_that_should_be_fastest_comes_first() -> None:
    """cuDNN where products take the time, products of their own where few queries meet wide keys."""
    prefill = "Q: bf16[32,4096,128]\nK: bf16[32,4096,128]\nV: bf16[32,4096,128]"
    assert only_match(f"{prefill}\nreturn softmax(Q @ K.T / 8) @ V").launches[0] == "cudnn"
    decode = "Q: bf16[8,4,128]\nK: bf16[8,4096,128]\nV: bf16[8,4096,128]"
    ways = only_match(f"{decode}\nreturn softmax(Q @ K.T / 8) @ V").launches
    assert ways.index("products") < ways.index("cudnn"), "eight blocks of a card's many work"
    latent = "Q: bf16[128,576]\nK: bf16[4096,576]\nV: bf16[4096,512]\nreturn softmax(Q @ K.T / 8) @ V"
    assert only_match(latent).launches[0] == "products"


def test_a_count_of_one_element_is_no_mask_of_columns() -> None:
    """Broadcast along the keys it is 0 for each of them: nothing is hidden."""
    head = "Q: f16[2, 8, 16]\nK: f16[2, 8, 16]\nV: f16[2, 8, 16]\nS = Q @ transpose(K, 0, 2, 1)\n"
    for mask, known in (("arange(8)", True), ("arange(1)", False), ("0 * arange(8)", False)):
        graph = parse(f"{head}return softmax(where(arange(8)[:, None] >= {mask}, S, -inf)) @ V").graph
        assert (attention(Reading(graph), graph.outputs[0]) is not None) == known
