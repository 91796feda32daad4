"""Cards beside the session's own: who takes part, what is believed of what they say, and who holds them."""

from __future__ import annotations

import concurrent.futures as futures
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from mirage_nb.errors import LaunchError
from mirage_nb.lang import parse
from mirage_nb.runtime.contest import other_cards, trial, tuning
from mirage_nb.runtime.contest.other_cards import Course, Entrant, OtherCards, laps
from mirage_nb.runtime.contest.standby import Standby
from mirage_nb.runtime.contest.timing import Lap, Timing
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.search.session.progress import State
from mirage_nb.settings import VISIBLE_DEVICES, visible_devices
from tests.stand_in_card import CARD, CUBIN

COURSE = Course(parse("X: f16[8, 64]\nreturn exp(X)").graph, 1.0, CARD)
BEST = Entrant("best", None, CUBIN)  # type: ignore[arg-type]
LOTS = [{n: Entrant(f"k{n}", None, CUBIN) for n in lot} for lot in ((0, 1), (2, 3), (4, 5))]  # type: ignore[arg-type]


def lap(name: str, us: float) -> Lap:
    return Lap(name, 0.0, Timing(name, us, us, us, 9))


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two more cards; lots are asked for under their names, and answered by the test."""
    asked: dict[str, list[futures.Future[Any]]] = {"GPU-a": [], "GPU-b": []}

    def here(card: str, proceed: object) -> other_cards._Card:
        def submit(*given: object) -> futures.Future[Any]:
            asked[card].append(futures.Future())
            return asked[card][-1]

        return other_cards._Card(card, submit, lambda: other_cards.TAKEN.give(card))

    monkeypatch.setattr(other_cards, "_here", here)
    monkeypatch.setattr(other_cards, "others_like", lambda gpu: tuple(asked))
    said: list[str] = []
    with OtherCards(COURSE, lambda: True, said.append, None) as cards:
        yield SimpleNamespace(cards=cards, asked=asked, said=said)


def put(there: Any, lot: int) -> bool:
    return bool(there.cards.put(LOTS[lot], BEST, 2.0, 9.0))


def test_lots_are_shared_out_and_come_back_by_number(there: Any) -> None:
    assert put(there, 0) and put(there, 1) and [len(lots) for lots in there.asked.values()] == [1, 1]
    assert there.cards.have_room and not [*there.cards.back()]
    there.asked["GPU-b"][0].set_result([lap("best", 2.1), lap("k2", 3.0), LaunchError("wrong or inaccurate")])
    (number, found), (other, error) = there.cards.back()
    assert (number, found.us, other, str(error)) == (2, 3.0, 3, "wrong or inaccurate")
    assert put(there, 2) and put(there, 2) and put(there, 2) and not there.cards.have_room
    there.cards.forget()
    there.asked["GPU-a"][0].set_result([lap("best", 2.0), lap("k0", 1.0), lap("k1", 1.0)])
    assert not [*there.cards.back()] and there.cards.have_room, "nobody asks any more"
    assert there.said == ["kernels are timed on 2 more Some card of this machine, too"]


@pytest.mark.parametrize("answer", [[lap("best", 2.9), lap("k0", 0.1), lap("k1", 0.1)], LaunchError("it died")])
def test_a_card_that_is_slow_or_fails_twice_is_left_alone(there: Any, answer: Any) -> None:
    for _ in range(2):
        assert put(there, 0)
        if isinstance(answer, list):
            there.asked["GPU-a"][-1].set_result(answer)
        else:
            there.asked["GPU-a"][-1].set_exception(answer)
        assert [*there.cards.back()] == [(0, None), (1, None)], "they are timed here"
    assert there.said[1:] == [f"nothing more is timed on GPU-a: {there.said[1].partition(': ')[2]}"]
    assert put(there, 0) and len(there.asked["GPU-b"]) == 1


def test_no_two_sessions_time_on_one_card(there: Any) -> None:
    with OtherCards(COURSE, lambda: True, there.said.append, None) as second:
        assert not second.have_room
    there.cards.__exit__()
    with OtherCards(COURSE, lambda: True, there.said.append, None) as second:
        assert second.have_room


def test_a_card_of_another_kind_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    race: Any = SimpleNamespace(Track=lambda *given: pytest.fail("nothing is timed"))
    monkeypatch.setitem(sys.modules, "mirage_nb.runtime.contest.race", race)
    monkeypatch.setattr(other_cards, "own_gpu", lambda: Gpu("Smaller card", 90, 114, "13.0", 50 * 2**20))
    with pytest.raises(LaunchError, match="another kind, Smaller card"):
        laps(COURSE, [BEST], 9.0)


def test_threads_of_other_cards_go_on_while_the_session_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session tells no thread but its supervising one to proceed, and nothing was timed on any other card."""
    given: list[Any] = []
    monkeypatch.setattr(tuning, "OtherCards", lambda course, proceed, tell, lent: given.append(proceed))
    search = SimpleNamespace(program=COURSE.program, state=State.RUNNING, tell=None, proceed=lambda: False)
    passes: Any = SimpleNamespace(search=search, input_scale=1.0)
    tuning._Tuning(passes, CARD, 9.0, None)._others()
    assert given[0]()
    search.state = State.STOPPED
    assert not given[0]()


def test_its_process_sees_one_card_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "STANDBY", Standby())
    monkeypatch.setattr(other_cards, "laps", os.getenv)
    card = other_cards._here("GPU-a", lambda: True)
    try:
        assert card.submit(VISIBLE_DEVICES).result(60) == "GPU-a"  # type: ignore[comparison-overlap]
    finally:
        card.close()
        for workers in trial.STANDBY._there.values():
            workers.terminate()


@pytest.mark.parametrize(
    "listed, found", [(None, ("0", "1")), ("", ("0", "1")), ("3, 1,2", ("3", "1")), ("GPU-x", ("GPU-x",))]
)
def test_cards_are_called_as_the_variable_has_them(
    monkeypatch: pytest.MonkeyPatch, listed: str | None, found: tuple[str, ...]
) -> None:
    if listed is None:
        monkeypatch.delenv(VISIBLE_DEVICES, raising=False)
    else:
        monkeypatch.setenv(VISIBLE_DEVICES, listed)
    assert visible_devices(2) == found
