"""The axioms of Table 2 as data: what may be rewritten into what, and what counts as a part of what.

In: nothing. Out: the term language (`Symbol`, `Apply`, `Sum`, and `Hole`, `AxisHole` in patterns) and two
tuples of `Axiom`: `EQUATIONS` (A_eq, usable in both directions) and `PARTS` (A_sub: `lhs` is a part of
`rhs`). The normal form validates every equation that is in force; the tests, their rewriting and the
documentation read the same tuples. Section 4.3 of the paper.

Sums carry the name of a (part of an) axis instead of a size, so two axioms gain a side condition: a sum
may only be moved over a factor that does not depend on its axis.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

Effort = Literal["quick", "standard", "thorough"]
Group = Literal["A_eq", "A_sub"]

UNIT_AXIS = "1"
"""The axis of extent one: summing over it changes nothing."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A leaf: an input tensor or a constant. Which axes it depends on is declared beside the term."""

    name: str


@dataclass(frozen=True, slots=True)
class Hole:
    """In a pattern: any term."""

    name: str


@dataclass(frozen=True, slots=True)
class AxisHole:
    """In a pattern: any axis."""

    name: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator (`add`, `mul`, `div`, `exp`, `sqrt`, or an opaque function's name) applied to terms."""

    op: str
    args: tuple[Term, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.op, self.args)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of `body` over one axis (or one part of an axis)."""

    axis: Hashable
    body: Term
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((Sum, self.axis, self.body)))

    def __hash__(self) -> int:
        return self._hash


Term = Symbol | Hole | Apply | Sum


@dataclass(frozen=True, slots=True)
class Independent:
    """Side condition: the term bound to `term` does not depend on the axis bound to `axis`."""

    axis: str
    term: str


@dataclass(frozen=True, slots=True)
class AdditionFree:
    """Side condition: at least one of the named terms has no addition in its numerator."""

    terms: tuple[str, ...]


Condition = Independent | AdditionFree


@dataclass(frozen=True, slots=True)
class Axiom:
    """One axiom: `lhs` = `rhs` in group A_eq, `lhs` is a part of `rhs` in group A_sub.

    Attributes:
        name: how options, results and tests call it.
        conditions: must hold for the axiom to apply.
        effort: the lowest effort at which it applies without further conditions.
        factored_conditions: further conditions while products of sums stay factored.
        says: the equation as people write it.
        fixed: why it cannot be switched off; empty if `AlgebraOptions.off` may name it.
    """

    name: str
    lhs: Term
    rhs: Term
    conditions: tuple[Condition, ...] = ()
    group: Group = "A_eq"
    effort: Effort = "quick"
    factored_conditions: tuple[Condition, ...] = ()
    says: str = ""
    fixed: str = ""

    @property
    def switchable(self) -> bool:
        """Whether it may be switched off."""
        return self.group == "A_eq" and not self.fixed


def add(x: Term, y: Term) -> Apply:
    """The term x + y (also x - y: the abstraction drops the sign)."""
    return Apply("add", (x, y))


def mul(x: Term, y: Term) -> Apply:
    """The term x * y."""
    return Apply("mul", (x, y))


def div(x: Term, y: Term) -> Apply:
    """The term x / y."""
    return Apply("div", (x, y))


def exp(x: Term) -> Apply:
    """The term exp(x)."""
    return Apply("exp", (x,))


def sqrt(x: Term) -> Apply:
    """The term sqrt(x)."""
    return Apply("sqrt", (x,))


_X, _Y, _Z = Hole("x"), Hole("y"), Hole("z")
_I, _J = AxisHole("i"), AxisHole("j")

_UNORDERED = "operands have no order: the search tries every pair of values once, and what it finds is one muGraph"
_TOGETHER = "the parts of an axis (grid, loop, tile) are summed as one set; their order is that of the muGraph's levels"
_NO_AXIS = "an axis of extent one is no axis of the search, so nothing is ever summed over it"

EQUATIONS: tuple[Axiom, ...] = (
    Axiom("add_commutes", add(_X, _Y), add(_Y, _X), says="x + y = y + x", fixed=_UNORDERED),
    Axiom("mul_commutes", mul(_X, _Y), mul(_Y, _X), says="x * y = y * x", fixed=_UNORDERED),
    Axiom("add_associates", add(_X, add(_Y, _Z)), add(add(_X, _Y), _Z), says="x + (y + z) = (x + y) + z"),
    Axiom("mul_associates", mul(_X, mul(_Y, _Z)), mul(mul(_X, _Y), _Z), says="x * (y * z) = (x * y) * z"),
    Axiom(
        "mul_distributes",
        add(mul(_X, _Z), mul(_Y, _Z)),
        mul(add(_X, _Y), _Z),
        effort="standard",
        factored_conditions=(AdditionFree(("z",)),),
        says="x * z + y * z = (x + y) * z",
    ),
    Axiom("div_distributes", add(div(_X, _Z), div(_Y, _Z)), div(add(_X, _Y), _Z), says="x / z + y / z = (x + y) / z"),
    Axiom("mul_div", mul(_X, div(_Y, _Z)), div(mul(_X, _Y), _Z), says="x * (y / z) = (x * y) / z"),
    Axiom("div_div", div(div(_X, _Y), _Z), div(_X, mul(_Y, _Z)), says="(x / y) / z = x / (y * z)"),
    Axiom("sum_one", Sum(UNIT_AXIS, _X), _X, says="Σ over an axis of extent one: Σ x = x", fixed=_NO_AXIS),
    # Table 2 writes both sides as sum(i*j, x); a product of extents commutes, and so do named sums.
    Axiom("sum_sum", Sum(_I, Sum(_J, _X)), Sum(_J, Sum(_I, _X)), says="Σi Σj x = Σj Σi x", fixed=_TOGETHER),
    Axiom("sum_add", Sum(_I, add(_X, _Y)), add(Sum(_I, _X), Sum(_I, _Y)), says="Σ (x + y) = Σ x + Σ y"),
    Axiom(
        "sum_mul",
        Sum(_I, mul(_X, _Y)),
        mul(Sum(_I, _X), _Y),
        conditions=(Independent("i", "y"),),
        effort="standard",
        factored_conditions=(AdditionFree(("x", "y")),),
        says="Σi (x * y) = (Σi x) * y, where y does not depend on i",
    ),
    Axiom(
        "sum_div",
        Sum(_I, div(_X, _Y)),
        div(Sum(_I, _X), _Y),
        conditions=(Independent("i", "y"),),
        says="Σi (x / y) = (Σi x) / y, where y does not depend on i",
    ),
    Axiom("exp_product", mul(exp(_X), exp(_Y)), exp(add(_X, _Y)), says="exp(x) * exp(y) = exp(x + y)"),
    Axiom(
        "sqrt_product",
        mul(sqrt(_X), sqrt(_Y)),
        sqrt(mul(_X, _Y)),
        effort="thorough",
        says="sqrt(x) * sqrt(y) = sqrt(x * y)",
    ),
)
"""A_eq of Table 2, one row each."""

PARTS: tuple[Axiom, ...] = (
    Axiom("part_of_add", _X, add(_X, _Y), group="A_sub"),
    Axiom("part_of_mul", _X, mul(_X, _Y), group="A_sub"),
    Axiom("part_of_dividend", _X, div(_X, _Y), group="A_sub"),
    Axiom("part_of_divisor", _Y, div(_X, _Y), group="A_sub"),
    Axiom("part_of_exp", _X, exp(_X), group="A_sub"),
    Axiom("part_of_sqrt", _X, sqrt(_X), group="A_sub"),
    Axiom("part_of_sum", _X, Sum(_I, _X), group="A_sub"),
    Axiom("part_of_function", _X, Apply("silu", (_X,)), group="A_sub"),
    Axiom("part_of_itself", _X, _X, group="A_sub"),
)
"""A_sub of Table 2, one row each; transitivity is implied: a part of a part is a part.

`part_of_function` stands for every opaque unary function.
"""

BY_NAME: dict[str, Axiom] = {axiom.name: axiom for axiom in EQUATIONS + PARTS}
