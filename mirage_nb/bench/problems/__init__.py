"""The problems of `bench breadth`: what people bring, from one row to thousands, each a `.mirage` file and its sizes.

In: nothing. Out: `PROBLEMS`. Invariant: sizes are those of published models and benchmarks (each file names its
source) and never changed to make a number look better.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

from mirage_nb.lang import TensorProgram, parse


@dataclass(frozen=True, slots=True)
class Problem:
    """One program at one set of sizes; `family` is the file that has its text."""

    family: str
    sizes: MappingProxyType[str, int]

    @property
    def name(self) -> str:
        """The family and the sizes that are not the file's own."""
        return " ".join([self.family, *(f"{name}={extent}" for name, extent in self.sizes.items())])

    def program(self) -> TensorProgram:
        """The tensor program. Raises MirageError where the language lacks something that it says."""
        text = (resources.files(__name__) / f"{self.family}.mirage").read_text(encoding="utf-8")
        return parse(text, name=self.name, sizes=dict(self.sizes))


def _family(family: str, *sizes: dict[str, int]) -> Iterator[Problem]:
    for chosen in sizes or ({},):
        yield Problem(family, MappingProxyType(chosen))


_LINEAR = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))

PROBLEMS: tuple[Problem, ...] = (
    *_family("linear", *({"M": m, "N": n, "K": k} for n, k in _LINEAR for m in (1, 256, 4096))),
    *_family("rms"),
    *_family("add_rms", {"K": 4096}, {"K": 7168}),
    *_family("layer"),
    *_family("group"),
    *_family("norm_linear", *({"M": m} for m in (1, 8, 256, 2048))),
    *_family("decode", *({"B": b} for b in (1, 16, 64))),
    *_family("prefill", {"T": 1024}, {"T": 4096}, {"T": 16384, "H": 4}),
    *_family("latent"),
    *_family("swiglu", *({"M": m} for m in (1, 16, 256, 4096))),
    *_family("lora", *({"M": m} for m in (1, 256))),
    *_family("square"),
    *_family("deep"),
    *_family("swish_group"),
    *_family("bias_relu"),
    *_family("group_swish"),
    *_family("gelu_softmax"),
    *_family("block_decode"),
    *_family("block_prefill"),
    *_family("long_softmax"),
    *_family("vocabulary"),
    *_family("batch_norm"),
    *_family("bias_gradient"),
    *_family("column_variance"),
    *_family("column_logsumexp"),
    *_family("masked_softmax"),
    *_family("running_sum"),
    *(problem for name in ("sliding", "prefix", "alibi", "documents", "padded", "biased") for problem in _family(name)),
)
"""In the order of the table."""
