"""Single-site mutants of the muGraphs that the search finds for the workloads, and these muGraphs themselves.

`python -m tests.verify.mutant_table` prints, for every workload: how many muGraphs the standard search returns
and how many of them verification rejects (none may be), then how many mutants of them it refutes and accepts,
beside what float64 says: a false acceptance is a mutant that is accepted and differs in float64, a false
rejection one that is refuted and is equal. The muGraphs are at the small sizes at which the search verifies.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

import mirage_nb
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import load
from mirage_nb.search import EFFORTS, configurations, prepare, tiny
from mirage_nb.verify.trials import screen, verify
from mirage_nb.verify.verdict import VerdictKind
from tests.search.explored import explored
from tests.strategies import arrays_for
from tests.verify.mutants import is_legal, mutants

FOLDER = Path(mirage_nb.__file__).parent / "bench" / "workloads"
WORKLOADS = tuple(sorted(path.stem for path in FOLDER.glob("*.mirage")))
PER_GRAPH = 48
"""Mutants of one muGraph at most, so that many muGraphs have their turn."""

Pair = tuple[KernelGraph, KernelGraph]


@dataclass(slots=True)
class Row:
    """One workload: muGraphs and rejected ones, mutants by outcome, and what is wrong in words."""

    name: str
    graphs: int = 0
    rejected: int = 0
    tally: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def mutants(self) -> int:
        """Number of mutants that were verified."""
        return self.tally["mutants"]


def found(name: str, effort: str = "standard") -> list[Pair]:
    """Every muGraph that the search returns for a workload, small, beside its program."""
    prepared = prepare(load(FOLDER / f"{name}.mirage").graph)
    pairs: dict[str, Pair] = {}
    for configuration in configurations(prepared, EFFORTS[effort]):
        result = explored(prepared, configuration, EFFORTS[effort])
        for structure in result.structures:
            pair = tiny(prepared, structure)
            pairs.setdefault(pair[0].digest() + pair[1].digest(), pair)
    return list(pairs.values())


def row(name: str, count: int, effort: str = "standard", most: int | None = None) -> Row:
    """Screen all muGraphs of a workload, as the search does, and verify them, all or `most` of them from first to last;
    and `count` mutants of them all if there are as many."""
    made = Row(name)
    pairs = found(name, effort)
    verified = range(0, len(pairs), 1 if most is None else -(-len(pairs) // most))
    for number, (program, graph) in enumerate(pairs):
        made.graphs += 1
        verdict = screen(program, graph, seed=1)
        if number in verified and verdict.accepted:
            verdict = verify(program, graph)
        if not verdict.accepted:
            made.rejected += 1
            made.wrong.append(f"{name}: rejected {graph.digest()[:8]}: {verdict}")
    for program, description, mutant in islice(_mutants(pairs), count):
        _judge(made, program, description, mutant)
    return made


def _mutants(pairs: list[Pair]) -> Iterator[tuple[KernelGraph, str, KernelGraph]]:
    """Legal mutants, each once, a few of every muGraph; then more of them."""
    rng = random.Random(0)
    rng.shuffle(pairs)
    seen: set[str] = set()
    later: list[tuple[KernelGraph, list[tuple[str, KernelGraph]]]] = []
    for program, graph in pairs:
        changed = [(text, mutant) for text, mutant in mutants(graph) if is_legal(mutant)]
        rng.shuffle(changed)
        later.append((program, changed[PER_GRAPH:]))
        yield from _new(program, changed[:PER_GRAPH], seen)
    for program, changed in later:
        yield from _new(program, changed, seen)


def _new(
    program: KernelGraph, changed: list[tuple[str, KernelGraph]], seen: set[str]
) -> Iterator[tuple[KernelGraph, str, KernelGraph]]:
    for description, mutant in changed:
        digest = program.digest() + mutant.digest()
        if digest not in seen:
            seen.add(digest)
            yield program, description, mutant


def _judge(made: Row, program: KernelGraph, description: str, mutant: KernelGraph) -> None:
    verdict = verify(program, mutant)
    equal = equal_in_reals(program, mutant)
    made.tally["mutants"] += 1
    made.tally[verdict.kind.value] += 1
    made.tally["equal"] += equal
    kind = "false acceptance" if verdict.accepted and not equal else ""
    if verdict.kind is VerdictKind.REFUTED and equal:
        kind = "false rejection"
    if kind:
        made.tally[kind] += 1
        made.wrong.append(f"{made.name}: {kind}: {description}: {verdict}")


def equal_in_reals(program: KernelGraph, mutant: KernelGraph) -> bool:
    """Equal on normal, on positive and on negative inputs, and on small whole numbers, of which sums are often 0, up to
    rounding, outputs in order; undefined elements in the same places."""
    drawn = arrays_for(program, 11)
    points = [drawn, *({n: sign * (np.abs(a) + 0.5) for n, a in drawn.items()} for sign in (1, -1))]
    for inputs in (*points, *({n: np.round(2 * a) for n, a in arrays_for(program, seed).items()} for seed in range(4))):
        for left, right in zip(evaluate(program, inputs), evaluate(mutant, inputs), strict=True):
            if not np.allclose(left, right, rtol=1e-8, atol=1e-12, equal_nan=True):
                return False
    return True


COLUMNS = ("mutants", "refuted", "field", "undecided", "outside LAX", "equal", "false acceptance", "false rejection")


def table(rows: list[Row]) -> str:
    """The rows as text, and their sum."""
    total = Row("all")
    for one in rows:
        total.graphs += one.graphs
        total.rejected += one.rejected
        total.tally += one.tally
    lines = ["workload        muGraphs rejected " + " ".join(f"{name:>9.9}" for name in COLUMNS)]
    lines += [
        f"{one.name:15} {one.graphs:8} {one.rejected:8} " + " ".join(f"{one.tally[name]:9}" for name in COLUMNS)
        for one in [*rows, total]
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutants of the muGraphs that the search finds.")
    parser.add_argument("workloads", nargs="*", default=WORKLOADS)
    parser.add_argument("--count", type=int, default=20_000, help="mutants in all")
    parser.add_argument("--effort", default="standard", choices=tuple(EFFORTS))
    options = parser.parse_args()
    rows = []
    for name in options.workloads:
        rows.append(row(name, -(-options.count // len(options.workloads)), options.effort))
        print(table(rows[-1:]).splitlines()[1], *rows[-1].wrong, sep="\n", flush=True)
    print(table(rows))
    return int(any(one.wrong for one in rows))


if __name__ == "__main__":
    sys.exit(main())
