"""Verifier outcomes: the muGraphs that were not accepted, each with its reason and its witness.

In: a `Snapshot`. Out: HTML, escaped, without a script. A row is chosen by `data-choose="rejected:digest"`, or as a
candidate where it still is one: a kernel that could not be built, or that is numerically poor, stays among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mirage_nb.search.session.progress import Candidate, Rejected, Snapshot
from mirage_nb.viz.mugraph import mugraph_svg
from mirage_nb.viz.svg import framed
from mirage_nb.viz.verdicts import WRONG, badge, facts_html, outcome, verdict_html, witness_text

ROWS = 60
SET_ASIDE = "set aside"


def outcomes_html(snapshot: Snapshot, chosen: str = "") -> str:
    """The table; empty where everything was accepted."""
    aside = [c for c in snapshot.candidates if c.note]
    rows = [_rejected(one, one.digest == chosen) for one in snapshot.rejected]
    rows += [_set_aside(candidate) for candidate in aside]
    if not rows and not snapshot.refuted and not snapshot.outside_lax:
        return ""
    head = "".join(f"<th scope='col'>{name}</th>" for name in ("µGraph", "outcome", "operators", "why"))
    table = (
        "<div class='mir-scroll mir-short'><table class='mir-table mir-wide'>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows[:ROWS])}</tbody></table></div>"
    )
    return f"<p class='mir-none'>{_summary(snapshot, aside)}</p>{table if rows else ''}"


def _summary(snapshot: Snapshot, aside: Sequence[Candidate]) -> str:
    wrong = sum(one.verdict.accepted for one in snapshot.rejected)
    counts = {"accepted": snapshot.verified, "refuted": snapshot.refuted, "outside LAX": snapshot.outside_lax}
    parts = [f"{count:,} {name}" for name, count in counts.items()]
    parts += [f"{wrong} wrong when executed"] if wrong else []
    parts += [f"{len(aside)} set aside"] if aside else []
    listed = len(snapshot.rejected) + len(aside)
    missing = snapshot.refuted + snapshot.outside_lax + wrong + len(aside) - min(listed, ROWS)
    return ", ".join(parts) + (f"; a sample of {min(listed, ROWS)} is listed" if missing > 0 and listed else "")


def _rejected(one: Rejected, chosen: bool) -> str:
    witness = one.verdict.witness
    why = one.why.removeprefix(f"{one.digest[:8]}: ")
    why = f"{witness_text(witness)}; {why}" if witness is not None else why
    mark = f"<span class='mir-badge mir-bad'>{WRONG}</span>" if one.verdict.accepted else badge(one.verdict)
    return _row(f"rejected:{one.digest}", one.digest, mark, one.operators, why, chosen)


def _set_aside(candidate: Candidate) -> str:
    mark = f"<span class='mir-badge mir-open'>{SET_ASIDE}</span>"
    return _row(f"candidate:{candidate.digest}", candidate.digest, mark, candidate.operators, candidate.note, False)


def _row(choice: str, digest: str, mark: str, operators: int, why: str, chosen: bool) -> str:
    short = escape(why.partition("\n")[0])
    return (
        f"<tr tabindex='0' data-choose='{escape(choice)}' aria-current='{str(chosen).lower()}'>"
        f"<td><code>{escape(digest[:8])}</code></td><td>{mark}</td><td>{operators}</td>"
        f"<td title='{escape(why)}'>{short}</td></tr>"
    )


def rejected_html(one: Rejected) -> str:
    """One of them opened: verdict, witness, reason, and its picture."""
    facts = [
        ("outcome", escape(outcome(one))),
        ("why", f"<span class='mir-words'>{escape(one.why)}</span>"),
        ("configuration", escape(one.configuration)),
        ("digest", f"<code>{escape(one.digest[:16])}</code>"),
    ]
    return (
        f"<div class='mir-detail'><h4>µGraph {escape(one.digest[:8])}: {escape(outcome(one))}</h4>"
        f"{verdict_html(one.verdict)}{facts_html(facts)}"
        f"{framed(mugraph_svg(one.graph), 'its picture')}</div>"
    )
