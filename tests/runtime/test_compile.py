"""Compiling to cubins: resources, errors, the cache and its failures."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from mirage_nb.errors import CompileError, MissingPartError
from mirage_nb.runtime.execution import compile as compile_module
from mirage_nb.runtime.execution.artifacts import ArtifactCache, digest
from mirage_nb.runtime.execution.compile import ResourceUsage, compile_cubin, likely_options, read_usage, relevant
from mirage_nb.settings import Settings
from mirage_nb.targets import TARGETS
from tests.codegen.mugraphs import attention, linear
from tests.shares import crossed

SOURCE = """#include "mirage_device.cuh"
using namespace mirage;
extern "C" __global__ void fill(float* y) { y[threadIdx.x] = NUMBER; }
extern "C" __global__ void turn(float* y) {
  MIRAGE_SHARED(float, tile, 64);
  tile[threadIdx.x] = y[threadIdx.x];
  block_sync();
  y[threadIdx.x] = tile[63 - threadIdx.x];
}
"""
ONE = ("-DNUMBER=1",)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(tmp_path / "home", 1, "g++")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The architectures for which NVRTC really ran."""
    runs: list[str] = []
    original = compile_module._compile

    def counted(nvrtc: Any, source: str, arch: str, options: tuple[str, ...]) -> tuple[bytes, str]:
        runs.append(arch)
        return original(nvrtc, source, arch, options)

    monkeypatch.setattr(compile_module, "_compile", counted)
    return runs


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_cubin_says_what_its_kernels_take(arch: str, settings: Settings) -> None:
    cubin = compile_cubin(SOURCE, arch, ONE, settings=settings)
    assert cubin.data.startswith(b"\x7fELF") and cubin.arch == arch and cubin.note == ""
    assert cubin.path is not None and cubin.path.read_bytes() == cubin.data
    assert set(cubin.usage) == {"fill", "turn"}
    assert cubin.usage["turn"].static_shared_bytes == 256
    assert cubin.usage["fill"].static_shared_bytes == 0
    assert all(0 < usage.registers < 40 for usage in cubin.usage.values())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_cubin_ends_where_its_tables_say(arch: str, settings: Settings) -> None:
    """CuPy gives it without its last byte: what was emitted into a file was no ELF file to any tool."""
    data = compile_cubin(SOURCE, arch, ONE, settings=settings).data
    tables = struct.unpack_from("<QQ", data, 32)  # of program headers and of section headers: where, size of one, count
    sizes = struct.unpack_from("<HHHH", data, 54)
    ends = [tables[0] + sizes[0] * sizes[1], tables[1] + sizes[2] * sizes[3]]
    assert max(ends) <= len(data) < max(ends) + 8


def test_spills_are_reported(settings: Settings) -> None:
    body = "float v[64]; for (int i = 0; i < 64; i++) v[i] = y[i];"
    body += "for (int i = 0; i < 64; i++) y[i] = v[i % N] * v[i];"
    text = f'extern "C" __global__ void k(float* y, int N) {{ {body} }}'
    cubin = compile_cubin(text, "sm_90a", ("--maxrregcount=24",), settings=settings)
    assert cubin.usage["k"].stack_bytes > 0 and cubin.usage["k"].registers <= 24


