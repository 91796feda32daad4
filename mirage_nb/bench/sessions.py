"""`bench programs --generated N`: programs that nobody wrote, each through a whole session.

In: seeds. Out: what became of the program of each, and counts: winners that are generated kernels, executed on the CPU
edition (or the attached GPU) and compared with float64, winners of a library's kernels, and defects: internal errors,
exceptions, programs without a kernel. Invariant: what counts as agreeing with float64 was executed by its session, on
random and on hard inputs, and passed the gate (`verify.reals.float_gate`).
"""

from __future__ import annotations

import collections
import json
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path

from mirage_nb.bench.generated import program
from mirage_nb.pipeline import superoptimize
from mirage_nb.runtime.contest.without_gpu import is_generated
from mirage_nb.runtime.many_calls import one_thread
from mirage_nb.runtime.side_by_side import lines_of

INTERNAL = "internal error"
SECONDS = 1.0
"""Of search for a program: most are small."""
PATIENCE = 300.0
"""Seconds within which a session has to end, come what may."""
BATCH = 20
"""Programs that one process takes, where several run side by side."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of the program of a seed.

    Attributes:
        executed: what its winner ran on; `generated`: a kernel of ours is part of it.
        error: of the winner against float64, relative; `allowed`: what the program's own rounding explains.
        defect: what went wrong, if anything did.
    """

    seed: int
    executed: str = ""
    generated: bool = False
    error: float = 0.0
    allowed: float = 0.0
    defect: str = ""


def session_of(seed: int, executor: Executor, seconds: float = SECONDS) -> Fate:
    """A whole session for the program of a seed."""
    session = superoptimize(program(seed), effort="quick", budget=seconds, executor=executor)
    session.result(PATIENCE)
    snapshot = session.snapshot()
    told = (*snapshot.cut, *snapshot.messages, snapshot.why or "", *(c.note for c in snapshot.candidates))
    mistakes = [line for line in told if INTERNAL in line]
    if mistakes:
        return Fate(seed, defect=mistakes[0])
    if not session.winners:
        return Fate(seed, defect=f"no kernel: {session.why_no_kernel[:300]}")
    best = session.best
    defect = "" if best.report.ok else f"handed out although {best.report.note}"
    generated = is_generated(best.candidate.graph)
    return Fate(seed, best.executable.device, generated, best.report.relative_error, best.report.allowed, defect)


def here(seeds: Sequence[int]) -> Iterator[Fate]:
    """The fates of seeds, one after the other in this process."""
    with one_thread() as executor:
        for seed in seeds:
            try:
                yield session_of(seed, executor)
            except Exception as error:  # noqa: BLE001  # this is what a campaign looks for
                yield Fate(seed, defect=f"exception: {''.join(traceback.format_exception(error)[-4:])}")


def beside(seeds: range, lanes: int) -> Iterator[Fate]:
    """The same in many processes, as they come, each on a core of its own."""
    command = (sys.executable, "-m", "mirage_nb", "bench", "programs", "--rows")
    parts = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
    commands = [(*command, "--generated", str(len(part)), "--first", str(part.start)) for part in parts]
    left = set(seeds)
    for _, line in lines_of(commands, lanes, 1):
        fate = Fate(**json.loads(line))
        left.discard(fate.seed)
        yield fate
    yield from (Fate(seed, defect="ended: its process ended without a word") for seed in sorted(left))


def summary(fates: Sequence[Fate]) -> str:
    """The counts."""
    well = [fate for fate in fates if not fate.defect]
    ours = collections.Counter(fate.executed for fate in well if fate.generated)
    said = "".join(
        f"; {count} by generated kernels that agree with float64 on the {what}" for what, count in ours.items()
    )
    kinds = collections.Counter(fate.defect.partition(":")[0] for fate in fates if fate.defect)
    wrong = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    library = sum(not fate.generated for fate in well)
    return f"{len(well)} of {len(fates)} sessions end well{said}; {library} by library kernels; defects: {wrong}"


def run_generated(seeds: range, lanes: int, record: str | None, *, rows: bool) -> int:
    """Print defects with their programs as they come, then the counts; 1 where there are any. A record keeps fates,
    a line each, and what it has is not run again. rows: print fates as JSON instead, and nothing else."""
    kept = _kept(Path(record)) if record else {}
    fates = [kept[seed] for seed in seeds if seed in kept]
    started = time.monotonic()
    missing = range(next((s for s in seeds if s not in kept), seeds.stop), seeds.stop)
    for fate in beside(missing, lanes) if lanes > 1 else here(missing):
        if fate.seed in kept:
            continue
        fates.append(fate)
        line = json.dumps(asdict(fate))
        if record:
            with Path(record).open("a") as file:
                file.write(line + "\n")
        if rows:
            sys.stdout.write(line + "\n")
        elif fate.defect:
            sys.stdout.write(f"--- {fate.seed}: {fate.defect}\n{program(fate.seed)}\n")
        sys.stdout.flush()
    if not rows:
        sys.stdout.write(f"{summary(fates)}; {time.monotonic() - started:.0f} s\n")
    return 1 if any(fate.defect for fate in fates) else 0


def _kept(record: Path) -> dict[int, Fate]:
    """The fates of a record, if it is there."""
    lines = record.read_text().splitlines() if record.exists() else []
    return {fate.seed: fate for fate in (Fate(**json.loads(line)) for line in lines)}
