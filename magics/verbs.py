"""What `%mirage` can do, one row per verb: its words, its options, what it means, and the function that does it.

In: the notebook's variables and the words behind the verb. Out: calls of the API, and what they give back on the
page. Mistakes are OptionErrors that name the nearest thing that would have been right.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import display

import mirage_nb
from mirage_nb.errors import MirageError, OptionError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.text import print_graph
from mirage_nb.lang import FUNCTIONS, explained, made, reference
from mirage_nb.options import EXTEND, LIMITS, SWITCHES, TUNE, Option, with_limits
from mirage_nb.runtime.doctor import examine, report
from mirage_nb.runtime.store import find_store
from mirage_nb.search import Limits
from mirage_nb.search.session.progress import Candidate
from mirage_nb.viz.compare import compare_html, compare_text
from mirage_nb.viz.export import export
from mirage_nb.viz.html import styled
from mirage_nb.viz.text import snapshot_line, snapshot_text
from mirage_nb.widgets import ExplorerView, SessionView

from .options import STORE, USAGE, Line, nearest, read_options

Variables = MutableMapping[str, object]
WIDE = 100
"""Characters of a line, at most, where it can be broken."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: the words that follow it, the options that it takes, and what it does."""

    name: str
    words: str
    doc: str
    act: Callable[[Variables, list[str], dict[str, Any]], None]
    options: tuple[Option, ...] = ()

    @property
    def usage(self) -> str:
        """`%mirage show NAME [DIGEST]`, with the options."""
        options = (option.usage for option in self.options)
        return folded(" ".join(part for part in ("%mirage", self.name, self.words, *options) if part))

    @property
    def takes_session(self) -> bool:
        """Whether its first word names a session of the notebook."""
        return self.words.startswith("NAME") and self.name != "load"


def folded(usage: str) -> str:
    """A usage on lines of a page's width, which end between options."""
    words = usage.replace("] [", "]\n[").replace("]... [", "]...\n[").split("\n")
    lines = [words[0]]
    for word in words[1:]:
        lines[-1:] = [f"{lines[-1]} {word}"] if len(lines[-1]) + len(word) < WIDE else [lines[-1], f"    {word}"]
    return "\n".join(lines)


def is_session(value: object) -> bool:
    """Whether a variable of the notebook holds a session."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("snapshot", "stop", "pause", "resume", "result")
    )


def sessions(variables: Mapping[str, object]) -> dict[str, Any]:
    """The sessions among the notebook's variables, by name."""
    return {name: v for name, v in variables.items() if not name.startswith("_") and is_session(v)}


def show(session: Any) -> None:
    """Put a live view of a session on the page."""
    SessionView(session, budget_seconds=session.search.seconds).show()


_display: Any = display  # IPython gives it no types


def say(text: str, html: str = "") -> None:
    """Show a text; pages that can, show the HTML instead."""
    _display({"text/plain": text, **({"text/html": html} if html else {})}, raw=True)


def perform(variables: Variables, line: str) -> None:
    """Do what a line says.

    Raises:
        OptionError: an unknown verb or option, a session that there is not, a word too few or too many.
        MirageError: what the API says.
    """
    typed = Line(line, "%mirage")
    if not typed.words:
        return say(f"{_verbs()}\n\n%mirage help has the language, too, and %mirage help WORD one of its functions")
    name, *rest = typed.words
    verb = VERBS.get(name.text)
    if verb is None:
        raise typed.mistake(f"unknown command {name.text!r}", name, _meant(name.text, variables))
    found, options = read_options(typed, rest, verb.options)
    least, most = verb.words.split("[")[0].split(), verb.words.replace("[", "").split()
    if len(found) > len(most):
        words = f"{len(most)} word{'s' * (len(most) != 1)}" if most else "no words"
        raise typed.mistake(f"{verb.name} takes {words}, not {len(found)}", found[len(most)], verb.usage)
    if len(found) < len(least):
        if verb.takes_session and not found:
            there = ", ".join(sessions(variables))
            raise typed.mistake("which session?", None, f"one of {there}" if there else "there are none")
        raise typed.mistake(f"{verb.name} needs {' '.join(least)}", None, verb.usage)
    try:
        verb.act(variables, [word.text for word in found], options)
    except MirageError as error:
        typed.place(error, verb.options)
        raise


OTHERWISE = {"resume": "load", "sessions": "list", "status": "list", "verify": "submit", "language": "help"}
"""Verbs that somebody may know from elsewhere."""


