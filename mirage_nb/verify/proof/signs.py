"""Which signs a term can have, and where it is 0: by its form, and by what is known of its parts where a program is
defined.

In: a term, and facts: terms that are not 0, not negative, or positive. Out: the set of signs that are possible, for
all inputs and all values of the free indices; `ANY` says nothing. Terms are total (`terms`): one over 0 is 0, and so is
the root of a negative number. Invariant: facts only ever grow, and whatever equals a term has its signs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType

from mirage_nb.errors import FormatError, ProgramSizeError, ProofError
from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.proof.functions import CHOICE, formula_of, of_formula, unfolded
from mirage_nb.verify.proof.terms import (
    INSIDE,
    OPENED,
    Kind,
    Term,
    Var,
    add,
    given,
    mul,
    num,
    opened,
    renamed,
    replaced,
    sym,
)

Signs = frozenset[int]
"""A subset of {-1, 0, 1}."""

ANY: Signs = frozenset({-1, 0, 1})
ABOVE: Signs = frozenset({1})
BELOW: Signs = frozenset({-1})
NEEDED: Mapping[Need, Signs] = MappingProxyType(
    {Need.NONZERO: frozenset({-1, 1}), Need.NONNEGATIVE: frozenset({0, 1}), Need.POSITIVE: ABOVE}
)

FUNCTIONS: Mapping[str, Callable[[Signs], Signs]] = MappingProxyType(
    {
        "Sigmoid": lambda signs: ABOVE,
        "ReLU": lambda signs: frozenset(max(sign, 0) for sign in signs),
        "Pow": lambda signs: ABOVE if signs == ABOVE else ANY,
        "step": lambda signs: frozenset({0, 1}),
        "floor": lambda signs: signs | {0} if 1 in signs else signs,
        **{name: (lambda signs: signs) for name in ("SiLU", "GELU", "tanh", "erf", "atan", "sign")},
    }
)
"""What the signs of a function's first argument say of it, for functions that are known by name."""


NOWHERE = "the program is defined nowhere: what it divides by is 0, or a root is of what is negative"


class Facts:
    """What is known of terms: needs that hold, in every form that steps give them, and what follows for their parts.

    Nothing is computed before the form of a term does not say enough, and of one term what its form says only once.
    """

    __slots__ = ("_before", "_forms", "_given", "_step", "_table")

    def __init__(self, given: Iterable[tuple[Need, Term]] = ()) -> None:
        self._given = tuple(given)
        self._forms = SignTable({})
        self._table: SignTable | None = None
        self._before: Facts | None = None
        self._step: tuple[Term, Term] | None = None

    def after(self, old: Term, new: Term) -> Facts:
        """The facts and what they become with `new` for `old`."""
        made = Facts()
        made._before, made._step, made._forms = self, (old, new), self._forms
        return made

    def holds(self, need: Need, term: Term) -> bool:
        """Whether the term is what is needed. Raises ProofError as `known`."""
        wanted, empty = NEEDED[need], not self._given and self._before is None
        if (SignTable({}) if empty else self._forms).signs(term) <= wanted:
            return True
        found = self._settled().signs(term) if self.known() else ANY
        if found <= wanted:
            return True
        if need is Need.NONZERO and term.kind is Kind.MUL:
            return all(self.holds(need, part) for part in term.args)
        nonzero = (fact for kind, fact in self.given() if kind is not Need.NONNEGATIVE)
        if found - {0} <= wanted and any(vanishes(fact, term) for fact in nonzero):
            return True
        products = (part for part in term.args if term.kind is Kind.ADD and part.kind is Kind.MUL)
        end = next((factor for part in products for factor in part.args if is_end(factor)), None)
        return end is not None and all(self.holds(need, given(term, end, num(bit))) for bit in (0, 1))

    def known(self) -> Mapping[Term, Signs]:
        """The signs that remain possible for terms, by their canonical form.

        Raises:
            ProofError: facts that contradict each other: there is no point at which all hold.
        """
        return self._settled().known

    def given(self) -> tuple[tuple[Need, Term], ...]:
        """The needs in the form that the steps have given them."""
        self._settled()
        return self._given

    def _settled(self) -> SignTable:
        waiting = [self]
        while waiting[-1]._table is None and waiting[-1]._before is not None:
            waiting.append(waiting[-1]._before)
        for facts in reversed(waiting):
            if facts._table is None:
                facts._table = facts._computed()
        assert self._table is not None
        return self._table

    def _computed(self) -> SignTable:
        fresh, table = self._given, SignTable({})
        if self._before is not None and self._step is not None and self._before._table is not None:
            memo: dict[Term, Term] = {}
            given = self._before._given
            self._given = tuple((need, replaced(term, *self._step, memo)) for need, term in given)
            fresh = tuple(pair for pair, before in zip(self._given, given, strict=True) if pair != before)
            table = self._before._table
        if fresh:
            table = SignTable(dict(table.known), self._forms.canonical)
        for need, term in fresh:
            table.note(term, NEEDED[need])
        return table


