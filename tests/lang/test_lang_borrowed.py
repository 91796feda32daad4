"""What programs borrow from NumPy and PyTorch means what it means there: the same text is run by Python itself."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.lang import parse
from mirage_nb.lang.names import BORROWED, SYNONYMS
from mirage_nb.lang.prelude import prelude, shown

torch = pytest.importorskip("torch")

INPUTS = {
    "X": (4, 6), "Y": (4, 6), "W": (6, 8), "L": (8, 6), "v": (6,), "u": (6,), "w": (8,), "N": (2, 4, 6), "M": (2, 6, 4),
    "I": (2, 4, 8, 8), "K": (6, 4, 3, 3), "C": (6, 4, 3), "Q": (2, 4, 6, 8), "P": (2, 2, 6, 8), "c": (4,), "d": (4,),
    "S": (6, 6), "p": (4, 6), "R": (3, 6, 8),
}  # fmt: skip
DECLARED = "".join(f"{name}: f64{list(shape)}\n" for name, shape in INPUTS.items())

LINES = """
torch.mean(X, dim=-1, keepdim=True) | X.mean(-1) | np.mean(X, axis=0) | X.sum() | X.sum((0, 1)) | np.sum(X)
X.max(-1, keepdim=True).values | X.amax(dim=1) | torch.max(X, Y) | torch.min(X, Y) | torch.amin(X, dim=0)
np.var(X, axis=0) | torch.var(X, dim=1) | torch.std(X, dim=1, keepdim=True) | X.var(dim=1)
torch.var_mean(X, dim=1)[0] | F.softmax(X, dim=0) | X.softmax(-1) | torch.log_softmax(X, dim=-1)
torch.logsumexp(X, dim=1) | X.prod(1) | X.cumsum(0) | X.flip(1) | torch.roll(X, 2, 1) | torch.roll(X, -1, 0)
X[:, 1:] - X[:, :-1] | torch.diff(X) | F.linear(X, L, w) | torch.matmul(X, W) | X @ v | v @ W | v @ u | np.dot(v, u)
torch.mv(X, v) | torch.bmm(N, M) | torch.addmm(w, X, W) | torch.baddbmm(N @ M, N, M, beta=2, alpha=0.5)
torch.outer(v, u) | X.mm(W) | N.matmul(M) | torch.einsum("ij,jk->ik", X, W) | np.einsum("ij,jk", X, W)
np.einsum("...ij,...jk->...ik", N, M) | torch.einsum("ij->", X) | np.einsum("i j, j k -> i k", X, W)
np.einsum("...i,i", X, v) | X.T | X.mT | X.transpose(0, 1) | N.transpose(-1, -2) | torch.transpose(N, 0, 2)
N.permute(2, 0, 1) | np.transpose(N) | np.transpose(N, (1, 0, 2)) | X.swapaxes(0, 1) | np.moveaxis(N, 0, -1)
torch.movedim(N, 2, 0) | X.contiguous().view(8, 3) | X.reshape(4, -1) * 2 | X.flatten() | N.flatten(1)
I.flatten(2, 3) | X.unflatten(-1, (2, 3)) | np.ravel(X) | X.unsqueeze(1) | np.expand_dims(X, -1) | N[:, :1].squeeze(1)
X.sum(0, keepdim=True).squeeze() | X[..., None] | X[:, None].expand(4, 3, 6) | v.expand_as(X) * X
np.broadcast_to(v, (4, 6)) * X | X.view_as(Y) + Y | X.repeat_interleave(2, dim=0) | np.repeat(X, 3, axis=1)
np.tile(v, (2, 2)) | np.tile(X, 2) | X.repeat(2, 1, 1) | torch.cat((X, Y), -1) | np.concatenate([X, Y])
torch.stack([X, Y], dim=1) | np.hstack([v, u]) | np.vstack((v, u)) | torch.hstack((X, Y)) | torch.vstack((X, Y))
X.chunk(2, dim=-1)[1] | X.split(4, dim=1)[1] | torch.split(X, [2, 4], 1)[0] | np.split(X, 3, axis=1)[2]
np.split(X, [2, 3], axis=1)[1] | F.pad(X, (1, 2)) | F.pad(X, (1, 0, 2, 1), value=2.5) | np.pad(X, ((0, 1), (2, 0)))
np.pad(X, 1, constant_values=1.5) | torch.ones(4, 6) * X | np.zeros((4, 6)) + X | torch.full((4, 6), 2.5) * X
torch.zeros_like(X) + Y | np.ones_like(X) - Y | np.full_like(X, 0.5) * Y | torch.full_like(X, 2) + X | np.eye(6) + S
np.linspace(0, 1, 6) * v | torch.tril(S) | np.triu(S, 1) | torch.triu(S, diagonal=-1) | torch.diag(S) | torch.diag(v)
torch.trace(S) | S.trace() | X.relu() | F.relu6(5 * X) | F.hardtanh(2 * X) | F.selu(X) | F.celu(X, 0.5) | F.elu(X)
F.silu(X) | F.glu(X, dim=-1) | F.mish(X) | F.tanhshrink(X) | F.threshold(X, 0.25, 2) | F.gelu(X, approximate="tanh")
F.softshrink(X, 0.3) | F.hardshrink(X) | np.cross(X[:, :3], Y[:, 3:]) | torch.cross(X[:3], Y[:3], dim=0) | np.cov(X)
np.cbrt(X) | np.cov(v) | np.hanning(6) * v | np.hamming(6) * v | torch.hann_window(6) * v
F.gelu(X) | F.leaky_relu(X, negative_slope=0.2) | F.softplus(X) | F.logsigmoid(X) | F.hardswish(X) | F.hardsigmoid(X)
F.softsign(X) | X * torch.sigmoid(1.702 * X) | torch.clamp(X, min=-0.5, max=0.5) | X.clamp(0.1) | X.clamp_min(0.2)
torch.clamp_max(X, 0.2) | np.clip(X, -0.1, 0.3) | X.abs().sqrt() | X.pow(2) | X.square() | X.exp() | p.log()
p.rsqrt() | p.reciprocal() | X.neg() | torch.exp2(X) | np.log2(p) | torch.log10(p) | torch.ceil(3 * X) | X.erf()
np.logaddexp(X, Y) | torch.logaddexp(X, Y) | 2.0 ** X | 10 ** (X / 3) | X.add(Y) | torch.add(X, Y, alpha=2)
X.sub(Y, alpha=0.5) | torch.subtract(X, Y) | X.mul(Y) | X.div(p) | X.multiply(2) | np.add(X, Y)
torch.lerp(X, Y, 0.25) | torch.addcmul(X, Y, Y, value=0.5) | torch.addcdiv(X, Y, p) | torch.sign(X) | +X * 2
torch.where(X > 0, X, 0.0) | X.masked_fill(Y > 0, -5.0) | X.masked_fill(~(Y > 0), 1.5)
np.where((X > 0) & (Y > 0), 1, -1) * v | torch.where(torch.logical_and(X > 0, Y < 0), X, Y)
torch.where(torch.logical_or(X > 0, Y < 0), X, Y) | X * X.gt(Y).double()
np.sinh(X) | torch.cosh(X) | torch.tan(X) | torch.asinh(X) | X.asinh() | torch.acosh(1 + p)
torch.atanh(X * 0.9) | torch.logit(torch.sigmoid(X)) | torch.erfc(X) | torch.trunc(5 * X) | torch.frac(5 * X)
torch.round(5 * X) | np.round(torch.arange(9) * 0.5 - 2.0) | torch.hypot(X, Y) | np.heaviside(X, Y) | torch.sinc(X)
torch.deg2rad(X) | np.rad2deg(X) | torch.fliplr(X) | np.flipud(X) | X.narrow(1, 2, 3) | torch.select(N, 1, 2)
X.select(-1, 0) | np.kron(v, u) | torch.kron(X, S) | F.pixel_shuffle(I, 2) | F.interpolate(I, scale_factor=2)
F.interpolate(N, size=12) | F.interpolate(I, scale_factor=(2, 1))
torch.argmax(X, dim=1) * 1.0 | X.argmin(0, keepdim=True) * 1.0 | np.argmax(X) * 1.0
torch.any(X > 0.9, dim=1) * v[0] | (X > -2).all() * v | torch.count_nonzero(X > 0, dim=0) * v
np.ptp(X, axis=0) | torch.aminmax(X, dim=1, keepdim=True)[1] | np.average(X, axis=1) | np.average(X, weights=p, axis=0)
F.softmin(X, dim=1) | torch.trapezoid(X) | np.inner(X, L) | np.inner(X, v) | np.tensordot(X, W, axes=1)
torch.tensordot(X, W, dims=1) * 2 | F.bilinear(X, X @ W, R) | torch.dist(X, Y)
torch.cdist(X, L) | torch.linalg.vector_norm(X, ord=3, dim=1) | torch.std_mean(X, dim=1)[0] | torch.vdot(v, u)
F.triplet_margin_loss(X, Y, p) | F.margin_ranking_loss(X, Y, torch.sign(p), margin=0.5) | torch.sgn(X) * Y
F.soft_margin_loss(X, torch.sign(Y)) | F.poisson_nll_loss(X, p) | F.poisson_nll_loss(p, p, log_input=False)
F.gaussian_nll_loss(X, Y, p) | torch.float_power(p, 3) | torch.special.expit(X)
torch.where(torch.logical_not(X >= 0), X, Y) | X * X.ge(Y) | X * X.lt(Y) | X * X.le(Y) | X * X.eq(Y) | X * X.ne(Y)
X / X.norm(dim=-1, keepdim=True) | torch.norm(X, p=1, dim=1) | np.linalg.norm(X, axis=0) | torch.norm(X, p=3, dim=1)
np.linalg.norm(v, ord=np.inf) | torch.norm(X) | F.normalize(X, dim=-1) | F.normalize(X)
F.cosine_similarity(X, Y, dim=1) | F.pairwise_distance(X, Y) | F.layer_norm(X, (6,), v, u, 1e-5)
F.layer_norm(N, (4, 6)) | F.layer_norm(X, X.shape[-1:], eps=0.1) | F.rms_norm(X, (6,), v, 1e-6) | F.rms_norm(X, [6])
F.group_norm(I, 2, c, d, 1e-5) | F.instance_norm(I) | F.batch_norm(I, c, d * d + 1, c, d, eps=1e-4)
F.batch_norm(I, c, d * d + 1) | F.scaled_dot_product_attention(Q, Q, Q)
F.scaled_dot_product_attention(Q, Q, Q, is_causal=True, scale=0.5)
F.scaled_dot_product_attention(Q, Q, Q, attn_mask=S) | F.scaled_dot_product_attention(Q, Q, Q, attn_mask=S > 0)
F.scaled_dot_product_attention(Q, P, P, enable_gqa=True) | F.mse_loss(X, Y) | F.mse_loss(X, Y, reduction="none")
F.l1_loss(X, Y, reduction="sum") | F.huber_loss(3 * X, Y, delta=0.5) | F.smooth_l1_loss(3 * X, Y, beta=0.5)
F.binary_cross_entropy(torch.sigmoid(X), torch.sigmoid(Y)) | F.binary_cross_entropy_with_logits(X, torch.sigmoid(Y))
F.kl_div(X, p) | F.kl_div(X, Y, reduction="batchmean", log_target=True)
F.cross_entropy(X, p / p.sum(1, keepdim=True))
F.cross_entropy(X, torch.softmax(Y, 1), label_smoothing=0.1, reduction="sum") | F.conv1d(N, C, v, stride=1, padding=1)
F.conv2d(I, K, v, 2, 1) | F.conv2d(I, K, None, 1, 1, 2) | F.conv1d(N, C, dilation=2) | F.conv2d(I, K[:, :2], groups=2)
F.conv1d(N, C, padding="same") | F.conv2d(I, K, stride=(2, 1), padding=(1, 0))
F.max_pool2d(I, 2) | F.max_pool2d(I, 3, stride=2, padding=1) | F.avg_pool2d(I, kernel_size=2, stride=2)
F.avg_pool2d(I, (2, 3)) | F.max_pool1d(N, 2) | F.avg_pool1d(N, 2, 1, padding=1) | F.adaptive_avg_pool2d(I, 1)
F.adaptive_avg_pool2d(I, (2, 4)) | X.type_as(Y) + 1 | X.to(torch.float64) + 1 | np.sin(X * math.pi) + np.pi
X / math.sqrt(16) | X.detach() * X.shape[0] / X.size(-1)
torch.concat([X @ L.T[:, i : i + 2] for i in range(0, 8, 2)], dim=1)
torch.cat([a * b for a, b in zip((X, Y), (Y, Y))]) | sum([X.size(0), X.ndim]) * X if False else X * len(X.shape)
torch.stack([x * i for i, x in enumerate((X, Y))]) | X * (3 if X.shape[1] > 4 and not X.shape[0] == 3 else 2)
torch.stack([X[i] * j for i in range(2) for j in range(3) if i != j]) | sum(X[:, i] for i in range(5)) | sum([X, Y]) / 2
X * sum(i * i for i in range(4)) + max(1, 2) - min(3, X.shape[0]) | sum(X[i] @ W for i in range(2)) - X.sum()
np.roll(X, 2) | torch.roll(X, (1, -1), (0, 1)) | X * math.log(2) + np.exp(-1) * math.sin(0.5) | X * (1 + math.sqrt(2))
X * 2 ** (1 / 97) + math.sqrt(2) * 3 ** (1 / 33) * 5 ** (60 / 61)
(2 ** (1 / 33)) ** (1 / 34) * X | X * int(math.log2(X.shape[0])) | X // 0.3 | np.mod(X, 0.3) | X % -0.25
torch.floor_divide(X, 0.4) | torch.remainder(X, Y) | torch.fmod(X, 0.3)
X * (torch.arange(6) // 3 + torch.arange(6) % 4)
(np.arange(41) * 7 - 120) // 7 | (np.arange(41) - 20) % 5 | (np.arange(41) - 20) // -3 | X.reshape(*X.shape[:-1], 2, 3)
np.einsum("ii->i", S) | np.einsum("ii", S) | torch.einsum("iij->ji", torch.stack([S, S + 1, S * S], -1)) | X * (-7 // 2)
np.einsum("ij,jj->i", X, S) | np.meshgrid(v, u[:4], indexing="ij")[1] | torch.meshgrid(v, u[:3])[0] + 1
np.meshgrid(v, u[:4])[0] + 1 | v[:, np.newaxis] - u[np.newaxis, :] | torch.stack([*(v, u), v + u])
torch.cumprod(X, dim=1) | torch.logcumsumexp(X, dim=0) | torch.cummax(X, dim=0)[0] | torch.cummin(X, dim=1)[0]
np.polyval([1.0, -2.0, 0.5], X) | torch.where(X > 0, X, torch.tensor(0.5))
v * torch.arange(0, 3, 0.5) | np.arange(1.5, -1.4, -0.5) * u | X * math.prod(X.shape[:1]) + np.prod([2, 3])
torch.linalg.multi_dot([X, S, W]) | v * np.linspace(0, 1, num=6) | X[range(4), torch.arange(4)] * 2
torch.einsum("ij,jk->ik", [X, W]) | torch.roll(X, (5,))
torch.tril(torch.ones(6, 6, dtype=torch.bool)).double() @ S | torch.zeros(4, 6, dtype=torch.float64) + X
"""
EXAMPLES = [part.strip() for line in LINES.strip().splitlines() for part in line.split(" | ")]

PROGRAMS = {
    "rotary": """
def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)
pos = torch.arange(6)
inv = 1.0 / (100 ** (torch.arange(0, 8, 2) / 8))
freqs = torch.outer(pos * 1.0, inv)
emb = torch.cat((freqs, freqs), dim=-1)
return Q * emb.cos() + rotate_half(Q) * emb.sin()
""",
    "interleaved": """
angle = torch.arange(6)[:, None] * torch.exp(torch.arange(4) * -0.5)
x1, x2 = Q[..., ::2], Q[..., 1::2]
return torch.stack((x1 * angle.cos() - x2 * angle.sin(), x1 * angle.sin() + x2 * angle.cos()), dim=-1).flatten(-2)
""",
    "causal": """
B, H, T, D = Q.shape
mask = torch.tril(torch.ones(T, T))
S = (Q @ Q.transpose(-2, -1)) / math.sqrt(D)
S = S.masked_fill(mask == 0, float("-inf"))
return F.softmax(S, dim=-1) @ Q
""",
    "llama mask": """
T = 6
mask = torch.full((T, T), float("-inf"))
mask = torch.triu(mask, diagonal=1)
return torch.softmax(Q @ Q.mT + mask, dim=-1) @ Q
""",
    "alibi": """
slopes = 2.0 ** (-2 * (torch.arange(4) + 1.0))
bias = -slopes[:, None, None] * torch.abs(torch.arange(6)[:, None] - torch.arange(6))
return torch.softmax(Q @ Q.mT * 0.25 + bias, -1) @ Q
""",
    "adam": """
b1, b2 = 0.9, 0.999
m = b1 * X + (1 - b1) * Y
v2 = b2 * p + (1 - b2) * Y**2
return X - 1e-3 * (m / (1 - b1)) / (torch.sqrt(v2 / (1 - b2)) + 1e-8), m, v2
""",
    "layers": """
import torch.nn.functional as nnf
x = X
outs = []
for i, w in enumerate((S, S.T)):
    x = x + nnf.relu(x @ w) * (i + 1)
    if i > 0:
        outs.append(x)
    else:
        outs = outs + [x * 2]
return torch.cat(outs, dim=-1)
""",
    "typed": """
def block(x: torch.Tensor, w: torch.Tensor, bias=None, *, act="relu") -> torch.Tensor:
    "One layer."
    y = x @ w
    if bias is not None:
        y += bias
    if act == "relu":
        return F.relu(y)
    elif act == "tanh":
        return torch.tanh(y)
    return y
return block(X, W), block(X, w=W, bias=w, act="tanh"), block(X, W, act="none")
""",
    "linear attention": """
q, k = F.elu(Q) + 1, F.elu(Q) + 1
kv = torch.einsum("bhnd,bhne->bhde", k, Q)
z = 1 / (torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2)) + 1e-6)
return torch.einsum("bhnd,bhde,bhn->bhne", q, kv, z)
""",
    "lambda": """
