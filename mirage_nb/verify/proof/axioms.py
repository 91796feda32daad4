"""The axioms of proofs, as data: equations between patterns, what has to hold of their parts, and what they assume.

A pattern is written as a Python expression. Small letters stand for terms, capitals for lists of indices, `g` for a
function known by name; `Sum(V, f)` binds the indices V in f, where f may use them. An instance is read from left to
right; only axioms marked `reversible` may be read from right to left: they hold for all reals, so that reading them
either way brings in nothing that may be undefined. `inv` is one over its argument; every other axiom holds wherever
its left side is defined, or under the assumption that it names. Tests hold each one against float64 numbers.

A property is a fact about a function that terms only know by name, and enables the axioms that need it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mirage_nb.verify.proof.terms import Kind

DENOMINATORS = "every denominator is different from zero"
ROOTS = "square roots are taken of numbers that are not negative"
POWERS = "powers are taken where they are defined"


@dataclass(frozen=True, slots=True)
class Without:
    """The term does not use the indices."""

    term: str
    indices: str

    def __str__(self) -> str:
        return f"{self.term} does not use {self.indices}"


@dataclass(frozen=True, slots=True)
class Positive:
    """The term is greater than zero by its form."""

    term: str

    def __str__(self) -> str:
        return f"{self.term} > 0"


@dataclass(frozen=True, slots=True)
class Has:
    """The function g has the property."""

    name: str

    def __str__(self) -> str:
        return f"g is {self.name}"


Condition = Without | Positive | Has


@dataclass(frozen=True, slots=True)
class Pattern:
    """A node of a pattern: a name (for what is bound to it), a numeral, or `head` applied to arguments."""

    head: str
    args: tuple[Pattern, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class Axiom:
    """An equation with its conditions, what it assumes (empty: nothing), and whether it may be read backwards."""

    name: str
    left: Pattern
    right: Pattern
    text: str
    conditions: tuple[Condition, ...] = ()
    assumes: str = ""
    reversible: bool = False


def axiom(name: str, text: str, *conditions: Condition, assumes: str = "", reversible: bool = False) -> Axiom:
    """The axiom that a text `left == right` states."""
    tree = ast.parse(text, mode="eval").body
    assert isinstance(tree, ast.Compare)
    return Axiom(name, _pattern(tree.left), _pattern(tree.comparators[0]), text, conditions, assumes, reversible)


def _pattern(node: ast.expr) -> Pattern:
    match node:
        case ast.Name(id=name):
            return Pattern(name)
        case ast.Constant(value=int(value)):
            return Pattern(Kind.NUM, number=value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Pattern(Kind.MUL, (Pattern(Kind.NUM, number=-1), _pattern(operand)))
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult() as sign, right=right):
            return Pattern(Kind.ADD if isinstance(sign, ast.Add) else Kind.MUL, (_pattern(left), _pattern(right)))
        case ast.Call(func=ast.Name(id=head), args=args):
            return Pattern(head, tuple(map(_pattern, args)))
    raise ValueError(f"{ast.unparse(node)} is no pattern")


AXIOMS: Mapping[str, Axiom] = MappingProxyType(
    {
        row.name: row
        for row in (
            axiom("distribute", "(a + b) * c + r == a * c + b * c + r", reversible=True),
            # Sums over parts of axes: a partitioned axis is summed part by part, in any order.
            axiom("sum_partition", "Sum(V, a * Sum(W, f)) == Sum(V + W, a * f)", Without("a", "W")),
            axiom("sum_add", "Sum(V, a + b) == Sum(V, a) + Sum(V, b)"),
            axiom("sum_product", "Sum(V + W, f * h) == Sum(V, f) * Sum(W, h)", Without("f", "W"), Without("h", "V")),
            axiom("sum_replica", "Sum(V + W, f) == size(V) * Sum(W, f)", Without("f", "V")),
            # Maxima, and sums that carry a running maximum.
            axiom("max_partition", "Max(V, Max(W, f)) == Max(V + W, f)"),
            axiom("max_replica", "Max(V + W, f) == Max(W, f)", Without("f", "V")),
            axiom("max_shift", "Max(V, a + c) == Max(V, a) + c", Without("c", "V")),
            axiom("max_scale", "Max(V, c * a) == c * Max(V, a)", Without("c", "V"), Positive("c")),
            axiom("max_apart", "Max(V, max(a, b)) == max(Max(V, a), Max(V, b))"),
            axiom("largest_shift", "max(a + c, b + c) == max(a, b) + c"),
            axiom("largest_scale", "max(c * a, c * b) == c * max(a, b)", Positive("c")),
            axiom("rescaled_sum", "Rescaled(V, a, m) == exp(-Max(V, m)) * Sum(V, a * exp(m))"),
            # Exponentials, quotients, roots.
            axiom("exp_add", "exp(a + b) * r == exp(a) * exp(b) * r", reversible=True),
            axiom("inv_exp", "inv(exp(a)) == exp(-a)"),
            axiom("inv_product", "inv(a * b) == inv(a) * inv(b)"),
            axiom("inv_inv", "inv(inv(a)) == a"),
            axiom("inv_cancel", "a * inv(a) * r == r", assumes=DENOMINATORS),
            axiom("inv_common", "inv(a * c + b * c) == inv(c) * inv(a + b)"),
            axiom("sqrt_scale", "sqrt(c * a) == sqrt(c) * sqrt(a)", Positive("c")),
            axiom("sqrt_square", "sqrt(a) * sqrt(a) * r == a * r", assumes=ROOTS),
            axiom("sqrt_inverse_square", "inv(sqrt(a)) * inv(sqrt(a)) * r == inv(a) * r", assumes=ROOTS),
            axiom("sqrt_quotient", "sqrt(a) * inv(a) * r == inv(sqrt(a)) * r", assumes=ROOTS),
            # What functions stand for.
            axiom("silu_definition", "SiLU(a) == a * inv(1 + exp(-a))"),
            axiom("sigmoid_definition", "Sigmoid(a) == inv(1 + exp(-a))"),
            # What properties say.
            axiom("odd", "g(-a) == -g(a)", Has("odd")),
            axiom("even", "g(-a) == g(a)", Has("even")),
            axiom("idempotent", "g(g(a)) == g(a)", Has("idempotent")),
            axiom("linear", "g(c * a) == c * g(a)", Has("linear")),
            axiom("homogeneous", "g(c * a) == c * g(a)", Has("homogeneous"), Positive("c")),
            axiom("monotone", "g(Max(V, f)) == Max(V, g(f))", Has("monotone")),
            axiom("monotone_largest", "g(max(a, b)) == max(g(a), g(b))", Has("monotone")),
            axiom("multiplicative", "g(a * b) == g(a) * g(b)", Has("multiplicative"), assumes=POWERS),
            axiom("multiplicative_inverse", "g(inv(a)) == inv(g(a))", Has("multiplicative"), assumes=POWERS),
        )
    }
)

Properties = Mapping[str, frozenset[str]]
"""For each function, by its whole name in terms or by the name in front of its attributes: what is known of it."""

PROPERTIES: Properties = MappingProxyType(
    {
        "ReLU": frozenset({"idempotent", "monotone", "homogeneous"}),
        "Clamp": frozenset({"idempotent", "monotone"}),
        "Sigmoid": frozenset({"monotone"}),
    }
)
"""What is known of the operators of the table; users add to it, see `prove`."""

PROPERTY_NAMES = frozenset(c.name for row in AXIOMS.values() for c in row.conditions if isinstance(c, Has))


def has_property(function: str, name: str, properties: Properties) -> bool:
    """Whether a function is known to have a property; a user's function `f` has the name `@f(...)` in terms."""
    head = function.split("(", 1)[0]
    known = [PROPERTIES.get(key, ()) for key in (function, head)]
    return any(name in names for names in (*known, *(properties.get(key, ()) for key in (function, head, head[1:]))))
