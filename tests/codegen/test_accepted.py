"""Every named kernel of roles is a text that NVRTC takes: g++ and the CPU edition take more."""

from __future__ import annotations

import pytest

from mirage_nb.codegen import Launch, emit
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.targets import TARGETS
from tests.codegen import (
    test_attention_beside,
    test_attention_hanging,
    test_attention_programs,
    test_folded,
    test_hidden_tiles,
    test_sinks,
    test_specialised,
)

H200 = TARGETS["h200"]
GRAPHS: dict[str, dict[str, KernelGraph]] = {
    "products": test_specialised.NAMED | test_specialised.LOW_RANK | test_specialised.LOW_INSIDE,
    "attention": test_attention_programs.NAMED | test_sinks.NAMED,
    "attention beside tensors": test_attention_beside.NAMED,
    "attention over the ends": test_attention_hanging.NAMED,
    "tiles that data hides": test_hidden_tiles.FORMS,
    "folds": test_folded.NAMED,
}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), [(family, name) for family, named in GRAPHS.items() for name in named])
def test_it_compiles(family: str, name: str) -> None:
    """`f16(0)` stood where columns hang over rows that begin anywhere."""
    emitted = emit(GRAPHS[family][name], H200)
    compiled = compile_cubin(emitted.source, H200.arch)  # raises where NVRTC refuses it
    assert set(compiled.usage) == {launch.kernel for launch in emitted.launches if isinstance(launch, Launch)}
