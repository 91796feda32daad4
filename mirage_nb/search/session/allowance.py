"""What a session may take: a limit in seconds for everything, of which a part is kept for what follows the search.

In: seconds, and how many of them follow the search. Out: when the search is over, and what is left. Invariant: a pause
takes nothing of it, and what an earlier life of the session searched is not had again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from mirage_nb.search.session.channel import Moment

Reserve = Callable[[float], float]
"""Of so many seconds, how many are kept for what follows the search."""
GRACE_SECONDS = 0.3
"""How long a worker may take to notice that the search is over; then it is ended."""


Todo = Callable[[], None]
"""What a session does for whoever started it."""


def idle() -> None:
    """Nothing is to be done."""


def nothing_kept(seconds: float) -> float:
    """Nothing follows the search."""
    return 0.0


@dataclass(slots=True)
class Allowance:
    """The limits of one session; both are None where it has none. Used with the session's lock held, but `left`."""

    seconds: float | None
    reserve: Reserve = nothing_kept
    search_ends: Moment | None = None
    all_ends: Moment | None = None

    def begin(self) -> None:
        """The seconds count from now on."""
        if self.seconds is None:
            self.search_ends = self.all_ends = None
        else:
            self.search_ends = Moment.after(self.seconds - self.reserve(self.seconds))
            self.all_ends = Moment.after(self.seconds)

    def rested(self, seconds: float) -> None:
        """A pause has ended."""
        self.search_ends = self.search_ends.later(seconds) if self.search_ends is not None else None
        self.all_ends = self.all_ends.later(seconds) if self.all_ends is not None else None

    def counted(self, seconds: float) -> float:
        """Of the seconds of an earlier life those that count: what follows a search is done anew, and has its own."""
        return seconds if self.seconds is None else min(seconds, self.seconds - self.reserve(self.seconds))

    @property
    def search_is_over(self) -> bool:
        """Whether even a worker that looks seldom has had its time."""
        return self.search_ends is not None and self.search_ends.later(GRACE_SECONDS).is_past

    @property
    def left(self) -> float:
        """Seconds until everything has to be over."""
        return math.inf if self.all_ends is None else self.all_ends.ticks - time.monotonic()
