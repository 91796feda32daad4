"""`bench first`: how long a person waits, on the attached GPU: for the first timed kernel, for 95 % of the final speed,
for the final one, and for the end; and what a session does meanwhile.

In: programs, seconds for each session. Out: a table, and with `--phases` the stages of every session with their
seconds. Every session begins in this process, one after the other, so only the first pays for what is loaded once.
Each begins as if there had been none of its program; with `--again` a second one follows, which knows the winner.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirage_nb.bench.kernels import program_of
from mirage_nb.bench.machine import card, check_seconds, words
from mirage_nb.lang import TensorProgram, parse
from mirage_nb.pipeline import Session, superoptimize
from mirage_nb.runtime.contest.remembered import forget
from mirage_nb.runtime.passes import Timed
from mirage_nb.runtime.requested import precise
from mirage_nb.targets import EXACT

PROGRAMS = (
    "rmsnorm", "gated_mlp", "lora", "gqa", "qknorm", "ntrans", "softmax", "layer", "prefill T=1024", "decode B=16",
    "linear M=256 N=4096 K=4096", "gelu_softmax",
)  # fmt: skip
"""Workloads and problems of `bench breadth` from one row to thousands, and a wide softmax."""
OWN = {"softmax": "X: f16[2048, 32000]\nreturn softmax(X)"}
"""Programs that stand in no other table."""
NEAR = 0.95
"""Of the final speed."""
TICK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Phase:
    """What a session did from one moment to another, in seconds from its start."""

    stage: str
    begun: float
    ended: float


@dataclass(frozen=True, slots=True)
class Waited:
    """One session: microseconds of the final kernel, and seconds until the first kernel was timed, until one of 95 % of
    the final speed, until the final one, until the end; None where nothing was timed."""

    program: str
    us: float | None
    first: float | None
    near: float | None
    final: float | None
    end: float
    what: str
    phases: tuple[Phase, ...]
    said: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """As a row of the table."""
        moments = (self.first, self.near, self.final, self.end)
        seconds = [f"{s:>8.1f}" if s is not None else f"{'-':>8}" for s in moments]
        return f"{self.program:<34}{'-' if self.us is None else f'{self.us:.2f}':>10}{''.join(seconds)}  {self.what}"


def add_first(kinds: Any) -> None:
    """Add the command."""
    first = kinds.add_parser("first", help="seconds to the first and to the final kernel, on the attached GPU")
    first.add_argument("--programs", default=",".join(PROGRAMS), help="names, separated by commas; default: twelve")
    first.add_argument("--budget", type=float, metavar="SECONDS", help="what one session may take; default: no limit")
    first.add_argument("--phases", action="store_true", help="show what each session did, and how long")
    first.add_argument("--again", action="store_true", help="a second session of each, which begins with the winner")
    first.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    gpu = card("first", hint="see `python -m mirage_nb doctor`")
    check_seconds(options, "budget")
    programs = [(name, named(name)) for name in words(options.programs)]
    sys.stdout.write(f"{'program':<34}{'us':>10}{'first s':>8}{'95 % s':>8}{'final s':>8}{'end s':>8}  winner\n")
    for name, program in programs:
        forget(program.graph, precise(None, gpu, EXACT, program.graph), gpu)
        for said in (name, f"{name}, again")[: 1 + options.again]:
            _show(wait(said, superoptimize(program, name=name, budget=options.budget)), options.phases)
    return 0


def _show(waited: Waited, phases: bool) -> None:
    sys.stdout.write(f"{waited.line}\n")
    if phases:
        sys.stdout.writelines(f"    {p.begun:6.2f} to {p.ended:6.2f}  {p.stage}\n" for p in waited.phases)
        sys.stdout.writelines(f"    said: {message}\n" for message in waited.said)
    sys.stdout.flush()


def named(name: str) -> TensorProgram:
    """A program by its name. Raises OptionError where there is none."""
    if name in OWN:
        return parse(OWN[name], name=name)
    found = program_of(name, 1)
    assert found is not None  # every workload has a batch of 1
    return found


def wait(name: str, session: Session) -> Waited:
    """Watch a session to its end."""
    began = time.monotonic()
    seen: list[tuple[float, str]] = []
    while True:
        ended = session.wait(TICK_SECONDS)
        stage = re.sub(r"[0-9a-f]{8}\b|\d+(\.\d+)?( of \d+| us| s left)?", "", session.stage).strip(" ,:")
        if not seen or seen[-1][1] != stage:
            seen.append((time.monotonic() - began, stage))
        if ended:
            break
    ended_at, phases = time.monotonic() - began, tuple(_phases(seen, began))
    found = waited(name, session.timed, ended_at, _winner(session), phases)
    return replace(found, said=session.snapshot().messages)


def _winner(session: Session) -> str:
    best = next(iter(session.winners), None)
    return f"{best.candidate.configuration}: {best.emitted!r}"[:100] if best is not None else session.why_no_kernel


def _phases(seen: Sequence[tuple[float, str]], began: float) -> Iterator[Phase]:
    end = time.monotonic() - began
    for place, (at, stage) in enumerate(seen):
        until = seen[place + 1][0] if place + 1 < len(seen) else end
        if until - at >= TICK_SECONDS:
            yield Phase(stage or "nothing", at, until)


def waited(name: str, timed: Sequence[Timed], end: float, what: str, phases: tuple[Phase, ...]) -> Waited:
    """What these timings, in order, come to."""
    best = min((t.us for t in timed), default=None)
    if best is None:
        return Waited(name, None, None, None, None, end, what, phases)
    near, final = (next(t.at for t in timed if t.us * share <= best) for share in (NEAR, 1.0))
    return Waited(name, best, timed[0].at, near, final, end, what, phases)
