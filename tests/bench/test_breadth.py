"""The problems of `bench breadth`: what PyTorch users write computes the same, and shares cover all of them."""

from __future__ import annotations

import math
from types import MappingProxyType

import pytest

from mirage_nb.__main__ import main
from mirage_nb.bench.breadth import breadth_entries
from mirage_nb.bench.problems import PROBLEMS, Problem
from mirage_nb.errors import OptionError

FAMILIES = {problem.family: problem for problem in PROBLEMS}
SMALL = {
    "group": {"B": 2, "L": 12}, "decode": {"T": 24, "D": 16, "G": 2}, "prefill": {"H": 2, "T": 20, "D": 16},
    "latent": {"H": 4, "T": 24}, "swiglu": {"M": 3, "K": 32, "F": 48}, "lora": {"M": 3, "K": 32, "R": 4},
    "square": {"N": 24}, "deep": {"M": 4, "N": 6, "K": 40}, "swish_group": {"M": 3, "K": 32, "G": 4, "C": 8},
    "group_swish": {"M": 3, "K": 32, "G": 4, "C": 8}, "bias_relu": {"M": 3, "K": 32},
    "batch_norm": {"M": 3, "C": 2, "K": 5}, "gelu_softmax": {"M": 3, "K": 32}, "linear": {"M": 3, "N": 24, "K": 32},
    "norm_linear": {"M": 3, "N": 24, "K": 32},
    **{family: {"H": 2, "T": 1100, "D": 8} for family in ("sliding", "prefix")},
    **{family: {"H": 2, "T": 24, "D": 8} for family in ("alibi", "documents")},
    **{family: {"B": 2, "H": 3, "T": 24, "D": 8} for family in ("padded", "biased")},
}  # fmt: skip


def test_there_are_56_with_names_of_their_own() -> None:
    assert len({problem.name for problem in PROBLEMS}) == 56
    assert all(problem.program().graph.outputs for problem in PROBLEMS)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_pytorch_users_write_is_the_same_program(family: str) -> None:
    torch = pytest.importorskip("torch")
    from mirage_nb.bench.idioms import IDIOMS
    from mirage_nb.runtime.execution.torch_program import as_torch

    if family not in IDIOMS:
        pytest.skip("its peers are its own operators")
    small = {**FAMILIES[family].sizes, **SMALL.get(family, {"M": 3, "K": 32})}
    graph = Problem(family, MappingProxyType(small)).program().graph
    draw = torch.Generator().manual_seed(1)
    inputs = [torch.randn(i.type.shape, dtype=torch.float64, generator=draw) for i in graph.inputs]
    idiom = IDIOMS[family](*inputs)
    idiom = idiom if isinstance(idiom, tuple) else (idiom,)
    for found, exact in zip(idiom, as_torch(graph, torch, exact=True)(*inputs), strict=True):
        assert found.shape == exact.shape and float((found - exact).abs().max()) < 1e-9 * math.prod(exact.shape)


def test_shares_cover_all() -> None:
    shares = [{e.program.name for e in breadth_entries("linear, lora", f"{i}/3")} for i in range(3)]
    assert sum(map(len, shares)) == 18 and len(set.union(*shares)) == 18
    assert {e.program.name for e in breadth_entries("linear M=256", "0/1")} == {
        p.name for p in PROBLEMS if p.family.endswith("linear") and p.sizes["M"] == 256
    }


@pytest.mark.parametrize(("options", "said"), [
    (("--problems", "lineer"), "no problem is called 'lineer'"), (("--share", "2/2"), "not a share"),
    (("--problems", "rms", "--budget", "-1"), "not a positive number"),
])  # fmt: skip
def test_mistakes(options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "breadth", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_share_is_checked_first() -> None:
    with pytest.raises(OptionError, match="not a share"):
        breadth_entries("", "1")
