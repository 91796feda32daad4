"""A session as one HTML page that needs nothing else: no kernel, no network, no other file.

In: a session, finished or not. Out: HTML text. The page has the program, the counts, the table of verified muGraphs
with an explorer for the best ones, and the tree of prefixes with pictures of a sample. Its script, inline, opens what
a reader chooses. Invariant: no address outside the page stands in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_nb.errors import StoreError
from mirage_nb.pipeline import Session
from mirage_nb.typed import typed
from mirage_nb.viz import explorer, html
from mirage_nb.viz.history import History, Moment
from mirage_nb.viz.outcomes import outcomes_html, rejected_html
from mirage_nb.viz.svg import STYLE
from mirage_nb.viz.tree import key, sampled

if TYPE_CHECKING:
    from mirage_nb.runtime.contest.timing import Lap

OPENED_CANDIDATES = 12
OPENED_PREFIXES = 40
OPENED_REJECTED = 20

_FILES = resources.files("mirage_nb.viz")
SECTIONS_SCRIPT = _FILES.joinpath("sections.js").read_text(encoding="utf-8")
SCRIPT = explorer.SCRIPT + SECTIONS_SCRIPT + _FILES.joinpath("export.js").read_text(encoding="utf-8")
_CSS = (
    ".mir-program{white-space:pre-wrap;padding:8px 12px;border:1px solid var(--mir-line);border-radius:6px}"
    "[hidden]{display:none!important}.mir-live [data-choose],.mir-live th[data-column]{cursor:pointer}"
    ".mir-live th[aria-sort=ascending]::after{content:' ▲'}.mir-live th[aria-sort=descending]::after{content:' ▼'}"
)


def session_page(session: Session, moments: tuple[Moment, ...] = ()) -> str:
    """The page; `moments` are the counts over time, where somebody watched."""
    snapshot = session.snapshot()
    peer = fastest(session.baselines)
    best = snapshot.best
    facts = f"target {session.target.name}, effort {session.search.effort}"
    listed = html.candidates_html(snapshot, best.digest if best else "", peer) + html.messages_html(snapshot)
    searched = html.counters_html(snapshot) + html.chart_html(snapshot) + html.history_html(moments or _now(session))
    outcomes = outcomes_html(snapshot)
    prefixes = (
        "<div class='mir-columns mir-section-prefixes'>"
        f"<div class='mir-side'>{html.prefixes_html(snapshot)}</div><div class='mir-main'>{_prefixes(session)}</div>"
        "</div>"
    )
    folds = (
        ("the program", f"<pre class='mir-program'>{escape(session.program.text)}</pre>"),
        ("what the search did", searched),
        ("verifier outcomes", outcomes and outcomes + _rejected(session)),
        ("prefixes", prefixes),
    )
    body = (
        f"<style>{STYLE}{explorer.CSS}{_CSS}</style><div class='mir mir-view' id='session'>"
        f"{html.header_html(snapshot, session.search.seconds, '')}<p class='mir-none'>{escape(facts)}</p>"
        f"<div class='mir-columns mir-results'><div class='mir-side mir-section-candidates'>{listed}</div>"
        f"<div class='mir-main'>{_candidates(session)}</div></div>{''.join(html.fold_html(*fold) for fold in folds)}"
        f"</div><script type='module'>{SCRIPT}\nattachPage(document.getElementById('session'));</script>"
    )
    return html.page(snapshot.name or "session", body)


def fastest(laps: Sequence[Lap]) -> html.Peer | None:
    """The fastest peer that was timed."""
    timed = [html.Peer(lap.name, lap.us) for lap in laps if lap.us is not None]
    return min(timed, key=lambda peer: peer.us, default=None)


@typed
def export(session: Session, path: str | Path, moments: tuple[Moment, ...] = ()) -> Path:
    """Write the page to `path`.

    Raises:
        StoreError: the file cannot be written.
    """
    file, page = Path(path), session_page(session, moments)
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{file} cannot be written: {error.strerror}", hint="give another file") from error
    except ValueError as error:
        raise StoreError(f"{file} is no file's name: {error}", hint="give another file") from error
    return file


def _now(session: Session) -> tuple[Moment, ...]:
    history = History()
    history.add(session.snapshot())
    return history.moments


def _candidates(session: Session) -> str:
    """The best muGraphs opened, and what is said of the others."""
    options = {winner.candidate.digest: winner.emitted.options for winner in session.winners}
    found = "".join(
        f"<section data-opened='candidate:{escape(c.digest)}'>"
        f"{html.candidate_html(c, session.target, options.get(c.digest), program=session.program)}</section>"
        for c in session.snapshot().candidates[:OPENED_CANDIDATES]
    )
    rest = f"only the first {OPENED_CANDIDATES} µGraphs of the table were exported whole"
    return f"{found}<p class='mir-none' data-opened='candidate:' hidden>{rest}</p>"


def _rejected(session: Session) -> str:
    """What was not accepted, each with its witness and its picture."""
    return "".join(
        f"<section data-opened='rejected:{escape(one.digest)}' hidden>{rejected_html(one)}</section>"
        for one in session.snapshot().rejected[:OPENED_REJECTED]
    )


def _prefixes(session: Session) -> str:
    sample = session.snapshot().prefixes
    found = "".join(
        f"<section data-opened='prefix:{escape(key(p))}' hidden>{html.prefix_html(p, sample)}</section>"
        for p in sampled(sample, OPENED_PREFIXES)
    )
    return f"{found}<p class='mir-none' data-opened='prefix:'>choose a prefix; pictures were exported of a sample</p>"
