"""Which signs the numbers of a graph have by their form, whatever the inputs are.

In: a graph. Out: what it divides by, and takes roots, powers and logarithms of, in the order of the walk: what each of
these has to be, and which signs its form allows. A sum of exponentials is positive; nothing is known of an input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from mirage_nb.interp import arrays
from mirage_nb.interp.arrays import Move
from mirage_nb.interp.run import run_kernel
from mirage_nb.ir import (
    COMPARISONS,
    AccumKind,
    ApplyAttrs,
    ClampAttrs,
    ConstAttrs,
    KernelGraph,
    OpKind,
    PadAttrs,
    PowAttrs,
    RunningAttrs,
    WhereAttrs,
    formula,
)
from mirage_nb.ir.ops import Attrs
from mirage_nb.verify.defined.domain import NEEDS, SCALAR_NEEDS, Need, power
from mirage_nb.verify.proof.signs import ABOVE, ANY, Signs, summed, times


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A tensor of which only the signs of its elements are known; `infinite`: some may be infinities. The same object
    stands for the same elements in the same order."""

    signs: Signs
    infinite: bool = False


def _sign(value: Fraction | int) -> Signs:
    return frozenset({(value > 0) - (value < 0)})


def _contracted(x: Form, y: Form) -> Signs:
    """Sums of products of elements that may be any of the two."""
    return summed([times(x.signs, y.signs)] * 2)


def _larger(x: Signs, y: Signs) -> Signs:
    return frozenset(max(a, b) for a in x for b in y)


def _negative(x: Signs) -> Signs:
    return frozenset(-sign for sign in x)


def _powered(x: Signs, exponent: Fraction) -> Signs:
    if exponent.denominator > 1:
        return frozenset(max(sign, 0) for sign in x)
    return times(x, x, same=True) if exponent.numerator % 2 == 0 else x


_SAME: Callable[[Signs], Signs] = lambda x: x  # noqa: E731 (typed)
_ROOT: Callable[[Signs], Signs] = lambda x: frozenset(max(sign, 0) for sign in x)  # noqa: E731 (typed)
UNARY: dict[str, Callable[[Signs], Signs]] = {
    "neg": _negative, "exp": lambda x: ABOVE, "sigmoid": lambda x: ABOVE, "sqrt": _ROOT,
    "square": lambda x: times(x, x, same=True), "abs": lambda x: times(x, x, same=True),
    "step": lambda x: frozenset({0, 1}),
    "floor": lambda x: x | {0} if 1 in x else x, **dict.fromkeys(("tanh", "erf", "atan", "sign", "expm1"), _SAME),
}  # fmt: skip
"""Functions of formulas; of others every sign is possible."""
ELEMENTWISE = {OpKind.RELU: _ROOT, **dict.fromkeys(COMPARISONS, UNARY["step"])}
"""Operators that are no functions of formulas; of others the sign stays."""


def _primitive(name: str, *xs: Signs) -> Signs:
    """A primitive of formulas, but for powers."""
    match name:
        case "add":
            return summed(list(xs))
        case "sub":
            return summed([xs[0], _negative(xs[1])])
        case "mul" | "div":
            return times(xs[0], xs[1])
        case "maximum":
            return _larger(*xs)
        case "minimum":
            return _negative(_larger(*map(_negative, xs)))
    return UNARY[name](xs[0]) if name in UNARY else ANY


