"""from_torch: modules and functions as tensor programs."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn

import mirage_nb
from mirage_nb.errors import LaunchError, TraceError
from mirage_nb.interp import evaluate
from mirage_nb.ir import DType


class Attention(nn.Module):
    """Two projections and a bias, a norm, and attention over heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.register_buffer("scale", torch.tensor(0.7, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.qkv(self.norm(x))[None].expand(3, -1, -1, -1) * self.scale).unbind(0)
        return F.scaled_dot_product_attention(q, k, v).mean(-1)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(16, 32, bias=False), nn.Linear(16, 32)
        self.factor = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> Any:
        return F.silu(self.gate(x)) * self.up(x) * self.factor, F.gelu(x, approximate="tanh").sum()


def test_a_module_is_the_program_that_it_computes() -> None:
    model, x = Gated().double(), torch.randn(4, 3, 16, dtype=torch.float64)
    program = mirage_nb.from_torch(model, (x,))
    assert program.name == "Gated"
    assert program.input_names == ("x", "factor", "gate_weight", "up_weight", "up_bias")
    assert program.output_names == ("O0", "O1") and len(repr(program)) < 300
    found = evaluate(program.graph, [t.numpy() for t in program.arguments(x)])
    for ours, theirs in zip(found, model(x), strict=True):
        np.testing.assert_allclose(ours.reshape(theirs.shape), theirs.detach().numpy(), rtol=1e-9)


def test_a_session_is_called_as_the_module_is() -> None:
    """It has the module's own tensors; what a call gives comes in front of them, or by name."""
    model, x = nn.Linear(16, 8), torch.randn(4, 16)
    program = mirage_nb.from_torch(model, (x,))
    session = mirage_nb.superoptimize(program, effort="quick")
    for found in (session(x), session(input=x), session(*program.arguments(x)), session(x, weight=model.weight)):
        torch.testing.assert_close(found, model(x), rtol=1e-3, atol=1e-3)
    with pytest.raises(LaunchError, match="expected the tensors input, weight, bias: there is none for input"):
        session()


def test_what_a_model_does_not_take_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch logs some hundred lines of calls in front of it."""
    records: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda logger, record: records.append(record))
    for read in (mirage_nb.from_torch, mirage_nb.model_report):
        with pytest.raises(TraceError, match=r"must have same reduction dim, but got \[4, 5\]"):
            read(nn.Linear(16, 8), (torch.randn(4, 5),))
    assert not [one for one in records if one.levelno >= logging.ERROR]
    with pytest.raises(TraceError) as caught:
        mirage_nb.from_torch(nn.Linear(16, 8), {"input": torch.randn(4, 16)})
    assert "keywords=" in caught.value.hint
    assert mirage_nb.from_torch(nn.Linear(16, 8), (), keywords={"input": torch.randn(4, 16)}).input_names[0] == "input"


def test_a_function_is_one_too() -> None:
    inputs = torch.randn(4, 8), torch.randn(8, 2)
    program = mirage_nb.from_torch(lambda x, w: torch.softmax(x @ w, -1), inputs, name="p")
    cell = mirage_nb.parse("x: f32[4, 8]\nw: f32[8, 2]\nreturn softmax(x @ w)")
    assert program.graph.ops == cell.graph.ops and program.name == "p"
    several = mirage_nb.from_torch(lambda both, w: (both[0] + both[1]) @ w, ([inputs[0], inputs[0]], inputs[1]))
    assert several.input_names == ("both_0", "both_1", "w")


def test_a_mask_of_infinities_that_is_added_is_one() -> None:
    x = torch.randn(2, 4, 4, dtype=torch.float64)
    model = lambda x: torch.softmax(x + torch.full((4, 4), -torch.inf).triu(1), -1)  # noqa: E731  # as in LLaMA
    (found,) = evaluate(mirage_nb.from_torch(model, (x,)).graph, [x.numpy()])
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-6)


def masked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """How models keep their tokens from the future."""
    least, ones = torch.finfo(x.dtype).min, torch.ones(4, 4, dtype=torch.bool)
    return (
        torch.softmax(x.masked_fill(torch.arange(4)[None] > torch.arange(4)[:, None], least), -1),
        torch.softmax(x + torch.full((4, 4), least, dtype=x.dtype).triu(1), -1),
        torch.softmax(x.masked_fill(ones.triu(1), -torch.inf), -1) * 2,
        torch.softmax(torch.where(ones.tril() & ~torch.zeros_like(ones), x, -1e9), -1) * 3,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_end_of_a_type_and_masks_of_ones_are_constants(dtype: torch.dtype) -> None:
    x = torch.randn(2, 4, 4).to(dtype)
    found = evaluate(mirage_nb.from_torch(masked, (x,)).graph, [x.double().numpy()])
    for ours, theirs in zip(found, masked(x), strict=True):
        np.testing.assert_allclose(ours, theirs.double().numpy(), atol=3e-2)


class Windows(nn.Module):
    """A small network of images: what is given a mask, keeps whole numbers, starts from zeros, shifts and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.register_buffer("weights", torch.randint(-127, 127, (4, 8), dtype=torch.int8))

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> Any:
        y = F.avg_pool2d(F.max_pool2d(F.relu(self.norm(self.first(x))), 2), 2).flatten(2).transpose(1, 2)
        h = torch.zeros(y.shape[0], 8)
        for step in y.roll((1, -1), (0, 1)).unbind(1):
            h = torch.tanh(torch.cat((torch.ones(y.shape[0], 1), h, step.round()), 1)[:, 1:9] + step)
        scores = (h @ (self.weights.to(h.dtype) / 127).T).masked_fill(~seen, -torch.inf)
        return scores.softmax(-1), torch.addcmul(h, h, h, value=0.5)


def edges(x: torch.Tensor, ends: torch.Tensor) -> Any:
    """A layer of a graph network: rows of whole numbers are places, and which ends are one is counted."""
    source, sink = ends.unbind(0)
    sums = torch.zeros_like(x).index_add(0, sink, x[source] * 0.5)
    counted = F.one_hot(sink, 4).sum(0) * x.T
    return sums, sums.new_zeros(4, 3).scatter_add(0, sink[:, None].expand(-1, 3), x[source]), counted


def test_rows_of_whole_numbers_are_places() -> None:
    x, ends = torch.randn(4, 3, dtype=torch.float64), torch.tensor([[0, 2, 3, 3, 1], [1, 1, 0, 2, 2]])
    program = mirage_nb.from_torch(edges, (x, ends))
    found = evaluate(program.graph, [t.double().numpy() for t in program.arguments(x, ends)])
    for ours, theirs in zip(found, edges(x, ends), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9)


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.kl_div(self.layer(x).log_softmax(-1), y.softmax(-1), reduction="batchmean")


class Transformed(nn.Module):
    """Derivatives inside a forward pass: of weights, for each row, and along a direction."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = Loss()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        state = dict(self.loss.named_parameters())

        def of(state: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(self.loss, state, (x[None], y[None]))

        each = torch.func.vmap(torch.func.grad(of), in_dims=(None, 0, 0))(state, x, y)
        along = torch.func.jvp(lambda x: torch.tanh(x) * x.softmax(-1), (x,), (x.cos(),))
        back = torch.func.vjp(F.silu, x)[1](y[:, :1] * x)[0]
        return each["layer.weight"], torch.func.grad(of)(state, x[0], y[0])["layer.bias"], *along, back


def test_transforms_of_functions_are_taken() -> None:
    """Export leaves them in its graph, and its decompositions forget them."""
    torch.manual_seed(0)
    model, x, y = Transformed().double(), torch.randn(5, 4).double(), torch.randn(5, 3).double()
    program = mirage_nb.from_torch(model, (x, y))
    assert program.input_names == ("x", "y", "loss_layer_weight", "loss_layer_bias")
    found = evaluate(program.graph, [t.numpy() for t in program.arguments(x, y)])
    for ours, theirs in zip(found, model(x, y), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_numbers_without_dimensions_are_stacked() -> None:
    x, y = torch.tensor([1.5, -0.5], dtype=torch.float64)
    model = lambda x, y: torch.stack([x, y * True]).softmax(0) * torch.cat([torch.zeros(1), x[None]])  # noqa: E731
    (found,) = evaluate(mirage_nb.from_torch(model, (x, y)).graph, [x.reshape(1).numpy(), y.reshape(1).numpy()])
    np.testing.assert_allclose(found, model(x, y).numpy())


def test_convolutions_masks_whole_numbers_and_first_states() -> None:
    torch.manual_seed(0)
    model, x, seen = Windows().eval(), torch.randn(2, 3, 8, 8), torch.rand(2, 4) < 0.7
    seen[:, 0] = True
    program = mirage_nb.from_torch(model, (x, seen))
    found = evaluate(program.graph, [t.numpy() for t in program.arguments(x, seen)])
    for ours, theirs in zip(found, model(x, seen), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), atol=1e-5)


class Rotated(nn.Module):
    """Positions as angles: as products of complex numbers, or by integers that become them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(6, 2), torch.rand(6, 2)))

    def forward(self, x: torch.Tensor, start: int = 0, *, positions: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = torch.view_as_real(pairs * self.turns[start : start + x.shape[1]].conj()).flatten(2)
        return turned.type_as(x) * torch.cos(positions[:, :, None].float())


def test_complex_numbers_are_pairs_and_positions_numbers() -> None:
    model, x, keywords = Rotated(), torch.randn(2, 3, 4), {"positions": torch.arange(3)[None].expand(2, 3)}
    program = mirage_nb.from_torch(model, (x,), keywords={"start": 2, **keywords})
    arguments = [t.numpy() for t in program.arguments(x, keywords["positions"])]
    (found,) = evaluate(program.graph, arguments)
    np.testing.assert_allclose(found, model(x, 2, **keywords).numpy(), rtol=1e-5)


def losses(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of classes that whole numbers name, some of which do not count; of places that are filled with one of them."""
    near = F.cross_entropy(torch.cat((x[:, :, :1].sum(-2), x.flatten(1)), 1), torch.zeros(len(x), dtype=torch.long))
    flat = x[:, :-1].reshape(-1, 7), y[:, 1:].reshape(-1)
    return near, F.cross_entropy(*flat), F.cross_entropy(*flat, weight, label_smoothing=0.1)


def test_classes_are_whole_numbers() -> None:
    torch.manual_seed(0)
    x, y, weight = torch.randn(2, 5, 7, dtype=torch.float64), torch.randint(0, 7, (2, 5)), torch.rand(7).double()
    y[0, 2] = -100
    program = mirage_nb.from_torch(losses, (x, y, weight))
    found = evaluate(program.graph, [t.double().numpy() for t in program.arguments(x, y, weight)])
    for ours, theirs in zip(found, losses(x, y, weight), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5)


def biased(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Attention to near places, in a cache that begins empty; how near is counted in buckets, as T5 does."""
    keys = torch.cat((x.new_empty(0), x, x * 2), 1) if len(x) else x
    near = torch.arange(keys.shape[1])[None] - torch.arange(x.shape[1])[:, None]
    far = 2 + (torch.log(near.abs().clamp(min=1).float() / 2) / 3 * 4).to(torch.long)
    buckets = torch.where(near.abs() < 2, near.abs(), far.clamp(max=3)) + (near > 0).to(torch.long) * 4
    return torch.softmax(x @ keys.mT + bias[buckets], -1) @ keys


def test_what_depends_on_no_input_is_computed_where_programs_cannot_say_it() -> None:
    torch.manual_seed(0)
    x, bias = torch.randn(2, 5, 4, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    program = mirage_nb.from_torch(biased, (x, bias))
    assert program.input_names[:2] == ("x", "bias") and len(program.constants) == 1
    (found,) = evaluate(program.graph, [t.double().numpy() for t in program.arguments(x, bias)])
    np.testing.assert_allclose(found, biased(x, bias).numpy(), rtol=1e-9)


def test_what_returns_no_tensors_is_told_how_to() -> None:
    class Cache:
        pass

    with pytest.raises(TraceError, match="in output") as caught:
        mirage_nb.from_torch(lambda x: (x + 1, Cache()), (torch.ones(4),))
    assert "use_cache" in caught.value.hint


def test_what_is_drawn_in_every_call_is_refused() -> None:
    with pytest.raises(TraceError, match="rand"):
        mirage_nb.from_torch(lambda x: x + torch.rand(4).double(), (torch.ones(4, dtype=torch.float64),))


def test_truth_values_are_counted_in_single_precision() -> None:
    """Half precision counts no further than 2048 one by one, and no further than 65504 at all."""
    program = mirage_nb.from_torch(lambda x: x * (x > 0).sum(-1, keepdim=True), (torch.ones(2, 8).half(),))
    assert {t.dtype for t in program.graph.types if t.shape == (2, 1)} == {DType.F32}


def test_a_module_stays_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    program = mirage_nb.from_torch(model, (torch.randn(2, 4),))
    assert model.training and len(program.graph.ops) == 3  # read as it is in evaluation


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: torch.lgamma(x) + 1, "aten.lgamma.default is not in the table"),
        (lambda x: x, "is an input or a constant"),
        (lambda x: (x.relu(), x.relu()), "are the same tensor"),
        (lambda x: x.add_(1), "in place"),
        (lambda x: x.relu() if x.sum() > 0 else x, "cannot export"),
        (lambda x: (x.relu(), 3), "no tensor"),
        (lambda x: x.long(), r"output _to_copy is of type torch\.int64"),
        (lambda x: (x.relu(), x.argmax(-1)), r"output argmax is of type torch\.int64"),
        (lambda x: x.relu() if x.sum() > 0 else x, "depends on values"),
        (lambda x: torch.linalg.inv(x) * 2, "aten.linalg_inv_ex.default is not"),  # it checks the matrix: an effect
    ],
)
def test_what_is_no_program_says_why(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        mirage_nb.from_torch(function, (torch.randn(4, 4),))


def test_who_is_told_why_sees_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TraceError):
        mirage_nb.from_torch(lambda x: x.relu() if x.sum() > 0 else x, (torch.randn(4, 4),))
    assert "def forward" not in capsys.readouterr().err


