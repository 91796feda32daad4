"""Many kernels, by the digests of their texts: a refactoring leaves all of them as they are, byte for byte.

A meant change is written with --update-golden; which lines of `golden/texts.txt` changed says what it reached, and the
golden kernels of `test_golden` how.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator

from mirage_nb.codegen import Options, emit
from mirage_nb.errors import MirageError
from mirage_nb.ir import DType, KernelGraph
from mirage_nb.targets import TARGETS
from tests.codegen import mugraphs
from tests.mugraphs import cases

OPTIONS = (
    Options(4, 2), Options(8, 3), Options(4, 2, bulk=True), Options(8, 4, bulk=True, chained=True),
    Options(4, 4, bulk=True, wide=True),
)  # fmt: skip


def graphs() -> Iterator[tuple[str, KernelGraph]]:
    yield from ((case.name, case.candidate) for case in cases())
    for dtype, rows in itertools.product((DType.F16, DType.BF16, DType.F32), (2, 16, 40)):
        yield f"norm of {rows} rows, {dtype.value}", mugraphs.rmsnorm(rows, dtype=dtype)
    yield "norm, odd extents", mugraphs.rmsnorm(7, 100, 130, 65, 2)
    yield "norm, long rows", mugraphs.rmsnorm(2, 8192, 64, 16, 4)
    yield "gain", mugraphs.rmsnorm_gain()
    yield "gated", mugraphs.gated_mlp()
    yield "products", mugraphs.lora(loop=4)
    yield "concatenated", mugraphs.lora_concat(loop=4)
    yield "attention", mugraphs.attention(loop=4)
    yield "attention, late sums", mugraphs.attention(late=True)
    yield "safe", mugraphs.safe_attention(rows=64, loop=4)
    yield "split", mugraphs.split_attention()
    yield "split, safe", mugraphs.split_safe_attention(loop=4)
    yield "keys normed", mugraphs.normed_attention("K")
    yield "values normed", mugraphs.normed_attention("V")
    yield "chain", mugraphs.chain()


def test_texts(golden: Callable[[str, str], None]) -> None:
    lines = []
    for (name, graph), (number, options) in itertools.product(graphs(), enumerate(OPTIONS)):
        try:
            source = emit(graph, TARGETS["h200"], options).source
        except MirageError as error:
            source = str(error)
        lines.append(f"{name}, {number}: {hashlib.sha256(source.encode()).hexdigest()[:16]}\n")
    golden("texts.txt", "".join(lines))