@dataclass(slots=True)
class SignAlgebra:
    """The algebra of signs, which takes down what has to be of some sign, in the order of `slices`."""

    needs: list[tuple[Need, Signs]] = field(default_factory=list)

    def _need(self, need: Need | None, x: Signs) -> None:
        if need is not None:
            self.needs.append((need, x))

    def apply(self, kind: OpKind, operands: Sequence[Form], attrs: Attrs | None, batch: int) -> Form:
        match attrs:
            case PowAttrs(exponent):
                self._need(power(exponent), operands[0].signs)
                return Form(_powered(operands[0].signs, exponent), operands[0].infinite)
            case ApplyAttrs():
                signs = self._formula(attrs.formula, operands[0].signs)
                return Form(ANY if operands[0].infinite else signs, operands[0].infinite)
        self._need(NEEDS.get(kind), operands[-1].signs if operands else ANY)
        infinite = any(x.infinite for x in operands) or (isinstance(attrs, WhereAttrs) and attrs.infinite != 0)
        signs = self._signs(kind, operands, attrs)
        return Form(signs | {0} if infinite else signs, infinite)  # exp(-inf) is 0, and what is made of it may be

    def _signs(self, kind: OpKind, operands: Sequence[Form], attrs: Attrs | None) -> Signs:
        match kind, attrs:
            case _, ConstAttrs(value):
                return _sign(value)
            case _, ClampAttrs(low, high):
                x = operands[0].signs if low is None else _larger(operands[0].signs, _sign(low))
                return x if high is None else _negative(_larger(_negative(x), _negative(_sign(high))))
            case _, WhereAttrs(other, infinite):
                return operands[1].signs | _sign(infinite or other)
            case _, PadAttrs():
                return operands[0].signs | {0}
            case OpKind.ARANGE, _:
                return frozenset({0, 1})
            case ((OpKind.MUL | OpKind.DIV), _):
                return times(operands[0].signs, operands[1].signs, same=operands[0] is operands[1])
            case OpKind.MATMUL, _:
                return _contracted(*operands)
            case OpKind.CONCAT_MATMUL, _:
                return summed([_contracted(operands[0], operands[2]), _contracted(operands[1], operands[3])])
            case ((OpKind.SUM | OpKind.RESCALED_SUM | OpKind.RUNNING_SUM), _):
                empty = isinstance(attrs, RunningAttrs) and attrs.exclusive  # the first is of nothing
                return summed([operands[0].signs] * 2) | (_sign(0) if empty else frozenset())
            case OpKind.CONCAT, _:
                return operands[0].signs | operands[1].signs
        if kind in formula.OPERATORS:
            return _primitive(formula.OPERATORS[kind], *(x.signs for x in operands))
        return ELEMENTWISE.get(kind, _SAME)(operands[0].signs)

    def _formula(self, text: str, x: Signs) -> Signs:
        def row(name: str) -> Callable[..., Signs]:
            def made(*xs: Any) -> Signs:
                if name == "pow":
                    self._need(power(xs[1]), xs[0])
                    return _powered(xs[0], xs[1])
                if name == "log1p":
                    return row("log")(summed([ABOVE, xs[0]]))
                self._need(SCALAR_NEEDS[name], xs[-1])
                return _primitive(name, *xs)

            return made

        table = {name: row(name) for name in formula.PRIMITIVES}
        found: Signs = formula.fold(formula.read(text), x, _sign, table)
        return found

    def view(self, value: Form, move: Move) -> Form:
        pads = isinstance(move, arrays.Split) and move.tile is not None
        return Form(value.signs | {0} if pads else value.signs, value.infinite)

    def join(self, parts: Sequence[Form], dim: int, batch: int) -> Form:
        return Form(frozenset[int]().union(*(x.signs for x in parts)), any(x.infinite for x in parts))

    def fold(self, kind: AccumKind, state: tuple[Form, ...], operands: Sequence[Form], batch: int) -> tuple[Form, ...]:
        if not state:
            return tuple(operands)
        infinite = any(x.infinite for x in (*state, *operands))
        match kind:
            case AccumKind.SUM:
                return (Form(summed([state[0].signs, operands[0].signs]), infinite),)
            case AccumKind.MAX:
                return (Form(_larger(state[0].signs, operands[0].signs), infinite),)
            case AccumKind.RESCALE:
                total = summed([state[0].signs, operands[0].signs])
                top = Form(_larger(state[1].signs, operands[1].signs), infinite)
                return Form(total | {0} if infinite else total, infinite), top
        return state


def needs_of(graph: KernelGraph) -> list[tuple[Need, Signs]]:
    """What a graph divides by, and takes roots, powers and logarithms of, in the order of the walk: what it has to be,
    and which signs its form allows."""
    algebra = SignAlgebra()
    run_kernel(graph, [Form(ANY) for _ in graph.inputs], algebra)
    return algebra.needs
