"""Winners as files: exported, imported, verified again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import mirage_nb
from mirage_nb.errors import StoreError
from mirage_nb.library import CANDIDATES, export_winners, find_winners, import_winners
from mirage_nb.runtime.store import Store
from mirage_nb.search.session.ledger import Facts

TEXT = "X: f32[8, 16]\nreturn sum(exp(X), axis=1)"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with one session."""
    store = Store(tmp_path_factory.mktemp("library") / "own.sqlite")
    session = mirage_nb.superoptimize(TEXT, name="p", effort="quick", budget=3, store=store)
    session.result(120)
    return store


def test_a_session_goes_from_store_to_store(found: Store, tmp_path: Path) -> None:
    file, other = tmp_path / "winners", Store(tmp_path / "other.sqlite")
    assert export_winners(file, store=found) == ("p",)
    imported = import_winners(file, store=other)
    assert imported.taken == ("p",) and not imported.refused
    known = other.load("p").facts.known
    assert 0 < len(known) <= CANDIDATES
    searched = {c.digest for one in found.load("p").ended for c in one.findings.candidates}
    unsearched_too = {c.digest for c in found.load("p").facts.known}
    assert {c.digest for c in known} <= searched | unsearched_too
    assert all(c.time_us is None and not c.executed_on for c in known)
    again = mirage_nb.superoptimize(TEXT, name="p", effort="quick", budget=3, store=other)
    snapshot = again.result(120)
    assert snapshot.configurations_kept > 0 and again.best is not None
    assert import_winners(file, store=other).refused == {"p": "the store has a session of this name"}


def test_what_was_found_for_a_piece_is_no_winner(found: Store, tmp_path: Path) -> None:
    """It is faster than all that computes the program, and computes something else."""
    session, file = found.load("p"), tmp_path / "winners"
    one = next(one for one in session.ended if one.findings.candidates)
    graph = mirage_nb.parse("X: f32[8, 16]\nreturn exp(X)").graph
    piece = replace(one.findings.candidates[0], graph=graph, digest=graph.digest(), estimate_us=0.0)
    searched = replace(
        one,
        configuration=replace(one.configuration, piece=graph.digest()),
        findings=replace(one.findings, candidates=(piece,)),
    )
    own = Store(tmp_path / "own.sqlite")
    own.save("p", session.header, (*session.ended, searched), session.facts)
    assert export_winners(file, store=own) == ("p",)
    assert import_winners(file, store=Store(tmp_path / "other.sqlite")).taken == ("p",)


def test_what_no_trial_shows_is_proved(found: Store, tmp_path: Path) -> None:
    session, store = found.load("p"), Store(tmp_path / "own.sqlite")
    program, graph = (mirage_nb.parse(f"X: f32[8, 16]\nreturn {t}").graph for t in ("relu(2 * X)", "2 * relu(X)"))
    known = replace(session.facts.known[0], graph=graph, digest=graph.digest())
    store.save("p", replace(session.header, graph=program), (), Facts(known=(known,)))
    assert import_winners(store.path, store=Store(tmp_path / "other.sqlite")).taken == ("p",)


def test_programs_are_found_whatever_their_inputs_are_called(found: Store) -> None:
    renamed = mirage_nb.parse("A: f32[8, 16]\nreturn sum(exp(A), axis=1)")
    assert find_winners(renamed, "h200", store=found) == ("p",)
    assert find_winners(renamed, "a100", store=found) == ()
    assert find_winners(mirage_nb.parse(TEXT.replace("exp", "sqrt")), "h200", store=found) == ()


def test_a_forged_winner_is_refused(found: Store, tmp_path: Path) -> None:
    """Another program with the winner's muGraphs, and their verdicts, in its name."""
    session = found.load("p")
    forged = Store(tmp_path / "forged")
    wrong = mirage_nb.parse("X: f32[8, 16]\nreturn sum(square(X), axis=1)").graph
    known = tuple(c for one in session.ended for c in one.findings.candidates)[:2]
    forged.save("p", replace(session.header, graph=wrong), (), Facts(known=known))
    imported = import_winners(forged.path, store=Store(tmp_path / "other.sqlite"))
    assert not imported.taken and "is refuted here" in imported.refused["p"]


def test_a_winner_whose_comparison_hangs_on_rounding_is_refused(found: Store, tmp_path: Path) -> None:
    session, store = found.load("p"), Store(tmp_path / "own.sqlite")
    program = mirage_nb.parse("X: f32[8, 16]\nS = exp(sum(X, axis=1))\nreturn S == max(S)").graph
    torn = mirage_nb.parse(
        "X: f32[8, 16]\nS = exp(sum(X, axis=1))\nT = exp(sum(X[:, ::-1], axis=1))\nreturn S == max(T)"
    )
    for graph, taken in ((program, ("p",)), (torn.graph, ())):
        known = replace(session.facts.known[0], graph=graph, digest=graph.digest())
        store.save("p", replace(session.header, graph=program), (), Facts(known=(known,)))
        imported = import_winners(store.path, store=Store(tmp_path / f"{len(taken)}.sqlite"))
        assert imported.taken == taken and all("computed twice" in why for why in imported.refused.values())


def test_what_is_no_file_of_winners(found: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no file"):
        import_winners(tmp_path / "nothing", store=found)
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(StoreError):
        import_winners(tmp_path / "text", store=found)
    with pytest.raises(StoreError, match="there already"):
        export_winners(tmp_path / "text", store=found)
    with pytest.raises(StoreError, match="nothing to export"):
        export_winners(tmp_path / "new", store=Store(tmp_path / "empty.sqlite"))
