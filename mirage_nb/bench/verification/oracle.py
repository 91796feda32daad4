"""What the pairs of a campaign are: intervals of decimal numbers, element by element.

In: two expressions (`campaign`). Out: whether a point shows that they differ. It shares no code with the verifier: an
element is an interval that holds its value, both ends rounded outwards; `NOTHING` where there is no value for certain;
`UNSURE` where these digits do not tell, as whether a number that rounding has touched is 0. Elements are told apart
where their intervals have no number in common, or only the program has a value. So what it tells apart is different,
whatever was rounded; what it does not may be equal. Where digits do not tell, more are taken.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, DecimalException
from functools import cache, partial, reduce
from typing import Protocol

ROWS, COLUMNS = 2, 3
DIGITS = (60, 500)
"""Decimal digits; the second many where the first do not tell."""
POINTS = 24
LIMIT = Decimal(1000)
"""Exponents up to which exponentials are computed."""
RANGE = 10**15


class Gap(enum.Enum):
    """Why there is no interval."""

    NOTHING = "no value"
    UNSURE = "unsure"


NOTHING, UNSURE = Gap.NOTHING, Gap.UNSURE
Interval = tuple[Decimal, Decimal]
Element = Interval | Gap
Row = list[Element]
Table = list[Row]
"""One row after the other."""


class Term(Protocol):
    """An expression: an input, a number, or a function of others."""

    @property
    def name(self) -> str:
        """What it is."""

    @property
    def operands(self) -> Sequence[Term]:
        """Of what."""


class Arithmetic:
    """Intervals of so many digits. Operators of `Decimal` round as the thread's context says: none is used here."""

    def __init__(self, digits: int) -> None:
        self.down, self.up = (
            Context(prec=digits, rounding=way, Emax=RANGE, Emin=-RANGE) for way in (ROUND_FLOOR, ROUND_CEILING)
        )
        self.meaning = self._meaning()

    def tables(self, steps: Sequence[Step], inputs: Mapping[str, Table]) -> list[Table]:
        """What every step makes at a point."""
        made: list[Table] = []
        for name, operands in steps:
            if operands:
                made.append(self.meaning[name](*(made[number] for number in operands)))
            else:
                made.append(inputs.get(name) or [[exact(Decimal(name))] * COLUMNS for _ in range(ROWS)])
        return made

    def add(self, x: Interval, y: Interval) -> Interval:
        """x + y."""
        return self.down.add(x[0], y[0]), self.up.add(x[1], y[1])

    def sub(self, x: Interval, y: Interval) -> Interval:
        """x - y."""
        return self.down.subtract(x[0], y[1]), self.up.subtract(x[1], y[0])

    def mul(self, x: Interval, y: Interval) -> Interval:
        """x * y."""
        return self._corners(self.down.multiply, self.up.multiply, x, y)

    def div(self, x: Interval, y: Interval) -> Element:
        """x / y."""
        if y[0] <= 0 <= y[1]:
            return NOTHING if y[0] == y[1] else UNSURE
        return self._corners(self.down.divide, self.up.divide, x, y)

    def _corners(self, down: Ends, up: Ends, x: Interval, y: Interval) -> Interval:
        if x[0] == x[1] and y[0] == y[1]:
            return down(x[0], y[0]), up(x[0], y[0])
        pairs = [(a, b) for a in x for b in y]
        return min(down(*pair) for pair in pairs), max(up(*pair) for pair in pairs)

    def square(self, x: Interval) -> Interval:
        """x * x."""
        return self.mul(absolute(x), absolute(x))

    def sqrt(self, x: Interval) -> Element:
        """The root, whose ends are the nearest numbers to the roots of the ends."""
        if x[0] < 0:
            return NOTHING if x[1] < 0 else UNSURE
        low, high = (self.down.sqrt(end) for end in x)
        if low == high and self.down.multiply(low, low) == self.up.multiply(low, low) == x[0] == x[1]:
            return low, low
        return max(self.down.next_minus(low), Decimal(0)), self.up.next_plus(high)

    def exp(self, x: Interval) -> Element:
        """The exponential, of ends as the root."""
        if x[0] == x[1] == 0:
            return ONE
        if x[1] <= -LIMIT:
            return Decimal(0), TINY
        if x[1] >= LIMIT or x[0] <= -LIMIT:
            return UNSURE
        return self.down.next_minus(self.down.exp(x[0])), self.up.next_plus(self.up.exp(x[1]))

    def sigmoid(self, x: Interval) -> Element:
        """1 / (1 + exp(-x))."""
        if x[0] >= LIMIT:
            return self.down.subtract(1, TINY), Decimal(1)
        raised = self.exp(negative(x))
        return raised if isinstance(raised, Gap) else self.div(ONE, self.add(ONE, raised))

    def total(self, row: Row) -> Element:
        """The sum of a row."""
        return _folded(self.add, row)

    def weights(self, shown: Sequence[bool], row: Row) -> Row:
        """Softmax over what is shown of a row."""
        top = _folded(larger, [x for x, there in zip(row, shown, strict=True) if there])
        if isinstance(top, Gap):
            return [top] * COLUMNS
        less = partial(self.sub, y=top)
        parts = [
            _strict(lambda x: self.exp(less(x)), x) if there else ZERO for x, there in zip(row, shown, strict=True)
        ]
        below = self.total(parts)
        return [_strict(self.div, part, below) if there else ZERO for part, there in zip(parts, shown, strict=True)]

    def attended(self, x: Table, *, added: bool = False) -> Table:
        """Softmax over columns up to the row's number; what is added up must have a value everywhere."""
        gaps = [_folded(larger, row) if added else None for row in x]
        made = [self.weights([j <= i for j in range(COLUMNS)], row) for i, row in enumerate(x)]
        return [[gap] * COLUMNS if isinstance(gap, Gap) else row for gap, row in zip(gaps, made, strict=True)]

    def softmax_where(self, a: Table, b: Table, x: Table) -> Table:
        """Softmax over what is chosen."""
        found: Table = []
        for left, right, row in zip(a, b, x, strict=True):
            holds = [_compared(above, p, q) for p, q in zip(left, right, strict=True)]
            gaps = [one for one in holds if isinstance(one, Gap)]
            found.append([_worst(gaps)] * COLUMNS if gaps else self.weights([one is True for one in holds], row))
        return found

    def _meaning(self) -> dict[str, Callable[..., Table]]:
        """What every function of the campaign makes of tables."""
        low, high, none = exact(Decimal(-1)), exact(Decimal(2)), ZERO
        elements: dict[str, Callable[..., Element]] = {
            "add": self.add, "sub": self.sub, "mul": self.mul, "div": self.div, "square": self.square,
            "sqrt": self.sqrt, "exp": self.exp, "sigmoid": self.sigmoid, "maximum": larger, "least": least,
            "relu": lambda x: larger(x, none), "clamp": lambda x: least(larger(x, low), high),
            "abs": absolute, "sign": sign, "step": step, "floor": floor,
        }  # fmt: skip
        every: dict[str, Callable[..., Table]] = {name: _of_elements(one) for name, one in elements.items()}
        every |= {name: _chosen(holds) for name, holds in COMPARED.items()}
        every |= {
            "total": lambda x: [[self.total(row)] * COLUMNS for row in x],
            "highest": lambda x: [[_folded(larger, row)] * COLUMNS for row in x],
            "copied": lambda x: [list(map(self.total, map(list, zip(*x, strict=True))))] * ROWS,
            "turned": _turned, "running": self._running,
            "flipped": lambda x: [row[::-1] for row in x], "rolled": lambda x: [[*row[1:], row[0]] for row in x],
            "below": _masked, "strictly": _masked,
            "counted": lambda x: [[_strict(self.add, v, exact(Decimal(j))) for j, v in enumerate(row)] for row in x],
            "attended": self.attended, "added": partial(self.attended, added=True), "chosen": self.softmax_where,
        }  # fmt: skip
        return every

    def _running(self, x: Table) -> Table:
        """Sums with the triangle's zeros: an element without a value leaves its row without any."""
        made = []
        for row in x:
            whole = self.total(row)
            made.append([whole if isinstance(whole, Gap) else self.total(row[: j + 1]) for j in range(COLUMNS)])
        return made


