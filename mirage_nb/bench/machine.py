"""Where a measurement was made: the card, the versions, the commit; its share of a benchmark, its record, its table."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mirage_nb.errors import MissingPartError, OptionError, StoreError, suggestion
from mirage_nb.ir.fields import shown
from mirage_nb.runtime.gpu import Gpu, attached_gpu

T = TypeVar("T")

SCHEMA = 2
METHOD = "CUDA graph replays, inputs rotated past L2, contestants interleaved, medians, microseconds"
PACKAGES = ("numpy", "cupy-cuda13x", "cupy-cuda12x", "torch")


def card(command: str, hint: str = "print a record with --from FILE, or see `doctor`") -> Gpu:
    """The attached card, which a command needs. Raises MissingPartError where there is none."""
    gpu = attached_gpu()
    if gpu is None:
        raise MissingPartError(f"bench {command} needs a GPU", hint=hint)
    return gpu


def machine(gpu: Gpu, revision: str | None = None) -> dict[str, Any]:
    """What a record says about its origin; `revision` stands for the commit where the checkout does not say it."""
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": revision or commit(Path(__file__)),
        "card": gpu.name,
        "cuda_driver": gpu.driver,
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "method": METHOD,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def commit(place: Path) -> str | None:
    """The commit of the git checkout that a file lies in, read from its files; None outside of one."""
    folder = next((p / ".git" for p in place.resolve().parents if (p / ".git").is_dir()), None)
    if folder is None:
        return None
    try:
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (folder / name).is_file():
            return (folder / name).read_text().strip()
        packed = (folder / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
    except (OSError, IndexError):
        return None


@contextlib.contextmanager
def reading(path: Path | str, kind: str) -> Iterator[None]:
    """While a record of `bench` of this kind is read and shown: whatever is wrong with it is an OptionError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        what = f"{path} is no record of `bench {kind}`: {shown(str(error))}"
        raise OptionError(what, hint="--record FILE writes one") from error


def openable(record: str | None) -> None:
    """Raise StoreError for a record that cannot be written: before anything is measured, not after."""
    if record:
        try:
            Path(record).touch()
        except OSError as error:
            raise StoreError(f"{record} cannot be written: {error.strerror}") from error


def keep(record: str | None, found: Mapping[str, Any]) -> None:
    """Write a record, if one is wanted."""
    if record:
        Path(record).write_text(json.dumps(found, indent=1) + "\n")


def columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table: the first column to the left, the others to the right, each as wide as it needs to be."""
    cells = [*rows]
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join([row[0].ljust(wide[0]), *map(str.rjust, row[1:], wide[1:])]) for row in cells]


def words(text: str) -> list[str]:
    """What an option says that takes several, separated by commas."""
    return [word for part in text.split(",") if (word := part.strip())]


def known(text: str, names: Collection[str], what: str) -> list[str]:
    """The same of what there is. Raises OptionError for anything else."""
    found = words(text)
    if unknown := next((word for word in found if word not in names), ""):
        hint = suggestion(unknown, names) or f"one of {', '.join(names)}"
        raise OptionError(f"unknown {what} {unknown!r}", hint=hint)
    return found


def check_seconds(options: argparse.Namespace, *names: str) -> None:
    """Raises OptionError where one of these options that were given is no positive number of seconds."""
    for name in names:
        seconds = getattr(options, name)
        if seconds is not None and not 0 < seconds < float("inf"):
            raise OptionError(f"--{name} {seconds:g}: not a positive number of seconds", hint=f"as --{name} 60")


def share_of(items: Sequence[T], share: str) -> Sequence[T]:
    """Every N-th of the items, from the I-th on, where several machines measure side by side; the shares 0/N to
    (N-1)/N have every item once. Raises OptionError where this is not I/N with I below N."""
    parts = re.fullmatch(r"(\d{1,4})/(\d{1,4})", share)
    if parts is None or int(parts[1]) >= int(parts[2]):
        raise OptionError(f"--share {share!r}: not a share", hint="0/4, 1/4, 2/4 and 3/4 are all of them")
    return items[int(parts[1]) :: int(parts[2])]