def test_what_to_do_about_a_function_is_what_the_language_says() -> None:
    told_of = {torch.lgamma: "compute it before", torch.linalg.inv: "leave it outside", torch.bernoulli: "random"}
    for function, said in told_of.items():
        with pytest.raises(TraceError) as told:
            mirage_nb.from_torch(lambda x, f=function: f(x) * 2, (torch.rand(4, 4),))
        assert said in told.value.hint and "torch.compile" in told.value.hint


def test_what_would_be_a_program_is_told() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[y > 0] *= 2
        return y

    for function, said in ((doubled, "torch.where(mask, y, x)"), (lambda x: x.argmax(-1), "as .float() makes")):
        with pytest.raises(TraceError) as told:
            mirage_nb.from_torch(function, (torch.rand(4, 4),))
        assert said in told.value.hint


class Followed(nn.Module):
    """A layer, and one that follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.leads, self.follows = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.follows.weight.lerp_(self.leads.weight, 0.1)
        return torch.tanh(self.leads(x)) - self.follows(x)


def test_a_parameter_that_is_changed_is_no_output() -> None:
    with pytest.raises(TraceError, match=r"it changes follows\.weight in place"):
        mirage_nb.from_torch(Followed(), (torch.rand(3, 4),))


def test_integers_are_inputs_where_numbers_are_computed_from_them() -> None:
    for function, wanted in ((lambda x: x * 0.5, [0, 0.5, 1, 1.5]), (lambda x: (x // 2) * 0.5, [0, 0, 0.5, 0.5])):
        program = mirage_nb.from_torch(function, (torch.arange(4),))
        (found,) = evaluate(program.graph, [t.numpy() for t in program.arguments(torch.arange(4))])
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(TraceError, match=r"input x: programs have no tensors of type torch\.int64"):
        mirage_nb.from_torch(lambda x: (x << 2) * 0.5, (torch.arange(4),))


def test_nothing_loads_pytorch_before_it_is_asked_for() -> None:
    code = "import sys, mirage_nb.frontend; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_decode_step_with_its_cache_is_a_program() -> None:
    """A token's row of the embedding, angles of its position, keys and values written at their place."""

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(11, 8)
            self.qkv = nn.Linear(8, 24, bias=False)
            self.register_buffer("cos", torch.randn(6, 4))
            self.register_buffer("sin", torch.randn(6, 4))

        def rotated(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
            one, other = x.chunk(2, -1)
            return x * self.cos[position] + torch.cat((-other, one), -1) * self.sin[position]

        def forward(self, token: torch.Tensor, position: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
            q, k, v = (y.view(1, 1, 2, 4).transpose(1, 2) for y in self.qkv(self.words(token)).chunk(3, -1))
            keys = keys.index_copy(2, position, self.rotated(k, position))
            values = torch.ops.aten.index_put(values, [None, None, position], v)
            return F.scaled_dot_product_attention(self.rotated(q, position), keys, values), keys, values

    step, cache = Step().double(), torch.randn(2, 1, 2, 6, 4, dtype=torch.float64)
    inputs = torch.tensor([[7]]), torch.tensor([4]), *cache
    program = mirage_nb.from_torch(step, inputs)
    given = program.arguments(*inputs)
    assert given[0].dtype == torch.float32 and program.input_names[:4] == ("token", "position", "keys", "values")
    found = evaluate(program.graph, [t.double().numpy() for t in given])
    for ours, theirs in zip(found, step(*inputs), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-9)