def test_the_log_of_ptxas_is_read_in_both_its_forms() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Function properties for a
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 90 registers, used 1 barriers, 2048 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 3.1 ms
ptxas info    : Compiling entry function 'b' for 'sm_90a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 7 registers
"""
    assert read_usage(log) == {"a": ResourceUsage(90, 12, 16, 8, 2048), "b": ResourceUsage(7, 0, 0, 0, 0)}


def test_what_was_compiled_is_kept(settings: Settings, compiled: list[str]) -> None:
    first = compile_cubin(SOURCE, "sm_90a", ONE, settings=settings)
    assert compile_cubin(SOURCE, "sm_90a", ONE, settings=settings) == first
    assert compiled == ["sm_90a"]
    compile_cubin(SOURCE, "sm_80", ONE, settings=settings)
    compile_cubin(SOURCE, "sm_90a", ("-DNUMBER=2",), settings=settings)
    compile_cubin(SOURCE + "\n", "sm_90a", ONE, settings=settings)
    assert compiled == ["sm_90a", "sm_80", "sm_90a", "sm_90a"]


@crossed({
    "damage": ["cut", "empty", "flipped", "gone", "foreign"],
    "suffix": [".cubin", ".json"],
})
def test_a_damaged_entry_is_made_again(settings: Settings, compiled: list[str], suffix: str, damage: str) -> None:
    first = compile_cubin(SOURCE, "sm_90a", ONE, settings=settings)
    assert first.path is not None
    file = first.path.with_suffix(suffix)
    data = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    elif damage == "flipped":
        data[12] ^= 1
        file.write_bytes(data)
    else:
        file.write_bytes({"cut": data[:-10], "empty": b"", "foreign": b"[1]"}[damage])
    again = compile_cubin(SOURCE, "sm_90a", ONE, settings=settings)
    assert again.usage == first.usage and again.data.startswith(b"\x7fELF")
    assert compiled == ["sm_90a", "sm_90a"]
    compile_cubin(SOURCE, "sm_90a", ONE, settings=settings)
    assert len(compiled) == 2  # the entry is whole again


def test_without_a_place_to_keep_it_the_cubin_is_still_made(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file, not a folder")
    cubin = compile_cubin(SOURCE, "sm_90a", ONE, settings=Settings(tmp_path / "home", 1, "g++"))
    assert cubin.data.startswith(b"\x7fELF") and cubin.path is None
    assert cubin.note.startswith("nothing can be kept in ") and "irectory" in cubin.note


def test_a_full_disk_leaves_no_half_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ArtifactCache(tmp_path)

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        cache.store("key", ".cubin", b"data", {})
    assert list(tmp_path.iterdir()) == []


def test_errors_show_the_lines_that_matter(settings: Settings) -> None:
    bad = SOURCE.replace("y[threadIdx.x] = NUMBER", "y[threadIdx.x] = missing")
    with pytest.raises(CompileError) as caught:
        compile_cubin(bad, "sm_90a", settings=settings)
    assert 'kernel.cu(3): error: identifier "missing" is undefined' in str(caught.value)
    too_much = 'extern "C" __global__ void k(int* p) { __shared__ int a[100000]; a[p[0]] = 1; p[1] = a[p[2]]; }'
    with pytest.raises(CompileError, match="uses too much shared data"):
        compile_cubin(too_much, "sm_90a", settings=settings)
    with pytest.raises(CompileError, match="invalid value for --gpu-architecture"):
        compile_cubin(SOURCE, "sm_999", ONE, settings=settings)
    with pytest.raises(CompileError, match="unrecognized option --nonsense"):
        compile_cubin(SOURCE, "sm_90a", ("--nonsense",), settings=settings)


def test_a_long_log_is_cut() -> None:
    log = "\n".join(["a warning"] * 5 + [f"k.cu({n}): error: e{n}" for n in range(40)])
    shown = relevant(log).splitlines()
    assert shown[0] == "  k.cu(0): error: e0" and shown[-1] == "  ... 28 more lines" and len(shown) == 13


def test_without_nvrtc_the_error_says_how_to_get_it(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(MissingPartError, match=r"pip install 'mirage-nb\[nvrtc\]'"):
        compile_cubin(SOURCE, "sm_90a", settings=settings)


def test_a_broken_nvrtc_is_a_missing_part(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def getVersion() -> tuple[int, int]:
            raise RuntimeError("CuPy failed to load libnvrtc.so.13: no such file")

    cupy_cuda = pytest.importorskip("cupy.cuda")
    monkeypatch.setattr(cupy_cuda, "nvrtc", Broken)
    with pytest.raises(MissingPartError, match=r"failed to load libnvrtc\.so\.13(?s:.*)pip install"):
        compile_cubin(SOURCE, "sm_90a", settings=settings)


def test_what_is_estimated_fastest_is_emitted_first() -> None:
    """64 rows of attention are multiplied by one group of four warps, 32 by single ones; products follow their plan."""
    wide, narrow = (attention(16, 256, 4096, row_blocks=blocks, loop=16) for blocks in (4, 8))
    chosen = [likely_options(graph, TARGETS["h200"]) for graph in (wide, narrow, linear(256, 256, 256, 64, 64))]
    assert [(o.warps, o.wide, o.specialised) for o in chosen] == [(4, True, True), (8, False, True), (8, False, True)]
    assert not likely_options(wide, TARGETS["a100"]).wide


def test_digests_keep_parts_apart() -> None:
    assert digest(("ab", "c")) != digest(("a", "bc")) != digest(("abc",))
    assert digest(("ab", b"c")) == digest((b"ab", "c"))


def test_entries_hold_their_facts(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "new")
    made = cache.store("key", ".bin", b"\0\1", {"n": [1, 2]}, executable=True)
    found = cache.load("key", ".bin")
    assert found == made and found is not None and found.facts == {"n": [1, 2]}
    assert made.path.stat().st_mode & 0o111
    record = json.loads((tmp_path / "new" / "key.json").read_text())
    (tmp_path / "new" / "key.json").write_text(json.dumps(record | {"facts": 3}))
    assert cache.load("key", ".bin") is None
    (tmp_path / "new" / "key.json").write_text(json.dumps(record | {"facts": {"n": [1, 3]}}))
    assert cache.load("key", ".bin") is None, "they are those of other bytes"
