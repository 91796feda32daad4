"""`bench mosaic`: products by one kind of instruction, by several side by side, and by the library, in one race.

For every shape: each of our ways is compiled, run and compared with float64 first; then the best by one kind, the best
by two kinds (columns shared out between tensor and plain cores, or a few rows beyond a tile on plain cores) and the
library are timed in turns. A line says the times, the ratio of the library to our best, what the second kind and the
zig-zag order of instructions gain or lose, how far library and ours are off float64, and the planner's choice beside
the fastest. `--covers N` checks N random exact covers instead, on any machine.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mirage_nb.bench.machine import card, keep, known, machine, openable, share_of
from mirage_nb.bench.mosaic_shapes import QUICK, SHAPES, Shape, Way, orders, product_graph, ways
from mirage_nb.codegen import emit
from mirage_nb.errors import MirageError, MissingPartError, OptionError
from mirage_nb.runtime.contest.timing import Contestant, Lane, set_count, time_interleaved
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.execution.torch_program import torch_dtype
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.tile.instructions.table import Unit
from mirage_nb.tile.instructions.tessellation import Kind, counts, tessellate

LIBRARY = "library"
REFERENCE_ROWS = 72
"""Rows at either end of every matrix that are compared with float64."""
LIMITS = {"f16": 2e-3, "tf32": 2e-3, "3xtf32": 2e-5, "f32": 2e-5, "f64": 1e-12}
"""Relative errors in the 2-norm beyond which something is wrong."""
REPEATS = 5
Row = dict[str, Any]


def add_mosaic(kinds: Any) -> None:
    """Add the command."""
    parser = kinds.add_parser("mosaic", help="tessellations by several kinds of instructions, on the attached GPU")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--precisions", default="", help="of f32, 3xtf32, tf32, f16, f64, separated by commas")
    parser.add_argument("--covers", type=int, default=0, metavar="N", help="check N random covers; needs no GPU")
    parser.add_argument("--share", default="0/1", metavar="I/N", help="only every N-th shape, from the I-th on")
    parser.add_argument("--record", metavar="FILE", help="write the measurements as JSON, again after every shape")
    parser.set_defaults(run=_mosaic)


def _mosaic(options: argparse.Namespace) -> int:
    if options.covers < 0:
        raise OptionError("--covers has to be positive")
    if options.covers:
        return check_covers(options.covers)
    wanted = known(options.precisions, LIMITS, "precision")
    shapes = [s for s in SHAPES if (not options.quick or s.name in QUICK) and (not wanted or s.precision in wanted)]
    return run_mosaic(share_of(shapes, options.share), options.record)


def check_covers(count: int) -> int:
    """Random spaces and kinds: every cover meets every point once. Returns an exit code."""
    rng = random.Random(count)
    covered = wrong = 0
    for _ in range(count):
        space = (rng.randint(1, 14), rng.randint(1, 14), rng.randint(1, 8), rng.randint(1, 3))
        kinds = [Kind("one", (1, 1, 1, 1), 1.0, Unit.PLAIN)] if rng.random() < 0.7 else []
        for number in range(rng.randint(1, 3)):
            extents = (rng.randint(1, 4), rng.randint(1, 4), rng.choice((1, 1, 2, 4)), 1)
            kinds.append(Kind(str(number), extents, rng.uniform(0.2, 9.0), rng.choice(tuple(Unit))))
        found = tessellate(space, kinds)
        covered += found is not None
        wrong += found is not None and bool((counts(found) != 1).any())
    sys.stdout.write(f"{count} spaces, {covered} covered, {wrong} of these not exactly once\n")
    return 1 if wrong else 0


def run_mosaic(shapes: Sequence[Shape], record: str | None = None) -> int:
    """Measure, print, record. Returns an exit code.

    Raises:
        MissingPartError: no GPU, or no torch.
        StoreError: the record cannot be written.
    """
    gpu = card("mosaic", hint="--covers N needs none")
    try:
        import torch
    except ImportError as error:
        raise MissingPartError("the library is PyTorch's", hint="pip install 'mirage-nb[torch]'") from error
    openable(record)
    origin = machine(gpu)
    sys.stdout.write(f"{origin['card']}, {origin['date']}\n{HEAD}\n")
    rows: list[Row] = []
    for shape in shapes:
        rows.append(measure(shape, gpu, torch))
        sys.stdout.write(line(rows[-1]) + "\n")
        sys.stdout.flush()
        keep(record, {**origin, "rows": rows})
    sys.stdout.write(summary(rows) + "\n")
    return 0


def compared(rows: int) -> list[int]:
    """The first rows and the last: those of whole tiles, and those that an odd extent leaves."""
    return sorted({*range(min(rows, REFERENCE_ROWS)), *range(max(0, rows - REFERENCE_ROWS), rows)})


@dataclass(slots=True)
class _Product:
    """A shape's operands on the card, and some rows of what is right."""

    shape: Shape
    torch: Any
    left: Any
    right: Any
    exact: Any

    @classmethod
    def drawn(cls, shape: Shape, torch: Any) -> _Product:
        """Normally distributed operands."""
        torch.manual_seed(0)
        lead = (shape.batch,) if shape.batch > 1 else ()
        dtype = torch_dtype(torch, shape.dtype)
        left = torch.randn(*lead, shape.m, shape.k, device="cuda", dtype=dtype)
        right = torch.randn(*lead, shape.k, shape.n, device="cuda", dtype=dtype)
        exact = left[..., compared(shape.m), :].double() @ right.double()
        return cls(shape, torch, left, right, exact)

    def off(self, found: Any) -> float:
        """How far a result is off, relative, in the 2-norm; and nothing may be missing elsewhere."""
        rows = found[..., compared(self.shape.m), :].double()
        if not bool(self.torch.isfinite(found).all()):
            return float("inf")
        return float((rows - self.exact).norm() / self.exact.norm())


