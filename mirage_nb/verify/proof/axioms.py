"""The axioms of proofs, as data: equations between patterns, and what has to hold of their parts.

A pattern is written as a Python expression. Small letters stand for terms, capitals for lists of indices, `g` for a
function known by name; `Sum(V, f)` binds the indices V in f, where f may use them. Terms are total functions of real
numbers (`terms`: one over 0 is 0, and so is the root of a negative number), and an axiom is an equation between such
functions that holds at every point where its conditions do; so it may be read either way. Where graphs have values is
asked of the graphs. Tests hold each axiom against Z3, or exact numbers, and find every mutant of one wrong.

A property is a fact about a function that terms only know by name, and enables the axioms that need it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mirage_nb.ir.syntax import expression
from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.proof.signs import is_total
from mirage_nb.verify.proof.terms import Kind


@dataclass(frozen=True, slots=True)
class Without:
    """The term does not use the indices."""

    term: str
    indices: str

    def __str__(self) -> str:
        return f"{self.term} does not use {self.indices}"


@dataclass(frozen=True, slots=True)
class Is:
    """The term is what is needed, by its form or by what is known where the program is defined."""

    term: str
    need: Need

    def __str__(self) -> str:
        return f"{self.term} is {self.need.value}"


@dataclass(frozen=True, slots=True)
class Same:
    """Both lists have the same indices, in any order."""

    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.first} and {self.second} are the same indices"


@dataclass(frozen=True, slots=True)
class Has:
    """The function g is defined everywhere and has the property."""

    name: str

    def __str__(self) -> str:
        return f"g is {self.name}"


@dataclass(frozen=True, slots=True)
class Vanishes:
    """The term is 0 wherever another one is, by the form of both."""

    term: str
    where: str

    def __str__(self) -> str:
        return f"{self.term} is 0 where {self.where} is"


@dataclass(frozen=True, slots=True)
class Bit:
    """The term is 0 or 1 by its form."""

    term: str

    def __str__(self) -> str:
        return f"{self.term} is 0 or 1"


@dataclass(frozen=True, slots=True)
class Whole:
    """The term is a whole number."""

    term: str

    def __str__(self) -> str:
        return f"{self.term} is a whole number"


Condition = Without | Is | Same | Has | Vanishes | Bit | Whole


@dataclass(frozen=True, slots=True)
class Pattern:
    """A node of a pattern: a name (for what is bound to it), a numeral, or `head` applied to arguments."""

    head: str
    args: tuple[Pattern, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class Axiom:
    """An equation with its conditions."""

    name: str
    left: Pattern
    right: Pattern
    text: str
    conditions: tuple[Condition, ...] = ()


def axiom(name: str, text: str, *conditions: Condition) -> Axiom:
    """The axiom that a text `left == right` states."""
    tree = expression(text).body
    assert isinstance(tree, ast.Compare)
    return Axiom(name, _pattern(tree.left), _pattern(tree.comparators[0]), text, conditions)


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


def _nonzero(*letters: str) -> Iterator[Is]:
    return (Is(letter, Need.NONZERO) for letter in letters)


def _nonnegative(*letters: str) -> Iterator[Is]:
    return (Is(letter, Need.NONNEGATIVE) for letter in letters)


def _positive(*letters: str) -> Iterator[Is]:
    return (Is(letter, Need.POSITIVE) for letter in letters)


AXIOMS: Mapping[str, Axiom] = MappingProxyType(
    {
        row.name: row
        for row in (
            axiom("distribute", "(a + b) * c + r == a * c + b * c + r"),
            # Sums over parts of axes: a partitioned axis is summed part by part, in any order.
            axiom("sum_order", "Sum(V, f) == Sum(W, f)", Same("V", "W")),
            axiom("sum_partition", "Sum(V, a * Sum(W, f)) == Sum(V + W, a * f)", Without("a", "W")),
            axiom("sum_add", "Sum(V, a + b) == Sum(V, a) + Sum(V, b)"),
            axiom("sum_product", "Sum(V + W, f * h) == Sum(V, f) * Sum(W, h)", Without("f", "W"), Without("h", "V")),
            axiom("sum_replica", "Sum(V + W, f) == size(V) * Sum(W, f)", Without("f", "V")),
            # Maxima, and sums that carry a running maximum.
            axiom("max_order", "Max(V, f) == Max(W, f)", Same("V", "W")),
            axiom("max_partition", "Max(V, Max(W, f)) == Max(V + W, f)"),
            axiom("max_replica", "Max(V + W, f) == Max(W, f)", Without("f", "V")),
            axiom("max_shift", "Max(V, a + c) == Max(V, a) + c", Without("c", "V")),
            axiom("max_scale", "Max(V, c * a) == c * Max(V, a)", Without("c", "V"), *_nonnegative("c")),
            axiom("max_apart", "Max(V, max(a, b)) == max(Max(V, a), Max(V, b))"),
            axiom("exp_max", "exp(Max(V, f)) == Max(V, exp(f))"),
            axiom("sqrt_max", "sqrt(Max(V, f)) == Max(V, sqrt(f))"),
            axiom("rescaled_order", "Rescaled(V, a, m) == Rescaled(W, a, m)", Same("V", "W")),
            axiom("rescaled_sum", "Rescaled(V, a, m) == exp(-Max(V, m)) * Sum(V, a * exp(m))"),
            axiom("within_max", "Within(V, a, b) == log(Max(V, b * exp(a)))", Bit("b")),
            axiom("within_nonnegative", "Within(V, a, b) == Max(V, b * a)", Bit("b"), *_nonnegative("a")),
            # The larger of two; the smaller one is -max(-a, -b).
            axiom("largest_shift", "max(a + c, b + c) == max(a, b) + c"),
            axiom("largest_scale", "max(c * a, c * b) == c * max(a, b)", *_nonnegative("c")),
            axiom("largest_difference", "max(a, b) == max(a + -b, 0) + b"),
            axiom("largest_turned", "max(a, 0) == max(-a, 0) + a"),
            axiom("largest_square", "max(a, 0) * max(a, 0) * r == a * max(a, 0) * r"),
            axiom("largest_product", "max(a * b, 0)"
                  " == 2 * max(a, 0) * max(b, 0) + -b * max(a, 0) + -a * max(b, 0) + a * b"),
            axiom("largest_known", "max(a + c, a, b) == max(a + c, b)", *_nonnegative("c")),
            axiom("largest_joined", "max(max(a, 0) + b, c) == max(a + b, b, c)"),
            axiom("largest_absorbs", "max(a + c, -max(-a, b), d) == max(a + c, d)", *_nonnegative("c")),
            axiom("largest_of_least", "max(-max(a, b), c) == -max(-max(-a, c), -max(-b, c))"),
            axiom("largest_opposed", "c * a + -c * max(a, b) + r == -c * max(-a, -b) + -b * c + r"),
            axiom("largest_between", "c * max(a, b) + -c * max(a, b + d) + r"
                  " == c * max(b, -max(-a, -b + -d)) + -c * b + -c * d + r", *_nonnegative("d")),
            axiom("largest_one", "max(exp(a), 1) == 1 + exp(a) + -exp(a) * exp(-max(a, 0))"),
            axiom("exp_largest", "exp(max(a, b)) == max(exp(a), exp(b))"),
            axiom("sqrt_largest", "sqrt(max(a, b)) == max(sqrt(a), sqrt(b))"),
            # Exponentials, quotients, roots, powers.
            axiom("exp_add", "exp(a + b) * r == exp(a) * exp(b) * r"),
            axiom("exp_log", "exp(log(a)) == a", *_positive("a")),
            axiom("log_exp", "log(exp(a)) == a"),
            axiom("log_product", "log(a * b) == log(a) + log(b)", *_positive("a", "b")),
            axiom("log_inverse", "log(inv(a)) == -log(a)"),
            axiom("inv_exp", "inv(exp(a)) == exp(-a)"),
            axiom("inv_product", "inv(a * b) == inv(a) * inv(b)"),
            axiom("inv_inv", "inv(inv(a)) == a"),
            axiom("inv_cancel", "a * inv(a) * r == r", *_nonzero("a")),
            axiom("inv_absorbed", "a * inv(a) * b == b", Vanishes("b", "a")),
            axiom("inv_common", "inv(a * c + b * c) == inv(c) * inv(a + b)"),
            axiom("inv_exps", "inv(c * exp(a) + d * exp(b)) == exp(-b) * inv(c * exp(a + -b) + d)"),
            axiom("logistic", "inv(1 + exp(a)) == 1 + -inv(1 + exp(-a))"),
            axiom("logistic_over", "exp(a) * inv(1 + exp(a)) * r == r + -inv(1 + exp(a)) * r"),
            axiom("logistic_beside", "exp(-a) * inv(1 + exp(a)) * r == exp(-a) * r + -inv(1 + exp(a)) * r"),
            axiom("log_sqrt", "log(sqrt(a)) == inv(2) * log(a)"),
            axiom("log_exps", "log(exp(a) + exp(b)) == b + log(exp(a + -b) + 1)"),
            axiom("log_largest", "log(1 + exp(c * a + -2 * c * max(a, 0))) == log(1 + exp(c * a)) + -c * max(a, 0)"),
            axiom("log_turned", "log(1 + exp(a)) == a + log(1 + exp(-a))"),
            axiom("sqrt_scale", "sqrt(c * a) == sqrt(c) * sqrt(a)", *_nonnegative("c")),
            axiom("sqrt_exp", "sqrt(exp(a)) == exp(inv(2) * a)"),
            axiom("sqrt_inverse", "sqrt(inv(a)) == inv(sqrt(a))"),
            axiom("sqrt_of_square", "sqrt(a * a) == max(a, -a)"),
            axiom("sqrt_square", "sqrt(a) * sqrt(a) * r == a * r", *_nonnegative("a")),
            axiom("sqrt_inverse_square", "inv(sqrt(a)) * inv(sqrt(a)) * r == inv(a) * r", *_nonnegative("a")),
            axiom("sqrt_quotient", "sqrt(a) * inv(a) * r == inv(sqrt(a)) * r"),
            axiom("root_quotient", "a * inv(sqrt(a)) * r == sqrt(a) * r"),
            axiom("pow_one", "Pow(a, 1) == a"),
            axiom("pow_half", "Pow(a, inv(2)) == sqrt(a)"),
            axiom("pow_whole", "Pow(a, 1 + b) == a * Pow(a, b)", *_nonnegative("b")),
            axiom("pow_pow", "Pow(Pow(a, b), c) == Pow(a, b * c)", *_nonnegative("a")),
            axiom("pow_root", "Pow(sqrt(a), b) == Pow(a, b * inv(2))", *_nonnegative("a")),
            axiom("root_pow", "sqrt(Pow(a, b)) == Pow(a, b * inv(2))", *_nonnegative("a")),
            axiom("pow_sum", "Pow(a, b) * Pow(a, c) * r == Pow(a, b + c) * r", *_nonnegative("a"),
                  *_positive("b", "c")),
            axiom("pow_product", "Pow(a * b, c) == Pow(a, c) * Pow(b, c)", *_nonnegative("a")),
            axiom("pow_inverse", "Pow(inv(a), b) == inv(Pow(a, b))"),
            axiom("pow_negative", "Pow(a, -b) == inv(Pow(a, b))"),
            # Sines and cosines.
            axiom("circle", "sin(a) * sin(a) * r == r + -cos(a) * cos(a) * r"),
            axiom("sine_sum", "sin(a + b) == sin(a) * cos(b) + cos(a) * sin(b)"),
            axiom("sine_twice", "sin(2 * a) == 2 * sin(a) * cos(a)"),
            axiom("cosine_sum", "cos(a + b) == cos(a) * cos(b) + -sin(a) * sin(b)"),
            axiom("cosine_twice", "cos(2 * a) == 2 * cos(a) * cos(a) + -1"),
            # Choices: Where(a, b) is b where a is not 0, else 0; step(a) is 1 where a is at least 0, else 0.
            axiom("choice", "g(a, b) == unfolded(g, a, b)"),
            axiom("choice_of_bit", "Where(a, 1) == a", Bit("a")),
            axiom("bit_root", "sqrt(a) == a", Bit("a")),
            axiom("bit_square", "a * a * r == a * r", Bit("a")),
            axiom("bit_beside", "a * f * r == a * given(f, a, 1) * r", Bit("a")),
            axiom("by_cases", "f == a * given(f, a, 1) + (1 + -a) * given(f, a, 0)", Bit("a")),
            axiom("step_known", "step(a) == 1", *_nonnegative("a")),
            axiom("step_below", "step(-a) == 0", *_positive("a")),
            axiom("step_scale", "step(c * a) == step(a)", *_positive("c")),
            axiom("step_exponentials", "step(exp(a) + -exp(b)) == step(a + -b)"),
            axiom("step_of_largest", "step(c + d * max(a, b))"
                  " == step(c + d * a) + step(c + d * b) + -step(c + d * a) * step(c + d * b)", *_nonnegative("d")),
            axiom("step_of_least", "step(c + -d * max(a, b)) == step(c + -d * a) * step(c + -d * b)",
                  *_nonnegative("d")),
            axiom("step_of_maximum", "step(c + d * Max(V, f)) == Max(V, step(c + d * f))", Without("c", "V"),
                  Without("d", "V"), *_nonnegative("d")),
            axiom("step_of_minimum", "step(c + -d * Max(V, f)) == -Max(V, -step(c + -d * f))", Without("c", "V"),
                  Without("d", "V"), *_nonnegative("d")),
            axiom("step_largest", "step(a) * a * r == max(a, 0) * r"),
            axiom("step_least", "step(a + c) * max(-a, c + -d) * r"
                  " == step(a + c) * c * r + -max(-max(-a + -c, -d), 0) * r", *_nonnegative("d")),
            axiom("step_exp", "step(a) * exp(a) * r + -step(a) * r + s"
                  " == exp(a) * r + -exp(a) * exp(-max(a, 0)) * r + s"),
            axiom("step_exp_turned", "step(-a) * exp(a) * r + -step(-a) * r + s"
                  " == exp(a) * exp(-max(a, 0)) * r + -r + s"),
            axiom("step_beside", "max(a, 0) * step(a) * r == max(a, 0) * r"),
            axiom("step_opposed", "max(a + c, 0) * step(-a + -c) * r == 0"),
            axiom("step_turned", "step(-a) * r + s == r + -step(a) * r + step(a) * step(-a) * r + s"),
            axiom("step_above", "step(a) * step(a + c) * r == step(a) * r", *_nonnegative("c")),
            axiom("step_opposite", "step(a) * step(-(a + c)) * r == 0", *_positive("c")),
            axiom("step_at", "step(a + c) * step(-(a + c)) * f"
                  " == step(a + c) * step(-(a + c)) * given(f, a, -c)"),
            axiom("step_at_product", "step(a + c) * step(-(a + c)) * a * r"
                  " == -step(a + c) * step(-(a + c)) * c * r"),
            axiom("floor_whole", "floor(a + n) == floor(a) + n", Whole("n")),
            # What functions stand for, and what properties say of those that stand for nothing.
            axiom("definition", "g(a) == unfolded(g, a)"),
            axiom("odd", "g(-a) == -g(a)", Has("odd")),
            axiom("even", "g(-a) == g(a)", Has("even")),
            axiom("idempotent", "g(g(a)) == g(a)", Has("idempotent")),
            axiom("linear", "g(c * a) == c * g(a)", Has("linear")),
            axiom("homogeneous", "g(c * a) == c * g(a)", Has("homogeneous"), *_positive("c")),
            axiom("monotone", "g(Max(V, f)) == Max(V, g(f))", Has("monotone")),
            axiom("monotone_largest", "g(max(a, b)) == max(g(a), g(b))", Has("monotone")),
            axiom("multiplicative", "g(a * b) == g(a) * g(b)", Has("multiplicative")),
            axiom("multiplicative_inverse", "g(inv(a)) == inv(g(a))", Has("multiplicative")),
        )
    }
)  # fmt: skip

Properties = Mapping[str, frozenset[str]]
"""For each function, by its whole name in terms or by the name in front of its attributes: what is known of it."""

PROPERTIES: Properties = MappingProxyType(
    {
        "ReLU": frozenset({"idempotent", "monotone", "homogeneous"}),
        "Clamp": frozenset({"idempotent", "monotone"}),
        "Sigmoid": frozenset({"monotone"}),
        "tanh": frozenset({"monotone", "odd"}),
        "erf": frozenset({"monotone", "odd"}),
        "sin": frozenset({"odd"}),
        "cos": frozenset({"even"}),
        "atan": frozenset({"monotone", "odd"}),
        "sign": frozenset({"monotone", "odd", "idempotent"}),
        "floor": frozenset({"monotone", "idempotent"}),
        "step": frozenset({"monotone"}),
    }
)
"""What is known of operators of the table and functions of formulas; users add to it, see `prove`."""

PROPERTY_NAMES = frozenset(c.name for row in AXIOMS.values() for c in row.conditions if isinstance(c, Has))


def has_property(function: str, name: str, properties: Properties) -> bool:
    """Whether a function is known to have a property; a user's function `f` has the name `@f(...)` in terms.

    What a user says counts of functions that are defined everywhere: a property is an equation between total functions.
    """
    head = function.split("(", 1)[0]
    if any(name in PROPERTIES.get(key, ()) for key in (function, head)):
        return True
    return any(name in properties.get(key, ()) for key in (function, head, head[1:])) and is_total(function)
