"""`bench kernels`: our kernels against every peer, in one run on the attached GPU.

For every workload: search, verify, compile and time as a user would, tune if asked to, then race the winner against
the peers, back to back and behind a foreign kernel (see `contest.timing`). Prints one line per workload and batch
size: our median and spread, the practical floor and how near we are to it, the best correct peer, both ways, and the
smaller of the two ratios, which is the one that counts; at the end their geometric mean. `--from FILE` prints and draws
a record; it needs no GPU. A row's own times are back to back; `after` has those behind a foreign kernel.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_nb.bench.machine import card, columns, keep, machine, openable, reading
from mirage_nb.bench.problems import PROBLEMS
from mirage_nb.bench.workloads import WORKLOADS, workload
from mirage_nb.codegen import Options, variants
from mirage_nb.errors import MissingPartError, OptionError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.text import print_graph
from mirage_nb.lang import TensorProgram, parse
from mirage_nb.pipeline import Session, Winner, superoptimize
from mirage_nb.runtime.contest.timing import Timing, time_launches
from mirage_nb.runtime.execution.torch_program import torch_dtype
from mirage_nb.runtime.gpu import TURN, Gpu
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target

if TYPE_CHECKING:
    from mirage_nb.runtime.contest.race import Peer

OURS = "mirage_nb"
RACE_SECONDS = 0.6
"""So long a race goes on with calls back to back, and with calls behind a foreign kernel, if they are short."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """A row that is to be measured: a program at a batch size, and what makes its peers, on a machine that has them."""

    program: TensorProgram
    batch: int
    peers: Callable[[], Mapping[str, Peer]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured: the rows, seconds of search and of tuning for each, files to write, the commit that the
    record names, where the checkout does not know it, and the store that keeps the searches."""

    entries: tuple[Entry, ...]
    budget: float | None = None
    tune: float | None = None
    record: str | None = None
    figure: str | None = None
    revision: str | None = None
    store: str | None = None


def workload_entries(names: Sequence[str], batches: Sequence[int]) -> tuple[Entry, ...]:
    """The workloads at these batch sizes."""
    wanted = [(program, b) for name in names for b in batches if (program := program_of(name, b)) is not None]
    return tuple(Entry(program, batch, partial(_peers, program)) for program, batch in wanted)


def _peers(program: TensorProgram) -> Mapping[str, Peer]:
    from mirage_nb.bench.idioms import workload_peers  # it needs PyTorch

    return workload_peers(program.name, program.graph)


def run_kernels(asked: Asked) -> int:
    """Measure every row; print the table; write record and figure. Returns an exit code.

    Raises:
        MissingPartError: no GPU, or no torch.
        StoreError: a file cannot be written; found out before anything is measured.
    """
    gpu = card("kernels")
    if importlib.util.find_spec("torch") is None:
        raise MissingPartError("the peers need PyTorch", hint="pip install 'mirage-nb[torch]'")
    openable(asked.record)
    openable(asked.figure)
    origin = machine(gpu, asked.revision)
    rows: list[Row] = []
    for entry in asked.entries:
        # One after the other, as a user has them: peers that are compiled and raced would take a session's seconds.
        session = _ended(entry, asked)
        try:
            rows.append(_measure(entry, session, gpu))
        except Exception as error:  # noqa: BLE001  # one row must not cost the others
            sys.stderr.write(f"{entry.program.name} B={entry.batch} failed: {error}\n")
            rows.append(_failed(entry, session, error))
        keep(asked.record, {**origin, "rows": rows})  # what was measured is kept, whatever happens to the next
    _show(rows, gpu.target() or find_target(DEFAULT_TARGET), origin, asked.figure)
    return 0 if all(row["ours_us"] is not None for row in rows) else 1


def show_record(paths: Sequence[str], figure: str | None, joined: str | None = None) -> int:
    """Print the table of a record, or of several of one card joined, and draw its figure; no GPU needed.

    Args:
        joined: where to write the joined record.

    Raises:
        OptionError: one cannot be read, they are of different cards or commits, or two have the same row.
    """
    openable(figure)
    openable(joined)
    with reading(", ".join(paths), "kernels"):
        record = join_records([read_record(Path(path)) for path in paths])
        _show(record["rows"], find_target(DEFAULT_TARGET), record, figure)
    keep(joined, record)
    return 0


