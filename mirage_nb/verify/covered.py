"""Whether a candidate has a value wherever its program has one, as far as its form and its program's needs say so.

In: a program and a candidate, over the reals. Out: nothing, or what is not covered. What a candidate divides by, or
takes roots and logarithms of, is covered where its form gives it the sign that it has to have, as a sum of
exponentials; or where it is, up to a constant factor, what the program itself needs so, or a product of two such, at
every point that is looked at. Anything else may be 0 or negative at points that nobody thinks of, so it is not taken
for defined: a proof may say that it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from mirage_nb.interp import arrays
from mirage_nb.interp.arrays import Move
from mirage_nb.interp.numbers import EXPONENTIAL, SUBTRACT, ZERO, Hole, Number, arb, as_ball, is_zero, precision
from mirage_nb.interp.run import run_kernel
from mirage_nb.interp.slices import Draw, Slice
from mirage_nb.ir import (
    AccumKind,
    ApplyAttrs,
    ClampAttrs,
    ConstAttrs,
    KernelGraph,
    OpKind,
    PadAttrs,
    PowAttrs,
    WhereAttrs,
    formula,
)
from mirage_nb.ir.ops import Attrs
from mirage_nb.verify.domain import NEEDS, SCALAR_NEEDS, Need, power
from mirage_nb.verify.points import KINDS, point
from mirage_nb.verify.proof.signs import ABOVE, ANY, NEEDED, Signs, summed, times

BITS = 128
SHARED = 10
"""Decimal digits in which numbers agree that are taken for the same; there are many such numbers."""
FACTORS, MOST_TRIED = 24, 500_000
"""Numbers with which constant factors are sought, and products that are tried."""
POINTS = 5
ENOUGH: dict[Need, frozenset[Need]] = {
    Need.NONZERO: frozenset({Need.NONZERO, Need.POSITIVE}),
    Need.NONNEGATIVE: frozenset({Need.NONNEGATIVE, Need.POSITIVE}),
    Need.POSITIVE: frozenset({Need.POSITIVE}),
}
"""What a program may need of a number so that a candidate may need this of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A tensor of which only the signs of its elements are known; `infinite`: some may be infinities."""

    signs: Signs
    infinite: bool = False


def _sign(value: Fraction | int) -> Signs:
    return frozenset({(value > 0) - (value < 0)})


def _product(x: Form, y: Form) -> Signs:
    return times(x.signs, y.signs, same=x is y)


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
    "floor": lambda x: x | {0} if 1 in x else x, **dict.fromkeys(("tanh", "erf", "sign", "expm1"), _SAME),
}  # fmt: skip
"""Functions of formulas; of others every sign is possible."""
ELEMENTWISE: dict[OpKind, Callable[[Signs], Signs]] = {
    OpKind.EXP: lambda x: ABOVE, OpKind.SIGMOID: lambda x: ABOVE, OpKind.RELU: _ROOT, OpKind.SQRT: _ROOT,
    OpKind.SQR: lambda x: times(x, x, same=True), **dict.fromkeys((OpKind.SILU, OpKind.GELU), _SAME),
}  # fmt: skip


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
            case (OpKind.MUL | OpKind.DIV), _:
                return _product(*operands)
            case OpKind.ADD, _:
                return summed([x.signs for x in operands])
            case OpKind.SUB, _:
                return summed([operands[0].signs, _negative(operands[1].signs)])
            case OpKind.MATMUL, _:
                return summed([_product(*operands)] * 2)
            case OpKind.CONCAT_MATMUL, _:
                return summed([_product(operands[0], operands[2]), _product(operands[1], operands[3])] * 2)
            case OpKind.MAXIMUM, _:
                return _larger(operands[0].signs, operands[1].signs)
            case (OpKind.SUM | OpKind.RESCALED_SUM), _:
                return summed([operands[0].signs] * 2)
            case OpKind.CONCAT, _:
                return operands[0].signs | operands[1].signs
        rule = ELEMENTWISE.get(kind)
        return operands[0].signs if rule is None else rule(operands[0].signs)

    def _formula(self, text: str, x: Signs) -> Signs:
        def row(name: str) -> Callable[..., Signs]:
            def made(*xs: Any) -> Signs:
                if name == "pow":
                    self._need(power(xs[1]), xs[0])
                    return _powered(xs[0], xs[1])
                if name == "log1p":
                    return row("log")(summed([ABOVE, xs[0]]))
                self._need(SCALAR_NEEDS[name], xs[-1])
                match name:
                    case "add":
                        return summed(list(xs))
                    case "sub":
                        return summed([xs[0], _negative(xs[1])])
                    case "mul" | "div":
                        return times(*xs)
                    case "maximum":
                        return _larger(*xs)
                    case "minimum":
                        return _negative(_larger(*map(_negative, xs)))
                return UNARY[name](xs[0]) if name in UNARY else ANY

            return made

        table = {name: row(name) for name in formula.PRIMITIVES}
        found: Signs = formula.fold(formula.read(text), x, _sign, table)
        return found

    def view(self, value: Form, move: Move) -> Form:
        pads = isinstance(move, arrays.Split) and move.tile is not None
        return Form(value.signs | {0}, value.infinite) if pads else value

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


@dataclass(frozen=True, slots=True)
class Asked:
    """A graph, and the elements of it that are looked at."""

    graph: KernelGraph
    slice: Slice

    def needs(self) -> list[tuple[Need, Signs]]:
        """The needs behind these elements."""
        every = needs_of(self.graph)
        return [every[number] for number in self.slice.operators]


def uncovered(program: Asked, candidate: Asked, seed: int) -> str:
    """What a candidate needs that nothing covers, in words; or nothing."""
    wanted = candidate.needs()
    open_ = [number for number, (need, signs) in enumerate(wanted) if not signs <= NEEDED[need]]
    if not open_:
        return ""
    given = [need for need, _ in program.needs()]
    with precision(BITS):
        seen = [_Seen.at(program.slice, candidate.slice, draw) for draw in _points(program.slice, seed)]
        for number in open_:
            need = wanted[number][0]
            enough = [at for at, other in enumerate(given) if other in ENOUGH[need]]
            if not _is_known(seen, number, enough, need):
                return f"it is not known that what the candidate needs to be {need.value} is so wherever the program is"
    return ""


def _points(program: Slice, seed: int) -> list[Draw]:
    """Points at which the program has all its values, as many as are wanted if there are so many."""
    every = [point(kind, seed + round_) for round_ in range(2) for kind in KINDS]
    whole = (draw for draw in every if not any(type(x) is Hole for part in program.compute(draw) for x in part))
    found = list(itertools.islice(whole, POINTS))
    return found if len(found) > 1 else every[:POINTS]


@dataclass(frozen=True, slots=True)
class _Seen:
    """The numbers that the program and the candidate need something of, operator by operator, at one point; `scales`:
    exponentials of maxima that the program takes, of those that the candidate takes with the other sign, and of both:
    shifts, which are positive."""

    ours: list[list[Number]]
    theirs: list[list[Number]]
    scales: list[Number]

    @classmethod
    def at(cls, program: Slice, candidate: Slice, draw: Draw) -> _Seen:
        ours, maxima = program.numbers(draw)
        theirs, other = candidate.numbers(draw)
        up = [ZERO, *itertools.chain.from_iterable(maxima)]
        down = [ZERO, *itertools.chain.from_iterable(other)]
        shifts = (EXPONENTIAL(SUBTRACT(x, y)) for x in _different(up) for y in _different(down))
        return cls([_numbers(x) for x in ours], [_numbers(x) for x in theirs], _numbers(shifts))


def _different(values: Iterable[Number]) -> list[Number]:
    """The numbers, once each."""
    return list({_digits(as_ball(x)): x for x in values if type(x) is not Hole}.values())


def _is_known(seen: Sequence[_Seen], number: int, enough: Sequence[int], need: Need) -> bool:
    """Whether at all points every number is one of the program's, times one constant; or a product of two of these, or
    of one and an exponential of a maximum; or makes one of these with another number of the candidate's."""
    there = [one for one in seen if one.theirs[number] and any(one.ours[at] for at in enough)]
    if len(there) < 2:
        return False
    values = [one.theirs[number] for one in there]
    known = [[x for at in enough for x in one.ours[at]] for one in there]
    unit = [[_UNIT]] * len(there)
    scales = [one.scales for one in there]
    if _matches(values, known, unit, need) or _matches(values, known, scales, need, constants=False):
        return True
    if _matches(values, known, known, need):
        return True
    others = [[1 / x for at, xs in enumerate(one.theirs) if at != number for x in xs] for one in there]
    return need is Need.NONZERO and all(others) and _matches(values, known, others, need)


