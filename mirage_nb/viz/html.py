"""A snapshot as HTML: the sections that the live view shows, and a static page of them for saved notebooks.

In: a `Snapshot`, and where they are known its target, moments and peers. Out: HTML fragments; every text is
escaped, there is no script. A row that a reader may choose carries `data-choose="kind:identity"`, a button
`data-do="action"`, and a cell that a table may be sorted by `data-value`; the live view acts on them, a static page
ignores them. Long lists are cut and say so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from mirage_nb.ir import BlockGraph
from mirage_nb.lang import TensorProgram
from mirage_nb.optimize import Options
from mirage_nb.search.saturation.events import Outcome, Prefix
from mirage_nb.search.session.progress import Candidate, Snapshot, State
from mirage_nb.targets import Target
from mirage_nb.viz import explorer, steps, tree
from mirage_nb.viz.history import Moment, history_svg
from mirage_nb.viz.mugraph import mugraph_svg
from mirage_nb.viz.outcomes import outcomes_html
from mirage_nb.viz.prefix import prefix_svg
from mirage_nb.viz.raster import trusted_only, with_png
from mirage_nb.viz.search import COLOUR, counts_svg
from mirage_nb.viz.svg import STYLE, framed
from mirage_nb.viz.text import Group, cuts, duration, expression_text, limit_of, messages
from mirage_nb.viz.verdicts import badge, facts_html, verdict_html

ROWS = 40
MESSAGES = 12
LINES = 100
"""Of one group of messages; the session has them all."""
STILL_ROWS, STILL_PREFIXES = 12, 60
"""In the static form, which is kept in notebooks."""

CSS = explorer.CSS + steps.CSS


@dataclass(frozen=True, slots=True)
class Peer:
    """Whom speed-ups are against: a name, and microseconds measured beside ours."""

    name: str
    us: float


def snapshot_html(
    snapshot: Snapshot,
    budget_seconds: float | None = None,
    stage: str = "",
    *,
    target: Target | None = None,
    peer: Peer | None = None,
    moments: Sequence[Moment] = (),
    program: TensorProgram | None = None,
) -> str:
    """All sections in one fragment, the best candidate opened; stands on its own in any page. Results come first, how
    they were found is in closed sections below.

    Args:
        snapshot: what to show.
        budget_seconds: the seconds that the search may take.
        stage: what is being done.
        target: the GPU that it searches for; without it muGraphs are shown without plan and source.
        peer: the fastest peer; speed-ups of measured times are against it.
        moments: the counts over time.
        program: what is searched for; its lines are linked to the opened muGraph.
    """
    best = snapshot.best
    opened = ""
    if best is not None:
        opened = with_png(candidate_html(best, target, program=program), mugraph_svg(best.graph))
    listed = candidates_html(snapshot, best.digest if best else "", peer, STILL_ROWS) + messages_html(snapshot)
    folds = (
        ("what the search did", counters_html(snapshot) + chart_html(snapshot) + history_html(moments)),
        ("verifier outcomes", outcomes_html(snapshot)),
        ("prefixes", prefixes_html(snapshot, most=STILL_PREFIXES)),
    )
    return (
        f"<style>{STYLE}{CSS}</style><div class='mir mir-view'>{header_html(snapshot, budget_seconds, stage)}"
        f"<div class='mir-columns mir-results'><div class='mir-side'>{listed}</div>"
        f"<div class='mir-main'>{opened}</div></div>{trusted_only(''.join(fold_html(*fold) for fold in folds))}</div>"
    )


def fold_html(title: str, body: str) -> str:
    """A closed section; none where there is nothing to show."""
    return f"<details class='mir-fold'><summary>{title}</summary>{body}</details>" if body else ""


def styled(body: str) -> str:
    """A fragment with its style, to stand on its own in a notebook's output."""
    return f"<style>{STYLE}{CSS}</style><div class='mir mir-view'>{body}</div>"


def page(title: str, body: str) -> str:
    """A fragment as a whole HTML file that follows the reader's light or dark scheme."""
    return (
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='color-scheme' content='light dark'>"
        f"<title>{escape(title)}</title></head><body style='margin:1em'>{body}</body></html>"
    )


