"""The rules of the prover for sines and cosines: those of one angle are taken together, those of sums apart.

In: a term whose parts are in normal form. Out: the next step, or None. So a product has the sine of an angle at most
once, and rotations, of positions for example, become polynomials in the sines and cosines of their angles.
"""

from __future__ import annotations

from mirage_nb.verify.proof.known import Known, split, step, without
from mirage_nb.verify.proof.steps import Step
from mirage_nb.verify.proof.terms import Kind, Term, add, mul, num

MAX_ANGLES = 3
"""Of a sum whose sine is taken apart: each of them doubles what there is."""


def circle(known: Known, term: Term) -> Step | None:
    """The square of a sine is one minus that of the cosine."""
    for place, part in enumerate(term.args):
        if part.kind is Kind.FN and part.data == "sin" and part in term.args[:place]:
            return step("circle", a=part.args[0], r=mul(*without(term.args, place, term.args.index(part))))
    return None


def angles(known: Known, term: Term) -> Step | None:
    """The sine or cosine of a sum, and of an even multiple."""
    if term.data not in ("sin", "cos"):
        return None
    name = {"sin": "sine", "cos": "cosine"}[term.data]
    (angle,) = term.args
    if angle.kind is Kind.ADD and len(angle.args) <= MAX_ANGLES:
        return step(f"{name}_sum", a=angle.args[0], b=add(*angle.args[1:]))
    number, rest = split(angle)
    if number.data > 0 and number.data % 2 == 0:
        return step(f"{name}_twice", a=mul(num(number.data / 2), rest))
    return None
