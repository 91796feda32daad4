"""Tensors of one byte are read as they are stored: no kernel is there to widen them.

In: a tensor program. Out: the same one without casts of such tensors, and of views of them, where what reads them has
the same type without: `X @ f16(W)` reads W. Invariant: every other value has the type that it had, and the digits:
floats of one byte that are widened before they are multiplied are summed as wide ones are.
"""

from __future__ import annotations

from mirage_nb.ir import BYTES, OPS, CastAttrs, DType, KernelGraph, Op, OpKind, Trait
from mirage_nb.ir.rewrite import Rewrite
from mirage_nb.tile.instructions.precision import has_few_digits


def as_stored(program: KernelGraph) -> KernelGraph:
    """The program without such casts; itself, where it has none."""
    if not any(_widens(program, op) for op in program.ops):
        return program
    made, late = Rewrite(KernelGraph.start(*program.inputs)), dict[int, DType]()

    def widen(value: int) -> None:
        made.held[value] = made.add(Op(OpKind.CAST, (made.held[value],), CastAttrs(late.pop(value))))

    for op, (value, *_) in program.definitions():
        wanted, stored = program.types[value].dtype, {*op.inputs} & {*late}
        if _widens(program, op):
            made.held[value], late[value] = made.held[op.inputs[0]], wanted
            continue
        viewed = Trait.VIEW in OPS[op.kind].traits and op.kind is not OpKind.CAST
        alike = {(late.get(v), made.graph.types[made.held[v]].dtype) for v in op.inputs}
        if stored and not (viewed and len(alike) == 1):
            there = KernelGraph.append(made.graph, Op(op.kind, made.places(op.inputs), op.attrs))
            few = has_few_digits(op.kind, (there.types[v].dtype for v in there.ops[-1].inputs))
            for v in stored if there.types[-1].dtype is not wanted or few else ():
                widen(v)
        made.copy(op, (value,))
        if made.graph.types[made.held[value]].dtype is not wanted:
            late[value] = wanted
    for value in {*program.outputs} & {*late}:
        widen(value)
    return made.returning(program)


def _widens(program: KernelGraph, op: Op) -> bool:
    return op.kind is OpKind.CAST and program.types[op.inputs[0]].dtype in BYTES
