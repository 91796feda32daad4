"""A tensor program as a PyTorch function: the float64 reference on the GPU, and the eager baseline.

In: a kernel graph of pre-defined operators. Out: a function of tensors, in the order of the graph's
inputs, on whatever device and dtype they come in. One table, keyed like the operator table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from mirage_nb.errors import DTypeError, GraphError
from mirage_nb.ir import BYTES, ArangeAttrs, DType, Input, KernelGraph, OpKind, formula
from mirage_nb.ir.sizes import open_reshapes
from mirage_nb.runtime.execution.buffers import CAST

TORCH_DTYPE: dict[DType, str] = {
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F32: "float32",
    DType.F64: "float64",
    DType.I8: "int8",
    DType.U8: "uint8",
    DType.BOOL: "bool",
    DType.E4M3: "float8_e4m3fn",
    DType.E5M2: "float8_e5m2",
}
"""The names of the element types in torch."""

Rule = Callable[[Any, Any, "tuple[Any, ...]"], Any]
"""Takes the torch module, the operator's attributes and its operands; scalars are Python floats."""


def _rescaled_sum(torch: Any, attrs: Any, args: tuple[Any, ...]) -> Any:
    x, m = torch.broadcast_tensors(*args)
    dim = x.ndim - args[0].ndim + attrs.dim
    fall = m - m.amax(dim, keepdim=True)
    return torch.where(fall == -torch.inf, 0, x * torch.exp(fall)).sum(dim, keepdim=True)


def _clamp(torch: Any, attrs: Any, args: tuple[Any, ...]) -> Any:
    low, high = (None if limit is None else float(limit) for limit in (attrs.low, attrs.high))
    return args[0] if low is None and high is None else torch.clamp(args[0], low, high)


def _apply(torch: Any, attrs: Any, args: tuple[Any, ...]) -> Any:
    """PyTorch has every primitive of formulas under its own name, but for the step."""
    x = args[0]
    rows = {name: getattr(torch, name) for name in formula.PRIMITIVES - {"step"}}
    rows["step"] = lambda value: (value >= 0).to(x.dtype)
    rows["pow"] = lambda base, exponent: torch.pow(base, float(exponent))
    return formula.fold(
        formula.read(attrs.formula), x, lambda value: torch.full((), float(value), dtype=x.dtype, device=x.device), rows
    )


def _wider(torch: Any, args: tuple[Any, ...]) -> Any:
    return torch.result_type(*args)


def _slice(torch: Any, attrs: Any, args: tuple[Any, ...]) -> Any:
    """PyTorch takes no negative steps: those elements are taken in turn and flipped."""
    last = attrs.start + (attrs.extent - 1) * attrs.step
    part = slice(min(attrs.start, last), max(attrs.start, last) + 1, abs(attrs.step))
    taken = args[0][(slice(None),) * attrs.dim + (part,)]
    return torch.flip(taken, (attrs.dim,)) if attrs.step < 0 else taken


def _pad(torch: Any, attrs: Any, args: tuple[Any, ...]) -> Any:
    behind = args[0].ndim - 1 - attrs.dim
    return torch.nn.functional.pad(args[0], (0, 0) * behind + (attrs.before, attrs.after))


def _running_sum(torch: Any, attrs: Any, args: tuple[Any, ...]) -> Any:
    (x,), dims = args, (attrs.dim,)
    found = torch.cumsum(torch.flip(x, dims) if attrs.backward else x, attrs.dim)
    if attrs.exclusive:
        first = torch.arange(x.shape[attrs.dim], device=x.device).reshape(-1, *(1,) * (x.ndim - attrs.dim - 1)) == 0
        found = torch.where(first, 0, torch.roll(found, 1, attrs.dim))
    return torch.flip(found, dims) if attrs.backward else found


def _arange(torch: Any, attrs: Any, args: tuple[Any, ...]) -> Any:
    """On the device of the first input, which is what stands for operands."""
    return torch.arange(attrs.extent, dtype=torch_dtype(torch, attrs.dtype), device=args[0] if args else None)


