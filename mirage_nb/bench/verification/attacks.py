"""Wrong candidates that were made to be taken for equal: what a verifier has to refuse, whoever asks.

In: nothing. Out: `ATTACKS`: a program and a candidate by name, both as texts. Each was accepted once, or is a relative
of one that was. Most differ from their program in a corner of the reals only: a value that is missing far away, at one
point, behind a choice that hardly any input takes, or that a field shows to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping

from mirage_nb.errors import MirageError
from mirage_nb.lang import parse
from mirage_nb.verify.proof import with_proof
from mirage_nb.verify.trials import verify
from mirage_nb.verify.verdict import Verdict

ON_BOTH_LINES = "X: f32[3]\nY: f32[3]\n"
NONE = "S = relu(0-X*X)\n"
"""Zero for every real number, a random function in the field."""
BOTH = {
    # Roots that exist for a part of all numbers, so that trials show that part only.
    "selected by a zero relu": ("return 2*X", NONE + "return 3*X + sqrt(X*X) + 0*sqrt(S) + 0*sqrt(S*(0-X))"),
    "selected, in a sum": ("return 2*X", NONE + "return 2*X + (sqrt(X*X) - X) + 0*sqrt(S) + 0*sqrt(S*X)"),
    "selected by a clamp": ("return 2*X", "S = clamp(X*X, -2, 0)\nreturn X + sqrt(X*X) + 0*sqrt(S) + 0*sqrt(S*X)"),
    "selected by a power": ("return 2*X", NONE + "return X + (X**2)**0.5 + 0*S**0.5 + 0*(S*X)**0.5"),
    "selected by a maximum": (
        "return 2*X", "S = maximum(0-X*X, 0)\nreturn X + sqrt(X*X) + 0*sqrt(S) + 0*sqrt(S*X)"
    ),
    "selected by both sides": (
        NONE + "return 2*X + 0*sqrt(S) + 0*sqrt(S*X)", NONE + "return X + sqrt(X*X) + 0*sqrt(S) + 0*sqrt(S*X)"
    ),
    # Fractions of something that is zero for reals and not in the field.
    "a relu by itself": ("return 2*X", "return 2*X*relu(X)/relu(X)"),
    "a shifted relu by itself": ("return 2*Y", "return 2*Y*relu(X+3)/relu(X+3)"),
    "a relu far out": ("return 2*Y", "return 2*Y*relu(X+900)/relu(X+900)"),
    "a maximum of two scales": (
        "return 2*Y", "D = 2*maximum(X, Y) - maximum(2*X, 2*Y)\nreturn 2*Y*D/D"
    ),
    # Less defined than the program.
    "a root of what is mostly positive": ("return 2*Y", "return 2*Y + 0*sqrt(X+10)"),
    "a root that dips": ("return 2*Y", "return 2*Y + 0*sqrt(X*X+X+0.2)"),
    "roots of factors": ("return X*Y", "return sqrt(X)*sqrt(X)*Y"),
    "a line of zeros": ("return 2*Y", "return 2*Y*(X+Y-1)/(X+Y-1)"),
    "a double zero": ("return 2*Y", "return 2*Y*(X*X-X+0.25)/(X*X-X+0.25)"),
    "an irrational zero": ("return 2*Y", "return 2*Y*(X*X-2)/(X*X-2)"),
    "a zero of an exponential": ("return 2*Y", "return 2*Y*(exp(X)-2)/(exp(X)-2)"),
    "a logarithm": ("return 2*Y", "return 2*Y + 0*log(X*X)"),
    # Rounding that hides what differs.
    "doubt from cancellation": (
        "return 2*X + Y",
        NONE + "N = (X + 1e30*Y) - 1e30*Y\nreturn 1*X + Y + N + (sqrt(X*X) - X) + 0*sqrt(S) + 0*sqrt(S*X)",
    ),
    "doubt beside a relu": ("return 2*X", "return 2*X*relu(X)/relu(X) + 100*((X + 4e16) - 4e16 - X)"),
    "a tiny difference": ("return 2*X", NONE + "return 2*X + 1e-30*(sqrt(X*X)-X) + 0*sqrt(S) + 0*sqrt(S*X)"),
    "a tiny difference of tiny constants": (
        "return 2*X", NONE + "T = 1e-30*((sqrt(X*X) - X)*exp(0*X - 60))\nreturn 2*X + T + 0*sqrt(S) + 0*sqrt(S*X)"
    ),
    "saturated beside a difference": (
        "return X*sigmoid(90*Y*Y+90)", NONE + "return sigmoid(90*Y*Y+90)*sqrt(X*X) + 0*sqrt(S) + 0*sqrt(S*X)"
    ),
    # In a corner of the reals.
    "relu where samples are negative": ("return relu(X*X - 9) + Y", "return relu(X*X - 8) + Y"),
    "clamp beyond": ("return clamp(X, -500, 500) + Y", "return clamp(X, -500, 501) + Y"),
    "only at zero": ("return 2*X", "return 2*X*X/X"),
}  # fmt: skip
"""Attacks on field trials and values over the reals: those that a point refutes."""

HEAD = """X: f32[2, 4]
Y: f32[2, 4]
Z: f32[2, 4]
def f(x): return 1 / (x - 3.7)
def g(x): return log(sqrt(x + 10000000) + 1)
"""

ADDED = (
    "0*log(X+1e30)", "0*sqrt(X+1e35)", "0*log(X*X*X+1e37)", "0*log(sum(X,axis=1,keepdims=True)+1e36)",
    "0/(X*X*X-1e37)", "0/(X*X+Y*Y-2)", "0/(exp(X)-1e30)", "0/(sin(X)-0.9999)", "0*sqrt(0.9999+sin(X*Y))",
    "0/(floor(X)-77777)", "0/(abs(X)+abs(Y)-0.00001)", "0*log(abs(X)+abs(Y))", "0/(X[:,:1]-X[:,1:2])",
    "0*log(where(X==3.25,0,1))", "0*log(1.5-where(X==3.25,2,1))", "0/where(X==0.37,0,1)",
    "0/(1-where((X>0.3)&(X<0.3001),1,0))", "0/(step(X-1e30)-1)", "0/where(X>Y*1e20,0,1)", "0/where(X*X+Y*Y==Z*Z,0,1)",
    "0/(relu(X-1e6)*relu(-Y-1e6)-0.5)", "0/((X-1)*(X-1)+(Y-2)*(Y-2)+(Z+0.37)*(Z+0.37))", "0*f(X)", "0*g(X)",
    "0*(X+1e30)**0.3", "0/max(X+1e25,axis=1,keepdims=True)", "0/cumsum(relu(X-2),axis=1)", "0*log(clamp(X,-1,1)+1)",
    "0*(exp(where((X>0.3)&(X<0.3001),-inf,X))/exp(where((X>0.3)&(X<0.3001),-inf,X)))",
)  # fmt: skip
"""Added to `2 * Y + X * Z`: far away or in a narrow place there is no value."""
RARE = (
    # What stands behind a choice is needed where it is chosen.
    ("Y + where(X > 0, sqrt(Y + 1e30), 0)", " + 0 * sqrt(Y + 1e30)"),
    ("Y + where(X > 0, 1 / (Y + 1e30), 0)", " + 0 / (Y + 1e30)"),
    ("Y + where(X > 0, sqrt(Y + 1e30), 0)", " + where(X > -1e-20, 0 * sqrt(Y + 1e30), 0)"),
    ("where(X > 1e30, Y / sqrt(Z), Y)", " + where(X > 1e30, 0 * sqrt(-Z), 0)"),
    # Infinities that hardly any input chooses: nothing is 0 times them, or one less another.
    ("Y + X", " + 0 * where(X > -1e30, 1, -inf)"),
    ("Y + X", " + exp(where(X > -1e30, Y, -inf) - where(X > -1e30, Y, -inf)) - 1"),
    ("softmax(Y)", " + 0 * exp(where(X > -1e30, Y, -inf) - max(where(X > -1e30, Y, -inf), axis=1, keepdims=True))"),
    ("softmax(where(X > Y, Y, -inf))", " + 0 * softmax(where(X > -1e30, Y, -inf))"),
    ("X * Y", " + 0 * exp(relu(X + 1e30) * where(arange(4) > 1, 0, -inf))"),
    # Numbers that are the program's for whatever is drawn.
    ("Y / X", " + 0 / (X + 1e-20)"),
    ("Y / X", " + 0 / (X - 2 * relu(X - 1e30))"),
    ("Y / X", " + 0 / (X * tanh(X + 1e30))"),
    ("Y / X", " + 0 / (sqrt((X + 1e30) * (X + 1e30)) - 1e30)"),
    ("Y / X", " + 0 / (abs(X + 1e30) - 1e30)"),
    ("Y / X", " + 0 / (X * where(X > 1e30, 0, 1))"),
    ("Y / sqrt(X + 5)", " + 0 / (sqrt(X + 5) - 1e-20)"),
    ("Z / Y", " + 0 * (Z / (Y / (X * X * X - 1e37)) / (X * X * X - 1e37))"),
    # Other elements of the same numbers.
    ("Y / (X + 1e30)", " + 0 / (X[:, ::-1] + 1e30)"),
    ("Y * sqrt(X + 1e30)", " + 0 * sqrt(sum(X + 1e30, axis=1, keepdims=True))"),
    ("concat(Y[:, 1:] / (X[:, 1:] + 1e30), Y[:, :1], axis=1)", " + 0 / (X + 1e30)"),
)  # fmt: skip
"""A program, and what is added to it: hidden behind what hardly any input is."""
PARTIAL = (
    "relu(X)", "relu(X-5)", "(X+abs(X))", "maximum(X,Y)", "relu(sum(X,axis=1,keepdims=True))", "relu(X*Z)",
    "relu(X[:, ::-1])", "where(X>0,1,0)", "step(X)", "floor(relu(X))", "relu(-X-Y)", "relu(relu(X)-relu(Y))",
)  # fmt: skip
"""Factors, divided by themselves, beside roots that ask inputs for signs."""

LATER = """X: f32[2, 4]
Y: f32[2, 4]
I: i32[2]
M: bool[2, 4]
P = I[:, None]
"""
OF_PLACES = (
    # Masks and indices are whole numbers; what a choice does not take need not have a value, and must not be needed.
    ("where(M, X, Y)", "where(M, X, Y) + 0 / (1 - where(M, 1, 1) + where(X > 1e30, 0, 1))"),
    ("where(M, X, Y)", "where(M, X, Y + 0 * sqrt(Y + 1e30))"),
    ("where(M, X / Y, 0)", "where(M, X / Y, 0 / Y)"),
    ("where(M, X / Y, X)", "where(M, X, X * Y) / Y"),
    ("where(M, X / (Y + 1e30), X)", "where(M, X, X * (Y + 1e30)) / (Y + 1e30)"),
    ("where(M, sqrt(X), 0)", "sqrt(where(M, X, X)) * where(M, 1, 0)"),
    ("where(M, exp(X), 0)", "exp(where(M, X, -inf)) + 0 * where(M, 0, -inf)"),
    ("X * where(M, 1, 0)", "X * where(M, where(M, 1, 0), 0 * log(X + 1e30))"),
    ("X + where(P == arange(4), Y, 0)", "X + where(P == arange(4), Y, 0) + where(P == 77777, 0 / (X + 1e30), 0)"),
    ("X + where(P == arange(4), Y, 0)", "X + where(P == arange(4), Y, 0) + where(P == 77777, 1, 0)"),
    ("where(P == arange(4), X, 0)", "where(P == arange(4), X / (P + 1e20) * (arange(4) + 1e20), 0)"),
    ("X * P", "X * floor(P + 0.5)"),
    # Slices and masks of places.
    ("X[:, 1:] / Y[:, 1:]", "X[:, 1:] / Y[:, 1:] + 0 / Y[:, :3]"),
    ("X[:, ::2] / (Y[:, ::2] + 1e30)", "X[:, ::2] / (Y[:, ::2] + 1e30) + 0 / (Y[:, 1::2] + 1e30)"),
    ("where(arange(4) < 2, X / (Y + 1e30), X)", "where(arange(4) < 2, X, X * (Y + 1e30)) / (Y + 1e30)"),
    ("sum(where(arange(4) < 3, X / (Y + 1e30), 0), axis=1)", "sum(where(arange(4) < 3, X, 0) / (Y + 1e30), axis=1)"),
    ("cumsum(X / (Y + 1e30), axis=1)", "cumsum(X / (Y + 1e30), axis=1) + 0 / (Y[::-1] + 1e30)"),
    ("softmax(where(M, X, -inf))", "softmax(where(M, X, -1e30))"),
    ("exp(where(M, X, -inf))", "exp(where(M, X, -1e30))"),
    ("sum(exp(where(M, X, -inf)), axis=1)", "sum(exp(where(M, X, -inf) + where(M, 0, inf)), axis=1)"),
    # A need of one output is none of another one; nor is one at some rows one at all of them.
    ("X * 2, Y / (X + 1e30)", "X * 2 + 0 / (X + 1e30), Y / (X + 1e30)"),
    ("X / (Y * Y + 1)", "X / (Y * Y + 1) + 0 / (sqrt(Y * Y + 1) - 1e-30)"),
    ("maximum(X, Y) / maximum(X + 1e30, Y)", "maximum(X, Y) / maximum(X + 1e30, Y) + 0 / (X + 1e30)"),
)  # fmt: skip
"""Needs of other elements, and behind other choices."""

FOLDED = "for i in range(8):\n    M = max(repeat(M[None], 256, axis=0), axis=0)\nreturn M * Y"
"""The maximum of 2^64 times the same number."""

FAR = "B = X + 1e30\n"
HIDDEN = f"{FAR}T = prod((sqrt(B * B) - B) * 1e-30, axis=1, keepdims=True)\n"
"""Zero unless all of a row is far below zero; in a field, but for one row in sixteen."""
BY_ROOTS = {
    # What a trial leaves out, and the sign of a root, keep graphs alike.
    **{
        f"selected by the program's own roots of {zero}": (
            f"{FAR}R = {zero}\nreturn 2 * B + 0 * sqrt(R) + 0 * sqrt(R * B)",
            f"{FAR}R = {zero}\nreturn B + sqrt(B * B) + 0 * sqrt(R) + 0 * sqrt(R * B)",
        )
        for zero in ("relu(B)", "maximum(B, 0)", "relu(relu(B))", "relu(B) * sigmoid(Y)")
    },
    "hidden behind signs of roots": (f"{HIDDEN}return 2 * Y + 0 * X", f"{HIDDEN}return 2 * Y + T * T + 0 * X"),
    "needed behind signs of roots": (f"{HIDDEN}return Y / Z + 0 * T", f"{HIDDEN}return Y / Z + 0 / (Z + T) + 0 * T"),
}

SCALARS = "".join(f"{name}: f32[1]\n" for name in "XYZVW") + "M: f32[2, 2]\n"
OF_CHOICES = (
    # A combination of choices that chance may not draw, in what is needed and in where it is needed.
    ("Y / Z", "Y / Z + 0 / where(X > 1e30, where(Y > 1e31, where(V > 1e31, Z, W), Z), Z)"),
    ("Y / Z", "Y / Z + 0 / where(X > 1e30, where(Y > 1e31, where(V > 1e31, where(W > 1e31, W, Z), Z), Z), Z)"),
    ("where(X > 1e31, Y / W, Y)",
     "where(X > 1e31, Y / W, Y) + where(X > 1e30, where(Y > 1e31, where(V > 1e31, 0, 0 / W), 0), 0)"),
    ("Y / maximum(Z, X)", "Y / maximum(Z, X) + 0 / maximum(Z, maximum(X, V - 1e36))"),
    ("Y / (X + 1e37)", "Y / (X + 1e37) + 0 / (maximum(X, -1e37) + 1e37)"),
    ("Y / Z", "Y / Z + 0 / (Z * (1 - step(X - 1e30) * step(1e31 - X)))"),
    # A root that is not needed there leaves the element out of field trials.
    ("where(X == 3.25, Y, sqrt(Y))", "where(X == 3.25, sqrt(Y * Y), sqrt(Y))"),
    ("where(sqrt(X) == abs(X), Y * Y, sqrt(Y)) + X * Y",
     "where(sqrt(X) == abs(X), Y * Y, sqrt(Y)) + sqrt(X * Y * (X * Y))"),
    ("where(X > 1e30, Y, Y ** 1.5)", "where(X > 1e30, (Y * Y) ** 0.5, Y ** 1.5)"),
    # What no input makes, where inputs choose it.
    ("2 * X", "2 * X + where(X * Y * 1e-20 > 1e36, 0 * log(arange(1) * 1.0), 0)"),
    # In a field a root of a square is what was squared, half of the time.
    ("X + 1e30", "sqrt((X + 1e30) * (X + 1e30))"),
    ("exp(X + 1e30) * Y", "exp(((X + 1e30) ** 2) ** 0.5) * Y"),
    ("sqrt(X) * (Y + 1e30)", "sqrt(X * (Y + 1e30) * (Y + 1e30))"),
    # A tensor by itself is no square but element by element.
    ("2 * Y", "2 * Y + 0 * log(M @ M * 1e-30 + 1e36)[0, :1]"),
    ("2 * Y", "2 * Y + 0 * log(einsum('ij,jk->ki', M, M) * 1e-30 + 1e36)[0, :1]"),
)  # fmt: skip
"""Combinations of choices, and forms that are none."""


TABLES = "".join(f"{name}: f32[4, 6]\n" for name in "XYM") + "I: i64[4]\nT: f32[5, 6]\nW: f32[6, 6]\n"
OF_FUNCTIONS = (
    # Masks, choices, numbers that are rounded or picked, running sums, slices, convolutions, routing, other outputs.
    ("softmax(where(M, X, -inf))", "softmax(where(M * M, X, -inf)) + 0 * log(M * M)"),
    ("softmax(where(M, X, -inf))", "softmax(where(M * X, X, -inf))"),
    ("softmax(where(M > 0, X, -inf))", "softmax(where(M >= 0, X, -inf))"),
    ("softmax(where(M > 0, X, -inf))", "softmax(where(M > 1e-30, X, -inf))"),
    ("softmax(where(M > 0, X, -inf))", "softmax(X + where(M > 0, 0, -1e30))"),
    ("softmax(where(M > 0, X, -inf))", "softmax(where(M > 0, X, -1e30))"),
    ("where(M > 0, X, 0) + 0 * exp(where(M > 0, X, -inf))", "where(M > 0, X, 0) + 0 * exp(where(M > 0, X, inf))"),
    ("exp(where(M > 0, X, -inf))", "exp(where(M > 0, X, -inf)) * where(M == 7.25, 0, 1)"),
    ("exp(where(M > 0, X, -inf))",
     "exp(where(M > 0, X, -inf) - max(where(M > 0, X, -inf), axis=1, keepdims=True))"
     " * exp(max(where(M > 0, X, -inf), axis=1, keepdims=True))"),
    ("sum(exp(where(M > 0, X, -inf)), axis=1, keepdims=True)",
     "exp(log(sum(exp(where(M > 0, X, -inf)), axis=1, keepdims=True)))"),
    ("exp(where(M, X, -inf)) * Y", "exp(where(M, X, -inf)) * Y + 0 / M"),
    ("exp(where(M, X, -inf)) * Y", "where(M, exp(X) * Y, Y * 0 + where(X == 1, 1, 0))"),
    ("softmax(where(M > 0, X, -inf), axis=1)", "softmax(where(M > 0, X, -inf), axis=0)"),
    ("exp(where(M > 0, X, -inf) - max(X, axis=1, keepdims=True))",
     "exp(where(M > 0, X, -inf) - max(where(M > 0, X, -inf), axis=1, keepdims=True))"),
    ("exp(maximum(where(M > 0, X, -inf), where(Y > 0, X, -inf)))", "exp(where(M * Y > 0, X, -inf))"),
    ("exp(maximum(where(M > 0, X, -inf), where(Y > 0, X, -inf)))", "exp(where(M + Y > 0, X, -inf))"),
    ("1 / (1 + exp(0 - where(M > 0, X, -inf)))", "where(M > 0, sigmoid(X), 0.0001)"),
    ("sigmoid(where(M > 0, X, -inf))", "sigmoid(X) * step(M)"),
    ("exp(where(M > 0, X, -inf) * Y)", "where(M > 0, exp(X * Y), 0)"),
    ("exp(where(M > 0, X, -inf) * (0 - 2))", "where(M > 0, exp(0 - 2 * X), 0)"),
    ("exp(where(M > 0, X, -inf) / Y)", "where(M > 0, exp(X / Y), 0)"),
    ("exp(where(M > 0, X, -inf) + where(Y > 0, 0, -inf))",
     "exp(where(M > 0, X, -inf)) + exp(where(Y > 0, 0, -inf)) - 1"),
    ("relu(where(M > 0, X, -inf))", "where(M > 0, relu(X), relu(X))"),
    ("exp(where(where(M > 0, X, -inf) > 0, X, Y))", "exp(where(X > 0, X, Y))"),
    ("where(X > Y, X, Y)", "where(X > Y, X, Y) + where(X == Y, 1, 0)"),
    ("maximum(X, Y)", "where(X > Y + 1e-30, X, Y)"),
    ("maximum(X, Y)", "where(X * X > Y * Y, X, Y)"),
    ("abs(X)", "where(X > 0, X, -X) + 0 * log(X * X)"),
    ("clamp(X, -1, 2)", "where(X > 2, 2, where(X < -1, 1, X))"),
    ("clamp(X, -1, 2)", "where(X > 2, 2, where(X < -1.0001, -1, X))"),
    ("clamp(X, -1, 2)", "maximum(where(X > 2, -1, X), -1)"),
    ("clamp(X, 2, 2)", "2 + 0 * X + where(X == 2, 1, 0)"),
    ("step(X)", "(sign(X) + 1) / 2"),
    ("step(X) + step(-X)", "X - X + 1"),
    ("sign(X) * sign(X)", "X - X + 1"),
    ("sign(X)", "2 * step(X) - 1"),
    ("sign(X)", "X / abs(X)"),
    ("where(X >= Y, X, Y)",
     "where(X >= Y, X, Y) * where(M == M * M, 1, 1) + where(M == 0.5, M - 0.5, where(M == 0.25, 1, 0))"),
    ("X * step(X)", "X * step(X - 0.0001)"),
    ("floor(X)", "X - 0.5 + 0 * X"),
    ("floor(X + 0.5)", "X + 0 * floor(X)"),
    ("relu(where(X > 0, Y, M))", "where(X > 0, relu(Y), M)"),
    ("exp(where(X > 0, Y, M))", "where(X >= 0, exp(Y), exp(M))"),
    ("sqrt(where(X > 0, X, 0))", "where(X > 0, sqrt(X), 0) + 0 * sqrt(X)"),
    ("where(X > 0, sqrt(X), 0)", "sqrt(X) * step(X)"),
    ("f32(f16(X)) * 2", "X * 2 + 1e-30 * floor(X)"),
    ("trunc(X)", "floor(X)"),
    ("round(X)", "floor(X + 0.5)"),
    ("round(X)", "trunc(X)"),
    ("bool(X) * 1.0", "step(X)"),
    ("bool(X) * 1.0", "sign(X) * sign(X) * X"),
    ("X % 3", "X - 3 * trunc(X / 3)"),
    ("fmod(X, 3)", "X % 3"),
    ("X // 2", "trunc(X / 2)"),
    ("ceil(X)", "floor(X) + 1"),
    ("frac(X)", "X - floor(X)"),
    ("take(T, I)", "T[:4] * 1"),
    ("take(T, I)", "take(T, I) + where(I == 4, 1, 0)[:, None]"),
    ("one_hot(I, 5)", "one_hot(I + 1, 5)"),
    ("one_hot(I, 5) @ T", "one_hot(I, 5) @ T + 1e-20 * I[:, None]"),
    ("where(M[:, :1] == arange(5), 1, 0) @ T", "take(T, floor(M[:, 0]))"),
    ("one_hot(I, 5) @ T", "take(T, abs(I))"),
    ("gather(X, one_hot(I, 4) * 1.0, 1)[:, :4]", "X[:, :4] * 1"),
    ("take(T, I)", "take(T, minimum(I, 3))"),
    ("take(T, clamp(I, 0, 4))", "take(T, I)"),
    ("cumsum(X, axis=1)", "cumsum(X, axis=0)"),
    ("cumsum(X, axis=1)", "cumsum(X, axis=1) + where(arange(6) == 5, 1, 0) * X * 1e-20"),
    ("cumsum(X, axis=1)", "X @ triu(W - W + 1, 1) + 0 * X"),
    ("cumsum(X, axis=1)", "flip(cumsum(flip(X, 1), axis=1), 1)"),
    ("cumsum(cumsum(X, axis=0), axis=1)", "cumsum(cumsum(X, axis=1), axis=1)"),
    ("cumprod(X, axis=1)", "exp(cumsum(log(X), axis=1))"),
    ("prod(X, axis=1)", "exp(sum(log(abs(X)), axis=1))"),
    ("logcumsumexp(X, 1)", "log(cumsum(exp(X), axis=1)) + 1e-9 * cumsum(X, axis=1)"),
    ("X[:, ::2] * 1", "X[:, 1::2] * 1"),
    ("X[:, ::-1] * 1", "roll(X, 1, 1) * 1"),
    ("flip(X, 0) * 1", "flip(X, 1) * 1"),
    ("X[:, :3] + X[:, 3:]", "X[:, ::2] + X[:, 1::2]"),
    ("concat(X[:, :2], X[:, 2:], axis=1) * 1", "concat(X[:, 2:], X[:, :2], axis=1) * 1"),
    ("X[1:] - X[:-1]", "X[:-1] - X[1:]"),
    ("diff(X)", "-1 * diff(flip(X, 1))"),
    ("X[:, 5:] * Y[:, :1]", "X[:, :1] * Y[:, 5:]"),
    ("roll(X, 2, 1) * 1", "roll(X, -2, 1) * 1"),
    ("reshape(X, 6, 4) * 1", "transpose(X) * 1"),
    ("reshape(X, 2, 12)[:, ::2] * 1", "reshape(X[:, ::2], 2, 6) * 1.000000001"),
    ("tril(W) * 1", "triu(W) * 1"),
    ("diag(W)", "sum(W, axis=0) / 6"),
    ("trace(W)", "sum(W) / 6"),
    ("tril(W, -1) + triu(W)", "W * 1 + tril(W, -1) * 1e-20"),
    ("conv1d(reshape(X, 1, 4, 6), reshape(T[:, :4], 1, 4, 5))",
     "conv1d(reshape(X, 1, 4, 6), flip(reshape(T[:, :4], 1, 4, 5), 2))"),
    ("conv1d(reshape(X, 1, 4, 6), reshape(T[:, :4], 5, 4, 1))",
     "conv1d(reshape(X, 1, 4, 6), reshape(T[:, 1:5], 5, 4, 1))"),
    ("softmax(where(X >= max(X, axis=1, keepdims=True), X, -inf))",
     "where(X >= max(X, axis=1, keepdims=True), 1, 0) * 1.0"),
    ("where(X >= max(X, axis=1, keepdims=True), X, 0)", "where(X > max(X, axis=1, keepdims=True), X, 0)"),
    ("argmax(X, 1) * 1.0", "argmin(-1 * X, 1) * 1.0 + where(X[:, 0] == X[:, 1], 1, 0)"),
    ("argmax(X, 1) * 1.0", "argmax(X * X, 1) * 1.0"),
    ("max(where(X < max(X, axis=1, keepdims=True), X, -inf), axis=1)", "max(X[:, 1:], axis=1) * 1"),
    ("sum(where(X >= max(X, axis=1, keepdims=True), Y, 0), axis=1)",
     "max(where(X >= max(X, axis=1, keepdims=True), Y, -inf), axis=1) * 1"),
    ("sum(one_hot(argmax(X, 1), 6) * Y, axis=1)", "sum(where(X >= max(X, axis=1, keepdims=True), Y, 0), axis=1)"),
    ("X + Y, X - Y", "X - Y, X + Y"),
    ("mean(X, axis=1)", "sum(X, axis=1) / 5"),
    ("var(X, axis=1)", "var(X[:, :5], axis=1) * 1"),
    ("std(X, axis=1)", "sqrt(mean(X * X, axis=1))"),
    ("norm(X)", "sum(abs(X))"),
    ("rms_norm(X, Y[0])", "layer_norm(X, Y[0], Y[0] * 0)"),
    ("log_softmax(X)", "log_softmax(X) + 0 * log(X * X)"),
    ("log_softmax(X)", "X - max(X, axis=1, keepdims=True)"),
    ("logsumexp(X, 1)", "max(X, axis=1) + 0 * sum(X, axis=1)"),
    ("softmax(X) @ W", "softmax(X + 1e20) @ W - 1e-20 * X"),
    ("hypot(X, Y)", "abs(X) + abs(Y)"),
    ("gelu(X)", "gelu_tanh(X)"),
    ("silu(X)", "quick_gelu(X)"),
    ("relu6(X)", "relu(X) - relu(X - 5.9999999)"),
    ("hardtanh(X)", "tanh(X)"),
    ("cdist(X, Y)", "sqrt(sum(X * X, axis=1)[:, None] + sum(Y * Y, axis=1) - X @ transpose(Y))"),
    ("heaviside(X, Y)", "step(X)"),
    ("threshold(X, 1, 2)", "where(X >= 1, X, 2)"),
    ("leaky_relu(X)", "maximum(X, 0.011 * X)"),
    ("elu(X)", "where(X > 0, X, expm1(X) * 1.0000001)"),
    ("sinc(X)", "sin(X) / X"),
    ("einsum('ij,kj->ik', X, Y)", "einsum('ij,kj->ki', Y, X) * 1.00000000001"),
    ("einsum('ii->i', W)", "einsum('ij->i', W)"),
    ("kron(X, Y)", "kron(Y, X)"),
    # Numbers beyond a type, places that are none, ties, turned windows, rotations the wrong way round.
    ("f32(f16(X)) * 2", "clamp(X, -65504, 65504) * 2"),
    ("f32(f16(X)) * 2", "X * 2 + where(X == 65520, 1, 0)"),
    ("X // Y", "trunc(X / Y)"),
    ("X % Y", "abs(X) % abs(Y)"),
    ("X % Y", "X - Y * floor(X / Y) + where(X == Y, 1e-20, 0)"),
    ("take(T, I)", "take(T, I % 5)"),
    ("take(T, I)", "take(T, where(I < 0, I + 5, I))"),
    ("take(T, I)", "take(concat(T, T[:1], axis=0), I)"),
    ("take(T, I)", "take(T[1:], I - 1)"),
    ("gather(X, one_hot(I, 6) * 2, 1)", "gather(X, one_hot(I, 6) * 2, 0)"),
    ("one_hot(I, 5)", "one_hot(abs(I), 5)"),
    ("cummax(X, 1)", "flip(cummax(flip(X, 1), 1), 1)"),
    ("cummax(X, 1)", "cummax(X, 1) + where(X[:, :1] == X[:, 1:2], 1, 0)"),
    ("cummax(X, 1)", "cummax(maximum(X, -1e30), 1)"),
    ("argmax(X, 1) * 1.0", "5 - argmax(flip(X, 1), 1) * 1.0"),
    ("argmax(X, 1) * 1.0", "argmax(relu(X), 1) * 1.0"),
    ("flip(cumsum(flip(X, 1), 1), 1)", "sum(X, axis=1, keepdims=True) - cumsum(X, 1)"),
    ("torch.pad(X, (1, 1), mode='reflect')", "torch.pad(X, (1, 1), mode='replicate')"),
    ("torch.pad(X, (2, 0), value=1)", "torch.pad(X, (2, 0)) + 1"),
    ("max_pool1d(X[None], 3, stride=1, padding=1)", "max_pool1d(relu(X[None]), 3, stride=1, padding=1)"),
    ("conv1d(X[None], W[:, :4, None] * Y[0, :3], padding=1)",
     "conv1d(X[None], W[:, :4, None] * Y[0, :3][::-1], padding=1)"),
    ("concat(X[:, :3] * cos(Y[:, :3]) - X[:, 3:] * sin(Y[:, :3]), X[:, 3:] * cos(Y[:, :3]) + X[:, :3] * sin(Y[:, :3]), "
     "axis=1)",
     "concat(X[:, :3] * cos(Y[:, :3]) + X[:, 3:] * sin(Y[:, :3]), X[:, 3:] * cos(Y[:, :3]) - X[:, :3] * sin(Y[:, :3]), "
     "axis=1)"),
    ("sin(X) * sin(X) + cos(X) * cos(X)", "X * 0 + 1 + where(X == 3, 1, 0)"),
    ("sin(X)", "sin(X + 6.283185307179586)"),
    ("exp(X)", "exp(clamp(X, -88, 88))"),
    ("where(X > 0, sqrt(X), 0)", "sqrt(maximum(X, 1e-30))"),
    ("where(X != 0, Y / X, 0)", "Y * X / (X * X + 1e-30)"),
    ("X * 2, Y * 2, X * 3", "X * 2, Y * 2, X * 2 + Y"),
    # Two of these at once: masks of infinities, concatenations, choices that are maxima, partitions that do not nest.
    ("softmax(concat(where(M > 0, X, -inf), Y, axis=1))",
     "softmax(concat(where(M > 0, X, -inf), where(M >= 0, Y, -inf), axis=1))"),
    ("sum(exp(concat(where(M > 0, X, -inf), Y, axis=1)), axis=1)",
     "sum(exp(where(M > 0, X, -inf)), axis=1) + sum(exp(Y) * where(M == 3.5, 0, 1), axis=1)"),
    ("max(concat(X, where(M > 0, Y, -inf), axis=1), axis=1) * 1",
     "maximum(max(X, axis=1), max(where(M > 0, Y, -1e30), axis=1)) * 1"),
    ("exp(where(M > 0, where(X > Y, X, Y), -inf))",
     "maximum(exp(where(M > 0, X, -inf)), exp(where(M >= 0, Y, -inf)))"),
    ("exp(where(M > 0, X, -inf) - max(concat(where(M > 0, X, -inf), Y, axis=1), axis=1, keepdims=True))",
     "exp(where(M > 0, X, -inf) - maximum(max(where(M > 0, X, 0), axis=1, keepdims=True), "
     "max(Y, axis=1, keepdims=True)))"),
    ("softmax(where(M > 0, X, -inf))",
     "where(M > 0, exp(X), 0) / maximum(sum(where(M > 0, exp(X), 0), axis=1, keepdims=True), 1e-30)"),
    ("where(X > Y, where(X > M, X, M), where(Y > M, Y, M))", "where(X > M, where(X > Y, X, Y), where(M > Y, M, X))"),
    ("where(X > Y, X + 1, Y + 1) - where(X < Y, X, Y)",
     "where(X >= Y, X - Y + 1, Y - X + 1) * where(X == Y, 2, 1)"),
    ("softmax(where(arange(6) <= arange(4)[:, None], X, -inf)) @ W",
     "where(arange(6) <= arange(4)[:, None], exp(X), 0) @ W / "
     "sum(where(arange(6) < arange(4)[:, None] + 2, exp(X), 0), axis=1, keepdims=True)"),
    ("concat(X[:, :2], Y[:, 2:], axis=1) @ W", "X[:, :3] @ W[:3] + Y[:, 3:] @ W[3:]"),
    ("sum(exp(max(reshape(X, 4, 2, 3), axis=2)), axis=1)", "sum(exp(max(reshape(X, 4, 3, 2), axis=1)), axis=1) * 1"),
    ("prod(X, axis=1)", "prod(X[:, :3], axis=1) * prod(X[:, 2:], axis=1) / X[:, 2]"),
)  # fmt: skip
"""What a function is not: its neighbours, and itself with a corner, an axis or a bound changed."""


def _asking(factor: str) -> tuple[str, str]:
    value = "sqrt(Y) * sqrt(Z - 3) + X"
    return value, f"({value}) * {factor} / {factor}"


def _made() -> Mapping[str, tuple[str, str]]:
    """Every attack by what the candidate returns."""
    groups = (
        (HEAD, [("2 * Y + X * Z", f"2 * Y + X * Z + {added}") for added in ADDED]),
        (HEAD, [(value, value + added) for value, added in RARE]),
        (HEAD, [_asking(factor) for factor in PARTIAL]),
        (LATER, OF_PLACES),
        (SCALARS, OF_CHOICES),
        (TABLES, OF_FUNCTIONS),
    )
    found = {name: (ON_BOTH_LINES + left, ON_BOTH_LINES + right) for name, (left, right) in BOTH.items()}
    maxima = f"{HEAD}M = X * Y\n{FOLDED}", f"{HEAD}M = X * Y + relu(X - 1e30)\n{FOLDED}"
    found |= {"folded 2^64 times": maxima}
    found |= {name: (HEAD + left, HEAD + right) for name, (left, right) in BY_ROOTS.items()}
    for head, pairs in groups:
        found |= {f"{left} ~ {right}": (f"{head}return {left}", f"{head}return {right}") for left, right in pairs}
    return found


ATTACKS: Mapping[str, tuple[str, str]] = _made()


def refused(name: str) -> Verdict | None:
    """What is said of the candidate of an attack, with a proof if it comes to that; None if it cannot be read."""
    try:
        program, candidate = (parse(text).graph for text in ATTACKS[name])
    except MirageError:
        return None
    verdict = verify(program, candidate)
    return verdict if verdict.accepted else with_proof(verdict, program, candidate)[0]
