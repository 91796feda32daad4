"""Inputs that are indices: they are read only to be compared with the places of an axis.

In: a tensor program. Out: for each such input the extent of the axis. Invariant: whatever else reads an input, it is
no index; an index is drawn from the places (`reals.places`), for what lies beside them tells nothing of a kernel, and
so are lengths and bounds, which hide what lies before or behind them.
"""

from __future__ import annotations

from mirage_nb.ir import COMPARISONS, OPS, ApplyAttrs, KernelGraph, OpKind, Trait
from mirage_nb.ir.ops import ArangeAttrs, Attrs

EQUALS = "step(x) * step(-x)"
"""What comparisons are made of that ask for one place."""


def indices(program: KernelGraph) -> dict[str, int]:
    """The extents of the axes that inputs are indices of, the smallest one of each; by their names."""
    counts: dict[int, int] = {}
    sources: dict[int, str] = {n: i.name for n, i in enumerate(program.inputs) if i.type.shape}
    found: dict[str, int] = {}
    other: set[str] = set()
    compared = _compared(program)
    constants = {values[0] for op, values in program.definitions() if op.kind is OpKind.CONST}
    formulas = [(op.inputs[0], op.attrs.formula) for op in program.ops if isinstance(op.attrs, ApplyAttrs)]
    equal = {value for value, formula in formulas if EQUALS in formula}
    for op, values in program.definitions():
        (value,) = values if len(values) == 1 else (-1,)
        passes = Trait.VIEW in OPS[op.kind].traits or op.kind is OpKind.CAST
        held = [sources[v] for v in op.inputs if v in sources]
        if isinstance(op.attrs, ArangeAttrs):
            counts[value] = op.attrs.extent
        elif passes and len(op.inputs) == 1:
            (operand,) = op.inputs
            if operand in counts:
                counts[value] = counts[operand]
            if operand in sources:
                sources[value] = sources[operand]
        elif (value in compared or op.kind in COMPARISONS) and len(held) == 1 and len(op.inputs) == 2:
            (extent,) = [counts[v] for v in op.inputs if v in counts] or (0,)
            if extent:
                extent += value not in equal and op.kind is not OpKind.EQUAL  # a length may be that of all
                found[held[0]] = min(extent, found.get(held[0], extent))
            elif not constants & {*op.inputs}:  # as of a class that is left out, or of padding
                other.update(held)
        elif not compares(op.attrs):
            other.update(held)
    returned = {sources[v] for v in program.outputs if v in sources}
    return {name: extent for name, extent in found.items() if name not in other | returned}


def compared(program: KernelGraph) -> frozenset[str]:
    """Inputs that are read only to be compared, with each other or with anything else; by their names."""
    sources: dict[int, str] = {n: i.name for n, i in enumerate(program.inputs) if i.type.shape}
    found, other = set[str](), {sources[v] for v in program.outputs if v in sources}
    differences = _compared(program)
    for op, (value, *_) in program.definitions():
        held = {sources[v] for v in op.inputs if v in sources}
        if held and (Trait.VIEW in OPS[op.kind].traits or op.kind is OpKind.CAST) and len(op.inputs) == 1:
            sources[value] = min(held)
        elif value in differences or op.kind in COMPARISONS or compares(op.attrs):
            found |= held
        else:
            other |= held
    return frozenset(found - other)


def _compared(program: KernelGraph) -> set[int]:
    """Values that are read by comparisons with zero only."""
    read: dict[int, bool] = {}
    for op in program.ops:
        for v in op.inputs:
            read[v] = read.get(v, True) and compares(op.attrs)
    return {v for v, only in read.items() if only} - set(program.outputs)


def compares(attrs: Attrs | None) -> bool:
    """Whether a function knows of its argument only on which side of zero it is."""
    return isinstance(attrs, ApplyAttrs) and "x" not in attrs.formula.replace("step(x)", "").replace("step(-x)", "")
