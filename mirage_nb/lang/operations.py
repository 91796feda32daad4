"""Reads operators: arithmetic, comparisons, and what joins masks or sequences.

In: a syntax node, the results left and right of the operator. Out: a result. Invariant: two truth values are added as
NumPy and PyTorch do, which say whether one of them is true; with anything else they are 1 and 0.
"""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable

from mirage_nb.lang import sequences
from mirage_nb.lang.builder import Extremes, Infinity, Picked, Result, Truth, is_tensor, plain, true
from mirage_nb.lang.constants import Number
from mirage_nb.lang.functions import OPERATORS
from mirage_nb.lang.limits import MAX_BITS, MAX_STATEMENTS
from mirage_nb.lang.loops import Loops
from mirage_nb.lang.lowering import ZERO
from mirage_nb.lang.masks import comparison, is_table, table, where
from mirage_nb.lang.subscripts import Subscripts

BITS: dict[type[ast.operator], Callable[..., int]] = {
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}  # fmt: skip
"""Of whole constants."""


class Operations(Subscripts, Loops):
    """Reads operators."""

    def combined(self, node: ast.expr, op: ast.operator, left: Result, right: Result) -> Result:
        """Arithmetic; sequences are joined with + and repeated with *."""
        left, right = (one[0] if isinstance(one, Extremes) else one for one in (left, right))
        if isinstance(left, tuple) and isinstance(right, tuple) and isinstance(op, ast.Add):
            return self.sequence(node, left + right)
        if isinstance(op, ast.Mult) and (isinstance(right, tuple) or isinstance(left, Infinity)):
            left, right = right, left
        if isinstance(op, ast.Mult) and isinstance(right, Infinity) and (found := self._infinite(node, left, right)):
            return found
        if isinstance(op, ast.Mult) and isinstance(left, tuple) and isinstance(right, Number) and right.integer:
            return self.sequence(node, left * min(max(right.integer, 0), MAX_STATEMENTS + 1))
        if type(op) in BITS and isinstance(left, Number) and isinstance(right, Number):
            whole = left.integer, right.integer
            if None not in whole and (0 <= (whole[1] or 0) <= MAX_BITS or not isinstance(op, ast.LShift | ast.RShift)):
                return Number.of(BITS[type(op)](*whole))
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node, node)
        if is_tensor(left) != is_tensor(right):  # numbers in [ ] beside a tensor, as in NumPy
            left, right = (
                self.lowered(side, "", table, one) if is_table(one) else one
                for side, one in zip(sides, (left, right), strict=True)
            )
        truths = isinstance(left, Truth) and isinstance(right, Truth)
        row = OPERATORS[ast.BitOr if truths and isinstance(op, ast.Add) else type(op)]
        if isinstance(left, Picked) or isinstance(right, Picked):
            return self.of_each(node, row, [left, right], sides)
        made = self.lowered(node, row.shape, row.lower, *map(self.term_of, (left, right), sides))
        if truths and isinstance(op, ast.MatMult):  # whether one of the products is true
            made = self.lowered(node, row.shape, comparison(ast.Gt), made, ZERO)
        kept = (ast.BitAnd, ast.BitOr, ast.BitXor, *((ast.Add, ast.Mult, ast.MatMult) if truths else ()))
        return true(made) if isinstance(op, kept) else plain(made)

    def _infinite(self, node: ast.expr, x: Result, infinity: Infinity) -> Result | None:
        """An infinity times a number, or times a tensor of one number; None of what may be 0."""
        held = self.builder.filled(x) if is_tensor(x) else x
        if not isinstance(held, Number) or held == ZERO:
            return None
        made = Infinity(infinity.sign * held.sign)
        if not is_tensor(x):
            return made
        nowhere = self.lowered(node, "", comparison(ast.Lt), x, held)
        return sequences.filled(self.builder, self.lowered(node, "", where, nowhere, x, made), made)

    def compared(self, node: ast.Compare) -> Result:
        """A comparison of tensors, or of what is known while the program is read."""
        results = [self.result(one) for one in (node.left, *node.comparators)]
        nodes = (node.left, *node.comparators)
        if any(map(is_tensor, results)) and len(node.ops) > 1:
            raise self.foreign(node)
        held = True
        for place, (op, (x, y)) in enumerate(zip(node.ops, itertools.pairwise(results), strict=True)):
            known = sequences.compared(op, x, y)
            if known is None and type(op) in OPERATORS:
                row = OPERATORS[type(op)]
                sides = zip((x, y), nodes[place:], strict=False)
                terms = (one if isinstance(one, Infinity) else self.term_of(one, at) for one, at in sides)
                made = self.lowered(node, row.shape, row.lower, *terms)
                if not isinstance(made, Number):
                    return true(made)
                known = sequences.truth(made)
            if known is None:
                raise self.foreign(node)
            held = held and known
        return Number.of(held)
