"""Arrays of callers and of checks: rounding, bit patterns, poison, samples that stay in range."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mirage_nb.errors import DTypeError, LaunchError, ShapeError
from mirage_nb.interp import evaluate
from mirage_nb.ir import COUNTS, DType, Input, TensorType
from mirage_nb.ir import FLOATS as REAL
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.buffers import STORED, accept, check_count, decode, draw_sample, encode, poisoned
from mirage_nb.runtime.execution.execute import as_declared, whole_declared
from mirage_nb.runtime.kernel import operators as saved
from mirage_nb.verify.reals.float_gate import Reference, compare

FLOATS = st.lists(st.floats(width=32), min_size=1, max_size=20)


def as_input(dtype: DType, *shape: int) -> Input:
    return Input("X", TensorType(shape, dtype))


@given(FLOATS)
def test_bf16_rounds_as_torch_does(values: list[float]) -> None:
    array = np.array(values, np.float32)
    wanted = torch.from_numpy(array).to(torch.bfloat16).double().numpy()
    np.testing.assert_array_equal(decode(encode(array, DType.BF16), DType.BF16), wanted)


@given(FLOATS, st.sampled_from(DType))
def test_what_is_stored_is_stored_again_unchanged(values: list[float], dtype: DType) -> None:
    with np.errstate(over="ignore"):
        stored = encode(np.array(values), dtype)
        again = encode(decode(stored, dtype), dtype)
    np.testing.assert_array_equal(decode(again, dtype), decode(stored, dtype))
    assert stored.itemsize == dtype.size


@pytest.mark.parametrize("dtype", REAL)
def test_poison_is_not_a_number_and_is_caught(dtype: DType) -> None:
    array = poisoned(TensorType((3, 2), dtype))
    assert array.shape == (3, 2) and np.isnan(decode(array, dtype)).all()
    right = Reference((np.zeros((3, 2)),), (np.ones((3, 2)),), (dtype,))
    assert compare([np.zeros((3, 2))], right).ok and not compare([decode(array, dtype)], right).ok


@pytest.mark.parametrize("given_", [np.float64, np.float32, np.float16])
def test_floats_that_would_be_rounded_are_refused(given_: type) -> None:
    """NumPy has no bf16: floats are the only way to it. What is lost by nothing is taken."""
    for dtype in REAL:
        array = np.ones(2, given_)
        if dtype is DType.BF16 or np.can_cast(given_, STORED[dtype], "safe"):
            assert (decode(accept(array, as_input(dtype, 2)), dtype) == 1).all()
            continue
        with pytest.raises(DTypeError, match=f"X has dtype {array.dtype}, the program says {dtype.value}") as told:
            accept(array, as_input(dtype, 2))
        assert "X.astype(" in told.value.hint and "cast=True" in told.value.hint
        (fits,) = as_declared([array], [as_input(dtype, 2)])
        assert fits.dtype == STORED[dtype]


@pytest.mark.parametrize("dtype", COUNTS)
@pytest.mark.parametrize("kind", [np.float32, np.int64, np.uint8])
def test_bytes_hold_whole_numbers_of_any_kind_and_no_others(dtype: DType, kind: type) -> None:
    held, into = COUNTS[dtype], as_input(dtype, 3)
    array = np.array([max(held[0], np.iinfo(kind).min if kind is np.uint8 else held[0]), 1, held[-1]]).astype(kind)
    stored = accept(array, into)
    assert stored.dtype == STORED[dtype] and (decode(stored, dtype) == array).all()
    for wrong in (np.array([0, 1, held[-1] + 1]), np.array([0, 0.5, 1], np.float32)):
        if dtype is DType.BOOL:  # any number but 0 is true
            assert (accept(wrong, into) == (wrong != 0)).all()
            continue
        with pytest.raises(DTypeError, match=f"X has numbers that {dtype.value} does not have") as told:
            accept(wrong, into)
        assert f"{held[0]} to {held[-1]}" in told.value.hint
        (fits,) = as_declared([wrong], [into])
        assert fits.dtype == STORED[dtype]


@pytest.mark.parametrize("dtype", COUNTS)
@pytest.mark.parametrize("numbers", [
    np.array([-300, -1, 0, 1, 200, 300]), np.array([0, 1, 200], np.uint8), np.array([-128, -1, 5], np.int8),
    np.array([-0.6, 0.3, 1.5, 1e9], np.float32),
])  # fmt: skip
def test_tensors_of_torch_become_bytes_as_arrays_do(dtype: DType, numbers: np.ndarray) -> None:
    given, into = torch.tensor(numbers), as_input(dtype, len(numbers))
    wanted = encode(numbers, dtype)
    (made,) = as_declared([given], [into])
    np.testing.assert_array_equal(made.numpy(), wanted)
    if given.is_floating_point():
        return
    if dtype is DType.BOOL or (wanted == numbers).all():
        np.testing.assert_array_equal(whole_declared([given], [into])[0].numpy(), wanted)
    else:
        with pytest.raises(DTypeError, match=f"X has numbers that {dtype.value} does not have"):
            whole_declared([given], [into])


@pytest.mark.parametrize(("dtype", "theirs"), [(DType.E4M3, torch.float8_e4m3fn), (DType.E5M2, torch.float8_e5m2)])
def test_floats_of_one_byte_are_those_of_torch(dtype: DType, theirs: torch.dtype) -> None:
    every = np.arange(256, dtype=np.uint8)
    wanted = torch.tensor(every).view(theirs).double().numpy()
    np.testing.assert_array_equal(decode(every, dtype), wanted)
    np.testing.assert_array_equal(saved.decode(every, dtype.value), wanted)
    known = np.isfinite(wanted)
    np.testing.assert_array_equal(saved.encode(wanted, dtype.value)[known], every[known])
    np.testing.assert_array_equal(saved.decode(saved.encode(wanted, dtype.value), dtype.value), wanted)
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.standard_normal(5000) * s for s in (1e-5, 1e-3, 0.1, 10, 100)]).astype(np.float32)
    values = values[np.abs(values) < 440]
    np.testing.assert_array_equal(encode(values, dtype), torch.tensor(values).to(theirs).view(torch.uint8).numpy())
    np.testing.assert_array_equal(saved.encode(values, dtype.value), encode(values, dtype))
    np.testing.assert_array_equal(saved.encode(values * 1e4, dtype.value), encode(values * 1e4, dtype))
    beyond = decode(encode(np.array([1e9, -np.inf]), dtype), dtype)
    assert (np.abs(beyond) == torch.finfo(theirs).max).all() and (np.sign(beyond) == [1, -1]).all()
    assert (accept(every, as_input(dtype, 256)) == every).all()


@pytest.mark.parametrize("given_", [np.int64, np.bool_])
def test_whole_numbers_are_accepted(given_: type) -> None:
    for dtype in DType:
        stored = accept(np.ones((2, 2), given_)[::-1].T, as_input(dtype, 2, 2))
        assert stored.flags.c_contiguous and (decode(stored, dtype) == 1).all()
    bits = encode(np.array([1.5, -2.0]), DType.BF16)
    assert accept(bits, as_input(DType.BF16, 2)) is not None
    np.testing.assert_array_equal(accept(bits, as_input(DType.BF16, 2)), bits)
    np.testing.assert_array_equal(accept([1, 2], as_input(DType.F16, 2)), np.array([1, 2], np.float16))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"X has shape \[3\], the program says f16\[2\]"):
        accept(np.zeros(3), as_input(DType.F16, 2))
    for wrong in (np.zeros(2, complex), np.array(["a", "b"]), np.array([None, {}])):
        with pytest.raises(DTypeError, match="X has dtype"):
            accept(wrong, as_input(DType.F16, 2))
    with pytest.raises(LaunchError, match="3 tensors for 1 inputs"):
        check_count([1, 2, 3], [as_input(DType.F16, 2)])


def test_samples_repeat_and_differ_by_seed() -> None:
    graph = parse("X: f16[4, 8]\nW: bf16[8, 4]\nY = X @ W\nreturn Y").graph
    one, same, other = draw_sample(graph, 1), draw_sample(graph, 1), draw_sample(graph, 2)
    for a, b, c in zip(one.inputs, same.inputs, other.inputs, strict=True):
        assert (a == b).all() and (a != c).any()
    reals = [decode(a, i.type.dtype) for a, i in zip(one.inputs, graph.inputs, strict=True)]
    np.testing.assert_array_equal(one.reference.outputs[0], evaluate(graph, reals)[0])
    assert one.scale == 1.0


@pytest.mark.parametrize(
    ("text", "tame"),
    [
        ("X: f16[4, 512]\nreturn X / sqrt(sum(X * X, axis=-1, keepdims=True))", True),
        # outputs of about one, but exp(X @ Y) of up to e^60 on the way: no f16 holds it
        ("X: f16[8, 64]\nY: f16[64, 64]\nE = exp(X @ Y)\nreturn E / sum(E, axis=-1, keepdims=True)", False),
        ("X: f16[8, 64]\nreturn exp(8 * X)", False),
    ],
)
def test_no_value_on_the_way_leaves_its_type(text: str, tame: bool) -> None:
    graph = parse(text).graph
    sample = draw_sample(graph, 0)
    assert (sample.scale == 1.0) == tame and sample.safe
    everything = graph.returning(tuple(range(len(graph.types))))
    reals = [decode(a, i.type.dtype) for a, i in zip(sample.inputs, graph.inputs, strict=True)]
    for values, type_ in zip(evaluate(everything, reals), everything.output_types, strict=True):
        assert np.isfinite(encode(values, type_.dtype).astype(np.float64)).all()
    assert np.isfinite(sample.reference.outputs[0]).all()


@pytest.mark.parametrize(
    "text",
    [
        "X: f16[4]\nreturn exp(X + 100)",
        "X: f16[4, 64]\nreturn exp(20 * X / sqrt(mean(X * X, axis=-1, keepdims=True)))",  # of any scale
    ],
)
def test_a_program_that_always_overflows_is_told_apart(text: str) -> None:
    sample = draw_sample(parse(text).graph, 0)
    assert sample.scale == 1.0 and not sample.safe


def test_a_mask_of_minus_infinity_is_no_overflow() -> None:
    """Nothing of causal attention was compared where its weights were drawn too large for f16, and its error was 0."""
    text = """
    Q: f16[16, 256]
    K: f16[16, 256]
    S = where(arange(16)[:, None] >= arange(16), (Q * 32) @ K.T, -inf)
    return softmax(S)
    """
    sample = draw_sample(parse(text).graph, 0)
    assert sample.safe and sample.scale < 1.0 and sample.reference.asked == 16 * 16


@pytest.mark.parametrize(
    "returned",
    [
        "log(X - 5)",
        "log(-X - 5)",
        "sqrt(1 - sum(X * X, 1))",
        "log(mean(X * X, 1) - 900)",
        "X + 1, sqrt(X - 4)",
        "X * 2",
    ],
)
def test_inputs_lie_where_a_program_has_values(returned: str) -> None:
    """Where normal numbers gave none, nothing was compared, and any kernel was right."""
    sample = draw_sample(parse(f"X: f32[8, 8]\nreturn {returned}").graph, 0)
    assert sample.safe and sample.reference.answered == len(sample.reference.outputs)
    others = [np.zeros_like(want) + 7 for want in sample.reference.outputs]
    assert not compare(others, sample.reference).ok
    assert (abs(decode(sample.inputs[0], DType.F32).mean()) < 1) == (returned in ("X * 2", "sqrt(1 - sum(X * X, 1))"))


def test_numbers_beyond_a_type_are_infinite_and_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(encode(np.array([1e6, -1e6]), DType.F16)).all()
