"""The benchmark commands: `python -m mirage_nb bench kernels`. Each prints a table and can keep a record."""

from __future__ import annotations

import argparse
from typing import Any

from mirage_nb.bench.kernels import DEFAULT_WORKLOADS, run_kernels
from mirage_nb.bench.workloads import WORKLOADS
from mirage_nb.errors import OptionError


def add_parser(commands: Any) -> None:
    """Add `bench` and its commands to the command line."""
    top = commands.add_parser("bench", help="measure, on this machine, in one run")
    kinds = top.add_subparsers(dest="bench", required=True)
    kernels = kinds.add_parser("kernels", help="our kernels and every peer, on the attached GPU")
    kernels.add_argument("--workloads", default=",".join(DEFAULT_WORKLOADS), help="names, separated by commas")
    kernels.add_argument("--set", default="1", metavar="B=1,8", help="batch sizes, for example B=1,8")
    kernels.add_argument("--record", metavar="FILE", help="write the measurements as JSON")
    kernels.set_defaults(run=_kernels)


def _kernels(options: argparse.Namespace) -> int:
    names = tuple(name for name in options.workloads.split(",") if name)
    for name in names:
        if name not in WORKLOADS:
            raise OptionError(f"unknown workload {name!r}", hint=f"one of {', '.join(WORKLOADS)}")
    batches = options.set.removeprefix("B=").split(",")
    if not all(b.isdecimal() and int(b) > 0 for b in batches):
        raise OptionError(f"--set {options.set!r}: not a list of batch sizes", hint="for example --set B=1,8")
    return run_kernels(names, tuple(int(b) for b in batches), options.record)
