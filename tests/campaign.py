"""Generated programs through whole sessions: `python -m tests.campaign --first 0 --count 100 [--search] [--lanes 8]`.

In: seeds. Out: every program that shows a defect, and the counts: internal errors, exceptions, programs without a
candidate or a kernel; of the others, whose winners are generated kernels. With `--search` some configurations are
explored, the best muGraph is emitted and proved, and nothing is compiled or executed; a session executes its kernels
and compares with float64. With lanes, so many processes run at once, each on a core of its own.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from mirage_nb import superoptimize
from mirage_nb.codegen import emit
from mirage_nb.errors import MirageError
from mirage_nb.lang import parse
from mirage_nb.runtime.passes import verify_final
from mirage_nb.runtime.side_by_side import lines_of
from mirage_nb.runtime.without_gpu import is_generated
from mirage_nb.search import EFFORTS, configurations, prepare
from mirage_nb.search.session.findings import Bounds
from mirage_nb.search.session.mailbox import Mailbox, Moment
from mirage_nb.search.session.worker import Task, explore
from mirage_nb.targets import DEFAULT_TARGET, find_target
from tests.generated import program

CONFIGURATIONS = 3
"""Of a program, where it is only searched."""
SECONDS = 1.0
"""For each of them."""
INTERNAL = "internal error"
GENERATED, PLAIN = "", "well: library kernels"
"""What became of a program that shows no defect."""
BATCH = 20
"""Programs that one process takes."""


def searched(text: str) -> str:
    """A program is searched in this process: "" if all is well, or the mistake that a session would tell; raises what
    is none."""
    graph, effort, target = parse(text).graph, EFFORTS["quick"], find_target(DEFAULT_TARGET)
    bounds = Bounds("quick", replace(effort.budget, seconds=SECONDS))
    mailbox = Mailbox(Path("/nowhere"))
    found = []
    try:
        for configuration in configurations(prepare(graph), effort)[:CONFIGURATIONS]:
            done = explore(Task(0, graph, configuration, bounds, target, 0, Moment.after(SECONDS), mailbox))
            found += done.findings.candidates
        if found:
            best = min(found, key=lambda candidate: candidate.rank)
            emit(best.graph, target)
            verify_final(graph, best, True)
    except MirageError as error:
        return str(error)
    return ""


def whole(text: str, executor: ThreadPoolExecutor) -> str:
    """What became of a session for a program: GENERATED or PLAIN if it has a winner."""
    session = superoptimize(text, effort="quick", budget=1, executor=executor)
    session.result(300)
    snapshot = session.snapshot()
    told = (*snapshot.cut, *snapshot.messages, snapshot.why or "", *(c.note for c in snapshot.candidates))
    mistakes = [line for line in told if INTERNAL in line]
    if mistakes:
        return mistakes[0]
    if not session.winners:
        return f"no kernel: {session.why_no_kernel[:300]}"
    return GENERATED if is_generated(session.best.candidate.graph) else PLAIN


def told(seed: int, search: bool, executor: ThreadPoolExecutor) -> str:
    """What became of the program of a seed."""
    return searched(program(seed)) if search else whole(program(seed), executor)


def here(seeds: range, search: bool) -> Iterator[tuple[int, str]]:
    """Seeds, and what became of their programs, one after the other in this process."""
    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as runner:
        for seed in seeds:
            outcome = runner.submit(told, seed, search, executor)
            error = outcome.exception()
            raised = "exception: " + "".join(traceback.format_exception(error)[-4:]) if error is not None else ""
            yield seed, raised or outcome.result()


def beside(seeds: range, search: bool, lanes: int) -> Iterator[tuple[int, str]]:
    """The same in many processes, as they come."""
    command = (sys.executable, "-m", "tests.campaign", "--rows", *(["--search"] if search else []))
    parts = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
    commands = [(*command, "--first", str(part.start), "--count", str(len(part))) for part in parts]
    left = set(seeds)
    for _, line in lines_of(commands, lanes, 1):
        seed, what = json.loads(line)
        left.discard(seed)
        yield seed, what
    yield from ((seed, "ended: its process ended without a word") for seed in sorted(left))


def main() -> None:
    """The campaign."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="tell what was seen by then, and end")
    parser.add_argument("--rows", action="store_true", help="a line of JSON for each program, and nothing else")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.count)
    outcomes: collections.Counter[str] = collections.Counter()
    started = time.monotonic()
    for seed, what in beside(seeds, asked.search, asked.lanes) if asked.lanes > 1 else here(seeds, asked.search):
        outcomes[what if what in (GENERATED, PLAIN) else what.partition(":")[0]] += 1
        if asked.rows:
            print(json.dumps([seed, what]), flush=True)
        elif what not in (GENERATED, PLAIN):
            print(f"--- {seed}: {what}\n{program(seed)}\n", flush=True)
        if time.monotonic() - started > asked.seconds:
            break
    if not asked.rows:
        shown = {what or "well": count for what, count in outcomes.items()}
        print(f"{shown} in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