phi = lambda x: F.elu(x) + 1
mix = lambda a, b, t=0.5: a * t + b * (1 - t)
x = X; y = Y
return mix(phi(x), y), mix(*(x, y), t=0.25)
""",
    "blocks": """
i, j = np.arange(6)[:, None], np.arange(6)
near = (i // 2 == j // 2) | ((i + j) % 3 == 0)
return np.where(near, S, 0.0)
""",
    "even and odd": """
y = torch.zeros_like(X)
y[:, ::2] = Y[:, :3]
y[:, 1::2] = -X[:, 3:]
return y
""",
    "parts added to": """
y = X * 2
y[:, :4] += X[:, 2:]
y[1:, -1] *= 3.0
y[0] = v
return y, X + y
""",
    "constants": """
y = X.clone()
y[:, 0] = 0
y[-1] = 1.5
y[1:3, ::2] = -2
y[..., 1] = X[..., -1]
y[0, 3] = X[2, 2]
return y
""",
    "masked": """
y = X * 1.0
y[y < 0] = 0
y[X > 0.5] += 1
S2 = S + 0
S2[torch.arange(6) > 3] = -1.0
return y, S2
""",
    "steps": """
y = torch.zeros(4, 6, dtype=X.dtype)
y[:, 1::3] = X[:, :2]
y[::2, 5] = c[:2]
y[1:4:2, 0:5:4] = 7 * X[:2, :2]
y[:, 2::4] = Y[:, :1]
return y
""",
    "three axes": """
y = N + 0
y[:, 1:3, 1::2] = N[:, :2, :3]
y[1, :, :2] = c[:, None]
return y.sum(0), y
""",
    "rotary into parts": """
out = torch.empty_like(Q)
cos, sin = torch.cos(torch.arange(6) * 0.3)[:, None], torch.sin(torch.arange(6) * 0.3)[:, None]
q1, q2 = Q[..., :4], Q[..., 4:]
out[..., :4] = q1 * cos - q2 * sin
out[..., 4:] = q2 * cos + q1 * sin
return out
""",
    "sinusoid": """
pos = torch.arange(4).unsqueeze(1)
div = torch.exp(torch.arange(0, 6, 2) * (-math.log(10000.0) / 6))
pe = torch.zeros(4, 6)
pe[:, 0::2] = torch.sin(pos * div)
pe[:, 1::2] = torch.cos(pos * div)
return X + pe
""",
    "stencil": """
y = np.copy(S)
y[1:-1, 1:-1] = 0.25 * (S[:-2, 1:-1] + S[2:, 1:-1] + S[1:-1, :-2] + S[1:-1, 2:])
return y
""",
    "a scan": """
h = X[0]
out = torch.zeros(4, 6)
for t in range(4):
    h = 0.9 * h + X[t]
    out[t] = h
outs = [None, X]
outs[0] = out
return torch.stack(outs)
""",
    "views of what is written": """
y = X * 2
y[0] = y[1]
z = y
z[:, 0] = 1
w2 = z[0]
return z + 1, w2 * 2
""",
    "in place": """
y = X * 1.0
y.add_(1).mul_(2)
y = y.relu_()
y.clamp_(max=1.5)
return F.relu(y, inplace=True), X.clone().zero_() + y, y.clone().fill_(2.5) * Y
""",
    "maxima and places": """
m, at = X.max(dim=-1, keepdim=True)
v1, i1 = torch.max(X, 1)
v2 = torch.min(X, dim=0)[0]
return X - m, at * 1.0, v1 * i1, v2, torch.max(X, dim=1).indices * 1.0, X.max(dim=0).values + X.min(0)[0]
""",
    "targets": """
a = b = X * 2
first, *rest = X.split(2, dim=-1)
(d1, d2), e = X.chunk(2, dim=-1), X.sum(-1, keepdim=True)
q, k, z, zz = X.unbind(0)
r0, r1, r2, r3 = Y
*head, last = Y
return a + 1, b * Y, first + sum(rest), d1 * d2 + e, q * k + z, r0 * r3, last * head[1]
""",
    "rows": """
s = 0
for row in X:
    s = s + row * row
for i, (a, b) in enumerate(zip(X, Y)):
    s = s + i * a * b
return s
""",
    "nested functions": """
def lambda2(t):
    return t * 2
def block(x, g, *rest, eps=1e-5):
    def norm(z, gain=None):
        y = z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + eps)
        return y if gain is None else y * gain
    act = torch.tanh
    out = norm(x, gain=g)
    for f in (act, F.silu, lambda2):
        out = out + f(x)
    return out + sum(rest)
