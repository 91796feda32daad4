"""The store: sessions in one SQLite file, so that a search outlives its notebook.

In: what a session is (`Header`), what it has done, what it knows beside that. Out: the same, under the session's
name. Payloads are JSON texts (`search.plain`); nothing that is read is executed. Invariants: an entry is whole
or absent, whatever is killed when; a file that is full, locked, damaged, foreign or hostile is a StoreError
with a hint and stays as it is; what another version of this package found is never taken for its own. What this user
has stored is sealed (HMAC, with a secret in the user's folder); of what is not, nothing but muGraphs is taken, which a
session verifies before it shows them, and no count, no end of a configuration and no "wrong" is believed.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import mirage_nb.search
from mirage_nb.errors import FormatError, GraphError, StoreError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.legality import check
from mirage_nb.runtime.execution.artifacts import is_sealed, seal_of
from mirage_nb.search.session.findings import Bounds, Explored, Findings
from mirage_nb.search.session.ledger import Facts
from mirage_nb.search.session.plain import MAX_TEXT, Memo, read, write
from mirage_nb.search.session.progress import Candidate, Rejected
from mirage_nb.search.space import EFFORTS, Configuration
from mirage_nb.settings import read_settings
from mirage_nb.targets import TARGETS
from mirage_nb.typed import typed
from mirage_nb.verify.verdict import VerdictKind

T = TypeVar("T")

APPLICATION = 0x6D75_4772
SCHEMA = 1
TABLES = (
    ("table", "findings", "CREATE TABLE findings (session TEXT, search TEXT, slot TEXT, payload TEXT, "
     "PRIMARY KEY (session, search, slot))"),
    ("table", "sessions", "CREATE TABLE sessions (name TEXT PRIMARY KEY, saved REAL, header TEXT, facts TEXT)"),
)  # fmt: skip
NOWHERE = ":memory:"
LOCKED_SECONDS = 1.0
"""How long somebody else may write before we give up: the session goes on meanwhile without its eyes."""
MAX_NAME = 200
MAX_SEED = 2**62
MAX_SESSIONS = 10_000
MAX_FINDINGS = 20_000
SECRETS = "store"
"""The folder of the secret, in the user's."""
SEARCHING = ("algebra", "interp", "ir", "search", "verify", "targets.py")
"""What decides what a search finds."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a session searches for. `text`, `sizes`: the program as it was written; `seconds`: limit of a search;
    `tolerance`: how far its kernels may be off, in times what the program's own rounding explains."""

    graph: KernelGraph
    target: str
    seed: int
    bounds: Bounds
    text: str = ""
    title: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    seconds: float | None = None
    edition: str = ""
    tolerance: float = 1.0

    def __repr__(self) -> str:
        return f"<Header of a search for {self.target}, effort {self.bounds.effort}: {self.graph!r}>"

    @property
    def search(self) -> str:
        """A digest of all that two sessions must share so that one can use what the other has done."""
        parts = (self.graph.digest(), self.target, str(self.seed), self.edition)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Stored:
    """A session as the store has it. `saved`: seconds since the epoch; `foreign`: entries that this user has not
    sealed, of which only muGraphs are left."""

    name: str
    saved: float
    header: Header
    facts: Facts
    ended: tuple[Explored, ...]
    foreign: int = 0

    def __repr__(self) -> str:
        return f"<Stored {self.name[:40]}: {len(self.ended)} configurations of {self.header.graph!r}>"


