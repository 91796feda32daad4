"""What every operator does to a value: its abstract expression, its field elements, and its shift.

In: a prepared program and the axioms of an effort. Out: `Semantics`, which holds the algebra, the oracle,
the random field elements of every tensor and the targets; the closure asks it for the result of an
operator. Invariant: everything drawn at random depends on the seed alone, so all configurations of a
program compute with the same elements and equal functions have equal arrays (paper sections 4.3 and 5).
"""

from __future__ import annotations

import numpy as np

from mirage_nb.algebra import AlgebraOptions, algebra_for, oracle_for
from mirage_nb.algebra.atoms import SubAxis
from mirage_nb.errors import SearchError
from mirage_nb.ir import COMPARISONS, OPS, AccumKind, ConstAttrs, OpKind, Trait
from mirage_nb.search.axes import Join, Prepared
from mirage_nb.search.saturation.arithmetic import ARITHMETIC, Elements, modulo_both
from mirage_nb.search.saturation.fields import Array, Field, P, Q, fingerprint, inverse, root
from mirage_nb.search.saturation.peaks import Peaks, prints, raises
from mirage_nb.search.saturation.values import DATA, PARTS, POST, TILE, Node, Operator, Peak, Shift, Type, Value

DRAWS = 2
"""Independent draws computed side by side: even a scalar value has two elements to tell it apart."""
PART_EXTENT = 2

OPAQUE = frozenset({OpKind.GELU, OpKind.RELU, OpKind.CLAMP, OpKind.POW, OpKind.APPLY})
"""Unary operators outside the theory: random functions here, uninterpreted functions in the algebra."""

OPAQUE_PAIRS = frozenset({OpKind.MAXIMUM, OpKind.WHERE, *COMPARISONS})
"""Binary operators outside the theory: the search applies them to the operands that the program gives them."""

UNARY = frozenset({OpKind.EXP, OpKind.SQRT, OpKind.SQR, OpKind.SILU, OpKind.SIGMOID}) | OPAQUE
BINARY = frozenset(ARITHMETIC) | OPAQUE_PAIRS


class _Shifted(SearchError):
    """The program loses or mixes shifts."""


