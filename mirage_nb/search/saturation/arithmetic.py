"""Sums, differences, products and quotients of values, in the finite fields.

In: two values of a closure. Out: the residues of the result; None where a quotient divides by zero. Invariant: an
inverse is computed once for every value (paper section 5).
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from mirage_nb.ir import OpKind
from mirage_nb.search.saturation.fields import Array, P, Q, inverse, inverse_or_zero
from mirage_nb.search.saturation.values import Value

Elements = tuple[Array, Array | None, bool]
"""Residues modulo P, residues modulo Q (None: after an exponential), whether an exponential was taken."""


def _each(operation: Callable[[Array, Array], Array]) -> Callable[[Value, Value], Elements]:
    """An operation that every field has."""

    def made(a: Value, b: Value) -> Elements:
        q = None if a.q is None or b.q is None else operation(a.q, b.q) % Q
        return operation(a.p, b.p) % P, q, a.has_exp or b.has_exp

    return made


def _div(a: Value, b: Value) -> Elements | None:
    if b.inverse_p is None:
        b.inverse_p = inverse(b.p, P)
    if b.inverse_p is None:
        return None
    q = None
    if a.q is not None and b.q is not None:
        if b.inverse_q is None:
            b.inverse_q = inverse_or_zero(b.q, Q)
        q = a.q * b.inverse_q % Q
    return a.p * b.inverse_p % P, q, a.has_exp or b.has_exp


ARITHMETIC: dict[OpKind, Callable[[Value, Value], Elements | None]] = {
    OpKind.ADD: _each(operator.add),
    OpKind.SUB: _each(operator.sub),
    OpKind.MUL: _each(operator.mul),
    OpKind.DIV: _div,
}