@typed
class Store:
    """The sessions in one file, which is made when something is first saved.

    It may be used from any thread and by several notebooks at once: every method opens and closes the file.
    Every method raises StoreError where the file cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        if "\0" in str(path):
            raise StoreError("a file's name has no zero byte", hint="give another file for the store")
        self.path = Path(path)
        self._secrets = read_settings().home / SECRETS

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    def names(self) -> tuple[str, ...]:
        """The names of all sessions, the latest first."""
        with self._reading() as db:
            rows = db.execute("SELECT name FROM sessions ORDER BY saved DESC, name LIMIT ?", (MAX_SESSIONS,))
            return tuple(str(name) for (name,) in rows)

    def load(self, name: str) -> Stored:
        """A session by its name. Raises StoreError if there is none."""
        with self._reading() as db:
            found = self._session(db, name)
            if found is None:
                names = ", ".join(self.names()[:10])
                hint = f"it has {names}" if names else "nothing is stored there: sessions are with store=, or --keep"
                raise StoreError(f"{self.path} has no session {name!r}", hint=hint)
            saved, header, facts, own = found
            ended = list(self._ended(db, name, header))
            foreign = sum(not sealed for _, sealed in ended) + (not own)
            return Stored(name, saved, header, facts, tuple(one for one, _ in ended), foreign)

    def save(self, name: str, header: Header, ended: Sequence[Explored], facts: Facts) -> None:
        """Add to a session, or begin one; what the name stood for before is forgotten if it is another search."""
        if not 0 < len(name) <= MAX_NAME:
            raise StoreError(f"a session's name has 1 to {MAX_NAME} characters, not {len(name)}")
        if name != name.encode(errors="replace").decode():
            raise StoreError(f"the session's name {name!r} has characters that are none")
        keys = [(name, header.search, _slot(one.configuration, one.bounds)) for one in ended]
        entries = [(*key, self._sealed(_payload(one), *key)) for key, one in zip(keys, ended, strict=True)]
        described = _payload(header)
        with self._writing() as db:
            db.execute("DELETE FROM findings WHERE session = ? AND search <> ?", (name, header.search))
            row = (name, time.time(), described, self._sealed(_payload(facts), name, described))
            db.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?)", row)
            db.executemany("INSERT OR REPLACE INTO findings VALUES (?, ?, ?, ?)", entries)

    def delete(self, name: str) -> None:
        """Forget a session, if there is one of this name."""
        if os.path.exists(self.path):  # no error for a name that is too long
            with self._writing() as db:
                db.execute("DELETE FROM findings WHERE session = ?", (name,))
                db.execute("DELETE FROM sessions WHERE name = ?", (name,))

    def checkpoint(self, name: str, header: Header) -> StoreCheckpoint:
        """Where a session of this name leaves what it has done."""
        return StoreCheckpoint(self, name, header)

    # -- reading ------------------------------------------------------------------------------------

    def _session(self, db: sqlite3.Connection, name: str) -> tuple[float, Header, Facts, bool] | None:
        row = db.execute("SELECT saved, header, facts FROM sessions WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        saved, header_text, facts_text = row
        header = self._read(Header, header_text, name)
        facts_text, sealed = self._opened(facts_text, name, str(header_text))
        facts = self._read(Facts, facts_text, name)
        self._check_numbers(header, facts, name)
        self._check_candidates((*facts.known, *facts.offered), header.graph, name)
        if not sealed:
            header, facts = replace(header, tolerance=1.0), Facts(known=facts.known, offered=facts.offered)
        return float(saved) if isinstance(saved, float) else 0.0, header, facts, sealed

    def _check_numbers(self, header: Header, facts: Facts, name: str) -> None:
        """A search within these bounds can be begun, and the clock goes on."""
        budget, seconds = header.bounds.budget, header.seconds
        limits = budget.seconds, budget.max_values, budget.max_block_ops, 1.0 if seconds is None else seconds
        if not all(0 < number < math.inf for number in limits) or not 0 <= header.seed < MAX_SEED:
            raise self._damaged(name, "its bounds are none")
        if header.bounds.effort not in EFFORTS or header.target not in TARGETS:
            raise self._damaged(name, "this version has no such effort, or no such target")
        if not all(0 <= number < math.inf for number in (facts.seconds, facts.first_seconds or 0.0)):
            raise self._damaged(name, "its clock is none")

    def _ended(self, db: sqlite3.Connection, name: str, header: Header) -> Iterator[tuple[Explored, bool]]:
        """What was done of exactly this search, oldest first, and whether this user has sealed it; graphs that entries
        share are read once."""
        memo: Memo = {}
        rows = db.execute(
            "SELECT slot, payload FROM findings WHERE session = ? AND search = ? ORDER BY rowid LIMIT ?",
            (name, header.search, MAX_FINDINGS),
        )
        for slot, payload in rows:
            text, sealed = self._opened(payload, name, header.search, str(slot))
            found = self._read(Explored, text, name, memo)
            program = None if sealed and found.configuration.piece else header.graph
            found = found if sealed else _of_a_stranger(found)
            self._check_candidates(found.findings.candidates, program, name)
            self._check_legal(found.findings.rejected, name)
            yield found, sealed

    def _sealed(self, text: str, *place: str) -> str:
        """A payload behind its seal, which holds at this place of this table only."""
        return f"{seal_of(self._secrets, (*place, text))}\n{text}"

    def _opened(self, payload: object, *place: str) -> tuple[object, bool]:
        """The text of a payload, and whether its seal holds."""
        if not isinstance(payload, str) or payload.startswith("{"):
            return payload, False
        seal, _, text = payload.partition("\n")
        return text, is_sealed(self._secrets, seal, (*place, text))

    def _read(self, kind: type[T], text: object, name: str, memo: Memo | None = None) -> T:
        try:
            if not isinstance(text, str):
                raise FormatError("not a text")
            return read(kind, text, memo)
        except FormatError as error:
            raise self._damaged(name, error.message) from error

    def _check_candidates(self, candidates: Sequence[Candidate], program: KernelGraph | None, name: str) -> None:
        """A muGraph is what its digest says, has the inputs and outputs of its program (None: of a piece that this user
        has searched, which stands nowhere), is legal, and its numbers are numbers. What its verdict says is looked at
        again by the session that goes on (`search.session.restored`)."""
        self._check_legal(candidates, name)
        for candidate in candidates:
            kind = candidate.verdict.kind
            fits = program is None or _fits(candidate.graph, program)
            if not fits or not (candidate.verdict.accepted or kind is VerdictKind.STORED):
                raise self._damaged(name, f"muGraph {candidate.digest[:8]} is not one of this program")
            if not all(number >= 0 for number in _numbers(candidate)):
                raise self._damaged(name, f"muGraph {candidate.digest[:8]} has times that are none")

    def _check_legal(self, found: Sequence[Candidate | Rejected], name: str) -> None:
        for one in found:
            if one.graph.digest() != one.digest:
                raise self._damaged(name, f"muGraph {one.digest[:8]} is not what was stored")
            try:
                check(one.graph)
            except GraphError as error:
                raise self._damaged(name, f"muGraph {one.digest[:8]}: {error.message}") from error

    def _damaged(self, name: str, why: str) -> StoreError:
        return StoreError(
            f"session {name!r} in {self.path} cannot be read: {why}",
            hint=f"Store({str(self.path)!r}).delete({name!r}) forgets it",
        )

    # -- the file -----------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection; an empty store where there is no file."""
        with self._connected(self.path if os.path.exists(self.path) else NOWHERE) as db:
            yield db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A connection with a transaction, done as a whole or not at all."""
        with self._connected(self.path) as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.rollback()
                raise
            db.execute("COMMIT")

    @contextmanager
    def _connected(self, place: str | Path) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._connect(place)) as db:
                db.execute("PRAGMA trusted_schema = OFF")
                self._check_schema(db)
                yield db
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}", hint="give another file for the store") from error
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            raise self._told(error) from error

    def _connect(self, place: str | Path) -> sqlite3.Connection:
        return sqlite3.connect(place, timeout=LOCKED_SECONDS, isolation_level=None)

    def _check_schema(self, db: sqlite3.Connection) -> None:
        """The file is a store and nothing else: a foreign trigger or view could do anything with our statements."""
        application, version, found = _marks(db)
        if application == version == 0 and not found:
            _write_ahead(db)
            db.execute("PRAGMA synchronous = NORMAL")
            _create(db)
            return
        if application != APPLICATION:
            raise StoreError(f"{self.path} is not a store of mirage_nb", hint="give another file for the store")
        if version != SCHEMA:
            raise StoreError(
                f"{self.path} has schema {version}; this version of mirage_nb reads {SCHEMA}",
                hint="give another file for the store, or use the version that wrote it",
            )
        if found != TABLES:
            raise StoreError(f"{self.path} has other tables than a store", hint="give another file for the store")
        db.execute("PRAGMA synchronous = NORMAL")

    def _told(self, error: Exception) -> StoreError:
        """An error of SQLite in the words of a user."""
        said = str(error)
        for part, message, hint in TROUBLES:
            if part in said:
                return StoreError(f"{self.path} {message}", hint=hint)
        return StoreError(f"{self.path}: {said}", hint="give another file for the store")


TROUBLES = (
    ("locked", "is locked by another program", "close that program, or give another file for the store"),
    ("full", "cannot grow: the disk is full", "make room, or give a file on another disk"),
    ("disk I/O", "cannot be written to its disk", "make room, or give a file on another disk"),
    ("readonly", "is read-only", "give another file for the store"),
    ("unable to open", "cannot be opened", "give a file in a folder that you can write to"),
    ("not a database", "is not a store, or it is damaged", "move it away, or give another file for the store"),
    ("malformed", "is damaged", "move it away, or give another file for the store"),
)
"""What SQLite says, what it means, and what to do."""


class StoreCheckpoint:
    """One session's place in a store; see `search.checkpoint.Checkpoint`. `tell` is told of what is not believed."""

    def __init__(self, store: Store, name: str, header: Header) -> None:
        self.store = store
        self.name = name
        self.header = header
        self.tell: Callable[[str], None] = lambda text: None

    def restore(self) -> tuple[Facts, Sequence[Explored]]:
        """What was done of the same search; nothing if the name stood for another one.

        Raises:
            StoreError: it cannot be read, or another version of this package did it.
        """
        if self.name not in self.store.names():
            return Facts(), ()
        stored = self.store.load(self.name)
        if stored.header.edition != self.header.edition:
            raise StoreError(
                f"session {self.name!r} was stored by another version of mirage_nb", hint="it is searched again"
            )
        if stored.header.search != self.header.search:
            return Facts(), ()
        if stored.foreign:
            self.tell(
                f"{stored.foreign} entries of session {self.name!r} are not sealed by this user: their muGraphs are "
                "verified, and everything is searched again"
            )
        return stored.facts, stored.ended

    def forget(self, tell: Callable[[str], None]) -> None:
        """Give up what was kept under this name; says so where that cannot be done."""
        try:
            self.store.delete(self.name)
        except StoreError as error:
            tell(str(error))

    def keep(self, ended: Sequence[Explored], facts: Facts) -> None:
        """Save these. Raises StoreError."""
        self.store.save(self.name, self.header, ended, facts)