class Semantics:
    """The algebra and the field of one search.

    `strict`: maxima may only be subtracted before exponentials, as in a softmax. A program that does more with them
    (adds one to a logarithm, divides by one) may do so in its kernels, too.
    """

    def __init__(self, prepared: Prepared, options: AlgebraOptions) -> None:
        self.prepared = prepared
        self.algebra = algebra_for(options)
        self.field = Field(prepared.seed)
        self._dims, self._shape = self._lay_out()
        kinds = {op.kind for op, _ in prepared.program}
        self.exponentials = bool(kinds & ({OpKind.EXP, OpKind.SILU, OpKind.SIGMOID} | OPAQUE | OPAQUE_PAIRS))
        self.tensors = self._draw_tensors()
        self.constants = [self._constant(index, attrs) for index, attrs in enumerate(prepared.constants)]
        self._peaks = Peaks(self.field)
        self._rows: dict[int, frozenset[SubAxis]] = {}
        self.strict = True
        self.lowered: set[tuple[bytes, frozenset[bytes]]] = set()
        """What the program takes off maxima of what, by their prints; empty until it is read."""
        try:
            self.targets = self._targets()
        except _Shifted:
            self.strict = False
            self.targets = self._targets()
        self.oracle = oracle_for(self.algebra, [target.expr for target in self.targets])

    # -- layout of the arrays

    def _lay_out(self) -> tuple[list[dict[int, int]], tuple[int, ...]]:
        owners: dict[tuple[int, int], int] = {}
        for axis in self.prepared.axes:
            for dim in axis.dims:
                owners[dim] = owners.get(dim, 0) + 1
        dims: list[dict[int, int]] = []
        shape = [DRAWS]
        for axis in self.prepared.axes:
            aliased = any(owners[dim] > 1 for dim in axis.dims)
            dims.append({})
            for bit, _ in PARTS:
                if axis.full & bit:
                    dims[-1][bit] = len(shape)
                    shape.append(PART_EXTENT if axis.reduced or axis.whole or aliased else 1)
        for join in self.prepared.joins:
            sides = (1 if axis is None else shape[dims[axis][TILE]] for axis in (join.first, join.second))
            extent = sum(sides)
            for alike in self.prepared.alike(join.whole):
                shape[dims[alike][TILE]] = extent
        return dims, tuple(shape)

    def array_dims(self, axis: int, mask: int) -> tuple[int, ...]:
        """The array dims of the parts in `mask` of an axis."""
        return tuple(dim for bit, dim in self._dims[axis].items() if mask & bit)

    def parts(self, axis: int, mask: int) -> tuple[tuple[str, str], ...]:
        """The sub-axes of the algebra for the parts in `mask` of an axis."""
        name = self._name(axis)
        return tuple((name, letter) for bit, letter in PARTS if mask & bit)

    def _name(self, axis: int) -> str:
        return self.prepared.axes[axis].name

    def _draw_tensors(self) -> list[Value]:
        drawn: dict[int, tuple[Array, Array]] = {}
        made: list[Value] = []
        for index, tensor in enumerate(self.prepared.tensors):
            order = [dim for axis in tensor.axes if axis is not None for dim in self._dims[axis].values()]
            shape = (DRAWS, *(self._shape[dim] for dim in order))
            if tensor.input not in drawn:
                drawn[tensor.input] = self.field.draw(shape)
            target = [extent if dim == 0 or dim in order else 1 for dim, extent in enumerate(self._shape)]
            rank = (0, *(1 + i for i in np.argsort(order)))
            p, q = (part.transpose(rank).reshape(target) for part in drawn[tensor.input])
            aliases = [t for t in self.prepared.tensors[:index] if t.input == tensor.input]
            name = tensor.name + "'" * len(aliases)
            axes = [
                part
                for axis in tensor.axes
                if axis is not None
                for part in self.parts(axis, self.prepared.axes[axis].full)
            ]
            made.append(
                Value(
                    index,
                    self.prepared.type_of(tensor.axes),
                    POST,
                    self.algebra.symbol(name, axes),
                    p,
                    q if self.exponentials else None,
                    False,
                    fingerprint(p),
                    nodes=[(Operator(OpKind.IN_ITER, leaf=index), ())],
                )
            )
        return made

    def _constant(self, index: int, attrs: ConstAttrs) -> Value:
        shape = (DRAWS, *(1 for _ in self._shape[1:]))
        if attrs.symbol:
            p, q = self.field.drawn_for(fingerprint(np.frombuffer(attrs.symbol.encode(), np.uint8)), shape)
        else:
            top, bottom = attrs.value.numerator, attrs.value.denominator
            if bottom % P == 0 or bottom % Q == 0:
                raise SearchError(f"the constant {attrs.value} has no image in the field")
            p = np.full(shape, top * pow(bottom, -1, P) % P, np.int64)
            q = np.full(shape, top * pow(bottom, -1, Q) % Q, np.int64)
        key = attrs.symbol or attrs.value
        return Value(
            index,
            (0,) * len(self.prepared.axes),
            POST,
            self.algebra.constant(key),
            p,
            q if self.exponentials else None,
            False,
            fingerprint(p),
            constant=True,
            nodes=[(Operator(OpKind.CONST, leaf=index), ())],
        )

    # -- the program itself

    def _targets(self) -> list[Value]:
        made: list[Value] = []
        for node in self.prepared.program:
            made.append(self._evaluated(node, made))
            if made[-1].peak is not None:
                self._rows[made[-1].expr] = self._left_of(node, made)
        self.program = tuple(made)
        self.program_types = tuple(value.type for value in made)
        self.joining = self._joining()
        self.opaque_pairs: dict[tuple[int, int], set[Operator]] = {}
        for operator, args in self.prepared.program:
            if operator.kind in OPAQUE_PAIRS:
                first, second = (made[a].expr for a in args)
                self.opaque_pairs.setdefault((first, second), set()).add(operator)
        for operator, args in self.prepared.program:
            if operator.kind is OpKind.SUB and (peak := made[args[1]].peak) is not None:
                self.lowered.add((made[args[0]].print, prints(peak)))
        return [made[index] for index in self.prepared.outputs]

    def _left_of(self, node: Node, made: list[Value]) -> frozenset[SubAxis]:
        """The axes that a maximum of the program has as a whole."""
        operator, args = node
        every = (self._rows.get(made[a].expr, self.algebra.free_axes(made[a].expr)) for a in args)
        left = frozenset[SubAxis]().union(*every)
        if operator.kind is OpKind.MAX:
            left = left.difference(self.parts(operator.axis, self.prepared.axes[operator.axis].full))
        return left

    def _joining(self) -> int:
        """The operators of the program that join maxima, and that follow from these for rows: so many more stand behind
        a sum of parts than a softmax has there."""
        rows: dict[int, Type] = {}
        for number, (operator, args) in enumerate(self.prepared.program):
            type_ = self.program[number].type
            if not operator.is_leaf and raises(operator, [self.program[a] for a in args]):
                rows[number] = type_
            elif any(a in rows and not any(own & ~of for own, of in zip(type_, rows[a], strict=True)) for a in args):
                rows[number] = type_
        return len(rows)

    def _evaluated(self, node: Node, made: list[Value]) -> Value:
        operator, args = node
        if operator.is_leaf:
            return (self.tensors if operator.kind is OpKind.IN_ITER else self.constants)[operator.leaf]
        values = [made[a] for a in args]
        if all(value.constant for value in values):
            raise SearchError(
                f"{operator.kind.value} of constants alone is not supported by the search",
                hint="write the number that it gives",
            )
        type_ = self._type(operator, values)
        mask = values[0].type[operator.axis] & DATA if operator.axis >= 0 else 0
        shift = self.shift(operator, values, mask)
        elements = self.elements(operator, values, mask)
        if isinstance(shift, str):
            raise _Shifted(f"{operator.kind.value} is used in a way that the search does not support: {shift}")
        if elements is None:
            raise SearchError(f"{operator.kind.value} is undefined for these constants: it divides by zero")
        p, q, has_exp = elements
        return Value(
            len(made),
            type_,
            POST,
            self.expression(operator, values, mask),
            p,
            q,
            has_exp,
            fingerprint(p),
            shift=shift,
            peak=self.peak(operator, values, mask),
        )

    def _type(self, operator: Operator, args: list[Value]) -> Type:
        """The type of an operator of the program."""
        if operator.kind is OpKind.CONCAT:
            type_ = joined_type(self.prepared.join(operator.axis), args[0].type, args[1].type)
            assert type_ is not None
            return type_
        joined = args[0].type
        for other in args[1:]:
            joined = tuple(a | b for a, b in zip(joined, other.type, strict=True))
        if operator.axis >= 0:
            return (*joined[: operator.axis], 0, *joined[operator.axis + 1 :])
        assert Trait.ELEMENTWISE in OPS[operator.kind].traits
        return joined

    # -- expressions

    def negated(self, expr: int) -> int:
        """The expression of a negative, so that sums and differences are told apart."""
        return self.algebra.negate(expr)

    def placed(self, expr: int, whole: int, side: int) -> int:
        """The expression of one part of a concatenation, in its place: times a matrix that says where it goes."""
        join = self.prepared.join(whole)
        axis, name = (join.second, "second") if side else (join.first, "first")
        own = () if axis is None else self.parts(axis, TILE)
        where = self.algebra.symbol(f"{name} of {self._name(whole)}", (*own, *self.parts(whole, TILE)))
        placed = self.algebra.mul(expr, where)
        return self.algebra.sum(own, placed) if own else placed

    def expression(self, operator: Operator, args: list[Value], mask: int) -> int:
        """The abstract expression of a result; `mask`: the parts that a fold removes."""
        a = args[0].expr
        algebra = self.algebra
        match operator.kind:
            case OpKind.SUB if args[1].peak is None or not self.strict:
                return algebra.add(a, self.negated(args[1].expr))
            case OpKind.SUB:
                return algebra.add(a, self._taken_off(args[0], args[1]))
            case OpKind.ADD:
                return algebra.add(a, args[1].expr)
            case OpKind.MUL:
                return algebra.mul(a, args[1].expr)
            case OpKind.DIV:
                return algebra.div(a, args[1].expr)
            case OpKind.MATMUL:
                return algebra.sum(self.parts(operator.axis, mask), algebra.mul(a, args[1].expr))
            case OpKind.SUM | OpKind.RESCALED_SUM:
                return algebra.sum(self.parts(operator.axis, mask), a)
            case OpKind.MAX:
                return a if args[0].peak is not None else algebra.function("max", a)
            case OpKind.ACCUM if operator.accum in (AccumKind.SUM, AccumKind.RESCALE):
                return algebra.sum(self.parts(operator.axis, mask), a)
            case OpKind.ACCUM:
                return a
            case OpKind.CONCAT:
                first, second = (self.placed(arg.expr, operator.axis, side) for side, arg in enumerate(args))
                return algebra.add(first, second)
            case OpKind.SQR:
                return algebra.mul(a, a)
            case OpKind.SQRT:
                return algebra.sqrt(a)
            case OpKind.EXP:
                return algebra.exp(a)
            case kind if kind in OPAQUE_PAIRS:
                return algebra.function(function_name(operator), algebra.add(a, args[1].expr))
            case _:
                return algebra.function(function_name(operator), a)

    def _taken_off(self, a: Value, m: Value) -> int:
        """The expression of a maximum that is taken off a value. Parts of a maximum have one expression with the whole
        of it, so it depends on what was folded; of a value that does not, it is taken off as a whole."""
        rows, axes = self._rows.get(m.expr), self.algebra.free_axes(m.expr)
        if rows is None or not self.algebra.free_axes(a.expr).isdisjoint(axes - rows):
            return m.expr
        return self.algebra.symbol(f"the whole of {m.expr} along {sorted(map(str, rows))}", rows)

    # -- field elements

    def elements(self, operator: Operator, args: list[Value], mask: int) -> Elements | None:
        """The field elements of a result; None where the operator is undefined (division by zero)."""
        kind, a = operator.kind, args[0]
        if raises(operator, args):
            return (*self._peaks.elements(*self._peaks.raised(args)), False)
        if kind in OPAQUE_PAIRS:
            return self._opaque_pair(operator, a, args[1])
        if kind in BINARY:
            return ARITHMETIC[kind](a, args[1])
        if kind in UNARY:
            return self._unary(operator, a)
        if kind is OpKind.CONCAT:
            return self._concatenated(operator, args)
        dims = self.array_dims(operator.axis, mask)
        if kind is OpKind.MATMUL:
            p, q, has_exp = modulo_both(lambda x, y, m: (x * y % m).sum(axis=dims, keepdims=True) % m, *args)
            return p, q, has_exp and q is None
        accum = operator.accum
        if kind is OpKind.SUM or accum is AccumKind.SUM:
            return modulo_both(lambda x, prime: x.sum(axis=dims, keepdims=True) % prime, a)
        if kind is OpKind.MAX or accum is AccumKind.MAX:
            return (*self._peaks.elements(*self._peaks.folded(a, dims)), a.has_exp)
        if kind is OpKind.RESCALED_SUM or accum is AccumKind.RESCALE:
            return self._rescaled(a, args[1], dims)
        return a.p, a.q, a.has_exp

    def _opaque_pair(self, operator: Operator, a: Value, b: Value) -> Elements:
        """A random function of both elements, the same for either order if the operator is commutative."""
        name = function_name(operator)
        sides = ("", "") if Trait.COMMUTATIVE in OPS[operator.kind].traits else ("first ", "second ")
        (p, q), (other_p, other_q) = (
            self.field.uninterpreted(side + name, x.p, x.q) for side, x in zip(sides, (a, b), strict=True)
        )
        p, q = self.field.uninterpreted(name, (p + other_p) % P, (q + other_q) % Q)
        return p, q if self.exponentials else None, False

    def _concatenated(self, operator: Operator, args: list[Value]) -> Elements:
        join = self.prepared.join(operator.axis)
        (along,) = self.array_dims(join.whole, TILE)
        own = [along if axis is None else self.array_dims(axis, TILE)[0] for axis in (join.first, join.second)]

        def joined(x: Array, y: Array, _: int) -> Array:
            return np.concatenate([x.swapaxes(own[0], along), y.swapaxes(own[1], along)], axis=along)

        return modulo_both(joined, *args)

    def _unary(self, operator: Operator, a: Value) -> Elements | None:
        match operator.kind:
            case OpKind.SQR:
                return modulo_both(lambda x, prime: x * x % prime, a)
            case OpKind.SQRT:
                return modulo_both(root, a)
            case OpKind.EXP if a.q is not None:
                return self.field.exp(a.q), None, True
            case OpKind.SILU | OpKind.SIGMOID if a.q is not None:
                below = inverse((1 + self.field.exp(-a.q % Q)) % P, P)
                if below is None:
                    return None
                return (a.p * below % P if operator.kind is OpKind.SILU else below), None, True
            case kind:
                p, q = self.field.uninterpreted(function_name(operator), a.p, a.q)
                inside = self.exponentials and kind in OPAQUE  # what it gives may stand in an exponential again
                return p, q if inside else None, not inside

    def peak(self, operator: Operator, args: list[Value], mask: int) -> Peak | None:
        """Of a maximum, what it is the largest of."""
        if raises(operator, args):
            return self._peaks.raised(args)[0]
        if operator.kind is OpKind.MAX or operator.accum is AccumKind.MAX:
            return self._peaks.folded(args[0], self.array_dims(operator.axis, mask))[0]
        if operator.kind is OpKind.ACCUM and operator.accum in (AccumKind.CONCAT, AccumKind.HOLD):
            return args[0].peak
        return None

    def _rescaled(self, a: Value, m: Value, dims: tuple[int, ...]) -> Elements | None:
        if m.q is None:
            return None
        _, over = self._peaks.elements(*self._peaks.folded(m, dims))
        weight = self.field.exp((m.q - over) % Q)
        return (a.p * weight % P).sum(axis=dims, keepdims=True) % P, None, True

    # -- shifts: exp(x - max) may only be combined with what was shifted by the same maximum

    def shift(self, operator: Operator, args: list[Value], mask: int) -> Shift | str | None:
        """The shift of a result, or the reason why the operator would lose or mix shifts."""
        shift = self._shift(operator, args, mask)
        return None if isinstance(shift, str) and not self.strict and _loses_safely(operator, args) else shift

    def _shift(self, operator: Operator, args: list[Value], mask: int) -> Shift | str | None:
        kind, a = operator.kind, args[0]
        if kind is OpKind.SUB and args[1].peak is not None:
            if a.shift is not None:
                return "a maximum of shifted values"
            if self.lowered and not self.lowers(a, args[1]):
                return "its maximum is taken off a value as a whole: without a part of it, it may be anything"
            return args[1].as_shift()
        if raises(operator, args):
            return "a maximum of shifted values" if any(arg.shift is not None for arg in args) else None
        if a.peak is not None and kind is not OpKind.MAX and kind is not OpKind.ACCUM:
            return "a maximum may only be subtracted before an exponential"
        if kind is OpKind.RESCALED_SUM or operator.accum is AccumKind.RESCALE:
            return self._rescaled_shift(operator, args, mask)
        if any(arg.peak is not None for arg in args[1:]):
            return "a maximum may only be subtracted before an exponential"
        shifted = [arg for arg in args if arg.shift is not None]
        if not shifted:
            return None
        if kind is OpKind.EXP or operator.accum in (AccumKind.CONCAT, AccumKind.HOLD):
            return a.shift
        if not all(arg.has_exp for arg in shifted):
            return "a value less its maximum may only feed an exponential"
        return self._passed_on(operator, args, shifted, self.array_dims(operator.axis, mask) if mask else ())

    def lowers(self, a: Value, m: Value) -> bool:
        """Whether the program takes this maximum off a value."""
        return m.peak is not None and (a.print, prints(m.peak)) in self.lowered

    def _rescaled_shift(self, operator: Operator, args: list[Value], mask: int) -> Shift | str:
        a, m = args
        if m.peak is None or a.shift is None or a.shift != m.as_shift():
            return "rescaling needs the maximum that was subtracted"
        dims = self.array_dims(operator.axis, mask)
        p, _ = self._peaks.elements(*self._peaks.folded(m, dims))
        return Shift(fingerprint(p), frozenset(i for i, n in enumerate(p.shape) if i and n > 1))

    @staticmethod
    def _passed_on(
        operator: Operator, args: list[Value], shifted: list[Value], dims: tuple[int, ...]
    ) -> Shift | str | None:
        first = shifted[0].shift
        assert first is not None
        match operator.kind:
            case OpKind.SUM | OpKind.ACCUM | OpKind.MATMUL:
                if len(shifted) > 1 or not first.dims.isdisjoint(dims):
                    return "the maximum varies along the summed axis"
                return first
            case OpKind.MUL:
                return first if len(shifted) == 1 else "both factors are shifted"
            case OpKind.CONCAT:
                return "the parts of a concatenation are shifted by maxima of their own"
            case OpKind.ADD | OpKind.SUB:
                same = len(shifted) == 2 and shifted[1].shift == first
                return first if same else "the terms are shifted by different maxima"
            case OpKind.DIV:
                if args[1].shift is None:
                    return first
                return None if args[0].shift == args[1].shift else "a quotient of different shifts"
            case _:
                return "a shifted value under a non-linear operator"


