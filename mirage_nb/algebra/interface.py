"""What the search asks of abstract expressions and of their oracle, whichever axioms are in force (see `strict`)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol

from mirage_nb.algebra.atoms import Expr, SubAxis
from mirage_nb.algebra.options import AlgebraOptions


class Expressions(Protocol):
    """What the search asks of an algebra."""

    options: AlgebraOptions

    def symbol(self, name: str, axes: Iterable[SubAxis] = ()) -> Expr:
        """An input tensor."""

    def constant(self, key: Hashable) -> Expr:
        """A scalar."""

    def add(self, a: Expr, b: Expr) -> Expr:
        """a + b."""

    def negate(self, e: Expr) -> Expr:
        """-e, told from e."""

    def mul(self, a: Expr, b: Expr) -> Expr:
        """a * b."""

    def div(self, a: Expr, b: Expr) -> Expr:
        """a / b."""

    def exp(self, e: Expr) -> Expr:
        """exp(e)."""

    def sqrt(self, e: Expr) -> Expr:
        """The square root of e."""

    def sum(self, axes: Iterable[SubAxis], e: Expr) -> Expr:
        """The sum of e over some axes."""

    def function(self, name: str, e: Expr) -> Expr:
        """An opaque unary function of e."""

    def free_axes(self, e: Expr) -> frozenset[SubAxis]:
        """The axes that e depends on."""

    def monomials(self, e: Expr) -> tuple[tuple[int, int], ...]:
        """The terms of the plain normal form."""

    def show(self, e: Expr) -> str:
        """The plain normal form as text."""


class Pruner(Protocol):
    """What the search asks of an oracle."""

    def reaches(self, e: Expr) -> bool:
        """Whether e can still become a part of some target."""

    def pair(self, a: Expr, b: Expr) -> int:
        """Which results of a and b can reach a target: MUL | ADD | DIV_AB | DIV_BA."""

    def parts(self) -> int:
        """How many sums are parts of the sum in a target that has most of them."""

    def explain(self, e: Expr) -> str:
        """Why e is kept or cut, in one or two lines."""