def header_html(snapshot: Snapshot, budget_seconds: float | None = None, stage: str = "") -> str:
    """Name, state, what is being done, progress against the space and, where there is one, the budget."""
    state = snapshot.state.value
    running = snapshot.state is State.RUNNING
    without = snapshot.outcome.removeprefix(state).strip()
    look = "lacking" if without else state
    lacking = f"<b class='mir-lacking' title='{_TIPS['lacking']}'>{without}</b> " if without else ""
    doing = f"<span class='mir-stage'>{escape(stage)}</span>" if stage and running else ""
    first = "" if snapshot.first_seconds is None else f", first µGraph after {snapshot.first_seconds:.2f} s"
    limit = limit_of(snapshot, budget_seconds)
    done, total = snapshot.configurations_done, snapshot.configurations_total
    space = "the whole space was searched" if snapshot.exhausted else f"{done} of {total} configurations"
    spent = f"{snapshot.seconds:.1f} s" + ("" if limit is None else f" of {limit:g} s")
    time = _meter("seconds", snapshot.seconds, budget_seconds) if budget_seconds else ""
    return (
        f"<div class='mir-head'><b class='mir-name'>{escape(snapshot.name or 'session')}</b> "
        f"<span class='mir-state mir-{look}'>{state}</span> {lacking}{doing}</div>"
        f"<div class='mir-progress'><div>{_meter('configurations', done, total)}<span title='{_TIPS['space']}'>"
        f"{space}</span></div><div>{time}<span>{spent}{first}</span></div>"
        f"<span>{snapshot.verified:,} verified, {snapshot.refuted:,} refuted</span></div>"
    )


_TIPS = {
    "lacking": "nothing was executed; the messages say why, and build() executes any of the µGraphs",
    "space": "a configuration: which reduced axes the grid splits, and which one the for-loop runs over",
    "kept": "applications of an operator that gave a new value which can still become part of the program",
    "merged": "applications that gave a value which was there already",
    "pruned": "applications that were cut: by type, abstract expression, canonical form or shift",
    "structures": "µGraphs without sizes that were read off the values",
    "verified": "instances of them that the verifier accepted",
    "refuted": "instances that a random test told apart from the program",
    "outside LAX": "instances that nobody can judge: no proof, and field trials do not apply",
}


def counters_html(snapshot: Snapshot) -> str:
    """What was counted, each with what it means."""
    pruned = sum(snapshot.total(outcome) for outcome in Outcome if outcome.name.startswith("PRUNED"))
    counts = (
        ("kept", snapshot.total(Outcome.KEPT)),
        ("merged", snapshot.total(Outcome.MERGED)),
        ("pruned", pruned),
        ("structures", snapshot.structures),
        ("verified", snapshot.verified),
        ("refuted", snapshot.refuted),
        ("outside LAX", snapshot.outside_lax),
    )
    numbers = "".join(f"<div title='{_TIPS[name]}'><b>{count:,}</b><span>{name}</span></div>" for name, count in counts)
    return f"<div class='mir-counts'>{numbers}</div>"


def _meter(name: str, value: float, most: float) -> str:
    share = min(1.0, value / most) if most > 0 else 0.0
    return (
        f"<div class='mir-meter' role='progressbar' aria-label='{name}' aria-valuenow='{100 * share:.0f}' "
        f"aria-valuemin='0' aria-valuemax='100'><div style='width:{100 * share:.1f}%'></div></div>"
    )


def chart_html(snapshot: Snapshot) -> str:
    """Applications by depth and outcome."""
    return f"<h4>applications by depth</h4>{counts_svg(snapshot.counts)}"


def history_html(moments: Sequence[Moment]) -> str:
    """The counts over time, once there are two moments."""
    return f"<h4>over time</h4>{history_svg(moments)}" if len(moments) > 1 else ""


