"""What this machine has, what is missing, and the command that mends it."""

from __future__ import annotations

import importlib.metadata
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from mirage_nb.runtime.execution.artifacts import distrusted
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.gpu import attached_gpu
from mirage_nb.settings import Settings, read_settings
from mirage_nb.targets import DEFAULT_TARGET, find_target

PROBE = '#include "mirage_device.cuh"\nextern "C" __global__ void probe() {}\n'
"""The smallest kernel that needs everything that real ones need."""

WITHOUT_GPU = "everything else runs on the CPU edition; estimates come from the cost model"
OTHER_HOME = "set MIRAGE_NB_HOME to a folder that can be written to"
FOR_TORCH = "library kernels (attention, softmax, norms, single operators), baselines and float64 on a GPU"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the machine: whether it is there, which, what it is for, and how to get it."""

    name: str
    found: bool
    detail: str
    purpose: str
    remedy: str = ""


def examine(settings: Settings | None = None) -> tuple[Part, ...]:
    """Look at every part that some room can use. Never raises; takes about a second."""
    known = settings if settings is not None else read_settings()
    return (
        _package("numpy", "the search and the interpreters", "pip install numpy"),
        _package("z3-solver", "layouts", "pip install z3-solver"),
        _guarded("GPU", "timing, and running kernels at full speed", WITHOUT_GPU, _gpu, known),
        _guarded("NVRTC", "compiling cubins, with or without a GPU", "pip install 'mirage-nb[nvrtc]'", _nvrtc, known),
        _guarded("C++", "executing kernels without a GPU", "apt-get install g++", _compiler, known),
        _package("torch", FOR_TORCH, "pip install 'mirage-nb[torch]'"),
        _package("ipywidgets", "the live view", "pip install 'mirage-nb[notebook]'"),
        _package("anywidget", "the live view", "pip install 'mirage-nb[notebook]'"),
        _package("matplotlib", "figures", "pip install 'mirage-nb[notebook]'"),
        _guarded("store", "keeping results and compiled kernels", OTHER_HOME, _store, known),
    )


def report(parts: tuple[Part, ...]) -> str:
    """The findings as a table of text, one part a line, with the remedy under what is missing."""
    lines = []
    for part in parts:
        lines.append(f"{'ok     ' if part.found else 'missing'}  {part.name:<12} {part.detail}")
        if not part.found:
            lines += [f"{'':<22}{words}" for words in (f"needed for {part.purpose}", part.remedy) if words]
    return "\n".join(lines)


def _package(name: str, purpose: str, remedy: str) -> Part:
    try:
        return Part(name, True, importlib.metadata.version(name), purpose)
    except importlib.metadata.PackageNotFoundError:
        return Part(name, False, "not installed", purpose, remedy)


def _guarded(name: str, purpose: str, remedy: str, look: Callable[[Settings], str], settings: Settings) -> Part:
    """A part that is there when `look` returns its description; any failure is the detail."""
    try:
        return Part(name, True, look(settings), purpose)
    except Exception as error:  # noqa: BLE001  # a broken driver or wheel fails in ways of its own; the report shows which
        first = (str(error) or type(error).__name__).splitlines()[0]
        return Part(name, False, first[:160], purpose, remedy)


def _gpu(settings: Settings) -> str:
    gpu = attached_gpu()
    if gpu is None:
        raise RuntimeError("no CUDA device" if find_spec("cupy") is not None else "no CuPy, which sees CUDA devices")
    target = gpu.target()
    known = f"target {target.name}" if target is not None else "none of the known targets"
    return f"{gpu.name}, CUDA driver {gpu.driver}, {known}"


def _nvrtc(settings: Settings) -> str:
    architecture = find_target(DEFAULT_TARGET).arch
    compile_cubin(PROBE, architecture, settings=settings)
    from cupy.cuda import nvrtc

    major, minor = nvrtc.getVersion()
    return f"NVRTC {major}.{minor}, compiles for {architecture}"


def _compiler(settings: Settings) -> str:
    path = shutil.which(settings.cxx)
    if path is None:
        raise RuntimeError(f"{settings.cxx} is not on the PATH")
    shown = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    return shown.stdout.splitlines()[0]


def _store(settings: Settings) -> str:
    settings.home.mkdir(parents=True, exist_ok=True)
    probe = settings.home / ".doctor"
    probe.write_bytes(b"x")
    probe.unlink()
    for why in distrusted(settings.home):
        raise RuntimeError(why)
    return f"{settings.home}, SQLite {sqlite3.sqlite_version}"
