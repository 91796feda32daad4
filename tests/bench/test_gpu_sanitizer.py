"""Every kernel that is shipped in a record is clean under NVIDIA's compute-sanitizer: memory, and races."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from mirage_nb.bench.sanitize import TOOLS, Checked, checked
from mirage_nb.errors import MissingPartError
from mirage_nb.runtime.gpu import attached_gpu
from mirage_nb.runtime.sanitize import complaint, find_sanitizer
from mirage_nb.targets import DEFAULT_TARGET, find_target
from tests.bench.shipped import shipped


@pytest.mark.gpu
@pytest.mark.slow
def test_no_wild_access_and_no_race() -> None:
    try:
        sanitizer = find_sanitizer()
    except MissingPartError as error:
        pytest.skip(str(error))
    gpu = attached_gpu()
    assert gpu is not None
    found = list(checked(shipped(), TOOLS, gpu.target() or find_target(DEFAULT_TARGET), sanitizer))
    assert len(found) == 2 * len(shipped())
    assert [one for one in found if one.complaint] == []


H200 = find_target("h200")


def row(**known: Any) -> dict[str, Any]:
    return {**next(r for r in shipped() if r["workload"] == "lora" and r["B"] == 1), **known}


def answered(monkeypatch: pytest.MonkeyPatch, status: int, said: str) -> list[Checked]:
    """What becomes of one row when the sanitizer ends like this."""
    asked: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        assert "PLAN = r'''" in Path(command[-2]).read_text()
        return subprocess.CompletedProcess(command, status, said, "")

    monkeypatch.setattr(subprocess, "run", run)
    found = list(checked([row()], TOOLS, H200, "the-sanitizer"))
    assert sorted(command[:3] for command in asked) == [["the-sanitizer", "--tool", tool] for tool in TOOLS]
    return found


def test_clean_only_if_the_kernels_ran_and_were_right(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = "right: relative error 1e-4 against NumPy\n========= ERROR SUMMARY: 0 errors\n"
    assert [c.complaint for c in answered(monkeypatch, 0, clean)] == ["", ""]
    assert all("not checked" in c.complaint for c in answered(monkeypatch, 0, "not checked: no GPU here"))
    said = ["", "COMPUTE-SANITIZER", "Invalid __global__ read of size 16 bytes", "    at kernel0\n"]
    dirty = "\n========= ".join(said)
    told = answered(monkeypatch, 9, dirty + clean)
    assert [c.complaint for c in told] == ["Invalid __global__ read of size 16 bytes\n    at kernel0"] * 2
    assert complaint("") == ""


def test_rows_that_are_emitted_no_more_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("there is nothing to run"))
    for known in ({"mugraph": "%0 = Nonsense()"}, {"emitted": "Options(warps=7)"}, {"emitted": "Options(colour=red)"}):
        (one,) = checked([row(**known)], ("memcheck",), H200, "the-sanitizer")
        assert one.complaint.startswith("not checked: ")
    assert "no more as Options(colour=red)" in one.complaint
