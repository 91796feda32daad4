"""Whole sessions on a card that is not there (`tests/fake_card`): every process that a session has does its part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cupy")
CARD = Path(__file__).parents[1] / "fake_card"
SESSION = """
import json, subprocess, os, time
from mirage_nb import superoptimize
budget = float(os.environ["BUDGET"]) if "BUDGET" in os.environ else None
text = "X: f16[8, 256]\\nW: f16[256, 512]\\nreturn rms_norm(X) @ W"
session = superoptimize(text, effort="quick", name="fake", budget=budget)
session.wait()
def left():
    said = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    rows = [line.split() for line in said.splitlines()]
    mine = [pid for pid, parent in rows if parent == str(os.getpid())]
    return [pid for pid, parent in rows if parent in mine]  # of what workers are forked of
until = time.monotonic() + 5
while left() and time.monotonic() < until:
    time.sleep(0.1)
now = session.snapshot()
print(json.dumps({
    "state": now.state.value, "messages": now.messages, "left": left(),
    "winners": [w.label for w in session.winners], "tried": [*session._passes.tried],
    "pid": os.getpid(), "own": now.baseline.digest, "times": [t.candidate for t in session.timed],
    "notes": [c.note for c in now.candidates if c.note], "timed": len(session.timed),
}))
"""


def ended(**environment: str) -> Any:
    path = os.pathsep.join([str(CARD), str(CARD.parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", SESSION], env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_session_tries_its_winner_on_hard_inputs_and_leaves_no_process() -> None:
    found = ended()
    assert found["state"] == "finished" and found["timed"] > 3 and not found["left"]
    assert found["winners"][0] in found["tried"] and not found["notes"], found


@pytest.mark.slow
def test_faults_on_hard_inputs_cost_one_kernel_each() -> None:
    """They were those of the notebook's own process, and its card was lost."""
    found = ended(FAULTY="1")
    assert found["state"] == "finished" and found["winners"][0] in found["tried"] and not found["left"], found
    assert [note for note in found["notes"] if "illegal memory access" in note], found
    assert not [message for message in found["messages"] if "is lost to this process" in message]


@pytest.mark.slow
def test_where_a_process_cannot_take_the_inputs_the_session_s_own_does() -> None:
    found = ended(CROWDED="1")
    assert found["state"] == "finished" and found["winners"][0] in found["tried"] and not found["left"], found
    told = [m for m in found["messages"] if m.startswith("kernels meet random and hard inputs in this process")]
    assert len(told) == 1, found


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1, 2, 5, None])
def test_what_a_search_finds_is_compiled_and_tried_while_pytorch_is_loaded(budget: int | None, tmp_path: Path) -> None:
    """The first session of a process waited for it before anything was tried, and ended with its own operators."""
    limit = {} if budget is None else {"BUDGET": str(budget)}
    (log := tmp_path / "log").touch()
    found = ended(COLD="torch=ran cupy=0.1 context=0.5 held=0.2 nvrtc=0.3", CARD_LOG=str(log), **limit)
    events = [line.split(" ", 2) for line in log.read_text().splitlines()]

    def first(what: str, here: bool = True) -> float:
        return next(
            float(at) for at, pid, said in events if said.startswith(what) and (int(pid) == found["pid"]) == here
        )

    tried, loaded, timed = first("ran", here=False), first("torch: is there"), first("timed")
    assert first("torch: begins") < first("context: begins") < first("nvrtc: begins") < tried < loaded < timed
    assert timed - loaded < 0.5, "all else that takes a while was done beside it"
    assert {*found["times"]} > {found["own"]} and found["times"][0] == found["own"], "whatever the budget"
    assert not [message for message in found["messages"] if "the budget was over before" in message]
