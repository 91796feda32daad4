"""The options of the magics as data, and the functions that read them.

In: the rest of a line. Out: frozen `CellOptions`, or words and values. Every mistake is an OptionError that points at
the word and names the nearest thing that would have been right.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirage_nb.errors import MirageError, OptionError, SourceSpan, suggestion
from mirage_nb.options import LIMITS, SEARCH, SIZES, SWITCHES, Option, with_limits
from mirage_nb.search import Limits


@dataclass(frozen=True, slots=True)
class CellOptions:
    """What a `%%mirage` line says; asked: of the API, by its keywords."""

    name: str
    asked: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int | range] = field(default_factory=dict)
    keep: bool = False
    fresh: bool = False
    wait: bool = False


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        *SEARCH,
        *SIZES,
        Option("--keep", "", "store the session under its name, and use what is stored there", str),
        Option("--fresh", "", "forget first what is stored under its name", str),
        Option("--wait", "", "block until the search has ended", str),
        *SWITCHES,
        *LIMITS,
    )
}
USAGE = " ".join(("%%mirage NAME", *(option.usage for option in OPTIONS.values())))
STORE = (Option("--store", "FILE", "the file of the store (default: the user's own)", str),)


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

    def place(self, error: MirageError, options: Sequence[Option] = ()) -> None:
        """Give an error that has no place the word that it names, if it names one; keywords become their options."""
        key, colon, rest = error.message.partition(":")
        written = next((option.name for option in options if colon and option.key == key), "")
        error.message = f"{written}:{rest}" if written else error.message
        if error.span is None:
            named = next((word for word in self.words if _names(error.message, word.text)), None)
            error.span = self.span(named) if named is not None else None

    def span(self, word: Word | None = None) -> SourceSpan:
        """The place of a word, or the end of the line."""
        shown = f"{self.magic} {self.text}".rstrip()
        at = len(shown) if word is None else len(self.magic) + 1 + word.start
        return SourceSpan(1, at + 1, 1 if word is None else len(word.text), shown)


def _names(message: str, word: str) -> bool:
    """Whether a message speaks of a word: in quotation marks, as its subject, or as a size that was set."""
    size = word.removeprefix("--set=").partition("=")[0]
    subject = re.match(rf"{re.escape(word)}:? ", f"{message} ") is not None
    return repr(word) in message or subject or message.endswith(f"no size {size}")


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
    found: dict[str, Any] = {}
    waiting = iter(rest)
    for word in waiting:
        _keep_option(line, word, waiting, OPTIONS, found)
    own = {key: found.pop(key) for key in ("sizes", "keep", "fresh", "wait") if key in found}
    return CellOptions(name.text, with_limits(found, Limits()), **own)


def read_options(line: Line, words: Sequence[Word], table: Sequence[Option]) -> tuple[list[Word], dict[str, Any]]:
    """The plain words among `words` of a line, and the values of options by their keywords. Raises OptionError."""
    known = {option.name: option for option in table}
    plain: list[Word] = []
    found: dict[str, Any] = {}
    waiting = iter(words)
    for word in waiting:
        if word.text.startswith("--"):
            _keep_option(line, word, waiting, known, found)
        else:
            plain.append(word)
    return plain, found


def _keep_option(
    line: Line, word: Word, waiting: Iterable[Word], table: Mapping[str, Option], found: dict[str, Any]
) -> None:
    """Enter one option and its value, written `--effort quick` or `--effort=quick`."""
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
        return option.keep(True, found)
    given = Word(inline, word.start + len(name) + 1) if equals else next(iter(waiting), None)
    if given is None or given.text.startswith("--") or not given.text:
        raise line.mistake(f"{name} needs a value", given if given and given.text else None, _expected(option))
    try:
        value = option.read(given.text)
    except ValueError:
        raise line.mistake(f"{name} {given.text}: not {option.metavar}", given, option.doc) from None
    if option.values and value not in option.values:
        noun = name.rpartition("-")[2]
        raise line.mistake(f"unknown {noun} {given.text!r}", given, nearest(given.text, option.values))
    try:
        option.keep(value, found)
    except OptionError as error:
        error.span = line.span(given)
        raise


def _expected(option: Option) -> str:
    return f"one of {', '.join(option.values)}" if option.values else f"{option.name} {option.metavar}: {option.doc}"