def twice(f, x):
    return f(f(x))
return block(X, v, Y, Y * Y, eps=1e-3), twice(torch.sin, X), torch.cat(list(map(torch.exp, X.chunk(2, -1))), -1)
""",
    "loops that end": '''
"""What a reader is told,
in two lines."""
x, i = X, 0
while i < 3:
    x = x + i * Y
    i += 1
for j in range(9):
    if j == 2:
        continue
    if j > 4:
        break
    x = x * (j + 1)
assert x.shape[0] == 4 and x.ndim == 2
EPS: float = 1e-5
n: int = len(x)
del i
if n > 4:
    pass
return x / (x.abs().sum(-1, keepdim=True) + EPS)
''',
    "tables": """
w3 = torch.tensor([0.299, 0.587, 0.114])
k = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]])
return N[:, :3].mT @ w3, F.conv2d(I[:, :1], k[None, None], padding=1), X * torch.tensor(0.5)
""",
    "kinds": """
m = torch.triu(torch.ones(6, 6), diagonal=1).bool()
b = (X > 0).float() * X
own = (X > 0).int() * v
return S.masked_fill(m, -math.inf).softmax(-1), b, (5 * X).long() * Y, own, X.sum(dim=-1, dtype=torch.float64)
""",
    "backwards": """
