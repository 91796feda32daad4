"""What a trial takes, before it is begun: legal graphs that nobody can try are refused at once, with a reason."""

from __future__ import annotations

import pytest

from mirage_nb.bench.workloads import WORKLOADS, workload
from mirage_nb.errors import MirageError, VerificationError
from mirage_nb.ir.legality import check
from mirage_nb.ir.text import parse_graph
from mirage_nb.lang import parse
from mirage_nb.verify.fields.work import MAX_ELEMENTS, MAX_STEPS, work
from mirage_nb.verify.files import prove_files, verify_files
from tests.clock import cpu_limit
from tests.mugraphs import Case, cases

SECONDS = 2.0


def block(shape: str, launch: str, *body: str) -> str:
    lines = "".join(f"\n  {line}" for line in body)
    return f"mugraph 1\ninput %0 X f16[{shape}]\n%1 = Graph(%0) {launch} {{{lines}\n}}\noutput %1 O\n"


def looped(loop: int) -> str:
    """A sum of the same tile, again and again."""
    body = "%0 = InIter arg=0 imap=[*]", "%1 = Accum(%0) kind=sum", "OutSaver(%1) omap=[*]"
    return block("2, 4", f"grid=[1] loop={loop}", *body)


HUGE = {
    "a loop": (looped(2**20), "for-loops"),
    "tiles behind each other": (
        block("2, 4", "grid=[1] loop=900000", "%0 = InIter arg=0 imap=[*]", "%1 = Accum(%0) kind=concat dim=0",
              "OutSaver(%1) omap=[*]"),
        "for-loops",
    ),
    "a grid": (
        block("65536, 1", "grid=[2147483647]", "%0 = InIter arg=0 imap=[*]", "%1 = EwExp(%0)", "%2 = Sum(%1) dim=0",
              "OutSaver(%2) omap=[1]"),
        "do not fit into memory",
    ),
    "a product": (
        "mugraph 1\ninput %0 X f16[1048576, 32]\n%1 = Transpose(%0) perm=[1, 0]\n%2 = Matmul(%1, %0)\n"
        + "".join(f"%{n} = Matmul(%0, %2)\n" for n in range(3, 900)) + "output %899 O\n",
        "elements to compute",
    ),
    "an extent": (f"mugraph 1\ninput %0 X f16[{2**40}, {2**20}]\n%1 = Sqr(%0)\noutput %1 O\n", "memory"),
    "repeats": (
        "mugraph 1\ninput %0 X f16[1, 1]\n%1 = Repeat(%0) dim=0 times=1099511627776\n%2 = Repeat(%1) dim=1 "
        "times=1048576\noutput %2 O\n",
        "memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", HUGE)
@pytest.mark.parametrize("final", [False, True])
def test_a_legal_graph_that_nobody_can_try_is_refused_at_once(how: str, final: bool) -> None:
    text, told = HUGE[how]
    check(parse_graph(text))
    with cpu_limit(SECONDS), pytest.raises(VerificationError, match=told) as caught:
        verify_files(text, text, final=final)
    assert caught.value.hint


@pytest.mark.parametrize("how", HUGE)
def test_nor_is_a_proof_looked_for(how: str) -> None:
    text, _ = HUGE[how]
    with cpu_limit(SECONDS), pytest.raises(MirageError):
        prove_files(text, text)


def test_a_long_loop_is_still_tried() -> None:
    with cpu_limit(20.0):
        code, said = verify_files("X: f16[2, 4]\nreturn X * 20000", looped(20_000))
    assert code == 0 and said.startswith("field, 4 trials")


def test_what_is_counted() -> None:
    found = work(parse_graph(looped(1000)))
    assert (found.steps, found.elements, found.largest) == (1000 + 1000 + 1, 8 * 1000, 8 * 8)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_small_graphs_are_far_below_the_limits(case: Case) -> None:
    for graph in (case.program, case.candidate):
        found = work(graph)
        assert 0 < found.steps < MAX_STEPS / 100 and found.elements < MAX_ELEMENTS / 1000


@pytest.mark.parametrize("name", WORKLOADS)
def test_so_are_the_workloads(name: str) -> None:
    assert work(parse(workload(name)).graph).elements < MAX_ELEMENTS / 100
