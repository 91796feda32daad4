"""`bench verify`: what it costs to know that a candidate is right, or wrong, and whether that is known. Needs no GPU.

For every workload, with the first muGraphs that a quick search finds: CPU milliseconds of drawing the trials of a
small instance (once per program and seed), of screening a candidate on it that was never seen before, and of screening
it again on another instance (four trials each, nothing shared with another candidate); of refuting muGraphs with a
wrong shift (one exponential without its maximum, or with that of another tensor) that were never seen before; of
looking at a candidate over the reals; the error bound of the final check on the small instance; steps and milliseconds
of the proof for all sizes; and seconds of the final check at the full shape, on the CPU and on the GPU where there is
one. Medians. Then wrong candidates (`attacks`), hostile files (`hostile`), pairs that were made to go wrong and
muGraphs of searches (`campaigns`). At the end one table says what all of it shows, beside what is asked; `--record`
keeps all.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mirage_nb.bench.machine import keep, known, openable, reading
from mirage_nb.bench.search import machine
from mirage_nb.bench.verification.attacks import ATTACKS, refused
from mirage_nb.bench.verification.campaign import Contradiction
from mirage_nb.bench.verification.campaigns import Campaign, run
from mirage_nb.bench.verification.hostile import taken
from mirage_nb.bench.workloads import WORKLOADS, workload
from mirage_nb.errors import OptionError
from mirage_nb.interp.instance import CPU
from mirage_nb.ir import BlockGraph, DimAttrs, KernelGraph, Op, OpKind
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.lang import parse
from mirage_nb.runtime.field_device import field_device
from mirage_nb.search import EFFORTS, configurations, instances, prepare, run_configuration, tiny
from mirage_nb.targets import DEFAULT_TARGET, find_target
from mirage_nb.verify.fields.drawn import known_program
from mirage_nb.verify.proof import Proof, prove
from mirage_nb.verify.reals.exact import look
from mirage_nb.verify.reals.quick import once_in_floats
from mirage_nb.verify.trials import Progress, screen, verify
from mirage_nb.verify.verdict import Verdict, VerdictKind

SCHEMA = 4
SHOWN = 8
"""Pairs of a campaign that are printed."""
CANDIDATES, SEEDS, LOOKS = 8, 9, 2
"""Candidates of a workload that are verified again, each so often on another small instance; so many are looked at
over the reals too."""
AGAIN_MS, FULL_SECONDS, LOG2_BOUND = 2.0, 60.0, -64.0
PAIRS, RIGHT, FILE_SECONDS, FILE_MEGABYTES = 200_000, 10_000, 2.0, 200
"""What is aimed at: for verification again and for screening, for the final check at the full shape, for the bound;
pairs and muGraphs of a campaign; for a file."""

T = TypeVar("T")
G = TypeVar("G", KernelGraph, BlockGraph)
Pair = tuple[KernelGraph, KernelGraph]


PARTS = ("workloads", "attacks", "files", "campaign", "searched")


def add_verify(kinds: Any) -> None:
    """Add `bench verify` to the benchmark commands."""
    sub = kinds.add_parser("verify", help="what verification, refutation and proofs take, and miss; no GPU")
    sub.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"of {', '.join(PARTS)}")
    sub.add_argument("--workloads", default=",".join(WORKLOADS), help="names, separated by commas")
    sub.add_argument("--record", metavar="FILE", help="write every number as JSON")
    sub.add_argument("--from", dest="source", metavar="FILE", help="print this record instead")
    sub.add_argument("--campaign", type=int, default=1000, metavar="N", help="pairs against an oracle; default: 1000")
    sub.add_argument("--searched", type=int, default=100, metavar="N", help="right muGraphs of searches; default: 100")
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="of the pairs; default: 0")
    sub.add_argument("--first", type=int, default=0, metavar="N", help="block and unit to begin with; default: 0")
    sub.add_argument("--jobs", type=int, default=1, metavar="N", help="processes for these two; default: 1")
    sub.add_argument("--seconds", type=float, default=86_400.0, metavar="S", help="after which they end")
    sub.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> int:
    if options.source:
        return show_record(Path(options.source))
    parts, names = known(options.only, PARTS, "part"), known(options.workloads, WORKLOADS, "workload")
    if min(options.campaign, options.searched, options.jobs) < 1 or options.first < 0 or options.seconds <= 0:
        raise OptionError("a campaign of nothing", hint="at least one pair, muGraph, process and second")
    return _Run(options, parts, names).run()


class _Run:
    """One run of the benchmark; `made`: the record so far."""

    def __init__(self, options: argparse.Namespace, parts: Sequence[str], names: Sequence[str]) -> None:
        self._options, self._parts, self._names = options, parts, names
        self.made: dict[str, Any] = {"machine": machine()}

    def run(self) -> int:
        """Measure, print, and keep the record after every part; 1 if something wrong was accepted, or something right
        refused."""
        openable(self._options.record)
        if "workloads" in self._parts:
            sys.stdout.write(HEAD + "\n")
            self.made["rows"] = []
            for name in self._names:
                self.made["rows"].append(row := measure(name))
                self._tell(line(row))
        if "attacks" in self._parts:
            self.made["attacks"] = {name: verdict.kind.value for name in ATTACKS if (verdict := refused(name))}
            self._tell()
        if "files" in self._parts:
            self.made["files"] = dict(zip(("seconds", "megabytes"), taken(), strict=True))
            self._tell()
        found = self._campaign()
        accepted = [f"accepted: {name}" for name, kind in self.made.get("attacks", {}).items() if is_wrong(kind)]
        self._tell("\n".join([*accepted, *found.errors[:SHOWN], "", summary(self.made)]))
        return 1 if found.wrong or found.errors or accepted else 0

    def _campaign(self) -> Campaign:
        given = self._options
        pairs, right = (getattr(given, part) if part in self._parts else 0 for part in ("campaign", "searched"))
        found = run(pairs, right, given.seed, given.jobs, given.seconds, given.first)
        for name, tally in (("campaign", found.pairs), ("searched", found.searched)):
            if name in self._parts:
                self.made[name] = tally.record()
        alone = [f"refuted, {_place(c)}" for c in found.pairs.refuted_alone[:SHOWN]]
        counted = Counter(found.errors).most_common(SHOWN)
        found.errors[:] = [f"{times} times {error[:400]}" for error, times in counted]
        self._tell("\n".join([*alone, *(f"wrong, {_place(c)}" for c in found.wrong[:SHOWN])]))
        return found

    def _tell(self, text: str = "") -> None:
        if text:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        keep(self._options.record, {"schema": SCHEMA, **self.made})


def _place(found: Contradiction) -> str:
    """A contradiction, and where it is made again."""
    return f"{found.said} (block {found.block}, {found.place}):\n{found.program}\n{found.candidate}"


def show_record(path: Path) -> int:
    """Print a record. Raises OptionError if it is none."""
    with reading(path, "verify"):
        made = json.loads(path.read_text())
        if made["schema"] != SCHEMA:
            raise ValueError(f"schema {made['schema']}")
        rows = [HEAD, *map(line, made["rows"])] if "rows" in made else []
        described = f"{made['machine']['processor']}, load {made['machine']['load']:.1f}, {made['machine']['date']}"
        sys.stdout.write("\n".join([described, *rows, "", summary(made)]) + "\n")
    return 0


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
        result = run_configuration(prepared, configuration, effort, effort.budget)
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
    made = Rewrite(replace(graph, ops=(), types=graph.types[: graph.input_count]))
    for op, values in graph.definitions():
        op = replace(op, body=_shifted(op.body, other)) if isinstance(op.body, BlockGraph) else op
        exponential = makers.get(op.inputs[0]) if op.kind is OpKind.SUM else None
        if exponential is not None and exponential.kind is OpKind.EXP:
            assert isinstance(op.attrs, DimAttrs)
            shifted = _with_shift(made, makers, exponential, op.attrs, other)
            made.held[values[0]] = made.add(replace(op, inputs=(shifted,)))
        else:
            made.copy(op, values)
    written = made.graph
    if isinstance(written, BlockGraph) or isinstance(graph, BlockGraph):
        return written
    return written.returning(made.places(graph.outputs), graph.output_names)


def _with_shift(made: Rewrite[G], makers: dict[int, Op], exponential: Op, along: DimAttrs, other: bool) -> int:
    """The exponential in another shift, appended: of a plain exponent its maximum, of a shifted one none, or the
    maximum of its square."""
    shift = makers.get(exponential.inputs[0])
    has_shift = shift is not None and shift.kind is OpKind.SUB
    exponent = made.held[shift.inputs[0] if shift is not None and has_shift else exponential.inputs[0]]
    if other or not has_shift:
        shifts = made.add(Op(OpKind.SQR, (exponent,))) if other else exponent
        exponent = made.add(Op(OpKind.SUB, (exponent, made.add(Op(OpKind.MAX, (shifts,), along)))))
    return made.add(Op(OpKind.EXP, (exponent,)))


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
    """Milliseconds of this thread, whatever others of the process do meanwhile."""
    started = time.thread_time()
    made = work()
    return 1e3 * (time.thread_time() - started), made


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


def summary(made: Mapping[str, Any]) -> str:
    """What is asked of verification, one line each: what was measured, and what is aimed at."""
    found: list[tuple[str, str, str]] = []
    if attacks := made.get("attacks"):
        right = sum(not is_wrong(kind) for kind in attacks.values())
        found.append(("attacks refused", f"{right} of {len(attacks)}", "all"))
    if pairs := made.get("campaign"):
        said = f"{pairs['accepted']} of {pairs['different']:,} different ones in {pairs['pairs']:,}"
        found.append(("wrong pairs accepted", said, f"0 in {PAIRS:,}"))
        left = sum(pairs["said"].get(f"alike, {kind}", 0) for kind in ("undecided", "outside LAX"))
        found.append(("pairs left open", f"{left:,} of {pairs['pairs'] - pairs['different']:,} others", ""))
    if searched := made.get("searched"):
        found.append(("right muGraphs refused", f"{searched['refused']} of {searched['right']:,}", f"0 of {RIGHT:,}"))
        found.append(("wrong muGraphs accepted", f"{searched['accepted']} of {searched['wrong']:,}", "0"))
    if rows := made.get("rows"):
        worst = {name: max(row[name] for row in rows) for name in ("again_ms", "first_ms", "full_s", "look_ms")}
        bounded = sum(row["log2_bound"] is not None and row["log2_bound"] <= LOG2_BOUND for row in rows)
        proved = sum(row["proof_steps"] is not None for row in rows)
        shift = max((ms for row in rows for ms in row["wrong_ms"].values()), default=0.0)
        found += [
            ("verification again", f"{worst['again_ms']:.2f} ms", f"{AGAIN_MS:g} ms"),
            ("screening, the first time", f"{worst['first_ms']:.2f} ms", f"{AGAIN_MS:g} ms"),
            ("refutation of a wrong shift", f"{shift:.2f} ms", ""),
            ("a look over the reals", f"{worst['look_ms']:.0f} ms", ""),
            (f"error bound of 2^{LOG2_BOUND:g}", f"{bounded} of {len(rows)}", "all"),
            ("proofs for all sizes", f"{proved} of {len(rows)}", "all"),
            ("final check at the full shape", f"{worst['full_s']:.1f} s", f"{FULL_SECONDS:g} s"),
        ]
    if files := made.get("files"):
        took = f"{files['seconds']:.2f} s, {files['megabytes']} MB"
        found.append(("a proof file of 1 MB, any", took, f"{FILE_SECONDS:g} s, {FILE_MEGABYTES} MB"))
    lines = [f"{what:<32}{measured:>44}{asked:>16}" for what, measured, asked in (TITLES, *found)]
    return "\n".join(lines) if found else "nothing was measured"


def is_wrong(kind: str) -> bool:
    """Whether a verdict of this kind on an attack is wrong."""
    return kind in (VerdictKind.FIELD.value, VerdictKind.PROVED.value)


TITLES = ("", "measured (the worst)", "asked")