y = np.zeros((4, 6))
y[::-2, 5] = c[:2]
y[1::2, ::-1] += X[:2]
y[:, -2:0:-3] = 7
return y
""",
    "names of results": """
made = torch.cat([X.new_zeros(4, 1), X.new_ones(4, 2)], dim=1)
return X.t() / X.numel(), torch.tensordot(N, M, dims=([1, 2], [2, 1])), S.diagonal() * 2, made
""",
    "modulated": """
shift, scale, gate = (F.silu(X) @ torch.cat([S, S, S], 1)).chunk(3, dim=1)
h = F.layer_norm(X, X.shape[-1:])
return X + gate * (h * (1 + scale) + shift)
""",
}  # fmt: skip


def by_python(text: str, arrays: dict[str, Any], library: Any) -> list[np.ndarray[Any, Any]]:
    """The outputs of the text as a function of Python, on arrays of NumPy or PyTorch."""
    names: dict[str, Any] = {"np": np, "torch": torch, "F": torch.nn.functional, "math": math, **vars(builtins)}
    body = "".join(f"    {line}\n" for line in text.strip().splitlines())
    exec(f"def program({', '.join(arrays)}):\n{body}", names)
    found = names["program"](*(library(a) for a in arrays.values()))
    return [np.asarray(one, np.float64) for one in (found if isinstance(found, tuple) else [found])]


def agree(text: str) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: rng.uniform(-1, 1, shape) for name, shape in INPUTS.items()}
    arrays["p"] = rng.uniform(0.5, 1.5, INPUTS["p"])
    graph = parse(DECLARED + text).graph
    found = evaluate(graph, list(arrays.values()))
    library = np.array if "np." in text and "torch" not in text and "F." not in text else torch.tensor
    torch.set_default_dtype(torch.float64)
    try:
        wanted = by_python(text, arrays, library)
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.shape == (theirs.shape or (1,))
        np.testing.assert_allclose(mine, theirs.reshape(mine.shape), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_expression_is_what_python_makes_of_it(example: str) -> None:
    agree(f"return {example}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_what_python_makes_of_it(name: str) -> None:
    agree(PROGRAMS[name])


def test_every_borrowed_function_has_an_example() -> None:
    told = "\n".join([*EXAMPLES, *PROGRAMS.values()])
    meant = {SYNONYMS.get(name, name) for name in _called(told)} | _called(told)
    missing = {shown(name) for name in prelude() if not name.startswith("_")} - meant - INDEXED - PLAIN
    assert not missing
    assert {name for _, name in BORROWED} <= meant | INDEXED


INDEXED = {"embedding", "gather", "index_select", "take_along_axis", "nll_loss", "attention"}
"""Functions of integers: see test_lang_integers."""
PLAIN = {"quick_gelu"}
"""Functions that neither has under this name."""


def _called(text: str) -> set[str]:
    return {part.rpartition(".")[2].rpartition(" ")[2].rpartition("[")[2].rpartition("(")[2].rpartition("-")[2]
            for part in text.replace("~", " ").split("(")}