def exact(number: Decimal) -> Interval:
    """The interval of one number."""
    return number, number


ZERO, ONE = exact(Decimal(0)), exact(Decimal(1))


def negative(x: Interval) -> Interval:
    """-x."""
    return x[1].copy_negate(), x[0].copy_negate()


def larger(x: Interval, y: Interval) -> Interval:
    """The maximum."""
    return max(x[0], y[0]), max(x[1], y[1])


def least(x: Interval, y: Interval) -> Interval:
    """The minimum."""
    return min(x[0], y[0]), min(x[1], y[1])


def absolute(x: Interval) -> Interval:
    """|x|."""
    return larger(x, negative(x)) if not x[0] < 0 < x[1] else (Decimal(0), max(x[0].copy_negate(), x[1]))


def sign(x: Interval) -> Element:
    """1, 0 or -1."""
    low, high = (exact(Decimal((end > 0) - (end < 0))) for end in x)
    return low if low == high and (x[0] == x[1] or low != ZERO) else UNSURE


def step(x: Interval) -> Element:
    """1 where x >= 0, else 0."""
    return ONE if x[0] >= 0 else ZERO if x[1] < 0 else UNSURE


def floor(x: Interval) -> Element:
    """The largest whole number that is not larger."""
    low, high = (end.to_integral_value(ROUND_FLOOR) for end in x)
    return exact(low) if low == high else UNSURE


def above(a: Interval, b: Interval) -> bool | Gap:
    """a > b."""
    return True if a[0] > b[1] else False if a[1] <= b[0] else UNSURE


def same(a: Interval, b: Interval) -> bool | Gap:
    """a == b."""
    return False if a[0] > b[1] or a[1] < b[0] else True if a[0] == a[1] == b[0] == b[1] else UNSURE


