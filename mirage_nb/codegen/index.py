"""Index arithmetic for emitted code: sums of named, bounded integers that simplify as they are built.

Invariant: every index is a non-negative integer below or equal to `limit`; division and remainder use
that bound, so that splitting and merging dimensions leaves no needless arithmetic in the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Index:
    """`const` plus the sum of coefficient * name; `terms` holds (C expression, exclusive bound, coefficient)."""

    terms: tuple[tuple[str, int, int], ...] = ()
    const: int = 0

    @property
    def limit(self) -> int:
        """The largest value."""
        return self.const + sum((bound - 1) * factor for _, bound, factor in self.terms)

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other)
        merged = {(text, bound): factor for text, bound, factor in self.terms}
        for text, bound, factor in other.terms:
            merged[text, bound] = merged.get((text, bound), 0) + factor
        terms = tuple((text, bound, factor) for (text, bound), factor in merged.items() if factor)
        return Index(terms, self.const + other.const)

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return Index()
        return Index(tuple((t, b, f * factor) for t, b, f in self.terms), self.const * factor)

    def _split(self, divisor: int) -> tuple[Index, Index]:
        """The part that `divisor` divides, and the rest."""
        whole = tuple(t for t in self.terms if t[2] % divisor == 0)
        rest = tuple(t for t in self.terms if t[2] % divisor)
        const = self.const // divisor * divisor
        return Index(whole, const), Index(rest, self.const - const)

    def __floordiv__(self, divisor: int) -> Index:
        whole, rest = self._split(divisor)
        exact = Index(tuple((t, b, f // divisor) for t, b, f in whole.terms), whole.const // divisor)
        if rest.limit < divisor:
            return exact
        return exact + Index(((f"({rest} / {divisor})", rest.limit // divisor + 1, 1),))

    def __mod__(self, divisor: int) -> Index:
        _, rest = self._split(divisor)
        if rest.limit < divisor:
            return rest
        return Index(((f"({rest} % {divisor})", divisor, 1),))

    def multiple_of(self, unit: int) -> bool:
        """Whether every value is known to be a multiple of `unit`."""
        return self.const % unit == 0 and all(f % unit == 0 for _, _, f in self.terms)

    def __str__(self) -> str:
        parts = [text if factor == 1 else f"{text} * {factor}" for text, _, factor in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        body = " + ".join(parts)
        return f"({body})" if len(parts) > 1 else body

    @property
    def bare(self) -> str:
        """The expression without outer brackets; a choice keeps them, because all operators bind tighter."""
        text = str(self)
        single = len(self.terms) == 1 and not self.const and self.terms[0][2] == 1 and "?" not in text
        enclosed = len(self.terms) + bool(self.const) > 1 or (single and _enclosed(text))
        return text[1:-1] if enclosed else text


def _enclosed(text: str) -> bool:
    """Whether the first bracket closes at the very end."""
    if not text.startswith("("):
        return False
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position == len(text) - 1
    return False


def named(text: str, bound: int) -> Index:
    """A C expression with values 0 .. bound-1; a bound of 1 is the number 0."""
    return Index(((text, bound, 1),)) if bound > 1 else Index()


def linear(index: Sequence[Index], shape: Sequence[int]) -> Index:
    """Row-major position of a multi-index."""
    found = Index()
    for part, extent in zip(index, shape, strict=True):
        found = found * extent + part
    return found


def unravel(position: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The multi-index of a row-major position."""
    found: list[Index] = []
    for extent in reversed(shape):
        found.append(position % extent if extent > 1 else Index())
        position = position // extent
    return tuple(reversed(found))
