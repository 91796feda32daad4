"""The options of the magics as data, and the functions that read them.

In: the rest of a line. Out: frozen `CellOptions`, or words and values. Every mistake is an OptionError that points at
the word and names the nearest thing that would have been right.
"""

from __future__ import annotations

import builtins
import dataclasses
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirage_nb.errors import MirageError, OptionError, SourceSpan, suggestion
from mirage_nb.lang.sizes import MOST, given_size
from mirage_nb.search import AXIOMS, OPERATORS, PRUNINGS, Limits
from mirage_nb.search.limits import MAX_GRID_DIMS, read_range
from mirage_nb.search.space import EFFORTS
from mirage_nb.targets import PRECISIONS, TARGETS
from mirage_nb.widgets.actions import count, positive

USAGE = (
    "%%mirage NAME [--effort LEVEL] [--budget SECONDS] [--target GPU] [--set NAME=NUMBER]... [--symbolic NAME] "
    "[--keep] [--fresh] [--wait] [--without-axiom AXIOM]... [--with-axiom AXIOM]... "
    "[--without-pruning PRUNING]... [--with-pruning PRUNING]... [--grid-dims NUMBER] [--blocks RANGE] [--loop RANGE] "
    "[--without-operator OPERATOR]... [--tolerance TIMES] [--precision NAME]"
)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its values (none: any that `read` takes), what it means, how a word becomes a value, and which
    keyword of the API it is. `turns`: it may be repeated, and its words are turned on or off."""

    name: str
    metavar: str
    doc: str
    read: Callable[[str], object]
    values: tuple[str, ...] = ()
    keyword: str = ""
    turns: bool | None = None

    def keep(self, value: object, found: dict[str, object]) -> None:
        """Enter a value under the keyword; repeatable options collect theirs."""
        key = self.keyword or self.name.removeprefix("--")
        match found.setdefault(key, {}), value:
            case dict() as several, (str() as name, number):
                several[name] = number
            case dict() as several, str() as name if self.turns is not None:
                several[name] = self.turns
            case _:
                found[key] = value


@dataclass(frozen=True, slots=True)
class CellOptions:
    """What a `%%mirage` line says; None leaves the choice to the API."""

    name: str
    effort: str = "standard"
    budget: float | None = None
    target: str | None = None
    sizes: dict[str, int | range] = field(default_factory=dict)
    keep: bool = False
    fresh: bool = False
    wait: bool = False
    axioms: dict[str, bool] = field(default_factory=dict)
    prunings: dict[str, bool] = field(default_factory=dict)
    limits: Limits | None = None
    tolerance: float = 1.0
    precision: str = "f32"


def _dims(text: str) -> int:
    number = int(text)
    if not 0 <= number <= MAX_GRID_DIMS:
        raise ValueError(text)
    return number


def _symbolic(text: str) -> tuple[str, int | range]:
    return given_size(text if "=" in text else f"{text}=1:{MOST}")


def _switches() -> tuple[Option, ...]:
    """`--without-axiom` and its like, for axioms and prunings that can be switched."""
    found = []
    for noun, table in (("axiom", AXIOMS), ("pruning", PRUNINGS)):
        names = tuple(switch.name for switch in table.values() if not switch.fixed)
        for word, turns in (("without", False), ("with", True)):
            doc = f"switch this {noun} {'on' if turns else 'off'}; may be repeated"
            found.append(Option(f"--{word}-{noun}", noun.upper(), doc, str, names, f"{noun}s", turns))
    return tuple(found)


SWITCHES = _switches()
LIMITS = (
    Option("--grid-dims", "NUMBER", "most dims of a grid, 0 to 3", _dims, (), "grid_dims"),
    Option("--blocks", "RANGE", "blocks of a grid, as 8:264, 8: or :264", read_range),
    Option("--loop", "RANGE", "for-loop ranges, as 2:64", read_range),
    Option(
        "--without-operator",
        "OPERATOR",
        "an operator that kernels may not have, as Accum-concat; may be repeated",
        str,
        tuple(name.replace(" ", "-") for name in OPERATORS),
        "without",
        False,
    ),
)
OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option("--effort", "LEVEL", "how much of the space is searched", str, tuple(EFFORTS)),
        Option("--budget", "SECONDS", "seconds of search, a positive number", positive),
        Option("--target", "GPU", "the GPU to search for", str.lower, tuple(TARGETS)),
        Option(
            "--set",
            "NAME=NUMBER",
            "override an integer constant, as in --set B=8; may be repeated",
            given_size,
            (),
            "sizes",
        ),
        Option(
            "--symbolic",
            "NAME",
            f"a constant that is known at launch: 1 to {MOST}, or as in --symbolic B=1:256",
            _symbolic,
            (),
            "sizes",
        ),
        Option("--tolerance", "TIMES", "how far kernels may be off, in times the program's own rounding", positive),
        Option("--precision", "NAME", "of products of f32: exact, or of TF32's", str, tuple(PRECISIONS)),
        Option("--keep", "", "store the session under its name", str),
        Option("--fresh", "", "forget first what is stored under its name", str),
        Option("--wait", "", "block until the search has ended", str),
        *SWITCHES,
        *LIMITS,
    )
}

EXTEND = (
    Option("--effort", "LEVEL", "a larger effort", str, tuple(EFFORTS), "effort"),
    Option("--seconds", "SECONDS", "seconds of search from now on", positive, (), "seconds"),
    Option("--block-ops", "NUMBER", "largest number of block operators", count, (), "max_block_ops"),
    Option("--values", "NUMBER", "most values of a closure", count, (), "max_values"),
    Option("--each", "SECONDS", "what one configuration may take", positive, (), "configuration_seconds"),
    Option("--target", "GPU", "another GPU: the session begins anew for it", str.lower, tuple(TARGETS)),
    *SWITCHES,
    *LIMITS,
)
TUNE = (Option("--seconds", "SECONDS", "how long it may take", positive, (), "seconds"),)
STORE = (Option("--store", "FILE", "the file of the store (default: the user's own)", str, (), "store"),)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of the line and its 0-based place."""

    text: str
    start: int


