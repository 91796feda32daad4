"""`bench modules`: what becomes of modules like those of KernelBench in our backend of torch.compile.

For every module: whether its outputs are right, how many regions were found and taken, and why the rest was left. A
region runs as the operators of its program in PyTorch: everything but the search is as it is with a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mirage_nb.bench.machine import words
from mirage_nb.errors import MissingPartError, OptionError

LONGEST = 100
"""Characters of a reason in the table."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a module: regions found and taken, what was left and why, and what is wrong, if anything."""

    name: str
    regions: int
    taken: int
    why: tuple[str, ...]
    wrong: str = ""

    def __str__(self) -> str:
        state = f"WRONG: {self.wrong}" if self.wrong else f"{self.taken} of {self.regions}"
        return f"{self.name:<64}{state:<10}{'; '.join(w[:LONGEST] for w in self.why)}".rstrip()


def fates(names: Sequence[str] = ()) -> list[Fate]:
    """What becomes of the modules whose names have one of these parts; default: all.

    Raises:
        OptionError: there is no such module.
        MissingPartError: there is no PyTorch.
    """
    try:
        from mirage_nb.bench.pytorch.running_modules import fate, problems
    except ImportError as error:
        raise MissingPartError(f"modules need PyTorch: {error}", hint="pip install 'mirage-nb[torch]'") from error
    known = problems()
    chosen = {n: p for n, p in known.items() if not names or any(part in n for part in names)}
    if not chosen:
        raise OptionError(f"no module is called {', '.join(names)}", hint=f"as {next(iter(known))}")
    return [fate(name, problem) for name, problem in chosen.items()]


def table(found: Sequence[Fate]) -> str:
    """One line for each module, and the counts."""
    right, taken = sum(not f.wrong for f in found), sum(f.taken > 0 for f in found)
    return "\n".join([*map(str, found), f"{len(found)} modules: {right} right, {taken} with a region taken"])


def add_modules(kinds: Any) -> None:
    """Add the command."""
    parser = kinds.add_parser("modules", help="modules like KernelBench's through torch.compile: regions, and reasons")
    parser.add_argument("--modules", default="", help="parts of names, separated by commas; default: all")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    found = fates(words(options.modules))
    sys.stdout.write(f"{table(found)}\n")
    return 1 if any(f.wrong for f in found) else 0
