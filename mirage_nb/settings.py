"""Settings read from the environment, once, in one place.

Variables (all optional): MIRAGE_NB_HOME, the folder of the store and of compiled kernels (default
`~/.cache/mirage_nb`); MIRAGE_NB_WORKERS, the number of worker processes (default: the cores this
process may use); MIRAGE_NB_CXX, the C++ compiler for the CPU edition (default `g++`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mirage_nb.errors import OptionError


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says: folder, worker count (at least 1), C++ compiler."""

    home: Path
    workers: int
    cxx: str


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from `environ` (default: the environment of this interpreter).

    Raises:
        OptionError: MIRAGE_NB_WORKERS is not a positive integer.
    """
    env = os.environ if environ is None else environ
    raw = env.get("MIRAGE_NB_WORKERS", "")
    if raw and not (raw.isdigit() and int(raw) > 0):
        raise OptionError(
            f"MIRAGE_NB_WORKERS is {raw!r}, not a positive integer", hint="unset it, or set it to 1 or more"
        )
    home = Path(env.get("MIRAGE_NB_HOME") or Path.home() / ".cache" / "mirage_nb")
    return Settings(home=home, workers=int(raw) if raw else _cores(), cxx=env.get("MIRAGE_NB_CXX") or "g++")


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)
