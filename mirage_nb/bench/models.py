"""`bench models`: layers of whole models through torch.compile, with our backend and without (the paper's Figure 11).

For every model and point: a stack of layers with random weights, one decode step over a full static cache of keys or a
prefill, in bf16. Every contestant's output is compared with the same stack in single precision, and only those that are
as near to it as eager PyTorch is are timed, in turns, as CUDA graphs. Prints microseconds a layer, the practical floor
(bytes over bandwidth; for a prefill operations over their rate, if that is more) and how near we are to it, the best
mode of torch.compile, and what became of the regions; at the end the geometric mean of the ratios, and whether a small
seeded model says the same 64 tokens. Several cards take a share each (`--share`), and `--from` puts their records
together. Without a GPU `--small` goes the same way with small layers, untimed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_nb.bench.kernels import OURS, geometric_mean
from mirage_nb.bench.machine import card, columns, keep, known, machine, openable, reading, share_of, words
from mirage_nb.errors import MissingPartError, OptionError
from mirage_nb.runtime.gpu import attached_gpu
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target

if TYPE_CHECKING:
    from mirage_nb.bench.pytorch.layers import Config
    from mirage_nb.bench.pytorch.racing_models import Contestants

Row = dict[str, Any]
POINTS = "1,8,16,prefill"
PREFILL_ROWS, SMALL_ROWS = 2048, 8
NAMES = ("llama-3-8b", "chameleon-7b", "ngpt-1b", "gpt-3-7b-lora", "qwen3-8b")


@dataclass(frozen=True, slots=True)
class Point:
    """A model and what is asked of it: one token for each of `batch` sequences, or so many `rows` of one."""

    model: str
    config: Config
    batch: int
    rows: int = 1

    @property
    def what(self) -> str:
        """In a few words."""
        return f"prefill of {self.rows}" if self.rows > 1 else f"decode B={self.batch}"


def points_of(models: str, points: str, *, is_small: bool = False) -> tuple[Point, ...]:
    """The points that are meant by names and numbers, separated by commas.

    Raises:
        OptionError: there is no such model or point.
        MissingPartError: there is no PyTorch.
    """
    try:
        from mirage_nb.bench.pytorch.layers import MODELS, small
    except ImportError as error:
        raise MissingPartError(f"models need PyTorch: {error}", hint="pip install 'mirage-nb[torch]'") from error
    names, wanted = known(models, MODELS, "model"), words(points)
    for point in wanted:
        if point != "prefill" and not re.fullmatch("[1-9][0-9]{0,3}", point):
            raise OptionError(f"--points {point!r}: neither a batch size nor prefill", hint=f"as {POINTS}")
    rows = SMALL_ROWS if is_small else PREFILL_ROWS
    configs = {name: small(MODELS[name]) if is_small else MODELS[name] for name in names}
    return tuple(
        Point(name, configs[name], 1, rows) if point == "prefill" else Point(name, configs[name], int(point))
        for name in names
        for point in wanted
    )


def run_models(points: Sequence[Point], options: argparse.Namespace) -> int:
    """Measure every point; print the table; write the record. Returns an exit code.

    Raises:
        MissingPartError: no GPU, and no small layers were asked for.
        StoreError: the record cannot be written.
    """
    from mirage_nb.bench.pytorch.racing_models import contestants

    gpu = attached_gpu() if options.small else card("models", hint="--small tries it out without one, untimed")
    openable(options.record)
    origin = machine(gpu, options.commit) if gpu is not None else {}
    target = (gpu.target() if gpu is not None else None) or find_target(DEFAULT_TARGET)
    made = contestants("cuda" if gpu is not None else "cpu", options.budget, options.total, options.store)
    rows: list[Row] = []
    for point in points:
        try:
            rows.append(measured(point, options.layers, made, target, options.seconds))
        except Exception as error:  # noqa: BLE001  # one point must not cost the others
            first = (str(error).splitlines() or [""])[0]
            rows.append({**_named(point), "us": {}, "floor_us": None, "trouble": f"{type(error).__name__}: {first}"})
        sys.stdout.write(f"{told(rows[-1])}\n")
        sys.stdout.flush()
        keep(options.record, {**origin, "layers": options.layers, "rows": rows})
    sys.stdout.write(f"{table(rows)}\n")
    if options.tokens:
        sys.stdout.write(f"{_speak(made, options.tokens)}\n")
    return 0 if all(row["us"].get(OURS) or gpu is None for row in rows) else 1


def measured(point: Point, layers: int, made: Contestants, target: Target, seconds: float = math.inf) -> Row:
    """One row: who is right, and how long they take for one layer (microseconds; nothing on a CPU). After so many
    `seconds` no second mode of torch.compile is begun."""
    began = time.monotonic()
    stack, inputs = made.stack(point, layers)
    found = made.compared(stack, inputs, began + seconds)
    us = {name: taken / layers for name, taken in made.timed(found.calls).items()}
    floor = floor_us(point, sum(p.nbytes for p in stack.parameters()) / layers, target)
    took = time.monotonic() - began
    return {**_named(point), "us": us, "errors": found.errors, "left_out": found.left_out, "floor_us": floor,
            "regions": found.regions, "seconds": took, "first_calls": found.first_calls}  # fmt: skip


def _named(point: Point) -> Row:
    return {"model": point.model, "point": point.what}


def floor_us(point: Point, weight_bytes: float, target: Target) -> float:
    """What a layer takes at least: its weights and its cache read once, or its products at the rate of the card.

    Args:
        weight_bytes: of the parameters of a layer; two bytes each.
        target: whose start-up of a kernel, bandwidth and rate count.
    """
    config, tokens = point.config, point.batch * point.rows
    read = config.keys if point.rows == 1 else point.rows
    cache = 2 * 2 * point.batch * config.kept * config.size * read
    pairs = point.batch * point.rows * (config.keys if point.rows == 1 else (point.rows + 1) / 2)
    operations = weight_bytes * tokens + 4 * pairs * config.heads * config.size
    moved = target.start_us + (weight_bytes + cache) / (target.device_bandwidth * 1e3)
    return max(moved, operations / (target.tensor_rate * 1e6))


def best_peer(row: Row) -> tuple[str, float] | None:
    """The fastest that is not ours."""
    peers = {name: us for name, us in row["us"].items() if not name.startswith(OURS)}
    return min(peers.items(), key=lambda item: item[1]) if peers else None


def ratio(row: Row) -> float | None:
    """How many times faster than the best peer; None if one of the two was not timed."""
    ours, peer = row["us"].get(OURS), best_peer(row)
    return peer[1] / ours if ours and peer else None


def told(row: Row) -> str:
    """What is worth a look while the next point is measured: times, errors, regions."""
    head = f"{row['model']}, {row['point']}"
    if row.get("trouble"):
        return f"{head}: not measured: {row['trouble']}"
    times = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items()) or "not timed without a GPU"
    if (faster := ratio(row)) is not None:
        times += f"; {faster:.2f} times as fast as the best, {row['floor_us'] / row['us'][OURS]:.0%} of the floor"
    errors = ", ".join(f"{name} {error:.1e}" for name, error in row["errors"].items())
    left = "".join(f"\n  left out: {name}: {why}" for name, why in row["left_out"].items())
    took = f" ({row['seconds']:.0f} s)" if row.get("seconds") else ""
    if row.get("first_calls"):
        took += "\n  first calls: " + ", ".join(f"{name} {s:.0f} s" for name, s in row["first_calls"].items())
    return f"{head}: {times}\n  errors: {errors}{took}{left}\n  " + "\n  ".join(row["regions"])


def table(rows: Sequence[Row]) -> str:
    """One line for each point, and the geometric means."""
    lines = [("model", "point", "ours us", "floor us", "of floor", "peer us", "best peer", "ratio")]
    for row in rows:
        ours, peer, floor, faster = row["us"].get(OURS), best_peer(row), row["floor_us"], ratio(row)
        shown = ["-" if value is None else f"{value:.1f}" for value in (ours, floor, peer and peer[1])]
        share = f"{floor / ours:.0%}" if ours and floor else "-"
        name = peer[0] if peer else "-"
        said = "-" if faster is None else f"{faster:.2f}"
        lines.append((row["model"], row["point"], shown[0], shown[1], share, shown[2], name, said))
    means = []
    for kind in ("decode", "prefill"):
        found = [r for row in rows if row["point"].startswith(kind) and (r := ratio(row)) is not None]
        if found:
            least = f"least {min(found):.2f}"
            means.append(f"{kind}: geometric mean of {len(found)} ratios {geometric_mean(found):.2f}, {least}")
    return "\n".join([*columns(lines), *means])


def _speak(made: Contestants, tokens: int) -> str:
    """Whether a small model says the same tokens with our backend as without."""
    theirs, margins = made.spoken(tokens, ours=False)
    ours, _ = made.spoken(tokens, ours=True)
    apart = next((n for n, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b), None)
    if apart is None:
        return f"greedy tokens of a small model: all {tokens} as eager PyTorch says them"
    return (f"greedy tokens of a small model: {apart} of {tokens} as eager PyTorch says them; there its two best words "
            f"are {margins[apart]:.1e} apart, over the largest logit")  # fmt: skip


def show_records(paths: Sequence[str]) -> int:
    """Print records, and one table of all their rows. Raises OptionError where one is none."""
    lines: list[str] = []
    rows: list[Row] = []
    for path in paths:
        with reading(path, "models"):
            record: Mapping[str, Any] = json.loads(Path(path).read_text())
            where = ", ".join(str(record[key]) for key in ("card", "date", "commit") if record.get(key))
            lines += [where, *map(told, record["rows"])]
            rows += record["rows"]
            table(rows)
    sys.stdout.write("\n".join([*lines, table(rows), ""]))
    return 0


def add_models(kinds: Any) -> None:
    """Add the command."""
    parser = kinds.add_parser("models", help="layers of whole models through torch.compile, on the attached GPU")
    parser.add_argument("--models", default=",".join(NAMES), help="names, separated by commas; default: all")
    parser.add_argument("--points", default=POINTS, help=f"batch sizes of decode steps, and prefill; default: {POINTS}")
    parser.add_argument("--layers", type=int, default=4, metavar="N", help="how many layers, with their own weights")
    parser.add_argument("--budget", type=float, default=30.0, metavar="SECONDS", help="search for each region")
    parser.add_argument("--share", default="0/1", metavar="I/N", help="every N-th point from the I-th on")
    parser.add_argument("--total", type=float, metavar="SECONDS", help="search for all regions of a point together")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no second mode of torch.compile later")
    parser.add_argument("--tokens", type=int, default=64, help="so many of a small model at the end; 0: none")
    parser.add_argument("--small", action="store_true", help="small layers, to try it out; needs no GPU")
    parser.add_argument("--store", metavar="FILE", help="keep the searches there; what it has is not searched again")
    parser.add_argument("--record", metavar="FILE", help="write the measurements as JSON, after every point")
    parser.add_argument("--from", dest="source", nargs="+", metavar="FILE", help="show these records; needs no GPU")
    parser.add_argument("--commit", help="what the record names as its commit; default: the checkout's")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.source:
        return show_records(options.source)
    times = options.budget, options.seconds, *([] if options.total is None else [options.total])
    if options.layers < 1 or not options.budget < math.inf or not all(t > 0 for t in times) or options.tokens < 0:
        raise OptionError("--layers, --budget, --total and --seconds are positive, and --tokens not negative")
    points = share_of(points_of(options.models, options.points, is_small=options.small), options.share)
    return run_models(points, options)
