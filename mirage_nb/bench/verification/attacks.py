"""Wrong candidates that were made to be taken for equal: what a verifier has to refuse, whoever asks.

In: nothing. Out: `ATTACKS`: a program and a candidate by name, both as texts. Each was accepted once, or is a relative
of one that was. Most differ from their program in a corner of the reals only: a value that is missing far away, at one
point, behind a choice that hardly any input takes, or that a field shows to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

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


def _sections(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The sections of a text: what each declares, and its pairs, a line each: what a program returns ~ what a candidate
    does."""
    found = []
    for section in text.split("\n## ")[1:]:
        head, _, pairs = section.partition("\n")[2].partition("\n\n")
        lines = [line.split(" ~ ") for line in pairs.splitlines() if line and not line.startswith("#")]
        found.append((f"{head}\n", [(left, right) for left, right in lines]))
    return found


SECTIONS = _sections((resources.files("mirage_nb.bench.verification") / "attacks.mirage").read_text(encoding="utf-8"))
HEAD = SECTIONS[0][0]
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


def _made() -> Mapping[str, tuple[str, str]]:
    """Every attack by what the candidate returns."""
    found = {name: (ON_BOTH_LINES + left, ON_BOTH_LINES + right) for name, (left, right) in BOTH.items()}
    maxima = f"{HEAD}M = X * Y\n{FOLDED}", f"{HEAD}M = X * Y + relu(X - 1e30)\n{FOLDED}"
    found |= {"folded 2^64 times": maxima}
    found |= {name: (HEAD + left, HEAD + right) for name, (left, right) in BY_ROOTS.items()}
    for head, pairs in SECTIONS:
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
