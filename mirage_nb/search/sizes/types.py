"""The element types of the steps of a kernel, and what tensor cores compute of it.

In: a kernel structure of a program. Out: one type per step, as `ir` gives them to the operators of its block graph.
"""

from __future__ import annotations

from functools import lru_cache, reduce

from mirage_nb.ir import HALVES, DType, OpKind, promote
from mirage_nb.search.axes import Prepared
from mirage_nb.search.sizes.anatomy import anatomy
from mirage_nb.search.structure import KernelStructure


@lru_cache(maxsize=1024)
def element_types(prepared: Prepared, kernel: KernelStructure) -> tuple[DType | None, ...]:
    """The type of every step; None of a constant, which takes that of its partner.

    Results of earlier kernels are f32 unless products take them as they are.
    """
    made, found = anatomy(prepared, kernel), list[DType | None]()
    values = prepared.graph.types
    widest = max((i.type.dtype for i in prepared.graph.inputs), key=lambda dtype: dtype.size)
    for index, step in enumerate(kernel.steps):
        if step.source is not None and step.source.kernel is None:
            found.append(values[prepared.tensors[step.source.index].input].dtype)
        elif step.source is not None:
            found.append(DType.F32 if made.partial[index] or made.wide[index] else widest)
        else:
            reads = step.reads[step.operator.kind is OpKind.WHERE :]  # a condition has no part in it
            typed = [dtype for r in reads if (dtype := found[r]) is not None]
            found.append(reduce(promote, typed) if typed else None)
    return tuple(found)


@lru_cache(maxsize=1024)
def cores(prepared: Prepared, kernel: KernelStructure) -> frozenset[int]:
    """The products that tensor cores compute."""
    types = element_types(prepared, kernel)
    products = ((i, step.reads) for i, step in enumerate(kernel.steps) if step.operator.kind is OpKind.MATMUL)
    return frozenset(i for i, (left, right) in products if types[left] is types[right] and types[left] in HALVES)


@lru_cache(maxsize=1024)
def factors(prepared: Prepared, kernel: KernelStructure) -> frozenset[int]:
    """What they multiply, seen through views: it keeps its 16 bits."""
    made, products, found = anatomy(prepared, kernel), cores(prepared, kernel), set[int]()
    for index in reversed(range(len(kernel.steps))):
        step = kernel.steps[index]
        if index in products or (index in found and made.views[index]):
            found.update(step.reads)
    return frozenset(found)
