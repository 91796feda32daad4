"""`bench verify --campaign N`: random and mutated pairs of programs, and what an oracle of its own says of them.

In: a number of pairs and a seed. Out: a `Tally`: how often the verifier accepted, refuted or left open what the oracle
tells apart, or does not. Programs are expressions over small tensors, many of them outside LAX: roots, ReLU, maxima,
clamps, quotients, repeats, reshapes, comparisons and choices, masks of minus infinity, slices, steps and whole numbers,
numbers from 1e-20 to 1e20. A pair is an expression and the same rewritten, spoiled at one place, or with terms beside
it that are zero over the reals and not in a field, or are there on few points only. Pairs come in blocks, each of a
seed of its own, so that any of them can be made again, and processes share the work.

What an oracle that shares no code with the verifier tells apart (`oracle`) is different; what it does not may be equal.
What trials leave open is given to the prover, and so are some of the pairs that they refute: it must not prove these.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mirage_nb.bench.verification.oracle import COLUMNS, ROWS, differs
from mirage_nb.errors import MirageError
from mirage_nb.lang import parse
from mirage_nb.verify.proof import Proof, prove, with_proof
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict, VerdictKind

HEAD = f"X: f32[{ROWS}, {COLUMNS}]\nY: f32[{ROWS}, {COLUMNS}]\nreturn "
BLOCK = 100
"""Pairs of a block."""
SECONDS, REFUTED = 0.3, 0.05
"""What the prover may take for a pair, and the share of refuted pairs that it is given."""


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
    "clamp": "clamp({}, -1, 2)", "sigmoid": "sigmoid({})",
    "total": f"expand(sum({{}}, axis=1, keepdims=True), {ROWS}, {COLUMNS})",
    "highest": f"expand(max({{}}, axis=1, keepdims=True), {ROWS}, {COLUMNS})",
    "turned": f"reshape(transpose(reshape({{}}, {COLUMNS}, {ROWS})), {ROWS}, {COLUMNS})",
    "copied": f"reshape(repeat(reshape(sum({{}}, axis=0, keepdims=True), {COLUMNS}), {ROWS}, axis=0), "
              f"{ROWS}, {COLUMNS})",
    "above": "where({} > {}, {}, {})", "from": "where({} >= {}, {}, {})", "same": "where({} == {}, {}, {})",
    "other": "where({} != {}, {}, {})", "abs": "abs({})", "sign": "sign({})", "step": "step({})", "floor": "floor({})",
    "least": "minimum({}, {})", "flipped": "({})[:, ::-1]", "rolled": "concat(({0})[:, 1:], ({0})[:, :1], axis=1)",
    "running": "cumsum({}, axis=1)", "below": f"where(arange({COLUMNS}) <= arange({ROWS})[:, None], {{}}, 0)",
    "strictly": f"where(arange({COLUMNS}) < arange({ROWS})[:, None] + 1, {{}}, 0)",
    "counted": f"({{}} + arange({COLUMNS}))",
    "attended": f"softmax(where(arange({COLUMNS}) <= arange({ROWS})[:, None], {{}}, -inf))",
    "added": f"softmax(({{}}) + where(arange({COLUMNS}) <= arange({ROWS})[:, None], 0, -inf))",
    "chosen": "softmax(where({} > {}, {}, -inf))",
}  # fmt: skip
UNARY = (
    "relu", "sqrt", "square", "exp", "clamp", "sigmoid", "relu", "sqrt", "turned", "copied", "abs", "sign", "step",
    "floor", "flipped", "rolled", "running", "below", "counted", "attended",
)  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "maximum", "add", "mul", "least")
CHOICES = ("above", "from", "same", "other")
NUMBERS = ("2", "3", "0.5", "1", "7", "1000", "0.001", "1e10", "1e-10", "1e20", "1e-20", "0.25")


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
    if x.name in CHOICES:
        a, b, c, d = x.operands
        if x.name in ("same", "other"):
            yield make("other" if x.name == "same" else "same", (a, b, d, c))
        else:
            yield make("from" if x.name == "above" else "above", (b, a, d, c))
    if x.name in ("flipped", "abs") and x.operands[0].name == x.name:
        yield x.operands[0].operands[0] if x.name == "flipped" else x.operands[0]
    if x.name == "maximum":
        yield make("above", (*x.operands, *x.operands))
        yield make("sub", (make("add", x.operands), make("least", x.operands)))
    if x.name == "relu":
        yield make("mul", (x.operands[0], make("step", x.operands)))
    if x.name == "abs":
        yield make("maximum", (x.operands[0], make("sub", (make("0"), x.operands[0]))))
    if x.name in ("below", "strictly"):
        yield make("strictly" if x.name == "below" else "below", x.operands)
    if x.name in ("attended", "added"):
        yield make("added" if x.name == "attended" else "attended", x.operands)
    yield make("flipped", (make("flipped", (x,)),))
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
        lambda: make("add", (x, make("same", (make("X"), make(rng.choice("Y203")), make("1"), make("0"))))),
        lambda: make("other", (make("X"), make("Y"), x, make(rng.choice(("X", "1"))))),
        lambda: make("above", (make("X"), make("0"), x, make("mul", (x, make("1.0000001"))))),
        lambda: make(rng.choice(CHOICES), (make(rng.choice("XY")), make(rng.choice(("X", "Y", "1"))), x, make("Y"))),
        lambda: make("add", (x, make("mul", (make("0.001"), make("sub", (make("floor", (make("X"),)), make("X"))))))),
        lambda: make("mul", (x, make("abs", (make("sign", (make("Y"),)),)))),
        lambda: make("step", (x,)) if x.name == "above" else make("rolled", (x,)),
        lambda: make("add", (x, make("mul", (make("below", (make("X"),)), make("sub", (make("strictly", (make("1"),)),
                                                                                    make("step", (make("X"),)))))))),
        lambda: Expression(rng.choice(CHOICES), x.operands) if x.name in CHOICES else make("chosen", (x, make("Y"), x)),
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
    if rng.random() < 0.2:
        name = rng.choice((*CHOICES, "chosen"))
        operands = [grown(rng, depth - 1) for _ in range(3 if name == "chosen" else 4)]
        return Expression(name, tuple(operands))
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


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A pair on which verifier and oracle disagree, and where it is from: the block and the place in it."""

    block: int
    place: int
    program: str
    candidate: str
    said: str


