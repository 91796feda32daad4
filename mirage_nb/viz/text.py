"""A snapshot as plain text: what terminals, logs and text/plain show."""

from __future__ import annotations

from mirage_nb.search.saturation.events import Outcome
from mirage_nb.search.session.progress import Candidate, Snapshot

SHOWN = 8


def snapshot_text(snapshot: Snapshot, budget_seconds: float | None = None) -> str:
    """State, counts, the best candidates and the newest messages, at most about 20 lines."""
    budget = f" of {budget_seconds:g} s" if budget_seconds is not None else ""
    lines = [
        f"{snapshot.name or 'session'}: {snapshot.state.value}, {snapshot.seconds:.1f} s{budget}, "
        f"{snapshot.configurations_done}/{snapshot.configurations_total} configurations",
        ", ".join(f"{snapshot.total(outcome):,} {outcome.value}" for outcome in Outcome),
        f"{snapshot.structures:,} structures, {snapshot.verified:,} verified, {snapshot.refuted:,} refuted, "
        f"{snapshot.outside_lax:,} outside LAX",
    ]
    lines += [
        f"{rank:>4}  {c.digest[:8]}  {c.operators} operators, {c.kernels} kernel{'s' * (c.kernels != 1)}, "
        f"{duration(c)}, {c.verdict.kind.value}"
        for rank, c in enumerate(snapshot.candidates[:SHOWN], start=1)
    ]
    if len(snapshot.candidates) > SHOWN:
        lines.append(f"      and {len(snapshot.candidates) - SHOWN} more")
    lines += [f"not searched: {cut}" for cut in snapshot.cut[:3]]
    lines += [f"note: {message}" for message in snapshot.messages[-3:]]
    return "\n".join(lines)


def duration(candidate: Candidate) -> str:
    """The measured time, or the estimate marked as one."""
    if candidate.time_us is not None:
        return f"{candidate.time_us:.2f} µs"
    return f"≈{candidate.estimate_us:.2f} µs estimated"
