"""From graphs to terms: one term for the elements of each output, by unfolding every operator.

In: a program and a muGraph. Out: for each output the pair of terms of its elements at the same free indices, with
what has to hold of parts of them so that the program, and the muGraph, has a value there (`domain`).
Iterators and savers become indices, accumulators sums or maxima over the part of an axis that the loop runs over,
graph-defined operators what stands in them. A constant other than 0, 1 and 2 is a symbol, so that the same terms
stand for graphs of other sizes (`literal`: it stays a numeral, and the proof is for these constants). This is the
meaning that a proof is about; `meaning` holds it against the walk of the interpreters whenever a proof is checked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction

from mirage_nb.errors import ProofError
from mirage_nb.ir import (
    COMPARISONS,
    AccumAttrs,
    AccumKind,
    ApplyAttrs,
    BlockGraph,
    ConstAttrs,
    DimAttrs,
    InIterAttrs,
    KernelGraph,
    Op,
    OpKind,
    OutSaverAttrs,
    PowAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    ThreadGraph,
    TransposeAttrs,
    WhereAttrs,
)
from mirage_nb.ir.fields import write_attrs
from mirage_nb.verify.defined import domain
from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.proof.axes import Parts, Scope, check_pair, covered, drops, leaves, scoped
from mirage_nb.verify.proof.functions import literal, of_formula, power
from mirage_nb.verify.proof.indices import FRESH, ONE, Index, branches, factors, for_all, regrouped
from mirage_nb.verify.proof.masked import TERMS, Masked, logarithm, of_masked, raised, real, with_weight
from mirage_nb.verify.proof.signs import NO_FACTS, is_bit, vanishes
from mirage_nb.verify.proof.terms import (
    NO_EXTENTS,
    Digit,
    Kind,
    Term,
    Var,
    add,
    bind,
    entry,
    exp,
    fn,
    inside,
    inv,
    mul,
    neg,
    num,
    sqrt,
    sym,
    top,
)

Value = Term | Masked[Term]

LARGEST_NUMERAL = 2
MAX_GOALS = 256

Needs = tuple[tuple[Need, Term], ...]
"""Terms, for all values of their indices but those of the output, and what they have to be."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Two terms that are to be equal: the element of the program's output at an index, and the muGraph's.

    `given`: what holds wherever the program's element has a value; `owed`: what has to hold so that the muGraph's has;
    `always`: what holds anyway, as that tiles have elements; `inside`: 1 where the index is one of the output.
    """

    left: Term
    right: Term
    output: int = 0
    index: Index = ()
    given: Needs = ()
    owed: Needs = ()
    always: Needs = ()
    inside: Term = ONE


@dataclass(frozen=True, slots=True)
class Translation:
    """The goals of a pair of graphs, and what their names stand for: the parts of axes, constants and functions."""

    graphs: tuple[KernelGraph, KernelGraph]
    outputs: tuple[int, ...]
    literal: bool
    scopes: tuple[Scope, Scope]
    goals: tuple[Goal, ...]
    constants: Mapping[str, object]
    functions: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Env:
    """Where in a block graph an element is asked for: the indices of each grid dim, and of the loop inside it."""

    grid: tuple[tuple[Digit, ...], ...] = ()
    loop: tuple[Digit, ...] | None = None


def translate(
    program: KernelGraph,
    mugraph: KernelGraph,
    outputs: tuple[int, ...],
    *,
    literal: bool = False,
    extents: Mapping[str, int] = NO_EXTENTS,
) -> Translation:
    """What there is to prove. `outputs[i]` is the muGraph's output for output i of the program; the names of
    the parts of axes in `extents` say their extents, which are those of these graphs.

    Raises:
        ProofError: other inputs or outputs, partitions that do not nest, graphs that are too large.
        GraphError: a graph breaks Definition 2.1, so that it has no meaning.
    """
    check_pair(program, mugraph, outputs)
    first, second = scoped(program, mugraph, outputs, extents)
    reader = Reader(literal)
    goals = []
    for number, other in enumerate(outputs):
        value, match = program.outputs[number], mugraph.outputs[other]
        numbers = itertools.count(-1, -1)
        choices = [branches(parts, numbers.__next__) for parts in first.dims[value]]
        if math.prod(map(len, choices)) > MAX_GOALS:
            raise ProofError(f"an output of more than {MAX_GOALS} parts that are concatenated")
        for choice in itertools.product(*choices):
            index, within = tuple(branch.digits for branch in choice), mul(*(branch.inside for branch in choice))
            reader.begin(within)
            left, given = reader.element(first, value, index)
            right, owed = left, given
            if first is not second or value != match:
                right, owed = reader.element(second, match, index, finite=True)
            goals.append(Goal(left, right, number, index, given, owed, tuple(reader.always), within))
    constants = {name: key for key, name in reader.constants.items()}
    return Translation((program, mugraph), outputs, literal, (first, second), tuple(goals), constants, reader.functions)


@dataclass(slots=True)
class Reader:
    """Terms of elements, each built once."""

    literal: bool
    known: dict[tuple[int, int, Index, Env, tuple[Term, ...]], Value] = field(default_factory=dict)
    needs: dict[tuple[Need, Term], None] = field(default_factory=dict)
    constants: dict[object, str] = field(default_factory=dict)
    functions: dict[str, object] = field(default_factory=dict)
    guards: tuple[Term, ...] = ()
    output: frozenset[Term] = frozenset()
    always: dict[tuple[Need, Term], None] = field(default_factory=dict)
    used: int = 0

    def begin(self, inside: Term) -> None:
        """Elements are asked for at an index that is one of the output where this is 1: there it is."""
        self.output = frozenset(factors(inside))
        self.always.clear()

    def element(self, scope: Scope, value: int, index: Index, *, finite: bool = False) -> tuple[Term, Needs]:
        """The element of an output at an index, and what it needs so that it has a value, which is `finite`: that it is
        not minus infinity, where it could be, then."""
        self.known.clear()
        self.needs.clear()
        found = self.at(scope, value, index, Env())
        if finite and isinstance(found, Masked):
            self._require(Need.POSITIVE, found.weight)
            found = add(found.shift, fn("log", found.weight))
        return real(found), tuple(self.needs)

    def one(self, op: Op, values: list[Value]) -> tuple[Value, Needs]:
        """What an elementwise operator makes of values, and what that needs."""
        self.needs.clear()
        return self._elementwise(op, values), tuple(self.needs)

    def guarded(self, condition: Term, needs: Iterable[tuple[Need, Term]]) -> frozenset[tuple[Need, Term]]:
        """What is needed where a condition is not 0."""
        self.needs.clear()
        with self._where(condition):
            for need, term in needs:
                plain = need is not Need.NONZERO
                self._require(need, term if plain else term.args[0] if term.kind is Kind.INV else inv(term))
        return frozenset(self.needs)

    def _require(self, need: Need, term: Term) -> None:
        """Take down a need, for all values of the indices that are summed over. What is not 0 stands as one over it,
        whose factors steps take apart. What is chosen where a condition is not 0 is needed there only: elsewhere 1
        stands in its place, which is all that may be asked for."""
        for guard in reversed(self.guards):
            if need is Need.NONZERO and vanishes(guard, term):
                return
            term = self._function(Op(OpKind.WHERE, (), WhereAttrs(Fraction(1))), guard, term)
        self.needs[need, for_all(inv(term) if need is Need.NONZERO else term)] = None

    def _known_inside(self, inside: Term) -> Term:
        """What is 1 where an index is inside, but for those of the output, which are."""
        return mul(*(end for end in factors(inside) if end not in self.output))

    def at(self, scope: Scope, value: int, index: Index, env: Env) -> Value:
        """The element of a value at an index."""
        key = (id(scope), value, index, env, self.guards)
        if key not in self.known:
            self.known[key] = self._at(scope, value, index, env)
        return self.known[key]

    def _at(self, scope: Scope, value: int, index: Index, env: Env) -> Value:
        number, result = scope.defined[value]
        if number < 0:
            if scope.outer is not None:
                return self.at(scope.outer, scope.feeds[result], index, env)
            assert isinstance(scope.graph, KernelGraph)
            return entry(scope.graph.inputs[result].name, index)
        op = scope.graph.ops[number]
        if number in scope.inner:
            return self._inside(scope.inner[number], op, result, index, env)
        match op.attrs:
            case InIterAttrs():
                return self._tile(scope, op.attrs, value, index, env)
            case AccumAttrs():
                return self._accumulated(scope, op, op.attrs, index, env)
        return self._plain(scope, op, value, index, env)

    def _inside(self, inner: Scope, op: Op, result: int, index: Index, env: Env) -> Value:
        """A value that a graph inside defines."""
        if isinstance(op.body, ThreadGraph):
            return self.at(inner, op.body.outputs[result], index, env)
        assert isinstance(op.body, BlockGraph)
        saver = op.body.savers[result]
        assert isinstance(saver.attrs, OutSaverAttrs)
        grid: list[tuple[Digit, ...]] = [()] * len(inner.grid)
        tile = []
        for dim, digits in enumerate(index):
            at = 0
            if drops(inner, saver, dim):
                ((_, digits),) = digits
            for g, mapped in enumerate(saver.attrs.omap):
                if mapped == dim:
                    end = at + len(leaves(inner.grid[g]))
                    grid[g], at = digits[at:end], end
            tile.append(digits[at:])
        return self.at(inner, saver.inputs[0], tuple(tile), Env(tuple(grid), None))

    def _tile(self, scope: Scope, attrs: InIterAttrs, tile: int, index: Index, env: Env) -> Value:
        assert scope.outer is not None and isinstance(scope.graph, BlockGraph)
        operand, found, within = scope.feeds[attrs.arg], list[tuple[Digit, ...]](), ONE
        for dim, (digits, hanging) in enumerate(zip(index, scope.graph.overhanging(attrs), strict=True)):
            outer = [digit for g, d in enumerate(attrs.imap) if d == dim for digit in env.grid[g]]
            if attrs.fmap == dim and scope.loop:
                if env.loop is None:
                    raise ProofError("an input iterator is read outside of the loop that it belongs to")
                outer += env.loop
            if hanging:
                axis = covered(scope.outer.dims[operand][dim]).name
                within = mul(within, inside(axis, (*outer, *digits)))
                self._has_element(axis, tuple(outer), scope.dims[tile][dim])
            found.append((("T", (*outer, *digits)),) if hanging else (*outer, *digits))
        within = self._known_inside(within)
        with self._where(within):
            value = self.at(scope.outer, operand, tuple(found), Env())
        if isinstance(value, Masked):  # zeros lie beyond the end
            return Masked(mul(within, value.shift), add(mul(within, value.weight), num(1), neg(within)))
        return mul(within, value)

    def _has_element(self, axis: str, outer: tuple[Digit, ...], tile: Parts) -> None:
        """Each of the tiles that hang over the end of an axis has an element of it."""
        for branch in branches(tile, self._fresh):
            if branch.inside == ONE:
                largest = bind(Kind.MAX, branch.indices, inside(axis, (*outer, *branch.digits)))
                self.always[Need.NONZERO, for_all(largest)] = None

    def _accumulated(self, scope: Scope, op: Op, attrs: AccumAttrs, index: Index, env: Env) -> Value:
        if attrs.dim is not None:
            count = len(leaves(scope.loop))
            digits = index[attrs.dim]
            rest = tuple(d[count:] if number == attrs.dim else d for number, d in enumerate(index))
            return self.at(scope, op.inputs[0], rest, Env(env.grid, digits[:count]))
        if attrs.kind is AccumKind.HOLD:
            return self.at(scope, op.inputs[0], index, Env(env.grid, None))
        kind = {AccumKind.SUM: Kind.SUM, AccumKind.MAX: Kind.MAX, AccumKind.RESCALE: Kind.RESCALED}[attrs.kind]

        def body(digits: tuple[Digit, ...], place: int) -> Value:
            return self._operand(scope, op, place, index, Env(env.grid, digits))

        return self._over(kind, scope.loop, body)

    def _over(self, kind: Kind, parts: Parts, body: Callable[[tuple[Digit, ...], int], Value]) -> Value:
        """A sum or maximum over all values of an index; over a concatenated axis, that of both sides together. What is
        rescaled from minus infinity counts nothing, and is needed nowhere."""
        made: list[tuple[tuple[Var, ...], Value, Term, Term]] = []
        for branch in branches(parts, self._fresh):
            within = self._known_inside(branch.inside)
            with self._where(within):
                found = body(branch.digits, -1)
                with self._where(found.weight if isinstance(found, Masked) else ONE):
                    x = real(body(branch.digits, 0)) if kind is Kind.RESCALED else ONE
            made.append((branch.indices, found, x, within))
        if kind is Kind.SUM:
            return add(*(bind(kind, indices, mul(within, real(found))) for indices, found, _, within in made))
        if kind is Kind.MAX and not any(isinstance(found, Masked) for _, found, *_ in made):
            return top(*(_largest(indices, real(found), within) for indices, found, _, within in made))
        if any(isinstance(found, Masked) or within != ONE for _, found, _, within in made):
            weights = [mul(within, raised(found, TERMS)) for _, found, _, within in made]
            largest = top(*(bind(Kind.MAX, one[0], weight) for one, weight in zip(made, weights, strict=True)))
            if kind is Kind.MAX:
                return logarithm(largest, TERMS)
            self._require(Need.NONZERO, largest)
            shares = (mul(x, weight, inv(largest)) for (_, _, x, _), weight in zip(made, weights, strict=True))
            return add(*(bind(Kind.SUM, one[0], share) for one, share in zip(made, shares, strict=True)))
        if len(made) == 1:
            ((indices, found, x, _),) = made
            return bind(kind, indices, x, real(found))
        shift = neg(top(*(bind(Kind.MAX, indices, real(found)) for indices, found, *_ in made)))
        return add(*(bind(Kind.SUM, indices, mul(x, exp(add(real(m), shift)))) for indices, m, x, _ in made))

    def _fresh(self) -> int:
        self.used += 1
        return FRESH - self.used

    def _operand(self, scope: Scope, op: Op, place: int, index: Index, env: Env) -> Value:
        """The element of an operand that is broadcast to `index`."""
        value = op.inputs[place]
        dims = scope.dims[value]
        aligned = index[len(index) - len(dims) :]
        own = tuple(digits if parts else () for digits, parts in zip(aligned, dims, strict=True))
        return self.at(scope, value, own, env)

    def _plain(self, scope: Scope, op: Op, value: int, index: Index, env: Env) -> Value:
        if value in scope.numbered:
            return entry(scope.numbered[value], index)
        match op.kind, op.attrs:
            case _, ConstAttrs(number, symbol):
                return self.constant(number, symbol)
            case OpKind.MATMUL, _:
                return self._matmul(scope, op.inputs[0], op.inputs[1], index, env)
            case OpKind.CONCAT_MATMUL, _:
                w, x, y, z = op.inputs
                return add(self._matmul(scope, w, y, index, env), self._matmul(scope, x, z, index, env))
            case OpKind.CONCAT, DimAttrs(dim):
                (side, digits), *inner = index[dim]  # of a partitioned axis the outermost digit tells the side
                own = tuple((*digits, *inner) if d == dim else rest for d, rest in enumerate(index))
                return self.at(scope, op.inputs["LR".index(side)], own, env)
            case _, DimAttrs(dim):
                return self._reduced(scope, op, dim, index, env)
            case _, RepeatAttrs(dim):
                count = len(leaves(scope.dims[op.inputs[0]][dim]))  # the digits in front say which copy it is
                own = tuple(d[len(d) - count :] if number == dim else d for number, d in enumerate(index))
                return self.at(scope, op.inputs[0], own, env)
            case _, TransposeAttrs(perm):
                order = sorted(range(len(perm)), key=lambda i: perm[i])
                return self.at(scope, op.inputs[0], tuple(index[i] for i in order), env)
            case _, ReshapeAttrs():
                return self.at(scope, op.inputs[0], regrouped(index, scope.dims[op.inputs[0]]), env)
        if op.kind is OpKind.WHERE:
            return self._elementwise(op, self._choice(scope, op, index, env))
        return self._elementwise(op, [self._operand(scope, op, place, index, env) for place in range(len(op.inputs))])

    def _choice(self, scope: Scope, op: Op, index: Index, env: Env) -> list[Value]:
        """A condition, and what is read where it is not 0."""
        condition = real(self._operand(scope, op, 0, index, env))
        with self._where(condition):
            return [condition, self._operand(scope, op, 1, index, env)]

    @contextmanager
    def _where(self, condition: Term) -> Iterator[None]:
        """What is read inside is read where the condition is not 0."""
        before = self.guards
        self.guards = before if condition == ONE else (*before, condition)
        try:
            yield
        finally:
            self.guards = before

    def _elementwise(self, op: Op, values: list[Value]) -> Value:
        infinite = isinstance(op.attrs, WhereAttrs) and op.attrs.infinite != 0
        if infinite or any(isinstance(value, Masked) for value in values):
            return self._masked(op, values)
        operands = [real(value) for value in values]
        match op.attrs:
            case PowAttrs(exponent):
                return power(operands[0], exponent, self._require)
            case ApplyAttrs(_, text):
                of_formula(text, operands[0], self._require)
            case _ if op.kind in domain.NEEDS:
                self._require(domain.NEEDS[op.kind], operands[-1])
            case _ if op.kind not in domain.TOTAL:
                raise ProofError(f"it is not known where {op.kind.value} is defined")
        if op.kind in COMPARISONS:
            return self._function(Op(OpKind.APPLY, (), COMPARISONS[op.kind]), add(operands[0], neg(operands[1])))
        made = ELEMENTWISE.get(op.kind)
        return self._function(op, *operands) if made is None else made(*operands)

    def _masked(self, op: Op, values: list[Value]) -> Value:
        """An operator where something may be minus infinity. A difference from it is plus infinity, which nothing is
        said of, unless what is less is minus infinity there, too: then there is none."""
        if op.kind is OpKind.SUB and isinstance(values[1], Masked):
            weight, less = with_weight(values[0], TERMS).weight, values[1].weight
            if not vanishes(weight, less) and not NO_FACTS.holds(Need.POSITIVE, less):
                raise ProofError("a difference may be plus infinity, which is no real number")
            self._require(Need.NONZERO, less)
        if op.kind is OpKind.MUL:
            values.sort(key=lambda value: not isinstance(value, Masked))
        if op.kind in (OpKind.MUL, OpKind.DIV) and isinstance(values[0], Masked):
            scale = real(values[1])
            if not (is_bit(values[0].weight) and NO_FACTS.holds(Need.POSITIVE, scale)):
                raise ProofError(f"{op.kind.value} of what may be minus infinity by what may not be positive")
        if isinstance(op.attrs, WhereAttrs):
            for other in {op.attrs.other, Fraction(int(not op.attrs.infinite))}:
                self._named(Op(OpKind.WHERE, (), WhereAttrs(other)))
        return of_masked(op.kind, op.attrs, values, TERMS)

    def _function(self, op: Op, *operands: Term) -> Term:
        """An operator that terms know by its name."""
        return fn(self._named(op), *operands)

    def _named(self, op: Op) -> str:
        name = function_name(op)
        if self.functions.setdefault(name, (op.kind.value, op.attrs)) != (op.kind.value, op.attrs):
            raise ProofError(f"two functions are called {name}")
        return name

    def constant(self, value: Fraction, symbol: str) -> Term:
        known = literal(value, symbol) if self.literal else None
        if known or symbol:
            return known or self._symbol((value, symbol), value)
        top, bottom = (
            num(n) if abs(n) <= LARGEST_NUMERAL else mul(num(-1 if n < 0 else 1), self._symbol(abs(n), abs(n)))
            for n in (value.numerator, value.denominator)
        )
        return mul(top, inv(bottom))

    def _symbol(self, key: object, value: Fraction | int) -> Term:
        name = self.constants.setdefault(key, f"c{len(self.constants)}")
        return sym(name, positive=value > 0)

    def _matmul(self, scope: Scope, left: int, right: int, index: Index, env: Env) -> Term:
        def element(value: int, row: tuple[Digit, ...], column: tuple[Digit, ...]) -> Term:
            batch = scope.dims[value][:-2]
            aligned = index[len(index) - 2 - len(batch) : len(index) - 2]
            own = tuple(digits if parts else () for digits, parts in zip(aligned, batch, strict=True))
            return real(self.at(scope, value, (*own, row, column), env))

        return real(
            self._over(
                Kind.SUM,
                scope.dims[left][-1],
                lambda k, _: mul(element(left, index[-2], k), element(right, k, index[-1])),
            )
        )

    def _reduced(self, scope: Scope, op: Op, dim: int, index: Index, env: Env) -> Value:
        kind = {OpKind.SUM: Kind.SUM, OpKind.MAX: Kind.MAX, OpKind.RESCALED_SUM: Kind.RESCALED}[op.kind]

        def body(digits: tuple[Digit, ...], place: int) -> Value:
            inside = tuple(digits if d == dim else rest for d, rest in enumerate(index))
            return self._operand(scope, op, place, inside, env)

        return self._over(kind, scope.dims[op.inputs[0]][dim], body)


def _largest(indices: tuple[Var, ...], value: Term, within: Term) -> Term:
    """The largest of what is inside."""
    if within == ONE:
        return bind(Kind.MAX, indices, value)
    return bind(Kind.WITHIN, indices, value, within)


def function_name(op: Op) -> str:
    """What an opaque function is called: the operator's name, or @ and a user's, with the other attributes."""
    fields = dict(write_attrs(op.attrs))
    name = f"@{fields.pop('name')}" if "name" in fields else op.kind.value
    return f"{name}({', '.join(f'{key}={value}' for key, value in fields.items())})" if fields else name


ELEMENTWISE: dict[OpKind, Callable[..., Term]] = {
    OpKind.ADD: add, OpKind.MUL: mul, OpKind.EXP: exp, OpKind.SQRT: sqrt, OpKind.MAXIMUM: top,
    OpKind.SUB: lambda a, b: add(a, neg(b)), OpKind.DIV: lambda a, b: mul(a, inv(b)),
    OpKind.SQR: lambda a: mul(a, a), OpKind.CAST: lambda a: a,
}  # fmt: skip
"""Operators that terms have a node for; every other elementwise operator is a function known by its name."""