class Canonical(dict[Term, tuple[Fraction, Term]]):
    """The canonical forms of terms, each found once."""

    def __missing__(self, term: Term) -> tuple[Fraction, Term]:
        found = self[term] = canonical(term)
        return found


class SignTable:
    """The signs that terms can have where so much is known of some, by their canonical form; each looked for once."""

    __slots__ = ("_found", "canonical", "known")

    def __init__(self, known: dict[Term, Signs], seen: Canonical | None = None) -> None:
        self.known = known
        self.canonical = Canonical() if seen is None else seen
        self._found: dict[Term, Signs] = {}

    def signs(self, term: Term) -> Signs:
        """The signs that the term can have. Raises ProofError where it can have none."""
        if term not in self._found:
            found = self._formed(term)
            if self.known and found != ABOVE:
                factor, rest = self.canonical[term]
                found &= times(self.known.get(rest, ANY), frozenset({1 if factor > 0 else -1}))
            if not found:
                raise ProofError(NOWHERE)
            self._found[term] = found
        return self._found[term]

    def note(self, term: Term, signs: Signs) -> None:
        """Take down that a term has no other signs than these, and what that says of its parts."""
        before = self.signs(term)
        if before <= signs:
            return
        factor, rest = self.canonical[term]
        signs &= before
        if not signs:
            raise ProofError(NOWHERE)
        self.known[rest] = times(signs, frozenset({1 if factor > 0 else -1}))
        self._found.clear()
        match term.kind:
            case Kind.MUL:
                if 0 not in signs:
                    for part in term.args:
                        self.note(part, frozenset({-1, 1}))
                certain = [part for part in term.args if self.signs(part) in (ABOVE, BELOW)]
                others = [part for part in term.args if part not in certain]
                if certain and others:
                    for part in certain:
                        signs = times(signs, self.signs(part))
                    self.note(mul(*others), signs)
            case Kind.INV:
                self.note(term.args[0], signs)
            case Kind.SQRT if 0 not in signs:
                self.note(term.args[0], ABOVE)

    def _formed(self, term: Term) -> Signs:
        """What the form of the term says."""
        args = opened(term)[1] if term.kind is Kind.SUM or term.kind is Kind.MAX else term.args
        match term.kind:
            case Kind.NUM:
                return frozenset({(term.data > 0) - (term.data < 0)})
            case Kind.SYM:
                return ABOVE if term.data[1] else ANY
            case Kind.EXP:
                return ABOVE
            case Kind.MUL:
                found: Signs = ABOVE
                for factor, count in Counter(args).items():
                    own = self.signs(factor)
                    found = times(found, own if count % 2 else times(own, own, same=True))
                return found
            case Kind.RESCALED:
                return summed([self.signs(opened(term)[1][0])] * 2)
            case Kind.IN:
                return frozenset({0, 1}) if is_end(term) else ANY
            case Kind.WITHIN:
                return ANY
        signs = [self.signs(arg) for arg in args]
        match term.kind:
            case Kind.ADD:
                return frozenset({0, 1}) if is_bit(term) else summed(signs)
            case Kind.SUM:
                return summed(signs * 2)
            case Kind.INV | Kind.MAX:
                return signs[0]
            case Kind.SQRT:
                return frozenset(max(sign, 0) for sign in signs[0])
            case Kind.TOP:
                least = max(min(part) for part in signs)
                return frozenset(sign for part in signs for sign in part if sign >= least)
        choice = CHOICE.fullmatch(term.data)
        if choice is not None and len(signs) == 2:
            other = Fraction(choice[1] or 0)
            return signs[1] | {(other > 0) - (other < 0)}
        if is_bit(term):
            return frozenset({0, 1})
        function = FUNCTIONS.get(term.data)
        return function(signs[0]) if function is not None and signs else ANY


