"""`bench kernels`: our kernels against every peer, in one run on the attached GPU.

For every workload: search, verify, compile and time as a user would, then race the winner against the
peers. Prints one line per workload: our median and spread, the best correct peer, the ratio.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mirage_nb.bench.workloads import workload
from mirage_nb.errors import MissingPartError, StoreError
from mirage_nb.ir.text import print_graph
from mirage_nb.lang import parse
from mirage_nb.pipeline import superoptimize
from mirage_nb.runtime.gpu import Gpu, attached_gpu

DEFAULT_WORKLOADS = ("rmsnorm", "rmsnorm_fig3", "gated_mlp")
SCHEMA = 1


def run_kernels(names: Sequence[str], batches: Sequence[int], record: str | None) -> int:
    """Measure the workloads at these batch sizes; print the table; write the record. Returns an exit code.

    Raises:
        MissingPartError: no GPU, or no torch.
        StoreError: the record cannot be written; found out before anything is measured.
    """
    gpu = attached_gpu()
    if gpu is None:
        raise MissingPartError("bench kernels needs a GPU", hint="see `python -m mirage_nb doctor`")
    if record:
        try:
            Path(record).touch()
        except OSError as error:
            raise StoreError(f"{record} cannot be written: {error.strerror}") from error
    rows = [row for name in names for batch in batches for row in _measure(name, batch, gpu)]
    sys.stdout.write(table(rows) + "\n")
    if record:
        Path(record).write_text(json.dumps({**_machine(gpu), "rows": rows}, indent=1))
    return 0 if all(row["ours_us"] is not None for row in rows) else 1


def _measure(name: str, batch: int, gpu: Gpu) -> list[dict[str, Any]]:
    try:
        import torch

        from mirage_nb.bench.baselines import peers
        from mirage_nb.runtime.launch import GpuExecutable
        from mirage_nb.runtime.race import race
    except ImportError as error:
        raise MissingPartError(f"the peers need PyTorch: {error}", hint="pip install 'mirage-nb[torch]'") from error
    program = parse(workload(name), name=name)
    if "B" in program.sizes:
        program = parse(workload(name), name=name, sizes={"B": batch})
    elif batch != 1:
        return []
    session = superoptimize(program, name=name)
    session.wait()  # one that failed has a row that says so
    winner = session.best
    ran = winner.executable if winner is not None else None
    ours = {"mirage_nb": ran} if isinstance(ran, GpuExecutable) else {}
    laps = race(program.graph, ours, peers(name, program.graph, torch), gpu, scale=session.input_scale)
    timed = {lap.name: lap for lap in laps if lap.timing is not None}
    mine = timed.pop("mirage_nb", None)
    best = min(timed.values(), key=lambda lap: lap.timing.median_us if lap.timing else 0.0, default=None)
    return [
        {
            "workload": name,
            "B": batch,
            "ours_us": mine.timing.median_us if mine and mine.timing else None,
            "spread_us": [mine.timing.low_us, mine.timing.high_us] if mine and mine.timing else None,
            "error": mine.error if mine else None,
            "mugraph": print_graph(winner.graph) if winner is not None else None,
            "peer": best.name if best else None,
            "peer_us": best.timing.median_us if best and best.timing else None,
            "peers": {lap.name: lap.timing.median_us for lap in timed.values() if lap.timing},
            "messages": list(session.snapshot().messages),
            "left_out": {lap.name: lap.note or "not captured" for lap in laps if lap.timing is None},
        }
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line per workload and batch size."""
    lines = [f"{'workload':<16}{'B':>3}{'ours us':>10}{'spread':>16}{'best peer us':>14}  {'peer':<28}{'ratio':>6}"]
    for row in rows:
        ours, peer = row["ours_us"], row["peer_us"]
        spread = "-" if row["spread_us"] is None else "{:.2f} to {:.2f}".format(*row["spread_us"])
        ratio = f"{peer / ours:.2f}" if ours and peer else "-"
        shown = (f"{x:.2f}" if x else "-" for x in (ours, peer))
        lines.append(
            "{:<16}{:>3}{:>10}{:>16}{:>14}  {:<28}{:>6}".format(
                row["workload"], row["B"], next(shown), spread, next(shown), row["peer"] or "-", ratio
            )
        )
    return "\n".join(lines)


def _machine(gpu: Gpu) -> dict[str, Any]:
    versions = {p: importlib.metadata.version(p) for p in ("numpy", "cupy-cuda13x", "torch")}
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "card": gpu.name,
        "cuda_driver": gpu.driver,
        "versions": versions,
        "method": "CUDA graph replays, inputs rotated past L2, contestants interleaved, medians, microseconds",
    }
