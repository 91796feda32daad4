"""How long a session takes to its first and its final kernel: what timings come to, and which programs there are."""

from __future__ import annotations

import pytest

from mirage_nb.__main__ import main
from mirage_nb.bench.first import PROGRAMS, named, waited
from mirage_nb.errors import OptionError
from mirage_nb.runtime.passes import Timed


def test_the_first_the_near_and_the_final_time() -> None:
    timed = [Timed(1.0, "a", 40.0), Timed(2.0, "b", 10.5), Timed(2.5, "c", 12.0), Timed(3.0, "d", 10.0)]
    found = waited("x", timed, 9.0, "a kernel", ())
    assert (found.us, found.first, found.near, found.final, found.end) == (10.0, 1.0, 2.0, 3.0, 9.0)
    assert found.line.split()[:6] == ["x", "10.00", "1.0", "2.0", "3.0", "9.0"]


def test_a_session_without_a_time() -> None:
    found = waited("x", [], 2.0, "nothing was timed", ())
    assert found.first is None and found.line.split()[1:6] == ["-", "-", "-", "-", "2.0"]


def test_every_program_is_there() -> None:
    assert len(PROGRAMS) == 12 and all(named(name).graph.ops for name in PROGRAMS)
    with pytest.raises(OptionError, match="softmin"):
        named("softmin")


def test_without_a_card_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "first"]) != 0
    assert "bench first needs a GPU" in capsys.readouterr().err
