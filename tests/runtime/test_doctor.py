"""What the doctor finds, and what it says about what is missing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_nb.errors import MissingPartError
from mirage_nb.runtime import doctor
from mirage_nb.runtime.doctor import Part, examine, report
from mirage_nb.runtime.execution.compile import load_compiler
from mirage_nb.runtime.gpu import attached_gpu
from mirage_nb.settings import Settings, read_settings


@pytest.fixture
def settings() -> Settings:
    return read_settings()


def found(settings: Settings) -> dict[str, Part]:
    return {part.name: part for part in examine(settings)}


def test_the_parts_of_this_machine(settings: Settings) -> None:
    parts = found(settings)
    assert {"numpy", "z3-solver", "GPU", "NVRTC", "C++", "torch", "ipywidgets", "anywidget", "matplotlib"} <= set(parts)
    assert parts["numpy"].found and parts["numpy"].detail[0].isdigit()
    assert parts["C++"].found and parts["store"].found
    assert str(settings.home) in parts["store"].detail
    assert all(part.purpose and (part.found or part.remedy) for part in parts.values())


def test_what_is_missing_comes_with_its_remedy(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    parts = found(replace(settings, cxx="/nonexistent/g++", home=Path("/proc/nowhere")))
    remedies = {"GPU": "CPU edition", "NVRTC": "mirage-nb[nvrtc]", "C++": "g++", "store": "MIRAGE_NB_HOME"}
    for name, remedy in remedies.items():
        assert not parts[name].found and remedy in parts[name].remedy
    lines = [line.strip() for line in report(tuple(parts.values())).splitlines()]
    assert [line for line in lines if line.startswith("missing") and "C++" in line]
    assert lines.index("apt-get install g++") == lines.index("needed for executing kernels without a GPU") + 1


def test_a_compiler_that_is_none(settings: Settings, tmp_path: Path) -> None:
    wrong = tmp_path / "g++"
    wrong.write_text("#!/bin/sh\nexit 3\n")
    wrong.chmod(0o755)
    part = found(replace(settings, cxx=str(wrong)))["C++"]
    assert not part.found and "3" in part.detail


def test_nvrtc_has_to_compile(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object, **named: object) -> None:
        raise RuntimeError("libnvrtc-builtins.so is missing\nand more")

    monkeypatch.setattr(doctor, "compile_cubin", fails)
    part = found(settings)["NVRTC"]
    assert not part.found and part.detail == "libnvrtc-builtins.so is missing"


def test_a_cupy_that_finds_no_home_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes a folder while it loads."""

    class Homeless:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "cupy":
                raise PermissionError(13, "Permission denied", "/.cupy")

    for name in [name for name in sys.modules if name.partition(".")[0] == "cupy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Homeless, *sys.meta_path])
    assert attached_gpu() is None
    with pytest.raises(MissingPartError, match="CUPY_CACHE_DIR"):
        load_compiler()
