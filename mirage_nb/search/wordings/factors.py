"""Numbers stand behind products: what multiplies an operand by one multiplies the result, and nothing is prepared.

In: a tensor program. Out: the same one in which products of what is a number times a tensor, or over one, are that
number times products of the tensor. Invariant: over the real numbers the program stays what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from mirage_nb.ir import ConstAttrs, KernelGraph, Op, OpKind
from mirage_nb.ir.rewrite import Rewrite, saying
from mirage_nb.predefined.reading import Reading


def scaled(program: KernelGraph) -> dict[int, tuple[int, ...]]:
    """Such products: for each the tensors."""
    return {value: inputs for value, (inputs, _) in _found(program).items()}


def behind(program: KernelGraph) -> KernelGraph:
    """The program with these numbers behind the products."""
    found = _found(program)

    def said(made: Rewrite[KernelGraph], value: int, op: Op) -> int:
        inputs, factor = found[value]
        product = made.add(Op(OpKind.MATMUL, made.places(inputs)))
        return made.add(Op(OpKind.MUL, (product, made.add(Op(OpKind.CONST, (), ConstAttrs(factor))))))

    return saying(program, found, said)


def _found(program: KernelGraph) -> Mapping[int, tuple[tuple[int, ...], Fraction]]:
    """Such products, with the tensors, in the types in which they were multiplied, and the number."""
    reading, types = Reading(program), program.types
    found: dict[int, tuple[tuple[int, ...], Fraction]] = {}
    for op, (value, *_) in program.definitions():
        if op.kind is not OpKind.MATMUL:
            continue
        sides = [(v, reading.scaled(v) or (v, Fraction(1))) for v in op.inputs]
        kept = [side if types[side[0]] == types[v] else (v, Fraction(1)) for v, side in sides]
        if any(number != 1 for _, number in kept):
            found[value] = tuple(v for v, _ in kept), kept[0][1] * kept[1][1]
    return found
