"""Every mistake has its own error, at the right line and column, with something to do about it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from mirage_nb.errors import (
    ArgumentError,
    DTypeError,
    DuplicateNameError,
    MirageError,
    OptionError,
    ProgramSizeError,
    ProgramSyntaxError,
    ShapeError,
    SourceSpan,
    UnknownNameError,
)
from mirage_nb.lang import limits, parse
from mirage_nb.lang.source import KEYWORDS, REFUSED
from tests.clock import cpu_limit

HEAD = "X: f16[4, 8]\nW: f16[8, 16]\n"  # what most programs below begin with; mistakes start in line 3

SYNTAX, SIZE, NAME, TWICE, SHAPE = (
    ProgramSyntaxError, ProgramSizeError, UnknownNameError, DuplicateNameError, ShapeError,
)  # fmt: skip

# Program, error, the marked characters (their first occurrence in the marked line), words of message and hint.
IN_LINE_3: list[tuple[str, type[MirageError], str, str]] = [
    # names
    ("return Xx @ W", NAME, "Xx", "did you mean X?"),
    ("return x @ W", NAME, "x", "did you mean X?"),
    ("return zebra @ W", NAME, "zebra", "inputs are declared as"),
    ("return Y @ X\nY = exp(X)", NAME, "Y", "line 4"),
    ("return 1 * (lambda x: x + 1)", NAME, "lambda x: x + 1", "call it: f(x), behind f = lambda x: x + 1"),
    ("return sofmax(X)", NAME, "sofmax", "did you mean softmax?"),
    ("return zzyzx(X)", NAME, "zzyzx", "the functions are"),
    ("return exp @ X", NAME, "exp", "call it: exp(x)"),
    ("X: f16[2]", TWICE, "X", "line 1"),
    ("return exp(X), exp(X)", TWICE, "exp(X)", "same tensor"),
    # calls
    ("return exp()", SYNTAX, "exp()", "needs x: a tensor"),
    ("return exp(X, W)", SYNTAX, "W", "exp takes 1 plain argument, not 2"),
    ("return sum(X, 1, True)", SYNTAX, "True", "write sum(x, axis=None, *, keepdims=False)"),
    ("return sum(X, axs=1)", SYNTAX, "axs", "did you mean axis?"),
    ("return sum(X, dtype=1)", DTypeError, "sum(X, dtype=1)", "not an element type"),
    ("return sum(X, kind=1)", SYNTAX, "kind", "write sum("),
    ("return sum(X, 1, axis=1)", SYNTAX, "axis", "given twice"),
    ("return sum(X, axis=1, axis=0)", SYNTAX, "axis", "given twice"),
    ("return sum(X, 1, keepdims=2)", SYNTAX, "2", "True or False"),
    ("return sum(X, axis=X)", SHAPE, "X", "integer constant, not a tensor"),
    ("return sum(X, axis=0.5)", SHAPE, "0.5", "not 1/2"),
    ("return sum(X, axis=(0, 1, 0))", SHAPE, "0", "named twice"),
    ("return sum(*X)", SYNTAX, "*X", "unpacks nothing"),
    ("return sum(X, **W)", SYNTAX, "**W", "unpack"),
    ("return silu(2)", SYNTAX, "2", "not the number 2"),
    ("return X * log(-1)", SHAPE, "log(-1)", "log of -1 is no number"),
    ("return X * exp(999)", SHAPE, "exp(999)", "exp of 999 is no number"),
    ("return rms_norm(X, eps=W)", SYNTAX, "W", "constant, not a tensor"),
    ("return repeat(X, 2)", SYNTAX, "repeat(X, 2)", "needs axis"),
    ("return repeat(X, 0, 1)", SHAPE, "repeat(X, 0, 1)", "at least one"),
    ("return repeat(X, axis=1)", SYNTAX, "repeat(X, axis=1)", "needs times"),
    ("return concat(X, W, axis=0)", SHAPE, "concat(X, W, axis=0)", "extents add up"),
    ("return reshape(X)", SYNTAX, "reshape(X)", "needs extents"),
    ("return clamp(X)", SYNTAX, "clamp(X)", "needs a limit"),
    ("return clamp(X, 2, 1)", SHAPE, "clamp(X, 2, 1)", "low comes first"),
    ("return X(W)", SYNTAX, "X", "not a function"),
    ("return exp(X)(W)", SYNTAX, "exp(X)(W)", "product is written"),
    ("return np.expp(X)", NAME, "np.expp", "did you mean exp"),
    ("return X.sum(axs=1)", SYNTAX, "axs", "did you mean axis?"),
    ("return X.t", SYNTAX, "X.t", "they have T, mT, shape"),
    ("return X.view(2)", SHAPE, "X.view(2)", "32 elements"),
    # shapes and axes
    ("return W @ X", SHAPE, "W @ X", "inner extents 16 and 4 differ"),
    ("return X + W", SHAPE, "X + W", "do not broadcast"),
    ("return X / sum(X, -1)", SHAPE, "X / sum(X, -1)", "keepdims=True"),
    ("return sum(X, axis=2)", SHAPE, "2", "axes go from -2 to 1"),
    ("return sum(X, axis=-3)", SHAPE, "-3", "axes go from -2 to 1"),
    ("return X.var(1)", SYNTAX, "X.var", "PyTorch by n - 1"),
    ("return np.nan * X", SYNTAX, "np.nan", "infinities are choices"),
    ("return np.mean_ * X", SYNTAX, "np.mean_", "there are functions, and pi"),
    ("return transpose(X, 0)", SHAPE, "transpose(X, 0)", "for example transpose(x, 1, 0)"),
    ("return transpose(X, 0, 0)", SHAPE, "transpose(X, 0, 0)", "once"),
    ("return transpose(X, 0, 2)", SHAPE, "2", "no axis 2"),
    ("return transpose(sum(X, 0))", SHAPE, "transpose(sum(X, 0))", "no two dimensions"),
    ("return X[0].T", SHAPE, "X[0].T", "v[:, None] is a column"),
    ("%%mirage Z\nreturn X * 2", SYNTAX, "%", "lines with a percent sign are a notebook's"),
    ("Z: Tensor\nreturn X * 2", DTypeError, "Tensor", "x: f16[2, 3]"),
    ("return reshape(X, 5, 7)", SHAPE, "reshape(X, 5, 7)", "32 elements"),
    ("return reshape(X, -1, -1)", SHAPE, "reshape(X, -1, -1)", "positive"),
    ("return reshape(X, 5, -1)", SHAPE, "reshape(X, 5, -1)", "divide"),
    ("return reshape(X, 0, -1)", SHAPE, "reshape(X, 0, -1)", "positive"),
    ("return rms_norm(X, W)", SHAPE, "rms_norm(X, W)", "declare it as [8]"),
    ("return sum(X, 1) @ W", SHAPE, "sum(X, 1) @ W", "inner extents"),
    ("return X ** W", SYNTAX, "X ** W", "exp(y * log(x))"),
    ("return X ** 2 ** 0.5", SYNTAX, "X ** 2 ** 0.5", "rational"),
    ("return X // 0", SHAPE, "X // 0", "divided by zero"),
    ("return X / 0", SHAPE, "X / 0", "divided by zero"),
    ("return 2 @ X", SYNTAX, "2 @ X", "takes a tensor"),
    # declarations
    ("Z: f17[2]", DTypeError, "f17", "did you mean f16?"),
    ("Z: int4[2]", DTypeError, "int4", "the dtypes are"),
    ("Z: f16[]", SYNTAX, "", "a scalar is declared as x: f32"),
    ("Z: f16[0, 2]", SHAPE, "0", "at least 1"),
    ("Z: f16[2, -3]", SHAPE, "-3", "at least 1"),
    ("Z: f16[2.5]", SHAPE, "2.5", "integer constant"),
    ("Z: f16[4, 7 / 2]", SHAPE, "7 / 2", "not 7/2"),
    ("Z: f16[()]", SHAPE, "f16[()]", "at least one dimension"),
    ("Z: f16[N]", NAME, "N", "there is no N"),
    ("Z: f16[X]", SHAPE, "X", "not a tensor"),
    ("Z: f16[2:3]", SYNTAX, "2:3", "not an expression"),
    ("Z: f16[2] = 3", SYNTAX, "3", "no value of its own"),
    ("Z: 4096", SYNTAX, "4096", "a constant is Z = 4"),
    ("Z = X + f16[2, 3]", SYNTAX, "f16[2, 3]", "declared as X: f16[2, 3]"),
    ("Z: f16[100000, 100000]", SIZE, "f16[100000, 100000]", "at most 2,147,483,647"),
    ("Z: f16[1, 1, 1, 1, 1, 1, 1, 1, 1]", SIZE, "f16[1, 1, 1, 1, 1, 1, 1, 1, 1]", "9 dimensions"),
    # statements
    ("Y = exp(X)", SYNTAX, "Y = exp(X)", "end with: return Y"),
    ("def f(x): return exp(x)", SYNTAX, "def f(x): return exp(x)", "and behind it: return f(X)"),
    ("return X.cuda()", NAME, "X.cuda", "no devices"),
    ("return", SYNTAX, "return", "write return Y"),
    ("return ()", SYNTAX, "()", "write return Y"),
    ("return X", SYNTAX, "X", "unchanged"),
    ("return 3", SHAPE, "3", "not the number 3"),
    ("exp(X)", SYNTAX, "exp(X)", "not used"),
    ("Y, Z = X, W, X", SYNTAX, "X, W, X", "2 names for 3 tensors"),
    ("Y, Z = X", SYNTAX, "X", "2 names for 1 tensor"),
    ("Y, 2 = split(X, 2)", SYNTAX, "2", "cannot be read"),
    ("Y, X[0] = split(X, 2)", SHAPE, "X[0]", "[2, 8] cannot be expanded to [8]"),
    ("Y, X.T = split(X, 2)", SYNTAX, "X.T", "A, B = ..."),
    ("Y = exp(split(X, 2))", SYNTAX, "split(X, 2)", "2 tensors, not one"),
    ("Y = split(X, 2)[2]", SHAPE, "2", "the last one [1]"),
    ("return split(X, 3)", SHAPE, "split(X, 3)", "no 3 equal parts"),
    ("return split(X, [1, 2])", SHAPE, "split(X, [1, 2])", "add up to 4"),
    ("return chunk(X, 0)", SHAPE, "chunk(X, 0)", "at least one"),
    ("return stack([X, W])", SHAPE, "stack([X, W])", "one shape"),
    ("return stack([])", SHAPE, "stack([])", "of nothing"),
    ("return expand(X, 5, 8)", SHAPE, "expand(X, 5, 8)", "extent 1 are repeated"),
    ("return expand(X, 8)", SHAPE, "expand(X, 8)", "cannot be expanded"),
    ("return var(X[:1], 0, ddof=1)", SHAPE, "var(X[:1], 0, ddof=1)", "1 elements with ddof=1"),
    ("return group_norm(X, 3)", SHAPE, "group_norm(X, 3)", "3 equal groups"),
    ("return cross_entropy(X, W)", SHAPE, "cross_entropy(X, W)", "a probability for every logit"),
    ("return leaky_relu(X, 2 ** 0.5)", SYNTAX, "leaky_relu(X, 2 ** 0.5)", "slope of leaky_relu is rational"),
    ("return einsum(X, W)", SYNTAX, "X", "letters for axes"),
    ("return einsum('ij->i', X, W)", SYNTAX, "einsum('ij->i', X, W)", "1 operands"),
    ("return einsum('ijk->i', X)", SHAPE, "einsum('ijk->i', X)", "3 letters"),
    ("return einsum('ii->i', X)", SHAPE, "einsum('ii->i', X)", "i has extent 4 and extent 8"),
    ("return einsum('ij,ij->i', X, W)", SHAPE, "einsum('ij,ij->i', X, W)", "extent 4 and extent 8"),
    ("return einsum('ij->k', X)", SYNTAX, "einsum('ij->k', X)", "k stands only"),
    ("return einsum('ij->jj', X)", SYNTAX, "einsum('ij->jj', X)", "each letter stands once"),
    ("return f16(X)", SYNTAX, "f16(X)", "unchanged"),
    # indexing
    ("return X[4]", SHAPE, "X[4]", "from -4 to 3"),
    *((f"return {line}", SHAPE, line, "axes go from") for line in (
        "X.unsqueeze(4)", "X.squeeze(-3)", "X.flatten(2)", "X.roll(1, 5)", "np.diff(X, axis=2)", "X.argmax(7)",
        "X.narrow(2, 0, 1)", "np.diagonal(X, axis2=2)",
    )),
    ("return np.max(X, axis=7)", SHAPE, "7", "there is no axis 7 for max"),
    ("return np.tensordot(X, W, 2)", SHAPE, "", "the last extents of x are the first ones of y"),
    ("return np.pad(X, ((1, 1), (0, 0), (0, 0)))", SHAPE, "", "such a pair for each axis"),
    ("return np.exp(X[None].T)", SYNTAX, "X[None].T", ".T reverses all 3 dimensions in NumPy"),
    ("return F.relu(X[None].T)", SYNTAX, "X[None].T", ".mT swaps the last two"),
    ("return X[0, 1, 1]", SHAPE, "X[0, 1, 1]", "an index of 3"),
    ("return X[0, 1, 2]", SHAPE, "X[0, 1, 2]", "an index of 3 for 2 dimensions"),
    ("return X[..., ...]", SYNTAX, "...", "twice"),
    ("return X[3:2]", SHAPE, "X[3:2]", "no element"),
    ("return X[::0]", SHAPE, "::0", "a step of 0"),
    ("return X[X, W]", SHAPE, "X[X, W]", "indices have one shape"),
    ("return take(X, W, 2)", SHAPE, "2", "no axis 2"),
    ("return gather(X, floor(W), 1)", SHAPE, "gather(X, floor(W), 1)", "take(x, index, axis) has any shape"),
    ("return one_hot(floor(X), 0)", SHAPE, "one_hot(floor(X), 0)", "no element"),
    ("return gather(X, X, 1)", DTypeError, "gather(X, X, 1)", "declare it as I: i64[8]"),
    ("return one_hot(X, 4)", DTypeError, "one_hot(X, 4)", "an index holds whole numbers, this is f16"),
    ("return X[W[:, 0] / 2]", DTypeError, "X[W[:, 0] / 2]", "floor(x) and round(x)"),
    ("return X[:, W[0]]", DTypeError, "X[:, W[0]]", "declare it as I"),
    ("return X[W[0], W[0]]", DTypeError, "X[W[0], W[0]]", "declare it as I"),
    ("return F.embedding(W[0], X)", DTypeError, "F.embedding(W[0], X)", "declare it as I"),
    ("return F.cross_entropy(X, X[:, 0])", DTypeError, "", "declare it as I"),
    ("return conv1d(X, W)", SHAPE, "conv1d(X, W)", "x is [batch, channels"),
    ("return conv1d(X[None], W[None])", SHAPE, "conv1d(X[None], W[None])", "groups * w's channels"),
    ("return conv1d(X[None], X[None], stride=0)", SHAPE, "", "dilations are positive"),
    ("return conv1d(X[None], X[None], padding=[1, 1])", SHAPE, "", "one for each dimension"),
    ("return conv1d(X[None], X[None], dilation=9)", SHAPE, "", "no window fits"),
    ("return conv2d(X[None, None], X[None, None], W)", SHAPE, "", "bias has an entry"),
    ("return X[0.5]", SHAPE, "0.5", "not 1/2"),
    ("return sum[0]", NAME, "sum", "is a function"),
    ("return zebra[0]", NAME, "zebra", "there is no zebra"),
    # loops
    ("for i in 3:\n    Y = X", SYNTAX, "3", "over a range or several tensors"),
    ("for i in range(0, 2, 0):\n    Y = X", SHAPE, "range(0, 2, 0)", "a step of 0"),
    ("for i in range(10 ** 9):\n    Y = X", SIZE, "range(10 ** 9)", "turns"),
    ("for i in range():\n    Y = X", SYNTAX, "range()", "not a range"),
    ("for i, j in range(2):\n    Y = X", SYNTAX, "i, j", "one name"),
    # functions
    ("def f(x):\n    Y = x", SYNTAX, "def f(x):", "its last line is return"),
    ("def f(x, y): return z", NAME, "z", "there is no z"),
    ("def f(x, **x): return x", TWICE, "def f(x, **x): return x", "two parameters"),
    ("def f(x, **k): return x * k[\"a\"]\nreturn f(X)", SYNTAX, "", "no 'a'"),
    ("def f(x, y): return x @ y\nreturn f(W, X)", SHAPE, "x @ y", "line 4 calls f"),
    ("def f(x, y): return g(x)\nreturn f(X, X)", NAME, "g", "there is no function g"),
    ("def f(x, y): return f(y, x)\nreturn f(X, X)", SIZE, "", "levels deep"),
    ("X.T = 3", SYNTAX, "X.T", "cannot be assigned"),
    ("X[0, 0, 0] = 3", SHAPE, "X[0, 0, 0]", "an index of 3 for 2 dimensions"),
    ("Y = X[0]", SYNTAX, "Y = X[0]", "end with: return Y"),
    ("Y = exp([X, X])", SYNTAX, "[X, X]", "a sequence"),
    ("Y = X + None", SYNTAX, "None", "neither a tensor nor a number"),
    ("Y = X W", SYNTAX, "", "cannot be read"),
    ("Y = X @", SYNTAX, "", "cannot be read"),
    ("  Y = exp(X)", SYNTAX, "  ", "indented by 2, the first statement by 0"),
    ("Y = (X @ W", SYNTAX, "(", "never closed"),
    ("Y = X @ W)", SYNTAX, ")", "closes nothing"),
    ("Y = (X @ W]", SYNTAX, "]", "waits for )"),
    ("match X:", SYNTAX, "", "cannot be read"),
    # numbers
    ("Y = 2X", SYNTAX, "2X", "written with *"),
    ("Y = 0x1G", SYNTAX, "0x1G", "not a number"),
    ("Y = 1.2.3", SYNTAX, "1.2.3", "decimal"),
    ("Y = 3j", SYNTAX, "3j", "not a number"),
    ("Y = 9 ** 9 ** 9", SIZE, "9 ** 9 ** 9", "1024 bits"),
    ("Y = 1e999999999", SIZE, "1e999999999", "1024 bits"),
    ("return X ** 1e39", SIZE, "X ** 1e39", "does not fit f32"),
    ("return repeat(X, 2 ** 30, 0)", SIZE, "repeat(X, 2 ** 30, 0)", "at most 2,147,483,647"),
    ("Y = 1 / 0", SHAPE, "1 / 0", "divided by zero"),
    ("Y = 0 ** -1", SHAPE, "0 ** -1", "divides by zero"),
    ("Y = (-2) ** 0.5", SHAPE, "(-2) ** 0.5", "no real root"),
    ("return X * 1e39", SIZE, "X * 1e39", "does not fit f32"),
    ("return X * 1e-39", SIZE, "X * 1e-39", "does not fit f32"),
    ("Y = " + "9" * 70, SIZE, "9" * 70, "at most 64"),
    ("y" * 65 + " = 2", SIZE, "y" * 65, "at most 64"),
    # characters
    ("Y = X × W", SYNTAX, "×", "write *"),
    ("Y =\u00a0X", SYNTAX, "\u00a0", "plain space"),
    ("Y = X − W", SYNTAX, "−", "write -"),
    ("α = 2", SYNTAX, "α", "GREEK SMALL LETTER ALPHA"),
    ("Y = \N{FULLWIDTH LATIN SMALL LETTER E}xp(X)", SYNTAX, "\N{FULLWIDTH LATIN SMALL LETTER E}", "ASCII"),
    ("Y = X\u00a0@ W", SYNTAX, "\u00a0", "NO-BREAK SPACE"),
    ("Y =\tX", SYNTAX, "\t", "a tab"),
    ("Y = X @ W\r", SYNTAX, "\r", "Unix line ends"),
    ("Y = exp(X) # \u202e hidden", SYNTAX, "\u202e", "RIGHT-TO-LEFT OVERRIDE"),
    ("Y = \x00", SYNTAX, "\x00", "U+0000"),
    ("Y = \ud800", SYNTAX, "\ud800", "U+D800"),
    ("Y = X\x0c", SYNTAX, "\x0c", "U+000C"),
    ("Y = X\u2028", SYNTAX, "\u2028", "LINE SEPARATOR"),
    # Python that programs do not have
    ("import os", SYNTAX, "import os", "known without an import"),
    ("while X: pass", SYNTAX, "X", "not known here"),
    ("continue", SYNTAX, "continue", "not a statement of the language"),
    ("if X: Y = X", SYNTAX, "X", "masks are joined with & | ~"),
    ("def f(x): Y = x", SYNTAX, "def f(x): Y = x", "returns nothing"),
    ("def f(x): return 2", SYNTAX, "2", "does not use its argument"),
    ("def f(x): return exp(x, x)", SYNTAX, "exp(x, x)", "one argument"),
    ("def f(x): return y", NAME, "y", "there is no y"),
    ("def f(x): return x / 0", SYNTAX, "x / 0", "division by zero"),
    ("def f(x): return 2 ** x", SYNTAX, "2 ** x", "exponent is not a number write exp(x * log(2))"),
    ("Y = (X + 1)(X)", SYNTAX, "(X + 1)(X)", "not a function"),
    ("Y = [lambda **x: x]", SYNTAX, "lambda **x: x", "line of its own"),
    ("Y = [x for x in 3]", SYNTAX, "3", "over a range or several tensors"),
    ("Y = X if W else X", SYNTAX, "W", "where(X > 0, X, Y)"),
    ("Y = X and W", SYNTAX, "X", "where(X > 0, X, Y)"),
    ("Y = X < W", SHAPE, "X < W", "do not broadcast"),
    ("Y = X is W", SYNTAX, "X is W", "no comparison"),
    ("Y = 0 < X < 1", SYNTAX, "0 < X < 1", "(0 < X) & (X < 1)"),
    ("Y = X in W", SYNTAX, "X in W", "no comparison"),
    ("Y = X & W", SYNTAX, "X & W", "& takes masks"),
    ("Y = ~X", SYNTAX, "~X", "~ takes masks"),
    ("Y = (X > 0) | 1", SYNTAX, "(X > 0) | 1", "| takes masks"),
    ("Y = X - inf", NAME, "inf", "choice of where only"),
    ("Y = where(X > 0, inf, -inf)", SYNTAX, "where(X > 0, inf, -inf)", "two infinities"),
    ("Y = where(1, X, W)", SYNTAX, "1", "not the number 1"),
    ("Y = arange(0)", SHAPE, "arange(0)", "no element"),
    ("Y = arange(2 ** 25)", SHAPE, "arange(2 ** 25)", "magnitudes up to"),
    ("return X['row']", SHAPE, "'row'", "not 'row'"),
    ("returns X", SYNTAX, "", "did you mean return?"),
    ("return gather(X, 1, X)", SYNTAX, "1", "write gather(x, index, axis)"),
    ("return F.gelu(X, approximate='fast')", SHAPE, "F.gelu(X, approximate='fast')", "'tanh'"),
    ("return X * 1j", SYNTAX, "1j", "no complex numbers"),
    ("return X[1.0]", SHAPE, "1.0", "write 1"),
    ("return X[:, :2.0]", SHAPE, "2.0", "write 2"),
    ("return X[True]", SHAPE, "True", "write 1"),
    ("return pad(X, (1, 1))", SHAPE, "pad(X, (1, 1))", "F.pad"),
    ("Y = pad(X, -1, 0, 1)", SHAPE, "pad(X, -1, 0, 1)", "leaves elements out"),
    ("Y = rope(X, W, W)", SHAPE, "rope(X, W, W)", "half as long"),
    ("Y = f'{X!r}'", SYNTAX, "'", "braces"),
    ('Y = "X" * 2', SYNTAX, '"X"', "neither a tensor nor a number"),
    ("Y = {X}", SYNTAX, "{X}", "braces hold results"),
    ("Y = X;; Z = W", SYNTAX, ";", "cannot be read"),
    ("Y = X \\", SYNTAX, "\\", "open bracket"),
    ("Y = X ^ 2", SYNTAX, "X ^ 2", "written **"),
    ("Y = X % 0", SHAPE, "X % 0", "divided by zero"),
    ("Y += X", NAME, "Y", "there is no Y"),
    ("X[0] += X", SHAPE, "X[0]", "[4, 8] cannot be expanded to [8]"),
    ("Y = [(Z := X) for i in range(2)]", SYNTAX, "Z := X", "line of its own"),
    ("return X[...]", SYNTAX, "X[...]", "unchanged"),
    ("global X", SYNTAX, "global", "not part of the language"),
    ("with X: pass", SYNTAX, "with X: pass", "not a statement"),
    ("%mirage help", SYNTAX, "%", "cannot be read"),
    ("!ls", SYNTAX, "!", "no !"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "marked", "words"), IN_LINE_3, ids=[row[0][:40] for row in IN_LINE_3])
def test_mistake(text: str, kind: type[MirageError], marked: str, words: str) -> None:
    with pytest.raises(MirageError) as caught:
        parse(HEAD + text)
    error = caught.value
    assert type(error) is kind
    assert words in f"{error.message} {error.hint}"
    assert error.span is not None and error.hint
    assert error.span.line == 3
    first = text.split("\n")[0]
    start = error.span.column - 1
    assert first[start : start + error.span.width] == marked or not marked
    assert len(str(error)) < 600
    assert all(line.isprintable() for line in str(error).split("\n"))


IN_LATER_LINES = [
    ("sum = exp(X)\nreturn exp(sum(X))", 4, "line 3 gives it another meaning"),
    ("for i in range(2):\nY = X", 4, "indent what a for"),
    ("for i in range(2):\n    Y = X\n   Z = X", 5, "the line above by 4"),
    ("for i in range(2):\n    return exp(X)", 4, "behind it"),
    ("for i in range(2):\n    Z: f16[2]", 4, "declared once"),
    ("for i in range(2):\n    def f(x):\n        x = x", 4, "f returns nothing"),
]


@pytest.mark.parametrize(("text", "line", "words"), IN_LATER_LINES)
def test_mistakes_in_loops_and_behind(text: str, line: int, words: str) -> None:
    error = mistake(HEAD + text)
    assert type(error) is SYNTAX and error.span is not None and error.span.line == line
    assert words in f"{error.message} {error.hint}"


def mistake(text: str, **options: Any) -> MirageError:
    with pytest.raises(MirageError) as caught:
        parse(text, **options)
    return caught.value


def place(error: MirageError) -> tuple[int, int, int]:
    assert isinstance(error.span, SourceSpan)
    return error.span.line, error.span.column, error.span.width


@pytest.mark.parametrize("word", KEYWORDS)
def test_every_refused_keyword_is_found_where_it_stands(word: str) -> None:
    error = mistake(f"{HEAD}Y = (X\n  @ {word} W)")
    assert type(error) is ProgramSyntaxError and error.hint
    assert place(error) == (4, 5, len(word))


@pytest.mark.parametrize("token", REFUSED)
def test_every_refused_token_is_found_where_it_stands(token: str) -> None:
    error = mistake(f"{HEAD}Y = (X\n  @ {token} W)")
    assert type(error) is ProgramSyntaxError and error.hint
    assert place(error) == (4, 5, len(token))


def test_the_caret_stands_under_the_mistake() -> None:
    assert str(mistake(HEAD + "Y = X @ V  # weights")).split("\n")[1:3] == [
        "  line 3: Y = X @ V  # weights",
        "                  ^",
    ]


def test_an_indented_program_keeps_its_columns() -> None:
    text = "\n    X: f16[4, 8]\n  # a comment further left\n    return X @ Xy\n"
    assert place(mistake(text)) == (4, 16, 2)
    assert place(mistake("    X: f16[4, 8]\n    Y = (X @\n  Xy)\n")) == (3, 3, 2)
    assert "by 2, the first statement by 4" in mistake("    X: f16[4, 8]\n  Y = exp(X)\n").message


def test_an_expression_over_several_lines_is_marked_to_the_end_of_its_first() -> None:
    assert place(mistake(HEAD + "Y = exp(W @  # too wide\n   X)\nreturn Y")) == (3, 9, 3)
    assert place(mistake(HEAD + "Y = exp(X,\n   W)\nreturn Y")) == (4, 4, 1)


def test_nothing_follows_the_return() -> None:
    error = mistake(HEAD + "return exp(X)\nZ = 3")
    assert type(error) is ProgramSyntaxError and place(error) == (4, 1, 5)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment"])
def test_an_empty_program_says_so(text: str) -> None:
    assert "empty" in mistake(text).message


def test_a_byte_order_mark_is_named() -> None:
    error = mistake("\ufeff" + HEAD)
    assert "byte order mark" in error.message and place(error) == (1, 1, 1)


@pytest.mark.parametrize(
    ("sizes", "kind", "words"),
    [
        ({"BB": 2}, NAME, "did you mean B?"),
        ({"zebra": 2}, NAME, "the sizes are B, eps"),
        ({"X": 2}, OptionError, "an input, not a size"),
        ({"Y": 2}, OptionError, "Y is not a size"),
        ({"eps": 2}, OptionError, "eps is not a size"),
        ({"B": 2.0}, ArgumentError, "sizes['B'] is 2.0, of type float it takes int | range"),
        ({"B": True}, ArgumentError, "sizes['B'] is True"),
        ({"B": "2"}, ArgumentError, "sizes['B'] is '2'"),
        ({2: 2}, ArgumentError, "it takes Mapping[str, int | range]"),
        ({"B": 0}, SHAPE, "at least 1"),
        ({"B": -2}, SHAPE, "this extent is -4"),
        ({"B": 2**40}, SIZE, "elements"),
        ({"B": 2**5000}, SIZE, "1024 bits"),
    ],
)
def test_sizes_from_outside(sizes: dict[str, Any], kind: type[MirageError], words: str) -> None:
    error = mistake("B = 1\neps = 0.5\nX: f16[2*B, 8]\nY = rms_norm(X, eps=eps)\nreturn Y", sizes=sizes)
    assert type(error) is kind
    assert words in f"{error.message} {error.hint}"


HUGE: dict[str, tuple[str, type[MirageError] | None]] = {
    "text": ("#" * (limits.MAX_TEXT + 1), SIZE),
    "brackets": (HEAD + "Y = " + "(" * 150 + "X" + ")" * 150, SIZE),
    "open brackets": (HEAD + "Y = " + "[" * 60_000, SIZE),
    "calls": (HEAD + "Y = " + "exp(" * 150 + "X" + ")" * 150, SIZE),
    "minus": (HEAD + "Y = " + "-" * 60_000 + "X", SIZE),
    "plus": (HEAD + "Y = " + "+".join(["X"] * 30_000), SIZE),
    "short plus": (HEAD + "Y = " + "+".join(["X"] * 150), SIZE),
    "powers": (HEAD + "Y = " + "**".join(["2"] * 20_000), SIZE),
    "transposes": (HEAD + "Y = X" + ".T" * 30_000, SIZE),
    "words": (HEAD + "Y = " + "X " * 30_000, None),
    "digits": (HEAD + "Y = " + "9" * 60_000, SIZE),
    "decimals": (HEAD + "Y = 0." + "9" * 60_000, SIZE),
    "targets": (HEAD + "Y = X" + "= X" * 20_000, SYNTAX),
    "a list that doubles": (HEAD + "L = [X, W]\nfor i in range(60):\n    L = L + L\nreturn L[0] * 2", SIZE),
    "a list of lists": (HEAD + "L = [X, W]\nfor i in range(3000):\n    L = [L, L]\nreturn X * 2", SIZE),
    "a list in itself": (HEAD + "L = [X]\nfor i in range(3000):\n    L.append(L)\nreturn X * 2", SIZE),
    "turns in turns": (HEAD + "L = [1 for i in range(4000) for j in range(4000) if j < 0]\nreturn X * 2", SIZE),
    "extents": (HEAD + "Z: f16[" + "1, " * 20_000 + "]", SIZE),
    "axes": (HEAD + "Y = sum(X, axis=(" + "0, " * 20_000 + "))", SIZE),
    "arguments": (HEAD + "Y = exp(" + "X, " * 20_000 + ")", SYNTAX),
    "operators": (HEAD + "\n".join(f"Y{i} = {i + 2} - X" for i in range(3_000)), SIZE),
    "statements": (HEAD + "a = 2\n" * 4_001, SIZE),
    "turns": (HEAD + "for i in range(3000):\n    for k in range(3000):\n        a = i", SIZE),
    "loops": (HEAD + "".join(f"{' ' * n}for i in range(2):\n" for n in range(90)) + " " * 90 + "a = 2", SIZE),
    "calls of functions": (HEAD + "\n".join(
        ["def f0(x, y): return x", *(f"def f{i + 1}(x, y): return f{i}(x, f{i}(x, y))" for i in range(60))]
    ) + "\nreturn f60(X, X)", SIZE),
    "constants": (HEAD + "\n".join(["a = 3", *(f"{'a' * (i + 1)} = {'a' * i} ** 3" for i in range(1, 60))]), SIZE),
    "squares": (HEAD + "\n".join(f"{'a' * (i + 1)} = {'a' * i or 'X'} ** 8" for i in range(60)), SYNTAX),
}


@pytest.mark.parametrize("case", HUGE)
def test_huge_programs_are_refused_at_once(case: str) -> None:
    text, kind = HUGE[case]
    with cpu_limit(2):
        error = mistake(text)
    assert kind is None or type(error) is kind
    assert len(str(error)) < 600


def test_the_deepest_accepted_program_needs_little_stack() -> None:
    """A program at the limit of nesting is read with 600 frames left: notebooks have that many."""
    depth = limits.MAX_NESTING // 2 - 2
    text = HEAD + "return " + "exp(1 + " * depth + "X" + ")" * depth
    limit = sys.getrecursionlimit()
    frames = len(_frames())
    try:
        sys.setrecursionlimit(frames + 600)
        assert len(parse(text).graph.ops) == 2 * depth + 1
    finally:
        sys.setrecursionlimit(limit)


def _frames() -> list[object]:
    frame, found = sys._getframe(), list[object]()
    while frame is not None:
        found.append(frame)
        frame = frame.f_back  # type: ignore[assignment]  # the loop ends at None
    return found


def test_a_type_is_no_input() -> None:
    """It was said to be used before it is defined, in the line behind that."""
    with pytest.raises(UnknownNameError, match="A is no tensor here") as caught:
        parse("A = f16[4, 8]\nreturn exp(A)")
    assert "line 1 defines it; an input has a colon, as A: f16[2, 3]" == caught.value.hint


def test_what_is_left_out_of_a_long_line_is_marked() -> None:
    first, *_, last = SourceSpan(1, 151, 2, "x" * 150 + "Ab" + "x" * 150).caret().splitlines()
    assert first.startswith("  line 1: …x") and first.endswith("x…") and first[last.index("^") :][:2] == "Ab"
    assert "…" not in SourceSpan(1, 1, 2, "Ab" + "x" * 60).caret()
