"""ATen's products: mm, bmm, matmul, linear, addmm and einsum.

In: an `At` and the arguments of a node. Out: a term. Invariant: every product is one Matmul of the last two axes,
with transposes where the operands lie otherwise, and reshapes only where several axes are contracted or kept at once.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Any

from mirage_nb.frontend.aten.folds import folded
from mirage_nb.frontend.aten.terms import At, Left, Row, full, narrowest, number
from mirage_nb.ir.ops import OpKind
from mirage_nb.lang import lowering
from mirage_nb.lang.builder import Builder, Term, Value


def product(b: Builder, x: Value, y: Value) -> Value:
    """x @ y over the last two axes; leading axes broadcast by themselves."""
    return b.tensor(lowering.matmul(b, _slim(b, x), _slim(b, y)), "@")


def _slim(b: Builder, x: Value) -> Value:
    """x without what was repeated along its leading axes; these broadcast, the last two do not."""
    slim = narrowest(b, x)
    return slim if b.shape(slim)[-2:] == b.shape(x)[-2:] else x


def transposed(b: Builder, x: Value) -> Value:
    """The last two axes swapped."""
    return b.tensor(lowering.swap_last(b, x), ".T")


def _mm(at: At, x: Any, y: Any) -> Term:
    return full(at.b, product(at.b, at.tensor(x), at.tensor(y)), at.shape)


def _plus(at: At, bias: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> Term:
    """addmm and baddbmm: beta * bias + alpha * x @ y."""
    made = lowering.multiply(at.b, product(at.b, at.tensor(x), at.tensor(y)), number(alpha))
    return lowering.add(at.b, made, lowering.multiply(at.b, at.term(bias), number(beta)))


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
        x = lowering.reshaped(at.b, x, (1, *left))
    if len(right) == 1:
        y = lowering.reshaped(at.b, y, (*right, 1))
    made = product(at.b, x, y)
    return lowering.reshaped(at.b, made, at.shape) if 1 in (len(left), len(right)) else full(at.b, made, at.shape)


def _einsum(at: At, equation: str, operands: Sequence[Any], **_: Any) -> Term:
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    labels = inputs.split(",")
    if "." in equation or any(len(set(names)) < len(names) for names in (*labels, output)):
        raise Left("an einsum with an ellipsis or a diagonal")
    if not arrow:
        every = "".join(labels)
        output = "".join(sorted(name for name in set(every) if every.count(name) == 1))
    tensors = [at.tensor(x) for x in operands]
    held, names = tensors[0], labels[0]
    for count, (other, theirs) in enumerate(zip(tensors[1:], labels[1:], strict=True), start=2):
        wanted = set(output).union(*labels[count:])
        held, names = _contract(at.b, (held, names), (other, theirs), wanted)
    held, names = _summed(at.b, held, names, set(output))
    held = at.b.tensor(lowering.transpose(at.b, held, tuple(map(names.index, output))), "einsum") if output else held
    return lowering.reshaped(at.b, held, at.shape)


def _summed(b: Builder, x: Value, names: str, wanted: set[str]) -> tuple[Value, str]:
    """The sum over all axes that nobody wants."""
    gone = tuple(axis for axis, name in enumerate(names) if name not in wanted)
    if not gone:
        return x, names
    kept = "".join(name for name in names if name in wanted)
    left = tuple(e for axis, e in enumerate(b.shape(x)) if axis not in gone) or (1,)
    return lowering.reshaped(b, folded(b, OpKind.SUM, x, gone), left), kept


def _contract(b: Builder, x: tuple[Value, str], y: tuple[Value, str], wanted: set[str]) -> tuple[Value, str]:
    """One product of two tensors with named axes: summed over the names that both have and nobody wants."""
    left, ours = _summed(b, *x, wanted | set(y[1]))
    right, theirs = _summed(b, *y, wanted | set(ours))
    extent = dict(zip(ours + theirs, b.shape(left) + b.shape(right), strict=True))
    both = [name for name in ours if name in theirs]
    batch = [name for name in both if name in wanted]
    inner = [name for name in both if name not in wanted]
    rows = [name for name in ours if name not in theirs]
    columns = [name for name in theirs if name not in ours]

    def matrix(value: Value, names: str, first: list[str], second: list[str]) -> Value:
        order = [*batch, *first, *second]
        moved = b.tensor(lowering.transpose(b, value, tuple(map(names.index, order))), "einsum") if order else value
        sizes = (math.prod(extent[n] for n in first), math.prod(extent[n] for n in second))
        return lowering.reshaped(b, moved, (*(extent[n] for n in batch), *sizes))

    if len(theirs) == len([*batch, *columns, *inner]) and theirs == "".join([*batch, *columns, *inner]):
        right_matrix = transposed(b, matrix(right, theirs, columns, inner))  # Q @ K.T reads like it
    else:
        right_matrix = matrix(right, theirs, inner, columns)
    made = product(b, matrix(left, ours, rows, inner), right_matrix)
    names = "".join([*batch, *rows, *columns])
    assert set(names) <= set(string.ascii_letters)  # what an equation is made of
    return lowering.reshaped(b, made, tuple(extent[n] for n in names) or (1,)), names


ROWS: dict[str, Row] = {
    "aten.mm.default": _mm,
    "aten.bmm.default": _mm,
    "aten.matmul.default": _matmul,
    "aten.mv.default": _matmul,
    "aten.dot.default": _matmul,
    "aten.linear.default": _linear,
    "aten.addmm.default": _plus,
    "aten.baddbmm.default": _plus,
    "aten.einsum.default": _einsum,
}
