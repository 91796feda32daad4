"""Axioms and prunings switched on and off by name: what an effort becomes, and what a session finds."""

from __future__ import annotations

import concurrent.futures as futures
from pathlib import Path

import pytest

from mirage_nb.__main__ import main
from mirage_nb.errors import OptionError
from mirage_nb.ir import KernelGraph
from mirage_nb.lang import parse
from mirage_nb.pipeline import resume, superoptimize
from mirage_nb.search import (
    AXIOMS,
    EFFORTS,
    PRUNINGS,
    Budget,
    Effort,
    Structure,
    Switches,
    configurations,
    prepare,
    run_configuration,
    switched,
    tiny,
)
from mirage_nb.search.session.findings import Bounds, Explored, Findings
from mirage_nb.search.session.session import SearchSession
from mirage_nb.targets import TARGETS
from mirage_nb.verify.trials import verify
from tests.search.programs import attention_safe, gqa, rmsnorm
from tests.shares import some

SWITCHABLE = [name for name, switch in (AXIOMS | PRUNINGS).items() if not switch.fixed]
SMALL = "X: f16[4, 64]\nm: f16[4, 1]\nreturn sum(X / m, axis=-1, keepdims=True)"


def found(graph: KernelGraph, effort: Effort, seconds: float = 5.0) -> list[Structure]:
    """The muGraphs of one kernel."""
    prepared = prepare(graph)
    budget = Budget(seconds, 3_000, 12)
    every: list[Structure] = []
    for configuration in configurations(prepared, effort):
        if configuration.kernels == 1 and configuration.cut is None:
            every += run_configuration(prepared, configuration, effort, budget).structures
    return every


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("name", SWITCHABLE)
def test_one_switch_changes_one_thing(name: str, effort: str) -> None:
    before = switched(EFFORTS[effort])
    assert list(before) == [*AXIOMS, *PRUNINGS]
    for state in (True, False):
        if name == "factored_products" and effort == "quick" and state is False:
            continue  # the axioms of that effort are those of factored products
        switches = Switches.of({name: state} if name in AXIOMS else None, {name: state} if name in PRUNINGS else None)
        assert switched(switches.applied(EFFORTS[effort])) == before | {name: state}


def test_later_switches_win() -> None:
    first, later = Switches.of({"sum_div": False, "mul_div": False}), Switches.of({"sum_div": True}, {"oracle": False})
    assert first.then(later) == Switches.of({"sum_div": True, "mul_div": False}, {"oracle": False})


def test_what_is_taken_away_is_named() -> None:
    standard = EFFORTS["standard"]
    assert Switches.of({"sum_div": False, "sqrt_product": True}, {"oracle": False}).limits(standard) == (
        "sum_div is switched off",
    )
    assert Switches.of({"sqrt_product": False}, {"concat": False}).limits(standard) == ("concat is switched off",)
    written_out = Switches.of(None, {"factored_products": False}).applied(EFFORTS["exhaustive"])
    assert Switches.of(None, {"factored_products": True}).limits(written_out) == ("factored_products is switched on",)


def test_mistakes_are_named() -> None:
    with pytest.raises(OptionError, match=r"'sum_dov' is no axiom[\s\S]*sum_div"):
        Switches.of({"sum_dov": False})
    with pytest.raises(OptionError, match="'add_commutes' cannot be switched off: operands have no order"):
        superoptimize(SMALL, axioms={"add_commutes": False})
    with pytest.raises(OptionError, match="'sum_div' is no pruning"):
        superoptimize(SMALL, prunings={"sum_div": False})


def test_other_switches_ask_for_another_search() -> None:
    configuration = configurations(prepare(rmsnorm()), EFFORTS["standard"])[0]
    bounds = Bounds("standard", Budget())
    done = Explored(configuration, bounds, Findings(), (), (), frozenset(), unfinished=False)
    assert done.holds_within(bounds)
    assert done.holds_within(Bounds("standard", Budget(), Switches.of({"sqrt_product": False})))  # it is off anyway
    assert not done.holds_within(Bounds("standard", Budget(), Switches.of({"sum_div": False})))


