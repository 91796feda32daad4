"""Whether a candidate has a value wherever its program has one, as far as its form and its program's needs say so.

In: a program and a candidate. Out: nothing, or what is not covered. What a candidate divides by, or takes roots and
logarithms of, is covered where its form gives it the sign that it has to have, as a sum of exponentials; or where it
is, up to a constant factor, what the program itself needs so, or a product of two such. Anything else may be 0 or
negative at points that nobody thinks of, so it is not taken for defined: a proof may say that it is.

Of a large graph some elements are looked at. They stand for the others where all are made alike: as soon as one graph
tells elements by their numbers (a slice, a mask of places, a running sum), what one element needs says nothing of the
next one.

Element by element: what one element of an output needs is covered by what the program's same element needs, and what
stands behind a choice is needed where the choice takes it, on both sides. That a number is another one is seen in a
field (`residues`), where every function that is no polynomial is any function: rounding hides nothing there, and no
ReLU is the same for all numbers that anybody would draw. Choices are mixed there, so that what is so is so whichever
way everything is chosen. What is not so then may be so for every choice; or a choice may say where it is needed. That
is looked at in fields in which conditions hold by chance, as often as many choices take. The same draws show infinities
that hardly any input chooses, and values where a root does not exist that nobody needs there: field trials leave these
elements out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import NamedTuple

from mirage_nb.interp.instance import FieldInstance, FieldStack, FieldTensor
from mirage_nb.interp.nodes import Index
from mirage_nb.interp.numbers import ZERO, Array, Hole, Number, fmpq, precision
from mirage_nb.interp.residues import Field
from mirage_nb.interp.slices import Draw, Made, Moment, Slice
from mirage_nb.ir import InIterAttrs, KernelGraph, Op, OpKind, WhereAttrs
from mirage_nb.verify.defined.domain import Need
from mirage_nb.verify.defined.forms import needs_of
from mirage_nb.verify.fields.drawn import is_small
from mirage_nb.verify.fields.groups import draw_stacked
from mirage_nb.verify.fields.lax import all_ops, inspect
from mirage_nb.verify.proof.axes import BY_NUMBER
from mirage_nb.verify.proof.signs import NEEDED
from mirage_nb.verify.reals.points import KINDS, point

BITS = 256
FACTORS, MOST_TRIED = 24, 500_000
"""Numbers with which constant factors are sought, and products that are tried."""
DRAWN, INFINITE, MOST_DRAWN, MOST_COMPUTED = 3, 8, 512, 300_000
"""How often every need is seen at least, as a constant factor follows from the first draw; draws at least where inputs
choose infinities; draws at most of all elements together, and numbers that are computed in all of them."""
MOST_UNSEEN = 128
"""Draws at most until every element and every need was seen: what two choices and two roots stand before is seen in one
draw of four."""
OF_EACH = 32
"""Draws for each combination of choices, as far as there are so many."""
BIASES = (8, 0, 4, 7, 1, 4, 6, 2)
"""Of eight conditions, how many hold in one draw after the other."""
ENOUGH: dict[Need, frozenset[Need]] = {
    Need.NONZERO: frozenset({Need.NONZERO, Need.POSITIVE}),
    Need.NONNEGATIVE: frozenset({Need.NONNEGATIVE, Need.POSITIVE}),
    Need.POSITIVE: frozenset({Need.POSITIVE}),
}
"""What a program may need of a number so that a candidate may need this of it."""
ROOTS = frozenset({Need.NONNEGATIVE, Need.POSITIVE})
EVERY = -1
"""All output elements."""
FINITE = (tuple, fmpq)
"""Residues, and rational numbers."""

Place = tuple[int, int]
"""Where a number stands: critical operator, and place."""


class Needed(NamedTuple):
    """A number modulo p, the output elements that need it, as bits, and where it stands; a factor stands nowhere."""

    residue: int
    bits: int = EVERY
    place: Place | None = None


ONE = [Needed(1)]


@dataclass(frozen=True, slots=True)
class Asked:
    """A graph, and the elements of it that are looked at."""

    graph: KernelGraph
    slice: Slice

    @property
    def roots(self) -> int:
        """How many operators elements depend on that take square roots, which half of all numbers of a field have."""
        every = needs_of(self.graph)
        return sum(every[number][0] in ROOTS for number in self.slice.operators)

    @property
    def stands_for_all(self) -> bool:
        """Whether all elements are looked at, or made alike."""
        whole = sum(t.elements for t in self.graph.output_types) == self.slice.elements
        return whole or not any(map(_tells_places, all_ops(self.graph)))

    def needs(self, seed: int) -> list[tuple[Need, bool]]:
        """The needs behind these elements, and whether the form of the number meets each, or all numbers do where no
        input makes them and these elements stand for all."""
        every = needs_of(self.graph)
        found = [every[number] for number in self.slice.operators]
        met = [signs <= NEEDED[need] for need, signs in found]
        constant = any(not (one or varies) for one, varies in zip(met, self.slice.varies, strict=True))
        if constant and self.stands_for_all:
            with precision(BITS):
                at = point(KINDS[0], seed)
                rows = zip(self.slice.critical(at), self.slice.ever_needed(at), strict=True)
            met = [
                one or (not varies and all(_meets(x, need) for x, bits in zip(*row, strict=True) if bits))
                for one, varies, (need, _), row in zip(met, self.slice.varies, found, rows, strict=True)
            ]
        return [(need, one) for (need, _), one in zip(found, met, strict=True)]


def defined_by_form(program: KernelGraph, candidate: KernelGraph) -> bool:
    """Whether what a candidate needs is so by its form, all of it, and no choice may take an infinity or the sign of a
    root."""
    graphs = program, candidate
    infinite = any(isinstance(op.attrs, WhereAttrs) and op.attrs.infinite for op in all_ops(candidate))
    roots = any(need in ROOTS for graph in graphs for need, _ in needs_of(graph))
    selects = roots and any(report.maxima or report.opaque for report in map(inspect, graphs))
    return not (infinite or selects) and all(signs <= NEEDED[need] for need, signs in needs_of(candidate))


def _meets(x: Number, need: Need) -> bool:
    """Whether a number is what it has to be for certain."""
    if type(x) is Hole:
        return False
    return bool(x > 0) or (need is Need.NONZERO and bool(x < 0)) or (need is Need.NONNEGATIVE and bool(x >= 0))


def uncovered(program: Asked, candidate: Asked, seed: int, elsewhere: Iterable[tuple[Asked, Asked]] = ()) -> str:
    """What a candidate needs that nothing covers, in words; or nothing. `elsewhere`: other elements of both, which are
    looked at where views may take one in another one's place: half of all stay in theirs where two halves change."""
    needs = candidate.needs(seed)
    selects = (program.slice.decides or candidate.slice.decides) and (program.roots or candidate.roots) > 0
    if all(met for _, met in needs) and not candidate.slice.makes_infinities and not selects:
        return ""
    if not (program.stands_for_all and candidate.stands_for_all):
        return "what every single element of the candidate needs was not looked at, and they are not made alike"
    moved = any(map(_moves, itertools.chain(all_ops(program.graph), all_ops(candidate.graph))))
    for ours, theirs in itertools.chain([(program, candidate)], elsewhere if moved else ()):
        missing = _Cover(ours, theirs, theirs.needs(seed), selects, seed).missing()
        if missing:
            return missing
    return ""