def measure(shape: Shape, gpu: Gpu, torch: Any) -> Row:
    """One shape: what is right is timed."""
    target = gpu.target()
    assert target is not None
    product = _Product.drawn(shape, torch)
    planned, ordered = ways(shape, target), orders(shape, target)
    few = [way for way in planned if way.few][:2]
    mixed = [way for way in planned if way.mixed and not way.few][:1] + few
    single = [way for way in planned if not way.mixed][: 3 if few else 2]
    row: Row = {
        "shape": shape.name, "precision": shape.precision, "extents": [shape.batch, shape.m, shape.n, shape.k],
        "operations": shape.operations, "planner": planned[0].name if planned else None, "off": {}, "us": {},
        "expected": {way.name: way.expected_us for way in planned}, "orders": [way.name for way in ordered],
        "refused": {},
    }  # fmt: skip
    contestants = []
    for way in {way.name: way for way in (*single, *mixed, *ordered)}.values():
        try:
            contestants.append(_ours(way.name, way, product, gpu, row))
        except MirageError as error:
            row["refused"][way.name] = error.message
    torch.backends.cuda.matmul.allow_tf32 = shape.precision == "tf32"
    out = torch.empty_like(torch.matmul(product.left, product.right))
    row["off"][LIBRARY] = product.off(torch.matmul(product.left, product.right))
    contestants.append(Contestant(LIBRARY, [lambda: torch.matmul(product.left, product.right, out=out)]))
    timings = time_interleaved([c for c in contestants if c is not None], Lane(torch, None), repeats=REPEATS)
    torch.backends.cuda.matmul.allow_tf32 = False
    row["us"] = {timing.name: timing.median_us for timing in timings}
    return row


