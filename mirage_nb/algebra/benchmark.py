"""How long the oracle takes: `python -m mirage_nb.algebra.benchmark`.

In: the specimens. Out: for each, the number of expressions that a search without types would keep, and
microseconds per new question, per repeated question, and per pair.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import process_time

from mirage_nb.algebra.atoms import Expr
from mirage_nb.algebra.normal_form import Algebra
from mirage_nb.algebra.options import QUICK, STANDARD, THOROUGH, AlgebraOptions
from mirage_nb.algebra.oracle import ADD, DIV_AB, DIV_BA, MUL, Oracle
from mirage_nb.algebra.specimens import SPECIMENS, Specimen, part_axes

PRESETS = {"quick": QUICK, "standard": STANDARD, "thorough": THOROUGH}


def saturate(algebra: Algebra, oracle: Oracle, specimen: Specimen, limit: int) -> tuple[list[Expr], bool]:
    """All expressions that the leaves can be combined to and that still reach the target.

    Returns:
        The expressions, at most `limit`, and whether these are all.
    """
    known = dict.fromkeys(e for e in specimen.leaves if oracle.reaches(e))
    order = list(known)
    for i, e in enumerate(order):  # grows while it is read
        fresh = [*unary(algebra, specimen, e), *binary(algebra, oracle, e, order[: i + 1])]
        for new in fresh:
            if new not in known and oracle.reaches(new):
                if len(order) >= limit:
                    return order, False
                known[new] = None
                order.append(new)
    return order, True


def unary(algebra: Algebra, specimen: Specimen, e: Expr) -> Iterable[Expr]:
    """What one operator makes of one expression."""
    yield algebra.exp(e)
    yield algebra.sqrt(e)
    for scalar in specimen.scalars:
        yield algebra.mul(e, scalar)
    for name in specimen.functions:
        yield algebra.function(name, e)
    for axes in part_axes(algebra, e):
        for chosen in range(1, 1 << len(axes)):
            yield algebra.sum([axis for i, axis in enumerate(axes) if chosen >> i & 1], e)


def binary(algebra: Algebra, oracle: Oracle, e: Expr, others: Iterable[Expr]) -> Iterable[Expr]:
    """What one operator makes of e and one of `others`, as far as it reaches the target."""
    for other in others:
        flags = oracle.pair(e, other)
        if flags & MUL:
            yield algebra.mul(e, other)
        if flags & ADD:
            yield algebra.add(e, other)
        if flags & DIV_AB:
            yield algebra.div(e, other)
        if flags & DIV_BA:
            yield algebra.div(other, e)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Counts, and microseconds per question of each kind."""

    kept: int
    complete: bool
    seconds: float
    new: float
    repeated: float
    pair: float


def measure(options: AlgebraOptions, name: str, limit: int = 1000, repeats: int = 3) -> Measurement:
    """Saturate one specimen, then ask the same questions of fresh oracles: the best of `repeats`."""
    algebra = Algebra(options)
    specimen = SPECIMENS[name](algebra)
    start = process_time()
    kept, complete = saturate(algebra, Oracle(algebra, [specimen.target]), specimen, limit)
    seconds = process_time() - start
    asked = list(range(len(algebra)))
    pairs = [(a, b) for a in kept[:200] for b in kept[:200]]
    new, again, per_pair = [], [], []
    for _ in range(repeats):
        oracle = Oracle(algebra, [specimen.target])
        new.append(_microseconds(oracle.reaches, [(e,) for e in asked]))
        again.append(_microseconds(oracle.reaches, [(e,) for e in asked]))
        per_pair.append(_microseconds(oracle.pair, pairs))
    return Measurement(len(kept), complete, seconds, min(new), min(again), min(per_pair))


def _microseconds(ask: Callable[..., object], questions: Sequence[tuple[Expr, ...]]) -> float:
    start = process_time()
    for question in questions:
        ask(*question)
    return (process_time() - start) / len(questions) * 1e6


def report() -> Iterator[str]:
    """One line per specimen and preset."""
    yield f"{'program':16}{'preset':10}{'kept':>7}{'':4}{'s':>7}{'us new':>9}{'us again':>10}{'us pair':>9}"
    for name in SPECIMENS:
        for preset, options in PRESETS.items():
            m = measure(options, name)
            more = "" if m.complete else "+"
            line = f"{name:16}{preset:10}{m.kept:7}{more:4}{m.seconds:7.2f}{m.new:9.2f}"
            yield f"{line}{m.repeated:10.2f}{m.pair:9.2f}"


if __name__ == "__main__":
    for row in report():
        sys.stdout.write(row + "\n")
