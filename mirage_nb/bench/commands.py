"""The benchmark commands: `python -m mirage_nb bench kernels`. Each prints a table and can keep a record."""

from __future__ import annotations

import argparse
from typing import Any

from mirage_nb.bench.cost import rank_record, run_cost
from mirage_nb.bench.kernels import DEFAULT_WORKLOADS, run_kernels
from mirage_nb.bench.search import add_search
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
    cost = kinds.add_parser("cost", help="how well the cost model ranks instances, on the attached GPU")
    cost.add_argument("--workloads", default=",".join(DEFAULT_WORKLOADS), help="names, separated by commas")
    cost.add_argument("--batch", type=int, default=1, metavar="B")
    cost.add_argument("--count", type=int, default=100, help="instances of each workload")
    cost.add_argument("--record", metavar="FILE", help="write every measurement as JSON")
    cost.add_argument("--from", dest="source", metavar="FILE", help="rank this record anew instead; needs no GPU")
    cost.set_defaults(run=_cost)
    add_search(kinds)


def _names(options: argparse.Namespace) -> tuple[str, ...]:
    names = tuple(name for name in options.workloads.split(",") if name)
    for name in names:
        if name not in WORKLOADS:
            raise OptionError(f"unknown workload {name!r}", hint=f"one of {', '.join(WORKLOADS)}")
    return names


def _cost(options: argparse.Namespace) -> int:
    if options.source:
        return rank_record(options.source)
    if options.batch < 1 or options.count < 1:
        raise OptionError("--batch and --count have to be positive")
    return run_cost(_names(options), options.batch, options.count, options.record)


def _kernels(options: argparse.Namespace) -> int:
    names = _names(options)
    batches = options.set.removeprefix("B=").split(",")
    if not all(b.isdecimal() and int(b) > 0 for b in batches):
        raise OptionError(f"--set {options.set!r}: not a list of batch sizes", hint="for example --set B=1,8")
    return run_kernels(names, tuple(int(b) for b in batches), options.record)
