"""The `proved` rung: verdicts lifted by proofs, and the command line that prints, writes and checks them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_nb.__main__ import main
from mirage_nb.errors import ProofError, VerificationError
from mirage_nb.ir import DimAttrs, OpKind
from mirage_nb.ir.text import print_graph
from mirage_nb.verify.files import check_files, prove_files
from mirage_nb.verify.proof import Proof, check, lifted, prove, verify_and_prove, with_proof
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import VerdictKind
from tests import mugraphs
from tests.mugraphs import Kernel
from tests.verify.mutants import mutants


def test_a_field_verdict_is_lifted_and_keeps_what_was_tried():
    case = mugraphs.rmsnorm()
    tried = verify(case.program, case.candidate, seed=3)
    verdict, proof = verify_and_prove(case.program, case.candidate, seed=3)
    assert tried.kind is VerdictKind.FIELD and verdict.kind is VerdictKind.PROVED and verdict.accepted
    assert (verdict.trials, verdict.log2_bound, verdict.primes) == (tried.trials, tried.log2_bound, tried.primes)
    assert isinstance(proof, Proof)
    check(proof, case.program, case.candidate)
    assert f"in {len(proof.steps)} steps from {len(proof.axioms)} axioms" in verdict.note
    assert tried.note in verdict.note and "for all sizes" in str(verdict)


def test_what_is_not_proved_stays_what_it_was():
    """The root of x**2 + 2 x + 1, multiplied out, is that of (x + 1)**2, which no axiom takes for a square again."""
    k = Kernel(X=(4, 6))
    more = k.op(OpKind.ADD, k.op(OpKind.ADD, k.op(OpKind.SQR, 0), k.op(OpKind.ADD, 0, 0)), k.const(1))
    program = k.returning(k.op(OpKind.SQRT, more))
    k = Kernel(X=(4, 6))
    candidate = k.returning(k.op(OpKind.SQRT, k.op(OpKind.SQR, k.op(OpKind.ADD, 0, k.const(1)))))
    tried = verify(program, candidate)
    verdict, proof = with_proof(tried, program, candidate)
    assert proof is None and verdict.kind is tried.kind
    assert "not proved" in verdict.note and tried.note in verdict.note


def test_outside_of_lax_a_proof_decides():
    """A second exponential: no field trials, but a proof."""
    k = Kernel(X=(4, 6))
    twice = k.op(OpKind.EXP, k.op(OpKind.EXP, 0))
    program = k.returning(k.sum(k.sum(twice, 1), 0))
    k = Kernel(X=(4, 6))
    twice = k.op(OpKind.EXP, k.op(OpKind.EXP, 0))
    candidate = k.returning(k.sum(k.sum(twice, 0), 1))
    tried = verify(program, candidate)
    verdict, proof = with_proof(tried, program, candidate)
    assert proof is not None and verdict.kind is VerdictKind.PROVED and verdict.accepted


def test_a_maximum_of_relu_is_proved_by_monotony():
    def made(first: bool):
        k = Kernel(X=(4, 6))
        if first:
            return k.returning(k.op(OpKind.RELU, k.max(0, 1)))
        return k.returning(k.op(OpKind.MAX, k.op(OpKind.RELU, 0), attrs=DimAttrs(1)))

    verdict, proof = verify_and_prove(made(True), made(False))
    assert verdict.kind is VerdictKind.PROVED and proof is not None and "monotone" in proof.axioms


def test_a_muGraph_of_pieces_is_proved_whatever_outputs_its_small_pair_has():
    case = mugraphs.rmsnorm()
    tried = replace(verify(case.program, case.candidate), outputs=(0, 1, 2))
    verdict, proof = with_proof(tried, case.program, case.candidate)
    assert proof is not None and verdict.kind is VerdictKind.PROVED and verdict.outputs == (0,)


def test_a_refuted_muGraph_is_not_lifted():
    case = mugraphs.rmsnorm()
    proof = prove(case.program, case.candidate)
    assert isinstance(proof, Proof)
    refuted = next(
        verdict
        for _, mutant in mutants(case.candidate)
        if (verdict := verify(case.program, mutant)).kind is VerdictKind.REFUTED
    )
    with pytest.raises(VerificationError, match="refuted"):
        lifted(refuted, proof)
    assert with_proof(refuted, case.program, case.candidate) == (refuted, None)
    assert lifted(replace(refuted, kind=VerdictKind.FIELD), proof).kind is VerdictKind.PROVED


def test_outputs_are_paired_as_the_trials_found():
    k = Kernel(X=(4, 6), Y=(4, 6))
    added, timed = k.op(OpKind.ADD, 0, 1), k.op(OpKind.MUL, 0, 1)
    verdict, proof = verify_and_prove(k.returning(added, timed), k.returning(timed, added), permuted=True)
    assert proof is not None and verdict.outputs == proof.outputs == (1, 0)


def test_texts():
    case = mugraphs.attention_safe()
    program, mugraph = print_graph(case.program), print_graph(case.candidate)
    code, text, proof = prove_files(program, mugraph)
    assert code == 0 and text.startswith("proved") and proof is not None
    assert "for all sizes" in check_files(program, mugraph, proof.to_json())
    wrong = print_graph(mugraphs.attention_safe(2, 4, 4, 16).candidate)
    with pytest.raises(ProofError):
        check_files(program, wrong, proof.to_json())
    case = mugraphs.qknorm_wrong()
    code, text, proof = prove_files(print_graph(case.program), print_graph(case.candidate))
    assert code == 1 and text.startswith("refuted") and proof is None


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    case, other = mugraphs.rmsnorm(), mugraphs.rmsnorm(3, 12, 10, 5, 3)
    files = {}
    for name, graph in (("a", case.program), ("b", case.candidate), ("c", other.program), ("d", other.candidate)):
        files[name] = tmp_path / name
        files[name].write_text(print_graph(graph))
    proof = tmp_path / "proof.json"
    assert main(["verify", str(files["a"]), str(files["b"]), "--prove", "--proof", str(proof)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("proved") and "sum_partition" in said and f"wrote {proof}" in said
    assert json.loads(proof.read_text())["schema"] == "mirage proof"
    assert main(["verify", str(files["c"]), str(files["d"]), "--check", str(proof)]) == 0
    assert "for all sizes" in capsys.readouterr().out
    assert main(["verify", str(files["a"]), str(files["c"]), "--check", str(proof)]) == 2
    assert "error" in capsys.readouterr().err
    assert main(["verify", str(files["a"]), str(files["b"]), "--check", str(tmp_path / "none")]) == 2
