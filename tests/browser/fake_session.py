"""A scripted session: plays a search of given length back as snapshots, without searching anything."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from mirage_nb.ir.text import parse_graph
from mirage_nb.pipeline import Session
from mirage_nb.search import EFFORTS, Limits, switched
from mirage_nb.search.saturation.events import Outcome, Prefix
from mirage_nb.search.session.progress import Candidate, Rejected, Snapshot, State
from mirage_nb.targets import find_target
from mirage_nb.verify.verdict import Verdict, VerdictKind, Witness
from tests.viz.mugraph_samples import rmsnorm_fused, rmsnorm_program, split_attention

FIELD = Verdict(
    VerdictKind.FIELD,
    trials=6,
    primes=((1048583, 524291),),
    seed=7,
    sizes={"X": (16, 1024), "G": (1024,), "W": (1024, 4096)},
    log2_bound=-71.3,
)


MESSAGES = (
    "no GPU here: times are estimates for the h200",
    *(f"{n:08x}: numerically poor: large logits: output 0[1, {n}] is nan, not {n}.5" for n in range(3, 14)),
)


CONFIGURATIONS = (
    "1 kernel; free axes on the grid; loop over b",
    "1 kernel; free axes and b on the grid, loop over b",
    "2 kernels; free axes and b on the grid; no loop",
)


def candidates(count: int = 12) -> tuple[Candidate, ...]:
    """Candidates of several shapes; the first was executed and proved, the rest are estimates."""
    graphs = [rmsnorm_fused(), split_attention(), rmsnorm_program(), rmsnorm_fused(blocks=64, loop=32)]
    found = []
    for number, graph in zip(range(count), itertools.cycle(graphs)):
        found.append(
            Candidate(
                digest=f"{number:02x}{graph.digest()[2:]}",
                graph=graph,
                configuration=CONFIGURATIONS[number % 3],
                operators=7 + number % 5,
                sizes={"grid c": 128, "loop b": 16},
                verdict=FIELD,
                estimate_us=8.1 + 1.7 * number,
            )
        )
    if found:
        proved = replace(FIELD, kind=VerdictKind.PROVED, note="proved for all sizes")
        found[0] = replace(found[0], verdict=proved, error=3.1e-4, executed_on="CPU edition")
    return tuple(found)


def rejected() -> tuple[Rejected, ...]:
    """One refuted with a witness, one that nobody can judge, one that was wrong when it ran."""
    where = "grid over b, loop over b"
    graph, other = rmsnorm_fused(blocks=32), split_attention()
    witness = Witness(7, 0, (1, 2), "(524289, 17)", "(3, 260002)")
    refuted = Verdict(VerdictKind.REFUTED, trials=1, seed=7, witness=witness, note="the field values differ")
    outside = Verdict(VerdictKind.OUTSIDE_LAX, note="Clamp has no meaning over finite fields; no proof was found")
    wrong = "0badc0de: wrong result: relative error 0.31 on random inputs, 0.01 is allowed"
    return (
        Rejected(f"0badc0de{graph.digest()[8:]}", graph, where, 9, FIELD, wrong),
        Rejected(graph.digest(), graph, where, 8, refuted, refuted.note),
        Rejected(other.digest(), other, where, 12, outside, outside.note),
    )


def prefixes() -> tuple[Prefix, ...]:
    """A small derivation with every outcome."""
    rows = (
        (0, (), 0, "X", "loop", "[a, b:I]", "X", Outcome.KEPT, "input"),
        (1, (), 0, "W", "loop", "[b:I, c]", "W", Outcome.KEPT, "input"),
        (2, (0,), 1, "Sqr", "loop", "[a, b:I]", "X²", Outcome.KEPT, "can become part of the target"),
        (3, (0, 1), 1, "Matmul", "loop", "[a, c]", "Σb X·W", Outcome.KEPT, "can become part of the target"),
        (4, (0, 0), 1, "EwAdd", "loop", "[a, b:I]", "2·X", Outcome.PRUNED_EXPRESSION, "no term has 2·X"),
        (5, (0, 1), 1, "EwMul", "loop", "–", "", Outcome.PRUNED_TYPE, "axes a and c differ"),
        (6, (2,), 2, "Sum", "loop", "[a]", "Σb X²", Outcome.KEPT, "can become part of the target"),
        (7, (0, 0), 1, "EwMul", "loop", "[a, b:I]", "X²", Outcome.MERGED, "same value as 2"),
        (8, (6,), 3, "Accum sum", "after", "[a]", "Σb X²", Outcome.KEPT, "can become part of the target"),
        (9, (3,), 2, "Accum sum", "after", "[a, c]", "Σb X·W", Outcome.KEPT, "can become part of the target"),
        (10, (8,), 4, "Sqrt", "after", "[a]", "√(Σb X²)", Outcome.KEPT, "can become part of the target"),
        (11, (9, 10), 5, "EwDiv", "after", "[a, c]", "Σb X·W / √(Σb X²)", Outcome.KEPT, "the target"),
        (
            12,
            (10, 9),
            5,
            "EwMul",
            "after",
            "[a, c]",
            "",
            Outcome.PRUNED_CANONICAL,
            "EwMul(9, 10) ranks lower",
        ),
        (13, (99, 8), 4, "EwSub", "after", "[a]", "…", Outcome.PRUNED_SHIFT, "a shift on one side only"),
    )
    where = "loop over b"
    return tuple(Prefix(*row[:2], where, *row[2:]) for row in rows)


def snapshot(share: float = 1.0, state: State = State.FINISHED, seconds: float = 2.0, name: str = "fused") -> Snapshot:
    """What a search looks like when `share` of it is done."""
    shape = (0.02, 0.01, 0.15, 0.7, 0.1, 0.02)
    counts = {
        (depth, outcome): int(share * 3 ** min(depth, 12 - depth) * 80 * part)
        for depth in range(1, 10)
        for outcome, part in zip(Outcome, shape, strict=True)
        if depth <= 1 + 9 * share
    }
    found = candidates(int(12 * share))
    return Snapshot(
        name=name,
        state=state,
        seconds=seconds,
        first_seconds=0.03 if found else None,
        configurations_done=int(8 * share),
        configurations_total=8,
        counts=counts,
        structures=int(40 * share),
        verified=len(found),
        refuted=int(3 * share),
        outside_lax=int(share),
        rejected=rejected() if share > 0.7 else (),
        candidates=found,
        prefixes=prefixes() if share > 0.2 else (),
        cut=("configurations with two loops",) if share > 0.5 else (),
        messages=MESSAGES if share > 0.5 else MESSAGES[:1] if share > 0.1 else (),
        exhausted=share >= 1.0,
    )


class FakeSession:
    """Plays `snapshot` from 0 to 1 over `length` seconds of running time."""

    def __init__(self, length: float = 4.0, name: str = "fused", budget: float = 30.0) -> None:
        self.length = length
        self.name = name
        self.search = SimpleNamespace(seconds=budget, effort="quick", budget=SimpleNamespace(max_block_ops=24))
        self.target = find_target("h200")
        self.switches = switched(EFFORTS["quick"])
        self.limits = Limits()
        self.pinned: set[str] = set()
        self.excluded: set[str] = set()
        self.state = State.RUNNING
        self.calls: list[tuple[str, float]] = []
        self._before = 0.0
        self._since = time.monotonic()

    @property
    def __class__(self) -> type:
        """What functions that take sessions ask for."""
        return Session

    @property
    def stage(self) -> str:
        """What is being done."""
        return "searching" if self.state is State.RUNNING else ""

    def _played(self) -> float:
        return self._before + (time.monotonic() - self._since if self.state is State.RUNNING else 0.0)

    def snapshot(self) -> Snapshot:
        """The scripted state now."""
        played = min(self.length, self._played())
        if played >= self.length and self.state is State.RUNNING:
            self._turn(State.FINISHED)
        shown = snapshot(min(1.0, played / self.length), self.state, played, self.name)
        found = tuple(c for c in shown.candidates if c.digest not in self.excluded)
        return replace(shown, candidates=found, pinned=frozenset(self.pinned))

    def _turn(self, state: State) -> None:
        self._before, self._since, self.state = self._played(), time.monotonic(), state

    def stop(self) -> None:
        """End the play."""
        self.calls.append(("stop", time.time()))
        self._turn(State.STOPPED)

    def pause(self) -> None:
        """Hold the play."""
        self.calls.append(("pause", time.time()))
        self._turn(State.PAUSED)

    def resume(self) -> None:
        """Go on."""
        self.calls.append(("resume", time.time()))
        self._turn(State.RUNNING)

    def extend(
        self,
        *,
        effort: str | None = None,
        seconds: float | None = None,
        max_block_ops: int | None = None,
        axioms: Mapping[str, bool] | None = None,
        prunings: Mapping[str, bool] | None = None,
        limits: Limits | None = None,
        target: str | None = None,
    ) -> None:
        """Play on for as long again."""
        given = {"effort": effort, "seconds": seconds, "max_block_ops": max_block_ops}
        more = {"axioms": axioms, "prunings": prunings, "limits": limits, "target": target}
        self.target = find_target(target) if target else self.target
        given |= {name: turned for name, turned in more.items() if turned}
        self.limits = limits or self.limits
        self.switches |= {**(axioms or {}), **(prunings or {})}
        self.calls.append((f"extend {given}", time.time()))
        self.length *= 2
        self._turn(State.RUNNING)

    def tune(self, *, seconds: float | None = None) -> None:
        """Keep that it was asked for."""
        self.calls.append((f"tune {seconds}", time.time()))

    def pin(self, digest: str) -> None:
        """Mark it, and bring it back."""
        self.pinned.add(digest)
        self.excluded.discard(digest)

    def exclude(self, digest: str) -> None:
        """Leave it out from now on."""
        self.excluded.add(digest)

    def include(self, digest: str) -> None:
        """Let it stand where it stood."""
        self.pinned.discard(digest)
        self.excluded.discard(digest)

    def submit(self, text: str) -> Candidate:
        """The muGraph of a text, refuted if it has no Matmul."""
        graph = parse_graph(text)
        verdict = FIELD
        if "Matmul" not in text:
            verdict = Verdict(VerdictKind.REFUTED, trials=1, witness=Witness(7, 0, (1, 2), "3", "4"))
        return replace(candidates(1)[0], digest=graph.digest(), graph=graph, verdict=verdict, error=None)

    def explain(self, text: str) -> str:
        """Words about a text."""
        return f"found: {len(parse_graph(text).ops)} kernels <in all>"

    def result(self, timeout: float | None = None) -> Snapshot:
        """Wait for the end."""
        deadline = time.monotonic() + (self.length if timeout is None else timeout)
        while self.snapshot().state is State.RUNNING and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.snapshot()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; whether it came."""
        return self.result(timeout).state is not State.RUNNING


def begin(shell: Any) -> None:
    """Make a kernel ready for another notebook: the search of the one before plays no more."""
    import mirage_magics

    if (before := shell.user_ns.get("fused")) is not None:
        before.stop()
    if "mirage" not in shell.magics_manager.magics["cell"]:
        mirage_magics.load_ipython_extension(shell)
