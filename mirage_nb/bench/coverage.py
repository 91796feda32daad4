"""`bench programs`: what becomes of programs that people write, each searched for a given number of seconds.

In: names of `bench.programs`, seconds for each. Out: a row each: the best candidate's launches, what is known of them,
where they ran and how far from float64, how long all of it took; a record as JSON. With lanes, programs are searched
side by side, each by a process and on cores of its own. With a card they race eager PyTorch and torch.compile there
(`bench.kernels`); `--generated N` takes programs that nobody wrote instead (`bench.sessions`). Invariant: a row says
"executed" only of a candidate whose outputs were compared with float64.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_nb.bench.kernels import Asked, Entry, run_kernels
from mirage_nb.bench.machine import share_of, words
from mirage_nb.bench.programs import PROGRAMS, text
from mirage_nb.bench.sessions import run_generated
from mirage_nb.codegen.emitted import LibraryCall
from mirage_nb.errors import MirageError, OptionError
from mirage_nb.lang import TensorProgram, parse
from mirage_nb.options import count, positive
from mirage_nb.pipeline import Session, superoptimize
from mirage_nb.runtime.side_by_side import lines_of

if TYPE_CHECKING:
    from mirage_nb.runtime.contest.race import Peer

BUDGET = 18.0
"""Seconds of a session for a program, unless others are asked for: with its start and its end no more than 20."""
CORES = 2
"""Of each lane."""
WHY = 200
"""Characters of a reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one program.

    Attributes:
        kernels: launches of the best candidate that was executed, 0 where there is none; `library`: those of a library.
        verdict: the rung that it reached; empty where there is none.
        executed: what it ran on; empty where nothing ran.
        error: its relative error against float64 there.
        candidates: how many the search lists.
        seconds: from the start of the session to its end, compiling and execution among them.
        problem: why there is no kernel, or none of ours in it, in the session's words.
    """

    program: str
    kernels: int = 0
    library: int = 0
    verdict: str = ""
    executed: str = ""
    error: float = 0.0
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
            f"{self.error:>8.1e} {self.candidates:>5} {self.seconds:>7.1f}  {self.problem}"
        ).rstrip()


HEADER = f"{'program':<34} {'kernels':>7}  {'verdict':<12} {'executed on':<12} {'error':>8} {'found':>5} {'seconds':>7}"
"""Kernels are written as ours + a library's."""


def examined(name: str, budget: float, effort: str = "standard") -> Row:
    """What becomes of a program in a session of its own."""
    start = time.monotonic()
    try:
        session = superoptimize(text(name), name=name, effort=effort, budget=budget)
        session.result()
        best = session.best
    except MirageError as error:
        return Row(name, seconds=time.monotonic() - start, problem=error.message)
    took = time.monotonic() - start
    launches, verdict = best.emitted.launches, best.candidate.verdict
    library = sum(isinstance(launch, LibraryCall) for launch in launches)
    return Row(
        name,
        len(launches),
        library,
        verdict.kind.value if verdict is not None else "",
        best.executable.device,
        best.report.relative_error,
        len(session.snapshot().candidates),
        took,
        "" if len(launches) > library else _why_none(session),
    )


def _why_none(session: Session) -> str:
    """What the session says where nothing of ours runs."""
    now = session.snapshot()
    return "; ".join(" ".join(line.split()) for line in (*now.messages, *now.cut))[:WHY]


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
    parser.add_argument("--programs", default="", help="names or parts of them, separated by commas; default: all")
    parser.add_argument("--budget", type=positive, default=BUDGET, metavar="SECONDS", help="of search for each program")
    parser.add_argument("--share", default="0/1", metavar="I/N", help="every N-th program, from the I-th on")
    parser.add_argument("--lanes", type=count, default=1, metavar="N", help=f"so many at once, on {CORES} cores each")
    parser.add_argument("--record", metavar="FILE", help="write the rows as JSON; those that are there are kept")
    parser.add_argument("--rows", action="store_true", help="print rows as JSON, one a line, and nothing else")
    parser.add_argument(
        "--card", action="store_true", help="beside eager PyTorch and torch.compile, on the attached GPU"
    )
    parser.add_argument("--generated", type=int, metavar="N", help="N programs that nobody wrote, in whole sessions")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first of these")
    parser.set_defaults(run=_run)


def chosen(parts: str) -> list[str]:
    """The programs of these names; a part that is none stands for all that it is part of.

    Raises:
        OptionError: there is no such program.
    """
    wanted = words(parts)
    exact, parts_only = set(wanted) & set(PROGRAMS), [part for part in wanted if part not in PROGRAMS]
    names = [n for n in PROGRAMS if not wanted or n in exact or any(part in n for part in parts_only)]
    if not names:
        raise OptionError(f"no program is called like {parts!r}", hint=f"the first is {PROGRAMS[0]}")
    return names


def _run(options: argparse.Namespace) -> int:
    """Print the table; 1 where a program has no kernel."""
    if options.generated is not None:
        seeds = range(options.first, options.first + options.generated)
        return run_generated(seeds, options.lanes, options.record, rows=options.rows)
    names = share_of(chosen(options.programs), options.share)
    if options.card:
        return run_kernels(Asked(entries(names), options.budget, record=options.record))
    record = Path(options.record) if options.record else None
    kept = [Row(**row) for row in json.loads(record.read_text())] if record and record.exists() else []
    rows = [row for row in kept if row.program in names]
    missing = [name for name in names if name not in {row.program for row in rows}]
    if not options.rows:
        sys.stdout.write(HEADER + "\n" + "".join(f"{row}\n" for row in rows))
    for row in (examined(n, options.budget) for n in missing) if options.lanes == 1 else _beside(missing, options):
        rows.append(row)
        sys.stdout.write((json.dumps(asdict(row)) if options.rows else str(row)) + "\n")
        sys.stdout.flush()
        if record:
            record.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if not options.rows:
        sys.stdout.write(summary(rows) + "\n")
    return 0 if all(row.executed for row in rows) else 1


def entries(names: Sequence[str]) -> tuple[Entry, ...]:
    """Programs as rows of `bench kernels`."""
    programs = [parse(text(name), name=name) for name in names]
    return tuple(Entry(program, 1, partial(_peers, program)) for program in programs)


def _peers(program: TensorProgram) -> Mapping[str, Peer]:
    from mirage_nb.runtime.contest.race import pytorch_peers  # it needs PyTorch

    return pytorch_peers(program.graph)


def _beside(names: Sequence[str], options: argparse.Namespace) -> Iterator[Row]:
    """Rows as they come, of programs that are searched at the same time, each by an interpreter of its own."""
    command = (sys.executable, "-m", "mirage_nb", "bench", "programs", "--rows", "--budget", str(options.budget))
    left = set(names)
    for _, line in lines_of([(*command, "--programs", name) for name in names], options.lanes, CORES):
        row = Row(**json.loads(line))
        left.discard(row.program)
        yield row
    yield from (Row(name, problem="its process ended without a row") for name in names if name in left)
