"""Commands side by side, each on cores of its own: how benchmarks and campaigns use a large machine.

In: command lines, cores for each. Out: the lines that they write, as they come, with the number of the command.
Invariants: no more run at once than there are groups of cores; none runs on when its caller has ended.
"""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

CHUNK = 1 << 16


@dataclass(slots=True)
class _Running:
    """A command that runs: its number, its cores, and the line that it has begun."""

    number: int
    place: frozenset[int]
    process: subprocess.Popen[bytes]
    begun: bytes = field(default=b"")


def lines_of(commands: Sequence[Sequence[str]], lanes: int, cores: int) -> Iterator[tuple[int, str]]:
    """Run the commands, at most `lanes` at once, each on `cores` cores of this process's. Yields the number of a
    command and a line of its standard output; their standard error is that of this process."""
    places = groups(cores)[:lanes]
    waiting = [*enumerate(commands)][::-1]
    running: dict[int, _Running] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and places:
                    begun = _begin(*waiting.pop(), places.pop())
                    running[begun.number] = begun
                    selector.register(_output(begun), selectors.EVENT_READ, begun)
                for key, _ in selector.select():
                    one: _Running = key.data
                    read = os.read(key.fd, CHUNK)
                    *lines, one.begun = (one.begun + read).split(b"\n")
                    if not read:
                        lines += [one.begun] if one.begun else []
                        selector.unregister(key.fileobj)
                        with one.process:  # its stream is closed, and it is waited for
                            pass
                        places.append(running.pop(one.number).place)
                    yield from ((one.number, line.decode(errors="replace")) for line in lines)
        finally:
            for one in running.values():
                with one.process:
                    one.process.terminate()


def groups(cores: int) -> list[frozenset[int]]:
    """This process's cores, so many together; one group of all of them where there are fewer, or nobody knows them."""
    if not hasattr(os, "sched_getaffinity"):
        return [frozenset()]
    mine = sorted(os.sched_getaffinity(0))
    return [frozenset(mine[at : at + cores]) for at in range(0, len(mine) - cores + 1, cores)] or [frozenset(mine)]


def _begin(number: int, command: Sequence[str], place: frozenset[int]) -> _Running:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    if place:
        os.sched_setaffinity(process.pid, place)
    return _Running(number, place, process)


def _output(running: _Running) -> int:
    stream = running.process.stdout
    return stream.fileno() if stream is not None else -1
