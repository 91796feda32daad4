"""The errors that users see: one class per kind of mistake, each with its place and a hint.

Every class derives from `MirageError`. Notebooks print `str(error)` without a traceback; callers of the
Python API catch the class. An error never carries more than one screen of text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


def printable(text: str) -> str:
    """A text from anywhere, for a terminal: what moves its cursor or hides characters is written as an escape."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def suggestion(name: str, known: Iterable[str], alike: float = 0.6) -> str:
    """`did you mean ...?` for the nearest known name that is so much `alike`, or nothing."""
    folded = {other.lower(): other for other in known}
    near = difflib.get_close_matches(name[:40].lower(), folded, n=1, cutoff=alike)
    return f"did you mean {folded[near[0]]}?" if near else ""


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """A place in a text: 1-based line, 1-based first column, number of characters, and the line itself."""

    line: int
    column: int
    width: int
    text: str

    def caret(self) -> str:
        """The line, or what is near of a long one, with a caret under the offending characters."""
        start = max(0, self.column - 41)
        # As wide as the caret takes it: a tab is a space, and what a terminal would obey is a mark.
        shown = "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in self.text[start : start + 120])
        shown = f"{'…' if start else ''}{shown[bool(start) :]}{'…' if start + 120 < len(self.text) else ''}"
        lead = self.column - 1 - start
        marks = "^" * max(1, min(self.width, max(1, len(shown) - lead)))
        return f"  line {self.line}: {shown}\n{' ' * (len(f'  line {self.line}: ') + lead)}{marks}"


class MirageError(Exception):
    """Base of all errors raised for a user's mistake or a missing part of the machine.

    Args:
        message: what is wrong, one sentence.
        hint: what to do about it, one sentence, or empty.
        span: where in the program's text, if there is one.
    """

    def __init__(self, message: str, *, hint: str = "", span: SourceSpan | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.span = span

    def __str__(self) -> str:
        parts = [self.message]
        if self.span is not None:
            parts.append(self.span.caret())
        if self.hint:
            parts.append(f"  hint: {self.hint}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross worker boundaries whole."""
        return _rebuild, (type(self), self.message, self.hint, self.span)


def _rebuild(kind: type[MirageError], message: str, hint: str, span: SourceSpan | None) -> MirageError:
    return kind(message, hint=hint, span=span)


class ProgramSyntaxError(MirageError):
    """The text is not a tensor program: bad Python syntax, or a statement that programs do not have."""


class UnknownNameError(MirageError):
    """A tensor, constant or function name that was never declared."""


class DuplicateNameError(MirageError):
    """A name that is declared or assigned twice."""


class ShapeError(MirageError):
    """Shapes that do not fit the operator, or an axis that the tensor does not have."""


class NamedSizeError(ShapeError):
    """A size that is known at launch only, where a number is needed."""


class TraceError(MirageError):
    """A module or function of PyTorch that is no tensor program, or that PyTorch cannot export."""


class DTypeError(MirageError):
    """An unknown dtype, or dtypes that do not go together."""


class ProgramSizeError(MirageError):
    """A program, tensor or file beyond the stated limits."""


class GraphError(MirageError):
    """A muGraph that breaks Definition 2.1 of the paper."""


class FormatError(MirageError):
    """A text or JSON form that cannot be read back."""


class OptionError(MirageError):
    """An unknown option, or a value that it cannot take."""


class ArgumentError(OptionError, TypeError):
    """An argument that a public function does not have, or one of another type than it takes."""


class TargetError(MirageError):
    """An unknown target, or a muGraph that does not fit the target."""


class VerificationError(MirageError):
    """The verifier refuses to run: the input is not decidable as asked."""


class ProofError(MirageError):
    """A proof that does not hold, or a step that no axiom allows."""


class AssumptionError(ProofError):
    """A proof that rests on what its reader did not say."""


class SearchError(MirageError):
    """The search cannot start, or it lost all its workers."""


class EmitError(MirageError):
    """A muGraph that cannot be turned into CUDA for this target."""


class CompileError(MirageError):
    """NVRTC or g++ rejected the emitted source, or is missing."""


class LaunchError(MirageError):
    """A kernel that could not be launched or executed: wrong arguments, a lost GPU."""


class NoKernelError(LaunchError):
    """A session has no kernel: not yet, or nothing that was found runs on this machine."""


class MissingPartError(MirageError):
    """An optional part of the machine or of the installation is missing; the hint says how to get it."""


class StoreError(MirageError):
    """The store cannot be read or written: full disk, foreign file, newer schema."""
