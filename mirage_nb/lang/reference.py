"""The reference of the language as text, written from the tables that the parser reads."""

from __future__ import annotations

from mirage_nb.ir.dtypes import DTYPE_NAMES, DType
from mirage_nb.ir.formula import SCALARS
from mirage_nb.lang import limits
from mirage_nb.lang.functions import FUNCTIONS, OPERATORS
from mirage_nb.lang.names import SYNONYMS, shown
from mirage_nb.lang.prelude import prelude, written
from mirage_nb.lang.signature import Function, Operator

_STATEMENTS = """\
A tensor program computes named outputs from named inputs. It is written in Python's expression syntax and is
never executed as Python.

  X: f16[2*B, 4096]       an input: dtype and shape
  dtype: f16              the element type of inputs that are declared without one, as W: [4096, 64]
  B = 8                   a constant; integer ones are sizes and can be set from outside
  B: size(64)             a size from 1 to 64, known at launch: the outermost dimension of inputs, as X: f16[2*B, 64]
  Y = rms_norm(X) * 2     a tensor; a name is what it was last assigned, and Y += X is Y = Y + X
  A, B = split(Y, 2)      several tensors at once; split(Y, 2)[0] is one of them; A, *B = Y are rows
  Y[:, ::2] = A           from here on Y has A there; also Y[Y < 0] = 0, Y[:, 0] += 1 and Y.at[0].set(A). A name that
                          shares elements with Y is not read any more: Z = Y.clone() keeps what they were
  for i in range(3):      a loop, written out; also over tensors: for w in (A, B):, and while n > 1: of constants
      Y = Y + Y @ W
  def block(x, w, eps=0): a function of tensors and constants; a call stands for its lines
      y = rms_norm(x, eps=eps)
      return x + y @ w
  def forward(x: f16[8, 64], w: f16[64, 64]):
                          behind everything else, a program by itself: its parameters with types are the inputs
  def f(x): return log(1 + exp(x))
                          an elementwise function of one number, taken as a whole (see below)
  if causal:              what is known while the program is read: sizes, shapes, options, None; also A if c else B
  X[X > 0].mean()         of elements that a mask takes: sum, mean, max, min, what is computed of each before, and
                          Y[m] = Z[m]; how many they are depends on values, so no tensor has their extents
  assert n > 8, f"n={n}"  what the program itself refuses, as raise ValueError("n"); (n := len(X)) names what it reads
  W = [split(X, 2)[0], Y] a list; len, zip, enumerate, range and [f(x) for x in W] are Python's
  return Y                the outputs, named after their variables: return Y, Z or return {"y": Y}
  # ...                   a comment, as is a text in three quotes

Axes by their names, as in einops: rearrange(X, "b t (h d) -> b h t d", h=4), reduce(X, "b t c -> b c", "mean"),
repeat(X, "t c -> b t c", b=3), einsum(Q, K, "batch i d, batch j d -> batch i j").

Functions may also stand as in NumPy and PyTorch: np.exp(X), torch.cat((X, Y), dim=-1), F.layer_norm(X, (64,), g, b),
X.mean(-1, keepdim=True), X.T, X.shape[0]; where the two disagree, the module that is written says which is meant, of
methods the only one of the two that the text names (X.std(0) beside torch.exp divides by n - 1).
A scalar is a tensor of one element, [1]: lr: f32 declares one, sum(X) is one.

Numbers are exact: 0.1 is one tenth, 64 ** -0.5 is one eighth, 128 ** -0.5 keeps its root as a symbol.
Shapes, axes, indices and bounds of loops are integer expressions of constants. Equal subexpressions are computed once.

Element types: an operator on two types gives the wider one, f16 with bf16 gives f32; numbers take the type of the
tensor beside them, and so do places (arange), comparisons, where(m, 1, -inf) and what is made of such and of numbers
alone, as in JAX: they are f32, which a half that they meet makes its own. Until then they are exact, and so is a
comparison: 0.1 * arange(n) is rounded where X: f16 is added to it, and X == arange(4096) not at all; f32(arange(n)) is
f32 whatever it meets. f32(x) changes the type of x. Sums, products of matrices and everything elementwise are computed
in f32 (in f64 for f64 operands) and rounded to the type of the result where it is stored; what stays inside a kernel
may keep its digits. So f16(x) says what is stored, and f32(x) that the results that follow are stored as f32. Inputs
of whole numbers (i32, i64, bool and their like: indices, classes, masks; of bool any number but 0 is true) are passed
as integer tensors. Those of one byte (i8, u8, bool) are stored so, as weights and masks are, and take the type of what
they meet, as floats of one byte do (f8e4m3, f8e5m2), which inputs may have, too; the others are held in f32, which has
those up to 2**24 exactly: a tensor with others is refused. What a program computes of whole numbers alone is computed
in f32, so f64(x) stands in front of sums and products beyond. X @ f16(W) * s multiplies by such weights W. A product
of floats of one byte with each other, X @ W.T, is f32 with as many digits as tensor cores keep that sum these, 128
elements at a time: about four. f32(X) @ f32(W).T has those of f32."""


def reference() -> str:
    """The whole language on one page: statements, operators, functions, dtypes, limits."""
    names = (f"{d.value} ({', '.join(n for n in DTYPE_NAMES if DTYPE_NAMES[n] is d and n != d.value)})" for d in DType)
    bounds = (
        f"at most {limits.MAX_TEXT:,} characters, {limits.MAX_OPERATORS} operators, {limits.MAX_RANK} dimensions, "
        f"{limits.MAX_ELEMENTS:,} elements a tensor, {limits.MAX_NESTING} levels of nesting"
    )
    return "\n".join(
        [
            _STATEMENTS,
            "",
            "Operators",
            *(_row(row.form, row) for row in OPERATORS.values()),
            "",
            "Functions (axis=-1 is the last; keepdims=True keeps a reduced axis with extent 1)",
            *(_row(row.signature, row) for row in FUNCTIONS.values()),
            "",
            f"Functions that are made of these: {', '.join(made())}",
            "",
            f"Functions in formulas: {', '.join(SCALARS)}, and + - * / **; the search takes such a function as it is",
            "",
            f"Dtypes: {', '.join(names)}",
            f"Limits: {bounds}",
        ]
    )


def made() -> list[str]:
    """The functions that are written in the language, as programs call them."""
    return sorted({shown(name) for name in prelude() if not name.startswith("_")})


def explained(name: str) -> str:
    """What a function of the language does, on a few lines: its row, or the lines that a call stands for; of several
    that are called so, as behind torch and np, those of all. Empty if there is none."""
    row = FUNCTIONS.get(name)
    if row is not None:
        same = f"\nthe same as {row.same_as}" if row.same_as else ""
        return f"{row.signature}\n{row.summary}\nshape: {row.shape}\nexample: {row.example}{same}"
    meant = SYNONYMS.get(name, name)
    if meant in FUNCTIONS:
        return explained(meant)
    return "\n".join(lines for other, lines in written().items() if shown(other) in (name, meant) and other[0] != "_")


def _row(form: str, row: Function | Operator) -> str:
    same = f", the same as {row.same_as}" if row.same_as else ""
    return f"  {form}\n      {row.summary}\n      shape: {row.shape}\n      example: {row.example}{same}"
