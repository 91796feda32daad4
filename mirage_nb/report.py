"""A finished session as text, as JSON and as files: what the command line prints and writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_nb.errors import StoreError
from mirage_nb.ir.text import print_graph
from mirage_nb.pipeline import NO_KERNEL, Session, Winner
from mirage_nb.search.saturation.events import Outcome
from mirage_nb.search.session.progress import Candidate, Snapshot
from mirage_nb.verify.files import describe as describe_verdict
from mirage_nb.verify.verdict import Verdict

if TYPE_CHECKING:
    from mirage_nb.runtime.contest.timing import Lap

SCHEMA = 1
SHOWN_CANDIDATES = 8


def describe(session: Session) -> str:
    """The result for a reader in a terminal: counts, the ranked candidates, the best muGraph and its run."""
    snapshot = session.snapshot()
    lines = [
        f"{session.name}: {snapshot.outcome} after {snapshot.seconds:.2f} s, target {session.target.name}, "
        f"{'space exhausted' if snapshot.exhausted else 'space not exhausted'}",
        ", ".join(f"{snapshot.total(outcome):,} {outcome.value}" for outcome in Outcome),
        f"{snapshot.structures} muGraphs extracted, {snapshot.verified} instances of verified ones, "
        f"{snapshot.refuted} refuted, {snapshot.outside_lax} outside LAX",
    ]
    lines += [f"not searched: {cut}" for cut in snapshot.cut]
    lines += [f"note: {message}" for message in snapshot.messages]
    lines += [f"no kernel: {why}", f"  {NO_KERNEL}"] if (why := session.why_no_kernel) else []
    lines += ["", snapshot.why] if snapshot.why else []
    if snapshot.candidates:
        lines += ["", *_table(snapshot)]
    winner = next(iter(session.winners), None)
    if winner is not None:
        lines += ["", *_winner_lines(session, winner)]
    elif snapshot.best is not None:
        lines += ["", "best muGraph by estimate; it was not executed", print_graph(snapshot.best.graph)]
    return "\n".join(lines)


def _table(snapshot: Snapshot) -> list[str]:
    rows = [f"{'muGraph':<10}{'kernels':>8}{'operators':>10}{'estimate us':>13}{'time us':>9}  verdict"]
    for c in snapshot.candidates[:SHOWN_CANDIDATES]:
        timed = f"{c.time_us:.2f}" if c.time_us is not None else "-"
        trials = f", {c.verdict.trials} trials" if c.verdict.trials else ""
        what = f"{c.verdict.kind.value}{trials}" + (f"; {c.note}" if c.note else "")
        rows.append(f"{c.digest[:8]:<10}{c.kernels:>8}{c.operators:>10}{c.estimate_us:>13.2f}{timed:>9}  {what}")
    left = len(snapshot.candidates) - SHOWN_CANDIDATES
    if left > 0:
        rows.append(f"and {left} more")
    if snapshot.baseline is not None:
        rows.append(_baseline_line(snapshot, snapshot.baseline))
    return rows


def _baseline_line(snapshot: Snapshot, own: Candidate) -> str:
    """The program's own operators beside the best: in times where both were measured, else in estimates."""
    best = snapshot.best or own
    pairs = ((own.time_us, best.time_us, "measured"), (own.estimate_us, best.estimate_us, "estimated"))
    ours, theirs, how = next((a, b, how) for a, b, how in pairs if a is not None and b is not None)
    times = f"; the best takes 1/{ours / theirs:.2f} of that" if theirs and best.digest != own.digest else ""
    return f"baseline: the program's own operators, each by a library, {ours:.2f} us {how}{times}"


def _winner_lines(session: Session, winner: Winner) -> list[str]:
    lines = ["best muGraph", print_graph(winner.graph), f"verdict: {describe_verdict(winner.candidate.verdict)}"]
    if winner.cubin is not None:
        for name, usage in winner.cubin.usage.items():
            lines.append(
                f"{name} for {winner.cubin.arch}: {usage.registers} registers, "
                f"{usage.spill_store_bytes + usage.spill_load_bytes} bytes spilled"
            )
    lines.append(f"executed on {winner.executable.device}: relative error {winner.report.measured} against float64")
    if winner.candidate.time_us is not None:
        chain_us = winner.candidate.chain_us
        how = "median, back to back or behind others: the longer"
        how += f"; back to back {chain_us:.2f} us" if chain_us is not None else ""
        lines.append(f"time: {winner.candidate.time_us:.2f} us ({how})")
    else:
        lines.append(f"time: not measured here; the cost model estimates {winner.candidate.estimate_us:.2f} us")
    for lap in session.baselines:
        shown = f"{lap.us:.2f} us" if lap.us is not None else f"not timed, {lap.note}"
        lines.append(f"  {lap.name}: {shown}")
    return lines


