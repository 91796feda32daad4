"""A snapshot as plain text: what terminals, logs and text/plain show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mirage_nb.search.saturation.events import Outcome
from mirage_nb.search.session.progress import Candidate, Snapshot
from mirage_nb.viz.verdicts import outcome, witness_text

_OWN = re.compile(r"ApplyApplyAttrs\(name='(\w+)', formula='[^']*'\)")
SHOWN = 8
GROUPS = 3
WHY = 8
"""Lines of the reason why nothing was accepted."""


def limit_of(snapshot: Snapshot, budget_seconds: float | None) -> float | None:
    """The seconds to show time against; none beyond them: they were the search's alone, or those of an extension."""
    return None if budget_seconds is None or snapshot.seconds > budget_seconds else budget_seconds


def snapshot_line(snapshot: Snapshot, budget_seconds: float | None = None, stage: str = "") -> str:
    """State and progress on one line; `stage` is what is being done."""
    limit = limit_of(snapshot, budget_seconds)
    budget = f" of {limit:g} s" if limit is not None else ""
    doing = f" ({stage})" if stage else ""
    return (
        f"{snapshot.name or 'session'}: {snapshot.outcome}{doing}, {snapshot.seconds:.1f} s{budget}, "
        f"{snapshot.configurations_done}/{snapshot.configurations_total} configurations"
    )


def snapshot_text(snapshot: Snapshot, budget_seconds: float | None = None, stage: str = "") -> str:
    """State, counts, the best candidates, some that were refuted, the newest messages: at most about 20 lines."""
    lines = [
        snapshot_line(snapshot, budget_seconds, stage),
        ", ".join(f"{snapshot.total(outcome):,} {outcome.value}" for outcome in Outcome),
        f"{snapshot.structures:,} structures, {snapshot.verified:,} verified, {snapshot.refuted:,} refuted, "
        f"{snapshot.outside_lax:,} outside LAX",
    ]
    lines += [
        f"{rank:>4}  {c.digest[:8]}  {c.operators} operators, {c.kernels} kernel{'s' * (c.kernels != 1)}, "
        f"{duration(c)}, {f'ran on {c.executed_on}, ' if c.executed_on else ''}{c.verdict.kind.value}"
        for rank, c in enumerate(snapshot.candidates[:SHOWN], start=1)
    ]
    if len(snapshot.candidates) > SHOWN:
        lines.append(f"      and {len(snapshot.candidates) - SHOWN} more")
    lines += [
        f"{outcome(one)}: {one.digest[:8]}: "
        f"{one.why if one.verdict.witness is None else witness_text(one.verdict.witness)}".partition("\n")[0]
        for one in snapshot.rejected[:GROUPS]
    ]
    lines += snapshot.why.splitlines()[:WHY]
    lines += [f"not searched: {_line(group)}" for group in cuts(snapshot.cut)[-GROUPS:]]
    lines += [f"note: {_line(group)}" for group in messages(snapshot.messages)[-GROUPS:]]
    return "\n".join(lines)


def expression_text(expression: str) -> str:
    """An abstract expression in which the functions of the program's author have their own names alone."""
    return _OWN.sub(r"\1", expression)


def _line(group: Group) -> str:
    return f"{group.words} ({len(group.lines):,} times)" if len(group.lines) > 1 else group.lines[0]


def duration(candidate: Candidate) -> str:
    """The measured time, one that a store has, or the estimate, marked as what they are."""
    if candidate.time_us is not None:
        return f"{candidate.time_us:.2f} µs"
    if candidate.before is not None:
        return f"{candidate.before.us:.2f} µs as stored, of {candidate.before.on}"
    return f"≈{candidate.estimate_us:.2f} µs estimated"


# -- lines that say the same of many things


_DIGEST = re.compile(r"^[0-9a-f]{8}: ")
_NUMBER = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True, slots=True)
class Group:
    """`words`: what all of the lines say."""

    words: str
    lines: tuple[str, ...]


def messages(lines: Iterable[str]) -> list[Group]:
    """Messages that begin with a µGraph's digest are grouped by what they say of it."""
    return _grouped((line, _first_clause(_DIGEST.sub("", line)) if _DIGEST.match(line) else line) for line in lines)


def cuts(lines: Iterable[str]) -> list[Group]:
    """What was left out, grouped by the reason; in front of it stands what it is about, mostly a configuration."""
    return _grouped((line, line.partition(": ")[2] or line) for line in lines)


def _first_clause(text: str) -> str:
    return text.partition(": ")[0].partition("\n")[0]


def _grouped(told: Iterable[tuple[str, str]]) -> list[Group]:
    found: dict[str, list[tuple[str, str]]] = {}
    for line, words in told:
        key = _NUMBER.sub("…", words)
        found[key] = [*found.pop(key, []), (line, words)]  # the newest group comes last
    return [
        Group(key if len({words for _, words in members}) > 1 else members[0][1], tuple(line for line, _ in members))
        for key, members in found.items()
    ]
