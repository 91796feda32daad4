"""Programs that are no workloads: each becomes a fused, verified muGraph.

The programs stand in `foreign/`, one file each, at sizes that models have. They are searched at those sizes; what
is executed is the same program with smaller constants.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mirage_nb.codegen import Options, emit
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import KernelGraph, OpKind
from mirage_nb.ir.legality import check
from mirage_nb.lang import TensorProgram, load
from mirage_nb.pipeline import superoptimize
from mirage_nb.runtime.execution.buffers import decode, encode
from mirage_nb.runtime.execution.execute import CpuExecutable
from mirage_nb.search import (
    EFFORTS,
    Instance,
    Prepared,
    Structure,
    configurations,
    instances,
    prepare,
    tiny,
)
from mirage_nb.targets import TARGETS
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import VerdictKind
from tests.codegen.running import Arrays
from tests.search.explored import explored
from tests.shares import some

H200 = TARGETS["h200"]
FEW = replace(EFFORTS["standard"], kernels=1, extra=1, structures=3)
FOLDER = Path(__file__).parent / "foreign"
FOREIGN = sorted(path.stem for path in FOLDER.glob("*.mirage"))

POOR = {"linear_attention": "numerically poor"}
"""Programs that divide by sums of any sign, which random inputs bring near zero: no kernel may be handed out."""

SMALLER = {
    "B": 2, "C": 32, "D": 16, "F": 96, "G": 2, "H": 2, "K": 64, "L": 32, "M": 16, "N": 64, "R": 8, "S": 32, "T": 64,
}  # fmt: skip
MAX_BLOCKS = 32
"""Blocks of what is executed: the CPU edition runs them one after the other."""
ODD = {"odd_sizes": {"M": 7, "K": 100, "N": 130}, "prime_sizes": {"M": 13, "K": 53, "N": 31}}


@functools.cache
def text(name: str, *, small: bool = False) -> TensorProgram:
    """The program of a file, with its own constants or smaller ones."""
    path = FOLDER / f"{name}.mirage"
    full = load(path)
    smaller = ODD.get(name) or {k: v for k, v in SMALLER.items() if v < full.sizes.get(k, 0)}
    return load(path, sizes=smaller) if small else full


def program(name: str, *, small: bool = False) -> KernelGraph:
    return text(name, small=small).graph


def found(prepared: Prepared) -> Iterator[Structure]:
    """The first muGraphs of one kernel of every configuration, then those of two kernels."""
    for effort in (FEW, replace(FEW, kernels=2)):
        for configuration in configurations(prepared, effort):
            if configuration.kernels == effort.kernels:
                yield from explored(prepared, configuration, effort).structures


def fused(prepared: Prepared) -> tuple[Structure, Instance]:
    """The first muGraph that is verified and has an instance that fits the target."""
    refused = []
    for structure in found(prepared):
        verdict = verify(*tiny(prepared, structure), seed=3)
        if verdict.accepted:
            for instance in instances(structure, prepared, H200, 1):
                return structure, instance
        refused.append(str(verdict))
    raise AssertionError(refused or "no muGraph was found")


def operators(graph: KernelGraph) -> int:
    return sum(op.kind is not OpKind.CONST for op in graph.ops)


def stored(graph: KernelGraph) -> Arrays:
    """Positive inputs: no denominator of a program comes near zero."""
    rng = np.random.default_rng(0)
    return [encode(rng.uniform(0.1, 0.6, i.type.shape), i.type.dtype) for i in graph.inputs]


def exact(graph: KernelGraph, inputs: Arrays) -> Arrays:
    return list(evaluate(graph, [decode(a, i.type.dtype) for a, i in zip(inputs, graph.inputs, strict=True)]))


def error(found: Arrays, wanted: Arrays) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float(np.linalg.norm(f - w) / np.linalg.norm(w)) for f, w in pairs)


def test_there_are_enough_of_them_and_none_is_a_workload() -> None:
    assert len(FOREIGN) >= 30
    digests = {program(name).digest() for name in FOREIGN}
    assert len(digests) == len(FOREIGN)


@pytest.mark.parametrize("name", some(FOREIGN))
def test_it_becomes_one_fused_verified_mugraph(name: str) -> None:
    graph = program(name)
    prepared = prepare(graph)
    structure, instance = fused(prepared)
    check(instance.graph)
    assert instance.graph.kernel_count < operators(graph)
    pair = tiny(prepared, structure)
    inputs = stored(pair[0])
    assert error(exact(pair[1], inputs), exact(pair[0], inputs)) < 1e-9


@pytest.mark.parametrize("name", some(FOREIGN, 1))
def test_it_is_emitted_and_runs(name: str) -> None:
    graph = program(name, small=True)
    prepared = prepare(graph)
    inputs = stored(graph)
    wanted = exact(graph, inputs)
    choose = random.Random(name)
    every = [i for _, s in zip(range(6), found(prepared), strict=False) for i in instances(s, prepared, H200, 8)]
    for instance in choose.sample([i for i in every if i.cost.blocks <= MAX_BLOCKS], 2):
        emitted = emit(instance.graph, H200, Options(choose.choice([2, 4])))
        outputs = CpuExecutable(emitted).run(inputs, deferred=True, order=choose.randrange(100))
        types = instance.graph.output_types
        assert error([decode(o, t.dtype) for o, t in zip(outputs, types, strict=True)], wanted) < 3e-3, instance.sizes


def test_what_field_trials_cannot_judge_is_said() -> None:
    """One kernel with a second exponential on a path; pieces with one each are judged one by one."""
    prepared = prepare(program("elementwise_chain"))
    verdicts = [(len(s.kernels), verify(*tiny(prepared, s), seed=3)) for s in found(prepared)]
    for kernels, verdict in verdicts:
        if kernels == 1:
            assert verdict.kind is VerdictKind.PROVED or "enters a second exponential" in str(verdict)
    assert any(verdict.accepted for kernels, verdict in verdicts if kernels > 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOREIGN)
def test_a_session_ends_with_a_kernel_that_ran(name: str) -> None:
    session = superoptimize(text(name, small=True), budget=8.0)
    snapshot = session.result(300)
    if not session.winners and name in POOR:
        assert all(POOR[name] in message for message in snapshot.messages) and snapshot.messages
        return
    assert session.best is not None, snapshot.messages
    candidate = session.best.candidate
    assert candidate.error is not None and candidate.error < 1e-2
    assert candidate.kernels < operators(session.program.graph)
