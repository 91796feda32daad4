"""Algorithm 1 of the paper at the block level, literally: the reference enumerator.

In: the semantics of a program, one configuration, a bound on operators. Out: every block graph of at most
that many operators that computes the program, and the number of prefixes looked at by size. It grows about
threefold per operator; the closure replaces it, and tests hold the two together on small spaces. Operators
are added in increasing rank (operands, then kind), so no graph is built in two orders; a prefix is cut when
types do not fit, when its tiles exceed the memory limit, or when an abstract expression cannot reach the
target (section 4). Branches share nothing but what they construct, so the work can be cut into shares, one
for each worker; together they yield what one enumerator yields.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.search.saturation.fields import fingerprint
from mirage_nb.search.saturation.pairs import Pairs, wider
from mirage_nb.search.saturation.semantics import UNARY, Semantics
from mirage_nb.search.saturation.values import BODY, DATA, ITER, LOOP, POST, Operator, Type, Value, present

Rank = tuple[tuple[int, ...], str, int, str]
Application = tuple[Operator, tuple[int, ...], Type, int, int]
"""An operator, the tensors it reads, the type and stage of its result, and the parts that it folds."""

SHARED_DEPTH = 2
"""Operators of the prefixes that are dealt out to the shares in turn."""


@dataclass(frozen=True, slots=True)
class BlockPrefix:
    """A complete graph: the operators in order, each with the tensors that it reads (leaves come first)."""

    leaves: tuple[Value, ...]
    operators: tuple[tuple[Operator, tuple[int, ...]], ...]
    values: tuple[Value, ...]


@dataclass(slots=True)
class Enumerator:
    """Enumerates the block graphs of one configuration.

    Args:
        leaves: the roles in which inputs may be read, and the constants.
        bound: operators of a graph, accumulators included.
        prune: cut by abstract expression (line 27 of the algorithm); off to measure what that is worth.
        elements: memory limit, in elements of the tiny instance's arrays over all tiles of a prefix.
        share: number and count: of the prefixes with `SHARED_DEPTH` operators, this enumerator extends every
            count-th. The few before them are walked by all and counted by the first.
    """

    semantics: Semantics
    leaves: Sequence[Value]
    loop: int | None
    bound: int
    prune: bool = True
    elements: int = 1 << 30
    stopped: Callable[[], bool] = lambda: False
    share: tuple[int, int] = (0, 1)
    prefixes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    cut_short: bool = False
    _pairs: Pairs = field(init=False)
    _unary: list[Operator] = field(init=False)
    _kinds: frozenset[OpKind] = field(init=False)
    _made: dict[tuple[Operator, tuple[int, ...]], Value | None] = field(default_factory=dict)
    _dealt: int = 0

    def __post_init__(self) -> None:
        used = self.semantics.prepared.operators
        self._pairs = Pairs(self.semantics)
        self._unary = sorted((op for op in used if op.kind in UNARY), key=repr)
        self._kinds = frozenset(op.kind for op in used)

    def run(self) -> Iterator[BlockPrefix]:
        """All graphs that compute the (single) target, every other tensor of theirs being read."""
        yield from self._extend(list(self.leaves), [], None)

    def _extend(
        self, values: list[Value], operators: list[tuple[Operator, tuple[int, ...]]], last: Rank | None
    ) -> Iterator[BlockPrefix]:
        if self.stopped():
            self.cut_short = True
            return
        counted = self._counted(len(operators))
        if not counted and len(operators) >= SHARED_DEPTH:
            return
        if counted and self._complete(values, operators):
            yield BlockPrefix(tuple(self.leaves), tuple(operators), tuple(values))
        if len(operators) == self.bound:
            return
        for application in self._applications(values, max(last[0]) if last is not None else 0):
            operator, args = application[:2]
            rank = (args, operator.kind.value, operator.axis, operator.accum.value if operator.accum else "")
            if last is not None and not _follows(rank, last):
                continue
            result = self._constructed(values, application)
            if result is not None:
                yield from self._extend([*values, result], [*operators, (operator, args)], rank)

    def _counted(self, depth: int) -> bool:
        """Whether this share counts a prefix of that many operators: every prefix is counted by one share."""
        number, count = self.share
        mine = depth > SHARED_DEPTH or number == 0
        if depth == SHARED_DEPTH:
            self._dealt += 1
            mine = self._dealt % count == number
        self.prefixes[depth] += mine
        return mine

    def _constructed(self, values: list[Value], application: Application) -> Value | None:
        """CONSTRUCTOP: the new tensor, or None when it is invalid or pruned."""
        operator, args = application[:2]
        key = (operator, tuple(id(values[a]) for a in args))
        if key not in self._made:  # the same operator on the same tensors, as other prefixes have it
            self._made[key] = self._computed([values[a] for a in args], application)
        made = self._made[key]
        if made is None or sum(v.p.size for v in values) + made.p.size > self.elements:
            return None
        return made

    def _computed(self, read: list[Value], application: Application) -> Value | None:
        operator, _, type_, stage, mask = application
        expr = self.semantics.expression(operator, read, mask)
        if self.prune and not self.semantics.oracle.reaches(expr):
            return None
        shift = self.semantics.shift(operator, read, mask)
        if isinstance(shift, str):
            return None
        computed = self.semantics.elements(operator, read, mask)
        if computed is None:
            return None
        p, q, has_exp = computed
        return Value(
            len(self._made),
            type_,
            stage,
            expr,
            p,
            q,
            has_exp,
            fingerprint(p),
            shift=shift,
            peak=self.semantics.peak(operator, read, mask),
        )

    def _complete(self, values: list[Value], operators: list[tuple[Operator, tuple[int, ...]]]) -> bool:
        if not operators:
            return False
        read = {a for _, args in operators for a in args}
        made = range(len(self.leaves), len(values))
        unread = [index for index in made if index not in read]
        target, last = self.semantics.targets[0], values[unread[0]] if len(unread) == 1 else None
        return (
            last is not None
            and last.stage == POST
            and last.print == target.print
            and last.shift == target.shift
            and present(last.type) == target.type
        )

    # -- which operators may stand on which tensors

    def _applications(self, values: list[Value], first: int) -> Iterator[Application]:
        """Operators whose newest operand is number `first` or later."""
        for index, value in enumerate(values[first:], start=first):
            if not value.constant:
                yield from self._on_one(index, value)
            for other in range(index + 1):
                yield from self._on_two(other, index, values[other], value)

    def _on_one(self, index: int, value: Value) -> Iterator[Application]:
        for operator in self._unary:
            if not (operator.kind is OpKind.EXP and value.has_exp):
                yield operator, (index,), value.type, value.stage, 0
        for axis, code in enumerate(value.type):
            if code & DATA and self.semantics.prepared.axes[axis].reduced:
                type_ = (*value.type[:axis], code & ~DATA, *value.type[axis + 1 :])
                yield Operator(OpKind.SUM, axis=axis), (index,), type_, value.stage, code & DATA
        if value.stage == BODY and self.loop is not None and value.type[self.loop] & ITER:
            axis, code = self.loop, value.type[self.loop] & ~ITER
            without = (*value.type[:axis], code, *value.type[axis + 1 :])
            gathered = (*value.type[:axis], code | LOOP, *value.type[axis + 1 :])
            yield Operator(OpKind.ACCUM, axis=axis, accum=AccumKind.SUM), (index,), without, POST, LOOP
            yield Operator(OpKind.ACCUM, axis=axis, accum=AccumKind.CONCAT), (index,), gathered, POST, 0

    def _on_two(self, i: int, j: int, first: Value, second: Value) -> Iterator[Application]:
        if first.stage != second.stage or (first.constant and second.constant):
            return
        pair, stage = self._pairs.of(first.type, second.type), first.stage
        for axis, type_ in pair.matmuls:
            yield Operator(OpKind.MATMUL, axis=axis), (i, j), type_, stage, first.type[axis] & DATA
        if pair.elementwise is None:
            return
        if i != j:
            yield Operator(OpKind.MUL), (i, j), pair.elementwise, stage, 0
        if OpKind.ADD in self._kinds:
            yield Operator(OpKind.ADD), (i, j), pair.elementwise, stage, 0
        for (a, above), (b, below) in (((i, first), (j, second)), ((j, second), (i, first))):
            if OpKind.SUB in self._kinds and i != j:
                yield Operator(OpKind.SUB), (a, b), pair.elementwise, stage, 0
            if OpKind.DIV in self._kinds and i != j and (above.constant or not wider(below.type, above.type)):
                yield Operator(OpKind.DIV), (a, b), pair.elementwise, stage, 0


def _follows(rank: Rank, last: Rank) -> bool:
    """Whether an operator may come after `last`: by its newest operand first, so that every graph has an order."""
    return (max(rank[0]), *rank) > (max(last[0]), *last)
