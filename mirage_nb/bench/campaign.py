"""`bench verify --campaign N`: random and mutated pairs of programs, and what an oracle of its own says of them.

In: a number of pairs and a seed. Out: a `Tally`: how often the verifier accepted, refuted or left open what the oracle
tells apart, or does not. Programs are expressions over small tensors, many of them outside LAX: roots, ReLU, maxima,
clamps, quotients, repeats, reshapes, numbers from 1e-20 to 1e20. A pair is an expression and the same rewritten,
spoiled at one place, or with terms beside it that are zero over the reals and not in a field.

The oracle shares no code with the verifier: it computes expressions element by element in decimal numbers of many
digits, at points of its own. What it tells apart is different; what it does not may be equal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal, DecimalException, localcontext
from functools import cache
from typing import Any

from mirage_nb.errors import MirageError
from mirage_nb.lang import parse
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind

ROWS, COLUMNS = 2, 3
HEAD = f"X: f32[{ROWS}, {COLUMNS}]\nY: f32[{ROWS}, {COLUMNS}]\nreturn "
DIGITS = 120
APART = Decimal("1e-50")
"""Relative to the larger value, and what values below it are nothing beside."""
POINTS = 24
LIMIT = Decimal(1000)
"""Exponents up to which the oracle computes exponentials."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A node: an input, a number, or a function of others."""

    name: str
    operands: tuple[Expression, ...] = ()

    def __str__(self) -> str:
        template = TEMPLATES.get(self.name, self.name)
        return template.format(*self.operands)


TEMPLATES = {
    "add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "div": "({} / {})", "relu": "relu({})",
    "sqrt": "sqrt({})", "square": "({0} * {0})", "exp": "exp({})", "maximum": "maximum({}, {})",
    "clamp": "clamp({}, -1, 2)", "sigmoid": "sigmoid({})", "total": "sum({}, axis=1, keepdims=True)",
    "highest": "max({}, axis=1, keepdims=True)",
    "turned": f"reshape(transpose(reshape({{}}, {COLUMNS}, {ROWS})), {ROWS}, {COLUMNS})",
    "copied": f"reshape(repeat(reshape(sum({{}}, axis=0, keepdims=True), {COLUMNS}), {ROWS}, axis=0), "
              f"{ROWS}, {COLUMNS})",
}  # fmt: skip
UNARY = ("relu", "sqrt", "square", "exp", "clamp", "sigmoid", "relu", "sqrt", "turned", "copied")
BINARY = ("add", "sub", "mul", "div", "maximum", "add", "mul")
NUMBERS = ("2", "3", "0.5", "1", "7", "1000", "0.001", "1e10", "1e-10", "1e20", "1e-20", "0.25")

Table = list[list[Decimal]]
"""One row after the other; undefined elements are NaN."""
NOTHING = Decimal("NaN")


def _same(x: Expression) -> Iterator[Expression]:
    """Expressions that are this one wherever it has a value."""
    make = Expression
    if x.name in ("add", "mul", "maximum"):
        yield make(x.name, x.operands[::-1])
    if x.name in ("add", "mul") and x.operands[0].name == x.name:
        (a, b), c = x.operands[0].operands, x.operands[1]
        yield make(x.name, (a, make(x.name, (b, c))))
    if x.name == "mul" and x.operands[0].name == "add":
        (a, b), c = x.operands[0].operands, x.operands[1]
        yield make("add", (make("mul", (a, c)), make("mul", (b, c))))
    if x.name == "div" and x.operands[0].name == "mul":
        (a, b), c = x.operands[0].operands, x.operands[1]
        yield make("mul", (a, make("div", (b, c))))
    if x.name == "mul" and x.operands[0].name == x.operands[1].name == "exp":
        yield make("exp", (make("add", (x.operands[0].operands[0], x.operands[1].operands[0])),))
    yield make("sub", (make("add", (x, make("1e20"))), make("1e20")))
    yield make("mul", (make("add", (x, x)), make("0.5")))


