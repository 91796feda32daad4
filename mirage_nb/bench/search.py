"""`bench search`: what the search costs and what its prunings are worth. Needs no GPU.

Prints three tables: Table 5 of the paper (time by number of operators, closure and Algorithm 1, with and without
pruning by expression, one worker and two), what each pruning is worth, and whole spaces with their memory.
`--record` keeps all numbers with the hardware; `--figure` draws the first two.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from mirage_nb.bench import enumeration, prunings, space
from mirage_nb.bench.machine import check_seconds, columns, keep, known, openable, reading
from mirage_nb.bench.workloads import WORKLOADS, workload
from mirage_nb.errors import OptionError
from mirage_nb.lang import parse

SCHEMA = 1
PROGRAM = "rmsnorm"
"""What Table 5 is about, as in the paper."""
LIMIT, PRUNING_LIMIT, SPACE_LIMIT = 20.0, 6.0, 60.0
"""Seconds that one cell may take: of Table 5 (`--limit` changes it), of the prunings, of the spaces."""
CAP = 20_000
"""Values of one closure with a pruning off."""
PUBLISHED: dict[str, dict[int, float]] = {
    "Mirage": {5: 11, 6: 16, 7: 22, 8: 24, 9: 26, 10: 26, 11: 28},
    "Mirage, one thread": {5: 58, 6: 93, 7: 150, 8: 152, 9: 166, 10: 166, 11: 183},
    "Mirage, unpruned": {5: 768, 6: 19934},
}
"""Seconds of Table 5 as published; the last row took over ten hours from 7 operators on."""


def add_search(kinds: Any) -> None:
    """Add `bench search` to the benchmark commands."""
    sub = kinds.add_parser("search", help="Table 5 of the paper, the worth of each pruning, whole spaces; no GPU")
    sub.add_argument("--workloads", default=",".join(WORKLOADS), help="names, separated by commas")
    sub.add_argument("--ops", default="5-11", metavar="5-11", help="block operators of Table 5")
    sub.add_argument("--limit", type=float, default=LIMIT, metavar="S", help="seconds that a run of Table 5 may take")
    sub.add_argument("--record", metavar="FILE", help="write every number as JSON")
    sub.add_argument("--figure", metavar="FILE", help="draw the first two tables (.svg, .pdf or .png)")
    sub.add_argument("--from", dest="source", metavar="FILE", help="print and draw this record instead")
    sub.set_defaults(run=_search)


def _search(options: argparse.Namespace) -> int:
    if options.source:
        return show_record(options.source, options.figure)
    names = known(options.workloads, WORKLOADS, "workload")
    check_seconds(options, "limit")
    return run_search(names, _bounds(options.ops), options.limit, options.record, options.figure)


def _bounds(text: str) -> tuple[int, ...]:
    first, _, last = text.partition("-")
    last = last or first
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
        raise OptionError(f"--ops {text!r}: not a range of operators", hint="for example --ops 5-11")
    return tuple(range(int(first), int(last) + 1))


def run_search(
    names: Sequence[str], bounds: Sequence[int], limit: float, record: str | None, figure: str | None
) -> int:
    """Measure, print the tables, write the record and the figure. Returns an exit code.

    Raises:
        StoreError: a file cannot be written; found out before anything is measured.
    """
    openable(record)
    openable(figure)
    cells = enumeration.measure(parse(workload(PROGRAM)).graph, bounds, limit)
    found: dict[str, list[dict[str, Any]]] = {
        "table5": _shown(map(asdict, cells), lambda rows: table5(rows, limit)),
        "prunings": _shown(_prunings(names), prunings_table),
        "spaces": _shown(map(asdict, _spaces(names)), spaces_table),
    }
    results = {**machine(), "program": PROGRAM, "limit_s": limit, "cap_values": CAP, **found}
    keep(record, results)
    _draw(results, figure)
    return 0


def show_record(source: str, figure: str | None) -> int:
    """Print the tables of a record, and draw it. Raises OptionError if it is none."""
    with reading(source, "search"):
        results: dict[str, Any] = json.loads(Path(source).read_text())
        tables = (
            table5(results["table5"], results["limit_s"]),
            prunings_table(results["prunings"]),
            spaces_table(results["spaces"]),
        )
        sys.stdout.write("\n\n".join(tables) + "\n")
    openable(figure)
    _draw(results, figure)
    return 0


def _draw(results: dict[str, Any], figure: str | None) -> None:
    if figure:
        from mirage_nb.bench.search_figure import draw  # matplotlib is an optional part

        draw(results, PUBLISHED).savefig(figure)


def _shown(rows: Iterator[dict[str, Any]], table: Callable[[list[dict[str, Any]]], str]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for row in rows:
        made.append(row)
        if sys.stderr.isatty():  # minutes may pass before the table
            sys.stderr.write(f"\r{len(made)} measured\033[K")
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    sys.stdout.write(table(made) + "\n\n")
    sys.stdout.flush()
    return made


def _prunings(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        for cell in prunings.measure(parse(workload(name)).graph, CAP, PRUNING_LIMIT):
            yield {"workload": name, **asdict(cell)}


def _spaces(names: Sequence[str]) -> Iterator[space.Space]:
    for name in names:
        yield from space.measure(name, SPACE_LIMIT)


def table5(rows: Sequence[dict[str, Any]], limit: float) -> str:
    """One line per number of operators, one column per method; seconds."""
    methods = list(dict.fromkeys(enumeration.Method(**r["method"]) for r in rows))
    cells = {(r["operators"], enumeration.Method(**r["method"])): r for r in rows}
    bounds = sorted({r["operators"] for r in rows})
    shown = [[str(bound), *(_cell(cells.get((bound, m)), limit) for m in methods)] for bound in bounds]
    title = f"{PROGRAM}: seconds to find every graph of one kernel with at most N block operators"
    return "\n".join([title, "", *columns([["N", *map(str, methods)], *shown])])


def _cell(row: dict[str, Any] | None, limit: float) -> str:
    if row is None or row["seconds"] is None:
        return f">{limit:g} s"
    return f"{row['seconds']:.3f} s ({row['graphs']} graphs)"


def prunings_table(rows: Sequence[dict[str, Any]]) -> str:
    """One line per pruning, one column per workload: values kept, as a multiple of those with all prunings on."""
    names = list(dict.fromkeys(row["workload"] for row in rows))
    cells = {(row["workload"], row["pruning"]): row for row in rows}
    lines = [["", *names]]
    for pruning in dict.fromkeys(row["pruning"] for row in rows):
        lines.append([pruning])
        for name in names:
            cell, all_on = cells[name, pruning], cells[name, prunings.PRUNINGS[0].name]
            value = f"{cell['kept']}" if cell is all_on else f"{cell['kept'] / all_on['kept']:.2f}x"
            lines[-1].append(("> " if cell["capped"] else "") + value)
    hit = f"> : a cap of {CAP} values, or {PRUNING_LIMIT:g} s, was hit"
    return "\n".join([f"values kept ({prunings.PRUNINGS[0].name}), and as multiples of that; {hit}", *columns(lines)])


def spaces_table(rows: Sequence[dict[str, Any]]) -> str:
    """One line per workload and number of kernels."""
    lines = [["workload", "kernels", "s", "values", "graphs", "saturated", "MiB"]]
    for r in rows:
        numbers = str(r["kernels"]), f"{r['seconds']:.2f}", str(r["values"]), str(r["structures"])
        lines.append([r["workload"], *numbers, "yes" if r["saturated"] else "no", f"{r['peak_mib']:.0f}"])
    return "\n".join(["whole spaces, up to two operators above the smallest graph; CPU seconds", *columns(lines)])


def machine() -> dict[str, Any]:
    """The hardware and the versions that the numbers belong to."""
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def latest_record() -> dict[str, Any]:
    """The newest record that came with the package."""
    folder = resources.files("mirage_nb.bench") / "records"
    names = sorted(f.name for f in folder.iterdir() if f.name.startswith("search-") and f.name.endswith(".json"))
    record: dict[str, Any] = json.loads((folder / names[-1]).read_text())
    return record
