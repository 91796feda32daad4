"""The second line: two graphs over the reals, at points of many kinds, with numbers that no rounding can hide behind.

In: a program and a candidate. Out: `Looked`: DIFFERENT with a witness, AGREE, or OPEN and why. It knows nothing of
fields, and every operator is what it is for reals: a ReLU that is zero is zero, and a root of it exists.

What is asked. Wherever the program has a value the candidate has to have the same one; the candidate may have values
where the program has none. Values are rationals, or balls that hold them. Balls apart are a difference. Balls that
meet are an agreement where they are small beside what they hold; else more bits are taken, up to what the constants of
the graphs can hide in, and then the element is open. Nothing that a graph adds up can widen what is allowed. An
element that was not compared at enough points is not taken for equal.

Where a candidate divides or takes roots, zeros and negative numbers of what it divides by are looked for (`gaps`).
Of large graphs some elements are computed, chosen by the seed, with all that they depend on. What depends on too much
is left to float64; what a candidate needs is asked of it all the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from mirage_nb.interp.nodes import Index, Node, TooMuch
from mirage_nb.interp.numbers import CERTAIN, Hole, Number, as_ball, fmpq, is_infinite, is_zero, precision
from mirage_nb.interp.slices import Draw, Made, Slice
from mirage_nb.interp.undrawn import splitmix
from mirage_nb.ir import ClampAttrs, ConstAttrs, KernelGraph, TensorType
from mirage_nb.ir.ops import Shape
from mirage_nb.verify.defined.covered import Asked, defined_by_form, uncovered
from mirage_nb.verify.defined.gaps import Seen, Suspect, gaps
from mirage_nb.verify.fields.indices import compared, indices
from mirage_nb.verify.fields.lax import all_ops
from mirage_nb.verify.reals.points import COUNTED, KINDS, ZEROS, counted, point
from mirage_nb.verify.verdict import Looked, Outcome, Witness

WHOLE, SAMPLED = 20_000, 120_000
"""Numbers that a graph may take with all its elements, and with some of them."""
ASKED = 6_000_000
"""The same of elements that are not compared, only asked what they need."""
TAKEN = 250_000
"""Numbers that are computed at all points together; at least the first `LEAST_POINTS` are looked at."""
LEAST_POINTS = 4
SAMPLES = (8, 2)
"""Elements of an output that stand for a large one, and for one whose elements take much."""
FEW = 5
"""Elements that stand for all where these are made alike: no two binary digits of an index are alike in all of them, so
what takes other elements in one's place, as views with their dimensions in another order do, is seen."""
SETS, FEW_SETS = 4, 3
"""Sets of so many elements, and of few, that are asked what they need where views may move some: one that is moved is
missed by one in 2^24 looks, of few by one in 2^15."""
BITS = 256
"""Of balls, beyond the bits of the constants."""
MORE = (4, 16)
"""How many times as many bits are taken where that was not enough."""
MOST_BITS = 2**15
NEAR = fmpq(1, 1 << 64)
"""How far apart balls may reach, beside what they hold, to be taken for equal; or half their bits, beside 1."""
AGAIN = 2
"""How often points with zeros are looked at again where a candidate divides."""
LEAST_COMPARED = 2
"""Points at which every element has to be compared, at one of them beyond all rounding."""


TOO_LARGE = Looked(
    Outcome.OPEN, "single elements depend on too much to be computed exactly", whole=False, compared=False
)


class Elements:
    """The output elements of one graph that are looked at, and what it takes to compute them."""

    def __init__(self, graph: KernelGraph, chosen: Sequence[Index], limit: int, nodes: dict[Hashable, Node]) -> None:
        self.graph = graph
        self.slice = Slice(graph, chosen, limit, nodes)
        self.bits = _bits(graph)
        self.count = sum(max(1, len(taken.at)) for taken in self.slice.taken)


def _both(program: KernelGraph, candidate: KernelGraph, at: Sequence[Index], limit: int) -> tuple[Elements, Elements]:
    """The same elements of two graphs; what both compute is computed once. Raises TooMuch."""
    nodes: dict[Hashable, Node] = {}
    return Elements(program, at, limit, nodes), Elements(candidate, at, limit, nodes)


