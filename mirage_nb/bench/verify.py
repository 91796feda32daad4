"""`bench verify`: what it costs to know that a candidate is right, or wrong. Needs no GPU.

For every workload, with the first muGraphs that a quick search finds: CPU milliseconds of drawing the trials of a
small instance (once per program and seed), of screening a candidate on it that was never seen before, and of screening
it again on another instance (four trials each, nothing shared with another candidate); of refuting muGraphs with a
wrong shift (one exponential without its maximum, or with that of another tensor) that were never seen before; of
looking at a candidate over the reals; the error bound of the final check on the small instance; steps and milliseconds
of the proof for all sizes; and seconds of the final check at the full shape, on the CPU and on the GPU where there is
one. Medians; `--record` keeps all. With `--campaign`, pairs of programs are verified that were made to go wrong, with
`--searched`, muGraphs of searches (`campaigns`).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import resource
import statistics
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mirage_nb.bench.campaign import Contradiction
from mirage_nb.bench.campaigns import pairs_campaign, searched_campaign
from mirage_nb.bench.machine import reading
from mirage_nb.bench.search import machine
from mirage_nb.bench.workloads import WORKLOADS, workload
from mirage_nb.errors import OptionError, StoreError
from mirage_nb.interp.instance import CPU
from mirage_nb.ir import BlockGraph, DimAttrs, KernelGraph, Op, OpKind
from mirage_nb.lang import parse
from mirage_nb.runtime.field_device import field_device
from mirage_nb.search import EFFORTS, configurations, instances, prepare, run_configuration, tiny
from mirage_nb.targets import DEFAULT_TARGET, find_target
from mirage_nb.verify.drawn import known_program
from mirage_nb.verify.exact import look
from mirage_nb.verify.proof import Proof, prove
from mirage_nb.verify.reals import once_in_floats
from mirage_nb.verify.trials import Progress, screen, verify
from mirage_nb.verify.verdict import Verdict, VerdictKind

SCHEMA = 3
SHOWN = 8
"""Pairs of a campaign that are printed."""
CANDIDATES, SEEDS, LOOKS = 8, 9, 2
"""Candidates of a workload that are verified again, each so often on another small instance; so many are looked at
over the reals too."""
AGAIN_MS, FULL_SECONDS, LOG2_BOUND = 2.0, 60.0, -64.0
"""What is aimed at: for verification again and for refutation, for the final check at the full shape, for the bound."""

T = TypeVar("T")
G = TypeVar("G", KernelGraph, BlockGraph)
Pair = tuple[KernelGraph, KernelGraph]


def add_verify(kinds: Any) -> None:
    """Add `bench verify` to the benchmark commands."""
    sub = kinds.add_parser("verify", help="what verification, refutation and proofs take; no GPU")
    sub.add_argument("--workloads", default=",".join(WORKLOADS), help="names, separated by commas")
    sub.add_argument("--record", metavar="FILE", help="write every number as JSON")
    sub.add_argument("--from", dest="source", metavar="FILE", help="print this record instead")
    sub.add_argument("--campaign", type=int, metavar="N", help="random and mutated pairs against an oracle instead")
    sub.add_argument("--searched", type=int, metavar="N", help="right muGraphs that searches find instead")
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="of the campaign; default: 0")
    sub.add_argument("--first", type=int, default=0, metavar="N", help="block or unit to begin with; default: 0")
    sub.add_argument("--jobs", type=int, default=1, metavar="N", help="processes of a campaign; default: 1")
    sub.add_argument("--seconds", type=float, default=86_400.0, metavar="S", help="after which a campaign ends")
    sub.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    if options.campaign is not None or options.searched is not None:
        return run_campaign(options)
    if options.source:
        return show_record(Path(options.source))
    names = tuple(name for name in options.workloads.split(",") if name)
    for name in names:
        workload(name)
    return run_verify(names, options.record)


def run_verify(names: Sequence[str], record: str | None) -> int:
    """Measure, print the table line by line, and keep the record if a file is given."""
    made: dict[str, Any] = {"machine": machine(), "rows": []}
    sys.stdout.write(HEAD + "\n")
    for name in names:
        made["rows"].append(row := measure(name))
        sys.stdout.write(line(row) + "\n")
        sys.stdout.flush()
        if record:
            _write(Path(record), json.dumps({"schema": SCHEMA, **made}, indent=1) + "\n")
    sys.stdout.write(summary(made["rows"]) + "\n")
    return 0


def run_campaign(options: argparse.Namespace) -> int:
    """Print how pairs, or muGraphs that searches find, fared, and those on which verifier and oracle contradict each
    other; 1 if a different one was accepted, or a right muGraph refused.

    Raises OptionError for less than one pair, process or second.
    """
    count = options.searched if options.campaign is None else options.campaign
    if min(count, options.jobs) < 1 or options.first < 0 or options.seconds <= 0:
        raise OptionError(f"a campaign of {count} in {options.jobs} processes", hint="at least one of each")
    if options.campaign is None:
        found, errors = searched_campaign(count, options.jobs, options.seconds, options.first)
        wrong, alone = found.contradictions, list[Contradiction]()
        said = str(found)
    else:
        tally, errors = pairs_campaign(count, options.seed, options.jobs, options.seconds, options.first)
        wrong, alone = tally.false_acceptances, tally.refuted_alone
        said = str(tally)
    shown = [f"refuted, {_place(c)}" for c in alone[:SHOWN]] + [f"wrong, {_place(c)}" for c in wrong[:SHOWN]]
    shown += [f"{times} times {error[:400]}" for error, times in Counter(errors).most_common(SHOWN)]
    sys.stdout.write("\n".join((*shown, said)) + "\n")
    return 1 if wrong or errors else 0


def _place(found: Contradiction) -> str:
    """A contradiction, and where it is made again."""
    return f"{found.said} (block {found.block}, {found.place}):\n{found.program}\n{found.candidate}"


def show_record(path: Path) -> int:
    """Print a record. Raises OptionError if it is none."""
    with reading(path, "verify"):
        made = json.loads(path.read_text())
        if made["schema"] != SCHEMA:
            raise ValueError(f"schema {made['schema']}")
        lines = [HEAD, *map(line, made["rows"]), summary(made["rows"])]
        described = f"{made['machine']['processor']}, load {made['machine']['load']:.1f}, {made['machine']['date']}"
        sys.stdout.write("\n".join([described, *lines]) + "\n")
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def measure(name: str) -> dict[str, Any]:
    """One row of the table: milliseconds are of CPU time, seconds of the wall clock."""
    program = parse(workload(name), name=name).graph
    found = list(itertools.islice(candidates(program), CANDIDATES))
    (small, first), full = found[0]
    first_seed = zlib.crc32(name.encode()) << 16  # of its own for every workload: verdicts are kept
    drawn, first_time, again = _accepted_ms([pair for pair, _ in found], first_seed)
    wrong = {label: _refuted_ms(small, graph, first_seed) for label, graph in wrong_shifts(first)}
    final_ms, final = _cpu(lambda: verify(small, first, final=True))
    proof_ms, proof = _cpu(lambda: prove(program, full))
    look_ms, looked = _cpu(lambda: [look(*pair, first_seed) for pair, _ in found[:LOOKS]])
    started = time.perf_counter()
    whole = verify(program, full, final=True, seed=first_seed, progress=lambda done, wanted: None)
    seconds = time.perf_counter() - started
    gpu_seconds = _on_gpu(program, full, whole)
    return {
        "workload": name,
        "candidates": len(found),
        "drawn_ms": drawn,
        "first_ms": first_time,
        "again_ms": again,
        "wrong_ms": wrong,
        "look_ms": look_ms / len(looked),
        "looked": [one.outcome.value for one in looked],
        "final_ms": final_ms,
        "trials": final.trials,
        "log2_bound": final.log2_bound,
        "proof_steps": len(proof.steps) if isinstance(proof, Proof) else None,
        "proof_ms": proof_ms,
        "full": whole.kind.value,
        "full_s": seconds,
        "full_gpu_s": gpu_seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _on_gpu(program: KernelGraph, full: KernelGraph, expected: Verdict) -> float | None:
    """Seconds of the final check at the full shape on the attached GPU, whose verdict has to be the same."""
    device = field_device()
    if device is CPU:
        return None
    started = time.perf_counter()
    quiet: Progress = lambda done, wanted: None  # noqa: E731 (typed)
    verdict = verify(program, full, final=True, seed=expected.seed, progress=quiet, device=device)
    assert verdict == expected
    return time.perf_counter() - started


def candidates(program: KernelGraph) -> Iterator[tuple[Pair, KernelGraph]]:
    """Structures in the order in which a quick search finds them: the small pair, and the muGraph at the full shape."""
    effort, target, prepared = EFFORTS["quick"], find_target(DEFAULT_TARGET), prepare(program)
    for configuration in configurations(prepared, effort):
        result = run_configuration(prepared, configuration, effort, effort.budget, lambda counts: None, lambda: False)
        for structure in result.structures:
            for instance in instances(structure, prepared, target, limit=1):
                yield tiny(prepared, structure), instance.graph


def wrong_shifts(candidate: KernelGraph) -> Iterator[tuple[str, KernelGraph]]:
    """The muGraph with another shift in the exponentials that are summed up than in the others: no maximum (or one
    where there was none), and the maximum of another tensor."""
    for label, other in (("no maximum", False), ("another maximum", True)):
        wrong = _shifted(candidate, other)
        if wrong != candidate:
            yield label, wrong


def _shifted(graph: G, other: bool) -> G:
    """The graph with a shift of their own for exponentials that are summed."""
    makers = {value: op for op, values in graph.definitions() for value in values}
    made, renamed = (
        replace(graph, ops=(), types=graph.types[: graph.input_count]),
        dict(enumerate(range(graph.input_count))),
    )
    for op, values in graph.definitions():
        operands = tuple(renamed[v] for v in op.inputs)
        exponential = makers.get(op.inputs[0]) if op.kind is OpKind.SUM else None
        if exponential is not None and exponential.kind is OpKind.EXP:
            assert isinstance(op.attrs, DimAttrs)
            made = _with_shift(made, makers, renamed, exponential, op.attrs, other)
            operands = (len(made.types) - 1,)
        body = _shifted(op.body, other) if isinstance(op.body, BlockGraph) else op.body
        renamed |= {value: len(made.types) + place for place, value in enumerate(values)}
        made = made.append(Op(op.kind, operands, op.attrs, body))
    if isinstance(made, BlockGraph) or isinstance(graph, BlockGraph):
        return made
    return made.returning(tuple(renamed[v] for v in graph.outputs), graph.output_names)


def _with_shift(
    made: G, makers: dict[int, Op], renamed: dict[int, int], exponential: Op, along: DimAttrs, other: bool
) -> G:
    """`made` with the exponential in another shift behind it: of a plain exponent its maximum, of a shifted one
    none, or the maximum of its square."""
    shift = makers.get(exponential.inputs[0])
    has_shift = shift is not None and shift.kind is OpKind.SUB
    exponent = renamed[shift.inputs[0] if shift is not None and has_shift else exponential.inputs[0]]
    if other or not has_shift:
        plain = exponent
        if other:
            made = made.append(Op(OpKind.SQR, (plain,)))
        made = made.append(Op(OpKind.MAX, (len(made.types) - 1 if other else plain,), along))
        made = made.append(Op(OpKind.SUB, (plain, len(made.types) - 1)))
        exponent = len(made.types) - 1
    return made.append(Op(OpKind.EXP, (exponent,)))


def _accepted_ms(pairs: Sequence[Pair], first_seed: int) -> tuple[float, float, float]:
    """Milliseconds of drawing the trials of a small instance, of verifying a candidate on it that was never seen
    before, and of verifying it again on another instance."""
    drawn, first, again = [], [], []
    for small, candidate in pairs:
        for seed in range(first_seed, first_seed + SEEDS):
            _known(small, seed + 2 * SEEDS)
            drawn.append(_cpu(lambda: screen(small, small, seed=seed))[0])  # noqa: B023 (called at once)
            first.append(_cpu(lambda: _accepted(small, candidate, seed))[0])  # noqa: B023 (called at once)
            screen(small, small, seed=seed + SEEDS)
            again.append(_cpu(lambda: _accepted(small, candidate, seed + SEEDS))[0])  # noqa: B023 (called at once)
    return statistics.median(drawn), statistics.median(first), statistics.median(again)


def _known(small: KernelGraph, seed: int) -> None:
    """A program whose values on an instance are known, and nothing of any candidate."""
    known_program.cache_clear()
    once_in_floats.cache_clear()
    gc.collect()  # what was forgotten, so that nothing measured pays for it
    screen(small, small, seed=seed)
    program = known_program(small)
    once_in_floats(program, program.itself)


def _accepted(small: KernelGraph, candidate: KernelGraph, seed: int) -> None:
    assert screen(small, candidate, seed=seed).accepted


def _refuted_ms(small: KernelGraph, wrong: KernelGraph, first_seed: int) -> float:
    """Milliseconds of refuting a muGraph that was never seen before."""
    taken = []
    for seed in range(first_seed, first_seed + SEEDS):
        _known(small, seed)
        ms, verdict = _cpu(lambda: screen(small, wrong, seed=seed))  # noqa: B023 (called at once)
        assert verdict.kind is VerdictKind.REFUTED
        taken.append(ms)
    return statistics.median(taken)


def _cpu(work: Callable[[], T]) -> tuple[float, T]:
    started = time.process_time()
    made = work()
    return 1e3 * (time.process_time() - started), made


HEAD = (
    f"{'workload':<16}{'draw ms':>9}{'first ms':>10}{'again ms':>10}{'wrong ms':>10}{'look ms':>9}{'bound':>8}"
    f"{'trials':>8}{'proof':>7}{'ms':>7}{'full shape s':>14}{'on GPU':>8}"
)


def line(row: dict[str, Any]) -> str:
    """One line of the table."""
    wrong = f"{max(row['wrong_ms'].values()):.2f}" if row["wrong_ms"] else "-"
    bound = "-" if row["log2_bound"] is None else f"2^{-int(-row['log2_bound'])}"
    gpu = "-" if row["full_gpu_s"] is None else f"{row['full_gpu_s']:.1f}"
    steps = "no" if row["proof_steps"] is None else row["proof_steps"]
    return (
        f"{row['workload']:<16}{row['drawn_ms']:>9.2f}{row['first_ms']:>10.2f}{row['again_ms']:>10.2f}{wrong:>10}"
        f"{row['look_ms']:>9.0f}{bound:>8}{row['trials']:>8}"
        f"{steps:>7}{row['proof_ms']:>7.0f}{row['full_s']:>14.1f}{gpu:>8}"
    )


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """The worst of every column beside what is aimed at."""
    if not rows:
        return "nothing was measured"
    again, first = (max(row[f"{name}_ms"] for row in rows) for name in ("again", "first"))
    wrong = max((ms for row in rows for ms in row["wrong_ms"].values()), default=0.0)
    full = max(row["full_s"] for row in rows)
    bounded = sum(row["log2_bound"] is not None and row["log2_bound"] <= LOG2_BOUND for row in rows)
    proved = sum(row["proof_steps"] is not None for row in rows)
    return (
        f"at most {again:.2f} ms again, {wrong:.2f} ms for a wrong shift (aim {AGAIN_MS:g}), {first:.2f} ms the first "
        f"time; bound of 2^{LOG2_BOUND:g} for {bounded}, proof for {proved} of {len(rows)}; full shape at most "
        f"{full:.1f} s (aim {FULL_SECONDS:g})"
    )
