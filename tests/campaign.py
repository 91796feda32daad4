"""Generated programs through whole sessions: `python -m tests.campaign --first 0 --count 100 [--search]`.

In: seeds. Out: a line for every program that shows a defect, and the counts: internal errors, exceptions, programs
without a candidate or a kernel. With `--search` some configurations are explored, the best muGraph is
emitted and proved, and nothing is compiled or executed; a session executes its kernels and compares with float64.
"""

from __future__ import annotations

import argparse
import collections
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from mirage_nb import superoptimize
from mirage_nb.codegen import emit
from mirage_nb.errors import MirageError
from mirage_nb.lang import parse
from mirage_nb.runtime.passes import verify_final
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
    """What became of a session for a program: "" if it has a winner."""
    session = superoptimize(text, effort="quick", budget=1, executor=executor)
    session.result(300)
    snapshot = session.snapshot()
    told = (*snapshot.cut, *snapshot.messages, snapshot.why or "", *(c.note for c in snapshot.candidates))
    mistakes = [line for line in told if INTERNAL in line]
    if mistakes:
        return mistakes[0]
    if session.best is None:
        return f"no kernel: {'; '.join([*snapshot.messages, *snapshot.cut])[:300]}"
    return ""


def told(seed: int, search: bool, executor: ThreadPoolExecutor) -> str:
    """What became of the program of a seed."""
    return searched(program(seed)) if search else whole(program(seed), executor)


def main() -> None:
    """The campaign."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--search", action="store_true")
    asked = parser.parse_args()
    outcomes: collections.Counter[str] = collections.Counter()
    started = time.monotonic()
    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as runner:
        for seed in range(asked.first, asked.first + asked.count):
            outcome = runner.submit(told, seed, asked.search, executor)
            error = outcome.exception()
            text = program(seed) if error is None else ""
            what = outcome.result() if error is None else "".join(traceback.format_exception(error)[-4:])
            outcomes["exception" if error else what.partition(":")[0] or "well"] += 1
            if what:
                print(f"--- {seed}: {what}\n{text}\n", flush=True)
    print(f"{dict(outcomes)} in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
