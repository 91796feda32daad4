"""A tensor program as a PyTorch function: the float64 reference on the GPU, and the eager baseline.

In: a kernel graph of pre-defined operators. Out: a function of tensors, in the order of the graph's
inputs, on whatever device and dtype they come in. One table, keyed like the operator table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from mirage_nb.errors import DTypeError, GraphError
from mirage_nb.ir import (
    ApplyAttrs,
    ArangeAttrs,
    CastAttrs,
    ClampAttrs,
    ConstAttrs,
    DimAttrs,
    DType,
    Input,
    KernelGraph,
    Op,
    OpKind,
    PadAttrs,
    PowAttrs,
    RepeatAttrs,
    ReshapeAttrs,
    SliceAttrs,
    TransposeAttrs,
    WhereAttrs,
    formula,
)
from mirage_nb.ir.sizes import open_reshapes
from mirage_nb.runtime.execution.buffers import CAST

TORCH_DTYPE: dict[DType, str] = {
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F32: "float32",
    DType.F64: "float64",
}
"""The names of the element types in torch."""

Rule = Callable[[Any, Op, "tuple[Any, ...]"], Any]
"""Takes the torch module, the operator and its operands; scalars are Python floats."""


def _dim(op: Op) -> int:
    assert isinstance(op.attrs, DimAttrs)
    return op.attrs.dim


def _const(torch: Any, op: Op, args: tuple[Any, ...]) -> float:
    assert isinstance(op.attrs, ConstAttrs)
    return float(op.attrs.value)


def _rescaled_sum(torch: Any, op: Op, args: tuple[Any, ...]) -> Any:
    x, m = torch.broadcast_tensors(*args)
    dim = x.ndim - args[0].ndim + _dim(op)
    fall = m - m.amax(dim, keepdim=True)
    return torch.where(fall == -torch.inf, 0, x * torch.exp(fall)).sum(dim, keepdim=True)


def _clamp(torch: Any, op: Op, args: tuple[Any, ...]) -> Any:
    assert isinstance(op.attrs, ClampAttrs)
    low, high = (None if limit is None else float(limit) for limit in (op.attrs.low, op.attrs.high))
    return args[0] if low is None and high is None else torch.clamp(args[0], low, high)


def _pow(torch: Any, op: Op, args: tuple[Any, ...]) -> Any:
    assert isinstance(op.attrs, PowAttrs)
    return args[0] ** float(op.attrs.exponent)


def _repeat(torch: Any, op: Op, args: tuple[Any, ...]) -> Any:
    assert isinstance(op.attrs, RepeatAttrs)
    return torch.cat([args[0]] * op.attrs.times, op.attrs.dim)


def _apply(torch: Any, op: Op, args: tuple[Any, ...]) -> Any:
    """PyTorch has every primitive of formulas under its own name, but for the step."""
    assert isinstance(op.attrs, ApplyAttrs)
    x = args[0]
    rows = {name: getattr(torch, name) for name in formula.PRIMITIVES - {"step"}}
    rows["step"] = lambda value: (value >= 0).to(x.dtype)
    rows["pow"] = lambda base, exponent: torch.pow(base, float(exponent))
    return formula.fold(
        formula.read(op.attrs.formula),
        x,
        lambda value: torch.full((), float(value), dtype=x.dtype, device=x.device),
        rows,
    )


def _reshape(torch: Any, op: Op, args: tuple[Any, ...]) -> Any:
    assert isinstance(op.attrs, ReshapeAttrs)
    return args[0].reshape(op.attrs.shape)


def _transpose(torch: Any, op: Op, args: tuple[Any, ...]) -> Any:
    assert isinstance(op.attrs, TransposeAttrs)
    return args[0].permute(op.attrs.perm)


def _slice(torch: Any, op: Op, args: tuple[Any, ...]) -> Any:
    """PyTorch takes no negative steps: those elements are taken in turn and flipped."""
    assert isinstance(op.attrs, SliceAttrs)
    dim, last = op.attrs.dim, op.attrs.start + (op.attrs.extent - 1) * op.attrs.step
    part = slice(min(op.attrs.start, last), max(op.attrs.start, last) + 1, abs(op.attrs.step))
    taken = args[0][(slice(None),) * dim + (part,)]
    return torch.flip(taken, (dim,)) if op.attrs.step < 0 else taken


def _cast(torch: Any, op: Op, args: tuple[Any, ...]) -> Any:
    assert isinstance(op.attrs, CastAttrs)
    return args[0].to(torch_dtype(torch, op.attrs.dtype))


def _pad(torch: Any, op: Op, args: tuple[Any, ...]) -> Any:
    assert isinstance(op.attrs, PadAttrs)
    behind = args[0].ndim - 1 - op.attrs.dim
    return torch.nn.functional.pad(args[0], (0, 0) * behind + (op.attrs.before, op.attrs.after))


def _arange(torch: Any, op: Op, args: tuple[Any, ...]) -> Any:
    """On the device of the first input, which is what stands for operands."""
    assert isinstance(op.attrs, ArangeAttrs)
    return torch.arange(op.attrs.extent, dtype=torch_dtype(torch, op.attrs.dtype), device=args[0] if args else None)


def _where(torch: Any, op: Op, args: tuple[Any, ...]) -> Any:
    assert isinstance(op.attrs, WhereAttrs)
    return torch.where(args[0] != 0, args[1], op.attrs.value)


TORCH: dict[OpKind, Rule] = {
    OpKind.CONST: _const,
    OpKind.MATMUL: lambda torch, op, a: a[0] @ a[1],
    OpKind.CONCAT_MATMUL: lambda torch, op, a: a[0] @ a[2] + a[1] @ a[3],
    OpKind.SUM: lambda torch, op, a: a[0].sum(_dim(op), keepdim=True),
    OpKind.MAX: lambda torch, op, a: a[0].amax(_dim(op), keepdim=True),
    OpKind.RESCALED_SUM: _rescaled_sum,
    OpKind.ADD: lambda torch, op, a: a[0] + a[1],
    OpKind.SUB: lambda torch, op, a: a[0] - a[1],
    OpKind.MUL: lambda torch, op, a: a[0] * a[1],
    OpKind.DIV: lambda torch, op, a: a[0] / a[1],
    OpKind.EXP: lambda torch, op, a: torch.exp(a[0]),
    OpKind.SQR: lambda torch, op, a: a[0] * a[0],
    OpKind.SQRT: lambda torch, op, a: torch.sqrt(a[0]),
    OpKind.SILU: lambda torch, op, a: torch.nn.functional.silu(a[0]),
    OpKind.GELU: lambda torch, op, a: torch.nn.functional.gelu(a[0]),
    OpKind.SIGMOID: lambda torch, op, a: torch.sigmoid(a[0]),
    OpKind.RELU: lambda torch, op, a: torch.relu(a[0]),
    OpKind.CLAMP: _clamp,
    OpKind.ARANGE: _arange,
    OpKind.WHERE: _where,
    OpKind.MAXIMUM: lambda torch, op, a: torch.maximum(a[0], a[1]),
    OpKind.CAST: _cast,
    OpKind.POW: _pow,
    OpKind.APPLY: _apply,
    OpKind.REPEAT: _repeat,
    OpKind.RESHAPE: _reshape,
    OpKind.TRANSPOSE: _transpose,
    OpKind.CONCAT: lambda torch, op, a: torch.cat(a, _dim(op)),
    OpKind.SLICE: _slice,
    OpKind.PAD: _pad,
}


ARITHMETIC = frozenset({OpKind.ADD, OpKind.SUB, OpKind.MUL, OpKind.DIV})
"""The operators that take a Python float beside a tensor."""


def torch_dtype(torch: Any, dtype: DType) -> Any:
    """The dtype object of the imported module `torch`."""
    return getattr(torch, TORCH_DTYPE[dtype])


def is_torch(tensor: Any) -> bool:
    """Whether this is a torch tensor, without importing torch."""
    return hasattr(tensor, "data_ptr")


def check_dtype(tensor: Any, into: Input) -> None:
    """Raises DTypeError when a torch tensor has another dtype than the program says."""
    wanted = f"torch.{TORCH_DTYPE[into.type.dtype]}"
    if str(tensor.dtype) != wanted:
        said = f"{into.name} has dtype {tensor.dtype}, the program says {wanted}"
        raise DTypeError(said, hint=f"{into.name}.to({wanted}) converts it, {CAST}")


def as_torch(graph: KernelGraph, torch: Any, *, exact: bool = False) -> Callable[..., tuple[Any, ...]]:
    """A function of the graph's inputs that returns its outputs, as one traced graph that torch.compile takes whole.

    Scalars are Python floats, so that they do not change the dtype of what they meet. Of a program with a size that is
    known at launch it takes inputs of any extent.

    Args:
        graph: a tensor program.
        torch: the imported module.
        exact: whether it is to be called with tensors of float64, and shall stay there: casts round nothing.

    Raises:
        GraphError: the graph has graph-defined operators.
    """
    traced = torch.fx.Graph()
    tracer = torch.fx.proxy.GraphAppendingTracer(traced)
    values: dict[int, Any] = {
        i: torch.fx.Proxy(traced.placeholder(f"input{i}"), tracer) for i in range(graph.input_count)
    }
    scalars: dict[int, float] = {}
    for op, (result, *_) in open_reshapes(graph).definitions():
        rule = TORCH.get(op.kind)
        if rule is None:
            raise GraphError(f"{op.kind.value} has no PyTorch form: a tensor program is made of pre-defined operators")
        if not graph.types[result].shape and all(v in scalars for v in op.inputs):
            operands = tuple(torch.tensor(scalars[v], dtype=torch.float64) for v in op.inputs)
            scalars[result] = float(rule(torch, op, operands))
            continue
        operands = tuple(scalars[v] if v in scalars else values[v] for v in op.inputs)
        if exact and op.kind is OpKind.CAST:
            values[result] = values[op.inputs[0]]
            continue
        if exact and isinstance(op.attrs, ArangeAttrs):
            op = replace(op, attrs=replace(op.attrs, dtype=DType.F64))
        if op.kind is OpKind.ARANGE:
            operands = tuple(values[v].device for v in values if v == 0)
        if op.kind not in ARITHMETIC:
            operands = tuple(values[0].new_tensor(x) if isinstance(x, float) else x for x in operands)
        values[result] = rule(torch, op, operands)
    outputs = (values[0].new_tensor(scalars[v]) if v in scalars else values[v] for v in graph.outputs)
    traced.output(tuple(out.node for out in outputs))
    return cast(Callable[..., tuple[Any, ...]], torch.fx.GraphModule({}, traced))
