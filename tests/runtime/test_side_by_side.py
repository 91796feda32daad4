"""Commands side by side: every line once, no more at once than asked for, each on its own cores, none left behind."""

from __future__ import annotations

import os
import sys

import pytest

from mirage_nb.runtime.side_by_side import groups, lines_of

PRINTS = "import os, sys; print(sys.argv[1]); print(sorted(os.sched_getaffinity(0))); sys.stdout.write('no end')"


def test_every_line_of_every_command() -> None:
    found = [*lines_of([(sys.executable, "-c", PRINTS, str(number)) for number in range(4)], 2, 1)]
    for number in range(4):
        named, cores, last = [line for who, line in found if who == number]
        assert (named, last) == (str(number), "no end")
        assert frozenset(map(int, cores.strip("[]").split(","))) in groups(1)
    assert len(found) == 12


def test_cores_are_shared_out() -> None:
    mine = os.sched_getaffinity(0)
    assert groups(10_000) == [frozenset(mine)] and sum(map(len, groups(1))) == len(mine)
    assert not frozenset.intersection(*groups(1)) or len(mine) == 1


def test_commands_end_with_their_caller() -> None:
    lines = lines_of([(sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)")], 1, 1)
    _, pid = next(lines)
    lines.close()
    with pytest.raises(ChildProcessError):  # it was waited for: nobody has it as a child
        os.waitpid(int(pid), 0)