def _bits(graph: KernelGraph) -> int:
    """Bits of all constants."""
    numbers = [a.value for op in all_ops(graph) if isinstance(a := op.attrs, ConstAttrs)]
    numbers += [x for op in all_ops(graph) if isinstance(a := op.attrs, ClampAttrs) for x in (a.low, a.high) if x]
    return sum(x.numerator.bit_length() + x.denominator.bit_length() for x in set(numbers))


def chosen(types: Sequence[TensorType], count: int | None, seed: int) -> list[Index]:
    """Elements of outputs: all, or some, the same of one shape, the first and the last among them unless they are few:
    where axes change places these are what they were."""
    return [_of_shape(t.shape, count, seed) for t in types]


def _of_shape(shape: Shape, count: int | None, seed: int) -> Index:
    elements = math.prod(shape)
    if count is None or elements <= count:
        return np.arange(elements, dtype=np.int64)
    ends = [0, elements - 1] if count > FEW else []
    low = elements & -elements  # as many binary digits as there are
    words = splitmix(np.arange(1, count - len(ends) + 1, dtype=np.uint64), seed) % np.uint64(elements // low)
    found = words.astype(np.int64) * low + _apart(count - len(ends), low.bit_length() - 1, seed)
    return np.unique(np.concatenate([found, np.array(ends, np.int64)]))


def _apart(count: int, bits: int, seed: int) -> Index:
    """Numbers of so many bits, no two of which are the same in all of the numbers, as far as there are enough."""
    columns = np.random.default_rng(seed).permutation(2**count)
    places = np.arange(bits, dtype=np.int64)
    rows: list[Index] = [(columns[places % 2**count] >> row & 1) << places for row in range(count)]
    return np.array([row.sum() for row in rows], np.int64)


def look(program: KernelGraph, candidate: KernelGraph, seed: int, *, covered: bool = True) -> Looked:
    """Look at two graphs with outputs of the same types at every point; and whether the candidate is `covered`, without
    which they are not taken for equal. Raises GraphError as an evaluation does."""
    for count, limit in ((None, WHOLE), *((count, SAMPLED) for count in SAMPLES)):
        try:
            at = chosen(program.output_types, count, seed)
            left, right = _both(program, candidate, at, limit)
        except TooMuch:
            continue
        found = _Look(left, right, at, seed).looked()
        if found.outcome is Outcome.AGREE and covered and program != candidate:
            if count is None or count >= FEW:
                others = () if count is None else _elsewhere(program, candidate, count, limit, seed, SETS)
                note = uncovered(Asked(program, left.slice), Asked(candidate, right.slice), seed, others)
            else:
                note = _beyond(program, candidate, seed)
            return replace(found, outcome=Outcome.OPEN, note=f"{found.note}, and {note}") if note else found
        return found
    note = _beyond(program, candidate, seed) if covered and program != candidate else ""
    return replace(TOO_LARGE, note=f"{TOO_LARGE.note}, and {note}", compared=True) if note else TOO_LARGE


def _beyond(program: KernelGraph, candidate: KernelGraph, seed: int) -> str:
    """Why a candidate whose elements depend on too much is not covered, as far as that is seen; or nothing."""
    if defined_by_form(program, candidate):
        return ""
    try:
        left, right = _both(program, candidate, chosen(program.output_types, FEW, seed), ASKED)
    except TooMuch:
        return "whether the candidate has a value wherever the program has one is not known"
    others = _elsewhere(program, candidate, FEW, ASKED, seed, FEW_SETS)
    return uncovered(Asked(program, left.slice), Asked(candidate, right.slice), seed, others)


def _elsewhere(
    program: KernelGraph, candidate: KernelGraph, count: int, limit: int, seed: int, sets: int
) -> Iterator[tuple[Asked, Asked]]:
    """Other elements of two graphs, set after set, as far as they do not depend on more than the first ones."""
    for number in range(1, sets):
        with suppress(TooMuch):
            left, right = _both(program, candidate, chosen(program.output_types, count, seed + number), limit)
            yield Asked(program, left.slice), Asked(candidate, right.slice)


def look_at(program: KernelGraph, candidate: KernelGraph, draw: Draw, at: Sequence[Index], seed: int) -> Looked:
    """Look at some elements at one point."""
    try:
        left, right = _both(program, candidate, at, SAMPLED)
    except TooMuch:
        return TOO_LARGE
    seen = _Look(left, right, at, seed)
    seen.take("where float64 values differ", draw, close=True)
    return seen.result(least=1)


@dataclass(slots=True)
class _Look:
    """One look at two graphs: for every output, how often each element was compared, how often beyond all rounding,
    and how often left open."""

    left: Elements
    right: Elements
    at: Sequence[Index]
    seed: int
    points: int = 0
    suspects: int = 0
    witness: Witness | None = None
    bits: int = field(init=False)
    _counts: list[Index] = field(init=False)

    def __post_init__(self) -> None:
        self.bits = min(BITS + self.left.bits + self.right.bits, MOST_BITS)
        self._counts = [np.zeros((3, len(at)), np.int64) for at in self.at]

    def looked(self) -> Looked:
        """What all points show."""
        most = max(LEAST_POINTS, TAKEN // max(1, self.left.count + self.right.count))
        seen: list[Seen] = []
        for kind in KINDS[:most]:
            self.points += 1
            draw = point(kind, self.seed)
            seen.append((draw, self.take(kind.name, draw, close=kind.close)))
            if self.witness is not None:
                return self.result()
        names, places = dict.fromkeys(compared(self.left.graph), 0), indices(self.left.graph)
        rounds = [names] * bool(names) + [{**names, **places}] * bool(places)  # beyond an axis there may be no value
        for below, (kind, step) in itertools.product(rounds, COUNTED):
            self.points += 1
            draw = counted(point(kind, self.seed + step), below, step)
            seen.append((draw, self.take("numbers of places", draw, close=True)))
            if self.witness is not None:
                return self.result()
        if most >= len(KINDS) and not self.right.slice.is_total:
            self._with_zeros()
            both = self.left.slice, self.right.slice
            for suspect in () if self.witness is not None else gaps(*both, self.seed, self.bits, seen):
                self.suspects += 1
                self._suspect(suspect)
                if self.witness is not None:
                    break
        return self.result()

    def _with_zeros(self) -> None:
        """Look where some elements have no value and others do: both sides may divide by the same numbers, for
        different elements of the output."""
        for kind, again in itertools.product(ZEROS, range(1, 1 + AGAIN)):
            self.points += 1
            self.take(kind.name, point(kind, self.seed + again))
            if self.witness is not None:
                return

    def take(self, name: str, draw: Draw, close: bool = False) -> Made:
        """Compare at one point; for a close look nothing may be lost in a sum, and more bits are taken for that. What
        both graphs make there, if the look is no close one."""
        made: Made = {}
        states = self._states(name, draw, self.bits, close, made)
        for times in MORE if close else ():
            if self.bits * times <= MOST_BITS and any((part == _OPEN).any() for part in states):
                states = self._states(name, draw, self.bits * times, close, {})
        for counts, part in zip(self._counts, states, strict=True):
            counts += np.stack([part == _SAME, (part == _SAME) & close, part == _OPEN])
        return {} if close else made

    def _states(self, name: str, draw: Draw, bits: int, wary: bool, made: Made) -> list[Index]:
        with precision(bits, wary=wary):
            ours, theirs = self.left.slice.compute(draw, made), self.right.slice.compute(draw, made)
            found = []
            for number, (left, right) in enumerate(zip(ours, theirs, strict=True)):
                states = np.array([_compare(x, y, bits) for x, y in zip(left, right, strict=True)], np.int64)
                if self.witness is None and (states == _APART).any():
                    place = int(np.argmax(states == _APART))
                    self.witness = self._witness(number, place, left[place], right[place], name)
                found.append(states)
        return found

    def _witness(self, output: int, place: int, ours: Number, theirs: Number, name: str) -> Witness:
        shape = self.left.graph.output_types[output].shape
        index = tuple(int(i) for i in np.unravel_index(self.at[output][place], shape))
        return Witness(self.seed, output, index, *_shown(ours, theirs), name)

    def _suspect(self, suspect: Suspect) -> None:
        """Look where the candidate may have no value."""
        if suspect.crossing is None:
            self.take("where the candidate may have no value", suspect.draw)
            return
        number, place = suspect.crossing
        with precision(BITS):
            ours = self.left.slice.compute(suspect.draw)
            moment = self.right.slice.moment(suspect.draw, CERTAIN)
        if type(moment.numbers[number][place]) is Hole:
            return
        # It is continuous there and changes its sign, so it is zero; elements that need it have no value.
        needed, at = moment.needed_by[number][place], 0
        for output, part in enumerate(ours):
            for x in part:
                if needed >> at & 1 and type(x) is not Hole:
                    shown = _shown(x, Hole.UNDEFINED)
                    self.witness = Witness(self.seed, output, (), *shown, "somewhere between two points")
                    return
                at += 1

    def result(self, least: int = LEAST_COMPARED) -> Looked:
        """What was seen so far."""
        types = self.left.graph.output_types
        some, whole = sum(map(len, self.at)), sum(math.prod(t.shape) for t in types)
        if self.witness is not None:
            return Looked(Outcome.DIFFERENT, "values over the reals differ", self.witness)
        if any((left_open > compared).any() for compared, _, left_open in self._counts):
            note = f"over the reals, {MOST_BITS} bits do not tell whether some elements differ"
            return Looked(Outcome.OPEN, note, whole=some == whole)
        if any(((compared < least) | (closely < 1)).any() for compared, closely, _ in self._counts):
            note = f"some elements have a value over the reals at fewer than {least} of {self.points} points"
            nowhere = not any(counts.any() for counts in self._counts)
            if nowhere:
                note = f"the program has a value over the reals at none of {self.points} points"
            return Looked(Outcome.OPEN, note, whole=some == whole, nowhere=nowhere)
        elements = "all elements" if some == whole else f"{some} of {whole} elements"
        searched = f" and at {self.suspects} where the candidate might have no value" if self.suspects else ""
        note = f"{elements} over the reals at {self.points} points{searched}"
        return Looked(Outcome.AGREE, note, whole=some == whole)


_NEITHER, _SAME, _APART, _OPEN = range(4)


def _compare(x: Number, y: Number, bits: int) -> int:
    """The program's value and the candidate's."""
    if type(x) is Hole:
        return _NEITHER if x is Hole.UNDEFINED else _OPEN
    if type(y) is Hole:
        return _APART if y is Hole.UNDEFINED else _OPEN
    if type(x) is fmpq and type(y) is fmpq:
        return _SAME if x == y else _APART
    x, y = as_ball(x), as_ball(y)
    if is_infinite(x):
        return _SAME if is_infinite(y) and (x > 0) == (y > 0) else _APART
    if not (y.is_finite() and x.overlaps(y)):
        return _APART
    apart = (x - y).abs_upper()
    if apart <= x.abs_lower() * NEAR or apart <= fmpq(1, 1 << bits // 2):
        return _SAME
    return _OPEN


def _shown(x: Number, y: Number) -> tuple[str, str]:
    """Both values, with as many digits as tell them from each other."""
    pairs = ((_digits(x, count), _digits(y, count)) for count in DIGITS)
    return next((pair for pair in pairs if pair[0] != pair[1]), ("one number", "another one close to it"))


DIGITS = (12, 40, 160, 640)


def _digits(x: Number, count: int) -> str:
    if type(x) is Hole:
        return str(x.value)
    if type(x) is fmpq and x.height_bits() <= 64:
        return str(x)
    return "0" if is_zero(x) else str(as_ball(x).str(count, radius=False))
