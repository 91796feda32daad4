"""The last verification looks at what is printed, too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_nb.codegen import emit
from mirage_nb.lang import parse
from mirage_nb.optimize import default_options
from mirage_nb.runtime.final import verify_final
from mirage_nb.search.session.progress import Candidate
from mirage_nb.tile.text import parse_program, print_program
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.codegen.mugraphs import linear
from tests.codegen.test_specialised import H200

PROGRAM = parse("X: f16[128, 64]\nW: f16[64, 64]\nB: f16[64]\nreturn relu(X @ W + B)", name="linear").graph


@pytest.mark.parametrize(("said", "changed"), [
    ("", ""), ("EwAdd", "EwMul"), ("store v2 o0 [64*m,", "store v2 o0 [32*m,"),
])  # fmt: skip
def test_a_tile_program_that_is_another_one_is_refuted(said: str, changed: str) -> None:
    """Not that of its muGraph, which is right."""
    graph = linear(128, 64, 64, 64, 64)
    (planned,) = emit(graph, H200, replace(default_options(H200), specialised=True)).programs
    text = print_program(planned.program)
    assert said in text
    made = replace(planned, program=parse_program(text.replace(said, changed) if said else text))
    candidate = Candidate(graph.digest(), graph, "", 1, {}, Verdict(VerdictKind.FIELD), 1.0)
    verdict = verify_final(PROGRAM, candidate, (), (made,), H200)
    assert verdict.accepted == (not said)
    assert ("tile programs at points" if not said else "its tile program is another one") in verdict.note
