"""Rewriting terms by the axioms, one step at a time: the plain meaning of Table 2.

In: equations (`axioms.EQUATIONS` or fewer), the axes of the symbols, and a term. Out: all terms one axiom
application away, in both directions, side conditions checked. It knows nothing of the normal form: the
normal form is tested against it, and proofs replay its steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import assert_never

from mirage_nb.algebra.atoms import Expr
from mirage_nb.algebra.axioms import (
    UNIT_AXIS,
    AdditionFree,
    Apply,
    Axiom,
    AxisHole,
    Hole,
    Independent,
    Sum,
    Symbol,
    Term,
)
from mirage_nb.algebra.strict import Expressions

SymbolAxes = Mapping[str, frozenset[Hashable]]
Binding = dict[str, Hashable]
"""What the holes of a pattern stand for: terms, and axes for axis holes."""


def match(pattern: Term, term: Term, binding: Binding) -> bool:
    """Extend `binding` so that `pattern` becomes `term`; False (binding then useless) if impossible."""
    if isinstance(pattern, Hole):  # by hand: class patterns take three times as long, and millions come by
        bound = binding.setdefault(pattern.name, term)
        return bound is term or bound == term
    if isinstance(pattern, Apply):
        if not isinstance(term, Apply) or term.op != pattern.op or len(term.args) != len(pattern.args):
            return False
        for part, there in zip(pattern.args, term.args, strict=True):
            if not match(part, there, binding):
                return False
        return True
    if isinstance(pattern, Sum):
        if not isinstance(term, Sum):
            return False
        axis = pattern.axis
        if isinstance(axis, AxisHole):
            axis = binding.setdefault(axis.name, term.axis)
        return axis == term.axis and match(pattern.body, term.body, binding)
    return pattern == term


def fill(pattern: Term, binding: Mapping[str, Hashable]) -> Term:
    """The pattern with its holes replaced.

    Raises:
        KeyError: a hole without a value.
        TypeError: a hole whose value is not a term.
    """
    if isinstance(pattern, Hole):
        value = binding[pattern.name]
        if not isinstance(value, (Symbol, Hole, Apply, Sum)):
            raise TypeError(f"hole {pattern.name!r} stands for {value!r}, which is not a term")
        return value
    if isinstance(pattern, Apply):
        return Apply(pattern.op, tuple([fill(part, binding) for part in pattern.args]))
    if isinstance(pattern, Sum):
        axis = pattern.axis
        return Sum(binding[axis.name] if isinstance(axis, AxisHole) else axis, fill(pattern.body, binding))
    return pattern


def children(term: Term) -> tuple[Term, ...]:
    """The direct parts of a term."""
    if isinstance(term, Apply):
        return term.args
    return (term.body,) if isinstance(term, Sum) else ()


def with_child(term: Term, position: int, child: Term) -> Term:
    """The term with one direct part replaced."""
    if isinstance(term, Apply):
        return Apply(term.op, (*term.args[:position], child, *term.args[position + 1 :]))
    if isinstance(term, Sum):
        return Sum(term.axis, child)
    raise ValueError(f"{term} has no parts")


def subterms(terms: Iterable[Term]) -> list[Term]:
    """All parts of some terms, themselves included, each once."""
    found = dict.fromkeys(terms)
    for term in (order := list(found)):  # grows while it is read
        for child in children(term):
            if child not in found:
                found[child] = None
                order.append(child)
    return order


def has_addition(term: Term) -> bool:
    """Whether there is an addition in the numerator of a term."""
    match term:
        case Apply("add" | "sub", _):
            return True
        case Apply("mul", (x, y)):
            return has_addition(x) or has_addition(y)
        case Apply("div", (x, _)):
            return has_addition(x)
        case Sum(_, body):
            return has_addition(body)
        case _:
            return False


class Rewriter:
    """Applies equations to terms over given symbols.

    Args:
        equations: the axioms to apply, in both directions.
        axes: what each symbol depends on.
        factored: whether the further conditions of factored products hold.
    """

    def __init__(self, equations: Iterable[Axiom], axes: SymbolAxes, *, factored: bool = False) -> None:
        self.axes = axes
        self._rules: dict[str, list[tuple[Term, Term, Axiom]]] = {}
        self._factored = factored
        self._free: dict[Term, frozenset[Hashable]] = {}
        self._steps: dict[Term, tuple[Term, ...]] = {}
        for axiom in equations:
            for lhs, rhs in ((axiom.lhs, axiom.rhs), (axiom.rhs, axiom.lhs)):
                if not isinstance(lhs, Hole):  # a bare hole would match everything, forever
                    self._rules.setdefault(_head(lhs), []).append((lhs, rhs, axiom))

    def free_axes(self, term: Term) -> frozenset[Hashable]:
        """The axes that a term depends on."""
        found = self._free.get(term)
        if found is None:
            found = self.axes[term.name] if isinstance(term, Symbol) else frozenset()
            found = found.union(*(self.free_axes(t) for t in children(term)))
            if isinstance(term, Sum):
                found = found - {term.axis}
            self._free[term] = found
        return found

    def steps(self, term: Term) -> tuple[Term, ...]:
        """All terms one application of one equation away, anywhere in the term (each once)."""
        found = self._steps.get(term)
        if found is None:
            here = list(self._at_root(term))
            for i, child in enumerate(children(term)):
                here += [with_child(term, i, new) for new in self.steps(child)]
            found = self._steps[term] = tuple(dict.fromkeys(here))
        return found

    def _at_root(self, term: Term) -> Iterator[Term]:
        for lhs, rhs, axiom in self._rules.get(_head(term), ()):
            binding: Binding = {}
            if match(lhs, term, binding) and self.holds(axiom, binding):
                yield fill(rhs, binding)

    def holds(self, axiom: Axiom, binding: Binding) -> bool:
        """Whether the side conditions of an axiom hold for what its holes stand for."""
        conditions = axiom.conditions + (axiom.factored_conditions if self._factored else ())
        for condition in conditions:
            match condition:
                case Independent(axis, name):
                    if binding[axis] in self.free_axes(fill(Hole(name), binding)):
                        return False
                case AdditionFree(names):
                    if all(has_addition(fill(Hole(name), binding)) for name in names):
                        return False
                case _:
                    assert_never(condition)
        return True

    def closure(self, term: Term, limit: int) -> tuple[list[Term], bool]:
        """The terms reachable from `term`, at most `limit` of them, and whether these are all."""
        found = {term: None}
        for current in (order := [term]):  # grows while it is read
            for new in self.steps(current):
                if new not in found:
                    if len(found) >= limit:
                        return order, False
                    found[new] = None
                    order.append(new)
        return order, True


def _head(term: Term) -> str:
    return term.op if isinstance(term, Apply) else type(term).__name__


def build(algebra: Expressions, term: Term, axes: SymbolAxes, known: dict[Term, Expr] | None = None) -> Expr:
    """The normal form of a term; `known` remembers the normal forms of its parts between calls."""
    known = {} if known is None else known
    found = known.get(term)
    if found is not None:
        return found
    parts = [build(algebra, t, axes, known) for t in children(term)]
    match term:
        case Symbol(name):
            found = algebra.symbol(name, axes[name])
        case Sum(axis, _):
            found = parts[0] if axis == UNIT_AXIS else algebra.sum((axis,), parts[0])
        case Apply("sub", _):
            found = algebra.add(parts[0], algebra.negate(parts[1]))
        case Apply("add", _):
            found = algebra.add(*parts)
        case Apply("mul", _):
            found = algebra.mul(*parts)
        case Apply("div", _):
            found = algebra.div(*parts)
        case Apply("exp", _):
            found = algebra.exp(*parts)
        case Apply("sqrt", _):
            found = algebra.sqrt(*parts)
        case Apply(name, _):
            found = algebra.function(name, *parts)
        case Hole(name):
            raise ValueError(f"a pattern has no normal form: hole {name!r}")
        case _:
            assert_never(term)
    known[term] = found
    return found
