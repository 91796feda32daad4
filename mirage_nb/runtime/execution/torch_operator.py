"""A muGraph as an operator of PyTorch: `torch.library` knows its schema, its shapes and its kernels.

In: the tensor program, what runs it on CPU tensors and on CUDA tensors. Out: a custom operator, callable and
present as `torch.ops.<namespace>.<name>`. torch.compile takes it whole: it sees the shapes of the outputs and
does not look inside. Invariant: outputs are new tensors, inputs are not changed; kernels are enqueued on torch's
current stream. There is no derivative: the operator is for inference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from mirage_nb.errors import MissingPartError, OptionError
from mirage_nb.ir import KernelGraph
from mirage_nb.ir.sizes import extent_of, sized
from mirage_nb.runtime.execution.buffers import check_count, check_shape
from mirage_nb.runtime.execution.torch_program import check_dtype, torch_dtype

NAMESPACE = "mirage_nb"
Run = Callable[..., Any]
"""Takes the inputs in order, returns one tensor or a tuple of them."""


def torch_operator(program: KernelGraph, name: str, *, on_cpu: Run, on_cuda: Run) -> Any:
    """Register an operator. The same name again replaces the operator that had it.

    Args:
        program: names and types of inputs and outputs.
        name: `name`, or `namespace::name`; the namespace is `mirage_nb` by default.
        on_cpu, on_cuda: run it, by the device of the first tensor.

    Returns:
        The operator: call it with torch tensors in input order, or by name.

    Raises:
        OptionError: a name that torch does not take.
        MissingPartError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingPartError(f"operators of PyTorch need PyTorch: {error}", hint="pip install torch") from error
    qualified = name if "::" in name else f"{NAMESPACE}::{name}"
    if not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", qualified, re.ASCII):
        raise OptionError(f"{name!r} is no name for an operator", hint="letters, digits and _, or namespace::name")

    def run(*tensors: Any) -> Any:
        return (on_cuda if tensors[0].is_cuda else on_cpu)(*tensors)

    schema = schema_of([i.name for i in program.inputs], len(program.outputs))
    operator = torch.library.custom_op(qualified, run, mutates_args=(), schema=schema)
    operator.register_fake(fake_of(program, torch))
    return operator


def fake_of(program: KernelGraph, torch: Any) -> Run:
    """What tells torch's compiler the shapes and types of the outputs, from tensors without elements. It raises
    ShapeError and DTypeError where those do not fit."""
    types, where = program.output_types, sized(program)

    def fake(*tensors: Any) -> Any:
        check_count(tensors, program.inputs)
        extent = extent_of(program.inputs, [t.shape for t in tensors])
        for tensor, into in zip(tensors, program.inputs, strict=True):
            if into.size is None:
                check_shape(tensor.shape, into)
            check_dtype(tensor, into)
        pairs = zip(program.outputs, types, strict=True)
        shapes = [t.shape if where is None or extent is None else where.shape(v, t, extent) for v, t in pairs]
        made = tuple(
            tensors[0].new_empty(shape, dtype=torch_dtype(torch, t.dtype))
            for shape, t in zip(shapes, types, strict=True)
        )
        return made[0] if len(made) == 1 else made

    return fake


def schema_of(inputs: Sequence[str], outputs: int) -> str:
    """The schema of an operator, as torch writes them; inputs that it could not read are numbered."""
    good = all(re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) for name in inputs)
    names = inputs if good else [f"input{n}" for n in range(len(inputs))]
    returned = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    return f"({', '.join(f'Tensor {name}' for name in names)}) -> {returned}"
