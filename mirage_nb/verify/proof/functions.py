"""What functions stand for, as terms: the operators that are made of others, and what a program defines.

In: a function's name in terms, or a formula, and the term of its argument. Out: the term that it stands for, and what
has to hold of the parts of that term so that it has a value. Terms are total: what a partial operator is where it has
no value is said in `terms`; the needs that come out here are what keeps a proof away from there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType

from mirage_nb.errors import FormatError, ProgramSizeError, ProofError
from mirage_nb.interp.constants import root_of
from mirage_nb.ir import ConstAttrs, formula
from mirage_nb.verify.defined import domain
from mirage_nb.verify.defined.domain import SCALAR_NEEDS, Need
from mirage_nb.verify.proof.terms import Term, add, exp, fn, inv, mul, neg, num, sqrt, top

Require = Callable[[Need, Term], None]

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "SiLU": "x / (1 + exp(-x))",
        "Sigmoid": "1 / (1 + exp(-x))",
        "GELU": "x * (1 + erf(x / sqrt(2))) / 2",
        "ReLU": "maximum(x, 0)",
        "tanh": "1 - 2 / (exp(2 * x) + 1)",
        "sign": "step(x) - step(-x)",
    }
)
"""Operators of the table as formulas. A clamp is made of its limits."""

CHOICE = re.compile(r"Where(?:\(other=(-?[0-9]+(?:/[1-9][0-9]*)?)\))?")
"""The names of choices, and what stands where the condition is 0: 0 unless it is named."""

MAX_POWER = 8
"""Whole and half powers up to here are products."""


def unfolded(name: str, argument: Term, *chosen: Term) -> Term:
    """What the function stands for, or a choice of its condition and what is `chosen`. Raises ProofError for one that
    is known by its name only."""
    if choice := CHOICE.fullmatch(name) if len(chosen) == 1 else None:
        one, other = fn("Where", argument, num(1)), num(Fraction(choice[1] or 0))
        return add(mul(one, *chosen), mul(add(num(1), neg(one)), other))
    if chosen:
        raise ProofError(f"{name} is no choice")
    if name.startswith("Clamp("):
        return _clamped(name, argument)
    text = formula_of(name) if name.startswith("@") else DEFINITIONS.get(name)
    if text is None:
        raise ProofError(f"{name} has no definition")
    try:
        return of_formula(text, argument, lambda need, term: None)
    except (FormatError, ProgramSizeError) as error:
        raise ProofError(f"{name} is no function") from error


def is_defined(name: str) -> bool:
    """Whether a function of one argument stands for something."""
    return name in DEFINITIONS or name.startswith(("Clamp(", "@"))


def formula_of(name: str) -> str:
    """The formula in the name of a user's function."""
    return name.rpartition("(formula=")[2][:-1]


def _clamped(name: str, argument: Term) -> Term:
    try:
        limits = {key: num(Fraction(value)) for key, value in re.findall(r"(low|high)=([-0-9/]+)", name)}
    except (ValueError, ZeroDivisionError) as error:
        raise ProofError(f"{name} is no clamp") from error
    made = top(argument, limits["low"]) if "low" in limits else argument
    return least(made, limits["high"]) if "high" in limits else made


def of_formula(text: str, argument: Term, require: Require) -> Term:
    """The term of a formula; `require` is told what has to hold of its parts."""

    def row(name: str) -> Callable[..., Term]:
        def made(*args: Term) -> Term:
            if name == "pow":
                return power(args[0], args[1], require)  # type: ignore[arg-type]  # an exponent is no term
            if name == "log1p":
                return row("log")(add(num(1), *args))
            need = SCALAR_NEEDS[name]
            if need is not None:
                require(need, args[-1])
            return SCALARS[name](*args)

        return made

    return formula.fold(formula.read(text), argument, num, {name: row(name) for name in formula.PRIMITIVES})


def power(base: Term, exponent: Fraction, require: Require) -> Term:
    """A power with a constant exponent: whole and half ones up to MAX_POWER are products, roots and quotients."""
    need = domain.power(exponent)
    if need is not None:
        require(need, base)
    if exponent.denominator > 2 or abs(exponent) > MAX_POWER:
        return fn("Pow", base, num(exponent))
    factors = [base] * int(abs(exponent)) + ([sqrt(base)] if exponent.denominator == 2 else [])
    made = mul(*factors)
    return made if exponent > 0 else inv(made)


def literal(value: Fraction, symbol: str) -> Term | None:
    """A constant that is meant as it is: a numeral, or a square root of one, or of such a root; None for another
    unknown."""
    if not symbol:
        return num(value)
    number, degree = root_of(ConstAttrs(value, symbol)) or (Fraction(), 0)
    if not (times := square_roots(degree)):
        return None
    root = num(abs(number))
    for _ in range(times):
        root = sqrt(root)
    return mul(num(-1 if number < 0 else 1), inv(root) if degree < 0 else root)


def square_roots(degree: int) -> int:
    """How many square roots in each other make a root of this degree, or the inverse of one; 0 for others."""
    times = abs(degree).bit_length() - 1
    return times if times > 0 and abs(degree) == 1 << times else 0


def least(*terms: Term) -> Term:
    """The smallest of several."""
    return neg(top(*map(neg, terms)))


NAMED = ("log", "tanh", "erf", "sin", "cos", "atan", "sign", "floor", "step")
"""Functions of formulas that are known by their names only."""

SCALARS: Mapping[str, Callable[..., Term]] = MappingProxyType(
    {
        "add": add,
        "sub": lambda a, b: add(a, neg(b)),
        "mul": mul,
        "div": lambda a, b: mul(a, inv(b)),
        "neg": neg,
        "exp": exp,
        "sqrt": sqrt,
        "square": lambda a: mul(a, a),
        "abs": lambda a: top(a, neg(a)),
        "maximum": top,
        "minimum": least,
        "sigmoid": lambda a: inv(add(num(1), exp(neg(a)))),
        "expm1": lambda a: add(exp(a), num(-1)),
        **{name: functools.partial(fn, name) for name in NAMED},
    }
)
"""The functions of formulas."""
