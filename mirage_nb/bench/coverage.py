"""`bench programs`: what becomes of programs that people write, each searched for a given number of seconds.

In: names of `bench.programs`, seconds for each. Out: a row each: the best candidate's kernels, what is known of them,
where they ran, how long all of it took; a record as JSON. Invariant: a row says "executed" only of a
candidate whose outputs were compared with float64.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mirage_nb.bench.programs import PROGRAMS, text
from mirage_nb.bench.share import share_of
from mirage_nb.errors import MirageError, OptionError
from mirage_nb.ir import OpKind
from mirage_nb.pipeline import superoptimize

BUDGET = 20.0
"""Seconds of search for a program, unless others are asked for."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one program.

    Attributes:
        kernels: launches of the best candidate that was executed, 0 where there is none; `library`: those of a library.
        verdict: the rung that it reached; empty where there is none.
        executed: what it ran on; empty where nothing ran.
        candidates: how many the search lists.
        seconds: from the start of the session to its end, compiling and execution among them.
        problem: why there is no kernel, in the session's words.
    """

    program: str
    kernels: int = 0
    library: int = 0
    verdict: str = ""
    executed: str = ""
    candidates: int = 0
    seconds: float = 0.0
    problem: str = ""

    @property
    def generated(self) -> bool:
        """Whether a kernel of ours is part of the best candidate."""
        return self.kernels > self.library

    def __str__(self) -> str:
        parts = f"{self.kernels - self.library} + {self.library}" if self.kernels else "-"
        return (
            f"{self.program:<34} {parts:>7}  {self.verdict or '-':<12} {self.executed or '-':<12} "
            f"{self.candidates:>5} {self.seconds:>7.1f}  {self.problem}"
        ).rstrip()


HEADER = f"{'program':<34} {'kernels':>7}  {'verdict':<12} {'executed on':<12} {'found':>5} {'seconds':>7}"
"""Kernels are written as ours + a library's."""


def examined(name: str, budget: float, effort: str = "standard") -> Row:
    """What becomes of a program in a session of its own."""
    start = time.monotonic()
    try:
        session = superoptimize(text(name), name=name, effort=effort, budget=budget)
        snapshot = session.result()
        best = session.best
    except MirageError as error:
        return Row(name, seconds=time.monotonic() - start, problem=error.message)
    took = time.monotonic() - start
    found = len(snapshot.candidates)
    graph, verdict = best.candidate.graph, best.candidate.verdict
    ours = sum(op.kind is OpKind.GRAPH for op in graph.ops)
    return Row(
        name,
        graph.kernel_count,
        graph.kernel_count - ours,
        verdict.kind.value if verdict is not None else "",
        best.executable.device,
        found,
        took,
    )


def summary(rows: Sequence[Row]) -> str:
    """How many ended with a verified kernel that ran."""
    ran = [row for row in rows if row.executed]
    ours = [row for row in ran if row.generated]
    proved = sum(row.verdict == "proved" for row in ran)
    slowest = max((row.seconds for row in rows), default=0.0)
    return (
        f"{len(ran)} of {len(rows)} end with kernels that are verified and executed, {proved} of them proved; "
        f"{len(ours)} with generated ones, {len(ran) - len(ours)} by library kernels alone; at most {slowest:.0f} s"
    )


def add_programs(kinds: Any) -> None:
    """Add `bench programs` to the command line."""
    parser = kinds.add_parser("programs", help="what becomes of programs that people write")
    parser.add_argument("--programs", default="", help="parts of names, separated by commas; default: all")
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="SECONDS", help="of search for each program")
    parser.add_argument("--share", default="0/1", metavar="I/N", help="every N-th program, from the I-th on")
    parser.add_argument("--record", metavar="FILE", help="write the rows as JSON, after every program")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    """Print the table; 1 where a program has no kernel."""
    parts = [part for part in options.programs.split(",") if part]
    names = [name for name in PROGRAMS if not parts or any(part in name for part in parts)]
    if not names:
        raise OptionError(f"no program is called like {options.programs!r}", hint=f"the first is {PROGRAMS[0]}")
    rows: list[Row] = []
    sys.stdout.write(HEADER + "\n")
    for name in share_of(names, options.share):
        rows.append(examined(name, options.budget))
        sys.stdout.write(f"{rows[-1]}\n")
        sys.stdout.flush()
        if options.record:
            Path(options.record).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    sys.stdout.write(summary(rows) + "\n")
    return 0 if all(row.executed for row in rows) else 1
