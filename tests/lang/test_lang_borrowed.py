"""What programs borrow from NumPy and PyTorch means what it means there: the same text is run by Python itself."""

from __future__ import annotations

import builtins
import math
import re
from typing import Any

import numpy as np
import pytest

from mirage_nb.interp.reference import evaluate
from mirage_nb.lang import parse
from mirage_nb.lang.names import BORROWED, SYNONYMS, shown
from mirage_nb.lang.prelude import prelude
from tests.borrowed_programs import PROGRAMS

torch = pytest.importorskip("torch")

INPUTS = {
    "X": (4, 6), "Y": (4, 6), "W": (6, 8), "L": (8, 6), "v": (6,), "u": (6,), "w": (8,), "N": (2, 4, 6), "M": (2, 6, 4),
    "I": (2, 4, 8, 8), "K": (6, 4, 3, 3), "C": (6, 4, 3), "Q": (2, 4, 6, 8), "P": (2, 2, 6, 8), "c": (4,), "d": (4,),
    "S": (6, 6), "p": (4, 6), "R": (3, 6, 8),
}  # fmt: skip

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
I.flatten(2, 3) | X.unflatten(-1, (2, 3)) | np.ravel(X) | X.unsqueeze(1) | np.expand_dims(X, -1)
np.expand_dims(X, (0, 3)) | np.squeeze(X[None, :, None], (0, 2)) * 2 | N[:, :1].squeeze(1)
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
np.floor(np.arange(50) / 49) | np.ceil((np.arange(50) - 49) / 49) | torch.floor(torch.arange(99) * 3 / 7)
np.trunc(np.arange(99) / 49) | (torch.arange(-99, 99) / 49).int() * 1 | torch.floor((torch.arange(99) + 3) / 49 - 1)
torch.trunc(torch.arange(99) / (torch.arange(99) % 7 + 1)) | torch.floor(torch.arange(99) / -(torch.arange(99) % 7 + 1))
X * (torch.arange(6) // 3 + torch.arange(6) % 4)
(np.arange(41) * 7 - 120) // 7 | (np.arange(41) - 20) % 5 | (np.arange(41) - 20) // -3 | X.reshape(*X.shape[:-1], 2, 3)
np.einsum("ii->i", S) | np.einsum("ii", S) | torch.einsum("iij->ji", torch.stack([S, S + 1, S * S], -1)) | X * (-7 // 2)
np.einsum("ij,jj->i", X, S) | np.meshgrid(v, u[:4], indexing="ij")[1] | torch.meshgrid(v, u[:3])[0] + 1
np.meshgrid(v, u[:4])[0] + 1 | v[:, np.newaxis] - u[np.newaxis, :] | torch.stack([*(v, u), v + u])
torch.cumprod(X, dim=1) | torch.logcumsumexp(X, dim=0) | torch.cummax(X, dim=0)[0] | torch.cummin(X, dim=1)[0]
np.polyval([1.0, -2.0, 0.5], X) | torch.where(X > 0, X, torch.tensor(0.5))
v * torch.arange(0, 3, 0.5) | np.arange(1.5, -1.4, -0.5) * u | X * math.prod(X.shape[:1]) + np.prod([2, 3])
torch.linalg.multi_dot([X, S, W]) | v * np.linspace(0, 1, num=6) | X[range(4), torch.arange(4)] * 2
np.gradient(v) | np.gradient(X, 0.5)[1] | np.gradient(X, axis=0) | np.gradient(X[:, :2], axis=1)
torch.gradient(X, dim=1)[0] | torch.gradient(v, spacing=2.0)[0] | torch.diag_embed(X) | np.tri(6, k=-1) @ S
np.array_split(X, 4, axis=1)[3] | np.column_stack((c, X)) | np.copysign(X, Y) | np.where(np.isclose(X, X[0, 0]), Y, X)
F.dropout(X, 0.1, training=False) * 2 | np.select([X < -0.5, X > 0.5], [-X, Y], 0.25) | np.corrcoef(X)
np.piecewise(X, [X < 0, X >= 0.5], [lambda t: t * t, lambda t: -t, 3]) | np.linalg.matrix_power(S, 3)
np.radians(X) + np.degrees(Y) | X ** 0 + Y | sum(X ** k / math.factorial(k) for k in range(4))
np.dot(N[..., :3], [1, 2, 3])
X[X > 0].sum() * v | X[X > 0].mean() + v | X[c > 0].mean(axis=0) * v
X[c < 0].amax(0) + v | X[c < 0].min() * v
torch.exp(X[X > 0] * 2 - Y[X > 0]).sum() * v | F.mse_loss(X[c > 0], Y[c > 0]) + v | (-X[X < 0]).clamp(max=0.5).sum() * v
np.abs(v - X[c > 0]).mean() * X | X[X > 0].double().max() + X | X * sum((i * v for i in range(2)), start=Y)
sum(i * row for i, row in enumerate(X, start=2)) | sum(i * row for i, row in enumerate(X, 1)) | (t := X * 2) + t.sum()
torch.stack([*{k: X * i for i, k in enumerate(["a", "b"])}.values()][:1]) if X.shape[0] > 9 else X * 3
np.where((X > 0) ^ (Y > 0), X, Y) | torch.where(torch.logical_xor(X > 0, Y > 0), X, Y) | np.add.reduce(X)
np.round(X, 2) | np.maximum.reduce(N, axis=1) | np.divmod(X, 0.3)[0] + np.divmod(X, 0.3)[1]
X[sorted([3, 0, 2])] * 2 | np.rot90(X, 3) * 2 | X[np.tril_indices(4, -1)] * 2 | X[np.triu_indices(4)] * 2
torch.block_diag(X, W)
np.vander(v, 3) | np.diag(X, -1) * 2 | np.digitize(X, [-0.5, 0.0, 0.5]) * 1.0 | np.diag(v, 2) + 0 | np.diag(v, -1) + 0
np.eye(6, k=2) @ S | np.cumsum(X)
np.convolve(v, u[:4], mode="same") | np.convolve(v, u[:3]) | np.correlate(v, u[:4], "same") | np.correlate(v, u[:3])
np.convolve(v, u[:3], mode="same") | F.softplus(X, beta=2) | X * 2 * all(n > 3 for n in X.shape) + any([0, 0])
F.binary_cross_entropy_with_logits(X, torch.sigmoid(Y), pos_weight=torch.tensor(2.0)) | X.clone().fill_diagonal_(0)
torch.where(torch.tensor(True), X, Y) if X.shape[0] < 0 else F.softmax(X, **{"dim": 0}) | X * int(8 ** 0.5) ** 2
torch.stack([X.sum(), v @ u, X[0, 1] * 2 - 1]) | torch.stack([v.mean(), u.max() + v[0]], dim=-1) | X.sum()[None] + v[:1]
torch.einsum("ij,jk->ik", [X, W]) | torch.roll(X, (5,))
torch.tril(torch.ones(6, 6, dtype=torch.bool)).double() @ S | torch.zeros(4, 6, dtype=torch.float64) + X
X * (None or 3) + (0 or 0.5) + (2 and X.shape[0]) | F.softmax(N) + F.log_softmax(X[0]) | np.trace(R[:, :3, :3])
F.softmin(N) | np.diagonal(R, 1, 0, 2) | torch.diagonal(N, dim1=1, dim2=2, offset=-1) | np.dot(N, M) | np.dot(X, S)
np.vdot(S, S.T) | np.inner(N, X) | np.linalg.norm(S, 1) + np.linalg.norm(S, ord=np.inf) | torch.linalg.norm(X)
np.linalg.norm(X, 3, axis=1) | torch.linalg.norm(N, "fro", dim=(1, 2)) | np.linalg.norm(v, -1 + 2) | np.cumprod(X)
torch.where((X > 0) + (Y > 0), X, Y) | ((X > 0) + (Y > 0)) * 1.0 | (X > 0) * 1 + (Y > 0) * 1 | np.eye(6) + np.eye(6) + S
(X > 0).double() + (Y > 0).double() | ((X > 0) @ (Y.T > 0)) * 1 if X.shape[0] < 0 else np.add(X > 0, Y > 0) * 1.0
X[torch.arange(4) - 1] * 2 | X[np.arange(3) - 2, np.arange(3) - 1] | np.take(X, np.arange(4) - 2, axis=1) + 0
np.arange(1, 1.3, 0.1) * c | (torch.arange(6) // 2 ** torch.arange(6)) % 2 * v | X.sum().unsqueeze(0) + v[:1]
X[0, 0].unsqueeze(-1) * v | X * X.sum().ndim + len(X.sum().shape) + Y | torch.clamp(X, Y, Y + 0.5) | np.clip(X, Y, 1)
torch.clamp(X, min=Y) | torch.div(X, Y, rounding_mode="floor") | torch.div(5 * X, p, rounding_mode="trunc")
torch.div(torch.arange(6), 4, rounding_mode="trunc") * v | torch.fmod(torch.arange(64), 49)[None] * c[:, None]
np.cov(X, rowvar=False) | np.cov(X, ddof=0) | np.cov(X, bias=True) | np.corrcoef(X, rowvar=False) | X.where(Y > 0, Y)
np.average(X, axis=0, weights=d * d) | torch.cross(X[:3], Y[:3]) if X.shape[0] < 0 else np.add(X, Y)
np.add.accumulate(X) | np.multiply.accumulate(X, axis=1) | np.maximum.accumulate(X, axis=1) | np.subtract.outer(v, X)
np.logical_and.reduce(X > -1, axis=1) * c | np.exp(X, where=X > 0, out=np.zeros_like(X)) | np.add(X, v, out=Y * 0) + 1
np.divide(X, Y, out=np.zeros((4, 6)), where=np.abs(Y) > 0.5) | np.sum(X, axis=1, where=X > 0)
np.sum(X, where=Y > 0) * v | np.nan_to_num(np.where(X > 0, X, np.inf), posinf=2.0) | np.nan_to_num(np.log(X))
np.nansum(np.log(X), axis=1) | np.nanmean(np.log(X), axis=1) | X * np.finfo(np.float32).eps + np.finfo(np.float16).max
torch.iinfo(torch.int8).max * X | torch.finfo(torch.bfloat16).min * X | X * (1 << 3) + (256 >> 2) + 0x1F * 0b101
X * (0xFF & 0x0F ^ 3|64) + round(2.567, 1)
(torch.arange(6) << 2 >> 1) * v | (torch.arange(6) & 3) * v | torch.bitwise_and(torch.arange(6) * 7, 15) * v
torch.bitwise_right_shift(torch.arange(6), 1) * v | torch.bitwise_left_shift(torch.arange(6), 2) * v
torch.bitwise_or(X > 0, Y > 0) * 1 | torch.bitwise_xor(X > 0, Y > 0) * 1
X[:, torch.arange(3) * 2] | N[..., torch.arange(3) % 2] | N[:, torch.arange(3)] * 2 | X[torch.arange(3), :] + v
(-1) ** torch.arange(6) * v | (-2) ** torch.arange(6) * v | np.power(2.0, X) | np.fmax(X, np.log(Y))
np.nanmax(np.log(X), axis=1) | np.nanmin(np.log(X)) * v | np.choose(np.arange(6) % 2, [v, u]) | np.modf(X * 3)[1]
np.fmin(X, np.log(Y)) | np.diff(X, n=2) | np.repeat(v, 2) * 2 | np.logspace(0, 1, 6) * v | np.atleast_2d(v) + X
np.array([v[0], v.sum(), 0, 2.5]) | np.array([v, u * 2])
np.asarray([[v[0], -v[1]], [v[1], 1]]) @ np.array([v[0], v[1]]) | np.array([r / np.sum(r) for r in X])
N[:, [0, 1, 3], [2, 5, 0]] | I[:, [0, 1], [1, 2]] | I[1:, [0, 1], [1, 2], :] | Q[[0, 1], [3, 2], :]
torch.tril(S)[torch.tril_indices(6, 4, -1)[0], torch.tril_indices(6, 4, -1)[1]] | S[None:2] * 2
X[torch.triu_indices(4, 6, 1)[0], torch.triu_indices(4, 6, 1)[1]]
np.geomspace(1, 100, 6) * v | np.dstack((X, Y)) | np.dstack([v, u]) | np.logaddexp2(X, Y) | F.lp_pool1d(N, 2, 2)
F.lp_pool2d(I, 2, 3, 2) | F.lp_pool2d(I * I, 3, 2)
np.maximum.reduce([X, Y, -X]) | np.add.reduce([X, Y]) + 1
np.max(X, axis=1, initial=0.5) | np.sum(X, axis=0, initial=2.0, where=Y > 0) | F.prelu(N, c)
np.min(X, axis=0, initial=np.inf) | np.max(X, axis=1, initial=-np.inf, where=Y > -9) | np.prod(X, axis=1, initial=0.5)
np.min(X, axis=1, initial=0.25, where=Y > 0) | F.prelu(X, v) | F.prelu(X, v[:1]) | np.append(X, Y, axis=0)
np.append(X, v)
np.array_equal(X, Y) * X | np.allclose(X, X + 1e-9) * X | np.invert(X > 0) * X | X[np.arange(4)[:, None], np.arange(3)]
torch.atan2(X, Y) | np.arctan2(np.round(X) + 0.0, np.round(Y) - 1.0) | torch.asin(torch.tanh(X)) | np.arctan(X)
X.tanh().acos() | F.pdist(X) | F.adaptive_avg_pool3d(I[None], (1, 2, 4))
np.around(X * 2.5) | np.arcsinh(X) | np.arctanh(X / 2) | np.arccosh(p + 1)
np.trapezoid(X, axis=0) | np.trapezoid(X, dx=0.5) | np.trapezoid(X, np.arange(6) * 2.0)
torch.tensor_split(X, 4, dim=1)[1]
(lambda t, k=2: t * k)(X) | sum(f(X) for f in [lambda t, i=i: t * i for i in range(3)]) | (lambda *a: a[0] - a[1])(X, Y)
torch.stack([f(X) for f in [lambda t: t * i for i in range(3)]])
np.greater(X, Y) * 1.0 | np.less_equal(X, 0) * X | np.not_equal(X, Y) * X | np.equal(X, Y) * X | torch.equal(X, X) * X
torch.as_tensor(2.0) * X | X.reshape_as(Y) * 2 | np.positive(X) * 2 | np.row_stack((X, Y)) | X.dim() * X
np.block([[S, S], [S, S * 2]]) | np.block([v, u]) | np.interp(X, np.array([-0.5, 0.0, 0.5]), np.array([1.0, 2.0, -1.0]))
F.pixel_unshuffle(I, 2) | F.channel_shuffle(I, 2) | I.unfold(2, 3, 2) | F.unfold(I, (2, 3), stride=2, padding=1)
np.lib.stride_tricks.sliding_window_view(v, 3) * 2 | np.lib.stride_tricks.sliding_window_view(X, 2, axis=0).sum(-1)
torch.special.xlogy(X * X, p) | torch.special.ndtr(X) | torch.isin(torch.arange(6), torch.tensor([1, 3])) * v
F.conv_transpose1d(N, torch.ones(4, 3, 3)) | F.conv_transpose2d(I, K.transpose(0, 1)[:, :2], v[:2], stride=2)
F.conv_transpose2d(I, K.transpose(0, 1), stride=2, padding=1, output_padding=1, groups=2, dilation=2)
F.conv_transpose3d(I[None], torch.ones(2, 1, 2, 2, 2), stride=2) | F.conv3d(I[:, None], K[:, None, :3] * 2)
F.max_pool3d(I, 2) | F.max_pool3d(I[None], 3, stride=1, padding=1) | F.avg_pool3d(I[None], (2, 2, 4))
F.adaptive_avg_pool1d(N, 2) | F.adaptive_max_pool1d(N, 3) | F.adaptive_max_pool2d(I, (2, 4))
F.adaptive_avg_pool2d(I, (3, 5)) | F.adaptive_avg_pool2d(I, (3, 1)) | F.adaptive_max_pool1d(N, 4)
F.max_pool2d(I, 3, 2, padding=1, ceil_mode=True) | F.max_pool2d(I, 2, 2, dilation=(2, 3))
F.max_pool1d(N, 4, 3, 2, 1, True)
F.avg_pool2d(I, 3, 3, ceil_mode=True) | F.avg_pool2d(I, 3, 2, 1, True, count_include_pad=False)
F.avg_pool2d(I, 3, 2, 1, count_include_pad=False) | F.avg_pool2d(I, 3, 2, 1, True, divisor_override=5)
F.cosine_embedding_loss(X, Y, torch.sign(d), margin=0.25) | F.hinge_embedding_loss(X, torch.sign(Y))
F.multilabel_soft_margin_loss(X, torch.sigmoid(Y)) | F.local_response_norm(I, 3, beta=0.5)
torch.addr(S, v, u, alpha=2) | torch.addmv(c, X, v) | torch.addbmm(X[:, :4], N, M, beta=2, alpha=0.5)
np.vecdot(X, Y) | torch.hsplit(X, 2)[1] * 2 | np.vsplit(X, 2)[1] * 2 | np.hsplit(v, 3)[0] * 2
np.blackman(6) * v | torch.blackman_window(6) * v | torch.hamming_window(6) * v | np.indices((4, 6))[1] * X
X.new_full((4, 6), 0.5) * X | np.diff(X, axis=1, prepend=0.0) | np.diff(v, append=v[-1]) | np.diff(X, n=2, prepend=Y)
np.take(X, [0, 7]) * 2 | np.take(X, [0, 2], axis=1) * 2 | N.transpose() * 2 if N.ndim < 3 else np.transpose(N) * 2
X.tile(2, 1) * 2 | X.tile((2,)) * 2 | torch.tile(X, dims=(1, 2)) * 2 | np.tile(X, reps=2) | torch.stack(3 * [X])
np.exp(X) ** Y | (X * X + 1) ** Y | torch.pow(torch.sigmoid(X), Y) | (X % 0.5 + 0.5) ** Y | (1 / (X.abs() + 1)) ** Y
(1 - 2.0 ** (-5 - np.arange(6))) ** np.arange(6) * X | F.relu(X).clamp(min=0.1) ** Y
torch.arange(1, 7) ** torch.arange(6) * v
torch.softmax(S + torch.triu(torch.ones(6, 6) * float("-inf"), diagonal=1), -1) | X.std(0) * torch.ones(6)
torch.softmax(S + torch.triu(-math.inf * torch.ones(6, 6), diagonal=1), -1) | np.sin(X.std(0)) | np.sum(X) / X.var(1)
X.repeat(2, 3) * torch.tensor(2.0) | (np.arange(6)[:, None] >> np.arange(3)) @ X[:3] | (1 << np.arange(6)) * v
math.tau * X | torch.arange(start=0, end=6) * v
torch.sort(X, dim=1).values | torch.sort(X, 0, descending=True)[0] | X.sort(-1).indices * 1.0 | np.sort(X, axis=0)
np.sort(X, axis=None) | X.argsort(1) * v | np.argsort(X, axis=0) * v | torch.msort(X) | X.topk(2)[1] * 1.0
torch.argsort(torch.round(2 * X), dim=0, descending=True, stable=True) * v | torch.topk(X, 2).values
X.topk(3, dim=0, largest=False)[0] | X.kthvalue(2, dim=1).values | torch.kthvalue(X, 2, 0, keepdim=True)[0]
torch.median(X) | X.median(1, keepdim=True).values | np.median(X) | np.median(X, axis=1, keepdims=True) | X.median(0)[0]
np.quantile(X, 0.25) | torch.quantile(X, 0.3, dim=1) | torch.quantile(X, torch.tensor([0.2, 1.0]), dim=0, keepdim=True)
np.percentile(X, [0, 50, 90], axis=0) | np.quantile(X, 1, keepdims=True) | torch.bucketize(X, torch.tensor([-0.5, 0.1]))
np.searchsorted(np.sort(v), X, side="right") * 1.0 | torch.searchsorted(torch.sort(v).values, u) * v
"""
EXAMPLES = [part.strip() for line in LINES.strip().splitlines() for part in line.split(" | ")]


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
    arrays = {name: array for name, array in arrays.items() if re.search(rf"\b{name}\b", text)}
    graph = parse("".join(f"{name}: f64{list(INPUTS[name])}\n" for name in arrays) + text).graph
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


INDEXED = {
    "scatter_reduce",
    "index_add", "scatter", "scatter_add", "embedding", "gather", "index_select", "take_along_axis", "nll_loss",
    "attention", "index_fill",
}  # fmt: skip
"""Functions of integers: see test_lang_integers."""
PLAIN = {
    "quick_gelu", "reduce", "scan", "fori_loop", "standardize", "segment_sum", "fill_diagonal", "dot_general",
    "dynamic_slice", "dynamic_slice_in_dim", "slice_in_dim", "dynamic_update_slice", "lax_clamp", "lax_cumsum",
    "lax_round", "lax_select", "triton_dot", "triton_softmax", "linalg_norm", "own_pad",
}
"""Functions that neither has under this name: of transformers, functools and JAX, and one that writes in place."""


def _called(text: str) -> set[str]:
    return {part.rpartition(".")[2].rpartition(" ")[2].rpartition("[")[2].rpartition("(")[2].rpartition("-")[2]
            for part in text.replace("~", " ").split("(")}