@dataclass(slots=True)
class Tally:
    """How many pairs; how many of these are different as far as the oracle knows; what the verifier said of pairs that
    are different, and of others; the pairs on which the two contradict each other."""

    pairs: int = 0
    different: int = 0
    said: Counter[str] = field(default_factory=Counter)
    false_acceptances: list[Contradiction] = field(default_factory=list)
    refuted_alone: list[Contradiction] = field(default_factory=list)

    def take(self, where: tuple[int, int], texts: tuple[str, str], apart: bool, verdict: Verdict) -> None:
        """One more pair."""
        self.pairs += 1
        self.different += apart
        self.said[f"{'different' if apart else 'alike'}, {verdict.kind.value}"] += 1
        if apart and verdict.accepted:
            self.false_acceptances.append(Contradiction(*where, *texts, str(verdict)))
        if not apart and verdict.kind is VerdictKind.REFUTED:
            self.refuted_alone.append(Contradiction(*where, *texts, str(verdict.witness)))

    def add(self, other: Tally) -> None:
        """The pairs of another tally too."""
        self.pairs += other.pairs
        self.different += other.different
        self.said += other.said
        self.false_acceptances += other.false_acceptances
        self.refuted_alone += other.refuted_alone

    def record(self) -> dict[str, Any]:
        """The numbers, by name."""
        return {"pairs": self.pairs, "different": self.different, "accepted": len(self.false_acceptances),
                "refuted alone": len(self.refuted_alone), "said": dict(sorted(self.said.items()))}  # fmt: skip


def block(number: int, seed: int, count: int = BLOCK) -> Tally:
    """Verify the pairs of a block."""
    rng = random.Random(f"{seed} {number}")
    tally = Tally()
    while tally.pairs < count:
        left, right = pair(rng)
        final = rng.random() < 0.3
        texts = f"{HEAD}{left}", f"{HEAD}{right}"
        try:
            program, candidate = (parse(text).graph for text in texts)
        except MirageError:
            continue
        verdict = verify(program, candidate, final=final)
        if verdict.kind is VerdictKind.REFUTED and tally.pairs % round(1 / REFUTED) == 0:
            found = prove(program, candidate, seconds=SECONDS, outputs=(0,), these_sizes=True)
            if isinstance(found, Proof):
                verdict = replace(verdict, kind=VerdictKind.PROVED, note=f"refuted, and {found!r}")
        elif not verdict.accepted:
            verdict = with_proof(verdict, program, candidate, seconds=SECONDS, these_sizes=True)[0]
        tally.take((number, tally.pairs), texts, differs(left, right), verdict)
    return tally
