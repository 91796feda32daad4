"""Programs as people bring them along from JAX, einops, jaxtyping and notebooks: what Python cannot run here is held
against the same thing said otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_nb.errors import MirageError
from mirage_nb.interp.reference import evaluate
from mirage_nb.ir import OpKind
from mirage_nb.lang import parse

HEAD = "X: f32[4, 6]\nN: f32[2, 4, 6]\nI: f32[2, 3, 4, 8]\nv: f32[6]\nm: bool[4, 6]\n"
SAME: list[tuple[str, str]] = [
    ('rearrange(N, "b t (h d) -> b h t d", h=2)', "transpose(reshape(N, 2, 4, 2, 3), 0, 2, 1, 3)"),
    ('einops.rearrange(N, "b t c -> (b c) t")', "reshape(transpose(N, 0, 2, 1), 12, 4)"),
    ('rearrange(X, "... c -> ... 1 c") * 2', "X[:, None] * 2"),
    ('rearrange(I, "b c (h p) (w q) -> b (h w) (p q c)", p=2, q=4)',
     "reshape(transpose(reshape(I, 2, 3, 2, 2, 2, 4), 0, 2, 4, 3, 5, 1), 2, 4, 24)"),
    ('rearrange([X, X * 2], "n t c -> t (n c)")', "reshape(transpose(stack([X, X * 2]), 1, 0, 2), 4, 12)"),
    ('reduce(N, "b t c -> b c", "mean")', "mean(N, axis=1)"),
    ('einops.reduce(N, "b (t two) c -> t", reduction="max", two=2)', "max(reshape(N, 2, 2, 2, 6), axis=(0, 2, 3))"),
    ('reduce(N, "... -> ", "sum")', "sum(N)"),
    ('repeat(X, "t c -> b t c", b=3)', "expand(X[None], 3, 4, 6)"),
    ('repeat(v, "c -> t (c two)", t=4, two=2)', "reshape(expand(v[:, None], 4, 6, 2), 4, 12)"),
    ('einsum(N, X, "batch t c, s c -> batch t s")', 'einsum("btc,sc->bts", N, X)'),
    ("torch.exp2(X)", "2 ** X"), ("log2(exp(X))", "log(exp(X)) / log(2)"), ("log10(X)", "log(X) / log(10)"),
    ("X.at[:, 0].set(v[:4])", "concat([v[:4, None], X[:, 1:]], axis=1)"),
    ("X.at[1].add(v)", "concat([X[:1], (X[1] + v)[None], X[2:]], axis=0)"),
    ("jnp.where(m, X, 0).at[X > 0.5].multiply(2)", "where(X > 0.5, where(m, X, 0) * 2, where(m, X, 0))"),
    ("tl.sum(tl.exp(X - tl.max(X, axis=1)[:, None]), axis=1)", "sum(exp(X - max(X, axis=1, keepdims=True)), axis=1)"),
    ("jax.nn.silu(X) * jax.lax.rsqrt(X)", "silu(X) * rsqrt(X)"),
    ("where(~m, X, pi)", "where(m == 0, X, 3.141592653589793)"),
    ("torch.zeros(4, 6) + X * 2", "X * 2"),
    ("f32(torch.zeros(4, 6) + f16(X) * 2)", "f32(f16(X) * 2)"),
    ("torch.stack([v] * 3 + [v + 1])", "stack([v, v, v, v + 1])"),
    ("X[range(4), floor(v[:4])]", "gather(X, floor(v[:4])[:, None], axis=1)[:, 0]"),
    ("torch.tensor([[0.5, 1.5], [2.5, 3.5]])", "reshape(arange(0.5, 4.5), 2, 2)"),
    ("jax.lax.fori_loop(1, 4, lambda i, x: x * i + v, X)", "((X + v) * 2 + v) * 3 + v"),
    ("jax.lax.scan(lambda s, row: (s * 0.5 + row, s * row), v, X)[0]",
     "((v / 16 + X[0] / 8) + X[1] / 4) + X[2] / 2 + X[3]"),
    ("jax.lax.scan(lambda s, r: (s, (r[0] * s, r[1])), v, (X, m), reverse=True)[1][0]", "X * v"),
    ("jax.nn.standardize(X)", "layer_norm(X, eps=1e-5)"),
    ("jax.nn.gelu(X) + jax.nn.gelu(v, approximate=False)", "gelu_tanh(X) + gelu(v)"),
    ("functools.reduce(lambda a, b: a @ b.T, [X, X, sqrt(X @ X.T)])", "X @ X.T @ sqrt(X @ X.T).T"),
    ("concat([X, X * 2], axis=1)[:, 7:]", "(X * 2)[:, 1:]"),
    ("lax.select(m, X, X * 2)", "where(m, X, X * 2)"),
    ("jax.lax.cumsum(X) + lax.cumsum(X, axis=1, reverse=True)",
     "cumsum(X, axis=0) + flip(cumsum(flip(X, 1), 1), 1)"),
    ("lax.clamp(0.3, X, 0.6) + lax.max(X, v)", "clamp(X, 0.3, 0.6) + maximum(X, v)"),
    ("lax.round(X * 5)", "floor(X * 5 + 0.5)"),
    ("lax.dot_general(N, N, (((2,), (2,)), ((0,), (0,))))", "N @ N.T"),
    ("lax.dot_general(N, X, dimension_numbers=(((1, 2), (0, 1)), ((), ())))", "sum(N * X, axis=(1, 2))"),
    ("lax.dynamic_update_slice(X, X[:2, :3] * 2, (3, 1))",
     "concat([X[:2], concat([X[2:, :1], X[:2, :3] * 2, X[2:, 4:]], axis=1)], axis=0)"),
    ("lax.dynamic_slice(X, (1, 5), (2, 3)) + lax.dynamic_slice_in_dim(X, 1, 2)[:, :3]", "X[1:3, 3:] + X[1:3, :3]"),
    ("lax.slice_in_dim(X, 1, 6, 2, axis=1)", "X[:, 1:6:2]"),
    ("sum([tl.dot(X[:, i:i + 2], X.T[i:i + 2]) for i in tl.static_range(0, 6, 2)])", "X @ X.T"),
    ("tl.softmax(X) + tl.cumsum(X)", "softmax(X, 0) + cumsum(X, 0)"),
    ("scipy.special.softmax(X) + scipy.special.log_softmax(X, axis=1)",
     "reshape(softmax(reshape(X, -1), 0), 4, 6) + log_softmax(X, 1)"),
    ("N.transpose()", "transpose(N, 2, 1, 0)"),
    ("F.prelu(X - 0.5, 0.25) + F.prelu(N - 0.5, 0.25)", "leaky_relu(X - 0.5, 0.25) + leaky_relu(N - 0.5, 0.25)"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "plain"), SAME)
def test_both_ways_to_write_it_are_the_same(written: str, plain: str) -> None:
    rng = np.random.default_rng(0)
    one, other = (parse(f"{HEAD}return {text}").graph for text in (written, plain))
    arrays = [rng.uniform(0.1, 1, t.shape) for t in one.types[:4]] + [rng.integers(0, 2, (4, 6))]
    np.testing.assert_allclose(evaluate(one, arrays), evaluate(other, arrays), rtol=1e-12)


@pytest.mark.parametrize("declared", [
    'X: "f16[4, 6]"', "X: torch.float16[4, 6]", "Rows = f16[4, 6]\nX: Rows", "n: int = 4\nX: f16[n, 6]",
    "from math import pi, e\nfrom einops import rearrange\nimport triton.language as tl\nX: half[4, 2 * 3]",
])  # fmt: skip
def test_declarations(declared: str) -> None:
    graph = parse(f"{declared}\nreturn X * 2").graph
    assert str(graph.types[0]) == str(parse("X: f16[4, 6]\nreturn X * 2").graph.types[0])


@pytest.mark.parametrize("masked", [
    "S.masked_fill(torch.tril(torch.ones(8, 8)) == 0, float('-inf'))",
    "S.masked_fill(torch.triu(torch.ones(8, 8), diagonal=1).bool(), -math.inf)",
    "np.where(np.tril(np.ones((8, 8))), S, -np.inf)", "torch.where(torch.ones_like(S).tril() > 0.5, S, -inf)",
    "S.masked_fill(~torch.tril(torch.ones(8, 8, dtype=torch.bool)), -inf)",
    "jnp.where(jnp.tril(jnp.ones((8, 8), dtype=bool)), S, -jnp.inf)",
    "S.at[torch.triu(torch.ones(8, 8), 1) == 1].set(-inf)",
    "S + torch.triu(torch.full((8, 8), -inf), diagonal=1)",
    "S + torch.triu(torch.ones(8, 8) * float('-inf'), diagonal=1)",
    "torch.zeros(8, 8).masked_fill(torch.ones(8, 8).tril() == 0, -inf) + S",
    "S + np.where(np.tri(8), 0, -np.inf)",
])  # fmt: skip
def test_a_causal_mask_is_one_program_however_it_is_written(masked: str) -> None:
    plain = "where(arange(8)[:, None] >= arange(8), S, -inf)"
    assert parse(f"S: f32[8, 8]\nreturn {masked}").graph == parse(f"S: f32[8, 8]\nreturn {plain}").graph


@pytest.mark.parametrize(("written", "plain"), [
    ("S + (np.where(M, 0, -np.inf) - B)", "where(M, S + (0 - B), -inf)"),
    ("B + np.where(M, S, -np.inf)", "where(M, B + S, -inf)"),
    ("f16(S) + np.where(M, 0, -np.inf)", "where(M, f32(f16(S)), -inf)"),
    ("pad(S, ((0, 0), (2, 1)))", "pad(S, 2, 1, axis=1)"),
    ("pad(S, pad_width=1, mode='edge')", "np.pad(S, 1, mode='edge')"),
    ("pad(np.where(M, 0, -np.inf), 1, 1, axis=0)[:8] + S", "concat([S[:1], S[1:] + where(M[:7], 0, -inf)], axis=0)"),
    ("np.where(M, S, -np.inf) - max(S, 1, keepdims=True)", "subtract(where(M, S, -inf), max(S, 1, keepdims=True))"),
])  # fmt: skip
def test_what_a_mask_leaves_out_stays_out_of_sums(written: str, plain: str) -> None:
    head = "S: f32[8, 8]\nM: bool[8, 8]\nB: f32[8, 8]\n"
    rng = np.random.default_rng(0)
    given = [rng.uniform(-1, 1, (8, 8)), rng.integers(0, 2, (8, 8)), rng.uniform(-1, 1, (8, 8))]
    one, other = (parse(f"{head}return {text}").graph for text in (written, plain))
    np.testing.assert_array_equal(evaluate(one, given), evaluate(other, given))
    masked = "where" in plain.split("(")[0]
    assert any(op.kind is OpKind.WHERE for op in one.ops[-1:]) is masked


@pytest.mark.parametrize(("written", "plain"), [
    ("y[:2] = A\ny[2:] = B", "y = concat([A, B], axis=0)"),
    ("y[:, ::2] = C\ny[:, 1::2] = D", "y = flatten(stack([C, D], axis=-1), -2)"),
    ("y[:2].copy_(A)\ny[2:].copy_(B)", "y = concat([A, B], axis=0)"),
    ("y.copy_(f32(A[0]))\ny.mul_(2)", "y = f16(expand(f32(A[0]), (4, 6))) * 2"),
    ("y[1:3, 2:] = A[:, 2:]", "y = pad(pad(A[:, 2:], 2, 0, axis=1), 1, 1, axis=0)"),
])  # fmt: skip
def test_what_is_overwritten_leaves_no_trace(written: str, plain: str) -> None:
    head = "A: f16[2, 6]\nB: f16[2, 6]\nC: f16[4, 3]\nD: f16[4, 3]\n"
    made = parse(f"{head}y = torch.empty(4, 6, dtype=A.dtype)\n{written}\nreturn y").graph
    assert made == parse(f"{head}{plain}\nreturn y").graph


def test_a_forward_with_types_is_a_program() -> None:
    head = "n = 4\ndef half(a):\n    b = a / 2\n    return b\n"
    called = parse(head + "def forward(x: f16[n, 6], v: \"f16[6]\", eps=1e-5):\n    return half(x) / (v + eps)")
    plain = parse("x: f16[4, 6]\nv: f16[6]\nreturn x / 2 / (v + 1e-5)")
    assert called.graph.types[-1] == plain.graph.types[-1] and called.input_names == plain.input_names
    with pytest.raises(MirageError, match="returns nothing"):
        parse("def forward(x: f16[4, 6], w):\n    y = x @ w\n    return y")


@pytest.mark.parametrize(("defined", "called", "plain"), [
    ("def f(x, **kw): return rms_norm(x, **kw)", "f(X, eps=1e-3)", "rms_norm(X, eps=1e-3)"),
    ("def f(x, *a, **kw): return layer_norm(x, *a, **kw)", "f(X, v, eps=1e-3) + f(X)",
     "layer_norm(X, v, eps=1e-3) + layer_norm(X)"),
    ("def f(x, a=1, **kw): return x * a * kw.get('b', 2)", "f(X, a=3) + f(X, b=4)", "X * 3 * 2 + X * 4"),
    ("f = lambda x, **kw: x * kw['a']", "f(X, a=v)", "X * v"),
    ("def f(x, **kw):\n    for k, w in kw.items(): x = x + w\n    return x", "f(X, p=v, q=2)", "X + v + 2"),
])  # fmt: skip
def test_functions_take_what_keywords_there_are(defined: str, called: str, plain: str) -> None:
    assert parse(f"{HEAD}{defined}\nreturn {called}").graph == parse(f"{HEAD}return {plain}").graph


def test_results_have_the_names_of_a_dict() -> None:
    assert parse(HEAD + 'return {"hidden": X * 2, "total": sum(X)}').graph.output_names == ("hidden", "total")


@pytest.mark.parametrize(("text", "words"), [
    ("y = X\ny[0] = 1\nreturn X * y", "line 7"),
    ("y = X[:, :2]\nX[:, 0] = 1\nreturn X[:, :2] * y", "clone()"),
    ("def f(a):\n    a[0] = 1\n    return a\nreturn f(X)", "belongs to what calls"),
    ("y = X\ny += 1\nreturn X * y", "line 8"),
    ("a = b = X * 2\na *= 3\nreturn b + 1", "line 8"),
    ("y = X * 2\nz = y.T\ny.add_(1)\nreturn z + 1", "clone()"),
    ("def f(a):\n    a += 1\n    return a\ny = X * 2\nz = f(y)\nreturn y + z", "line 7"),
    ("y = X * 2\nz = F.relu(y, inplace=True)\nw = y\nz += 1\nreturn w * 2", "shares"),
    ("a = [X]\nb = a\na.append(v)\nreturn b[0] * 2", "b shares"),
    ("return np.linalg.norm(X, 2)", "singular values"),
    ("return np.cross(X, X)", "three numbers"),
    ("y: f16[4, 6] = X * 2\nreturn y", "this is f32[4, 6]"),
    ("y: f32[6, 4] = X * 2\nreturn y", "this is f32[4, 6]"),
    ("y = X * 2\ny[:, :2] = X\nreturn y", "cannot be expanded"),
    ("y = X * 2\ny[v] = X\nreturn y", "depends on values"),
    ("y = X * 2\ny[9] = v\nreturn y", "no element 9"),
    ("y = X * 2\ny.T[0] = v\nreturn y", "cannot be assigned"),
    ("a, *b, *c = X\nreturn a", "3 names for"),
    ("a, b = X\nreturn a", "2 names for 1 tensor"),
    ("while X > 0:\n    X = X - 1\nreturn X", "not known here"),
    ("while True:\n    pass\nreturn X", "more than"),
    ("for i in range(3):\n    break\n    X = X * 2\nbreak\nreturn X * 2", "not a statement"),
    ("assert X.shape[0] == 5\nreturn X * 2", "does not hold"),
    ('return rearrange(X, "a b c -> a")', "3 axes"),
    ('return rearrange(X, "a (b c) -> a b c")', "all names of a group but one"),
    ('return rearrange(X, "a b -> a")', "left only"),
    ('return rearrange(X, "a (b -> a b")', "never closed"),
    ('return reduce(X, "a b -> a", "median")', "no reduction"),
    ('return repeat(X, "a b -> a b c")', "c has no extent"),
    ("return nn.GELU()(X)", "F.gelu(x)"),
    ("return X.at[0].max(v)", "x.at[:, 0].set(y)"),
    ("return X * torch.tensor([1, 2], [3])", "tensor"),
    ("return torch.tensor([[1, 2], [3]]) * v", "differ in length"),
    ("return torch.tensor([v, 3]) * v", "differ"),
    ('return {X: X}', "named by words"),
    ("return X * {1, 2}", "braces"),
    ("return np.pad(X, 1, mode='mean')", "modes: constant"),
    ("return F.scaled_dot_product_attention(N, N, N, dropout_p=0.1)", "no random numbers"),
    ("return reshape(X, 6, 4, order='F')", "order"),
    ("return X[0, [1, 0]] * 2", "stands beside"),
    ("X[[0, 1]] = 2\nreturn X * 2", "a list of places"),
    ("return {'a': X * 2, 'a b': X}", "results are named"),
    ("d = {'a': X * 2}\nreturn d['b']", "there is no 'b'"),
    ('"""open\nreturn X', "never closed"),
    ('y: "f16[4, return]"\nreturn X * 2', "not a tensor type"),
    ('y: "f16[, 04]"\nreturn X * 2', "not a tensor type"),
    ("return stack([v] * 9000)", "a sequence of more than"),
    ("print(X.shape)\nreturn X * 2", "print nothing"),
    ("with open(X):\n    y = X\nreturn y", "not a statement"),
    ("f = torch.tanh\nreturn f", "is a function"),
    ("return X[m]", "depends on values"),
    ("return np.subtract.at(v, v)", "subtract is a function"),
    ("return np.exp(X, where=X > 0)", "leaves elements undefined"),
    ("return X << 2", "shifts are of whole numbers"),
    ("return (X > 0).long() >> -1", "shifts are of whole numbers"),
    ("return X * np.finfo(np.float64).max", "no attribute max"),
    ("if X.ndim > 1:\n    raise ValueError(f'{X.ndim} dimensions')\nreturn X * 2", "2 dimensions"),
    ("return sorted([v, v])[0] * 2", "sorted is of constants"),
    ("return sum(v[:0]) + X", "a sum of none is 0"),
    ("return X.topk(9)[0]", "there are 6 elements, not 9"),
    ("return np.sort(np.tile(X, 300))", "an order of 1800 elements, of at most 1024"),
    ("return np.quantile(X, 25)", "a part of 1"),
    ("return X.scatter(1, floor(X), X)", "scatter_add adds them"),
    ("return X.scatter(1, X.argsort(0), X)", "scatter_add adds them"),
    ("Z = X * 1\na, b = torch.chunk(Z, 2, 1)\na += 1\nreturn Z * 2", "shares its elements"),
    ("Z = X * 1\na, b = Z.chunk(2, 1)\nZ[:] = 1\nreturn a * b", "a shares its elements"),
    ("Z = X * 1\nfor i, r in enumerate(Z):\n    r[0] = i\nreturn Z * 2", "shares its elements"),
    ("Z = X * 1\nr = np.reshape(Z, (2, 12))\nr[0] = 1\nreturn Z * 2", "shares its elements"),
    ("Z = X * 1\na, b = Z, X\na += 1\nreturn Z * 2", "shares its elements"),
    ("Z = X * 1\ny = torch.diagonal(Z).add_(1)\nreturn Z * 2", "a part of Z is changed"),
    ("Z = X * 1\nZ.view(-1).add_(1)\nreturn Z * 2", "cannot be assigned"),
    ("return isinstance(X, int) * X", "leave the question out"),
    ("return cumsum(X[m], axis=0)", "depends on values"),
    ("return X[m] @ v", "meet others"),
    ("return X[m] + X", "meet others"),
    ("return X[m].sum(keepdims=True)", "depends on values"),
    ("return X[:, X[0] > 0] * 2", "depends on values"),
    ("return N[m] * 2", "a mask [4, 6] of [2, 4, 6]"),
    ("return zip(X, v, strict=True)[0][0] * 2", "zip of 4, 6"),
    ("n = 3\nassert n == 2, f'n is {n}, not {n - 1}'\nreturn X * 2", "n is 3, not 2"),
    ("return X[v > 0] * 2", "a mask [6] of [4, 6]"),
    ("return np.partition(X, 3)", "order elements"),
    ("return np.polyfit(v, v, 1)", "outside the program"),
    ("return F.dropout(X, 0.1)", "no random numbers"),
    ("return jax.vmap(torch.exp)(X)", "by themselves"),
    ("class Model:\n    x = 1\nreturn X * 2", "def forward"),
    ("def forward(x: f32[4], w):\n    return x * w", "give all parameters types"),
])  # fmt: skip
def test_what_cannot_be_says_why(text: str, words: str) -> None:
    with pytest.raises(MirageError) as caught:
        parse(HEAD + text)
    assert words in str(caught.value) and caught.value.span is not None


