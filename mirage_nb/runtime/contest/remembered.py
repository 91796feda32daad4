"""The winner of an earlier session of the same program on the same card: what a session tries first.

In: winners, each with the way it was emitted. Out: the last one for a program, a target and a card, as a candidate that
nobody has verified. Invariants: nothing is taken on the word of a file: it is verified again, run in a process of its
own, compared with float64 and timed like any other; what is not readable, or was sealed by nobody, is not there.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from mirage_nb.codegen import Options
from mirage_nb.errors import FormatError
from mirage_nb.ir import KernelGraph
from mirage_nb.runtime.contest.winner import Winner
from mirage_nb.runtime.execution.artifacts import ArtifactCache, digest
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.search.session.plain import read, write
from mirage_nb.search.session.progress import Candidate
from mirage_nb.search.session.restored import doubted
from mirage_nb.settings import read_settings
from mirage_nb.targets import Target

FOLDER, SUFFIX = "winners", ".txt"


@dataclass(frozen=True, slots=True)
class Remembered:
    """A candidate, and the way that was the fastest to emit it."""

    candidate: Candidate
    options: Options


def remember(winner: Winner, target: Target, gpu: Gpu) -> None:
    """Keep a winner for the next session of its program; where nothing can be kept there is none."""
    text = write(Remembered(winner.candidate, winner.emitted.options))
    with contextlib.suppress(OSError):
        _cache().store(_key(winner.origin.program, target, gpu), SUFFIX, text.encode(), {})


def remembered(program: KernelGraph, target: Target, gpu: Gpu) -> Remembered | None:
    """The last winner of a program on this card, which is as stored; None if there is none."""
    kept = _cache().load(_key(program, target, gpu), SUFFIX)
    if kept is None:
        return None
    try:
        found = read(Remembered, kept.data.decode())
    except (FormatError, UnicodeDecodeError):  # of another edition
        return None
    return replace(found, candidate=doubted(found.candidate))


def forget(program: KernelGraph, target: Target, gpu: Gpu) -> None:
    """The next session of a program begins as the first one did."""
    _cache().remove(_key(program, target, gpu), SUFFIX)


def _cache() -> ArtifactCache:
    return ArtifactCache(read_settings().home / FOLDER)


def _key(program: KernelGraph, target: Target, gpu: Gpu) -> str:
    return digest(("winner", program.digest(), target.name, target.precision, gpu.name))
