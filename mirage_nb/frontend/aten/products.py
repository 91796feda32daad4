"""ATen's products: mm, bmm, matmul, linear, addmm and einsum.

In: an `At` and the arguments of a node. Out: a term. Invariant: every product is one Matmul of the last two axes,
with transposes where the operands lie otherwise, and reshapes only where several axes are contracted or kept at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirage_nb.frontend.aten.borrowed import borrowed
from mirage_nb.frontend.aten.terms import At, Left, Row, full, narrowest, number
from mirage_nb.lang import lowering, views
from mirage_nb.lang.builder import Builder, Term, Value


def product(b: Builder, x: Value, y: Value) -> Value:
    """x @ y over the last two axes; leading axes broadcast by themselves."""
    return b.tensor(lowering.matmul(b, slim(b, x), slim(b, y)), "@")


def slim(b: Builder, x: Value) -> Value:
    """x without what was repeated along its leading axes; these broadcast, the last two do not."""
    slim = narrowest(b, x)
    return slim if b.shape(slim)[-2:] == b.shape(x)[-2:] else x


def transposed(b: Builder, x: Value) -> Value:
    """The last two axes swapped."""
    return b.tensor(views.swap_last(b, x), ".T")


def _mm(at: At, x: Any, y: Any) -> Term:
    return full(at.b, product(at.b, at.tensor(x), at.tensor(y)), at.shape)


def _plus(at: At, bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Term:
    """addmm, baddbmm and addmv: beta * bias + alpha * x @ y."""
    made = lowering.multiply(at.b, _matmul(at, x, y), number(alpha))
    return lowering.add(at.b, made, lowering.multiply(at.b, at.term(bias), number(beta)))


def _trilinear(at: At, x: Any, y: Any, z: Any, *placed: Sequence[int]) -> Term:
    """The product of three tensors, each without some axes of all, summed along some: of a bilinear layer."""
    *absent, summed = (set(axes) for axes in placed[:4])
    letters = [*enumerate("abcdefgh"[: len(at.b.shape(at.tensor(x))) + len(absent[0])])]
    given = ("".join(letter for axis, letter in letters if axis not in axes) for axes in absent)
    kept = "".join(letter for axis, letter in letters if axis not in summed)
    return borrowed("einsum")(at, f"{','.join(given)}->{kept}", x, y, z)


def _linear(at: At, x: Any, weight: Any, bias: Any = None) -> Term:
    matrix = at.tensor(weight)
    if len(at.b.shape(matrix)) != 2:
        raise Left("a linear layer of one output")
    made = _matrix(at, at.tensor(x), transposed(at.b, matrix))
    return made if bias is None else lowering.add(at.b, made, at.term(bias))


def _matmul(at: At, x: Any, y: Any) -> Term:
    return _matrix(at, at.tensor(x), at.tensor(y))


def _matrix(at: At, x: Value, y: Value) -> Value:
    """x @ y as NumPy has it: vectors are rows on the left and columns on the right."""
    left, right = at.b.shape(x), at.b.shape(y)
    if len(left) == 1:
        x = views.reshaped(at.b, x, (1, *left))
    if len(right) == 1:
        y = views.reshaped(at.b, y, (*right, 1))
    made = product(at.b, x, y)
    return views.reshaped(at.b, made, at.shape) if 1 in (len(left), len(right)) else full(at.b, made, at.shape)


ROWS: dict[str, Row] = {
    "aten.mm.default": _mm,
    "aten.bmm.default": _mm,
    "aten.matmul.default": _matmul,
    "aten.mv.default": _matmul,
    "aten.dot.default": _matmul,
    "aten.linear.default": _linear,
    "aten.addmm.default": _plus,
    "aten.baddbmm.default": _plus,
    "aten.addbmm.default": borrowed("addbmm"),
    "aten.addmv.default": _plus,
    "aten._trilinear.default": _trilinear,
    "aten.einsum.default": lambda at, equation, tensors, **_: borrowed("einsum")(at, equation, *tensors),
}