def _ours(name: str, way: Way, product: _Product, gpu: Gpu, row: Row) -> Contestant | None:
    """One of our ways, checked; None if it is wrong."""
    from mirage_nb.runtime.execution.launch import GpuExecutable  # CuPy, an extra

    torch, target = product.torch, gpu.target()
    assert target is not None
    emitted = emit(product_graph(product.shape, way), target, way.options)
    if "ring_full" not in emitted.source:
        row["refused"][name] = "no tile program"
        return None
    executable = GpuExecutable(emitted, compile_cubin(emitted.source, target.arch), gpu)
    shape = product.shape
    lead = (shape.batch,) if shape.batch > 1 else ()
    dtype = torch_dtype(torch, shape.dtype)
    sets = min(4, set_count(product.left.nbytes + product.right.nbytes, target.l2_bytes))
    calls = []
    for number in range(sets):
        left, right = (t if number == 0 else t.clone() for t in (product.left, product.right))
        out = torch.full((*lead, shape.m, shape.n), float("nan"), device="cuda", dtype=dtype)
        call = executable.bind([left, right], [out])
        call(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        if number == 0:
            row["off"][name] = product.off(out)
        calls.append(lambda call=call: call(torch.cuda.current_stream().cuda_stream))
    if row["off"][name] > LIMITS[shape.precision]:
        row["refused"][name] = f"off by {row['off'][name]:.1e}"
        return None
    return Contestant(name, calls)


HEAD = (
    f"{'shape':18} {'precision':9} {'library us':>10} {'one kind':>8} {'two kinds':>9} {'ratio':>5} "
    f"{'mixing':>6} {'zig-zag':>7} {'off':>7} {'ours off':>8}  best; the planner's"
)


def best_of(row: Row, *, mixed: bool) -> tuple[str, float] | None:
    """The fastest way of one kind, or of two."""
    ours = [(name, us) for name, us in row["us"].items() if name != LIBRARY and name in row["expected"]]
    return min((pair for pair in ours if ("+" in pair[0]) == mixed), key=lambda pair: pair[1], default=None)


def zigzag_gain(row: Row) -> float | None:
    """How many times faster the same kernel is with its instructions in zig-zag; None where that was not measured."""
    times = [row["us"].get(name) for name in row["orders"]]
    return times[1] / times[0] if len(times) == 2 and all(times) else None


def line(row: Row) -> str:
    """A row of the table."""
    one, two, library = best_of(row, mixed=False), best_of(row, mixed=True), row["us"].get(LIBRARY)
    ours = min((pair for pair in (one, two) if pair), key=lambda pair: pair[1], default=None)

    def number(value: float | None, form: str = ".1f") -> str:
        return format(value, form) if value is not None else "-"

    ratio = library / ours[1] if ours and library else None
    mixing = one[1] / two[1] if one and two else None
    off = number(row["off"][ours[0]], ".1e") if ours else "-"
    other = f"; {row['planner']}" if ours and row["planner"] != ours[0] else ""
    said = f"{ours[0]}{other}" if ours else "the library alone"
    refused = "".join(f"; {name} refused: {why}" for name, why in row["refused"].items())
    return (
        f"{row['shape']:18} {row['precision']:9} {number(library):>10} {number(one and one[1]):>8} "
        f"{number(two and two[1]):>9} {number(ratio, '.2f'):>5} {number(mixing, '.2f'):>6} "
        f"{number(zigzag_gain(row), '.2f'):>7} {row['off'].get(LIBRARY, 0):>7.1e} {off:>8}  {said}{refused}"
    )


def chose_right(row: Row) -> bool | None:
    """Whether the planner's first choice, one kind or two, was the faster one; None where there was no choice."""
    one, two = best_of(row, mixed=False), best_of(row, mixed=True)
    if one is None or two is None:
        return None
    return ("+" in row["planner"]) == (two[1] < one[1])


def summary(rows: Sequence[Row]) -> str:
    """What all rows say together."""
    chosen = [right for row in rows if (right := chose_right(row)) is not None]
    first = [row for row in rows if row["us"] and row["planner"] in row["us"]]
    cost = [row["us"][row["planner"]] / min(row["us"][n] for n in row["us"] if n in row["expected"]) for row in first]
    return (
        f"the planner chose the faster of one and two kinds on {sum(chosen)} of {len(chosen)} shapes; what it chose "
        f"took {statistics.geometric_mean(cost or [1.0]):.3f} times the fastest, at most {max(cost, default=1.0):.2f}"
    )