def candidates_html(snapshot: Snapshot, chosen: str = "", peer: Peer | None = None, most: int = ROWS) -> str:
    """The verified muGraphs, best first, at most so many of them, behind what they are compared with."""
    if not snapshot.candidates:
        return "<h4>verified µGraphs</h4><p class='mir-none'>none yet</p>"
    shown = snapshot.candidates[:most]
    rows = [_row(rank, c, c.digest in snapshot.pinned, _faster(snapshot, c, peer)) for rank, c in enumerate(shown, 1)]
    filled = [n for n in range(len(COLUMNS)) if any(row[n][1] for row in rows)]
    head = "".join(
        f"<th data-column='{place}' scope='col' title='{COLUMNS[n][1]}'>{COLUMNS[n][0]}</th>"
        for place, n in enumerate(filled)
    )
    body = _baseline(snapshot, peer, filled)
    for candidate, before, row in zip(shown, (None, *shown), rows, strict=False):
        body += _line(candidate, before, [row[n] for n in filled], candidate.digest == chosen)
    left = len(snapshot.candidates) - most
    more = f"<p class='mir-none'>and {left} more, all in result().candidates</p>" if left > 0 else ""
    return (
        f"<h4>verified µGraphs <span>{ORDER}</span></h4><div class='mir-scroll'><table class='mir-table mir-wide'>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


_COUNT = re.compile(r"^\d+ kernels?; ")
"""How a configuration begins, beside a column that says it."""
ORDER = "fastest first: measured, then executed, then estimated only"
COLUMNS = (
    ("#", "the place by time"),
    ("µGraph", "the start of its digest"),
    ("time", "measured on the attached GPU, back to back or behind a foreign kernel, the longer"),
    ("estimate", "of the cost model: it ranks, it is no measurement"),
    ("speed-up", "against the baseline, measured against measured, estimate against estimate"),
    ("verdict", "how far it was verified"),
    ("kernels", "how many it launches"),
    ("grid", "blocks of each kernel"),
    ("loop", "the for-loop range of each kernel"),
    ("configuration", "which reduced axes the grid splits, and which one the for-loop runs over"),
)
"""Names and what they mean."""

Cell = tuple[object, str]
"""What to sort by, and what to show; empty where there is nothing to say."""


def _row(rank: int, candidate: Candidate, pinned: bool, faster: str) -> list[Cell]:
    verdict = candidate.verdict
    mark = " <span class='mir-badge'>pinned</span>" if pinned else ""
    bodies = [op.body for op in candidate.graph.ops if isinstance(op.body, BlockGraph)]
    grids = ["×".join(map(str, body.grid)) or "1" for body in bodies]
    loops = [str(body.loop) for body in bodies]
    return [
        (rank, str(rank)),
        (candidate.digest, f"<code>{escape(candidate.digest[:8])}</code>{mark}"),
        _time(candidate),
        (candidate.estimate_us, f"<i>≈{candidate.estimate_us:.2f} µs</i>"),
        (faster.strip("≈×<i>/") or -1, faster),
        (verdict.kind.value, badge(verdict)),
        (candidate.kernels, str(candidate.kernels)),
        (math.prod(bodies[0].grid) if bodies else 0, ", ".join(grids)),
        (bodies[0].loop if bodies else 0, ", ".join(loops) if any(body.loop > 1 for body in bodies) else ""),
        (candidate.configuration, escape(_COUNT.sub("", candidate.configuration))),
    ]


def _line(candidate: Candidate, before: Candidate | None, cells: Sequence[Cell], chosen: bool) -> str:
    """A row; a line above it where another group begins."""
    divides = " class='mir-divide'" if before is not None and _group(candidate) != _group(before) else ""
    inside = "".join(f"<td data-value='{escape(str(value))}'>{text or '–'}</td>" for value, text in cells)
    return (
        f"<tr{divides} tabindex='0' data-choose='candidate:{escape(candidate.digest)}' "
        f"aria-current='{str(chosen).lower()}'>{inside}</tr>"
    )


def _group(candidate: Candidate) -> int:
    return 0 if candidate.time_us is not None else 1 if candidate.executed_on else 2


def _faster(snapshot: Snapshot, candidate: Candidate, peer: Peer | None) -> str:
    """The speed-up, measured against measured, else estimate against estimate and marked so; empty without either."""
    if candidate.time_us and peer is not None:
        return f"{peer.us / candidate.time_us:.2f}×"
    base = snapshot.baseline
    if candidate.time_us or base is None or base.digest == candidate.digest:
        return ""
    return f"<i>≈{base.estimate_us / candidate.estimate_us:.2f}×</i>"


def _baseline(snapshot: Snapshot, peer: Peer | None, filled: Sequence[int]) -> str:
    """What speed-ups are against: the fastest peer that was measured, the estimate of the program's own operators."""
    base = snapshot.baseline
    if peer is None and base is None:
        return ""
    name, shown = "own operators", {}
    if peer is not None:
        name, shown[2] = escape(peer.name), f"{peer.us:.2f} µs"
    if base is not None:
        shown[3] = f"<i>≈{base.estimate_us:.2f} µs</i>"
        shown[6] = str(base.kernels)
    cells = "".join(f"<td>{shown.get(n, '')}</td>" for n in filled[2:])
    words = "what speed-ups are against: the fastest peer, or the program's own operators one by one"
    return f'<tr class="mir-baseline" title="{words}"><td colspan="2">{name}</td>{cells}</tr>'


def _time(candidate: Candidate) -> tuple[float, str]:
    """What to sort by, and what to show: the time, one that a store has, or none."""
    if candidate.time_us is not None:
        return candidate.time_us, f"{candidate.time_us:.2f} µs"
    if candidate.before is not None:
        us, on = candidate.before.us, escape(candidate.before.on)
        return us, f"<i title='as stored: measured before on {on}'>{us:.2f} µs stored</i>"
    return 1e9, ""


def candidate_html(
    candidate: Candidate,
    target: Target | None = None,
    options: Options | None = None,
    buttons: str = "",
    program: TensorProgram | None = None,
) -> str:
    """One muGraph opened: verdict with what was checked, sizes, time, error, and its picture.

    With a target: the whole explorer, emitted with `options`, and with the lines of `program`. `buttons` stand behind
    the title.
    """
    sizes = ", ".join(f"{name}={size}" for name, size in candidate.sizes.items())
    facts = [
        ("time", escape(duration(candidate)) + _place(candidate)),
        ("sizes", escape(sizes)),
        ("operators", f"{candidate.operators} in {candidate.kernels} kernel{'s' * (candidate.kernels != 1)}"),
        ("configuration", escape(candidate.configuration)),
        ("note", escape(candidate.note)),
        ("digest", f"<code>{escape(candidate.digest[:16])}</code>"),
    ]
    if candidate.error is not None:
        facts.insert(1, ("error", f"{candidate.error:.1e} relative, against float64"))
    graph = candidate.graph
    drawn = framed(mugraph_svg(graph), "its picture")
    if target is not None:
        drawn = explorer.explorer_html(graph, target, options, opened=False, program=program)
    return (
        f"<div class='mir-detail'><div class='mir-title'><h4>µGraph {escape(candidate.digest[:8])}</h4>"
        f"<span>{escape(duration(candidate))}</span>{buttons}</div>{verdict_html(candidate.verdict)}{drawn}{facts_html(facts)}</div>"
    )


def _place(candidate: Candidate) -> str:
    return f" · ran on {escape(candidate.executed_on)}" if candidate.executed_on else ""


def prefixes_html(snapshot: Snapshot, chosen: str = "", most: int = tree.MOST) -> str:
    """A sample of at most `most` prefixes, some of every outcome, as a tree."""
    return tree.tree_html(snapshot.prefixes, sum(snapshot.counts.values()), chosen, most)


def steps_html(snapshot: Snapshot, chosen: str = "") -> str:
    """The configurations that may be stepped through, and the walkthrough of the chosen one; empty without a sample."""
    names = steps.configurations(snapshot)
    buttons = "".join(
        f"<button type='button' class='mir-button' data-choose='steps:{escape(name)}' "
        f"aria-current='{str(name == chosen).lower()}'>{escape(name)}</button> "
        for name in names
    )
    walked = steps.steps_html(steps.Walkthrough.of(snapshot, chosen)) if chosen in names else ""
    hint = "<span class='mir-none'>choose what to step through, event by event:</span> "
    return f"<div class='mir-step-choice'>{hint}{buttons}</div>{walked}" if names else ""


def prefix_html(prefix: Prefix, sample: Sequence[Prefix]) -> str:
    """One prefix opened: operator, type, expression, and why it was kept or cut, and its derivation."""
    dot = f"<i class='mir-dot' style='background:var(--mir-{COLOUR[prefix.outcome]})'></i>"
    facts = [
        ("outcome", f"{dot}{escape(prefix.outcome.value)}"),
        ("reason", escape(prefix.reason)),
        ("operator", f"<code>{escape(prefix.operator)}</code> {escape(prefix.stage)}, depth {prefix.depth}"),
        ("type", escape(prefix.type)),
        ("expression", f"<code>{escape(expression_text(prefix.expression))}</code>"),
        ("configuration", escape(prefix.configuration)),
        ("name", f"<code>{escape(tree.key(prefix))}</code>"),
    ]
    return (
        f"<div class='mir-detail'><h4>prefix {prefix.identity}</h4>{facts_html(facts)}"
        f"{framed(prefix_svg(prefix, tree.siblings(prefix, sample)), 'its derivation')}</div>"
    )


def messages_html(snapshot: Snapshot) -> str:
    """Why nothing was accepted, what was cut from the space, and the newest messages; lines that say the same are one
    that opens."""
    found = [("not searched", group) for group in cuts(snapshot.cut)[-MESSAGES:]]
    found += [("note", group) for group in messages(snapshot.messages)[-MESSAGES:]]
    why = (
        f"<h4>what stood in the way</h4><pre class='mir-why' tabindex='0'>{escape(snapshot.why)}</pre>"
        if snapshot.why
        else ""
    )
    if not found:
        return why
    items = "".join(f"<li>{_message(kind, group)}</li>" for kind, group in found)
    return f"{why}<h4>messages</h4><ul class='mir-messages'>{items}</ul>"


def _message(kind: str, group: Group) -> str:
    if len(group.lines) == 1:
        return f"<b>{kind}:</b> {escape(group.lines[0])}"
    shown = group.lines[-LINES:]
    left = len(group.lines) - len(shown)
    lines = "".join(f"<li>{escape(line)}</li>" for line in shown)
    more = f"<li>and {left:,} before these</li>" if left else ""
    return (
        f"<details data-branch='{kind}: {escape(group.words)}'><summary><b>{kind}:</b> "
        f"{escape(group.words)} <span class='mir-badge'>{len(group.lines):,} times</span></summary>"
        f"<ul tabindex='0'>{more}{lines}</ul></details>"
    )
