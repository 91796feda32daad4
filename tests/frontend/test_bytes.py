"""Weights and masks of one byte, as quantised models have them: read as they are stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mirage_nb import from_torch, superoptimize
from mirage_nb.errors import TraceError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import DType
from tests.frontend.test_backend import close
from tests.frontend.traced import Backend, regions_of


class Scaled(nn.Module):
    """A norm and a linear layer whose weights have a scale for every row."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("w", weights)
        self.register_buffer("s", torch.rand(len(weights), 1) / 64)

    def forward(self, x: Tensor) -> Tensor:
        x = F.rms_norm(x, (x.shape[-1],))
        return F.linear(x, self.w.to(x.dtype) * self.s.to(x.dtype))


class Packed(Scaled):
    """The same with two of four bits in a byte, side by side or one half behind the other."""

    def __init__(self, weights: Tensor, paired: bool) -> None:
        super().__init__(weights)
        self.paired = paired

    def forward(self, x: Tensor) -> Tensor:
        both = self.w & 15, self.w >> 4
        w = torch.stack(both, -1).flatten(1) if self.paired else torch.cat(both, -1)
        return F.linear(F.rms_norm(x, (x.shape[-1],)), (w.to(x.dtype) - 8) * self.s.to(x.dtype))


MODELS = {
    "int8": lambda: (Scaled(torch.randint(-128, 128, (48, 32), dtype=torch.int8)), DType.I8),
    "uint8": lambda: (Scaled(torch.randint(0, 256, (48, 32), dtype=torch.uint8)), DType.U8),
    "e4m3": lambda: (Scaled(torch.randn(48, 32).to(torch.float8_e4m3fn)), DType.E4M3),
    "e5m2": lambda: (Scaled(torch.randn(48, 32).to(torch.float8_e5m2)), DType.E5M2),
    "paired": lambda: (Packed(torch.randint(0, 256, (48, 16), dtype=torch.uint8), True), DType.U8),
    "halved": lambda: (Packed(torch.randint(0, 256, (48, 16), dtype=torch.uint8), False), DType.U8),
}


@pytest.mark.parametrize("name", MODELS)
def test_programs_read_them_as_they_are(name: str) -> None:
    model, dtype = MODELS[name]()
    x = torch.randn(8, 32).half()
    program = from_torch(model, (x,))
    assert {i.name: i.type.dtype for i in program.graph.inputs}["w"] is dtype
    session = superoptimize(program, target="h200", effort="quick", budget=3, store=False)
    session.result()
    torch.testing.assert_close(session(x), model(x), rtol=2e-2, atol=2e-2)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_regions_read_them_as_they_are(name: str) -> None:
    model, dtype = MODELS[name]()
    x = torch.randn(8, 32)
    (region,) = regions_of(model, x).found
    assert dtype in {i.type.dtype for i in region.graph.inputs}
    torch._dynamo.reset()
    backend = Backend()
    close(torch.compile(model, backend=backend)(x), model(x))
    assert backend.replaced == 1


@pytest.mark.parametrize(("made", "why"), [
    (lambda w: (w.clamp(max=50) * 2).float(), "go round"),  # -128 * 2 is 0 there
    (lambda w: w.T, "is of type torch.int8"),
    (lambda w: (w.float() * 2, w[2:]), "is of type torch.int8"),
])  # fmt: skip
def test_what_they_become_in_their_own_type_is_told(made: Callable[[Tensor], object], why: str) -> None:
    with pytest.raises(TraceError, match=why):
        from_torch(made, (torch.randint(-128, 128, (8, 16), dtype=torch.int8),))


def test_moved_they_stay_within_their_type() -> None:
    w = torch.randint(-128, 128, (8, 16), dtype=torch.int8)
    program = from_torch(lambda w: F.relu(w.roll(3, 1).flip(0)) * (w.clamp(-2, 2).float() + (127 - (w & 127))), (w,))
    (found,) = evaluate(program.graph, [w.double().numpy()])
    wanted = F.relu(w.roll(3, 1).flip(0)) * (w.clamp(-2, 2).double() + (127 - (w & 127)))
    torch.testing.assert_close(torch.from_numpy(found), wanted)


@torch.no_grad()
def test_a_mask_is_read_as_it_is() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, seen)

    q, k, v = torch.randn(3, 2, 4, 16, 8)
    seen = torch.rand(2, 1, 16, 16) < 0.7
    seen[..., 0] = True
    (region,) = regions_of(attend, q, k, v, seen).found
    assert [i.type.dtype for i in region.graph.inputs].count(DType.BOOL) == 1
    torch._dynamo.reset()
    backend = Backend()
    close(torch.compile(attend, backend=backend)(q, k, v, seen), attend(q, k, v, seen))
    assert backend.replaced == 1
