"""A library of winners: what sessions found, taken from one machine to another as a file.

In: a store, a file. Out: sessions in the one or the other. A file of winners is a store of its own, which the readers
of stores read: nothing in it is executed, everything is bounded. Invariant: what is imported was verified here, on
trials that the file's author did not choose, or proved; its claims count for nothing, and what fails is not taken over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mirage_nb.errors import MirageError, StoreError
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import TensorProgram
from mirage_nb.runtime.store import Store, Stored, edition, find_store
from mirage_nb.search.pieces.piece import unnamed
from mirage_nb.search.session.findings import Explored
from mirage_nb.search.session.ledger import Facts
from mirage_nb.search.session.progress import Candidate
from mirage_nb.typed import typed
from mirage_nb.verify.proof import decided
from mirage_nb.verify.trials import verify

CANDIDATES = 8
"""So many of a session go into a file: the best ones."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of a file: the names of sessions that were taken over, and why others were not."""

    taken: tuple[str, ...]
    refused: Mapping[str, str] = field(hash=False)


@typed
def find_winners(
    program: TensorProgram | KernelGraph, target: str, *, store: Store | str | Path | bool = True
) -> tuple[str, ...]:
    """The names of stored sessions of this program (whatever its inputs are called) and target that this version
    would go on with, the latest first; `superoptimize(program, name=..., store=...)` does.

    Raises:
        StoreError: the store cannot be read.
    """
    graph = program.graph if isinstance(program, TensorProgram) else program
    kept = _store(store)
    found = []
    for name in kept.names():
        header = kept.load(name).header
        same = unnamed(header.graph) == unnamed(graph) and header.target == target
        if same and header.edition == edition():
            found.append(name)
    return tuple(found)


@typed
def export_winners(
    path: str | Path, names: Sequence[str] = (), *, store: Store | str | Path | bool = True
) -> tuple[str, ...]:
    """Write sessions to a new file: their programs and best muGraphs.

    Args:
        path: the file; there is none of that name yet.
        names: of sessions; default: all that have a candidate.
        store: where they are; default: the user's own.

    Returns:
        The names of those that were written.

    Raises:
        StoreError: a session is not there, or the file is, or cannot be written.
    """
    if Path(path).exists():
        raise StoreError(f"{path} is there already", hint="give another file")
    kept, into = _store(store), Store(path)
    written = []
    for name in names or kept.names():
        session = kept.load(name)
        best = _best(session)
        if best:
            into.save(name, session.header, _ended(session, best), Facts(known=best))
            written.append(name)
    if not written:
        raise StoreError("there is nothing to export", hint="sessions with a verified muGraph are exported")
    return tuple(written)


@typed
def import_winners(path: str | Path, *, store: Store | str | Path | bool = True) -> Imported:
    """Take over the sessions of a file, each muGraph verified anew on trials of this moment.

    Args:
        path: a file that `export_winners` wrote, here or elsewhere.
        store: where they go; default: the user's own. Sessions that it has stay as they are.

    Raises:
        StoreError: the file is no such file, or the store cannot be written.
    """
    if not Path(path).exists():
        raise StoreError(f"there is no file {path}", hint="export_winners writes one")
    kept, source = _store(store), Store(path)
    taken: list[str] = []
    refused: dict[str, str] = {}
    there = set(kept.names())
    for name in source.names():
        try:
            if name in there:
                raise StoreError("the store has a session of this name")
            session = source.load(name)
            if session.header.edition != edition():
                raise StoreError("another version of mirage_nb found it")
            best = _verified(session)
            kept.save(name, session.header, _ended(session, best), Facts(known=best))
            taken.append(name)
        except MirageError as error:
            refused[name] = error.message
    return Imported(tuple(taken), refused)


def _store(store: Store | str | Path | bool) -> Store:
    found = find_store(store)
    if found is None:
        raise StoreError("there is no store", hint="name a file, or set MIRAGE_NB_STORE to one")
    return found


def _best(session: Stored) -> tuple[Candidate, ...]:
    """The best candidates of a session, without those that were found wrong, and those of pieces of its program."""
    facts = session.facts
    whole = (one.findings for one in session.ended if not one.configuration.piece)
    found = {c.digest: c for findings in whole for c in findings.candidates}
    found |= {c.digest: c for c in (*facts.offered, *facts.known)}
    good = [c for digest, c in found.items() if digest not in facts.dropped]
    return tuple(sorted(good, key=lambda c: c.rank)[:CANDIDATES])


def _verified(session: Stored) -> tuple[Candidate, ...]:
    """The same, with the verdict of this machine; what it measured elsewhere is forgotten."""
    best = []
    for candidate in _best(session):
        pair = session.header.graph, candidate.graph
        verdict = decided(verify(*pair), *pair, these_sizes=True)
        if not verdict.accepted:
            raise StoreError(f"muGraph {candidate.digest[:8]} is {verdict.kind.value} here: {verdict.note}")
        best.append(candidate.unmeasured(verdict=verdict, small=None, before=None))
    if not best:
        raise StoreError("it has no muGraph")
    return tuple(best)


def _ended(session: Stored, best: Sequence[Candidate]) -> tuple[Explored, ...]:
    """The configurations as they were explored, with no candidates but these."""
    chosen = {c.digest: c for c in best}
    return tuple(
        replace(one, findings=replace(one.findings, rejected=(), candidates=tuple(
            chosen[c.digest] for c in one.findings.candidates if c.digest in chosen
        )))
        for one in session.ended
    )  # fmt: skip
