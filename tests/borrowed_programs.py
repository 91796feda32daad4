"""Programs as NumPy and PyTorch users write them, which Python runs, too: see `test_lang_borrowed`."""

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
return F.relu(y, inplace=True), X.clone().zero_() + y * 2, y.clone().fill_(2.5) * Y
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
    "guards": """
def act(x, kind):
    if kind == "tanh":
        return x.tanh()
    raise ValueError(f"no {kind}")
if X.shape[1] != 6:
    raise RuntimeError("six")
return act(X, "tanh"),
""",
    "picked": """
m = X > 0
y, z = X.clone(), Y.clone()
y[m] = Y[m] * 2
z[m] += 1
z[~m] = X[~m].exp() - y[~m]
loss = ((X - Y) ** 2)[m]
if (n := X.shape[-1]) > 4:
    y = y / n
assert n % 2 == 0, f"n={n}, {X.shape} and {n // 2:>4} are not"
d = {f"x{i}": row * i for i, row in enumerate(X)}
act = [lambda t: t * n, torch.sin]
return y, z, loss.mean(), y[m].sum() / m.sum(), d["x1"] + d["x3"], act[0](X), act[1](list(map(lambda t: t + 1, Y))[1])
""",
    "names that change": """
k = 2
def scaled(t):
    return t * k
first = scaled(X)
k = 3
def act(t):
    return torch.relu(t)
def through(f, t):
    return act(t) + f(t)
def outer(t):
    n = 2
    def inner(s):
        return s * n
    n = 3
    def act(s):
        return torch.tanh(s)
    return inner(t) + through(act, t)
def attend(q, scale=None, eps=None):
    scale = scale or q.shape[-1] ** -0.5
    return q * scale + (eps or 0.5)
outs = []
for k in range(2):
    outs.append(scaled(X))
return first, scaled(Y) + outer(X), attend(X), attend(X, 3.0), outs[0] + Y, outs[1]
""",
    "whose elements": """
a = X * 2
a += Y
a *= a
b = a + 0
b -= 3
def block(x, y):
    x += y
    return x * 2
c2 = block(b, Y)
h = X[0].clone()
for t in range(1, 4):
    h += X[t]
z = F.relu(a, inplace=True)
return c2, h, z
""",
    "else of loops": """
x = X
for i in range(3):
    x = x + i * Y
else:
    x = x * 2
for i in range(3):
    if i == 1:
        break
else:
    x = x * 100
while i > 0:
    i -= 1
else:
    z: f64[4, 6] = x + 1
    x: torch.Tensor = z * x
return x
""",
    "imported": """
from torch import var, std as deviation
from torch.nn.functional import softmax as sm, gelu
from numpy.linalg import norm
return var(X, dim=1), deviation(X), sm(N, dim=0), gelu(X, approximate="tanh")
""",
    "classes left out": """
y = torch.where(torch.arange(4) % 3 == 0, torch.tensor(-100), torch.arange(4))
a = F.cross_entropy(X, y)
b = F.nll_loss(F.log_softmax(X, 1), y, reduction="sum")
c2 = F.cross_entropy(X, y, reduction="none")
d2 = F.cross_entropy(X, y, weight=v * v, label_smoothing=0.1)
e2 = F.cross_entropy(X, p, weight=v * v, label_smoothing=0.2)
return a, b, c2, d2, e2, F.cross_entropy(X, y, label_smoothing=0.1)
""",
    "names of results": """
made = torch.cat([X.new_zeros(4, 1), X.new_ones(4, 2)], dim=1)
return X.t() / X.numel(), torch.tensordot(N, M, dims=([1, 2], [2, 1])), S.diagonal() * 2, made
""",
    "rows that are masked wholly": """
s = torch.where(torch.arange(4)[:, None] > torch.arange(6), X, -math.inf)
r = torch.where((Y > 0) & (c[:, None] > 0), X, -math.inf)
top = s.max(-1, keepdim=True).values
q = torch.softmax(s, -1)
p = torch.where(s == -torch.inf, 0, torch.exp(s - torch.where(torch.isneginf(top), 0, top)))
held = (s == top) * 1, torch.isfinite(s) * Y, torch.isinf(s) * 1, torch.isposinf(-s) * 2, (s != -torch.inf) * 3
return p, torch.where(torch.isnan(q), 0, q), *held, s.masked_fill(s > -math.inf, 1), torch.isnan(q) * Y, r.logsumexp(1)
""",
    "parts that are written to": """
h, z = X * 1, Y.clone()
a, b = h.chunk(2, dim=1)
a += 1
F.relu(z, inplace=True)
return a * b, z
""",
    "results by name": """
d = {"a": X, "b": Y * 2}
total = sum(d.values())
for k, t in d.items():
    total = total + t * (k == "a")
for k in d:
    total = total + d[k]
z = np.zeros((4, 6))
np.multiply(X, Y, out=z)
return total, d.get("a") * d.get("z", 7) + len(list(d.keys())), z
""",
    "a scalar of zeros": """
g, out = torch.zeros(()), []
for i in range(5, -1, -1):
    g = v[i] + 0.9 * g
    out.append(g)
return torch.stack(out[::-1])
""",
    "one of several ways": """
if X.shape[0] > 3:
    return X * 2
y = X + Y
return y
""",
    "names of its own": """
def _norm(x, eps=1e-6, /):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
def softmax(x):
    return torch.softmax(x, dim=-1) * 2
def relu(x, /, k=2, *, c=0):
    return F.relu(x) * k + x.relu() + c
def norm(x):
    return x / (x.norm(dim=-1, keepdim=True) + 1)
y = _norm(X)
y.to(X.dtype)
y.contiguous()
return softmax(y), relu(Y, k=3, c=1), norm(X)
""",
    "modulated": """
shift, scale, gate = (F.silu(X) @ torch.cat([S, S, S], 1)).chunk(3, dim=1)
h = F.layer_norm(X, X.shape[-1:])
return X + gate * (h * (1 + scale) + shift)
""",
    "router of groups": """
scores = torch.sigmoid(X @ W)
groups = (scores + w).view(4, 4, 2)
sums = groups.topk(2, dim=-1)[0].sum(dim=-1)
chosen = (sums >= sums.topk(2, dim=-1)[0][:, -1:])[..., None].expand(4, 4, 2).reshape(4, 8)
masked = (scores + w).masked_fill(~chosen, float("-inf"))
held = torch.where(masked >= masked.topk(3, dim=-1).values[:, -1:], scores, 0.0)
return held / (held.sum(-1, keepdim=True) + 1e-20) * 2.5
""",
    "sparsemax": """
ordered = torch.sort(X, dim=1, descending=True).values
sums, k = ordered.cumsum(1) - 1, torch.arange(1, 7)
support = (k * ordered > sums).sum(1, keepdim=True)
return F.relu(X - sums.gather(1, support - 1) / support)
""",
    "nearest": """
value, index = torch.topk(-torch.cdist(X, L) ** 2, 3, dim=1)
return (torch.softmax(value, 1) * w[index]).sum(1)
""",
    "nucleus": """
ordered, index = torch.sort(torch.softmax(X / 0.7, -1), descending=True)
kept = ordered.masked_fill(ordered.cumsum(-1) - ordered > 0.7, 0.0)
probabilities = torch.zeros_like(X).scatter(-1, index, kept)
removed = torch.zeros_like(X).scatter(1, index, (kept == 0).double())
return probabilities / probabilities.sum(-1, keepdim=True), X.masked_fill(removed > 0, -9.0)
""",
    "rows in their order": """
at = torch.argsort(X, dim=0)
return Y.scatter(0, at, X * 2), Y.scatter(0, torch.topk(X, 2, 0).indices, X[:2])
""",
    "a factor of Cholesky's": """
A, L = S @ S.T + 6 * np.eye(6), np.zeros((6, 6))
for i in range(6):
    for j in range(i + 1):
        rest = A[i, j] - (np.sum(L[i, :j] * L[j, :j]) if j > 0 else 0)
        L[i, j] = np.sqrt(rest) if i == j else rest / L[j, j]
return L * 1.0
""",
}  # fmt: skip
