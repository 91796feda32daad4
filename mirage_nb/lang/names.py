"""Names that programs borrow from NumPy and PyTorch: modules, second names of functions and of parameters.

In: nothing. Out: tables. Invariant: a borrowed name means what it means there; where NumPy and PyTorch disagree about
a method of tensors, the program has to say which is meant.
"""

from __future__ import annotations

import ast
import re

from mirage_nb.ir.dtypes import DTYPE_NAMES
from mirage_nb.lang.builder import Infinity, Nothing, Text
from mirage_nb.lang.constants import Number, literal

NUMPY, TORCH, EINOPS, METHOD, OWN = "numpy", "torch", "einops", "method", ""
LAX, TRITON, LINALG, SCIPY = "lax", "triton", "linalg", "scipy"
"""Where the name of a function stands: behind a module of the one or the other, behind a tensor, or alone."""

MODULES: dict[str, str] = {
    **dict.fromkeys(("np", "numpy", "jnp", "jax", "math", "cp", "cupy"), NUMPY),
    "lax": LAX, "triton": TRITON, "tl": TRITON, "linalg": LINALG, "scipy": SCIPY,
    **dict.fromkeys(("torch", "F", "nn"), TORCH),
    **dict.fromkeys(("einops", "typing", "functools", "jaxtyping"), EINOPS),
}
"""Modules that every program knows, and those that it may import, by the first part of their names, or the last."""

WHOLE = frozenset({
    *(f"{kind}{bits}" for kind in ("i", "u", "int", "uint") for bits in (8, 16, 32, 64)),
    "bool", "int", "long", "short",
})  # fmt: skip
"""Element types of inputs that hold whole numbers, as indices, classes and masks do. Those of one byte are stored so;
the others kernels hold in f32, exactly up to 2**24, which is more than any axis that they may be a place of."""

CONSTANTS: dict[str, Number | Infinity | Text | Nothing] = {
    "pi": literal("3.141592653589793"),
    "e": literal("2.718281828459045"),
    "tau": literal("6.283185307179586"),
    "inf": Infinity(1),
    "newaxis": Nothing(),
    **{name: Text(name) for name in WHOLE},
    **{name: Text(dtype.value) for name, dtype in DTYPE_NAMES.items()},
}
"""What modules hold beside functions."""

SYNONYMS: dict[str, str] = {
    "concatenate": "cat",
    **dict.fromkeys(("clip",), "clamp"),
    **dict.fromkeys(("absolute", "fabs"), "abs"),
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "batch_matmul"), "matmul"),
    **dict.fromkeys(("contiguous", "detach", "clone", "copy", "ascontiguousarray"), "same"),
    **dict.fromkeys(("array", "asarray", "asanyarray", "as_tensor", "scalar_tensor"), "tensor"),
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "equal": "eq", "not_equal": "ne",
    "positive": "same", "reshape_as": "view_as", "new_empty": "new_zeros", "row_stack": "vstack", "ndimension": "dim",
    "matrix_transpose": "transpose", "adjoint": "transpose", "permute_dims": "transpose", "unstack": "unbind",
    "addmv": "addmm", "bitwise_invert": "bitwise_not", "upsample": "interpolate", "dropout1d": "dropout",
    "dropout2d": "dropout", "alpha_dropout": "dropout", "log_sigmoid": "logsigmoid", "hard_tanh": "hardtanh",
    "hard_sigmoid": "hardsigmoid", "hard_swish": "hardswish", "hard_silu": "hardswish", "soft_sign": "softsign",
    **dict.fromkeys(("astype", "to", "type"), "cast"),
    "amax": "max", "amin": "min", "view": "reshape", "permute": "transpose", "swish": "silu",
    "expand_dims": "unsqueeze", "movedim": "moveaxis", "swapdims": "swapaxes", "broadcast_to": "expand",
    "radians": "deg2rad", "degrees": "rad2deg",
    "vector_norm": "norm", "sgn": "sign", "expit": "sigmoid",
    "float_power": "pow", "trapz": "trapezoid", "rint": "round", "around": "round", "fix": "trunc",
    **{f"arc{name}": f"a{name}" for name in ("tan", "sin", "cos", "tan2")},
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "invert": "bitwise_not",
    "mod": "remainder", "negative": "neg", "mul": "multiply", "sub": "subtract", "div": "divide", "ravel": "flatten",
    "t": "transpose", "empty": "zeros", "empty_like": "zeros_like",
    "zero": "zeros_like", "fill": "full_like",
    "scaled_dot_product_attention": "attention", "take_along_dim": "gather", "power": "pow", "integer_pow": "pow",
    "ger": "outer", "true_divide": "divide", "identity": "eye",
    "trans": "transpose", "nelement": "numel", "stop_gradient": "same", "logistic": "sigmoid", "rem": "fmod",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift", "tensor_split": "array_split",
    "_pad": "pad", "top_k": "topk",
}  # fmt: skip
"""Other names of functions, which mean the same wherever they stand."""

