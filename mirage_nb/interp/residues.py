"""Numbers of one field, one by one: identities between them are identities of the functions that made them.

In: numbers, and the functions of the operator table. Out: numbers again. What inputs make is a pair of residues, modulo
p and modulo q for exponents, as in `instance`; what constants make alone is the rational that it is. Functions that no
field knows are random functions, the maximum is that of another order, a step is 0 or 1 by chance, and so is what a
choice takes: what is so here is so whatever stands in their place, and a condition that hardly any input meets is met
as often as not. Infinities stay what they are. `UNDEFINED` is what no field changes, as infinity less infinity; a root
that this field has not, or an infinity times a number that inputs make, is `OPEN`.

Chance may miss one combination of choices among many. So a field may be `mixed`: a choice is any share of the one and
the rest of the other, a step any number, an infinity too, and the maximum another function that does not mind order or
grouping. What is so there, as polynomials, is so whichever way everything is chosen.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial, reduce
from operator import mul

import numpy as np
from numpy.typing import NDArray

from mirage_nb.interp import numbers
from mirage_nb.interp.constants import rational
from mirage_nb.interp.instance import FieldInstance
from mirage_nb.interp.modular import Residues
from mirage_nb.interp.numbers import ONE, OPEN, UNDEFINED, ZERO, Array, Hole, Number, Operation, fmpq, strict
from mirage_nb.interp.undrawn import splitmix
from mirage_nb.ir import COMPARISONS, ClampAttrs, ConstAttrs, OpKind, PowAttrs, WhereAttrs, formula
from mirage_nb.ir.ops import Attrs

Residue = tuple[int, int | None]
"""Modulo p, and modulo q where no exponential stands before."""
KNOWN = 4096
"""Constants that are known again."""


@dataclass(frozen=True)
class Field:
    """One field and its functions: primes p = 2q + 1, a q-th root of unity, and a seed for functions that no field
    knows; `exponents`: whether residues modulo q are needed; `bias`: of eight conditions how many hold, 0 and 8
    included; those of a mixed field are 0 or 8; without `roots` square roots are functions that no field knows, too.
    What `slices` asks of a system of numbers."""

    p: int
    q: int
    root: int
    seed: int
    exponents: bool = True
    bias: int = 4
    mixed: bool = False
    roots: bool = True

    @classmethod
    def of(
        cls, instance: FieldInstance, *, exponents: bool, bias: int, mixed: bool = False, roots: bool = True
    ) -> Field:
        """That of an instance."""
        return cls(instance.p.value, instance.q.value, instance.root, instance.seed, exponents, bias, mixed, roots)

    @property
    def decisions(self) -> int:
        """How many choices of its own it has made so far, each counted once: of conditions, steps, and maxima."""
        return len(self._decided)

    @cached_property
    def _decided(self) -> set[object]:
        return set()

    def _decides(self, name: str, x: object) -> int:
        """Random bits of a choice."""
        self._decided.add((name, x))
        return self._word(name, x)

    def point(self, name: str, at: NDArray[np.int64], *, squared: bool = True) -> Array:
        """Random elements of an input; squares, so that roots of them exist, or any."""
        key, places = self._word("input", name), at.view(np.uint64)
        p, q = (splitmix(places, key ^ m) % np.uint64(m) for m in (self.p, self.q))
        return self.listed(p * p % np.uint64(self.p), q * q % np.uint64(self.q)) if squared else self.listed(p, q)

    def listed(self, p: Residues, q: Residues) -> Array:
        """Numbers of these residues."""
        pairs = zip(p.tolist(), q.tolist() if self.exponents else itertools.repeat(None), strict=False)
        return np.fromiter(pairs, object, len(p))

    def elementwise(self, kind: OpKind, attrs: Attrs | None) -> Operation:
        """What an elementwise operator, but for functions of the program's own, makes of numbers and holes."""
        match attrs:
            case PowAttrs(exponent):
                return strict(self.power(exponent))
            case ClampAttrs():
                return strict(self._opaque(f"clamp {attrs.low} {attrs.high}", numbers.elementwise(kind, attrs)))
            case WhereAttrs():
                return partial(self._where, numbers.other(attrs))
        return self._elementwise[kind]

    def scalar(self, name: str) -> Operation:
        """What a primitive of formulas computes."""
        return self._scalars[name]

    def constant(self, attrs: ConstAttrs) -> Number:
        """The number that a constant stands for."""
        return rational(attrs.value)

    def holds(self, condition: Number) -> bool:
        """Whether a choice takes what it reads, or may do so."""
        if type(condition) is not tuple:
            return type(condition) is Hole or not numbers.is_zero(condition)
        if condition[0] in (0, 1):
            return bool(condition[0])
        return self._decides("chosen", condition) % 8 < self.bias

    def residue(self, x: Number) -> Number:
        """A finite number as a residue, `OPEN` if the field has none for it."""
        if type(x) is tuple:
            return x
        return self._lifted(x)

    def modulo(self, x: Number) -> int | None:
        """What a number is modulo p, if it is one, and finite."""
        if type(x) is fmpq:
            x = self._lifted(x)
        return x[0] if type(x) is tuple else None

    def exponentials(self, up: Sequence[Number], down: Sequence[Number]) -> set[int]:
        """What exp(x - y) is modulo p, for every x of the ones and y of the others that the field has."""
        xs, ys = ([x for x in map(self.residue, part) if type(x) is tuple] for part in (up, down))
        if any(q is None for _, q in (*xs, *ys)):
            below, raised = self._scalars["sub"], self._scalars["exp"]
            return {z for x in up for y in down if (z := self.modulo(raised(below(x, y)))) is not None}
        rows, columns = (
            np.array([pow(self.root, sign * q % self.q, self.p) for _, q in part], np.uint64)
            for sign, part in ((1, xs), (-1, ys))
        )
        return set(np.unique(np.multiply.outer(rows, columns) % np.uint64(self.p)).tolist())

    @cached_property
    def add(self) -> Operation:
        """x + y."""
        return self._scalars["add"]

    @cached_property
    def multiply(self) -> Operation:
        """x * y."""
        return self._scalars["mul"]

    def folded(self, operation: Operation, x: Array) -> Array:
        """The elements of every row, folded; sums of residues by Python's own loops, as millions come by."""
        if operation is not self.add:
            return numbers.folded(operation, x)
        return np.fromiter(map(self._sum, x.tolist()), object, len(x))

    def product(self, x: Array, y: Array) -> Array:
        """The sums of x * y, row by row, likewise."""
        return np.fromiter(map(self._dot, x.tolist(), y.tolist()), object, len(x))

    def _sum(self, xs: Sequence[Number]) -> Number:
        kinds = {*map(type, xs)}
        if kinds == {tuple}:
            p, q = zip(*xs, strict=True)
            return sum(p) % self.p, None if None in q else sum(q) % self.q
        return _hole(xs) if Hole in kinds else reduce(self.add, xs)

    def _dot(self, xs: Sequence[Number], ys: Sequence[Number]) -> Number:
        kinds = {*map(type, xs), *map(type, ys)}
        if kinds == {tuple}:
            (p, q), (other_p, other_q) = zip(*xs, strict=True), zip(*ys, strict=True)
            open_ = None in q or None in other_q
            return sum(map(mul, p, other_p)) % self.p, None if open_ else sum(map(mul, q, other_q)) % self.q
        return _hole((*xs, *ys)) if Hole in kinds else reduce(self.add, map(self.multiply, xs, ys))

    def rescaled(self, x: Number, top: Number, new: Number) -> Number:
        """x * exp(top - new), as `numbers.rescaled`."""
        fall = self._scalars["sub"](top, new)
        if type(fall) is numbers.arb and fall < 0:
            return ZERO
        return self.multiply(x, self._scalars["exp"](fall))

    def power(self, exponent: Fraction) -> Operation:
        """x ** exponent."""

        def made(x: Number) -> Number:
            if type(x) is not tuple:
                exact = numbers.power(exponent, x)
                return exact if type(exact) is not numbers.arb or numbers.is_infinite(exact) else OPEN
            if exponent.denominator > 2:
                return self._function(f"pow {exponent}", x)
            base = x if exponent.denominator == 1 else self._root(x)
            if type(base) is Hole:
                return base
            raised = self._each(lambda a, m: pow(a, abs(exponent.numerator), m), base)
            return self._divide(ONE, raised) if exponent < 0 else raised

        return made

    def _each(self, operation: Callable[..., int], *operands: Residue) -> Residue:
        q = [x[1] for x in operands]
        whole = [part for part in q if part is not None]
        return operation(*(x[0] for x in operands), self.p), operation(*whole, self.q) if len(whole) == len(q) else None

    def _lifted(self, x: Number) -> Number:
        """A rational as a residue."""
        above, below = key = int(x.p), int(x.q)
        if key not in self._lifts:
            if len(self._lifts) >= KNOWN:
                self._lifts.clear()
            if not below % self.p or not below % self.q:
                return OPEN
            q = above * pow(below, -1, self.q) % self.q if self.exponents else None
            self._lifts[key] = above * pow(below, -1, self.p) % self.p, q
        return self._lifts[key]

    @cached_property
    def _lifts(self) -> dict[Residue, Number]:
        return {}

    def _both(self, operation: Callable[..., Number], x: Number, y: Number) -> Number:
        """An operation on residues, of which one may be a rational."""
        x, y = self.residue(x), self.residue(y)
        return OPEN if type(x) is Hole or type(y) is Hole else operation(x, y)

    def _add(self, x: Number, y: Number) -> Number:
        if type(x) is tuple and type(y) is tuple:
            return (x[0] + y[0]) % self.p, None if x[1] is None or y[1] is None else (x[1] + y[1]) % self.q
        if type(x) is not tuple and type(y) is not tuple:
            return numbers.add(x, y)
        for number in (x, y):
            if type(number) is numbers.arb:
                return number
        return self._both(self._add, x, y)

    def _subtract(self, x: Number, y: Number) -> Number:
        return self._add(x, self._negative(y))

    def _negative(self, x: Number) -> Number:
        return self._each(lambda a, m: -a % m, x) if type(x) is tuple else -x

    def _multiply(self, x: Number, y: Number) -> Number:
        if type(x) is tuple and type(y) is tuple:
            return x[0] * y[0] % self.p, None if x[1] is None or y[1] is None else x[1] * y[1] % self.q
        if type(x) is not tuple and type(y) is not tuple:
            return numbers.multiply(x, y)
        for number in (x, y):
            if type(number) is numbers.arb:
                return OPEN  # nobody knows the sign of the other one, and whether it is 0 somewhere
            if type(number) is not tuple and number == 0:
                return ZERO
        return self._both(self._multiply, x, y)

    def _divide(self, x: Number, y: Number) -> Number:
        if type(y) is not tuple:
            if type(y) is numbers.arb:
                return UNDEFINED if type(x) is numbers.arb else ZERO
            return UNDEFINED if y == 0 else self._multiply(x, 1 / y)
        if 0 in y:
            return OPEN
        return self._multiply(x, self._each(lambda a, m: pow(a, -1, m), y))

    def _exponential(self, x: Number) -> Number:
        if type(x) is numbers.arb:
            return x if x > 0 else ZERO
        if type(x) is not tuple:
            if x == 0:
                return ONE
            x = self._lifted(x)
            if type(x) is Hole:
                return x
        return self._function("exp", x) if x[1] is None else (pow(self.root, x[1], self.p), None)

    def _root(self, x: Number) -> Number:
        if type(x) is not tuple:
            exact = numbers.square_root(x)
            if type(exact) is not numbers.arb or numbers.is_infinite(exact):
                return exact
            x = self._lifted(x)
            if type(x) is Hole:
                return x
        if not self.roots:
            return self._function("root", x)
        root = self._each(lambda a, m: pow(a, (m + 1) // 4, m), x)
        return root if self._multiply(root, root) == x else OPEN

    def _sigmoid(self, x: Number) -> Number:
        if type(x) is numbers.arb:
            return ONE if x > 0 else ZERO
        above = self._exponential(x)
        return above if type(above) is Hole else strict(self._divide)(above, self._add(ONE, above))

    def _silu(self, x: Number) -> Number:
        return numbers.silu(x) if type(x) is numbers.arb else self.multiply(x, self._sigmoid(x))

    def _maximum(self, x: Number, y: Number) -> Number:
        """The larger one in another order than that of the reals."""
        for one, other in ((x, y), (y, x)):
            if type(one) is numbers.arb:
                return one if one > 0 else other
        if self.mixed:
            return self._both(partial(self._each, self._joined), x, y)
        self._decided.add(frozenset((x, y)))
        return max(x, y, key=lambda number: self._word("order", self.residue(number)))

    def _joined(self, x: int, y: int, m: int) -> int:
        """A random function that is commutative and associative: a sum behind a few cubes, which are permutations
        modulo primes that are 2 modulo 3."""
        total = 0
        for number in (x, y):
            for key in self._keys:
                number = pow(number + key, 3, m)
            total += number
        for key in reversed(self._keys):
            total = (pow(total, (2 * m - 1) // 3, m) - key) % m
        return total

    @cached_property
    def _keys(self) -> tuple[int, ...]:
        return tuple(self._word("maximum", number) for number in range(3))

    def _minimum(self, x: Number, y: Number) -> Number:
        return self._negative(self._maximum(self._negative(x), self._negative(y)))

    def _opaque(self, name: str, real: Operation) -> Operation:
        """A function that no field knows: of constants and infinities it is what it is."""

        def made(x: Number) -> Number:
            if type(x) is not tuple:
                exact = real(x)
                if type(exact) is not numbers.arb or numbers.is_infinite(exact):
                    return exact
                x = self._lifted(x) if type(x) is fmpq else OPEN
            return x if type(x) is Hole else self._function(name, x)

        return made

    def _step(self, x: Number) -> Number:
        if type(x) is not tuple:
            return numbers.step(x)
        return self._function("step", x) if self.mixed else fmpq(self._decides("step", x) % 8 < self.bias)

    def _compared(self, kind: OpKind, x: Number, y: Number) -> Number:
        """A comparison, as steps of the difference; beside an infinity every residue is like 0."""
        if numbers.arb in (type(x), type(y)):
            x, y = (ZERO if type(number) is tuple else number for number in (x, y))
            return numbers.ELEMENTWISE[kind](x, y)
        if kind is OpKind.GREATER:
            return strict(self._subtract)(ONE, self._compared(OpKind.GREATER_EQUAL, y, x))
        found = strict(self._step)(self._subtract(x, y))
        if kind is OpKind.EQUAL:
            found = strict(self._multiply)(found, strict(self._step)(self._subtract(y, x)))
        return found

    def _where(self, other: Number, condition: Number, x: Number) -> Number:
        if type(condition) is Hole:
            return condition
        if not self.mixed or type(condition) is not tuple or condition[0] in (0, 1):
            return x if self.holds(condition) else other
        if type(other) is numbers.arb:
            other = self._function("infinity", (int(other > 0), int(other > 0)))
        share = self._function("share", condition)
        return self.add(other, self.multiply(share, self._scalars["sub"](x, other)))

    def _function(self, name: str, x: Residue) -> Residue:
        """A random function of a residue."""
        word = self._word(name, x)
        return word % self.p, None if x[1] is None else (word >> 32) % self.q

    def _word(self, name: str, x: object) -> int:
        """64 random bits."""
        return int.from_bytes(hashlib.blake2b(f"{self.seed} {name} {x}".encode(), digest_size=8).digest(), "little")

    @cached_property
    def _elementwise(self) -> dict[OpKind, Operation]:
        known: dict[OpKind, Operation] = {OpKind.SILU: self._silu, OpKind.CAST: lambda x: x}
        for kind in COMPARISONS:
            known[kind] = partial(self._compared, kind)
        for kind in (OpKind.GELU, OpKind.RELU):
            known[kind] = self._opaque(kind.value, numbers.ELEMENTWISE[kind])
        functions = {kind: self._scalars[name] for kind, name in formula.OPERATORS.items()}
        return functions | {kind: strict(operation) for kind, operation in known.items()}

    @cached_property
    def _scalars(self) -> dict[str, Operation]:
        opaque = ("log", "tanh", "erf", "abs", "sin", "cos", "atan", "expm1", "sign", "floor")
        known: dict[str, Operation] = {name: self._opaque(name, numbers.SCALARS[name]) for name in opaque}
        known |= {
            "add": self._add, "sub": self._subtract, "mul": self._multiply, "div": self._divide,
            "neg": self._negative, "exp": self._exponential, "sqrt": self._root,
            "square": lambda x: self._multiply(x, x), "sigmoid": self._sigmoid, "step": self._step,
            "minimum": self._minimum, "maximum": self._maximum,
        }  # fmt: skip
        return {name: strict(operation) for name, operation in known.items()}


def _hole(xs: Sequence[Number]) -> Hole:
    """What has no value has none in any sum of products."""
    return UNDEFINED if any(x is UNDEFINED for x in xs) else OPEN
