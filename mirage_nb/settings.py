"""Settings read from the environment, once, in one place.

Variables (all optional): MIRAGE_NB_HOME, the folder of compiled kernels (default `~/.cache/mirage_nb`);
MIRAGE_NB_STORE, the file that every session is stored in, or `off` (unset: only sessions that ask for it,
in `sessions.sqlite` in MIRAGE_NB_HOME or else in the user's data folder); MIRAGE_NB_WORKERS, the number of
worker processes (default: the cores this process may use); MIRAGE_NB_CXX, the C++ compiler for the CPU
edition (default `g++`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mirage_nb.errors import OptionError

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""The variable by which CUDA decides what a process sees."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says: folder, worker count (at least 1), C++ compiler, store.

    `store`: the file of those who ask for a store, None if there shall be none; `stored`: everybody asks.
    """

    home: Path
    workers: int
    cxx: str
    store: Path | None = None
    stored: bool = False


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from `environ` (default: the environment of this interpreter).

    Raises:
        OptionError: MIRAGE_NB_WORKERS is not a positive integer, or there is no folder to fall back to.
    """
    env = os.environ if environ is None else environ
    raw = env.get("MIRAGE_NB_WORKERS", "")
    if raw and not (raw.isdigit() and int(raw) > 0):
        raise OptionError(
            f"MIRAGE_NB_WORKERS is {raw!r}, not a positive integer", hint="unset it, or set it to 1 or more"
        )
    store = env.get("MIRAGE_NB_STORE", "")
    return Settings(
        home=Path(env.get("MIRAGE_NB_HOME") or _user_folder() / ".cache" / "mirage_nb"),
        workers=int(raw) if raw else _cores(),
        cxx=env.get("MIRAGE_NB_CXX") or "g++",
        store=None if store == "off" else Path(store) if store else _data_folder(env) / "sessions.sqlite",
        stored=store not in ("", "off"),
    )


def worker_environment() -> dict[str, str]:
    """The environment of a worker process. A worker has one core: threads that a matrix library would start in each of
    them are in each other's way."""
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def visible_devices(count: int) -> tuple[str, ...]:
    """What the CUDA devices of this interpreter, so many, are called in `CUDA_VISIBLE_DEVICES`."""
    listed = os.environ.get(VISIBLE_DEVICES, "").replace(" ", "").split(",")
    return tuple(listed[:count]) if listed != [""] else tuple(map(str, range(count)))


def take_environment(environment: Mapping[str, str]) -> None:
    """Have another process's environment, and nothing else."""
    os.environ.clear()
    os.environ.update(environment)


def _data_folder(env: Mapping[str, str]) -> Path:
    """Where what a user wants to keep is: not in a cache, unless everything is to be in one folder."""
    if env.get("MIRAGE_NB_HOME"):
        return Path(env["MIRAGE_NB_HOME"])
    return Path(env.get("XDG_DATA_HOME") or _user_folder() / ".local" / "share") / "mirage_nb"


def _user_folder() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:  # a container's user of whom nothing but a number is known
        raise OptionError("this user has no home folder", hint="set MIRAGE_NB_HOME to a folder of yours") from error


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)