AT: dict[str, ast.operator | None] = {
    "set": None, "add": ast.Add(), "subtract": ast.Sub(), "multiply": ast.Mult(), "mul": ast.Mult(),
    "divide": ast.Div(), "power": ast.Pow(),
}  # fmt: skip
"""What JAX writes behind x.at[...], and the operator of NumPy that does so."""

LOGICAL = frozenset((
    "eq ne gt ge lt le logical_and logical_or logical_not logical_xor isclose isnan isinf isfinite bitwise_not "
    "isposinf isneginf bool cast same"
).split())
"""Functions of the prelude whose masks are truth values; those of others are numbers."""

IGNORED = frozenset({
    "device", "requires_grad", "inplace", "memory_format", "non_blocking", "layout", "pin_memory", "order", "copy",
    "optimize",
})  # fmt: skip
"""Keywords that say nothing about values."""

BORROWED: dict[tuple[str, str], str] = {
    **{(TORCH, name): f"torch_{name}" for name in (
        "split", "softmax", "log_softmax", "gelu", "pad", "meshgrid", "var", "std", "gather", "layer_norm", "rms_norm",
        "group_norm", "cross_entropy", "nll_loss", "max", "min", "transpose", "select", "cummax", "cummin",
        "gradient", "softplus", "cross", "unfold", "tril_indices", "triu_indices", "sort", "median",
    )},
    **{(METHOD, name): f"numpy_{name}" for name in ("cumsum", "cumprod", "dot")},
    **{(family, "take"): "numpy_take" for family in (NUMPY, TORCH, METHOD)},
    **{(family, "equal"): "array_equal" for family in (TORCH, METHOD)},
    **{(SCIPY, name): f"scipy_{name}" for name in ("softmax", "log_softmax")},
    **{(LAX, name): f"lax_{name}" for name in ("clamp", "cumsum", "round", "select")},
    **{(TRITON, name): f"triton_{name}" for name in ("dot", "softmax")},
    (LAX, "max"): "maximum", (LAX, "min"): "minimum", (TRITON, "cumsum"): "lax_cumsum", (LINALG, "norm"): "linalg_norm",
    (OWN, "pad"): "own_pad", (METHOD, "where"): "torch_where", (METHOD, "copy"): "torch_copy",
    **{(METHOD, name): f"torch_{name}" for name in (
        "split", "softmax", "log_softmax", "gather", "max", "min", "transpose", "select", "cummax", "cummin", "sort",
        "median",
    )},
    **{(NUMPY, name): f"numpy_{name}" for name in (
        "split", "pad", "transpose", "select", "cumsum", "cumprod", "dot", "gelu",
    )},
    **{(family, "concat"): "cat" for family in (NUMPY, TORCH)},
    (NUMPY, "repeat"): "repeat_interleave", (TORCH, "repeat"): "torch_repeat",
}  # fmt: skip
"""Functions that are other ones behind a module, or behind a tensor."""


_FRONT = re.compile("^(torch|numpy|scipy|own)?_")


def shown(name: str) -> str:
    """What a program calls the function of this name."""
    return _FRONT.sub("", name)


def borrowed(family: str, name: str) -> str:
    """The language's own name of what a module has under this one; JAX and others follow NumPy except where told."""
    after = NUMPY if family in (LAX, TRITON, SCIPY) else family
    return BORROWED.get((family, name), BORROWED.get((after, name), SYNONYMS.get(name, name)))


EITHER: dict[str, str] = {
    "var": "NumPy divides by n, PyTorch by n - 1: write np.var(x, ...) or torch.var(x, ...)",
    "std": "NumPy divides by n, PyTorch by n - 1: write np.std(x, ...) or torch.std(x, ...)",
    "repeat": "NumPy repeats elements, PyTorch the whole: write repeat_interleave(x, n, axis) or tile(x, (n, m))",
}
"""Methods of which NumPy and PyTorch think differently, and what to write instead."""
SPELLED: dict[str, str] = {
    **dict.fromkeys(("axis", "keepdims", "ddof"), NUMPY),
    **dict.fromkeys(("dim", "keepdim", "unbiased", "correction"), TORCH),
}
"""Keywords that say of such a method which of them is meant."""

PARAMETERS: dict[str, tuple[str, ...]] = {
    "axis": ("dim", "dims", "axes", "dimension"),
    "axis1": ("dim1",),
    "axis2": ("dim2",),
    "keepdims": ("keepdim", "keep_dims"),
    "before": ("pad_width",),
    "low": ("min", "a_min", "min_val"),
    "high": ("max", "a_max", "max_val"),
    "stop": ("end",),
    "x": ("input", "a", "tensors"),
    "y": ("other", "b", "target"),
    "gain": ("weight",),
    "w": ("weight",),
    "slope": ("negative_slope",),
    "parts": ("chunks", "sections"),
    "ddof": ("correction",),
    "classes": ("num_classes",),
    "extents": ("shape", "size"),
    "p": ("ord",),
    "k": ("diagonal", "offset"),
    "pad_widths": ("pad",),
    "reps": ("dims",),
    "steps": ("num",),
}
"""What else a parameter may be called."""
