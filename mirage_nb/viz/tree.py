"""The prefixes of a search as a tree that a reader walks: what was tried on top of what, and what became of it.

In: the sample of prefixes of a snapshot. Out: nested HTML `details`, which open and close without a script. The
closure merges, so a prefix may have several parents; it stands below the deepest one, and its picture
(`mirage_nb.viz.prefix`) shows all. Identities count within one configuration: `key` names a prefix in all of them.
Invariant: at most MOST prefixes, some of every outcome, and with each one all that it stands below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from mirage_nb.search.saturation.events import Outcome, Prefix
from mirage_nb.viz.search import COLOUR
from mirage_nb.viz.text import expression_text

MOST = 240
WORDS = 34
"""Longest expression in the tree; the whole one is shown on hover."""
OPEN_DEPTH = 2
"""Prefixes up to this depth are open at first."""


def key(prefix: Prefix) -> str:
    """The name of a prefix: its configuration and its identity there."""
    return f"{prefix.identity}@{prefix.configuration}"


def siblings(prefix: Prefix, sample: Iterable[Prefix]) -> list[Prefix]:
    """The part of the sample that counts its identities together with `prefix`."""
    return [p for p in sample if p.configuration == prefix.configuration]


def tree_html(prefixes: Sequence[Prefix], applications: int, chosen: str = "", most: int = MOST) -> str:
    """The sample as a tree, one root per configuration."""
    if not prefixes:
        return "<p class='mir-none'>no sample yet</p>"
    shown = connected(prefixes, most)
    by_configuration: Mapping[str, list[Prefix]] = defaultdict(list)
    for prefix in shown:
        by_configuration[prefix.configuration].append(prefix)
    roots = "".join(_configuration(name, found, chosen) for name, found in by_configuration.items())
    choices = "".join(f"<option>{outcome.value}</option>" for outcome in Outcome)
    return (
        f"<p class='mir-none'>{len(shown)} of {applications:,} applications"
        "<label class='mir-needs-script'> show <select data-filter><option value=''>all outcomes</option>"
        f"{choices}</select></label></p><div class='mir-scroll mir-tree'>{roots}</div>"
    )


def sampled(prefixes: Sequence[Prefix], most: int) -> list[Prefix]:
    """At most `most` prefixes: one of every outcome in turn, then sorted by depth."""
    queues: Mapping[Outcome, list[Prefix]] = defaultdict(list)
    for prefix in prefixes:
        queues[prefix.outcome].append(prefix)
    turns = ((n, prefix) for queue in queues.values() for n, prefix in enumerate(queue))
    chosen = [prefix for _, prefix in sorted(turns, key=lambda turn: turn[0])[:most]]
    order = list(Outcome)
    return sorted(chosen, key=lambda p: (p.depth, order.index(p.outcome), p.identity))


def connected(prefixes: Sequence[Prefix], most: int = MOST) -> list[Prefix]:
    """A sample in which every prefix comes with the ones that it stands below, at most `most` in all."""
    known = {(p.configuration, p.identity): p for p in prefixes}
    taken: dict[tuple[str, int], Prefix] = {}
    for prefix in sampled(prefixes, most):
        chain: dict[tuple[str, int], Prefix] = {}
        at: Prefix | None = prefix
        while at is not None and (at.configuration, at.identity) not in taken:
            chain[at.configuration, at.identity] = at
            up = _above(at, known)
            at = known.get((at.configuration, up)) if up is not None else None
        if len(taken) + len(chain) <= most:
            taken.update(chain)
    return sorted(taken.values(), key=lambda p: (p.configuration, p.depth, p.identity))


def _above(prefix: Prefix, known: Mapping[tuple[str, int], Prefix]) -> int | None:
    """The parent that a prefix stands below: the deepest one of the sample that came before it."""
    parents = [known[prefix.configuration, p] for p in prefix.parents if (prefix.configuration, p) in known]
    earlier = [p for p in parents if p.identity < prefix.identity]
    return max(earlier, key=lambda p: (p.depth, p.identity)).identity if earlier else None


def _configuration(name: str, found: Sequence[Prefix], chosen: str) -> str:
    known = {(p.configuration, p.identity): p for p in found}
    below: Mapping[int | None, list[Prefix]] = defaultdict(list)
    for prefix in found:
        below[_above(prefix, known)].append(prefix)
    inside = "".join(_node(prefix, below, chosen) for prefix in below[None])
    return (
        f"<details open data-branch='{escape(name)}'><summary><b>{escape(name or 'program')}</b> "
        f"<span class='mir-none'>{len(found)}</span></summary>{inside}</details>"
    )


def _node(prefix: Prefix, below: Mapping[int | None, list[Prefix]], chosen: str) -> str:
    """A branch that opens, or a leaf; both can be chosen."""
    name = escape(key(prefix))
    outcome = prefix.outcome.value
    whole = f"{prefix.stage} {prefix.type}: {expression_text(prefix.expression)}"
    label = (
        f"<i class='mir-dot' style='background:var(--mir-{COLOUR[prefix.outcome]})'></i>"
        f"<code>{escape(prefix.operator)}</code> "
        f"<span title='{escape(whole)}'>{escape(_short(prefix))}</span> "
        f"<em>{escape(outcome)}</em>"
    )
    selected = str(key(prefix) == chosen).lower()
    choose = f"data-choose='prefix:{name}' data-outcome='{escape(outcome)}' aria-current='{selected}'"
    children = below.get(prefix.identity, [])
    if not children:
        return f"<div class='mir-leaf' role='button' tabindex='0' {choose}>{label}</div>"
    inside = "".join(_node(child, below, chosen) for child in children)
    state = " open" if prefix.depth < OPEN_DEPTH else ""
    return (
        f"<details{state} data-branch='{name}'><summary {choose}>{label} "
        f"<span class='mir-none'>{len(children)}</span></summary>{inside}</details>"
    )


def _short(prefix: Prefix) -> str:
    """What it computes, or its type where that is unknown."""
    words = expression_text(prefix.expression) or prefix.type
    return words if len(words) <= WORDS else f"{words[: WORDS - 1]}…"
