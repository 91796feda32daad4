"""A bounded sample of the closure's events, for people to look at; the counts beside it are exact.

In: events as they happen. Out: `Prefix` records with the operator, the type and the expression as text. The
sample is the first events of each outcome, so equal searches give equal samples, and its cost is bounded.
"""

from __future__ import annotations

from mirage_nb.search.saturation.events import Outcome, Prefix
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.search.saturation.values import BODY, Operator, Type, Value, show_type


class Sample:
    """The first `limit` kept applications of a configuration, and a fifth as many of every other outcome."""

    def __init__(self, semantics: Semantics, configuration: str, limit: int) -> None:
        self._semantics = semantics
        self._configuration = configuration
        self._left = {outcome: limit if outcome is Outcome.KEPT else limit // 5 for outcome in Outcome}
        self._names = tuple(axis.name for axis in semantics.prepared.axes)
        self._identity: dict[int, int] = {}
        self.prefixes: list[Prefix] = []

    def wants(self, outcome: Outcome) -> bool:
        """Whether there is room for one more event of this kind."""
        return self._left[outcome] > 0

    def leaf(self, value: Value, operator: Operator) -> None:
        """A tensor or constant that the closure starts from."""
        if self.wants(Outcome.KEPT):
            self._identity[value.id] = len(self.prefixes)
            self._add(Outcome.KEPT, operator.kind.value, [], 0, value.type, value.stage, "", value.expr)

    def kept(self, value: Value, operator: Operator, args: list[Value], depth: int, expr: int) -> None:
        """A new value."""
        if self.wants(Outcome.KEPT):
            self._identity[value.id] = len(self.prefixes)
            self._add(Outcome.KEPT, operator.label, args, depth, value.type, value.stage, "", expr)

    def event(
        self,
        outcome: Outcome,
        operator: Operator,
        args: list[Value],
        depth: int,
        type_: Type,
        stage: int,
        reason: str,
        expr: int,
    ) -> None:
        """Any other outcome; without a reason, the oracle is asked for one."""
        if self.wants(outcome):
            if not reason and expr >= 0:
                reason = self._semantics.oracle.explain(expr)
            self._add(outcome, operator.label, args, depth, type_, stage, reason, expr)

    def skipped(self, value: Value, partner: Value | None) -> None:
        """A pair that the oracle keeps apart, whatever the operator."""
        if partner is not None:
            expr = self._semantics.algebra.mul(value.expr, partner.expr)
            reason = self._semantics.oracle.explain(expr)
            depth = 1 + max(value.level, partner.level)
            self._add(
                Outcome.PRUNED_EXPRESSION, "EwMul", [value, partner], depth, value.type, value.stage, reason, expr
            )

    def _add(
        self,
        outcome: Outcome,
        operator: str,
        args: list[Value],
        depth: int,
        type_: Type,
        stage: int,
        reason: str,
        expr: int,
    ) -> None:
        self._left[outcome] -= 1
        parents = tuple(self._identity[a.id] for a in args if a.id in self._identity)
        self.prefixes.append(
            Prefix(
                identity=len(self.prefixes),
                parents=parents,
                configuration=self._configuration,
                depth=depth,
                operator=operator,
                stage="loop body" if stage == BODY else "after the loop",
                type=show_type(type_, self._names),
                expression=self._semantics.algebra.show(expr) if expr >= 0 else "",
                outcome=outcome,
                reason=reason,
            )
        )
