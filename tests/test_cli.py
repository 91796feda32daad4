"""The command line: what it prints, what it writes, and an exit code and a message for every mistake."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mirage_nb.__main__ import main
from mirage_nb.arguments import parser
from mirage_nb.errors import OptionError
from mirage_nb.ir.text import parse_graph
from mirage_nb.pipeline import Limits
from mirage_nb.search.session.pool import Workers
from tests.clock import cpu_limit

ROOT = Path(__file__).resolve().parents[1]
SMALL = "B = 1\nX: f16[4*B, 64]\nW: f16[64, 96]\nY = rms_norm(X) @ W\nreturn Y\n"
LONG = (
    "Q: f16[2, 256, 64]\nK: f16[2, 64, 512]\nV: f16[2, 512, 64]\n"
    "E = exp(Q @ K)\nreturn (E / sum(E, axis=-1, keepdims=True)) @ V\n"
)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "small.mirage"
    path.write_text(SMALL)
    return path


def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "mirage_nb", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def test_superoptimize_prints_writes_and_emits(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, folder = tmp_path / "result.json", tmp_path / "emitted"
    options = ["--effort", "quick", "--set", "B=2", "--json", str(out), "--emit", str(folder)]
    code = main(["superoptimize", str(program), *options])
    captured = capsys.readouterr()
    assert code == 0 and captured.err == ""
    assert "small: finished" in captured.out and "executed on CPU edition" in captured.out
    data = json.loads(out.read_text())
    assert data["name"] == "small" and data["candidates"] and data["state"] == "finished"
    assert parse_graph(data["candidates"][0]["mugraph"]).inputs[0].type.shape == (8, 64)
    written = sorted(path.suffix for path in folder.iterdir())
    assert ".cu" in written and ".mugraph" in written
    assert all(f"wrote {path}" in captured.out for path in folder.iterdir())
    (mugraph,) = folder.glob("*.mugraph")
    program.write_text(SMALL.replace("B = 1", "B = 2"))
    assert main(["verify", str(program), str(mugraph)]) == 0
    assert capsys.readouterr().out.startswith("field, 4 trials")


def test_a_stored_session_is_not_searched_again(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirage_nb.runtime.passes.Passes.run", lambda self: None)
    options = ["superoptimize", str(program), "--effort", "quick", "--store", str(tmp_path / "kept")]
    assert main(options) == 0
    assert "configurations were in" not in capsys.readouterr().out
    assert main(options) == 0
    assert f"2 of 2 configurations were in {tmp_path / 'kept'}" in capsys.readouterr().out
    assert main([*options[:-1], str(tmp_path)]) == 0  # a folder: said, and done without
    assert "cannot be opened" in capsys.readouterr().out


def test_a_program_may_be_piped_in(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = os.dup(0)
    try:
        with program.open() as piped:
            os.dup2(piped.fileno(), 0)
        assert main(["verify", "-", str(program)]) == 0
    finally:
        os.dup2(held, 0)
        os.close(held)
    assert capsys.readouterr().out.startswith("field, ")


def test_workloads_have_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["superoptimize", "--workload", "lora", "--effort", "quick", "--quiet"]) == 0
    assert "lora: finished" in capsys.readouterr().out


def test_where_nothing_is_found_the_library_wins(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.write_text("Q: f16[2, 512, 64]\nreturn softmax(Q @ Q.transpose(-1, -2) / 8) @ Q * 2\n")
    assert main(["superoptimize", str(program), "--effort", "quick", "--max-block-ops", "1"]) == 0
    said = capsys.readouterr().out
    assert "No fused muGraph was accepted" in said and "the library won" in said and "baseline:" in said


MISTAKES: dict[str, tuple[list[str], str]] = {
    "nothing to do": ([], "either a FILE or --workload"),
    "both": (["{program}", "--workload", "rmsnorm"], "either a FILE or --workload"),
    "no such file": (["{folder}/nowhere.mirage"], "No such file"),
    "a directory": (["{folder}"], "Is a directory"),
    "no text": (["{binary}"], "cannot be read"),
    "no program": (["{folder}/bad.mirage"], "line 1"),
    "set of what is not there": (["{program}", "--set", "Z=3"], "no size Z"),
    "no seed": (["{program}", "--seed", "-1"], "a seed of -1"),
    "set to zero": (["{program}", "--set", "B=0"], "extents are at least 1"),
    "no operators": (["{program}", "--max-block-ops", "0"], "block operators"),
    "json into nowhere": (["{program}", "--json", "{folder}/no/where.json"], "cannot be written"),
    "json into a directory": (["{program}", "--json", "{folder}"], "cannot be written"),
    "an axiom both on and off": (["{program}", "--with-axiom", "mul_div", "--without-axiom", "mul_div"], "one of them"),
    "no workers": (["{program}", "--workers", "0"], "--workers 0"),
    "two places to run": (["{program}", "--workers", "2", "--dask", "tcp://127.0.0.1:1"], "--dask ADDRESS and"),
    "no address": (["{program}", "--dask", "there"], "--dask there: not an address"),
    "two stores": (["{program}", "--keep", "--store", "x"], "--store FILE and --keep"),
    "emit into a file": (["{program}", "--emit", "{program}"], "--emit"),
    "emit into nowhere": (["{program}", "--emit", "/proc/nowhere"], "--emit"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_before_anything_is_searched(
    name: str, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.mirage").write_text("this is no program\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    arguments, message = MISTAKES[name]
    filled = [a.format(program=program, folder=tmp_path, binary=binary) for a in arguments]
    with cpu_limit(1.0):
        assert main(["superoptimize", *filled]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and message in captured.err
    assert captured.out == "" and "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["superoptimise"], "invalid choice"),
        (["superoptimize", "--workload", "nope"], "invalid choice: 'nope'"),
        (["superoptimize", "--effort", "heroic"], "invalid choice: 'heroic'"),
        (["superoptimize", "--target", "abacus"], "invalid choice: 'abacus'"),
        (["superoptimize", "--budget", "soon"], "'soon' is no SECONDS"),
        (["superoptimize", "x", "--budget", "-1"], "a positive number"),
        (["superoptimize", "x", "--budget", "nan"], "'nan' is no SECONDS"),
        (["superoptimize", "x", "--set", "B"], "'B' is no NAME=NUMBER"),
        (["superoptimize", "x", "--set", "B=1.5"], "'B=1.5' is no NAME=NUMBER"),
        (["superoptimize", "x", "--set", "=3"], "'=3' is no NAME=NUMBER"),
        (["superoptimize", "x", "--set", "B=" + "9" * 5000], "is no NAME=NUMBER"),
        (["superoptimize", "x", "--symbolic", "B=few"], "'B=few' is no NAME"),
        (["superoptimize", "x", "--grid-dims", "4"], "0 to 3"),
        (["verify", "only one"], "RIGHT"),
        (["superoptimise"], "did you mean superoptimize?"),
        (["superoptimize", "--efort", "quick"], "did you mean --effort?"),
        (["superoptimize", "x", "--without-operator", "accum-concat"], "did you mean Accum-concat?"),
        (["superoptimize", "x", "--blocks", "9:2"], "'9:2' is no RANGE"),
        (["superoptimize", "x", "--loop", "0:2"], "'0:2' is no RANGE"),
    ],
)
def test_arguments_that_do_not_parse(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2 and message in capsys.readouterr().err


NASTY = (
    "", "0", "-1", "nan", "1e400", "few", "9:2", "::", "B=", "²", "9" * 5000, "--effort", "\udcff", "/proc/nowhere/x",
)  # fmt: skip


def options_of(command: str) -> list[str]:
    """The options of a command, as its help names them."""
    (commands,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return [name for name in commands.choices[command]._option_string_actions if name.startswith("--")]


@pytest.mark.parametrize("command", ["superoptimize", "resume", "stored", "verify"])
def test_no_value_of_any_option_is_answered_with_a_traceback(
    command: str, program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(program.parent)  # some of these are names of folders that can be made

    def refuse(*_: object, **__: object) -> None:
        raise OptionError("so far so good", hint="only what comes before is looked at")

    for name in ("superoptimize", "resume", "verify_files", "prove_files"):
        monkeypatch.setattr(f"mirage_nb.__main__.{name}", refuse)
    given = {"superoptimize": [program], "verify": [program, program], "resume": ["x"]}.get(command, [])
    for option in options_of(command):
        for value in NASTY:
            try:
                code = main([command, *map(str, given), option, value])
            except SystemExit as left:
                code = int(left.code or 0)
            captured = capsys.readouterr()
            assert code in (0, 2), (option, value)
            if code == 2:
                assert captured.err.startswith("error: ") and "hint: " in captured.err, (option, value)
                assert len(captured.err) < 1000, (option, value)


def test_every_option_of_a_search_reaches_it(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: dict[str, object] = {}

    def take(_: object, **options: object) -> None:
        reached.update(options)
        raise OptionError("taken")

    monkeypatch.setattr("mirage_nb.__main__.superoptimize", take)
    line = (
        "--effort quick --budget 5 --max-block-ops 4 --target a100 --seed 7 --grid-dims 2 --blocks :132 --loop 2:64 "
        "--without-operator Accum-concat --without-operator EwDiv --with-axiom sum_div --without-axiom mul_div "
        "--without-pruning oracle --name mine --fresh --store kept --workers 3 --tolerance 0.5 "
        "--precision 3xtf32"
    )
    main(["superoptimize", str(program), *line.split()])
    assert isinstance(reached.pop("executor"), Workers)
    assert reached == {
        "effort": "quick", "budget": 5.0, "max_block_ops": 4, "target": "a100", "seed": 7, "name": "mine",
        "limits": Limits(2, (1, 132), (2, 64), frozenset({"Accum concat", "EwDiv"})),
        "axioms": {"sum_div": True, "mul_div": False}, "prunings": {"oracle": False}, "fresh": True, "store": "kept",
        "tolerance": 0.5, "precision": "3xtf32",
    }  # fmt: skip
    reached.clear()
    main(["superoptimize", str(program)])
    assert "limits" not in reached and reached["store"] is None and reached["executor"] is None


def test_a_kept_session_is_listed_and_gone_on_with(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirage_nb.runtime.passes.Passes.run", lambda self: None)
    assert main(["stored"]) == 0
    assert "nothing is stored" in capsys.readouterr().out
    assert main(["superoptimize", str(program), "--effort", "quick", "--keep", "--name", "mine"]) == 0
    found = capsys.readouterr().out
    assert main(["stored"]) == 0
    assert capsys.readouterr().out == "mine\n"
    assert main(["resume", "mine", "--workers", "1"]) == 0
    again = capsys.readouterr().out
    assert "2 of 2 configurations were in" in again
    table = [line for line in found.splitlines() if ", 4 trials" in line]
    assert table and all(line in again for line in table)
    assert main(["resume", "yours"]) == 2
    assert "it has mine" in capsys.readouterr().err


def test_a_cluster_that_is_not_there(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("mirage_nb.__main__.DASK_SECONDS", 0.2)
    with socket.socket() as nobody:  # bound, but it does not listen
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        assert main(["superoptimize", str(program), "--dask", address]) == 2
    assert f"--dask {address}: no scheduler answers there" in capsys.readouterr().err


def test_a_file_with_a_mistake_is_named(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.mirage"
    bad.write_text("X: f16[4]\nreturn foo(X)\n")
    assert main(["verify", str(program), str(bad)]) == 2
    assert f"error: {bad}: there is no function foo" in capsys.readouterr().err


def test_remarks_on_the_program_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.mirage"
    path.write_text("X: f16[4, 4]\nY = X + X\nreturn X * X\n")
    main(["superoptimize", str(path), "--workers", "0"])
    assert "note: " in capsys.readouterr().err


def test_a_full_disk_behind_the_output() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "mirage_nb", "doctor"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ") and "Traceback" not in ended.stderr and "Exception" not in ended.stderr


def test_a_bad_setting_is_a_mistake_too(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIRAGE_NB_WORKERS", "many")
    assert main(["superoptimize", str(program)]) == 2
    assert "MIRAGE_NB_WORKERS is 'many'" in capsys.readouterr().err


def test_a_full_disk_is_told_after_the_result(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["superoptimize", str(program), "--effort", "quick", "--json", "/dev/full"]) == 2
    captured = capsys.readouterr()
    assert "small: finished" in captured.out and "/dev/full cannot be written" in captured.err


def test_verify_tells_equal_from_different(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {
        "a": "X: f16[8, 8]\nY: f16[8, 8]\nreturn X @ Y + X",
        "same": "X: f16[8, 8]\nY: f16[8, 8]\nreturn X + X @ Y",
        "other": "X: f16[8, 8]\nY: f16[8, 8]\nreturn X @ Y + Y",
        "unrelated": "Z: f16[8, 8]\nreturn Z",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    path = {name: str(tmp_path / name) for name in texts}
    assert main(["verify", path["a"], path["same"]]) == 0
    assert "field, 4 trials, error probability at most 2^-" in capsys.readouterr().out
    assert main(["verify", path["a"], path["same"], "--final"]) == 0
    assert main(["verify", path["a"], path["other"]]) == 1
    assert "refuted" in capsys.readouterr().out
    assert main(["verify", path["a"], path["unrelated"]]) == 2
    assert "input" in capsys.readouterr().err
    for arguments, message in (
        ([path["a"], str(tmp_path / "nowhere")], "cannot be read"),
        ([path["a"], str(tmp_path)], "cannot be read"),
        ([path["a"], path["same"], "--trials", "0"], "0 trials"),
    ):
        assert main(["verify", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_doctor_always_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MIRAGE_NB_CXX", "/nonexistent")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "numpy" in out and "apt-get install g++" in out


def test_benchmarks_need_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_nb.bench.machine.attached_gpu", lambda: None)
    assert main(["bench", "kernels"]) == 2
    assert "needs a GPU" in capsys.readouterr().err
    assert main(["bench", "kernels", "--workloads", "nope"]) == 2
    assert "unknown workload 'nope'" in capsys.readouterr().err
    assert main(["bench", "kernels", "--set", "B=x"]) == 2
    assert "not a list of batch sizes" in capsys.readouterr().err


def test_ctrl_c_prints_what_was_found(tmp_path: Path) -> None:
    path, out = tmp_path / "long.mirage", tmp_path / "result.json"
    path.write_text(LONG)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child of a background job would ignore it
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    running = start("superoptimize", path, "--json", out, start_new_session=True, env=environ)
    signal.signal(signal.SIGINT, before)
    while not any("digest" in post.read_text() for post in tmp_path.glob("mirage-nb-*/*.taken")):
        assert running.poll() is None  # until workers have found something
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)  # what a terminal does: everybody in the foreground hears it
    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130 and stderr == ""
    assert "long: stopped" in stdout and "not searched: stopped by the user" in stdout
    data = json.loads(out.read_text())
    assert data["state"] == "stopped" and data["candidates"] and not data["exhausted"]


def test_a_reader_that_has_seen_enough(program: Path) -> None:
    running = start("superoptimize", program, "--effort", "quick")
    assert running.stdout is not None and running.stderr is not None
    running.stdout.close()
    assert "Traceback" not in running.stderr.read()
    assert running.wait(60) == 0
    running.stderr.close()
