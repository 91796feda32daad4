"""`bench library`: what kernels of a library take on the attached GPU, from small shapes to large, beside the estimate.

In: nothing but the shapes below. Out: a row for every program and way of a library to compute it: microseconds back to
back and behind a foreign kernel, and what `search.sizes.library` says. `--from RECORD` estimates a record's rows anew;
it needs no GPU. Invariant: what is timed is what a session would time, the program's own operators as launched.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mirage_nb.bench.machine import card, keep, machine, openable, reading
from mirage_nb.codegen import emit, variants
from mirage_nb.errors import MirageError
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.gpu import TURN, Gpu
from mirage_nb.search.sizes.library import library_steps
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target

Row = dict[str, Any]
REPEATS = 12

_PRODUCTS = (
    "f32[256,256] @ f32[256,256]", "f32[64,4096] @ f32[4096,64]", "f32[256,128] @ f32[128,96]",
    "f32[8,64,128] @ f32[8,128,96]", "f32[512,512] @ f32[512,512]", "f32[1024,1024] @ f32[1024,1024]",
    "f32[16,1024] @ f32[1024,4096]", "f32[2048,2048] @ f32[2048,2048]", "f16[256,256] @ f16[256,256]",
    "f16[64,4096] @ f16[4096,64]", "f16[128,512] @ f16[512,512]", "f16[512,64,64] @ f16[512,64,64]",
    "f16[16,4096] @ f16[4096,4096]", "f16[1,4096] @ f16[4096,4096]", "f16[256,1024] @ f16[1024,4096]",
    "f16[1024,1024] @ f16[1024,1024]", "f16[32,64,128] @ f16[32,128,64]", "f16[16,256] @ f16[256,1024]",
)  # fmt: skip
_ATTENTION = (
    (4, 128, 128, 64, False), (16, 128, 128, 64, False), (4, 128, 128, 64, True), (32, 512, 512, 64, False),
    (32, 512, 512, 64, True), (8, 1024, 1024, 128, False), (32, 2048, 2048, 128, False), (8, 1, 512, 64, False),
    (32, 1, 4096, 128, False), (8, 1, 4096, 128, False), (64, 16, 4096, 64, False), (8, 8, 256, 64, False),
    (128, 64, 64, 32, False),
)  # fmt: skip
"""Heads, rows, keys, width of a head, whether later keys are masked."""
_ROWS = ("f16[128,1024]", "f32[64,256]", "f16[4096,4096]", "f32[1024,32000]")


def programs() -> Iterator[str]:
    """The programs, each of which one kernel of a library computes."""
    for product in _PRODUCTS:
        left, right = product.split(" @ ")
        yield f"X: {left}\nY: {right}\nreturn X @ Y"
    for heads, rows, keys, head, causal in _ATTENTION:
        scores = f"Q @ K.T * {head} ** -0.5"
        scores = f"where(arange({rows})[:, None] >= arange({keys}), {scores}, -inf)" if causal else scores
        made = "".join(f"{n}: f16[{heads},{rows if n == 'Q' else keys},{head}]\n" for n in "QKV")
        yield f"{made}return softmax({scores}) @ V"
    for rows_type in _ROWS:
        width = rows_type[rows_type.index(",") + 1 : -1]
        yield f"X: {rows_type}\nreturn softmax(X)"
        yield f"X: {rows_type}\nG: {rows_type[:3]}[{width}]\nreturn rms_norm(X, G)"
        yield f"X: {rows_type}\nY: {rows_type}\nreturn X + Y"


def estimated(graph: KernelGraph, target: Target) -> float:
    """Microseconds that its own operators should take."""
    return sum(step.us for step in library_steps(graph, target))


def measured(text: str, target: Target, gpu: Gpu) -> Iterator[Row]:
    """A row for each way to launch the operators of a program."""
    from mirage_nb.runtime.contest.race import Track
    from mirage_nb.runtime.execution.launch import GpuExecutable

    graph = parse(text).graph
    ways: dict[str, Any] = {}
    for way in variants(graph, target):
        emitted = emit(graph, target, way)
        names = ", ".join(getattr(step, "name", "a kernel of ours") for step in emitted.launches)
        ways.setdefault(names, GpuExecutable(emitted, compile_cubin(emitted.source, target.arch), gpu))
    with TURN:
        laps = Track(graph, gpu, 1.0).race(ways, {}, REPEATS)
    for lap in laps:
        times = {"chain_us": lap.chain and lap.chain.median_us, "after_us": lap.timing and lap.timing.median_us}
        yield {"program": text, "launches": lap.name, "estimate_us": estimated(graph, target), **times}


def shown(row: Row) -> str:
    """One line."""
    inputs = ", ".join(line.partition(": ")[2] for line in row["program"].split("\n")[:-1])
    times = "".join(f"{row[key]:>9.2f}" if row[key] else f"{'-':>9}" for key in ("chain_us", "after_us", "estimate_us"))
    return f"{row['program'].split(chr(10))[-1][7:43]:<38}{inputs:<44}{times}  {row['launches'][:60]}"


HEAD = f"{'program':<38}{'inputs':<44}{'chain':>9}{'after':>9}{'estimate':>9}  launches"


def summary(rows: Sequence[Row]) -> str:
    """How far estimates are from the fastest way to launch each program, behind a foreign kernel."""
    best: dict[str, Row] = {}
    for row in rows:
        if row["after_us"] and row["after_us"] < best.get(row["program"], {"after_us": float("inf")})["after_us"]:
            best[row["program"]] = row
    shares = sorted(row["estimate_us"] / row["after_us"] for row in best.values())
    if not shares:
        return "nothing was timed"
    return (
        f"estimate over time, {len(shares)} programs: {shares[0]:.2f} to {shares[-1]:.2f}, "
        f"median {statistics.median(shares):.2f}"
    )


def add_library(kinds: Any) -> None:
    """Add `bench library` to the command line."""
    parser = kinds.add_parser("library", help="kernels of a library beside their estimates, on the attached GPU")
    parser.add_argument("--record", metavar="FILE", help="write the measurements as JSON, after every program")
    parser.add_argument("--from", dest="source", metavar="FILE", help="estimate this record anew; needs no GPU")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.source:
        with reading(options.source, "library"):
            record = json.loads(Path(options.source).read_text())
            target = find_target(record["target"])
            rows = [{**r, "estimate_us": estimated(parse(r["program"]).graph, target)} for r in record["rows"]]
            sys.stdout.write("\n".join([HEAD, *map(shown, rows), summary(rows)]) + "\n")
        return 0
    gpu = card("library")
    openable(options.record)
    target = gpu.target() or find_target(DEFAULT_TARGET)
    rows = []
    sys.stdout.write(HEAD + "\n")
    for text in programs():
        try:
            found = [*measured(text, target, gpu)]
        except MirageError as error:
            sys.stdout.write(f"{text.split(chr(10))[-1]}: {error.message}\n")
            continue
        rows += found
        sys.stdout.write("".join(f"{shown(row)}\n" for row in found))
        sys.stdout.flush()
        keep(options.record, {**machine(gpu), "target": target.name, "rows": rows})
    sys.stdout.write(summary(rows) + "\n")
    return 0