def join_records(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One record of the rows of all, in the order of the workloads. Raises OptionError when they do not go together."""
    first, *others = records
    for key in ("card", "commit", "versions"):
        if any(other.get(key) != first.get(key) for other in others):
            raise OptionError(f"records that differ in their {key} are no one record")
    order = {name: place for place, name in enumerate((*WORKLOADS, *(problem.name for problem in PROBLEMS)))}
    rows = sorted(
        (row for record in records for row in record["rows"]),
        key=lambda row: (order.get(row["workload"], len(order)), row["B"]),
    )
    twice = [(a["workload"], a["B"]) for a, b in pairwise(rows) if (a["workload"], a["B"]) == (b["workload"], b["B"])]
    if twice:
        raise OptionError(f"two records have {twice[0][0]} B={twice[0][1]}")
    return {**first, "rows": rows} if others else first


def read_record(path: Path) -> dict[str, Any]:
    """A record of `bench kernels`. Raises OptionError when it cannot be read."""
    with reading(path, "kernels"):
        record: dict[str, Any] = json.loads(path.read_text())
        for row in record["rows"]:
            _ = row["workload"], row["B"] + 1, row["ours_us"], row["peers"].items()
    return record


def _show(rows: Sequence[Row], target: Target, origin: dict[str, Any], figure: str | None) -> None:
    where = ", ".join(str(origin[key]) for key in ("card", "date", "commit") if origin.get(key))
    sys.stdout.write(f"{where}\n{table(rows, target)}\n")
    if figure:
        from mirage_nb.bench.kernels_figure import kernels_figure  # matplotlib, an extra

        kernels_figure(rows, title=where).savefig(figure)


def program_of(name: str, batch: int) -> TensorProgram | None:
    """A workload at a batch size, or a problem of `bench breadth`; None for one that is published without a batch,
    unless that is 1."""
    for problem in PROBLEMS:
        if problem.name == name:
            return problem.program()
    program = parse(workload(name), name=name)
    if "B" in program.sizes:
        return parse(workload(name), name=name, sizes={"B": batch})
    return program if batch == 1 else None


def recorded_way(graph: KernelGraph, said: str | None, target: Target) -> Options:
    """The way to emit a muGraph that a record says, the default one if it says none; options that are younger than
    the record have their defaults.

    Raises:
        OptionError: it is no way to emit it any more.
    """
    wanted = dict(re.findall(r"(\w+)=(\w+)", said or ""))
    younger = {field.name: str(field.default) for field in fields(Options)} if wanted else {}
    for way in variants(graph, target):
        if all(str(getattr(way, name, None)) == value for name, value in {**younger, **wanted}.items()):
            return way
    raise OptionError(f"this muGraph is emitted no more as {said}")


def _ended(entry: Entry, asked: Asked) -> Session:
    """A session from its start to its end, tuned if asked for; one that failed has a row that says so."""
    name = f"{entry.program.name}-{entry.batch}"
    session = superoptimize(entry.program, name=name, budget=asked.budget, store=asked.store)
    try:
        session.wait()
        if asked.tune is not None and session.winners:
            session.tune(seconds=asked.tune)
            session.wait()
    except BaseException:  # Ctrl-C: nobody would hold it
        session.stop()
        raise
    return session


def _measure(entry: Entry, session: Session, gpu: Gpu) -> Row:
    """The row of a session that has ended: its winner beside every peer."""
    from mirage_nb.runtime.contest.race import Track, doubt
    from mirage_nb.runtime.execution.launch import GpuExecutable

    program = entry.program
    winner = next(iter(session.winners), None)
    ran = winner.executable if winner is not None else None
    ours = {OURS: ran} if isinstance(ran, GpuExecutable) else {}
    with TURN:
        laps = Track(program.graph, gpu, session.input_scale).race(ours, entry.peers(), seconds=RACE_SECONDS)
        call_us = _call_us(program, winner) if winner is not None and ours else None
    snapshot = session.snapshot()
    doubtful = doubt(laps, gpu)
    return {
        "workload": program.name,
        "B": entry.batch,
        **_standing({lap.name: lap.chain for lap in laps if lap.chain}),
        "after": _standing({lap.name: lap.timing for lap in laps if lap.timing}),
        "error": next((lap.error for lap in laps if lap.name == OURS), None),
        "floor_us": floor_us(program, session.target),
        "call_us": call_us,
        "mugraph": print_graph(winner.candidate.graph) if winner is not None else None,
        "emitted": str(winner.emitted.options) if winner is not None else None,
        "verdict": str(winner.candidate.verdict) if winner is not None else None,
        "session_seconds": round(snapshot.seconds, 3),  # until its winner, its turns on the card included
        "timed": sum(c.time_us is not None for c in snapshot.candidates),
        "messages": [*snapshot.messages, *([doubtful] if doubtful else [])],
        "left_out": {lap.name: lap.note or "not captured" for lap in laps if lap.timing is None},
    }


def _standing(timed: Mapping[str, Timing]) -> Row:
    """Our time and spread, and the peers' times, the best of them by name."""
    mine = timed.get(OURS)
    peers = {name: timing.median_us for name, timing in timed.items() if name != OURS}
    best = min(peers, key=lambda name: peers[name], default=None)
    return {
        "ours_us": mine.median_us if mine else None,
        "spread_us": [mine.low_us, mine.high_us] if mine else None,
        "peer": best,
        "peer_us": peers[best] if best else None,
        "peers": peers,
    }


def _call_us(program: TensorProgram, winner: Winner) -> float:
    """What a prepared call costs in Python."""
    import torch

    inputs = [torch.zeros(i.type.shape, dtype=torch_dtype(torch, i.type.dtype), device="cuda")
              for i in program.graph.inputs]  # fmt: skip
    return time_launches(winner.prepare(*inputs), torch.cuda.synchronize)


def _failed(entry: Entry, session: Session, error: Exception) -> Row:
    """The row of a workload that could not be measured."""
    empty = dict.fromkeys(("error", "call_us", "mugraph", "emitted", "verdict", "session_seconds"))
    messages = [*session.snapshot().messages, f"not measured: {error}"]
    floor = floor_us(entry.program, session.target)
    return {
        "workload": entry.program.name, "B": entry.batch, **_standing({}), **empty, "floor_us": floor, "timed": 0,
        "messages": messages, "left_out": {},
    }  # fmt: skip


def floor_us(program: TensorProgram, target: Target) -> float:
    """What one kernel would take that did nothing but read the inputs and write the outputs once: the target's
    start-up of a kernel, and its bandwidth as pure-read kernels reach it (see `mirage_nb.targets`)."""
    tensors = (*(i.type for i in program.graph.inputs), *program.graph.output_types)
    return target.start_us + sum(t.nbytes for t in tensors) / (target.device_bandwidth * 1e3)


def ratio(row: Row) -> float | None:
    """How many times faster than the best peer, back to back or behind a foreign kernel, whichever is less; None if one
    of the two was not timed. Older records know the first only."""
    standings = (row, row.get("after") or row)
    if not all(s["ours_us"] and s["peer_us"] for s in standings):
        return None
    return float(min(s["peer_us"] / s["ours_us"] for s in standings))


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product of n positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def table(rows: Sequence[Row], target: Target) -> str:
    """One line per workload and batch size, and the geometric mean of the ratios."""
    followed = any(row.get("after") for row in rows)
    head = ["workload", "B", "ours us", "spread", "floor us", "of floor", "call us", "best us", "peer"]
    lines = [[*head, *["ours after", "best after", "peer"] * followed, "ratio"]]
    for row in rows:
        ours, floor, after = row["ours_us"], _floor(row, target), row.get("after") or {}
        behind = (_shown(after.get("ours_us")), _shown(after.get("peer_us")), _called(after.get("peer")))
        lines.append([
            row["workload"],
            str(row["B"]),
            _shown(ours),
            "-" if row["spread_us"] is None else "{:.2f} to {:.2f}".format(*row["spread_us"]),
            _shown(floor),
            f"{floor / ours:.0%}" if ours and floor else "-",
            _shown(row.get("call_us")),
            _shown(row["peer_us"]),
            _called(row["peer"]),
            *behind * followed,
            _shown(ratio(row)),
        ])  # fmt: skip
    said = columns(lines)
    ratios = [r for row in rows if (r := ratio(row)) is not None]
    if ratios:
        what = f"geometric mean of {len(ratios)} ratios over the best correct peer"
        said.append(f"{what}: {geometric_mean(ratios):.2f}; ahead in {sum(r > 1 for r in ratios)}")
    said.append(
        f"floor: {target.start_us:g} us + bytes of inputs and outputs / {target.device_bandwidth / 1e3:g} TB/s, "
        f"the best of two kernels that only read, measured on the {target.name}; spread: 10th to 90th percentile; "
        "call: what a prepared call takes to return to Python; after: each call behind a foreign kernel that rewrites "
        "more than L2, without that one's time; ratio: the smaller of the two"
    )
    return "\n".join(said)


def _called(peer: str | None) -> str:
    """A peer's name, short."""
    return (peer or "-").removeprefix("torch.compile ")


def _floor(row: Row, target: Target) -> float | None:
    if row.get("floor_us"):
        return float(row["floor_us"])
    program = program_of(row["workload"], row["B"])
    return floor_us(program, target) if program is not None else None


def _shown(value: float | None) -> str:
    return f"{value:.2f}" if value else "-"
