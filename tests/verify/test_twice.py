"""What a comparison reads is computed once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirage_nb.errors import VerificationError
from mirage_nb.ir import BlockGraph, KernelGraph, Op, OpKind
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, configurations, prepare
from mirage_nb.search.session.channel import Channel, Moment
from mirage_nb.search.session.findings import Bounds
from mirage_nb.search.session.restored import verified_again
from mirage_nb.search.session.submission import submitted
from mirage_nb.search.session.unsearched import unsearched
from mirage_nb.search.session.worker import Task, explore
from mirage_nb.targets import DEFAULT_TARGET, find_target
from mirage_nb.verify.reals import twice as twice_module
from mirage_nb.verify.reals.twice import twice

HEAD = "X: f16[33, 64]\nv = rms_norm(X)\nreturn "
LARGEST = parse(HEAD + "where(v == max(v, axis=0, keepdims=True), 1, 0)").graph
AGAIN = "%9 = Sqr(%0)\n%10 = Sum(%9) dim=1\n%11 = EwMul(%10, %2)\n%12 = Sqrt(%11)\n%13 = EwDiv(%0, %12)\n"
"""One row, normalised by itself."""


def columns(grid: str, cut: str, compared: str, saved: int) -> KernelGraph:
    """A kernel that has all of X, %1, and some of its rows, %0: the largest of every column, %8, and what compares."""
    lines = (
        "mugraph 1", "input %0 X f16[33, 64]", f"%1 = Graph(%0) grid={grid} loop=1 {{", f"%0 = InIter arg=0 imap={cut}",
        "%1 = InIter arg=0 imap=[*]", "%2 = Const value=1/64", "%3 = Sqr(%1)", "%4 = Sum(%3) dim=1",
        "%5 = EwMul(%4, %2)", "%6 = Sqrt(%5)", "%7 = EwDiv(%1, %6)", "%8 = Max(%7) dim=0",
        f"{compared}OutSaver(%{saved}) omap={cut}", "}", "output %1 O",
    )  # fmt: skip
    return parse_graph("\n".join(lines))


def test_what_is_summed_twice_is_another_number() -> None:
    """By eight threads in one place and by four in the other: one in two thousand of the largest was none."""
    for kind in ("EwEq", "EwGe"):
        assert "computed twice" in twice(LARGEST, columns("[33]", "[0]", f"{AGAIN}%14 = {kind}(%13, %8)\n", 14))
    assert not twice(LARGEST, columns("[1]", "[*]", "%9 = EwEq(%7, %8)\n", 9))
    assert not twice(LARGEST, LARGEST)
    other = parse(HEAD + "where(v > 0, v, 0)").graph
    chosen = f"{AGAIN}%14 = Const value=0\n%15 = EwGt(%13, %14)\n%16 = Where(%15, %13)\n"
    assert not twice(other, columns("[33]", "[0]", chosen, 16)), "nothing hangs on it"


@pytest.mark.parametrize("text", [
    "where(S == max(S), S, 0)", "sum(S[:, None, :] > S[:, :, None], axis=2)", "S > S.T", "floor(S / max(S))",
    "where(S - max(S, axis=0, keepdims=True) >= 0, 1, 0)",
])  # fmt: skip
def test_nothing_is_compared_with_another_sum_of_it(text: str) -> None:
    """Nine of ten kernels that were found for `S == max(S)` computed S twice; an element ranked behind itself."""
    program = parse(f"X: f16[16, 64]\nW: f16[64, 16]\nS = X @ W\nreturn {text}").graph
    effort, target = EFFORTS["quick"], find_target(DEFAULT_TARGET)
    bounds, why = Bounds("quick", replace(effort.budget, seconds=2.0)), set[str]()
    found = [candidate.graph for candidate in unsearched(program, target)]
    for configuration in configurations(prepare(program), effort)[:6]:
        given = Task(0, program, configuration, bounds, target, 0, Moment.after(2.0), Channel(Path("/nowhere")))
        findings = explore(given).findings
        found += [candidate.graph for candidate in findings.candidates]
        why |= {rejected.why for rejected in findings.rejected}
    assert any("computed twice" in one for one in why)
    for graph in found:
        assert [op.kind for op in _every(graph)].count(OpKind.MATMUL) == 1, graph


def _every(graph: KernelGraph) -> list[Op]:
    return [inner for op in graph.ops for inner in (op.body.ops if isinstance(op.body, BlockGraph) else (op,))]


def test_what_rounding_decides_in_the_program_may_hang_on_it() -> None:
    """A sum that is compared with what is none, and what only looks like a comparison."""
    for text in ("S > X[:, :16]", "where(X[:, :16] > 0, S, 0)", "where(S > 0, S, 0.1 * S)", "maximum(S, 0)", "relu(S)"):
        program = parse(f"X: f16[16, 64]\nW: f16[64, 16]\nS = X @ W\nreturn {text}").graph
        assert not twice(program, program)
        assert all(c.verdict.accepted for c in unsearched(program, find_target(DEFAULT_TARGET)))


@pytest.mark.parametrize("returned", ["where(v == max(v, axis=0, keepdims=True), 1, 0)", "argmin(v * 3, axis=0)"])
def test_none_is_found(returned: str) -> None:
    program, effort = parse(HEAD + returned).graph, EFFORTS["quick"]
    bounds, target = Bounds("quick", replace(effort.budget, seconds=2.0)), find_target(DEFAULT_TARGET)
    why = set()
    for configuration in configurations(prepare(program), effort)[:4]:
        given = Task(0, program, configuration, bounds, target, 0, Moment.after(4.0), Channel(Path("/nowhere")))
        findings = explore(given).findings
        assert not any(twice(program, found.graph) for found in findings.candidates)
        why |= {rejected.why for rejected in findings.rejected}
    assert any("computed twice" in one for one in why) or "argmin" in returned


def test_nor_taken_from_anybody() -> None:
    target = find_target(DEFAULT_TARGET)
    torn = columns("[33]", "[0]", f"{AGAIN}%14 = EwEq(%13, %8)\n", 14)
    with pytest.raises(VerificationError, match="computed twice"):
        submitted(LARGEST, torn, target)
    taken = submitted(LARGEST, LARGEST, target)
    assert verified_again(LARGEST, taken).accepted
    assert "computed twice" in verified_again(LARGEST, replace(taken, graph=torn)).note


def test_nor_where_it_is_too_large_to_be_tried() -> None:
    """It is looked at with every axis small."""
    program = parse("X: f16[512, 4096]\nW: f16[4096, 4096]\nreturn X @ W == max(X @ W, axis=1, keepdims=True)").graph
    lines = [line for line in print_graph(program).splitlines() if not line.startswith("output")]
    again = len(program.types)
    lines += [f"%{again} = Matmul(%0, %1)", f"%{again + 1} = EwEq(%{again}, %3)", f"output %{again + 1} O"]
    torn = parse_graph("\n".join(lines))
    own = next(unsearched(program, find_target(DEFAULT_TARGET)))
    assert verified_again(program, replace(own, graph=program)).accepted
    assert "computed twice" in verified_again(program, replace(own, graph=torn)).note


@pytest.mark.parametrize("text", [
    "argmin(X @ W, axis=1)", "where(X @ W == max(X @ W, axis=1, keepdims=True), X @ W, 0)",
])  # fmt: skip
def test_what_is_put_together_unsearched_compares_nothing_so(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, target = parse(f"X: f16[32, 64]\nW: f16[64, 128]\nreturn {text}").graph, find_target(DEFAULT_TARGET)
    found = [candidate.graph for candidate in unsearched(program, target)]
    assert len(found) > 1
    assert not any(twice(program, graph) for graph in found)
    monkeypatch.setattr(twice_module, "twice", lambda *pair: "it is")
    assert [candidate.graph for candidate in unsearched(program, target)] == found[:1]
