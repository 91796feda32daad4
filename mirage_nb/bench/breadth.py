"""`bench breadth`: the problems that people bring, each raced against what a PyTorch user has.

In: which problems, and which share of them where several cards measure side by side. Out: rows for `bench kernels`.
A problem that the language cannot say yet is named and left out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from mirage_nb.bench.kernels import Entry
from mirage_nb.bench.machine import share_of, words
from mirage_nb.bench.problems import PROBLEMS, Problem
from mirage_nb.errors import MirageError, OptionError

if TYPE_CHECKING:
    from mirage_nb.runtime.contest.race import Peer


def breadth_entries(wanted: str, share: str) -> tuple[Entry, ...]:
    """The problems whose names have one of these parts (separated by commas; empty: all), every N-th from the I-th on.

    Raises:
        OptionError: there is no such problem, or the share is not I/N with I below N.
    """
    names = words(wanted)
    chosen = [p for p in PROBLEMS if not names or any(name in p.name for name in names)]
    if not chosen:
        families = ", ".join(dict.fromkeys(problem.family for problem in PROBLEMS))
        raise OptionError(f"no problem is called {wanted!r}", hint=f"the families are {families}")
    return tuple(entry for p in share_of(chosen, share) if (entry := _entry(p)) is not None)


def _entry(problem: Problem) -> Entry | None:
    try:
        return Entry(problem.program(), 1, partial(_peers, problem))
    except MirageError as error:
        sys.stderr.write(f"{problem.name}: left out, {error.message}\n")
        return None


def _peers(problem: Problem) -> Mapping[str, Peer]:
    from mirage_nb.bench.idioms import peers  # it needs PyTorch

    return peers(problem)
