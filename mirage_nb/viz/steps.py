"""Step through a search: what it met, one event at a time, forwards and backwards.

In: the sampled applications of one configuration, and what was read off it: verified and refuted muGraphs. Out: a
`Walkthrough`, whose HTML has a map of the values, which grows with the events, and beside it the event: operator,
expression, the rule that cut it, the value it merged into, the verdict with its witness. Without a script it is the
whole map and the list of all events; `steps.js` adds the slider. Invariant: events stand in the order in which the
search met them; graphs are read off when the closure has ended, smallest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources

from mirage_nb.search.saturation.events import Outcome, Prefix
from mirage_nb.search.session.progress import Candidate, Rejected, Snapshot
from mirage_nb.typed import typed
from mirage_nb.viz import explorer, svg
from mirage_nb.viz.mugraph import mugraph_svg
from mirage_nb.viz.raster import png_bundle, with_png
from mirage_nb.viz.search import COLOUR
from mirage_nb.viz.svg import STYLE
from mirage_nb.viz.text import duration, expression_text
from mirage_nb.viz.verdicts import facts_html, outcome, verdict_html, witness_text

_FILES = resources.files("mirage_nb.viz")
SCRIPT = _FILES.joinpath("steps.js").read_text(encoding="utf-8")
"""Defines `attachSteps(root)`: gives every walkthrough under an element its slider; once is enough."""
CSS = _FILES.joinpath("steps.css").read_text(encoding="utf-8")

GRAPHS = 8
"""Verified muGraphs that are shown, and as many refuted ones; each brings a picture."""
WIDTH, HEIGHT, GAP_X, GAP_Y, PAD, HEAD = 140.0, 34.0, 34.0, 9.0, 8.0, 50.0
LABEL = 18
"""Longest text of a value in the map."""
ENDS = {"refuted": "loop", "verified": "block"}
"""What becomes of a muGraph, and the variable that colours it."""


@dataclass(frozen=True, slots=True)
class Walkthrough:
    """The events of one configuration, for a page or a notebook.

    `prefixes`: what was applied, in order; `verified`, `rejected`: what was read off.
    """

    configuration: str
    prefixes: tuple[Prefix, ...]
    verified: tuple[Candidate, ...] = ()
    rejected: tuple[Rejected, ...] = ()

    @classmethod
    @typed
    def of(cls, snapshot: Snapshot, configuration: str = "") -> Walkthrough:
        """What a snapshot knows of a configuration; default: the first that has a sample."""
        names = configurations(snapshot)
        chosen = configuration if configuration in names else next(iter(names), "")
        return cls(
            chosen,
            tuple(p for p in snapshot.prefixes if p.configuration == chosen),
            tuple(sorted((c for c in snapshot.candidates if c.configuration == chosen), key=_size))[:GRAPHS],
            tuple(one for one in snapshot.rejected if one.configuration == chosen)[:GRAPHS],
        )

    def __len__(self) -> int:
        return len(self.prefixes) + len(self.rejected) + len(self.verified)

    def __repr__(self) -> str:
        return f"<Walkthrough of {len(self)} event{'s' * (len(self) != 1)}: {self.configuration}>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """With a slider where scripts run; else the map, or the first muGraph, as a picture that survives distrust."""
        found = [*(one.graph for one in self.rejected), *(one.graph for one in self.verified)]
        drawn = mugraph_svg(found[0]) if found and not self.prefixes else _Map.of(self.prefixes).svg()
        witnesses = [witness_text(one.verdict.witness) for one in self.rejected if one.verdict.witness is not None]
        text = "\n".join([repr(self), *witnesses])
        return {"text/plain": text, "text/html": with_png(steps_page(self), drawn), **png_bundle(drawn)}


def configurations(snapshot: Snapshot) -> tuple[str, ...]:
    """The configurations that have a sample of events."""
    return tuple(dict.fromkeys(prefix.configuration for prefix in snapshot.prefixes))


def steps_page(walkthrough: Walkthrough) -> str:
    """The walkthrough with its style and script: for a page, or for a notebook cell that nothing else serves."""
    style = f"<style>{STYLE}{explorer.CSS}{CSS}</style>"
    script = f"<script type='module'>{SCRIPT}\nattachSteps(document);</script>"
    return f"{style}<div class='mir mir-view'>{steps_html(walkthrough)}</div>{script}"


def steps_html(walkthrough: Walkthrough) -> str:
    """The map and the events."""
    if not len(walkthrough):
        return "<p class='mir-none'>nothing was met yet</p>"
    drawn = _Map.of(walkthrough.prefixes)
    events = "".join(
        f"<li data-kind='{kind}' data-reads='{reads}' value='{number}' class='mir-detail'>{body}</li>"
        for number, (kind, reads, body) in enumerate(_events(walkthrough, drawn), 1)
    )
    counts = "".join(
        f"<span><i class='mir-dot' style='background:var(--mir-{_colour(name)})'></i>{escape(_word(name))} "
        f"<b data-count='{name}'></b></span>"
        for name in (*COLOUR.values(), *ENDS)
    )
    buttons = "".join(
        f"<button type='button' class='mir-button' data-step='{name}' title='{words}'>{name}</button>"
        for name, words in (("back", "one event back"), ("next", "one event further"), ("play", "one after the other"))
    )
    return (
        f"<div class='mir-stepper' data-name='{escape(walkthrough.configuration)}'>"
        "<div class='mir-step-controls mir-needs-script' role='group' aria-label='step'>"
        f"{buttons}<input type='range' min='1' max='{len(walkthrough)}' value='1' aria-label='event'>"
        f"<output></output></div><div class='mir-step-counts mir-needs-script'>{counts}</div>"
        f"<div class='mir-step-columns'><div class='mir-scroll mir-step-map' tabindex='0'>{drawn.svg()}</div>"
        f"<ol class='mir-step-events' aria-live='polite'>{events}</ol></div></div>"
    )


def _size(candidate: Candidate) -> tuple[int, float, str]:
    return candidate.operators, candidate.estimate_us, candidate.digest


def _word(kind: str) -> str:
    return next((one.value for one, name in COLOUR.items() if name == kind), kind)


def _colour(kind: str) -> str:
    return ENDS.get(kind, kind)


def _events(walkthrough: Walkthrough, drawn: _Map) -> Iterator[tuple[str, str, str]]:
    """Kind, the events that it reads from, and what is said, of each."""
    for number, prefix in enumerate(walkthrough.prefixes):
        reads = " ".join(str(drawn.born[p]) for p in prefix.parents if p in drawn.born)
        into = drawn.into.get(number)
        facts = [
            ("expression", f"<code>{escape(expression_text(prefix.expression))}</code>" * bool(prefix.expression)),
            ("rule", escape(prefix.reason)),
            ("equal to", "" if into is None else f"the value of event {drawn.born[into] + 1}"),
            ("axes", f"<code>{escape(prefix.type)}</code>" * bool(prefix.type)),
            ("stage", f"{escape(prefix.stage)}, depth {prefix.depth}"),
        ]
        yield COLOUR[prefix.outcome], reads, _said(COLOUR[prefix.outcome], prefix.operator, prefix.outcome.value, facts)
    for one in walkthrough.rejected:
        facts = [("why", escape(one.why.partition("\n")[0]))]
        told = _said("refuted", f"µGraph {one.digest[:8]}", outcome(one), facts)
        yield "refuted", "", f"{told}{verdict_html(one.verdict)}{mugraph_svg(one.graph)}"
    for candidate in walkthrough.verified:
        count = f"{candidate.operators} operators"
        told = _said("verified", f"µGraph {candidate.digest[:8]}", "read off and verified", [("size", count)])
        graph = candidate.small[1] if candidate.small is not None else candidate.graph
        took = f"<p>{escape(duration(candidate))}</p>"
        yield "verified", "", f"{told}{verdict_html(candidate.verdict)}{took}{mugraph_svg(graph)}"


def _said(kind: str, what: str, became: str, facts: Sequence[tuple[str, str]]) -> str:
    dot = f"<i class='mir-dot' style='background:var(--mir-{_colour(kind)})'></i>"
    return f"<h4>{dot}<code>{escape(what)}</code> {escape(became)}</h4>{facts_html(facts)}"


@dataclass(frozen=True, slots=True)
class _Map:
    """The values of a configuration by depth. `born`: the event that made a value, by identity; `place`: where it is
    drawn; `into`: for a merged event the value that was there."""

    prefixes: Sequence[Prefix]
    born: Mapping[int, int]
    place: Mapping[int, tuple[float, float]]
    into: Mapping[int, int]

    @classmethod
    def of(cls, prefixes: Sequence[Prefix]) -> _Map:
        """The map of these events."""
        born: dict[int, int] = {}
        place: dict[int, tuple[float, float]] = {}
        into: dict[int, int] = {}
        rows: dict[int, int] = {}
        known: dict[tuple[str, str, str], int] = {}
        for number, prefix in enumerate(prefixes):
            same = (prefix.stage, prefix.type, prefix.expression)
            if prefix.outcome is Outcome.KEPT:
                row = rows[prefix.depth] = rows.get(prefix.depth, -1) + 1
                born[prefix.identity] = number
                place[prefix.identity] = (_across(prefix.depth), HEAD + row * (HEIGHT + GAP_Y))
                known[same] = prefix.identity
            elif prefix.outcome is Outcome.MERGED and same in known:
                into[number] = known[same]
        return cls(prefixes, born, place, into)

    def svg(self) -> str:
        """All values; what was cut stands above them, each shown at its own event only."""
        parts = []
        for number, prefix in enumerate(self.prefixes):
            kept = prefix.outcome is Outcome.KEPT
            at = self.place[prefix.identity] if kept else (_across(prefix.depth), PAD)
            node = [*self._edges(number, prefix, at), *_box(prefix, at)]
            parts.append(svg.element("g", node, **{"data-born" if kept else "data-only": number}))
        depth = max((prefix.depth for prefix in self.prefixes), default=0)
        width = _across(depth) + WIDTH + PAD
        height = max((y for _, y in self.place.values()), default=0.0) + HEIGHT + PAD
        return svg.document(width, height, f"{len(self.place)} values by depth", parts, _STYLE)

    def _edges(self, number: int, prefix: Prefix, at: tuple[float, float]) -> Iterator[str]:
        x, y = at
        for parent in prefix.parents:
            if parent in self.place:
                left, top = self.place[parent]
                start, end = (left + WIDTH, top + HEIGHT / 2), (x, y + HEIGHT / 2)
                yield _curve(start, end, "edge")
        into = self.into.get(number)
        if into is not None:
            left, top = self.place[into]
            yield _curve((x + WIDTH / 2, y + HEIGHT), (left + WIDTH / 2, top), "edge merging")


def _across(depth: int) -> float:
    return PAD + depth * (WIDTH + GAP_X)


def _curve(start: tuple[float, float], end: tuple[float, float], cls: str) -> str:
    (x, y), (u, v) = start, end
    bend = (u - x) / 2
    drawn = f"M{x:.0f} {y:.0f}C{x + bend:.0f} {y:.0f} {u - bend:.0f} {v:.0f} {u:.0f} {v:.0f}"
    return svg.element("path", d=drawn, cls=cls)


def _box(prefix: Prefix, at: tuple[float, float]) -> Iterator[str]:
    x, y = at
    text = expression_text(prefix.expression) or prefix.type
    short = text if len(text) <= LABEL else text[: LABEL - 1] + "…"
    yield svg.element("title", escape(f"{prefix.operator}: {text}"))
    yield svg.rect(x, y, WIDTH, HEIGHT, f"op value {COLOUR[prefix.outcome]}", 5)
    yield svg.label(prefix.operator, x + WIDTH / 2, y + 10.5, 11.5, anchor="middle")
    yield svg.label(short, x + WIDTH / 2, y + 24.0, 11.0, cls="soft", anchor="middle")


_STYLE = (
    "".join(f".mir .value.{name}{{stroke:var(--mir-{name});stroke-width:1.4}}" for name in COLOUR.values())
    + ".mir .merging{stroke:var(--mir-merged);stroke-dasharray:4 3}[data-only]{display:none}"
)