@pytest.mark.parametrize(("written", "plain"), [
    ("import torch\nreturn X.std(0)", "torch.std(X, 0)"),
    ("import numpy as np\nreturn X.std(0)", "np.std(X, 0)"),
    ("y = math.pi * np.exp(X)\nreturn y.var(1)", "np.var(math.pi * np.exp(X), 1)"),
    ("return F.relu(X).repeat(2, 1)", "tile(relu(X), (2, 1))"),
    ("def f(F):\n    return F.T @ X\nreturn torch.relu(f(X)).std(0)", "torch.std(torch.relu(X.T @ X), 0)"),
])  # fmt: skip
def test_methods_are_those_of_the_only_library_that_a_text_names(written: str, plain: str) -> None:
    assert parse(HEAD + written).graph == parse(f"{HEAD}return {plain}").graph


def test_axes_are_named_within_functions_too() -> None:
    halves = 'rearrange({}, "t (c n) -> n t c", n=2)'
    text = f"def f(x):\n    return list(map(lambda t: {halves.format('t')}, (x, x * 2)))\na = f(X)\nreturn a[0], a[1]"
    plain = f"y = X * 2\nreturn {halves.format('X')}, {halves.format('y')}"
    assert parse(HEAD + text).graph == parse(HEAD + plain).graph


