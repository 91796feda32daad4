"""Limits set by hand: every instance keeps to them, nothing else is lost, and what is left out is named."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mirage_nb.errors import OptionError
from mirage_nb.ir import BlockGraph, KernelGraph, OpKind
from mirage_nb.lang import parse
from mirage_nb.search import (
    EFFORTS,
    Budget,
    Instance,
    Limits,
    Structure,
    Switches,
    configurations,
    instances,
    prepare,
    run_configuration,
)
from mirage_nb.search.saturation.events import Outcome
from mirage_nb.search.session.session import SearchSession
from mirage_nb.targets import find_target
from tests.search.explored import explored

H200 = find_target("h200")
PROGRAM = parse("X: f16[16, 256]\nW: f16[256, 512]\nreturn rms_norm(X) @ W").graph


def blocks_of(graph: KernelGraph) -> list[BlockGraph]:
    return [op.body for op in graph.ops if isinstance(op.body, BlockGraph)]


def searched(limits: Limits | None) -> SearchSession:
    session = SearchSession(PROGRAM, H200, effort="quick", switches=Switches.of(limits=limits))
    session.start().result(120)
    return session


@pytest.fixture(scope="module")
def everything() -> list[tuple[Structure, list[Instance]]]:
    """All instances of a few structures."""
    prepared, effort = prepare(PROGRAM), EFFORTS["quick"]
    found = [explored(prepared, c, effort).structures[:3] for c in configurations(prepared, effort)[:4]]
    return [(s, instances(s, prepared, H200, 10_000)) for structures in found for s in structures]


@pytest.mark.parametrize(
    "limits",
    [Limits(blocks=(1, 16)), Limits(blocks=(32, None)), Limits(loop=(1, 4)), Limits(loop=(8, 8)), Limits(grid_dims=0)],
    ids=str,
)
def test_every_instance_keeps_to_the_limits_and_none_that_does_is_lost(
    limits: Limits, everything: list[tuple[Structure, list[Instance]]]
) -> None:
    prepared = prepare(PROGRAM)
    kept = 0
    for structure, made in everything:
        wanted = [i for i in made if keeps(i.graph, limits)]
        got = instances(structure, prepared, H200, 10_000, limits=limits)
        assert [i.graph.digest() for i in got] == [i.graph.digest() for i in wanted]
        kept += len(got)
    assert kept


def keeps(graph: KernelGraph, limits: Limits) -> bool:
    """Counted on the graph itself."""
    for block in blocks_of(graph):
        most_blocks, most_loop = (math.inf if r[1] is None else r[1] for r in (limits.blocks, limits.loop))
        if not limits.blocks[0] <= math.prod(block.grid) <= most_blocks:
            return False
        if not limits.loop[0] <= block.loop <= most_loop:
            return False
        if sum(dim > 1 for dim in block.grid) > limits.grid_dims:
            return False
    return True


def test_a_session_keeps_to_its_limits_names_them_and_goes_on_with_others() -> None:
    narrow = Limits(blocks=(1, 8), without=frozenset({"EwDiv"}))
    session = searched(narrow)
    found = session.snapshot()
    assert set(found.cut) >= {"only blocks from 1 to 8", "EwDiv is not allowed"} and not found.exhausted
    assert all(keeps(c.graph, narrow) for c in found.candidates)
    kinds = {op.kind for c in found.candidates for block in blocks_of(c.graph) for op in block.ops}
    assert OpKind.DIV not in kinds
    assert any("not allowed" in prefix.reason for prefix in found.prefixes)
    before = {c.digest for c in found.candidates}
    session.extend(switches=Switches.of(limits=Limits()))
    more = session.result(120)
    assert more.configurations_kept == 0, "other limits: everything is explored again"
    everything = {c.digest for c in session.candidates()}
    assert before <= everything, "what was found stays"
    plain = {c.digest for c in searched(None).snapshot().candidates}
    assert plain <= everything


def test_an_operator_that_is_not_allowed_is_pruned_as_early_as_it_is_tried() -> None:
    prepared = prepare(PROGRAM)
    plain = EFFORTS["quick"]
    limited = Switches.of(limits=Limits(without=frozenset({"EwDiv", "Sqrt"}))).applied(plain)
    (first, *_) = configurations(prepared, plain)
    counts = [run_configuration(prepared, first, effort, Budget(20.0)).counts for effort in (plain, limited)]
    kept = [sum(n for (_, outcome), n in c.items() if outcome is Outcome.KEPT) for c in counts]
    assert kept[1] < kept[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [({"grid_dims": 4}, "4 grid dims"), ({"grid_dims": -1}, "-1 grid dims"), ({"blocks": (0, 3)}, "blocks: from 0"),
     ({"blocks": (8, 4)}, "blocks: from 8 to 4"), ({"loop": (0, None)}, "loop: from 0"),
     ({"without": frozenset({"EwDvi"})}, "'EwDvi' is no operator")],
)  # fmt: skip
def test_impossible_limits_are_mistakes(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Switches.of(limits=Limits(**given))


def test_later_limits_replace_earlier_ones_and_none_leaves_them() -> None:
    first, second = Limits(grid_dims=1), Limits(blocks=(1, 4))
    assert Switches.of(limits=first).then(Switches.of(limits=second)).by_hand == second
    assert Switches.of(limits=first).then(Switches.of({"sum_div": False})).by_hand == first
    assert Switches().applied(EFFORTS["quick"]) is EFFORTS["quick"]
