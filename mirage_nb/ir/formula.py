"""Formulas: elementwise functions that a user defines, such as `log(1 + exp(x))`.

In: a Python expression over one argument, exact numbers and the functions of `SCALARS`; it is read, never
executed. Out: a `Formula`, or its canonical text, which an `Apply` operator carries. Invariant: `read(write(f)) == f`;
what a scalar function computes stands in one table for each interpreter, and `fold` is the only walk.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from mirage_nb.errors import FormatError, ProgramSizeError, ProgramSyntaxError
from mirage_nb.ir.ops import OpKind
from mirage_nb.ir.syntax import expression

T = TypeVar("T")

SCALARS: dict[str, int] = {
    "exp": 1, "expm1": 1, "log": 1, "log1p": 1, "sqrt": 1, "square": 1, "tanh": 1, "sigmoid": 1, "erf": 1, "sin": 1,
    "cos": 1, "atan": 1, "abs": 1, "sign": 1, "floor": 1, "step": 1, "minimum": 2, "maximum": 2,
}  # fmt: skip
"""The functions of formulas and how many arguments each has; step(x) is 1 where x >= 0 and 0 elsewhere."""

ARITHMETIC: dict[type[ast.operator], tuple[str, str, int]] = {
    ast.Add: ("add", "+", 1), ast.Sub: ("sub", "-", 1), ast.Mult: ("mul", "*", 2), ast.Div: ("div", "/", 2),
    ast.Pow: ("pow", "**", 4),
}  # fmt: skip
"""Binary operators: name, sign, binding strength. A power has a constant exponent."""

PRIMITIVES = frozenset(SCALARS) | {name for name, _, _ in ARITHMETIC.values()} | {"neg"}
"""What every interpreter has a row for."""

OPERATORS: dict[OpKind, str] = {
    OpKind.ADD: "add", OpKind.SUB: "sub", OpKind.MUL: "mul", OpKind.DIV: "div", OpKind.EXP: "exp",
    OpKind.SQR: "square", OpKind.SQRT: "sqrt", OpKind.SIGMOID: "sigmoid", OpKind.MAXIMUM: "maximum",
}  # fmt: skip
"""What primitives are called that are operators themselves."""

MAX_LENGTH = 200
"""Characters of a canonical text."""
MAX_DEPTH = 30
MAX_BITS = 64
"""Bits of the numerator and the denominator of a number."""

_NEGATION = 3
_CONSTANT, _NO_FUNCTION = "the formula does not use its argument", "a constant needs no function"
_SIGNS = {name: (sign, strength) for name, sign, strength in ARITHMETIC.values()}


@dataclass(frozen=True, slots=True)
class Formula:
    """A node: the argument (no name), a number, or a primitive applied to operands."""

    name: str = ""
    operands: tuple[Formula, ...] = ()
    number: Fraction | None = None


ARGUMENT = Formula()


def fold(formula: Formula, argument: T, number: Callable[[Fraction], T], table: Mapping[str, Callable[..., T]]) -> T:
    """What the formula stands for, given what the argument, a number, and each of PRIMITIVES stand for.

    The exponent of `pow` is passed as a Fraction.
    """
    if formula.number is not None:
        return number(formula.number)
    if not formula.name:
        return argument
    if formula.name == "pow":
        base, exponent = formula.operands
        return table["pow"](fold(base, argument, number, table), exponent.number)
    return table[formula.name](*(fold(operand, argument, number, table) for operand in formula.operands))


def of_node(
    node: ast.expr,
    argument: str,
    constants: Mapping[str, Fraction],
    blame: Callable[[ast.expr, str, str], Exception],
    depth: int = 0,
) -> Formula:
    """The formula that a syntax node writes down; numbers are folded.

    Args:
        node: the expression.
        argument: the name of the argument in it.
        constants: named numbers that it may use.
        blame: makes the error for a node, a message and a hint.
        depth: levels above the node.
    """
    if depth > MAX_DEPTH:
        raise blame(node, f"a formula of more than {MAX_DEPTH} levels", "define it in several steps")

    def inner(child: ast.expr) -> Formula:
        return of_node(child, argument, constants, blame, depth + 1)

    match node:
        case ast.Name(id=name) if name == argument:
            return ARGUMENT
        case ast.Name(id=name) if name in constants:
            return _number(node, constants[name], blame)
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            if math.isinf(value):
                raise blame(node, f"a number of more than {MAX_BITS} bits", "write fewer digits")
            return _number(node, Fraction(repr(value)), blame)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            made = inner(operand)
            return _number(node, -made.number, blame) if made.number is not None else Formula("neg", (made,))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            return _binary(node, ARITHMETIC[type(op)][0], inner(left), inner(right), blame)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if len(args) == SCALARS.get(name):
            return Formula(name, tuple(inner(child) for child in args))
        case ast.Call(func=ast.Name(id=name)) if name in SCALARS:
            count = "one argument" if SCALARS[name] == 1 else f"{SCALARS[name]} arguments"
            raise blame(node, f"{name} takes {count} in a formula", f"write {name}({argument})")
        case ast.Call(func=ast.Name(id=name)):
            raise blame(node, f"formulas have no function {name}", f"the functions are {', '.join(SCALARS)}")
        case ast.Name(id=name):
            raise blame(node, f"there is no {name} in this formula", f"the argument is {argument}")
        case _:
            raise blame(node, "this is no formula", f"for example {argument} * tanh(log(1 + exp({argument})))")


def _number(node: ast.expr, value: Fraction, blame: Callable[[ast.expr, str, str], Exception]) -> Formula:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise blame(node, f"a number of more than {MAX_BITS} bits", "write fewer digits")
    return Formula(number=value)


def _binary(
    node: ast.BinOp, name: str, left: Formula, right: Formula, blame: Callable[[ast.expr, str, str], Exception]
) -> Formula:
    if name == "pow" and right.number is None:
        base, exponent = ast.unparse(node.left), ast.unparse(node.right)
        exponent = exponent if isinstance(node.right, ast.Name | ast.Call) else f"({exponent})"
        raise blame(node, "the exponent is not a number", f"write exp({exponent} * log({base}))")
    if name == "div" and right.number == 0:
        raise blame(node, "a division by zero", "write another number")
    if left.number is None or right.number is None or name == "pow":
        return Formula(name, (left, right))
    folded = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    }[name](left.number, right.number)  # fmt: skip
    return _number(node, folded, blame)


def write(formula: Formula) -> str:
    """The canonical text: the argument is x, brackets only where they are needed."""
    return _written(formula, 0)


def _written(formula: Formula, around: int) -> str:
    if formula.number is not None:
        text = str(formula.number)
        strength = 2 if "/" in text else _NEGATION if text.startswith("-") else 5
    elif not formula.name:
        return "x"
    elif formula.name == "neg":
        text, strength = f"-{_written(formula.operands[0], _NEGATION)}", _NEGATION
    elif formula.name in _SIGNS:
        sign, strength = _SIGNS[formula.name]
        left, right = formula.operands
        # All but the power group to the left.
        sides = (strength + 1, strength) if formula.name == "pow" else (strength, strength + 1)
        text = f"{_written(left, sides[0])} {sign} {_written(right, sides[1])}"
    else:
        return f"{formula.name}({', '.join(_written(operand, 0) for operand in formula.operands)})"
    return f"({text})" if strength < around else text


@functools.lru_cache(maxsize=1024)
def read(text: str) -> Formula:
    """The formula of a canonical text.

    Raises:
        FormatError: it is none, not in its canonical form, or does not use its argument.
        ProgramSizeError: it is too long.
    """
    if len(text) > MAX_LENGTH:
        raise ProgramSizeError(f"a formula of {len(text)} characters", hint=f"at most {MAX_LENGTH}")

    def blame(_: ast.expr, message: str, hint: str) -> Exception:
        return FormatError(f"{message}: {text}", hint=hint)

    try:
        tree = expression(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormatError(f"this formula cannot be read: {text}") from error
    formula = of_node(tree.body, "x", {}, blame)
    if write(formula) != text:
        raise FormatError(f"this formula is not in its canonical form: {text}", hint=f"write {write(formula)}")
    if not _uses_argument(formula):
        raise FormatError(f"{_CONSTANT}: {text}", hint=_NO_FUNCTION)
    return formula


def canonical(formula: Formula) -> str:
    """`write`, for a formula that a program defines. Raises ProgramSizeError, ProgramSyntaxError."""
    text = write(formula)
    if len(text) > MAX_LENGTH:
        raise ProgramSizeError(f"the formula has {len(text)} characters", hint=f"at most {MAX_LENGTH}")
    if not _uses_argument(formula):
        raise ProgramSyntaxError(_CONSTANT, hint=_NO_FUNCTION)
    return text


def _uses_argument(formula: Formula) -> bool:
    return formula == ARGUMENT or any(_uses_argument(operand) for operand in formula.operands)
