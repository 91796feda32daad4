"""Whatever the text, parsing returns a sound program or raises a MirageError with a place inside the text, soon."""

from __future__ import annotations

import ast
import pickle

from hypothesis import example, given
from hypothesis import strategies as st

from mirage_nb.errors import MirageError
from mirage_nb.lang import FUNCTIONS, TensorProgram, parse
from mirage_nb.lang.source import KEYWORDS, REFUSED
from tests.clock import cpu_limit
from tests.shares import examples

SEEDS = (
    "B = 2\nD = 64\nQ: f16[2*B, 8, D]\nK: f16[2*B, 16, D]\nS = Q @ K.T * D**-0.5\nreturn softmax(S, axis=-1) @ K\n",
    "X: f32[4, 6]\nG: f32[6]\nY = rms_norm(X, G, eps=1e-5)\nZ = reshape(Y, 2, -1)\nreturn Y, concat(Z, Z, axis=0)\n",
    "X: bf16[3, 4]\n"
    "Y = (silu(X) -  # over lines\n     sum(X, axis=(0, 1), keepdims=True)) / 3\nreturn transpose(Y, 1, 0)\n",
    "dtype: f32\nX: [4, 4]\ndef block(x, w, k=2):\n    for i in range(k):\n        x = x + x @ w * i\n"
    "    return x, w[:, ::-1]\n"
    "A, B = block(X, X)\nA += maximum(A, B)[..., None][:, :, 0]\nreturn stack([A, B], axis=-1)\n",
    "X: f32[4, 6]\nP, Q = split(X, [2, 4], axis=1)\nfor w in (P, P * 2):\n    Q = Q - logsumexp(w, 1, keepdims=True)\n"
    'return einsum("ij,kj->ik", Q, Q), min(f16(P), axis=0)[None]\n',
    "X: f32[4, 6]\nY = torch.zeros(4, 6)\nY[:, ::2] = X[:, :3]\nY[Y < 0] += 1\nY.mul_(2)\nm, *r = X\n"
    'n = 3\nwhile n > 1:\n    n -= 1\nreturn {"a": Y.at[0].set(m), "b": rearrange(X, "t (h d) -> h t d", h=2)}\n',
    "X: f32[2, 3]\nb = 3/2\ndef f(x): return minimum(x * tanh(b * x), -x ** (1/3)) / 4\nreturn f(X) + f(X * 2)\n",
)
PIECES = [
    *FUNCTIONS, *KEYWORDS, *REFUSED, "+", "-", "*", "/", "@", "**", "//", "(", ")", "[", "]", ",", ":", "=", ".",
    "\n", " ", "    ", "#", "X", "Y", "B", "f16", "f32[2, 3]", "X: f32[2, 3]\n", "Y = ", "return ",
    "return X", ".T", "axis=",
    "keepdims=True", "None", "True", "0", "1", "-1", "2.5", "1e-5", "1e400", "0x1", "9**9**9", "99999999999", "1_0",
    "match", "case", "_", "print", "type", "\t", "\r", "\ufeff", "²", "\x00", "\u2028", "\ud800", "é",
    "def f(x): return ", "def ", "minimum(", "tanh(", "(1/3)", "for i in range(", "for w in ", "in", "range",
    "):\n    ",
    "::", "...", "[None]", "[0]", "-1:", "+=", "**=", "split(X, 3, 1)", "A, B = ", "'ij,kj->ik'", "->", "dtype: f16\n",
    ": [2, 3]\n", "\n    return ", "f(", "f16(",
    "Y[0] = ", "[X > 0] = ", "{", "}", ".at[0].set(", "while ", '"f16[2]"', "rearrange(X, ", '"a (b c) -> a"', "h=2",
]  # fmt: skip


def check(text: str) -> None:
    with cpu_limit(5):
        try:
            program = parse(text)
        except MirageError as error:
            check_error(text, error)
        else:
            check_program(program)


