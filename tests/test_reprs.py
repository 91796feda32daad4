"""What a shell shows of every object that a user can get hold of: a line, without addresses."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import mirage_nb
from mirage_nb import Session, Store, TensorProgram, Winner, superoptimize
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.contest.timing import Timing
from mirage_nb.runtime.execution.emulate import CpuModule
from mirage_nb.runtime.execution.execute import Prepared
from mirage_nb.search.session.progress import Candidate, Rejected, Snapshot
from mirage_nb.verify import Verdict

MOST = 300
DEPTH = 5
TEXT = "X: f16[16, 64]\nG: f16[64]\nW: f16[64, 128]\nZ = rms_norm(X, G) @ W\nreturn Z"
EXPENSIVE = {"wait", "result", "tune", "stop"}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    path = tmp_path_factory.mktemp("store") / "s"
    found = superoptimize(TEXT, effort="quick", name="fused", store=path)
    found.result(300)
    assert found.best is not None
    return found


@cache
def ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] in ("mirage_nb", "mirage_magics")


def inside(value: Any) -> Iterator[Any]:
    """What an object of ours holds in public: its fields and properties, and the entries of those."""
    if isinstance(value, (tuple, list)):
        yield from value[:6]
    elif isinstance(value, dict):
        yield from list(value.values())[:6]
    elif ours(type(value)):
        names = {f.name for f in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else set()
        names |= {n for n, m in inspect.getmembers(type(value)) if isinstance(m, property)}
        names |= set(getattr(value, "__dict__", ()))
        for name in sorted(n for n in names if not n.startswith("_")):
            yield getattr(value, name)


def reachable(start: Any) -> dict[int, Any]:
    found: dict[int, Any] = {}
    level = [start]
    for _ in range(DEPTH):
        level = [one for value in level for one in inside(value) if id(one) not in found and not _is_plain(one)]
        found |= {id(one): one for one in level}
    return found


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, bytes, int, float, type, np.ndarray)) or inspect.isroutine(value)


def short(value: Any) -> None:
    text = repr(value)
    assert len(text) <= MOST and "\n" not in text, text[:1000]
    assert not re.search(r"0x[0-9a-f]{6,}", text), text


def test_everything_that_a_session_leads_to_has_a_short_repr(session: Session) -> None:
    winner = session.best
    assert winner is not None
    rng = np.random.default_rng(0)
    tensors = [rng.standard_normal(i.type.shape).astype(np.float16) for i in session.program.graph.inputs]
    stored = Store(session.stored[1]).load("fused") if session.stored else None
    starts = [session, winner, session.snapshot(), winner.prepare(*tensors), winner.plan(), stored, session.program,
              mirage_nb.prove(session.program.graph, winner.graph), Store("x"), *mirage_nb.TARGETS.values(),
              Timing("a kernel", 1.0, 0.9, 1.1, 40)]  # fmt: skip
    seen: set[type] = set()
    for start in starts:
        short(start)
        for value in reachable(start).values():
            seen.add(type(value))
            if ours(type(value)):
                short(value)
    assert {KernelGraph, Candidate, Verdict, Snapshot, TensorProgram} <= seen | set(map(type, starts))
    assert {type(s) for s in starts} >= {Session, Winner, Snapshot, Prepared}


def test_they_say_what_matters(session: Session) -> None:
    winner, snapshot = session.best, session.snapshot()
    assert winner is not None
    digest = winner.candidate.digest[:8]
    line = f"{digest}: 1 kernel, {winner.candidate.estimate_us:.2f} us estimated, ran on CPU edition, proved"
    assert repr(winner).startswith(f"<Winner {line}, relative error ")
    assert repr(session) == f"<Session fused for h200: finished, best {line}>"
    assert repr(snapshot).startswith("<Snapshot fused: finished, ") and f"best {line}" in repr(snapshot)
    assert repr(dataclasses.replace(snapshot, name="")).startswith("<Snapshot without a name: finished, ")
    assert repr(snapshot.candidates[0]) == f"<Candidate {line}>"
    assert repr(session.program).startswith("<TensorProgram fused of <KernelGraph ")
    assert "X f16[16, 64], G f16[64], W f16[64, 128] -> Z f16[16, 128]" in repr(winner.graph)
    cubin = r"<Cubin for sm_90a, [\d,]+ bytes: \w+ \(\d+ registers\)"
    assert winner.cubin is None or re.match(cubin, repr(winner.cubin))
    rejected = Rejected("a" * 64, winner.graph, "", 1, winner.candidate.verdict, "it differs " * 99)
    short(rejected)
    short(CpuModule('#include "mirage_device.cuh"\nextern "C" __global__ void k(float* y) { y[0] = 1; }'))


def test_graphs_of_whatever_size_have_a_line() -> None:
    text = "".join(f"a_rather_long_name_of_a_tensor_{n}: f16[16, 64]\n" for n in range(40))
    names = " + ".join(f"a_rather_long_name_of_a_tensor_{n}" for n in range(40))
    program = mirage_nb.parse(f"{text}return {names}")
    short(program)
    short(program.graph)
    assert "and 36 more" in repr(program.graph)
    broken = dataclasses.replace(program.graph, outputs=(9999,))
    short(broken)


def public() -> list[str]:
    return sorted(mirage_nb.__all__)


@pytest.mark.parametrize("name", public())
def test_help_teaches(name: str) -> None:
    """Every public name says what it is, and functions and classes what they take and give; classes show a use."""
    thing = getattr(mirage_nb, name)
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return
    said = inspect.getdoc(thing) or ""
    assert len(said) > 40 and not said.startswith(f"{name}("), "a docstring, not a signature"
    text = pydoc.plain(pydoc.render_doc(thing))
    assert said.splitlines()[0] in text and not re.search(r"0x[0-9a-f]{6,}", text)
    for method, value in inspect.getmembers(thing):
        if not method.startswith("_") and inspect.isroutine(value) and ours(thing):
            assert inspect.getdoc(value), f"{name}.{method}"


@pytest.mark.parametrize("kind", [Session, Winner, Snapshot, Candidate, Verdict, KernelGraph])
def test_what_a_session_hands_out_shows_how_it_is_used(kind: type) -> None:
    assert ">>>" in (inspect.getdoc(kind) or "") or "::" in (inspect.getdoc(kind) or "")