def _wrong(x: Expression, rng: random.Random) -> Expression:
    """An expression that is another one more often than not."""
    make = Expression
    hidden = make("relu", (make("sub", (make("0"), make("square", (make("X"),)))),))
    selects = make("mul", (make("0"), make("sqrt", (make("mul", (hidden, make(rng.choice("XY")))),))))
    absolute = make("sqrt", (make("square", (x,)),))
    choices: list[Callable[[], Expression]] = [
        lambda: absolute,
        lambda: make("add", (absolute, make("add", (selects, make("mul", (make("0"), make("sqrt", (hidden,)))))))),
        lambda: make("div", (make("mul", (x, make("relu", (make("X"),)))), make("relu", (make("X"),)))),
        lambda: make("add", (x, make("mul", (make("0"), make("sqrt", (make("add", (make("Y"), make("7"))),)))))),
        lambda: make("add", (x, make("mul", (make("1e-20"), make("relu", (make("X"),)))))),
        lambda: make("add", (x, make("sub", (make("sub", (make("add", (make("X"), make("1e20"))), make("1e20"))),
                                             make("Y"))))),
        lambda: make("mul", (x, make(rng.choice(NUMBERS)))),
        lambda: make(rng.choice(UNARY), (x,)),
        lambda: make("turned", (x,)),
        lambda: make(rng.choice(BINARY), (x, make(rng.choice("XY")))),
    ]  # fmt: skip
    return rng.choice(choices)()


def grown(rng: random.Random, depth: int) -> Expression:
    """A random expression."""
    if depth == 0 or rng.random() < 0.1:
        return Expression(rng.choice(("X", "Y", "X", "Y", rng.choice(NUMBERS))))
    if rng.random() < 0.5:
        return Expression(rng.choice(UNARY), (grown(rng, depth - 1),))
    if rng.random() < 0.12:
        total = Expression(rng.choice(("total", "highest")), (grown(rng, depth - 1),))
        return Expression("mul", (Expression(rng.choice("XY")), total))
    return Expression(rng.choice(BINARY), (grown(rng, depth - 1), grown(rng, depth - 1)))


def changed(x: Expression, rng: random.Random, change: Callable[[Expression], Expression]) -> Expression:
    """The expression with one node changed."""
    if not x.operands or rng.random() < 0.4:
        return change(x)
    place = rng.randrange(len(x.operands))
    operands = [changed(y, rng, change) if i == place else y for i, y in enumerate(x.operands)]
    return Expression(x.name, tuple(operands))


def pair(rng: random.Random) -> tuple[Expression, Expression]:
    """A program and a candidate."""
    left = Expression("add", (grown(rng, rng.randint(1, 4)), Expression("mul", (Expression("X"), Expression("Y")))))
    right = left
    for _ in range(rng.randint(0, 3)):
        right = changed(right, rng, lambda x: rng.choice(list(_same(x))))
    if rng.random() < 0.6:
        right = changed(right, rng, lambda x: _wrong(x, rng))
    return left, right


def _of_elements(function: Callable[..., Decimal]) -> Callable[..., Table]:
    def made(*tables: Table) -> Table:
        rows = [[_tried(function, *(table[i][j] for table in tables)) for j in range(COLUMNS)] for i in range(ROWS)]
        return rows

    return made


def _tried(function: Callable[..., Decimal], *values: Decimal) -> Decimal:
    if any(value.is_nan() for value in values):
        return NOTHING
    try:
        return function(*values)
    except DecimalException:
        return NOTHING


def _exp(x: Decimal) -> Decimal:
    return x.exp() if abs(x) < LIMIT else NOTHING


def _turned(x: Table) -> Table:
    flat = [value for row in x for value in row]
    moved = [flat[j * ROWS + i] for i in range(ROWS) for j in range(COLUMNS)]
    return [moved[i * COLUMNS : (i + 1) * COLUMNS] for i in range(ROWS)]


def _folded(fold: Callable[[Sequence[Decimal]], Decimal]) -> Callable[[Table], Table]:
    return lambda x: [[NOTHING if any(v.is_nan() for v in row) else fold(row)] * COLUMNS for row in x]


def _copied(x: Table) -> Table:
    columns = [[row[j] for row in x] for j in range(COLUMNS)]
    totals = [NOTHING if any(v.is_nan() for v in column) else sum(column, Decimal(0)) for column in columns]
    return [list(totals) for _ in range(ROWS)]