NO_FACTS = Facts()


def is_total(name: str) -> bool:
    """Whether a function has a value everywhere, by the form of its definition."""
    if not name.startswith("@"):
        return name not in ("log", "Pow")
    needs: list[tuple[Need, Term]] = []
    try:
        of_formula(formula_of(name), sym("x"), lambda need, term: needs.append((need, term)))
    except (FormatError, ProgramSizeError):
        return False
    return all(NO_FACTS.holds(need, term) for need, term in needs)


def times(left: Signs, right: Signs, same: bool = False) -> Signs:
    """The signs of a product; of a square, if both factors are the same."""
    return frozenset(a * b for a in left for b in right if a == b or not same)


def summed(parts: list[Signs]) -> Signs:
    """The signs of a sum: those of its terms, unless these can be of both signs."""
    every = frozenset[int]().union(*parts)
    if every == frozenset({0}) or not every >= frozenset({-1, 1}):
        certain = any(0 not in part for part in parts)
        return every - {0} if certain else every
    return ANY


def vanishes(term: Term, where: Term) -> bool:
    """Whether a term is 0 wherever another one is, by the form of both: so one of these is not 0 where the first is
    not."""
    return _is_zero(term, list(_zeros(where, ())), where.free)


Zero = tuple[Term, tuple[Var, ...]]
"""A term that is 0, for all values of these indices."""


def _zeros(term: Term, indices: tuple[Var, ...]) -> Iterator[Zero]:
    """What is 0 wherever the term is."""
    yield term, indices
    match term.kind:
        case Kind.INV:
            yield from _zeros(term.args[0], indices)
        case Kind.MUL:
            uncertain = [part for part in term.args if 0 in SignTable({}).signs(part)]
            if len(uncertain) == 1:
                yield from _zeros(uncertain[0], indices)
        case Kind.ADD | Kind.TOP if all(-1 not in SignTable({}).signs(part) for part in term.args):
            for part in term.args:
                yield from _zeros(part, indices)
        case Kind.SUM | Kind.MAX:
            own, (body,) = opened(term)
            if -1 not in SignTable({}).signs(body):
                yield from _zeros(body, (*indices, *own))


def _is_zero(term: Term, zeros: Sequence[Zero], taken: frozenset[Var]) -> bool:
    """Whether the term is 0 where these are."""
    if term == num(0) or any(_is_instance(term, *zero) for zero in zeros):
        return True
    match term.kind:
        case Kind.MUL:
            return any(_is_zero(part, zeros, taken) for part in term.args)
        case Kind.ADD | Kind.TOP | Kind.INV | Kind.SQRT:
            return all(_is_zero(part, zeros, taken) for part in term.args)
        case Kind.SUM | Kind.MAX:
            indices, (body,) = opened(term)
            return taken.isdisjoint(indices) and _is_zero(body, zeros, taken)
        case Kind.FN:
            return term.data == "Where" and len(term.args) == 2 and any(_is_zero(x, zeros, taken) for x in term.args)
    return False


MAX_INSTANCES = 64


def _is_instance(term: Term, pattern: Term, indices: tuple[Var, ...]) -> bool:
    """Whether the term is the pattern for some values of the indices."""
    if term.kind is not pattern.kind or term.nodes != pattern.nodes:
        return False
    own = [var for var in indices if var in pattern.free]
    choices = [[var for var in term.free if var[0] == sort] for sort, _ in own]
    if math.prod(map(len, choices)) > MAX_INSTANCES:
        return False
    return any(renamed(pattern, dict(zip(own, values, strict=True))) == term for values in itertools.product(*choices))


