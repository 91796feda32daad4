"""What a session can be asked for in words: one table for the magics, the forms of the page and the command line.

In: words. Out: values under the keywords of the API. Invariant: an option means the same wherever it may be given; who
reads a line says where in it a mistake is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from mirage_nb.errors import OptionError
from mirage_nb.lang.sizes import MOST, given_size
from mirage_nb.search import AXIOMS, OPERATORS, PRUNINGS, Limits
from mirage_nb.search.limits import MAX_GRID_DIMS, read_range
from mirage_nb.search.space import EFFORTS
from mirage_nb.targets import PRECISIONS, TARGETS


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its values (none: any that `read` takes), what it means, how a word becomes a value, and which
    keyword of the API it is. `turns`: it may be repeated, and its words are turned on or off. label, hint: in forms,
    beside the field and in it while it is empty."""

    name: str
    metavar: str
    doc: str
    read: Callable[[str], object]
    values: tuple[str, ...] = ()
    keyword: str = ""
    turns: bool | None = None
    label: str = ""
    hint: str = ""

    @property
    def key(self) -> str:
        """The keyword that its value is given under."""
        return self.keyword or self.name.removeprefix("--")

    @property
    def repeats(self) -> bool:
        """Whether it may be given several times."""
        return self.turns is not None or self.read in (given_size, _symbolic)

    @property
    def usage(self) -> str:
        """`[--effort LEVEL]`."""
        return f"[{' '.join(filter(None, (self.name, self.metavar)))}]{'...' * self.repeats}"

    def keep(self, value: object, found: dict[str, Any]) -> None:
        """Enter a value under the keyword; repeatable options collect theirs. Raises OptionError for what is to be both
        on and off."""
        match value:
            case (str() as name, number):
                found.setdefault(self.key, {})[name] = number
            case _ if self.turns is None:
                found[self.key] = value
            case _:
                several = found.setdefault(self.key, {})
                if several.get(value, self.turns) is not self.turns:
                    noun = self.name.rpartition("-")[2]
                    raise OptionError(f"--with-{noun} {value} and --without-{noun} {value}", hint="one of them")
                several[value] = self.turns


def positive(text: str) -> float:
    """A number above 0, and finite. Raises ValueError."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def count(text: str) -> int:
    """A whole number from 1. Raises ValueError."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _dims(text: str) -> int:
    number = int(text)
    if not 0 <= number <= MAX_GRID_DIMS:
        raise ValueError(text)
    return number


def _symbolic(text: str) -> tuple[str, int | range]:
    return given_size(text if "=" in text else f"{text}=1:{MOST}")


def _switches() -> Iterable[Option]:
    """`--without-axiom` and its like, for axioms and prunings that can be switched."""
    for noun, table in (("axiom", AXIOMS), ("pruning", PRUNINGS)):
        names = tuple(switch.name for switch in table.values() if not switch.fixed)
        for word, turns in (("without", False), ("with", True)):
            doc = f"switch this {noun} {'on' if turns else 'off'}, other than the effort has it; may be repeated"
            yield Option(f"--{word}-{noun}", noun.upper(), doc, str, names, f"{noun}s", turns)


SWITCHES = (*_switches(),)
LIMITS = (
    Option("--grid-dims", "NUMBER", f"most dims of a grid, 0 to {MAX_GRID_DIMS}", _dims, (), "grid_dims"),
    Option("--blocks", "RANGE", "blocks of a grid, the least and the most, as 8:264, 8: or :264", read_range),
    Option("--loop", "RANGE", "for-loop ranges, the least and the most, as 2:64", read_range),
    Option(
        "--without-operator", "OPERATOR", "an operator that kernels may not have, as Accum-concat; may be repeated",
        str, tuple(name.replace(" ", "-") for name in OPERATORS), "without", False,
    ),
)  # fmt: skip
SIZES = (
    Option("--set", "NAME=NUMBER", "override an integer constant, as in --set B=8; may be repeated", given_size, (),
           "sizes"),
    Option("--symbolic", "NAME[=LEAST:MOST]",
           f"a constant that is known at launch: 1 to {MOST}, or as in --symbolic B=1:256", _symbolic, (), "sizes"),
)  # fmt: skip
SEARCH = (
    Option("--effort", "LEVEL", "how much of the space is searched; default: standard", str, tuple(EFFORTS)),
    Option("--budget", "SECONDS", "seconds for everything, a positive number; default: the effort's", positive),
    Option("--target", "GPU", "the GPU to search for; default: the attached one, else h200", str.lower, tuple(TARGETS)),
    Option("--tolerance", "TIMES", "how far kernels may be off: times the program's own rounding, above 0", positive),
    Option(
        "--precision", "NAME", "how products of f32 are computed: f32 exactly, 3xtf32 as three products of TF32 each, "
        "about as exact and twice as fast, or tf32 as one; the error is shown beside that of exact f32",
        str, tuple(PRECISIONS),
    ),
)  # fmt: skip
"""What every search can be asked for, besides limits and switches."""
EXTEND = (
    Option(
        "--effort", "LEVEL", "a larger effort: sets of axioms and bounds, each larger than the one before", str,
        tuple(EFFORTS), label="effort",
    ),
    Option("--block-ops", "NUMBER", "largest number of block operators", count, (), "max_block_ops",
           label="block operators", hint="as before"),
    Option("--seconds", "SECONDS", "seconds of search from now on, above 0", positive, label="seconds",
           hint="no limit"),
    Option("--values", "NUMBER", "most values of a closure", count, (), "max_values", label="values", hint="as before"),
    Option("--each", "SECONDS", "what one configuration may take, above 0", positive, (), "configuration_seconds",
           label="seconds each", hint="as before"),
    Option("--target", "GPU", "another GPU: the session begins anew for it", str.lower, tuple(TARGETS), label="target"),
)  # fmt: skip
"""How a session goes on, besides limits and switches."""
TUNE = (Option("--seconds", "SECONDS", "how long it may take, above 0", positive, label="for seconds",
               hint="no limit"),)  # fmt: skip


def with_limits(found: Mapping[str, Any], before: Limits) -> dict[str, Any]:
    """The values, those of limits gathered into one that differs from `before` in them."""
    names = {field.name for field in fields(Limits)}
    given = {key: value for key, value in found.items() if key in names}
    if not given:
        return dict(found)
    without = frozenset(name.replace("-", " ") for name in given.pop("without", ()))
    limits = replace(before, **given, without=before.without | without)
    return {**{key: value for key, value in found.items() if key not in names}, "limits": limits}
