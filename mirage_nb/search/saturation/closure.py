"""The closure: every value that one kernel of a configuration can hold and that can still reach the target.

In: the semantics of a program, the reduced axes that the grid splits, the axis that the for-loop runs over,
and the device tensors to start from. Out: the values, each with all its derivations. Every application of
an operator that is tried is one event: kept, merged with an equal value, or pruned with its reason. Values
are saturated, so no bound on operators is needed; where a cap or the caller ends the work early,
`saturated` says so (replaces the enumeration of paper section 4.1; pruning as in section 4.3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mirage_nb.algebra import ADD, DIV_AB, DIV_BA, MUL
from mirage_nb.ir import AccumKind, OpKind
from mirage_nb.search.saturation.events import Counts, Outcome
from mirage_nb.search.saturation.fields import fingerprint
from mirage_nb.search.saturation.pairs import Pairs, wider
from mirage_nb.search.saturation.partners import JOIN_AB, JOIN_BA, PAIR_AB, PAIR_BA, SHIFTED, SUB_AB, SUB_BA, Partners
from mirage_nb.search.saturation.sample import Sample
from mirage_nb.search.saturation.semantics import UNARY, Semantics, joined_type
from mirage_nb.search.saturation.values import (
    BLOCK,
    BODY,
    DATA,
    GRID,
    ITER,
    LOOP,
    POST,
    TILE,
    Operator,
    Shift,
    Type,
    Value,
    present,
)

POLL_EVERY = 16
"""Applications between two looks at the stop flag."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a closure may do beyond the operators of the program.

    `replicas`: inputs may also be read whole where the configuration could split them. `concat`, `hold`: the
    accumulators of that kind. The others are prunings: `oracle` by abstract expression, `types` of outer products,
    `canonical` of other places for a scaling, `shifts` of what mixes maxima; `merging` makes equal values one.
    `without`: operators that are not allowed, by their labels.
    """

    replicas: bool = True
    concat: bool = True
    hold: bool = True
    oracle: bool = True
    types: bool = True
    canonical: bool = True
    shifts: bool = True
    merging: bool = True
    max_values: int = 100_000
    max_depth: int = 1_000
    without: frozenset[str] = frozenset()


class Closure:
    """One kernel: `grid` splits these reduced axes, `loop` is the axis of the for-loop or None."""

    def __init__(
        self,
        semantics: Semantics,
        grid: frozenset[int],
        loop: int | None,
        leaves: Sequence[Value],
        rules: Rules,
        sample: Sample,
        report: Callable[[Counts], None],
        stopped: Callable[[], bool],
    ) -> None:
        self.semantics = semantics
        self.grid = grid
        self.loop = loop
        self.rules = rules
        self.values: list[Value] = []
        self.counts: dict[tuple[int, Outcome], int] = defaultdict(int)
        self.saturated = False
        self.capped = False
        self._leaves = leaves
        self._sample = sample
        self._report = report
        self._stopped = stopped
        self._keys: dict[tuple[int, Type, bytes, int, bool, Shift | None], Value] = {}
        self._expressions: dict[tuple[object, ...], int] = {}
        self._pairs = Pairs(semantics, outer=not rules.types)
        self._levels: tuple[dict[int, int], ...] = (defaultdict(int), defaultdict(int))
        prepared = semantics.prepared
        used = prepared.operators
        self._kinds = {op.kind for op in used}
        squares = {Operator(OpKind.SQR)} if OpKind.MUL in self._kinds else set()  # of c g g, scaled last
        self._unary = sorted({op for op in used if op.kind in UNARY} | squares, key=repr)
        self._maxima = OpKind.MAX in self._kinds
        taken = [semantics.program[args[1]] for op, args in prepared.program if op.kind is OpKind.SUB]
        subtracts = any(value.peak is None or not semantics.strict for value in taken)
        self._partners = [Partners(semantics, rules.oracle, subtracts) for _ in (BODY, POST)]
        self._op = {kind: Operator(kind) for kind in (OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV)}
        self._fold = {
            kind: [Operator(kind, axis=i) for i in range(len(prepared.axes))]
            for kind in (OpKind.SUM, OpKind.MAX, OpKind.MATMUL, OpKind.RESCALED_SUM)
        }
        self._accum = {
            kind: Operator(OpKind.ACCUM, axis=-1 if loop is None else loop, accum=kind) for kind in AccumKind
        }
        self._ticks = 0
        self._halted = False

    # -- the work list

    @property
    def first_stage(self) -> int:
        """The stage in which tensors are read."""
        return POST if self.loop is None else BODY

    def attempt(self, args: Sequence[Value]) -> None:
        """Every operator on one value, or on two, out of turn: what `run` would try of them."""
        if len(args) == 1:
            self._apply_unary(args[0])
            return
        u, v = args
        self._apply_pair(u, v, self._partners[v.stage].between(v, u))

    def run(self) -> None:
        """Saturate, or stop at the cap or when asked to."""
        for leaf in self._leaves:
            for type_ in self._versions(leaf):
                self.keep_leaf(leaf, type_, self.first_stage)
        for constant in self.semantics.constants:
            for stage in range(self.first_stage, POST + 1):
                self.keep_leaf(constant, constant.type, stage)
        head = 0
        while head < len(self.values) and not self._over():
            value = self.values[head]
            head += 1
            if value.level < self.rules.max_depth:
                if not value.constant:
                    self._apply_unary(value)
                self._apply_binary(value)
            if not head % POLL_EVERY:
                self._report(self.counts)
        self.saturated = head == len(self.values) and not self._over()
        self._report(self.counts)

    def _over(self) -> bool:
        return self._halted or self.capped

    def _tick(self) -> bool:
        self._ticks += 1
        if self._ticks % POLL_EVERY == 0 and self._stopped():
            self._halted = True
        return self._over()

    def _versions(self, leaf: Value) -> Iterable[Type]:
        """The roles in which a block may read a device tensor: split or whole, per axis."""
        found: list[Type] = [()]
        for axis, code in enumerate(leaf.type):
            options = [code]
            if code == DATA:
                split = []
                in_grid, in_loop = axis in self.grid, axis == self.loop
                if in_grid and in_loop:
                    split = [BLOCK | ITER | TILE, BLOCK | LOOP | TILE]
                elif in_grid:
                    split = [BLOCK | LOOP | TILE]
                elif in_loop:
                    split = [GRID | ITER | TILE]
                options = [*split, code] if self.rules.replicas or not split else split[:1]
            found = [(*done, option) for done in found for option in options]
        return found

    def keep_leaf(self, leaf: Value, type_: Type, stage: int) -> Value:
        """A device tensor or a constant, read in this role."""
        value = replace(leaf, id=len(self.values), type=type_, stage=stage, level=0, scaled=False, nodes=leaf.nodes[:1])
        key = (stage, type_, leaf.print, leaf.expr, False, leaf.shift)
        if key in self._keys:
            self._keys[key].nodes.append(leaf.nodes[0])
            return self._keys[key]
        self._keys[key] = value
        self.values.append(value)
        self._count(0, Outcome.KEPT)
        self._sample.leaf(value, leaf.nodes[0][0])
        return value

    # -- one application

    def _count(self, depth: int, outcome: Outcome, number: int = 1) -> None:
        self.counts[depth, outcome] += number

    def _prune(
        self, outcome: Outcome, operator: Operator, args: list[Value], type_: Type, reason: str, expr: int = -1
    ) -> None:
        depth = 1 + max([arg.level for arg in args])
        self.counts[depth, outcome] += 1
        self._sample.event(outcome, operator, args, depth, type_, args[0].stage, reason, expr)

    def _apply(self, operator: Operator, args: list[Value], mask: int, type_: Type, stage: int) -> None:
        """Try one operator on values whose types fit; the result has `type_`."""
        if self._tick():
            return
        if self.rules.without and operator.label in self.rules.without:
            self._prune(Outcome.PRUNED_TYPE, operator, args, type_, "this operator is not allowed")
            return
        semantics = self.semantics
        applied = (operator, mask, *[arg.expr for arg in args])
        expr = self._expressions.get(applied)
        if expr is None:
            expr = semantics.expression(operator, args, mask)
            if self.rules.oracle and not semantics.oracle.reaches(expr):
                expr = -1 - expr
            self._expressions[applied] = expr
        if expr < 0:
            self._prune(Outcome.PRUNED_EXPRESSION, operator, args, type_, "", -1 - expr)
            return
        shift = semantics.shift(operator, args, mask) if self._maxima else None
        if isinstance(shift, str) and self.rules.shifts:
            self._prune(Outcome.PRUNED_SHIFT, operator, args, type_, shift, expr)
            return
        shift = None if isinstance(shift, str) else shift
        elements = semantics.elements(operator, args, mask)
        if elements is None:
            self._prune(Outcome.PRUNED_CANONICAL, operator, args, type_, "undefined: it divides by zero", expr)
            return
        p, q, has_exp = elements
        print_ = fingerprint(p)
        scaled = operator.kind in (OpKind.MUL, OpKind.DIV) and any(arg.constant for arg in args)
        key = (stage, type_, print_, expr, scaled, shift)
        node = (operator, tuple([arg.id for arg in args]))
        depth = 1 + max([arg.level for arg in args])
        known = self._keys.get(key)
        if known is not None and (self.rules.merging or node in known.nodes):
            self._count(depth, Outcome.MERGED)
            if node not in known.nodes:
                known.nodes.append(node)
                self._sample.event(Outcome.MERGED, operator, args, depth, type_, stage, "equal to a known value", expr)
            return
        if len(self.values) >= self.rules.max_values:
            self.capped = True
            return
        value = Value(
            len(self.values),
            type_,
            stage,
            expr,
            p,
            q,
            has_exp,
            print_,
            depth,
            scaled and self.rules.canonical,
            shift=shift,
            peak=self.semantics.peak(operator, args, mask) if self._maxima else None,
            nodes=[node],
        )
        self._keys[key] = value
        self.values.append(value)
        self._count(depth, Outcome.KEPT)
        self._sample.kept(value, operator, args, depth, expr)

    # -- operators on one value

    def _apply_unary(self, v: Value) -> None:
        for operator in self._unary:
            if operator.kind is OpKind.EXP and v.has_exp:
                continue
            if self._kept_apart(v) or (v.scaled and operator.kind is OpKind.SQR):
                self._prune(
                    Outcome.PRUNED_CANONICAL, operator, [v], v.type, "a scaled value or a maximum is used directly"
                )
                continue
            self._apply(operator, [v], 0, v.type, v.stage)
        for axis, code in enumerate(v.type):
            mask = code & DATA
            if mask:
                self._apply_fold(v, axis, mask)
        if v.stage == BODY:
            self._apply_accumulators(v)

    def _kept_apart(self, v: Value) -> bool:
        """Whether it is a maximum that may only be subtracted."""
        return v.peak is not None and self.semantics.strict

    def _apply_fold(self, v: Value, axis: int, mask: int) -> None:
        type_ = (*v.type[:axis], v.type[axis] & ~DATA, *v.type[axis + 1 :])
        operator = self._fold[OpKind.SUM][axis]
        if not self.semantics.prepared.axes[axis].reduced:
            self._prune(Outcome.PRUNED_EXPRESSION, operator, [v], type_, "the program never sums this axis")
            return
        if v.scaled or self._kept_apart(v):
            self._prune(Outcome.PRUNED_CANONICAL, operator, [v], type_, "the sum comes before the scaling")
        else:
            self._apply(operator, [v], mask, type_, v.stage)
        if self._maxima and not (v.has_exp and self.semantics.strict):
            self._apply(self._fold[OpKind.MAX][axis], [v], mask, type_, v.stage)

    def _apply_accumulators(self, v: Value) -> None:
        axis = self.loop
        assert axis is not None
        code = v.type[axis]
        if not code & ITER:
            if self.rules.hold and not v.constant and v.level == 0 and code == 0:
                self._apply(self._accum[AccumKind.HOLD], [v], 0, v.type, POST)
            return
        without = (*v.type[:axis], code & ~ITER, *v.type[axis + 1 :])
        gathered = (*v.type[:axis], code & ~ITER | LOOP, *v.type[axis + 1 :])
        if v.scaled:
            self._prune(
                Outcome.PRUNED_CANONICAL, self._accum[AccumKind.SUM], [v], without, "scaling comes after the loop"
            )
            return
        if not self._kept_apart(v):
            self._apply(self._accum[AccumKind.SUM], [v], LOOP, without, POST)
        if v.peak is not None:
            self._apply(self._accum[AccumKind.MAX], [v], LOOP, without, POST)
        if self.rules.concat:
            self._apply(self._accum[AccumKind.CONCAT], [v], 0, gathered, POST)

    # -- operators on two values

    def _apply_binary(self, v: Value) -> None:
        partners, levels = self._partners[v.stage], self._levels[v.stage]
        partners.add(v)
        levels[v.level] += 1
        unseen = dict(levels)
        for expr, flags in partners.of[v.expr]:
            for u in partners.values[expr]:
                unseen[u.level] -= 1
                if self._tick():
                    return
                self._apply_pair(u, v, flags)
        for level, number in unseen.items():
            if number:
                self._count(1 + max(level, v.level), Outcome.PRUNED_EXPRESSION, number)
        if v.peak is None and self._sample.wants(Outcome.PRUNED_EXPRESSION):
            self._sample.skipped(v, partners.stranger(v))

    def _apply_pair(self, u: Value, v: Value, flags: int) -> None:
        """Every operator on `u` and `v`; `flags` are those of v with u."""
        if flags & SHIFTED:
            a, m = (u, v) if v.peak is not None else (v, u)
            self._apply_peak(a, m)
            if self.semantics.strict:
                flags &= PAIR_AB | PAIR_BA  # what may join a maximum
        if flags & JOIN_AB:
            self._apply_joins(v, u)
        if flags & JOIN_BA and u is not v:
            self._apply_joins(u, v)
        if not flags & ~(JOIN_AB | JOIN_BA):
            return
        pair = self._pairs.of(u.type, v.type)
        if not pair.fits:
            self._prune(Outcome.PRUNED_TYPE, self._op[OpKind.MUL], [u, v], v.type, "the axes of the tiles do not fit")
            return
        x, y = (u, v) if u.id < v.id else (v, u)
        if flags & MUL:
            for axis, type_ in pair.matmuls:
                operator = self._fold[OpKind.MATMUL][axis]
                if u.scaled or v.scaled:
                    self._prune(
                        Outcome.PRUNED_CANONICAL, operator, [x, y], type_, "the matmul comes before the scaling"
                    )
                else:
                    self._apply(operator, [x, y], u.type[axis] & DATA, type_, u.stage)
        if pair.elementwise is not None and not (u.constant and v.constant):
            self._apply_elementwise(x, y, u, v, flags, pair.elementwise)

    def _apply_elementwise(self, x: Value, y: Value, u: Value, v: Value, flags: int, type_: Type) -> None:
        stage = u.stage
        if flags & MUL and x is not y:
            if x.scaled or y.scaled:
                self._prune(
                    Outcome.PRUNED_CANONICAL, self._op[OpKind.MUL], [x, y], type_, "scaling comes last in a product"
                )
            else:
                self._apply(self._op[OpKind.MUL], [x, y], 0, type_, stage)
        if flags & ADD and OpKind.ADD in self._kinds:
            self._apply(self._op[OpKind.ADD], [x, y], 0, type_, stage)
        if OpKind.SUB in self._kinds and x is not y:
            for flag, less, by in ((SUB_AB, v, u), (SUB_BA, u, v)):
                if flags & flag:
                    self._apply(self._op[OpKind.SUB], [less, by], 0, type_, stage)
        if OpKind.DIV in self._kinds and x is not y:
            for flag, above, below in ((DIV_AB, v, u), (DIV_BA, u, v)):
                if flags & flag and (above.constant or self._pairs.outer or not wider(below.type, above.type)):
                    self._apply(self._op[OpKind.DIV], [above, below], 0, type_, stage)
        for flag, first, second in ((PAIR_AB, v, u), (PAIR_BA, u, v)):
            if flags & flag and (flag == PAIR_AB or u is not v):
                for operator in self.semantics.opaque_pairs.get((first.expr, second.expr), ()):
                    self._apply(operator, [first, second], 0, type_, stage)

    def _apply_joins(self, first: Value, second: Value) -> None:
        """One after the other, for every concatenation of the program."""
        for join in self.semantics.prepared.joins:
            type_ = joined_type(join, first.type, second.type)
            operator = Operator(OpKind.CONCAT, axis=join.whole)
            if type_ is not None:
                self._apply(operator, [first, second], 0, type_, first.stage)
            else:
                why = "the axes of the tiles do not fit"
                self._prune(Outcome.PRUNED_TYPE, operator, [first, second], first.type, why)

    def _apply_peak(self, a: Value, m: Value) -> None:
        """Subtract a maximum, or rescale by it what was shifted by it."""
        lowers = self.semantics.lowers(a, m)
        if (a.constant and not lowers) or a.peak is not None:
            return
        pair = self._pairs.of(a.type, m.type)
        if pair.elementwise is None or (wider(m.type, a.type) and not lowers):
            self._prune(Outcome.PRUNED_TYPE, self._op[OpKind.SUB], [a, m], a.type, "the axes of the tiles do not fit")
            return
        if a.shift is None and not a.has_exp:
            if OpKind.SUB in self._kinds:
                self._apply(self._op[OpKind.SUB], [a, m], 0, pair.elementwise, a.stage)
            return
        if a.shift != m.as_shift() or not a.has_exp:
            self._prune(Outcome.PRUNED_SHIFT, self._op[OpKind.SUB], [a, m], a.type, "another maximum was subtracted")
            return
        for axis, code in enumerate(a.type):
            mask = code & DATA
            if mask and self.semantics.prepared.axes[axis].reduced and m.type[axis] & DATA == mask:
                type_ = (*pair.elementwise[:axis], code & ~DATA, *pair.elementwise[axis + 1 :])
                self._apply(self._fold[OpKind.RESCALED_SUM][axis], [a, m], mask, type_, a.stage)
        loop = self.loop
        if a.stage == BODY and loop is not None and a.type[loop] & ITER and m.type[loop] & ITER:
            type_ = (*pair.elementwise[:loop], a.type[loop] & ~ITER, *pair.elementwise[loop + 1 :])
            self._apply(self._accum[AccumKind.RESCALE], [a, m], LOOP, type_, POST)

    # -- results

    def finals(self, target: Value) -> list[Value]:
        """The values after the loop that equal a target as a device tensor."""
        found = []
        for value in self.values:
            same = value.stage == POST and value.print == target.print and value.shift == target.shift
            if same and present(value.type) == target.type:
                found.append(value)
        return found
