"""The closure: exact counts, stable over seeds, complete beside a search without the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import pytest

from mirage_nb.algebra import STANDARD
from mirage_nb.ir import AccumKind, KernelGraph, OpKind
from mirage_nb.search import prepare
from mirage_nb.search.saturation.closure import Closure, Rules
from mirage_nb.search.saturation.events import Outcome
from mirage_nb.search.saturation.extract import Extraction
from mirage_nb.search.saturation.sample import Sample
from mirage_nb.search.saturation.semantics import Semantics
from tests.search.programs import PROGRAMS, Builder, attention_safe, gated_mlp, lora, moe, rmsnorm, rmsnorm_fig3

EVERYTHING = Rules()


@dataclass
class Run:
    closure: Closure
    semantics: Semantics


def close(
    graph: KernelGraph, grid: tuple[int, ...] = (), loop: int | None = None, seed: int = 0,
    rules: Rules = EVERYTHING, prefixes: int = 0, stopped: Callable[[], bool] = lambda: False,
) -> Run:  # fmt: skip
    semantics = Semantics(prepare(graph, seed=seed), STANDARD)
    sample = Sample(semantics, "test", prefixes)
    closure = Closure(semantics, frozenset(grid), loop, semantics.tensors, rules, sample, lambda counts: None, stopped)
    closure.run()
    return Run(closure, semantics)


def graphs_up_to(run: Run, size: int) -> set[frozenset[str]]:
    """Every graph of at most `size` operators for the (single) target, whatever the order of its values."""
    extraction = Extraction(run.closure.values)
    found = set()
    for final in run.closure.finals(run.semantics.targets[0]):
        for number in range(1, size + 1):
            for choice in extraction.graphs([final.id], number, lambda: False):
                texts: dict[int, str] = {}
                for value in extraction.ordered(choice):
                    operator, args = choice[value]
                    read = sorted(texts[a] for a in args) if operator.kind in COMMUTES else [texts[a] for a in args]
                    texts[value] = f"{operator}{run.closure.values[value].type}({', '.join(read)})"
                found.add(frozenset(texts.values()))
    return found


def product() -> KernelGraph:
    b = Builder.over(X=(4, 8), W=(8, 6))
    b.matmul(0, 1)
    return b.done()


COMMUTES = {OpKind.ADD, OpKind.MUL, OpKind.MATMUL}

CASES = [
    ("rmsnorm", 1), ("rmsnorm_fig3", 1), ("gated_mlp", 1), ("lora", 1), ("lora", 3), ("gqa", 3), ("moe", 3),
    ("attention_safe", 3), ("qknorm_k", 3),
]  # fmt: skip


@pytest.mark.parametrize(("name", "loop"), CASES)
def test_counts_do_not_depend_on_the_seed(name: str, loop: int) -> None:
    runs = [close(PROGRAMS[name](), loop=loop, seed=seed) for seed in range(3)]
    assert all(run.closure.saturated for run in runs)
    assert len({len(run.closure.values) for run in runs}) == 1, "a false or a missed merge under some seed"
    assert runs[0].closure.counts == runs[1].closure.counts == runs[2].closure.counts
    assert len({len(run.closure.finals(run.semantics.targets[0])) for run in runs}) == 1


@pytest.mark.parametrize(("name", "loop"), CASES)
def test_kept_events_are_the_values(name: str, loop: int) -> None:
    closure = close(PROGRAMS[name](), loop=loop).closure
    kept = sum(n for (_, outcome), n in closure.counts.items() if outcome is Outcome.KEPT)
    assert kept == len(closure.values)
    by_level = Counter(value.level for value in closure.values)
    assert by_level == {d: n for (d, outcome), n in closure.counts.items() if outcome is Outcome.KEPT}
    nodes = sum(len(value.nodes) for value in closure.values)
    merged = sum(n for (_, outcome), n in closure.counts.items() if outcome is Outcome.MERGED)
    assert nodes <= kept + merged


@pytest.mark.parametrize(
    ("graph", "loop", "depth"),
    [(lora(), None, 3), (gated_mlp(), None, 3), (moe(), None, 3), (product(), 1, 3)],
    ids=["lora", "gated_mlp", "moe", "product"],
)
def test_the_oracle_cuts_no_graph_that_computes_the_program(graph: KernelGraph, loop: int | None, depth: int) -> None:
    with_oracle = close(graph, loop=loop)
    without = close(graph, loop=loop, rules=Rules(oracle=False, concat=False, max_depth=depth))
    assert not without.closure.capped
    expected = graphs_up_to(without, 5)
    assert expected and expected <= graphs_up_to(with_oracle, 5)
    assert len(without.closure.values) > 3 * len(with_oracle.closure.values)


def test_loop_less_closures_contain_the_program_itself() -> None:
    for name, program in PROGRAMS.items():
        if name == "ntrans":
            continue
        run = close(program())
        kinds = Counter(op.kind for op, _ in run.semantics.prepared.program if not op.is_leaf)
        extraction = Extraction(run.closure.values)
        finals = [value.id for value in run.closure.finals(run.semantics.targets[0])]
        sizes = sum(kinds.values())
        found = [
            Counter(operator.kind for operator, _ in choice.values() if not operator.is_leaf)
            for final in finals
            for choice in extraction.graphs([final], sizes, lambda: False)
        ]
        assert kinds in found, f"{name}: the oracle cut a prefix of the program"


def test_merging_keeps_every_derivation_once() -> None:
    for value in close(rmsnorm_fig3(), loop=1).closure.values:
        assert value.nodes and len(set(map(repr, value.nodes))) == len(value.nodes)


def test_a_capped_closure_says_so() -> None:
    closure = close(rmsnorm_fig3(), loop=1, rules=Rules(max_values=20)).closure
    assert closure.capped and not closure.saturated and len(closure.values) == 20


def test_a_stopped_closure_stops_soon_and_says_so() -> None:
    closure = close(attention_safe(), loop=3, stopped=lambda: True).closure
    assert not closure.saturated and not closure.capped
    assert len(closure.values) < len(close(attention_safe(), loop=3).closure.values)


def test_no_value_uses_a_maximum_but_as_a_shift() -> None:
    run = close(attention_safe(), loop=3)
    values = run.closure.values
    for value in values:
        for operator, args in value.nodes:
            if any(values[a].peak is not None for a in args):
                assert operator.kind in (OpKind.SUB, OpKind.MAX, OpKind.ACCUM, OpKind.RESCALED_SUM)
    rescaled = [v for v in values for o, _ in v.nodes if o.accum is AccumKind.RESCALE]
    assert rescaled, "the running maximum is found"
    assert all(final.shift is None for final in run.closure.finals(run.semantics.targets[0]))


def test_the_sample_is_bounded_and_linked() -> None:
    semantics = Semantics(prepare(rmsnorm()), STANDARD)
    sample = Sample(semantics, "test", 20)
    Closure(semantics, frozenset(), 1, semantics.tensors, Rules(), sample, lambda c: None, lambda: False).run()
    prefixes = sample.prefixes
    assert [p.identity for p in prefixes] == list(range(len(prefixes)))
    assert Counter(p.outcome for p in prefixes)[Outcome.KEPT] == 20
    assert all(parent < p.identity for p in prefixes for parent in p.parents)
    cut = [p for p in prefixes if p.outcome is Outcome.PRUNED_EXPRESSION]
    assert cut and all(p.reason for p in cut)


def test_differences_are_told_from_sums_before_they_are_computed() -> None:
    b = Builder.over(X=(4, 8))
    mean = b.op(OpKind.MUL, b.sum(0), b.const(Fraction(1, 8)))
    b.rms(b.op(OpKind.SUB, 0, mean))
    run = close(b.done())
    shown = {run.semantics.algebra.show(value.expr) for value in run.closure.values}
    assert run.closure.finals(run.semantics.targets[0]) and len(run.closure.values) < 200
    assert not any(op.kind is OpKind.ADD for value in run.closure.values for op, _ in value.nodes)
    assert any(" - " in text for text in shown)