def _moves(op: Op) -> bool:
    """Whether an operator may take elements in other ones' places."""
    return isinstance(op.attrs, InIterAttrs) or op.kind in (OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.REPEAT)


def _tells_places(op: Op) -> bool:
    """Whether an operator tells elements by their numbers."""
    overhangs = isinstance(op.attrs, InIterAttrs) and op.attrs.tile is not None
    return overhangs or op.kind in BY_NUMBER or op.kind is OpKind.CONCAT


@dataclass(frozen=True, slots=True)
class _Drawn:
    """One draw: what the program and the candidate need, operator by operator, of the elements that both have;
    `scales`: exponentials of maxima that the program takes, of those that the candidate takes with the other sign, and
    of both: shifts, which are positive; `infinite`: which choices of an infinity took it."""

    p: int
    compared: int
    ours: list[list[Needed]]
    theirs: list[list[Needed]]
    scales: Callable[[], list[Needed]]
    infinite: list[bool]

    @classmethod
    def of(cls, field: Field, ours: Moment, theirs: Moment) -> _Drawn:
        values = zip(*(itertools.chain(*moment.outputs) for moment in (ours, theirs)), strict=True)
        compared = sum(1 << at for at, pair in enumerate(values) if not any(type(x) is Hole for x in pair))
        needs = [_needed(field, moment, compared) for moment in (ours, theirs)]
        up, down = ([ZERO, *_shifts(moment)] for moment in (ours, theirs))
        pairs = len(up) * len(down)
        scales = cache(lambda: [Needed(x) for x in field.exponentials(up, down) if x] if pairs <= MOST_TRIED else [])
        return cls(field.p, compared, needs[0], needs[1], scales, theirs.infinite)


