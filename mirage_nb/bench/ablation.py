"""`bench ablation`: what each part of the plan is worth, switched off one at a time (paper Figure 12).

In: muGraphs and ways to emit them, of a record of `bench kernels` or of a search. Out: a table, a record: for each
switch the speed relative to the whole plan. A switch changes the plan of a muGraph, never what it computes: every
form is checked before it is timed. Needs a GPU; `--from FILE` prints a record without one.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirage_nb.bench.kernels import program_of, read_record, recorded_way
from mirage_nb.bench.machine import card, columns, keep, machine, openable, reading
from mirage_nb.codegen import Emitted, Launch, emit_plan
from mirage_nb.errors import MirageError, TargetError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.text import parse_graph, print_graph
from mirage_nb.optimize import BlockPlan, Options, Plan, default_options, plan
from mirage_nb.optimize.layout import pitched
from mirage_nb.optimize.plan import Staged, plan_chains, rewritten
from mirage_nb.pipeline import superoptimize
from mirage_nb.runtime.execution.buffers import draw_sample
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.gpu import Gpu
from mirage_nb.targets import DEFAULT_TARGET, Target, find_target
from mirage_nb.tile.rules.shared import Buffer, SharedLayout
from mirage_nb.tile.rules.teams import RESERVED_BYTES

WHOLE = "whole plan"
ALIGNMENT = 1024
"""Where buffers begin that are laid one after the other: every layout may begin there."""
Planner = Callable[[KernelGraph, Target, Options], Plan]


def without_thread_graphs(graph: KernelGraph, target: Target, options: Options) -> Plan:
    """No tile stays in registers from one operator to the next: every operator, those of chains too, reads its
    operands from shared memory and writes its result there, as block graphs say (paper section 4.2)."""
    return plan_chains(rewritten(graph), target, options, private=False)


def without_layouts(graph: KernelGraph, target: Target, options: Options) -> Plan:
    """Every shared tensor row-major, without padding or swizzle; so nothing is brought by bulk tensor copies."""
    whole = plan(graph, target, replace(options, bulk=False))

    def plain(block: BlockPlan, staged: Staged) -> BlockPlan:
        return _placed(block, staged, [replace(b, layout=_row_major(b.layout)) for b in staged.buffers])

    return _each(whole, plain, target)


def without_schedule(graph: KernelGraph, target: Target, options: Options) -> Plan:
    """A barrier before every step, a ring of two tiles, and no kernel that starts while another one runs."""
    whole = plan(graph, target, replace(options, stages=2))

    def barred(block: BlockPlan, staged: Staged) -> BlockPlan:
        every = frozenset(range(len(staged.steps)))
        return replace(block, strategy=replace(staged, barriers=every, entry_barrier=True, loop_barrier=True))

    apart = tuple(replace(o, behind=False, ahead=False) for o in whole.overlaps)
    return _each(replace(whole, overlaps=apart), barred, target)


def without_memory_plan(graph: KernelGraph, target: Target, options: Options) -> Plan:
    """Shared tensors one after the other: none takes the place of one that is no longer needed. The ring gets
    shallower until they fit, as it does with the plan."""
    for stages in range(options.stages, 2, -1):
        with contextlib.suppress(TargetError):
            return _one_by_one(graph, target, replace(options, stages=stages))
    return _one_by_one(graph, target, replace(options, stages=2))


def _one_by_one(graph: KernelGraph, target: Target, options: Options) -> Plan:
    return _each(plan(graph, target, options), lambda block, staged: _placed(block, staged, staged.buffers), target)


SWITCHES: dict[str, Planner] = {
    WHOLE: plan,
    "no thread graphs": without_thread_graphs,
    "no layout search": without_layouts,
    "no schedule": without_schedule,
    "no memory plan": without_memory_plan,
}
"""Ways to plan a muGraph: all of it, and without one part each."""


def _each(whole: Plan, change: Callable[[BlockPlan, Staged], BlockPlan], target: Target) -> Plan:
    """The plan with every staged kernel changed. Raises TargetError when a block needs more memory than there is."""
    kernels = tuple(
        change(block, block.staged) if block is not None and block.staged is not None else block
        for block in whole.kernels
    )
    available = target.shared_per_block - RESERVED_BYTES
    needed = max((block.shared_bytes for block in kernels if block is not None), default=0)
    if needed > available:
        raise TargetError(f"a block needs {needed} bytes of shared memory; {target.name} has {available}")
    return replace(whole, kernels=kernels)


def _placed(block: BlockPlan, staged: Staged, buffers: Sequence[Buffer]) -> BlockPlan:
    offset, placed = 0, []
    for buffer in buffers:
        placed.append(replace(buffer, offset=offset))
        offset += -(-buffer.nbytes // ALIGNMENT) * ALIGNMENT
    return replace(block, strategy=replace(staged, buffers=tuple(placed)), shared_bytes=offset)


def _row_major(layout: SharedLayout) -> SharedLayout:
    return pitched(layout.shape, layout.dtype)


def emitted_without(name: str, graph: KernelGraph, target: Target, options: Options | None = None) -> Emitted:
    """Emit a muGraph with one part of its plan switched off, by the name of the switch. Raises as `emit`."""
    chosen = options or default_options(target)
    return emit_plan(SWITCHES[name](graph, target, chosen), target, chosen)


# -- the command --------------------------------------------------------------------------------------


def run_ablation(
    names: Sequence[str], batch: int, record: str | None, winners: str | None, revision: str | None = None
) -> int:
    """Measure; print the table; write the record. `winners`: a record of `bench kernels` whose muGraphs to take;
    `revision`: the commit that the record names, where the checkout does not know it."""
    gpu = card("ablation")
    openable(record)
    known = _known(Path(winners)) if winners else {}
    rows = []
    for name in names:
        rows += list(_measure(name, batch, gpu, known.get((name, batch))))
    sys.stdout.write(table(rows) + "\n")
    keep(record, {**machine(gpu, revision), "rows": rows})
    return 0


def print_record(path: str) -> int:
    """Print the table of a record. Raises OptionError when it cannot be read."""
    with reading(path, "ablation"):
        sys.stdout.write(table(json.loads(Path(path).read_text())["rows"]) + "\n")
    return 0


def _known(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["workload"], row["B"]): row for row in read_record(path)["rows"] if row.get("mugraph")}


def _measure(name: str, batch: int, gpu: Gpu, winner: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """A row for every switch. The muGraph and the way to emit it are those of a record, or of the winner of a
    search."""
    from mirage_nb.runtime.contest.race import Track
    from mirage_nb.runtime.execution.launch import GpuExecutable  # CuPy, and below PyTorch: there is a GPU

    program = program_of(name, batch)
    if program is None:
        return
    target = gpu.target() or find_target(DEFAULT_TARGET)
    if winner is None:
        session = superoptimize(program, name=name)
        session.wait()
        if not session.winners:
            return
        graph, options = session.best.candidate.graph, session.best.emitted.options
    else:
        graph = parse_graph(winner["mugraph"])
        options = recorded_way(graph, winner.get("emitted"), target)
    sample = draw_sample(program.graph, 2)
    entries: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    forms: dict[str, Emitted] = {}
    for switch in SWITCHES:
        try:
            emitted = forms[switch] = emitted_without(switch, graph, target, options)
            ready = GpuExecutable(emitted, compile_cubin(emitted.source, target.arch), gpu)
            report = ready.check(sample)
            if report.ok or not sample.safe:
                entries[switch] = ready
            else:
                left_out[switch] = f"wrong: {report.note}"
        except MirageError as error:
            left_out[switch] = str(error).splitlines()[0]
    laps = {lap.name: lap for lap in Track(program.graph, gpu, sample.scale).race(entries, {})}
    for switch in SWITCHES:
        lap = laps.get(switch)
        timing = lap.timing if lap is not None else None
        yield {
            "workload": name,
            "B": batch,
            "switch": switch,
            "us": timing.median_us if timing else None,
            "spread_us": [timing.low_us, timing.high_us] if timing else None,
            "note": left_out.get(switch, lap.note if lap is not None else ""),
            "same_code": switch in forms and switch != WHOLE and same_code(forms[switch], forms.get(WHOLE)),
            "shared_bytes": shared_bytes(forms[switch]) if switch in forms else None,
            "mugraph": print_graph(graph),
            "emitted": str(options),
        }


def same_code(one: Emitted, other: Emitted | None) -> bool:
    """Whether a switch changed nothing in the kernels of this muGraph and in how they are launched."""
    return other is not None and (one.source, one.launches) == (other.source, other.launches)


def shared_bytes(emitted: Emitted) -> list[int]:
    """Bytes of dynamic shared memory that a block of each kernel takes."""
    return [step.shared_bytes for step in emitted.launches if isinstance(step, Launch)]


def relative(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, int], dict[str, float | None]]:
    """Per workload and batch, the speed with each switch off relative to the whole plan (1 or less, mostly)."""
    groups: dict[tuple[str, int], dict[str, float | None]] = {}
    for row in rows:
        groups.setdefault((row["workload"], row["B"]), {})[row["switch"]] = row["us"]
    return {
        key: {s: times[WHOLE] / us if us and times.get(WHOLE) else None for s, us in times.items()}  # type: ignore[operator]
        for key, times in groups.items()
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line per workload: microseconds of the whole plan, then the relative speed without each part; `=` where
    that part changes nothing in the code. Below, the shared memory of blocks where the parts differ in it."""
    switches = [s for s in SWITCHES if s != WHOLE]
    lines = [["workload", "B", "whole us", *switches]]
    whole = {(r["workload"], r["B"]): r["us"] for r in rows if r["switch"] == WHOLE}
    for (name, batch), speeds in relative(rows).items():
        us = whole.get((name, batch))
        same = {r["switch"] for r in rows if (r["workload"], r["B"]) == (name, batch) and r.get("same_code")}
        shown = ["=" if s in same else f"{x:.2f}" if (x := speeds.get(s)) else "-" for s in switches]
        lines.append([name, str(batch), f"{us:.2f}" if us else "-", *shown])
    notes = dict.fromkeys(f"{r['workload']} B={r['B']}, {r['switch']}: {r['note']}" for r in rows if r["note"])
    return "\n".join([*columns(lines), *notes, *_memory(rows)])


def _memory(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The shared memory of blocks with and without its plan."""
    for whole in rows:
        key = whole["workload"], whole["B"]
        bare = next((r for r in rows if (r["workload"], r["B"], r["switch"]) == (*key, "no memory plan")), None)
        if whole["switch"] == WHOLE and bare is not None and whole.get("shared_bytes") and bare.get("shared_bytes"):
            with_plan, without = (max(r["shared_bytes"]) for r in (whole, bare))
            if with_plan != without:
                yield f"{key[0]} B={key[1]}: {with_plan} bytes of shared memory in a block, {without} without a plan"