def check_error(text: str, error: MirageError) -> None:
    assert len(str(error)) < 2_000
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    if error.span is not None:
        lines = text.split("\n")
        assert 1 <= error.span.line <= len(lines)
        assert 1 <= error.span.column <= len(lines[error.span.line - 1]) + 1
        assert 1 <= error.span.width <= max(1, len(lines[error.span.line - 1]) - error.span.column + 1)


def check_program(program: TensorProgram) -> None:
    graph = program.graph
    assert len(program.spans) == len(graph.ops) > 0
    assert graph.outputs and all(v >= graph.input_count for v in graph.outputs)
    assert all(min(t.shape, default=1) >= 1 for t in graph.types)
    read = {v for op in graph.ops for v in op.inputs} | set(graph.outputs)
    assert read >= set(range(graph.input_count, len(graph.types)))
    assert parse(program.text).graph == graph


@given(st.text(max_size=200))
@examples(200)
def test_any_text(text: str) -> None:
    check(text)


@given(st.lists(st.sampled_from(PIECES), max_size=40))
@examples(400)
def test_any_pieces(pieces: list[str]) -> None:
    check("X: f32[2, 3]\n" + " ".join(pieces))
    check("X: f32[2, 3]\nreturn " + "".join(pieces))


@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), st.sampled_from(PIECES)), min_size=1, max_size=4),
)
@examples(500)
def test_mutated_programs(text: str, edits: list[tuple[float, int, str]]) -> None:
    """Characters replaced, removed or inserted."""
    for where, removed, inserted in edits:
        at = int(where * len(text))
        text = text[:at] + inserted + text[at + removed :]
    check(text)


_names = st.sampled_from(["X", "Y", "Z", "c", "unknown", *FUNCTIONS])
_leaves = st.one_of(
    st.builds(ast.Name, _names),
    st.builds(ast.Constant, st.one_of(st.integers(0, 4), st.floats(0, 100), st.booleans(), st.none())),
)
_binary = st.sampled_from(
    [ast.Add(), ast.Sub(), ast.Mult(), ast.Div(), ast.MatMult(), ast.Pow(), ast.FloorDiv(), ast.Mod()]
)


def _calls(inner: st.SearchStrategy[ast.expr]) -> st.SearchStrategy[ast.expr]:
    keywords = st.builds(ast.keyword, st.sampled_from(["axis", "keepdims", "eps", "gain", None]), inner)
    return st.builds(ast.Call, st.builds(ast.Name, _names), st.lists(inner, max_size=3), st.lists(keywords, max_size=2))


_expressions: st.SearchStrategy[ast.expr] = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(ast.BinOp, inner, _binary, inner),
        st.builds(ast.UnaryOp, st.sampled_from([ast.USub(), ast.UAdd(), ast.Not()]), inner),
        _calls(inner),
        st.builds(ast.Attribute, inner, st.sampled_from(["T", "mT", "sum"])),
        st.builds(ast.Subscript, inner, inner),
        st.builds(ast.Subscript, inner, st.builds(ast.Slice, *[st.none() | inner] * 3)),
        st.builds(ast.Tuple, st.lists(inner, max_size=3)),
        st.builds(ast.List, st.lists(inner, max_size=3)),
        st.builds(ast.Starred, inner),
        st.builds(ast.IfExp, inner, inner, inner),
    ),
    max_leaves=12,
)


@given(st.lists(_expressions, min_size=1, max_size=3))
@examples(500)
@example([ast.Name("X")])
def test_any_syntax_tree(trees: list[ast.expr]) -> None:
    lines = [f"v{i} = {ast.unparse(tree)}" for i, tree in enumerate(trees)]
    check("\n".join(["X: f32[2, 3]", "Y: f32[3, 2]", "Z: f32[3]", "c = 2", *lines, f"return exp(v{len(trees) - 1})"]))