def test_functions_and_what_they_read_may_be_defined_further_down() -> None:
    text = "def f(x): return g(x) + k\ndef g(x):\n    def h(y, z): return y * m + z\n    m = 2\n    return h(x, v)\n"
    assert parse(f"{HEAD}{text}k = 3\nreturn f(X)").graph == parse(f"{HEAD}return X * 2 + v + 3").graph


def test_with_both_libraries_the_program_says_which() -> None:
    for text in ("return X.std(0)", "return np.exp(torch.exp(X)).std(0)", "F = X * 2\nreturn F.std(0)"):
        with pytest.raises(MirageError, match="may mean two things"):
            parse(HEAD + text)


def test_lists_grow_in_the_ways_of_python() -> None:
    text = "a = [X]\na.insert(0, X * 2)\na.extend([X * 3, X * 4])\na.insert(-1, X * 5)\na.extend(X)\n"
    plain = parse(f"{HEAD}y = [X * 2, X * 3, X * 4, X * 5]\nreturn y[0], y[1], y[3], y[2], X[3] * 2").graph
    assert parse(f"{HEAD}{text}return a[0], a[2], a[3], a[4], a[-1] * 2").graph == plain


@pytest.mark.parametrize("text", [
    "for _ in range(2):\n    X = X * 2\nreturn X", "_, y = X.chunk(2, 1)\nreturn y * 2",
    "for step in range(2):\n    X = X * 2\nreturn X", "f = lambda t, k: t * k\ng = f\nreturn g(X, 2)",
    "n = 3\nwhile n > 1:\n    X = X * 2\n    n -= 1\nreturn X",
    "def make(k):\n    def f(t):\n        return t * k\n    return f\ntwice = make(2)\nreturn twice(X)",
    "for f in (torch.sin, torch.cos):\n    X = f(X)\nreturn X",
    "s = 2\ndef f(x): return x * s\nreturn f(X)", "def f(x): return x * s\ns = 2\nreturn f(X)",
    "EPS = 1e-5\ndef norm(v, eps=EPS):\n    s = v * v + eps\n    return v / sqrt(s)\nreturn norm(X)",
])  # fmt: skip
def test_what_counts_turns_or_is_called_is_not_remarked_upon(text: str) -> None:
    assert not parse("X: f32[4, 6]\n" + text).remarks


