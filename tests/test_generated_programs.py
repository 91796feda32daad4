"""Programs that nobody wrote go through search and emission without a mistake of ours; some are executed, too."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_nb.__main__ import main
from mirage_nb.bench.generated import program
from mirage_nb.bench.sessions import Fate, run_generated, summary
from mirage_nb.codegen import emit
from mirage_nb.errors import EmitError, MirageError
from mirage_nb.lang import FUNCTIONS, parse
from mirage_nb.runtime.contest.final import verify_final, verify_real
from mirage_nb.search import EFFORTS, Budget, configurations, instances, prepare, run_configuration
from mirage_nb.search.session.channel import Channel, Moment
from mirage_nb.search.session.findings import Bounds
from mirage_nb.search.session.worker import Task, explore
from mirage_nb.targets import DEFAULT_TARGET, find_target
from tests.shares import some

SEARCHED, CONFIGURATIONS, SECONDS = 40, 3, 1.0
"""Programs that are only searched, configurations of each, and what one may take."""


def searched(text: str) -> None:
    """Some configurations are explored in this process, the best muGraph is emitted and proved; nothing is executed.
    Raises what is no mistake that a session would tell."""
    graph, effort, target = parse(text).graph, EFFORTS["quick"], find_target(DEFAULT_TARGET)
    bounds = Bounds("quick", replace(effort.budget, seconds=SECONDS))
    channel = Channel(Path("/nowhere"))
    found = []
    with contextlib.suppress(MirageError):
        for configuration in configurations(prepare(graph), effort)[:CONFIGURATIONS]:
            done = explore(Task(0, graph, configuration, bounds, target, 0, Moment.after(SECONDS), channel))
            found += done.findings.candidates
        if found:
            best = min(found, key=lambda candidate: candidate.rank)
            emit(best.graph, target)
            verify_final(graph, best)
            verify_real(graph, best.graph)


@pytest.mark.parametrize("seed", some(range(SEARCHED), 2))
def test_searched(seed: int) -> None:
    searched(program(seed))


def test_doubles_that_are_read_backwards_are_refused() -> None:
    """An element of theirs is wider than the narrowest asynchronous copy."""
    graph = parse("X: f64[2]\nreturn softmax(X)[::-1, None] * X").graph
    prepared, effort = prepare(graph), EFFORTS["quick"]
    found = [run_configuration(prepared, c, effort, Budget()) for c in configurations(prepared, effort)[:3]]
    structures = [structure for result in found for structure in result.structures]
    assert structures
    for structure in structures:
        for instance in instances(structure, prepared, find_target(DEFAULT_TARGET), 4):
            with pytest.raises(EmitError, match="f64"):
                emit(instance.graph, find_target(DEFAULT_TARGET))


def test_they_are_of_every_kind() -> None:
    texts = [program(seed) for seed in range(60)]
    used = {name for name in FUNCTIONS if any(f"{name}(" in text for text in texts)}
    assert len(used) > 0.6 * len(FUNCTIONS)
    graphs = [parse(text).graph for text in texts]
    assert {len(i.type.shape) for graph in graphs for i in graph.inputs} == set(range(1, 6))
    assert {t.dtype for graph in graphs for t in graph.types} and any(len(graph.outputs) > 1 for graph in graphs)
    assert program(3) == program(3)


def test_fates_are_counted_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fates = [
        Fate(0, "CPU edition", True, 1e-7, 1e-6), Fate(1, "NumPy"), Fate(2, defect="no kernel: why"),
        Fate(3, defect="internal error: IndexError"),
    ]  # fmt: skip
    said = summary(fates)
    assert said.startswith("2 of 4 sessions end well; 1 by generated kernels that agree with float64 on the CPU")
    assert said.endswith("1 by library kernels; defects: 1 no kernel, 1 internal error")
    record = tmp_path / "fates"
    assert run_generated(range(5, 6), 1, str(record), rows=False) == 0
    assert run_generated(range(5, 6), 1, str(record), rows=False) == 0  # it is there already
    assert len(record.read_text().splitlines()) == 1
    assert "1 of 1 sessions end well" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 5000, 50))
def test_whole_sessions(first: int) -> None:
    assert main(["bench", "programs", "--generated", "50", "--first", str(first)]) == 0
