"""What to say of a name that there is not: what was meant, or how to do without it.

In: a name, the names that there are. Out: a sentence, or nothing. Invariant: a name that means something of its own
elsewhere (`sort`, `cosh`, `i32`) is no slip of the pen for another one: it is told why it is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirage_nb.errors import suggestion
from mirage_nb.ir.dtypes import DTYPE_NAMES

__all__ = ["dtype_hint", "function_hint", "shapes_hint", "suggestion"]

SHOWN = 12
"""Functions that one hint lists."""
ABSENT: dict[str, str] = {
    "how many there are depends on values: sum(m) counts where a mask holds, where(m, X, 0) keeps the shape": (
        "nonzero unique argwhere flatnonzero unique_consecutive"
    ),
    "count with masks: sum(X[:, None] == arange(n), axis=0), with >= and < for bins": "histogram histc bincount mode",
    "sort(X, axis), argsort, topk and quantile order elements": (
        "nanmedian argpartition partition lexsort nanquantile nanpercentile"
    ),
    "no kernel has this function: compute it before, and pass it in as an input": (
        "lgamma digamma gammaln polygamma erfinv i0 i1 ndtri"
    ),
    "which elements are read or written may not depend on values: do that before or after the program": (
        "index_put masked_select masked_scatter nonzero_static"
    ),
    "programs have no random numbers: pass them in as an input": (
        "rand randn randint randperm bernoulli multinomial normal uniform rand_like randn_like gumbel_softmax rrelu"
    ),
    "there are no complex numbers: keep real and imaginary parts; rope(x, cos, sin) rotates pairs": (
        "view_as_complex view_as_real polar complex real imag conj angle"
    ),
    "places are arange(n)[:, None] and arange(m); stack and concat join": "ogrid mgrid r_ c_ ix_ s_",
    "conditions of values choose elements: where(condition, A, B)": "cond switch while_loop",
    "it is not made of sums, products and elementwise functions: leave it outside the program": (
        "polyfit fold grid_sample fft ifft rfft fft2 stft istft svd qr inv det solve cholesky eig eigh lstsq "
        "matrix_exp pinv slogdet logdet svdvals eigvals eigvalsh solve_triangular triangular_solve expm matrix_rank"
    ),
    "programs have no devices, gradients or modes: leave it out": (
        "cuda cpu numpy item tolist requires_grad_ backward eval train zero_grad synchronize pin_memory"
    ),
    "tensors have their batch as a leading axis, over which functions go by themselves: call f itself": "vmap pmap jit",
    "what a thing is, is known: leave the question out": "isinstance hasattr getattr type callable",
    "programs have no objects: weights are inputs, as w: f16[64, 64]": "self cls",
    "programs print nothing: leave it out, or return it": "print",
    "e ** x is exp(x); the number is np.e": "e",
    "what has no value is no constant: infinities are choices, as in where(m, x, -inf)": "nan NaN",
    "functions stand alone, or as in np, torch, F, jnp, jax, lax, tl and scipy": (
        "tf keras ops K mx paddle nd onp tfp nnx flax optax xp"
    ),
    "a list keeps its elements: outs[-1] is the last of them, outs[:-1] are the others": "pop remove",
    "write attention(Q, K, V, is_causal=True), or softmax(Q @ K.T * scale) @ V": "flash_attention",
    "write it out: silu(A) * B, or with gelu or sigmoid": "swiglu geglu reglu",
}
"""Why something that people know is not there, and what to do."""
NAMES = {name: why for why, names in ABSENT.items() for name in names.split()}

ABROAD = ("f8", "fp8", "e4m3", "e5m2", "float8", "int4", "fp4", "complex64")
"""Element types that are elsewhere, and that no name of ours is a slip of."""


def function_hint(name: str, known: Iterable[str]) -> str:
    """What to say of a function that there is not."""
    plain, names = name.lower(), [*known]
    if plain in NAMES:
        return NAMES[plain]
    own = f"an elementwise one is a line: def {name}(x): return x * tanh(x)"
    rest = ", ...: %mirage help lists all of them" if len(names) > SHOWN else ""
    near = suggestion(name, names, 0.7 if len(name) > 3 else 0.6)  # of so many names one is always a little alike
    return near or f"the functions are {', '.join(names[:SHOWN])}{rest}; {own}"


def shapes_hint(product: bool, shapes: Sequence[tuple[int, ...]]) -> str:
    """What to write where two shapes do not fit, but would if one of them were turned."""
    if len(shapes) != 2:
        return ""
    left, right = shapes
    if product:
        if left[-1] == right[-1]:
            return f"x @ y.T fits: {list(left)} @ {[*right[:-2], right[-1], right[-2]]}"
        return f"x.T @ y fits: {[*left[:-2], left[-1], left[-2]]} @ {list(right)}" if left[-2] == right[-2] else ""
    short, long = sorted(shapes, key=len)
    if len(short) == 1 < len(long) and short[0] in long:
        place = long.index(short[0])
        turned = f"y[:{', None' * (len(long) - place - 1)}]"
        return f"{turned} lies along dimension {place} of {list(long)}, as what keepdims=True leaves"
    return ""


def dtype_hint(name: str) -> str:
    """What to say of an element type that there is not."""
    if name in ("Tensor", "ndarray", "array", "Array"):
        return "tensors have an element type and extents: x: f16[2, 3]"
    if name.lower() in ABROAD:
        inputs = "i8, u8, i32, i64, bool, f8e4m3, f8e5m2"
        return f"the dtypes are f16, bf16, f32, f64, and {inputs} of inputs: none is narrower, none is complex"
    return suggestion(name, DTYPE_NAMES) or f"dtypes are {', '.join(DTYPE_NAMES)}"