def _matches(values: _Lists, known: _Lists, factors: _Lists, need: Need, *, constants: bool = True) -> bool:
    """Whether every value is a known number times a factor, and times one constant if there may be one."""
    if sum(len(v) * len(f) for v, f in zip(values, factors, strict=True)) > MOST_TRIED:
        return False
    pairs = itertools.product(known[0][:FACTORS], factors[0][:FACTORS]) if constants else ()
    first = [values[0][0] / (x * y) for x, y in pairs]
    digits = [set(map(_digits, part)) for part in known]
    for constant in dict.fromkeys(_digits(x) for x in (_UNIT, *first)):
        scale = arb(constant) if constant in ("1.000000000", "-1.000000000") else None
        for exact in [scale] if scale is not None else [x for x in first if _digits(x) == constant][:1]:
            if need is not Need.NONZERO and not exact > 0:
                continue
            if all(_all_made(v, k, f, exact) for v, k, f in zip(values, digits, factors, strict=True)):
                return True
    return False


def _all_made(values: Sequence[Number], known: set[str], factors: Sequence[Number], constant: Number) -> bool:
    return all(any(_digits(x / (constant * y)) in known for y in factors) for x in values)


def _numbers(values: Iterable[Number]) -> list[Number]:
    return [as_ball(x) for x in values if type(x) is not Hole and not is_zero(x) and as_ball(x).is_finite()]


def _digits(x: Number) -> str:
    return str(x.str(SHARED, radius=False))


_Lists = Sequence[Sequence[Number]]
_UNIT = arb(1)
