"""Which values may stand beside a value: decided once for every pair of abstract expressions.

In: values as they come, of one stage. Out: for each, the expressions that the oracle lets it meet and the operators
that may join the two, as flags. Invariant: flags are those of the first expression with the second; what they leave
out cannot become part of a target, whatever the operator (paper section 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mirage_nb.algebra import ADD, DIV_AB, DIV_BA, MUL
from mirage_nb.search.saturation.semantics import Semantics
from mirage_nb.search.saturation.values import Value

SHIFTED = 16
"""Flag of maxima: they may be subtracted, or rescale a sum."""
SUB_AB, SUB_BA = 32, 64
"""The first less the second, and the other way round."""
JOIN_AB, JOIN_BA = 128, 256
"""The second after the first in some concatenation, and the other way round."""
PAIR_AB, PAIR_BA = 512, 1024
"""The two are the operands of an opaque operator of the program, in this order or the other."""
ALL = MUL | ADD | DIV_AB | DIV_BA | SUB_AB | SUB_BA | JOIN_AB | JOIN_BA | PAIR_AB | PAIR_BA
_SWAPPED = {
    DIV_AB: DIV_BA, DIV_BA: DIV_AB, SUB_AB: SUB_BA, SUB_BA: SUB_AB, JOIN_AB: JOIN_BA, JOIN_BA: JOIN_AB,
    PAIR_AB: PAIR_BA, PAIR_BA: PAIR_AB,
}  # fmt: skip


@dataclass(slots=True)
class Partners:
    """The values of one stage by their expressions, and the partners of every expression.

    `pruned`: by the oracle; off only to measure what it is worth. `subtracts`: the program does.
    """

    semantics: Semantics
    pruned: bool
    subtracts: bool
    values: dict[int, list[Value]] = field(default_factory=dict)
    of: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    peaks: set[int] = field(default_factory=set)
    _negatives: dict[int, int] = field(default_factory=dict)
    _placed: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def add(self, v: Value) -> None:
        """A value that later ones may meet."""
        if v.expr not in self.values:
            self._meet(v)
        self.values[v.expr].append(v)

    def between(self, first: Value, second: Value) -> int:
        """The operators that may join two values, as flags."""
        shifted = first.peak is not None or second.peak is not None
        if shifted and self.semantics.strict:
            return SHIFTED | self._paired(first.expr, second.expr)
        return (SHIFTED if shifted else 0) | self._flags(first.expr, second.expr)

    def stranger(self, v: Value) -> Value | None:
        """A value that the oracle keeps away from `v`."""
        near = {expr for expr, _ in self.of[v.expr]}
        apart = (found[0] for expr, found in self.values.items() if expr not in near and found)
        return next((value for value in apart if value.peak is None), None)

    def _meet(self, v: Value) -> None:
        self.values[v.expr] = []
        mine = self.of[v.expr] = []
        if v.peak is not None:
            self.peaks.add(v.expr)
        for expr in self.values:
            flags = self._paired(v.expr, expr)
            if (v.peak is not None) != (expr in self.peaks):
                flags |= SHIFTED
            if not self.semantics.strict or (v.peak is None and expr not in self.peaks):
                flags |= self._flags(v.expr, expr)
            if flags:
                mine.append((expr, flags))
                if expr != v.expr:
                    self.of[expr].append((v.expr, _swapped(flags)))

    def _flags(self, first: int, second: int) -> int:
        if not self.pruned:
            return ALL
        semantics = self.semantics
        flags = semantics.oracle.pair(first, second) | self._paired(first, second)
        if self.subtracts:
            flags |= SUB_AB if self._subtracts(first, second) else 0
            flags |= SUB_BA if self._subtracts(second, first) else 0
        for join in semantics.prepared.joins:
            flags |= JOIN_AB if self._joins(join.whole, first, second) else 0
            flags |= JOIN_BA if self._joins(join.whole, second, first) else 0
        return flags

    def _paired(self, first: int, second: int) -> int:
        pairs = self.semantics.opaque_pairs
        return (PAIR_AB if (first, second) in pairs else 0) | (PAIR_BA if (second, first) in pairs else 0)

    def _joins(self, whole: int, first: int, second: int) -> bool:
        one, other = self._in_place(first, whole, 0), self._in_place(second, whole, 1)
        return one >= 0 and other >= 0 and self.semantics.oracle.adds(one, other)

    def _in_place(self, expr: int, whole: int, side: int) -> int:
        """The expression of one part of a concatenation; -1 if it does not reach a target."""
        key = (expr, whole, side)
        if key not in self._placed:
            found = self.semantics.placed(expr, whole, side)
            self._placed[key] = found if self.semantics.oracle.reaches(found) else -1
        return self._placed[key]

    def _subtracts(self, first: int, second: int) -> bool:
        oracle = self.semantics.oracle
        negative = self._negatives.get(second)
        if negative is None:
            found = self.semantics.negated(second)
            negative = self._negatives[second] = found if oracle.reaches(found) else -1
        return negative >= 0 and oracle.adds(first, negative)


def _swapped(flags: int) -> int:
    """The same of the second expression with the first."""
    kept = flags
    for one, other in _SWAPPED.items():
        kept = kept | other if flags & one else kept & ~other
    return kept