def _meant(word: str, variables: Variables) -> str:
    """What somebody may have meant who begins a line with this."""
    if word in sessions(variables):
        return f"the verb comes first, as in %mirage show {word}"
    if word in OTHERWISE:
        return f"did you mean {OTHERWISE[word]}?"
    for owner, kind in (("NAME", mirage_nb.Session), ("NAME.best", mirage_nb.Winner)):
        if hasattr(kind, word):
            return f"in Python: {owner}.{word}"
    close = nearest(word, VERBS)
    return close if close.startswith("did you mean") else f"{close}; searches start with %%mirage NAME and a program"


def _list(variables: Variables, words: list[str], _: dict[str, Any]) -> None:
    found = sessions(variables)
    if not found:
        say("no sessions; start one with a %%mirage cell")
    for name, session in found.items():
        say(snapshot_line(replace(session.snapshot(), name=name), stage=getattr(session, "stage", "")))


def _show(variables: Variables, words: list[str], _: dict[str, Any]) -> None:
    session = _named(variables, words)
    if len(words) == 1:
        show(session)
        return
    chosen = _candidate(session, words[1])
    winners = getattr(session, "winners", ())
    options = next((w.emitted.options for w in winners if w.candidate.digest == chosen.digest), None)
    if hasattr(get_ipython(), "kernel"):
        ExplorerView(chosen.graph, session.target, options).show()
    else:
        say(f"{print_graph(chosen.graph)}verdict: {chosen.verdict}")


def _stop(variables: Variables, words: list[str], _: dict[str, Any]) -> None:
    session = _named(variables, words)
    session.stop()
    say(snapshot_line(session.snapshot()))


def _load(variables: Variables, words: list[str], options: dict[str, Any]) -> None:
    name = words[0]
    if not name.isidentifier() or keyword.iskeyword(name):
        raise OptionError(f"{name!r} cannot be a variable", hint=f"in Python: session = mirage_nb.resume({name!r})")
    session = mirage_nb.resume(name, **options)
    variables[name] = session
    show(session)


def _stored(_: Variables, __: list[str], options: dict[str, Any]) -> None:
    kept = find_store(options.get("store", True))
    names = kept.names() if kept is not None else ()
    where = f" in {kept.path}" if kept is not None else ""
    say("\n".join(names) or f"nothing is stored{where}; %%mirage NAME --keep stores a session")


def _extend(variables: Variables, words: list[str], options: dict[str, Any]) -> None:
    session = _named(variables, words)
    session.extend(**with_limits(options, getattr(session, "limits", Limits())))
    show(session)


def _tune(variables: Variables, words: list[str], options: dict[str, Any]) -> None:
    session = _named(variables, words)
    session.tune(**options)
    show(session)


def _compare(variables: Variables, words: list[str], _: dict[str, Any]) -> None:
    session = _named(variables, words)
    left, right = (_candidate(session, word) for word in words[1:3])
    say(compare_text(left, right, session.target), styled(compare_html(left, right, session.target)))


def _mark(how: str, variables: Variables, words: list[str], _: dict[str, Any]) -> None:
    session = _named(variables, words)
    listed = words[1] == "best" or any(c.digest.startswith(words[1]) for c in session.snapshot().candidates)
    digest = _candidate(session, words[1]).digest if listed else words[1]  # what is excluded is in no list
    getattr(session, how)(digest)
    start = digest[:8]
    undo = f"{start} is left out; %mirage include {words[0]} {start} undoes it\n" if how == "exclude" else ""
    say(undo + snapshot_text(session.snapshot()))


def _submit(variables: Variables, words: list[str], _: dict[str, Any]) -> None:
    session = _named(variables, words)
    candidate = session.submit(_text(variables, session, words[1]))
    say(f"{candidate.digest[:8]}: {candidate.verdict}")


def _explain(variables: Variables, words: list[str], _: dict[str, Any]) -> None:
    session = _named(variables, words)
    say(str(session.explain(_text(variables, session, words[1]))))


def _export(variables: Variables, words: list[str], _: dict[str, Any]) -> None:
    path = export(_named(variables, words), Path(words[1]))
    say(f"{path.name}: {path.stat().st_size / 1024:.0f} KB")


def _verbs() -> str:
    """How both magics are used."""
    verbs = "\n".join(f"{verb.usage}\n    {verb.doc}" for verb in VERBS.values())
    return f"{folded(USAGE)}\n\n{verbs}"


