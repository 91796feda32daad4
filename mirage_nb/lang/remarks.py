"""What is no mistake but hardly meant: names on which no output depends.

In: bindings, as statements make them. Out: remarks, with their places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirage_nb.errors import SourceSpan
from mirage_nb.lang.bindings import Binding


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that is no mistake but hardly meant, such as a name that nothing reads."""

    message: str
    span: SourceSpan

    def __str__(self) -> str:
        return f"{self.message}\n{self.span.caret()}"


def behind(read: Iterable[Binding]) -> set[Binding]:
    """What was read, and what that was made of."""
    pending, found = list(read), set[Binding]()
    while pending:
        binding = pending.pop()
        if binding not in found:
            found.add(binding)
            pending.extend(binding.reads)
    return found


def remarks(made: Sequence[Binding], read: Iterable[Binding]) -> tuple[Remark, ...]:
    """Names on which nothing depends that was `read` in the end; what a loop assigns counts once."""
    found = behind(read)
    used, names = {binding.place for binding in found}, {binding.name for binding in found}

    def said(b: Binding) -> str:
        if b.name in names and not b.is_input:
            return f"{b.name} is given another value before anything reads this one"
        return f"{b.name} is {'declared' if b.is_input else 'defined'} and no output needs it"

    unused = (b for b in {binding.place: binding for binding in made}.values() if b.place not in used)
    return tuple(Remark(said(b), b.place) for b in unused if not b.name.startswith("_"))