MEANING: dict[str, Callable[..., Table]] = {
    "add": _of_elements(lambda a, b: a + b), "sub": _of_elements(lambda a, b: a - b),
    "mul": _of_elements(lambda a, b: a * b), "div": _of_elements(lambda a, b: a / b),
    "relu": _of_elements(lambda a: max(a, Decimal(0))), "sqrt": _of_elements(lambda a: a.sqrt()),
    "square": _of_elements(lambda a: a * a), "exp": _of_elements(_exp), "maximum": _of_elements(max),
    "clamp": _of_elements(lambda a: min(max(a, Decimal(-1)), Decimal(2))),
    "sigmoid": _of_elements(lambda a: 1 / (1 + _exp(-a))), "turned": _turned, "copied": _copied,
    "total": _folded(lambda row: sum(row, Decimal(0))), "highest": _folded(max),
}  # fmt: skip


def value(x: Expression, inputs: dict[str, Table]) -> Table:
    """What an expression is at a point."""
    known: dict[Expression, Table] = {}

    def of(node: Expression) -> Table:
        if node not in known:
            if node.operands:
                known[node] = MEANING[node.name](*map(of, node.operands))
            else:
                known[node] = inputs.get(node.name) or [[Decimal(node.name)] * COLUMNS for _ in range(ROWS)]
        return known[node]

    return of(x)


@cache
def points() -> tuple[dict[str, Table], ...]:
    """Where the oracle looks."""
    rng = random.Random(20_251_122)
    scales = ("1", "1", "0.001", "1000", "30", "1e15", "0.2", "5")

    def drawn(scale: str, kind: int) -> Decimal:
        whole = Decimal(rng.randint(-4, 4)) if kind == 1 else Decimal(rng.randint(-(10**6), 10**6)) / 10**6
        return abs(whole) + Decimal("0.01") if kind == 2 else whole * (1 if kind == 1 else Decimal(scale))

    return tuple(
        {name: [[drawn(scales[n % 8], n % 3) for _ in range(COLUMNS)] for _ in range(ROWS)] for name in "XY"}
        for n in range(POINTS)
    )


def differs(left: Expression, right: Expression) -> bool:
    """Whether the oracle tells a candidate from its program."""
    with localcontext(Context(prec=DIGITS, Emax=10**15, Emin=-(10**15))):
        for inputs in points():
            for a_row, b_row in zip(value(left, inputs), value(right, inputs), strict=True):
                for a, b in zip(a_row, b_row, strict=True):
                    if not a.is_nan() and (b.is_nan() or abs(a - b) > APART * max(abs(a), abs(b), Decimal(1))):
                        return True
    return False


@dataclass(slots=True)
class Tally:
    """How many pairs; how many of these are different as far as the oracle knows; what the verifier said of pairs that
    are different, and of others; the pairs on which the two contradict each other."""

    pairs: int = 0
    different: int = 0
    said: dict[str, int] = field(default_factory=dict)
    false_acceptances: list[tuple[str, str]] = field(default_factory=list)
    refuted_alone: list[tuple[str, str, str]] = field(default_factory=list)

    def take(self, texts: tuple[str, str], apart: bool, verdict: Verdict) -> None:
        """One more pair."""
        self.pairs += 1
        self.different += apart
        key = f"{'different' if apart else 'alike'}, {verdict.kind.value}"
        self.said[key] = self.said.get(key, 0) + 1
        if apart and verdict.accepted:
            self.false_acceptances.append(texts)
        if not apart and verdict.kind is VerdictKind.REFUTED:
            self.refuted_alone.append((*texts, str(verdict.witness)))

    def __str__(self) -> str:
        said = ", ".join(f"{count} {key}" for key, count in sorted(self.said.items()))
        return (
            f"{self.pairs} pairs, {self.different} different: {len(self.false_acceptances)} accepted all the same; "
            f"{len(self.refuted_alone)} refuted at a point that the oracle did not look at ({said})"
        )


def campaign(count: int, seed: int, told: Callable[[Tally], Any] = lambda tally: None) -> Tally:
    """Verify so many pairs; `told` after every hundred."""
    rng = random.Random(seed)
    tally = Tally()
    while tally.pairs < count:
        left, right = pair(rng)
        texts = f"{HEAD}{left}", f"{HEAD}{right}"
        try:
            program, candidate = (parse(text).graph for text in texts)
        except MirageError:
            continue
        tally.take(texts, differs(left, right), verify(program, candidate, final=rng.random() < 0.3))
        if tally.pairs % 100 == 0:
            told(tally)
    return tally
