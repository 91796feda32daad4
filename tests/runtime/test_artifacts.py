"""The caches of machine code: what somebody else may have left there is never executed, and what is ours is kept."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from mirage_nb.errors import MirageError
from mirage_nb.runtime.doctor import examine
from mirage_nb.runtime.execution import artifacts
from mirage_nb.runtime.execution.artifacts import (
    CPU_FOLDER,
    SECRET,
    ArtifactCache,
    digest,
    distrust,
    distrusted,
)
from mirage_nb.runtime.execution.compile import compile_cubin
from mirage_nb.runtime.execution.emulate import CpuModule
from mirage_nb.settings import Settings

KERNEL = '#include "mirage_device.cuh"\nextern "C" __global__ void k(float* y) { y[0] = 1; }'
COMPILER = r"""#!/bin/sh
case "$1" in --version) echo 1.0; exit 0;; esac
for at; do
  case "$was" in -o) printf '#!/bin/sh\nprintf "k\\n\\tfloat*\\n"\n' > "$at"; chmod 700 "$at";; esac
  was="$at"
done
"""
"""Makes the same of everything: a program that describes a kernel."""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def settings(tmp_path: Path, own_folder: Path) -> Settings:
    compiler = tmp_path / "cxx"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    return Settings(tmp_path / "home", 1, str(compiler))


def run(settings: Settings) -> None:
    """Build a kernel and launch it, however that ends."""
    try:
        CpuModule(KERNEL, settings=settings).launch("k", (1, 1, 1), (1, 1, 1), 0, [])
    except MirageError:
        pass


def evil(folder: Path, owned: Path) -> None:
    """Another program in place of every one that lies there, with the record that would fit it without a secret."""
    for suffix in (".runner", ".so"):
        for file in folder.glob(f"*{suffix}"):
            data = f"#!/bin/sh\ntouch {owned}\n".encode()
            file.write_bytes(data)
            file.chmod(0o755)
            record = json.loads(file.with_suffix(".json").read_text())
            facts = record["facts"]
            unkeyed = digest((data, json.dumps(facts, sort_keys=True)))
            record = {"facts": facts, "sha256": unkeyed, "seal": unkeyed}
            file.with_suffix(".json").write_text(json.dumps(record))


def test_a_planted_program_is_not_executed(settings: Settings, tmp_path: Path) -> None:
    run(settings)
    folder, owned = settings.home / CPU_FOLDER, tmp_path / "owned"
    assert mode(folder) == 0o700 and mode(folder / SECRET) == 0o600
    (runner,) = folder.glob("*.runner")
    before = runner.read_bytes()
    evil(folder, owned)
    assert runner.read_bytes() != before
    run(settings)
    assert not owned.exists() and runner.read_bytes() == before, "it is built again"


def test_where_others_can_write_nothing_is_taken_or_left(settings: Settings, own_folder: Path, tmp_path: Path) -> None:
    run(settings)
    folder, owned = settings.home / CPU_FOLDER, tmp_path / "owned"
    evil(folder, owned)
    for bits in (0o777, 0o770, 0o1777, 0o702):
        folder.chmod(bits)
        there = {file: file.read_bytes() for file in folder.iterdir()}
        run(settings)
        assert not owned.exists() and {file: file.read_bytes() for file in folder.iterdir()} == there
        (told,) = distrusted(settings.home)
        assert f"others can write to {folder} (its mode is {bits:o})" in told and f"chmod 700 {folder}" in told
    assert list((own_folder / CPU_FOLDER).glob("*.runner")) and mode(own_folder) == 0o700
    assert not next(part for part in examine(settings) if part.name == "store").found
    folder.chmod(0o755)  # others may look
    assert not distrusted(settings.home)


def test_a_folder_of_another_user_is_not_used(
    settings: Settings, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(settings)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "belongs to another user" in distrust(settings.home / CPU_FOLDER)
    assert ArtifactCache(settings.home / CPU_FOLDER).folder == own_folder / CPU_FOLDER


@pytest.mark.parametrize("trouble", ["no folder", "not writable", "full"])
def test_where_nothing_can_be_kept_everything_is_built_once(
    trouble: str, settings: Settings, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    match trouble:
        case "no folder":
            settings.home.write_text("a file")
        case "not writable":
            allowed = os.access
            monkeypatch.setattr(
                os, "access", lambda path, *how: path != settings.home / CPU_FOLDER and allowed(path, *how)
            )
        case "full":
            replace = os.replace
            monkeypatch.setattr(
                os, "replace", lambda a, b: no_room() if settings.home in Path(b).parents else replace(a, b)
            )
    run(settings)
    kept = {file: file.stat().st_ino for file in (own_folder / CPU_FOLDER).iterdir()}
    run(settings)
    assert {file: file.stat().st_ino for file in kept} == kept and {".runner", ".so"} <= {file.suffix for file in kept}
    assert len(distrusted(settings.home)) == (trouble != "full")


def no_room() -> None:
    raise OSError(28, "No space left on device")


def test_a_cubin_from_where_others_can_write_is_not_loaded(tmp_path: Path) -> None:
    settings = Settings(tmp_path, 1, "g++")
    first = compile_cubin(KERNEL, settings=settings)
    assert first.path is not None and not first.note
    first.path.parent.chmod(0o777)
    first.path.write_bytes(b"machine code of somebody else")
    for _ in range(2):
        again = compile_cubin(KERNEL, settings=settings)
        assert again.data == first.data and again.path is None and "chmod 700" in again.note


def planted(name: str) -> Callable[[Path, bytes], None]:
    def plant(path: Path, secret: bytes) -> None:
        path.unlink()
        match name:
            case "readable":
                path.write_bytes(secret)
                path.chmod(0o644)
            case "short":
                path.write_bytes(b"")
                path.chmod(0o600)
            case "long":
                path.write_bytes(secret * 2)
                path.chmod(0o600)
            case "link":
                (path.parent.parent / "theirs").write_bytes(secret)
                path.symlink_to(path.parent.parent / "theirs")
            case "hard link":
                (path.parent.parent / "theirs").write_bytes(secret)
                (path.parent.parent / "theirs").chmod(0o600)
                path.hardlink_to(path.parent.parent / "theirs")
            case "pipe":
                os.mkfifo(path, 0o600)

    return plant


@pytest.mark.parametrize("how", ["readable", "short", "long", "link", "hard link", "pipe"])
def test_a_secret_that_others_may_know_seals_nothing(how: str, tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    made = cache.store("key", ".bin", b"data", {})
    assert cache.load("key", ".bin") == made
    path = cache.folder / SECRET
    secret = path.read_bytes()
    planted(how)(path, secret)
    assert cache.load("key", ".bin") is None
    cache.store("key", ".bin", b"data", {})
    assert cache.load("key", ".bin") == made and mode(path) == 0o600 and path.read_bytes() != secret


def test_entries_cannot_change_places(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    for key in ("one", "two"):
        cache.store(key, ".bin", key.encode(), {"of": key})
    for suffix in (".bin", ".json"):
        (cache.folder / f"one{suffix}").replace(cache.folder / f"two{suffix}")
    assert cache.load("two", ".bin") is None
    made = cache.store("two", ".bin", b"two", {})
    (cache.folder / "two.bin").rename(cache.folder / "two.so")
    assert made.path.suffix == ".bin" and cache.load("two", ".so") is None


def test_the_seal_is_of_the_secret_not_of_the_bytes_alone(tmp_path: Path) -> None:
    seals = set()
    for number in range(3):
        cache = ArtifactCache(tmp_path / str(number))
        cache.store("key", ".bin", b"data", {"n": 1})
        seals.add(json.loads((cache.folder / "key.json").read_text())["seal"])
    assert len(seals) == 3 and hashlib.sha256(b"data").hexdigest() not in seals


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"facts": {}}', '{"facts": {}, "seal": 1}',
                                  '{"facts": [], "seal": ""}', '{"facts": {}, "seal": "\\u00e9"}'])  # fmt: skip
def test_no_record_however_broken_is_taken(text: str, tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache")
    cache.store("key", ".bin", b"data", {})
    (cache.folder / "key.json").write_text(text)
    assert cache.load("key", ".bin") is None


def test_a_folder_that_takes_no_secret_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "_secret", lambda folder: None)
    with pytest.raises(PermissionError, match="no secret"):
        ArtifactCache(tmp_path / "cache").store("key", ".bin", b"data", {})