@dataclass(slots=True)
class Line:
    """The words of a line behind its magic, read one by one, and errors that point into it. What stands in quotation
    marks is one word, as a file with a space in its name."""

    text: str
    magic: str
    words: list[Word] = field(default_factory=list)

    def __post_init__(self) -> None:
        found = re.finditer(r"""(?:"[^"]*"|'[^']*'|\S)+""", self.text)
        self.words = [Word(re.sub(r"""(["'])(.*?)\1""", r"\2", m.group()), m.start()) for m in found]

    def mistake(self, message: str, word: Word | None, hint: str) -> OptionError:
        """An error at a word, or at the end of the line."""
        return OptionError(message, hint=hint, span=self.span(word))

    def place(self, error: MirageError) -> None:
        """Give an error that has no place the word that it names, if it names one."""
        if error.span is None:
            named = next((word for word in self.words if _names(error.message, word.text)), None)
            error.span = self.span(named) if named is not None else None

    def span(self, word: Word | None = None) -> SourceSpan:
        """The place of a word, or the end of the line."""
        shown = f"{self.magic} {self.text}".rstrip()
        at = len(shown) if word is None else len(self.magic) + 1 + word.start
        return SourceSpan(1, at + 1, 1 if word is None else len(word.text), shown)


def _names(message: str, word: str) -> bool:
    """Whether a message speaks of a word: in quotation marks, or as a size that was set."""
    size = word.removeprefix("--set=").partition("=")[0]
    return repr(word) in message or message.endswith(f"no size {size}")


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean x?`, or the list of what is known."""
    names = list(known)
    return suggestion(word, names) or f"one of {', '.join(names)}"


def read_line(text: str) -> CellOptions:
    """The options of a `%%mirage` line.

    Raises:
        OptionError: a missing or impossible name, an unknown option, a missing or impossible value.
    """
    line = Line(text, "%%mirage")
    if not line.words or line.words[0].text.startswith("-"):
        hint = "%%mirage NAME [options], as %%mirage fused --effort quick; %%mirage? lists the options"
        raise line.mistake("%%mirage needs a name for the session", line.words[0] if line.words else None, hint)
    name, *rest = line.words
    if not name.text.isidentifier() or keyword.iskeyword(name.text):
        other = re.sub(r"\W", "_", name.text)
        hint = "the session is bound to this name"
        hint += f"; write {other}" if other.isidentifier() and not keyword.iskeyword(other) else ""
        raise line.mistake(f"{name.text!r} cannot be a variable", name, hint)
    if hasattr(builtins, name.text) or name.text.startswith("_"):
        taken = "is a name of Python's own" if hasattr(builtins, name.text) else "begins with _, as what is hidden does"
        raise line.mistake(f"{name.text!r} {taken}", name, "give the session another name")
    found: dict[str, object] = {}
    waiting = iter(rest)
    for word in waiting:
        option, value = _read_option(line, word, waiting, OPTIONS)
        option.keep(value, found)
    return CellOptions(name.text, **with_limits(found, Limits()))  # type: ignore[arg-type]  # one reader per field


def with_limits(found: dict[str, object], before: Limits) -> dict[str, object]:
    """The values, those of limits gathered into one that differs from `before` in them."""
    fields = {field.name for field in dataclasses.fields(Limits)}
    given: dict[str, Any] = {key: value for key, value in found.items() if key in fields}
    if not given:
        return found
    without = frozenset(name.replace("-", " ") for name in given.pop("without", ()))
    limits = dataclasses.replace(before, **given, without=before.without | without)
    return {**{key: value for key, value in found.items() if key not in fields}, "limits": limits}


def read_options(line: Line, words: Sequence[Word], table: Sequence[Option]) -> tuple[list[Word], dict[str, object]]:
    """The plain words among `words` of a line, and the values of options by their keywords. Raises OptionError."""
    known = {option.name: option for option in table}
    plain: list[Word] = []
    found: dict[str, object] = {}
    waiting = iter(words)
    for word in waiting:
        if word.text.startswith("--"):
            option, value = _read_option(line, word, waiting, known)
            option.keep(value, found)
        else:
            plain.append(word)
    return plain, found


def _read_option(
    line: Line, word: Word, waiting: Iterable[Word], table: Mapping[str, Option]
) -> tuple[Option, object]:
    """One option and its value, written `--effort quick` or `--effort=quick`."""
    name, equals, inline = word.text.partition("=")
    option = table.get(name)
    if option is None and not name.startswith("-"):
        close = nearest(f"--{name}", table)
        hint = "options begin with --" + (f"; {close}" if close.startswith("did you mean") else "")
        raise line.mistake(f"what is {name!r}?", word, hint)
    if option is None:
        raise line.mistake(f"unknown option {name!r}", word, nearest(name, table) if table else "it takes no options")
    if not option.metavar:
        if equals:
            raise line.mistake(f"{name} takes no value", word, option.doc)
        return option, True
    given = Word(inline, word.start + len(name) + 1) if equals else next(iter(waiting), None)
    if given is None or given.text.startswith("--") or not given.text:
        raise line.mistake(f"{name} needs a value", given if given and given.text else None, _expected(option))
    try:
        value = option.read(given.text)
    except ValueError:
        raise line.mistake(f"{name} {given.text}: not {option.metavar}", given, option.doc) from None
    if option.values and value not in option.values:
        raise line.mistake(f"unknown {name[2:]} {given.text!r}", given, nearest(given.text, option.values))
    return option, value


def _expected(option: Option) -> str:
    return f"one of {', '.join(option.values)}" if option.values else f"{option.name} {option.metavar}: {option.doc}"
