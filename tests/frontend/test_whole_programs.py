"""from_torch of what whole programs alone say: orders, places and other whole numbers, what PyTorch decomposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mirage_nb
from mirage_nb.errors import TraceError
from mirage_nb.frontend.translate import Translation
from mirage_nb.interp import evaluate
from tests.frontend.traced import block_by_block


def t(*extents: int) -> Tensor:
    return torch.randn(extents)


def places(extent: int, *extents: int) -> Tensor:
    return torch.randint(0, extent, extents)


def routed(x: Tensor, gate: Tensor) -> Tensor:
    weights, chosen = (x @ gate).softmax(-1).topk(2)
    return torch.zeros(4, 5).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True)) * 2


def unpacked(x: Tensor, packed: Tensor) -> Tensor:
    return x @ (torch.stack([packed & 0xF, packed >> 4], -1).flatten(1).float() - 8).T


def seen(q: Tensor, given: Tensor, at: Tensor) -> Tensor:
    causal = torch.ones(6, 6, dtype=torch.bool).tril()[at]
    return q.masked_fill(~causal, -1.0).masked_fill(given[at], 2.0)


def written(x: Tensor) -> Tensor:
    """Places of tensors that start with one number everywhere, or with any."""
    ones, turned = torch.ones(3, 5, dtype=x.dtype), torch.empty_like(x)
    turned[..., ::2], turned[..., 1::2] = x[..., 1::2], -x[..., ::2]
    ones[:, 1:] *= 2
    placed = ones.select_scatter(x[:, 0], 1, 3) + torch.slice_scatter(torch.zeros(3, 5, dtype=x.dtype), x, 1, 1)
    return torch.cat((turned, placed, torch.slice_scatter(ones, x[:, :2], 1, 0, 4, 2)), 1)


def added(x: Tensor, at: Tensor) -> Tensor:
    made = torch.full((6, 6), -torch.inf).triu(1)
    return (x + ADDED[at]).softmax(-1) + (x + made[at]).exp() + F.embedding(at, ADDED).exp()


def segments(x: Tensor, into: Tensor) -> Tensor:
    """Nothing is in the second one."""
    wide = into[:, None].expand_as(x)
    most = torch.full((4, 2), -torch.inf).scatter_reduce(0, wide, x, "amax")
    made = (x - most[into].clamp(min=-9)).exp()
    return made / torch.zeros(4, 2).scatter_add(0, wide, made)[into]


def strided(x: Tensor) -> tuple[Tensor, ...]:
    """Windows that overlap, rows, a diagonal, one element, axes in any order."""
    windows = x.as_strided((2, 5, 4), (12, 2, 1)) * 1, x.as_strided((5, 3, 4), (1, 12, 2), 2) + 1
    rows = x.as_strided((3, 4, 2, 3), (12, 2, 0, 1)) * 2, x.as_strided((2, 3, 5), (1, 13, 3), 1).sum(1)
    return (*windows, *rows, x.as_strided((4,), (13,)).exp(), x.as_strided((), (), 5) * 3)


def chosen(x: Tensor, given: Tensor, at: Tensor) -> Tensor:
    """Truth values are looked up and written as numbers are."""
    beside = given.gather(1, at) & given.index_select(1, torch.tensor([4, 3, 2, 1]))
    written = given.scatter(1, at, given[:, :4]) | given.scatter(1, at[:, :1], True)
    return torch.where(beside, x[:, :4], -1.0).sum(1, keepdim=True) + x.masked_fill(written, 0)


def moved(x: Tensor) -> Tensor:
    """Truth values are moved, joined and written as numbers are."""
    above, joined = x > 0, (x > 1) + (x < -1)
    parts = F.pad(above[:, 1:], (1, 0), value=True), above.roll(1, 0), above.flip(1), above[:, :1].repeat(1, 4)
    more = torch.stack([above[:, 0]] * 4, 1), above.cummax(1)[0], above.sort(1)[0], above.diagonal()[:, None]
    written = torch.ones(4, 4, dtype=torch.bool) + torch.ones(4, 4, dtype=torch.bool)
    written[:, ::2], written[2], written[1, 1] = joined[:, ::2], False, True
    other = torch.where(above, x < 1, joined).masked_fill(x > 2, False)
    return torch.stack([torch.where(mask, x, -2 * x) for mask in (*parts, *more, written, ~written, joined, other)])


def counted(x: Tensor) -> Tensor:
    """Truth values of numbers, and in few bits."""
    whole = x.round()
    asked = torch.logical_and(whole, x) & torch.logical_xor(x - whole, whole) | torch.logical_not(whole)
    small = (x > 0).short().cumsum(1) + (x > 0.5).byte() * 2 + torch.logical_or(whole, x > 3).char()
    return torch.where(asked, x, 0) + small


def twice(x: Tensor, at: Tensor, wide: Tensor) -> tuple[Tensor, ...]:
    """Places are named twice, and what is written there is the same."""
    held = x.clone()
    held[at] = 7
    held[:, at] = x[:, :1]
    ones = torch.zeros(4, 7).scatter(1, wide, torch.ones_like(wide, dtype=x.dtype))
    columns = x.scatter(1, wide, x[:, 2:3].expand(4, 3)), x.index_fill(1, at, 2.0)
    again = x.index_put((at,), x[at] * 2), x.scatter(1, wide, x.gather(1, wide) + 1), x.index_copy(0, at, -x[at])
    again = *again, x.index_put((at, at), x[at, at].exp()), x.index_put((torch.arange(3),), x[1:])
    rows = x.index_put((at,), x[0]), x.index_copy(0, at, torch.ones(3, 7)), x.index_put((at, at), x.new_tensor(3.0))
    return held, ones, *columns, *rows, *again


def eight_bits(x: Tensor, w: Tensor) -> Tensor:
    """What is cut to the numbers of a type before it is cast keeps within them."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    made = (x / scale).round().clamp(-128, 127).to(torch.int8)
    return (made.float() @ w.float()) * scale + (x + 3).clamp(0, 9).to(torch.uint8)


