"""Whatever stands in a file of a megabyte, reading and checking it takes seconds and megabytes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mirage_nb.errors import MirageError
from mirage_nb.lang import parse
from mirage_nb.verify.proof import Proof, check
from tests.clock import cpu_limit
from tests.verify.hostile_proofs import HOSTILE_FILES, MEGABYTE

SECONDS, MEGABYTES = 2.0, 200
GRAPH = "X: f32[4, 6]\nreturn X + 1\n"

MEASURED = """
import re, sys
from tests.verify.hostile_proofs import HOSTILE_FILES
from tests.verify.test_proof_hostile import tried
tried(HOSTILE_FILES[sys.argv[1]]())
print(int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) // 1024)
"""
"""What getrusage says counts the process that started this one, too."""


def tried(text: str) -> str:
    """What reading, and checking what was read against a program and itself, ends with."""
    graph = parse(GRAPH).graph
    try:
        check(Proof.from_json(text), graph, graph)
    except MirageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_hostile_files_are_soon_done_with(name: str):
    text = HOSTILE_FILES[name]()
    assert len(text) <= 1.1 * MEGABYTE
    with cpu_limit(SECONDS):
        assert len(tried(text)) < 600


def measured(name: str) -> int:
    """Megabytes that a process takes that reads the file, and nothing else."""
    made = subprocess.run([sys.executable, "-c", MEASURED, name], capture_output=True, text=True, check=True)
    return int(made.stdout)


def test_they_fit_into_little_memory():
    """Those that took most when nothing was counted; all of them with `-m slow`."""
    assert measured("different sets of indices") < MEGABYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_all_of_them_fit_into_little_memory(name: str):
    assert measured(name) < MEGABYTES

