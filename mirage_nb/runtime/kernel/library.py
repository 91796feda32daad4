"""Pre-defined operators between kernels, on a GPU: products of matrices by cuBLAS, several operators at once by a
library's kernels (`kernel_rows`), everything else by PyTorch's, or by CuPy where there is no PyTorch.

Copied into every file that saves a muGraph (see `saved`), so it imports nothing of this package but what is
copied with it. In: operators of a plan, addresses of their tensors. Out: a function that enqueues them on a stream.
Invariants: a result goes where it is wanted without a copy, wherever a library has a kernel that is told so; what the
kernels need on the way is allocated by the first run and kept, so that a CUDA graph that has captured a call may be
replayed on any stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mirage_nb.runtime.kernel.operators import OPERATORS, STORED, decode, encode
from mirage_nb.runtime.kernel.plan import Apply, KernelError, Tensor
from mirage_nb.runtime.kernel.products import Ending, Places, matrix_product, product_call
from mirage_nb.runtime.kernel.pytorch import BY_TORCH, Go, enqueued, go_of, torch_on, torch_view
from mirage_nb.runtime.kernel.rows import LAUNCHES
from mirage_nb.runtime.kernel.streams import Enqueue, in_turn, working_on

PRODUCTS = {"Matmul": ((0, 1),), "ConcatMatmul": ((0, 2), (1, 3))}
"""Operators that are sums of products of matrices: which operands."""


def library_call(steps: Sequence[Apply], tensors: Sequence[Tensor], address: Sequence[int], device: int) -> Enqueue:
    """Operators, one after the other, on tensors that begin at these addresses of `device`; computed in float32 at
    least. Those that PyTorch computes are enqueued together wherever they stand together.

    Raises:
        KernelError: there is no cuBLAS, or no PyTorch, for a step that needs it. The returned function: the card
            refuses.
    """
    calls: list[Enqueue] = []
    goes: list[Go] = []
    torch = torch_on(device)

    def together() -> None:
        if goes:
            calls.append(enqueued(torch, [*goes], device))
            goes.clear()

    for step in steps:
        used = (*step.inputs, step.output)
        mine, places = [tensors[n] for n in used], [address[n] for n in used]
        product = _product(step, mine, places, device)
        if product is None and torch is not None:
            goes.append(_by_torch(torch, step, mine, places, device))
            continue
        together()
        calls.append(product or _by_cupy(step, mine, places, device))
    together()
    return in_turn(calls)


def _product(step: Apply, tensors: Sequence[Tensor], address: Sequence[int], device: int) -> Enqueue | None:
    """A step that is one product of matrices by cuBLAS, or a sum of them; None for any other."""
    attrs, shapes, dtype = step.attrs, [t.shape for t in tensors], tensors[-1].dtype
    if step.operator == "linear" and attrs["by"] == "cublas":
        found = matrix_product((*shapes[:2], shapes[-1]), bool(attrs["left"]), bool(attrs["right"]))
        if found is None:
            raise KernelError(f"no one product of matrices: {shapes}")
        ending = Ending(bool(attrs["bias"]), bool(attrs["added"]), bool(attrs["relu"]))
        third = address[2] if len(address) == 4 else 0
        bias, added = (third if ending.bias else 0), (third if ending.added else 0)
        places = Places(address[0], address[1], address[-1], bias, added)
        return product_call(found, dtype, ending, places, device)
    if step.operator not in PRODUCTS or step.scalars or len({t.dtype for t in tensors}) > 1:
        return None
    calls: list[Enqueue] = []
    for first, second in PRODUCTS[step.operator]:
        part = matrix_product((shapes[first], shapes[second], shapes[-1]))
        if part is None:
            return None
        places = Places(address[first], address[second], address[-1])
        calls.append(product_call(part, dtype, Ending(added=bool(calls)), places, device))
    return in_turn(calls)


def _by_torch(torch: Any, step: Apply, tensors: Sequence[Tensor], address: Sequence[int], device: int) -> Go:
    by = step.attrs.get("by")
    rule = BY_TORCH[step.operator] if by is None else LAUNCHES[step.operator, by]
    *operands, result = (torch_view(torch, t, start, device) for t, start in zip(tensors, address, strict=True))
    return go_of(torch, rule, step, operands, result)


def _by_cupy(step: Apply, tensors: Sequence[Tensor], address: Sequence[int], device: int) -> Enqueue:
    if step.operator not in OPERATORS:
        raise KernelError(f"{step.operator} by {step.attrs['by']} needs PyTorch that sees the GPU")
    import cupy

    def view(tensor: Tensor, start: int) -> Any:
        memory = cupy.cuda.UnownedMemory(start, tensor.nbytes, None, device)
        return cupy.ndarray(tensor.shape, STORED[tensor.dtype], cupy.cuda.MemoryPointer(memory, 0))

    *operands, output = (view(tensor, start) for tensor, start in zip(tensors, address, strict=True))
    *dtypes, stored = (tensor.dtype for tensor in tensors)
    temporaries = Temporaries(cupy.cuda.MemoryPool().malloc)

    def enqueue(stream: int) -> None:
        with working_on(device, stream), cupy.cuda.using_allocator(temporaries.malloc):
            temporaries.rewind()
            wide: list[Any] = [
                a if dtype == "f64" else decode(a, dtype, "float32") for a, dtype in zip(operands, dtypes, strict=True)
            ]
            for position, value in step.scalars:
                wide.insert(position, value)
            found = OPERATORS[step.operator](cupy, step.attrs, *wide)
            output[...] = encode(found, stored, cupy)

    return enqueue


class Temporaries:
    """Memory for what an operator needs while it runs: the first run allocates it, all later ones get the same
    blocks in the same order.

    Args:
        allocate: takes bytes, returns memory as CuPy has it.
    """

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self._allocate = allocate
        self._blocks: list[tuple[int, Any]] = []
        self._next = 0

    def rewind(self) -> None:
        """A run begins."""
        self._next = 0

    def malloc(self, nbytes: int) -> Any:
        """The next block; allocated anew if there is none yet, or too small a one."""
        place, self._next = self._next, self._next + 1
        if place == len(self._blocks):
            self._blocks.append((nbytes, self._allocate(nbytes)))
        elif self._blocks[place][0] < nbytes:
            self._blocks[place] = (nbytes, self._allocate(nbytes))
        return self._blocks[place][1]
