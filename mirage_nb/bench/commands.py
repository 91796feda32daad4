"""The benchmark commands: `python -m mirage_nb bench kernels`. Each prints a table and can keep a record."""

from __future__ import annotations

import argparse
from typing import Any

from mirage_nb.bench.ablation import print_record, run_ablation
from mirage_nb.bench.breadth import breadth_entries
from mirage_nb.bench.cost import rank_record, run_cost
from mirage_nb.bench.coverage import add_programs
from mirage_nb.bench.first import add_first
from mirage_nb.bench.kernels import Asked, Entry, run_kernels, show_record, workload_entries
from mirage_nb.bench.library import add_library
from mirage_nb.bench.machine import check_seconds, known, words
from mirage_nb.bench.models import add_models
from mirage_nb.bench.modules import add_modules
from mirage_nb.bench.mosaic import add_mosaic
from mirage_nb.bench.sanitize import TOOLS, run_sanitize
from mirage_nb.bench.search import add_search
from mirage_nb.bench.verify import add_verify
from mirage_nb.bench.workloads import WORKLOADS
from mirage_nb.errors import OptionError

RANKED = ("rmsnorm", "rmsnorm_fig3", "gated_mlp")
ABLATED = ("rmsnorm", "gated_mlp", "gqa", "decode70b", "qknorm", "ntrans")


def add_parser(commands: Any) -> None:
    """Add `bench` and its commands to the command line."""
    top = commands.add_parser("bench", help="measure, on this machine, in one run")
    kinds = top.add_subparsers(dest="bench", required=True, metavar="BENCHMARK")
    kernels = kinds.add_parser("kernels", help="our kernels and every peer, on the attached GPU")
    kernels.add_argument("--workloads", default=",".join(WORKLOADS), help="names, separated by commas; default: all")
    kernels.add_argument("--set", default="1,8", metavar="B=1,8", help="batch sizes; default: B=1,8")
    _measured(kernels)
    kernels.set_defaults(run=_kernels)
    breadth = kinds.add_parser("breadth", help="what people bring, from one row to thousands, on the attached GPU")
    breadth.add_argument("--problems", default="", help="families or parts of names, separated by commas; default: all")
    breadth.add_argument("--share", default="0/1", metavar="I/N", help="every N-th problem, from the I-th on")
    _measured(breadth)
    breadth.set_defaults(run=_breadth)
    ablation = kinds.add_parser("ablation", help="parts of the plan switched off one at a time, on the attached GPU")
    ablation.add_argument("--workloads", default=",".join(ABLATED), help="names, separated by commas")
    ablation.add_argument("--batch", type=int, default=1, metavar="B")
    ablation.add_argument("--winners", metavar="FILE", help="take the muGraphs of this record of `bench kernels`")
    ablation.add_argument("--record", metavar="FILE", help="write the measurements as JSON")
    ablation.add_argument("--from", dest="source", metavar="FILE", help="print this record instead; needs no GPU")
    ablation.add_argument("--commit", help="what the record names as its commit; default: the checkout's")
    ablation.set_defaults(run=_ablation)
    sanitize = kinds.add_parser("sanitize", help="the kernels of a record under compute-sanitizer, on the attached GPU")
    sanitize.add_argument("--from", dest="source", required=True, metavar="FILE", help="a record of kernels or breadth")
    sanitize.add_argument("--rows", default="", help="parts of their names, separated by commas; default: all")
    sanitize.add_argument("--tools", default=",".join(TOOLS), help=f"separated by commas; default: {','.join(TOOLS)}")
    sanitize.set_defaults(run=_sanitize)
    cost = kinds.add_parser("cost", help="how well the cost model ranks instances, on the attached GPU")
    cost.add_argument("--workloads", default=",".join(RANKED), help="names, separated by commas")
    cost.add_argument("--batch", type=int, default=1, metavar="B")
    cost.add_argument("--count", type=int, default=100, help="instances of each workload")
    cost.add_argument("--record", metavar="FILE", help="write every measurement as JSON")
    cost.add_argument("--from", dest="source", metavar="FILE", help="rank this record anew instead; needs no GPU")
    cost.set_defaults(run=_cost)
    add_first(kinds)
    add_library(kinds)
    add_models(kinds)
    add_modules(kinds)
    add_search(kinds)
    add_verify(kinds)
    add_programs(kinds)
    add_mosaic(kinds)


def _measured(parser: argparse.ArgumentParser) -> None:
    """What commands that race our kernels against peers have in common."""
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="what one search may take; default: no limit")
    parser.add_argument("--tune", type=float, metavar="SECONDS", help="tune every winner for so long before the race")
    parser.add_argument("--store", metavar="FILE", help="keep the searches there; what it has is not searched again")
    parser.add_argument("--record", metavar="FILE", help="write the measurements as JSON, after every row")
    parser.add_argument("--figure", metavar="FILE", help="draw the bars of the paper's Figure 7 (.svg, .pdf, .png)")
    parser.add_argument(
        "--from", dest="source", metavar="FILE", action="append",
        help="show this record instead, needs no GPU; given several times: join them, --record FILE keeps that",
    )  # fmt: skip
    parser.add_argument("--commit", help="what the record names as its commit; default: the checkout's")


def _names(options: argparse.Namespace) -> list[str]:
    return known(options.workloads, WORKLOADS, "workload")


def _cost(options: argparse.Namespace) -> int:
    if options.source:
        return rank_record(options.source)
    if options.batch < 1 or options.count < 1:
        raise OptionError("--batch and --count have to be positive")
    return run_cost(_names(options), options.batch, options.count, options.record)


def _kernels(options: argparse.Namespace) -> int:
    if options.source:
        return show_record(options.source, options.figure, options.record)
    names = _names(options)
    batches = options.set.removeprefix("B=").split(",")
    if not all(b.isdecimal() and int(b) > 0 for b in batches):
        raise OptionError(f"--set {options.set!r}: not a list of batch sizes", hint="for example --set B=1,8")
    return _race(options, workload_entries(names, tuple(dict.fromkeys(int(b) for b in batches))))


def _breadth(options: argparse.Namespace) -> int:
    if options.source:
        return show_record(options.source, options.figure, options.record)
    return _race(options, breadth_entries(options.problems, options.share))


def _race(options: argparse.Namespace, entries: tuple[Entry, ...]) -> int:
    check_seconds(options, "tune", "budget")
    files = options.record, options.figure
    return run_kernels(Asked(entries, options.budget, options.tune, *files, options.commit, options.store))


def _sanitize(options: argparse.Namespace) -> int:
    return run_sanitize(options.source, words(options.rows), known(options.tools, TOOLS, "tool") or TOOLS)


def _ablation(options: argparse.Namespace) -> int:
    if options.source:
        return print_record(options.source)
    if options.batch < 1:
        raise OptionError("--batch has to be positive")
    return run_ablation(_names(options), options.batch, options.record, options.winners, options.commit)