def online(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A softmax block by block, whose maximum begins at minus infinity."""
    made, total, most = block_by_block(q, k, v)
    return torch.cat((made / total[:, None], torch.minimum(most, torch.full((3,), torch.inf))[:, None]), 1)


def limited(x: Tensor) -> Tensor:
    """By what limits nothing, and by the least number of a type."""
    nothing = (torch.full_like(x, -torch.inf) - x * 2).exp()
    return x.clamp(0, torch.inf) + nothing + x.abs().clamp(min=torch.finfo(x.dtype).tiny).log2().floor()


def put_back(x: Tensor, at: Tensor) -> Tensor:
    """Whole numbers are written into an order, and between zeros."""
    order, back, between = at.argsort(), torch.empty_like(at), torch.zeros(13, dtype=torch.long)
    back[order], between[1::2] = torch.arange(6), at
    return torch.cat((x[order].exp()[back], x[between]))


def best(x: Tensor) -> Tensor:
    """Others count for nothing."""
    most, at = x.topk(2)
    kept = torch.full_like(x, -torch.inf).scatter(1, at, most)
    return kept.softmax(-1) + torch.full_like(x, torch.inf).scatter(1, at, 2.0).clamp(max=9) + kept.sigmoid()


def in_part(x: Tensor, y: Tensor, at: Tensor) -> Tensor:
    """An index is shorter than what is looked up, and written into, and than what is written."""
    made = x.scatter(0, at, y), x.scatter(0, at, 2.0), x.scatter_add(0, at[:2], y), x.scatter(1, at[:, 1:2], y)
    most = x.scatter_reduce(0, at, y, "amax"), torch.full_like(x, -torch.inf).scatter(0, at, y).exp()
    return torch.stack((*made, *most)) * F.pad(x.gather(0, at), (0, 2))


STEPS, ZEROS = torch.tensor([0.1, 0.2, 0.25]), torch.tensor([0, 1, -2], dtype=torch.int32)
ADDED = torch.full((6, 6), -torch.inf).triu(1)
NIBBLES = torch.randint(0, 255, (6, 4), dtype=torch.uint8)
GIVEN = torch.rand(6, 6) < 0.5
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "routing": (routed, (t(4, 3), t(3, 5))),
    "written into one number everywhere": (written, (t(3, 4),)),
    "rows of an added mask": (added, (t(2, 6), torch.tensor([2, 4]))),
    "rows of an added mask that is given": (
        lambda x, mask, at: (x + mask[at]).softmax(-1) + F.embedding(at, mask).exp(),
        (t(2, 6), torch.full((6, 6), -torch.inf).triu(1), torch.tensor([2, 4]))),
    "the best alone": (best, (t(3, 5),)),
    "in part": (in_part, (t(3, 5), t(4, 6), torch.tensor([[0, 1, 2], [2, 0, 1], [1, 2, 0]]))),
    "by strides": (lambda x: torch.cat([made.flatten() for made in strided(x)]), (t(4, 12),)),
    "truth values at places": (chosen, (t(3, 5), torch.rand(3, 5) < 0.5, torch.tensor([[0, 2, 4, 1]] * 3))),
    "truth values that are moved": (moved, (t(4, 4),)),
    "truth values of numbers": (counted, (t(4, 6),)),
    "eight bits": (eight_bits, (t(3, 5), torch.randint(-127, 127, (5, 5), dtype=torch.int8))),
    "a mean of powers": (lambda x, p: (x.clamp(min=1e-6) ** p).mean((1, 2), keepdim=True) ** (1 / p),
                         (t(2, 4, 3), torch.tensor([3.0]))),
    "few steps": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -7, 9)
                  + torch.fake_quantize_per_channel_affine(x, STEPS, ZEROS, 1, -8, 7), (t(2, 3, 4),)),
    "the softmax of segments": (segments, (t(7, 2), torch.tensor([0, 2, 2, 0, 3, 2, 0]))),
    "the least of segments": (lambda x, i: torch.full((2, 4), torch.inf).scatter_reduce(1, i, x, "amin").clamp(max=9),
                              (t(2, 5), places(4, 2, 5))),
    "bounds": (lambda x, y: torch.searchsorted(x.sort(-1)[0], y, right=True) / 2
               + torch.bucketize(y, torch.tensor([-1.0, 0.0, 0.5])), (t(4, 7), t(4, 3))),
    "one number written twice": (lambda *given: torch.cat([made.flatten() for made in twice(*given)]),
                                 (t(4, 7), torch.tensor([1, 3, 1]), torch.tensor([[2, 2, 5], [0, 6, 0]] * 2))),
    "counted twice": (lambda x, i, j: x.index_put((i, j), x[0, :5] * 2, accumulate=True) + 1,
                      (t(4, 7), torch.tensor([0, 1, 1, 3, 1]), torch.tensor([2, -1, 6, 0, 6]))),
    "sorted": (lambda x: x.sort(0, descending=True)[0].cumsum(0), (t(4, 7),)),
    "argsort": (lambda x: x.argsort(1) / 2, (t(4, 7),)),
    "ties": (lambda x: x.round().sort(stable=True)[1] / 2, (t(4, 7),)),
    "straight through": (lambda x: torch.zeros_like(x).scatter_(-1, x.max(-1, True)[1], 1.0) + x, (t(4, 7),)),
    "block by block": (online, (t(3, 4), t(6, 4), t(6, 4))),
    "an order and back": (put_back, (t(6, 3), torch.tensor([2, 0, 1, 5, 3, 4]))),
    "ends of a type": (limited, (t(4, 7),)),
    "median": (lambda x: x.median(-1)[0] * 2, (t(4, 7),)),
    "bilinear": (lambda x: F.interpolate(x, size=(7, 9), mode="bilinear") + 1, (t(2, 3, 4, 5),)),
    "grid": (lambda x, g: F.grid_sample(x, g, align_corners=False) * 2, (t(2, 3, 4, 5), t(2, 3, 3, 2).tanh())),
    "fold": (lambda x: F.fold(F.unfold(x, 3, padding=1), (4, 5), 3, padding=1), (t(2, 3, 4, 5),)),
    "bags": (nn.EmbeddingBag(9, 4, mode="max", include_last_offset=True, padding_idx=0),
             (places(9, 7), torch.tensor([0, 2, 2, 7]))),
    "places": (lambda x, p: x * (p * 0.1).cos()[:, None] + (p[:, None] - p > 1).sum(-1, keepdim=True),
               (t(5, 3), torch.arange(3, 8))),
    "counted": (lambda x, i: x[(i * 2 + 1) % 5] * (i // 2)[:, None], (t(5, 3), places(5, 4))),
    "positions behind a mask": (lambda w, m: F.embedding(((m.cumsum(1) - 1) * m).clamp(min=0), w) * m[..., None],
                                (t(7, 3), torch.tensor([[0, 1, 1], [1, 1, 1]]))),
    "buckets": (lambda x, p: (torch.log(p.float() + 1) * 2).long().clamp(max=3) * x, (t(5), torch.arange(5))),
    "four bits": (unpacked, (t(3, 8), NIBBLES)),
    "first of a token": (lambda x, token: x[torch.arange(3), token.argmax(-1)] * 2, (t(3, 5, 4), places(30, 3, 5))),
    "rows of a mask": (seen, (t(2, 6), GIVEN, torch.tensor([2, 4]))),
    "angles": (lambda x, y: torch.atan2(x, y) + torch.acos(x.tanh()) - torch.asin(y.tanh()), (t(3, 4), t(3, 4))),
    "paths": (lambda x: torch.logaddexp(torch.cat([x[0, :1], x.new_full((3,), -torch.inf)]), x[1]) + x, (t(2, 4),)),
    "a gradient's convolutions": (lambda x, w: torch.func.vmap(lambda x, w: F.conv2d(x[None], w))(x, w),
                                  (t(2, 2, 4, 4), t(2, 3, 2, 3, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_whole_program_is_what_pytorch_computes(name: str) -> None:
    model, inputs = CASES[name]
    program = mirage_nb.from_torch(model, inputs)
    (found,) = evaluate(program.graph, [x.detach().double().numpy() for x in program.arguments(*inputs)])
    np.testing.assert_allclose(found, model(*inputs).detach().double().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda x: x + torch.rand_like(x), "draws random numbers"),
        (lambda x: torch.unique(x), "depends on values"),
        (lambda x: x.to(torch.float8_e4m3fn).float() * 2, "not a floating-point type of programs"),
        (lambda x: (x, x * 2, y := x + 1, y)[2:], "outputs 0 and 1 are the same tensor"),
        (lambda x: x * torch.full_like(x, -torch.inf), "infinite or no number"),
        (lambda x: x**x, "a power by a tensor"),
        (lambda x: x.to(torch.int8) / 2, "go round where they get too large"),
        (lambda x: x.T.as_strided((3,), (4,)) * 2, "does not lie row by row"),
        (lambda x: torch.fft.rfft(x, n=2000).abs(), "makes complex numbers, which are not taken apart"),
        (lambda x: torch.mv(torch.eye(4).to_sparse_csr(), x[0]) * 2, "tensors of layout torch.sparse_csr"),
        (lambda x: torch.fft.rfft(x) * 2, r"output mul is of type torch\.complex64"),
        (lambda x: x.repeat(1, 300).sort(-1)[0] * 2, "an order of 1200 elements"),
        (lambda x: torch.where((x.int() ^ 3) > 2, x, -x), "a logical operator"),
    ],
)
def test_what_programs_cannot_say_is_told(model: Any, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        mirage_nb.from_torch(model, (t(3, 4),))


def test_what_a_model_leaves_to_pytorch_has_its_reason() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = t(3, 4)
    node = graph.call_function(torch.ops.aten.topk.default, (x, 2))
    node.meta["val"] = x.meta["val"].topk(2)
    made = Translation()
    assert made.declare(x, "x") and not made.add(node)
    assert made.left[node] == "aten.topk.default stays PyTorch's in a model, which has it as fast"
    assert not made.declare(node, "y") and made.left[node].startswith("aten.topk.default stays PyTorch's")


@pytest.mark.parametrize("whole", [True, False])
def test_what_was_exported_is_read(whole: bool) -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Tanh()).eval(), t(2, 4)
    exported = torch.export.export(model, (x,))
    program = mirage_nb.from_torch(exported if whole else exported.module(), (x,))  # type: ignore[arg-type]
    (found,) = evaluate(program.graph, [y.double().numpy() for y in program.arguments(x)])
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_what_the_table_has_whole_is_not_decomposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would look at every operator that it has."""
    monkeypatch.delattr(torch.export.ExportedProgram, "run_decompositions")
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Softmax(-1)).eval(), t(2, 4)
    program = mirage_nb.from_torch(model, (x,))
    (found,) = evaluate(program.graph, [y.double().numpy() for y in program.arguments(x)])
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    kept = torch.zeros(4)
    for changing in (lambda x: x.add_(1) * 2, lambda x: F.batch_norm(x, kept, kept + 1, training=True)):
        with pytest.raises(TraceError, match="run_decompositions"):
            mirage_nb.from_torch(changing, (x,))