def test_an_unused_name_still_is() -> None:
    (remark,) = parse("X: f32[4]\nz = X * 3\nreturn X * 2").remarks
    assert remark.message == "z is defined and no output needs it"
    (remark,) = parse("X: f32[4]\nz = X * 3\nz = X + 1\nreturn z * 2").remarks
    assert remark.message == "z is given another value before anything reads this one" and remark.span.line == 2


@pytest.mark.parametrize(("text", "words", "marked"), [
    ("for i in range(3)\n    X = X * 2\nreturn X", "no colon", ")"),
    ("if n > 2\n    X = X * 2\nreturn X", "no colon", "2"),
    ("def f(x)\n    return x\nreturn f(X)", "no colon", ")"),
    ("return X && m", "joined with &", "&&"),
    ("return X || m", "joined with |", "||"),
    ("return X @ X", "x @ y.T fits: [4, 6] @ [6, 4]", "X @ X"),
    ("return X.T @ X.T", "x @ y.T fits", "X.T @ X.T"),
    ("return N + v[:4]", "y[:, None] lies along dimension 1", "N + v[:4]"),
    ("return F.linear(X, X.T)", "last extent of the weight", "F.linear(X, X.T)"),
    ("return max(X, v)", "maximum(x, y)", "v"),
    ("return min(X, 2)", "minimum(x, y)", "2"),
    ("return F.pad(X, 1)", "(before, after)", "F.pad(X, 1)"),
    ("return np.pad(X, (1, 2, 3))", "(before, after)", "np.pad(X, (1, 2, 3))"),
    ("return F.layer_norm(X, 4)", "last extents of x", "F.layer_norm(X, 4)"),
    ("return F.layer_norm(X)", "write layer_norm(", "F.layer_norm(X)"),
    ("return F.cross_entropy(X, v)", "without the classes", "F.cross_entropy(X, v)"),
    ("return attention(X, v[None], X)", "as many rows", "attention(X, v[None], X)"),
    ("return X.matmul(X, X)", "takes 2 arguments, not 3", "X"),
    ("return X.exp(X)", "takes 1 plain argument, not 2", "X"),
    ("return X.to('cuda:0') * 2", "no devices", "X.to('cuda:0')"),
    ("return self.w @ X", "weights are inputs", "self"),
    ("return torch.view_as_complex(X)", "no complex numbers", "torch.view_as_complex"),
    ("return np.mgrid[0:4] * X", "arange(n)", "np.mgrid"),
    ("return log(0) * X", "finite real", "log(0)"),
    ("a = [X]\nb = a.pop()\nreturn b * 2", "outs[-1]", "a.pop"),
    ("a = X * 2\na.append(X)\nreturn a", "no list", "a"),
    ("a = [X]\na.insert(X, X)\nreturn a[0] * 2", "no list that grows by insert", "a"),
    ("return X ** v", "exp(y * log(x))", "X ** v"),
    ("return X * -inf", "a choice of where", "-inf"),
    ("return v.long() << X.long()", "by known ones", "v.long() << X.long()"),
    ("y = f(X)\ndef f(x): return x * 2\nreturn y", "line 8", "f"),
    ("def f(x): return g(x)\ny = f(X)\ndef g(x): return x * 2\nreturn y", "line 9", "g"),
    ("def f(x): return sofmax(x)\nreturn f(X)", "did you mean softmax", "sofmax"),
    ("def f(x, a=[]):\n    a.append(x)\n    return sum(a)\nreturn f(X)", "one for all calls", "a"),
    ("return e ** X", "np.e", "e"),
    ("return X * nan", "infinities are choices", "nan"),
    ("return tf.exp(X)", "as in np, torch", "tf"),
    ("return vmap(torch.exp)(X)", "by themselves", "vmap(torch.exp)(X)"),
    ("def f(k): return lambda x: x * k\nreturn f(3)(X)", "a name first", "f(3)(X)"),
])  # fmt: skip
def test_mistakes_of_strangers_are_told_where_they_are(text: str, words: str, marked: str) -> None:
    with pytest.raises(MirageError) as caught:
        parse(f"{HEAD}n = 3\n{text}")
    span = caught.value.span
    assert span is not None and words in f"{caught.value.message} {caught.value.hint}"
    assert span.text[span.column - 1 : span.column - 1 + span.width] == marked
