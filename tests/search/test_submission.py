"""A user's own muGraph: what is right gets in, in any form; everything else is refused with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_nb.errors import FormatError, GraphError, MirageError, VerificationError
from mirage_nb.ir.jsonform import print_json
from mirage_nb.ir.text import print_graph
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, configurations, instances, prepare
from mirage_nb.search.composition import own_operators, with_running_sums
from mirage_nb.search.session import submission
from mirage_nb.search.session.submission import submitted
from mirage_nb.targets import find_target
from mirage_nb.verify.trials import TRIALS, verify
from mirage_nb.verify.verdict import VerdictKind
from tests.search.explored import explored

H200 = find_target("h200")
TEXT = "X: f16[4, 64]\nE = exp(X)\nreturn E / sum(E, axis=-1, keepdims=True)"
PROGRAM = parse(TEXT).graph


def found() -> list[object]:
    """MuGraphs that the search finds."""
    prepared, effort = prepare(PROGRAM), EFFORTS["quick"]
    graphs: list[object] = []
    for configuration in configurations(prepared, effort):
        result = explored(prepared, configuration, effort)
        for structure in result.structures:
            graphs += instances(structure, prepared, H200, limit=2)
    return graphs


def test_what_the_search_finds_can_be_submitted_in_any_form() -> None:
    instances_ = found()
    assert instances_
    for instance in instances_:
        graph = instance.graph  # type: ignore[attr-defined]
        for text in (print_graph(graph), print_json(graph)):
            candidate = submitted(PROGRAM, text, H200)
            assert candidate.digest == graph.digest() and candidate.verdict.accepted
            assert candidate.configuration == "submitted" and candidate.operators > 0
            assert candidate.estimate_us == pytest.approx(instance.cost.us, rel=1e-12)  # type: ignore[attr-defined]


RUNNING = ["cumsum(X, axis=1)", "cumsum(X, axis=0)", "cumsum(X, axis=1) - X", "flip(cumsum(flip(X, 1), axis=1), 1)"]


@pytest.mark.parametrize("sums", RUNNING)
def test_running_sums_can_be_submitted_as_what_they_are_and_as_no_others(sums: str) -> None:
    programs = {said: parse(f"X: f32[6, 90]\nreturn {said}").graph for said in RUNNING}
    for said, program in programs.items():
        text = print_graph(with_running_sums(program)[0])
        assert "RunningSum" in text
        if said == sums:
            assert submitted(programs[sums], text, H200).verdict.accepted
        else:
            with pytest.raises(VerificationError):
                submitted(programs[sums], text, H200)


def test_a_program_is_a_mugraph_of_pre_defined_operators() -> None:
    candidate = submitted(PROGRAM, TEXT, H200)
    assert candidate.kernels == candidate.operators == 3
    assert candidate.estimate_us == own_operators(PROGRAM, H200).cost.us > H200.launch_us


def test_a_mugraph_itself_can_be_submitted_and_nothing_else() -> None:
    assert submitted(PROGRAM, PROGRAM, H200).digest == submitted(PROGRAM, TEXT, H200).digest
    for wrong in (3, None, b"mugraph 1", parse(TEXT)):
        with pytest.raises(FormatError, match="a muGraph or its text is wanted"):
            submitted(PROGRAM, wrong, H200)  # type: ignore[arg-type]


def test_outputs_are_put_in_order() -> None:
    two = parse("X: f16[8, 32]\nS = sum(X * X, axis=-1, keepdims=True)\nreturn X / sqrt(S), S")
    turned = "X: f16[8, 32]\nT = sum(X * X, axis=-1, keepdims=True)\nY = X / sqrt(T)\nreturn T, Y"
    candidate = submitted(two.graph, turned, H200)
    assert candidate.graph.output_types == two.graph.output_types
    assert candidate.graph.output_names == two.graph.output_names


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("mugraph 1\nnonsense", FormatError, "line 2"),
        ("{", FormatError, "JSON"),
        ("X: f16[4, 64]\nreturn Z", MirageError, "Z"),
        (TEXT.replace("exp(X)", "exp(2 * X)"), VerificationError, "does not compute"),
        (TEXT.replace("64", "32"), VerificationError, "inputs are not those"),
        (TEXT.replace("X", "V"), VerificationError, "X: f16"),
        (TEXT.replace("return", "R =") + "\nreturn R, E", VerificationError, "2 outputs, the program has 1"),
        ("X: f16[4, 64]\nE = exp(exp(X))\nreturn E", VerificationError, "does not|neither"),
    ],
)
def test_what_is_wrong_is_refused(text: str, kind: type[MirageError], message: str) -> None:
    with pytest.raises(kind) as told:
        submitted(PROGRAM, text, H200)
    assert any(part in str(told.value) for part in message.split("|"))


def test_what_does_not_fit_the_target_is_refused() -> None:
    whole = "X: f16[512, 4096]\nreturn exp(X) / 2"
    graph = parse(whole).graph
    prepared, effort = prepare(graph), EFFORTS["quick"]
    (configuration, *_) = configurations(prepared, effort)
    result = explored(prepared, configuration, effort)
    (best, *_) = instances(result.structures[0], prepared, H200, limit=1)
    text = print_graph(best.graph)
    assert submitted(graph, text, H200).digest == best.graph.digest()
    with pytest.raises(GraphError, match="shared"):
        submitted(graph, text, replace(H200, shared_per_block=64))


def test_of_what_is_proved_one_trial_at_its_shape_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of a loss of real size takes seconds."""
    large = parse("X: f16[256, 1024]\nY: f16[256, 1024]\nreturn mean((X - Y) ** 2)").graph
    other = "X: f16[256, 1024]\nY: f16[256, 1024]\nreturn mean((Y - X) ** 2)"
    found = submitted(large, other, H200).verdict
    assert (found.kind, found.trials) == (VerdictKind.PROVED, 1)
    monkeypatch.setattr(submission, "verify_and_prove", lambda *pair, **how: (verify(*pair, **how), None))
    found = submitted(large, other, H200).verdict
    assert (found.kind, found.trials) == (VerdictKind.FIELD, TRIALS)


def test_what_is_too_large_to_be_tried_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "MAX_ELEMENTS", 100)
    with pytest.raises(VerificationError, match="at most 100"):
        submitted(PROGRAM, TEXT, H200)