def to_json(session: Session) -> str:
    """The result as JSON; `schema` names the version of the form. What was not measured is null."""
    snapshot = session.snapshot()
    winner = next(iter(session.winners), None)
    data = {
        "schema": SCHEMA,
        "name": session.name,
        "program": session.program.text,
        "target": session.target.name,
        "effort": session.search.effort,
        "seconds": round(snapshot.seconds, 3),
        "state": snapshot.state.value,
        "no_kernel": session.why_no_kernel or None,
        "exhausted": snapshot.exhausted,
        "cut": list(snapshot.cut),
        "messages": list(snapshot.messages),
        "why": snapshot.why,
        "counts": {outcome.value: snapshot.total(outcome) for outcome in Outcome},
        "counts_by_depth": [[d, o.value, n] for (d, o), n in sorted(snapshot.counts.items(), key=_count_key)],
        "structures": snapshot.structures,
        "refuted": snapshot.refuted,
        "outside_lax": snapshot.outside_lax,
        "candidates": [_candidate(c) for c in snapshot.candidates],
        "best": winner.candidate.digest if winner is not None else None,
        "baseline": _candidate(snapshot.baseline) if snapshot.baseline is not None else None,
        "baselines": [_lap(lap) for lap in session.baselines],
        "passes": [[p.name, p.candidate[:8], round(p.seconds, 4), p.outcome] for p in session.trace],
    }
    return json.dumps(data, indent=1, allow_nan=False)


def _lap(lap: Lap) -> dict[str, Any]:
    return {"name": lap.name, "time_us": lap.us, "note": lap.note}


def _count_key(item: tuple[tuple[int, Outcome], int]) -> tuple[int, str]:
    (depth, outcome), _ = item
    return depth, outcome.name


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "digest": candidate.digest,
        "mugraph": print_graph(candidate.graph),
        "kernels": candidate.kernels,
        "operators": candidate.operators,
        "configuration": candidate.configuration,
        "sizes": dict(candidate.sizes),
        "verdict": _verdict(candidate.verdict),
        "estimate_us": round(candidate.estimate_us, 3),
        "time_us": candidate.time_us,
        "chain_us": candidate.chain_us,
        "error": candidate.error,
        "executed_on": candidate.executed_on or None,
        "note": candidate.note or None,
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "kind": verdict.kind.value,
        "trials": verdict.trials,
        "primes": [list(pair) for pair in verdict.primes],
        "seed": verdict.seed,
        "sizes": {name: list(shape) for name, shape in (verdict.sizes or {}).items()},
        "log2_bound": verdict.log2_bound,
        "note": verdict.note,
    }


def emit_files(session: Session, folder: Path) -> list[Path]:
    """Write source, cubin and muGraph text of every executed candidate into `folder`; returns the paths.

    When none was executed: source and muGraph text of the best one by estimate.

    Raises:
        StoreError: the folder cannot be written.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in _files(session):
            (folder / name).write_bytes(content)
            written.append(folder / name)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}", hint="give another folder") from error
    return written


def _files(session: Session) -> Iterator[tuple[str, bytes]]:
    """Names and contents."""
    winners = session.winners
    best = session.snapshot().best
    name = re.sub(r"\W+", "-", session.name) or "program"
    for candidate in [winner.candidate for winner in winners] or ([best] if best is not None else []):
        stem = f"{name}-{candidate.digest[:8]}"
        yield f"{stem}.cu", session.source_of(candidate).encode()
        yield f"{stem}.mugraph", print_graph(candidate.graph).encode()
    for winner in winners:
        if winner.cubin is not None:
            yield f"{name}-{winner.candidate.digest[:8]}.{winner.cubin.arch}.cubin", winner.cubin.data
