"""Functions of the language that are written in it: what NumPy and PyTorch have beside the rows of `functions`.

In: nothing. Out: `prelude()`: their definitions, as syntax trees. Invariant: each is what its name is known for; a call
stands for its lines, at the place of the call. A name with `torch_`, `numpy_` or `method_` in front is what modules of
that kind, or methods of tensors, have under the rest of it where that differs from the language's own function.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping

from mirage_nb.ir.syntax import statements
from mirage_nb.lang.arguments import Inlined
from mirage_nb.lang.builder import Nothing, Result, Text
from mirage_nb.lang.constants import Number, literal, negate

_FRONT = re.compile("^(torch|numpy)?_")
_TEXT = '''
def same(x): return x
def tensor(x, dtype=None): return _typed(_table(x), dtype)
def bool(x): return _cast(x, "bool")
def int(x): return _cast(x, "int")
def long(x): return _cast(x, "int")
def numel(x): return x.size
def cast(x, dtype): return _cast(x, dtype)
def type_as(x, y): return _cast(x, y.dtype)
def neg(x): return -x
def add(x, y, alpha=1): return x + y * alpha
def subtract(x, y, alpha=1): return x - y * alpha
def multiply(x, y): return x * y
def divide(x, y): return x / y
def matmul(x, y): return x @ y
def eq(x, y): return x == y
def ne(x, y): return x != y
def gt(x, y): return x > y
def ge(x, y): return x >= y
def lt(x, y): return x < y
def le(x, y): return x <= y
def logical_and(x, y): return x & y
def logical_or(x, y): return x | y
def logical_not(x): return ~x
def clamp_min(x, low): return maximum(x, low)
def clamp_max(x, high): return minimum(x, high)

def reciprocal(x): return 1 / x
def exp2(x): return exp(x * 0.6931471805599453)
def log2(x): return log(x) / 0.6931471805599453 if _is_tensor(x) else _log2(x)
def log10(x): return log(x) / 2.302585092994046
def ceil(x): return -floor(-x)
def floor_divide(x, y): return x // y
def remainder(x, y): return x % y
def fmod(x, y): return x - trunc(x / y) * y
def logaddexp(x, y): return logsumexp(stack((x + y * 0, y + x * 0)), axis=0)
def lerp(x, y, weight): return x + (y - x) * weight
def addcmul(x, y, z, value=1): return x + y * z * value
def addcdiv(x, y, z, value=1): return x + y / z * value
def masked_fill(x, mask, value): return where(mask, value, x)
def sinh(x): return (exp(x) - exp(-x)) / 2
def cosh(x): return (exp(x) + exp(-x)) / 2
def tan(x): return sin(x) / cos(x)
def asinh(x): return sign(x) * log(abs(x) + sqrt(x * x + 1))
def acosh(x): return log(x + sqrt(x * x - 1))
def atanh(x): return log((1 + x) / (1 - x)) / 2
def logit(x): return log(x / (1 - x))
def erfc(x): return 1 - erf(x)
def trunc(x): return sign(x) * floor(abs(x))
def frac(x): return x - trunc(x)
def round(x):
    y = floor(x + 0.5)
    return where((y - x == 0.5) & (y - 2 * floor(y / 2) == 1), y - 1, y)
def hypot(x, y): return sqrt(x * x + y * y)
def heaviside(x, values): return where(x == 0, values, x > 0)
def sinc(x): return where(x == 0, 1, sin(x * 3.141592653589793) / (x * 3.141592653589793))
def deg2rad(x): return x * 0.017453292519943295
def rad2deg(x): return x * 57.29577951308232
def relu6(x): return clamp(x, 0, 6)
def hardtanh(x, low=-1, high=1): return clamp(x, low, high)
def selu(x): return 1.0507009873554805 * elu(x, 1.6732632423543772)
def celu(x, alpha=1): return elu(x / alpha) * alpha
def quick_gelu(x): return x * sigmoid(1.702 * x)
def tanhshrink(x): return x - tanh(x)
def threshold(x, threshold, value): return where(x > threshold, x, value)
def torch_max(x, axis=None, keepdims=False):
    if axis is None or _is_tensor(axis):
        return max(x) if axis is None else maximum(x, axis)
    return _extremes(max(x, axis, keepdims=keepdims), argmax(x, axis, keepdims))
def torch_min(x, axis=None, keepdims=False):
    if axis is None or _is_tensor(axis):
        return min(x) if axis is None else minimum(x, axis)
    return _extremes(min(x, axis, keepdims=keepdims), argmin(x, axis, keepdims))
def glu(x, axis=-1):
    a, b = chunk(x, 2, axis)
    return a * sigmoid(b)
def torch_gelu(x, approximate="none"):
    return gelu_tanh(x) if approximate == "tanh" else gelu(x)
def torch_softmax(x, axis=-1, dtype=None):
    return softmax(x if dtype is None else _cast(x, dtype), axis)
def torch_log_softmax(x, axis=-1, dtype=None):
    return log_softmax(x if dtype is None else _cast(x, dtype), axis)

def unsqueeze(x, axis):
    at = axis if axis >= 0 else axis + x.ndim + 1
    return reshape(x, x.shape[:at] + (1,) + x.shape[at:])
def squeeze(x, axis=None):
    if axis is None:
        return reshape(x, tuple(n for n in x.shape if n > 1))
    at = axis if axis >= 0 else axis + x.ndim
    return reshape(x, x.shape[:at] + x.shape[at + 1:]) if x.shape[at] == 1 else x
def flatten(x, start_dim=0, end_dim=-1):
    first = start_dim if start_dim >= 0 else start_dim + x.ndim
    last = end_dim if end_dim >= 0 else end_dim + x.ndim
    return reshape(x, x.shape[:first] + (-1,) + x.shape[last + 1:])
def unflatten(x, axis, sizes):
    at = axis if axis >= 0 else axis + x.ndim
    return reshape(x, x.shape[:at] + tuple(sizes) + x.shape[at + 1:])
def swapaxes(x, axis0, axis1):
    a = axis0 if axis0 >= 0 else axis0 + x.ndim
    b = axis1 if axis1 >= 0 else axis1 + x.ndim
    return transpose(x, tuple(b if i == a else a if i == b else i for i in range(x.ndim)))
def torch_transpose(x, *axes):
    if len(axes) == 2:
        return swapaxes(x, axes[0], axes[1])
    return transpose(x, axes[0] if _is_sequence(axes[0]) else axes) if axes else x.T
def numpy_transpose(x, *axes):
    every = axes if axes else tuple(x.ndim - 1 - i for i in range(x.ndim))
    return transpose(x, every[0] if _is_sequence(every[0]) else every)
def moveaxis(x, source, destination):
    a = source if source >= 0 else source + x.ndim
    b = destination if destination >= 0 else destination + x.ndim
    rest = [i for i in range(x.ndim) if i != a]
    return transpose(x, rest[:b] + [a] + rest[b:])
def expand_as(x, y): return expand(x, y.shape)
def view_as(x, y): return reshape(x, y.shape)
def repeat_interleave(x, repeats, axis):
    at = axis if axis >= 0 else axis + x.ndim
    wide = repeat(unsqueeze(x, at + 1), repeats, axis=at + 1)
    return reshape(wide, x.shape[:at] + (x.shape[at] * repeats,) + x.shape[at + 1:])
def tile(x, reps):
    times = reps if _is_sequence(reps) else (reps,)
    for i in range(len(times) - x.ndim):
        x = unsqueeze(x, 0)
    for i in range(len(times)):
        x = repeat(x, times[i], axis=i - len(times))
    return x
def torch_repeat(x, *reps): return tile(x, reps)
def unbind(x, axis=0): return list(moveaxis(x, axis, 0))
def cat(tensors, axis=0): return concat(tensors, axis=axis)
def hstack(tensors): return concat(tensors, axis=0 if tensors[0].ndim == 1 else 1)
def vstack(tensors):
    return stack(tensors) if tensors[0].ndim == 1 else concat(tensors, axis=0)
def roll(x, shifts, axis=None):
    if axis is None:
        return reshape(roll(flatten(x), shifts, 0), x.shape)
    if _is_sequence(shifts):
        for k, d in zip(shifts, axis):
            x = roll(x, k, d)
        return x
    n = x.shape[axis]
    k = shifts - shifts // n * n
    a, b = split(x, [n - k, k], axis) if k > 0 else (x, x)
    return concat((b, a), axis=axis) if k > 0 else x
def diff(x, axis=-1):
    n = x.shape[axis]
    a, b = split(x, [n - 1, 1], axis)
    c, d = split(x, [1, n - 1], axis)
    return d - a
def torch_split(x, size, axis=0):
    n = x.shape[axis]
    sizes = size if _is_sequence(size) else [minimum(size, n - i) for i in range(0, n, size)]
    return split(x, sizes, axis)
def numpy_split(x, parts, axis=0):
    if not _is_sequence(parts):
        return split(x, parts, axis)
    ends = tuple(parts) + (x.shape[axis],)
    starts = (0,) + tuple(parts)
    return split(x, [b - a for a, b in zip(starts, ends)], axis)
def torch_pad(x, pad_widths, mode="constant", value=0):
    for i in range(len(pad_widths) // 2):
        before, after = pad_widths[2 * i], pad_widths[2 * i + 1]
        n = x.shape[-1 - i] + minimum(before, 0) + minimum(after, 0)
        y = narrow(x, -1 - i, maximum(-before, 0), n)
        x = _padded(y, maximum(before, 0), maximum(after, 0), -1 - i, value, mode)
    return x
def numpy_pad(x, pad_width, mode="constant", constant_values=0):
    for i in range(x.ndim):
        each = pad_width if _is_sequence(pad_width) else (pad_width, pad_width)
        both = each[i if len(each) > 1 else 0] if _is_sequence(each[0]) else each
        x = _padded(x, both[0], both[1], i, constant_values, mode)
    return x
def _padded(x, before, after, axis, value=0, mode="constant"):
    n = x.shape[axis]
    if mode == "constant":
        y = pad(x, before, after, axis)
        places = reshape(arange(before + n + after), (-1,) + tuple(1 for i in range((-axis - 1) % x.ndim)))
        return y if value == 0 else where((places >= before) & (places < before + n), y, value)
    assert mode in ("edge", "replicate", "wrap", "circular", "reflect", "symmetric"), "modes: constant, edge, wrap, ..."
    if mode in ("edge", "replicate"):
        start, end = [repeat(narrow(x, axis, i, 1), maximum(k, 1), axis=axis) for i, k in ((0, before), (n - 1, after))]
    elif mode in ("wrap", "circular"):
        start, end = narrow(x, axis, n - before, before), narrow(x, axis, 0, after)
    else:
        k = 1 if mode == "reflect" else 0
        start, end = flip(narrow(x, axis, k, before), axis), flip(narrow(x, axis, n - k - after, after), axis)
    return concat([start][: minimum(before, 1)] + [x] + [end][: minimum(after, 1)], axis=axis)

def ones(*shape, dtype=None): return _typed(_filled(_count(shape) >= 0, 1), dtype)
def zeros(*shape, dtype=None): return _typed(_filled(_count(shape) < 0, 0), dtype)
def _typed(x, dtype): return x if dtype is None or dtype == "bool" or not _is_tensor(x) else _cast(x, dtype)
def full(size, fill_value): return _filled(where(_count((size,)) >= 0, fill_value, 0), fill_value)
def ones_like(x, dtype=None): return ones(x.shape, dtype=x.dtype if dtype is None else dtype)
def zeros_like(x, dtype=None): return zeros(x.shape, dtype=x.dtype if dtype is None else dtype)
def full_like(x, fill_value): return _cast(full(x.shape, fill_value), x.dtype)
def new_zeros(x, *shape): return zeros(*shape, dtype=x.dtype)
def new_ones(x, *shape): return ones(*shape, dtype=x.dtype)
def _count(shape):
    extents = shape[0] if len(shape) == 1 and _is_sequence(shape[0]) else shape
    n = 1
    for extent in extents:
        n = n * extent
    return reshape(arange(n), extents)
def eye(n, m=None): return arange(n)[:, None] == arange(n if m is None else m)
def linspace(start, end, steps, endpoint=True):
    return start + arange(steps) * ((end - start) / (steps - 1 if endpoint else steps))
def meshgrid(x, y, indexing="xy"):
    a, b = torch_meshgrid(x, y)
    return (a, b) if indexing == "ij" else (a.T, b.T)
def torch_meshgrid(x, y, indexing="ij"):
    a, b = expand(x[:, None], x.shape[0], y.shape[0]), expand(y, x.shape[0], y.shape[0])
    return (a, b) if indexing == "ij" else (a.T, b.T)
def tril(x, k=0): return where(_upto(x, k), x, 0)
def triu(x, k=0): return where(~_upto(x, k - 1), x, 0)
def _upto(x, k): return arange(x.shape[-2])[:, None] + k >= arange(x.shape[-1])
def diag(x):
    if x.ndim == 1:
        return where(eye(x.shape[0]) > 0, x, 0)
    return sum(where(eye(x.shape[0], x.shape[1]) > 0, x, 0), axis=1)[:minimum(x.shape[0], x.shape[1])]
def trace(x): return sum(diag(x))
def fliplr(x): return flip(x, 1)
def flipud(x): return flip(x, 0)
def narrow(x, axis, start, length):
    sizes = [start, maximum(length, 1), x.shape[axis] - start - maximum(length, 1)]
    return split(x, [n for n in sizes if n != 0], axis)[minimum(start, 1)]
def torch_select(x, axis, index): return moveaxis(x, axis, 0)[index]
def kron(x, y):
    wide, tall = x.shape, y.shape
    for i in range(x.ndim):
        x, y = unsqueeze(x, 2 * i + 1), unsqueeze(y, 2 * i)
    return reshape(x * y, tuple(a * b for a, b in zip(wide, tall)))
def pixel_shuffle(x, upscale_factor):
    r, d = upscale_factor, x.ndim - 3
    c, h, w = x.shape[-3] // (r * r), x.shape[-2], x.shape[-1]
    y = transpose(reshape(x, x.shape[:-3] + (c, r, r, h, w)), tuple(range(d)) + (d, d + 3, d + 1, d + 4, d + 2))
    return reshape(y, x.shape[:-3] + (c, h * r, w * r))
def interpolate(x, size=None, scale_factor=1, mode="nearest"):
    assert mode == "nearest", "the mode is nearest"
    for i in range(2, x.ndim):
        x = repeat_interleave(x, scale_factor if size is None else size // x.shape[i], i)
    return x

def any(x, axis=None, keepdims=False): return max(x != 0, axis, keepdims=keepdims)
def all(x, axis=None, keepdims=False): return min(x != 0, axis, keepdims=keepdims)
def count_nonzero(x, axis=None, keepdims=False): return sum(x != 0, axis, keepdims=keepdims)
def argmax(x, axis=None, keepdims=False):
    y = reshape(x, -1) if axis is None else x
    at = 0 if axis is None else axis if axis >= 0 else axis + x.ndim
    places = reshape(arange(y.shape[at]), (-1,) + tuple(1 for i in range(y.ndim - at - 1)))
    return min(where(y == max(y, at, keepdims=True), places, y.shape[at]), at, keepdims=keepdims)
def argmin(x, axis=None, keepdims=False): return argmax(-x, axis, keepdims)
def ptp(x, axis=None, keepdims=False): return max(x, axis, keepdims=keepdims) - min(x, axis, keepdims=keepdims)
def aminmax(x, axis=None, keepdims=False): return min(x, axis, keepdims=keepdims), max(x, axis, keepdims=keepdims)
def average(x, axis=None, weights=None):
    return mean(x, axis) if weights is None else sum(x * weights, axis) / sum(weights + x * 0, axis)
def softmin(x, axis=-1): return softmax(-x, axis)
def cumprod(x, axis):
    y = swapaxes(x, 0, axis)
    parts = [y[0]]
    for i in range(1, y.shape[0]):
        parts = parts + [parts[i - 1] * y[i]]
    return swapaxes(stack(parts), 0, axis)
def _prefixes(x, axis):
    y = unsqueeze(swapaxes(x, axis, -1), -2)
    return where(arange(y.shape[-1])[:, None] >= arange(y.shape[-1]), y, -inf)
def logcumsumexp(x, axis): return swapaxes(logsumexp(_prefixes(x, axis), -1), axis, -1)
def cummax(x, axis): return swapaxes(max(_prefixes(x, axis), -1), axis, -1)
def cummin(x, axis): return -cummax(-x, axis)
def torch_cummax(x, axis): return _extremes(cummax(x, axis), swapaxes(argmax(_prefixes(x, axis), -1), axis, -1))
def torch_cummin(x, axis): return _extremes(cummin(x, axis), swapaxes(argmax(_prefixes(-x, axis), -1), axis, -1))
def polyval(p, x):
    y = 0
    for c in p:
        y = y * x + c
    return y
def trapezoid(y, dx=1): return sum(y[..., 1:] + y[..., :-1], axis=-1) * (dx / 2)

def inner(x, y): return x @ y if y.ndim == 1 else x @ y.T
def tensordot(x, y, axis=2):
    if _is_sequence(axis):
        a, b = [[i if i >= 0 else i + t.ndim for i in (d if _is_sequence(d) else (d,))] for d, t in zip(axis, (x, y))]
        rest = [i for i in range(x.ndim) if i not in a], [i for i in range(y.ndim) if i not in b]
        return tensordot(transpose(x, rest[0] + a), transpose(y, b + rest[1]), len(a))
    depth = 1
    for extent in y.shape[:axis]:
        depth = depth * extent
    made = reshape(x, -1, depth) @ reshape(y, depth, -1)
    return reshape(made, x.shape[: x.ndim - axis] + y.shape[axis:])
def bilinear(x, y, weight, bias=None):
    made = sum((x @ weight) * y, axis=-1).T
    return made if bias is None else made + bias
def outer(x, y): return reshape(x, -1, 1) * reshape(y, 1, -1)
def multi_dot(tensors):
    y = tensors[0]
    for x in tensors[1:]:
        y = y @ x
    return y
def linear(x, weight, bias=None):
    y = x @ weight.T
    return y if bias is None else y + bias
def addmm(c, x, y, beta=1, alpha=1): return c * beta + x @ y * alpha
def baddbmm(c, x, y, beta=1, alpha=1): return c * beta + x @ y * alpha
def norm(x, p=2, axis=None, keepdims=False):
    if p == inf:
        return max(abs(x), axis, keepdims=keepdims)
    if p == 1:
        return sum(abs(x), axis, keepdims=keepdims)
    if p == 2 or p == "fro" or p is None:
        return sqrt(sum(square(x), axis, keepdims=keepdims))
    return sum(abs(x) ** p, axis, keepdims=keepdims) ** (1 / p)
def normalize(x, p=2, axis=1, eps=1e-12):
    return x / maximum(norm(x, p, axis, keepdims=True), eps)
def cosine_similarity(x, y, axis=1, eps=1e-8):
    return sum(x * y, axis) / maximum(norm(x, 2, axis) * norm(y, 2, axis), eps)
def pairwise_distance(x, y, p=2, eps=1e-6, keepdims=False): return norm(x - y + eps, p, -1, keepdims=keepdims)
def dist(x, y, p=2): return norm(x - y, p)
def cdist(x, y, p=2): return norm(unsqueeze(x, -2) - unsqueeze(y, -3), p, -1)
def torch_var(x, axis=None, unbiased=True, keepdims=False, ddof=1):
    return var(x, axis, ddof=ddof if unbiased else 0, keepdims=keepdims)
def torch_std(x, axis=None, unbiased=True, keepdims=False, ddof=1):
    return std(x, axis, ddof=ddof if unbiased else 0, keepdims=keepdims)
def var_mean(x, axis=None, unbiased=True, keepdims=False, ddof=1):
    return torch_var(x, axis, unbiased, keepdims, ddof), mean(x, axis, keepdims=keepdims)
def std_mean(x, axis=None, unbiased=True, keepdims=False, ddof=1):
    return torch_std(x, axis, unbiased, keepdims, ddof), mean(x, axis, keepdims=keepdims)

def _over(x, normalized_shape):
    return x.ndim - (len(normalized_shape) if _is_sequence(normalized_shape) else 1)
def torch_layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    d = _over(x, normalized_shape)
    y = reshape(layer_norm(reshape(x, x.shape[:d] + (-1,)), eps=eps), x.shape)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
def torch_rms_norm(x, normalized_shape, weight=None, eps=None):
    d = _over(x, normalized_shape)
    least = 2 ** (-10 if x.dtype == "f16" else -7 if x.dtype == "bf16" else -52 if x.dtype == "f64" else -23)
    y = reshape(rms_norm(reshape(x, x.shape[:d] + (-1,)), eps=least if eps is None else eps), x.shape)
    return y if weight is None else y * weight
def torch_group_norm(x, num_groups, weight=None, bias=None, eps=1e-5):
    return group_norm(x, num_groups, weight, bias, eps=eps)
def instance_norm(x, weight=None, bias=None, eps=1e-5): return group_norm(x, x.shape[1], weight, bias, eps=eps)
def batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    assert not training, "programs train nothing: write it out with mean and var of x"
    y = (x - _channels(x, mean)) / sqrt(_channels(x, var) + eps)
    y = y if weight is None else y * _channels(x, weight)
    return y if bias is None else y + _channels(x, bias)
def _channels(x, v): return reshape(v, (-1,) + tuple(1 for i in range(x.ndim - 2)))

def attention(query, key, value, attn_mask=None, dropout_p=0, is_causal=False, scale=None, enable_gqa=False):
    assert dropout_p == 0, "programs have no random numbers: dropout_p=0"
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = repeat_interleave(key, groups, -3), repeat_interleave(value, groups, -3)
    s = query @ key.T * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        s = where(arange(query.shape[-2])[:, None] >= arange(key.shape[-2]), s, -inf)
    if attn_mask is not None:
        s = where(attn_mask, s, -inf) if _is_mask(attn_mask) else s + attn_mask
    return softmax(s) @ value
def embedding(index, weight): return take(weight, index, 0)
def torch_gather(x, axis, index): return gather(x, index, axis)
def index_select(x, axis, index): return take(x, index, axis)
def take_along_axis(x, index, axis): return gather(x, index, axis)

def _reduced(x, reduction):
    assert reduction in ("mean", "sum", "none"), "reductions are mean, sum, none"
    return mean(x) if reduction == "mean" else sum(x) if reduction == "sum" else x
def mse_loss(x, y, reduction="mean"): return _reduced(square(x - y), reduction)
def l1_loss(x, y, reduction="mean"): return _reduced(abs(x - y), reduction)
def huber_loss(x, y, reduction="mean", delta=1):
    d = abs(x - y)
    return _reduced(where(d < delta, square(d) / 2, delta * (d - delta / 2)), reduction)
def smooth_l1_loss(x, y, reduction="mean", beta=1):
    d = abs(x - y)
    return _reduced(where(d < beta, square(d) / (2 * beta), d - beta / 2), reduction)
def binary_cross_entropy(x, y, reduction="mean"):
    return _reduced(-(y * maximum(log(x), -100) + (1 - y) * maximum(log(1 - x), -100)), reduction)
def binary_cross_entropy_with_logits(x, y, reduction="mean"):
    return _reduced(maximum(x, 0) - x * y + log1p(exp(-abs(x))), reduction)
def kl_div(x, y, reduction="mean", log_target=False):
    d = exp(y) * (y - x) if log_target else y * (log(y) - x)
    return sum(d) / x.shape[0] if reduction == "batchmean" else _reduced(d, reduction)
def triplet_margin_loss(anchor, positive, negative, margin=1, p=2, eps=1e-6, reduction="mean"):
    apart = pairwise_distance(anchor, positive, p, eps) - pairwise_distance(anchor, negative, p, eps)
    return _reduced(maximum(apart + margin, 0), reduction)
def margin_ranking_loss(x, y, target, margin=0, reduction="mean"):
    return _reduced(maximum(target * (y - x) + margin, 0), reduction)
def soft_margin_loss(x, y, reduction="mean"): return _reduced(log1p(exp(-y * x)), reduction)
def poisson_nll_loss(x, y, log_input=True, eps=1e-8, reduction="mean"):
    return _reduced(exp(x) - y * x if log_input else x - y * log(x + eps), reduction)
def gaussian_nll_loss(x, y, var, eps=1e-6, reduction="mean"):
    v = maximum(var, eps)
    return _reduced((log(v) + square(x - y) / v) / 2, reduction)
def torch_nll_loss(x, target, reduction="mean"):
    axis = 0 if x.ndim == 1 else 1
    return _reduced(-squeeze(gather(x, unsqueeze(target, axis), axis), axis), reduction)
def torch_cross_entropy(x, target, reduction="mean", label_smoothing=0):
    axis = 0 if x.ndim == 1 else 1
    loss = cross_entropy(x, target, axis)
    if label_smoothing > 0:
        loss = loss * (1 - label_smoothing) - mean(log_softmax(x, axis), axis) * label_smoothing
    return _reduced(loss, reduction)

def _windows(x, kernel, stride, rank):
    size = kernel if _is_sequence(kernel) else tuple(kernel for i in range(rank))
    step = size if stride is None else stride if _is_sequence(stride) else tuple(stride for i in range(rank))
    if step == size and sum(x.shape[d - rank] % size[d] for d in range(rank)) == 0:
        lead = x.ndim - rank
        cut = [n for d in range(rank) for n in (x.shape[lead + d] // size[d], size[d])]
        y = reshape(x, x.shape[:lead] + tuple(cut))
        inner, outer = [lead + 2 * d + 1 for d in range(rank)], [lead + 2 * d for d in range(rank)]
        y = transpose(y, inner + list(range(lead)) + outer)
        return reshape(y, (-1,) + y.shape[rank:])
    parts = [x]
    for d in range(rank):
        at = x.ndim - rank + d
        count = (x.shape[at] - size[d]) // step[d] + 1
        parts = [_every(p, at, i, count, step[d]) for p in parts for i in range(size[d])]
    return stack(parts)
def _every(x, axis, start, count, step):
    y = swapaxes(x, 0, axis)
    return swapaxes(y[start : start + (count - 1) * step + 1 : step], 0, axis)
def _framed(x, padding, rank, value):
    edge = padding if _is_sequence(padding) else tuple(padding for i in range(rank))
    for d in range(rank):
        x = _padded(x, edge[d], edge[d], d - rank, value) if edge[d] > 0 else x
    return x
def max_pool1d(x, kernel_size, stride=None, padding=0):
    return max(_windows(_framed(x, padding, 1, -inf), kernel_size, stride, 1), axis=0)
def max_pool2d(x, kernel_size, stride=None, padding=0):
    return max(_windows(_framed(x, padding, 2, -inf), kernel_size, stride, 2), axis=0)
def avg_pool1d(x, kernel_size, stride=None, padding=0):
    return mean(_windows(_framed(x, padding, 1, 0), kernel_size, stride, 1), axis=0)
def avg_pool2d(x, kernel_size, stride=None, padding=0):
    return mean(_windows(_framed(x, padding, 2, 0), kernel_size, stride, 2), axis=0)
def adaptive_avg_pool2d(x, output_size):
    h, w = output_size if _is_sequence(output_size) else (output_size, output_size)
    return avg_pool2d(x, (x.shape[-2] // h, x.shape[-1] // w))
'''


@functools.cache
def prelude() -> Mapping[str, Inlined]:
    """The functions by their names, read when the first program is; numbers keep their text, for they are exact."""
    tree = statements(_TEXT)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            node.kind = repr(node.value)
    made = {}
    for function in tree.body:
        assert isinstance(function, ast.FunctionDef)
        names, given = [a.arg for a in function.args.args], function.args.defaults
        defaults = dict(zip(names[len(names) - len(given) :], map(_default, given), strict=True))
        rest = function.args.vararg.arg if function.args.vararg else ""
        keywords = tuple(a.arg for a in function.args.kwonlyargs)
        defaults |= {a: _default(d) for a, d in zip(keywords, function.args.kw_defaults, strict=True) if d is not None}
        made[function.name] = Inlined(function.name, tuple(names), defaults, tuple(function.body), None, rest, keywords)
    return made


def shown(name: str) -> str:
    """What a program calls the function of this name."""
    return _FRONT.sub("", name)


def _default(node: ast.expr) -> Result:
    match node:
        case ast.UnaryOp(operand=ast.Constant(kind=str(text))):
            return negate(literal(text))
        case ast.Constant(value=bool(flag)):
            return Number.of(flag)
        case ast.Constant(kind=str(text)):
            return literal(text)
        case ast.Constant(value=str(text)):
            return Text(text)
    return Nothing()
