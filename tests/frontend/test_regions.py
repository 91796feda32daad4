"""Where a traced graph is cut: what stays together, and what PyTorch's own operators part."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import nn

import mirage_nb
from mirage_nb.frontend.compiled import graphs
from mirage_nb.frontend.compiled.graphs import eager
from mirage_nb.frontend.compiled.kernels import effort_for
from mirage_nb.frontend.compiled.report import Estimate
from mirage_nb.frontend.compiled.seams import seams
from mirage_nb.interp import evaluate
from mirage_nb.ir import OpKind
from mirage_nb.lang import parse
from mirage_nb.targets import find_target
from tests.frontend.traced import Backend, regions_of


def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    made = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return made.transpose(1, 2).reshape(1, 1, -1) @ w


@torch.no_grad()
def test_attention_and_the_product_behind_it_are_two_where_that_pays() -> None:
    """Between them lies a tensor that PyTorch has in another shape than the program of the attention."""
    inputs = [torch.empty(shape).half() for shape in ((1, 32, 1, 64), (1, 8, 2048, 64), (1, 8, 2048, 64), (2048, 2048))]
    attention, product = regions_of(layer, *inputs).found
    assert "attention" in attention.operators[0] and product.operators == ("mm",)
    assert tuple(product.reads[0].meta["val"].shape) == (1, 32, 1, 64)
    assert product.graph.inputs[0].type.shape == (1, 2048)  # as it is read: heads are no dimensions of a product


@torch.no_grad()
def test_regions_in_other_shapes_than_pytorchs_compute_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    seen: list[str] = []

    def build(gm: Any, examples: Any, **more: Any) -> Any:
        seen.extend(str(node.target) for node in gm.graph.nodes)
        return eager(gm, examples, **more)

    monkeypatch.setattr(graphs, "eager", build)
    backend = Backend()
    inputs = [torch.randn(shape) for shape in ((1, 4, 1, 8), (1, 2, 16, 8), (1, 2, 16, 8), (32, 32))]
    torch.testing.assert_close(torch.compile(layer, backend=backend)(*inputs), layer(*inputs), rtol=2e-3, atol=2e-3)
    assert backend.replaced and not any("attention" in name for name in seen)  # nobody computes it beside its kernel


@torch.no_grad()
def test_what_depends_on_no_region_parts_none() -> None:
    """Angles of positions are looked up by PyTorch, and everything that reads them is of one level all the same."""

    def rotated(x: torch.Tensor, w: torch.Tensor, table: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x @ w) - 1
        return x * table[positions] + torch.cat((-x[:, 4:], x[:, :4]), -1) * table[positions + 1]

    found = regions_of(rotated, torch.ones(3, 8), torch.ones(8, 8), torch.ones(9, 8), torch.arange(3))
    assert all("neg" not in node.name for node in found.left)
    (turned,) = (region for region in found.found if {"neg", "add"} <= set(region.operators))
    assert [tuple(node.meta["val"].shape) for node in turned.reads] == [(3, 8)] * 3  # no halves: they are read in place


@torch.no_grad()
@pytest.mark.parametrize("additive", [False, True])
def test_who_may_look_at_nothing_sees_zeros(additive: bool) -> None:
    """As in PyTorch's own attention, of rows that are padding."""
    torch._dynamo.reset()

    def attend(x: torch.Tensor, dead: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(dead.shape).masked_fill(dead, -torch.inf) if additive else ~dead
        return F.scaled_dot_product_attention(x, x, x, mask[:, None]) * 2

    backend, x = Backend(), torch.randn(2, 4, 8)
    dead = torch.tensor([[False, True, False, True], [True] * 4])
    torch.testing.assert_close(torch.compile(attend, backend=backend)(x, dead), attend(x, dead), rtol=2e-3, atol=2e-3)
    assert backend.replaced and not attend(x, dead)[1].any()


@torch.no_grad()
def test_a_tensor_that_is_read_in_two_shapes_is_both() -> None:
    torch._dynamo.reset()

    def pooled(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    backend, inputs = Backend(), (torch.randn(2, 6, 16), torch.rand(2, 6))
    torch.testing.assert_close(torch.compile(pooled, backend=backend)(*inputs), pooled(*inputs))
    assert all(entry.taken for entry in backend.reports.all().entries) and backend.replaced


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3])
def test_axes_of_one_element_are_no_part_of_a_program(rows: int) -> None:
    """A step of a sequence, and rows without it: one program, without views between its operators."""

    def layer(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(F.rms_norm(x, (32,), g), w, b)) + x

    def pooled(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return layer(x, *rest).softmax(-1).sum(1, keepdim=True) * x

    rest = torch.randn(32), torch.randn(32, 32), torch.randn(32)
    (step,), (plain,) = (regions_of(layer, torch.ones(shape), *rest).found for shape in ((rows, 1, 32), (rows, 32)))
    assert step.digest == plain.digest and OpKind.RESHAPE not in {op.kind for op in step.graph.ops}
    torch._dynamo.reset()
    backend, x = Backend(), torch.randn(rows, 1, 32)
    torch.testing.assert_close(torch.compile(pooled, backend=backend)(x, *rest), pooled(x, *rest), rtol=2e-3, atol=2e-3)
    assert backend.replaced


@torch.no_grad()
def test_an_operator_with_several_results_has_regions_around_it() -> None:
    """The first of them numbers, as of the largest elements, or integers, as of experts in order."""
    torch._dynamo.reset()

    def routed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk((x @ w).softmax(-1), 2)
        experts, tokens = torch.sort(chosen.flatten())
        return torch.relu(x * weights.sum() + 1) * (experts * tokens).sum()

    backend, inputs = Backend(), (torch.randn(4, 8), torch.randn(8, 6))
    torch.testing.assert_close(torch.compile(routed, backend=backend)(*inputs), routed(*inputs), rtol=2e-3, atol=2e-3)
    assert backend.replaced > 1 and not any(graph.trouble for graph in backend.reports.all().graphs)


@torch.no_grad()
def test_rotations_by_complex_numbers_are_regions() -> None:
    torch._dynamo.reset()

    def turned(x: torch.Tensor, w: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex((x @ w).reshape(3, 4, 2))
        return torch.view_as_real((pairs * turns[:3] + pairs.conj()) * 0.5 - turns[:3]).flatten(1)

    backend, inputs = Backend(), (torch.randn(3, 8), torch.randn(8, 8), torch.polar(torch.ones(5, 4), torch.rand(5, 4)))
    torch.testing.assert_close(torch.compile(turned, backend=backend)(*inputs), turned(*inputs))
    assert "mul" in " ".join(name for e in backend.reports.all().entries if e.taken for name in e.region.operators)


@torch.no_grad()
def test_what_a_model_says_twice_is_there_once() -> None:
    """Else one region would read what another one computes, and be compared with nodes that compute it again."""

    def twice(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.layer_norm(x, (8,)) @ v, x + torch.tanh(F.layer_norm(x, (8,)) @ w)

    found = regions_of(twice, torch.ones(3, 8), torch.ones(8, 8), torch.ones(8, 8)).found
    assert len({node for region in found for node in region.covers if "var_mean" in node.name}) == 1


def test_two_kernels_are_searched_where_they_pay() -> None:
    """Eight heads of keys are blocks for eight multiprocessors, the columns of a product for all; between one kernel
    and two for 32 heads estimates say nothing."""
    heads = "Q: bf16[{0}, {1}, 128]\nK: bf16[{0}, 4096, 128]\nV: bf16[{0}, 4096, 128]\nreturn softmax(Q @ K.T) @ V"
    columns = "X: bf16[1, 4096]\nW: bf16[4096, 4096]\nreturn rms_norm(X) @ W"
    texts = heads.format(8, 4), heads.format(32, 1), heads.format(256, 1), columns
    efforts = [effort_for(parse(text).graph, find_target("h200")) for text in texts]
    assert efforts == ["standard", "standard", "quick", "quick"]


def test_a_region_reads_no_result_of_an_operator_that_it_computes() -> None:
    """A variance takes a mean that others read, too: as an input it would be another mean than that operator's own."""
    backend, x = Backend(), torch.randn(2, 4, 5, 5)
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(4), torch.nn.ReLU()).train()
    found = torch.compile(model, backend=backend)(x)
    torch.testing.assert_close(found, model(x))
    entries = backend.reports.all().entries
    assert entries and all(entry.taken for entry in entries), str(backend.reports.all())


@torch.no_grad()
def test_a_gated_layer_with_scales_is_one_region_and_the_product_behind_it_another() -> None:
    """What scales a parameter is made where it is read, though PyTorch sorts in between; an elementwise operator goes
    with the products in front of it, not with the one whose operand it is."""

    def gated(*inputs: torch.Tensor) -> torch.Tensor:
        x, up, gate, down, one, other = inputs
        y = x.sort().values
        return (F.silu(y @ gate * (other * 45.0)) * (y @ up * one)) @ down

    wide = (1, 2048), (2048, 8192), (2048, 8192), (8192, 2048), (8192,), (8192,)
    first, second = regions_of(gated, *(torch.empty(shape).bfloat16() for shape in wide)).found
    assert len(first.writes) == 1 and not seams(first, second.covers) and first.operators.count("mm") == 2
    assert second.operators == ("mm",)


def test_copies_alone_are_no_region() -> None:
    """Positions of three axes, a part of each, as models of pictures have them."""

    def turned(x: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
        return x * torch.cat([part[n % 3] for n, part in enumerate(cos.split([1, 1, 2] * 2, -1))], -1) + x

    def uneven(x: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
        one, other = (torch.cat([cos[0, ..., :n], cos[1, ..., n:]], -1) for n in (3, 5))
        return x * one + other

    for model, left in ((turned, set[str]()), (uneven, {"elements are only copied: there is nothing to fuse"})):
        found = regions_of(model, torch.ones(2, 6, 8), torch.ones(3, 2, 6, 8))
        assert [region.operators for region in found.found] == [("mul", "add")] and {*found.left.values()} == left


def normed(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return F.silu(F.group_norm(x, 2, gain, gain))


def lined(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """Attention whose scores are further from what is further away."""
    places = torch.arange(6)[None] - torch.arange(6)[:, None]
    bias = (gain[:, None, None] * places).masked_fill(places > 0, -torch.inf)
    return F.scaled_dot_product_attention(x, x, x, bias)


def turned(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """Positions written into a new tensor, and shifted ones."""
    y = torch.empty_like(x)
    y[..., ::2], y[..., 1::2] = x[..., ::2] * 2 - x[..., 1::2], x[..., ::2] + x[..., 1::2].sin()
    y[..., 0] = 3
    return torch.cat([torch.zeros_like(x[..., :1]), y[..., :-1]], -1) + torch.eye(6) * x


@torch.no_grad()
@pytest.mark.parametrize(("model", "inner"), [(normed, "var_mean"), (lined, "any"), (turned, "slice_scatter")])
def test_views_by_strides_questions_of_rows_and_writes_part_no_region(model: Any, inner: str) -> None:
    torch._dynamo.reset()
    backend, inputs = Backend(), (torch.randn(2, 4, 6, 6), torch.rand(4))
    torch.testing.assert_close(torch.compile(model, backend=backend)(*inputs), model(*inputs), rtol=2e-3, atol=2e-3)
    report = backend.reports.all()
    taken = [name for entry in report.entries if entry.taken for name in entry.region.operators]
    assert inner in taken and "table" not in str(report), str(report)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As people write it out."""
    seen = torch.tril(torch.ones(q.shape[2], q.shape[2]))
    scores = (q @ k.transpose(-2, -1) / 8.0).masked_fill(seen == 0, torch.finfo(q.dtype).min)
    return F.softmax(scores.float(), -1).type_as(q) @ v


@torch.no_grad()
def test_attention_under_a_mask_that_the_model_makes_is_one_region() -> None:
    """The mask is the same in every call: as an operand it costs no more than one that is given, whatever its type."""
    (region,) = regions_of(causal, *(torch.empty(1, 16, 1024, 64).half() for _ in range(3))).found
    assert region.operators.count("bmm") == 2 and len(region.reads) == 3
    entry = Estimate(region.graph, find_target("h200"))
    assert entry.fused_us is not None and entry.fused_us < entry.apart_us and not entry.unsaid


@torch.no_grad()
def test_pairs_within_heads_and_shifted_rows_are_read_where_they_lie() -> None:
    """An estimate is of a region as it is searched: heads are a dimension of what is read, which pads lie in."""

    def rotated(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        one, other = (x @ w).view(1, 512, 16, 64).unflatten(-1, (32, 2)).unbind(-1)
        turned = torch.stack([one * c - other * s, one * s + other * c], -1).flatten(-2)
        return turned.transpose(1, 2) @ x.view(1, 512, 16, 64).permute(0, 2, 3, 1)

    def shifted(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        return (x * a + before * (1 - a)) * b

    wide = [torch.empty(shape).half() for shape in ((512, 1024), (1024, 1024), (512, 1, 32), (512, 1, 32))]
    first, turn, last = regions_of(rotated, *wide).found
    assert sorted(turn.operators) == ["add", *["mul"] * 4, "sub"]
    assert first.operators == ("mm",) and "bmm" in last.operators
    (one,) = regions_of(shifted, torch.empty(2, 512, 256), torch.empty(256), torch.empty(256)).found
    assert OpKind.PAD in {op.kind for op in one.graph.ops} and not seams(one, ())


def shifted_windows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Windows of an image that is rolled before and back behind them."""
    y = torch.roll(F.silu(x) * x, (-2, 3), (1, 2))
    z = torch.relu(y.unflatten(1, (2, 4)).unflatten(3, (2, 4)).transpose(2, 3) @ w).transpose(2, 3)
    return x + torch.roll(z.reshape(x.shape), (2, -3), (1, 2)) * x


@torch.no_grad()
def test_rolls_are_read_where_their_parts_lie() -> None:
    backend, inputs = Backend(), (torch.randn(2, 8, 8, 16), torch.randn(16, 16))
    torch.testing.assert_close(torch.compile(shifted_windows, backend=backend)(*inputs), shifted_windows(*inputs))
    report = backend.reports.all()
    assert all(entry.taken for entry in report.entries) and not any("torch.int64" in why for why in report.reasons())


class Routed(torch.nn.Module):
    """Experts that compute the rows that were sent to them: how many these are depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = torch.nn.RMSNorm(8), torch.nn.Linear(8, 3)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        made = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            made.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return F.silu(made + x) * x


def test_experts_by_index_have_regions_around_them() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    backend, model, x = Backend(), Routed(), torch.randn(6, 8)
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    report = backend.reports.all()
    assert not report.graphs and "capture_dynamic_output_shape_ops" in str(report)  # which lets PyTorch trace it
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found, wanted = torch.compile(model, backend=backend)(x), model(x)
    torch.testing.assert_close(found, wanted)
    ours, theirs = (torch.autograd.grad(made.square().sum(), model.parameters()) for made in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
    taken = [{*entry.region.operators} for entry in backend.reports.all().entries if entry.taken]
    sigmoid = {"neg", "exp", "add", "div"}  # as some PyTorch spells it
    assert any("rsqrt" in one for one in taken), str(backend.reports.all())
    assert any("sigmoid" in one or sigmoid <= one for one in taken), str(backend.reports.all())


@torch.no_grad()
def test_a_loss_that_pytorch_decomposes_wrongly_is_right() -> None:
    """Classes behind the first -1 are none."""
    x, target = torch.randn(3, 5), torch.tensor([[0, 3, -1, 1, 2], [-1, 1, 0, 0, 0], [4, 2, 1, 0, 3]])
    for reduction in ("none", "mean", "sum"):
        torch._dynamo.reset()
        loss, backend = torch.nn.MultiLabelMarginLoss(reduction=reduction), Backend()
        torch.testing.assert_close(torch.compile(loss, backend=backend)(x, target), loss(x, target))
        program = mirage_nb.from_torch(loss, (x, target))
        (found,) = evaluate(program.graph, [t.double().numpy() for t in program.arguments(x, target)])
        torch.testing.assert_close(torch.tensor(found).reshape(loss(x, target).shape).float(), loss(x, target))
    torch.testing.assert_close(torch.compile(loss, backend=backend)(x[0], target[0]), loss(x[0], target[0]))


@torch.no_grad()
def test_where_pytorch_parts_a_model_the_report_says_why_and_what_helps() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def model(x: torch.Tensor) -> torch.Tensor:
        x = F.silu(x) * x
        return (x * x.sum().item()).softmax(-1)

    backend, x = Backend(), torch.randn(3, 8)
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    report = backend.reports.all()
    assert len(report.graphs) == report.replaced == 2 and "capture_scalar_outputs = True" in str(report)


class Quantized(nn.Module):
    """A linear layer of four bits, as training sees it: what is rounded has the gradient of what was there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scales = [one.detach().abs().amax(-1, keepdim=True) / 7 for one in (x, self.layer.weight)]
        rounded = [(one / s).round().clamp(-8, 7) * s for one, s in zip((x, self.layer.weight), scales, strict=True)]
        return torch.relu(F.linear(x + (rounded[0] - x).detach(), rounded[1], self.layer.bias))


@torch.no_grad()
def test_what_is_rounded_to_few_bits_stays_with_its_product() -> None:
    backend, model, x = Backend(), Quantized(), torch.randn(4, 16)
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x), rtol=1e-4, atol=1e-4)
    report = backend.reports.all()
    assert report.replaced == len(report.entries) and not report.reasons(), str(report)


class Repeated(nn.Module):
    """Layers that are compiled once for all, and a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.RMSNorm(16), nn.Linear(16, 16), nn.SiLU()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = called_often(layer, x)
        branches = lambda x: x.sigmoid() * x, lambda x: x.tanh() * 2
        made: torch.Tensor = torch.cond(x.sum() > 0, *branches, (x,)) if not torch.is_grad_enabled() else x
        return made


@torch.compiler.nested_compile_region
def called_often(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = x + layer(x)
    return made


@pytest.mark.parametrize("training", [False, True])
def test_regions_are_found_in_what_is_compiled_once_and_called_often(training: bool) -> None:
    torch._dynamo.reset()
    backend, model, x = Backend(), Repeated(), torch.randn(3, 16)
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x), rtol=1e-4, atol=1e-4)
    report = backend.reports.all()
    assert report.replaced >= 2 and all(entry.taken for entry in report.entries), str(report)
    nothing = "a single elementwise operator: there is nothing to fuse"
    inside = ["cond calls functions, there are regions inside of them", nothing]
    assert [*report.reasons()] == ([] if training else inside)


def test_a_look_at_a_model_says_what_pytorch_does_not_trace() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.layer(x.sigmoid() * x)[0]
            return made

    report = mirage_nb.model_report(Recurrent(), torch.randn(3, 8))
    assert any("LSTM" in why for why in report.untraced)
    assert not mirage_nb.model_report(Quantized(), torch.randn(4, 16)).untraced


def test_batches_of_a_compiled_model_are_right_and_the_report_says_whose_they_are() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.sigmoid() * x

    backend, x = Backend(), torch.randn(3, 8)
    torch.testing.assert_close(torch.vmap(torch.compile(model, backend=backend))(x), model(x))
    (why,) = (why for why in backend.reports.all().untraced if "torch.vmap" in why)
    assert why.endswith("compile the function that calls them")


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 8])
def test_layers_of_one_input_are_a_region_with_their_norm(rows: int) -> None:
    """Queries, keys and values of a model with adapters, for one token of each sequence."""

    def adapted(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.layer_norm(x, (2048,))
        each = zip(weights[::3], weights[1::3], weights[2::3], strict=True)
        return tuple(F.linear(y, w, w[0]) + F.linear(F.linear(y, a), c) * 2.0 for w, a, c in each)

    weights = [torch.empty(shape).half() for shape in 3 * ((2048, 2048), (16, 2048), (2048, 16))]
    (region,) = regions_of(adapted, torch.empty(rows, 1, 2048).half(), *weights).found
    assert len(region.writes) == 3 and region.operators.count("mm") + region.operators.count("addmm") == 9
