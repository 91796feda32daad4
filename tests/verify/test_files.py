"""Two texts against each other: forms, exit codes, reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_nb.__main__ import main
from mirage_nb.errors import FormatError, MirageError, ProofError, VerificationError
from mirage_nb.interp.instance import CPU, Device
from mirage_nb.ir import OpKind
from mirage_nb.ir.jsonform import print_json
from mirage_nb.ir.text import print_graph
from mirage_nb.verify.files import check_files, prove_files, read_graph, verify_files
from mirage_nb.verify.verdict import Verdict, VerdictKind
from tests.mugraphs import Kernel, lora, qknorm_wrong, rmsnorm

PROGRAM = """
X: f16[2, 8]
W: f16[8, 8]
Y = X / sqrt(mean(X * X, -1, keepdims=True))
return Y @ W
"""


def test_all_forms_are_read() -> None:
    graph = rmsnorm().candidate
    assert read_graph(print_graph(graph)) == read_graph("\n" + print_json(graph)) == graph


def test_a_program_and_its_mugraph() -> None:
    code, text = verify_files(PROGRAM, print_graph(rmsnorm().candidate))
    assert code == 0
    assert text.startswith("field, 4 trials") and "checked at X [2, 8], W [8, 8]" in text


def test_a_wrong_one_shows_where() -> None:
    case = qknorm_wrong()
    code, text = verify_files(print_graph(case.program), print_json(case.candidate), seed=4)
    assert code == 1
    assert "refuted" in text and "output 0 at [0, 0, 0]" in text and "seed 4" in text


def test_undecided_has_its_own_code() -> None:
    k = Kernel(X=(2,))
    k.op(OpKind.EXP, k.op(OpKind.EXP, 0))
    text = print_graph(k.returning(2))
    assert verify_files(text, text)[0] == 2


def test_reordered_outputs_are_shown() -> None:
    k = Kernel(X=(2, 2), Y=(2, 2))
    graph = k.returning(0, 1)
    code, text = verify_files(print_graph(graph), print_graph(graph.returning((1, 0))), permuted=True)
    assert code == 0 and "0 is 1, 1 is 0" in text


@pytest.mark.parametrize("text", ["", "mugraph 9", "{", "Y = X +", "\0"])
def test_what_cannot_be_read_is_a_mistake_of_the_user(text: str) -> None:
    with pytest.raises(MirageError):
        verify_files(text, PROGRAM)


def test_errors_keep_their_kind() -> None:
    with pytest.raises(FormatError):
        read_graph("mugraph 1\ninput")
    with pytest.raises(VerificationError):
        verify_files(PROGRAM, print_graph(lora().program))


def test_a_bound_is_never_rounded_in_its_favour() -> None:
    assert "2^-73" in str(Verdict(VerdictKind.FIELD, trials=4, log2_bound=-73.6))


def test_a_file_without_an_end_is_a_mistake_of_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "/dev/zero", "/dev/zero"]) == 2
    assert "/dev/zero has more than" in capsys.readouterr().err


def test_a_device_is_asked_for_large_graphs_only() -> None:
    asked: list[str] = []

    def device() -> Device:
        asked.append("a device")
        return CPU

    small, large = (f"X: f16[{n}, 256]\nreturn X * X + X\n" for n in (4, 512))
    for text in (small, large):
        for run in (verify_files, prove_files):
            assert run(text, text, device=device)[0] == 0
    assert len(asked) == 2


def test_the_command_uses_a_gpu_for_the_final_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(array: object) -> object:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr("mirage_nb.__main__.field_device", lambda: Device("GPU", failing, failing))
    file = tmp_path / "a.mirage"
    file.write_text("X: f16[512, 256]\nreturn X * X + X\n")
    assert main(["verify", str(file), str(file)]) == 0
    assert "GPU" not in capsys.readouterr().out
    assert main(["verify", str(file), str(file), "--final"]) == 0
    assert "on the CPU, as the GPU failed (RuntimeError: no kernel image is available)" in capsys.readouterr().out


def test_a_proof_that_pairs_outputs_in_another_order_is_refused_unless_that_is_allowed() -> None:
    head = "X: f32[4, 6]\nY: f32[4, 6]\n"
    left, right = head + "A = X + Y\nB = X - Y\nreturn A, B", head + "C = X - Y\nD = Y + X\nreturn C, D"
    _, _, proof = prove_files(left, right, permuted=True)
    assert proof is not None and proof.outputs == (1, 0)
    with pytest.raises(ProofError, match="in another order") as refused:
        check_files(left, right, proof.to_json())
    assert "--permute" in refused.value.hint
    assert "outputs of the first file in the second: 0 is 1, 1 is 0" in check_files(
        left, right, proof.to_json(), permuted=True
    )
    crossed = head + "B = X + Y\nA = X - Y\nreturn B, A"
    _, _, proof = prove_files(left, crossed, permuted=True)
    assert proof is not None
    with pytest.raises(ProofError, match="is output 0 of the program and output 1"):
        check_files(left, crossed, proof.to_json())