TORCH: dict[OpKind, Rule] = {
    OpKind.CONST: lambda torch, attrs, a: float(attrs.value),
    OpKind.MATMUL: lambda torch, attrs, a: a[0] @ a[1],
    OpKind.CONCAT_MATMUL: lambda torch, attrs, a: a[0] @ a[2] + a[1] @ a[3],
    OpKind.SUM: lambda torch, attrs, a: a[0].sum(attrs.dim, keepdim=True),
    OpKind.MAX: lambda torch, attrs, a: a[0].amax(attrs.dim, keepdim=True),
    OpKind.RESCALED_SUM: _rescaled_sum,
    OpKind.RUNNING_SUM: _running_sum,
    OpKind.ADD: lambda torch, attrs, a: a[0] + a[1],
    OpKind.SUB: lambda torch, attrs, a: a[0] - a[1],
    OpKind.MUL: lambda torch, attrs, a: a[0] * a[1],
    OpKind.DIV: lambda torch, attrs, a: a[0] / a[1],
    OpKind.EXP: lambda torch, attrs, a: torch.exp(a[0]),
    OpKind.SQR: lambda torch, attrs, a: a[0] * a[0],
    OpKind.SQRT: lambda torch, attrs, a: torch.sqrt(a[0]),
    OpKind.SILU: lambda torch, attrs, a: torch.nn.functional.silu(a[0]),
    OpKind.GELU: lambda torch, attrs, a: torch.nn.functional.gelu(a[0]),
    OpKind.SIGMOID: lambda torch, attrs, a: torch.sigmoid(a[0]),
    OpKind.RELU: lambda torch, attrs, a: torch.relu(a[0]),
    OpKind.CLAMP: _clamp,
    OpKind.ARANGE: _arange,
    OpKind.WHERE: lambda torch, attrs, a: torch.where(a[0] != 0, a[1], attrs.value),
    OpKind.MAXIMUM: lambda torch, attrs, a: torch.maximum(a[0], a[1]),
    OpKind.GREATER: lambda torch, attrs, a: (a[0] > a[1]).to(_wider(torch, a)),
    OpKind.GREATER_EQUAL: lambda torch, attrs, a: (a[0] >= a[1]).to(_wider(torch, a)),
    OpKind.EQUAL: lambda torch, attrs, a: (a[0] == a[1]).to(_wider(torch, a)),
    OpKind.CAST: lambda torch, attrs, a: a[0].to(torch_dtype(torch, attrs.dtype)),
    OpKind.POW: lambda torch, attrs, a: a[0] ** float(attrs.exponent),
    OpKind.APPLY: _apply,
    OpKind.REPEAT: lambda torch, attrs, a: torch.cat([a[0]] * attrs.times, attrs.dim),
    OpKind.RESHAPE: lambda torch, attrs, a: a[0].reshape(attrs.shape),
    OpKind.TRANSPOSE: lambda torch, attrs, a: a[0].permute(attrs.perm),
    OpKind.CONCAT: lambda torch, attrs, a: torch.cat(a, attrs.dim),
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
    """Raises DTypeError when a torch tensor has another dtype than the program says, or other signs than its memory."""
    wanted = f"torch.{TORCH_DTYPE[into.type.dtype]}"
    if str(tensor.dtype) != wanted:
        said = f"{into.name} has dtype {tensor.dtype}, the program says {wanted}"
        raise DTypeError(said, hint=f"{into.name}.to({wanted}) converts it, {CAST}")
    if tensor.is_neg():
        said = f"{into.name} is the negative of what lies in memory"
        raise DTypeError(said, hint=f"{into.name}.resolve_neg() is a tensor of its own")


PRODUCTS = (OpKind.MATMUL, OpKind.CONCAT_MATMUL)


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

    def scalar(number: float, result: int) -> Any:
        """A number in the type of a value that is made of it, and not in that of whatever input comes first."""
        dtype = torch.float64 if exact else torch_dtype(torch, graph.types[result].dtype)
        return values[0].new_full((), number, dtype=dtype)

    for op, (result, *_) in open_reshapes(graph).definitions():
        rule = TORCH.get(op.kind)
        if rule is None:
            raise GraphError(f"{op.kind.value} has no PyTorch form: a tensor program is made of pre-defined operators")
        if not graph.types[result].shape and all(v in scalars for v in op.inputs):
            operands = tuple(torch.tensor(scalars[v], dtype=torch.float64) for v in op.inputs)
            scalars[result] = float(rule(torch, op.attrs, operands))
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
            operands = tuple(scalar(x, result) if isinstance(x, float) else x for x in operands)
        wide = graph.types[result].dtype
        narrow = wide not in BYTES and any(graph.types[v].dtype in BYTES for v in op.inputs)
        if ((narrow and op.kind is not OpKind.CAST) or op.kind in PRODUCTS) and not exact:
            # of one type only; called with float64 all are
            kept = [v in scalars or graph.types[v].dtype is wide for v in op.inputs]
            operands = tuple(x if k else x.to(torch_dtype(torch, wide)) for x, k in zip(operands, kept, strict=True))
        values[result] = rule(torch, op.attrs, operands)
    outputs = (scalar(scalars[v], v) if v in scalars else values[v] for v in graph.outputs)
    traced.output(tuple(out.node for out in outputs))
    return cast(Callable[..., tuple[Any, ...]], torch.fx.GraphModule({}, traced))
