"""Files that cost time to make (cubins, shared objects), kept by the digest of what they are made from.

In: a digest, the bytes, some facts about them. Out: all of these and a path, or nothing. Invariants: an entry is
either whole or absent: the bytes are written first and renamed into place, then the facts with a seal over both.
Machine code is executed, so what another user could have left is never taken: a folder in which others can write is
not used, and the seal takes a secret that only this user can read (HMAC, RFC 2104). Whatever does not fit together
(cut short, edited, foreign, planted) counts as absent and is made again. Many notebooks may share one folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

CPU_FOLDER, CUBIN_FOLDER = "cpu", "cubin"
"""Where programs of the CPU edition are kept, and cubins, in the user's folder."""
SECRET, SECRET_BYTES = "secret", 32
"""The file of a folder's secret, and its length."""
ELSEWHERE = "set MIRAGE_NB_HOME to a folder of yours"


@dataclass(frozen=True, slots=True)
class Artifact:
    """An entry: where its bytes lie, the bytes, and what was said about them."""

    path: Path
    data: bytes = field(repr=False)
    facts: Facts = field(repr=False)


def digest(parts: Iterable[str | bytes]) -> str:
    """One sha-256 over several texts, each with its length, so that where one ends matters."""
    found = hashlib.sha256()
    for part in _framed(parts):
        found.update(part)
    return found.hexdigest()


def _framed(parts: Iterable[str | bytes]) -> Iterable[bytes]:
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        yield len(data).to_bytes(8, "little")
        yield data


def digest_folder(folder: Path, *names: str) -> str:
    """One sha-256 over the text of all files below `folder`, or below the named parts of it."""
    roots = [folder / name for name in names] or [folder]
    files = sorted(p for root in roots for p in ([root] if root.is_file() else root.rglob("*")) if p.is_file())
    return digest(part for p in files for part in (str(p.relative_to(folder)), p.read_bytes()))


def distrust(folder: Path) -> str:
    """Why nothing can be kept in this folder, or machine code in it may be somebody else's, and what to do; empty where
    this user writes, and nobody else."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        return f"nothing can be kept in {folder.parent} ({error.strerror or error}): {ELSEWHERE}"
    if found.st_uid != os.geteuid():
        return f"{folder} belongs to another user (number {found.st_uid}): {ELSEWHERE}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        return f"others can write to {folder} (its mode is {mode:o}): run `chmod 700 {folder}` and empty it"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written to: {ELSEWHERE}"
    return ""


def distrusted(home: Path) -> tuple[str, ...]:
    """What to tell a user of the folders of compiled kernels in this home that are not used, a line each."""
    found = dict.fromkeys(filter(None, (distrust(home / name) for name in (CPU_FOLDER, CUBIN_FOLDER))))
    return tuple(f"compiled kernels are kept for this process alone: {why}" for why in found)


@functools.cache
def own_folder() -> Path:
    """A private folder that lasts as long as this process."""
    return Path(_own_folder().name)


@functools.cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="mirage-nb-", ignore_cleanup_errors=True)


class ArtifactCache:
    """The entries in one folder, or in one of this process where nothing can be kept there, or others can write there
    too. `suffix` includes the dot."""

    def __init__(self, folder: Path) -> None:
        self._asked = folder

    @property
    def folder(self) -> Path:
        """Where the entries are."""
        return self._own if distrust(self._asked) else self._asked

    @property
    def _own(self) -> Path:
        """Where this process keeps what cannot be kept there."""
        return own_folder() / self._asked.name

    def load(self, key: str, suffix: str) -> Artifact | None:
        """The entry of this key, or None if there is none or it is damaged."""
        found = self._loaded(self.folder / f"{key}{suffix}")
        if found is None and own_folder.cache_info().currsize:  # there was no room for it
            found = self._loaded(self._own / f"{key}{suffix}")
        return found

    def _loaded(self, path: Path) -> Artifact | None:
        try:
            secret = _secret(path.parent)
            record = json.loads(path.with_suffix(".json").read_text())
            data = path.read_bytes()
        except (OSError, ValueError, RecursionError):
            return None
        facts, seal = (record.get("facts"), record.get("seal")) if isinstance(record, dict) else (None, None)
        if secret is None or not isinstance(facts, dict) or not isinstance(seal, str) or not seal.isascii():
            return None
        if not hmac.compare_digest(seal, _seal(secret, path.name, data, facts)):
            return None
        return Artifact(path, data, facts)

    def store(self, key: str, suffix: str, data: bytes, facts: Facts, *, executable: bool = False) -> Artifact:
        """Write an entry, for this process alone where there is no room for it. Raises OSError if that cannot be."""
        bits = 0o700 if executable else 0o600
        try:
            return self._stored(self.folder / f"{key}{suffix}", data, facts, bits)
        except OSError:
            return self._stored(self._own / f"{key}{suffix}", data, facts, bits)

    def _stored(self, path: Path, data: bytes, facts: Facts, bits: int) -> Artifact:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _replace(path, data, bits)
        record = {"seal": _seal(_made_secret(path.parent), path.name, data, facts), "facts": facts}
        _replace(path.with_suffix(".json"), json.dumps(record).encode(), 0o600)
        return Artifact(path, data, facts)

    def remove(self, key: str, suffix: str) -> None:
        """Take an entry out, if there is one."""
        with contextlib.suppress(OSError):
            (self.folder / f"{key}{suffix}").unlink()


def seal_of(folder: Path, parts: Iterable[str]) -> str:
    """A seal over texts with the secret of a folder of this user; nothing where no secret can be kept."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _sealed(_made_secret(folder), parts)
    except OSError:
        return ""


def is_sealed(folder: Path, seal: str, parts: Iterable[str]) -> bool:
    """Whether this user has sealed these texts."""
    secret = _secret(folder)
    return secret is not None and seal.isascii() and hmac.compare_digest(seal, _sealed(secret, parts))


def _seal(secret: bytes, name: str, data: bytes, facts: Facts) -> str:
    return _sealed(secret, (name, data, json.dumps(facts, sort_keys=True)))


def _sealed(secret: bytes, parts: Iterable[str | bytes]) -> str:
    found = hmac.new(secret, digestmod="sha256")
    for part in _framed(parts):
        found.update(part)
    return found.hexdigest()


def _secret(folder: Path) -> bytes | None:
    """What only this user can have sealed with; None where there is none, or others may know or have made it."""
    try:
        opened = os.open(folder / SECRET, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(opened, "rb") as file:
        found = os.fstat(opened)
        private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077 and found.st_nlink == 1
        if found.st_uid != os.geteuid() or not private:
            return None
        data = file.read(SECRET_BYTES + 1)
        return data if len(data) == SECRET_BYTES else None


def _made_secret(folder: Path) -> bytes:
    """The folder's secret; a new one if there is none to trust. Of several the first makes one."""
    known = _secret(folder)
    if known is None:
        opened = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
            if _secret(folder) is None:
                _replace(folder / SECRET, secrets.token_bytes(SECRET_BYTES), 0o600)
            known = _secret(folder)
        finally:
            os.close(opened)
    if known is None:
        raise PermissionError(1, "no secret can be kept there", str(folder))
    return known


def _replace(path: Path, data: bytes, mode: int) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
