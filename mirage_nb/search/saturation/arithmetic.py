"""Sums, differences, products and quotients of values, in the finite fields.

In: two values of a closure. Out: the residues of the result; None where a quotient divides by zero. Invariant: an
inverse is computed once for every value (paper section 5).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mirage_nb.ir import OpKind
from mirage_nb.search.saturation.fields import Array, P, Q, inverse, inverse_or_zero
from mirage_nb.search.saturation.values import Value

Elements = tuple[Array, Array | None, bool]
"""Residues modulo P, residues modulo Q (None: after an exponential), whether an exponential was taken."""


def modulo_both(operation: Callable[..., Array], *values: Value) -> Elements:
    """An operation that every field has, which takes arrays and the prime: modulo Q, too, where all of them are known
    there."""
    q = [value.q for value in values if value.q is not None]
    of_q = operation(*q, Q) if len(q) == len(values) else None
    return operation(*(value.p for value in values), P), of_q, any(value.has_exp for value in values)


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
    OpKind.ADD: partial(modulo_both, lambda x, y, prime: (x + y) % prime),
    OpKind.SUB: partial(modulo_both, lambda x, y, prime: (x - y) % prime),
    OpKind.MUL: partial(modulo_both, lambda x, y, prime: x * y % prime),
    OpKind.DIV: _div,
}