MAX_BITS = 6


def is_bit(term: Term) -> bool:
    """Whether a term is 0 or 1 by its form: a sum of products of steps, choices and what tells elements inside an axis
    from others, whichever of these are 0."""
    parts = term.args if term.kind is Kind.ADD else (term,)
    products = [part.args if part.kind is Kind.MUL else (part,) for part in parts]
    atoms = {factor for product in products for factor in product if factor.kind is not Kind.NUM}
    if len(atoms) > MAX_BITS or not all(map(_is_step, atoms)):
        return False
    for values in itertools.product((0, 1), repeat=len(atoms)):
        of = dict(zip(atoms, values, strict=True))
        if sum(math.prod(of.get(f, f.data) for f in product) for product in products) not in (0, 1):
            return False
    return True


def is_end(term: Term) -> bool:
    """Whether a term tells elements inside an axis from those beyond its end."""
    return term.kind is Kind.IN and term.data[0].startswith(INSIDE)


def _is_step(term: Term) -> bool:
    if term.kind is not Kind.FN:
        return is_end(term)
    if term.data.startswith("@") and len(term.args) == 1:
        return _is_bit_function(term.data)
    return (term.data == "step" and len(term.args) == 1) or (term.data == "Where" and term.args[1:] == (num(1),))


@functools.lru_cache(maxsize=256)
def _is_bit_function(name: str) -> bool:
    """Whether a function of a program, as a comparison, has no other values than 0 and 1."""
    try:
        return is_bit(unfolded(name, sym("x")))
    except ProofError:
        return False


CANONICAL = -10_000_000_000


def canonical(term: Term) -> tuple[Fraction, Term]:
    """A factor that is not 0, and a term, whose product is this one: the same for terms that differ by a numeral, or
    by the names of the indices that a fact holds for all values of. Indices of outputs keep their names."""
    factor, term = _primitive(term)
    following: dict[str, int] = {}
    names: dict[Var, Var] = {}
    for var in listed(term, sorted(var for var in term.free if var[1] <= OPENED)):
        following[var[0]] = following.get(var[0], CANONICAL) - 1
        names[var] = (var[0], following[var[0]])
    return factor, renamed(term, names)


def listed(term: Term, variables: Sequence[Var]) -> tuple[Var, ...]:
    """The indices by part of an axis, those over one part by where the term uses them, whatever they are called."""
    groups: dict[str, list[Var]] = {}
    for var in sorted(variables, key=lambda var: var[0]):
        groups.setdefault(var[0], []).append(var)
    if len(groups) == len(variables):
        return tuple(var for (var,) in groups.values())
    names = {var: (var[0], CANONICAL) for var in variables}
    for sort, group in groups.items():
        if len(group) > 1:
            group.sort(key=lambda var: renamed(term, names | {var: (var[0], CANONICAL - 1)}).digest)
        names |= {var: (sort, CANONICAL - 2 - place) for place, var in enumerate(group)}
    return tuple(var for group in groups.values() for var in group)


def _primitive(term: Term) -> tuple[Fraction, Term]:
    """The numeral in front of a product, or of the first summand of a sum, and the rest."""
    if term.kind is Kind.MUL:
        numbers = [part.data for part in term.args if part.kind is Kind.NUM]
        return (numbers[0], mul(term, num(1 / numbers[0]))) if numbers else (Fraction(1), term)
    if term.kind is not Kind.ADD:
        return Fraction(1), term
    parts = [_primitive(part) if part.kind is not Kind.NUM else (part.data, num(1)) for part in term.args]
    factor = min(parts, key=lambda pair: _shape(pair[1]))[0]
    if factor == 1:
        return factor, term
    return factor, add(*(mul(num(share / factor), rest) for share, rest in parts))


def _shape(term: Term) -> bytes:
    """A digest that does not depend on the names of indices that stand for any."""
    return renamed(term, {var: (var[0], CANONICAL) for var in term.free if var[1] <= OPENED}).digest