def find_store(store: Store | str | Path | bool | None) -> Store | None:
    """The store that is meant: itself or a file; True: the default file; None: that of MIRAGE_NB_STORE if it is
    set; False: none."""
    known = read_settings()
    match store:
        case Store():
            return store
        case str() | Path():
            return Store(store)
        case True:
            return Store(known.store) if known.store is not None else None
        case None:
            return Store(known.store) if known.stored and known.store is not None else None
    return None


@functools.cache
def edition() -> str:
    """A digest of the sources that decide what a search finds."""
    home = Path(mirage_nb.search.__file__).parents[1]
    files = [path for name in SEARCHING for path in sorted((home / name).rglob("*.py")) or [home / name]]
    found = hashlib.sha256()
    for path in files:
        found.update(f"{path.relative_to(home)}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def _marks(db: sqlite3.Connection) -> tuple[int, int, tuple[tuple[str, str, str], ...]]:
    """The file's application, version and parts, of one moment: somebody else may be making the store just now."""
    db.execute("BEGIN")
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    parts = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name LIMIT 100"
    found = tuple(db.execute(parts))
    db.execute("COMMIT")
    return application, version, found


def _write_ahead(db: sqlite3.Connection) -> None:
    """Readers and a writer side by side. SQLite does not wait for others here by itself."""
    until = time.monotonic() + LOCKED_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(LOCKED_SECONDS / 100)


def _create(db: sqlite3.Connection) -> None:
    """Both tables at once: whoever comes second finds all or nothing."""
    made = "; ".join(sql.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS") for _, _, sql in TABLES)
    db.executescript(
        f"BEGIN IMMEDIATE; {made}; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA}; COMMIT"
    )


def _fits(graph: KernelGraph, program: KernelGraph) -> bool:
    """Whether a graph takes and gives what the program does, under the same names, in the same order."""
    given = graph.inputs, graph.output_names, [(t.shape, t.dtype) for t in graph.output_types]
    return given == (program.inputs, program.output_names, [(t.shape, t.dtype) for t in program.output_types])


def _numbers(candidate: Candidate) -> Iterator[float]:
    """What candidates are ranked by, microseconds."""
    yield candidate.estimate_us
    yield from (us for us in (candidate.time_us, candidate.chain_us) if us is not None)
    if candidate.before is not None:
        yield candidate.before.us


def _of_a_stranger(found: Explored) -> Explored:
    """What is taken of an entry that anybody may have written: muGraphs of a search that has not ended; nothing of a
    piece, of which nobody says what it computes."""
    findings = Findings(candidates=() if found.configuration.piece else found.findings.candidates)
    return Explored(found.configuration, found.bounds, findings, (), (), frozenset(), unfinished=True)


def _slot(configuration: Configuration, bounds: Bounds) -> str:
    return hashlib.sha256(write((configuration, bounds)).encode()).hexdigest()


def _payload(value: object) -> str:
    text = write(value)
    if len(text) > MAX_TEXT:
        raise StoreError(f"an entry of {len(text):,} characters; at most {MAX_TEXT:,}")
    return text