def _shifts(moment: Moment) -> list[Number]:
    """What maxima are, once each, constants that stand behind an end among them; infinities are no shifts."""
    return list(dict.fromkeys(x for part in moment.maxima for x in part if type(x) in FINITE))


def _needed(field: Field, moment: Moment, compared: int) -> list[list[Needed]]:
    return [
        [
            Needed(residue, bits & compared, (which, at))
            for at, (x, bits) in enumerate(zip(numbers, needed, strict=True))
            if bits & compared and (residue := field.modulo(x)) is not None
        ]
        for which, (numbers, needed) in enumerate(zip(moment.numbers, moment.needed_by, strict=True))
    ]


class _Cover:
    """A program and a candidate, what the candidate needs, and what was drawn so far. What has to be covered is what no
    form meets, and roots that this depends on: up to the sign of a root, a number is another one."""

    def __init__(
        self, program: Asked, candidate: Asked, needs: Sequence[tuple[Need, bool]], selects: bool, seed: int
    ) -> None:
        self._selects = selects
        self._any_roots = max(program.roots, candidate.roots)
        self._roots = self._any_roots if selects else 0
        self._program, self._candidate, self._seed = program.slice, candidate.slice, seed
        self._given = [need for need, _ in program.needs(seed)]
        self._needs = [need for need, _ in needs]
        unmet = {which for which, (_, met) in enumerate(needs) if not met}
        behind = frozenset[int]().union(*(self._candidate.behind[which] for which in unmet))
        self._asked = sorted(unmet | {which for which in behind if needs[which][0] in ROOTS})
        self._exponents = self._program.exponents or self._candidate.exponents
        self._first = FieldInstance.draw(seed)
        self._draws: list[_Drawn] = []
        self._known: set[int] = set()
        self._unseen: set[int] = set()
        self._graph = program.graph
        self._count = sum(len(taken.at) for graph in (self._program, self._candidate) for taken in graph.taken)

    def missing(self) -> str:
        """What is not covered, or not seen, in words; or nothing."""
        if self._program.decides or self._candidate.decides:
            self._draw(2 * DRAWN, mixed=True)
            self._learn()
            if not (self._left or self._candidate.makes_infinities or self._selects):
                return ""
        most = min(MOST_DRAWN // self._candidate.elements, MOST_COMPUTED // self._count)
        if not self._draw(max(2 * INFINITE, most)):
            return "it is not known that the candidate has that value whatever inputs choose"
        self._learn()
        for which in self._left:
            need = self._needs[which].value
            return f"it is not known that what the candidate needs to be {need} is so wherever the program is"
        return ""

    @property
    def _most_unseen(self) -> int:
        """Draws at most while something is unseen."""
        return min(MOST_UNSEEN, MOST_COMPUTED // self._count)

    @property
    def _left(self) -> list[int]:
        """What is not known to be what it has to be."""
        return [which for which in self._asked if which not in self._known]

    def _learn(self) -> None:
        """Take down what the draws show of what they showed often enough."""
        left = self._left
        known = {which for which in range(len(self._needs)) if which not in left or self._is_known(which)}
        self._known = known | {which for which in left if which not in known and self._is_made(which, known)}

    def _draw(self, most: int, *, mixed: bool = False) -> bool:
        """Draw until every element, and every need of it, was seen often enough; whether they were, and the candidate
        had values."""
        with precision(BITS):
            ever = self._candidate.ever_needed(point(KINDS[0], self._seed))
        wanted = {(which, at): bits for which in self._left for at, bits in enumerate(ever[which]) if bits}
        wanted[ALL] = (1 << self._candidate.elements) - 1
        counts = {place: [0] * DRAWN for place in wanted}
        infinite, decisions, unseen = 0, 0, list(wanted)
        self._draws = []
        for field, other, draw in self._fields(most if mixed else max(most, self._most_unseen), mixed):
            made: Made = {}  # a mixed field computes the same whatever its bias is
            ours, theirs = self._program.moment(draw, other, made), self._candidate.moment(draw, field, made)
            if field.roots and not mixed and _differ(field, ours, theirs):
                return False
            drawn = _Drawn.of(field, ours, theirs)
            self._draws.append(drawn)
            infinite |= sum(1 << which for which, there in enumerate(drawn.infinite) if there)
            for needed in (Needed(0, drawn.compared, ALL), *itertools.chain(*drawn.theirs)):
                _count(counts.get(needed.place or ALL, []), needed.bits)
            unseen = [place for place, bits in wanted.items() if bits & ~counts[place][-1]]
            chosen = infinite + 1 == 1 << len(drawn.infinite) and len(self._draws) >= INFINITE
            decisions = max(decisions, field.decisions + (self._roots if field.decisions else 0))
            decided = not decisions or len(self._draws) >> decisions >= OF_EACH
            enough = mixed or len(self._draws) >= most or (decided and (chosen or not drawn.infinite))
            if enough and not unseen:
                break
        self._unseen = {which for which, _ in unseen}
        return not unseen

    def _fields(self, most: int, mixed: bool) -> Iterator[tuple[Field, Field, Draw]]:
        """Draws of one pair of primes, the first ones of a small program such that its roots exist. Where choices are
        mixed, the program counts for what it needs whatever is chosen, the candidate for what it may need."""
        for number in range(most):
            bias = 8 if mixed else BIASES[number % len(BIASES)]
            # sqrt(x * x) is x half of the time: every other draw takes any function for a root
            roots = number % 2 == 0 or not self._any_roots
            field = Field.of(self._instance(number), exponents=self._exponents, bias=bias, mixed=mixed, roots=roots)
            draw: Draw = field.point
            if self._selects and number % 2:
                draw = partial(field.point, squared=False)
            elif number < 2 * INFINITE and is_small(self._graph):
                draw = partial(self._rooted, field, number)
            yield field, replace(field, bias=0) if mixed else field, draw

    def _instance(self, number: int) -> FieldInstance:
        """That of one draw; all have the same primes."""
        return replace(self._first, seed=self._seed + number)

    def _rooted(self, field: Field, number: int, name: str, at: Index) -> Array:
        """Elements of an input at a point at which roots of the program exist, as far as these can be had."""
        p, q = (
            None if part is None else part[number].reshape(-1)[at]
            for part in (self._drawn[name].p, self._drawn[name].q)
        )
        assert p is not None
        return field.listed(p, p if q is None else q)

    @cached_property
    def _drawn(self) -> dict[str, FieldTensor]:
        """Inputs of the first draws, side by side."""
        names = [i.name for i in self._graph.inputs]
        stack = FieldStack([self._instance(number) for number in range(2 * INFINITE)])
        drawn = draw_stacked(self._graph, stack, dict.fromkeys(names, (True, self._exponents)))
        return dict(zip(names, drawn, strict=True))

    def _is_known(self, which: int) -> bool:
        """Whether a number is always one of the program's, times one constant; or that and an exponential of a maximum,
        or a product of two of them, for all elements that need it."""
        if which in self._unseen:
            return False
        drawn = [one for one in self._draws if one.theirs[which]]
        values = [one.theirs[which] for one in drawn]
        known = [self._enough(one, which) for one in drawn]
        return (
            self._matches(which, values, known, [ONE] * len(drawn))
            or self._matches(which, values, known, [one.scales() for one in drawn])
            or self._matches(which, values, known, known)
        )

    def _is_made(self, which: int, known: set[int]) -> bool:
        """Whether a number makes one of the program's with another number of the candidate's, which has a value where
        the first need that fails is this one."""
        if self._needs[which] is not Need.NONZERO or which in self._unseen:
            return False
        for other in range(len(self._needs)):
            if other == which or not all(at in known or at < which for at in self._candidate.behind[other]):
                continue
            drawn = [one for one in self._draws if one.theirs[which] and one.theirs[other]]
            factors = [
                [Needed(pow(x.residue, -1, one.p), x.bits) for x in one.theirs[other] if x.residue] for one in drawn
            ]
            values, enough = [one.theirs[which] for one in drawn], [self._enough(one, which) for one in drawn]
            if len(drawn) >= DRAWN and self._matches(which, values, enough, factors):
                return True
        return False

    def _enough(self, drawn: _Drawn, which: int) -> list[Needed]:
        """What the program needs of numbers that would do for a need."""
        kinds = ENOUGH[self._needs[which]]
        return [x for given, part in zip(self._given, drawn.ours, strict=True) if given in kinds for x in part]

    def _matches(self, which: int, values: _Lists, known: _Lists, factors: _Lists) -> bool:
        """Whether every value is a known number times a factor times one constant, for every element that needs it."""
        if not values or sum(len(v) * len(f) for v, f in zip(values, factors, strict=True)) > MOST_TRIED:
            return False
        p = self._draws[0].p
        inverses = [[(pow(y.residue, -1, p), y.bits) for y in part if y.residue] for part in factors]
        parts = list(zip(values, map(_table, known), inverses, strict=True))
        constants = itertools.chain((1,), self._constants(which, values[0][0], known[0], factors[0]))
        return any(all(_all_made(*part, pow(constant, -1, p), p) for part in parts) for constant in constants)

    def _constants(self, which: int, x: Needed, known: _List, factors: _List) -> Iterator[int]:
        """What a number may be of products of the program's, each constant once."""
        p = self._draws[0].p
        tried = {1}
        most = FACTORS if len(factors) > 1 else FACTORS**2
        for y in [y for y in known if y.bits & x.bits and y.residue][:most]:
            for z in [z for z in factors if z.bits & x.bits and z.residue][:FACTORS]:
                constant = x.residue * pow(y.residue * z.residue, -1, p) % p
                if (
                    constant
                    and constant not in tried
                    and (self._needs[which] not in ROOTS or self._is_positive(x, y, z))
                ):
                    tried.add(constant)
                    yield constant

    def _is_positive(self, x: Needed, y: Needed, z: Needed) -> bool:
        """Whether a number of the candidate's has the sign, over the reals, of two of the program's together."""
        with precision(BITS):
            for kind in KINDS:
                at = point(kind, self._seed)
                theirs, ours = self._candidate.critical(at), self._program.critical(at)
                values = [theirs[x.place[0]][x.place[1]]] if x.place else []
                values += [ours[one.place[0]][one.place[1]] for one in (y, z) if one.place]
                signs = [type(value) is not Hole and (bool(value > 0) - bool(value < 0)) for value in values]
                if all(signs):
                    return math.prod(signs) > 0
        return False


def _differ(field: Field, ours: Moment, theirs: Moment) -> bool:
    """Whether the candidate has another value than the program in this field, or none in any where the program has
    one in this."""
    pairs = zip(itertools.chain(*ours.outputs), itertools.chain(*theirs.outputs), strict=True)
    return any(_apart(field, x, y) for x, y in pairs if type(x) is not Hole)


def _apart(field: Field, x: Number, y: Number) -> bool:
    if type(y) is Hole:
        return y is Hole.UNDEFINED
    residues = field.modulo(x), field.modulo(y)
    return None not in residues and residues[0] != residues[1]


def _count(times: list[int], bits: int) -> None:
    """These bits once more: a list of those that were there once at least, twice, and so on."""
    for number in range(len(times) - 1, -1, -1):
        times[number] |= bits & (times[number - 1] if number else EVERY)


def _table(known: _List) -> dict[int, int]:
    """What is known, and which elements need it."""
    table: dict[int, int] = {}
    for x in known:
        table[x.residue] = table.get(x.residue, 0) | x.bits
    return table


def _all_made(
    values: _List, table: Mapping[int, int], inverses: Sequence[tuple[int, int]], constant: int, p: int
) -> bool:
    """Whether every value is a known number times a factor times a constant, for every element that needs it; factors
    and the constant are inverted."""
    for value in values:
        left, scaled = value.bits, value.residue * constant % p
        for inverse, bits in inverses:
            left &= ~(table.get(scaled * inverse % p, 0) & bits)
            if not left:
                break
        else:
            return False
    return True


ALL: Place = (-1, -1)
"""Stands for all output elements."""
_List = Sequence[Needed]
_Lists = Sequence[_List]
