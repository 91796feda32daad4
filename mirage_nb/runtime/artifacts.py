"""Files that cost time to make (cubins, shared objects), kept by the digest of what they are made from.

In: a digest, the bytes, some facts about them. Out: all of these and a path, or nothing. Invariant: an entry is
either whole or absent: the bytes are written first and renamed into place, then the facts with a digest of
both; whatever does not fit together (cut short, edited, foreign) counts as absent and is made again.
Many notebooks may share one folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Artifact:
    """An entry: where its bytes lie, the bytes, and what was said about them."""

    path: Path
    data: bytes
    facts: Facts


def digest(parts: Iterable[str | bytes]) -> str:
    """One sha-256 over several texts, each with its length, so that where one ends matters."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def digest_folder(folder: Path, *names: str) -> str:
    """One sha-256 over the text of all files below `folder`, or below the named parts of it."""
    roots = [folder / name for name in names] or [folder]
    files = sorted(
        p for root in roots for p in ([root] if root.is_file() else root.rglob("*")) if p.is_file()
    )
    return digest(part for p in files for part in (str(p.relative_to(folder)), p.read_bytes()))


class ArtifactCache:
    """The entries in one folder. `suffix` includes the dot."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: str, suffix: str) -> Artifact | None:
        """The entry of this key, or None if there is none or it is damaged."""
        path = self.folder / f"{key}{suffix}"
        try:
            record = json.loads(path.with_suffix(".json").read_text())
            data = path.read_bytes()
        except (OSError, ValueError):
            return None
        facts = record.get("facts") if isinstance(record, dict) else None
        if not isinstance(facts, dict) or record.get("sha256") != _seal(data, facts):
            return None
        return Artifact(path, data, facts)

    def store(
        self, key: str, suffix: str, data: bytes, facts: Facts, *, executable: bool = False
    ) -> Artifact:
        """Write an entry. Raises OSError if the folder cannot be written to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{key}{suffix}"
        record = {"sha256": _seal(data, facts), "facts": facts}
        _replace(path, data, 0o755 if executable else 0o644)
        _replace(path.with_suffix(".json"), json.dumps(record).encode(), 0o644)
        return Artifact(path, data, facts)


def _seal(data: bytes, facts: Facts) -> str:
    return digest((data, json.dumps(facts, sort_keys=True)))


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
