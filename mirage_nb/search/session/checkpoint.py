"""Where a session leaves what it has done, so that another one can go on after it.

In: ended configurations and the session's facts, as they come. Out: the same, when a session begins. A
`Checkpoint` is anything that keeps them; the store is one. Invariant: whatever happens to it, the search goes
on: `Recorder` says what went wrong, once, tries again later, and loses nothing that can still be written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from mirage_nb.errors import StoreError
from mirage_nb.search.session.findings import Bounds, Explored, Findings
from mirage_nb.search.session.ledger import Facts
from mirage_nb.search.space import Configuration

RETRY_SECONDS = 5.0
"""How long a checkpoint that failed is left in peace."""
PARTIAL_SECONDS = 2.0
"""How often unfinished configurations are kept as well."""


class Checkpoint(Protocol):
    """Keeps one session. Every method may raise StoreError, and then has kept nothing."""

    def restore(self) -> tuple[Facts, Sequence[Explored]]:
        """What was kept of this session, oldest first; nothing of a session of another program."""

    def keep(self, ended: Sequence[Explored], facts: Facts) -> None:
        """Keep these, whole or not at all; one of the same configuration and bounds is replaced."""


class Recorder:
    """Writes to a checkpoint, if there is one, in a way that no failure reaches the search."""

    def __init__(self, checkpoint: Checkpoint | None, tell: Callable[[str], None]) -> None:
        self._checkpoint = checkpoint
        self._tell = tell
        self._waiting: dict[tuple[Configuration, Bounds], Explored] = {}
        self._not_before = 0.0
        self._partial = 0.0

    def restore(self) -> tuple[Facts, Sequence[Explored]]:
        """What is there; nothing if it cannot be read."""
        if self._checkpoint is None:
            return Facts(), ()
        try:
            return self._checkpoint.restore()
        except (StoreError, MemoryError) as error:
            self._tell(f"nothing is taken from the store: {str(error) or 'not enough memory'}")
            return Facts(), ()

    def ended(self, found: Explored, facts: Facts) -> None:
        """A configuration that has ended."""
        if self._checkpoint is not None:
            self._waiting[found.configuration, found.bounds] = found
            if time.monotonic() >= self._not_before:
                self.save(facts)

    def partial(self, configuration: Configuration, bounds: Bounds, findings: Findings) -> None:
        """Findings of one that has not; they are written with the next one that ends."""
        now = time.monotonic()
        if self._checkpoint is not None and findings.candidates and now - self._partial > PARTIAL_SECONDS:
            self._partial = now
            early = Explored(configuration, bounds, findings, (), (), frozenset(), unfinished=True)
            self._waiting.setdefault((configuration, bounds), early)

    def save(self, facts: Facts) -> None:
        """Write what waits, now."""
        if self._checkpoint is None:
            return
        try:
            self._checkpoint.keep(tuple(self._waiting.values()), facts)
        except (StoreError, MemoryError) as error:
            self._not_before = time.monotonic() + RETRY_SECONDS
            self._tell(f"the session is not stored: {str(error) or 'not enough memory'}")
        else:
            self._waiting.clear()
