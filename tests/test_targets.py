"""Every target is a GPU that muGraphs are planned, emitted and compiled for."""

from __future__ import annotations

import dataclasses

import pytest

from mirage_nb.codegen import emit
from mirage_nb.errors import TargetError
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.targets import DEFAULT_TARGET, TARGETS, Target, find_target
from tests.mugraphs import cases
from tests.shares import shared_out


def mistakes(target: Target) -> list[str]:
    """What cannot be true of a GPU, one line each."""
    words = ("name", "arch", "precision")
    numbers = {f.name: getattr(target, f.name) for f in dataclasses.fields(target) if f.name not in words}
    found = [f"{name} is {number}" for name, number in numbers.items() if name != "tma" and not number > 0]
    if not 75 <= target.capability < 200:
        found.append(f"{target.arch} is no architecture")
    if target.shared_per_block > target.shared_per_multiprocessor:
        found.append("a block has more shared memory than a multiprocessor")
    if target.threads_per_multiprocessor % 32 or target.registers_per_multiprocessor % 1024:
        found.append("threads come in warps, registers in 1024s")
    if not target.l2_bytes < target.device_memory:
        found.append("the L2 cache is larger than the memory")
    if not target.device_bandwidth < target.shared_bandwidth or not target.vector_rate < target.tensor_rate:
        found.append("the near memory is the faster one, and tensor instructions are")
    if target.tma != (target.capability >= 90):
        found.append("bulk tensor copies begin with sm_90")
    return found


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_the_numbers_are_those_of_a_gpu(target: Target) -> None:
    assert mistakes(target) == []


@pytest.mark.parametrize(
    "change",
    [
        {"multiprocessors": 0},
        {"arch": "sm_9"},
        {"shared_per_block": 233473},
        {"threads_per_multiprocessor": 2000},
        {"l2_bytes": 10**12},
        {"shared_bandwidth": 100.0},
        {"vector_rate": 1000.0},
        {"tma": False},
    ],
    ids=lambda change: next(iter(change)),
)
def test_wrong_numbers_are_noticed(change: dict[str, object]) -> None:
    assert mistakes(dataclasses.replace(TARGETS["h200"], **change))


@shared_out
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_mugraphs_compile_for_it(target: Target, share: int) -> None:
    first = [*TARGETS.values()].index(target) % share
    for case in cases()[first::share]:
        cubin = compile_cubin(emit(case.candidate, target).source, target.arch)
        assert cubin.usage, case.name


def test_targets_are_found_by_name() -> None:
    assert find_target(DEFAULT_TARGET.upper()) is TARGETS[DEFAULT_TARGET]
    with pytest.raises(TargetError, match=r"(?s)'h3000'.*h200"):
        find_target("h3000")
