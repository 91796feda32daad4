"""The CPU edition: every device function against NumPy in every mode; wrong calls; building and keeping."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mirage_nb.errors import CompileError, LaunchError, MissingPartError
from mirage_nb.runtime.execution.artifacts import CPU_FOLDER
from mirage_nb.runtime.execution.emulate import ENGINE, CpuModule
from mirage_nb.runtime.execution.tensor_map import TensorMap
from mirage_nb.settings import Settings, read_settings
from tests.emulation import CASES, HEAD, MODES, floats, launch, run
from tests.launches import compare
from tests.sessions import until

RING = CASES["matmul by TMA"]


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_numpy_in_every_mode(name: str) -> None:
    case = CASES[name]
    plain, checked = (CpuModule(case.source, case.options, checked=c) for c in (False, True))
    for deferred, order in MODES:
        for out, found in launch(plain, case, deferred=deferred, order=order):
            compare(out, found)
    for deferred in (False, True):
        for out, found in launch(checked, case, deferred=deferred, order=3):
            compare(out, found)


TYPES = """(float* y, const f16* h, bf16* b, int i, uint8_t u, float f,
const __grid_constant__ TensorMap m) { y[0] = i + u + f; }"""


def good() -> list[Any]:
    map_ = TensorMap(np.zeros((8, 64), np.float16), (8, 64))
    return [floats(), np.zeros(8, np.float16), np.zeros(8, np.uint16), -7, 200, 0.5, map_]


def test_arguments_arrive_by_their_types() -> None:
    args = good()
    run(TYPES, args)
    assert args[0][0] == -7 + 200 + 0.5


@pytest.mark.parametrize(
    ("at", "value", "pattern"),
    [
        (0, np.zeros(4), r"argument 0 is an array of float64, the kernel takes float\*"),
        (0, 1.0, "argument 0 is a float, not an array"),
        (1, np.zeros(4, np.uint16), "argument 1 is an array of uint16"),
        (2, np.zeros(4, np.float32), "argument 2 is an array of float32"),
        (0, np.zeros((4, 4), np.float32)[:, 1], "argument 0 is not C-contiguous"),
        (3, 2**31, "argument 3 is 2147483648"),
        (3, 1.5, "argument 3 is 1.5, which int32_t cannot hold"),
        (3, "seven", "argument 3 is 'seven'"),
        (4, -1, "argument 4 is -1"),
        (5, np.zeros(3), "argument 5 cannot be passed as float"),
        (6, np.zeros(3), "argument 6 is a ndarray, not a TensorMap"),
        (6, TensorMap(np.zeros((8, 60), np.float16), (8, 64)), "rows of 120 bytes cannot be mapped"),
        (6, TensorMap(np.zeros((8, 64), np.float16), (8, 32)), "a box row of 64 bytes with a swizzle of 128"),
        (6, TensorMap(np.zeros((8, 64), np.float16), (8, 64), 100), "a swizzle of 100 bytes"),
        (6, TensorMap(np.zeros((999, 64), np.float16), (300, 64)), "1 to 256 elements each way"),
        (6, TensorMap(np.zeros(64, np.float16), (64,)), "2 or 3 dimensions"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(at: int, value: Any, pattern: str) -> None:
    args = good()
    args[at] = value
    with pytest.raises(LaunchError, match=pattern):
        run(TYPES, args)


def test_wrong_launches_are_named() -> None:
    module = CpuModule(f'{HEAD}extern "C" __global__ void __launch_bounds__(32 * (1 + 1)) k(float* y) {{}}')
    y = floats()
    frozen = y.copy()
    frozen.setflags(write=False)
    for pattern, call in {
        "no kernel 'j' in this module\n  hint: it has k": lambda: module.launch("j", (1, 1, 1), (32, 1, 1), 0, [y]),
        "cannot launch grid": lambda: module.launch("k", (1, 1, 1), (1025, 1, 1), 0, [y]),
        "cannot launch grid .0": lambda: module.launch("k", (0, 1, 1), (32, 1, 1), 0, [y]),
        "2 arguments for 1 parameters": lambda: module.launch("k", (1, 1, 1), (32, 1, 1), 0, [y, y]),
        "argument 0 is read-only": lambda: module.launch("k", (1, 1, 1), (32, 1, 1), 0, [frozen]),
        "unknown order 'up'": lambda: module.launch("k", (1, 1, 1), (32, 1, 1), 0, [y], order="up"),
        "needs 300000 bytes of shared memory": lambda: module.launch("k", (1, 1, 1), (32, 1, 1), 300000, [y]),
    }.items():
        with pytest.raises(LaunchError, match=pattern):
            call()


def test_the_shared_memory_of_a_block_is_counted_as_the_gpu_counts_it() -> None:
    body = "(float* y) {\n MIRAGE_SHARED(float, one, 1);\n MIRAGE_DYNAMIC_SHARED(d);\n d[0] = one[0] = 0;\n}"
    module = CpuModule(f'{HEAD}extern "C" __global__ void k{body}')
    module.launch("k", (1, 1, 1), (1, 1, 1), 3072, [floats()], shared_limit=4096)
    with pytest.raises(LaunchError, match="needs 4097 bytes of shared memory, more than the 4096 there are"):
        module.launch("k", (1, 1, 1), (1, 1, 1), 3073, [floats()], shared_limit=4096)


@pytest.mark.parametrize("folder", ["/nowhere", "/proc"])
def test_arrays_pass_through_the_disk_where_memory_has_no_folder(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage_nb.runtime.execution.emulate.MEMORY_FOLDER", folder)
    y = floats()
    run("(float* y) {\n y[threadIdx.x] = 2;\n}", [y])
    assert y[31] == 2


def test_arguments_that_share_memory_share_it_in_the_kernel() -> None:
    x = np.arange(32, dtype=np.float32)
    run("(const float* x, float* y) {\n y[threadIdx.x] += 1;\n y[threadIdx.x] += x[threadIdx.x];\n}", [x, x])
    np.testing.assert_array_equal(x, 2 * (np.arange(32) + 1))
    with pytest.raises(LaunchError, match="argument 0 and argument 1 overlap in part"):
        run("(const float* x, float* y) {}", [x[:20], x[10:]])


def test_the_text_decides_the_kernels_and_their_parameters() -> None:
    module = CpuModule(f'{HEAD}extern "C" __global__ void k{TYPES}')
    shown = [str(p) for p in module.kernels["k"]]
    assert shown == ["float*", "const f16*", "bf16*", "int32_t", "uint8_t", "float", "TensorMap"]


def test_compile_errors_show_the_line_of_the_kernel() -> None:
    with pytest.raises(CompileError, match=r"(?s)rejects the kernel.*kernel.cu:3:\d+: error: .*undefined_name"):
        CpuModule(f'{HEAD}extern "C" __global__ void k(float* y) {{ y[0] = undefined_name; }}')
    with pytest.raises(CompileError, match="no kernel"):
        CpuModule(HEAD)


def test_a_missing_compiler_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(MissingPartError, match=r"no C\+\+ compiler: 'g\+\+-none'(?s:.*)apt-get install g\+\+"):
        CpuModule(HEAD, settings=Settings(tmp_path, 1, "g++-none"))


EMPTY = f'{HEAD}extern "C" __global__ void k(float* y) {{}}'
BROKEN = {
    "is killed": ("kill -SEGV $$", "ended with signal 11"),
    "speaks in bytes": ("printf '\\377\\376 error: what\\n' >&2; exit 1", "rejects the runner"),
    "makes nothing": ("exit 0", "made nothing of the runner"),
    "makes something else": ('for at; do case $was in -o) echo no > "$at";; esac; was=$at; done', "cannot be built"),
    "is gone": ('rm "$0"', "made nothing of the runner"),
}


def compiler_that(does: str, folder: Path) -> Settings:
    """With a home of its own, and a compiler that has a version, and does something else than compile."""
    script = folder / "cxx"
    script.write_text(f'#!/bin/sh\ncase "$1" in --version) printf "\\377 1.0\\n"; exit 0;; esac\n{does}\n')
    script.chmod(0o755)
    return Settings(folder, 1, str(script))


@pytest.mark.parametrize("how", BROKEN)
def test_whatever_a_compiler_does_it_is_told_as_what_it_is(how: str, tmp_path: Path) -> None:
    does, told = BROKEN[how]
    with pytest.raises(CompileError, match=told):
        CpuModule(EMPTY, settings=compiler_that(does, tmp_path))


def test_nobody_waits_longer_for_the_runner_than_there_is_time_and_it_is_built_all_the_same(tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = f"until [ -e {go} ]; do sleep 0.02; done"
    settings = compiler_that(f"{waits}\n{BROKEN['makes something else'][0]}", tmp_path)
    with pytest.raises(CompileError, match="still being built"):
        CpuModule(EMPTY, settings=settings, seconds=0.1)
    kept = settings.home / CPU_FOLDER
    assert not [*kept.glob("*.runner")]
    go.touch()
    assert until(lambda: [*kept.glob("*.runner")])


def test_without_room_for_temporary_files_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(MissingPartError, match=r"no folder for temporary files(?s:.*)TMPDIR"):
        CpuModule(EMPTY, settings=Settings(tmp_path, 1, read_settings().cxx))


def counting_compiler(folder: Path, before: str = "") -> tuple[Settings, Path]:
    """A compiler that notes each of its runs and leaves out what takes long, and a home of its own; without other
    options, the runner is a copy of the one that is there."""
    notes, script = folder / "notes", folder / "cxx"
    given = f'for at; do case $was in -o) cp {CpuModule(EMPTY)._runner} "$at"; exit;; esac; was=$at; done'
    runner = "" if before else f'case "$*" in *{ENGINE}*) {given};; esac\n'
    compiles = f'exec {read_settings().cxx} {before} "$@" -O0 2>> {notes}'
    script.write_text(f'#!/bin/sh\necho "$@" >> {notes}\n{runner}{compiles}\n')
    script.chmod(0o755)
    return Settings(folder / "home", 1, str(script)), notes


def builds(notes: Path) -> int:
    return sum(" -o " in line for line in notes.read_text().splitlines())


def test_what_was_built_is_kept_and_damage_is_mended(tmp_path: Path) -> None:
    settings, notes = counting_compiler(tmp_path)
    source = f'{HEAD}extern "C" __global__ void k(float* y) {{ y[threadIdx.x] = TEST_VALUE; }}'

    def value(number: int) -> float:
        y = floats()
        module = CpuModule(source, (f"-DTEST_VALUE={number}",), settings=settings)
        module.launch("k", (1, 1, 1), (32, 1, 1), 0, [y])
        return float(y[0])

    assert value(1) == 1 and builds(notes) == 3  # the runner, the header and the kernel
    assert value(1) == 1 and builds(notes) == 3
    assert value(2) == 2 and builds(notes) == 4
    for number, file in enumerate(sorted((settings.home / "cpu").iterdir())):
        file.write_bytes(file.read_bytes()[:100] if number % 2 else b"")
    assert value(1) == 1 and builds(notes) == 7


def test_the_device_library_is_read_once_and_again_where_options_do_not_fit(tmp_path: Path) -> None:
    settings, notes = counting_compiler(tmp_path)

    def precompiled(*options: str) -> list[str]:
        before = len(notes.read_text()) if notes.exists() else 0
        CpuModule(EMPTY, ("-H", *options), settings=settings)
        return re.findall(r"(?m)^([!x]) .*\.gch$", notes.read_text()[before:])

    assert precompiled() == precompiled("-DANOTHER=1") == ["!"]
    assert precompiled("-fexceptions") == ["x"]


def test_a_home_that_cannot_be_written_to_is_no_obstacle(own_folder: Path, tmp_path: Path) -> None:
    settings, _ = counting_compiler(tmp_path)
    settings.home.write_text("a file, not a folder")
    y = floats()
    module = CpuModule(f'{HEAD}extern "C" __global__ void k(float* y) {{ y[0] = 3; }}', settings=settings)
    module.launch("k", (1, 1, 1), (32, 1, 1), 0, [y])
    assert y[0] == 3


def test_the_portable_fibers_run_the_same_kernels(tmp_path: Path) -> None:
    settings, notes = counting_compiler(tmp_path, "-DMIRAGE_FIBER_UCONTEXT")
    for case in (RING, CASES["reductions"]):
        module = CpuModule(case.source, case.options, settings=settings)
        for out, found in launch(module, case, deferred=True, order="reversed"):
            compare(out, found)
    assert builds(notes) == 4