def _help(_: Variables, words: list[str], __: dict[str, Any]) -> None:
    if not words:
        return say(f"{_verbs()}\n\n{reference()}")
    word = words[0].removesuffix("()")
    verb, found = VERBS.get(word), explained(word)
    if verb is not None:
        options = "".join(f"\n  {option.name:<20} {option.doc}" for option in verb.options)
        say(f"{verb.usage}\n{verb.doc}{options}")
    elif found:
        say(found)
    else:
        raise OptionError(f"unknown function {words[0]!r}", hint=nearest(words[0], [*FUNCTIONS, *made(), *VERBS]))


def _torch(variables: Variables, words: list[str], _: dict[str, Any]) -> None:
    for word in words:
        if word not in variables:
            raise OptionError(f"there is no variable {word!r}", hint="a model, then a tensor or a tuple of tensors")
    given: list[Any] = [variables[word] for word in words]
    found = mirage_nb.model_report(*given)
    say(str(found), found.to_html())


def _doctor(_: Variables, __: list[str], ___: dict[str, Any]) -> None:
    say(report(examine()))


VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb("list", "", "the sessions of this notebook", _list),
        Verb("show", "NAME [DIGEST]", "another live view of a session, or one of its µGraphs to walk through", _show),
        Verb("stop", "NAME", "end a search; what was found stays", _stop),
        Verb(
            "extend",
            "NAME",
            "go on with larger bounds, or other axioms; nothing that is done is repeated",
            _extend,
            (*EXTEND, *SWITCHES, *LIMITS),
        ),
        Verb("tune", "NAME", "compile and time more ways to emit, on the GPU", _tune, TUNE),
        Verb("compare", "NAME DIGEST DIGEST", "two µGraphs side by side", _compare),
        Verb(
            "explain",
            "NAME DIGEST",
            "why the search has a µGraph or not; a digest, or a variable with its text",
            _explain,
        ),
        Verb(
            "submit", "NAME VARIABLE", "check, verify and add a µGraph of your own; a variable with its text", _submit
        ),
        Verb("pin", "NAME DIGEST", "keep a µGraph among the results, whatever its rank", partial(_mark, "pin")),
        Verb("exclude", "NAME DIGEST", "take a µGraph out of the results", partial(_mark, "exclude")),
        Verb("include", "NAME DIGEST", "undo pin or exclude", partial(_mark, "include")),
        Verb("export", "NAME FILE", "write the session as one HTML page that needs nothing else", _export),
        Verb("load", "NAME", "go on with a stored session, and bind it to NAME", _load, STORE),
        Verb("stored", "", "the names of the stored sessions, the latest first", _stored, STORE),
        Verb("torch", "MODEL INPUTS", "what torch.compile with this backend would take over of a model", _torch),
        Verb("help", "[WORD]", "the language of tensor programs, or one function of it, or one of these verbs", _help),
        Verb("doctor", "", "what this machine has and what is missing", _doctor),
    )
}


def _named(variables: Mapping[str, object], words: list[str]) -> Any:
    """The session that the first word names. Raises OptionError."""
    found = sessions(variables)
    if words[0] not in found:
        hint = nearest(words[0], found) if found else "there are no sessions; start one with a %%mirage cell"
        raise OptionError(f"no session is named {words[0]!r}", hint=hint)
    return found[words[0]]


def _candidate(session: Any, start: str) -> Candidate:
    """The candidate whose digest begins with `start`; `best` is the best one. Raises OptionError."""
    candidates = session.snapshot().candidates
    found = [c for c in candidates if c.digest.startswith(start)]
    if start == "best" and session.snapshot().best is not None:
        found = [session.snapshot().best]
    if len(found) != 1:
        known = ", ".join(["best", *(c.digest[:8] for c in candidates[:6])])
        what = "several µGraphs begin" if found else "no µGraph begins"
        raise OptionError(f"{what} with {start!r}", hint=f"one of {known}" if candidates else "there are none yet")
    chosen: Candidate = found[0]
    return chosen


def _text(variables: Mapping[str, object], session: Any, word: str) -> str:
    """The text of a muGraph: a variable that holds it, or a candidate. Raises OptionError."""
    candidates = session.snapshot().candidates
    match variables.get(word):
        case str() as text:
            return text
        case KernelGraph() as graph:
            return print_graph(graph)
        case None if not (word == "best" or any(c.digest.startswith(word) for c in candidates)):
            hint = "a µGraph's digest, as `best`, or a variable that holds the text of one"
            raise OptionError(f"{word!r} is neither a µGraph of the list nor a variable", hint=hint)
        case None:
            return print_graph(_candidate(session, word).graph)
        case other:
            what = f"{word!r} holds a value of type {type(other).__name__}"
            raise OptionError(f"{what}, not the text of a µGraph", hint="as print_graph(NAME.best.graph) writes it")
