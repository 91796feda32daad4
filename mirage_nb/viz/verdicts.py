"""A verdict as HTML and in words: the rung, what was checked, the bound, and the witness."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from html import escape

from mirage_nb.search.session.progress import Rejected
from mirage_nb.verify.verdict import Verdict, VerdictKind, Witness

WRONG = "wrong result"
"""Of a muGraph that was verified, and computed something else when it ran."""


def badge(verdict: Verdict) -> str:
    """The rung, coloured by what it means."""
    cls = "good" if verdict.accepted else "bad" if verdict.kind is VerdictKind.REFUTED else "open"
    return f"<span class='mir-badge mir-{cls}' title='{escape(str(verdict))}'>{verdict.kind.value}</span>"


def outcome(one: Rejected) -> str:
    """What became of a muGraph that was not accepted, in a word or two."""
    believed = one.verdict.accepted or one.verdict.kind is VerdictKind.STORED
    return WRONG if believed else one.verdict.kind.value


def verdict_html(verdict: Verdict) -> str:
    """The rung, trials and bound, and for a refuted muGraph where it differs; what was checked behind a click."""
    witness = verdict.witness
    shown = f"<p class='mir-witness'>{escape(witness_text(witness))}</p>" if witness is not None else ""
    primes = ", ".join(f"p={p}, q={q}" for p, q in verdict.primes)
    matched = ", ".join(map(str, verdict.outputs))
    rows = facts_html(
        [
            ("trials", str(verdict.trials) if verdict.trials else ""),
            ("primes", escape(primes)),
            ("seed", str(verdict.seed) if verdict.trials else ""),
            ("outputs", f"matched in the order {matched}" if matched else ""),
        ]
    )
    return (
        f"<details class='mir-verdict'{' open' if witness else ''}><summary>{badge(verdict)} "
        f"<span>{escape(verdict_text(replace(verdict, note=brief(verdict.note))))}</span></summary>"
        f"<p>{escape(verdict.note)}</p>{shown}{rows}</details>"
    )


def brief(note: str) -> str:
    """How a note begins, without what it adds."""
    return re.split(r"; | \(", note, maxsplit=1)[0]


def witness_text(witness: Witness) -> str:
    """Where two graphs differ: the first element, and both values."""
    place = f"output {witness.output}, element {list(witness.index)}, seed {witness.seed}"
    return f"{place}: expected {witness.expected}, found {witness.found}"


def verdict_text(verdict: Verdict) -> str:
    """What was checked, in words, and the bound where one holds."""
    parts = []
    if verdict.trials:
        parts.append(f"{verdict.trials} trial{'s' * (verdict.trials != 1)} over finite fields")
    if verdict.log2_bound is not None:
        parts.append(f"error probability at most 2^{math.ceil(verdict.log2_bound)}")
    if verdict.sizes:
        checked = ", ".join(f"{name}[{', '.join(map(str, shape))}]" for name, shape in verdict.sizes.items())
        parts.append(f"checked at {checked}")
    if verdict.note:
        parts.append(verdict.note)
    return "; ".join(parts)


def facts_html(facts: Iterable[tuple[str, str]]) -> str:
    """Names and values, which are HTML; empty values are left out."""
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts if value) + "</dl>"