def _not(holds: bool | Gap) -> bool | Gap:
    return holds if isinstance(holds, Gap) else not holds


COMPARED: Mapping[str, Callable[[Interval, Interval], bool | Gap]] = {
    "above": above, "from": lambda a, b: _not(above(b, a)), "same": same, "other": lambda a, b: _not(same(a, b)),
}  # fmt: skip


def _worst(gaps: Sequence[Gap]) -> Gap:
    return NOTHING if NOTHING in gaps else UNSURE


def _strict(function: Callable[..., Element], *operands: Element) -> Element:
    """A function of what has values, as far as numbers go."""
    gaps = [x for x in operands if isinstance(x, Gap)]
    if gaps:
        return _worst(gaps)
    try:
        return function(*operands)
    except DecimalException:
        return UNSURE


def _folded(function: Callable[..., Element], row: Row) -> Element:
    """A row, folded; of no element there is nothing."""
    return reduce(partial(_strict, function), row) if row else NOTHING


def _of_elements(function: Callable[..., Element]) -> Callable[..., Table]:
    return lambda *tables: [
        [_strict(function, *elements) for elements in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)
    ]


def _compared(holds: Callable[[Interval, Interval], bool | Gap], a: Element, b: Element) -> bool | Gap:
    if isinstance(a, Gap) or isinstance(b, Gap):
        return _worst([x for x in (a, b) if isinstance(x, Gap)])
    return holds(a, b)


def _chosen(holds: Callable[[Interval, Interval], bool | Gap]) -> Callable[..., Table]:
    """Of two tables the one or the other; what is not chosen may be anything."""

    def one(a: Element, b: Element, x: Element, y: Element) -> Element:
        found = _compared(holds, a, b)
        return found if isinstance(found, Gap) else x if found else y

    return lambda *tables: [
        [one(*elements) for elements in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)
    ]


def _masked(x: Table) -> Table:
    return [[v if j <= i else ZERO for j, v in enumerate(row)] for i, row in enumerate(x)]


def _turned(x: Table) -> Table:
    flat = [value for row in x for value in row]
    moved = [flat[j * ROWS + i] for i in range(ROWS) for j in range(COLUMNS)]
    return [moved[i * COLUMNS : (i + 1) * COLUMNS] for i in range(ROWS)]


def steps_of(*terms: Term) -> tuple[list[Step], list[int]]:
    """What terms take, operands first and equal ones once, and the places of the terms."""
    known: dict[Step, int] = {}

    def place(term: Term) -> int:
        one = term.name, tuple(map(place, term.operands))
        return known.setdefault(one, len(known))

    places = [place(term) for term in terms]
    return list(known), places


@cache
def points() -> tuple[dict[str, Table], ...]:
    """Where the oracle looks."""
    rng = random.Random(20_251_122)
    scales = ("1", "1", "0.001", "1000", "30", "1e15", "0.2", "5")

    def drawn(scale: str, kind: int) -> Interval:
        whole = Decimal(rng.randint(-4, 4)) if kind == 1 else Decimal(rng.randint(-(10**6), 10**6)) / 10**6
        return exact(abs(whole) + Decimal("0.01") if kind == 2 else whole * (1 if kind == 1 else Decimal(scale)))

    return tuple(
        {name: [[drawn(scales[n % 8], n % 3) for _ in range(COLUMNS)] for _ in range(ROWS)] for name in "XY"}
        for n in range(POINTS)
    )


@cache
def _arithmetic(digits: int) -> Arithmetic:
    return Arithmetic(digits)


def differs(program: Term, candidate: Term) -> bool:
    """Whether the oracle tells a candidate from its program."""
    steps, (ours, theirs) = steps_of(program, candidate)
    if ours == theirs:
        return False
    for inputs in points():
        for digits in DIGITS:
            made = _arithmetic(digits).tables(steps, inputs)
            pairs = [pair for rows in zip(made[ours], made[theirs], strict=True) for pair in zip(*rows, strict=True)]
            if any(_apart(*pair) for pair in pairs):
                return True
            if not any(_hidden(*pair) for pair in pairs):
                break
    return False


def _apart(ours: Element, theirs: Element) -> bool:
    """Whether an element that the program has differs from the candidate's, or the candidate has none."""
    if isinstance(ours, Gap) or isinstance(theirs, Gap):
        return not isinstance(ours, Gap) and theirs is NOTHING
    return ours[1] < theirs[0] or theirs[1] < ours[0]


def _hidden(ours: Element, theirs: Element) -> bool:
    """Whether more digits may tell them apart."""
    if ours is NOTHING or theirs is NOTHING:
        return False
    return any(isinstance(x, Gap) or x[1] - x[0] > NARROW * max(abs(x[0]), abs(x[1])) for x in (ours, theirs))


Step = tuple[str, tuple[int, ...]]
"""A function, and the steps that make its operands."""
Ends = Callable[[Decimal, Decimal], Decimal]
TINY = Decimal("1e-400")
"""More than the exponential of `-LIMIT`."""
NARROW = Decimal("1e-25")
"""How wide intervals are, beside what they hold, that no more digits are spent on."""