@pytest.mark.parametrize(
    ("name", "program"),
    [
        pair
        for at, name in enumerate(name for name in SWITCHABLE if name in PRUNINGS)
        for pair in some([(name, program) for program in ("rmsnorm", "gqa", "attention_safe")], at)
    ],
)
def test_whatever_pruning_is_off_nothing_wrong_is_handed_out(name: str, program: str) -> None:
    """The default tests take each pruning with one of the programs."""
    small = {"rmsnorm": rmsnorm(8, 16, 8), "gqa": gqa(2, 4, 4, 8), "attention_safe": attention_safe(2, 4, 4, 8)}
    graph = small[program]
    effort = Switches.of(None, {name: False}).applied(EFFORTS["standard"])
    prepared = prepare(graph)
    structures = found(graph, effort)
    assert structures or name == "oracle", "so many values without an oracle do not get far"
    for structure in (*structures[:1], *structures[-1:]):
        assert verify(*tiny(prepared, structure), seed=5).accepted


@pytest.mark.parametrize("name", ["oracle", "types", "merging", "shift_rules"])
def test_a_pruning_prunes(name: str) -> None:
    prepared = prepare(attention_safe(2, 4, 4, 8))
    kept = []
    for effort in (EFFORTS["standard"], Switches.of(None, {name: False}).applied(EFFORTS["standard"])):
        loop = configurations(prepared, effort)[1]
        budget = Budget(20.0, 2_000, 1)
        kept.append(run_configuration(prepared, loop, effort, budget).values)
    assert kept[0] < kept[1]


def test_a_session_without_an_axiom_loses_the_mugraph_and_an_extension_brings_it_back() -> None:
    graph = parse(SMALL).graph
    with futures.ThreadPoolExecutor(1) as executor:
        off, on = Switches.of({"sum_div": False}), Switches.of({"sum_div": True})
        session = SearchSession(graph, TARGETS["h200"], effort="quick", executor=executor, switches=off).start()
        fewer = session.result(60)
        assert "sum_div is switched off" in fewer.cut and not fewer.exhausted
        session.extend(switches=on)
        every = session.result(60)
        fresh = SearchSession(graph, TARGETS["h200"], effort="quick", executor=executor).start().result(60)
    assert "sum_div is switched off" not in every.cut
    assert {c.digest for c in fewer.candidates} < {c.digest for c in every.candidates}
    assert fresh.counts == every.counts and every.configurations_done == every.configurations_total


def test_the_public_names() -> None:
    session = superoptimize(SMALL, effort="quick", axioms={"sum_div": False}, prunings={"merging": False}, budget=0.05)
    assert not session.switches["sum_div"] and not session.switches["merging"] and session.switches["mul_div"]
    session.extend(axioms={"sum_div": True}, seconds=0.05)
    assert session.switches["sum_div"] and not session.switches["merging"]
    session.stop()
    session.wait(60)


def test_the_command_line_switches_and_says_why_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.mirage"
    file.write_text("X: f16[4, 64]\nm: f16[4, 1]\nY = sum(X, axis=-1, keepdims=True)\nreturn exp(Y) / m")
    switched_off = ["--without-axiom", "sum_div", "--without-axiom", "mul_div", "--without-pruning", "concat"]
    code = main(["superoptimize", str(file), "--effort", "quick", "--max-block-ops", "2", *switched_off])
    said = capsys.readouterr().out
    assert code == 0, "a library's kernels run all the same"
    assert "the operators as they stand, fused" in said, "nothing was found, and no kernel of a library runs either"
    assert "run without one.\nThe last values of the program (3 operators)" in said
    assert "not searched: mul_div is switched off" in said and "not searched: sum_div is switched off" in said
    assert "concat is switched off" not in said, "at this effort it is off anyway"


def test_the_command_line_knows_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["superoptimize", "file", "--without-axiom", "add_commutes"])
    assert "invalid choice: 'add_commutes'" in capsys.readouterr().err


def test_a_stored_session_goes_on_with_its_switches(tmp_path: Path) -> None:
    kept = tmp_path / "sessions.sqlite"
    session = superoptimize(SMALL, name="kept", effort="quick", axioms={"sum_div": False}, store=kept, max_block_ops=1)
    session.result(60)
    session.extend(prunings={"merging": False})
    session.result(60)
    again = resume("kept", store=kept)
    found = again.result(60)
    assert not again.switches["sum_div"] and not again.switches["merging"] and again.switches["mul_div"]
    assert found.configurations_kept == found.configurations_total and "sum_div is switched off" in found.cut
