"""What a session and its workers say to each other while they work: a folder, and moments that both understand.

In: flags, a deadline, and findings on the way. Out: the same, on the other side. Invariants: what is read is whole or
absent; a clock that is set, or a machine that sleeps, moves no deadline on the machine that made it.
"""

from __future__ import annotations

import contextlib
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mirage_nb.errors import FormatError, MissingPartError
from mirage_nb.search.session.findings import Findings
from mirage_nb.search.session.plain import Memo, Written, read, write


@contextlib.contextmanager
def temporary_folder(place: str | None = None) -> Iterator[Path]:
    """A folder that lasts as long as the context, in `place`, or where temporary files are. Raises MissingPartError
    where none can be made."""
    try:
        made = tempfile.TemporaryDirectory(prefix="mirage-nb-", dir=place, ignore_cleanup_errors=True)
    except OSError as error:
        hint = "make room there, or name another folder in TMPDIR"
        raise MissingPartError(f"no folder for temporary files: {error}", hint=hint) from error
    with made as name:
        yield Path(name)


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment in seconds: of the clock that runs since the machine started, and, for other machines, of the epoch."""

    machine: str
    ticks: float
    epoch: float

    @classmethod
    def after(cls, seconds: float) -> Moment:
        """So many seconds from now."""
        return cls(platform.node(), time.monotonic() + seconds, time.time() + seconds)

    def later(self, seconds: float) -> Moment:
        """So many seconds after this one."""
        return Moment(self.machine, self.ticks + seconds, self.epoch + seconds)

    @property
    def is_past(self) -> bool:
        """Whether it has passed."""
        here = self.machine == platform.node()
        return time.monotonic() > self.ticks if here else time.time() > self.epoch


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a search may go on."""

    until: Moment | None


@dataclass(frozen=True, slots=True)
class Channel:
    """A folder that a session and its workers share: two flags, and the latest findings of each configuration."""

    folder: Path

    @property
    def stop_flag(self) -> Path:
        """Exists once the session was stopped."""
        return self.folder / "stop"

    @property
    def pause_flag(self) -> Path:
        """Exists while the session is paused."""
        return self.folder / "pause"

    def move_deadline(self, deadline: Moment | None) -> None:
        """The search may go on until then, or without a limit; workers learn it when their own deadline passes.

        Raises OSError where the folder cannot be written to.
        """
        draft = self.folder / "deadline.draft"
        draft.write_text(write(Limit(deadline)))
        draft.replace(self.folder / "deadline")

    def deadline(self, first: Moment | None) -> Moment | None:
        """The latest deadline; `first` where none was set later."""
        try:
            return read(Limit, (self.folder / "deadline").read_text()).until
        except (OSError, FormatError, UnicodeDecodeError):
            return first

    def post(self, index: int, findings: Findings, written: Written | None = None) -> None:
        """Leave findings for the session, whole or not at all; those of an earlier post are replaced. `written` keeps
        the texts of graphs between posts."""
        draft = self.folder / f"{index}.draft"
        with contextlib.suppress(OSError):  # out of reach, or a full disk: the result travels another way
            draft.write_text(write(findings, written))
            draft.replace(self._post(index))

    def collect(self, index: int, memo: Memo | None = None) -> Findings | None:
        """What was posted since the last look, or None; `memo` keeps the graphs of earlier looks."""
        taken = self.folder / f"{index}.taken"
        try:
            self._post(index).replace(taken)
            return read(Findings, taken.read_text(), memo)
        except (OSError, FormatError, UnicodeDecodeError):  # nothing new, or not now: the result travels another way
            return None

    def _post(self, index: int) -> Path:
        return self.folder / f"{index}.post"