def _loses_safely(operator: Operator, args: list[Value]) -> bool:
    """Whether a result that has no shift any more can be made by the exact maximum only, and raised by no other one.

    A maximum is a value like others but in exponentials; so are differences from it, and what an uninterpreted
    function made of a shifted value: nothing cancels behind it.
    """
    if operator.kind in (OpKind.EXP, OpKind.SILU, OpKind.SIGMOID, OpKind.RESCALED_SUM):
        return False
    if operator.accum is AccumKind.RESCALE:
        return False
    opaque = operator.kind in OPAQUE | OPAQUE_PAIRS
    return opaque or any(a.peak is not None or (a.shift and not a.has_exp) for a in args)


def joined_type(join: Join, first: Type, second: Type) -> Type | None:
    """The type of two tiles one after the other; None where they differ in anything but the axes that are joined."""
    rests = []
    for axis, type_ in ((join.first, first), (join.second, second)):
        if type_[join.whole] or (axis is not None and type_[axis] != TILE):
            return None
        rests.append(type_ if axis is None else (*type_[:axis], 0, *type_[axis + 1 :]))
    (rest, other), whole = rests, join.whole
    return (*rest[:whole], TILE, *rest[whole + 1 :]) if rest == other else None


def function_name(operator: Operator) -> str:
    """The uninterpreted function of an operator; attributes are part of its name."""
    return operator.kind.value if operator.attrs is None else f"{operator.kind.value}{operator.attrs!r}"
